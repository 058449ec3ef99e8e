"""Laws of GPT: several caches of one model, and one cache that is continued more than once."""

import torch

from attnspec.conformance.laws.law import law
from attnspec.conformance.models.cached import call_with_cache
from attnspec.conformance.models.case import PINNED, ModelCase, draw
from attnspec.conformance.models.oracle import Allowed, check_within, own_logits
from attnspec.conformance.models.subject import Weights, build
from attnspec.spec import GPT2Config, ModelFeature, ModelImplementation

_LONG = tuple(case for case in PINNED if case.length >= 4)

MANY = 17
"""Sequences beside the first one, more than a pool of 16 caches holds."""


@law("GPT-22", pinned=_LONG, needs={ModelFeature.CACHE}, cost=4.0)
def law_caches_of_one_model_are_independent(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-22: sequences that are fed to one model by turns get the logits of each alone.

    There are many in short cases: a model may hold its caches in a pool of a fixed number.
    """
    inputs = draw(case)
    config, weights = inputs.config, inputs.state_dict
    model = build(subject, config, weights)
    others = MANY if case.length == _LONG[0].length else 1
    shorter = [_other_ids(inputs.input_ids, config, n)[:, :-1] for n in range(1, 1 + others)]
    sequences = (inputs.input_ids, *shorter)
    caches = [model.empty_cache() for _ in sequences]
    parts: list[list[torch.Tensor]] = [[] for _ in sequences]
    for position in range(case.length):
        for number, ids in enumerate(sequences):
            token = ids[:, position : position + 1]
            if token.shape[1]:
                logits, caches[number] = call_with_cache(model, token, caches[number], weights)
                parts[number].append(logits)
    for number, ids in enumerate(sequences):
        _check(
            torch.cat(parts[number], 1),
            (subject, config, weights, ids),
            message=f"sequence {number} of some that take turns gets other logits than alone",
        )


@law("GPT-23", pinned=_LONG, needs={ModelFeature.CACHE}, cost=4.0)
def law_a_cache_can_be_continued_twice(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-23: from one cache, several continuations get the logits of their whole sequences."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    model = build(subject, config, weights)
    cut = case.length - 2
    sequences = [torch.cat([ids[:, :cut], _other_ids(ids, config, n)[:, cut:]], 1) for n in (0, 1)]
    start, common = call_with_cache(model, ids[:, :cut], model.empty_cache(), weights)
    parts, caches = [[start], [start]], [common, common]
    # the second branch starts before the first goes on, which may use the same memory
    for position in (cut, cut + 1):
        for number, sequence in enumerate(sequences):
            token = sequence[:, position : position + 1]
            logits, caches[number] = call_with_cache(model, token, caches[number], weights)
            parts[number].append(logits)
    for number, sequence in enumerate(sequences):
        _check(
            torch.cat(parts[number], 1),
            (subject, config, weights, sequence),
            message=f"branch {number} of two from one cache gets other logits than alone",
        )


def _other_ids(ids: torch.Tensor, config: GPT2Config, by: int) -> torch.Tensor:
    """Return tokens that all differ from `ids`, unless `by` is zero."""
    return (ids + by) % config.vocab_size


def _check(
    got: torch.Tensor,
    model: tuple[ModelImplementation, GPT2Config, Weights, torch.Tensor],
    message: str,
) -> None:
    """Compare logits with the model's own for the same tokens in one call."""
    subject, config, weights, ids = model
    check_within(
        got,
        own_logits(subject, config, weights, ids),
        Allowed(config, weights, ids).own_logits,
        what="logits",
        message=message,
    )
