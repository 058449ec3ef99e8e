"""Calls of a BERT, the results that are expected, and the cause of a wrong one."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Explained, Raised, Violation
from attnspec.conformance.models.bounds.enclosure import Arithmetic
from attnspec.conformance.operators.bert.bounds import Forward, forward
from attnspec.conformance.operators.bert.case import BertCase
from attnspec.conformance.operators.bert.mistakes import MISTAKES
from attnspec.conformance.operators.bert.steps import Steps
from attnspec.conformance.operators.gated_mlp.subject import Allowed
from attnspec.conformance.operators.subject import OperatorCall, OperatorSubject, checked
from attnspec.reference.encoder import build
from attnspec.spec.encoder import BertConfig, BertImplementation, BertProfile

AXES = ("text", "position", "channel")
"""Names of the axes of a state in a message."""

Weights = Mapping[str, torch.Tensor]
Inputs = Mapping[str, torch.Tensor]


@dataclass(kw_only=True)
class BertSubject(OperatorSubject):
    """A BERT under test."""

    implementation: BertImplementation

    @property
    def profile(self) -> BertProfile:
        """The declared answers."""
        return self.implementation.profile

    @property
    def is_reference(self) -> bool:
        """True for the reference, which torch's functions judge."""
        return self.implementation.function is build

    def call(
        self,
        config: BertConfig,
        weights: Weights,
        inputs: Inputs,
        *,
        states: bool = False,
        pooled: bool = False,
    ) -> dict[str, torch.Tensor]:
        """Build a model and call it; return its results by name, checked for form.

        Args:
            config: the sizes.
            weights: the parameters.
            inputs: ids, and mask and token types if there are any.
            states: whether hidden states are requested.
            pooled: whether pooled vectors are.

        Raises:
            Raised: if the function or the model raises.
            Violation: if a result has a wrong form.
        """
        options: dict[str, Any] = {n: each.clone() for n, each in inputs.items()}
        ids = options.pop("input_ids")
        if states or pooled:
            options["output_hidden_states" if states else "output_pooled"] = True
        kept = {name: each.clone() for name, each in weights.items()}

        def make() -> Any:
            with torch.no_grad():
                return self.implementation.function(config, kept)(ids, **options)

        try:
            got = self.run(OperatorCall(tensors={}, arguments=()), make)
        finally:
            # a call that is described by its case: parameters make no short snippet
            self.last_call = None
        return _by_name(got, config, inputs, _dtype(weights), states=states, pooled=pooled)

    def expect(self, config: BertConfig, weights: Weights, inputs: Inputs) -> dict[str, Allowed]:
        """Return the exact results by name in float64, and the distances that are allowed."""
        wide = {name: each.double() for name, each in weights.items()}
        make = Steps if self.is_reference else build
        values = results(make(config, wide), inputs)
        own = forward(config, weights, inputs, Arithmetic.of(_dtype(weights)))
        # the oracle rounds too
        oracle = forward(config, weights, inputs, Arithmetic.of(torch.float64))
        first, second = _radii(own), _radii(oracle)
        return {
            name: Allowed(value=value, bound=first[name] + second[name])
            for name, value in values.items()
        }

    def judge_case(self, case: BertCase, message: str) -> None:
        """Check the results of a case against the definition."""
        self.judge(case, case.draw_parameters(), case.draw(), message)

    def judge(
        self,
        case: BertCase,
        weights: Weights,
        inputs: Inputs,
        message: str,
        *,
        only: str = "",
    ) -> dict[str, torch.Tensor]:
        """Check the results of a call at all real positions, and return them.

        Args:
            case: the sizes, and what is requested.
            weights: the parameters.
            inputs: ids, and mask and token types if there are any.
            message: the meaning of a wrong result.
            only: the word with which the names of the results begin that are checked.

        Raises:
            Explained: naming what a wrong model does, if there is a name for it.
            Violation: with the message.
        """
        expected = self.expect(case.config, weights, inputs)
        got = self.call(case.config, weights, inputs, states=case.states, pooled=case.pooled)
        judged = {name: each for name, each in expected.items() if name.startswith(only)}
        try:
            check_results(got, judged, inputs, message)
        except Violation as error:
            cause = self.cause(case, weights, inputs)
            if cause:
                raise Explained(cause, error.mismatch) from None
            raise
        return got

    def cause(self, case: BertCase, weights: Weights, inputs: Inputs) -> str:
        """Return the first stage of a call that diverges, and what is done there instead.

        Hidden states are requested if they are claimed. One mistake is looked for, and then two.

        Returns:
            Words, or an empty string if no mistake of the list gives this result.
        """
        expected = self.expect(case.config, weights, inputs)
        got: dict[str, torch.Tensor] = {}
        has_states = "hidden_states" in self.implementation.features
        with suppress(Raised, Violation):
            got = self.call(case.config, weights, inputs, states=has_states)
            if case.pooled:
                got |= self.call(case.config, weights, inputs, pooled=True)
        order = [*(name for name in expected if name.startswith("state")), "logits", "pooled"]
        stage = next(
            (
                name
                for name in order
                if name in got and not _is_near(got[name], expected[name], inputs)
            ),
            "",
        )
        if not stage:
            return ""
        wide = {name: each.double() for name, each in weights.items()}
        where = f"{_words(stage)}: " if has_states or stage == "pooled" else ""
        for count in (1, 2):
            fitting = []
            for mistakes in combinations(MISTAKES, count):
                base = type("Mistaken", mistakes, {})
                wrong = results(base(case.config, wide), inputs)
                allowed = Allowed(value=wrong[stage], bound=expected[stage].bound)
                if _is_near(got[stage], allowed, inputs):
                    fitting.append(" and ".join(each.title for each in mistakes))
            if fitting:
                return where + " or ".join(fitting[:3])
        return f"{_words(stage)} is the first stage that diverges" if has_states else ""


