"""Each stage of the reference, called alone."""

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.reference.activation import ACTIVATIONS, gelu_erf, gelu_tanh
from attnspec.reference.cache import empty_cache
from attnspec.reference.embedding import embed
from attnspec.reference.heads import merge_heads, multi_head_attention, repeat_kv, split_heads
from attnspec.reference.layer_norm import layer_norm
from attnspec.reference.linear import linear
from attnspec.reference.loss import next_token_loss
from attnspec.reference.masks import alibi, alibi_slopes, causal, visible_keys, window
from attnspec.reference.mlp import mlp
from attnspec.spec import CausalAlignment, Grouping

seeds = st.integers(0, 2**32 - 1)
widths = st.none() | st.integers(0, 5)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 6), st.integers(0, 6), widths, widths, st.sampled_from(CausalAlignment))
def test_masks_follow_their_inequalities(
    queries: int, keys: int, left: int | None, right: int | None, alignment: CausalAlignment
) -> None:
    o = keys - queries if alignment == "lower_right" else 0
    near = window(queries, keys, left, right, alignment)
    past = causal(queries, keys, alignment)
    both, bias = visible_keys(
        queries, keys, is_causal=True, window=(left, right), alignment=alignment
    )
    assert bias is None
    assert torch.equal(both, near & past)
    for i in range(queries):
        for j in range(keys):
            assert past[i, j] == (j <= i + o)
            assert near[i, j] == (
                (left is None or i + o - left <= j) and (right is None or j <= i + o + right)
            )


def test_a_float_mask_hides_where_it_is_minus_infinity_and_adds_elsewhere() -> None:
    mask = torch.tensor([[0.5, -torch.inf]])
    visible, bias = visible_keys(1, 2, attn_mask=mask)
    assert visible.tolist() == [[True, False]]
    assert bias is mask
    with pytest.raises(TypeError, match="attn_mask must be bool or float"):
        visible_keys(1, 2, attn_mask=torch.ones(1, 2, dtype=torch.int64))


def test_negative_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="right must not be negative, got -1"):
        window(2, 2, None, -1)


def test_slopes_are_geometric_and_interleaved_between_powers_of_two() -> None:
    assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(1).tolist() == [2.0**-8]
    halves = [2.0**-n for n in (0.5, 1.5)]
    assert alibi_slopes(10)[8:].tolist() == pytest.approx(halves, rel=2**-50)
    assert (alibi_slopes(12)[:8] == alibi_slopes(8)).all()
    with pytest.raises(ValueError, match="heads must be at least 1"):
        alibi_slopes(0)
    lowered = alibi(torch.tensor([2.0]), 2, 3, CausalAlignment.LOWER_RIGHT)
    assert lowered.tolist() == [[[-2.0, 0.0, -2.0], [-4.0, -2.0, 0.0]]]


@given(seeds, st.integers(1, 3), st.integers(0, 4), st.integers(1, 3))
def test_merging_undoes_splitting(seed: int, heads: int, length: int, d_head: int) -> None:
    x = normal(seed, 2, length, heads * d_head)
    split = split_heads(x, heads)
    assert torch.equal(merge_heads(split), x)
    for head in range(heads):
        assert torch.equal(split[:, head], x[..., head * d_head : (head + 1) * d_head])


def test_query_heads_share_key_heads_in_runs() -> None:
    x = normal(0, 1, 2, 3, 4)
    assert torch.equal(repeat_kv(x, 6), x[:, [0, 0, 0, 1, 1, 1]])
    assert torch.equal(repeat_kv(x, 6, Grouping.INTERLEAVED), x[:, [0, 1, 0, 1, 0, 1]])
    with pytest.raises(ValueError, match="5 query heads do not share 2 key/value heads evenly"):
        repeat_kv(x, 5)
    with pytest.raises(ValueError, match="7 channels cannot be shared evenly by 2 heads"):
        split_heads(normal(0, 1, 1, 7), 2)


