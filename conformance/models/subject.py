"""Build and call a GPT-2 under test.

The reference is judged against Hugging Face's GPT-2, with which it shares no code; every other
model is judged against the reference. Oracles run in float64 on the weights exactly as stored.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int

from attnspec.conformance.comparison import tally
from attnspec.conformance.comparison.violation import NotClaimed, Raised, Violation
from attnspec.conformance.models.recording import record_call, record_model
from attnspec.spec import GPT2Config, ModelImplementation
from attnspec.spec.contract import refused_dtype

Weights = Mapping[str, torch.Tensor]


def build(subject: ModelImplementation, config: GPT2Config, weights: Weights) -> Any:
    """Build a model that claims this configuration and dtype, from its own copies of the weights.

    Raises:
        NotClaimed: if it does not claim them.
        Raised: if building fails.
    """
    copies = {name: weight.detach().clone() for name, weight in weights.items()}
    return build_on(subject, config, copies)


def build_on(subject: ModelImplementation, config: GPT2Config, weights: Weights) -> Any:
    """Build like `build`, but on these tensors themselves, so that they receive gradients.

    Raises:
        NotClaimed: if the configuration or the dtype is not claimed.
        Raised: if building fails.
    """
    dtype = next(iter(weights.values())).dtype
    reason = refused_dtype(dtype, subject.dtypes) or subject.supports(config)
    if reason is not None:
        raise NotClaimed(reason)
    given = dict(weights)  # a build may take the tensors out
    try:
        model = _timed("implementation", subject.build, config, weights)
    except Raised:
        record_model(None, config, given)
        raise
    record_model(model, config, given)
    return model


def logits_of(
    model: Any, input_ids: Int[torch.Tensor, "batch length"], like: Weights, **options: Any
) -> Float[torch.Tensor, "batch length vocab"]:
    """Call a model without gradients and return its logits, checked for type, shape and dtype.

    Raises:
        Raised: if the model raises.
        Violation: if the logits are no tensor of the right shape and dtype.
    """
    with torch.no_grad():
        return checked_logits(call(model, input_ids, **options), input_ids, like)


def call(model: Any, input_ids: Int[torch.Tensor, "batch length"], **options: Any) -> Any:
    """Call a model and return its result unchecked, but that it has changed no argument.

    Raises:
        Raised: if the model raises.
        Violation: if it changes ids, a mask or positions.
    """
    result = None
    tensors = {name: each for name, each in options.items() if isinstance(each, torch.Tensor)}
    # the tensors themselves are passed: a copy would lie otherwise in memory
    passed = {"input_ids": input_ids} | tensors
    given = {name: each.clone() for name, each in passed.items()}
    try:
        result = _timed("implementation", model, input_ids, **options)
    finally:
        changed = [name for name, each in given.items() if not torch.equal(each, passed[name])]
        for name in changed:
            passed[name].copy_(given[name])  # other calls of a law read them
        record_call(model, input_ids, options, result)
    if changed:
        raise Violation(f"the call changes its {changed[0]} in place")
    return result


def _timed(part: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    started = time.perf_counter()
    try:
        with tally.watching_lines():
            return function(*arguments, **options)
    except Exception as error:
        raise Raised(f"{type(error).__name__}: {error}") from error
    finally:
        tally.spent(part, started)


def pair(result: Any, what: str) -> tuple[Any, Any]:
    """Return a result that must be the logits and something else.

    Raises:
        Violation: if it is no pair; `what` says what gave it.
    """
    if not (isinstance(result, tuple) and len(result) == 2):
        raise Violation(f"{what} must give a pair, got {type(result).__name__}")
    return result[0], result[1]


def checked_logits(
    logits: Any, input_ids: Int[torch.Tensor, "batch length"], like: Weights
) -> Float[torch.Tensor, "batch length vocab"]:
    """Return the logits if they are a tensor of the shape and dtype that the contract demands.

    Raises:
        Violation: if they are not; names the difference.
    """
    if not isinstance(logits, torch.Tensor):
        raise Violation(f"the logits must be a tensor, got {_described(logits)}")
    embedding = like["transformer.wte.weight"]
    shape = (*input_ids.shape, embedding.shape[0])
    if tuple(logits.shape) != shape:
        raise Violation(f"the logits must have shape {shape}, got {tuple(logits.shape)}")
    if logits.dtype != embedding.dtype:
        raise Violation(f"the logits must have dtype {embedding.dtype}, got {logits.dtype}")
    return logits


def _described(result: Any) -> str:
    """Return the type of a result that should have been a tensor, and what to do about a pair."""
    name = type(result).__name__
    if isinstance(result, tuple) and result and isinstance(result[0], torch.Tensor):
        return f"a {name} whose first item is a tensor: return that alone"
    return name


def check_raises(
    model: Any, input_ids: Int[torch.Tensor, "batch length"], message: str, **options: Any
) -> None:
    """Check that a model raises an exception.

    Raises:
        Violation: if the model returns a result instead.
    """
    record_call(model, input_ids, options, None)
    try:
        with torch.no_grad():
            model(input_ids, **options)
    except Exception:
        return
    raise Violation(message)
