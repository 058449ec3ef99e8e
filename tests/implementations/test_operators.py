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
from attnspec.implementations import compiled_operators, transformers_rotary
from attnspec.spec.profiles import Float64Precision
from attnspec.spec.rotary import AnglePrecision

pytest.importorskip("transformers")
LAWS = laws.load()
COMPILED = [each for each in implementations.operator_names() if each.startswith("compiled_")]
TRITON = ("triton_rms_norm", "triton_rotary")
"""Judged by `test_triton_rows`, in a process that runs Triton's interpreter."""
LIGER = ("liger_rms_norm", "liger_layer_norm", "liger_rotary", "liger_mlp")
"""Operators for a CUDA device; `test_liger` tries their adapters on stand-ins."""
TRIALS = [
    (name, law.name)
    for name in implementations.operator_names()
    for law in LAWS.values()
    if name not in (*COMPILED, *TRITON, *LIGER)
    if law.judges == implementations.load_operator(name).operator
    # those have tests of their own, without transformers
    and law.judges not in ("packed", "paged")
]


@pytest.mark.rotating(parts=12)
@pytest.mark.parametrize(("name", "law"), TRIALS)
def test_a_law_holds(name, law):
    subject = subject_of_operator(implementations.load_operator(name))
    record = check(LAWS[law], subject, None)
    is_unclaimed = bool(LAWS[law].needs - subject.implementation.features)
    clamps = "GLU-4" in LAWS[law].clauses
    expected = Outcome.NOT_CLAIMED if is_unclaimed or clamps else Outcome.PASSED
    assert record.outcome is expected, record.message


@pytest.mark.rotating(parts=8)
@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_operator_conforms_and_its_compiled_code_runs(name):
    """Its variants are compiled once, which takes longer than all calls."""
    subject = subject_of_operator(implementations.load_operator(name))
    reason = subject.implementation.unavailable()
    if reason:
        pytest.skip(reason)
    core = getattr(compiled_operators, name.removeprefix("compiled_").upper())
    for law in LAWS.values():
        if law.judges == subject.implementation.operator:
            runs = core.runs
            record = check(law, subject, None)
            assert record.outcome in (Outcome.PASSED, Outcome.NOT_CLAIMED), record.message
            assert core.runs > runs or record.outcome is Outcome.NOT_CLAIMED


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
    """Returns a tensor of float64 unchanged when it is to be converted to float32.

    Attributes:
        count: how often this happened.
    """

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        is_cast = func is torch.Tensor.float or (
            func is torch.Tensor.to and (*args[1:], *kwargs.values()) == (torch.float32,)
        )
        if is_cast and args[0].dtype == torch.float64:
            self.count += 1
            return args[0]
        # softmax(x, dtype=torch.float32), as routers call it
        if kwargs.get("dtype") is torch.float32 and isinstance(args[0], torch.Tensor):
            self.count += 1
            kwargs = {**kwargs, "dtype": args[0].dtype}
        return func(*args, **kwargs)


CASTS = {
    "llama_rms_norm": "float64_precision",
    "gemma_rms_norm": "float64_precision",
    "mixtral_router": "scores_precision",
}
"""The operators of transformers that compute float64 in float32, by the answer that says so."""
WITHOUT_CASTS = ("gpt_oss_router", "mixtral_experts", "gpt_oss_experts", "llama_mlp")
"""Those that compute float64 in float64 as they are."""


def exact_subject(name):
    """The subject of an operator that claims float64 alone, with the accuracy of float64."""
    shipped = implementations.load_operator(name)
    exact = shipped.profile
    if name in CASTS:
        assert getattr(exact, CASTS[name]) is Float64Precision.FLOAT32
        exact = replace(exact, **{CASTS[name]: Float64Precision.FLOAT64})
    return subject_of_operator(replace(shipped, profile=exact, dtypes=(torch.float64,)))


EXACT_TRIALS = [
    (name, law.name)
    for name in (*CASTS, *WITHOUT_CASTS)
    for law in LAWS.values()
    if law.judges == implementations.load_operator(name).operator
]


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize(("name", "law"), EXACT_TRIALS)
def test_an_operator_without_its_casts_conforms_in_float64(name, law):
    """The casts to float32 are all that separates them from the float64 bound."""
    subject = exact_subject(name)
    with KeepFloat64() as mode:
        record = check(LAWS[law], subject, None)
    assert record.outcome in (Outcome.PASSED, Outcome.NOT_CLAIMED), record.message
    if record.outcome is Outcome.PASSED:
        assert (mode.count > 0) == (name in CASTS)


DEFINITIONS = {
    "rms_norm": "rms-norm-equals-the-definition",
    "router": "router-scores-are-the-declared-function",
}


@pytest.mark.parametrize("name", CASTS)
def test_an_operator_with_its_casts_misses_the_float64_bound(name):
    """As shipped it has the accuracy of float32, which its profile declares."""
    law = LAWS[DEFINITIONS[implementations.load_operator(name).operator]]
    assert check(law, exact_subject(name), None).outcome is Outcome.FAILED
    as_shipped = subject_of_operator(implementations.load_operator(name))
    assert check(law, as_shipped, None).outcome is Outcome.PASSED
