"""Pages: keys and values of many sequences in one pool, and a table that says where each lies."""

import torch
from jaxtyping import Float, Int

from attnspec.reference.packed import check_offsets, pack, packed_attention
from attnspec.spec.packed import EVERYWHERE, AuxRequest


def gather_pages(
    pool: Float[torch.Tensor, "pages page_size kv_heads d_head"],
    table: Int[torch.Tensor, " columns"],
    length: int,
) -> Float[torch.Tensor, "{length} kv_heads d_head"]:
    """Return the tokens of one sequence in their order.

    Token *t* lies in slot *t* mod page_size of page ``table[t // page_size]``.

    Args:
        pool: the keys, or the values, of all sequences.
        table: the pages of the sequence; entries past its last page are not read.
        length: the number of its tokens.

    Clauses:
        PAG-1, PAG-4, PAG-5
    """
    page_size = pool.shape[1]
    pages = -(-length // page_size)
    return pool[table[:pages].long()].flatten(0, 1)[:length]


def write_pages(
    pool: Float[torch.Tensor, "pages page_size kv_heads d_head"],
    table: Int[torch.Tensor, " columns"],
    start: int,
    new: Float[torch.Tensor, "tokens kv_heads d_head"],
) -> None:
    """Write tokens behind the first ones of a sequence, in place.

    Args:
        pool: the keys, or the values, of all sequences.
        table: the pages of the sequence, with room for the new tokens.
        start: the number of tokens that the sequence has.
        new: the tokens that follow.

    Clauses:
        PAG-14
    """
    page_size = pool.shape[1]
    places = torch.arange(start, start + len(new), device=pool.device)
    pool[table[places // page_size].long(), places % page_size] = new


def check_pages(
    table: Int[torch.Tensor, "sequences columns"],
    lengths: Int[torch.Tensor, " sequences"],
    page_size: int,
    pages: int,
) -> None:
    """Refuse a table whose rows do not name a page of the pool for every token.

    Args:
        table: the pages of each sequence; entries past its last page may be anything.
        lengths: the number of tokens of each sequence.
        page_size: tokens of a page.
        pages: of the pool.

    Raises:
        ValueError: naming what does not fit.

    Clauses:
        PAG-17
    """
    if len(table) != len(lengths):
        raise ValueError(f"a table of {len(table)} rows for {len(lengths)} lengths")
    room = table.shape[1] * page_size
    if (lengths < 0).any() or (lengths > room).any():
        raise ValueError(f"lengths must lie in 0 to {room}, got {lengths.tolist()}")
    first_token = torch.arange(table.shape[1], device=table.device) * page_size
    used = table[first_token < lengths[:, None]]
    if (used < 0).any() or (used >= pages).any():
        raise ValueError(f"entries must lie in 0 to {pages - 1}, got {used.tolist()}")


def paged_attention(
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
    return_aux: AuxRequest | None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = EVERYWHERE,
    enable_gqa: bool = False,
    softcap: float | None = None,
    sinks: Float[torch.Tensor, " heads"] | None = None,
    alibi_slopes: Float[torch.Tensor, " heads"] | None = None,
) -> (
    Float[torch.Tensor, "total_q heads d_head"]
    | tuple[Float[torch.Tensor, "total_q heads d_head"], Float[torch.Tensor, "heads total_q"]]
):
    """Compute attention of each sequence over the keys in its pages.

    Args:
        query: the queries of all sequences, one sequence after the other.
        key: the pool of pages of keys.
        value: the pool of pages of values, in which a token lies where its key lies.
        cu_seq_q: the offset of each sequence in `query`, and the number of all their queries.
        cu_seq_k: None: `seqused_k` says how many keys there are.
        max_q: at least the number of queries of each sequence.
        max_k: at least the number of keys of each.
        seqused_k: the number of tokens of each sequence in its pages, before the call.
        block_table: the pages of each sequence, in the order of its tokens.
        new_key: a key for each query, written to the pages before they are read; None appends none.
        new_value: a value for each query, likewise.
        return_aux: as in `packed_attention`.
        scale: as there.
        window_size: as there.
        enable_gqa: as there.
        softcap: as there.
        sinks: as there.
        alibi_slopes: as there.

    Returns:
        As `packed_attention`; with `new_key` the pools hold the new tokens.

    Raises:
        ValueError: as there, and if lengths or table do not fit, before anything is written.

    Clauses:
        PAG-1, PAG-2, PAG-9, PAG-15
    """
    check_offsets(cu_seq_q, len(query), max_q)
    added = torch.zeros_like(seqused_k) if new_key is None else cu_seq_q.diff()
    if len(cu_seq_q) != len(seqused_k) + 1 or (seqused_k < 0).any():
        raise ValueError(f"lengths {seqused_k.tolist()} do not fit {len(cu_seq_q)} offsets")
    check_pages(block_table, seqused_k + added, key.shape[1], len(key))
    if (seqused_k + added > max_k).any():
        raise ValueError(f"max_k must be at least each length, got {max_k}")
    lengths, starts = seqused_k.tolist(), cu_seq_q.tolist()
    if new_key is not None and new_value is not None:
        for b, table in enumerate(block_table):
            new = slice(starts[b], starts[b + 1])
            write_pages(key, table, lengths[b], new_key[new])
            write_pages(value, table, lengths[b], new_value[new])
            lengths[b] += starts[b + 1] - starts[b]
    rows = list(zip(block_table, lengths, strict=True))
    keys, offsets, longest = pack([gather_pages(key, table, length) for table, length in rows])
    values, _, _ = pack([gather_pages(value, table, length) for table, length in rows])
    return packed_attention(
        query,
        keys,
        values,
        cu_seq_q,
        offsets,
        max_q,
        longest,
        return_aux=return_aux,
        scale=scale,
        window_size=window_size,
        enable_gqa=enable_gqa,
        softcap=softcap,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
    )
