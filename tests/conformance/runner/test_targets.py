"""Targets: what a name stands for, and the one clear error for what stands for nothing."""

import re
from dataclasses import replace

import pytest
import torch

from attnspec.conformance.api import check_attention
from attnspec.conformance.laws.select import select_laws
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.declare import TargetError, declare
from attnspec.conformance.runner.plan import plan
from attnspec.conformance.runner.settings import Settings
from attnspec.conformance.runner.targets import every_name, resolve
from attnspec.conformance.runner.task import TypedClaims
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.spec import (
    Case,
    EmptyRow,
    Extra,
    Feature,
    Implementation,
    Mask,
    MaskKind,
    RoundingLevel,
)

SIZES = "heads=6,kv_heads=2,keys=40-200,d_head=16"


def test_the_reference_stands_for_every_kind_of_subject():
    assert {each.kind for each in resolve("reference")} == set(SubjectKind)


def test_every_registered_name_resolves():
    for name in every_name():
        assert resolve(name), name


def test_a_callable_in_a_file_claims_what_its_parameters_say(tmp_path):
    path = tmp_path / "kernels_of_mine.py"
    path.write_text(
        "import torch\n"
        "def attention(query, key, value, is_causal=False, scale=None, **rest):\n"
        "    return torch.nn.functional.scaled_dot_product_attention(\n"
        "        query, key, value, is_causal=is_causal, scale=scale)\n"
    )
    (judged,) = resolve(f"{path}:attention")
    assert judged.subject.implementation.features == {Feature.CAUSAL}
    assert judged.subject.implementation.dtypes[0] == torch.float64
    assert judged.subject.import_code == (
        "import kernels_of_mine; attention = kernels_of_mine.attention"
    )


def test_what_is_said_overrides_what_the_parameters_suggest():
    words = ["rounding=eager", "empty_row=nan"]
    claims = Claims.read("causal,gqa", "float16", words, "compile, opcheck")
    (judged,) = resolve("torch.nn.functional:scaled_dot_product_attention", claims=claims)
    implementation = judged.subject.implementation
    assert implementation.features == {Feature.CAUSAL, Feature.GQA}
    assert implementation.dtypes == (torch.float16,)
    assert implementation.profile.rounding.level is RoundingLevel.EAGER
    assert implementation.profile.empty_row is EmptyRow.NAN
    assert implementation.extras == {Extra.COMPILE, Extra.OPCHECK}


def test_patterns_of_laws_may_be_separated_by_commas():
    settings = Settings.read({"laws": ["ATT-1, MSK", "TEN-2"]})
    assert settings.laws == ("ATT-1", "MSK", "TEN-2")


