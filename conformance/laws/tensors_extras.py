"""Laws of TEN, fourth part: compiled, mapped over, and registered, where that is claimed."""

import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from attnspec.conformance import tally
from attnspec.conformance.call import Call
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.masking_sides import check_oracle
from attnspec.conformance.laws.tensors import GROUPED, MASKED, SMALL, SQUARE, TINIEST
from attnspec.conformance.strategies import every
from attnspec.conformance.subject import Raised, Subject, sound
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, Extra, Layout, Layouts

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
VARIANTS = 32
"""How many variants torch may compile for one case before it gives up, an error here."""

TORCH = frozenset({"aten", "prim", "prims", "profiler", "inductor", "higher_order", "quantized"})
"""The namespaces of operators that torch brings along."""


@law(
    "TEN-12",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(layouts=Layouts(key=Layout.TRANSPOSED)),
        SQUARE.but(is_causal=True, dtype=BF16),
        MASKED,
        SMALL.but(window=(2, 3), softcap=2.0, sinks=True, alibi=True),
    ),
    needs={Extra.COMPILE},
)
def law_a_compiled_call_gives_the_same(subject: Subject, case: Case) -> None:
    """TEN-12: under `torch.compile(fullgraph=True)` calls of several sizes give what they gave."""
    started = time.perf_counter()
    compiled = _compiled(subject.implementation.attention)
    _spent_compiling(started)
    sizes = {
        "first sizes": case,
        "same code and other sizes": case.but(queries=case.queries + 2, keys=case.keys + 2),
        "same code and another batch": case.but(batch=3),
    }
    for what, each in sizes.items():
        if subject.refuses(each) is not None:
            continue
        call = subject.draw(each)
        out = sound(_run(subject, compiled, call), call)
        check_oracle(call, out, subject.expect(call), f"wrong when compiled, for the {what}")


def _compiled(attention: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled call of an attention, of which torch remembers nothing from before."""

    def call(query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
        return attention(query, key, value, **options)

    # torch keeps compiled variants with the code object: this one is new
    fresh = types.FunctionType(
        call.__code__.replace(), call.__globals__, "call", None, call.__closure__
    )
    # no C compiler is needed for this backend, and everything before the generation of code is done
    compiled: Callable[..., Any] = torch.compile(fresh, backend="aot_eager", fullgraph=True)
    return compiled


def _run(subject: Subject, function: Callable[..., Any], call: Call) -> Any:
    """Call a function made from the subject's attention.

    Raises:
        Raised: where it raises.
    """
    subject.last_call, subject.last_grad = call, None
    started = time.perf_counter()
    limits = {"recompile_limit": VARIANTS, "fail_on_recompile_limit_hit": True}
    try:
        with warnings.catch_warnings(), torch._dynamo.config.patch(limits):
            warnings.simplefilter("ignore")
            return function(call.query, call.key, call.value, call.keywords())
    except Exception as error:
        raise Raised(f"under torch.compile: {_told(error)}") from error
    finally:
        _spent_compiling(started)


def _spent_compiling(started: float) -> None:
    """Count the seconds since then as compiling, next to which a call is nothing."""
    running = tally.current()
    if running is not None:
        for part in ("implementation", "compiling"):
            running.spent(part, time.perf_counter() - started)


def _told(error: Exception) -> str:
    """The type and the first line of an error, which torch's are long beyond."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


@law(
    "TEN-13",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SQUARE.but(is_causal=True), dtype=(F32, F64, F16, BF16)),
        MASKED,
        GROUPED,
        SMALL.but(window=(2, 3), softcap=2.0, sinks=True, alibi=True),
    ),
    needs={Extra.VMAP},
)
def law_a_mapped_call_gives_the_same(subject: Subject, case: Case) -> None:
    """TEN-13: under `torch.vmap`, over all operands or only some, each call is as alone."""
    calls = [subject.draw(case, seed=case.seed + each) for each in range(3)]
    first, names = calls[0], tuple(calls[0].tensors)
    # the axis of each operand that is mapped over; the others are shared
    everything = dict.fromkeys(names, 0) | {"query": 1}
    shared_query = {name: 0 for name in names if name != "query"}
    for axes in (everything, {"query": 0}, shared_query):
        singles = [first.but(**{name: getattr(each, name) for name in axes}) for each in calls]
        for out, single in zip(_mapped(subject, singles, axes), singles, strict=True):
            subject.last_call = single
            message = f"wrong under vmap over {', '.join(axes)}"
            check_oracle(single, sound(out, single), subject.expect(single), message)


def _mapped(subject: Subject, calls: list[Call], axes: dict[str, int]) -> torch.Tensor:
    """Make several calls as one, over a further axis of some operands.

    Raises:
        Raised: where it raises.
    """
    first = calls[0]
    names = tuple(first.tensors)
    flags = {name: each for name, each in first.keywords().items() if name not in names}
    given = tuple(
        torch.stack([getattr(each, name) for each in calls], axes[name])
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
            warnings.simplefilter("ignore")  # torch tells of operators that it maps by a loop
            outs: torch.Tensor = torch.vmap(attention, tuple(axes.get(name) for name in names))(
                *given
            )
    except Exception as error:
        raise Raised(f"under vmap over {', '.join(axes)}: {_told(error)}") from error
    return outs


class _Watching(TorchDispatchMode):
    """Write down the first call of each operator that torch does not bring along."""

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
    judges=Judged.ATTENTION,
    pinned=(TINIEST, SQUARE.but(is_causal=True, dtype=F64), MASKED, GROUPED),
    needs={Extra.OPCHECK},
)
def law_operators_of_its_own_are_registered_in_full(subject: Subject, case: Case) -> None:
    """TEN-14: each operator that a call goes through passes `torch.library.opcheck`."""
    call = subject.draw(case)
    with _Watching() as watched:
        out = subject.call(call)
    check_oracle(call, out, subject.expect(call), "wrong")
    if not watched.calls:
        raise Violation("the call goes through no operator but those of torch")
    for operator, (args, kwargs) in watched.calls.items():
        args, kwargs = tree_map_only(torch.Tensor, _asking, (args, kwargs))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.library.opcheck(operator, args, kwargs)
        except Exception as error:
            raise Violation(f"opcheck refuses {operator}: {_told(error)}") from error


def _asking(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that asks for a gradient where it can, so that its registration is tried."""
    return tensor.detach().clone().requires_grad_(tensor.is_floating_point())
