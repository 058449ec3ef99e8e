"""Which stage of one block of a GPT-2 is wrong: experiments in the order of the forward pass.

Each opens as little of the block as it can. Its sentence says what was put into the weights.
"""

from collections.abc import Iterator, Sequence

import torch

from attnspec.conformance.model_case import ACTIVATIONS, draw_weights
from attnspec.conformance.model_probe import Probe
from attnspec.conformance.model_stage_bench import WIDTH, Bench, coarse, opened
from attnspec.conformance.model_stage_names import Finding, Stage

_ZERO, _EYE = torch.zeros(WIDTH).double(), torch.eye(WIDTH).double()
_SAME = torch.cat([_EYE, _EYE, _EYE], 1)
_VALUES = torch.cat([0 * _EYE, 0 * _EYE, _EYE], 1)
_EPSILONS = (0.25, 1e-5)
_SHIFT = 1024.0
_ONE = coarse("row", WIDTH)
_AFFINE = {"weight": 1 + coarse("gain", WIDTH) / 2, "bias": coarse("bias", WIDTH)}


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
        _norm_touches_nothing(bench, layer, "ln_1"),
        "branches that add zero, and other weights of ln_1",
    )
    norm = _first_norm(bench, layer)
    if norm is not None:
        yield norm, False, "attention over one token, all of whose maps are the identity"
    yield from _attention(bench, layer)
    yield (
        Stage.SECOND_NORM,
        _norm_touches_nothing(bench, layer, "ln_2"),
        "branches that add zero, and other weights of ln_2",
    )
    norm = _second_norm(bench, layer)
    if norm is not None:
        yield norm, False, "an MLP without attention that is the identity, relu(x) - relu(-x)"
    yield (
        Stage.SECOND_NORM,
        not _is_mirror_right(bench, layer) or _reads_after_attention(bench, layer),
        "attention that adds a constant row, and an MLP that is the identity",
    )
    yield from _mlp(bench, layer)
    yield Stage.BLOCK, _whole(bench, layer), "a whole block of random weights"
    if layer == 0:
        yield Stage.BLOCK, _is_identity(bench), "branches that add zero, and no block at all"


# LAYER NORMALIZATION


def _norm_touches_nothing(bench: Bench, layer: int, name: str) -> bool:
    """Where both branches add zero, what the LayerNorms compute is not felt."""
    shown = bench.closed(coarse("stream", 2, 3, WIDTH), n_layer=layer + 1, layer_norm_epsilon=0.25)
    other = {f"{name}__weight": _ZERO, f"{name}__bias": _ONE}
    return bench.same(shown, opened(shown, layer, **other))


def _first_norm(bench: Bench, layer: int) -> Stage | None:
    """Blame the first LayerNorm or the residual, where the maps that lead out are the identity."""
    maps = {"attn__c_attn__weight": _SAME, "attn__c_proj__weight": _EYE}
    # over one token attention gives its value, whatever the scores and the mask
    alone = coarse("alone", 5, 1, WIDTH)
    if not _norm_is_right(bench, layer, "ln_1", maps, alone):
        if not adds_to_stream(bench, layer, "attn__c_proj__bias"):
            return Stage.FIRST_RESIDUAL
        if _are_embeddings_changed(bench, layer):
            return Stage.EMBEDDING
        wrong = _branch_is_wrong(bench, layer, "ln_1", maps, alone, "attn__c_proj__weight")
        return None if wrong else Stage.FIRST_NORM
    # over several, a token whose normalized row is long enough reads itself alone
    sharp = maps | {"attn__c_attn__weight": torch.cat([_EYE * 2**5, _EYE * 2**5, _EYE], 1)}
    several = bench.closed(coarse("several", 1, 4, WIDTH), n_layer=layer + 1)
    rows_meet = not bench.adds_as_due(opened(several, layer, **sharp))
    return Stage.FIRST_NORM if rows_meet and _tokens_meet(bench) else None


def _second_norm(bench: Bench, layer: int) -> Stage | None:
    if _is_mirror_right(bench, layer):
        return None
    if not adds_to_stream(bench, layer, "mlp__c_proj__bias"):
        return Stage.SECOND_RESIDUAL
    rows = coarse("tokens", 2, 3, WIDTH)
    wrong = _branch_is_wrong(
        bench, layer, "ln_2", _mirror(), rows, "mlp__c_proj__weight", **_relu(bench)
    )
    return None if wrong else Stage.SECOND_NORM


def _is_mirror_right(bench: Bench, layer: int) -> bool:
    rows = coarse("tokens", 2, 3, WIDTH)
    return _norm_is_right(bench, layer, "ln_2", _mirror(), rows, **_relu(bench))


