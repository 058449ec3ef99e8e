"""How attention is usually tested, for comparison: three styles, each granted what it needs.

Every style is given the reference of this project with the answers that the implementation
declares, and a case for each feature that it claims, so that what it misses it misses by its inputs
and tolerances alone.

Source:
    FlashAttention, tests/test_flash_attn.py: lengths, and the rule that a kernel may be off by
    twice what plain attention in the same storage type is off, three times for gradients
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.call import Call
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
"""How each feature is asked for, alone; the words stand for tensors."""

ALLCLOSE_SHAPES = ((128, 128, 64),)
FIXED_SHAPES = ((128, 128, 64), (128, 128, 128))
RATIO_SHAPES = ((113, 203, 64), (128, 217, 59), (108, 256, 40))
"""(queries, keys, channels)."""

Judge = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], bool]


@dataclass(frozen=True, kw_only=True)
class Style:
    """A way of testing.

    Attributes:
        name: short, for a table.
        shapes: of queries, keys and channels.
        dtypes: storage types that it is used for.
        accepts: `accepts(got, exact, plain)` with the exact result and plain attention's.
        accepts_gradient: likewise for gradients; `None` where they are not looked at.
    """

    name: str
    shapes: tuple[tuple[int, int, int], ...]
    dtypes: tuple[torch.dtype, ...]
    accepts: Judge
    accepts_gradient: Judge | None = None


def _as_close(got: torch.Tensor, exact: torch.Tensor, plain: torch.Tensor) -> bool:
    try:
        torch.testing.assert_close(got, plain)
    except AssertionError:
        return False
    return True


def _within(got: torch.Tensor, exact: torch.Tensor, plain: torch.Tensor) -> bool:
    return torch.allclose(got.double(), exact, atol=1e-2, rtol=1e-2)


def _at_most(factor: float) -> Judge:
    def accepts(got: torch.Tensor, exact: torch.Tensor, plain: torch.Tensor) -> bool:
        off, yardstick = (float((each.double() - exact).abs().max()) for each in (got, plain))
        return off <= factor * yardstick + 1e-5

    return accepts


HALVES = (torch.float16, torch.bfloat16)
STYLES = (
    Style(
        name="assert_close on random normals, float32",
        shapes=ALLCLOSE_SHAPES,
        dtypes=(torch.float32,),
        accepts=_as_close,
    ),
    Style(
        name="assert_close on random normals, 16 bit",
        shapes=ALLCLOSE_SHAPES,
        dtypes=HALVES,
        accepts=_as_close,
    ),
    Style(
        name="fixed tolerance of 1e-2",
        shapes=FIXED_SHAPES,
        dtypes=(torch.float32, *HALVES),
        accepts=_within,
    ),
    Style(
        name="twice the error of plain attention",
        shapes=RATIO_SHAPES,
        dtypes=HALVES,
        accepts=_at_most(2.0),
        accepts_gradient=_at_most(3.0),
    ),
)


@dataclass(frozen=True)
class Question:
    """One call of a style: everything that its tensors and its exact result follow from."""

    shape: tuple[int, int, int]
    dtype: torch.dtype
    feature: Feature | None
    alignment: CausalAlignment
    empty_row: EmptyRow


def questions(style: Style, implementation: Implementation) -> Iterator[Question]:
    """The calls by which a style tests an implementation: plain, and each claimed feature."""
    profile = implementation.profile
    features = [None, *(each for each in OPTIONS if each in implementation.features)]
    for shape in style.shapes:
        for dtype in style.dtypes:
            if dtype in implementation.dtypes:
                for feature in features:
                    yield Question(
                        shape, dtype, feature, profile.causal_alignment, profile.empty_row
                    )


def rejects(style: Style, implementation: Implementation) -> str:
    """Why a style rejects an implementation, or nothing where it accepts."""
    for question in questions(style, implementation):
        exact, plain = _answers(question, wants_gradients=style.accepts_gradient is not None)
        try:
            got = _results(
                implementation.attention,
                _call(question),
                wants_gradients=style.accepts_gradient is not None
                and Feature.BACKWARD in implementation.features,
            )
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        for name, each in got.items():
            accepts = style.accepts if name == "out" else style.accepts_gradient
            sound = each is not None and each.shape == exact[name].shape
            if accepts is None or (sound and accepts(each, exact[name], plain[name])):
                continue
            option = "plain" if question.feature is None else str(question.feature)
            return f"{name}, {option}, {question.shape}, {question.dtype}"
    return ""


def _results(
    attention: Callable[..., Any], call: Call, *, wants_gradients: bool
) -> dict[str, torch.Tensor]:
    leaves = {name: getattr(call, name) for name in ("query", "key", "value")}
    if wants_gradients:
        leaves = {name: each.detach().requires_grad_() for name, each in leaves.items()}
    out = attention(*leaves.values(), **call.keywords())
    found = {"out": out.detach()}
    if wants_gradients:
        grad = _normal("grad", tuple(out.shape)).to(out.dtype)
        found |= dict(
            zip(leaves, torch.autograd.grad(out, list(leaves.values()), grad), strict=True)
        )
    return found


@functools.lru_cache(maxsize=256)
def _answers(
    question: Question, wants_gradients: bool
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The exact results in float64, and those of plain attention in the storage type."""
    call = _call(question)
    wide = {
        name: each.double() if each.is_floating_point() else each
        for name, each in call.tensors.items()
    }

    def attend(compute_dtype: torch.dtype) -> Callable[..., Any]:
        return functools.partial(
            scaled_dot_product_attention,
            causal_alignment=question.alignment,
            empty_row=question.empty_row,
            compute_dtype=compute_dtype,
        )

    exact = _results(attend(torch.float64), call.but(**wide), wants_gradients=wants_gradients)
    plain = _results(attend(question.dtype), call, wants_gradients=wants_gradients)
    return exact, plain


def _call(question: Question) -> Call:
    queries, keys, channels = question.shape
    option = dict(OPTIONS[question.feature]) if question.feature is not None else {}
    kv_heads = int(str(option.pop("kv_heads", HEADS)))
    tensors = {
        "padding": torch.arange(keys).expand(queries, keys) < keys - 16,
        "normal": _normal("sinks", (HEADS,)).to(question.dtype),
        "slopes": 2.0 ** -(2.0 * torch.arange(1, HEADS + 1)),
    }
    shapes = {
        "query": (2, HEADS, queries, channels),
        "key": (2, kv_heads, keys, channels),
        "value": (2, kv_heads, keys, channels),
    }
    operands = {name: _normal(name, shape).to(question.dtype) for name, shape in shapes.items()}
    given = {
        name: tensors[value] if isinstance(value, str) else value for name, value in option.items()
    }
    return Call(**operands, **given)  # type: ignore[arg-type]


def _normal(purpose: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Standard normal numbers, the same for each implementation: a copy, which it may write to."""
    return _numbers(purpose, shape).clone()


@functools.lru_cache(maxsize=256)
def _numbers(purpose: str, shape: tuple[int, ...]) -> torch.Tensor:
    seed = int.from_bytes(purpose.encode()[:4], "little")
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)
