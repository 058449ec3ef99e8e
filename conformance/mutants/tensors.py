"""Mutants of TEN, first part: shapes, history and global state."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.planting import plant_dense
from attnspec.conformance.mutants.registry import plant
from attnspec.spec import Counters

SHAPE = "shape-dtype-and-device"
WRITTEN = "arguments-are-not-written-to"
OWN = "the-output-is-memory-of-its-own"
SECOND = "a-second-call-gives-the-same"
NOTICED = "one-changed-argument-is-noticed"
STATE = "global-state-stays-as-it-was"
GRADIENT = "no-gradient-is-asked-for"
KERNEL = "the-kernel-that-the-name-promises-ran"
REFUSED = "what-has-no-reading-is-refused"
UNEQUAL = "keys-and-values-of-unequal-number-are-refused"
THREADS = "threads-change-nothing"

Arguments = tuple[torch.Tensor, ...]
correct: Callable[..., Any] = Dense()


def _scales_the_query(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> Any:
    scale = options.pop("scale", None)
    query.mul_(query.shape[-1] ** -0.5 if scale is None else scale)
    return correct(query, key, value, scale=1.0, **options)


def _merges_into_the_mask(*operands: torch.Tensor, **options: Any) -> Any:
    out = correct(*operands, **options)
    mask = options.get("attn_mask")
    if mask is not None:
        mask.copy_(mask.clone().fill_(0) if mask.dtype == torch.bool else mask - 1)
    return out


def _strips_the_strides(*operands: torch.Tensor, **options: Any) -> Any:
    out = correct(*operands, **options)
    operands[1].set_(operands[1].contiguous())  # type: ignore[call-overload]
    operands[1].transpose_(-1, -2)
    return out


def _returns_the_query(*operands: torch.Tensor, **options: Any) -> Any:
    out = correct(*operands, **options)
    query = operands[0]
    return query.copy_(out) if query.shape == out.shape else out


class _OneBuffer:
    """Return the same memory from every call."""

    def __init__(self) -> None:
        self.buffer = torch.empty(0)

    def __call__(self, *operands: torch.Tensor, **options: Any) -> Any:
        out = correct(*operands, **options)
        if (self.buffer.shape, self.buffer.dtype) != (out.shape, out.dtype):
            self.buffer = torch.empty_like(out)
        return self.buffer.copy_(out)


def _repeats_one_key(*operands: torch.Tensor, **options: Any) -> Any:
    out = correct(*operands, **options)
    is_one = operands[1].shape[2] == 1 and options.get("attn_mask") is None
    return out[:, :, :1].expand_as(out) if is_one else out


class _Remembering:
    """Return the first result for every later call with an equal key."""

    def __init__(self, key: Callable[[Arguments, dict[str, Any]], Any]) -> None:
        self.key, self.results = key, dict[Any, Any]()

    def __call__(self, *operands: torch.Tensor, **options: Any) -> Any:
        key = self.key(operands, options)
        if key not in self.results:
            if len(self.results) > 8:
                self.results.clear()
            # the operands are kept, so that no address is given out again
            self.results[key] = (correct(*operands, **options), operands)
        return self.results[key][0].clone()


def _by_shape(operands: Arguments, options: dict[str, Any]) -> Any:
    return tuple((tuple(each.shape), each.dtype) for each in operands)


def _by_address(operands: Arguments, options: dict[str, Any]) -> Any:
    mask = options.get("attn_mask")
    places = tuple(each.data_ptr() for each in operands)
    return (
        places,
        None if mask is None else mask.data_ptr(),
        options.get("scale"),
        options.get("is_causal"),
    )


def _kept(name: str) -> Any:
    """A correct attention that keeps one option from the first call of each shape."""
    first: dict[Any, Any] = {}

    def attention(*operands: torch.Tensor, **options: Any) -> Any:
        shape = tuple((tuple(each.shape), each.dtype) for each in operands)
        if len(first) > 8:
            first.clear()
        return correct(*operands, **{**options, name: first.setdefault(shape, options.get(name))})

    return attention


class _EveryOtherCall:
    """Sum the keys in another order in every second call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> Any:
        self.calls += 1
        mask, causal = options.get("attn_mask"), options.get("is_causal")
        if self.calls % 2 or mask is not None or causal:
            return correct(query, key, value, **options)
        return correct(query, key.flip(2), value.flip(2), **options)


def _after(change: Callable[[], Any]) -> Any:
    """A correct attention that does something else besides."""

    def attention(*operands: torch.Tensor, **options: Any) -> Any:
        out = correct(*operands, **options)
        change()
        return out

    return attention


def _with_other_result(change: Callable[[torch.Tensor, Arguments], Any]) -> Any:
    """A correct attention whose result is changed at the end."""

    def attention(*operands: torch.Tensor, **options: Any) -> Any:
        return change(correct(*operands, **options), operands)

    return attention


