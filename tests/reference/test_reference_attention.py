"""The two definitions of attention are equal, for every combination of options."""

import math
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.reference import implementation
from attnspec.reference.attention import attention, attention_with_options
from attnspec.reference.implementation import scaled_dot_product_attention
from attnspec.reference.masks import causal
from attnspec.reference.scalar_attention import scalar_attention
from attnspec.spec import CausalAlignment, EmptyRow

ROUNDOFF = 2.0**-53
POISON = (math.nan, math.inf, -math.inf)


@dataclass(frozen=True)
class Drawn:
    """The arguments of one call, as NumPy arrays."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    options: dict[str, Any]

    def first(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the result of the tensor operations."""
        out = scaled_dot_product_attention(
            *map(torch.from_numpy, (self.query, self.key, self.value)),
            enable_gqa=True,
            return_lse=True,
            **{
                name: torch.from_numpy(option) if isinstance(option, np.ndarray) else option
                for name, option in self.options.items()
            },
        )
        assert isinstance(out, tuple)
        return out

    def second(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the result of the scalar loops."""
        return scalar_attention(self.query, self.key, self.value, **self.options)

    def bounds(self) -> tuple[np.ndarray, float]:
        """Bound the distance between two correct float64 computations of this call.

        It is the worst case, to first order in the roundoff and then made safe by `expm1`: each
        score is wrong by at most E, so each weight by a factor of at most exp(2E), to which come
        the roundings of the difference to the peak (whose size is at most R), of the exponential,
        of the sums over the keys and of the division. Both sides may be wrong by that much.
        """
        query, key, value = (np.nan_to_num(x, nan=0, posinf=0, neginf=0) for x in self.arrays())
        options = self.options
        keys, d_head = key.shape[2:]
        scale = options["scale"]
        if scale is None:
            scale = d_head**-0.5 if d_head else 1.0
        products = np.abs(query).sum(-1).max(initial=0.0) * np.abs(key).max(initial=0.0)
        size = abs(scale) * products
        error = (d_head + 4) * ROUNDOFF * size
        if options["softcap"] is not None:
            error += 16 * ROUNDOFF * (size + options["softcap"])
        mask, slopes, sinks = (options[name] for name in ("attn_mask", "alibi_slopes", "sinks"))
        if mask is not None and mask.dtype != bool:
            size += np.abs(mask[np.isfinite(mask)]).max(initial=0.0)
        if slopes is not None:
            size += np.abs(slopes).max() * (keys + query.shape[2])
        error += 6 * ROUNDOFF * size
        spread = 2 * max(size, 0.0 if sinks is None else np.abs(sinks).max())
        factor = 2 * math.expm1(2 * error + (spread + 2 * keys + 32) * ROUNDOFF)
        magnitude, _ = scalar_attention(query, key, np.abs(value), **options)
        return factor * np.nan_to_num(magnitude) + 1e-300, factor + 4 * ROUNDOFF * (spread + keys)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return query, key and value."""
        return self.query, self.key, self.value


@st.composite
def calls(draw: st.DrawFn, *, poisoned: bool = False) -> Drawn:
    """Draw any call that the contract allows, poisoned ones with NaN and infinities anywhere."""
    batch, groups, kv_heads = (draw(st.integers(1, most)) for most in (2, 3, 2))
    queries, keys, d_head, d_value = (draw(st.integers(0, most)) for most in (6, 7, 4, 3))
    heads = groups * kv_heads
    source = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.sampled_from([0.0, 1e-3, 1.0, 30.0]))

    def normal(*shape: int) -> np.ndarray:
        return source.normal(size=shape)

    query = size * normal(batch, heads, queries, d_head)
    key = normal(batch, kv_heads, keys, d_head)
    value = normal(batch, kv_heads, keys, d_value)
    if poisoned:
        for operand in (query, key, value):
            for _ in range(draw(st.integers(0, 2))):
                if operand.size:
                    operand.flat[draw(st.integers(0, operand.size - 1))] = draw(
                        st.sampled_from(POISON)
                    )
    shape = draw(
        st.sampled_from(
            [
                (queries, keys),
                (1, keys),
                (queries, 1),
                (heads, queries, keys),
                (batch, 1, 1, keys),
                (batch, 1, queries, keys),
                (batch, heads, queries, keys),
            ]
        )
    )
    kind = draw(st.sampled_from(["none", "bool", "float", "hiding"]))
    mask = None if kind == "none" else source.random(shape) < 0.6
    if kind == "float":
        mask = normal(*shape)
    elif kind == "hiding":
        mask = np.where(mask, normal(*shape), -np.inf)
    width = st.none() | st.integers(0, 4)
    sinks = draw(st.booleans())
    return Drawn(
        query,
        key,
        value,
        {
            "attn_mask": mask,
            "is_causal": draw(st.booleans()),
            "scale": draw(st.sampled_from([None, 0.0, -1.3, 0.7])),
            "window": draw(st.none() | st.tuples(width, width)),
            "softcap": draw(st.none() | st.sampled_from([0.5, 20.0])),
            "sinks": normal(heads) if sinks else None,
            "alibi_slopes": np.abs(normal(heads)) if draw(st.booleans()) else None,
            "causal_alignment": draw(st.sampled_from(CausalAlignment)),
            "empty_row": draw(st.sampled_from(EmptyRow)),
        },
    )


