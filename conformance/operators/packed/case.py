"""Cases of packed attention: lengths of the sequences, heads, options and storage type."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.attention.values import contents, generator
from attnspec.conformance.operators.packed.call import PackedCall
from attnspec.spec import Case, MaskedNonfinite, Values
from attnspec.spec.packed import CAUSAL, EVERYWHERE, EmptySequences, PackedProfile

GARBAGE = 20.0
"""Numbers that no query may read, if NaN is not blocked: large, but in range."""


@dataclass(frozen=True, kw_only=True)
class PackedCase:
    """One call of a packed attention.

    Attributes:
        queries: the number of queries of each sequence.
        keys: the number of keys of each, as many sequences.
        heads: query heads.
        kv_heads: key/value heads.
        d_head: channels of a head.
        dtype: the storage type.
        window: `window_size`; -1 is unbounded.
        scale: multiplies the scores; None for the default.
        softcap: bounds the scores.
        sinks: whether each head has a sink.
        alibi: whether each head has a slope.
        lse: whether the log-sum-exp is returned.
        outside: rows of queries, keys and values behind the last sequence.
        slack: how much larger than needed `max_q` and `max_k` are.
        strided: whether operands are parts of one projection, and offsets every second number.
        indices: the integer type of offsets, lengths and tables; None for the first declared one.
        backward: whether gradients are computed.
        values: the family of the numbers.
        seed: selects the numbers.
    """

    queries: tuple[int, ...] = (2, 3)
    keys: tuple[int, ...] = (2, 3)
    heads: int = 1
    kv_heads: int = 1
    d_head: int = 4
    dtype: torch.dtype = torch.float64
    window: tuple[int, int] = EVERYWHERE
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    alibi: bool = False
    lse: bool = False
    outside: int = 0
    slack: int = 0
    strided: bool = False
    indices: torch.dtype | None = None
    backward: bool = False
    values: Values = Values.NORMAL
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.queries) != len(self.keys) or not self.queries:
            raise ValueError(f"{self.queries} and {self.keys} are not of as many sequences")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads do not share {self.kv_heads} key/value heads")

    def __str__(self) -> str:
        """Return the lengths, the storage type, and the fields that differ from the default."""
        words = [f"queries={_joined(self.queries)} keys={_joined(self.keys)}"]
        words.append(f"dtype={str(self.dtype).removeprefix('torch.')}")
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name not in ("queries", "keys", "dtype") and value != item.default:
                words.append(f"{item.name}={_joined(value)}")
        return " ".join(words)

    @property
    def features(self) -> frozenset[str]:
        """The features that the call uses."""
        used = {
            "causal": self.window == CAUSAL,
            "window": self.window not in (CAUSAL, EVERYWHERE),
            "gqa": self.heads != self.kv_heads,
            "lse": self.lse,
            "softcap": self.softcap is not None,
            "sinks": self.sinks,
            "alibi": self.alibi,
        }
        return frozenset(name for name, is_used in used.items() if is_used)

    @property
    def has_empty_sequences(self) -> bool:
        """True if a sequence has no queries or no keys."""
        return 0 in self.queries or 0 in self.keys

    def but(self, **changes: Any) -> Any:
        """Return the same case with some fields changed."""
        return replace(self, **changes)

    def of_sequence(self, sequence: int) -> Case:
        """Return the padded case from which the numbers of one sequence are drawn."""
        return Case(
            heads=self.heads,
            kv_heads=self.kv_heads,
            queries=self.queries[sequence],
            keys=self.keys[sequence],
            d_head=self.d_head,
            d_value=self.d_head,
            dtype=self.dtype,
            scale=self.scale,
            values=self.values,
            seed=self.seed + 2 * sequence,  # its parity is the sign of some families
        )

    def index_dtype(self, profile: PackedProfile) -> torch.dtype:
        """Return the integer type of offsets, lengths and tables."""
        return self.indices or profile.index_type.dtypes[0]

    def draw(self, profile: PackedProfile) -> PackedCall:
        """Return the call: rows outside all sequences hold NaN, or large numbers if not blocked."""
        drawn = [contents(self.of_sequence(b)) for b in range(len(self.queries))]
        blocked = profile.neighbours is MaskedNonfinite.BLOCKED
        query, key, value = (
            torch.cat([*(each[i][0].transpose(0, 1) for each in drawn), self._outside(i, blocked)])
            for i in range(3)
        )
        operands = [each.to(self.dtype) for each in (query, key, value)]
        slopes = 2.0 ** -(1 + torch.arange(self.heads, dtype=torch.float64) / 2)
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        call = PackedCall(
            query=operands[0],
            key=operands[1],
            value=operands[2],
            cu_seq_q=offsets(self.queries, self.index_dtype(profile)),
            cu_seq_k=offsets(self.keys, self.index_dtype(profile)),
            max_q=max(self.queries) + self.slack,
            max_k=max(self.keys) + self.slack,
            window_size=self.window,
            scale=self.scale,
            softcap=self.softcap,
            sinks=normal(self.seed, "sinks", self.heads).to(self.dtype) if self.sinks else None,
            alibi_slopes=slopes.to(wide) if self.alibi else None,
            lse=self.lse,
        )
        return call.strided() if self.strided else call

    def draw_gradient(self) -> torch.Tensor:
        """Return the incoming gradient; of rows outside all sequences it is zero."""
        total = sum(self.queries)
        grad_out = normal(self.seed, "grad_out", total, self.heads, self.d_head)
        outside = grad_out.new_zeros(self.outside, self.heads, self.d_head)
        return torch.cat([grad_out, outside]).to(self.dtype)

    def _outside(self, operand: int, blocked: bool) -> torch.Tensor:
        """Return the numbers of rows outside all sequences: queries are ordinary ones."""
        shape = (self.outside, self.kv_heads if operand else self.heads, self.d_head)
        numbers = normal(self.seed, f"outside {operand}", *shape)
        if operand and blocked:
            return torch.full_like(numbers, torch.nan)
        return GARBAGE * numbers if operand else numbers


def _joined(value: Any) -> str:
    words = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return words.removeprefix("torch.")


def offsets(lengths: Iterable[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Return the cumulative lengths, from 0 on."""
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def normal(seed: int, purpose: str, *shape: int) -> torch.Tensor:
    """Return standard normal numbers for one purpose of a case."""
    return torch.randn(*shape, generator=generator(seed, purpose), dtype=torch.float64)


