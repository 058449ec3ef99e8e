"""Transformer Engine's module: a class of its signature, whose instances have fixed options."""

import math

import pytest
import torch
from plain_kernel import LOWER_RIGHT, in_place, is_right, is_wrong, outcomes, parameters, plain

from attnspec.implementations.adapters import from_dot_product_attention

LAWS = (
    "output-equals-the-definition",
    "the-diagonal-lies-where-the-profile-says",
    "a-window-shows-exactly-its-keys",
    "a-head-reads-its-own-group",
)
CAUSAL = {"causal": 0, "causal_bottom_right": 1}
"""The masks with a diagonal, and whether it ends at the lower right."""


class DotProductAttention(torch.nn.Module):
    def __init__(
        self,
        num_attention_heads,
        kv_channels,
        num_gqa_groups=None,
        attention_dropout=0.0,
        qkv_format="sbhd",
        attn_mask_type="causal",
        window_size=None,
        attention_type="self",
        softmax_scale=None,
    ):
        super().__init__()
        assert qkv_format == "bshd"
        assert attn_mask_type in (*CAUSAL, "no_mask")
        self.mask, self.scale = attn_mask_type, softmax_scale
        self.kind, self.channels = attention_type, kv_channels
        self.heads, self.kv_heads = num_attention_heads, num_gqa_groups
        left, right = window_size or (-1, -1)
        if attn_mask_type in CAUSAL:
            assert right in (-1, 0)
            right = 0
        elif (left, right) == (-1, 0):
            right = -1  # the library takes this window for none
        self.left, self.right = (math.inf if side == -1 else side for side in (left, right))

    def forward(self, query_layer, key_layer, value_layer):
        queries, keys = query_layer.shape[1], key_layer.shape[1]
        assert (query_layer.shape[2], key_layer.shape[2]) == (self.heads, self.kv_heads)
        assert (query_layer.shape[3], value_layer.shape[3]) == self.channels
        assert self.kind == "cross" or queries == keys
        place = in_place(queries, keys, (keys - queries) * CAUSAL.get(self.mask, 1))
        visible = (place >= -self.left) & (place <= self.right)
        moved = (x.permute(0, 2, 1, 3) for x in (query_layer, key_layer, value_layer))
        return plain(*moved, visible=visible, scale=self.scale)[0].permute(0, 2, 1, 3).flatten(2)


def both_bounds(case):
    if min(case.batch, case.heads, case.queries, case.keys, case.d_head, case.d_value) == 0:
        return "the kernels of these tests take no empty tensor"
    is_causal = case.is_causal or (case.window is not None and case.window[1] == 0)
    if case.window is not None and not is_causal and None in case.window != (None, None):
        return "the window has both bounds or none"
    return None


def found_for(module):
    return outcomes(
        from_dot_product_attention(module), *("causal", "gqa", "window"),
        laws=LAWS, profile=LOWER_RIGHT, supports=both_bounds,
    )  # fmt: skip


def test_a_correct_module_passes():
    assert parameters(from_dot_product_attention(DotProductAttention)) == {
        *("is_causal", "scale", "enable_gqa", "window")
    }
    assert is_right(found_for(DotProductAttention))


@pytest.mark.rotating(parts=3)
def test_a_module_that_ends_its_diagonal_elsewhere_fails():
    class UpperLeft(DotProductAttention):
        def __init__(
            self, num_attention_heads, kv_channels, num_gqa_groups, qkv_format, attn_mask_type,
            window_size, attention_type, softmax_scale,
        ):  # fmt: skip
            super().__init__(
                num_attention_heads, kv_channels, num_gqa_groups, 0.0, qkv_format,
                attn_mask_type.removesuffix("_bottom_right"), window_size, attention_type,
                softmax_scale,
            )  # fmt: skip

    assert is_wrong(found_for(UpperLeft))


def test_a_module_that_packs_channels_before_heads_fails():
    class Exchanged(DotProductAttention):
        def forward(self, query_layer, key_layer, value_layer):
            out = super().forward(query_layer, key_layer, value_layer)
            return out.unflatten(2, (self.heads, -1)).transpose(2, 3).flatten(2)

    assert is_wrong(found_for(Exchanged))


def test_a_module_is_made_once_for_its_options():
    made = []

    class Counted(DotProductAttention):
        def __init__(
            self, num_attention_heads, kv_channels, num_gqa_groups, qkv_format, attn_mask_type,
            window_size, attention_type, softmax_scale,
        ):  # fmt: skip
            made.append(attn_mask_type)
            super().__init__(
                num_attention_heads, kv_channels, num_gqa_groups, 0.0, qkv_format, attn_mask_type,
                window_size, attention_type, softmax_scale,
            )  # fmt: skip

    attention, x = from_dot_product_attention(Counted), torch.ones(1, 1, 2, 1)
    for is_causal in (False, True, False):
        attention(x, x, x, is_causal=is_causal)
    assert made == ["no_mask", "causal_bottom_right"]


@pytest.mark.parametrize("window", [(1, None), (None, 1)])
def test_a_window_of_one_bound_is_refused(window):
    x = torch.ones(1, 1, 2, 1)
    attention = from_dot_product_attention(DotProductAttention)
    with pytest.raises(ValueError, match="both bounds or none"):
        attention(x, x, x, window=window)
    assert attention(x, x, x, window=(1, 0)).shape == x.shape


def test_a_class_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="no parameter num_attention_heads"):
        from_dot_product_attention(lambda query, key, value: query)