def compare(drawn: Drawn) -> None:
    """Compare the two definitions within their bound; NaN equals NaN, and infinity infinity."""
    (out, lse), (out_2, lse_2) = drawn.first(), drawn.second()
    out_bound, lse_bound = drawn.bounds()
    for one, other, bound in ((out.numpy(), out_2, out_bound), (lse.numpy(), lse_2, lse_bound)):
        assert one.shape == other.shape
        bound = np.broadcast_to(bound, one.shape)
        finite = np.isfinite(other)
        np.testing.assert_array_equal(one[~finite], other[~finite])
        assert (np.abs(one[finite] - other[finite]) <= bound[finite]).all()


@settings(max_examples=400, deadline=None)
@given(calls())
def test_the_two_definitions_are_equal(drawn: Drawn) -> None:
    compare(drawn)


@settings(max_examples=400, deadline=None)
@given(calls(poisoned=True))
def test_the_two_definitions_let_nan_and_infinity_reach_the_same_elements(drawn: Drawn) -> None:
    compare(drawn)


@given(st.integers(0, 2**32 - 1), st.integers(0, 4), st.integers(0, 5))
def test_the_plain_definition_is_the_one_with_options_to_the_bit(
    seed: int, queries: int, keys: int
) -> None:
    source = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(2, length, 3, dtype=torch.float64, generator=source)
        for length in (queries, keys, keys)
    )
    visible = torch.rand(queries, keys, generator=source) < 0.6
    out, _ = attention_with_options(query, key, value, visible, scale=0.7)
    assert torch.equal(attention(query, key, value, visible, scale=0.7), out)


@pytest.mark.parametrize("wrong", ["value", "lse", "nan", "shape"])
def test_the_comparison_notices_one_wrong_element(wrong: str) -> None:
    class Spoiled(Drawn):
        def first(self) -> tuple[torch.Tensor, torch.Tensor]:
            out, lse = super().first()
            if wrong == "value":
                out[-1, -1, -1, -1] += 1e-10
            elif wrong == "lse":
                lse[-1, -1, -1] -= 1e-10
            elif wrong == "nan":
                out[-1, -1, -1, -1] = torch.nan
            else:
                out = out[..., :1]
            return out, lse

    source = np.random.default_rng(0)
    options = dict.fromkeys(("attn_mask", "scale", "softcap", "sinks", "alibi_slopes"))
    drawn = Spoiled(*(source.normal(size=(1, 2, 3, 4)) for _ in range(3)), options)
    compare(Drawn(*drawn.arrays(), options))
    with pytest.raises(AssertionError):
        compare(drawn)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.1, 5.0]), st.sampled_from([None, 3.0]))
