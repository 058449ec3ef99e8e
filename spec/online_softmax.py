"""The contracts of an online softmax and of a merge, and where implementations differ."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Float

from attnspec.spec.operator import OperatorImplementation


class Kept(StrEnum):
    """The numbers that a row keeps from tile to tile, beside its output."""

    MAXIMUM = "maximum"
    """The largest score, and the sum of exponentials relative to it."""
    LOG_SUM_EXP = "log_sum_exp"
    """The log-sum-exp: tiles are merged as finished results are."""
    SUM = "sum"
    """The sum of the exponentials themselves, which overflow if a score is large."""


class LogBase(StrEnum):
    """The base of the logarithm in a log-sum-exp."""

    E = "e"
    TWO = "2"
    """FlashInfer's; its powers are those of the base too."""

    @property
    def unit(self) -> float:
        """The natural logarithm of the base."""
        return math.log(2.0) if self is LogBase.TWO else 1.0


@dataclass(frozen=True, kw_only=True)
class OnlineSoftmaxProfile:
    """The behaviours in which correct online softmaxes differ.

    Attributes:
        keeps: the numbers that a row keeps from tile to tile.
        base: the base of the logarithm that is returned.
    """

    keeps: Kept = Kept.MAXIMUM
    base: LogBase = LogBase.E

    QUESTIONS: ClassVar[Mapping[str, type[StrEnum]]] = {"keeps": Kept, "base": LogBase}
    """The type of the answer to each question."""


@dataclass(frozen=True, kw_only=True)
class SoftmaxMergeProfile:
    """The behaviours in which correct merges differ.

    Attributes:
        base: the base of the logarithms that are taken and returned.
    """

    base: LogBase = LogBase.E

    QUESTIONS: ClassVar[Mapping[str, type[StrEnum]]] = {"base": LogBase}
    """The type of the answer to each question."""


class OnlineSoftmax(Protocol):
    """The part of attention behind the scores: mean of the values and log-sum-exp of each row."""

    def __call__(
        self,
        scores: Float[torch.Tensor, "queries keys"],
        values: Float[torch.Tensor, "keys d_value"],
    ) -> tuple[Float[torch.Tensor, "queries d_value"], Float[torch.Tensor, " queries"]]:
        """Return the output, and the log-sum-exp.

        Args:
            scores: in any strides, at least one key; minus infinity hides a value.
            values: finite, in the storage type of the scores.

        Returns:
            The output in the storage type; the log-sum-exp in float64 for operands of float64,
            else in float32.
        """


class SoftmaxMerge(Protocol):
    """The result of two parts of the keys, from those of each."""

    def __call__(
        self,
        out_a: Float[torch.Tensor, "*rows d_value"],
        lse_a: Float[torch.Tensor, "*rows"],
        out_b: Float[torch.Tensor, "*rows d_value"],
        lse_b: Float[torch.Tensor, "*rows"],
    ) -> tuple[Float[torch.Tensor, "*rows d_value"], Float[torch.Tensor, "*rows"]]:
        """Return output and log-sum-exp over the keys of both parts.

        Args:
            out_a: the output over the keys of the first part; zeros if it has none.
            lse_a: its log-sum-exp, minus infinity if it has no keys; in float64 for outputs of
                float64, else in float32.
            out_b: the output over those of the second part.
            lse_b: its log-sum-exp.

        Returns:
            Both in the types of the operands.
        """


@dataclass(frozen=True, kw_only=True)
class OnlineSoftmaxImplementation(OperatorImplementation):
    """An online softmax and its claims, as data; it has no features.

    Attributes:
        profile: its behaviour wherever libraries disagree.
    """

    function: OnlineSoftmax | Callable[..., Any]
    profile: OnlineSoftmaxProfile = field(default_factory=OnlineSoftmaxProfile)

    operator: ClassVar[str] = "online_softmax"
    FEATURES: ClassVar[frozenset[str]] = frozenset()


@dataclass(frozen=True, kw_only=True)
class SoftmaxMergeImplementation(OperatorImplementation):
    """A merge of two parts and its claims, as data; it has no features.

    Attributes:
        profile: its behaviour wherever libraries disagree.
    """

    function: SoftmaxMerge | Callable[..., Any]
    profile: SoftmaxMergeProfile = field(default_factory=SoftmaxMergeProfile)

    operator: ClassVar[str] = "softmax_merge"
    FEATURES: ClassVar[frozenset[str]] = frozenset()
