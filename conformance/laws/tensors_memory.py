"""Laws of TEN, second part: memory, history and threads change nothing."""

import itertools

import torch

from attnspec.conformance.compare import check_equal
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import POSITIVE, evident, plain
from attnspec.conformance.laws.masking_sides import check_oracle
from attnspec.conformance.laws.tensors import ADDED, GROUPED, PINNED, SMALL, SQUARE, TINIEST
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.spec import Case, Layout, Layouts, Mask, MaskShape, Values

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
WIDE = SMALL.but(queries=17, keys=33, d_head=64, d_value=64)
ODD = tuple(each for each in Layout if each is not Layout.CONTIGUOUS)


@law(
    "TEN-4",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(heads=2, kv_heads=2),
        TINIEST.but(queries=1, keys=1, d_head=1, d_value=1),
        *every(SQUARE.but(is_causal=True), dtype=(F64, F16)),
        *every(
            TINIEST.but(heads=2, kv_heads=2),
            mask=[Mask(shape=MaskShape.FULL), Mask(shape=MaskShape.KEYS)],
        ),
        ADDED.but(queries=4),
        GROUPED,
        WIDE.but(mask=Mask(shape=MaskShape.HEADS), dtype=BF16, batch=1),
    ),
    wide=(
        SQUARE.but(is_causal=True, dtype=BF16),
        *every(TINIEST.but(heads=2, kv_heads=2), mask=[Mask(shape=shape) for shape in MaskShape]),
        WIDE.but(mask=Mask(shape=MaskShape.HEADS), dtype=BF16),
    ),
    explore=cases(scales=POSITIVE, only=plain),
    cost=10,
)
def law_memory_layout_means_nothing(subject: Subject, case: Case) -> None:
    """TEN-4: each argument alone in any strides, offset or expansion gives the same result."""
    call = subject.draw(case)
    expected = subject.expect(call)
    evident(call, expected)
    operands = ["query", "key", "value"] + ["mask"] * (case.mask is not None)
    for name, layout in itertools.product(operands, ODD):
        laid = case.but(layouts=Layouts(**{name: layout}))
        if subject.refuses(laid) is not None:
            continue
        call = subject.draw(laid)
        # expanded memory holds other values: the first head's, for all
        other = subject.expect(call) if layout is Layout.EXPANDED else expected
        check_oracle(call, subject.call(call), other, f"wrong for a {name} that is {layout}")


@law(
    "TEN-5",
    judges=Judged.ATTENTION,
    pinned=PINNED,
    explore=cases(scales=POSITIVE, only=plain),
    cost=4,
)
def law_a_second_call_gives_the_same(subject: Subject, case: Case) -> None:
    """TEN-5: an equal call gives an equal result, whatever was called in between."""
    call = subject.draw(case)
    expected = subject.expect(call)
    first = subject.call(call)
    check_oracle(call, first, expected, "wrong in the first call")
    others = (
        case.but(queries=case.queries + 1),
        case.but(keys=case.keys + 1),
        case.but(d_head=case.d_head + 1, d_value=case.d_value + 1),
        case.but(batch=case.batch + 1),
    )
    for other in others:
        if subject.refuses(other) is None:
            between = subject.draw(other)
            message = "wrong after a call of another shape"
            check_oracle(between, subject.call(between), subject.expect(between), message)
    again = subject.call(call)
    check_oracle(call, again, expected, "wrong in a second call")
    if subject.implementation.profile.deterministic:
        check_equal(again, first, what="out", message="two equal calls give different bits")


@law(
    "TEN-10",
    judges=Judged.ATTENTION,
    pinned=(
        *PINNED,
        SMALL.but(queries=65, keys=129, d_head=16, d_value=16),
        SMALL.but(batch=3, queries=33, keys=17, values=Values.PEAKED, dtype=BF16),
    ),
    explore=cases(scales=POSITIVE, only=plain),
    cost=4,
)
def law_threads_change_nothing(subject: Subject, case: Case) -> None:
    """TEN-10: with one thread or several, the result is right."""
    call = subject.draw(case)
    expected = subject.expect(call)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            out = subject.call(call)
            word = "thread" if threads == 1 else "threads"
            check_oracle(call, out, expected, f"wrong with {threads} {word}")
    finally:
        torch.set_num_threads(before)
