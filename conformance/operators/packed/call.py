"""A call of packed attention, as tensors, and the padded call of each of its sequences."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int

from attnspec.conformance.attention.call import Call
from attnspec.spec.packed import CAUSAL, EVERYWHERE, UNBOUNDED, AuxRequest


@dataclass(frozen=True, kw_only=True)
class PackedCall:
    """The arguments of one call (see `attnspec.spec.packed.PackedAttention`)."""

    query: Float[torch.Tensor, "total_q heads d_head"]
    key: Float[torch.Tensor, "total_k kv_heads d_head"]
    value: Float[torch.Tensor, "total_k kv_heads d_head"]
    cu_seq_q: Int[torch.Tensor, " sequences_plus_one"]
    cu_seq_k: Int[torch.Tensor, " sequences_plus_one"]
    max_q: int
    max_k: int
    window_size: tuple[int, int] = EVERYWHERE
    scale: float | None = None
    softcap: float | None = None
    sinks: Float[torch.Tensor, " heads"] | None = None
    alibi_slopes: Float[torch.Tensor, " heads"] | None = None
    lse: bool = False

    def but(self, **changes: Any) -> Any:
        """Return the same call with some arguments changed."""
        return replace(self, **changes)

    @property
    def sequences(self) -> int:
        """The number of sequences."""
        return len(self.cu_seq_q) - 1

    @property
    def page_size(self) -> int:
        """The number of tokens of a page; 0 without pages."""
        return 0

    @property
    def operands(self) -> dict[str, torch.Tensor]:
        """Query, key and value by name."""
        return {"query": self.query, "key": self.key, "value": self.value}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensor arguments that are present, by name, in their order."""
        options = {"sinks": self.sinks, "alibi_slopes": self.alibi_slopes}
        offsets = {"cu_seq_q": self.cu_seq_q, "cu_seq_k": self.cu_seq_k}
        present = {name: each for name, each in options.items() if each is not None}
        return self.operands | offsets | present

    def positional(self) -> tuple[Any, ...]:
        """Return the positional arguments."""
        offsets = (self.cu_seq_q, self.cu_seq_k)
        return (self.query, self.key, self.value, *offsets, self.max_q, self.max_k)

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments that differ from their defaults."""
        heads = (self.query.shape[1], self.key.shape[-2])
        options: dict[str, Any] = {
            "return_aux": AuxRequest(lse=True) if self.lse else None,
            "scale": self.scale,
            "window_size": None if self.window_size == EVERYWHERE else self.window_size,
            "enable_gqa": True if heads[0] != heads[1] else None,
            "softcap": self.softcap,
            "sinks": self.sinks,
            "alibi_slopes": self.alibi_slopes,
        }
        return {name: value for name, value in options.items() if value is not None}

    def code(self) -> tuple[str, ...]:
        """Return code of all arguments, with the names of tensors."""
        words = ["query", "key", "value", "cu_seq_q", "cu_seq_k"]
        words += [f"max_q={self.max_q}", f"max_k={self.max_k}"]
        for name, value in self.keywords().items():
            literal = name if isinstance(value, torch.Tensor) else repr(value)
            if name == "return_aux":
                literal = "__import__('types').SimpleNamespace(lse=True)"
            words.append(f"{name}={literal}")
        return tuple(words)

    def with_indices(self, dtype: torch.dtype) -> Any:
        """Return the call with offsets of another integer type."""
        return self.but(cu_seq_q=self.cu_seq_q.to(dtype), cu_seq_k=self.cu_seq_k.to(dtype))

    def rows(self, sequence: int) -> slice:
        """Return the rows of the queries of a sequence."""
        first, last = self.cu_seq_q[sequence : sequence + 2].tolist()
        return slice(first, last)

    def key_rows(self, sequence: int) -> slice:
        """Return the rows of the keys of a sequence."""
        first, last = self.cu_seq_k[sequence : sequence + 2].tolist()
        return slice(first, last)

    def padded(self, sequence: int) -> Call:
        """Return the call of one sequence, whose diagonal is aligned at the lower right."""
        keys = self.key_rows(sequence)
        return self.with_keys(sequence, self.key[keys], self.value[keys])

    def with_keys(self, sequence: int, key: torch.Tensor, value: torch.Tensor) -> Call:
        """Return the call of the queries of one sequence with given keys and values."""
        left, right = (None if side == UNBOUNDED else side for side in self.window_size)
        is_causal = self.window_size == CAUSAL
        return Call(
            query=_padded(self.query[self.rows(sequence)]),
            key=_padded(key),
            value=_padded(value),
            is_causal=is_causal,
            scale=self.scale,
            window=None if is_causal or self.window_size == EVERYWHERE else (left, right),
            softcap=self.softcap,
            sinks=self.sinks,
            alibi_slopes=self.alibi_slopes,
        )

    def gathered(self) -> "PackedCall":
        """Return the call with the keys and values of each sequence one after the other."""
        return self

    def strided(self) -> Any:
        """Return the call with operands that are parts of one projection, and gaps in offsets."""
        heads, kv_heads = self.query.shape[1], self.key.shape[1]
        kv = torch.cat([self.key, self.value], dim=1)
        queries = torch.cat([self.query, torch.full_like(self.query[:, :1], torch.nan)], dim=1)
        return self.but(
            query=queries[:, :heads],
            key=kv[:, :kv_heads],
            value=kv[:, kv_heads:],
            cu_seq_q=every_second(self.cu_seq_q),
            cu_seq_k=every_second(self.cu_seq_k),
        )


def every_second(numbers: torch.Tensor) -> torch.Tensor:
    """Return the same integers as every second one of a larger tensor, whose others are large."""
    spaced = torch.full((*numbers.shape[:-1], 2 * numbers.shape[-1]), 7919, dtype=numbers.dtype)
    spaced[..., ::2] = numbers
    return spaced[..., ::2]


def _padded(x: torch.Tensor) -> torch.Tensor:
    """Return (1, heads, length, channels) of (length, heads, channels)."""
    return x.transpose(0, 1)[None]
