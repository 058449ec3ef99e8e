"""The specification: its normative text, and its contract as typed code."""

import importlib
from typing import TYPE_CHECKING, Any

from attnspec.spec.clauses import CHAPTERS, Clause, Level, all_clauses, chapter_text, clause
from attnspec.spec.profiles import (
    CausalAlignment,
    CausalSingleQuery,
    EmptyRow,
    Float64Precision,
    Grouping,
    MaskedNonfinite,
    Profile,
    Rounding,
    RoundingLevel,
    SoftcapOrder,
)

if TYPE_CHECKING:
    from attnspec.spec.case import (
        CallMode,
        Case,
        Feature,
        KeyLengths,
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
        UNKNOWN,
        Beams,
        BeamSearch,
        EarlyStopping,
        Generate,
        Hypothesis,
        NextLogits,
        Probabilities,
        SamplerFeature,
        SamplerImplementation,
        Sampling,
        Scheme,
        Tokenizer,
        TokenizerImplementation,
        Vocabulary,
    )

SPEC_VERSION = "0.3.0"
"""The version, raised if a result becomes allowed or forbidden."""

__all__ = [
    "CHAPTERS",
    "END_OF_TEXT",
    "SPEC_VERSION",
    "UNKNOWN",
    "Attention",
    "BeamSearch",
    "Beams",
    "Build",
    "CallMode",
    "Case",
    "CausalAlignment",
    "CausalSingleQuery",
    "Clause",
    "Counters",
    "Deviation",
    "EarlyStopping",
    "EmptyRow",
    "Extra",
    "Feature",
    "Float64Precision",
    "GPT2Config",
    "Generate",
    "Grouping",
    "Hypothesis",
    "Implementation",
    "KeyLengths",
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
    "SamplerFeature",
    "SamplerImplementation",
    "Sampling",
    "Scheme",
    "SoftcapOrder",
    "Tokenizer",
    "TokenizerImplementation",
    "Values",
    "Vocabulary",
    "all_clauses",
    "chapter_text",
    "clause",
]

_CONTRACT = ("case", "contract", "gpt2", "text")
"""The modules that import torch; they load on first use, so reading the text needs no torch."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import the contract when one of its names is first used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        for part in _CONTRACT:
            members = vars(importlib.import_module(f"{__name__}.{part}"))
            globals().update({public: members[public] for public in __all__ if public in members})
        return globals()[name]
