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
from attnspec.spec.contract import Attention, Counters, Deviation, Implementation
from attnspec.spec.gpt2 import Build, GPT2Config, ModelFeature, ModelImplementation
from attnspec.spec.profiles import (
    CausalAlignment,
    EmptyRow,
    MaskedNonfinite,
    Profile,
    Rounding,
    RoundingLevel,
)

SPEC_VERSION = "0.1.0"
"""Raised whenever a result that was allowed no longer is, or the reverse."""

__all__ = [
    "CHAPTERS",
    "SPEC_VERSION",
    "Attention",
    "Build",
    "Case",
    "CausalAlignment",
    "Clause",
    "Counters",
    "Deviation",
    "EmptyRow",
    "Feature",
    "GPT2Config",
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
    "Profile",
    "Rounding",
    "RoundingLevel",
    "Values",
    "chapter_text",
    "clause",
    "clauses",
]
