"""xFormers' function: a kernel of its signature, and biases of its kinds."""

from dataclasses import dataclass

import pytest
import torch
from plain_kernel import LOWER_RIGHT, in_place, is_right, is_wrong, outcomes, parameters, plain

from attnspec.implementations.adapters import from_memory_efficient_attention

LAWS = (
    "output-equals-the-definition",
    "the-diagonal-lies-where-the-profile-says",
    "a-window-shows-exactly-its-keys",
    "a-head-reads-its-own-group",
    "a-float-mask-is-added-to-the-scaled-scores",
)


@dataclass(frozen=True)
class LowerTriangularFromBottomRightMask:
    def visible(self, queries, keys):
        return in_place(queries, keys, keys - queries) <= 0


@dataclass(frozen=True)
class LowerTriangularMask:
    def visible(self, queries, keys):
        return in_place(queries, keys, 0) <= 0


@dataclass(frozen=True)
class LocalAttentionFromBottomRightMask:
    window_left: int
    window_right: int

    def __post_init__(self):
        assert self.window_left >= 0
        assert self.window_right >= 0

    def visible(self, queries, keys):
        place = in_place(queries, keys, keys - queries)
        return (place >= -self.window_left) & (place <= self.window_right)


def memory_efficient_attention(
    query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None
):
    assert not p
    # with five axes each key/value head is repeated for its group
    of_heads = [x.flatten(2, 3) if x.dim() == 5 else x for x in (query, key, value)]
    moved = [x.permute(0, 2, 1, 3) for x in of_heads]
    assert len({x.shape[1] for x in moved}) == 1
    given = {}
    if isinstance(attn_bias, torch.Tensor):
        assert attn_bias.dim() == query.dim()
        given["bias"] = attn_bias.flatten(1, 2) if query.dim() == 5 else attn_bias
    elif attn_bias is not None:
        given["visible"] = attn_bias.visible(moved[0].shape[2], moved[1].shape[2])
    out = plain(*moved, scale=scale, **given)[0].permute(0, 2, 1, 3)
    return out.reshape(*query.shape[:-1], value.shape[-1])


def no_bool_mask(case):
    if case.mask is not None and (case.mask.kind.value == "bool" or case.is_causal or case.window):
        return "the function takes a float mask, and nothing beside it"
    return None if case.keys else "the kernels of these tests take no empty tensor"


def adapted(causal=LowerTriangularFromBottomRightMask, function=memory_efficient_attention):
    return from_memory_efficient_attention(
        function, causal=causal, window=LocalAttentionFromBottomRightMask
    )


def test_a_correct_kernel_passes():
    found = outcomes(
        adapted(), *("mask", "causal", "gqa", "window"),
        laws=LAWS, profile=LOWER_RIGHT, supports=no_bool_mask,
    )  # fmt: skip
    assert is_right(found)


def test_the_bias_says_where_the_diagonal_lies():
    found = outcomes(adapted(LowerTriangularMask), "causal", laws=LAWS, profile=LOWER_RIGHT)
    assert is_wrong(found)


def test_a_kernel_with_exchanged_axes_of_groups_fails():
    def exchanged(query, key, value, attn_bias=None, p=0.0, scale=None):
        if query.dim() == 5:
            query = query.transpose(2, 3).reshape(query.shape)
        return memory_efficient_attention(query, key, value, attn_bias, p, scale)

    assert is_wrong(outcomes(adapted(function=exchanged), "gqa", laws=LAWS, profile=LOWER_RIGHT))


def test_without_biases_there_is_neither_flag_nor_window():
    plainly = from_memory_efficient_attention(memory_efficient_attention)
    assert parameters(plainly) == {"attn_mask", "dropout_p", "scale", "enable_gqa"}
    assert parameters(adapted()) == parameters(plainly) | {"is_causal", "window"}


def test_what_one_bias_cannot_say_is_refused():
    x, mask = torch.ones(1, 1, 2, 1), torch.zeros(2, 2)
    with pytest.raises(ValueError, match="not both"):
        adapted()(x, x, x, mask, is_causal=True)
    with pytest.raises(ValueError, match="not both"):
        adapted()(x, x, x, mask, window=(1, 1))
    with pytest.raises(TypeError, match=r"no mask of torch\.bool"):
        adapted()(x, x, x, mask.bool())
    with pytest.raises(TypeError, match="no parameter attn_bias, p"):
        from_memory_efficient_attention(lambda query, key, value, scale: query)
