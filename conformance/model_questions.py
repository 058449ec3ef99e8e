"""The ways in which a GPT-2 is asked when it is compared with others: what each does and needs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from attnspec.conformance.model_case import ModelInputs, normal
from attnspec.spec import ModelFeature, ModelImplementation

Answer = dict[str, torch.Tensor | str]
"""What was answered, by name; "raised" where an exception came instead."""
Weights = dict[str, torch.Tensor]
_CACHE, _PADDING = ModelFeature.CACHE, ModelFeature.PADDING


def nothing(weights: Weights) -> None:
    """Leave the weights as they are."""


@dataclass(frozen=True)
class Way:
    """One way of asking.

    Attributes:
        ask: builds the model and calls it.
        needs: the features that it uses.
        prepare: changes the weights in place.
    """

    ask: Callable[[ModelImplementation, ModelInputs], Answer]
    needs: frozenset[ModelFeature] = field(default_factory=frozenset)
    prepare: Callable[[Weights], None] = nothing


def asked(subject: ModelImplementation, way: str, inputs: ModelInputs) -> Answer:
    """What a model answers; an exception is an answer too."""
    try:
        with torch.no_grad():
            answer = ASKING[way].ask(subject, inputs)
    except Exception:
        return {"all": "raised"}
    return {
        name: each.detach() if isinstance(each, torch.Tensor) else str(each)
        for name, each in answer.items()
    }


def _built(subject: ModelImplementation, inputs: ModelInputs) -> Any:
    copies = {name: each.clone() for name, each in inputs.state_dict.items()}
    return subject.build(inputs.config, copies)


def _logits(subject: ModelImplementation, inputs: ModelInputs) -> Answer:
    return {"logits": _built(subject, inputs)(inputs.input_ids)}


def _states(subject: ModelImplementation, inputs: ModelInputs) -> Answer:
    logits, states = _built(subject, inputs)(inputs.input_ids, output_hidden_states=True)
    return {"logits": logits} | {f"state {place}": each for place, each in enumerate(states)}


def _twice(subject: ModelImplementation, inputs: ModelInputs) -> Answer:
    model = _built(subject, inputs)
    turned = inputs.input_ids.flip(1)
    calls = {"first": inputs.input_ids, "turned": turned, "again": inputs.input_ids}
    return {name: model(each) for name, each in calls.items()}


def _same_weights(subject: ModelImplementation, inputs: ModelInputs) -> Answer:
    copies = {name: each.clone() for name, each in inputs.state_dict.items()}
    subject.build(inputs.config, copies)
    again = subject.build(inputs.config, copies)
    return {"logits": again(inputs.input_ids)}


def _real(logits: torch.Tensor, inputs: ModelInputs) -> torch.Tensor:
    """What comes out at padding means nothing."""
    return logits[inputs.attention_mask.bool()]


def _padded(subject: ModelImplementation, inputs: ModelInputs) -> Answer:
    logits = _built(subject, inputs)(
        inputs.input_ids, attention_mask=inputs.attention_mask, position_ids=inputs.position_ids
    )
    return {"logits": _real(logits, inputs)}


def _cached(subject: ModelImplementation, inputs: ModelInputs) -> Answer:
    length, answer = inputs.input_ids.shape[1], Answer()
    for sizes in ([length], [1] * length, [2, length - 2], [length - 2, 2]):
        model = _built(subject, inputs)
        cache, parts = model.empty_cache(), []
        for part in inputs.input_ids.split(sizes, 1):
            logits, cache = model(part, cache=cache)
            parts.append(logits)
        answer[f"steps {sizes}"] = torch.cat(parts, 1)
    return answer


def _padded_and_cached(subject: ModelImplementation, inputs: ModelInputs) -> Answer:
    model = _built(subject, inputs)
    cache, parts, seen = model.empty_cache(), [], 0
    length = inputs.input_ids.shape[1]
    for size in (length - 2, 1, 1):
        new = slice(seen, seen + size)
        seen += size
        logits, cache = model(
            inputs.input_ids[:, new],
            cache=cache,
            attention_mask=inputs.attention_mask[:, :seen],
            position_ids=inputs.position_ids[:, new],
        )
        parts.append(logits)
    return {"logits": _real(torch.cat(parts, 1), inputs)}


def _gradients(subject: ModelImplementation, inputs: ModelInputs) -> Answer:
    leaves = {name: each.clone().requires_grad_() for name, each in inputs.state_dict.items()}
    with torch.enable_grad():
        logits = subject.build(inputs.config, leaves)(inputs.input_ids)
        cotangent = normal(0, "cotangent", *logits.shape).to(torch.float32).to(logits)
        found = torch.autograd.grad(logits, list(leaves.values()), cotangent, allow_unused=True)
    return {
        name: "none" if each is None else each for name, each in zip(leaves, found, strict=True)
    }


def _refused(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor | str:
    try:
        answer: torch.Tensor = model(ids, **options)
    except Exception:
        return "refused"
    return answer


def _no_row(subject: ModelImplementation, inputs: ModelInputs) -> Answer:
    model, answer = _built(subject, inputs), Answer()
    for wrong in (inputs.config.vocab_size, -1):
        ids = inputs.input_ids.clone()
        ids[-1, -1] = wrong
        answer[f"id {wrong}"] = _refused(model, ids)
    long = inputs.input_ids.new_zeros(1, inputs.config.n_positions + 1)
    return answer | {"long": _refused(model, long)}


def _no_position(subject: ModelImplementation, inputs: ModelInputs) -> Answer:
    model, answer = _built(subject, inputs), Answer()
    for wrong in (inputs.config.n_positions, -1):
        places = torch.zeros_like(inputs.input_ids)
        places[-1, -1] = wrong
        answer[f"position {wrong}"] = _refused(
            model,
            inputs.input_ids,
            attention_mask=torch.ones_like(inputs.input_ids),
            position_ids=places,
        )
    return answer


# WEIGHTS


def _far_rows(weights: Weights) -> None:
    """A mean far beyond the spread, and no branch that would blur it."""
    weights["transformer.wpe.weight"] += 4096.0
    for name, each in weights.items():
        if "c_proj" in name:
            each.zero_()


def _large_scores(weights: Weights) -> None:
    """Scores so large that hiding by a finite number shows."""
    width = weights["transformer.wte.weight"].shape[1]
    weights["transformer.h.0.attn.c_attn.weight"][:, : 2 * width] *= 2.0**9


def _large_activations(weights: Weights) -> None:
    """Numbers far from zero in the MLP, on both sides."""
    weights["transformer.h.0.mlp.c_fc.weight"] *= 24.0


ASKING = {
    "logits": Way(_logits),
    "far rows": Way(_logits, prepare=_far_rows),
    "large scores": Way(_logits, prepare=_large_scores),
    "large activations": Way(_logits, prepare=_large_activations),
    "no row": Way(_no_row),
    "twice": Way(_twice),
    "same weights": Way(_same_weights),
    "states": Way(_states, frozenset({ModelFeature.HIDDEN_STATES})),
    "padded": Way(_padded, frozenset({_PADDING})),
    "no position": Way(_no_position, frozenset({_PADDING})),
    "cached": Way(_cached, frozenset({_CACHE})),
    "padded and cached": Way(_padded_and_cached, frozenset({_PADDING, _CACHE})),
    "gradients": Way(_gradients, frozenset({ModelFeature.BACKWARD})),
}
"""By name."""
