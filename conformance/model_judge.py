"""Judging a GPT-2: which model is its oracle, how it is called, how far it may be from the oracle.

The reference is judged against Hugging Face's GPT-2, with which it shares no line; every other
model is judged against the reference. Oracles run in float64 on the weights exactly as stored.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int

from attnspec.conformance import tally
from attnspec.conformance.compare import check_close
from attnspec.conformance.model_arithmetic import Arithmetic, Enclosure
from attnspec.conformance.model_bounds import Forward, forward
from attnspec.conformance.sharing import remembered
from attnspec.conformance.subject import Raised
from attnspec.conformance.violation import Violation
from attnspec.spec import GPT2Config, ModelImplementation

Weights = Mapping[str, torch.Tensor]
KEPT = 512
"""How many enclosed forward passes are kept at once."""

LARGEST = 2**15
"""Weights of the largest model whose forward pass is kept: some hundred kilobytes."""

EVIDENCE = 0.1
"""A pass tells something where the bound is below this share of the largest expected value."""
_AXES = {
    0: (),
    1: ("channel",),
    2: ("position", "channel"),
    3: ("batch", "position", "channel"),
}
ILL_CONDITIONED = "ill-conditioned: the bound is too wide for a pass to tell anything"


def model_oracle(subject: ModelImplementation) -> ModelImplementation:
    """The model that says what is expected of `subject`: never one that shares code with it.

    Raises:
        NotClaimed: for the reference, where transformers is not installed.
    """
    from attnspec.implementations import load_model
    from attnspec.reference.model import MODEL

    if subject is not MODEL:
        return MODEL
    oracle = load_model("huggingface_gpt2")
    reason = oracle.unavailable()
    if reason is not None:
        raise tally.NotClaimed(f"the oracle of the reference is not available: {reason}")
    return oracle


def build(subject: ModelImplementation, config: GPT2Config, weights: Weights) -> Any:
    """Build a model that claims this configuration and dtype, from its own copies of the weights.

    Raises:
        NotClaimed: where it does not.
        Raised: where building fails.
    """
    return build_on(
        subject, config, {name: each.detach().clone() for name, each in weights.items()}
    )


def build_on(subject: ModelImplementation, config: GPT2Config, weights: Weights) -> Any:
    """As `build`, on these very tensors: gradients can flow back to them.

    Raises:
        NotClaimed: where the configuration or the dtype is not claimed.
        Raised: where building fails.
    """
    dtype = next(iter(weights.values())).dtype
    if dtype not in subject.dtypes:
        raise tally.NotClaimed(f"dtype not claimed: {str(dtype).removeprefix('torch.')}")
    reason = subject.supports(config)
    if reason is not None:
        raise tally.NotClaimed(reason)
    return _timed("implementation", subject.build, config, weights)


def ask(
    model: Any, input_ids: Int[torch.Tensor, "batch length"], like: Weights, **options: Any
) -> Float[torch.Tensor, "batch length vocab"]:
    """Call a model without gradients and return its logits, sound in type, shape and dtype.

    Raises:
        Raised: where the model raises.
        Violation: where the logits are no tensor of the right shape and dtype.
    """
    with torch.no_grad():
        return sound(call(model, input_ids, **options), input_ids, like)


def call(model: Any, input_ids: Int[torch.Tensor, "batch length"], **options: Any) -> Any:
    """Call a model; whatever comes back comes back.

    Raises:
        Raised: where the model raises.
    """
    return _timed("implementation", model, input_ids.clone(), **options)


def _timed(part: str, function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    started = time.perf_counter()
    try:
        return function(*given, **options)
    except Exception as error:
        raise Raised(f"{type(error).__name__}: {error}") from error
    finally:
        running = tally.current()
        if running is not None:
            running.spent(part, time.perf_counter() - started)


def sound(
    logits: Any, input_ids: Int[torch.Tensor, "batch length"], like: Weights
) -> Float[torch.Tensor, "batch length vocab"]:
    """Return logits that are a tensor of the shape and dtype that the contract demands.

    Raises:
        Violation: saying what they are instead.
    """
    if not isinstance(logits, torch.Tensor):
        raise Violation(f"the logits must be a tensor, got {type(logits).__name__}")
    embedding = like["transformer.wte.weight"]
    shape = (*input_ids.shape, embedding.shape[0])
    if tuple(logits.shape) != shape:
        raise Violation(f"the logits must have shape {shape}, got {tuple(logits.shape)}")
    if logits.dtype != embedding.dtype:
        raise Violation(f"the logits must have dtype {embedding.dtype}, got {logits.dtype}")
    return logits


def doubled(weights: Weights) -> dict[str, torch.Tensor]:
    """The same numbers in float64."""
    return {name: each.detach().double() for name, each in weights.items()}


def _is_small(config: GPT2Config, weights: Weights, *_: Any, **__: Any) -> bool:
    return sum(each.numel() for each in weights.values()) <= LARGEST


_enclosed = remembered(forward, kept=KEPT, where=_is_small)
"""Many models are held to the same forward pass, which takes longer to enclose than to compute."""


class Allowed:
    """How far a model may be from its oracle on one batch, for every tensor that it gives.

    Both sides round: the gate is the model's radius in its own arithmetic plus the oracle's in
    float64, which for a float64 model makes twice the radius.
    """

    def __init__(
        self,
        config: GPT2Config,
        weights: Weights,
        input_ids: Int[torch.Tensor, "batch length"],
        **options: Any,
    ) -> None:
        """Enclose the forward pass in both arithmetics."""
        started = time.perf_counter()
        dtype = next(iter(weights.values())).dtype
        self.arithmetic, self.fine = Arithmetic.of(dtype), Arithmetic.of(torch.float64)
        self.model = _enclosed(config, weights, input_ids, self.arithmetic, **options)
        self.oracle = self.model
        if dtype != torch.float64:
            self.oracle = _enclosed(config, weights, input_ids, self.fine, **options)
        running = tally.current()
        if running is not None:
            running.spent("bound", time.perf_counter() - started)

    def gate(self, pick: Callable[[Forward], Enclosure]) -> torch.Tensor:
        """The distance allowed for the tensor that `pick` takes from a forward pass."""
        return pick(self.model).radius + pick(self.oracle).radius

    @property
    def logits(self) -> torch.Tensor:
        """The distance allowed for the logits.

        Raises:
            NotClaimed: where it is so wide that a pass would tell nothing.
        """
        gate = self.gate(lambda passed: passed.logits)
        if not telling(gate, self.model.logits.value):
            raise tally.NotClaimed(ILL_CONDITIONED)
        return gate


def hold(
    got: torch.Tensor, expected: torch.Tensor, gate: torch.Tensor, *, what: str, message: str
) -> None:
    """Hold each element within its gate.

    Raises:
        Violation: naming the worst element.
    """
    check_close(
        got.detach(),
        expected.detach(),
        gate,
        what=what,
        message=message,
        dtype=got.dtype,
        axes=_AXES[got.dim()],
    )


def telling(gate: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether to be within the gate tells anything: it is narrow beside the largest value."""
    return not expected.numel() or bool(gate.max() <= EVIDENCE * expected.abs().max())


