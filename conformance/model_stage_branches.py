"""The attention and the MLP of one block: experiments on rows that LayerNorm cannot get wrong."""

from collections.abc import Iterator, Sequence

import torch

from attnspec.conformance.model_case import ACTIVATIONS
from attnspec.conformance.model_stage_bench import EYE, ROW, WIDTH, ZERO, Bench, coarse, opened
from attnspec.conformance.model_stage_names import Stage
from attnspec.conformance.model_stage_norms import relu

_VALUES = torch.cat([0 * EYE, 0 * EYE, EYE], 1)


def attention(bench: Bench, layer: int) -> Iterator[tuple[Stage, bool, str]]:
    """Try attention: its maps and heads where it has one token, then mask, scale and products."""

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
    fixed = {"ln_1__weight": ZERO, "ln_1__bias": ROW}
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
    identity = {"attn__c_proj__weight": EYE}
    yield (
        Stage.MASK,
        model((2, 5), 1, identity | {"attn__c_attn__weight": _VALUES}),
        "queries and keys of zero, so that every token averages those it may read",
    )
    # a token is the last that it would read itself
    large = torch.cat([-EYE, 2.0**15 * EYE, EYE], 1)
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


def mlp(bench: Bench, layer: int) -> Iterator[tuple[Stage, bool, str]]:
    """Try the MLP: its maps where no activation is felt, then each activation."""
    rows = coarse("mlp", 1, 3, WIDTH)
    fixed = {"ln_2__weight": ZERO, "ln_2__bias": ROW}
    for inner in (None, WIDTH, WIDTH - 1):
        config = {"n_inner": inner, **relu(bench)}
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
