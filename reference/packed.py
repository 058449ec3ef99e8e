"""Packed sequences: attention of each sequence over its own keys, without padding."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int

from attnspec.reference.attention import attention_with_options
from attnspec.reference.heads import repeat_kv
from attnspec.reference.masks import alibi, visible_keys
from attnspec.spec import CausalAlignment
from attnspec.spec.packed import EVERYWHERE, UNBOUNDED, AuxRequest

LOWER_RIGHT = CausalAlignment.LOWER_RIGHT


def pack(
    sequences: list[Float[torch.Tensor, "_ heads channels"]],
) -> tuple[
    Float[torch.Tensor, "total heads channels"], Int[torch.Tensor, " sequences_plus_one"], int
]:
    """Join sequences of any lengths into one tensor, with the offset of each.

    Args:
        sequences: at least one, each (length, heads, channels); a length may be 0.

    Returns:
        All tokens, one sequence after the other; the offsets, int32, of which the first is 0 and
        the last the number of tokens; and the largest length.

    Clauses:
        SEQ-1
    """
    lengths = [len(sequence) for sequence in sequences]
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return torch.cat(sequences), offsets, max(lengths)


def sequences_of(
    cu_seq_q: Int[torch.Tensor, " sequences_plus_one"],
    cu_seq_k: Int[torch.Tensor, " sequences_plus_one"],
) -> Iterator[tuple[slice, slice]]:
    """Yield the rows of the queries and of the keys of each sequence.

    Args:
        cu_seq_q: offsets of the queries: sequence *b* has the rows cu[b] to cu[b + 1] - 1.
        cu_seq_k: offsets of the keys.
    """
    of_query, of_key = cu_seq_q.tolist(), cu_seq_k.tolist()
    for b in range(len(of_query) - 1):
        yield slice(of_query[b], of_query[b + 1]), slice(of_key[b], of_key[b + 1])


def check_offsets(
    offsets: Int[torch.Tensor, " sequences_plus_one"], total: int, longest: int
) -> None:
    """Refuse offsets that do not divide a tensor into sequences.

    Args:
        offsets: the first row of each sequence, and the end of the last one.
        total: rows of the tensor; those behind the last sequence belong to none.
        longest: at least the length of each sequence.

    Raises:
        ValueError: naming the offsets and what they exceed.

    Clauses:
        SEQ-19
    """
    if offsets[0] != 0 or offsets[-1] > total:
        raise ValueError(f"offsets must go from 0 to at most {total}, got {offsets.tolist()}")
    lengths = offsets.diff()
    if (lengths < 0).any() or (lengths > longest).any():
        raise ValueError(f"lengths must lie in 0 to {longest}, got {lengths.tolist()}")


def packed_attention(
    query: Float[torch.Tensor, "total_q heads d_head"],
    key: Float[torch.Tensor, "total_k kv_heads d_head"],
    value: Float[torch.Tensor, "total_k kv_heads d_head"],
    cu_seq_q: Int[torch.Tensor, " sequences_plus_one"],
    cu_seq_k: Int[torch.Tensor, " sequences_plus_one"],
    max_q: int,
    max_k: int,
    *,
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
    """Compute attention of each sequence over its own keys.

    Args:
        query: the queries of all sequences, one sequence after the other.
        key: the keys likewise; as many heads as `query`, or fewer with `enable_gqa`.
        value: the values likewise.
        cu_seq_q: the offset of each sequence in `query`, and the number of all their queries.
        cu_seq_k: the offset of each sequence in `key` and `value`, likewise.
        max_q: at least the number of queries of each sequence; kernels plan their work by it.
        max_k: likewise of the keys.
        return_aux: with `lse`, return the log-sum-exp too.
        scale: multiplies the scores; None is ``d_head ** -0.5``.
        window_size: how far to the left and right of its own position a query may read; -1 is
            unbounded. The last query of a sequence has the position of its last key.
        enable_gqa: allow fewer key/value heads, each shared by a run of query heads.
        softcap: bounds the scores, as in `attention_with_options`.
        sinks: one more logit per head, as there.
        alibi_slopes: one per head; a score loses slope · distance within the sequence.

    Returns:
        The output in the type of `value`, zero for queries outside all sequences, and if requested
        the log-sum-exp in float64.

    Raises:
        ValueError: if heads, offsets or maxima do not fit, naming the numbers.

    Clauses:
        SEQ-1, SEQ-2, SEQ-3, SEQ-4
    """
    heads, d_head = query.shape[1:]
    check_offsets(cu_seq_q, len(query), max_q)
    check_offsets(cu_seq_k, len(key), max_k)
    if len(cu_seq_q) != len(cu_seq_k):
        raise ValueError(f"{len(cu_seq_q)} offsets of queries, {len(cu_seq_k)} of keys")
    if not enable_gqa and heads != key.shape[1]:
        raise ValueError(f"{heads} query heads need enable_gqa to share {key.shape[1]} heads")
    rows, rows_lse = [], []
    for of_query, of_key in sequences_of(cu_seq_q, cu_seq_k):
        out, lse = _attend(
            query[of_query].transpose(0, 1).double(),
            repeat_kv(key[of_key].transpose(0, 1)[None].double(), heads)[0],
            repeat_kv(value[of_key].transpose(0, 1)[None].double(), heads)[0],
            scale=d_head**-0.5 if scale is None else scale,
            window_size=window_size,
            softcap=softcap,
            sinks=None if sinks is None else sinks.double(),
            alibi_slopes=None if alibi_slopes is None else alibi_slopes.double(),
        )
        rows.append(out.transpose(0, 1))
        rows_lse.append(lse)
    outside = len(query) - sum(map(len, rows))
    rows.append(query.new_zeros(outside, heads, d_head, dtype=torch.float64))
    rows_lse.append(query.new_full((heads, outside), -torch.inf, dtype=torch.float64))
    joined = torch.cat(rows).to(value.dtype)
    return (joined, torch.cat(rows_lse, dim=1)) if return_aux and return_aux.lse else joined


def _attend(
    query: Float[torch.Tensor, "heads queries d_head"],
    key: Float[torch.Tensor, "heads keys d_head"],
    value: Float[torch.Tensor, "heads keys d_head"],
    *,
    scale: float,
    window_size: tuple[int, int],
    softcap: float | None,
    sinks: Float[torch.Tensor, " heads"] | None,
    alibi_slopes: Float[torch.Tensor, " heads"] | None,
) -> tuple[Float[torch.Tensor, "heads queries d_head"], Float[torch.Tensor, "heads queries"]]:
    """Attend within one sequence, whose positions end together."""
    queries, keys = query.shape[1], key.shape[1]
    left, right = (None if side == UNBOUNDED else side for side in window_size)
    visible, _ = visible_keys(
        queries, keys, window=(left, right), alignment=LOWER_RIGHT, device=query.device
    )
    bias = None
    if alibi_slopes is not None:
        bias = alibi(alibi_slopes, queries, keys, LOWER_RIGHT)
    return attention_with_options(
        query,
        key,
        value,
        visible,
        scale=scale,
        bias=bias,
        softcap=softcap,
        sinks=sinks,
    )
