"""Each implementation against the formula in float64, on cases that each vary one option.

The suite judges precisely; these tests fail first, near the code with the bug.
"""

import math
from collections.abc import Iterator

import pytest
import torch

from attnspec.implementations import load, names
from attnspec.spec import Case, Feature, Implementation, MaskedNonfinite, RoundingLevel

ON_CPU = ("eager", "sdpa", "sdpa_math", "sdpa_flash", "compiled")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
CASE = Case(batch=2, heads=6, kv_heads=6, queries=5, keys=7, d_head=8, d_value=8)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def available(name: str) -> Implementation:
    implementation = load(name)
    reason = implementation.unavailable()
    if reason is not None:
        pytest.skip(reason)
    return implementation


def formula(query, key, value, visible, bias=0.0, scale=None):
    """Return softmax attention; an empty row is zero."""
    group = query.shape[1] // key.shape[1]
    query, key, value = (
        query.double(),
        *(tensor.double().repeat_interleave(group, 1) for tensor in (key, value)),
    )
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * scale + bias
    weights = torch.where(visible, scores, -torch.inf).exp()
    total = weights.sum(-1, keepdim=True)
    return torch.einsum("bhqk,bhkv->bhqv", weights / torch.where(total == 0, 1.0, total), value)


def tensors(case: Case, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (case.batch, case.heads, case.queries, case.d_head),
        (case.batch, case.kv_heads, case.keys, case.d_head),
        (case.batch, case.kv_heads, case.keys, case.d_value),
    )
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(case.dtype)
        for shape in shapes
    ]


def bound(case: Case, query, key, level: RoundingLevel) -> float:
    """Return the worst first-order error, as a fraction of the largest value.

    In the accumulator: one for each product and sum on the way to a score, to a row sum and to an
    output; an error of the scores counts twice, in numerator and denominator. In the storage type:
    weights and output; at level eager also scaled queries, products and sums with a bias below 8.
    """
    storage = torch.finfo(case.dtype).eps / 2
    wide = torch.finfo(torch.promote_types(case.dtype, torch.float32)).eps / 2
    if case.d_head and query.numel() and key.numel():
        scale = 1 / math.sqrt(case.d_head) if case.scale is None else abs(case.scale)
        group = case.heads // case.kv_heads
        key = key.double().abs().repeat_interleave(group, 1)
        score = float((scale * query.double().abs() @ key.mT).amax())
    else:
        score = 0.0
    eager = storage * (4 * score + 8) if level is RoundingLevel.EAGER else 0.0
    in_scores = wide * ((score + 8) * (case.d_head + 8) + 32) + eager
    return 2 * in_scores + wide * (4 * case.keys + 32) + 3 * storage


def check_against_formula(
    implementation: Implementation, case: Case, *, mask=None, **options
) -> torch.Tensor:
    """Call an implementation, compare it with the formula, and return its output."""
    query, key, value = tensors(case)
    visible = torch.ones(case.queries, case.keys, dtype=torch.bool)
    bias: torch.Tensor | float = 0.0
    if case.is_causal:
        visible = visible.tril()
    if mask is not None and mask.dtype == torch.bool:
        visible = visible & mask
    elif mask is not None:
        visible, bias = visible & (mask != -torch.inf), mask.double().nan_to_num(neginf=0.0)
    before = [tensor.clone() for tensor in (query, key, value)]
    out = implementation.attention(
        query,
        key,
        value,
        mask,
        is_causal=case.is_causal,
        scale=case.scale,
        enable_gqa=case.heads != case.kv_heads,
        **options,
    )
    assert out.shape == (case.batch, case.heads, case.queries, case.d_value)
    assert out.dtype == case.dtype
    assert all(map(torch.equal, before, (query, key, value)))
    expected = formula(query, key, value, visible, bias, case.scale)
    allowed = bound(case, query, key, implementation.profile.rounding.level)
    assert allowed < 0.3, "a pass would be no evidence"
    largest = value.double().abs().amax() if value.numel() else 0.0
    assert (out.double() - expected).abs().le(allowed * largest).all()
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ON_CPU)
class TestEveryStorageType:
    @pytest.mark.rotating(parts=4)
    def test_plain(self, name, dtype):
        check_against_formula(available(name), CASE.but(dtype=dtype))

    def test_causal(self, name, dtype):
        for queries, keys in ((5, 7), (7, 5), (6, 6)):
            case = CASE.but(dtype=dtype, is_causal=True, queries=queries, keys=keys)
            check_against_formula(available(name), case)

    def test_shared_heads(self, name, dtype):
        check_against_formula(available(name), CASE.but(dtype=dtype, kv_heads=2))
        check_against_formula(available(name), CASE.but(dtype=dtype, kv_heads=1, heads=3))


