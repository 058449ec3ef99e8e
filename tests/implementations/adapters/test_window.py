"""Windows as a pair of numbers, and as one number of a causal kernel."""

import math

import pytest
import torch
from plain_kernel import LOWER_RIGHT, in_place, is_right, is_wrong, outcomes, parameters, plain

from attnspec.implementations.adapters import from_sliding_window, from_window_size

LAWS = ("MSK-15", "MSK-16")


def paired(query, key, value, *, is_causal=False, scale=None, window_size=(-1, -1)):
    queries, keys = query.shape[2], key.shape[2]
    left, right = (math.inf if side < 0 else side for side in window_size)
    place = in_place(queries, keys, keys - queries)
    visible = (place >= -left) & (place <= (min(right, 0) if is_causal else right))
    return plain(query, key, value, visible=visible, scale=scale)[0]


def one_number(query, key, value, *, is_causal=False, scale=None, sliding_window=None):
    queries, keys = query.shape[2], key.shape[2]
    place = in_place(queries, keys, keys - queries)
    visible = place > -math.inf if sliding_window is None else place > -sliding_window
    if is_causal:
        visible = visible & (place <= 0)
    return plain(query, key, value, visible=visible, scale=scale)[0]


def looks_back(case):
    if case.window is None or case.is_causal or case.window[1] == 0:
        return None
    return "the kernel's window has no later keys"


class TestWindowSize:
    def test_a_correct_kernel_passes(self):
        adapted = from_window_size(paired)
        assert parameters(adapted) == {"is_causal", "scale", "window"}
        found = outcomes(adapted, "window", "causal", laws=LAWS, profile=LOWER_RIGHT)
        assert is_right(found)

    @pytest.mark.rotating(parts=3)
    def test_sides_in_another_order_fail(self):
        def exchanged(*operands, is_causal=False, scale=None, window_size=(-1, -1)):
            return paired(
                *operands, is_causal=is_causal, scale=scale, window_size=window_size[::-1]
            )

        adapted = from_window_size(exchanged)
        found = outcomes(adapted, "window", "causal", laws=LAWS, profile=LOWER_RIGHT)
        assert is_wrong(found)

    def test_a_negative_side_is_refused(self):
        x = torch.ones(1, 1, 2, 1)
        with pytest.raises(ValueError, match=r"must have sides that are not negative, got \(-1, 0"):
            from_window_size(paired)(x, x, x, window=(-1, 0))

    def test_a_side_without_a_bound_has_the_kernels_word(self):
        def sides(query, key, value, *, local=None):
            return local

        adapted = from_window_size(sides, name="local", unbounded=None)
        assert adapted(None, None, None, window=(3, None)) == (3, None)
        assert adapted(None, None, None) is None
        with pytest.raises(TypeError, match="no parameter window_size; it has key, local"):
            from_window_size(sides)


class TestSlidingWindow:
    def test_a_correct_kernel_passes(self):
        found = outcomes(
            from_sliding_window(one_number),
            *("window", "causal"),
            laws=LAWS,
            profile=LOWER_RIGHT,
            supports=looks_back,
        )
        assert is_right(found)

    @pytest.mark.rotating(parts=6)
    def test_a_kernel_that_does_not_count_a_querys_own_key_fails(self):
        def earlier(*operands, is_causal=False, scale=None, sliding_window=None):
            if sliding_window is not None:
                sliding_window += 1
            return one_number(
                *operands, is_causal=is_causal, scale=scale, sliding_window=sliding_window
            )

        found = outcomes(
            from_sliding_window(earlier),
            *("window", "causal"),
            laws=LAWS,
            profile=LOWER_RIGHT,
            supports=looks_back,
        )
        assert is_wrong(found)

    def test_later_keys_are_refused(self):
        x = torch.ones(1, 1, 2, 1)
        adapted = from_sliding_window(one_number)
        with pytest.raises(ValueError, match="give is_causal, or a right side of 0, not 1"):
            adapted(x, x, x, window=(1, 1))
        assert adapted(x, x, x, window=(1, 1), is_causal=True).shape == x.shape
        assert torch.equal(adapted(x, x, x, window=(None, None)), adapted(x, x, x))
