"""Mutants of TEN: shapes, history and global state."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.mutants.planting import mistake, plant_dense
from attnspec.conformance.mutants.registry import plant
from attnspec.spec import Counters, Feature

Arguments = tuple[torch.Tensor, ...]
correct: Callable[..., Any] = Dense()


@mistake(
    "own-query-scaled-in-place",
    "query scaled in place",
    killed_by="arguments-are-not-written-to",
)
def _scales_the_query(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> Any:
    scale = options.pop("scale", None)
    query.mul_(query.shape[-1] ** -0.5 if scale is None else scale)
    return correct(query, key, value, scale=1.0, **options)


@mistake(
    "own-mask-written",
    "mask changed in place",
    killed_by="arguments-are-not-written-to",
)
def _merges_into_the_mask(*operands: torch.Tensor, **options: Any) -> Any:
    out = correct(*operands, **options)
    mask = options.get("attn_mask")
    if mask is not None:
        mask.copy_(mask.clone().fill_(0) if mask.dtype == torch.bool else mask - 1)
    return out


@mistake(
    "own-strides-changed",
    "key transposed in place",
    killed_by="arguments-are-not-written-to",
)
def _strips_the_strides(*operands: torch.Tensor, **options: Any) -> Any:
    out = correct(*operands, **options)
    operands[1].set_(operands[1].contiguous())  # type: ignore[call-overload]
    operands[1].transpose_(-1, -2)
    return out


@mistake(
    "own-query-returned",
    "output written over the query",
    killed_by="the-output-has-memory-of-its-own",
)
def _returns_the_query(*operands: torch.Tensor, **options: Any) -> Any:
    out = correct(*operands, **options)
    query = operands[0]
    return query.copy_(out) if query.shape == out.shape else out


@mistake(
    "own-one-buffer",
    "every call returns the same memory",
    killed_by="the-output-has-memory-of-its-own",
)
class OneBuffer:
    """An attention that returns the same memory from every call."""

    def __init__(self) -> None:
        self.buffer = torch.empty(0)

    def __call__(self, *operands: torch.Tensor, **options: Any) -> Any:
        out = correct(*operands, **options)
        if (self.buffer.shape, self.buffer.dtype) != (out.shape, out.dtype):
            self.buffer = torch.empty_like(out)
        return self.buffer.copy_(out)


@mistake(
    "own-output-expanded",
    "rows of the output share memory where there is one key",
    killed_by="the-output-has-memory-of-its-own",
)
def _repeats_one_key(*operands: torch.Tensor, **options: Any) -> Any:
    out = correct(*operands, **options)
    is_one = operands[1].shape[2] == 1 and options.get("attn_mask") is None
    return out[:, :, :1].expand_as(out) if is_one else out


class CachedResult:
    """An attention that returns its first result for every later call with an equal key."""

    def __init__(self, key: Callable[[Arguments, dict[str, Any]], Any]) -> None:
        self.key, self.results = key, dict[Any, Any]()

    def __call__(self, *operands: torch.Tensor, **options: Any) -> Any:
        key = self.key(operands, options)
        if key not in self.results:
            if len(self.results) > 8:
                self.results.clear()
            # the operands are kept, so that no address is reused
            self.results[key] = (correct(*operands, **options), operands)
        return self.results[key][0].clone()


def _by_shape(operands: Arguments, options: dict[str, Any]) -> Any:
    return tuple((tuple(operand.shape), operand.dtype) for operand in operands)


plant_dense(
    "own-result-by-shape",
    "result cached by shape",
    CachedResult(_by_shape),
    killed_by="a-changed-argument-changes-the-result",
)


def _by_address(operands: Arguments, options: dict[str, Any]) -> Any:
    mask = options.get("attn_mask")
    addresses = tuple(operand.data_ptr() for operand in operands)
    return (
        addresses,
        None if mask is None else mask.data_ptr(),
        options.get("scale"),
        options.get("is_causal"),
    )


plant_dense(
    "own-result-by-address",
    "result cached by address",
    CachedResult(_by_address),
    killed_by="a-changed-argument-changes-the-result",
)


def _kept(name: str) -> Any:
    """Return an attention that keeps an option from the first call of each shape."""
    first: dict[Any, Any] = {}

    def attention(*operands: torch.Tensor, **options: Any) -> Any:
        shape = tuple((tuple(operand.shape), operand.dtype) for operand in operands)
        if len(first) > 8:
            first.clear()
        return correct(*operands, **{**options, name: first.setdefault(shape, options.get(name))})

    return attention


plant_dense(
    "CMP-06",
    "compiled code cached without the scale in its key",
    _kept("scale"),
    killed_by="a-changed-argument-changes-the-result",
    source="https://github.com/Dao-AILab/flash-attention/pull/2402",
)
plant_dense(
    "own-causal-cached",
    "compiled code cached without the causal flag in its key",
    _kept("is_causal"),
    killed_by="a-changed-argument-changes-the-result",
)
plant_dense(
    "own-mask-cached",
    "mask cached by the operands' shapes",
    _kept("attn_mask"),
    killed_by="a-changed-argument-changes-the-result",
)


@mistake(
    "own-order-varies",
    "order of summation differs from call to call",
    killed_by="repeated-calls-give-equal-results",
)
class OrderVaries:
    """An attention that reverses the order of keys in every second call."""

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


def _with_side_effect(change: Callable[[], Any]) -> Any:
    """Return an attention with a side effect."""

    def attention(*operands: torch.Tensor, **options: Any) -> Any:
        out = correct(*operands, **options)
        change()
        return out

    return attention


plant_dense(
    "own-random-numbers",
    "a call draws from the global random generator",
    _with_side_effect(lambda: torch.rand(1)),
    killed_by="global-state-is-unchanged",
)
plant_dense(
    "own-default-dtype",
    "a call changes the default dtype",
    _with_side_effect(lambda: torch.set_default_dtype(torch.float64)),
    killed_by="global-state-is-unchanged",
)
plant_dense(
    "own-grad-mode",
    "a call turns gradients off",
    _with_side_effect(lambda: torch.set_grad_enabled(False)),
    killed_by="global-state-is-unchanged",
)
plant_dense(
    "own-threads",
    "a call changes the number of threads",
    _with_side_effect(lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
    killed_by="global-state-is-unchanged",
)


def _with_changed_result(change: Callable[[torch.Tensor, Arguments], Any]) -> Any:
    """Return an attention whose result is changed at the end."""

    def attention(*operands: torch.Tensor, **options: Any) -> Any:
        return change(correct(*operands, **options), operands)

    return attention


plant_dense(
    "own-float32-returned",
    "output left in float32",
    _with_changed_result(lambda out, _: out.float() if out.dtype != torch.float64 else out),
    killed_by="shape-dtype-and-device",
)
plant_dense(
    "own-d-head-returned",
    "output as wide as the query",
    _with_changed_result(
        lambda out, operands: (
            out[..., :1].expand(*out.shape[:-1], operands[0].shape[-1]).clone()
            if out.shape[-1] != operands[0].shape[-1]
            else out
        )
    ),
    killed_by="shape-dtype-and-device",
)
plant_dense(
    "own-heads-last",
    "output as (batch, queries, heads, channels)",
    _with_changed_result(lambda out, _: out.transpose(1, 2)),
    killed_by="shape-dtype-and-device",
)
plant_dense(
    "own-weights-returned",
    "a tuple returned",
    _with_changed_result(lambda out, _: (out, None)),
    killed_by="shape-dtype-and-device",
)
plant_dense(
    "own-gradient-asked",
    "output requires a gradient although no argument does",
    _with_changed_result(lambda out, _: out.detach().requires_grad_()),
    killed_by="no-gradient-is-required-unless-an-argument-requires-one",
)


@mistake(
    "own-lengths-cut",
    "keys and values of unequal number cut to fit",
    killed_by="keys-and-values-of-unequal-number-are-refused",
    features={Feature.VALIDATES},
)
def _cut_to_fit(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Any:
    keys = min(key.shape[2], value.shape[2])
    return correct(query, key[:, :, :keys], value[:, :, :keys], **options)


@mistake(
    "own-channels-cut",
    "queries and keys of different widths cut to fit",
    killed_by="misshapen-arguments-are-refused",
    features={Feature.VALIDATES},
)
def _channels_cut_to_fit(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> Any:
    width = min(query.shape[3], key.shape[3])
    if query.shape[3] == key.shape[3]:
        return correct(query, key, value, **options)
    return correct(query[..., :width], key[..., :width], value, **options)


@mistake(
    "own-mask-cut",
    "mask of the wrong size cut to fit",
    killed_by="misshapen-arguments-are-refused",
    features={Feature.VALIDATES},
)
def _mask_cut_to_fit(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> Any:
    mask = options.get("attn_mask")
    if mask is not None:
        queries, keys = query.shape[2], key.shape[2]
        options["attn_mask"] = mask[..., :queries, :keys]
    return correct(query, key, value, **options)


@mistake(
    "own-heads-wrapped",
    "heads that cannot be shared out are shared all the same",
    killed_by="misshapen-arguments-are-refused",
    features={Feature.VALIDATES},
)
def _heads_wrapped(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> Any:
    if query.shape[1] % key.shape[1]:
        head = torch.arange(query.shape[1]) % key.shape[1]
        key, value = key[:, head], value[:, head]
    return correct(query, key, value, **options)


@mistake(
    "own-thread-rest",
    "rows left over by the division among threads not computed",
    killed_by="threads-change-nothing",
)
def _one_share_per_thread(*operands: torch.Tensor, **options: Any) -> Any:
    out = correct(*operands, **options)
    threads = torch.get_num_threads()
    computed = out.shape[2] // threads * threads
    out[:, :, computed:] = 0  # the remainder belongs to no thread
    return out


plant(
    id="own-kernel-idle",
    title="the kernel of the name never runs: something else answers",
    subject=replace(dense("own-kernel-idle", correct), counters=lambda: Counters(kernel_calls=0)),
    killed_by="the-promised-kernel-runs",
)