def test_projections_are_packed_queries_keys_values() -> None:
    x, identity = normal(0, 1, 3, 4), torch.eye(4, dtype=torch.float64)
    packed, none = torch.cat([identity, 2 * identity, 3 * identity], dim=1), x.new_zeros(4)
    seen: list[torch.Tensor] = []

    def spy(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        seen.extend((query, key, value))
        return value

    out = multi_head_attention(x, packed, x.new_zeros(12), identity, none, heads=2, attention=spy)
    assert torch.equal(out, 3 * x)
    for times, part in enumerate(seen, start=1):
        assert torch.equal(part, split_heads(times * x, 2))


def test_linear_maps_are_input_major() -> None:
    weight = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    assert linear(torch.tensor([1.0, 0.0]), weight, torch.ones(3)).tolist() == [2.0, 3.0, 4.0]
    doubled = mlp(
        torch.tensor([[1.0, 1.0]]), weight, torch.zeros(3), weight.T, torch.ones(2), activation=abs
    )
    assert doubled.tolist() == [[11 + 2 * 22 + 3 * 33 + 1, 10 * (11 + 2 * 22 + 3 * 33) + 1]]


@settings(deadline=None)
@given(seeds, st.integers(1, 9), st.sampled_from([0.0, 1e-5, 0.1]), st.sampled_from([1e-3, 1.0]))
def test_rows_are_normalized(seed: int, channels: int, epsilon: float, size: float) -> None:
    x = size * normal(seed, 3, channels)
    weight, bias = normal(seed + 1, channels), normal(seed + 2, channels)
    y = layer_norm(x, weight, bias, epsilon=epsilon)
    with mpmath.workdps(40):
        for row, got in zip(x.tolist(), y.tolist(), strict=True):
            mean = mpmath.fsum(row) / channels
            variance = mpmath.fsum((x_c - mean) ** 2 for x_c in row) / channels
            if variance + epsilon == 0:
                continue
            root = mpmath.sqrt(variance + epsilon)
            # A centred element is wrong by `centred` at most, so the root by that much too (the
            # mean size of a centred element is no more than the root), and by its own sums.
            centred = (channels + 3) * 2.0**-53 * max(map(abs, row)) / root
            for c in range(channels):
                unit = abs(row[c] - mean) / root
                wrong = centred + unit * (centred + (channels / 2 + 4) * 2.0**-53)
                exact = weight[c].item() * (row[c] - mean) / root + bias[c].item()
                last = 2 * 2.0**-53 * (abs(weight[c].item()) * unit + abs(bias[c].item()))
                assert abs(got[c] - exact) <= 1.01 * (abs(weight[c].item()) * wrong + last)


def test_an_even_row_is_all_bias_thanks_to_epsilon() -> None:
    ones = torch.ones(3, dtype=torch.float64)
    assert layer_norm(5 * ones, 2 * ones, 7 * ones, epsilon=1e-5).tolist() == [7.0, 7.0, 7.0]


def exact_gelu(x: float) -> mpmath.mpf:
    return x * mpmath.ncdf(x)


def exact_gelu_tanh(x: float) -> mpmath.mpf:
    inner = mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * mpmath.mpf(x) ** 3)
    return mpmath.mpf(x) / 2 * (1 + mpmath.tanh(inner))


def logistic(x: float) -> mpmath.mpf:
    return 1 / (1 + mpmath.exp(-x))


EXACT: dict[str, Callable[[float], mpmath.mpf]] = {
    "gelu_new": exact_gelu_tanh,
    "gelu_pytorch_tanh": exact_gelu_tanh,
    "gelu_python_tanh": exact_gelu_tanh,
    "gelu_accurate": exact_gelu_tanh,
    "gelu": exact_gelu,
    "gelu_python": exact_gelu,
    "gelu_10": lambda x: min(max(exact_gelu(x), -10), 10),
    "quick_gelu": lambda x: x * logistic(1.702 * x),
    "relu": lambda x: mpmath.mpf(max(x, 0.0)),
    "relu2": lambda x: mpmath.mpf(max(x, 0.0)) ** 2,
    "relu6": lambda x: mpmath.mpf(min(max(x, 0.0), 6.0)),
    "leaky_relu": lambda x: mpmath.mpf(x if x > 0 else 0.01 * x),
    "hardswish": lambda x: x * mpmath.mpf(min(max(x + 3, 0), 6)) / 6,
    "silu": lambda x: x * logistic(x),
    "swish": lambda x: x * logistic(x),
    "mish": lambda x: x * mpmath.tanh(mpmath.log(1 + mpmath.exp(x))),
    "sigmoid": logistic,
    "tanh": mpmath.tanh,
    "linear": mpmath.mpf,
}


