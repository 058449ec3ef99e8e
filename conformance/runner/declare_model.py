"""Declaring a bare `build(config, state_dict)`, by a small model that it builds."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.isolation.memory import is_exhausted
from attnspec.conformance.models.case import ModelCase, draw, shapes
from attnspec.conformance.models.fields import (
    NOT_FOLLOWED,
    REFUSALS,
    Unfollowed,
    unfollowed_fields,
)
from attnspec.conformance.models.subject import checked_logits
from attnspec.conformance.runner.first_call import Step, announce, call_of_model, cause_of
from attnspec.spec import GPT2Config, ModelFeature, ModelImplementation

MODEL_DTYPES = (torch.float64, torch.float32)
"""The dtypes in which a bare `build` is tried."""

SMALL = ModelCase(n_layer=2, n_head=2, d_head=4, length=3, n_positions=6, vocab_size=11)


class BuildError(Exception):
    """A `build` whose first call fails in every dtype; the message is a verdict."""


def is_build(target: Callable[..., Any]) -> bool:
    """Return true for a callable of two arguments: configuration and weights, and no keys."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters if each.kind in positional and each.default is each.empty]
    return len(needed) == 2


def declare_model(
    name: str, build: Callable[..., Any], features: frozenset[ModelFeature] | None = None
) -> ModelImplementation:
    """Make the declaration of a bare `build`, by building a small model in each dtype.

    Args:
        name: the name of the subject.
        build: a function of a `GPT2Config` and a state dictionary.
        features: the claims of the model; by default read from its parameters.

    Raises:
        BuildError: if it fails in every dtype, with the first exception.
    """
    models, errors = {}, []
    for dtype in MODEL_DTYPES:
        try:
            models[dtype] = _small_model(build, dtype)
        except Violation as error:
            errors.append(_step(dtype).failure(name, str(error)))
        except (Exception, SystemExit) as error:
            cause = cause_of(error)
            errors.append(_step(dtype).failure(name, cause))
            if is_exhausted(cause):
                raise BuildError(errors[-1]) from None
    if not models:
        raise BuildError(errors[0])
    return ModelImplementation(
        name=name,
        build=build,
        features=_features(next(iter(models.values()))) if features is None else features,
        dtypes=tuple(models),
        supports=SupportsOfBuild(build, next(iter(models))),
    )


def why_not(build: Callable[..., Any], dtype: torch.dtype) -> str:
    """Return the reason why the first call of a `build` fails in a dtype, or an empty string."""
    try:
        _small_model(build, dtype)
    except Violation as error:
        return str(error)
    except (Exception, SystemExit) as error:
        return cause_of(error)
    return ""


def _small_model(build: Callable[..., Any], dtype: torch.dtype) -> Any:
    """Build a small model, and call it once.

    Raises:
        Violation: if it returns no logits, or logits of another shape or dtype.
    """
    inputs = draw(SMALL.but(dtype=dtype))
    announce(_step(dtype))
    model = build(inputs.config, inputs.state_dict)
    with torch.no_grad():
        logits = model(inputs.input_ids)
    announce(None)
    checked_logits(logits, inputs.input_ids, inputs.state_dict)
    return model


def _step(dtype: torch.dtype) -> Step:
    sizes = ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")
    config = ", ".join(f"{size}={getattr(SMALL.config, size)}" for size in sizes)
    return call_of_model(dtype, f"GPT2Config({config})")


def _features(model: Any) -> frozenset[ModelFeature]:
    """Read the claims of a model from its parameters."""
    names = _parameters(model)
    features = set()
    if "cache" in names and hasattr(model, "empty_cache"):
        features.add(ModelFeature.CACHE)
    if {"attention_mask", "position_ids"} <= names:
        features.add(ModelFeature.PADDING)
    if "output_hidden_states" in names:
        features.add(ModelFeature.HIDDEN_STATES)
    return frozenset(features)


def _parameters(model: Any) -> set[str]:
    called = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        return set(inspect.signature(called).parameters)
    except (TypeError, ValueError):
        return set()


class SupportsOfBuild:
    """A `supports` that refuses what `build` refuses, or does not follow; each is tried once."""

    def __init__(self, build: Callable[..., Any], dtype: torch.dtype) -> None:
        self.build, self.dtype = build, dtype
        self.reasons: dict[GPT2Config, str | None] = {}

    def __call__(self, config: GPT2Config) -> str | None:
        """Return the reason why a configuration is not tried, or None."""
        if config not in self.reasons:
            self.reasons[config] = self._try(config)
        return self.reasons[config]

    @functools.cached_property
    def unfollowed(self) -> list[Unfollowed]:
        """The fields that it does not follow, which are judged as released alone.

        Found in the first law that asks, whose time limit holds for the models that this builds.
        """
        return unfollowed_fields(self.build, self.dtype)

    def _try(self, config: GPT2Config) -> str | None:
        fields = [each.field for each in self.unfollowed if each.concerns(config)]
        if fields:
            return f"{NOT_FOLLOWED} {', '.join(fields)}"
        try:
            self.build(config, {name: torch.zeros(shape) for name, shape in shapes(config).items()})
        except REFUSALS as error:
            return f"build refuses this configuration: {error}"
        except Exception:
            return None  # the law that needs it reports the error
        return None
