"""The calls of baselines: plain attention and one call for each claimed feature."""

import functools
from collections.abc import Callable, Iterable, Iterator
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
    Feature.WINDOW: {"window": "window"},
    Feature.SOFTCAP: {"softcap": 30.0},
    Feature.SINKS: {"sinks": "normal"},
    Feature.ALIBI: {"alibi_slopes": "slopes"},
}
"""The option that requests each feature alone; a string names one that depends on the shape."""


@dataclass(frozen=True)
class BaselineCase:
    """One call of a baseline, which determines the tensors and the exact result.

    Attributes:
        shape: numbers of queries, keys and channels.
        dtype: the storage type.
        feature: the feature that it requests; `None` for plain attention.
        alignment: of the profile under which the exact result is computed.
        empty_row: of the same profile.
    """

    shape: tuple[int, int, int]
    dtype: torch.dtype
    feature: Feature | None
    alignment: CausalAlignment
    empty_row: EmptyRow

    def __str__(self) -> str:
        option = "plain" if self.feature is None else str(self.feature)
        return f"{option}, {self.shape}, {self.dtype}"


def cases_of(
    implementation: Implementation,
    shapes: Iterable[tuple[int, int, int]],
    dtypes: Iterable[torch.dtype],
) -> Iterator[BaselineCase]:
    """Yield the calls of some shapes and types for an implementation: plain, and each feature."""
    profile = implementation.profile
    features = [None, *(feature for feature in OPTIONS if feature in implementation.features)]
    for shape in shapes:
        for dtype in dtypes:
            if dtype in implementation.dtypes:
                for feature in features:
                    yield BaselineCase(
                        shape, dtype, feature, profile.causal_alignment, profile.empty_row
                    )


def results_of(
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
def expected_of(
    case: BaselineCase, wants_gradients: bool
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the exact results in float64 and those of plain attention in the storage type."""
    call = call_of(case)
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

    exact = results_of(attend(torch.float64), call.but(**wide), wants_gradients=wants_gradients)
    plain = results_of(attend(case.dtype), call, wants_gradients=wants_gradients)
    return exact, plain


def call_of(case: BaselineCase) -> Call:
    """Return the call of a case."""
    queries, keys, channels = case.shape
    option = dict(OPTIONS[case.feature]) if case.feature is not None else {}
    kv_heads = int(str(option.pop("kv_heads", HEADS)))
    values = {
        # some keys are hidden and some visible, however few there are
        "padding": torch.arange(keys).expand(queries, keys) < keys - min(16, keys // 4),
        "window": (min(32, keys // 4), min(16, keys // 8)),
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
        name: values[value] if isinstance(value, str) else value for name, value in option.items()
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
