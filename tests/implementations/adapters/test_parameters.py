"""What an adapted function takes: the options that its kernel names, and no others."""

import inspect

import pytest
import torch
from plain_kernel import parameters, plain

from attnspec.conformance.runner.declare import declare
from attnspec.implementations.adapters import from_heads_after_length, from_other_names
from attnspec.spec import Feature

ONE = torch.ones(1, 1, 1, 1)


def kernel(query, key, value, causal=False, softmax_scale=None, **ignored):
    return plain(query, key, value, scale=softmax_scale)[0]


def test_only_named_options_are_taken():
    adapted = from_other_names(kernel, scale="softmax_scale")
    assert parameters(adapted) == {"scale"}
    with pytest.raises(TypeError, match="softcap"):
        adapted(ONE, ONE, ONE, softcap=2.0)


def test_a_bare_adapted_function_claims_what_its_kernel_names():
    adapted = from_other_names(kernel, is_causal="causal", scale="softmax_scale")
    assert declare("mine", adapted).features == {Feature.CAUSAL}
    assert declare("mine", from_other_names(kernel)).features == frozenset()


def test_options_in_their_place_may_be_given_by_position():
    def of_torch(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False):
        return (attn_mask, dropout_p, is_causal)

    adapted = from_other_names(of_torch)
    assert adapted(ONE, ONE, ONE, None, 0.5, True) == (None, 0.5, True)
    later = inspect.signature(from_other_names(kernel, scale="softmax_scale")).parameters["scale"]
    assert later.kind is inspect.Parameter.KEYWORD_ONLY


def test_a_name_that_is_not_there_is_named():
    with pytest.raises(TypeError, match="no parameter sm_scale; it has causal, key, query"):
        from_other_names(kernel, scale="sm_scale")
    with pytest.raises(TypeError, match="the contract has no option causal; it has attn_mask"):
        from_other_names(kernel, causal="causal")


def test_a_kernel_without_a_signature_needs_a_function_around_it():
    with pytest.raises(TypeError, match="wrap it in a function that names its parameters"):
        from_heads_after_length(torch.nn.functional.scaled_dot_product_attention)


def test_an_adapted_function_has_the_name_of_its_kernel():
    assert from_heads_after_length(kernel).__name__ == "kernel"
