"""Tests of drawn tensors: numbers that repeat, and projections that share a buffer."""

import pytest
import torch

from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.values import PERIOD, normal
from attnspec.spec import Case, Layout, Layouts

CASE = Case(batch=2, heads=3, kv_heads=3, queries=5, keys=5, d_head=4, d_value=4)


@pytest.mark.parametrize("channels", [2, 64, 80])
def test_no_two_rows_of_a_long_draw_are_equal(channels):
    rows = 2 * PERIOD // channels
    drawn = normal(CASE, "key", rows, channels)
    assert drawn.shape == (rows, channels)
    assert torch.equal(drawn.flatten()[PERIOD:], drawn.flatten()[: rows * channels - PERIOD])
    assert len(drawn.unique(dim=0)) == rows


@pytest.mark.parametrize("layout", [Layout.PACKED, Layout.PACKED_HEADS])
def test_packed_operands_share_the_buffer_of_one_projection(layout):
    call = draw(CASE.but(layouts=Layouts(query=layout, key=layout, value=layout)))
    plain = draw(CASE)
    operands = (call.query, call.key, call.value)
    assert len({operand.untyped_storage().data_ptr() for operand in operands}) == 1
    assert all(map(torch.equal, operands, (plain.query, plain.key, plain.value)))


def test_projections_packed_for_each_head_have_gaps_between_heads():
    layouts = Layouts(query=Layout.PACKED_HEADS)
    _, of_head, of_token, of_channel = draw(CASE.but(layouts=layouts)).query.stride()
    assert (of_head, of_token, of_channel) == (3 * CASE.d_head, 3 * 3 * CASE.d_head, 1)


def test_fewer_heads_have_a_gap_between_batch_elements():
    key = draw(CASE.but(layouts=Layouts(key=Layout.FEWER_HEADS))).key
    assert key.stride(0) == 2 * CASE.heads * key.stride(1)