def expected_logits(
    subject: ModelImplementation,
    config: GPT2Config,
    weights: Weights,
    input_ids: Int[torch.Tensor, "batch length"],
) -> Float[torch.Tensor, "batch length vocab"]:
    """What the oracle of `subject` gives in float64."""
    oracle = model_oracle(subject)
    exact = doubled(weights)
    model = _timed("oracle", oracle.build, config, exact)
    with torch.no_grad():
        return sound(_timed("oracle", model, input_ids), input_ids, exact)


def hold_to_oracle(
    subject: ModelImplementation,
    config: GPT2Config,
    weights: Weights,
    input_ids: Int[torch.Tensor, "batch length"],
    message: str,
) -> None:
    """Hold the logits of a model to its oracle's, each within its own bound.

    Raises:
        Violation: naming the worst element.
    """
    got = ask(build(subject, config, weights), input_ids, weights)
    expected = expected_logits(subject, config, weights, input_ids)
    gate = Allowed(config, weights, input_ids).logits
    hold(got, expected, gate, what="logits", message=message)


def must_refuse(
    model: Any, input_ids: Int[torch.Tensor, "batch length"], message: str, **options: Any
) -> None:
    """Demand an exception.

    Raises:
        Violation: where the model answers instead.
    """
    try:
        with torch.no_grad():
            model(input_ids, **options)
    except Exception:
        return
    raise Violation(message)
