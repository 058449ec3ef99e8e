"""Flash attention in Triton, forward and backward, written to be read.

A *program* (a thread block on a GPU) owns one tile of rows of one head, and walks over the tiles of
keys, or of queries, that these rows need. It never stores the matrix of scores: in the forward pass
it keeps the running maximum and the running sum of each row's exponentials, and rescales what it
has accumulated whenever the maximum grows; in the backward pass it recomputes the weights from the
log-sum-exp that the forward pass has stored (Dao et al. 2022; the split of the backward pass into
one kernel for keys and values and one for queries is that of Dao 2023). Each result is written by
one program, so that no sum depends on the order in which programs run.

Triton's interpreter runs the same code with NumPy, on a CPU and without a compiler, if
`TRITON_INTERPRET=1` is set before this module is imported. It cannot show: products in TensorFloat
and the rounding of tensor cores, which this code must ask for or declare; races, since programs run
one after another; a tile that needs more registers or shared memory than there are; alignment
hints that are wrong; code that the compiler refuses; and arithmetic in bfloat16, which it does not
have (`readable`).
"""

import threading
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float

NARROWEST = 16
"""The smallest number of rows, and of channels, in a tile: `tl.dot` multiplies none smaller."""

WIDEST = 64
"""The largest number of rows in a tile."""

TILE_BYTES = 16384
"""The memory that a tile may take: some six are held at once, in 100 KiB of shared memory."""


