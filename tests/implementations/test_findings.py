"""Bugs of torch on a CPU, reproduced with torch only.

A test that fails here is good news: torch has fixed the bug. Then remove its deviation from
`attnspec.implementations.cpu_kernels`, if there is one, and update the page of findings.
"""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.functional import scaled_dot_product_attention

from attnspec.implementations.compiled import unavailable as compiler_missing
from attnspec.implementations.cpu_kernels import (
    SQUARE,
    flash_refuses,
    lanes,
    loses_nan,
    misreads_mask,
    negative_causal,
    partial_writes,
    sums_queries,
)
from attnspec.spec import Layout, Layouts, Mask, MaskKind, MaskShape

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
FIXED = "no longer reproduces: remove the deviation and the finding"


@pytest.mark.parametrize(("dtype", "end"), [(torch.bfloat16, 256), (torch.float16, 2048)])
def test_the_gradient_of_the_bias_of_layer_norm_stays_behind(dtype, end):
    rows = torch.randn(5000, 8).to(dtype)
    gain, bias = torch.ones(2, 8).to(dtype).requires_grad_()
    out = torch.nn.functional.layer_norm(rows, (8,), gain, bias)
    (grad,) = torch.autograd.grad(out, bias, torch.ones_like(out))
    threads = torch.get_num_threads()  # each adds its rows to a sum of its own
    assert grad.max() <= end * threads < 5000, FIXED


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
class TestFlashKernel:
    @pytest.mark.parametrize("scale", [-1.0, -0.3, 0.0])
    def test_causal_with_a_scale_that_is_not_positive(self, dtype, scale):
        ones = torch.ones(1, 1, 2, 1, dtype=dtype)
        out = scaled_dot_product_attention(ones, ones, ones, is_causal=True, scale=scale)
        assert out.isnan().flatten().tolist() == [True, False], FIXED
        with sdpa_kernel(SDPBackend.MATH):
            right = scaled_dot_product_attention(ones, ones, ones, is_causal=True, scale=scale)
        assert (right == 1).all()

    def test_a_nan_in_the_query_is_lost_below_one_register_of_keys(self, dtype):
        for keys in (1, 2, lanes(dtype) - 1, lanes(dtype), 2 * lanes(dtype) + 1):
            query = torch.full((1, 1, 1, 1), torch.nan, dtype=dtype)
            ones = torch.ones(1, 1, keys, 1, dtype=dtype)
            out = scaled_dot_product_attention(query, ones, ones)
            if keys < lanes(dtype):
                assert out.item() == 0, FIXED
            else:
                assert out.isnan().all()
            mask = torch.ones(1, keys, dtype=torch.bool)
            assert scaled_dot_product_attention(query, ones, ones, mask).isnan().all()

    def test_memory_behind_too_few_keys_is_read(self, dtype):
        query = torch.ones(1, 1, 1, 1, dtype=dtype)
        memory = torch.tensor([0.0, 0.0, 30.0], dtype=dtype).reshape(1, 1, 3, 1)
        value = torch.tensor([0.0, 0.0, 8.0], dtype=dtype).reshape(1, 1, 3, 1)
        out = scaled_dot_product_attention(query, memory[:, :, :2], value)
        assert out.item() == pytest.approx(8), FIXED
        with sdpa_kernel(SDPBackend.MATH), pytest.raises(RuntimeError):
            scaled_dot_product_attention(query, memory[:, :, :2], value)

    def test_keys_without_values_are_passed_over(self, dtype):
        query, key = torch.zeros(1, 1, 1, 1, dtype=dtype), torch.zeros(1, 1, 4, 1, dtype=dtype)
        value = torch.tensor([2.0, 4.0], dtype=dtype).reshape(1, 1, 2, 1)
        assert scaled_dot_product_attention(query, key, value).item() == pytest.approx(3), FIXED
        with sdpa_kernel(SDPBackend.MATH), pytest.raises(RuntimeError):
            scaled_dot_product_attention(query, key, value)

    def test_without_keys_all_queries_are_summed(self, dtype):
        query = torch.zeros(2, 1, 1, 1, dtype=dtype)
        query[0] = torch.nan
        none = torch.ones(2, 1, 0, 1, dtype=dtype)
        assert scaled_dot_product_attention(query, none, none)[1].isnan().all(), FIXED
        query[:] = torch.finfo(dtype).max
        assert scaled_dot_product_attention(query, none, none).isnan().all(), FIXED


def test_a_float32_mask_on_float64_queries_is_misread():
    keys = 2 * lanes(torch.float64)
    query, key = torch.zeros(1, 1, 1, 1).double(), torch.zeros(1, 1, keys, 1).double()
    value = torch.arange(keys).reshape(1, 1, keys, 1).double()
    mask = -torch.arange(keys).reshape(1, keys).float()
    right = scaled_dot_product_attention(query, key, value, mask.double())
    wrong = scaled_dot_product_attention(query, key, value, mask)
    assert torch.allclose(right, mask.double().softmax(-1) @ value)
    assert (wrong - right).abs().item() > 1, FIXED
    with sdpa_kernel(SDPBackend.MATH):
        assert torch.allclose(scaled_dot_product_attention(query, key, value, mask), right)