def test_masks_of_one_kind_can_be_claimed():
    plain = Implementation(name="it", attention=print)
    only_bool = Claims.read("causal,bool_mask").override(plain)
    assert only_bool.features == {Feature.CAUSAL, Feature.MASK}
    case = Case(mask=Mask(kind=MaskKind.BOOL), is_causal=True)
    of_float = case.but(mask=Mask(kind=MaskKind.FLOAT))
    assert only_bool.refuses(case) is None
    assert only_bool.refuses(of_float) == "a float mask is not claimed"
    for words in ("mask", "mask,bool_mask", "bool_mask,float_mask"):
        both = Claims.read(words).override(plain)
        assert both.features == {Feature.MASK}
        assert (both.supports(of_float), both.supports(case)) == (None, None)
    narrow = replace(plain, supports=lambda case: "too wide" if case.d_head > 8 else None)
    assert Claims.read("float_mask").override(narrow).supports(of_float.but(d_head=9)) == "too wide"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"extras": "jit"}, "no extra 'jit'; there are compile, vmap, opcheck"),
        ({"features": "causal,gravity"}, "no feature 'gravity'; there are mask, causal"),
        ({"dtypes": "float8"}, "no dtype 'float8'; there are float64"),
        ({"profile": ["empty_row"]}, "key=value"),
        ({"profile": ["mood=good"]}, "no question of a profile 'mood'"),
        ({"profile": ["empty_row=good"]}, "no empty_row 'good'; there are zero, mean, nan"),
        ({"profile": ["deterministic=maybe"]}, "there are yes, no"),
        ({"sizes": ["heads=3"]}, "the sizes 'heads=3' lack d_head, queries or keys"),
        ({"operator": "packed", "sizes": [SIZES]}, "packed: sizes are those of attention"),
    ],
)
def test_a_claim_that_is_none_is_named(said, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        Claims.read(**said)


def test_sizes_are_those_of_attention():
    claims = Claims.read(sizes=[SIZES])
    for target in ("sdpa", "torch.nn.functional:scaled_dot_product_attention"):
        (judged,) = resolve(target, claims=claims)
        assert list(map(str, judged.subject.sizes)) == [f"batch=1,{SIZES},d_value=16"]
    with pytest.raises(TargetError, match="layer_norm: sizes are those of attention"):
        resolve("torch_layer_norm", claims=claims)
    with pytest.raises(ValueError, match="which none is of huggingface_gpt2"):
        plan(["huggingface_gpt2"], TypedClaims(sizes=(SIZES,)), "cpu", limit=60, memory=None)


def test_a_function_without_a_scale_is_asked_for_none():
    def attention(query, key, value):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    declared = declare("attention", attention)
    assert declared.refuses(Case()) is None
    assert declared.refuses(Case(scale=2.0)) == "it has no parameter scale"


def test_torch_itself_is_a_target():
    (judged,) = resolve("torch.nn.functional:scaled_dot_product_attention")
    claimed = judged.subject.implementation.features
    assert claimed == {Feature.MASK, Feature.CAUSAL, Feature.GQA}


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("no_such_backend", "no implementation of this name"),
        ("no_such_module:attention", "No module named 'no_such_module'"),
        ("torch:no_such_attribute", "has no attribute 'no_such_attribute'"),
        ("missing/file.py:attention", "there is no file"),
        ("math:pi", "neither a callable nor an Implementation"),
    ],
)
def test_a_target_that_is_not_there_is_named(target, told):
    with pytest.raises(TargetError) as error:
        resolve(target)
    assert target in str(error.value)
    assert told in str(error.value)


def test_a_module_that_fails_on_import_is_named(tmp_path):
    path = tmp_path / "fails_on_import.py"
    path.write_text("raise RuntimeError('needs a licence')\n")
    with pytest.raises(TargetError, match="needs a licence"):
        resolve(f"{path}:attention")


def test_a_callable_that_accepts_nothing_is_refused():
    def picky(query, key, value):
        raise TypeError("float8 only")

    with pytest.raises(TargetError, match="float8 only"):
        declare("picky", picky)


def test_no_law_needs_a_function_to_take_a_scale():
    def attention(query, key, value):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    laws = ["default-scale", "a-power-of-four-moves-from-scale-to-queries", "TEN-5"]
    records = check_attention(attention, dtypes=[torch.float32], laws=laws, effort="smoke")
    outcomes = {each.law: each.outcome for each in records}
    assert outcomes.pop("a-power-of-four-moves-from-scale-to-queries") is Outcome.NOT_CLAIMED
    assert set(outcomes.values()) == {Outcome.PASSED}


@pytest.mark.parametrize(
    ("target", "device", "told"),
    [
        ("eagr", "cpu", "did you mean 'eager'?"),
        ("kernels.py", "cpu", "Give kernels.py:attribute"),
        ("torch.nn.functional:scaled_dot_product_atention", "cpu", "did you mean 'scaled_dot_prod"),
        ("torch.nn.functional:scaled_dot_product_attention", "gpu", "no device 'gpu'; give cpu"),
    ],
)
def test_a_slip_of_the_pen_is_answered_with_what_was_meant(target, device, told):
    with pytest.raises(TargetError, match=re.escape(told)):
        plan([target], TypedClaims(), device, limit=60.0, memory=None)
    with pytest.raises(ValueError, match=re.escape("'MKS' (did you mean 'MSK'?)")):
        select_laws(["MKS"])
