"""Declare a bare function that builds an encoder-decoder: the features that it follows."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from attnspec.conformance.comparison.violation import Raised, Violation
from attnspec.conformance.operators.encoder_decoder.case import EncoderDecoderCase
from attnspec.conformance.operators.encoder_decoder.subject import EncoderDecoderSubject
from attnspec.conformance.runner.declare import parameters_of
from attnspec.spec.encoder_decoder import EncoderDecoderImplementation

_OPTIONS = {
    "attention_mask": "padding",
    "decoder_attention_mask": "target_padding",
    "output_hidden_states": "hidden_states",
}
"""The features by the parameters of the model that is built."""

_POSITIONS = "model.encoder.embed_positions.weight"


def encoder_decoder_features(
    function: Callable[..., Any], _dtypes: Sequence[torch.dtype] = ()
) -> frozenset[str]:
    """Return the features of a function that builds an encoder-decoder.

    A configuration is followed if it changes the result: `learned` if the table of positions does,
    `pre_norm` and `final_norm` if their field does. `sinusoidal` is the default, left out only by
    a function that follows learned positions and raises without their table.

    Args:
        function: takes a configuration and a state dictionary.
    """
    plain, learned = EncoderDecoderCase(), EncoderDecoderCase(learned=True)
    of_plain, of_learned = _logits(function, plain), _logits(function, learned)
    moved = learned.draw_parameters()
    moved[_POSITIONS] = moved[_POSITIONS].flip(0)
    found = set()
    if _differ(of_learned, _logits(function, learned, moved)):
        found.add("learned")
    if of_plain is not None or not found:
        found.add("sinusoidal")
    base = learned if "sinusoidal" not in found else plain
    logits = _logits(function, base)
    for feature, changes in (
        ("pre_norm", {"norm_first": True}),
        ("final_norm", {"final_norm": True}),
    ):
        changed = base.but(**changes)
        if _differ(logits, _logits(function, changed)):
            found.add(feature)
    try:
        model = function(base.config, base.draw_parameters())
    except Exception:  # whatever it is, a law reports it
        return frozenset(found)
    names = parameters_of(getattr(model, "forward", model)) or {}
    found |= {feature for name, feature in _OPTIONS.items() if name in names}
    if callable(getattr(model, "start", None)) and callable(getattr(model, "step", None)):
        found.add("steps")
    declared = EncoderDecoderImplementation(name="it", function=function)
    subject = EncoderDecoderSubject(implementation=declared)
    # gradients are claimed if one reaches every parameter, right or wrong
    with suppress(Raised, Violation):
        subject.gradients(base, base.draw_parameters(), base.draw())
        found.add("gradients")
    if "padding" in found:
        found.add("any_padding")
    if "target_padding" in found and _is_finite_behind_padding(function, base):
        found.add("any_target_padding")
    return frozenset(found)


def _is_finite_behind_padding(function: Callable[..., Any], base: EncoderDecoderCase) -> bool:
    """Return whether a target that begins with padding has finite logits at its real tokens."""
    case = base.but(decoder_layers=2, batch=2, target=4, target_padded=True, padding_side="left")
    inputs = case.draw()
    mask = inputs["decoder_attention_mask"]
    try:
        model = function(case.config, case.draw_parameters())
        with torch.no_grad():
            out = model(
                inputs["input_ids"], inputs["decoder_input_ids"], decoder_attention_mask=mask
            )
    except Exception:  # whatever it is, a law reports it
        return True
    if not isinstance(out, torch.Tensor):
        return True
    return bool(torch.isfinite(out[mask.bool()]).all())


def _logits(
    function: Callable[..., Any],
    case: EncoderDecoderCase,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> torch.Tensor | None:
    """Return the logits of a case; None if the function or the model raises."""
    inputs = case.draw()
    try:
        model = function(case.config, dict(weights or case.draw_parameters()))
        with torch.no_grad():
            out = model(inputs["input_ids"], inputs["decoder_input_ids"])
    except Exception:  # whatever it is, a law reports it
        return None
    return out if isinstance(out, torch.Tensor) else None


def _differ(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Return whether two results are of one shape, and far apart."""
    if one is None or other is None or one.shape != other.shape:
        return False
    return bool(((one - other).abs() > 1e-3).any())
