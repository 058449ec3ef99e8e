"""Baselines of PyTorch: gradcheck and opcheck.

Each is given a call for every feature that the implementation claims, as the other baselines are.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.comparison.violation import first_line
from attnspec.conformance.evidence.mutation.baseline_calls import (
    BaselineCase,
    call_of,
    cases_of,
)
from attnspec.spec import Feature, Implementation

SMALL_SHAPES = ((5, 7, 4), (3, 6, 8))
"""(queries, keys, channels)."""

_COUNTER = itertools.count()


@dataclass(frozen=True)
class GradientCheck:
    """`torch.autograd.gradcheck`: gradients against finite differences, in float64.

    In its fast mode, which PyTorch's own tests use as well: random projections of the differences.
    """

    name: str = "torch.autograd.gradcheck"

    def rejects(self, implementation: Implementation) -> str:
        """Return the reason why it rejects an implementation, or an empty string.

        Without gradients or float64 there is nothing to check.
        """
        if Feature.BACKWARD not in implementation.features:
            return ""
        for case in cases_of(implementation, SMALL_SHAPES, (torch.float64,)):
            call = call_of(case)
            options = call.keywords()
            inputs = [tensor.requires_grad_() for tensor in (call.query, call.key, call.value)]

            def attend(
                query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: Any = options
            ) -> Any:
                return implementation.attention(query, key, value, **options)

            try:
                torch.autograd.gradcheck(attend, inputs, fast_mode=True)
            except Exception as error:
                return _reason(case, error)
        return ""


@dataclass(frozen=True)
class OperatorCheck:
    """`torch.library.opcheck`: the attention registered as a custom operator.

    The registration, which is what opcheck tests, is made here and right.
    """

    name: str = "torch.library.opcheck"

    def rejects(self, implementation: Implementation) -> str:
        """Return the reason why it rejects an implementation, or an empty string."""
        for case in cases_of(implementation, SMALL_SHAPES[:1], implementation.dtypes[:1]):
            call = call_of(case)
            operator = _registered(implementation.attention, call.keywords())
            try:
                torch.library.opcheck(operator, (call.query, call.key, call.value))
            except Exception as error:
                return _reason(case, error)
        return ""


def _registered(attention: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Return an attention with some options as a custom operator of three tensors."""

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        return attention(query, key, value, **options)

    def fake(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return query.new_empty(*query.shape[:-1], value.shape[-1])

    operator = torch.library.custom_op(
        f"attnspec_baselines::attention_{next(_COUNTER)}",
        attend,
        mutates_args=(),
        schema="(Tensor query, Tensor key, Tensor value) -> Tensor",
    )
    operator.register_fake(fake)
    return operator


def _reason(case: BaselineCase, error: Exception) -> str:
    """Return the call and the first line of what it raised."""
    return f"{case}: {first_line(error)[:120]}"
