"""Baselines: three common ways of testing attention, each under favourable conditions.

Every baseline compares with the reference of this project under the profile that the implementation
declares, and has a case for each feature that the implementation claims. A miss is then due to its
inputs and tolerances alone.

Source:
    FlashAttention, tests/test_flash_attn.py: lengths, and the rule that the error of a kernel may
    be twice the error of plain attention in the same storage type, three times for gradients
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.attention.call import Call
from attnspec.reference.implementation import scaled_dot_product_attention
from attnspec.spec import CausalAlignment, EmptyRow, Feature, Implementation

HEADS, KV_HEADS = 4, 2
OPTIONS: dict[Feature, dict[str, object]] = {
    Feature.CAUSAL: {"is_causal": True},
    Feature.MASK: {"attn_mask": "padding"},
    Feature.GQA: {"kv_heads": KV_HEADS},
    Feature.WINDOW: {"window": (32, 16)},
    Feature.SOFTCAP: {"softcap": 30.0},
    Feature.SINKS: {"sinks": "normal"},
    Feature.ALIBI: {"alibi_slopes": "slopes"},
}
"""The option that requests each feature alone; a string names a tensor."""

ALLCLOSE_SHAPES = ((128, 128, 64),)
FIXED_SHAPES = ((128, 128, 64), (128, 128, 128))
RATIO_SHAPES = ((113, 203, 64), (128, 217, 59), (108, 256, 40))
"""(queries, keys, channels)."""

Accepts = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], bool]


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A common way of testing attention.

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
BASELINES = (
    Baseline(
        name="assert_close on random normals, float32",
        shapes=ALLCLOSE_SHAPES,
        dtypes=(torch.float32,),
        accepts=_as_close,
    ),
    Baseline(
        name="assert_close on random normals, 16 bit",
        shapes=ALLCLOSE_SHAPES,
        dtypes=HALVES,
        accepts=_as_close,
    ),
    Baseline(
        name="fixed tolerance of 1e-2",
        shapes=FIXED_SHAPES,
        dtypes=(torch.float32, *HALVES),
        accepts=_within,
    ),
    Baseline(
        name="twice the error of plain attention",
        shapes=RATIO_SHAPES,
        dtypes=HALVES,
        accepts=_at_most(2.0),
        accepts_gradient=_at_most(3.0),
    ),
)


@dataclass(frozen=True)
class BaselineCase:
    """One case of a baseline, which determines the tensors and the exact result."""

    shape: tuple[int, int, int]
    dtype: torch.dtype
    feature: Feature | None
    alignment: CausalAlignment
    empty_row: EmptyRow


def cases_of(baseline: Baseline, implementation: Implementation) -> Iterator[BaselineCase]:
    """Yield the cases of a baseline for an implementation: plain, and each claimed feature."""
    profile = implementation.profile
    features = [None, *(feature for feature in OPTIONS if feature in implementation.features)]
    for shape in baseline.shapes:
        for dtype in baseline.dtypes:
            if dtype in implementation.dtypes:
                for feature in features:
                    yield BaselineCase(
                        shape, dtype, feature, profile.causal_alignment, profile.empty_row
                    )


def rejects(baseline: Baseline, implementation: Implementation) -> str:
    """Return the reason why a baseline rejects an implementation, or an empty string."""
    for case in cases_of(baseline, implementation):
        exact, plain = _expected(case, wants_gradients=baseline.accepts_gradient is not None)
        try:
            got = _results(
                implementation.attention,
                _call(case),
                wants_gradients=baseline.accepts_gradient is not None
                and Feature.BACKWARD in implementation.features,
            )
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        for name, tensor in got.items():
            accepts = baseline.accepts if name == "out" else baseline.accepts_gradient
            is_valid = tensor is not None and tensor.shape == exact[name].shape
            if accepts is None or (is_valid and accepts(tensor, exact[name], plain[name])):
                continue
            option = "plain" if case.feature is None else str(case.feature)
            return f"{name}, {option}, {case.shape}, {case.dtype}"
    return ""


def _results(
    attention: Callable[..., Any], call: Call, *, wants_gradients: bool
) -> dict[str, torch.Tensor]:
    """Return the output of an attention and, if wanted, the gradients."""
    leaves = {name: getattr(call, name) for name in ("query", "key", "value")}
    if wants_gradients:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in leaves.items()}
    out = attention(*leaves.values(), **call.keywords())
    results = {"out": out.detach()}
    if wants_gradients:
        grad = _normal("grad", tuple(out.shape)).to(out.dtype)
        results |= dict(
            zip(leaves, torch.autograd.grad(out, list(leaves.values()), grad), strict=True)
        )
    return results


@functools.lru_cache(maxsize=256)
def _expected(
    case: BaselineCase, wants_gradients: bool
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the exact results in float64 and those of plain attention in the storage type."""
    call = _call(case)
    wide = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in call.tensors.items()
    }

    def attend(compute_dtype: torch.dtype) -> Callable[..., Any]:
        return functools.partial(
            scaled_dot_product_attention,
            causal_alignment=case.alignment,
            empty_row=case.empty_row,
            compute_dtype=compute_dtype,
        )

    exact = _results(attend(torch.float64), call.but(**wide), wants_gradients=wants_gradients)
    plain = _results(attend(case.dtype), call, wants_gradients=wants_gradients)
    return exact, plain


def _call(case: BaselineCase) -> Call:
    """Return the call of a case."""
    queries, keys, channels = case.shape
    option = dict(OPTIONS[case.feature]) if case.feature is not None else {}
    kv_heads = int(str(option.pop("kv_heads", HEADS)))
    tensors = {
        "padding": torch.arange(keys).expand(queries, keys) < keys - 16,
        "normal": _normal("sinks", (HEADS,)).to(case.dtype),
        "slopes": 2.0 ** -(2.0 * torch.arange(1, HEADS + 1)),
    }
    shapes = {
        "query": (2, HEADS, queries, channels),
        "key": (2, kv_heads, keys, channels),
        "value": (2, kv_heads, keys, channels),
    }
    operands = {name: _normal(name, shape).to(case.dtype) for name, shape in shapes.items()}
    arguments = {
        name: tensors[value] if isinstance(value, str) else value for name, value in option.items()
    }
    return Call(**operands, **arguments)  # type: ignore[arg-type]


def _normal(purpose: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return standard normal numbers, the same for every implementation.

    Each call returns a new copy, because an implementation may write to it.
    """
    return _numbers(purpose, shape).clone()


@functools.lru_cache(maxsize=256)
def _numbers(purpose: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Draw standard normal numbers with a seed derived from `purpose`; cached."""
    seed = int.from_bytes(purpose.encode()[:4], "little")
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)
