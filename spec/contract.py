"""The contract of an attention implementation, and the declaration of its claims."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float

from attnspec.spec.case import Case, Feature
from attnspec.spec.profiles import Profile


class Attention(Protocol):
    """A drop-in for `torch.nn.functional.scaled_dot_product_attention`.

    Features beyond these parameters (`window`, `softcap`, `sinks`, `alibi_slopes`, `key_lengths`,
    `query_offset`, `return_lse`) are keyword-only and passed only to an implementation that
    declares them.
    """

    def __call__(
        self,
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        **features: Any,
    ) -> Any:
        """Return a mean of values for each query, weighted by a softmax of its scores."""


class Extra(StrEnum):
    """A claim about torch's tools around an implementation, independent of any case."""

    COMPILE = "compile"
    """`torch.compile(fullgraph=True)` compiles it, for all sizes."""
    VMAP = "vmap"
    """`torch.vmap` accepts it, over any of its tensors."""
    OPCHECK = "opcheck"
    """It calls custom operators that pass `torch.library.opcheck`."""


def available() -> None:
    """Report that nothing is missing: the default of `unavailable`."""


def refused_dtype(dtype: torch.dtype, claimed: Iterable[torch.dtype]) -> str | None:
    """Return the reason why a storage type is refused, or None if it is among the claimed ones."""
    return None if dtype in claimed else f"dtype not claimed: {str(dtype).removeprefix('torch.')}"


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A known bug of an implementation, kept on record until it is fixed.

    Attributes:
        law: the name of the law that finds it.
        reason: one sentence, with the version of the library in which it was seen.
        link: the address of its description.
        applies: true for the cases that it affects. The law runs without them; they run
            separately and are expected to fail.
        example: the smallest case that shows it.
        unavailable: returns the reason why this machine does not show it, or None. The law runs on
            all cases then.
    """

    law: str
    reason: str
    link: str
    applies: Callable[[Case], bool]
    example: Case
    unavailable: Callable[[], str | None] = available

    def __post_init__(self) -> None:
        if not (self.reason and self.link):
            raise ValueError(f"a deviation from {self.law} must give a reason and a link")
        if not self.applies(self.example):
            raise ValueError(
                f"the example of the deviation from {self.law} is not one of its cases"
            )

    def affects(self, case: Case) -> bool:
        """Return whether the bug shows in a case on this machine."""
        return self.applies(case) and self.unavailable() is None


@dataclass(frozen=True, kw_only=True)
class Counters:
    """An implementation's own counts.

    Attributes:
        kernel_calls: the runs of the kernel that the name promises, in this process.
        compile_seconds: time spent compiling, in this process.
    """

    kernel_calls: int
    compile_seconds: float = 0.0


def any_case(case: Case) -> None:
    """Accept every case: the default of `Implementation.supports`."""


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """An attention function and its claims, as data.

    Anything declared must work; anything else is reported as "not claimed".

    Attributes:
        name: unique, lower case, words joined by underscores.
        attention: the callable.
        features: its capabilities beyond plain attention.
        dtypes: the storage types that it accepts.
        devices: the device types that it runs on.
        supports: returns the reason why it refuses a case that its features allow, or None.
        unavailable: returns the reason why it cannot run on this machine, or None.
        profile: its behaviour wherever libraries disagree.
        deviations: its known bugs.
        counters: returns its own counts; None if it counts nothing.
        extras: its claims about torch's tools.
        compiles_each_shape: true if it compiles anew for each shape of its operands. Pinned cases
            then share few shapes, and so do the regimes (NUM-18), and a smoke run tries few of
            them: compiling takes longer than calls.
    """

    name: str
    attention: Attention
    features: frozenset[Feature] = frozenset({Feature.MASK, Feature.CAUSAL})
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32)
    devices: tuple[str, ...] = ("cpu",)
    supports: Callable[[Case], str | None] = any_case
    unavailable: Callable[[], str | None] = available
    profile: Profile = field(default_factory=Profile)
    deviations: tuple[Deviation, ...] = ()
    counters: Callable[[], Counters] | None = None
    extras: frozenset[Extra] = frozenset()
    compiles_each_shape: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("an implementation must have a name")
        if not callable(self.attention):
            raise TypeError(f"{self.name}: attention must be callable, got {self.attention!r}")
        if not self.dtypes or not self.devices:
            raise ValueError(f"{self.name}: at least one dtype and one device must be claimed")

    def refuses(self, case: Case) -> str | None:
        """Return why the implementation does not claim a case, or None if it claims the case."""
        missing = sorted(case.features - self.features)
        if missing:
            return f"feature not claimed: {', '.join(missing)}"
        reason = refused_dtype(case.dtype, self.dtypes)
        if reason is None and torch.device(case.device).type not in self.devices:
            reason = f"device not claimed: {case.device}"
        return reason or self.supports(case)
