"""Kernels of other shapes: heads after length, packed heads, groups that the shapes show."""

import pytest
import torch
from plain_kernel import in_place, is_right, is_wrong, outcomes, parameters, plain

from attnspec.conformance.report.record import Outcome
from attnspec.implementations.adapters import (
    from_grouped_shapes,
    from_heads_after_length,
    from_packed_heads,
)

LAWS = ("output-equals-the-definition", "a-causal-row-attends-its-prefix")

LAWS_OF_GROUPS = ("a-head-reads-its-own-group",)


def causal(query, key):
    return in_place(query.shape[2], key.shape[2], 0) <= 0


def after_length(query, key, value, *, is_causal=False, scale=None, return_lse=False):
    query, key, value = (x.permute(0, 2, 1, 3) for x in (query, key, value))
    out, lse = plain(query, key, value, visible=causal(query, key) if is_causal else None)
    return (out.permute(0, 2, 1, 3), lse) if return_lse else out.permute(0, 2, 1, 3)


def packed(query, key, value, *, num_heads, num_kv_heads, is_causal=False):
    query = query.unflatten(2, (num_heads, -1)).permute(0, 2, 1, 3)
    key, value = (x.unflatten(2, (num_kv_heads, -1)).permute(0, 2, 1, 3) for x in (key, value))
    out, _ = plain(query, key, value, visible=causal(query, key) if is_causal else None)
    return out.permute(0, 2, 1, 3).flatten(2)


def default_scale(case):
    return "the kernel has its own scale" if case.scale is not None else None


class TestHeadsAfterLength:
    def test_a_correct_kernel_passes(self):
        adapted = from_heads_after_length(after_length)
        laws = (*LAWS, "ATT-30")
        assert is_right(outcomes(adapted, "causal", "lse", laws=laws, supports=default_scale))

    def test_a_kernel_that_has_heads_before_length_fails(self):
        def before_length(query, key, value, *, is_causal=False):
            visible = causal(query, key) if is_causal else None
            return plain(query, key, value, visible=visible)[0]

        adapted = from_heads_after_length(before_length)
        found = outcomes(adapted, "causal", laws=LAWS, supports=default_scale)
        assert found <= {Outcome.FAILED, Outcome.ERRORED}

    def test_the_log_sum_exp_keeps_its_axes(self):
        query, key = torch.randn(2, 3, 5, 7), torch.randn(2, 3, 4, 7)
        out, lse = from_heads_after_length(after_length)(query, key, key, return_lse=True)
        assert out.shape == (2, 3, 5, 7)
        assert lse.shape == (2, 3, 5)

    def test_nothing_is_copied(self):
        seen = []

        def kernel(query, key, value):
            seen.extend(x.data_ptr() for x in (query, key, value))
            return query

        operands = torch.randn(3, 2, 3, 5, 7).unbind()
        from_heads_after_length(kernel)(*operands)
        assert seen == [x.data_ptr() for x in operands]


class TestPackedHeads:
    def test_a_correct_kernel_passes(self):
        adapted = from_packed_heads(packed)
        assert parameters(adapted) == {"is_causal", "enable_gqa"}
        laws = (*LAWS, "a-head-reads-its-own-group")
        assert is_right(outcomes(adapted, "causal", "gqa", laws=laws, supports=default_scale))

    def test_a_kernel_that_packs_channel_by_channel_fails(self):
        def channels_first(query, key, value, *, num_heads, is_causal=False):
            query, key, value = (
                x.unflatten(2, (-1, num_heads)).permute(0, 3, 1, 2) for x in (query, key, value)
            )
            out, _ = plain(query, key, value, visible=causal(query, key) if is_causal else None)
            return out.permute(0, 2, 3, 1).flatten(2)

        adapted = from_packed_heads(channels_first)
        found = outcomes(adapted, "causal", laws=LAWS, supports=default_scale)
        assert is_wrong(found)

    def test_without_a_number_of_key_value_heads_there_is_no_grouping(self):
        def ungrouped(query, key, value, num_heads):
            raise AssertionError

        adapted = from_packed_heads(ungrouped)
        assert parameters(adapted) == set()
        with pytest.raises(ValueError, match="4 query heads, 2 key/value heads: set enable_gqa"):
            adapted(torch.ones(1, 4, 1, 1), *(torch.ones(1, 2, 1, 1),) * 2)

    def test_a_kernel_without_a_number_of_heads_is_refused(self):
        with pytest.raises(TypeError, match="no parameter num_heads"):
            from_packed_heads(after_length)


class TestGroupedShapes:
    @staticmethod
    def kernel(query, key, value, scale=None):
        return plain(query, key, value, scale=scale)[0]

    def test_grouped_heads_need_the_flag(self):
        adapted = from_grouped_shapes(self.kernel)
        query, key = torch.ones(1, 4, 1, 1), torch.ones(1, 2, 1, 1)
        with pytest.raises(ValueError, match="set enable_gqa"):
            adapted(query, key, key)
        assert adapted(query, key, key, enable_gqa=True).shape == (1, 4, 1, 1)

    def test_a_correct_kernel_passes_and_an_interleaved_one_fails(self):
        def interleaved(query, key, value):
            group = query.shape[1] // key.shape[1]
            key, value = (x.repeat(1, group, 1, 1) for x in (key, value))
            return plain(query, key, value)[0]

        right, wrong = (
            outcomes(
                from_grouped_shapes(kernel), "gqa", laws=LAWS_OF_GROUPS, supports=default_scale
            )
            for kernel in (self.kernel, interleaved)
        )
        assert is_right(right)
        assert is_wrong(wrong)