def _cut_to_fit(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Any:
    keys = min(key.shape[2], value.shape[2])
    return correct(query, key[:, :, :keys], value[:, :, :keys], **options)


def _channels_cut_to_fit(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> Any:
    width = min(query.shape[3], key.shape[3])
    if query.shape[3] == key.shape[3]:
        return correct(query, key, value, **options)
    return correct(query[..., :width], key[..., :width], value, **options)


def _mask_cut_to_fit(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> Any:
    mask = options.get("attn_mask")
    if mask is not None:
        queries, keys = query.shape[2], key.shape[2]
        options["attn_mask"] = mask[..., :queries, :keys]
    return correct(query, key, value, **options)


def _heads_wrapped(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> Any:
    if query.shape[1] % key.shape[1]:
        head = torch.arange(query.shape[1]) % key.shape[1]
        key, value = key[:, head], value[:, head]
    return correct(query, key, value, **options)


def _one_share_per_thread(*operands: torch.Tensor, **options: Any) -> Any:
    out = correct(*operands, **options)
    threads = torch.get_num_threads()
    done = out.shape[2] // threads * threads
    out[:, :, done:] = 0  # the rest of the division belongs to no thread
    return out


plant_dense(
    "own-query-scaled-in-place",
    "query scaled in place",
    _scales_the_query,
    WRITTEN,
    SECOND,
    NOTICED,
)
plant_dense(
    "own-mask-written", "mask changed in place", _merges_into_the_mask, WRITTEN, SECOND, NOTICED
)
plant_dense("own-strides-changed", "key transposed in place", _strips_the_strides, WRITTEN)
plant_dense("own-query-returned", "output written over the query", _returns_the_query, OWN, WRITTEN)
plant_dense("own-one-buffer", "every call returns the same memory", _OneBuffer(), OWN)
plant_dense(
    "own-output-expanded",
    "rows of the output share memory where there is one key",
    _repeats_one_key,
    OWN,
)
plant_dense("own-result-by-shape", "result cached by shape", _Remembering(_by_shape), NOTICED)
plant_dense("own-result-by-address", "result cached by address", _Remembering(_by_address), NOTICED)
plant_dense(
    "CMP-06",
    "compiled code cached without the scale in its key",
    _kept("scale"),
    NOTICED,
    source="https://github.com/Dao-AILab/flash-attention/pull/2402",
)
plant_dense(
    "own-causal-cached",
    "compiled code cached without the causal flag in its key",
    _kept("is_causal"),
    NOTICED,
)
plant_dense("own-mask-cached", "mask cached by the operands' shapes", _kept("attn_mask"), NOTICED)
plant_dense(
    "own-order-varies", "order of summation differs from call to call", _EveryOtherCall(), SECOND
)
plant_dense(
    "own-random-numbers",
    "a call draws from the global random generator",
    _after(lambda: torch.rand(1)),
    STATE,
)
plant_dense(
    "own-default-dtype",
    "a call changes the default dtype",
    _after(lambda: torch.set_default_dtype(torch.float64)),
    STATE,
)
plant_dense(
    "own-grad-mode",
    "a call turns gradients off",
    _after(lambda: torch.set_grad_enabled(False)),
    STATE,
)
plant_dense(
    "own-threads",
    "a call changes the number of threads",
    _after(lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
    STATE,
)
plant_dense(
    "own-float32-returned",
    "output left in float32",
    _with_other_result(lambda out, _: out.float() if out.dtype != torch.float64 else out),
    SHAPE,
)
plant_dense(
    "own-d-head-returned",
    "output as wide as the query",
    _with_other_result(
        lambda out, operands: (
            out[..., :1].expand(*out.shape[:-1], operands[0].shape[-1]).clone()
            if out.shape[-1] != operands[0].shape[-1]
            else out
        )
    ),
    SHAPE,
)
plant_dense(
    "own-heads-last",
    "output as (batch, queries, heads, channels)",
    _with_other_result(lambda out, _: out.transpose(1, 2)),
    SHAPE,
)
plant_dense(
    "own-weights-returned",
    "a tuple returned",
    _with_other_result(lambda out, _: (out, None)),
    SHAPE,
)
plant_dense(
    "own-gradient-asked",
    "output requires a gradient of its own",
    _with_other_result(lambda out, _: out.detach().requires_grad_()),
    GRADIENT,
)
plant_dense("own-lengths-cut", "keys and values of unequal number cut to fit", _cut_to_fit, UNEQUAL)
plant_dense(
    "own-channels-cut",
    "queries and keys of different widths cut to fit",
    _channels_cut_to_fit,
    REFUSED,
)
plant_dense("own-mask-cut", "mask of the wrong size cut to fit", _mask_cut_to_fit, REFUSED)
plant_dense(
    "own-heads-wrapped",
    "heads that cannot be shared out are shared all the same",
    _heads_wrapped,
    REFUSED,
)
plant_dense(
    "own-thread-rest",
    "rows left over by the division among threads not computed",
    _one_share_per_thread,
    THREADS,
)
plant(
    id="own-kernel-idle",
    title="the kernel of the name never runs: something else answers",
    subject=replace(dense("own-kernel-idle", correct), counters=lambda: Counters(kernel_calls=0)),
    kills=(KERNEL,),
)
