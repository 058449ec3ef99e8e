"""The specification: normative text, and the contract that it speaks of as typed code."""

import importlib
from typing import TYPE_CHECKING, Any

from attnspec.spec.clauses import CHAPTERS, Clause, Level, chapter_text, clause, clauses
from attnspec.spec.profiles import (
    CausalAlignment,
    EmptyRow,
    MaskedNonfinite,
    Profile,
    Rounding,
    RoundingLevel,
)

if TYPE_CHECKING:
    from attnspec.spec.case import (
        Case,
        Feature,
        Layout,
        Layouts,
        Mask,
        MaskKind,
        MaskPattern,
        MaskShape,
        Values,
    )
    from attnspec.spec.contract import Attention, Counters, Deviation, Extra, Implementation
    from attnspec.spec.gpt2 import Build, GPT2Config, ModelFeature, ModelImplementation
    from attnspec.spec.text import (
        END_OF_TEXT,
        Generate,
        NextLogits,
        Probabilities,
        SamplerImplementation,
        Sampling,
        Tokenizer,
        TokenizerImplementation,
        Vocabulary,
    )

SPEC_VERSION = "0.2.0"
"""Raised whenever a result that was allowed no longer is, or the reverse."""

__all__ = [
    "CHAPTERS",
    "END_OF_TEXT",
    "SPEC_VERSION",
    "Attention",
    "Build",
    "Case",
    "CausalAlignment",
    "Clause",
    "Counters",
    "Deviation",
    "EmptyRow",
    "Extra",
    "Feature",
    "GPT2Config",
    "Generate",
    "Implementation",
    "Layout",
    "Layouts",
    "Level",
    "Mask",
    "MaskKind",
    "MaskPattern",
    "MaskShape",
    "MaskedNonfinite",
    "ModelFeature",
    "ModelImplementation",
    "NextLogits",
    "Probabilities",
    "Profile",
    "Rounding",
    "RoundingLevel",
    "SamplerImplementation",
    "Sampling",
    "Tokenizer",
    "TokenizerImplementation",
    "Values",
    "Vocabulary",
    "chapter_text",
    "clause",
    "clauses",
]

_CONTRACT = ("case", "contract", "gpt2", "text")
"""The modules that need torch; the text needs none, and whoever only reads it does not wait."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import the contract as soon as something of it is asked for."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        for part in _CONTRACT:
            module = importlib.import_module(f"{__name__}.{part}")
            globals().update({each: vars(module)[each] for each in __all__ if each in vars(module)})
        return globals()[name]