LENGTHS = (0, 1, 1, 2, 3, 5, 15, 16, 17, 33)
LONG = (63, 64, 65, 127, 129)
FAMILIES = (
    *(Values.NORMAL, Values.PEAKED, Values.GROWING, Values.TIES),
    *(Values.OFFSET, Values.CANCELLATION, Values.ONE_HOT),
)
WINDOWS = ((0, 0), (2, 0), (2, 1), (0, 3), (5, -1), (-1, 2), (16, 0))


def case_values(draw: Any, subject: Any) -> dict[str, Any]:
    """Return the fields of a drawn case, for a subject's features and profile."""
    features, profile = subject.implementation.features, subject.profile
    may_be_empty = profile.empty_sequences is EmptySequences.ALLOWED
    lengths = st.sampled_from([each for each in LENGTHS if each or may_be_empty])
    count = draw(st.integers(1, 5))
    queries = [draw(lengths) for _ in range(count)]
    if draw(st.integers(0, 3)) == 3:
        queries = [min(each, 1) for each in queries]  # decoding
    keys = [each if draw(st.booleans()) else draw(lengths) for each in queries]
    if draw(st.integers(0, 5)) == 5:
        keys[draw(st.integers(0, count - 1))] = draw(st.sampled_from(LONG))
    windows = [EVERYWHERE]
    windows += [CAUSAL, CAUSAL] if "causal" in features else []
    windows += [draw(st.sampled_from(WINDOWS))] if "window" in features else []
    kv_heads = draw(st.sampled_from([1, 1, 2, 3]))
    group = draw(st.sampled_from([1, 1, 2, 3])) if "gqa" in features else 1

    def option(name: str, value: Any, none: Any) -> Any:
        return value if name in features and draw(st.integers(0, 4)) == 4 else none

    return {
        "queries": tuple(queries),
        "keys": tuple(keys),
        "heads": kv_heads * group,
        "kv_heads": kv_heads,
        "d_head": draw(st.sampled_from([1, 4, 8, 16, 32])),
        "dtype": draw(st.sampled_from(subject.implementation.dtypes)),
        "window": draw(st.sampled_from(windows)),
        "scale": draw(st.sampled_from([None, None, 0.5, 0.1])),
        "softcap": option("softcap", 2.0, None),
        "sinks": option("sinks", True, False),
        "alibi": option("alibi", True, False),
        "outside": draw(st.sampled_from([0, 0, 0, 3])),
        "slack": draw(st.sampled_from([0, 0, 0, 7])),
        "strided": draw(st.integers(0, 4)) == 4,
        "values": draw(st.sampled_from(FAMILIES)),
        "seed": draw(st.integers(0, 2**16 - 1)),
    }


def cases(subject: Any, **fixed: Any) -> st.SearchStrategy[PackedCase]:
    """Return a strategy that draws cases a subject claims, with some fields given."""

    @st.composite
    def draw(draw: Any) -> PackedCase:
        return PackedCase(**(case_values(draw, subject) | fixed))

    return draw().filter(lambda case: subject.refuses(case) is None)
