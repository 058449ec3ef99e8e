"""Outputs of implementations and mutants for the calls that tell mutants apart."""

import copy
import functools
from dataclasses import dataclass, field
from typing import Any

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.layers import make_on_leaves
from attnspec.conformance.attention.memoize import content_of
from attnspec.conformance.attention.modes import run_in
from attnspec.conformance.isolation.state import restored_state
from attnspec.conformance.mutants.registry import Mutant
from attnspec.spec import CallMode, Case, Implementation

Outputs = dict[str, torch.Tensor]
"""Output, log-sum-exp and gradients, by name."""

REFUSED = "refused"
"""The key of mutants that do not claim the case."""


@dataclass(frozen=True)
class ComparisonCall:
    """A call on which outputs are compared.

    Attributes:
        case: the case of the call; `None` for the failing call.
        call: the arguments.
        grad_out: the gradient of the output, if the backward pass is compared.
        wrt: names of the tensors whose gradients are compared.
        tolerance: the distance up to which outputs are equal, by name: twice the bound.
        exact: the right outputs, by name.
    """

    case: Case | None
    call: Call
    grad_out: torch.Tensor | None
    wrt: tuple[str, ...]
    tolerance: Outputs
    exact: Outputs = field(default_factory=dict)

    @functools.cached_property
    def key(self) -> Any:
        """Return a hashable value that is the same for calls with the same arguments."""
        return self.case or content_of((self.call, self.grad_out, self.wrt))


def outputs_of(implementation: Implementation, comparison: ComparisonCall) -> Outputs | None:
    """Run an implementation on a comparison call, in its mode; return None if it raises."""
    # copies: some implementations write to their arguments
    call, grad_out = copy.deepcopy((comparison.call, comparison.grad_out))
    wrt = comparison.wrt if grad_out is not None else ()
    leaves = {name: getattr(call, name).detach().requires_grad_() for name in wrt}

    def run(call: Call) -> Any:
        return run_in(
            call.mode,
            lambda: implementation.attention(call.query, call.key, call.value, **call.keywords()),
        )

    try:
        with restored_state(), torch.enable_grad():
            result = make_on_leaves(run, call, leaves)
            out, lse = result if isinstance(result, tuple) else (result, None)
            # clones: a view would keep its base in memory, and a graph its inputs
            outputs = {"out": out.detach().clone()}
            if lse is not None:
                outputs["lse"] = lse.detach().clone()
            if out.requires_grad and grad_out is not None:
                backward = functools.partial(
                    torch.autograd.grad, out, list(leaves.values()), allow_unused=True
                )
                if call.mode is CallMode.TWO_BACKWARDS:
                    backward(-grad_out, retain_graph=True)
                gradients = run_in(call.mode, lambda: backward(grad_out))
                for name, gradient in zip(wrt, gradients, strict=True):
                    outputs[name] = torch.zeros(()) if gradient is None else gradient
    except Exception:
        return None
    return outputs


KeyedOutputs = tuple[Any, Outputs | None]
"""Outputs with their key: the same for equal outputs, `REFUSED` if the case is not claimed."""


def outputs_of_mutant(mutant: Mutant, comparison: ComparisonCall) -> KeyedOutputs:
    """Run a mutant of attention on a comparison call."""
    if comparison.case is not None and mutant.subject.refuses(comparison.case) is not None:
        return REFUSED, None
    outputs = outputs_of(mutant.subject, comparison)
    return key_of(outputs, mutant.id), outputs


@dataclass
class OutputCache:
    """A cache of the outputs of mutants for comparison calls, which stores equal outputs once.

    Most mutants have bit-identical outputs for most calls, and most calls recur often.
    """

    _keys: dict[tuple[Any, str], Any] = field(default_factory=dict)
    _outputs: dict[Any, Outputs | None] = field(default_factory=dict)

    def outputs_of_mutant(self, mutant: Mutant, comparison: ComparisonCall) -> KeyedOutputs:
        """Like the function `outputs_of_mutant`, with cached outputs."""
        run = comparison.key, mutant.id
        if run not in self._keys:
            key, outputs = outputs_of_mutant(mutant, comparison)
            self._keys[run] = key
            self._outputs.setdefault(key, outputs)
        key = self._keys[run]
        return key, self._outputs[key]


def key_of(outputs: Outputs | None, otherwise: str) -> Any:
    """Return the key of equal outputs, or `otherwise` if they cannot be read as numbers."""
    try:
        return content_of(outputs)
    except (RuntimeError, TypeError):
        return otherwise
