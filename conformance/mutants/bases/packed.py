"""A correct packed attention whose steps mutants replace."""

from dataclasses import replace
from typing import Any

import torch

from attnspec.conformance.mutants.bases.wrong_at_rows import wrong_at
from attnspec.conformance.mutants.registry import plant
from attnspec.conformance.operators.packed.regimes import AXES, call_of
from attnspec.spec.packed import (
    EVERYWHERE,
    NEVER_ROUNDED,
    PACKED_FEATURES,
    UNBOUNDED,
    IndexType,
    LseLayout,
    OutsideRows,
    PackedImplementation,
    PackedProfile,
)
from attnspec.spec.profiles import RoundingLevel

PROFILE = PackedProfile(outside_rows=OutsideRows.ZERO, rounding=RoundingLevel.EAGER)


class PlainPacked:
    """A packed attention in torch's own operations, one sequence after the other.

    The arguments of the present call are attributes, for the steps to read.
    """

    lse_layout = LseLayout.HEADS_FIRST
    index_type = IndexType.EITHER

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_seq_q: torch.Tensor,
        cu_seq_k: torch.Tensor | None,
        max_q: int,
        max_k: int,
        *,
        return_aux: Any = None,
        scale: float | None = None,
        window_size: tuple[int, int] = EVERYWHERE,
        enable_gqa: bool = False,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        **paged: Any,
    ) -> Any:
        """Return attention of each sequence over its own keys."""
        self.query, self.key, self.value = query, key, value
        self.max_q, self.max_k, self.window = max_q, max_k, window_size
        self.scale = query.shape[-1] ** -0.5 if scale is None else scale
        self.softcap, self.sinks, self.slopes = softcap, sinks, alibi_slopes
        self.begin(cu_seq_q, cu_seq_k, **paged)
        out, lse = self.attend()
        if return_aux is None or not return_aux.lse:
            return out
        return out, lse.T if self.lse_layout is LseLayout.TOKENS_FIRST else lse

    def begin(self, cu_seq_q: torch.Tensor, cu_seq_k: torch.Tensor | None, **paged: Any) -> None:
        """Read the offsets."""
        assert cu_seq_k is not None
        assert not paged
        self.types(cu_seq_q, cu_seq_k)
        self.fits(cu_seq_q, len(self.query), self.max_q)
        self.fits(cu_seq_k, len(self.key), self.max_k)
        self.as_many(len(cu_seq_q), len(cu_seq_k))
        self.offsets, self.key_offsets = cu_seq_q.tolist(), cu_seq_k.tolist()

    def types(self, *indices: torch.Tensor) -> None:
        """Refuse integers of a type that is not declared."""
        for each in indices:
            if each.dtype not in self.index_type.dtypes:
                raise TypeError(f"offsets must be {self.index_type}, got {each.dtype}")

    def fits(self, offsets: torch.Tensor, rows: int, longest: int) -> None:
        """Refuse offsets or a maximum that do not fit."""
        self.ends(int(offsets[0]), int(offsets[-1]), rows)
        self.lengths(offsets.diff(), longest)

    def ends(self, first: int, last: int, rows: int) -> None:
        """Refuse offsets that do not begin at 0, or end beyond a tensor."""
        if first != 0 or last > rows:
            raise ValueError(f"offsets must begin at 0 and end at {rows} or before")

    def lengths(self, lengths: torch.Tensor, longest: int) -> None:
        """Refuse negative lengths, and those beyond the maximum."""
        if bool((lengths < 0).any()) or bool((lengths > longest).any()):
            raise ValueError(f"lengths must lie in 0 to {longest}, got {lengths.tolist()}")

    def as_many(self, of_queries: int, of_keys: int) -> None:
        """Refuse another number of sequences in another argument."""
        if of_queries != of_keys:
            raise ValueError(f"{of_queries} offsets of queries, {of_keys} of keys")

    @property
    def sequences(self) -> int:
        """The number of sequences."""
        return len(self.offsets) - 1

    def attend(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output and the log-sum-exp of all rows."""
        out = torch.zeros_like(self.query)
        wide = torch.float64 if out.dtype == torch.float64 else torch.float32
        lse = torch.full((out.shape[1], len(out)), -torch.inf, dtype=wide)
        for b in range(self.sequences):
            rows = self.rows(b)
            key, value = self.gather(b)
            part, lse[:, rows] = self.sequence(b, self.query[rows], key, value)
            out[rows] = part
        return out, lse

    def rows(self, b: int) -> slice:
        """Return the rows of the queries of a sequence."""
        return slice(self.offsets[b], self.offsets[b + 1])

    def key_rows(self, b: int) -> slice:
        """Return the rows of the keys of a sequence."""
        return slice(self.key_offsets[b], self.key_offsets[b + 1])

    def gather(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of a sequence, (keys, kv_heads, d_head)."""
        return self.key[self.key_rows(b)], self.value[self.key_rows(b)]

    def sequence(
        self, b: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output and the log-sum-exp of a sequence."""
        q, k, v = query.transpose(0, 1), self.repeat(key), self.repeat(value)
        after = self.after(b, q.shape[1], k.shape[1])
        scores = self.scores(q, k, after).masked_fill(~self.visible(after), -torch.inf)
        weights, lse = self.softmax(scores)
        return self.mix(weights, v).transpose(0, 1), lse

    def repeat(self, x: torch.Tensor) -> torch.Tensor:
        """Return (heads, keys, d_head), each key/value head once for each query of its group."""
        return x.transpose(0, 1).repeat_interleave(self.query.shape[1] // x.shape[1], dim=0)

    def after(self, b: int, queries: int, keys: int) -> torch.Tensor:
        """Return how far each key lies after the position of each query."""
        return torch.arange(keys) - (torch.arange(queries) + keys - queries)[:, None]

    def visible(self, after: torch.Tensor) -> torch.Tensor:
        """Return whether a query may read a key."""
        left, right = self.window
        visible = torch.ones_like(after, dtype=torch.bool)
        if left != UNBOUNDED:
            visible = visible & (after >= -left)
        return visible if right == UNBOUNDED else visible & (after <= right)

    def scores(self, q: torch.Tensor, k: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        """Return the scores before keys are hidden."""
        scores = (q @ k.mT) * self.scale
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.slopes is not None:
            slopes = self.slopes.to(scores.dtype)[:, None, None]
            scores = scores - slopes * after.abs().to(scores.dtype)
        return scores

    def softmax(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights, zero for a row that reads nothing, and the log-sum-exp."""
        keys = scores.shape[-1]
        if self.sinks is not None:
            sink = self.sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:2], 1)
            scores = torch.cat([scores, sink], dim=-1)
        empty = (scores == -torch.inf).all(-1, keepdim=True)
        wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
        weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
        return weights[..., :keys], scores.detach().to(wide).logsumexp(-1)

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return the mean of the values."""
        return weights @ value


def graft(value: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the numbers of one result with the gradient of another."""
    return gradient + (value - gradient).detach()


