"""torch's `flex_attention` with a document mask, as packed attention."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch.nn.attention.flex_attention import (
    AuxRequest,
    create_block_mask,
    flex_attention,
)

from attnspec.spec.packed import (
    UNBOUNDED,
    EmptySequences,
    OutsideRows,
    PackedImplementation,
    PackedProfile,
)
from attnspec.spec.profiles import MaskedNonfinite


def packed(
    query: Float[torch.Tensor, "total_q heads d_head"],
    key: Float[torch.Tensor, "total_k kv_heads d_head"],
    value: Float[torch.Tensor, "total_k kv_heads d_head"],
    cu_seq_q: Int[torch.Tensor, " sequences_plus_one"],
    cu_seq_k: Int[torch.Tensor, " sequences_plus_one"],
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (UNBOUNDED, UNBOUNDED),
    enable_gqa: bool = False,
) -> Any:
    """Call `flex_attention` on all tokens; a query reads the keys of its own sequence alone."""
    of_query, place = _documents(cu_seq_q, len(query), -1)
    of_key, key_place = _documents(cu_seq_k, len(key), -2)
    # the last query of a sequence has the position of its last key
    later = torch.cat([cu_seq_k.diff() - cu_seq_q.diff(), cu_seq_k.new_zeros(1)])
    place = place + later[of_query]
    left, right = (None if side == UNBOUNDED else torch.tensor(side) for side in window_size)

    def visible(batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        after = key_place[key_index] - place[query_index]
        readable = of_query[query_index] == of_key[key_index]
        if left is not None:
            readable = readable & (after >= -left)
        if right is not None:
            readable = readable & (after <= right)
        return readable

    q, k, v = (each.transpose(0, 1)[None] for each in (query, key, value))
    result = flex_attention(
        q,
        k,
        v,
        block_mask=create_block_mask(visible, None, None, len(query), len(key), device="cpu"),
        scale=scale,
        enable_gqa=enable_gqa,
        return_aux=AuxRequest(lse=True),
    )
    out = result[0][0].transpose(0, 1)
    if return_aux is None or not return_aux.lse:
        return out
    lse = result[1].lse
    assert lse is not None
    return out, lse[0]


def _documents(
    offsets: Int[torch.Tensor, " sequences_plus_one"], total: int, outside: int
) -> tuple[Int[torch.Tensor, " total"], Int[torch.Tensor, " total"]]:
    """Return the sequence of each token, and its place there; `outside` for one of no sequence."""
    sequences = torch.arange(len(offsets) - 1).repeat_interleave(offsets.diff().long())
    places = torch.arange(len(sequences)) - offsets.long()[sequences]
    missing = total - len(sequences)
    pad = torch.nn.functional.pad
    return pad(sequences, (0, missing), value=outside), pad(places, (0, missing))


def supports(case: Any) -> str | None:
    """Return the reason why the function refuses a case, or None."""
    if not sum(case.queries) or not sum(case.keys):
        return "flex_attention takes no call without queries or keys"
    return None


IMPLEMENTATION = PackedImplementation(
    name="packed_flex",
    function=packed,
    features=frozenset({"causal", "window", "gqa", "lse"}),
    # torch differentiates flex_attention on a CPU only where it is compiled
    has_gradients=False,
    compiles_each_shape=True,
    supports=supports,
    profile=PackedProfile(
        outside_rows=OutsideRows.ZERO,
        empty_sequences=EmptySequences.ALLOWED,
        neighbours=MaskedNonfinite.PROPAGATES,
    ),
)