def test_the_scalar_definition_is_right_to_fifty_digits(
    seed: int, scale: float, softcap: float | None
) -> None:
    source = np.random.default_rng(seed)
    query, key, value = (source.normal(size=(1, 1, 4, 3)) for _ in range(3))
    options: dict[str, Any] = {"scale": scale, "softcap": softcap, "is_causal": True}
    out, lse = scalar_attention(query, key, value, **options)
    with mpmath.workdps(50):
        for i in range(4):
            masses = []
            for j in range(i + 1):
                score = mpmath.mpf(scale) * mpmath.fdot(query[0, 0, i], key[0, 0, j])
                if softcap is not None:
                    score = softcap * mpmath.tanh(score / softcap)
                masses.append(mpmath.exp(score))
            total = mpmath.fsum(masses)
            defaults = dict.fromkeys(("attn_mask", "sinks", "alibi_slopes"))
            drawn = Drawn(query, key, value, defaults | options)
            out_bound, lse_bound = drawn.bounds()
            assert abs(lse[0, 0, i] - mpmath.log(total)) <= lse_bound
            for c in range(3):
                exact = mpmath.fdot(masses, value[0, 0, : i + 1, c]) / total
                assert abs(out[0, 0, i, c] - exact) <= out_bound[0, 0, i, c]


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans(), st.booleans())
def test_gradients_are_those_of_the_function(
    seed: int, capped: bool, has_sinks: bool, is_causal: bool
) -> None:
    source = torch.Generator().manual_seed(seed)

    def leaf(*shape: int) -> torch.Tensor:
        drawn = torch.randn(shape, dtype=torch.float64, generator=source)
        return drawn.requires_grad_()

    visible = torch.rand(3, 4, generator=source) > 0.4
    visible[0] = False
    tensors = [
        leaf(1, 2, 3, 2),
        leaf(1, 1, 4, 2),
        leaf(1, 1, 4, 3),
        leaf(2, 3, 4),
        leaf(2),
        leaf(2),
    ]

    def function(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor,
        sinks: torch.Tensor,
        slopes: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = scaled_dot_product_attention(
            query,
            key,
            value,
            torch.where(visible, bias, -torch.inf),
            is_causal=is_causal,
            enable_gqa=True,
            softcap=2.0 if capped else None,
            sinks=sinks if has_sinks else None,
            alibi_slopes=slopes,
            return_lse=True,
        )
        return out, torch.where(lse == -torch.inf, 0.0, lse)

    assert torch.autograd.gradcheck(function, tensors)


def test_an_unread_key_has_no_gradient_and_spoils_none() -> None:
    source = torch.Generator().manual_seed(3)
    query, key, value = (
        torch.randn(1, 1, 4, 2, dtype=torch.float64, generator=source) for _ in range(3)
    )
    key[:, :, 3], value[:, :, 3] = torch.nan, torch.inf
    for operand in (query, key, value):
        operand.requires_grad_()
    visible = torch.tensor([True, True, True, False])
    out = attention(query, key, value, visible.expand(4, 4), scale=1.0)
    gradients = torch.autograd.grad(out.sum(), (query, key, value))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert all((gradient[:, :, 3] == 0).all() for gradient in gradients[1:])


def test_a_nan_value_reaches_only_the_queries_that_read_it_and_only_its_channel() -> None:
    query = key = torch.ones(1, 1, 3, 2, dtype=torch.float64)
    value = torch.ones(1, 1, 3, 2, dtype=torch.float64)
    value[0, 0, 1, 0] = torch.nan
    out, lse = attention_with_options(query, key, value, causal(3, 3), scale=1.0)
    assert out[0, 0].isnan().tolist() == [[False, False], [True, False], [True, False]]
    assert lse.isfinite().all()


@pytest.mark.parametrize("scores", [1, 7, 40])
def test_runs_of_queries_give_what_all_at_once_give(
    scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = np.random.default_rng(1)
    query, key, value = (source.normal(size=(2, 2, 5, 3)) for _ in range(3))
    options: dict[str, Any] = {
        "attn_mask": source.normal(size=(2, 1, 5, 5)),
        "is_causal": True,
        "scale": None,
        "softcap": None,
        "sinks": source.normal(size=2),
        "alibi_slopes": np.array([0.3, 0.1]),
    }
    monkeypatch.setattr(implementation, "SCORES_AT_ONCE", scores)
    compare(Drawn(query, key, value, options))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_narrow_dtype_is_rounded_once_at_the_end(dtype: torch.dtype) -> None:
    source = torch.Generator().manual_seed(0)
    operands = [torch.randn(1, 2, 5, 4, generator=source).to(dtype) for _ in range(3)]
    out = scaled_dot_product_attention(*operands, is_causal=True)
    wide = scaled_dot_product_attention(*(operand.double() for operand in operands), is_causal=True)
    assert isinstance(out, torch.Tensor)
    assert isinstance(wide, torch.Tensor)
    assert out.dtype == dtype
    assert torch.equal(out, wide.to(dtype))


def test_dropout_drops_whole_weights_and_scales_the_rest() -> None:
    source = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 1, 40, 4, dtype=torch.float64, generator=source) for _ in range(2))
    value = torch.eye(40, dtype=torch.float64)[None, None]
    weights = scaled_dot_product_attention(query, key, value)
    assert torch.equal(weights, scaled_dot_product_attention(query, key, value, dropout_p=0.0))
    torch.manual_seed(0)
    dropped = scaled_dot_product_attention(query, key, value, dropout_p=0.25)
    assert isinstance(weights, torch.Tensor)
    assert isinstance(dropped, torch.Tensor)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.75, rtol=4 * 2.0**-52, atol=0)
    # Hoeffding: the share of 1600 fair draws is off by more than 0.1 once in 10^13 seeds.
    assert abs(kept.double().mean() - 0.75) < 0.1
    assert (scaled_dot_product_attention(query, key, value, dropout_p=1.0) == 0).all()


