"""Cases of a gated MLP: shapes, storage types and contents."""

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.attention.layouts import lay_out
from attnspec.conformance.operators.rows_case import normal
from attnspec.spec import Layout


class Content(StrEnum):
    """The size of gate and up before their function."""

    NORMAL = "normal"
    """About one."""
    LARGE = "large"
    """About ten: beyond the limits of the clamped form, in both signs."""
    SMALL = "small"
    """About a hundredth."""


_SIZE = {Content.NORMAL: 1.0, Content.LARGE: 10.0, Content.SMALL: 0.01}


@dataclass(frozen=True, kw_only=True)
class GatedMLPCase:
    """One call of a gated MLP.

    Attributes:
        shape: the axes before the channels.
        d_model: channels of the input, at least 1.
        d_inner: channels of gate and up, at least 1.
        dtype: the storage type of every tensor.
        content: the size of gate and up.
        biased: whether there are biases.
        layout: the strides of the input.
        of_weights: the strides of the matrices.
        backward: whether gradients are computed.
        seed: selects the numbers.
    """

    shape: tuple[int, ...] = (3,)
    d_model: int = 4
    d_inner: int = 5
    dtype: torch.dtype = torch.float64
    content: Content = Content.NORMAL
    biased: bool = False
    layout: Layout = Layout.CONTIGUOUS
    of_weights: Layout = Layout.CONTIGUOUS
    backward: bool = False
    seed: int = 0

    def __str__(self) -> str:
        """Return the sizes, the storage type, and the fields that differ from the default."""
        words = [f"x={(*self.shape, self.d_model)} d_inner={self.d_inner}"]
        words.append(f"dtype={str(self.dtype).removeprefix('torch.')}")
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in _SAID and value != item.default:
                words.append(f"{item.name}={value}")
        return " ".join(words)

    @property
    def features(self) -> frozenset[str]:
        """The features that the call uses."""
        return frozenset({"bias"} if self.biased else ())

    def but(self, **changes: Any) -> "GatedMLPCase":
        """Return the same case with some fields changed."""
        return replace(self, **changes)

    def draw(self) -> dict[str, torch.Tensor]:
        """Return input and weights in the storage type, biases only if there are any."""
        tensors = {"x": normal(self.seed, "x", *self.shape, self.d_model)}
        tensors |= weights(self.seed, self.d_model, self.d_inner, self.content, self.biased)
        stored = {name: tensor.to(self.dtype) for name, tensor in tensors.items()}
        layouts = {"x": self.layout} | dict.fromkeys(("gate", "up", "down"), self.of_weights)
        return stored | {name: lay_out(stored[name], each) for name, each in layouts.items()}

    def draw_gradient(self) -> torch.Tensor:
        """Return the incoming gradient."""
        return normal(self.seed, "grad_out", *self.shape, self.d_model).to(self.dtype)


_SAID = ("content", "biased", "layout", "of_weights", "backward", "seed")


def weights(
    seed: int, d_model: int, d_inner: int, content: Content, biased: bool, *lead: int
) -> dict[str, torch.Tensor]:
    """Return the weights of gated MLPs, with leading axes for several, in float64."""
    size, width = _SIZE[content], d_model**-0.5
    result = {
        "gate": size * width * normal(seed, "gate", *lead, d_inner, d_model),
        "up": size * width * normal(seed, "up", *lead, d_inner, d_model),
        "down": d_inner**-0.5 * normal(seed, "down", *lead, d_model, d_inner),
    }
    if biased:
        result["gate_bias"] = size * normal(seed, "gate_bias", *lead, d_inner)
        result["up_bias"] = size * normal(seed, "up_bias", *lead, d_inner)
        result["down_bias"] = normal(seed, "down_bias", *lead, d_model)
    return result


def cases(subject: Any, **fixed: Any) -> st.SearchStrategy[GatedMLPCase]:
    """Return a strategy that draws cases a subject claims, with some fields given."""
    has_biases = "bias" in subject.implementation.features
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "shape": st.sampled_from([(1,), (2,), (5,), (17,), (2, 3), (1, 2, 3)]),
        "d_model": st.sampled_from([1, 2, 3, 5, 8, 16, 31, 33, 64]),
        "d_inner": st.sampled_from([1, 2, 3, 7, 8, 17, 32, 65, 128]),
        "dtype": st.sampled_from(subject.implementation.dtypes),
        "content": st.sampled_from(Content),
        "biased": st.booleans() if has_biases else st.just(False),
        "seed": st.integers(0, 2**16 - 1),
    }
    strategies = drawn | {name: st.just(value) for name, value in fixed.items()}
    built: st.SearchStrategy[GatedMLPCase] = st.builds(GatedMLPCase, **strategies)
    return built.filter(lambda case: subject.refuses(case) is None)
