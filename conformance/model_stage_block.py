"""Which stage of one block of a GPT-2 is wrong: experiments in the order of the forward pass.

Each opens as little of the block as it can. Its sentence says what was put into the weights.
"""

from collections.abc import Iterator, Sequence

import torch

from attnspec.conformance.model_case import ACTIVATIONS, draw_weights
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
    if layer > 0 and _whole(bench, layer):
        return None
    for stage, is_right, experiment in _experiments(bench, layer):
        if not is_right:
            return Finding(stage=stage, layer=layer, experiment=experiment)
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
        _reads_after_attention(bench, layer),
        "attention that adds a constant row, and an MLP that is the identity",
    )
    yield from _mlp(bench, layer)
    yield Stage.BLOCK, _whole(bench, layer), "a whole block of random weights"


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
        if _adds(bench, layer, "attn__c_proj__bias"):
            return None if _branch_is_wrong(bench, layer, "ln_1", maps, alone) else Stage.FIRST_NORM
        return Stage.FIRST_RESIDUAL
    # over several, a token whose normalized row is long enough reads itself alone
    sharp = maps | {"attn__c_attn__weight": torch.cat([_EYE * 2**5, _EYE * 2**5, _EYE], 1)}
    several = bench.closed(coarse("several", 1, 4, WIDTH), n_layer=layer + 1)
    rows_meet = not bench.adds_as_due(opened(several, layer, **sharp))
    return Stage.FIRST_NORM if rows_meet and _tokens_meet(bench) else None


def _second_norm(bench: Bench, layer: int) -> Stage | None:
    maps = _mirror()
    rows = coarse("tokens", 2, 3, WIDTH)
    if _norm_is_right(bench, layer, "ln_2", maps, rows, **_relu(bench)):
        return None
    if not _adds(bench, layer, "mlp__c_proj__bias"):
        return Stage.SECOND_RESIDUAL
    wrong = _branch_is_wrong(bench, layer, "ln_2", maps, rows, **_relu(bench))
    return None if wrong else Stage.SECOND_NORM


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
    **config: object,
) -> bool:
    """Whether a branch is wrong on rows that hardly any LayerNorm can get wrong.

    That is its bias, where the gain is zero, and a row that is normalized already.
    """
    known = torch.tensor([1.0, -1.0] * (WIDTH // 2)).double().expand(rows.shape)
    fixed = {f"{name}__weight": _ZERO, f"{name}__bias": _ONE}
    shown = bench.closed(rows, n_layer=layer + 1, **config)
    even = bench.closed(known, n_layer=layer + 1, layer_norm_epsilon=0.0, **config)
    return not (
        bench.adds_as_due(opened(shown, layer, **maps, **fixed))
        or bench.adds_as_due(opened(even, layer, **maps))
    )


def _tokens_meet(bench: Bench) -> bool:
    """Whether a token is felt by earlier ones without attention: LayerNorm keeps to no row."""
    rows = coarse("meet", 1, 4, WIDTH)
    other = torch.cat([rows[:, :3], -2 * rows[:, 3:]], 1)
    one, two = (bench.closed(each, layer_norm_epsilon=0.25) for each in (rows, other))
    return not bench.same(one, two, tokens=3)


def _adds(bench: Bench, layer: int, bias: str) -> bool:
    """Whether a branch that is a constant row adds to the stream."""
    shown = bench.closed(coarse("adds", 2, 3, WIDTH), n_layer=layer + 1, layer_norm_epsilon=0.25)
    return bench.adds_as_due(opened(shown, layer, **{bias: _ONE}))


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
        model((2, 3), 1, fixed | equal | out),
        "the same row from ln_1 at every token, one head, queries, keys and values alike",
    )
    for heads in (1, 2, 3):
        yield (
            Stage.HEADS,
            model((2, 3), heads, fixed | packed | out),
            f"the same row from ln_1 at every token, heads: {heads}",
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
        drawn = draw_weights(shown.config, seed=7, spread=0.3, dtype=bench.dtype)
        own = f"transformer.h.{layer}."
        weights = {
            name.removeprefix(own).replace(".", "__"): each
            for name, each in drawn.items()
            if name.startswith(own)
        }
        if not bench.adds_as_due(opened(shown, layer, **weights)):
            return False
    return True
