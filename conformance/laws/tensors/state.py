"""Laws of TEN: a call does not depend on earlier or concurrent calls."""

import functools

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import Expected, check_oracle
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.laws.helpers.calls import new_contents, normal_like, plain
from attnspec.conformance.laws.helpers.cases import BF16, F16, F32, F64, OPTIONS, SMALL, TINIEST
from attnspec.conformance.laws.helpers.gradients import check_gradients
from attnspec.conformance.laws.helpers.threads import run_at_once
from attnspec.conformance.laws.law import law
from attnspec.conformance.laws.tensors.results import ADDED, GROUPED, PINNED, SQUARE
from attnspec.spec import Case, Feature, Layout, Layouts, Mask, MaskShape

WITH_OPTIONS = (
    TINIEST.but(window=(1, 0)),
    TINIEST.but(softcap=1.0),
    TINIEST.but(sinks=True),
    TINIEST.but(alibi=True),
    TINIEST.but(return_lse=True),
    SMALL.but(window=(2, 3), softcap=2.0, sinks=True, alibi=True, return_lse=True),
)

OVER_TILES = Case(queries=520, keys=520, d_head=64, d_value=64, dtype=F32)
"""Several tiles, for which kernels prepare and keep more than for one."""


@law(
    "TEN-5",
    pinned=(
        *PINNED,
        *WITH_OPTIONS,
        *vary(OVER_TILES, window=((64, 0),)),
        # whose keys kernels split, by a plan that they keep for the next step
        OVER_TILES.but(batch=2, heads=4, kv_heads=2, queries=1, keys=4200),
        # of which kernels keep the tiles that hold a readable key
        OVER_TILES.but(queries=260, keys=260, mask=Mask(shape=MaskShape.RANK_2)),
    ),
    explore=cases(scales=POSITIVE, only=plain, sometimes=(*OPTIONS, Feature.LSE)),
    cost=6,
)
def law_a_changed_argument_changes_the_result(subject: Subject, case: Case) -> None:
    """TEN-5: after a call, the same call with one argument changed gives the changed result."""
    call = subject.draw(case)
    expected = subject.expect(call)
    check_oracle(call, subject.call(call), expected, "the output is wrong in the first call")
    for name, changed in changed_calls(subject, case, call).items():
        message = f"the output is wrong after a change of {name} since the last call"
        check_oracle(changed, subject.call(changed), subject.expect(changed), message)
        check_oracle(
            call, subject.call(call), expected, f"the output is wrong after {name} was changed back"
        )
    for operand, tensor in call.tensors.items():
        tensor.copy_(new_contents(case, operand, tensor))
        message = f"the output is wrong after {operand} was overwritten in place"
        check_oracle(call, subject.call(call), subject.expect(call), message)


def changed_calls(subject: Subject, case: Case, call: Call) -> dict[str, Call]:
    """Return the call with one argument changed, by the change."""
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
        other = normal_like(case, f"other {name}", getattr(call, name))
        changes[name] = call.but(**{name: other})
    return changes | _changed_options(subject, case, call)


def _changed_options(subject: Subject, case: Case, call: Call) -> dict[str, Call]:
    """Return the call with one optional feature changed, added or removed, by the change."""
    changes = {}
    adds = case.heads == 1  # absent options are added in cheap cases only
    for window in ((1, 0), (0, 2), None):
        is_other = window != case.window and (adds or case.window is not None)
        if is_other and subject.refuses(case.but(window=window)) is None:
            changes[f"the window to {window}"] = call.but(window=window)
    for softcap in (0.5, None):
        is_other = softcap != case.softcap and (adds or case.softcap is not None)
        if is_other and subject.refuses(case.but(softcap=softcap)) is None:
            changes[f"softcap to {softcap}"] = call.but(softcap=softcap)
    ones = torch.linspace(-1, 2, case.heads, dtype=F64, device=call.query.device)
    if (adds or case.sinks) and subject.refuses(case.but(sinks=True)) is None:
        changes["the sinks' contents"] = call.but(sinks=ones.to(case.dtype))
    if case.sinks:
        changes["the sinks' presence"] = call.but(sinks=None)
    if (adds or case.alibi) and subject.refuses(case.but(alibi=True)) is None:
        wide = F64 if case.dtype == F64 else F32
        changes["the slopes' contents"] = call.but(alibi_slopes=(ones + 2).to(wide))
    if case.alibi:
        changes["the slopes' presence"] = call.but(alibi_slopes=None)
    asks = not case.return_lse
    if (adds or case.return_lse) and subject.refuses(case.but(return_lse=asks)) is None:
        changes["return_lse"] = call.but(return_lse=asks)
    return changes


