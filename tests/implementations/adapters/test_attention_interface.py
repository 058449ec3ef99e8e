"""Attention functions of transformers: what they name, what they ignore, what they misread."""

import pytest
import torch
from plain_kernel import EAGER, LOWER_RIGHT, in_place, is_right, is_wrong, outcomes, plain
from plain_kernel import parameters as taken

from attnspec.conformance.runner.declare import declare
from attnspec.implementations.adapters import from_attention_interface
from attnspec.spec import Feature, MaskKind

LAWS = (
    "output-equals-the-definition",
    "the-diagonal-lies-where-the-profile-says",
    "a-float-mask-is-added-to-the-scaled-scores",
    "true-means-readable",
    "a-head-reads-its-own-group",
)
X = torch.ones(1, 2, 3, 4)


def eager(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Like the models' own: adds the mask, and ignores every other keyword."""
    assert module.num_key_value_groups * key.shape[1] == query.shape[1]
    assert module.training == (dropout > 0)
    assert attention_mask is None or attention_mask.is_floating_point()
    out, _ = plain(query, key, value, bias=attention_mask, scale=scaling)
    return out.transpose(1, 2), None


def flagged(module, query, key, value, attention_mask, scaling=None, is_causal=None, **kwargs):
    """Like `sdpa`: takes a mask or the flag, of which it would ignore the flag."""
    is_causal = module.is_causal if is_causal is None else is_causal
    visible = None
    if attention_mask is not None:
        visible = attention_mask
    elif is_causal:
        visible = in_place(query.shape[2], key.shape[2], 0) <= 0
    out, _ = plain(query, key, value, visible=visible, scale=scaling)
    return out.transpose(1, 2), None


def mask_interface(batch_size, q_length, kv_length, q_offset, mask_function, dtype, **kwargs):
    """Like `eager_mask`: calls a function of four indices, and makes numbers of it."""
    batch = torch.arange(batch_size)[:, None, None, None]
    query = torch.arange(q_length)[:, None] + q_offset
    visible = mask_function(batch, 0, query, torch.arange(kv_length))
    visible = visible.expand(batch_size, 1, q_length, kv_length)
    return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, -torch.inf)


def with_float_masks(case):
    is_bool = case.mask is not None and case.mask.kind is MaskKind.BOOL
    return "no bool masks" if is_bool else some_keys(case)


def some_keys(case):
    sizes = (case.batch, case.heads, case.queries, case.keys, case.d_head, case.d_value)
    return None if min(sizes) else "no empty tensor"


def as_of_a_model(case):
    mask = case.mask
    if case.is_causal and (case.queries > case.keys or mask is not None):
        return "no model"
    if mask is not None and mask.kind is MaskKind.BOOL and "heads" in mask.shape.split()[:2]:
        return "no model"
    return some_keys(case)


class TestWhatIsClaimed:
    def test_an_eager_function_has_no_causal_flag_and_no_bool_mask(self):
        adapted = from_attention_interface(eager)
        assert taken(adapted) == {"attn_mask", "dropout_p", "scale", "enable_gqa"}
        assert Feature.CAUSAL not in declare("mine", adapted).features
        with pytest.raises(TypeError, match="is_causal"):
            adapted(X, X, X, is_causal=True)
        with pytest.raises(TypeError, match=r"the function takes no mask of torch\.bool"):
            adapted(X, X, X, torch.ones(3, 3, dtype=torch.bool))

    def test_a_flag_that_a_mask_would_switch_off_is_refused(self):
        adapted = from_attention_interface(flagged, bool_masks=True, float_masks=False)
        assert taken(adapted) == {"attn_mask", "is_causal", "scale", "enable_gqa"}
        with pytest.raises(ValueError, match="a mask and is_causal together"):
            adapted(X, X, X, torch.ones(3, 3, dtype=torch.bool), is_causal=True)

    def test_options_that_a_function_names_are_passed_on(self):
        seen = {}

        def named(module, query, key, value, attention_mask, *, softcap=None, s_aux=None,
                  sliding_window=None, **kwargs):  # fmt: skip
            seen.update(softcap=softcap, s_aux=s_aux, sliding_window=sliding_window)
            return query.transpose(1, 2), None

        adapted = from_attention_interface(named, float_masks=False, grouped=False)
        assert taken(adapted) == {"softcap", "sinks", "window"}
        adapted(X, X, X, softcap=2.0, sinks=X[0, :, 0, 0], window=(3, 0))
        assert seen["softcap"] == 2.0
        assert seen["s_aux"] is not None
        assert seen["sliding_window"] == 4
        with pytest.raises(ValueError, match="the right side must be 0, not 1"):
            adapted(X, X, X, window=(3, 1))

    def test_a_function_of_another_kind_is_refused(self):
        with pytest.raises(TypeError, match="no parameter module, attention_mask"):
            from_attention_interface(lambda query, key, value: query)


class TestWithoutMasksOfModels:
    def test_a_correct_function_passes(self):
        adapted = from_attention_interface(eager)
        assert is_right(outcomes(adapted, "mask", "gqa", laws=LAWS, supports=with_float_masks))

    def test_a_function_that_returns_heads_first_fails(self):
        def heads_first(module, query, key, value, attention_mask, scaling):
            return plain(query, key, value, bias=attention_mask, scale=scaling)[0], None

        adapted = from_attention_interface(heads_first)
        found = outcomes(adapted, "mask", laws=LAWS, supports=with_float_masks)
        assert not is_right(found)

    def test_the_flag_reaches_the_function(self):
        adapted = from_attention_interface(flagged, float_masks=False, bool_masks=False)
        assert is_right(outcomes(adapted, "causal", "gqa", laws=LAWS, profile=EAGER))


class TestWithMasksOfModels:
    def test_masks_and_flag_are_made_as_in_a_model(self):
        adapted = from_attention_interface(eager, mask_interface=mask_interface)
        assert taken(adapted) >= {"attn_mask", "is_causal"}
        found = outcomes(
            adapted, "mask", "causal", "gqa",
            laws=LAWS, profile=LOWER_RIGHT, supports=as_of_a_model,
        )  # fmt: skip
        assert is_right(found)

    @pytest.mark.rotating(parts=4)
    def test_without_an_offset_the_diagonal_is_elsewhere(self):
        def from_the_first_key(*, q_offset, **given):
            return mask_interface(q_offset=0, **given)

        adapted = from_attention_interface(eager, mask_interface=from_the_first_key)
        found = outcomes(adapted, "causal", laws=LAWS, profile=LOWER_RIGHT, supports=as_of_a_model)
        assert is_wrong(found)

    def test_what_no_model_does_is_refused(self):
        adapted = from_attention_interface(eager, mask_interface=mask_interface)
        with pytest.raises(ValueError, match="common to all heads"):
            adapted(X, X, X, torch.ones(2, 3, 3, dtype=torch.bool))
        with pytest.raises(ValueError, match="a float mask and is_causal together"):
            adapted(X, X, X, torch.zeros(3, 3), is_causal=True)
        with pytest.raises(ValueError, match="no fewer keys than queries, got 2 and 3"):
            adapted(X, X[:, :, :2], X[:, :, :2], is_causal=True)