class TestWhereTheDeviationsApply:
    def test_exactly_where_the_bug_is(self):
        case = SQUARE.but(is_causal=True, scale=-1.0)
        assert negative_causal(case)
        assert negative_causal(case.but(scale=0.0))
        assert not negative_causal(case.but(scale=None))
        assert not negative_causal(case.but(scale=0.1))
        assert not negative_causal(case.but(is_causal=False))
        assert not negative_causal(case.but(keys=1))
        assert not negative_causal(case.but(d_value=2))
        assert negative_causal(case.but(mask=Mask()))
        assert not negative_causal(case.but(mask=Mask(shape=MaskShape.RANK_3)))

    def test_nan_is_lost_without_a_mask_alone(self):
        assert loses_nan(SQUARE)
        assert not loses_nan(SQUARE.but(mask=Mask()))
        assert not loses_nan(SQUARE.but(keys=lanes(torch.float64)))
        assert loses_nan(SQUARE.but(keys=lanes(torch.float64), dtype=torch.float16))

    def test_a_mask_is_misread_in_float64_from_two_registers_on(self):
        mask = Mask(kind=MaskKind.FLOAT, dtype=torch.float32)
        case = SQUARE.but(keys=2 * lanes(torch.float64), mask=mask)
        assert misreads_mask(case)
        assert not misreads_mask(case.but(keys=2 * lanes(torch.float64) - 1))
        assert not misreads_mask(case.but(dtype=torch.float16))
        assert not misreads_mask(case.but(mask=Mask(kind=MaskKind.FLOAT)))
        assert not misreads_mask(case.but(mask=Mask()))
        assert not misreads_mask(case.but(d_head=2))

    def test_a_single_number_has_a_sum_that_does_not_overflow(self):
        assert sums_queries(SQUARE.but(keys=0))
        assert not sums_queries(SQUARE)
        assert not sums_queries(SQUARE.but(keys=0, queries=1))
        assert not sums_queries(SQUARE.but(keys=0, batch=0))


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("mask", [None, Mask(), Mask(shape=MaskShape.RANK_3)], ids=str)
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 3, 1, 1), (1, 2, 3, 3), (5, 4, 3, 2)], ids=str)
def test_torch_does_not_choose_the_flash_kernel_for_refused_cases(sizes, mask, layout):
    from attnspec.conformance.attention.inputs import draw

    queries, keys, d_head, d_value = sizes
    case = SQUARE.but(queries=queries, keys=keys, d_head=d_head, d_value=d_value, mask=mask)
    for operand in ("query", "key", "value"):
        laid_out = case.but(layouts=Layouts(**{operand: layout}))
        call = draw(laid_out)
        kernel = torch._fused_sdp_choice(
            call.query, call.key, call.value, call.attn_mask, 0.0, False
        )
        is_flash = kernel == SDPBackend.FLASH_ATTENTION.value
        assert (flash_refuses(laid_out) is None) == is_flash, str(laid_out)


def test_the_flash_kernel_gives_no_gradient_of_a_mask():
    case = SQUARE.but(mask=Mask(kind=MaskKind.FLOAT), backward=True, mask_gradient=True)
    assert flash_refuses(case)
    mask = torch.zeros(2, 2, requires_grad=True)
    ones = torch.ones(1, 1, 2, 1)
    assert torch._fused_sdp_choice(ones, ones, ones, mask) == SDPBackend.MATH.value


@pytest.mark.parametrize(
    ("queries", "keys", "group", "writes"),
    [
        (1, 1, 1, (1, 1)),
        (33, 513, 1, (2, 2)),
        (192, 512, 1, (1, 3)),
        (768, 1025, 1, (3, 3)),
        (0, 0, 1, (1, 1)),
        (1, 1009, 64, (2, 64)),
        (33, 1, 3, (1, 6)),
    ],
)
def test_partial_writes_count_blocks_and_heads(queries, keys, group, writes):
    assert partial_writes(queries, keys, group) == writes


@pytest.mark.slow
@pytest.mark.skipif(compiler_missing() is not None, reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_call_misses_what_is_overwritten_before_its_backward_pass():
    weights, values = torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)
    out = torch.compile(torch.matmul)(weights, values)
    weights.zero_()
    assert not torch.autograd.grad(out.sum(), values)[0].any(), FIXED


def test_pages_of_an_ended_sequence_stay_in_the_map_of_paged_attention():
    # once torch mends it, docs/findings/paged_attention.md must go
    pool = PagedAttention(n_pages=4, page_size=2, max_batch_size=2, device="cpu")
    place = torch.tensor([0])
    pool.reserve(place, torch.tensor([4]))
    own = pool.page_table[0, :2].tolist()
    pool.erase(place)
    assert pool.page_table[0].tolist() == [-1] * 4
    assert sorted(pool.empty_pages) == [0, 1, 2, 3]
    assert pool.physical_to_logical[0, own].tolist() == [0, 1]