@law(
    "TEN-5",
    pinned=(
        TINIEST.but(heads=2, kv_heads=2),
        *vary(SQUARE, is_causal=(True,), dtype=(F64, F16, BF16)),
        SMALL.but(kv_heads=1),
        ADDED,
        GROUPED,
    ),
    explore=cases(scales=POSITIVE, only=plain, sometimes=(Feature.WINDOW, Feature.SOFTCAP)),
    cost=6,
)
def law_other_calls_in_between_change_nothing(subject: Subject, case: Case) -> None:
    """TEN-5: between two equal calls come others of another dtype, layout or grouping, or backward.

    All have the sizes of the first one, so that a cache whose key holds sizes only confuses them.
    """
    call = subject.draw(case)
    expected = subject.expect(call)
    check_oracle(call, subject.call(call), expected, "the output is wrong in the first call")
    for name, other in cases_of_other_kinds(case).items():
        if subject.refuses(other) is not None:
            continue
        between = subject.draw(other)
        message = f"the output is wrong in a call {name} after one of the same sizes"
        if other.backward:
            _check_backward(subject, between, message)
        else:
            check_oracle(between, subject.call(between), subject.expect(between), message)
        check_oracle(call, subject.call(call), expected, f"the output is wrong after a call {name}")


def cases_of_other_kinds(case: Case) -> dict[str, Case]:
    """Return cases of the same sizes that differ in kind and contents, by the difference."""
    case = case.but(seed=case.seed + 1)
    named = {F64: "float64", F32: "float32", F16: "float16", BF16: "bfloat16"}
    kinds = {f"in {named[dtype]}": case.but(dtype=dtype) for dtype in named if dtype != case.dtype}
    turned = Layouts(query=Layout.HEADS_INSIDE, key=Layout.HEADS_INSIDE, value=Layout.HEADS_INSIDE)
    kinds["of other strides"] = case.but(layouts=turned)
    shared = 1 if case.kv_heads != 1 else case.heads
    kinds[f"with {shared} key/value heads"] = case.but(kv_heads=shared)
    kinds["with gradients"] = case.but(backward=True)
    return kinds


def _check_backward(subject: Subject, call: Call, message: str) -> None:
    """Differentiate a call and judge its output."""
    expected = subject.expect(call)
    grad_out = torch.ones_like(expected.out).to(call.value.dtype)
    out, _ = subject.differentiate(call, grad_out)
    check_oracle(call, out, expected, message)


SHORT_OF_LONG = Case(queries=3, keys=1100, d_head=16, d_value=16, dtype=F32)
DECODING = SHORT_OF_LONG.but(queries=1, keys=1300, d_head=64, d_value=64)
PREFILL = Case(heads=2, kv_heads=2, queries=70, keys=70, d_head=16, d_value=16, dtype=F32)