def correct(
    name: str = "correct",
    base: type[PlainPacked] = PlainPacked,
    profile: PackedProfile = PROFILE,
) -> PackedImplementation:
    """Return the declaration of a packed attention."""
    function = base()
    function.lse_layout, function.index_type = profile.lse_layout, profile.index_type
    return PackedImplementation(
        name=name,
        function=function,
        features=PACKED_FEATURES,
        has_gradients=profile.partial_outputs == NEVER_ROUNDED,
        profile=profile,
    )


def packed_wrong_at(identifier: str, title: str, *regimes: tuple[str, str]) -> None:
    """Plant an attention that is wrong where all of some regimes hold."""
    subject = correct(identifier)
    function = wrong_at(subject.function, call_of, AXES, *regimes)
    plant(
        id=identifier,
        title=title,
        subject=replace(subject, function=function),
        killed_by="packed-attention-is-right-in-every-two-regimes",
    )


def packed_mistake(
    identifier: str,
    title: str,
    *,
    killed_by: str,
    profile: PackedProfile = PROFILE,
    source: str = "",
) -> Any:
    """Plant a class as a mutant."""

    def register(base: type[PlainPacked]) -> type[PlainPacked]:
        subject = correct(identifier, base, profile)
        plant(id=identifier, title=title, subject=subject, killed_by=killed_by, source=source)
        return base

    return register
