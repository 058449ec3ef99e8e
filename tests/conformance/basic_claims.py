"""A subject with the claims of most kernels, for tests of the laws that choose their calls."""

from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.spec import Feature, Implementation

BASIC = frozenset({Feature.CAUSAL, Feature.GQA, Feature.BACKWARD})
DTYPES = (torch.float16, torch.bfloat16)


def subject_of(
    attention: Callable[..., Any] | None = None,
    features: frozenset[Feature] = BASIC,
    **options: Any,
) -> Subject:
    """Return a subject of an attention, by default a correct one; options are its claims."""
    claims: dict[str, Any] = {"dtypes": DTYPES} | options
    function = attention or Dense()
    return Subject(Implementation(name="it", attention=function, features=features, **claims))
