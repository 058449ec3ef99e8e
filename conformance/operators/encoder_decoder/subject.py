"""Calls of an encoder-decoder, and the results that are expected."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.models.bounds.backward import Gradients
from attnspec.conformance.models.bounds.enclosure import Arithmetic
from attnspec.conformance.operators.built_model import (
    BuiltModelSubject,
    Inputs,
    ModelRun,
    Results,
    Weights,
)
from attnspec.conformance.operators.encoder_decoder.bounds import forward
from attnspec.conformance.operators.encoder_decoder.case import EncoderDecoderCase
from attnspec.conformance.operators.encoder_decoder.gradients import gradients
from attnspec.conformance.operators.encoder_decoder.mistakes import MISTAKES
from attnspec.conformance.operators.encoder_decoder.steps import Steps
from attnspec.conformance.operators.subject import checked
from attnspec.reference.encoder_decoder import build
from attnspec.spec.encoder_decoder import EncoderDecoderImplementation, EncoderDecoderProfile

STEPPED = "logits of the steps"
"""The name of the logits that steps return, joined."""


@dataclass(kw_only=True)
class EncoderDecoderSubject(BuiltModelSubject):
    """An encoder-decoder under test."""

    implementation: EncoderDecoderImplementation

    MISTAKES = MISTAKES
    IDS = ("input_ids", "decoder_input_ids")

    @property
    def profile(self) -> EncoderDecoderProfile:
        """The declared answers."""
        return self.implementation.profile

    @property
    def is_reference(self) -> bool:
        """True for the reference, which torch's functions judge."""
        return self.implementation.function is build

    def fit(self, case: EncoderDecoderCase) -> EncoderDecoderCase:
        """Return a case in a storage type and with positions that are claimed."""
        features = self.implementation.features
        if not case.learned and "sinusoidal" not in features:
            case = case.but(learned=True)
        fitted: EncoderDecoderCase = super().fit(case)
        return fitted

    def call(
        self,
        case: EncoderDecoderCase,
        weights: Weights,
        inputs: Inputs,
        *,
        states: bool = False,
    ) -> Results:
        """Build a model and call it with all target tokens; return its results by name.

        Args:
            case: the sizes.
            weights: the parameters.
            inputs: ids of both sides, and masks if there are any.
            states: whether hidden states are requested.

        Raises:
            Raised: if the function or the model raises.
            Violation: if a result has a wrong form.
        """
        options: dict[str, Any] = {n: each.clone() for n, each in inputs.items()}
        if states:
            options["output_hidden_states"] = True
        given = dict(options)
        ids = given.pop("input_ids"), given.pop("decoder_input_ids")
        run = ModelRun(
            case=case, weights=weights, arguments=options, places=_places(case, states=states)
        )
        got = self.run_model(run, lambda: self.build(case, weights)(*ids, **given))
        return _by_name(got, case, inputs, _dtype(weights), states=states)

    def build(self, case: EncoderDecoderCase, weights: Weights) -> Any:
        """Return the model of a copy of the parameters."""
        kept = {name: each.clone() for name, each in weights.items()}
        return self.implementation.function(case.config, kept)

    def call_steps(self, case: EncoderDecoderCase, weights: Weights, inputs: Inputs) -> Results:
        """Build a model and call it step by step; return the logits of all steps, joined.

        Raises:
            Raised: if the function or the model raises.
            Violation: if the logits have a wrong form.
        """
        given = {n: each.clone() for n, each in inputs.items() if n in _OF_SOURCE}
        parts = inputs["decoder_input_ids"].split(list(case.chunks), dim=1)
        run = ModelRun(
            case=case, weights=weights, arguments=given, chunks=parts, places={STEPPED: "out"}
        )
        rows = self.run_model(run, lambda: logits_of_steps(self.build(case, weights), given, parts))
        got = [
            checked(row, (*part.shape, case.vocab), _dtype(weights), f"logits of step {place}")
            for place, (row, part) in enumerate(zip(rows, parts, strict=True))
        ]
        return {STEPPED: torch.cat(got, dim=1)}

    def results(
        self, case: EncoderDecoderCase, weights: Weights, inputs: Inputs, base: type | None
    ) -> Results:
        """Return every result of a model by its name, in order of computation."""
        made: Any = base(case.config, weights, self.profile) if base else None
        model = made or self.oracle(case, weights)
        with torch.no_grad():
            logits, encoded, decoded = model(**inputs, output_hidden_states=True)
            result = {**_states("encoder", encoded), **_states("decoder", decoded)}
            result["logits"] = logits
            if case.chunks:
                parts = inputs["decoder_input_ids"].split(list(case.chunks), dim=1)
                given = {name: each for name, each in inputs.items() if name in _OF_SOURCE}
                result[STEPPED] = torch.cat(logits_of_steps(model, given, parts), dim=1)
        return result

    def radii(
        self,
        case: EncoderDecoderCase,
        weights: Weights,
        inputs: Inputs,
        arithmetic: Arithmetic,
    ) -> Results:
        """Return the largest error of every result by its name."""
        enclosed = forward(case.config, weights, inputs, self.profile, arithmetic)
        result = {name: each.radius for name, each in enclosed.results.items()}
        return result | {STEPPED: result["logits"]}

    def oracle(self, case: EncoderDecoderCase, weights: Weights) -> Any:
        """Return a correct model: torch's functions judge the reference."""
        make: Any = Steps if self.is_reference else build
        return make(case.config, weights, self.profile)

    def enclose_gradients(
        self, case: EncoderDecoderCase, weights: Weights, inputs: Inputs, arithmetic: Arithmetic
    ) -> Gradients:
        """Enclose the gradient of every parameter."""
        config, profile = case.config, self.profile
        enclosed = forward(config, weights, inputs, profile, arithmetic)
        cotangent = case.draw_cotangent().double()
        return gradients(config, weights, inputs, profile, enclosed, cotangent, arithmetic)

    def call_case(self, case: EncoderDecoderCase, weights: Weights, inputs: Inputs) -> Results:
        """Return the results that a case requests."""
        if case.chunks:
            return self.call_steps(case, weights, inputs)
        return self.call(case, weights, inputs, states=case.states)

    def call_all(self, case: EncoderDecoderCase, weights: Weights, inputs: Inputs) -> Results:
        """Return hidden states if they are claimed, and the logits of steps if there are any."""
        has_states = "hidden_states" in self.implementation.features
        got = self.call(case, weights, inputs, states=has_states)
        return got | self.call_steps(case, weights, inputs) if case.chunks else got

    def is_real(self, name: str, value: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """Return true for what belongs to real positions."""
        of_source = name.startswith("encoder")
        mask = inputs.get("attention_mask" if of_source else "decoder_attention_mask")
        if mask is None:
            return torch.ones_like(value, dtype=torch.bool)
        return mask.bool()[..., None].expand_as(value)

    def stage(self, name: str) -> str:
        """Return the stage that computes a result."""
        if name == STEPPED:
            return "the steps"
        if name == "logits":
            return "the head"
        side, _, place = name.split()
        if place == "0":
            return f"the embeddings of the {side}"
        return f"block {int(place) - 1} of the {side}"


_OF_SOURCE = ("input_ids", "attention_mask")


def logits_of_steps(
    model: Any, given: Mapping[str, Any], parts: tuple[torch.Tensor, ...]
) -> list[Any]:
    """Return the logits of each step of a model."""
    options = dict(given)
    cache, rows = model.start(options.pop("input_ids"), **options), []
    for part in parts:
        logits, cache = model.step(part, cache)
        rows.append(logits)
    return rows


def _dtype(weights: Weights) -> torch.dtype:
    return weights["model.shared.weight"].dtype


def _states(side: str, states: Any) -> Results:
    return {f"{side} state {place}": each for place, each in enumerate(states)}


def _places(case: EncoderDecoderCase, *, states: bool) -> Mapping[str, str]:
    """Return the code of each result of a call."""
    if not states:
        return {"logits": "out"}
    return {
        "logits": "out[0]",
        **{f"encoder state {i}": f"out[1][{i}]" for i in range(case.encoder_layers + 1)},
        **{f"decoder state {i}": f"out[2][{i}]" for i in range(case.decoder_layers + 1)},
    }


def _by_name(
    got: Any, case: EncoderDecoderCase, inputs: Inputs, dtype: torch.dtype, *, states: bool
) -> Results:
    """Return the results of a call by name, checked for form."""
    source, target = inputs["input_ids"].shape, inputs["decoder_input_ids"].shape
    of_logits = (*target, case.vocab)
    if not states:
        return {"logits": checked(got, of_logits, dtype, "logits")}
    if not (isinstance(got, tuple) and len(got) == 3):
        form = "(logits, encoder_states, decoder_states)"
        raise Violation(f"the result must be {form}, got {type(got).__name__}")
    result = {}
    for side, shape, layers, found in (
        ("encoder", source, case.encoder_layers, got[1]),
        ("decoder", target, case.decoder_layers, got[2]),
    ):
        if len(found) != layers + 1:
            raise Violation(f"{layers + 1} states of the {side} are expected, got {len(found)}")
        for name, each in _states(side, found).items():
            result[name] = checked(each, (*shape, case.d_model), dtype, name)
    return result | {"logits": checked(got[0], of_logits, dtype, "logits")}
