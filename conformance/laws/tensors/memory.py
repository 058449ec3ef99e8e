"""Laws of TEN: memory layout, repeated calls and the number of threads change nothing."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from attnspec.conformance.attention.modes import threads
from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import WRT, Subject
from attnspec.conformance.comparison.close import check_equal
from attnspec.conformance.laws.helpers.calls import plain, require_evidence
from attnspec.conformance.laws.helpers.cases import BF16, F16, F32, F64, SMALL, TINIEST
from attnspec.conformance.laws.helpers.gradients import differentiate_and_judge, incoming_gradient
from attnspec.conformance.laws.law import law
from attnspec.conformance.laws.tensors.results import ADDED, GROUPED, PINNED, SQUARE
from attnspec.spec import Case, Feature, Layout, Layouts, Mask, MaskShape, Values

WIDE = SMALL.but(queries=17, keys=33, d_head=64, d_value=64)
ODD_LAYOUTS = tuple(layout for layout in Layout if layout is not Layout.CONTIGUOUS)
PER_HEAD = (Feature.SINKS, Feature.ALIBI)
"""Options with one number per head."""


@law(
    "TEN-4",
    pinned=(
        TINIEST.but(heads=2, kv_heads=2),
        TINIEST.but(queries=1, keys=1, d_head=1, d_value=1),
        *vary(SQUARE.but(is_causal=True), dtype=(F64, F16)),
        *vary(
            TINIEST.but(heads=2, kv_heads=2),
            mask=[Mask(shape=MaskShape.FULL), Mask(shape=MaskShape.KEYS)],
        ),
        ADDED.but(queries=4),
        GROUPED,
        WIDE.but(mask=Mask(shape=MaskShape.HEADS), dtype=BF16, batch=1),
        TINIEST.but(heads=3, kv_heads=3, sinks=True),
        TINIEST.but(heads=3, kv_heads=3, alibi=True),
    ),
    wide=(
        SQUARE.but(is_causal=True, dtype=BF16),
        *vary(TINIEST.but(heads=2, kv_heads=2), mask=[Mask(shape=shape) for shape in MaskShape]),
        WIDE.but(mask=Mask(shape=MaskShape.HEADS), dtype=BF16),
        *vary(SQUARE.but(sinks=True, alibi=True), dtype=(F64, F16, BF16)),
    ),
    explore=cases(scales=POSITIVE, only=plain, sometimes=PER_HEAD),
    cost=10,
)
def law_memory_layout_changes_nothing(subject: Subject, case: Case) -> None:
    """TEN-4: each argument alone in any strides, offset or expansion gives the same result."""
    call = subject.draw(case)
    expected = subject.expect(call)
    require_evidence(call, expected)
    operands = ["query", "key", "value"] + ["mask"] * (case.mask is not None)
    operands += ["sinks"] * case.sinks + ["slopes"] * case.alibi
    for layouts in _layouts(operands, are_together=subject.implementation.compiles_each_shape):
        laid = case.but(layouts=Layouts(**layouts))
        if subject.refuses(laid) is not None:
            continue
        call = subject.draw(laid)
        # expanded memory holds the values of the first head, or element, for all
        is_other = not {Layout.EXPANDED, Layout.EXPANDED_BATCH}.isdisjoint(layouts.values())
        other = subject.expect(call) if is_other else expected
        described = " and ".join(f"that of {name} is {layout}" for name, layout in layouts.items())
        message = f"the output is wrong if the layout {described.removeprefix('that ')}"
        check_oracle(call, subject.call(call), other, message)


def _layouts(operands: Sequence[str], *, are_together: bool) -> Iterator[Mapping[str, Layout]]:
    """Yield the layouts of some operands, in which each operand has each layout once.

    Args:
        operands: the names of the operands.
        are_together: whether all operands have a layout in each call, each another one. A kernel
            that compiles for each layout needs a call for each then, instead of one for each
            layout of each operand.
    """
    if not are_together:
        yield from ({name: layout} for name, layout in itertools.product(operands, ODD_LAYOUTS))
        return
    for start in range(len(ODD_LAYOUTS)):
        yield {
            name: ODD_LAYOUTS[(start + place) % len(ODD_LAYOUTS)]
            for place, name in enumerate(operands)
        }


@law(
    "TEN-5",
    pinned=PINNED,
    explore=cases(scales=POSITIVE, only=plain),
    cost=4,
)
def law_repeated_calls_give_equal_results(subject: Subject, case: Case) -> None:
    """TEN-5: an equal call gives an equal result, whatever was called in between."""
    call = subject.draw(case)
    expected = subject.expect(call)
    first = subject.call(call)
    check_oracle(call, first, expected, "the output is wrong in the first call")
    others = (
        case.but(queries=case.queries + 1),
        case.but(keys=case.keys + 1),
        case.but(d_head=case.d_head + 1, d_value=case.d_value + 1),
        case.but(batch=case.batch + 1),
    )
    for other in others:
        if subject.refuses(other) is None:
            between = subject.draw(other)
            message = "the output is wrong after a call of another shape"
            check_oracle(between, subject.call(between), subject.expect(between), message)
    again = subject.call(call)
    check_oracle(call, again, expected, "the output is wrong in a second call")
    if subject.implementation.profile.deterministic:
        check_equal(again, first, what="out", message="two equal calls give different bits")


DECODING = Case(
    batch=2, heads=4, kv_heads=2, queries=1, keys=1101, d_head=16, d_value=16, dtype=F32
)
"""One query of a long cache: kernels divide such keys, and not queries, among threads."""

TILES = Case(queries=600, keys=600, d_head=64, d_value=64, dtype=F32)
"""An odd number of tiles of 128, which threads cannot share in pairs."""


@law(
    "TEN-10",
    pinned=(
        *PINNED,
        SMALL.but(queries=65, keys=129, d_head=16, d_value=16),
        SMALL.but(batch=3, queries=33, keys=17, values=Values.PEAKED, dtype=BF16),
        DECODING,
        DECODING.but(batch=1, heads=2, dtype=BF16),
        TILES.but(is_causal=True),
    ),
    explore=cases(scales=POSITIVE, only=plain),
    cost=4,
)
def law_threads_change_nothing(subject: Subject, case: Case) -> None:
    """TEN-10: with one thread or several, the result is right."""
    call = subject.draw(case)
    expected = subject.expect(call)
    for number in (1, 2, 3, 8, 11):
        message = f"the output is wrong with {in_words(number)}"
        with threads(number):
            check_oracle(call, subject.call(call), expected, message)


@law(
    "TEN-10",
    pinned=tuple(
        case.but(backward=True)
        for case in (
            TINIEST,
            SMALL.but(heads=6, kv_heads=2, queries=70, keys=67),
            SMALL.but(queries=67, keys=70, is_causal=True, dtype=BF16),
            DECODING,
        )
    ),
    cost=4,
)
def law_threads_change_no_gradient(subject: Subject, case: Case) -> None:
    """TEN-10: with one thread or several, forward and backward, the gradients are right."""
    call, grad = subject.draw(case), incoming_gradient(case)
    # few numbers: torch.compile compiles anew for each
    for number in (1, 8):
        message = f"the gradient is wrong with {in_words(number)}"
        with threads(number):
            differentiate_and_judge(subject, call, grad, WRT, message)


def in_words(number: int) -> str:
    """Return a number of threads in words."""
    return "1 thread" if number == 1 else f"{number} threads"
