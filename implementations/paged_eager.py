"""Paged attention in plain tensor operations: one softmax for each sequence."""

from typing import Any

import torch
from jaxtyping import Float, Int

from attnspec.implementations.packed_eager import packed
from attnspec.spec.packed import UNBOUNDED, OutsideRows
from attnspec.spec.paged import PAGED_FEATURES, PagedImplementation, PagedProfile
from attnspec.spec.profiles import RoundingLevel


def paged(
    query: Float[torch.Tensor, "total_q heads d_head"],
    key: Float[torch.Tensor, "pages page_size kv_heads d_head"],
    value: Float[torch.Tensor, "pages page_size kv_heads d_head"],
    cu_seq_q: Int[torch.Tensor, " sequences_plus_one"],
    cu_seq_k: None,
    max_q: int,
    max_k: int,
    *,
    seqused_k: Int[torch.Tensor, " sequences"],
    block_table: Int[torch.Tensor, "sequences columns"],
    new_key: Float[torch.Tensor, "total_q kv_heads d_head"] | None = None,
    new_value: Float[torch.Tensor, "total_q kv_heads d_head"] | None = None,
    window_size: tuple[int, int] = (UNBOUNDED, UNBOUNDED),
    **options: Any,
) -> Any:
    """Write new tokens to their slots, collect the slots of each sequence, and attend."""
    page_size, queries = key.shape[1], cu_seq_q.diff()
    slots = []
    for b, length in enumerate(seqused_k.tolist()):
        total = length + (0 if new_key is None else int(queries[b]))
        token = torch.arange(total)
        slot = block_table[b].long()[token // page_size] * page_size + token % page_size
        if new_key is not None and new_value is not None:
            rows = slice(int(cu_seq_q[b]), int(cu_seq_q[b + 1]))
            for pool, new in ((key, new_key), (value, new_value)):
                pool[slot[length:] // page_size, slot[length:] % page_size] = new[rows]
        slots.append(slot)
    offsets = torch.tensor([0, *map(len, slots)]).cumsum(0)
    read = torch.cat(slots)
    keys, values = (pool[read // page_size, read % page_size] for pool in (key, value))
    longest = int(offsets.diff().max())
    return packed(
        query,
        keys,
        values,
        cu_seq_q,
        offsets,
        max_q,
        longest,
        window_size=window_size,
        **options,
    )


IMPLEMENTATION = PagedImplementation(
    name="paged_eager",
    function=paged,
    features=PAGED_FEATURES - {"validates"},
    profile=PagedProfile(outside_rows=OutsideRows.ZERO, rounding=RoundingLevel.EAGER),
)
