"""Small calls of a learner's functions, with the results of the reference and the error bounds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.models.bounds import forward as bounds
from attnspec.conformance.models.bounds.activation import activation
from attnspec.conformance.models.bounds.enclosure import (
    Arithmetic,
    Enclosure,
    add,
    matmul,
    merge_heads,
)
from attnspec.conformance.models.case import draw_parameters, normal
from attnspec.reference.activation import gelu_tanh
from attnspec.reference.block import block, block_weights
from attnspec.reference.embedding import embed
from attnspec.reference.heads import multi_head_attention
from attnspec.reference.implementation import scaled_dot_product_attention
from attnspec.reference.layer_norm import layer_norm
from attnspec.reference.linear import linear
from attnspec.reference.mlp import mlp
from attnspec.reference.model import gpt2
from attnspec.spec import GPT2Config

Arguments = dict[str, Any]
DTYPE = torch.float32
"""The dtype of the arguments, which is what a learner's tensors have."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """A call of one function, with what it must return.

    Attributes:
        arguments: by name, in the order of the parameters.
        expected: the result of the reference in float64.
        tolerance: the distance allowed to each element.
        axes: names of its axes.
    """

    arguments: Mapping[str, Any]
    expected: torch.Tensor
    tolerance: torch.Tensor
    axes: tuple[str, ...]

    def call(self) -> str:
        """Return the arguments in words: shapes of tensors, and numbers as they are."""
        return ", ".join(
            f"{name} of shape {tuple(each.shape)}"
            if isinstance(each, torch.Tensor)
            else f"{name}={each}"
            for name, each in self.arguments.items()
            if isinstance(each, torch.Tensor | int | float)
        )


def _draw(purpose: str, *shape: int) -> torch.Tensor:
    return normal(3, f"exercise/{purpose}", *shape).to(DTYPE)


def _example(
    arguments: Arguments,
    reference: Callable[[Arguments], torch.Tensor],
    bound: Callable[[Arguments, Arithmetic], Enclosure],
    *axes: str,
) -> Example:
    """Compute the result in float64, and the errors of the learner's and of this computation."""
    exact = {name: _in_float64(each) for name, each in arguments.items()}
    with torch.no_grad():
        expected = reference(exact)
    radii = [bound(exact, Arithmetic.of(dtype)).radius for dtype in (DTYPE, torch.float64)]
    return Example(
        arguments=arguments,
        expected=expected,
        tolerance=(radii[0] + radii[1]).expand(expected.shape),
        axes=axes,
    )


def _in_float64(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _in_float64(each) for name, each in value.items()}
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_float else value


_ROWS = ("batch", "position", "channel")


def _embed() -> list[Example]:
    def bound(a: Arguments, arithmetic: Arithmetic) -> Enclosure:
        ids, tokens, positions = a.values()
        rows = tokens[ids]
        places = positions[: ids.shape[1]].expand_as(rows)
        return add(Enclosure.exact(rows), Enclosure.exact(places), arithmetic)

    arguments = {
        "input_ids": torch.tensor([[4, 0, 4, 2], [1, 6, 5, 3]]),
        "token_table": _draw("tokens", 7, 3),
        "position_table": _draw("positions", 6, 3),
    }
    return [_example(arguments, lambda a: embed(*a.values()), bound, *_ROWS)]


def _layer_norm() -> list[Example]:
    def reference(a: Arguments) -> torch.Tensor:
        return layer_norm(a["x"], a["weight"], a["bias"], epsilon=a["epsilon"])

    def bound(a: Arguments, arithmetic: Arithmetic) -> Enclosure:
        x, gain, bias, epsilon = a.values()
        return bounds.layer_norm(Enclosure.exact(x), gain, bias, epsilon, arithmetic).result

    return [
        _example(
            {
                "x": _draw("rows", 2, 3, 4) * size,
                "weight": 1 + _draw("gain", 4) / 2,
                "bias": _draw("shift", 4),
                "epsilon": epsilon,
            },
            reference,
            bound,
            *_ROWS,
        )
        for size, epsilon in ((1.0, 1e-5), (1.0, 0.25), (2.0**-8, 1e-5))
    ]


def _linear() -> list[Example]:
    def bound(a: Arguments, arithmetic: Arithmetic) -> Enclosure:
        x, weight, bias = a.values()
        return bounds.linear(Enclosure.exact(x), weight, bias, arithmetic)

    return [
        _example(
            {
                "x": _draw("rows", 2, 3, 4),
                "weight": _draw("weight", 4, width),
                "bias": _draw("bias", width),
            },
            lambda a: linear(*a.values()),
            bound,
            *_ROWS,
        )
        for width in (4, 6)  # the square one first, on which a transpose does not raise
    ]


def _gelu() -> list[Example]:
    arguments = {"x": torch.linspace(-4.0, 4.0, 24).view(2, 3, 4)}
    return [
        _example(
            arguments,
            lambda a: gelu_tanh(a["x"]),
            lambda a, arithmetic: activation(Enclosure.exact(a["x"]), "gelu_new", arithmetic),
            *_ROWS,
        )
    ]


def _mlp() -> list[Example]:
    def bound(a: Arguments, arithmetic: Arithmetic) -> Enclosure:
        x, up, up_bias, down, down_bias = a.values()
        inner = bounds.linear(Enclosure.exact(x), up, up_bias, arithmetic)
        return bounds.linear(activation(inner, "gelu_new", arithmetic), down, down_bias, arithmetic)

    arguments = {
        "x": _draw("rows", 2, 3, 4),
        "in_weight": _draw("up", 4, 16),
        "in_bias": _draw("up bias", 16),
        "out_weight": _draw("down", 16, 4),
        "out_bias": _draw("down bias", 4),
    }
    return [_example(arguments, lambda a: mlp(*a.values(), activation=gelu_tanh), bound, *_ROWS)]


