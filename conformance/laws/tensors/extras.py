"""Laws of TEN: claimed support of `torch.compile`, `torch.vmap` and registered operators."""

import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import vary
from attnspec.conformance.attention.subject import Subject, checked_output
from attnspec.conformance.comparison import tally
from attnspec.conformance.comparison.violation import Raised, Violation, first_line
from attnspec.conformance.laws.helpers.cases import BF16, DTYPES, F64, SMALL, TINIEST
from attnspec.conformance.laws.law import law
from attnspec.conformance.laws.tensors.results import GROUPED, MASKED, SQUARE
from attnspec.spec import Case, Extra, Layout, Layouts

VARIANTS = 32
"""Variants that torch may compile for one case; one more is an error."""

TORCH = frozenset({"aten", "prim", "prims", "profiler", "inductor", "higher_order", "quantized"})
"""The namespaces of the operators of torch itself."""


@law(
    "TEN-12",
    pinned=(
        TINIEST.but(layouts=Layouts(key=Layout.TRANSPOSED)),
        SQUARE.but(is_causal=True, dtype=BF16),
        MASKED,
        SMALL.but(window=(2, 3), softcap=2.0, sinks=True, alibi=True),
    ),
    needs={Extra.COMPILE},
)
def law_a_compiled_call_equals_a_plain_call(subject: Subject, case: Case) -> None:
    """TEN-12: under `torch.compile(fullgraph=True)` calls of several sizes give equal results."""
    started = time.perf_counter()
    compiled = compile_afresh(subject.implementation.attention)
    _count_as_compiling(started)
    sizes = {
        "first sizes": case,
        "same code and other sizes": case.but(queries=case.queries + 2, keys=case.keys + 2),
        "same code and another batch": case.but(batch=3),
    }
    for name, resized in sizes.items():
        if subject.refuses(resized) is not None:
            continue
        call = subject.draw(resized)
        out = checked_output(run_compiled(subject, compiled, call), call)
        check_oracle(
            call, out, subject.expect(call), f"the output is wrong when compiled, for the {name}"
        )


def compile_afresh(attention: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a call of an attention; torch shares no compiled code with earlier calls."""

    def call(query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
        return attention(query, key, value, **options)

    # torch stores compiled variants on the code object, so this one must be new
    fresh = types.FunctionType(
        call.__code__.replace(), call.__globals__, "call", None, call.__closure__
    )
    # this backend needs no C compiler and runs every step before code generation
    compiled: Callable[..., Any] = torch.compile(fresh, backend="aot_eager", fullgraph=True)
    return compiled


def run_compiled(subject: Subject, function: Callable[..., Any], call: Call) -> Any:
    """Call a compiled function.

    Raises:
        Raised: if it raises.
    """
    subject.last_call, subject.last_grad = call, None
    started = time.perf_counter()
    limits = {"recompile_limit": VARIANTS, "fail_on_recompile_limit_hit": True}
    try:
        with warnings.catch_warnings(), torch._dynamo.config.patch(limits):
            warnings.simplefilter("ignore")
            return function(call.query, call.key, call.value, call.keywords())
    except Exception as error:
        raise Raised(f"under torch.compile: {first_line(error)}") from error
    finally:
        _count_as_compiling(started)


def _count_as_compiling(started: float) -> None:
    """Count the time since `started` as compiling; the call itself is negligible."""
    for part in ("implementation", "compiling"):
        tally.spent(part, started)


@law(
    "TEN-13",
    pinned=(
        TINIEST,
        *vary(SQUARE.but(is_causal=True), dtype=DTYPES),
        MASKED,
        GROUPED,
        SMALL.but(window=(2, 3), softcap=2.0, sinks=True, alibi=True),
    ),
    needs={Extra.VMAP},
)
def law_vmap_equals_separate_calls(subject: Subject, case: Case) -> None:
    """TEN-13: under `torch.vmap`, over all operands or only some, each call is as alone."""
    calls = [subject.draw(case, seed=case.seed + call) for call in range(3)]
    first, names = calls[0], tuple(calls[0].tensors)
    # the axis of each operand that is mapped over; the others are shared
    everything = dict.fromkeys(names, 0) | {"query": 1}
    shared_query = {name: 0 for name in names if name != "query"}
    for axes in (everything, {"query": 0}, shared_query):
        singles = [first.but(**{name: getattr(call, name) for name in axes}) for call in calls]
        for out, single in zip(call_mapped(subject, singles, axes), singles, strict=True):
            subject.last_call = single
            message = f"the output is wrong under vmap over {', '.join(axes)}"
            check_oracle(single, checked_output(out, single), subject.expect(single), message)


def call_mapped(subject: Subject, calls: list[Call], axes: dict[str, int]) -> torch.Tensor:
    """Make several calls as one, mapped over an added axis of some operands.

    Raises:
        Raised: if it raises.
    """
    first = calls[0]
    names = tuple(first.tensors)
    flags = {name: value for name, value in first.keywords().items() if name not in names}
    stacked = tuple(
        torch.stack([getattr(call, name) for call in calls], axes[name])
        if name in axes
        else getattr(first, name)
        for name in names
    )

    def attention(*operands: torch.Tensor) -> Any:
        named = dict(zip(names, operands, strict=True)) | flags
        query, key, value = (named.pop(name) for name in ("query", "key", "value"))
        return subject.implementation.attention(query, key, value, **named)

    subject.last_call, subject.last_grad = first, None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of operators that it maps by a loop
            outs: torch.Tensor = torch.vmap(attention, tuple(axes.get(name) for name in names))(
                *stacked
            )
    except Exception as error:
        raise Raised(f"under vmap over {', '.join(axes)}: {first_line(error)}") from error
    return outs


class _OperatorLog(TorchDispatchMode):
    """A log of the first call of each operator that is not from torch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace not in TORCH:
            self.calls.setdefault(func, (args, dict(kwargs or {})))
        return func(*args, **(kwargs or {}))


@law(
    "TEN-14",
    pinned=(TINIEST, SQUARE.but(is_causal=True, dtype=F64), MASKED, GROUPED),
    needs={Extra.OPCHECK},
)
def law_custom_operators_pass_opcheck(subject: Subject, case: Case) -> None:
    """TEN-14: each operator that a call goes through passes `torch.library.opcheck`."""
    call = subject.draw(case)
    with _OperatorLog() as watched:
        out = subject.call(call)
    check_oracle(call, out, subject.expect(call), "wrong")
    if not watched.calls:
        raise Violation("the call goes through no operator but those of torch")
    for operator, (args, kwargs) in watched.calls.items():
        args, kwargs = tree_map_only(torch.Tensor, _requiring_gradient, (args, kwargs))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.library.opcheck(operator, args, kwargs)
        except Exception as error:
            raise Violation(f"opcheck refuses {operator}: {first_line(error)}") from error


def _requiring_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that requires a gradient if it can, so that opcheck tries the backward."""
    return tensor.detach().clone().requires_grad_(tensor.is_floating_point())
