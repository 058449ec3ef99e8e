"""Options as functions of indices: a kernel that calls these functions for every pair."""

import pytest
import torch
from plain_kernel import EAGER, is_right, is_wrong, outcomes, parameters, plain

from attnspec.implementations import load
from attnspec.implementations.adapters import from_flex_attention

LAWS = (
    "output-equals-the-definition",
    "the-diagonal-lies-where-the-profile-says",
    "a-window-shows-exactly-its-keys",
    "a-query-reads-exactly-its-keys",
    "a-float-mask-is-added-to-the-scaled-scores",
    "a-head-reads-its-own-group",
)
FEATURES = ("mask", "causal", "gqa", "window", "softcap", "alibi")


def by_pairs(
    query, key, value, *, score_mod=None, block_mask=None, scale=None, enable_gqa=False, swap=False
):
    """Like `flex_attention`: scores change by a function of the score and four indices."""
    group = query.shape[1] // key.shape[1]
    assert enable_gqa or group == 1
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    indices = torch.meshgrid(*map(torch.arange, scores.shape), indexing="ij")
    batch, head, *pair = indices
    row, column = reversed(pair) if swap else pair
    if score_mod is not None:
        scores = score_mod(scores, batch, head, row, column)
    visible = torch.ones_like(scores, dtype=torch.bool)
    if block_mask is not None:
        visible = block_mask.mask_mod(batch, head, row, column)
    # the scores are ready: an identity of queries leaves them as they are
    identity = torch.eye(scores.shape[3]).expand(*scores.shape[:2], -1, -1)
    return plain(scores, identity, value, visible=visible, scale=1.0)[0]


def test_a_correct_kernel_passes():
    adapted = from_flex_attention(by_pairs)
    assert "return_lse" not in parameters(adapted)
    assert is_right(outcomes(adapted, *FEATURES, laws=LAWS, profile=EAGER, supports=finite_masks))


def finite_masks(case):
    from attnspec.spec.case import BIASES, MaskKind

    if not min(case.batch, case.heads, case.queries, case.keys, case.d_head, case.d_value):
        return "no empty tensor"
    mask = case.mask
    if mask is not None and mask.kind is MaskKind.FLOAT and mask.pattern not in BIASES[:1]:
        return "minus infinity times zero is NaN in this kernel"
    return None


@pytest.mark.rotating(parts=4)
def test_a_kernel_that_exchanges_query_and_key_fails():
    def swapped(query, key, value, *, score_mod, block_mask, scale, enable_gqa):
        return by_pairs(
            query,
            key,
            value,
            score_mod=score_mod,
            block_mask=block_mask,
            scale=scale,
            enable_gqa=enable_gqa,
            swap=True,
        )

    def square(case):
        return finite_masks(case) or (None if case.queries == case.keys else "not square")

    adapted = from_flex_attention(swapped)
    assert is_wrong(outcomes(adapted, "causal", "window", laws=LAWS, supports=square))


def test_a_kernel_without_these_functions_is_refused():
    with pytest.raises(TypeError, match="no parameter score_mod, block_mask"):
        from_flex_attention(lambda query, key, value, scale, enable_gqa: query)


@pytest.mark.parametrize(
    "slopes", [torch.full((1,), 0.25).expand(2), torch.tensor([0.5, 9.0, 0.25, 9.0])[::2]]
)
def test_masks_of_one_number_and_all_slopes_are_written_out(slopes):
    """PyTorch 2.13 compiles no code that reads a tensor without a stride, or of another stride."""
    read = []

    def reading(query, key, value, *, score_mod, block_mask, scale, enable_gqa):
        kept = [cell.cell_contents for cell in score_mod.__closure__]
        read.extend(each for each in kept if isinstance(each, torch.Tensor))
        return by_pairs(query, key, value, score_mod=score_mod)

    query, key, value = torch.randn(3, 2, 2, 3, 4).unbind()
    bias = torch.full((1, 1, 1, 1), 0.5)
    out = from_flex_attention(reading)(query, key, value, attn_mask=bias, alibi_slopes=slopes)
    assert {tuple(each.shape) for each in read} == {(2, 2, 3, 3), (2,)}
    assert all(each.is_contiguous() for each in read)
    expected = plain(query, key, value, bias=bias + _alibi(slopes, 3))[0]
    torch.testing.assert_close(out, expected)


def _alibi(slopes, length):
    distances = torch.arange(length)[:, None] - torch.arange(length)
    return -slopes[:, None, None] * distances.abs()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True},
        {"window": (1, 0)},
        {"alibi_slopes": torch.ones(2)},
        {"attn_mask": torch.ones(1, 2, 0, 3, dtype=torch.bool)},
        {"attn_mask": torch.zeros(0, 3)},
        {"softcap": 2.0},
    ],
    ids=str,
)
def test_a_call_without_queries_has_an_empty_output(options):
    query, key = torch.empty(1, 2, 0, 4), torch.ones(1, 2, 3, 4)
    out = load("flex").attention(query, key, key, **options)
    assert out.shape == (1, 2, 0, 4)
