"""The online softmax: six ways to the same mean of values, and its backward pass.

Each function takes the scores of some queries and the values of the keys, and returns the output
and the log-sum-exp of each query. They differ in the order of their operations, and thus in the
numbers that have to be held at once. A row without visible keys gives zeros and minus infinity.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float

Scores = Float[torch.Tensor, "queries keys"]
Values = Float[torch.Tensor, "keys d_value"]
Out = Float[torch.Tensor, "queries d_value"]
OfRows = Float[torch.Tensor, " queries"]


def naive(scores: Scores, values: Values) -> tuple[Out, OfRows]:
    """Divide the sum of exponentials times values by the sum of exponentials.

    Args:
        scores: below the logarithm of the largest number, or the exponentials overflow.
        values: any unit.

    Returns:
        The output, and the log-sum-exp.

    Clauses:
        ONL-1, ONL-2
    """
    masses = torch.exp(scores)
    return _divided(masses @ values, masses.sum(dim=-1), torch.zeros_like(masses[:, 0]))


def safe(scores: Scores, values: Values) -> tuple[Out, OfRows]:
    """Subtract the largest score of the row first, so that no exponential exceeds one.

    Args:
        scores: any size; minus infinity hides a value.
        values: any unit.

    Returns:
        The output, and the log-sum-exp.

    Clauses:
        ONL-1 to ONL-4, ONL-7 to ONL-13

    Source:
        Milakov and Gimelshein 2018, algorithm 2
    """
    shift = _finite(scores.amax(dim=-1).detach())
    masses = torch.exp(scores - shift[:, None])
    return _divided(masses @ values, masses.sum(dim=-1), shift)


class Running(NamedTuple):
    """The numbers that each row keeps while its keys are read.

    Attributes:
        maximum: the largest score so far.
        total: the sum of exponentials relative to it.
        out: the sum of exponentials times values, relative to it.
    """

    maximum: OfRows
    total: OfRows
    out: Out


def absorb(running: Running, scores: Scores, values: Values) -> Running:
    r"""Add the keys of a tile to a running result; rescale it if the maximum grows.

    .. math::
        m' = \max(m, \max_j x_j), \qquad
        \ell' = e^{m - m'} \ell + \sum_j e^{x_j - m'}, \qquad
        o' = e^{m - m'} o + \sum_j e^{x_j - m'} v_j

    Args:
        running: of the keys before.
        scores: those of the tile.
        values: those of the tile.

    Returns:
        The running result with these keys.

    Clauses:
        ONL-5, ONL-6

    Source:
        Milakov and Gimelshein 2018, algorithm 3; with outputs Dao et al. 2022
    """
    # a constant for the backward pass, since the result does not depend on it
    maximum = torch.maximum(running.maximum, scores.amax(dim=-1).detach())
    shift = _finite(maximum)
    masses = torch.exp(scores - shift[:, None])
    shrink = torch.exp(running.maximum - shift)
    return Running(
        maximum=maximum,
        total=shrink * running.total + masses.sum(dim=-1),
        out=shrink[:, None] * running.out + masses @ values,
    )


def empty(scores: Scores, values: Values) -> Running:
    """Return the running result before the first key."""
    zero = torch.zeros_like(scores[:, 0])
    nothing = zero[:, None].expand(-1, values.shape[-1])
    return Running(maximum=torch.full_like(zero, -torch.inf), total=zero, out=nothing)


def finish(running: Running) -> tuple[Out, OfRows]:
    """Divide by the sum, once for each row."""
    return _divided(running.out, running.total, _finite(running.maximum))


def online(scores: Scores, values: Values) -> tuple[Out, OfRows]:
    """Read the keys one by one.

    Args:
        scores: any size; minus infinity hides a value.
        values: any unit.

    Returns:
        The output, and the log-sum-exp.

    Clauses:
        ONL-5
    """
    return tiled(scores, values, tile=1)


def tiled(scores: Scores, values: Values, *, tile: int = 4) -> tuple[Out, OfRows]:
    """Read the keys tile by tile; the last tile may be shorter.

    Args:
        scores: any size; minus infinity hides a value.
        values: any unit.
        tile: keys in a tile, at least one.

    Returns:
        The output, and the log-sum-exp.

    Clauses:
        ONL-5, ONL-6
    """
    running = empty(scores, values)
    for start in range(0, scores.shape[-1], tile):
        keys = slice(start, start + tile)
        running = absorb(running, scores[:, keys], values[keys])
    return finish(running)


def merge(
    out_a: Float[torch.Tensor, "*rows d_value"],
    lse_a: Float[torch.Tensor, "*rows"],
    out_b: Float[torch.Tensor, "*rows d_value"],
    lse_b: Float[torch.Tensor, "*rows"],
) -> tuple[Float[torch.Tensor, "*rows d_value"], Float[torch.Tensor, "*rows"]]:
    r"""Merge the results of two sets of keys into that of both.

    .. math::
        L = \log(e^{L_a} + e^{L_b}), \qquad o = e^{L_a - L} o_a + e^{L_b - L} o_b

    Args:
        out_a: the output over the first set.
        lse_a: its log-sum-exp; minus infinity if the set is empty.
        out_b: the output over the second set.
        lse_b: its log-sum-exp.

    Returns:
        The output and the log-sum-exp over both sets.

    Clauses:
        ONL-15 to ONL-21
    """
    shift = _finite(torch.maximum(lse_a, lse_b).detach())
    a, b = torch.exp(lse_a - shift), torch.exp(lse_b - shift)
    return _divided(a[..., None] * out_a + b[..., None] * out_b, a + b, shift)


def split(scores: Scores, values: Values, *, parts: int = 3) -> tuple[Out, OfRows]:
    """Compute runs of keys by themselves, as several processors would, and merge their results.

    Args:
        scores: any size; minus infinity hides a value.
        values: any unit.
        parts: the number of runs, at least one; fewer if there are fewer keys.

    Returns:
        The output, and the log-sum-exp.

    Clauses:
        ONL-15, ONL-17

    Source:
        Dao et al. 2023
    """
    runs = zip(scores.tensor_split(parts, dim=-1), values.tensor_split(parts), strict=True)
    results = [safe(*run) for run in runs if run[0].shape[-1]]
    out, lse = results[0]
    for other in results[1:]:
        out, lse = merge(out, lse, *other)
    return out, lse


def recomputed_gradients(
    scores: Scores, values: Values, out: Out, lse: OfRows, grad_out: Out
) -> tuple[Scores, Values]:
    r"""Compute the gradients from the log-sum-exp, without stored weights.

    .. math::
        p_{ij} = e^{x_{ij} - L_i}, \qquad D_i = g_i \cdot o_i, \qquad
        dx_{ij} = p_{ij} (g_i \cdot v_j - D_i), \qquad dv_j = \sum_i p_{ij} g_i

    Args:
        scores: of the forward pass; they may be computed again, tile by tile.
        values: of the forward pass.
        out: the result.
        lse: the log-sum-exp: all that a row needs to recompute its weights.
        grad_out: the incoming gradient, g.

    Returns:
        The gradients of scores and values.

    Clauses:
        ONL-14

    Source:
        Dao et al. 2022, algorithm 4
    """
    weights = torch.exp(scores - _finite(lse)[:, None])
    of_row = (grad_out * out).sum(dim=-1)
    return weights * (grad_out @ values.mT - of_row[:, None]), weights.mT @ grad_out


class _Recomputing(torch.autograd.Function):
    """The forward pass by tiles, and the backward pass from the log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, scores: Scores, values: Values) -> tuple[Out, OfRows]:
        out, lse = tiled(scores, values)
        ctx.save_for_backward(scores, values, out, lse)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Scores, Values]:
        scores, values, out, lse = ctx.saved_tensors
        return recomputed_gradients(scores, values, out, lse, grads[0])