@pytest.mark.parametrize("name", ON_CPU)
class TestOptions:
    @pytest.mark.parametrize("shape", [(2, 6, 5, 7), (1, 6, 5, 7), (2, 1, 1, 7), (5, 7), (5, 1)])
    def test_masks_of_both_kinds(self, name, shape):
        readable = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.6
        check_against_formula(available(name), CASE, mask=readable)
        bias = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        check_against_formula(available(name), CASE, mask=bias.masked_fill(~readable, -torch.inf))

    def test_an_empty_row_is_zero(self, name):
        readable = torch.ones(5, 7, dtype=torch.bool)
        readable[2] = False
        out = check_against_formula(available(name), CASE, mask=readable)
        assert (out[:, :, 2] == 0).all()

    @pytest.mark.parametrize("scale", [1.0, 0.3, -0.7, 0.0])
    def test_scale(self, name, scale):
        check_against_formula(available(name), CASE.but(scale=scale))

    @pytest.mark.parametrize(
        "sizes",
        [
            {"keys": 0},
            {"queries": 0},
            {"batch": 0},
            {"queries": 1, "keys": 1},
            {"d_head": 1, "d_value": 1},
            {"batch": 1, "heads": 1, "kv_heads": 1},
            {"queries": 129, "keys": 65},
            {"queries": 33, "keys": 600},
        ],
        ids=str,
    )
    def test_sizes(self, name, sizes):
        check_against_formula(available(name), CASE.but(**sizes))

    def test_wide_values_where_claimed(self, name):
        implementation = available(name)
        for case in (CASE.but(d_value=3), CASE.but(d_head=0, d_value=3, scale=1.0)):
            if implementation.refuses(case) is None:
                check_against_formula(implementation, case)
            else:
                with pytest.raises(RuntimeError):
                    check_against_formula(implementation, case)

    def test_mask_and_causal_together_where_claimed(self, name):
        implementation = available(name)
        readable = torch.rand(5, 7, generator=torch.Generator().manual_seed(3)) < 0.6
        case = CASE.but(is_causal=True)
        if name == "sdpa_math":
            with pytest.raises(RuntimeError):
                check_against_formula(implementation, case, mask=readable)
        else:
            check_against_formula(implementation, case, mask=readable)

    def test_nan_at_a_hidden_key_makes_nan_or_no_difference(self, name):
        implementation = available(name)
        query, key, value = tensors(CASE)
        poisoned = value.clone()
        poisoned[:, :, -1] = torch.nan
        readable = torch.ones(5, 7, dtype=torch.bool)
        readable[:, -1] = False
        clean = implementation.attention(query, key, value, readable)
        out = implementation.attention(query, key, poisoned, readable)
        assert implementation.profile.masked_values is MaskedNonfinite.PROPAGATES
        assert (out.isnan() | (out == clean)).all()

    def test_gradients(self, name):
        implementation = available(name)
        inputs = [tensor.requires_grad_() for tensor in tensors(CASE)]
        others = [tensor.detach().clone().requires_grad_() for tensor in inputs]
        visible = torch.ones(5, 7, dtype=torch.bool).tril()
        implementation.attention(*inputs, is_causal=True).square().sum().backward()
        formula(*others, visible).square().sum().backward()
        for got, expected in zip(inputs, others, strict=True):
            assert torch.allclose(got.grad, expected.grad, rtol=1e-12, atol=1e-12)

    def test_dropout_is_done_or_refused(self, name):
        implementation = available(name)
        query, key, value = tensors(CASE.but(queries=64, keys=64))
        if Feature.DROPOUT not in implementation.features:
            with pytest.raises((RuntimeError, ValueError)):
                implementation.attention(query, key, value, dropout_p=0.5)
            return
        torch.manual_seed(0)
        ones = torch.ones_like(value)
        out = implementation.attention(query, key, ones, dropout_p=0.5)
        assert not torch.equal(out, ones)
        assert (implementation.attention(query, key, ones, dropout_p=1.0) == 0).all()


@pytest.mark.parametrize("name", ["eager", "compiled"])
class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"key": (2, 6, 7, 9)}, "channels"),
            ({"value": (2, 6, 6, 8)}, "key and value"),
            ({"key": (2, 4, 7, 8), "value": (2, 4, 7, 8)}, "cannot share"),
            ({"key": (3, 6, 7, 8), "value": (3, 6, 7, 8)}, "batch"),
            ({"query": (6, 5, 8)}, "query must have 4"),
            ({"attn_mask": (5, 6)}, "broadcast"),
            ({"attn_mask": (7,)}, "2 to 4"),
        ],
        ids=str,
    )
    def test_shapes_that_do_not_fit(self, name, change, message):
        shapes = {"query": (2, 6, 5, 8), "key": (2, 6, 7, 8), "value": (2, 6, 7, 8)} | change
        with pytest.raises(ValueError, match=message):
            load(name).attention(**{key: torch.zeros(shape) for key, shape in shapes.items()})

    def test_a_mask_of_integers(self, name):
        query, key, value = tensors(CASE)
        with pytest.raises(ValueError, match="bool or floating"):
            load(name).attention(query, key, value, torch.ones(5, 7, dtype=torch.int64))

    def test_a_nan_query_stays_nan(self, name):
        query, key, value = tensors(CASE)
        query[0, 0, 1, 0] = torch.nan
        out = available(name).attention(query, key, value)
        assert out[0, 0, 1].isnan().all()
        assert out[0, 0, 0].isfinite().all()


def test_every_declaration_is_of_its_own_name():
    assert [load(name).name for name in names()] == list(names())


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("cuda")])
def test_cuda_is_not_available_without_a_device(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert load(name).unavailable() == "no CUDA device"
    assert load(name).devices == ("cuda",)
