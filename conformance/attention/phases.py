"""Phases of running models: the lengths, batches and models of each.

More than two classes of calls meet in each call of a model, and a kernel may be wrong only there.
"""

import random
from dataclasses import dataclass

from attnspec.conformance.attention.fields import LENGTHS
from attnspec.conformance.attention.model_sizes import (
    A_HEAD,
    BIDIRECTIONAL,
    CLIP,
    DECODERS,
    DIFFUSION,
    DIVIDED,
    EIGHT_HEADS,
    ENCODERS,
    GROUP,
    LATENT,
    LATENT_ALL,
    MANY_HEADS,
    MISTRAL,
    MISTRAL_7B,
    OF_16,
    OF_DEVICES,
    OF_FEW_HEADS,
    PHI_3,
    QUERYING,
    SEVERAL_HEADS,
    SMALL_ENCODER,
    SWIN,
    TRAINED,
    VISION,
    WHISPER,
    WIDE_ENCODER,
    Sizes,
)

PRODUCTS = 0.9e9
"""Products of a call without its backward pass, which take a core a few tenths of a second."""

NUMBERS_OF_GROUP = 9.5e6
"""Likewise of one key/value head, repeated for each query head that reads it, as judges do."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of running models.

    Attributes:
        name: its name.
        models: the models that are run in it.
        queries: the least and the largest number of queries.
        keys: likewise of keys; None if each query attends to all queries.
        batch: batch elements.
        is_causal: whether queries follow one another. Where there are more keys than queries,
            the last ones belong together, which the causal flag means if it is aligned so.
        backward: whether it has a backward pass.
        is_long: whether its calls take so long that each width of each model is called once, with
            options that change with the seed.
        products: products of its largest call.
        numbers: numbers of the keys and values of a group, repeated for each head that reads them.
    """

    name: str
    models: tuple[Sizes, ...]
    queries: tuple[int, int]
    keys: tuple[int, int] | None = None
    batch: tuple[int, ...] = (1,)
    is_causal: bool = True
    backward: bool = False
    is_long: bool = False
    products: float = PRODUCTS
    numbers: float = NUMBERS_OF_GROUP

    def lengths(self, scores: float, longest: float, dice: random.Random) -> tuple[int, int] | None:
        """Return numbers of queries and keys, or None if all are too large.

        Half of the draws lie beside a multiple of a tile.

        Args:
            scores: the largest product of the two.
            longest: the largest number of keys.
            dice: draws them.
        """
        least, most = self.queries
        if self.keys is None:
            most = min(most, int(min(scores**0.5, longest)))
            length = _length((least, most), dice) if least <= most else 0
            return (length, length) if length else None
        first, last = self.keys
        last = min(last, int(min(longest, scores / least)))
        if first > last:
            return None
        keys = _length((first, last), dice)
        return _length((least, min(most, int(scores / keys))), dice), keys


