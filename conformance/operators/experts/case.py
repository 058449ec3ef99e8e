"""Cases of a router and of experts: sizes, choices and storage types."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.attention.layouts import lay_out
from attnspec.conformance.operators.gated_mlp.case import Content, weights
from attnspec.conformance.operators.rows_case import normal
from attnspec.spec import Layout


@dataclass(frozen=True, kw_only=True)
class RouterCase:
    """One call of a router.

    Attributes:
        tokens: at least 1.
        d_model: channels of a token.
        experts: at least 1.
        top_k: experts of each token.
        dtype: the storage type.
        scale: the size of the logits, about.
        biased: whether there is a bias.
        layout: the strides of the tokens.
        of_weights: the strides of the matrix.
        backward: whether gradients are computed.
        seed: selects the numbers.
    """

    tokens: int = 3
    d_model: int = 4
    experts: int = 5
    top_k: int = 2
    dtype: torch.dtype = torch.float64
    scale: float = 2.0
    biased: bool = False
    layout: Layout = Layout.CONTIGUOUS
    of_weights: Layout = Layout.CONTIGUOUS
    backward: bool = False
    seed: int = 0

    def __str__(self) -> str:
        """Return the sizes and the storage type, and the rest where it is not the default."""
        words = [f"x=({self.tokens}, {self.d_model}) experts={self.experts} top_k={self.top_k}"]
        words.append(f"dtype={str(self.dtype).removeprefix('torch.')} scale={self.scale:g}")
        words += [name for name in ("biased", "backward") if getattr(self, name)]
        return " ".join([*words, *_strides(self), f"seed={self.seed}"])

    @property
    def features(self) -> frozenset[str]:
        """The features that the call uses."""
        return frozenset({"bias"} if self.biased else ())

    def but(self, **changes: Any) -> "RouterCase":
        """Return the same case with some fields changed."""
        return replace(self, **changes)

    def draw(self) -> dict[str, torch.Tensor]:
        """Return `x`, `weight` and, if there is one, `bias` in the storage type."""
        size = self.scale * self.d_model**-0.5
        tensors = {
            "x": normal(self.seed, "x", self.tokens, self.d_model),
            "weight": size * normal(self.seed, "weight", self.experts, self.d_model),
        }
        if self.biased:
            tensors["bias"] = self.scale * normal(self.seed, "bias", self.experts)
        stored = {name: tensor.to(self.dtype) for name, tensor in tensors.items()}
        laid_out = {
            "x": lay_out(stored["x"], self.layout),
            "weight": lay_out(stored["weight"], self.of_weights),
        }
        return stored | laid_out

    def draw_gradient(self) -> torch.Tensor:
        """Return the incoming gradient of the scores."""
        return normal(self.seed, "grad", self.tokens, self.top_k).to(self.dtype)


def _strides(case: Any) -> list[str]:
    """Return the strides of a case in words, if they are not the default."""
    layouts = {name: getattr(case, name) for name in ("layout", "of_weights")}
    return [f"{name}={each}" for name, each in layouts.items() if each is not Layout.CONTIGUOUS]


class Choice(StrEnum):
    """The choice of experts that a case gives."""

    DRAWN = "drawn"
    """By the largest of drawn numbers."""
    FIRST = "first"
    """The same experts for every token: all others are without tokens."""
    LAST = "last"
    """Likewise, the last experts."""
    UNEVEN = "uneven"
    """Expert 0 for every token; expert 1 for none; the others by turns."""


@dataclass(frozen=True, kw_only=True)
class ExpertsCase:
    """One call of experts.

    Attributes:
        tokens: at least 1.
        d_model: channels of a token.
        d_inner: channels of gate and up.
        experts: at least 1.
        top_k: experts of each token.
        choice: which.
        dtype: the storage type.
        content: the size of gate and up.
        biased: whether there are biases.
        shared: whether there is a shared expert.
        layout: the strides of the tokens.
        of_weights: the strides of the matrices.
        backward: whether gradients are computed.
        seed: selects the numbers.
    """

    tokens: int = 4
    d_model: int = 4
    d_inner: int = 3
    experts: int = 5
    top_k: int = 2
    choice: Choice = Choice.DRAWN
    dtype: torch.dtype = torch.float64
    content: Content = Content.NORMAL
    biased: bool = False
    shared: bool = False
    layout: Layout = Layout.CONTIGUOUS
    of_weights: Layout = Layout.CONTIGUOUS
    backward: bool = False
    seed: int = 0

    def __str__(self) -> str:
        """Return the sizes and the storage type, and the rest where it is not the default."""
        words = [f"x=({self.tokens}, {self.d_model}) d_inner={self.d_inner}"]
        words.append(f"experts={self.experts} top_k={self.top_k} choice={self.choice}")
        words.append(f"dtype={str(self.dtype).removeprefix('torch.')}")
        words += [name for name in ("biased", "shared", "backward") if getattr(self, name)]
        return " ".join([*words, *_strides(self), f"content={self.content} seed={self.seed}"])

    @property
    def features(self) -> frozenset[str]:
        """The features that the call uses."""
        used = {"bias": self.biased, "shared": self.shared}
        return frozenset(name for name, is_used in used.items() if is_used)

    def but(self, **changes: Any) -> "ExpertsCase":
        """Return the same case with some fields changed."""
        return replace(self, **changes)

    def draw(self) -> dict[str, torch.Tensor]:
        """Return `x`, `indices`, `scores` and weights; those of a shared expert are prefixed."""
        tensors = {
            "x": normal(self.seed, "x", self.tokens, self.d_model),
            "scores": normal(self.seed, "scores", self.tokens, self.top_k).abs() + 0.25,
        }
        sizes = (self.d_model, self.d_inner)
        tensors |= weights(self.seed, *sizes, self.content, self.biased, self.experts)
        if self.shared:
            own = weights(self.seed + 1, *sizes, self.content, biased=False)
            tensors |= {f"shared_{name}": tensor for name, tensor in own.items()}
        stored = {name: tensor.to(self.dtype) for name, tensor in tensors.items()}
        layouts = {"x": self.layout} | dict.fromkeys(("gate", "up", "down"), self.of_weights)
        laid_out = {name: lay_out(stored[name], each) for name, each in layouts.items()}
        return stored | laid_out | {"indices": self.indices()}

    def indices(self) -> torch.Tensor:
        """Return the experts of each token, which differ."""
        shape = (self.tokens, self.experts)
        wish = normal(self.seed, "choice", *shape)
        number = torch.arange(self.experts).double().expand(shape)
        if self.choice is Choice.FIRST:
            wish = -number
        if self.choice is Choice.LAST:
            wish = number
        if self.choice is Choice.UNEVEN and self.experts > self.top_k:
            wish[:, 0], wish[:, 1] = 100.0, -100.0
        return wish.argsort(dim=-1, descending=True)[:, : self.top_k]

    def draw_gradient(self) -> torch.Tensor:
        """Return the incoming gradient."""
        return normal(self.seed, "grad", self.tokens, self.d_model).to(self.dtype)


def router_cases(subject: Any, **fixed: Any) -> st.SearchStrategy[RouterCase]:
    """Return a strategy that draws cases a subject claims, with some fields given."""
    has_bias = "bias" in subject.implementation.features
    count = st.sampled_from([1, 2, 3, 5, 8, 16, 31, 64, 128])
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "tokens": st.sampled_from([1, 2, 5, 17, 33]),
        "d_model": st.sampled_from([1, 2, 5, 16, 33, 64]),
        "experts": count,
        "top_k": st.sampled_from([1, 2, 3, 4, 8]),
        "dtype": st.sampled_from(subject.implementation.dtypes),
        "scale": st.sampled_from([0.1, 1.0, 4.0]),
        "biased": st.booleans() if has_bias else st.just(False),
        "seed": st.integers(0, 2**16 - 1),
    }
    strategies = drawn | {name: st.just(value) for name, value in fixed.items()}
    built: st.SearchStrategy[RouterCase] = st.builds(RouterCase, **strategies)
    return built.map(lambda case: case.but(top_k=min(case.top_k, case.experts))).filter(
        lambda case: subject.refuses(case) is None
    )


def experts_cases(subject: Any, **fixed: Any) -> st.SearchStrategy[ExpertsCase]:
    """Return a strategy that draws cases a subject claims, with some fields given."""
    features = subject.implementation.features
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "tokens": st.sampled_from([1, 2, 5, 17, 33]),
        "d_model": st.sampled_from([1, 2, 5, 16, 33]),
        "d_inner": st.sampled_from([1, 2, 7, 16, 33]),
        "experts": st.sampled_from([1, 2, 3, 5, 8]),
        "top_k": st.sampled_from([1, 2, 3, 4, 8]),
        "choice": st.sampled_from(Choice),
        "dtype": st.sampled_from(subject.implementation.dtypes),
        "content": st.sampled_from(Content),
        "biased": st.booleans() if "bias" in features else st.just(False),
        "shared": st.booleans() if "shared" in features else st.just(False),
        "seed": st.integers(0, 2**16 - 1),
    }
    strategies = drawn | {name: st.just(value) for name, value in fixed.items()}
    built: st.SearchStrategy[ExpertsCase] = st.builds(ExpertsCase, **strategies)
    return built.map(lambda case: case.but(top_k=min(case.top_k, case.experts))).filter(
        lambda case: subject.refuses(case) is None
    )
