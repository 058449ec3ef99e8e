"""Laws of TEN, third part: what was called before, or is called meanwhile, is not remembered."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import POSITIVE, drawn, plain
from attnspec.conformance.laws.masking_sides import check_oracle
from attnspec.conformance.laws.tensors import ADDED, GROUPED, PINNED, SMALL, SQUARE, TINIEST
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, Feature, Layout, Layouts

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
OPTIONS = (Feature.WINDOW, Feature.SOFTCAP, Feature.SINKS, Feature.ALIBI, Feature.LSE)
OPTED = (
    TINIEST.but(window=(1, 0)),
    TINIEST.but(softcap=1.0),
    TINIEST.but(sinks=True),
    TINIEST.but(alibi=True),
    TINIEST.but(return_lse=True),
    SMALL.but(window=(2, 3), softcap=2.0, sinks=True, alibi=True, return_lse=True),
)


@law(
    "TEN-5",
    judges=Judged.ATTENTION,
    pinned=(*PINNED, *OPTED),
    explore=cases(scales=POSITIVE, only=plain, sometimes=OPTIONS),
    cost=6,
)
def law_one_changed_argument_is_noticed(subject: Subject, case: Case) -> None:
    """TEN-5: after a call, the same call with one argument changed gives the changed result."""
    call = subject.draw(case)
    expected = subject.expect(call)
    check_oracle(call, subject.call(call), expected, "wrong in the first call")
    for what, changed in _changes(subject, case, call).items():
        message = f"wrong after a change of {what} since the last call"
        check_oracle(changed, subject.call(changed), subject.expect(changed), message)
        check_oracle(call, subject.call(call), expected, f"wrong after {what} is back")
    for name in ("query", "key", "value", "sinks"):
        tensor = getattr(call, name)
        if tensor is None:
            continue
        tensor.copy_(drawn(case, f"new {name}", tensor))
        message = f"wrong after {name} was overwritten in place"
        check_oracle(call, subject.call(call), subject.expect(call), message)


def _changes(subject: Subject, case: Case, call: Call) -> dict[str, Call]:
    """The call with one argument changed, by what has changed."""
    scale = 0.25 if case.scale is None else case.scale / 2
    changes = {}
    if subject.refuses(case.but(scale=scale)) is None:
        changes["scale"] = call.but(scale=scale)
    if call.attn_mask is not None:
        changes["the mask's contents"] = call.but(attn_mask=call.attn_mask.flip(-1))
        if subject.refuses(case.but(mask=None)) is None:
            changes["the mask's presence"] = call.but(attn_mask=None)
    flag = not case.is_causal
    if subject.refuses(case.but(is_causal=flag)) is None:
        changes["the causal flag"] = call.but(is_causal=flag)
    for name in ("query", "key", "value"):
        other = drawn(case, f"other {name}", getattr(call, name))
        changes[name] = call.but(**{name: other})
    return changes | _options(subject, case, call)


def _options(subject: Subject, case: Case, call: Call) -> dict[str, Call]:
    """The call with one option that not every implementation has changed, taken or left."""
    changes = {}
    tries = case.heads == 1  # an option that was not there is put in once, where that is cheap
    for window in ((1, 0), (0, 2), None):
        is_other = window != case.window and (tries or case.window is not None)
        if is_other and subject.refuses(case.but(window=window)) is None:
            changes[f"the window to {window}"] = call.but(window=window)
    for softcap in (0.5, None):
        is_other = softcap != case.softcap and (tries or case.softcap is not None)
        if is_other and subject.refuses(case.but(softcap=softcap)) is None:
            changes[f"softcap to {softcap}"] = call.but(softcap=softcap)
    ones = torch.linspace(-1, 2, case.heads, dtype=F64, device=call.query.device)
    if (tries or case.sinks) and subject.refuses(case.but(sinks=True)) is None:
        changes["the sinks' contents"] = call.but(sinks=ones.to(case.dtype))
    if case.sinks:
        changes["the sinks' presence"] = call.but(sinks=None)
    if (tries or case.alibi) and subject.refuses(case.but(alibi=True)) is None:
        wide = F64 if case.dtype == F64 else F32
        changes["the slopes' contents"] = call.but(alibi_slopes=(ones + 2).to(wide))
    if case.alibi:
        changes["the slopes' presence"] = call.but(alibi_slopes=None)
    asks = not case.return_lse
    if (tries or case.return_lse) and subject.refuses(case.but(return_lse=asks)) is None:
        changes["return_lse"] = call.but(return_lse=asks)
    return changes


@law(
    "TEN-5",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(heads=2, kv_heads=2),
        *every(SQUARE, is_causal=(True,), dtype=(F64, F16, BF16)),
        SMALL.but(kv_heads=1),
        ADDED,
        GROUPED,
    ),
    explore=cases(scales=POSITIVE, only=plain, sometimes=(Feature.WINDOW, Feature.SOFTCAP)),
    cost=6,
)
def law_calls_of_another_kind_between_change_nothing(subject: Subject, case: Case) -> None:
    """TEN-5: between two equal calls come others of another dtype, layout or grouping, or backward.

    All have the sizes of the first one, so that a key that holds sizes alone takes them for it.
    """
    call = subject.draw(case)
    expected = subject.expect(call)
    check_oracle(call, subject.call(call), expected, "wrong in the first call")
    for what, other in _kinds(case).items():
        if subject.refuses(other) is not None:
            continue
        between = subject.draw(other)
        message = f"wrong in a call {what} after one of the same sizes"
        if other.backward:
            _backward(subject, between, message)
        else:
            check_oracle(between, subject.call(between), subject.expect(between), message)
        check_oracle(call, subject.call(call), expected, f"wrong after a call {what}")


def _kinds(case: Case) -> dict[str, Case]:
    """Cases of the same sizes that differ in kind, and in their numbers, by how they differ."""
    case = case.but(seed=case.seed + 1)
    named = {F64: "float64", F32: "float32", F16: "float16", BF16: "bfloat16"}
    kinds = {f"in {named[each]}": case.but(dtype=each) for each in named if each != case.dtype}
    turned = Layouts(query=Layout.HEADS_INSIDE, key=Layout.HEADS_INSIDE, value=Layout.HEADS_INSIDE)
    kinds["of other strides"] = case.but(layouts=turned)
    shared = 1 if case.kv_heads != 1 else case.heads
    kinds[f"with {shared} key/value heads"] = case.but(kv_heads=shared)
    kinds["with gradients"] = case.but(backward=True)
    return kinds


def _backward(subject: Subject, call: Call, message: str) -> None:
    """A call that gradients are handed back through, its output judged."""
    expected = subject.expect(call)
    grad_out = torch.ones_like(expected.out).to(call.value.dtype)
    out, _ = subject.differentiate(call, grad_out)
    check_oracle(call, out, expected, message)


CROWDED = SMALL.but(queries=33, keys=65, d_head=16, d_value=16)
ROUNDS = 6
"""How often two threads call at once for one case."""


@law(
    "TEN-11",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        CROWDED,
        CROWDED.but(is_causal=True, keys=33),
        *every(CROWDED, dtype=(F64, BF16)),
        CROWDED.but(heads=6, kv_heads=2, queries=65),
    ),
    explore=cases(scales=POSITIVE, only=plain),
    cost=10,
)
def law_calls_at_once_do_not_meet(subject: Subject, case: Case) -> None:
    """TEN-11: two threads that call at once, with other numbers, each get their own result."""
    calls = [subject.draw(case), subject.draw(case, seed=case.seed + 1)]
    expected = [subject.expect(call) for call in calls]
    barrier = threading.Barrier(len(calls))

    def rounds(call: Call) -> list[torch.Tensor]:
        found = []
        try:
            for _ in range(ROUNDS):
                barrier.wait(timeout=60)
                found.append(subject.call(call))
        except BaseException:
            barrier.abort()
            raise
        return found

    found = []
    with _interleaved(), ThreadPoolExecutor(len(calls)) as pool:
        for each in [pool.submit(rounds, call) for call in calls]:
            # where a barrier is broken, the other thread raised and tells why
            with contextlib.suppress(threading.BrokenBarrierError):
                found.append(each.result())
    if len(found) < len(calls):
        raise Violation("a call hangs while another thread calls")
    for call, outs, due in zip(calls, found, expected, strict=True):
        subject.last_call = call
        for out in outs:
            check_oracle(call, out, due, "wrong while another thread calls")


@contextlib.contextmanager
def _interleaved() -> Iterator[None]:
    """Let threads change places often, and put back what calls at once may leave behind.

    `torch.nn.attention.sdpa_kernel` keeps its choice of kernels for the whole process, so that two
    threads which leave it in the order in which they came restore the wrong one.
    """
    interval = sys.getswitchinterval()
    kernels = torch.backends.cuda
    allowed: dict[Callable[[bool], Any], bool] = {
        getattr(kernels, f"enable_{each}_sdp"): getattr(kernels, f"{each}_sdp_enabled")()
        for each in ("flash", "math", "mem_efficient", "cudnn")
    }
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        for set_to, was_on in allowed.items():
            set_to(was_on)
