"""Names of wrong additive attentions: what an output is instead of the mean by additive scores."""

import math
from collections.abc import Callable, Iterator, Mapping

import torch

from attnspec.conformance.operators.gated_mlp.subject import Allowed

Tensors = Mapping[str, torch.Tensor]
Weights = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]

_WIDER = 8.0
"""Factor of the bound within which a result is another function's: names decide no verdict."""


def explanation(got: torch.Tensor, exact: Tensors, expected: Allowed) -> str:
    """Return the name of a wrong output, or an empty string if it has none.

    Args:
        got: the output.
        exact: the operands in float64.
        expected: the right output.
    """
    bound = _WIDER * expected.bound
    wide = torch.float64 if got.dtype == torch.float64 else torch.float32
    for name, wrong in _others(exact, wide):
        near = ((got.double() - wrong).abs() <= bound) | (got.isnan() & wrong.isnan())
        is_other = ((wrong - expected.value).abs() > 4 * bound).any() or wrong.isnan().any()
        if bool(near.all()) and bool(is_other):
            return name
    return ""


def _softmax(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return the weights of real states."""
    return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -torch.inf), -1)


def _mean(
    exact: Tensors,
    squash: Callable[[torch.Tensor], torch.Tensor] = torch.tanh,
    weights: Weights = _softmax,
    scale: float = 1.0,
    shift: torch.Tensor | None = None,
    join: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.add,
) -> torch.Tensor:
    """Return the mean of the values by additive scores, in one of many ways."""
    query = exact["query"] @ exact["w_query"].mT
    key = exact["key"] @ exact["w_key"].mT
    hidden = join(query[:, :, None], key[:, None])
    if shift is not None:
        hidden = hidden + shift
    elif "bias" in exact:
        hidden = hidden + exact["bias"]
    mask = exact["mask"][:, None] if "mask" in exact else None
    return weights(scale * (squash(hidden) @ exact["w_score"]), mask) @ exact["value"]


def _others(exact: Tensors, wide: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the outputs of wrong functions, with their names.

    Args:
        exact: the operands in float64.
        wide: the type of exponentials that may overflow.
    """
    for name, squash in (
        ("the tanh is left out", lambda x: x),
        ("the hidden channels are those of a logistic function", torch.sigmoid),
        ("the hidden channels are those of a ReLU", torch.relu),
    ):
        yield name, _mean(exact, squash)
    for word, width in (("hidden channels", "w_score"), ("channels of a key", "key")):
        root = exact[width].shape[-1] ** 0.5
        yield f"scores are divided by the root of the {word}", _mean(exact, scale=1 / root)
    largest = math.log(torch.finfo(wide).max)
    yield (
        "exponentials inside the tanh overflow",
        _mean(exact, lambda x: torch.where(2 * x > largest, torch.nan, torch.tanh(x))),
    )

    def unshifted(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        hidden = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        masses = hidden.to(wide).exp()
        return (masses / masses.sum(-1, keepdim=True)).double()

    yield (
        "nothing is subtracted from the scores, and exponentials overflow",
        _mean(exact, weights=unshifted),
    )
    yield (
        "the keys of the first text serve all of them",
        _mean(exact, join=lambda query, key: query + key[:1]),
    )
    yield (
        "the mean of all queries of a text is the query",
        _mean(exact, join=lambda query, key: query.mean(1, keepdim=True) + key + 0 * query),
    )
    yield "the softmax runs over the queries", _mean(exact, weights=_over_queries)
    yield "projected queries and keys are multiplied", _mean(exact, join=torch.mul)
    yield (
        "the mean key is subtracted from every key",
        _mean(exact, join=lambda query, key: query + key - key.mean(2, keepdim=True)),
    )
    if "bias" in exact:
        yield "the bias is added twice", _mean(exact, shift=2 * exact["bias"])
        yield "the bias is forgotten", _mean(exact, shift=torch.zeros_like(exact["bias"]))
        outside = _without(exact, "bias")
        bias = exact["bias"]
        yield (
            "the bias is added outside the tanh",
            _mean(outside, lambda x: torch.tanh(x) + bias),
        )
    if "mask" in exact:
        yield "padding is attended like real states", _mean(_without(exact, "mask"))
        for name, weights in (
            ("the mask is read as true for padding", _inverted),
            ("the mask is read as true for padding", _inverted_if_padded),
            ("the score of padding is zero", _zeroed),
            *(
                (f"the score of padding is lowered by {amount}, and may count", _lowered(amount))
                for amount in (1, 100, 10_000)
            ),
            ("padding is hidden after the softmax, and the weights do not sum to one", _cut),
        ):
            yield name, _mean(exact, weights=weights)
    if exact["w_query"].shape == exact["w_key"].shape:
        swapped = {**exact, "w_query": exact["w_key"], "w_key": exact["w_query"]}
        yield "the matrices of queries and keys are swapped", _mean(swapped)


def _without(exact: Tensors, name: str) -> Tensors:
    return {key: each for key, each in exact.items() if key != name}


def _over_queries(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    hidden = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return torch.softmax(hidden, -2).nan_to_num(0.0)


def _inverted(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return _softmax(scores, None if mask is None else ~mask)


def _inverted_if_padded(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    if mask is None:
        return _softmax(scores, mask)
    return _softmax(scores, torch.where(mask.all(-1, keepdim=True), mask, ~mask))


def _zeroed(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return torch.softmax(scores if mask is None else scores * mask, -1)


def _lowered(amount: float) -> Weights:
    def weights(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return torch.softmax(scores if mask is None else scores - amount * ~mask, -1)

    return weights


def _cut(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    weights = torch.softmax(scores, -1)
    return weights if mask is None else weights * mask


def gradient_explanation(
    got: Tensors, exact: Tensors, grad_out: torch.Tensor, expected: Mapping[str, Allowed]
) -> str:
    """Return the name of wrong gradients, or an empty string if they have none.

    Args:
        got: the gradients by operand.
        exact: the operands in float64.
        grad_out: the incoming gradient of the output.
        expected: the right gradients, and the largest distance from them.
    """
    for name, slope in (
        ("the backward pass takes 1 − tanh for the slope of tanh", lambda hidden: 1 - hidden),
        ("the backward pass takes 1 for the slope of tanh", torch.ones_like),
        ("the backward pass takes tanh² for the slope of tanh", torch.square),
    ):
        if _are_near(got, _with_slope(exact, grad_out, slope, expected), expected):
            return name
    for factor, words in ((0.5, "half of"), (2.0, "twice"), (-1.0, "minus"), (0.0, "zero times")):
        scaled = [
            name
            for name, allowed in expected.items()
            if not _are_near(got, {name: allowed.value}, {name: allowed})
        ]
        wrong = {
            name: (factor if name in scaled else 1.0) * allowed.value
            for name, allowed in expected.items()
        }
        if scaled and _are_near(got, wrong, expected):
            return f"the gradient of {' and '.join(scaled)} is {words} the right one"
    return ""


def _are_near(got: Tensors, wrong: Tensors, expected: Mapping[str, Allowed]) -> bool:
    return all(
        bool(((got[name].double() - each).abs() <= _WIDER * expected[name].bound).all())
        for name, each in wrong.items()
    )


def _with_slope(
    exact: Tensors,
    grad_out: torch.Tensor,
    slope: Callable[[torch.Tensor], torch.Tensor],
    expected: Mapping[str, Allowed],
) -> Tensors:
    """Return the gradients if a function of tanh takes the place of its slope."""

    def squash(x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(x).detach()
        return hidden + slope(hidden) * (x - x.detach())

    leaves = {name: exact[name].clone().requires_grad_() for name in expected}
    with torch.enable_grad():
        out = _mean({**exact, **leaves}, squash)
    found = torch.autograd.grad(out, list(leaves.values()), grad_out, allow_unused=True)
    return {
        name: torch.zeros_like(exact[name]) if grad is None else grad
        for name, grad in zip(leaves, found, strict=True)
    }
