"""Laws of ACT: the activation, read through an MLP with a constant input."""

import torch
from hypothesis import strategies as st
from jaxtyping import Float64

from attnspec.conformance.laws.law import law
from attnspec.conformance.models.bounds.activation import ACTIVATIONS as KNOWN
from attnspec.conformance.models.case import ACTIVATIONS, ModelCase, model_cases, normal
from attnspec.conformance.models.oracle import check_against_oracle, check_within
from attnspec.conformance.models.readout import PINNED, Readout, contrast, make_readout, normalized
from attnspec.spec import ModelImplementation

_FARTHEST_APART = (-2.699, 2.699)
"""Arguments at which the erf and the tanh form of GELU differ most."""
_SWITCHES = tuple(case.but(activation_function=name) for name in ACTIVATIONS for case in PINNED[:2])


def _cases(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=1, n_inner=None, activation_function="gelu_new", tied=True)


def _switched_cases(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=1, n_inner=None, tied=True)


def _activation_readout(
    case: ModelCase,
    arguments: Float64[torch.Tensor, " inner"],
    projection: Float64[torch.Tensor, "inner channels"],
    offset: Float64[torch.Tensor, " channels"],
) -> Readout:
    """Return a readout with the stream f(arguments) @ projection + offset, and a known contrast.

    The MLP has the width of released models, since many builds refuse others: f of the rest is
    multiplied by zero.
    """
    inner, channels = projection.shape
    readout = make_readout(
        contrast(channels),
        case.but(batch=1, length=1),
        activation_function=case.activation_function,
    )
    rest = readout.config.d_inner - inner
    return readout.but(
        mlp__c_fc__bias=torch.cat([arguments, torch.zeros(rest)]),
        mlp__c_proj__weight=torch.nn.functional.pad(projection, (0, 2, 0, rest)).double(),
        mlp__c_proj__bias=torch.cat([offset, torch.zeros(2)]),
    )


def _arguments(case: ModelCase, count: int = 6) -> Float64[torch.Tensor, " count"]:
    """Draw numbers between -5 and 5 that are exact in float32."""
    return ((2 * normal(case.seed, "arguments", count)).clamp(-5, 5) * 256).round() / 256


@law("ACT-1", pinned=PINNED[:4], explore=_cases)
def law_activation_is_the_tanh_gelu(subject: ModelImplementation, case: ModelCase) -> None:
    """ACT-1: the MLP applies to each element x/2·(1 + tanh(√(2/π)(x + 0.044715x³)))."""
    a = _arguments(case)
    readout = _activation_readout(case, a, torch.eye(len(a)).double(), torch.zeros(len(a)).double())
    value = KNOWN["gelu_new"].value(a)
    stream = torch.cat([value, torch.tensor([1.0, -1.0])]).double()
    check_within(
        readout.read(subject),
        normalized(stream, case.layer_norm_epsilon)[None, None],
        readout.tolerance,
        what="final LayerNorm of the activations",
        message="the activation is not GPT-2's tanh form of GELU",
    )


@law("ACT-2", pinned=PINNED[:4], explore=_cases)
def law_gelu_minus_its_mirror_image_is_the_argument(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """ACT-2: gelu(x) − gelu(−x) = x."""
    a = _arguments(case)
    identity = torch.eye(len(a)).double()
    readout = _activation_readout(case, torch.cat([a, -a]), torch.cat([identity, -identity]), -a)
    _check_only_the_contrast(subject, case, readout, "gelu(x) - gelu(-x) is not x")


@law("ACT-3", pinned=PINNED[:4])
def law_gelu_tends_to_zero_and_to_its_argument(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """ACT-3: far below zero gelu(x) is 0, far above it is x."""
    a = torch.tensor([10.0, 16.0, 40.0, 100.0], dtype=torch.float64)
    identity, none = torch.eye(len(a)).double(), torch.zeros(len(a)).double()
    above = _activation_readout(case, a, identity, -a)
    _check_only_the_contrast(subject, case, above, "gelu(x) is not x far above zero")
    below = _activation_readout(case, -a, identity, none)
    _check_only_the_contrast(subject, case, below, "gelu(x) is not 0 far below zero")


def _check_only_the_contrast(
    subject: ModelImplementation, case: ModelCase, readout: Readout, message: str
) -> None:
    check_within(
        readout.read(subject),
        normalized(readout.stream, case.layer_norm_epsilon),
        readout.tolerance,
        what="final LayerNorm of branches that cancel",
        message=message,
    )


@law("ACT-4", pinned=PINNED[:4])
def law_gelu_is_not_the_erf_form(subject: ModelImplementation, case: ModelCase) -> None:
    """ACT-4: where the two forms differ most, the result is the tanh form's distance off xΦ(x)."""
    a = torch.tensor(_FARTHEST_APART, dtype=torch.float64).to(case.dtype).double()
    erf, tanh = KNOWN["gelu"].value(a), KNOWN["gelu_new"].value(a)
    readout = _activation_readout(case, a, torch.eye(2).double(), torch.zeros(2).double())
    ends = torch.tensor([1.0, -1.0], dtype=torch.float64)
    tanh_form, erf_form = (
        normalized(torch.cat([value, ends]), case.layer_norm_epsilon) for value in (tanh, erf)
    )
    check_within(
        readout.read(subject).double()[0, 0] - erf_form,
        tanh_form - erf_form,
        readout.tolerance[0, 0],
        what="distance from the erf form",
        message="the activation is nearer to the erf form of GELU than GPT-2's is",
    )


@law("ACT-5", pinned=_SWITCHES, explore=_switched_cases)
def law_the_configured_activation_is_applied(subject: ModelImplementation, case: ModelCase) -> None:
    """ACT-5: the MLP applies the function that `activation_function` names."""
    a = _arguments(case)
    readout = _activation_readout(case, a, torch.eye(len(a)).double(), torch.zeros(len(a)).double())
    check_against_oracle(
        subject,
        readout.config,
        readout.weights,
        readout.input_ids,
        f"the activation is not {case.activation_function}",
    )
