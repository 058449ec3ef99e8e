"""The sizes of known models: heads, widths, and the options that come with them.

The numbers are those of the models' published configurations. A model that is divided among devices
has a part of its heads on each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnspec.spec import Mask, MaskKind, MaskPattern, MaskShape

PADDING = Mask(kind=MaskKind.BOOL, pattern=MaskPattern.PADDING, shape=MaskShape.KEYS)
LEFT_PADDING = Mask(kind=MaskKind.BOOL, pattern=MaskPattern.LEFT_PADDING, shape=MaskShape.KEYS)
BIAS = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.HEADS)
OWN_BIAS = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.FULL)
TEXTS = Mask(kind=MaskKind.BOOL, pattern=MaskPattern.PADDING, shape=MaskShape.BATCH)
"""Masks of four axes, another one for each text of a batch."""
SIDES = (127, 128, 200, 255, 256)
"""Keys to the left of a query that windows let it read; those of the models, 128 to 4 096, are
whole multiples of tiles, and some count the query itself."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The heads of some models, and the options that they are run with.

    Attributes:
        name: the models.
        heads: numbers of (heads, kv_heads).
        widths: widths of (queries and keys, values).
        options: fields of a case that these models set.
    """

    name: str
    heads: tuple[tuple[int, int], ...]
    widths: tuple[tuple[int, int], ...]
    options: Mapping[str, Any] = field(default_factory=dict)


GEMMA = {"softcap": 50.0, "window": (256, 0)}
GPT_OSS = {"sinks": True, "window": (127, 0)}
GRANITE = {"scale": 2.0**-6}
"""Widths 64 with a scale that is not the default one; Gemma 3 and models under µP have others."""

DECODERS = (
    Sizes(name="GPT-2", heads=((12, 12), (20, 20), (25, 25)), widths=((64, 64),)),
    Sizes(name="Llama 3", heads=((32, 8), (64, 8)), widths=((128, 128), (64, 64))),
    Sizes(name="Llama 3, divided among devices", heads=((4, 1), (8, 2)), widths=((128, 128),)),
    Sizes(name="Qwen2.5 0.5B", heads=((14, 2),), widths=((64, 64),)),
    Sizes(name="Qwen2.5", heads=((28, 4), (40, 8)), widths=((128, 128),)),
    Sizes(name="Llama 3.2 3B, Mixtral 8x22B", heads=((24, 8), (48, 8)), widths=((128, 128),)),
    Sizes(name="Granite 3", heads=((32, 8), (12, 4)), widths=((64, 64),), options=GRANITE),
    Sizes(name="Gemma 2B, Gemma 3 1B", heads=((8, 1), (4, 1)), widths=((256, 256),)),
    Sizes(name="Gemma 2", heads=((8, 4), (16, 8)), widths=((256, 256),), options=GEMMA),
    Sizes(name="gpt-oss", heads=((64, 8),), widths=((64, 64),), options=GPT_OSS),
    Sizes(name="Falcon", heads=((71, 1),), widths=((64, 64),)),
    Sizes(name="Phi-2, Phi-3", heads=((32, 32),), widths=((80, 80), (96, 96))),
    Sizes(
        name="BLOOM",
        heads=((16, 16), (32, 32)),
        widths=((64, 64), (128, 128)),
        options={"alibi": True},
    ),
    Sizes(name="DeepSeek-V2", heads=((16, 16),), widths=((192, 128),)),
)
OF_FEW_HEADS = (
    Sizes(name="GPT-2 124M", heads=((12, 12),), widths=((64, 64),)),
    *(each for each in DECODERS if each.name in ("Llama 3, divided among devices", "Qwen2.5 0.5B")),
)
DIVIDED = Sizes(name="Llama 3.2, divided", heads=((8, 2), (4, 1)), widths=((64, 64),))
OF_16 = Sizes(name="Llama 3.1 405B", heads=((128, 8),), widths=((128, 128),))
MISTRAL = Sizes(
    name="Mistral, divided",
    heads=((8, 2), (4, 1)),
    widths=((128, 128),),
    options={"window": (1023, 0)},
)
MISTRAL_7B = Sizes(
    name="Mistral 7B, divided",
    heads=((4, 1), (8, 2)),
    widths=((128, 128),),
    options={"window": (4095, 0)},
)
SEVERAL_HEADS = Sizes(name="GPT-2, divided", heads=((3, 3), (4, 4)), widths=((64, 64),))
CLIP = Sizes(name="CLIP", heads=((8, 8), (12, 12)), widths=((64, 64),))
QUERYING = Sizes(name="Q-Former, Perceiver", heads=((12, 12), (8, 8)), widths=((64, 64), (96, 96)))
TRAINED = (
    Sizes(name="GPT-2 124M", heads=((12, 12), (6, 6)), widths=((64, 64),)),
    Sizes(name="Llama 3, divided among devices", heads=((4, 2), (8, 2)), widths=((128, 128),)),
)
EIGHT_HEADS = Sizes(name="Llama 3.2, divided", heads=((8, 2), (8, 1)), widths=((64, 64),))
OF_DEVICES = Sizes(
    name="the heads of a device",
    heads=((4, 1), (8, 2), (8, 1), (8, 8), (12, 12), (6, 2)),
    widths=((64, 64), (96, 96), (128, 128), (256, 256)),
)
"""Few heads, as tensor parallelism leaves them to a device, so that longer texts are affordable."""
SMALL_ENCODER = Sizes(name="all-MiniLM, E5 small", heads=((12, 12), (8, 8)), widths=((32, 32),))
WIDE_ENCODER = Sizes(name="BERT, divided", heads=((8, 8),), widths=((64, 64),))
PHI_3 = Sizes(
    name="Phi-3 mini, divided",
    heads=((4, 4), (2, 2)),
    widths=((96, 96),),
    options={"window": (2046, 0)},
)
LATENT_ALL = Sizes(name="DeepSeek-V2, absorbed", heads=((32, 1),), widths=((576, 512),))
GROUP = Sizes(
    name="Llama 3, a group of heads", heads=((4, 1), (8, 1)), widths=((64, 64), (128, 128))
)
A_HEAD = Sizes(name="one head of many", heads=((1, 1),), widths=((64, 64),))
MANY_HEADS = Sizes(name="Yi 34B, half as wide", heads=((56, 8),), widths=((64, 64),))
LATENT = Sizes(name="DeepSeek-V2, absorbed", heads=((16, 1),), widths=((576, 512),))
ENCODERS = (
    Sizes(name="BERT", heads=((12, 12), (16, 16)), widths=((64, 64),), options={"mask": PADDING}),
    Sizes(name="ViT, SigLIP", heads=((12, 12), (16, 16)), widths=((64, 64), (80, 80), (72, 72))),
    Sizes(
        name="T5",
        heads=((8, 8), (12, 12)),
        widths=((64, 64),),
        options={"mask": BIAS, "scale": 1.0},
    ),
)
BIDIRECTIONAL = (
    Sizes(name="NV-Embed, LLM2Vec", heads=((32, 8), (4, 1)), widths=((128, 128),)),
    Sizes(name="gte-Qwen2", heads=((28, 4), (12, 2)), widths=((128, 128),)),
    Sizes(
        name="EmbeddingGemma",
        heads=((3, 1),),
        widths=((256, 256),),
        options={"window": (256, 256)},
    ),
    Sizes(name="PaliGemma", heads=((8, 1),), widths=((256, 256),)),
    Sizes(name="EuroBERT", heads=((18, 6),), widths=((64, 64),)),
    Sizes(
        name="ModernBERT",
        heads=((12, 12), (16, 16)),
        widths=((64, 64),),
        options={"window": (64, 64)},
    ),
)
"""Models with the heads of decoders whose tokens read each other in both directions."""
VISION = Sizes(name="Llama 3.2 Vision", heads=((32, 8), (4, 1)), widths=((128, 128),))
DIFFUSION = Sizes(
    name="Stable Diffusion", heads=((8, 8),), widths=((40, 40), (64, 64), (80, 80), (160, 160))
)
SWIN = Sizes(
    name="Swin",
    heads=((3, 3), (6, 6), (12, 12)),
    widths=((32, 32),),
    options={"mask": BIAS},
)
WHISPER = Sizes(name="Whisper", heads=((8, 8), (12, 12)), widths=((64, 64),))
