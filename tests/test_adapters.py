"""The adapters of the docs: a correct kernel of another convention passes the laws with them."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.api import check_attention
from attnspec.conformance.report.record import CONFORMING, Outcome
from attnspec.implementations.adapters import (
    from_heads_after_length,
    from_log_sum_exp,
    from_other_names,
)
from attnspec.spec import Feature, Implementation, MaskedNonfinite, Profile, Rounding, RoundingLevel

laws.load()

PATH = Path(__file__).parents[1] / "docs" / "examples" / "adapters.py"
PROFILE = Profile(
    masked_values=MaskedNonfinite.PROPAGATES, rounding=Rounding(level=RoundingLevel.EAGER)
)


def adapters():
    spec = importlib.util.spec_from_file_location("adapters_of_the_docs", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ADAPTERS = adapters()


def declared(attention, *features):
    return Implementation(
        name="adapted",
        attention=attention,
        features=frozenset(features),
        dtypes=(torch.float32,),
        profile=PROFILE,
        supports=equal_channels,
    )


def equal_channels(case):
    if not (case.keys and case.queries and case.d_head):
        return "no empty tensor"
    if case.scale == 0:
        return "a scale of 0 is the default"
    return None if case.d_value == case.d_head else "d_value must be d_head"


def judged(attention, *features):
    names = ("output-equals-the-definition", "the-causal-flag-equals-its-triangle", "ATT-30")
    return check_attention(declared(attention, *features), effort="smoke", laws=names)


def test_three_adapters_on_one_kernel():
    records = judged(ADAPTERS.attention, Feature.CAUSAL, Feature.LSE)
    assert {record.outcome for record in records} <= CONFORMING, [r.message for r in records]
    assert sum(record.outcome is Outcome.PASSED for record in records) >= 3


def test_the_wrong_base_fails():
    renamed = from_other_names(ADAPTERS.my_kernel, is_causal="causal", scale="sm_scale")
    wrong = from_heads_after_length(from_log_sum_exp(renamed))
    outcomes = {record.outcome for record in judged(wrong, Feature.CAUSAL, Feature.LSE)}
    assert Outcome.FAILED in outcomes


def test_a_function_of_jax_is_adapted():
    jax = pytest.importorskip("jax", reason="jax is not installed")
    adapted = declared(ADAPTERS.from_jax(jax.nn.dot_product_attention), Feature.CAUSAL, Feature.GQA)
    adapted = replace(adapted, supports=equal_channels)
    records = check_attention(adapted, effort="smoke", laws=["output-equals-the-definition"])
    assert {record.outcome for record in records} <= CONFORMING, [r.message for r in records]
