"""Cases of additive attention: shapes, storage types and contents."""

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.attention.layouts import lay_out
from attnspec.conformance.operators.rows_case import normal
from attnspec.spec import Layout

LAYOUTS = (Layout.CONTIGUOUS, Layout.TRANSPOSED, Layout.SLICED)
"""The strides in which states are drawn."""


_SIZES = ("batch", "queries", "keys", "d_query", "d_key", "d_value", "d_inner")


class Content(StrEnum):
    """The size of what enters the tanh, and of the scores."""

    NORMAL = "normal"
    """About one."""
    SATURATED = "saturated"
    """Queries of about a thousand, so that every tanh is 1 or −1."""
    STEEP = "steep"
    """Weights of the score of about 300, so that exponentials of scores overflow."""


@dataclass(frozen=True, kw_only=True)
class AdditiveAttentionCase:
    """One call of additive attention.

    Attributes:
        batch: texts.
        queries: states that read.
        keys: states that are read, at least 1.
        d_query: channels of a query.
        d_key: channels of a key.
        d_value: channels of a value.
        d_inner: hidden channels of the score.
        dtype: the storage type of every tensor.
        content: the size of the numbers.
        biased: whether there is a bias.
        padded: whether texts have different lengths, and a mask.
        layout: the strides of queries, keys and values.
        backward: whether gradients are computed.
        seed: selects the numbers.
    """

    batch: int = 2
    queries: int = 2
    keys: int = 4
    d_query: int = 3
    d_key: int = 4
    d_value: int = 2
    d_inner: int = 5
    dtype: torch.dtype = torch.float64
    content: Content = Content.NORMAL
    biased: bool = False
    padded: bool = False
    layout: Layout = Layout.CONTIGUOUS
    backward: bool = False
    seed: int = 0

    def __str__(self) -> str:
        """Return the sizes, the storage type, and the fields that differ from the default."""
        words = []
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "dtype":
                words.append(f"dtype={str(value).removeprefix('torch.')}")
            elif (
                isinstance(item.default, int) and not isinstance(item.default, bool)
            ) or value != item.default:
                words.append(f"{item.name}={value}")
        return " ".join(words)

    @property
    def features(self) -> frozenset[str]:
        """The features that the call uses."""
        used = {"bias": self.biased, "mask": self.padded}
        return frozenset(name for name, is_used in used.items() if is_used)

    def but(self, **changes: Any) -> "AdditiveAttentionCase":
        """Return the same case with some fields changed."""
        return replace(self, **changes)

    @property
    def lengths(self) -> list[int]:
        """The number of real states of each text; texts differ if there is more than one."""
        if not self.padded:
            return [self.keys] * self.batch
        return [
            1 + (self.seed + 2 * text + self.keys // 2) % self.keys for text in range(self.batch)
        ]

    def draw(self) -> dict[str, torch.Tensor]:
        """Return the operands by the names of their parameters, bias and mask if there are any."""
        shapes = {
            "query": (self.batch, self.queries, self.d_query),
            "key": (self.batch, self.keys, self.d_key),
            "value": (self.batch, self.keys, self.d_value),
            "w_query": (self.d_inner, self.d_query),
            "w_key": (self.d_inner, self.d_key),
            "w_score": (self.d_inner,),
        }
        if self.biased:
            shapes["bias"] = (self.d_inner,)
        tensors = {name: normal(self.seed, name, *shape) for name, shape in shapes.items()}
        tensors["w_query"] *= self.d_query**-0.5
        tensors["w_key"] *= self.d_key**-0.5
        if self.content is Content.SATURATED:
            # each product far from zero, whatever the channels
            tensors["query"] = 1000 * (1 + tensors["query"].abs())
            tensors["w_query"] = tensors["w_query"].abs() + 0.5
        if self.content is Content.STEEP:
            tensors["w_score"] *= 300
        result = {name: each.to(self.dtype) for name, each in tensors.items()}
        for name in ("query", "key", "value"):
            result[name] = lay_out(result[name], self.layout)
        if self.padded:
            places = torch.arange(self.keys)
            result["mask"] = places < torch.tensor(self.lengths)[:, None]
        return result

    def draw_gradient(self) -> torch.Tensor:
        """Return the incoming gradient."""
        shape = (self.batch, self.queries, self.d_value)
        return normal(self.seed, "grad_out", *shape).to(self.dtype)


def cases(subject: Any, **fixed: Any) -> st.SearchStrategy[AdditiveAttentionCase]:
    """Return a strategy that draws cases a subject claims, with some fields given."""
    features = subject.implementation.features
    width = st.sampled_from([1, 2, 3, 5, 8, 17])
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "batch": st.integers(1, 3),
        "queries": st.sampled_from([1, 2, 3, 7]),
        "keys": st.sampled_from([1, 2, 3, 5, 16, 33]),
        **dict.fromkeys(("d_query", "d_key", "d_value"), width),
        "d_inner": st.sampled_from([1, 2, 3, 7, 16, 33]),
        "dtype": st.sampled_from(subject.implementation.dtypes),
        "content": st.sampled_from(Content),
        "biased": st.booleans() if "bias" in features else st.just(False),
        "padded": st.booleans() if "mask" in features else st.just(False),
        "layout": st.sampled_from(LAYOUTS),
        "seed": st.integers(0, 2**16 - 1),
    }
    strategies = drawn | {name: st.just(value) for name, value in fixed.items()}
    built: st.SearchStrategy[AdditiveAttentionCase] = st.builds(AdditiveAttentionCase, **strategies)
    return built.filter(lambda case: subject.refuses(case) is None)
