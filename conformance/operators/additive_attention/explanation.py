"""Names of wrong additive attentions: what an output is instead of the mean by additive scores."""

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
    for name, wrong in _others(exact):
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


def _others(exact: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the outputs of wrong functions, with their names."""
    for name, squash in (
        ("the tanh is left out", lambda x: x),
        ("the hidden channels are those of a logistic function", torch.sigmoid),
        ("the hidden channels are those of a ReLU", torch.relu),
    ):
        yield name, _mean(exact, squash)
    for word, width in (("hidden channels", "w_score"), ("channels of a key", "key")):
        root = exact[width].shape[-1] ** 0.5
        yield f"scores are divided by the root of the {word}", _mean(exact, scale=1 / root)
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


def _cut(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    weights = torch.softmax(scores, -1)
    return weights if mask is None else weights * mask