@law(
    "TEN-5",
    pinned=(
        TINIEST,
        SHORT_OF_LONG,
        SHORT_OF_LONG.but(queries=1, heads=4, kv_heads=2, dtype=BF16),
        *vary(SHORT_OF_LONG, is_causal=(True,), sinks=(True,), return_lse=(True,)),
        SHORT_OF_LONG.but(mask=Mask(shape=MaskShape.KEYS)),
        PREFILL,
        PREFILL.but(is_causal=True, dtype=BF16),
        PREFILL.but(backward=True),
        PREFILL.but(backward=True, kv_heads=1, is_causal=True, dtype=F16),
        OVER_TILES.but(queries=390, keys=390, backward=True),
        # whose keys kernels split, with room for the partial results of the longest
        DECODING,
    ),
    wide=(
        DECODING.but(batch=4, heads=4, kv_heads=2, keys=700, d_head=128, d_value=128, dtype=F16),
    ),
    cost=24,
)
def law_calls_of_other_sizes_in_between_change_nothing(subject: Subject, case: Case) -> None:
    """TEN-5: after longer, shorter, wider and narrower calls, a call gives what it gave before."""
    call = subject.draw(case)
    expected = subject.expect(call)
    _run_and_judge(subject, call, expected, case.backward, "the output is wrong in the first call")
    for name, other in cases_of_other_sizes(case).items():
        if subject.refuses(other) is not None:
            continue
        between = subject.draw(other)
        message = f"the output is wrong in a call with {name} than in the one before"
        _run_and_judge(subject, between, subject.expect(between), case.backward, message)
        message = f"the output is wrong after a call with {name}"
        _run_and_judge(subject, call, expected, case.backward, message)


def cases_of_other_sizes(case: Case) -> dict[str, Case]:
    """Return cases that differ from one in a size, by the difference."""
    case = case.but(seed=case.seed + 1)
    sizes = {
        "more keys": case.but(keys=3 * case.keys + 1),
        "fewer keys": case.but(keys=max(1, case.keys // 2)),
        "far fewer keys": case.but(keys=max(1, case.keys // 8)),
        "more queries": case.but(queries=3 * case.queries + 1),
        "fewer queries": case.but(queries=max(1, case.queries // 2)),
        "more batch elements": case.but(batch=case.batch + 2),
        "more heads": case.but(heads=2 * case.heads, kv_heads=2 * case.kv_heads),
        "wider heads": case.but(d_head=2 * case.d_head, d_value=2 * case.d_value),
    }
    return {name: other for name, other in sizes.items() if other != case}


def _run_and_judge(
    subject: Subject, call: Call, expected: Expected, backward: bool, message: str
) -> None:
    """Make a call and judge its output, and its gradients if `backward`."""
    if not backward:
        out = subject.call_with_lse(call)[0] if call.return_lse else subject.call(call)
        check_oracle(call, out, expected, message)
        return
    grad = torch.ones_like(expected.out).to(call.value.dtype)
    out, gradients = subject.differentiate(call, grad)
    check_oracle(call, out, expected, message)
    check_gradients(call, gradients, subject.expect_gradients(call, grad), message)


CROWDED = SMALL.but(queries=33, keys=65, d_head=16, d_value=16)


@law(
    "TEN-11",
    pinned=(
        TINIEST,
        CROWDED,
        CROWDED.but(is_causal=True, keys=33),
        *vary(CROWDED, dtype=(F64, BF16)),
        CROWDED.but(heads=6, kv_heads=2, queries=65),
        # more keys than the thread that loaded the module may have room for
        CROWDED.but(queries=3, keys=530, dtype=BF16),
        CROWDED.but(batch=1, heads=1, kv_heads=1, queries=270, keys=270, d_head=64, d_value=64),
    ),
    explore=cases(scales=POSITIVE, only=plain),
    cost=10,
)
def law_concurrent_calls_are_independent(subject: Subject, case: Case) -> None:
    """TEN-11: two threads that call at once, with other numbers, each get their own result."""
    calls = [subject.draw(case), subject.draw(case, seed=case.seed + 1)]
    expected = [subject.expect(call) for call in calls]
    results = run_at_once([functools.partial(subject.call, call) for call in calls])
    for call, outs, expected_result in zip(calls, results, expected, strict=True):
        subject.last_call = call
        for out in outs:
            check_oracle(
                call, out, expected_result, "the output is wrong while another thread calls"
            )
