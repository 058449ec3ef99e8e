"""A correct attention in which each batch element has a number of keys, and a place, of its own."""

from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.laws.helpers.regimes_of_lengths import AXES, call_of
from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.planting import plant_dense
from attnspec.conformance.operators.regimes import CallRegime
from attnspec.spec import Feature

LENGTHS = (
    *(Feature.KEY_LENGTHS, Feature.QUERY_OFFSET, Feature.WINDOW, Feature.SOFTCAP),
    *(Feature.SINKS, Feature.ALIBI, Feature.LSE, Feature.VALIDATES),
)
"""The features that the attention claims beside those of every base."""


class Ragged(Dense):
    """A correct attention that turns lengths and places into one mask; a mutant overrides a step.

    Its diagonal is at the upper left, or at the lower right in a class that says so.
    """

    lower_right = False

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        *,
        window: tuple[int | None, int | None] | None = None,
        alibi_slopes: torch.Tensor | None = None,
        key_lengths: torch.Tensor | None = None,
        query_offset: torch.Tensor | None = None,
        **options: Any,
    ) -> Any:
        batch, queries, keys = query.shape[0], query.shape[2], key.shape[2]
        self.check(key_lengths, query_offset, batch, keys)
        lengths = torch.full((batch,), keys) if key_lengths is None else self.read(key_lengths)
        places = self.places(lengths, query_offset, queries, keys)
        after = torch.arange(keys) - torch.arange(queries)[:, None] - places[:, None, None, None]
        visible = self.within(lengths, keys)
        if is_causal:
            visible = visible & (after <= 0)
        if window is not None:
            visible = visible & self.near(after, *window)
        visible = visible.expand(batch, query.shape[1], queries, keys)
        mask = self.combined(attn_mask, visible)
        if alibi_slopes is not None:
            wide = self.wide(query.dtype)
            bias = -alibi_slopes.to(wide)[:, None, None] * after.abs().to(wide)
            mask = bias + (self.zero(mask) if mask.dtype == torch.bool else mask.to(wide))
        key, value = self.operands(key, value, lengths)
        return super().__call__(
            query, key, value, mask, dropout_p, False, scale, enable_gqa, **options
        )

    def zero(self, mask: torch.Tensor) -> torch.Tensor:
        """Return a bool mask as a float mask of zeros and minus infinity."""
        return torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)

    def check(
        self,
        key_lengths: torch.Tensor | None,
        query_offset: torch.Tensor | None,
        batch: int,
        keys: int,
    ) -> None:
        """Refuse lengths and offsets out of range."""
        for numbers, most in ((key_lengths, keys), (query_offset, 2**31 - 1)):
            if numbers is None:
                continue
            if numbers.shape != (batch,) or ((numbers < 0) | (numbers > most)).any():
                raise ValueError("a length or an offset is out of range")

    def read(self, key_lengths: torch.Tensor) -> torch.Tensor:
        """Return the lengths as they are given."""
        return key_lengths.long()

    def places(
        self, lengths: torch.Tensor, query_offset: torch.Tensor | None, queries: int, keys: int
    ) -> torch.Tensor:
        """Return the place of query 0 of each batch element."""
        if query_offset is not None:
            return query_offset.long()
        return lengths - queries if self.lower_right else torch.zeros_like(lengths)

    def within(self, lengths: torch.Tensor, keys: int) -> torch.Tensor:
        """Return the keys that each batch element has, (batch, 1, 1, keys)."""
        return torch.arange(keys) < lengths[:, None, None, None]

    def near(self, after: torch.Tensor, left: int | None, right: int | None) -> torch.Tensor:
        """Return the keys inside a window."""
        if any(width is not None and width < 0 for width in (left, right)):
            raise ValueError(f"window must not be negative, got {(left, right)}")
        visible = torch.ones_like(after, dtype=torch.bool)
        visible = visible if left is None else visible & (after >= -left)
        return visible if right is None else visible & (after <= right)

    def combined(self, attn_mask: torch.Tensor | None, visible: torch.Tensor) -> torch.Tensor:
        """Return the given mask, with what lengths, causal flag and window hide hidden as well."""
        if attn_mask is None:
            return visible
        if attn_mask.dtype == torch.bool:
            return visible & attn_mask
        return attn_mask.expand(visible.shape).masked_fill(~visible, -torch.inf)

    def operands(
        self, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values as they are."""
        return key, value


@dataclass(frozen=True)
class WrongAt:
    """An attention that makes a mistake where some regimes hold, and is right elsewhere."""

    wrong: Ragged
    regimes: tuple[CallRegime, ...]

    def __call__(self, *operands: Any, **options: Any) -> Any:
        call = call_of(*operands, **options)
        is_wrong = call is not None and all(each.holds(call) for each in self.regimes)
        return (self.wrong if is_wrong else RIGHT)(*operands, **options)


RIGHT = Ragged()


def lengths_wrong_at(
    identifier: str, title: str, wrong: type[Ragged], *regimes: tuple[str, str]
) -> None:
    """Plant an attention that makes a mistake in some regimes alone.

    Args:
        identifier: of the mutant.
        title: the mistake in words.
        wrong: makes it in every call.
        regimes: the axis and the class of each, as in
            `attnspec.conformance.laws.helpers.regimes_of_lengths`.

    Raises:
        KeyError: for an axis or a class that does not exist.
    """
    classes = {axis: {each.name: each for each in members} for axis, members in AXES.items()}
    plant_dense(
        identifier,
        title,
        WrongAt(wrong(), tuple(classes[axis][name] for axis, name in regimes)),
        killed_by="lengths-in-every-two-regimes-equal-the-definition",
        features=LENGTHS,
    )