def _norm_is_right(
    bench: Bench,
    layer: int,
    name: str,
    maps: dict[str, torch.Tensor],
    rows: torch.Tensor,
    **config: object,
) -> bool:
    """Whether a branch that is the identity adds LayerNorm: gain, bias, epsilon, a far mean."""
    affine = {f"{name}__{part}": each for part, each in _AFFINE.items()}
    for epsilon in _EPSILONS:
        for shift in (0.0, _SHIFT):
            shown = bench.closed(
                rows + shift, n_layer=layer + 1, layer_norm_epsilon=epsilon, **config
            )
            if not bench.adds_as_due(opened(shown, layer, **maps, **affine)):
                return False
    return True


def _branch_is_wrong(
    bench: Bench,
    layer: int,
    name: str,
    maps: dict[str, torch.Tensor],
    rows: torch.Tensor,
    out: str,
    **config: object,
) -> bool:
    """Whether a branch is wrong on rows that hardly any LayerNorm can get wrong.

    That is its bias, where the gain is zero, and a row that is normalized already.
    """
    known = torch.tensor([1.0, -1.0] * (WIDTH // 2)).double().expand(rows.shape)
    fixed = {f"{name}__weight": _ZERO, f"{name}__bias": _ONE}
    shown = bench.closed(rows, n_layer=layer + 1, **config)
    even = bench.closed(known, n_layer=layer + 1, layer_norm_epsilon=0.0, **config)
    # else what is added is a multiple of the row, which the final LayerNorm would not show
    uneven = maps | {out: maps[out] @ torch.arange(1.0, WIDTH + 1).diag().double()}
    return not (
        bench.adds_as_due(opened(shown, layer, **maps, **fixed))
        or bench.adds_as_due(opened(even, layer, **uneven))
    )


def _tokens_meet(bench: Bench) -> bool:
    """Whether a token is felt by earlier ones without attention: LayerNorm keeps to no row."""
    rows = coarse("meet", 1, 4, WIDTH)
    other = torch.cat([rows[:, :3], -2 * rows[:, 3:]], 1)
    one, two = (bench.closed(each, layer_norm_epsilon=0.25) for each in (rows, other))
    return not bench.same(one, two, tokens=3)


def adds_to_stream(bench: Bench, layer: int, bias: str) -> bool:
    """Whether something is added where a branch is a constant row, to a stream that is kept."""
    rows = coarse("adds", 2, 3, WIDTH)
    shown = bench.closed(rows, n_layer=layer + 1, layer_norm_epsilon=0.25)
    other = bench.closed(-2 * rows, n_layer=layer + 1, layer_norm_epsilon=0.25)
    more = bench.closed(rows, n_layer=layer + 2, layer_norm_epsilon=0.25)
    is_kept = bench.same(shown, more) and not bench.same(shown, other)
    return is_kept and not bench.same(shown, opened(shown, layer, **{bias: _ONE}))


def _are_embeddings_changed(bench: Bench, layer: int) -> bool:
    """Whether constant rows add to each other, yet neither to what the embeddings gave."""
    biases = ("attn__c_proj__bias", "mlp__c_proj__bias")
    shown = bench.closed(coarse("adds", 2, 3, WIDTH), n_layer=layer + 1, layer_norm_epsilon=0.25)
    both = opened(shown, layer, **dict.fromkeys(biases, _ONE))
    return bench.same(both, opened(shown, layer, **{biases[0]: 2 * _ONE})) and not any(
        bench.adds_as_due(opened(shown, layer, **{bias: _ONE})) for bias in biases
    )


# ATTENTION


def _attention(bench: Bench, layer: int) -> Iterator[tuple[Stage, bool, str]]:
    def model(
        rows: Sequence[int], heads: int, weights: dict[str, torch.Tensor], **config: object
    ) -> bool:
        stream = coarse("attention", *rows, WIDTH)
        shown = bench.closed(stream, n_layer=layer + 1, n_head=heads, **config)
        return bench.adds_as_due(opened(shown, layer, **weights))

    third, square = coarse("third", WIDTH, WIDTH) / 2, coarse("square", WIDTH, WIDTH)
    packed = {
        "attn__c_attn__weight": coarse("packed", WIDTH, 3 * WIDTH) / 2,
        "attn__c_attn__bias": coarse("packed bias", 3 * WIDTH) / 2,
    }
    equal = {
        "attn__c_attn__weight": torch.cat([third] * 3, 1),
        "attn__c_attn__bias": coarse("third bias", WIDTH).repeat(3),
    }
    out = {"attn__c_proj__weight": square, "attn__c_proj__bias": coarse("out", WIDTH)}
    fixed = {"ln_1__weight": _ZERO, "ln_1__bias": _ONE}
    yield (
        Stage.PROJECTIONS,
        model((6, 1), 1, fixed | equal | out),
        "a known row from ln_1, one token, one head, queries, keys and values alike",
    )
    for heads in (1, 2, 3):
        yield (
            Stage.HEADS,
            model((6, 1), heads, fixed | packed | out),
            f"a known row from ln_1, one token, heads: {heads}",
        )
    identity = {"attn__c_proj__weight": _EYE}
    yield (
        Stage.MASK,
        model((2, 5), 1, identity | {"attn__c_attn__weight": _VALUES}),
        "queries and keys of zero, so that every token averages those it may read",
    )
    # a token is the last that it would read itself
    large = torch.cat([-_EYE, 2.0**15 * _EYE, _EYE], 1)
    yield (
        Stage.MASK,
        model((1, 5), 1, identity | {"attn__c_attn__weight": large}),
        "keys 32768 times as long as queries, so that what is hidden has the largest scores",
    )
    yield (
        Stage.HEADS,
        model((2, 3), 2, fixed | packed | out),
        "the same row from ln_1 at every token, two heads",
    )
    alike = identity | {"attn__c_attn__weight": equal["attn__c_attn__weight"]}
    for switches in (
        {},
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
    ):
        if bench.claims(**switches):
            told = ", ".join(f"{name}={value}" for name, value in switches.items()) or "defaults"
            yield (
                Stage.SCALE,
                model((1, 4), 2, alike, **switches),
                f"queries, keys and values alike, two heads, {told}",
            )
    yield Stage.HEADS, model((1, 4), 2, packed | out), "one sequence, random maps, two heads"
    yield Stage.BATCH, model((3, 4), 2, packed | out), "three sequences, random maps, two heads"


# MLP


def _relu(bench: Bench) -> dict[str, object]:
    """An activation with relu(x) - relu(-x) = x that is hard to get wrong, if it is claimed."""
    return {"activation_function": "relu"} if bench.claims(activation_function="relu") else {}


def _mirror() -> dict[str, torch.Tensor]:
    """Maps that make an MLP the identity under every activation with f(x) - f(-x) = x."""
    rest = torch.zeros(WIDTH, 2 * WIDTH).double()
    pair = torch.cat([_EYE, -_EYE, rest], 1)
    return {"mlp__c_fc__weight": pair, "mlp__c_proj__weight": pair.mT}


def _reads_after_attention(bench: Bench, layer: int) -> bool:
    shown = bench.closed(coarse("after", 2, 3, WIDTH), n_layer=layer + 1, **_relu(bench))
    return bench.adds_as_due(opened(shown, layer, **_mirror(), attn__c_proj__bias=_ONE))


def _mlp(bench: Bench, layer: int) -> Iterator[tuple[Stage, bool, str]]:
    rows = coarse("mlp", 1, 3, WIDTH)
    fixed = {"ln_2__weight": _ZERO, "ln_2__bias": _ONE}
    for inner in (None, WIDTH, WIDTH - 1):
        config = {"n_inner": inner, **_relu(bench)}
        if not bench.claims(**config):
            continue
        width = 4 * WIDTH if inner is None else inner
        # far above zero every activation but tanh is the identity
        maps = {
            "mlp__c_fc__weight": coarse(f"up {inner}", WIDTH, width),
            "mlp__c_fc__bias": 32 + coarse(f"up bias {inner}", width),
            "mlp__c_proj__weight": coarse(f"down {inner}", width, WIDTH) / 8,
            "mlp__c_proj__bias": coarse("down bias", WIDTH),
        }
        shown = bench.closed(rows, n_layer=layer + 1, **config)
        yield (
            Stage.MLP_MAPS,
            bench.adds_as_due(opened(shown, layer, **fixed, **maps)),
            f"the same row from ln_2 at every token, n_inner={inner}, an activation far above zero",
        )
    for name in ACTIVATIONS:
        if bench.claims(activation_function=name):
            yield (
                Stage.ACTIVATION,
                _activation(bench, layer, name),
                f"known numbers from ln_2, and maps that are the identity, under {name}",
            )


def _activation(bench: Bench, layer: int, name: str) -> bool:
    width = 16
    eye, none = torch.eye(width).double(), torch.zeros(width, 3 * width).double()
    up = torch.cat([eye, none], 1)
    for most in (3.0, 24.0):
        shown = bench.closed(
            coarse("activation", 1, 2, width), n_layer=layer + 1, activation_function=name
        )
        weights = {
            "ln_2__weight": torch.zeros(width),
            "ln_2__bias": torch.linspace(-most, most, width).double(),
            "mlp__c_fc__weight": up,
            "mlp__c_proj__weight": up.mT,
        }
        if not bench.adds_as_due(opened(shown, layer, **weights)):
            return False
    return True


def _is_identity(bench: Bench) -> bool:
    """Whether a block that adds nothing changes nothing, where a model may have no block."""
    rows = coarse("identity", 2, 3, WIDTH)
    none, one = (bench.closed(rows, n_layer=layers, layer_norm_epsilon=0.25) for layers in (0, 1))
    return not (bench.claims(n_layer=0) and bench.answers(none)) or bench.same(none, one)


def _of_other_blocks(bench: Bench, layer: int) -> Finding | None:
    """Whether a block computes with the weights of another, or in the place of another."""
    shown = bench.closed(coarse("adds", 2, 3, WIDTH), n_layer=layer + 1, layer_norm_epsilon=0.25)
    bias = {"attn__c_proj__bias": _ONE}
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
