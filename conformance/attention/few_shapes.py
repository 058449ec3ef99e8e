"""Few shapes for implementations that compile each shape anew, which takes longer than the calls.

Laws differ in the sizes of their cases, and in what they change. An implementation that compiles
for seconds meets what they change at the sizes below, which are as near to those of a case as the
relations need on which laws depend: more queries than keys or fewer, a single one, none, heads
that share keys. Regimes of sizes have a law of their own, whose shapes are few as well (NUM-18).
"""

from bisect import bisect_left

from attnspec.conformance.attention.decoding.session import Session
from attnspec.spec import Case

LENGTHS = (0, 1, 5, 17, 65)
"""The numbers of queries and of keys: none, one, few, more than a vector, more than a tile."""

LONGEST = 300
"""The length above which a case is about long sequences, and keeps its sizes.

Other widths and more heads would multiply its memory, which is large.
"""

BATCH, HEADS, KV_HEADS = 2, 4, 2
"""Of every case that has any; key and value have as many heads as the query unless it shares."""

WIDTHS = (32, 64)
"""Channels of cases with up to 17 queries and keys, and with more."""

WIDE = 96
"""Channels of value where there are more than 64 keys, and each has a channel of its own."""


def with_few_shapes(case: Case) -> Case:
    """Return a case with other sizes, of at most 30 shapes, unless it is about long sequences.

    Options, storage type, mask, layouts and contents are described as before.
    """
    if max(case.queries, case.keys) > LONGEST:
        return case
    queries, keys = _length(case.queries), _length(case.keys)
    if queries == keys and case.queries != case.keys:
        queries, keys = _apart(queries, is_longer=case.queries > case.keys)
    is_long = max(queries, keys) > LENGTHS[-2]
    width = WIDTHS[is_long]
    # the steps of a session name batch elements
    batch = case.batch if isinstance(case, Session) else min(case.batch, 1) * BATCH
    return case.but(
        batch=batch,
        heads=HEADS,
        kv_heads=KV_HEADS if case.heads != case.kv_heads else HEADS,
        queries=queries,
        keys=keys,
        d_head=min(case.d_head, 1) * width,
        d_value=min(case.d_value, 1) * (WIDE if keys > width else width),
    )


def _length(length: int) -> int:
    """Return the nearest of `LENGTHS` that is not below, or the largest."""
    return LENGTHS[min(bisect_left(LENGTHS, length), len(LENGTHS) - 1)]


def _apart(length: int, *, is_longer: bool) -> tuple[int, int]:
    """Return queries and keys that differ, one of them of a given length."""
    place = LENGTHS.index(length)
    other = LENGTHS[place + 1 if place + 1 < len(LENGTHS) else place - 1]
    low, high = sorted((length, other))
    return (high, low) if is_longer else (low, high)
