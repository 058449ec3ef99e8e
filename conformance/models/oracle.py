"""The oracle of a GPT-2, and the distance allowed to a model."""

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int

from attnspec.conformance.attention.memoize import memoize
from attnspec.conformance.comparison import tally
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import NotAvailable, NotClaimed
from attnspec.conformance.models.bounds.enclosure import Arithmetic, Enclosure
from attnspec.conformance.models.bounds.forward import Forward, forward
from attnspec.conformance.models.subject import Weights, _timed, build, checked_logits, logits_of
from attnspec.spec import GPT2Config, ModelImplementation

KEPT = 512
"""Enclosed forward passes that the cache holds at once."""

LARGEST = 2**17
"""Weights of the largest model whose forward pass is cached: some thirty megabytes; of most models
it is some hundred kilobytes."""

EVIDENCE = 0.1
"""The largest ratio of bound to largest expected value at which a pass is evidence."""

_AXES = {
    0: (),
    1: ("channel",),
    2: ("position", "channel"),
    3: ("batch", "position", "channel"),
}

ILL_CONDITIONED = "ill-conditioned: the bound is too wide for a pass to be evidence"


def model_oracle(subject: ModelImplementation) -> ModelImplementation:
    """Return the model that judges `subject`, which never shares code with it.

    Raises:
        NotAvailable: if the subject is the reference and transformers is not installed.
    """
    from attnspec.implementations import load_model
    from attnspec.reference.model import MODEL

    if subject is not MODEL:
        return MODEL
    oracle = load_model("huggingface_gpt2")
    reason = oracle.unavailable()
    if reason is not None:
        raise NotAvailable(reason)
    return oracle


def in_float64(weights: Weights) -> dict[str, torch.Tensor]:
    """Return the same weights in float64."""
    return {name: weight.detach().double() for name, weight in weights.items()}


def is_small(config: GPT2Config, weights: Weights, *_: Any, **__: Any) -> bool:
    """Return whether a result for this model is cached."""
    return sum(weight.numel() for weight in weights.values()) <= LARGEST


_enclosed = memoize(forward, kept=KEPT, where=is_small)
"""Cached: many models are compared with one forward pass, and its enclosure takes long."""


def _timed_enclosure(*arguments: Any, **options: Any) -> Forward:
    started = time.perf_counter()
    try:
        return _enclosed(*arguments, **options)
    finally:
        tally.spent("bound", started)


class Allowed:
    """The distance allowed between a model and its oracle on one batch, for every output tensor.

    Both round: the tolerance is the model's radius in its own arithmetic plus the oracle's in
    float64, which for a float64 model makes twice the radius.
    """

    def __init__(
        self,
        config: GPT2Config,
        weights: Weights,
        input_ids: Int[torch.Tensor, "batch length"],
        **options: Any,
    ) -> None:
        """Enclose the forward pass in the arithmetic of the model."""
        dtype = next(iter(weights.values())).dtype
        self.arithmetic, self.fine = Arithmetic.of(dtype), Arithmetic.of(torch.float64)
        self._enclose = functools.partial(_timed_enclosure, config, weights, input_ids, **options)
        self.model = self._enclose(self.arithmetic)

    @functools.cached_property
    def oracle(self) -> Forward:
        """The forward pass in the arithmetic of the oracle; two ways of calling need none."""
        return self.model if self.arithmetic == self.fine else self._enclose(self.fine)

    def tolerance(self, pick: Callable[[Forward], Enclosure]) -> torch.Tensor:
        """Return the distance allowed for the tensor that `pick` takes from a forward pass."""
        return pick(self.model).radius + pick(self.oracle).radius

    @property
    def logits(self) -> torch.Tensor:
        """The distance allowed for the logits.

        Raises:
            NotClaimed: if it is so wide that a pass would be no evidence.
        """
        tolerance = self.tolerance(lambda enclosed: enclosed.logits)
        if not is_narrow(tolerance, self.model.logits.value):
            raise NotClaimed(ILL_CONDITIONED)
        return tolerance

    @property
    def one_call(self) -> torch.Tensor:
        """The distance of the model's logits from the exact ones that its roundings allow.

        Two models, or two ways of calling one, are apart by the sum of their distances.

        Raises:
            NotClaimed: if it is so wide that a pass would be no evidence.
        """
        if not is_narrow(self.model.logits.radius, self.model.logits.value):
            raise NotClaimed(ILL_CONDITIONED)
        return self.model.logits.radius

    @property
    def own_logits(self) -> torch.Tensor:
        """The distance allowed between the logits of two ways of making one call.

        Raises:
            NotClaimed: if it is so wide that a pass would be no evidence.
        """
        return 2 * self.one_call


def check_within(
    got: torch.Tensor, expected: torch.Tensor, tolerance: torch.Tensor, *, what: str, message: str
) -> None:
    """Check that each element is within its tolerance.

    Raises:
        Violation: if an element exceeds its tolerance; names the worst one.
    """
    check_close(
        got.detach(),
        expected.detach(),
        tolerance,
        what=what,
        message=message,
        dtype=got.dtype,
        axes=_AXES[got.dim()],
    )


def is_narrow(tolerance: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether the tolerance is so narrow that a pass is evidence."""
    return not expected.numel() or bool(tolerance.max() <= EVIDENCE * expected.abs().max())


def expected_logits(
    subject: ModelImplementation,
    config: GPT2Config,
    weights: Weights,
    input_ids: Int[torch.Tensor, "batch length"],
    **options: torch.Tensor,
) -> Float[torch.Tensor, "batch length vocab"]:
    """Return the logits of the subject's oracle in float64; options are passed to the call."""
    oracle = model_oracle(subject)
    exact = in_float64(weights)
    model = _timed("oracle", oracle.build, config, exact)
    with torch.no_grad():
        return checked_logits(_timed("oracle", model, input_ids, **options), input_ids, exact)


def own_logits(
    subject: ModelImplementation,
    config: GPT2Config,
    weights: Weights,
    input_ids: Int[torch.Tensor, "batch length"],
    **options: torch.Tensor,
) -> Float[torch.Tensor, "batch length vocab"]:
    """Return the logits of another model that the subject builds; options are passed to the call.

    A law about another way of calling compares a model with itself, so that it holds or fails
    whatever else is wrong with the model.
    """
    return logits_of(build(subject, config, weights), input_ids, weights, **options).double()


def logits_alone(
    subject: ModelImplementation,
    config: GPT2Config,
    weights: Weights,
    input_ids: Int[torch.Tensor, " length"],
) -> Float[torch.Tensor, "length vocab"]:
    """Return the subject's own logits of one row without padding, whose positions are given."""
    ids = input_ids[None]
    options = {
        "attention_mask": torch.ones_like(ids),
        "position_ids": torch.arange(len(input_ids))[None],
    }
    return own_logits(subject, config, weights, ids, **options)[0]


def check_against_oracle(
    subject: ModelImplementation,
    config: GPT2Config,
    weights: Weights,
    input_ids: Int[torch.Tensor, "batch length"],
    message: str,
) -> None:
    """Check the logits of a model against its oracle's, each within its own bound.

    Raises:
        Violation: if a logit exceeds its bound; names the worst one.
    """
    got = logits_of(build(subject, config, weights), input_ids, weights)
    expected = expected_logits(subject, config, weights, input_ids)
    tolerance = Allowed(config, weights, input_ids).logits
    check_within(got, expected, tolerance, what="logits", message=message)
