"""Packed sequences: the same as padded calls, as a padding mask and as a document mask."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.reference.implementation import scaled_dot_product_attention
from attnspec.reference.packed import pack, packed_attention
from attnspec.spec import CausalAlignment
from attnspec.spec.packed import CAUSAL, EVERYWHERE, AuxRequest

LENGTHS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=4)


def drawn(lengths, seed):
    """Return the sequences of queries, keys and values, two heads of four channels."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(length):
        return torch.randn(length, 2, 4, generator=generator, dtype=torch.float64)

    return ([numbers(n[i]) for n in lengths] for i in (0, 1, 1))


def padded(x, length):
    """Return (1, heads, length, channels), padded by NaN-free numbers of another size."""
    rest = x.new_full((length - len(x), *x.shape[1:]), 7.0)
    return torch.cat([x, rest]).transpose(0, 1)[None]


@settings(max_examples=60)
@given(lengths=LENGTHS, seed=st.integers(0, 99), is_causal=st.booleans())
def test_a_pack_a_padded_batch_and_a_document_mask_agree(lengths, seed, is_causal):
    queries, keys, values = drawn(lengths, seed)
    q, cu_q, max_q = pack(queries)
    k, cu_k, max_k = pack(keys)
    v = torch.cat(values)
    window = CAUSAL if is_causal else EVERYWHERE
    packed, lse = packed_attention(
        q, k, v, cu_q, cu_k, max_q, max_k, window_size=window, return_aux=AuxRequest(lse=True)
    )

    # one padded call for each sequence, whose keys a mask hides behind its length
    for b, (n, m) in enumerate(lengths):
        place = torch.arange(max_q)[:, None] + m - n
        key = torch.arange(max_k)
        visible = (key < m) & ((key <= place) if is_causal else (key >= 0))
        out, of_mask = scaled_dot_product_attention(
            padded(queries[b], max_q),
            padded(keys[b], max_k),
            padded(values[b], max_k),
            attn_mask=visible.expand(max_q, max_k),
            return_lse=True,
        )
        rows = slice(int(cu_q[b]), int(cu_q[b + 1]))
        torch.testing.assert_close(packed[rows], out[0, :, :n].transpose(0, 1))
        torch.testing.assert_close(lse[:, rows], of_mask[0, :, :n])

    # one padded call of all sequences, with the length and the place of each
    if all(m >= n for n, m in lengths) or not is_causal:
        out, of_lengths = scaled_dot_product_attention(
            torch.cat([padded(each, max_q) for each in queries]),
            torch.cat([padded(each, max_k) for each in keys]),
            torch.cat([padded(each, max_k) for each in values]),
            is_causal=is_causal,
            key_lengths=cu_k.diff(),
            query_offset=(cu_k.diff() - cu_q.diff()).clamp(min=0),
            return_lse=True,
        )
        for b, (n, _) in enumerate(lengths):
            rows = slice(int(cu_q[b]), int(cu_q[b + 1]))
            torch.testing.assert_close(packed[rows], out[b, :, :n].transpose(0, 1))
            torch.testing.assert_close(lse[:, rows], of_lengths[b, :, :n])

    # one call on all tokens, under a mask of documents
    of_query = torch.repeat_interleave(torch.arange(len(lengths)), cu_q.diff().long())
    of_key = torch.repeat_interleave(torch.arange(len(lengths)), cu_k.diff().long())
    later = (cu_k.diff() - cu_q.diff())[of_query] - cu_q[of_query] + torch.arange(len(q))
    documents = of_query[:, None] == of_key
    if is_causal:
        documents &= torch.arange(len(k)) - cu_k[of_key] <= later[:, None]
    out = scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (q, k, v)), attn_mask=documents
    )
    torch.testing.assert_close(packed, out[0].transpose(0, 1))


def test_one_sequence_is_the_padded_call():
    q, k, v = torch.randn(3, 6, 2, 4, dtype=torch.float64).unbind()
    cu_q, cu_k = torch.tensor([0, 6]), torch.tensor([0, 6])
    packed = packed_attention(q, k, v, cu_q, cu_k, 6, 6, window_size=(2, 1))
    out = scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (q, k, v)),
        window=(2, 1),
        causal_alignment=CausalAlignment.LOWER_RIGHT,
    )
    torch.testing.assert_close(packed, out[0].transpose(0, 1))


def test_grouped_heads_need_the_flag():
    q, k = torch.ones(2, 2, 4), torch.ones(2, 1, 4)
    cu = torch.tensor([0, 2])
    with pytest.raises(ValueError, match="need enable_gqa"):
        packed_attention(q, k, k, cu, cu, 2, 2)
    assert packed_attention(q, k, k, cu, cu, 2, 2, enable_gqa=True).shape == q.shape


def test_the_output_has_the_type_of_the_values():
    q = torch.ones(2, 1, 4, dtype=torch.bfloat16)
    cu = torch.tensor([0, 2])
    assert packed_attention(q, q, q, cu, cu, 2, 2).dtype == torch.bfloat16
