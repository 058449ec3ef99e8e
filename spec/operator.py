"""The declaration that all operators have, and an answer that several profiles share."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import torch

from attnspec.spec.contract import available


class Working(StrEnum):
    """The type in which the steps of an operator are rounded, for operands of 16 bits."""

    FLOAT32 = "float32"
    """No intermediate result is rounded to 16 bits."""
    STORAGE = "storage"
    """Every step is rounded to the storage type; sums are accumulated in float32."""


def any_call(case: Any) -> None:
    """Accept every case: the default of `supports`."""


@dataclass(frozen=True, kw_only=True)
class OperatorImplementation:
    """An operator, i.e. a part of a model that is judged on its own, and its claims, as data.

    Attributes:
        name: unique, lower case, words joined by underscores.
        function: the callable.
        features: those of `FEATURES` that it has.
        dtypes: the storage types that it accepts.
        has_gradients: whether autograd differentiates it.
        compiles_each_shape: true if it compiles or traces anew for each shape, which takes longer
            than a call. Laws about regimes then make the few calls that hold every class alone.
        profile: its behaviour wherever libraries disagree.
        supports: returns the reason why it refuses a case, or None.
        unavailable: returns the reason why it cannot run on this machine, or None.

    Raises:
        ValueError: naming the implementation and what is wrong with the declaration.
    """

    name: str
    function: Callable[..., Any]
    features: frozenset[str] = frozenset()
    dtypes: tuple[torch.dtype, ...] = (
        *(torch.float64, torch.float32),
        *(torch.float16, torch.bfloat16),
    )
    has_gradients: bool = True
    compiles_each_shape: bool = False
    profile: Any
    supports: Callable[[Any], str | None] = any_call
    unavailable: Callable[[], str | None] = available

    operator: ClassVar[str]
    """The name of the operator."""
    FEATURES: ClassVar[frozenset[str]]
    """The features that an implementation may have."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"{self.name}: function must be callable, got {self.function!r}")
        if not self.dtypes:
            raise ValueError(f"{self.name}: at least one dtype must be claimed")
        if unknown := self.features - self.FEATURES:
            raise ValueError(f"{self.name}: unknown features {', '.join(sorted(unknown))}")
