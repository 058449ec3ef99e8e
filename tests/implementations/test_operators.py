"""Operators of torch and transformers conform under the profiles that they declare."""

from dataclasses import replace

import pytest
import torch
from torch.overrides import TorchFunctionMode

from attnspec import implementations
from attnspec.conformance import laws
from attnspec.conformance.operators.subjects import subject_of_operator
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.implementations import transformers_rotary
from attnspec.spec.profiles import Float64Precision
from attnspec.spec.rotary import AnglePrecision

pytest.importorskip("transformers")
LAWS = laws.load()
TRIALS = [
    (name, law.name)
    for name in implementations.operator_names()
    for law in LAWS.values()
    if law.judges == implementations.load_operator(name).operator
    # those have tests of their own, without transformers
    and law.judges not in ("packed", "paged")
]


@pytest.mark.parametrize(("name", "law"), TRIALS)
def test_a_law_holds(name, law):
    subject = subject_of_operator(implementations.load_operator(name))
    record = check(LAWS[law], subject, None)
    is_unclaimed = bool(LAWS[law].needs - subject.implementation.features)
    clamps = "GLU-4" in LAWS[law].clauses
    expected = Outcome.NOT_CLAIMED if is_unclaimed or clamps else Outcome.PASSED
    assert record.outcome is expected, record.message


class Float64ForFloat32(TorchFunctionMode):
    """Replace float32 by float64 in every call that names it."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            return args[0].double()
        args = [torch.float64 if each is torch.float32 else each for each in args]
        kwargs = {
            name: torch.float64 if each is torch.float32 else each
            for name, each in (kwargs or {}).items()
        }
        return func(*args, **kwargs)


@pytest.fixture
def float64_for_float32():
    """Use float64 as the default type too, and make the table of GPT-J anew."""
    transformers_rotary._table.cache_clear()
    torch.set_default_dtype(torch.float64)
    with Float64ForFloat32():
        yield
    torch.set_default_dtype(torch.float32)
    transformers_rotary._table.cache_clear()


ROTARY = ("llama_rotary", "gpt_neox_rotary", "gptj_rotary")


def in_float64(name):
    """The subject of a rotary embedding that claims the accuracy of float64."""
    shipped = implementations.load_operator(name)
    exact = replace(shipped.profile, angles=AnglePrecision.WIDEST)
    return subject_of_operator(replace(shipped, profile=exact, dtypes=(torch.float64,)))


@pytest.mark.parametrize("law", [law for law in LAWS if LAWS[law].judges == "rotary"])
@pytest.mark.parametrize("name", ROTARY)
def test_rotary_without_casts_conforms_in_float64(name, law, float64_for_float32):
    """The casts of angles to float32 are all that separates them from the float64 bound."""
    subject = in_float64(name)
    record = check(LAWS[law], subject, None)
    is_unclaimed = bool(LAWS[law].needs - subject.implementation.features)
    has_no_case = "ROT-15" in LAWS[law].clauses  # of 16 bits
    expected = Outcome.NOT_CLAIMED if is_unclaimed or has_no_case else Outcome.PASSED
    assert record.outcome is expected, record.message


@pytest.mark.parametrize("name", ROTARY)
def test_rotary_as_shipped_has_angles_of_float32(name):
    record = check(LAWS["rotary-equals-the-definition"], in_float64(name), None)
    assert record.outcome is Outcome.FAILED
    assert record.cause == "angles have the accuracy of float32"


def test_a_module_of_llama_keeps_the_frequencies_of_its_longest_call():
    """So the adapter makes a module for each call."""
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    config = LlamaConfig(
        hidden_size=8,
        num_attention_heads=1,
        max_position_embeddings=16,
        rope_parameters=parameters,
    )
    x, short = torch.ones(1, 1, 20, 8), torch.arange(20)[None]
    fresh, _ = LlamaRotaryEmbedding(config)(x, short)
    used = LlamaRotaryEmbedding(config)
    used(x, short + 100)
    assert not torch.allclose(used(x, short)[0], fresh)
    used(x, short[:, :8])
    assert torch.allclose(used(x, short)[0], fresh)


class KeepFloat64(TorchFunctionMode):
    """Returns a tensor of float64 unchanged when it is to be converted to float32."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        is_cast = func is torch.Tensor.float or (
            func is torch.Tensor.to and args[1:] == (torch.float32,)
        )
        if is_cast and args[0].dtype == torch.float64:
            return args[0]
        return func(*args, **(kwargs or {}))


SCORES = "router-scores-are-the-declared-function"


def test_mixtral_without_its_cast_conforms_in_float64():
    """The cast to float32 is all that separates its router from the float64 bound."""
    shipped = implementations.load_operator("mixtral_router")
    exact = replace(shipped.profile, scores_precision=Float64Precision.FLOAT64)
    subject = subject_of_operator(replace(shipped, profile=exact, dtypes=(torch.float64,)))
    assert check(LAWS[SCORES], subject, None).outcome is Outcome.FAILED
    with KeepFloat64():
        assert check(LAWS[SCORES], subject, None).outcome is Outcome.PASSED


@pytest.mark.parametrize("name", ["llama_rms_norm", "gemma_rms_norm"])
def test_a_norm_without_its_cast_conforms_in_float64(name):
    shipped = implementations.load_operator(name)
    exact = replace(shipped.profile, float64_precision=Float64Precision.FLOAT64)
    subject = subject_of_operator(replace(shipped, profile=exact, dtypes=(torch.float64,)))
    definition = LAWS["rms-norm-equals-the-definition"]
    assert check(definition, subject, None).outcome is Outcome.FAILED
    with KeepFloat64():
        assert check(definition, subject, None).outcome is Outcome.PASSED
