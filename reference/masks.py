"""Masks: the keys that a query may read, and the biases added to their scores."""

import torch
from jaxtyping import Bool, Float, Int

from attnspec.spec import CausalAlignment

UPPER_LEFT = CausalAlignment.UPPER_LEFT


def offset(queries: int, keys: int, alignment: CausalAlignment) -> int:
    """Compute the position of query 0 among the keys: the *o* of every formula in this file.

    Args:
        queries: the number of queries.
        keys: the number of keys.
        alignment: `upper_left` puts query 0 at key 0, `lower_right` the last query at the last key.

    Returns:
        Zero, or keys - queries (negative where queries outnumber keys).

    Clauses:
        MSK-2
    """
    return keys - queries if CausalAlignment(alignment) is CausalAlignment.LOWER_RIGHT else 0


def displacement(
    queries: int,
    keys: int,
    alignment: CausalAlignment = UPPER_LEFT,
    *,
    device: torch.device | str | None = None,
) -> Int[torch.Tensor, "{queries} {keys}"]:
    """Compute how far each key lies after its query's position: j - (i + offset).

    Args:
        queries: the number of queries.
        keys: the number of keys.
        alignment: the position of query 0.
        device: device of the result.

    Returns:
        Negative for keys before the query, 0 at the query's own position, positive after it.
    """
    places = torch.arange(queries, device=device) + offset(queries, keys, alignment)
    return torch.arange(keys, device=device) - places[:, None]


def displacement_of_elements(
    queries: int,
    keys: int,
    alignment: CausalAlignment = UPPER_LEFT,
    *,
    key_lengths: Int[torch.Tensor, " batch"] | None = None,
    query_offset: Int[torch.Tensor, " batch"] | None = None,
    device: torch.device | str | None = None,
) -> Int[torch.Tensor, "#batch 1 {queries} {keys}"]:
    """Compute the same where batch elements have positions of their own.

    Args:
        queries: the number of queries.
        keys: the number of keys that the tensors hold.
        alignment: the position of query 0 if there is no `query_offset`; `lower_right` puts the
            last query at the last key of its batch element.
        key_lengths: the number of keys of each batch element; None is all.
        query_offset: the position of query 0 of each batch element.
        device: device of the result.

    Returns:
        Negative for keys before the query, 0 at the query's own position, positive after it.

    Clauses:
        LEN-3, LEN-4
    """
    if query_offset is None:
        lengths = torch.tensor([keys], device=device) if key_lengths is None else key_lengths
        lower_right = CausalAlignment(alignment) is CausalAlignment.LOWER_RIGHT
        query_offset = lengths - queries if lower_right else torch.zeros_like(lengths)
    places = torch.arange(queries, device=device)[:, None] + query_offset[:, None, None, None]
    return torch.arange(keys, device=device) - places


def within_length(
    key_lengths: Int[torch.Tensor, " batch"], keys: int
) -> Bool[torch.Tensor, "batch 1 1 {keys}"]:
    """Return the keys that a batch element has: its first ones.

    Args:
        key_lengths: the number of keys of each batch element.
        keys: the number of keys that the tensors hold.

    Returns:
        True where key *j* is one of them, j < key_lengths.

    Clauses:
        LEN-1
    """
    return torch.arange(keys, device=key_lengths.device) < key_lengths[:, None, None, None]


def causal(
    queries: int,
    keys: int,
    alignment: CausalAlignment = UPPER_LEFT,
    *,
    device: torch.device | str | None = None,
) -> Bool[torch.Tensor, "{queries} {keys}"]:
    """Return the causal mask: a query may read its own position and earlier ones, j ≤ i + offset.

    Args:
        queries: the number of queries.
        keys: the number of keys.
        alignment: the position of query 0.
        device: device of the result.

    Returns:
        True where query *i* may read key *j*.

    Clauses:
        MSK-1, MSK-2

    Source:
        Vaswani et al. 2017, section 3.2.3
    """
    return displacement(queries, keys, alignment, device=device) <= 0


def window(
    queries: int,
    keys: int,
    left: int | None,
    right: int | None,
    alignment: CausalAlignment = UPPER_LEFT,
    *,
    device: torch.device | str | None = None,
) -> Bool[torch.Tensor, "{queries} {keys}"]:
    """Let each query read the keys near it: i + offset - left ≤ j ≤ i + offset + right.

    Args:
        queries: the number of queries.
        keys: the number of keys.
        left: how many keys before the query's own position, at least 0; None is unbounded.
        right: how many after it, at least 0; None is unbounded.
        alignment: the position of query 0.
        device: device of the result.

    Returns:
        True where query *i* may read key *j*.

    Raises:
        ValueError: for a negative width.

    Source:
        Beltagy et al. 2020, section 3.1
    """
    return _near(displacement(queries, keys, alignment, device=device), left, right)


