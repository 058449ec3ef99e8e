"""JAX's flash attention in Pallas: tiles, results, and what it refuses."""

import pytest
import torch

from attnspec.implementations import load
from attnspec.spec import Case

PALLAS = load("pallas_attention")


class TestRefusals:
    @pytest.mark.parametrize(
        ("case", "reason"),
        [
            (Case(queries=3, keys=0), "mha takes no empty tensor"),
            (Case(d_head=2, d_value=3), "mha needs d_value = d_head"),
            (Case(queries=129, keys=128), "a length above 128 must be a multiple of the tile, 16"),
            (Case(return_lse=True, backward=True), "no gradients where it returns the log-sum-exp"),
            (Case(queries=3, keys=2, is_causal=True), "mha loads behind the last key"),
        ],
    )
    def test_cases_are_refused_with_a_reason(self, case, reason):
        assert reason in PALLAS.supports(case)

    @pytest.mark.parametrize("queries", [1, 127, 128, 144])
    def test_lengths_that_a_tile_divides_are_not(self, queries):
        assert PALLAS.supports(Case(queries=queries, keys=256, is_causal=True)) is None

    def test_options_that_the_kernels_lack_are_refused(self):
        x, mask = torch.ones(1, 2, 2, 1), torch.ones(2, 2, dtype=torch.bool)
        with pytest.raises(ValueError, match="no mask but the causal one"):
            PALLAS.attention(x, x, x, mask)
        with pytest.raises(ValueError, match="no dropout"):
            PALLAS.attention(x, x, x, dropout_p=0.5)
        with pytest.raises(ValueError, match="as many heads"):
            PALLAS.attention(x, x[:, :1], x[:, :1])


@pytest.mark.skipif(PALLAS.unavailable() is not None, reason="jax is not installed")
class TestResults:
    @pytest.mark.parametrize("is_causal", [False, True])
    @pytest.mark.parametrize(("queries", "keys"), [(5, 7), (33, 33), (32, 32), (32, 48)])
    def test_they_are_those_of_the_formula(self, queries, keys, is_causal):
        query, key, value = (
            torch.randn(2, 3, length, 4, requires_grad=True) for length in (queries, keys, keys)
        )
        scores = query @ key.mT * 0.3
        if is_causal:
            later = torch.ones(queries, keys, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        expected = scores.softmax(-1) @ value
        out = PALLAS.attention(query, key, value, is_causal=is_causal, scale=0.3)
        torch.testing.assert_close(out, expected)
        incoming = torch.randn_like(out)
        found = torch.autograd.grad(out, (query, key, value), incoming)
        right = torch.autograd.grad(expected, (query, key, value), incoming)
        torch.testing.assert_close(found, right)
        options = {"is_causal": is_causal, "scale": 0.3, "return_lse": True}
        _, lse = PALLAS.attention(query.detach(), key.detach(), value.detach(), **options)
        torch.testing.assert_close(lse, scores.logsumexp(-1))