def results(model: Any, inputs: Inputs) -> dict[str, torch.Tensor]:
    """Return every result of a model by its name, the states first."""
    options = dict(inputs)
    ids = options.pop("input_ids")
    with torch.no_grad():
        logits, states = model(ids, output_hidden_states=True, **options)
        _, pooled = model(ids, output_pooled=True, **options)
    named = {f"state {place}": each for place, each in enumerate(states)}
    return {**named, "logits": logits, "pooled": pooled}


def _radii(enclosed: Forward) -> dict[str, torch.Tensor]:
    named = {f"state {place}": each.radius for place, each in enumerate(enclosed.states)}
    return {**named, "logits": enclosed.logits.radius, "pooled": enclosed.pooled.radius}


def _dtype(weights: Weights) -> torch.dtype:
    return weights["cls.predictions.bias"].dtype


def _words(stage: str) -> str:
    """Return the name of a stage for a message."""
    names = {"state 0": "the embeddings", "logits": "the head", "pooled": "the pooler"}
    return names.get(stage, f"block {int(stage.split()[-1]) - 1}" if stage[-1].isdigit() else stage)


def _real(inputs: Inputs, value: torch.Tensor) -> torch.Tensor:
    """Return true for what belongs to real positions."""
    mask = inputs.get("attention_mask")
    if mask is None or value.dim() < 3:
        return torch.ones_like(value, dtype=torch.bool)
    return mask.bool()[..., None].expand_as(value)


def _is_near(got: torch.Tensor, allowed: Allowed, inputs: Inputs) -> bool:
    """Return whether a result is another at all real positions."""
    is_real = _real(inputs, got)
    near = (got.double() - allowed.value).abs() <= allowed.bound
    return bool(near[is_real].all())


def check_results(
    got: Mapping[str, torch.Tensor],
    expected: Mapping[str, Allowed],
    inputs: Inputs,
    message: str,
) -> None:
    """Check results at all real positions, the states first.

    Raises:
        Violation: with the message.
    """
    for name, allowed in expected.items():
        if name in got:
            is_real = _real(inputs, allowed.value)
            check_close(
                torch.where(is_real, got[name].double(), 0.0),
                torch.where(is_real, allowed.value, 0.0),
                torch.where(is_real, allowed.bound, 0.0),
                what=name,
                message=message,
                axes=AXES if allowed.value.dim() == 3 else AXES[::2],
            )


def _by_name(
    got: Any,
    config: BertConfig,
    inputs: Inputs,
    dtype: torch.dtype,
    *,
    states: bool,
    pooled: bool,
) -> dict[str, torch.Tensor]:
    """Return the results of a call by name, checked for form."""
    shape = tuple(inputs["input_ids"].shape)
    of_logits, of_states = (*shape, config.vocab_size), (*shape, config.hidden_size)
    if not states and not pooled:
        return {"logits": checked(got, of_logits, dtype, "logits")}
    if not (isinstance(got, tuple) and len(got) == 2):
        what = "states" if states else "pooled"
        raise Violation(f"the result must be (logits, {what}), got {type(got).__name__}")
    result = {"logits": checked(got[0], of_logits, dtype, "logits")}
    if pooled:
        pooled_shape = (shape[0], config.hidden_size)
        return result | {"pooled": checked(got[1], pooled_shape, dtype, "pooled")}
    count = config.num_hidden_layers + 1
    if len(got[1]) != count:
        raise Violation(f"{count} hidden states are expected, got {len(got[1])}")
    named = {f"state {place}": each for place, each in enumerate(got[1])}
    return result | {name: checked(each, of_states, dtype, name) for name, each in named.items()}