def _near(
    after: Int[torch.Tensor, "*batch queries keys"], left: int | None, right: int | None
) -> Bool[torch.Tensor, "*batch queries keys"]:
    """Compare displacements with the widths of a window."""
    for side, width in (("left", left), ("right", right)):
        if width is not None and width < 0:
            raise ValueError(f"window: {side} must not be negative, got {width}")
    visible = torch.ones_like(after, dtype=torch.bool)
    if left is not None:
        visible = visible & (after >= -left)
    if right is not None:
        visible = visible & (after <= right)
    return visible


def visible_keys(
    queries: int,
    keys: int,
    *,
    attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None = None,
    is_causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    alignment: CausalAlignment = UPPER_LEFT,
    after: Int[torch.Tensor, "*batch queries keys"] | None = None,
    device: torch.device | str | None = None,
) -> tuple[Bool[torch.Tensor, "..."], Float[torch.Tensor, "..."] | None]:
    """Combine every way to hide a key: a key is readable where none of them hides it.

    Args:
        queries: the number of queries.
        keys: the number of keys.
        attn_mask: bool, true if a query may read a key; or float, added to the scaled scores:
            minus infinity hides a key. Broadcastable to (batch, heads, queries, keys).
        is_causal: hide every key after the query's own position.
        window: hide every key farther than ``(left, right)`` from the query's own position.
        alignment: the position of query 0, for `is_causal` and `window`.
        after: how far each key lies after its query, where `alignment` does not say it; None is
            `displacement`.
        device: device of the result.

    Returns:
        True where query *i* may read key *j*, broadcastable to (…, queries, keys); and the bias
        that is added to the scores, or None.

    Raises:
        TypeError: for an `attn_mask` that is neither bool nor float.
        ValueError: for a negative width of the window.

    Clauses:
        MSK-3, MSK-6, MSK-9
    """
    if after is None:
        after = displacement(queries, keys, alignment, device=device)
    visible = torch.ones_like(after, dtype=torch.bool)
    if is_causal:
        visible = visible & (after <= 0)
    if window is not None:
        visible = visible & _near(after, *window)
    if attn_mask is None:
        return visible, None
    if attn_mask.dtype == torch.bool:
        return visible & attn_mask, None
    if attn_mask.is_floating_point():
        return visible & (attn_mask != -torch.inf), attn_mask
    raise TypeError(f"attn_mask must be bool or float, got {attn_mask.dtype}")


def alibi(
    slopes: Float[torch.Tensor, " heads"],
    queries: int,
    keys: int,
    alignment: CausalAlignment = UPPER_LEFT,
    *,
    after: Int[torch.Tensor, "*batch queries keys"] | None = None,
) -> Float[torch.Tensor, "*batch heads {queries} {keys}"]:
    """Lower a score in proportion to the distance of its key: -slope · |i + offset - j|.

    Args:
        slopes: one per head, in score units per position.
        queries: the number of queries.
        keys: the number of keys.
        alignment: the position of query 0.
        after: how far each key lies after its query, where `alignment` does not say it.

    Returns:
        The bias that is added to the scores; not positive if the slopes are not negative.

    Source:
        Press et al. 2022, section 3, here with the distance in both directions
    """
    if after is None:
        after = displacement(queries, keys, alignment, device=slopes.device)
    return -slopes[:, None, None] * after.abs().to(slopes.dtype)


def alibi_slopes(heads: int) -> Float[torch.Tensor, " {heads}"]:
    """Compute each head's slope: a geometric sequence for a power of two.

    For *n* heads, a power of two, slope *i* = 1, …, *n* is 2^(-8i/n). Otherwise the slopes of the
    largest power of two below come first, then every second slope of the next power of two.

    Args:
        heads: the number of heads, at least 1.

    Returns:
        Slopes in (0, 1), float64.

    Raises:
        ValueError: for fewer than one head.

    Source:
        Press et al. 2022, section 3
    """
    if heads < 1:
        raise ValueError(f"heads must be at least 1, got {heads}")
    below = 1 << (heads.bit_length() - 1)
    own = [2.0 ** (-8 * i / below) for i in range(1, below + 1)]
    between = [2.0 ** (-8 * i / (2 * below)) for i in range(1, 2 * below, 2)]
    return torch.tensor((own + between)[:heads], dtype=torch.float64)
