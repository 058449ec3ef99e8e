"""Recording: the models that a law builds and the calls that it makes, for a snippet."""

import contextvars
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from attnspec.conformance.models.case import ModelCase, draw
from attnspec.spec import GPT2Config

KEPT = 40
"""Number of calls that are kept, the last ones."""

LARGEST = 2**23
"""Parameters of the models that are kept, the last ones, and the last one of any size: a law may
build sixty models of the vocabulary of GPT-2, which together would fill the memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelCall:
    """One call of a model.

    Attributes:
        model: the model.
        input_ids: the tokens.
        options: the keywords.
        result: what it returned; None if it raised.
    """

    model: Any
    input_ids: torch.Tensor
    options: Mapping[str, Any]
    result: Any


@dataclass(kw_only=True)
class Recording:
    """The models and calls of one law.

    Attributes:
        built: each model with its configuration and the parameters that it was built from.
        calls: the calls in their order.
    """

    built: list[tuple[Any, GPT2Config, Mapping[str, torch.Tensor]]] = field(default_factory=list)
    calls: list[ModelCall] = field(default_factory=list)

    def parameters_of(self, model: Any) -> tuple[GPT2Config, Mapping[str, torch.Tensor]] | None:
        """Return what a model was built from."""
        for other, config, weights in reversed(self.built):
            if other is model:
                return config, weights
        return None


def recording_of(case: ModelCase) -> Recording:
    """Return a recording of the plain call of a case, which was not made."""
    inputs = draw(case)
    model = object()
    call = ModelCall(model=model, input_ids=inputs.input_ids, options={}, result=None)
    return Recording(built=[(model, inputs.config, inputs.state_dict)], calls=[call])


_CURRENT: contextvars.ContextVar[Recording | None] = contextvars.ContextVar(
    "recording", default=None
)


@contextmanager
def recording() -> Iterator[Recording]:
    """Record the models and calls inside."""
    current = Recording()
    token = _CURRENT.set(current)
    try:
        yield current
    finally:
        _CURRENT.reset(token)


def record_model(model: Any, config: GPT2Config, weights: Mapping[str, torch.Tensor]) -> None:
    """Record a model, if a recording is on; the oldest are given up if they are too large."""
    current = _CURRENT.get()
    if current is None:
        return
    current.built.append((model, config, weights))
    while len(current.built) > 1 and sum(map(_numbers, current.built)) > LARGEST:
        given_up = current.built.pop(0)[0]
        current.calls = [call for call in current.calls if call.model is not given_up]


def record_call(model: Any, input_ids: torch.Tensor, options: dict[str, Any], result: Any) -> None:
    """Record a call, if a recording is on."""
    current = _CURRENT.get()
    if current is not None:
        call = ModelCall(model=model, input_ids=input_ids, options=options, result=result)
        current.calls = [*current.calls[1 - KEPT :], call]


def _numbers(built: tuple[Any, GPT2Config, Mapping[str, torch.Tensor]]) -> int:
    return sum(weight.numel() for weight in built[2].values())
