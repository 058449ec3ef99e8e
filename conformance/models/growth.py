"""Growth: the pinned cases of a law of models at the width of real ones, long, deep or wide.

A law about one matter is tried on small models. A build may have that mistake in the code of longer
or larger calls alone. So each law is also tried on pinned cases grown to such sizes.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

import torch

from attnspec.conformance.models.case import ModelCase


class Growth(StrEnum):
    """The size in which a grown case exceeds its pinned one most."""

    TOKENS = "tokens"
    """More tokens than a tile of 512, or of 256 in several rows."""
    LAYERS = "layers"
    """The layers of the two smallest released models, 24 of them or 12 on more tokens."""
    ROWS = "rows"
    """Several rows of more tokens than a tile of 128."""
    BATCH = "batch"
    """A dozen rows or more."""
    CHANNELS = "channels"
    """Two layers of the width of the smallest released model, also on several rows."""
    IDS = "ids"
    """The vocabulary of the released models, on more tokens than a tile of 64 or of 128."""


WIDTH = 128
"""Channels of most grown models: two heads as wide as in every released one, or four of half."""

MANY_IDS = 50_257

LARGEST_TABLE, LARGEST_TABLE_WITH_GRADIENTS = 33_007 * 768, MANY_IDS * WIDTH
"""Numbers of the largest token table: more rows than 15 bits count at the width of the smallest
released model, and with gradients all rows at the width of most grown models. A law holds its
weights a dozen times, or two dozen times with the bounds of their gradients: some two gigabytes."""

LOGITS = 18_000_000
"""Logits of a grown case; a law and its bound take about 90 bytes for each."""

SPREADS = {"initializer_range": 0.05, "embedding_range": 1.0}
"""Standard deviations of the weights at which attention chooses no single key at this width."""

HEADS, WIDTH_OF_HEAD, SPREAD = 12, 64, 0.02
"""Heads and channels of the smallest released model, and the standard deviation of its weights."""

LARGEST = {"n_layer": 3, "batch": 3, "length": 40, "vocab_size": 1000}
"""The largest sizes of a pinned case that is grown; others are large by themselves."""

SMALL_BY_NATURE = {
    "each-token-selects-its-row": "it compares every two ids",
    "scale-attn-weights-divides-scores-by-the-root-of-d-head": "it plants scores of its own",
    "a-head-four-times-as-wide-halves-its-scores": "it makes a model of other sizes",
    "logits-of-an-id-need-its-row-alone": "it has the table of a released model",
    "frozen-parameters-change-no-other-gradient": "it differentiates a model five times",
    "the-state-of-torch-changes-no-logit": "it calls a model in seven states, on up to 40 tokens",
}
"""Laws that are tried on no grown case, with the reason."""


OF_TWO_SIZES = (
    "logits-equal-the-oracles",
    "a-cache-equals-all-at-once",
    "every-hidden-state-equals-the-oracles",
    "hidden-states-of-padded-rows-are-those-of-each-alone",
    "padding-changes-no-real-token",
    "every-gradient-equals-the-oracles",
)
"""Laws of everything that a model returns, whose first grown case exceeds in two sizes at once."""

OF_SEVERAL_SIZES = (
    *OF_TWO_SIZES,
    "gradients-of-padded-rows-are-those-of-each-alone",
    "cached-padding-stays-hidden",
    "a-prompt-padded-on-the-right-can-be-continued",
)
"""Laws that meet several layers, rows, tokens and ids together in each run, fewer of each."""

GRADIENTS = (
    "every-gradient-equals-the-oracles",
    "calls-before-a-backward-pass-leave-its-gradients",
    "gradients-pass-through-a-cache",
    "the-last-hidden-state-has-the-gradients-of-the-logits",
)
"""Laws whose bound is too wide for a pass to be evidence in models of over six layers."""

WIDE_BOUND = (Growth.LAYERS, Growth.CHANNELS)
"""Growths at which the bound in float32 is too wide for a pass to be evidence."""

IN_FLOAT64_ALONE = (
    "packed-projection-holds-queries-keys-values",
    "the-mlp-reads-the-stream-after-attention",
    "later-tokens-stay-hidden-however-large-their-scores",
)
"""Laws that plant large numbers of their own, whose bound in float32 is too wide."""

MORE_OF_EVERYTHING = 3
"""Grown cases of a law of everything for each one of another law."""

SHARE_OF_TWO = 0.2
"""Share of such cases in the other laws."""


def grown(case: ModelCase, growths: Collection[Growth], dice: random.Random) -> ModelCase:
    """Return a case of the same kind with wide heads, in float64.

    Switches, padding and the number of unused positions stay.

    Args:
        case: a pinned case.
        growths: what to have most of, one size or two at once.
        dice: draws the sizes.
    """
    n_head = dice.choice((2, 4))
    heads, width = n_head, WIDTH // n_head
    spreads = SPREADS
    if Growth.CHANNELS in growths:
        heads, width = HEADS, WIDTH_OF_HEAD
    if Growth.CHANNELS in growths or Growth.LAYERS in growths or len(growths) > 1:
        spreads = SPREADS | {"initializer_range": SPREAD}
    sizes: dict[Growth, dict[str, Any]] = {
        Growth.TOKENS: dice.choice(
            (
                {"length": dice.randint(513, 540), "n_layer": dice.choice((1, 2))},
                {"length": dice.randint(650, 700), "n_layer": dice.choice((1, 2))},
                {"length": dice.randint(257, 262), "batch": 4, "n_layer": 2},
            )
        ),
        Growth.LAYERS: dice.choice(
            (
                {"length": dice.randint(33, 40), "n_layer": 24, "batch": 2},
                {"length": dice.randint(65, 72), "n_layer": 12, "batch": 2},
            )
        ),
        Growth.ROWS: {"length": dice.randint(129, 140), "batch": dice.choice((4, 5))},
        Growth.BATCH: {"length": dice.randint(17, 40), "batch": dice.randint(12, 17)},
        Growth.CHANNELS: dice.choice(
            (
                {"length": dice.randint(5, 17), "n_layer": 2},
                {"length": dice.randint(4, 6), "n_layer": 2, "batch": 4},
            )
        ),
        Growth.IDS: {
            "length": dice.choice((dice.randint(65, 70), dice.randint(130, 140))),
            "vocab_size": MANY_IDS,
        },
    }
    if len(growths) > 1:
        # two at once take long, so that everything else stays small
        sizes[Growth.TOKENS] = {"length": dice.randint(257, 262)}
        sizes[Growth.LAYERS] |= {"batch": 1, "n_layer": 6}
        sizes[Growth.ROWS] |= {"length": dice.randint(129, 132), "batch": 4}
        sizes[Growth.IDS]["length"] = dice.randint(65, 70)
        case = case.but(batch=min(case.batch, 2))
    larger: dict[str, Any] = {}
    for growth in growths:
        for name, size in sizes[growth].items():
            larger[name] = max(size, larger.get(name, getattr(case, name)))
    if Growth.IDS in growths:
        larger["vocab_size"] = min(larger["vocab_size"], LARGEST_TABLE // (heads * width))
        # several rows have fewer tokens each, or if tokens are many, fewer ids
        rows, ids = larger.get("batch", case.batch), larger["vocab_size"]
        if not {Growth.TOKENS, Growth.ROWS} & set(growths):
            larger["length"] = min(larger["length"], LOGITS // (rows * ids))
        larger["vocab_size"] = min(ids, LOGITS // (rows * larger["length"]))
    return _with_sizes(case, heads, width, larger, spreads)


def _with_sizes(
    case: ModelCase, heads: int, width: int, sizes: Mapping[str, Any], spreads: Mapping[str, float]
) -> ModelCase:
    """Return a case of the same kind of other sizes, in float64.

    Args:
        case: gives switches, padding and the number of unused positions.
        heads: heads of the model.
        width: channels of each.
        sizes: other fields, the length among them.
        spreads: standard deviations of the weights.
    """
    return case.but(
        n_head=heads,
        d_head=width,
        n_inner=None if case.n_inner is None else heads * width + case.n_inner,
        n_positions=sizes["length"] + case.n_positions - case.length,
        dtype=torch.float64,
        **sizes,
        **spreads,
    )


def of_several_sizes(case: ModelCase, dice: random.Random) -> ModelCase:
    """Return a case of the same kind with several layers, rows, tokens and ids, in float64.

    Args:
        case: a pinned case.
        dice: draws the sizes.
    """
    heads = dice.choice((2, 4))
    sizes = {
        "length": dice.randint(33, 70),
        "n_layer": dice.randint(4, 6),
        "batch": dice.randint(4, 9),
        "vocab_size": dice.randint(300, 1100),
    }
    return _with_sizes(case, heads, WIDTH // heads, sizes, SPREADS | {"initializer_range": SPREAD})


IN_FLOAT32: dict[str, Any] = {
    "dtype": torch.float32,
    "initializer_range": 0.05,
    "embedding_range": 4.0,
}
"""What makes the bound of a grown case of one layer narrow in the type in which models are run:
scores of half of the channels are 1.8 times as wrong as it allows on 530 tokens, and those of two
layers a third of it."""

SHARE_OF_FLOAT32 = 0.4
"""Share of grown cases of one layer in float32; float64 shows far smaller mistakes."""


def grown_cases(
    law: str,
    pinned: Sequence[ModelCase],
    seed: int,
    count: int,
    *,
    float32: bool = False,
    float64: bool = True,
) -> list[ModelCase]:
    """Return pinned cases at large sizes, each of another growth, and at several larger sizes.

    Args:
        law: the name of the law.
        pinned: its pinned cases.
        seed: selects them, their growth and their sizes.
        count: how many growths of a law about one matter, as many as there are at most.
        float32: whether some of those whose bound is narrow in float32 are in that type. The
            bound of gradients is not.
        float64: whether the others are claimed; if not, all that may be are in float32.
    """
    dice = random.Random(f"{seed}/{law}")
    small = [
        case
        for case in pinned
        if all(getattr(case, name) <= size for name, size in LARGEST.items())
    ]
    if law in SMALL_BY_NATURE or not small:
        return []
    if law in OF_TWO_SIZES:
        growths = dice.sample(list(Growth), len(Growth))
    else:
        # two sevenths of the laws meet many tokens, a seventh each of the others
        growths = list(dict.fromkeys([dice.choice((Growth.TOKENS, *Growth)), *Growth]))
    chosen: list[tuple[Growth, ...]] = []
    number = count * (MORE_OF_EVERYTHING if law in OF_TWO_SIZES else 1)
    for growth in growths[:number]:
        pairs = [(growth, each) for each in growths if each is not growth]
        unlike = [pair for pair in pairs if pair[::-1] not in chosen]
        is_of_two = not chosen if law in OF_TWO_SIZES else dice.random() < SHARE_OF_TWO
        chosen.append(dice.choice(unlike) if is_of_two and unlike else (growth,))
    large = [grown(dice.choice(small), each, dice) for each in chosen]
    if float32 and law not in IN_FLOAT64_ALONE:
        large = [
            case.but(**IN_FLOAT32)
            if dice.random() < (SHARE_OF_FLOAT32 if float64 else 1)
            and case.n_layer == 1
            and not set(WIDE_BOUND) & set(growths)
            else case
            for growths, case in zip(chosen, large, strict=True)
        ]
    if law in GRADIENTS:
        most = LARGEST_TABLE_WITH_GRADIENTS
        large = [
            case.but(
                n_layer=min(case.n_layer, 6), vocab_size=min(case.vocab_size, most // case.n_embd)
            )
            for case in large
        ]
    if law in OF_SEVERAL_SIZES and float64:
        large += [of_several_sizes(dice.choice(small), dice) for _ in range(count)]
    return large