@pytest.mark.parametrize("name", sorted(EXACT))
@settings(deadline=None, max_examples=30)
@given(st.floats(-60, 60))
def test_activations_are_their_formulas(name: str, x: float) -> None:
    got = ACTIVATIONS[name](torch.tensor(x, dtype=torch.float64)).item()
    with mpmath.workdps(40):
        # The functions are products of x and a number in [-1, 1] that is known to a few roundoffs
        # times the size of the argument of its exponential, at most 2 |x| (1 + x^2) of them.
        argument = min(2 * abs(x) * (1 + x * x), 60.0)
        assert abs(got - EXACT[name](x)) <= 2.0**-53 * (16 + argument) * (1 + abs(x)) ** 2


def test_every_activation_is_tested() -> None:
    x = torch.linspace(-9, 9, 999, dtype=torch.float64)
    assert set(ACTIVATIONS) - set(EXACT) == {"gelu_fast"}
    apart = (ACTIVATIONS["gelu_fast"](x) - gelu_tanh(x)).abs().max()
    assert 0 < apart < 1e-9
    between = (gelu_erf(x) - gelu_tanh(x)).abs().max()
    assert 1e-4 < between < 5e-4
    assert gelu_tanh(x).min() > -0.171


def test_embeddings_are_sums_of_two_rows() -> None:
    tokens, positions = normal(0, 5, 3), normal(1, 4, 3)
    ids = torch.tensor([[4, 0], [1, 1]])
    assert torch.equal(embed(ids, tokens, positions), tokens[ids] + positions[:2])
    places = torch.tensor([[3, 2]])
    assert torch.equal(embed(ids, tokens, positions, places), tokens[ids] + positions[[3, 2]])


@pytest.mark.parametrize(
    ("ids", "places", "message"),
    [
        ([[0, 5]], [[0, 1]], r"input_ids\[0, 1\] must lie in \[0, vocab\) = \[0, 5\), got 5"),
        ([[-1, 0]], [[0, 1]], r"input_ids\[0, 0\] must lie in .* got -1"),
        ([[0, 0]], [[0, 4]], r"position_ids\[0, 1\] must lie in \[0, positions\) .* got 4"),
    ],
)
def test_ids_without_a_row_are_refused(
    ids: list[list[int]], places: list[list[int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        embed(torch.tensor(ids), normal(0, 5, 3), normal(1, 4, 3), torch.tensor(places))


def test_ids_must_be_integers() -> None:
    with pytest.raises(TypeError, match=r"input_ids must be integers, got torch\.bool"):
        embed(torch.tensor([[True]]), normal(0, 5, 3), normal(1, 4, 3))  # type: ignore[arg-type]


def test_the_loss_is_the_mean_surprise_at_each_next_token() -> None:
    logits = 3 * normal(0, 2, 4, 5)
    labels = torch.tensor([[1, 4, -100, 2], [0, 0, 3, -100]])
    surprise = [
        math.log(sum(math.exp(logit) for logit in logits[b, t].tolist()))
        - logits[b, t, token].item()
        for b, t, token in [(0, 0, 4), (0, 2, 2), (1, 0, 0), (1, 1, 3)]
    ]
    assert next_token_loss(logits, labels).item() == pytest.approx(sum(surprise) / 4, rel=2**-46)
    assert next_token_loss(logits + 1e4, labels).isfinite()


@pytest.mark.parametrize(
    ("labels", "message"), [([[1, -100]], "no token to predict"), ([[0, 5]], "got 5")]
)
def test_labels_that_are_no_tokens_are_refused(labels: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        next_token_loss(normal(0, 1, 2, 5), torch.tensor(labels))


def test_a_cache_grows_and_rolls_back_without_changing() -> None:
    empty = empty_cache(2)
    key = normal(0, 1, 2, 3, 4)
    first = type(empty)(layers=(empty.append(0, key, key), empty.append(1, key, key)), length=3)
    longer, _ = first.append(0, key[:, :, :1], key[:, :, :1])
    assert torch.equal(longer, torch.cat([key, key[:, :, :1]], dim=2))
    kept = first.layers[0]
    assert kept is not None
    assert kept[0].shape[2] == first.length == 3
    back = first.truncate(1)
    assert back.length == 1
    assert all(pair is not None and torch.equal(pair[1], key[:, :, :1]) for pair in back.layers)
    assert empty.truncate(0) == empty
    with pytest.raises(ValueError, match=r"length must lie in \[0, 3\], got 4"):
        first.truncate(4)
    with pytest.raises(ValueError, match="layer 1 keeps a key of"):
        first.append(1, normal(0, 2, 2, 3, 4), normal(0, 2, 2, 3, 4))