def _visible(length: int) -> torch.Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    result = scaled_dot_product_attention(
        query, key, value, is_causal=True, compute_dtype=torch.float64
    )
    assert isinstance(result, torch.Tensor)
    return result


def _causal_attention() -> list[Example]:
    def reference(a: Arguments) -> torch.Tensor:
        heads = [each.reshape(-1, 1, *each.shape[-2:]) for each in a.values()]
        return _attend(*heads).reshape(a["query"].shape)

    def bound(a: Arguments, arithmetic: Arithmetic) -> Enclosure:
        length, channels = a["query"].shape[-2:]
        query, key, value = map(Enclosure.exact, a.values())
        visible = _visible(length)
        return bounds.attention(query, key, value, visible, channels**-0.5, arithmetic).result

    return [
        _example(
            {name: _draw(name, *shape) for name in ("query", "key", "value")},
            reference,
            bound,
            *("batch", "head", "query", "channel")[4 - len(shape) :],
        )
        for shape in ((4, 3), (2, 3, 5, 4))
    ]


def _multi_head_attention() -> list[Example]:
    def part(packed: Enclosure, third: int, heads: int) -> Enclosure:
        def move(tensor: torch.Tensor) -> torch.Tensor:
            own: torch.Tensor = tensor.chunk(3, -1)[third].unflatten(-1, (heads, -1))
            return own.transpose(1, 2)

        return packed.map(move)

    def reference(a: Arguments) -> torch.Tensor:
        *tensors, heads = a.values()
        return multi_head_attention(*tensors, heads=heads, attention=_attend)

    def bound(a: Arguments, arithmetic: Arithmetic) -> Enclosure:
        x, weight, bias, out_weight, out_bias, heads = a.values()
        packed = bounds.linear(Enclosure.exact(x), weight, bias, arithmetic)
        query, key, value = (part(packed, third, heads) for third in range(3))
        scale = query.value.shape[-1] ** -0.5
        mixed = bounds.attention(query, key, value, _visible(x.shape[1]), scale, arithmetic)
        return bounds.linear(merge_heads(mixed.result), out_weight, out_bias, arithmetic)

    return [
        _example(
            {
                "x": _draw("rows", 2, 4, 6),
                "qkv_weight": _draw("packed", 6, 18) / 2,
                "qkv_bias": _draw("packed bias", 18) / 2,
                "out_weight": _draw("out", 6, 6),
                "out_bias": _draw("out bias", 6),
                "n_head": heads,
            },
            reference,
            bound,
            *_ROWS,
        )
        for heads in (1, 2, 3)
    ]


_CONFIG = GPT2Config(vocab_size=7, n_positions=6, n_embd=6, n_layer=2, n_head=2)
_IDS = torch.tensor([[4, 0, 4, 2], [1, 6, 5, 3]])


def _parameters() -> dict[str, torch.Tensor]:
    # blocks that are small beside the stream keep the bound of a stack narrow
    return draw_parameters(_CONFIG, seed=8, spread=0.2, embedding_spread=1.0, dtype=DTYPE)


def _block() -> list[Example]:
    def bound(a: Arguments, arithmetic: Arithmetic) -> Enclosure:
        weights = {f"transformer.h.0.{name}": each for name, each in a["parameters"].items()}
        visible = _visible(a["x"].shape[1])
        x = Enclosure.exact(a["x"])
        return bounds.block(x, weights, _CONFIG, 0, visible, arithmetic).output

    arguments = {
        "x": _draw("rows", 2, 4, 6),
        "parameters": block_weights(_parameters(), 0),
        "config": _CONFIG,
    }
    return [_example(arguments, lambda a: block(*a.values(), attention=_attend), bound, *_ROWS)]


def _transformer() -> list[Example]:
    def reference(a: Arguments) -> torch.Tensor:
        # a head that is the identity shows its input
        config = GPT2Config(**{**vars(_CONFIG), "tie_word_embeddings": False})
        identity = torch.eye(_CONFIG.n_embd, dtype=torch.float64)
        return gpt2(a["input_ids"], {**a["parameters"], "lm_head.weight": identity}, config)

    def bound(a: Arguments, arithmetic: Arithmetic) -> Enclosure:
        ids, parameters, config = a.values()
        return bounds.forward(config, parameters, ids, arithmetic).final.result

    arguments = {"input_ids": _IDS, "parameters": _parameters(), "config": _CONFIG}
    return [_example(arguments, reference, bound, *_ROWS)]


def _head() -> list[Example]:
    def table(a: Arguments) -> torch.Tensor:
        weights: torch.Tensor = a["parameters"]["transformer.wte.weight"]
        return weights.mT

    def bound(a: Arguments, arithmetic: Arithmetic) -> Enclosure:
        return matmul(Enclosure.exact(a["x"]), Enclosure.exact(table(a)), arithmetic)

    arguments = {"x": _draw("rows", 2, 4, 6), "parameters": _parameters(), "config": _CONFIG}
    return [
        _example(
            arguments,
            lambda a: torch.einsum("bsd,dw->bsw", a["x"], table(a)),
            bound,
            "batch",
            "position",
            "token",
        )
    ]


EXAMPLES: Mapping[str, Callable[[], list[Example]]] = {
    "embed": _embed,
    "layer_norm": _layer_norm,
    "linear": _linear,
    "gelu": _gelu,
    "mlp": _mlp,
    "causal_attention": _causal_attention,
    "multi_head_attention": _multi_head_attention,
    "block": _block,
    "transformer": _transformer,
    "head": _head,
}
"""The examples of each function whose result is a tensor."""