PHASES = (
    Phase(name="prefill", models=DECODERS, queries=(257, 1300), batch=(1, 2)),
    Phase(
        name="prefill of over 1 024 tokens",
        models=(*OF_FEW_HEADS, MISTRAL),
        queries=(1025, 1250),
        products=2e9,
    ),
    Phase(
        name="prefill of several prompts",
        models=(SEVERAL_HEADS, DIVIDED),
        queries=(257, 600),
        batch=(4, 6, 8),
    ),
    Phase(
        name="prefill of several long prompts",
        models=(OF_DEVICES,),
        queries=(513, 1300),
        batch=(2, 3),
        is_long=True,
        products=4e9,
    ),
    Phase(
        name="chunked prefill of many heads",
        models=(OF_DEVICES,),
        queries=(257, 640),
        keys=(1025, 2600),
        batch=(1, 2),
        is_long=True,
        products=3e9,
    ),
    Phase(
        name="decoding of several requests of over 2 048 keys",
        models=(OF_DEVICES,),
        queries=(1, 1),
        keys=(2049, 6500),
        batch=(4, 6),
        is_long=True,
    ),
    Phase(
        name="decoding of long requests",
        models=(EIGHT_HEADS, OF_FEW_HEADS[1], PHI_3),
        queries=(1, 1),
        keys=(1024, 1400),
        batch=(8, 12),
    ),
    Phase(
        name="decoding behind a long window",
        models=(PHI_3, MISTRAL_7B),
        queries=(1, 2),
        keys=(4160, 4700),
        is_long=True,
    ),
    Phase(
        name="speculative decoding of long requests",
        models=(EIGHT_HEADS, OF_FEW_HEADS[1]),
        queries=(2, 8),
        keys=(1024, 2100),
        batch=(8, 12),
    ),
    Phase(
        name="decoding of latent attention with many heads",
        models=(LATENT_ALL,),
        queries=(1, 4),
        keys=(1024, 1100),
        is_long=True,
        numbers=4e7,
    ),
    Phase(
        name="embedding of many texts",
        models=(SMALL_ENCODER, WIDE_ENCODER),
        queries=(17, 40),
        batch=(66, 128),
        is_causal=False,
        is_long=True,
    ),
    Phase(name="texts of CLIP", models=(CLIP,), queries=(77, 77), batch=(16, 32)),
    Phase(
        name="chunked prefill",
        models=(*DECODERS, MISTRAL),
        queries=(17, 300),
        keys=(1025, 2100),
        batch=(1, 1, 2),
    ),
    Phase(
        name="decoding",
        models=(*DECODERS, LATENT, OF_16, MISTRAL),
        queries=(1, 1),
        keys=(513, 4300),
        batch=(1, 4),
    ),
    Phase(
        name="speculative decoding",
        models=(*DECODERS, LATENT, OF_16),
        queries=(2, 16),
        keys=(513, 4300),
        batch=(1, 2, 4),
    ),
    Phase(
        name="long context",
        models=(Sizes(name="a few heads", heads=((4, 1), (2, 2)), widths=((128, 128), (64, 64))),),
        queries=(64, 130),
        keys=(16_385, 21_000),
    ),
    Phase(
        name="decoding of a long request by groups of heads",
        models=(GROUP,),
        queries=(1, 1),
        keys=(12_289, 19_000),
        is_long=True,
        numbers=4e7,
    ),
    Phase(
        name="decoding on over 65 536 keys",
        models=(A_HEAD,),
        queries=(1, 1),
        keys=(65_537, 76_000),
        is_long=True,
    ),
    Phase(
        name="decoding of many requests",
        models=(DIVIDED,),
        queries=(1, 1),
        keys=(65, 300),
        batch=(96, 128, 192, 256),
        is_long=True,
    ),
    Phase(
        name="prefill of many short prompts",
        models=(MANY_HEADS,),
        queries=(65, 70),
        batch=(50, 52),
        is_long=True,
    ),
    Phase(name="training", models=DECODERS, queries=(257, 770), batch=(1, 2), backward=True),
    Phase(
        name="training on several long texts",
        models=(OF_DEVICES,),
        queries=(513, 1000),
        batch=(2, 3),
        is_long=True,
        backward=True,
        products=6e9,
    ),
    Phase(
        name="training on over 512 tokens",
        models=OF_FEW_HEADS,
        queries=(513, 1100),
        backward=True,
    ),
    Phase(
        name="training on over 1 024 tokens with several heads",
        models=TRAINED,
        queries=(1024, 1200),
        backward=True,
        products=6e9,
    ),
    Phase(
        name="encoding",
        models=(*ENCODERS, *BIDIRECTIONAL),
        queries=(197, 578),
        batch=(2, 8, 16),
        is_causal=False,
    ),
    Phase(
        name="training of encoders",
        models=(*ENCODERS, *BIDIRECTIONAL),
        queries=(129, 400),
        batch=(2, 5, 8),
        is_causal=False,
        backward=True,
    ),
    Phase(
        name="training of decoders with biases",
        models=ENCODERS[2:],
        queries=(257, 600),
        batch=(4,),
        backward=True,
    ),
    Phase(
        name="cross attention to a prompt",
        models=(DIFFUSION,),
        queries=(1024, 2304),
        keys=(77, 77),
        batch=(2,),
        is_causal=False,
    ),
    Phase(
        name="cross attention to an image",
        models=(VISION,),
        queries=(17, 300),
        keys=(1601, 1601),
        batch=(1, 2),
        is_causal=False,
    ),
    Phase(
        name="training of cross attention",
        models=(VISION, DIFFUSION),
        queries=(129, 520),
        keys=(77, 420),
        batch=(1, 2),
        is_causal=False,
        backward=True,
    ),
    Phase(
        name="training of a few queries on an image",
        models=(QUERYING,),
        queries=(16, 100),
        keys=(257, 800),
        batch=(1, 2),
        is_causal=False,
        backward=True,
    ),
    Phase(
        name="decoding on an encoder",
        models=(WHISPER, ENCODERS[2]),
        queries=(1, 1),
        keys=(513, 1500),
        batch=(1, 5),
        is_causal=False,
    ),
    Phase(
        name="windows of an image",
        models=(SWIN,),
        queries=(49, 49),
        batch=(64, 100),
        is_causal=False,
    ),
    Phase(
        name="training of windows of an image",
        models=(SWIN,),
        queries=(49, 49),
        batch=(64,),
        is_causal=False,
        backward=True,
    ),
)
"""The phases, of which each calls every model that is run in it."""


def _length(between: tuple[int, int], dice: random.Random) -> int:
    first, last = between
    beside = [length for length in LENGTHS if first <= length <= last]
    return dice.choice(beside) if beside and dice.random() < 0.5 else dice.randint(first, last)
