"""Masks that go to other parameters, in full rank, or with the other polarity."""

import pytest
import torch
from plain_kernel import is_right, is_wrong, outcomes, parameters, plain

from attnspec.implementations.adapters import from_mask_routing
from attnspec.spec import MaskKind

LAWS = (
    "a-query-reads-exactly-its-keys",
    "true-means-readable",
    "a-float-mask-is-added-to-the-scaled-scores",
    "masks-broadcast",
)


def routed(query, key, value, *, mask=None, bias=None, scale=None):
    assert mask is None or mask.dtype == torch.bool
    assert bias is None or bias.is_floating_point()
    for given in (mask, bias):
        assert given is None or given.dim() == 4
    return plain(query, key, value, visible=mask, bias=bias, scale=scale)[0]


def hiding(query, key, value, *, hidden=None, scale=None):
    assert hidden is None or hidden.shape == (*query.shape[:3], key.shape[2])
    visible = None if hidden is None else ~hidden
    return plain(query, key, value, visible=visible, scale=scale)[0]


def bool_masks(case):
    return None if case.mask is None or case.mask.kind is MaskKind.BOOL else "no float mask"


def test_each_kind_goes_to_its_parameter():
    adapted = from_mask_routing(routed, bool_mask="mask", float_mask="bias")
    assert parameters(adapted) == {"attn_mask", "scale"}
    assert is_right(outcomes(adapted, "mask", laws=LAWS))


def test_a_kernel_that_reads_a_bool_mask_the_other_way_fails():
    adapted = from_mask_routing(hiding, bool_mask="hidden", is_expanded=True)
    assert is_wrong(outcomes(adapted, "mask", laws=LAWS, supports=bool_masks))


def test_the_other_polarity_and_full_rank_are_made():
    adapted = from_mask_routing(hiding, bool_mask="hidden", true_hides=True, is_expanded=True)
    assert is_right(outcomes(adapted, "mask", laws=LAWS, supports=bool_masks))


def test_a_mask_of_the_other_kind_is_refused():
    adapted, x = from_mask_routing(hiding, bool_mask="hidden"), torch.ones(1, 1, 2, 1)
    with pytest.raises(TypeError, match=r"the kernel takes no mask of torch\.float32"):
        adapted(x, x, x, torch.zeros(2, 2))


def test_a_kernel_without_the_parameter_is_refused():
    with pytest.raises(TypeError, match="no parameter bias; it has hidden, key"):
        from_mask_routing(hiding, float_mask="bias")
    with pytest.raises(TypeError, match="give bool_mask, float_mask, or both"):
        from_mask_routing(hiding)
