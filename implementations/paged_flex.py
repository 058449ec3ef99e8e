"""torch's experimental paged attention: `flex_attention` with masks by page, as paged attention.

`PagedAttention` keeps the table and turns a mask over the tokens of a sequence into one over the
slots of the pool. Here it gets the pages of each sequence, and writes new tokens itself.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from attnspec.spec.packed import UNBOUNDED, OutsideRows
from attnspec.spec.paged import PagedImplementation, PagedProfile
from attnspec.spec.profiles import MaskedNonfinite


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
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (UNBOUNDED, UNBOUNDED),
    enable_gqa: bool = False,
) -> Any:
    """Call `flex_attention` on a batch of all sequences, padded, and on the whole pool.

    Raises:
        ValueError: if a page is twice in the row of a sequence, whose mask has one place for it.
    """
    counts, lengths = cu_seq_q.diff().long(), seqused_k.long()
    if new_key is not None:
        lengths = lengths + counts
    pool = _pool(key, block_table, lengths)
    slots = tuple(x.flatten(0, 1).transpose(0, 1)[None].contiguous() for x in (key, value))
    if new_key is not None and new_value is not None:
        for b, count in enumerate(counts.tolist()):
            rows = slice(int(cu_seq_q[b]), int(cu_seq_q[b + 1]))
            places = torch.arange(count)[None] + (lengths[b] - count)
            new = (x[rows].transpose(0, 1)[None] for x in (new_key, new_value))
            pool.assign(torch.tensor([b]), places, *new, *slots)
        for x, written in zip((key, value), slots, strict=True):
            x.copy_(written[0].transpose(0, 1).unflatten(0, x.shape[:2]))
    left, right = (None if side == UNBOUNDED else torch.tensor(side) for side in window_size)

    def visible(batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        after = key_index - (query_index + lengths[batch] - counts[batch])
        readable = query_index < counts[batch]
        if left is not None:
            readable = readable & (after >= -left)
        if right is not None:
            readable = readable & (after <= right)
        return readable

    padded, is_token = _padded(query, cu_seq_q)
    columns = max(-(-int(lengths.max()) // pool.page_size), 1)
    of_tokens = create_block_mask(
        visible,
        len(counts),
        None,
        padded.shape[2],
        columns * pool.page_size,
        device="cpu",
        BLOCK_SIZE=(128, pool.page_size),
    )
    result = flex_attention(
        padded,
        slots[0],
        slots[1],
        block_mask=pool.convert_logical_block_mask(of_tokens, kv_len=lengths),
        scale=scale,
        enable_gqa=enable_gqa,
        return_aux=AuxRequest(lse=True),
    )
    out = torch.zeros_like(query)
    out[: len(is_token.nonzero())] = result[0].transpose(1, 2)[is_token]
    if return_aux is None or not return_aux.lse:
        return out
    lse = result[1].lse
    assert lse is not None
    whole = lse.new_full((query.shape[1], len(query)), -torch.inf)
    whole[:, : len(is_token.nonzero())] = lse.transpose(1, 2)[is_token].T
    return out, whole


def _pool(
    key: torch.Tensor, block_table: torch.Tensor, lengths: Int[torch.Tensor, " sequences"]
) -> PagedAttention:
    """Return torch's object with the pages of each sequence, as if it had allocated them."""
    pages, page_size = key.shape[:2]
    pool = PagedAttention(pages, page_size, len(lengths), device="cpu")
    for b, length in enumerate(lengths.tolist()):
        count = -(-length // page_size)
        own = block_table[b, :count].long()
        if len(own.unique()) < count:
            raise ValueError("a page is twice in the row of a sequence")
        pool.page_table[b, :count] = own
        pool.physical_to_logical[b, own] = torch.arange(count)
        pool.capacity[b] = count * page_size
    return pool


def _padded(query: torch.Tensor, cu_seq_q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the queries as a batch of all sequences, and which of its rows are queries."""
    counts = cu_seq_q.diff().long()
    is_token = torch.arange(max(int(counts.max()), 1)) < counts[:, None]
    batch = query.new_zeros(*is_token.shape, *query.shape[1:])
    batch[is_token] = query[: int(cu_seq_q[-1])]
    return batch.transpose(1, 2), is_token


def supports(case: Any) -> str | None:
    """Return the reason why the function refuses a case, or None."""
    if not sum(case.queries):
        return "flex_attention takes no call without queries"
    if getattr(case, "places", "") == "twice":
        return "a page has one place among the tokens of a sequence"
    return None


IMPLEMENTATION = PagedImplementation(
    name="paged_flex",
    function=paged,
    features=frozenset({"causal", "window", "gqa", "lse", "append"}),
    supports=supports,
    # torch traces the call anew for each shape, to run the trace as it is
    compiles_each_shape=True,
    profile=PagedProfile(
        outside_rows=OutsideRows.ZERO,
        neighbours=MaskedNonfinite.PROPAGATES,
        unwritten=MaskedNonfinite.PROPAGATES,
    ),
)
