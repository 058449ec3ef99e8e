"""Baselines of PyTorch: gradcheck, opcheck, and the sample inputs of OpInfo.

Each is given a call for every feature that the implementation claims, as the other baselines are.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.evidence.mutation.baseline_calls import (
    BaselineCase,
    call_of,
    cases_of,
    expected_of,
    results_of,
)
from attnspec.spec import Feature, Implementation

SMALL_SHAPES = ((5, 7, 4), (3, 6, 8))
"""Queries, keys and channels; the second is that of OpInfo."""

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
            call, options = call_of(case), call_of(case).keywords()
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


@dataclass(frozen=True)
class SampleInputs:
    """The sample inputs of OpInfo: small shapes, compared by assert_close.

    In float64 and float32: the default tolerances reject right kernels in 16 bits.

    Source:
        PyTorch 2.13, torch/testing/_internal/common_methods_invocations.py,
        sample_inputs_scaled_dot_product_attention: 3 queries, 6 keys, 4 heads of 8 channels in a
        batch of 4, the causal flag, and a mask
    """

    name: str = "assert_close on OpInfo's sample inputs"

    def rejects(self, implementation: Implementation) -> str:
        """Return the reason why it rejects an implementation, or an empty string."""
        wants_gradients = Feature.BACKWARD in implementation.features
        for case in cases_of(implementation, SMALL_SHAPES[1:], (torch.float64, torch.float32)):
            _, plain = expected_of(case, wants_gradients=True)
            try:
                got = results_of(
                    implementation.attention, call_of(case), wants_gradients=wants_gradients
                )
                for name, tensor in got.items():
                    torch.testing.assert_close(tensor, plain[name])
            except Exception as error:
                return _reason(case, error)
        return ""


def _reason(case: BaselineCase, error: Exception) -> str:
    """Return the call and the first line of what it raised."""
    option = "plain" if case.feature is None else str(case.feature)
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{option}, {case.shape}, {case.dtype}: {type(error).__name__}: {line[:120]}"
