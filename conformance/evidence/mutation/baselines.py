"""Baselines: common ways of testing attention, each under favourable conditions.

Every baseline compares with the reference of this project under the profile that the implementation
declares, and has a case for each feature that the implementation claims. A miss is then due to its
inputs and tolerances alone.

Source:
    FlashAttention, tests/test_flash_attn.py: lengths, and the rule that the error of a kernel may
    be twice the error of plain attention in the same storage type, three times for gradients
    PyTorch 2.13, torch/testing/_internal/common_methods_invocations.py,
    sample_inputs_scaled_dot_product_attention: 3 queries, 6 keys, 4 heads of 8 channels
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from attnspec.conformance.evidence.mutation.baseline_calls import (
    call_of,
    cases_of,
    expected_of,
    results_of,
)
from attnspec.conformance.evidence.mutation.torch_checks import (
    GradientCheck,
    OperatorCheck,
)
from attnspec.spec import Feature, Implementation

ALLCLOSE_SHAPES = ((128, 128, 64),)
FIXED_SHAPES = ((128, 128, 64), (128, 128, 128))
RATIO_SHAPES = ((113, 203, 64), (128, 217, 59), (108, 256, 40))
SAMPLE_SHAPES = ((3, 6, 8),)
"""(queries, keys, channels)."""

Accepts = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], bool]


class Baseline(Protocol):
    """A common way of testing attention, with a short name for a table."""

    @property
    def name(self) -> str:
        """Its name in a table."""

    def rejects(self, implementation: Implementation) -> str:
        """Return the reason why it rejects an implementation, or an empty string."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Results on random normal numbers, compared with the exact ones or with plain attention.

    Attributes:
        name: a short name, for a table.
        shapes: numbers of queries, keys and channels.
        dtypes: the storage types that it tests.
        accepts: `accepts(got, exact, plain)` with the exact result and that of plain attention.
        accepts_gradient: the same for gradients; `None` if they are not tested.
    """

    name: str
    shapes: tuple[tuple[int, int, int], ...]
    dtypes: tuple[torch.dtype, ...]
    accepts: Accepts
    accepts_gradient: Accepts | None = None

    def rejects(self, implementation: Implementation) -> str:
        """Return the reason why it rejects an implementation, or an empty string."""
        tests_gradients = self.accepts_gradient is not None
        wants_gradients = tests_gradients and Feature.BACKWARD in implementation.features
        for case in cases_of(implementation, self.shapes, self.dtypes):
            exact, plain = expected_of(case, wants_gradients=tests_gradients)
            try:
                got = results_of(
                    implementation.attention, call_of(case), wants_gradients=wants_gradients
                )
            except Exception as error:
                return f"{type(error).__name__}: {error}"
            for name, tensor in got.items():
                accepts = self.accepts if name == "out" else self.accepts_gradient
                is_valid = tensor is not None and tensor.shape == exact[name].shape
                if accepts is None or (is_valid and accepts(tensor, exact[name], plain[name])):
                    continue
                return f"{name}, {case}"
        return ""


def _as_close(got: torch.Tensor, exact: torch.Tensor, plain: torch.Tensor) -> bool:
    """Compare with plain attention by the default tolerances of PyTorch."""
    try:
        torch.testing.assert_close(got, plain)
    except AssertionError:
        return False
    return True


def _within(got: torch.Tensor, exact: torch.Tensor, plain: torch.Tensor) -> bool:
    """Compare with the exact result by a fixed tolerance."""
    return torch.allclose(got.double(), exact, atol=1e-2, rtol=1e-2)


def _at_most(factor: float) -> Accepts:
    """Return a comparison of the largest error with a multiple of that of plain attention."""

    def accepts(got: torch.Tensor, exact: torch.Tensor, plain: torch.Tensor) -> bool:
        error, plain_error = (float((out.double() - exact).abs().max()) for out in (got, plain))
        return error <= factor * plain_error + 1e-5

    return accepts


HALVES = (torch.float16, torch.bfloat16)
BASELINES: tuple[Baseline, ...] = (
    Comparison(
        name="assert_close on random normals, float32",
        shapes=ALLCLOSE_SHAPES,
        dtypes=(torch.float32,),
        accepts=_as_close,
    ),
    Comparison(
        name="assert_close on random normals, 16 bit",
        shapes=ALLCLOSE_SHAPES,
        dtypes=HALVES,
        accepts=_as_close,
    ),
    Comparison(
        name="fixed tolerance of 1e-2",
        shapes=FIXED_SHAPES,
        dtypes=(torch.float32, *HALVES),
        accepts=_within,
    ),
    Comparison(
        name="twice the error of plain attention",
        shapes=RATIO_SHAPES,
        dtypes=HALVES,
        accepts=_at_most(2.0),
        accepts_gradient=_at_most(3.0),
    ),
    # in 16 bits its default tolerances reject right kernels
    Comparison(
        name="assert_close on OpInfo's sample inputs",
        shapes=SAMPLE_SHAPES,
        dtypes=(torch.float64, torch.float32),
        accepts=_as_close,
        accepts_gradient=_as_close,
    ),
    GradientCheck(),
    OperatorCheck(),
)
