"""Which stage of one block of a GPT-2 is wrong: experiments in the order of the forward pass.

Each opens as little of the block as it can. Its sentence says what was put into the weights.
"""

from collections.abc import Iterator

import torch

from attnspec.conformance.model_case import draw_weights
from attnspec.conformance.model_probe import Probe
from attnspec.conformance.model_stage_bench import ROW, WIDTH, Bench, coarse, opened
from attnspec.conformance.model_stage_branches import attention, mlp
from attnspec.conformance.model_stage_names import Finding, Stage
from attnspec.conformance.model_stage_norms import (
    first_norm,
    is_mirror_right,
    norm_touches_nothing,
    reads_after_attention,
    second_norm,
)


def in_block(bench: Bench, layer: int) -> Finding | None:
    """The first stage of a block that diverges where all before it are right, or nothing.

    Blocks are alike: one after the first is taken apart only where it is wrong as a whole.
    """
    if layer > 0:
        if _whole(bench, layer):
            return None
        strange = _of_other_blocks(bench, layer)
        if strange is not None:
            return strange
    for stage, is_right, experiment in _experiments(bench, layer):
        if not is_right:
            place = None if stage is Stage.EMBEDDING else layer
            return Finding(stage=stage, layer=place, experiment=experiment)
    return None


def _experiments(bench: Bench, layer: int) -> Iterator[tuple[Stage, bool, str]]:
    """What is tried, each with the stage that it blames and whether the subject is right."""
    yield (
        Stage.FIRST_NORM,
        norm_touches_nothing(bench, layer, "ln_1"),
        "branches that add zero, and other weights of ln_1",
    )
    norm = first_norm(bench, layer)
    if norm is not None:
        yield norm, False, "attention over one token, all of whose maps are the identity"
    yield from attention(bench, layer)
    yield (
        Stage.SECOND_NORM,
        norm_touches_nothing(bench, layer, "ln_2"),
        "branches that add zero, and other weights of ln_2",
    )
    if is_mirror_right(bench, layer):
        yield (
            Stage.SECOND_NORM,
            reads_after_attention(bench, layer),
            "attention that adds a constant row, and an MLP that is the identity",
        )
    else:
        norm = second_norm(bench, layer)
        if norm is not None:
            yield norm, False, "an MLP without attention that is the identity, relu(x) - relu(-x)"
    yield from mlp(bench, layer)
    yield Stage.BLOCK, _whole(bench, layer), "a whole block of random weights"
    if layer == 0:
        yield Stage.BLOCK, _is_identity(bench), "branches that add zero, and no block at all"


def _is_identity(bench: Bench) -> bool:
    """Whether a block that adds nothing changes nothing, where a model may have no block."""
    rows = coarse("identity", 2, 3, WIDTH)
    none, one = (bench.closed(rows, n_layer=layers, layer_norm_epsilon=0.25) for layers in (0, 1))
    return not (bench.claims(n_layer=0) and bench.answers(none)) or bench.same(none, one)


def _of_other_blocks(bench: Bench, layer: int) -> Finding | None:
    """Whether a block computes with the weights of another, or in the place of another."""
    shown = bench.closed(coarse("adds", 2, 3, WIDTH), n_layer=layer + 1, layer_norm_epsilon=0.25)
    bias = {"attn__c_proj__bias": ROW}
    if not bench.same(opened(shown, layer, **bias), opened(shown, 0, **bias)):
        return Finding(
            stage=Stage.BLOCK,
            layer=layer,
            experiment="a constant row, added by this block or by the first",
        )
    rows = coarse("order", 1, 4, WIDTH)
    given = bench.closed(rows, n_layer=layer + 1)
    first, last = (_drawn(bench, given, seed) for seed in (1, 2))
    ordered = opened(opened(given, 0, **first), layer, **last)
    turned = opened(opened(given, 0, **last), layer, **first)
    due = bench.closed(bench.stream(turned), n_layer=layer + 1)
    if bench.same(ordered, due) and not bench.same(turned, due):
        return Finding(stage=Stage.ORDER, experiment="two blocks of random weights")
    return None


def _drawn(bench: Bench, shown: Probe, seed: int) -> dict[str, torch.Tensor]:
    """Random weights for one block."""
    drawn = draw_weights(shown.config, seed=seed, spread=0.3, dtype=bench.dtype)
    own = "transformer.h.0."
    return {
        name.removeprefix(own).replace(".", "__"): each
        for name, each in drawn.items()
        if name.startswith(own)
    }


def _whole(bench: Bench, layer: int) -> bool:
    """Whether a block of random weights does what it should, every stage at once."""
    for heads, shape, switches in (
        (1, (1, 3), {}),
        (3, (2, 5), {"scale_attn_by_inverse_layer_idx": True}),
        (2, (2, 4), {"scale_attn_weights": False, "layer_norm_epsilon": 0.25}),
    ):
        if not bench.claims(**switches):
            continue
        rows = coarse("whole", *shape, WIDTH)
        shown = bench.closed(rows, n_layer=layer + 1, n_head=heads, **switches)
        weights = _drawn(bench, shown, 7)
        if not bench.adds_as_due(opened(shown, layer, **weights)):
            return False
    return True