def recomputing(scores: Scores, values: Values) -> tuple[Out, OfRows]:
    """Read the keys tile by tile, and keep nothing but output and log-sum-exp for the gradients.

    Args:
        scores: any size; minus infinity hides a value.
        values: any unit.

    Returns:
        The output, and the log-sum-exp, which has no gradient.

    Clauses:
        ONL-14
    """
    result: tuple[Out, OfRows] = _Recomputing.apply(scores, values)  # type: ignore[no-untyped-call]
    return result


def tiled_attention(
    query: Float[torch.Tensor, "queries d_head"],
    key: Float[torch.Tensor, "keys d_head"],
    value: Float[torch.Tensor, "keys d_value"],
    *,
    scale: float,
    tile: int,
) -> tuple[Out, OfRows]:
    """Compute attention of one head with the scores of one tile at a time.

    Args:
        query: dimensionless.
        key: dimensionless.
        value: any unit.
        scale: multiplies the scores.
        tile: queries and keys in a tile, at least one.

    Returns:
        The output, and the log-sum-exp.

    Clauses:
        ONL-5

    Source:
        Dao 2023, algorithm 1
    """
    results = []
    for rows in query.split(tile):
        running = empty(query.new_empty(len(rows), 1), value)
        for keys, values in zip(key.split(tile), value.split(tile), strict=True):
            running = absorb(running, scale * (rows @ keys.mT), values)
        results.append(finish(running))
    outs, lses = zip(*results, strict=True)
    return torch.cat(outs), torch.cat(lses)


def _finite(shift: Float[torch.Tensor, "*rows"]) -> Float[torch.Tensor, "*rows"]:
    """Return zero for minus infinity, from which nothing can be subtracted."""
    return torch.where(shift == -torch.inf, 0.0, shift)


def _divided(
    out: Float[torch.Tensor, "*rows d_value"],
    total: Float[torch.Tensor, "*rows"],
    shift: Float[torch.Tensor, "*rows"],
) -> tuple[Float[torch.Tensor, "*rows d_value"], Float[torch.Tensor, "*rows"]]:
    """Return output and log-sum-exp of sums relative to a shift; zeros if nothing was added."""
    divisor = torch.where(total == 0, 1.0, total)
    lse = torch.where(total == 0, -torch.inf, shift + torch.log(divisor))
    return out / divisor[..., None], lse
