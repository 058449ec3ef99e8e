"""`torch.compile` of a hand-written attention: one graph, dynamic shapes, code by inductor.

torch specializes compiled code to sizes 0 and 1, to equal sizes, to strides, flags and grad mode,
and past a limit of such variants it silently runs the function uncompiled. Here the compiled
function receives one canonical form (rank 3, contiguous, every size at least two, all options as
tensors), so there is one variant per storage type, with and without gradients, for up to 4096 keys
and for more, and for each state of torch that is looked at: the default dtype, and whether
algorithms are to be deterministic. Each variant is compiled before its first use, and every run of
compiled code is counted.
"""

import os
import shutil
import sysconfig
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int

from attnspec.implementations.arguments import check
from attnspec.spec import (
    Attention,
    Case,
    Counters,
    Deviation,
    Feature,
    Implementation,
    MaskedNonfinite,
    Profile,
)

VARIANTS = 128
"""The limit of variants that torch compiles; to exceed it is an error here."""


def formula(
    query: Float[torch.Tensor, "groups rows d_head"],
    key: Float[torch.Tensor, "groups keys d_head"],
    value: Float[torch.Tensor, "groups keys d_value"],
    bias: Float[torch.Tensor, "groups rows keys"],
    last: Int[torch.Tensor, " rows"],
    scale: Float[torch.Tensor, ""],
) -> Float[torch.Tensor, "groups rows d_value"]:
    """Attend, with every intermediate in the type of `bias`.

    Args:
        query: a row for each query of each head that shares a key/value head.
        key: one row per key.
        value: one row per key.
        bias: added to the scaled scores; minus infinity where a row may not read a key.
        last: the last key that a row may read.
        scale: multiplies the scores.
    """
    wide = bias.dtype
    scores = (query.to(wide) @ key.to(wide).mT) * scale + bias
    place = torch.arange(key.shape[1], device=key.device)
    visible = (place <= last[:, None]) & (bias != -torch.inf)
    empty = ~visible.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(~visible, -torch.inf).masked_fill(empty, 0.0)
    weights = scores.softmax(dim=-1).masked_fill(empty, 0.0)
    return (weights @ value.to(wide)).to(value.dtype)


