"""Calls of a BERT, and the results that are expected."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.models.bounds.backward import Gradients
from attnspec.conformance.models.bounds.enclosure import Arithmetic
from attnspec.conformance.operators.bert.bounds import forward
from attnspec.conformance.operators.bert.case import BertCase
from attnspec.conformance.operators.bert.gradients import gradients
from attnspec.conformance.operators.bert.mistakes import MISTAKES
from attnspec.conformance.operators.bert.steps import Steps
from attnspec.conformance.operators.built_model import (
    BuiltModelSubject,
    Inputs,
    ModelRun,
    Results,
    Weights,
)
from attnspec.conformance.operators.subject import checked
from attnspec.reference.encoder import build
from attnspec.spec.encoder import BertConfig, BertImplementation, BertProfile


@dataclass(kw_only=True)
class BertSubject(BuiltModelSubject):
    """A BERT under test."""

    implementation: BertImplementation

    MISTAKES = MISTAKES
    UNUSED = ("bert.pooler",)

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
        case: BertCase,
        weights: Weights,
        inputs: Inputs,
        *,
        states: bool = False,
        pooled: bool = False,
    ) -> Results:
        """Build a model and call it; return its results by name, checked for form.

        Args:
            case: the sizes.
            weights: the parameters.
            inputs: ids, and mask and token types if there are any.
            states: whether hidden states are requested.
            pooled: whether pooled vectors are.

        Raises:
            Raised: if the function or the model raises.
            Violation: if a result has a wrong form.
        """
        options: dict[str, Any] = {n: each.clone() for n, each in inputs.items()}
        if states or pooled:
            options["output_hidden_states" if states else "output_pooled"] = True
        kept = {name: each.clone() for name, each in weights.items()}
        given = dict(options)
        ids = given.pop("input_ids")
        got = self.run_model(
            ModelRun(
                case=case,
                weights=weights,
                arguments=options,
                places=_places(case, states=states, pooled=pooled),
            ),
            lambda: self.implementation.function(case.config, kept)(ids, **given),
        )
        dtype = weights["cls.predictions.bias"].dtype
        return _by_name(got, case.config, inputs, dtype, states=states, pooled=pooled)

    def results(
        self, case: BertCase, weights: Weights, inputs: Inputs, base: type | None
    ) -> Results:
        """Return every result of a model by its name, the states first."""
        model = base(case.config, weights, self.profile) if base else self.oracle(case, weights)
        return results(model, inputs)

    def radii(
        self, case: BertCase, weights: Weights, inputs: Inputs, arithmetic: Arithmetic
    ) -> Results:
        """Return the largest error of every result by its name."""
        enclosed = forward(case.config, weights, inputs, self.profile, arithmetic)
        named = {f"state {place}": each.radius for place, each in enumerate(enclosed.states)}
        return {**named, "logits": enclosed.logits.radius, "pooled": enclosed.pooled.radius}

    def oracle(self, case: BertCase, weights: Weights) -> Any:
        """Return a correct model: torch's functions judge the reference."""
        make: Any = Steps if self.is_reference else build
        return make(case.config, weights, self.profile)

    def enclose_gradients(
        self, case: BertCase, weights: Weights, inputs: Inputs, arithmetic: Arithmetic
    ) -> Gradients:
        """Enclose the gradient of every parameter but the pooler's."""
        config, profile = case.config, self.profile
        enclosed = forward(config, weights, inputs, profile, arithmetic)
        cotangent = case.draw_cotangent().double()
        return gradients(config, weights, inputs, profile, enclosed, cotangent, arithmetic)

    def call_case(self, case: BertCase, weights: Weights, inputs: Inputs) -> Results:
        """Return the results that a case requests."""
        return self.call(case, weights, inputs, states=case.states, pooled=case.pooled)

    def call_all(self, case: BertCase, weights: Weights, inputs: Inputs) -> Results:
        """Return hidden states if they are claimed, and pooled vectors if they are requested."""
        has_states = "hidden_states" in self.implementation.features
        got = self.call(case, weights, inputs, states=has_states)
        if case.pooled:
            got |= self.call(case, weights, inputs, pooled=True)
        return got

    def is_real(self, name: str, value: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """Return true for what belongs to real positions."""
        mask = inputs.get("attention_mask")
        if mask is None or value.dim() < 3:
            return torch.ones_like(value, dtype=torch.bool)
        return mask.bool()[..., None].expand_as(value)

    def stage(self, name: str) -> str:
        """Return the stage that computes a result."""
        names = {"state 0": "the embeddings", "logits": "the head", "pooled": "the pooler"}
        return names.get(name) or f"block {int(name.split()[-1]) - 1}"


def results(model: Any, inputs: Inputs) -> Results:
    """Return every result of a model by its name, the states first."""
    options = dict(inputs)
    ids = options.pop("input_ids")
    with torch.no_grad():
        logits, states = model(ids, output_hidden_states=True, **options)
        _, pooled = model(ids, output_pooled=True, **options)
    named = {f"state {place}": each for place, each in enumerate(states)}
    return {**named, "logits": logits, "pooled": pooled}


def _places(case: BertCase, *, states: bool, pooled: bool) -> Mapping[str, str]:
    """Return the code of each result of a call."""
    if not states and not pooled:
        return {"logits": "out"}
    named = {f"state {place}": f"out[1][{place}]" for place in range(case.layers + 1)}
    return {"logits": "out[0]", **(named if states else {"pooled": "out[1]"})}


def _by_name(
    got: Any,
    config: BertConfig,
    inputs: Inputs,
    dtype: torch.dtype,
    *,
    states: bool,
    pooled: bool,
) -> Results:
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
