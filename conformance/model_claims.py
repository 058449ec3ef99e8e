"""Claims of a bare `build(config, state_dict)`: what a small model of its making takes."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.model_case import ModelCase, draw, shapes
from attnspec.spec import GPT2Config, ModelFeature, ModelImplementation

REFUSALS = (NotImplementedError, ValueError)
"""What a `build` raises to say that it does not support a configuration."""

SMALL = ModelCase(n_layer=2, n_head=2, d_head=4, length=3, n_positions=6, vocab_size=11)


class BuildError(Exception):
    """A `build` that makes no model of the plainest small GPT-2, in any dtype."""


def is_build(found: Callable[..., Any]) -> bool:
    """True for what takes a configuration and weights, and not queries, keys and values."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters if each.kind in places and each.default is each.empty]
    return len(needed) == 2


def declare_model(
    name: str, build: Callable[..., Any], features: frozenset[ModelFeature] | None = None
) -> ModelImplementation:
    """Make the declaration of a bare `build`, by building a small model in each dtype.

    Args:
        name: of the subject.
        build: takes a `GPT2Config` and a state dictionary.
        features: what the model claims; read from its parameters where not given.

    Raises:
        BuildError: where no dtype is accepted, with what was raised instead.
    """
    models, errors = {}, []
    for dtype in (torch.float64, torch.float32):
        try:
            models[dtype] = _answering(build, dtype)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    if not models:
        raise BuildError(f"{name}: makes no model of a small GPT-2: {errors[0]}")
    found = _features(next(iter(models.values()))) if features is None else features
    return ModelImplementation(
        name=name,
        build=build,
        features=found,
        dtypes=tuple(models),
        supports=_Supports(build),
    )


def _answering(build: Callable[..., Any], dtype: torch.dtype) -> Any:
    """A small model, which gave something for a few tokens."""
    inputs = draw(SMALL.but(dtype=dtype))
    model = build(inputs.config, inputs.state_dict)
    with torch.no_grad():
        model(inputs.input_ids)
    return model


def _features(model: Any) -> frozenset[ModelFeature]:
    """What the parameters of a model suggest."""
    names = _parameters(model)
    found = set()
    if "cache" in names and hasattr(model, "empty_cache"):
        found.add(ModelFeature.CACHE)
    if {"attention_mask", "position_ids"} <= names:
        found.add(ModelFeature.PADDING)
    if "output_hidden_states" in names:
        found.add(ModelFeature.HIDDEN_STATES)
    return frozenset(found)


def _parameters(model: Any) -> set[str]:
    called = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        return set(inspect.signature(called).parameters)
    except (TypeError, ValueError):
        return set()


class _Supports:
    """Refuses the configurations that `build` refuses, each of which is tried once."""

    def __init__(self, build: Callable[..., Any]) -> None:
        self.build = build
        self.told: dict[GPT2Config, str | None] = {}

    def __call__(self, config: GPT2Config) -> str | None:
        if config not in self.told:
            self.told[config] = self._try(config)
        return self.told[config]

    def _try(self, config: GPT2Config) -> str | None:
        try:
            self.build(config, {name: torch.zeros(shape) for name, shape in shapes(config).items()})
        except REFUSALS as error:
            return f"build refuses this configuration: {error}"
        except Exception:
            return None  # a law will meet it, and report it as an error
        return None
