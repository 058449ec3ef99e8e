"""Laws of the activation, read through an MLP whose input is a constant."""

import torch
from hypothesis import strategies as st
from jaxtyping import Float64

from attnspec.conformance.law import Judged, law
from attnspec.conformance.model_activation import ACTIVATIONS as KNOWN
from attnspec.conformance.model_case import ACTIVATIONS, ModelCase, model_cases, normal
from attnspec.conformance.model_judge import hold, hold_to_oracle
from attnspec.conformance.model_probe import PINNED, Probe, contrast, normalized, probe
from attnspec.spec import ModelImplementation

_FARTHEST = (-2.699, 2.699)
_SWITCHES = tuple(case.but(activation_function=name) for name in ACTIVATIONS for case in PINNED[:2])


def _cases(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=1, n_inner=None, activation_function="gelu_new", tied=True)


def _switched(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=1, n_inner=None, tied=True)


def _window(
    case: ModelCase,
    arguments: Float64[torch.Tensor, " inner"],
    projection: Float64[torch.Tensor, "inner channels"],
    offset: Float64[torch.Tensor, " channels"],
) -> Probe:
    """A probe whose stream is f(arguments) @ projection + offset, beside a known contrast."""
    inner, channels = projection.shape
    return probe(
        contrast(channels),
        case.but(batch=1, length=1),
        activation_function=case.activation_function,
        n_inner=inner,
    ).but(
        mlp__c_fc__bias=arguments,
        mlp__c_proj__weight=torch.cat([projection, torch.zeros(inner, 2)], 1).double(),
        mlp__c_proj__bias=torch.cat([offset, torch.zeros(2)]),
    )


def _arguments(case: ModelCase, count: int = 6) -> Float64[torch.Tensor, " count"]:
    """Numbers between -5 and 5, exact in float32."""
    return ((2 * normal(case.seed, "arguments", count)).clamp(-5, 5) * 256).round() / 256


@law("ACT-1", judges=Judged.MODEL, pinned=PINNED[:4], explore=_cases)
def law_activation_is_the_tanh_gelu(subject: ModelImplementation, case: ModelCase) -> None:
    """ACT-1: the MLP bends each element by x/2·(1 + tanh(√(2/π)(x + 0.044715x³)))."""
    a = _arguments(case)
    shown = _window(case, a, torch.eye(len(a)).double(), torch.zeros(len(a)).double())
    value = KNOWN["gelu_new"].value(a)
    stream = torch.cat([value, torch.tensor([1.0, -1.0])]).double()
    hold(
        shown.read(subject),
        normalized(stream, case.layer_norm_epsilon)[None, None],
        shown.gate,
        what="final LayerNorm of the activations",
        message="the activation is not GPT-2's tanh form of GELU",
    )


@law("ACT-2", judges=Judged.MODEL, pinned=PINNED[:4], explore=_cases)
def law_gelu_differs_from_its_mirror_by_the_argument(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """ACT-2: gelu(x) − gelu(−x) = x."""
    a = _arguments(case)
    identity = torch.eye(len(a)).double()
    shown = _window(case, torch.cat([a, -a]), torch.cat([identity, -identity]), -a)
    _only_the_contrast(subject, case, shown, "gelu(x) - gelu(-x) is not x")


@law("ACT-3", judges=Judged.MODEL, pinned=PINNED[:4])
def law_gelu_tends_to_zero_and_to_its_argument(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """ACT-3: far below zero gelu(x) is 0, far above it is x."""
    a = torch.tensor([10.0, 16.0, 40.0, 100.0], dtype=torch.float64)
    identity, none = torch.eye(len(a)).double(), torch.zeros(len(a)).double()
    above = _window(case, a, identity, -a)
    _only_the_contrast(subject, case, above, "gelu(x) is not x far above zero")
    below = _window(case, -a, identity, none)
    _only_the_contrast(subject, case, below, "gelu(x) is not 0 far below zero")


def _only_the_contrast(
    subject: ModelImplementation, case: ModelCase, shown: Probe, message: str
) -> None:
    hold(
        shown.read(subject),
        normalized(shown.stream, case.layer_norm_epsilon),
        shown.gate,
        what="final LayerNorm of what should cancel",
        message=message,
    )


@law("ACT-4", judges=Judged.MODEL, pinned=PINNED[:4])
def law_gelu_is_not_the_erf_form(subject: ModelImplementation, case: ModelCase) -> None:
    """ACT-4: where the two forms differ most, the result is the tanh form's distance off xΦ(x)."""
    a = torch.tensor(_FARTHEST, dtype=torch.float64).to(case.dtype).double()
    exact, ours = KNOWN["gelu"].value(a), KNOWN["gelu_new"].value(a)
    shown = _window(case, a, torch.eye(2).double(), torch.zeros(2).double())
    ends = torch.tensor([1.0, -1.0], dtype=torch.float64)
    near, far = (
        normalized(torch.cat([each, ends]), case.layer_norm_epsilon) for each in (ours, exact)
    )
    hold(
        shown.read(subject).double()[0, 0] - far,
        near - far,
        shown.gate[0, 0],
        what="distance from the erf form",
        message="the activation is nearer to the erf form of GELU than GPT-2's is",
    )


@law("ACT-5", judges=Judged.MODEL, pinned=_SWITCHES, explore=_switched)
def law_the_configured_activation_is_applied(subject: ModelImplementation, case: ModelCase) -> None:
    """ACT-5: the MLP bends by the function that `activation_function` names."""
    a = _arguments(case)
    shown = _window(case, a, torch.eye(len(a)).double(), torch.zeros(len(a)).double())
    hold_to_oracle(
        subject,
        shown.config,
        shown.weights,
        shown.input_ids,
        f"the activation is not {case.activation_function}",
    )
