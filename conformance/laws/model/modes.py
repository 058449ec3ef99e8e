"""A law of GPT: the state of PyTorch, such as its default dtype, changes no logit."""

import functools

import torch

from attnspec.conformance.attention.modes import run_in
from attnspec.conformance.laws.helpers.states import STATES
from attnspec.conformance.laws.law import law
from attnspec.conformance.models.cached import fed_in_parts
from attnspec.conformance.models.case import DEEP, PINNED, WIDE_HEADS, ModelCase, draw
from attnspec.conformance.models.oracle import Allowed, check_within
from attnspec.conformance.models.subject import build, logits_of
from attnspec.spec import ModelFeature, ModelImplementation


@law(
    "GPT-30",
    pinned=(
        *PINNED[:6],
        DEEP[0],
        WIDE_HEADS[0],
        PINNED[0].but(length=40, n_positions=42, batch=5, dtype=torch.float64),
    ),
    cost=8.0,
)
def law_the_state_of_torch_changes_no_logit(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-30: logits do not depend on default dtype, threads or modes, with a cache or without."""
    inputs = draw(case)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    model = build(subject, config, weights)
    tolerance = Allowed(config, weights, ids).own_logits
    ways = {"": functools.partial(logits_of, model, ids, weights)}
    if ModelFeature.CACHE in subject.features:
        sizes = [case.length - 1, 1]
        ways[", in parts with a cache"] = functools.partial(
            fed_in_parts, model, ids, weights, sizes
        )
    for way, make in ways.items():
        expected = make().double()
        for mode, condition in STATES.items():
            check_within(
                run_in(mode, make),
                expected,
                tolerance,
                what="logits",
                message=f"the model gives other logits {condition}{way}",
            )
