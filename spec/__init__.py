"""The specification: normative text, and the contract that it speaks of as typed code."""

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
from attnspec.spec.clauses import CHAPTERS, Clause, Level, chapter_text, clause, clauses
from attnspec.spec.contract import Attention, Counters, Deviation, Extra, Implementation
from attnspec.spec.gpt2 import Build, GPT2Config, ModelFeature, ModelImplementation
from attnspec.spec.profiles import (
    CausalAlignment,
    EmptyRow,
    MaskedNonfinite,
    Profile,
    Rounding,
    RoundingLevel,
)
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