@triton.jit
def _forward(
    query, key, value, out, lse,
    query_batch, query_head, query_row, query_channel,
    key_batch, key_head, key_row, key_channel,
    value_batch, value_head, value_row, value_channel,
    scale, heads, group, queries, keys, d_head, d_value,
    IS_CAUSAL: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr, VALUE: tl.constexpr,
):  # fmt: skip
    """Attend for one tile of queries of one head.

    Args:
        query: (batch, heads, queries, d_head); the four strides of each input follow the tensors.
        key: (batch, heads / group, keys, d_head).
        value: (batch, heads / group, keys, d_value).
        out: (batch, heads, queries, d_value), contiguous; a result.
        lse: (batch, heads, queries), contiguous; a result, the log-sum-exp.
        scale: multiplies the scores.
        group: the number of query heads that share a head of keys and values.
        IS_CAUSAL: a query reads the keys up to its own position.
        ROWS: the queries, and the keys, in a tile.
        HEAD: the channels of a tile that holds `d_head` of them, a power of two.
        VALUE: likewise of `d_value`.
    """
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    query += batch * query_batch + head * query_head
    key += batch * key_batch + (head // group) * key_head
    value += batch * value_batch + (head // group) * value_head
    flat = (batch * heads + head) * queries

    # positions in the sequence, not in the tile; 64 bits hold their products with strides
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    is_row = rows[:, None] < queries
    channels, value_channels = tl.arange(0, HEAD)[None, :], tl.arange(0, VALUE)[None, :]
    is_channel, is_value_channel = channels < d_head, value_channels < d_value
    places = rows[:, None] * query_row + channels * query_channel
    q = tl.load(query + places, mask=is_row & is_channel, other=0.0)

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    context = tl.zeros([ROWS, VALUE], tl.float32)
    end = keys
    if IS_CAUSAL:  # no row of this tile reads a key that follows the tile's last row
        end = tl.minimum(keys, (tl.program_id(0) + 1) * ROWS)
    for first in range(0, end, ROWS):
        columns = first + tl.arange(0, ROWS).to(tl.int64)
        is_key = columns[:, None] < keys
        places = columns[:, None] * key_row + channels * key_channel
        k = tl.load(key + places, mask=is_key & is_channel, other=0.0)
        places = columns[:, None] * value_row + value_channels * value_channel
        v = tl.load(value + places, mask=is_key & is_value_channel, other=0.0)

        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        visible = columns[None, :] < keys
        if IS_CAUSAL:
            visible = visible & (columns[None, :] <= rows[:, None])
        scores = tl.where(visible, scores, float("-inf"))

        new_largest = tl.maximum(largest, tl.max(scores, 1))
        # a row that has read nothing keeps weights of zero: inf - inf would be NaN
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        rescale = tl.exp(largest - shift)
        weights = tl.exp(scores - shift[:, None])
        total = total * rescale + tl.sum(weights, 1)
        context = context * rescale[:, None]
        context += tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        largest = new_largest

    total = tl.where(largest == float("-inf"), 1.0, total)
    places = (flat + rows[:, None]) * d_value + value_channels
    context = (context / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + places, context, mask=is_row & is_value_channel)
    tl.store(lse + flat + rows, largest + tl.log(total), mask=rows < queries)


@triton.jit
def _row_sums(
    out, grad_out, grad_lse, sums,
    grad_out_batch, grad_out_head, grad_out_row, grad_out_channel,
    heads, queries, d_value,
    ROWS: tl.constexpr, VALUE: tl.constexpr,
):  # fmt: skip
    """Sum what the softmax subtracts from the gradients of a row, for one tile of queries.

    This is the sum of dP · P over the keys, which equals the sum of dO · O over the channels. A
    gradient of the log-sum-exp adds to the gradient of every score, so it is subtracted here.

    Args:
        out: (batch, heads, queries, d_value), contiguous, from the forward pass.
        grad_out: likewise, of any strides; the incoming gradient.
        grad_lse: (batch, heads, queries), contiguous; the incoming gradient of the log-sum-exp.
        sums: likewise; the result.
    """
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    grad_out += batch * grad_out_batch + head * grad_out_head
    flat = (batch * heads + head) * queries

    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    channels = tl.arange(0, VALUE)[None, :]
    inside = (rows[:, None] < queries) & (channels < d_value)
    o = tl.load(out + (flat + rows[:, None]) * d_value + channels, mask=inside, other=0.0)
    places = rows[:, None] * grad_out_row + channels * grad_out_channel
    d_o = tl.load(grad_out + places, mask=inside, other=0.0)
    total = tl.sum(o.to(tl.float32) * d_o.to(tl.float32), 1)
    total -= tl.load(grad_lse + flat + rows, mask=rows < queries, other=0.0)
    tl.store(sums + flat + rows, total, mask=rows < queries)


@triton.jit
def _score_gradients(q, k, v, d_o, row_lse, row_sum, visible, scale):
    """Recompute the weights of a tile, and return them with the gradients of its scores.

    Args:
        q: (rows, d_head).
        k: (columns, d_head).
        v: (columns, d_value).
        d_o: (rows, d_value), the incoming gradient.
        row_lse: (rows,), the log-sum-exp.
        row_sum: (rows,), from `_row_sums`.
        visible: (rows, columns).
        scale: multiplies the scores.

    Returns:
        (rows, columns) each: weights, and gradients of the products of `q` and `k`.
    """
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    # before the exponential, which overflows where a hidden score is far above the visible ones
    scores = tl.where(visible, scores, float("-inf"))
    weights = tl.exp(scores - row_lse[:, None])
    d_weights = tl.dot(d_o, tl.trans(v), input_precision="ieee")
    d_scores = weights * (d_weights - row_sum[:, None]) * scale
    return weights, tl.where(visible, d_scores, 0.0)


@triton.jit
def _backward_keys(
    query, key, value, lse, grad_out, sums, grad_key, grad_value,
    query_batch, query_head, query_row, query_channel,
    key_batch, key_head, key_row, key_channel,
    value_batch, value_head, value_row, value_channel,
    grad_out_batch, grad_out_head, grad_out_row, grad_out_channel,
    scale, heads, group, queries, keys, d_head, d_value,
    IS_CAUSAL: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr, VALUE: tl.constexpr,
):  # fmt: skip
    """Compute dK and dV for one tile of keys of one key/value head, summed over its group.

    Args:
        query: as of `_forward`, and so on.
        lse: (batch, heads, queries), contiguous, from the forward pass.
        grad_out: (batch, heads, queries, d_value), the incoming gradient.
        sums: (batch, heads, queries), contiguous, from `_row_sums`.
        grad_key: (batch, heads / group, keys, d_head), contiguous; a result.
        grad_value: (batch, heads / group, keys, d_value), contiguous; a result.
    """
    kv_heads = heads // group
    batch = (tl.program_id(1) // kv_heads).to(tl.int64)
    kv_head = (tl.program_id(1) % kv_heads).to(tl.int64)
    key += batch * key_batch + kv_head * key_head
    value += batch * value_batch + kv_head * value_head
    flat_keys = (batch * kv_heads + kv_head) * keys

    columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    is_key = columns[:, None] < keys
    channels, value_channels = tl.arange(0, HEAD)[None, :], tl.arange(0, VALUE)[None, :]
    is_channel, is_value_channel = channels < d_head, value_channels < d_value
    places = columns[:, None] * key_row + channels * key_channel
    k = tl.load(key + places, mask=is_key & is_channel, other=0.0)
    places = columns[:, None] * value_row + value_channels * value_channel
    v = tl.load(value + places, mask=is_key & is_value_channel, other=0.0)

    d_k = tl.zeros([ROWS, HEAD], tl.float32)
    d_v = tl.zeros([ROWS, VALUE], tl.float32)
    start = 0
    if IS_CAUSAL:  # no query before the tile's first key reads any key of the tile
        start = tl.program_id(0) * ROWS
    for member in range(0, group):
        head = kv_head * group + member
        head_query = query + batch * query_batch + head * query_head
        head_grad_out = grad_out + batch * grad_out_batch + head * grad_out_head
        flat = (batch * heads + head) * queries
        for first in range(start, queries, ROWS):
            rows = first + tl.arange(0, ROWS).to(tl.int64)
            is_row = rows[:, None] < queries
            places = rows[:, None] * query_row + channels * query_channel
            q = tl.load(head_query + places, mask=is_row & is_channel, other=0.0)
            places = rows[:, None] * grad_out_row + value_channels * grad_out_channel
            d_o = tl.load(head_grad_out + places, mask=is_row & is_value_channel, other=0.0)
            row_lse = tl.load(lse + flat + rows, mask=rows < queries, other=0.0)
            row_sum = tl.load(sums + flat + rows, mask=rows < queries, other=0.0)
            # rows behind the last one are hidden too: zero times a NaN in a key is NaN
            visible = is_row & (columns[None, :] < keys)
            if IS_CAUSAL:
                visible = visible & (columns[None, :] <= rows[:, None])
            weights, d_scores = _score_gradients(q, k, v, d_o, row_lse, row_sum, visible, scale)
            d_v += tl.dot(tl.trans(weights.to(d_o.dtype)), d_o, input_precision="ieee")
            d_k += tl.dot(tl.trans(d_scores.to(q.dtype)), q, input_precision="ieee")

    places = (flat_keys + columns[:, None]) * d_head + channels
    tl.store(grad_key + places, d_k.to(grad_key.dtype.element_ty), mask=is_key & is_channel)
    places = (flat_keys + columns[:, None]) * d_value + value_channels
    d_v = d_v.to(grad_value.dtype.element_ty)
    tl.store(grad_value + places, d_v, mask=is_key & is_value_channel)


@triton.jit
def _backward_queries(
    query, key, value, lse, grad_out, sums, grad_query,
    query_batch, query_head, query_row, query_channel,
    key_batch, key_head, key_row, key_channel,
    value_batch, value_head, value_row, value_channel,
    grad_out_batch, grad_out_head, grad_out_row, grad_out_channel,
    scale, heads, group, queries, keys, d_head, d_value,
    IS_CAUSAL: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr, VALUE: tl.constexpr,
):  # fmt: skip
    """Compute dQ for one tile of queries of one head.

    Args:
        query: as of `_backward_keys`, and so on.
        grad_query: (batch, heads, queries, d_head), contiguous; the result.
    """
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    query += batch * query_batch + head * query_head
    key += batch * key_batch + (head // group) * key_head
    value += batch * value_batch + (head // group) * value_head
    grad_out += batch * grad_out_batch + head * grad_out_head
    flat = (batch * heads + head) * queries

    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    is_row = rows[:, None] < queries
    channels, value_channels = tl.arange(0, HEAD)[None, :], tl.arange(0, VALUE)[None, :]
    is_channel, is_value_channel = channels < d_head, value_channels < d_value
    places = rows[:, None] * query_row + channels * query_channel
    q = tl.load(query + places, mask=is_row & is_channel, other=0.0)
    places = rows[:, None] * grad_out_row + value_channels * grad_out_channel
    d_o = tl.load(grad_out + places, mask=is_row & is_value_channel, other=0.0)
    row_lse = tl.load(lse + flat + rows, mask=rows < queries, other=0.0)
    row_sum = tl.load(sums + flat + rows, mask=rows < queries, other=0.0)

    d_q = tl.zeros([ROWS, HEAD], tl.float32)
    end = keys
    if IS_CAUSAL:
        end = tl.minimum(keys, (tl.program_id(0) + 1) * ROWS)
    for first in range(0, end, ROWS):
        columns = first + tl.arange(0, ROWS).to(tl.int64)
        is_key = columns[:, None] < keys
        places = columns[:, None] * key_row + channels * key_channel
        k = tl.load(key + places, mask=is_key & is_channel, other=0.0)
        places = columns[:, None] * value_row + value_channels * value_channel
        v = tl.load(value + places, mask=is_key & is_value_channel, other=0.0)
        visible = columns[None, :] < keys
        if IS_CAUSAL:
            visible = visible & (columns[None, :] <= rows[:, None])
        _, d_scores = _score_gradients(q, k, v, d_o, row_lse, row_sum, visible, scale)
        d_q += tl.dot(d_scores.to(k.dtype), k, input_precision="ieee")

    places = (flat + rows[:, None]) * d_head + channels
    tl.store(grad_query + places, d_q.to(grad_query.dtype.element_ty), mask=is_row & is_channel)


IS_INTERPRETED = not isinstance(_forward, triton.runtime.JITFunction)
"""Whether this module was imported with `TRITON_INTERPRET=1`."""

_INTERPRETER = threading.Lock()
"""Held in a launch: the interpreter has one grid, and patches `triton.language` while it runs."""


def _rows(width: int, dtype: torch.dtype) -> int:
    """Return the rows of a tile of so many channels.

    Under the interpreter these are few, so that short sequences have several tiles.
    """
    if IS_INTERPRETED:
        return NARROWEST
    return max(NARROWEST, min(WIDEST, TILE_BYTES // (width * dtype.itemsize)))


def _channels(width: int) -> int:
    """Return the channels of a tile that holds so many: a power of two."""
    return max(NARROWEST, int(triton.next_power_of_2(width)))


def readable(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensors, under the interpreter in float32 if they are bfloat16.

    The interpreter computes with the bit patterns of bfloat16, and truncates in conversions to it.
    """
    if not IS_INTERPRETED:
        return tensors
    return tuple(x.float() if x.dtype == torch.bfloat16 else x for x in tensors)


def _launch(kernel: Any, grid: tuple[int, int], *arguments: Any, **constants: Any) -> None:
    """Run a kernel on the device of its first argument, once for each element of the grid."""
    if 0 in grid:
        return
    if IS_INTERPRETED:
        with _INTERPRETER:
            kernel[grid](*arguments, **constants)
        return
    with torch.cuda.device(arguments[0].device):
        kernel[grid](*arguments, **constants, num_warps=4, num_stages=2)


class FlashAttention(torch.autograd.Function):
    """The kernels as one step of autograd: `apply(query, key, value, scale, is_causal)`."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        scale: float,
        is_causal: bool,
    ) -> tuple[
        Float[torch.Tensor, "batch heads queries d_value"],
        Float[torch.Tensor, "batch heads queries"],
    ]:
        """Return the output, in the type of `value`, and the log-sum-exp, in float32."""
        q, k, v = readable(query, key, value)
        batch, heads, queries, d_head = q.shape
        kv_heads, keys, d_value = v.shape[1:]
        out = v.new_empty(batch, heads, queries, d_value)
        lse = v.new_empty(batch, heads, queries, dtype=torch.float32)
        head, width = _channels(d_head), _channels(d_value)
        rows = _rows(max(head, width), q.dtype)
        _launch(
            _forward,
            (triton.cdiv(queries, rows), batch * heads),
            *(q, k, v, out, lse, *q.stride(), *k.stride(), *v.stride()),
            *(scale, heads, heads // max(kv_heads, 1), queries, keys, d_head, d_value),
            **{"IS_CAUSAL": is_causal, "ROWS": rows, "HEAD": head, "VALUE": width},
        )
        out = out.to(value.dtype)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.scale, ctx.is_causal = scale, is_causal
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any,
        grad_out: Float[torch.Tensor, "batch heads queries d_value"],
        grad_lse: Float[torch.Tensor, "batch heads queries"],
    ) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of query, key and value, in their types."""
        *saved, lse = ctx.saved_tensors
        query, key, value, out, grad_out = readable(*saved, grad_out)
        batch, heads, queries, d_head = query.shape
        kv_heads, keys, d_value = value.shape[1:]
        head, width = _channels(d_head), _channels(d_value)
        rows = _rows(max(head, width), query.dtype)
        sums = torch.empty_like(lse)
        tiles = triton.cdiv(queries, rows), batch * heads
        _launch(
            _row_sums,
            tiles,
            *(out, grad_out, grad_lse.contiguous(), sums, *grad_out.stride()),
            *(heads, queries, d_value),
            **{"ROWS": rows, "VALUE": width},
        )
        grad_query, grad_key, grad_value = (x.new_empty(x.shape) for x in (query, key, value))
        inputs = (query, key, value, lse, grad_out, sums)
        numbers = (
            *(*query.stride(), *key.stride(), *value.stride(), *grad_out.stride()),
            *(ctx.scale, heads, heads // max(kv_heads, 1), queries, keys, d_head, d_value),
        )
        constants = {"IS_CAUSAL": ctx.is_causal, "ROWS": rows, "HEAD": head, "VALUE": width}
        tiles_of_keys = triton.cdiv(keys, rows), batch * kv_heads
        _launch(_backward_keys, tiles_of_keys, *inputs, grad_key, grad_value, *numbers, **constants)
        _launch(_backward_queries, tiles, *inputs, grad_query, *numbers, **constants)
        gradients = (x.to(saved[0].dtype) for x in (grad_query, grad_key, grad_value))
        return *gradients, None, None
