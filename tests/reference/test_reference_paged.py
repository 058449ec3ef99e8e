"""Pages: the same as packed sequences, wherever they lie."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.reference.packed import pack, packed_attention
from attnspec.reference.paged import gather_pages, paged_attention, write_pages
from attnspec.spec.packed import CAUSAL


@settings(max_examples=60)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=4),
    page_size=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_pages_that_are_filled_in_two_calls_hold_the_sequences(lengths, page_size, seed):
    generator = torch.Generator().manual_seed(seed)

    def numbers(length):
        return torch.randn(length, 1, 4, generator=generator, dtype=torch.float64)

    keys, values = ([numbers(sum(each)) for each in lengths] for _ in range(2))
    columns = max(-(-sum(each) // page_size) for each in lengths) + 1
    order = torch.randperm(columns * len(lengths), generator=generator)
    table = order.view(len(lengths), columns)
    pools = torch.full((2, len(order), page_size, 1, 4), torch.nan, dtype=torch.float64).unbind()
    for b, (before, _) in enumerate(lengths):
        for pool, tokens in zip(pools, (keys, values), strict=True):
            write_pages(pool, table[b], 0, tokens[b][:before])
    query, cu_q, max_q = pack([numbers(new) for _, new in lengths])
    new = [
        torch.cat([each[b][before:] for b, (before, _) in enumerate(lengths)])
        for each in (keys, values)
    ]
    out = paged_attention(
        query,
        *pools,
        cu_q,
        None,
        max_q,
        99,
        seqused_k=torch.tensor([before for before, _ in lengths]),
        block_table=table,
        new_key=new[0],
        new_value=new[1],
        window_size=CAUSAL,
    )
    for b, each in enumerate(lengths):
        assert torch.equal(gather_pages(pools[0], table[b], sum(each)), keys[b])
    key, cu_k, max_k = pack(keys)
    packed = packed_attention(
        query, key, torch.cat(values), cu_q, cu_k, max_q, max_k, window_size=CAUSAL
    )
    assert torch.equal(out, packed)
