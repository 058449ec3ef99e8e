"""Procedures by which a GPT-2 is compared with mutants: their calls and the features they need."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from attnspec.conformance.models.case import ModelInputs, normal
from attnspec.spec import ModelFeature, ModelImplementation

Outputs = dict[str, torch.Tensor | str]
"""Results of the calls, by name; the string "raised" if an exception was raised instead."""
Weights = dict[str, torch.Tensor]
_CACHE, _PADDING = ModelFeature.CACHE, ModelFeature.PADDING


def unchanged(weights: Weights) -> None:
    """Leave the model parameters unchanged."""


@dataclass(frozen=True)
class Procedure:
    """A procedure that builds a model and calls it.

    Attributes:
        run: builds the model, calls it, and returns the outputs.
        needs: the features that it uses.
        prepare: changes the model parameters in place before the model is built.
    """

    run: Callable[[ModelImplementation, ModelInputs], Outputs]
    needs: frozenset[ModelFeature] = field(default_factory=frozenset)
    prepare: Callable[[Weights], None] = unchanged


def run_procedure(subject: ModelImplementation, name: str, inputs: ModelInputs) -> Outputs:
    """Run a procedure on a subject; an exception becomes an output too."""
    try:
        with torch.no_grad():
            outputs = PROCEDURES[name].run(subject, inputs)
    except Exception:
        return {"all": "raised"}
    return {
        name: output.detach() if isinstance(output, torch.Tensor) else str(output)
        for name, output in outputs.items()
    }


def _built(subject: ModelImplementation, inputs: ModelInputs) -> Any:
    copies = {name: tensor.clone() for name, tensor in inputs.state_dict.items()}
    return subject.build(inputs.config, copies)


def _logits(subject: ModelImplementation, inputs: ModelInputs) -> Outputs:
    return {"logits": _built(subject, inputs)(inputs.input_ids)}


def _states(subject: ModelImplementation, inputs: ModelInputs) -> Outputs:
    logits, states = _built(subject, inputs)(inputs.input_ids, output_hidden_states=True)
    return {"logits": logits} | {f"state {place}": state for place, state in enumerate(states)}


def _twice(subject: ModelImplementation, inputs: ModelInputs) -> Outputs:
    model = _built(subject, inputs)
    turned = inputs.input_ids.flip(1)
    calls = {"first": inputs.input_ids, "turned": turned, "again": inputs.input_ids}
    return {name: model(ids) for name, ids in calls.items()}


def _same_weights(subject: ModelImplementation, inputs: ModelInputs) -> Outputs:
    copies = {name: tensor.clone() for name, tensor in inputs.state_dict.items()}
    subject.build(inputs.config, copies)
    again = subject.build(inputs.config, copies)
    return {"logits": again(inputs.input_ids)}


def _real(logits: torch.Tensor, inputs: ModelInputs) -> torch.Tensor:
    """Return the logits of real tokens; those of padding are unspecified."""
    return logits[inputs.attention_mask.bool()]


def _padded(subject: ModelImplementation, inputs: ModelInputs) -> Outputs:
    logits = _built(subject, inputs)(
        inputs.input_ids, attention_mask=inputs.attention_mask, position_ids=inputs.position_ids
    )
    return {"logits": _real(logits, inputs)}


def _padded_states(subject: ModelImplementation, inputs: ModelInputs) -> Outputs:
    _, states = _built(subject, inputs)(
        inputs.input_ids,
        attention_mask=inputs.attention_mask,
        position_ids=inputs.position_ids,
        output_hidden_states=True,
    )
    return {f"state {place}": _real(state, inputs) for place, state in enumerate(states)}


def _placed(subject: ModelImplementation, inputs: ModelInputs) -> Outputs:
    ids = inputs.input_ids
    last = inputs.config.n_positions - ids.shape[1]
    places = (last + torch.arange(ids.shape[1])).expand(ids.shape)
    return {"logits": _built(subject, inputs)(ids, position_ids=places)}


def _cached(subject: ModelImplementation, inputs: ModelInputs) -> Outputs:
    length, outputs = inputs.input_ids.shape[1], Outputs()
    for sizes in ([length], [1] * length, [2, length - 2], [length - 2, 2]):
        model = _built(subject, inputs)
        cache, parts = model.empty_cache(), []
        for part in inputs.input_ids.split(sizes, 1):
            logits, cache = model(part, cache=cache)
            parts.append(logits)
        outputs[f"steps {sizes}"] = torch.cat(parts, 1)
    return outputs


def _padded_and_cached(subject: ModelImplementation, inputs: ModelInputs) -> Outputs:
    model = _built(subject, inputs)
    cache, parts, past = model.empty_cache(), [], 0
    length = inputs.input_ids.shape[1]
    for size in (length - 2, 1, 1):
        new = slice(past, past + size)
        past += size
        logits, cache = model(
            inputs.input_ids[:, new],
            cache=cache,
            attention_mask=inputs.attention_mask[:, :past],
            position_ids=inputs.position_ids[:, new],
        )
        parts.append(logits)
    return {"logits": _real(torch.cat(parts, 1), inputs)}


def _gradients(
    subject: ModelImplementation, inputs: ModelInputs, **options: torch.Tensor
) -> Outputs:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.state_dict.items()}
    with torch.enable_grad():
        logits = subject.build(inputs.config, leaves)(inputs.input_ids, **options)
        cotangent = incoming(inputs, logits.shape, bool(options)).to(torch.float32).to(logits)
        gradients = torch.autograd.grad(logits, list(leaves.values()), cotangent, allow_unused=True)
    return {
        name: "none" if gradient is None else gradient
        for name, gradient in zip(leaves, gradients, strict=True)
    }


def incoming(inputs: ModelInputs, shape: tuple[int, ...], is_padded: bool) -> torch.Tensor:
    """Return the incoming gradient of logits: zero at padding, whose logits are unspecified."""
    cotangent = normal(0, "cotangent", *shape)
    return cotangent * inputs.attention_mask[..., None] if is_padded else cotangent


def _padded_gradients(subject: ModelImplementation, inputs: ModelInputs) -> Outputs:
    return _gradients(
        subject,
        inputs,
        attention_mask=inputs.attention_mask,
        position_ids=inputs.position_ids,
    )


def _logits_or_refused(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor | str:
    try:
        logits: torch.Tensor = model(ids, **options)
    except Exception:
        return "refused"
    return logits


def _no_row(subject: ModelImplementation, inputs: ModelInputs) -> Outputs:
    model, outputs = _built(subject, inputs), Outputs()
    for wrong in (inputs.config.vocab_size, -1):
        ids = inputs.input_ids.clone()
        ids[-1, -1] = wrong
        outputs[f"id {wrong}"] = _logits_or_refused(model, ids)
    long = inputs.input_ids.new_zeros(1, inputs.config.n_positions + 1)
    return outputs | {"long": _logits_or_refused(model, long)}


def _no_position(subject: ModelImplementation, inputs: ModelInputs) -> Outputs:
    model, outputs = _built(subject, inputs), Outputs()
    for wrong in (inputs.config.n_positions, -1):
        places = torch.zeros_like(inputs.input_ids)
        places[-1, -1] = wrong
        outputs[f"position {wrong}"] = _logits_or_refused(
            model,
            inputs.input_ids,
            attention_mask=torch.ones_like(inputs.input_ids),
            position_ids=places,
        )
    return outputs


# MODEL PARAMETERS


def _far_rows(weights: Weights) -> None:
    """Make the mean of each row far larger than its spread, and let the branches add nothing."""
    weights["transformer.wpe.weight"] += 4096.0
    for name, tensor in weights.items():
        if "c_proj" in name:
            tensor.zero_()


def _large_scores(weights: Weights) -> None:
    """Make the scores so large that a mask of finite numbers leaks."""
    width = weights["transformer.wte.weight"].shape[1]
    weights["transformer.h.0.attn.c_attn.weight"][:, : 2 * width] *= 2.0**9


def _large_activations(weights: Weights) -> None:
    """Make the activations of the MLP large, positive and negative."""
    weights["transformer.h.0.mlp.c_fc.weight"] *= 24.0


PROCEDURES = {
    "logits": Procedure(_logits),
    "far rows": Procedure(_logits, prepare=_far_rows),
    "large scores": Procedure(_logits, prepare=_large_scores),
    "large activations": Procedure(_logits, prepare=_large_activations),
    "no row": Procedure(_no_row),
    "twice": Procedure(_twice),
    "same weights": Procedure(_same_weights),
    "states": Procedure(_states, frozenset({ModelFeature.HIDDEN_STATES})),
    "padded": Procedure(_padded, frozenset({_PADDING})),
    "padded states": Procedure(_padded_states, frozenset({_PADDING, ModelFeature.HIDDEN_STATES})),
    "padded gradients": Procedure(_padded_gradients, frozenset({_PADDING, ModelFeature.BACKWARD})),
    "placed": Procedure(_placed, frozenset({_PADDING})),
    "no position": Procedure(_no_position, frozenset({_PADDING})),
    "cached": Procedure(_cached, frozenset({_CACHE})),
    "padded and cached": Procedure(_padded_and_cached, frozenset({_PADDING, _CACHE})),
    "gradients": Procedure(_gradients, frozenset({ModelFeature.BACKWARD})),
}
"""The procedures by name."""