class Compiled:
    """An attention whose core is compiled on first use, and whose compiled runs are counted."""

    def __init__(self) -> None:
        """Start without compiled code."""
        self._core: Callable[..., torch.Tensor] | None = None
        self._primed: set[tuple[torch.dtype, bool, torch.device]] = set()
        self._runs = 0
        self._seconds = 0.0

    def counters(self) -> Counters:
        """Return the runs of compiled code and the seconds of compilation in this process."""
        return Counters(kernel_calls=self._runs, compile_seconds=self._seconds)

    def __call__(
        self,
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Float[torch.Tensor, "batch heads queries d_value"]:
        """Convert the arguments to the canonical form, run the compiled code, and convert back.

        Raises:
            ValueError: if shapes do not fit together, or dropout is requested.
        """
        check(query, key, value, attn_mask, enable_gqa=enable_gqa)
        if dropout_p:
            raise ValueError(f"dropout_p must be 0, got {dropout_p}")
        batch, heads, queries, d_head = query.shape
        kv_heads, keys, d_value = value.shape[1:]
        groups, rows = batch * kv_heads, (heads // kv_heads if kv_heads else 1) * queries
        if scale is None:
            scale = d_head**-0.5 if d_head else 1.0
        arguments = (
            _padded(query.reshape(groups, rows, d_head)),
            _padded(key.reshape(groups, keys, d_head)),
            _padded(value.reshape(groups, keys, d_value)),
            _padded(_bias(attn_mask, query, keys).reshape(groups, rows, keys), -torch.inf),
            _last(queries, keys, rows, is_causal, query.device),
            torch.tensor(scale, dtype=torch.float64, device=query.device),
        )
        out = self._run(arguments)[:groups, :rows, :d_value]
        return out.reshape(batch, heads, queries, d_value)

    def _run(self, arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
        has_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in arguments)
        variant = (arguments[0].dtype, has_gradient, arguments[0].device)
        if variant not in self._primed:
            self._prime(*variant)
            self._primed.add(variant)
        return self._enter(arguments, has_gradient)

    def _enter(self, arguments: tuple[torch.Tensor, ...], has_gradient: bool) -> torch.Tensor:
        """Run the core under the same settings in every call."""
        if any(x.is_inference() for x in arguments):
            # torch compiles anew for tensors of inference mode, which look the same otherwise
            with torch.inference_mode(False):
                return self._enter(tuple(x.clone() for x in arguments), has_gradient)
        if self._core is None:
            self._core = torch.compile(formula, backend=self._backend, dynamic=True, fullgraph=True)
        # torch also specializes to the arguments that require a gradient: here all do, or none.
        floating = (_requiring(x) if has_gradient else x.detach() for x in arguments[:4])
        arguments = (*floating, *arguments[4:])
        limits = {"recompile_limit": VARIANTS, "fail_on_recompile_limit_hit": True}
        with torch._dynamo.config.patch(limits), torch.set_grad_enabled(has_gradient):
            return self._core(*arguments)

    def _prime(self, dtype: torch.dtype, has_gradient: bool, device: torch.device) -> None:
        """Compile a variant on sizes that all differ, so that torch assumes no equal sizes."""
        started, runs = time.perf_counter(), self._runs
        wide = _wide(dtype)
        arguments = (
            torch.zeros(2, 3, 5, dtype=dtype, device=device),
            torch.zeros(2, 7, 5, dtype=dtype, device=device),
            torch.zeros(2, 7, 11, dtype=dtype, device=device),
            torch.zeros(2, 3, 7, dtype=wide, device=device),
            torch.zeros(3, dtype=torch.int64, device=device),
            torch.tensor(1.0, dtype=torch.float64, device=device),
        )
        with warnings.catch_warnings():
            # the compiler warns of its own imports, which a caller cannot change
            warnings.simplefilter("ignore")
            out = self._enter(arguments, has_gradient)
            if has_gradient:
                out.sum().backward()
        self._runs = runs
        self._seconds += time.perf_counter() - started

    def _backend(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Compile with inductor, and count the runs of the compiled code."""
        from torch._inductor.compile_fx import compile_fx

        compiled: Any = compile_fx(graph, inputs)

        def counted(*arguments: Any) -> Any:
            self._runs += 1
            return compiled(*arguments)

        return counted


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _bias(attn_mask: torch.Tensor | None, query: torch.Tensor, keys: int) -> torch.Tensor:
    """Return the mask as numbers to add, in the type to compute in, one for each pair."""
    wide = _wide(query.dtype)
    if attn_mask is None:
        attn_mask = torch.zeros((), dtype=wide, device=query.device)
    elif attn_mask.dtype == torch.bool:
        hidden = torch.zeros(attn_mask.shape, dtype=wide, device=query.device)
        attn_mask = hidden.masked_fill(~attn_mask, -torch.inf)
    return attn_mask.to(wide).expand(*query.shape[:3], keys)


def _last(
    queries: int, keys: int, rows: int, is_causal: bool, device: torch.device
) -> Int[torch.Tensor, " rows"]:
    place = torch.arange(max(rows, 2), device=device)
    return place % max(queries, 1) if is_causal else torch.full_like(place, keys)


def _padded(x: Float[torch.Tensor, "a b c"], filler: float = 0.0) -> Float[torch.Tensor, "..."]:
    """Pad every size to at least two, by a group, row, key or channel that no result uses."""
    missing = [max(0, 2 - size) for size in reversed(x.shape)]
    if any(missing):
        widths = [width for count in missing for width in (0, count)]
        x = torch.nn.functional.pad(x, widths, value=filler)
    return x.contiguous()


def _requiring(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor that requires a gradient, whether or not it is used."""
    return x if x.requires_grad else x.detach().requires_grad_()


def unavailable() -> str | None:
    """Return the reason why nothing can be compiled for this CPU, or None."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"no C++ compiler {compiler}: install one, or set CXX to the name of another"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "no C headers of Python (Python.h): install Python's development files"
    return None


UNCOUNTED = Deviation(
    law="gradients-are-those-of-the-numbers-of-the-forward-pass",
    reason=(
        "inductor saves a view of an argument without autograd's count of changes, so an argument "
        "that is overwritten before the backward pass gives gradients of the new numbers without "
        "an error (seen in torch 2.13.0)"
    ),
    link="docs/findings.md#overwritten-before-the-backward-pass",
    # in 16 bits the backward pass reads wider copies
    applies=lambda case: case.backward and case.dtype in (torch.float64, torch.float32),
    example=Case(
        batch=2, queries=2, keys=2, d_head=2, d_value=2, dtype=torch.float32, backward=True
    ),
)
"""A bug of the compiler; the same function under `aot_eager` raises."""

_CPU = Compiled()

IMPLEMENTATION = Implementation(
    name="compiled",
    attention=cast(Attention, _CPU),
    features=frozenset(
        {Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.BACKWARD, Feature.VALIDATES}
    ),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    unavailable=unavailable,
    # 0 · NaN is NaN: a weight of zero does not block NaN in a value.
    profile=Profile(masked_values=MaskedNonfinite.PROPAGATES),
    deviations=(UNCOUNTED,),
    counters=_CPU.counters,
)