def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"query": zeros(2, 3, 4)}, ValueError, "query must have 4 axes"),
        ({"key": zeros(1, 2, 3, 4, dtype=torch.float32)}, TypeError, "key must have the dtype"),
        ({"query": zeros(1, 2, 3, 4, dtype=torch.int64)}, TypeError, "query must be floating"),
        ({"key": zeros(1, 2, 3, 5)}, ValueError, "key must have the channels"),
        ({"key": zeros(3, 2, 3, 4), "value": zeros(3, 2, 3, 4)}, ValueError, "key must have the b"),
        ({"value": zeros(1, 2, 5, 4)}, ValueError, "value must have the batch, heads and length"),
        ({"key": zeros(1, 1, 3, 4), "value": zeros(1, 1, 3, 4)}, ValueError, "enable_gqa=True"),
        ({"query": zeros(1, 3, 3, 4), "enable_gqa": True}, ValueError, "do not share"),
        ({"attn_mask": zeros(3)}, ValueError, "attn_mask must have 2 to 4 axes"),
        ({"attn_mask": zeros(2, 3)}, ValueError, "attn_mask must be broadcastable"),
        ({"attn_mask": zeros(3, 3, dtype=torch.int64)}, TypeError, "attn_mask must be bool or"),
        ({"sinks": zeros(3)}, ValueError, "sinks must have shape"),
        ({"alibi_slopes": zeros(2, 1)}, ValueError, "alibi_slopes must have shape"),
        ({"alibi_slopes": zeros(2, dtype=torch.int64)}, TypeError, "alibi_slopes must be floating"),
        ({"dropout_p": 1.5}, ValueError, "dropout_p must lie in"),
        ({"scale": math.nan}, ValueError, "scale must be finite"),
        ({"softcap": 0.0}, ValueError, "softcap must be finite and positive"),
        ({"window": (-1, None)}, ValueError, "window: left must not be negative"),
        ({"window": (1, 2, 3)}, ValueError, "window must be"),
    ],
)
def test_an_argument_without_a_reading_is_refused_by_name(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments: dict[str, Any] = {name: zeros(1, 2, 3, 4) for name in ("query", "key", "value")}
    with pytest.raises(error, match=message.replace("(", r"\(")):
        scaled_dot_product_attention(**(arguments | changes))
