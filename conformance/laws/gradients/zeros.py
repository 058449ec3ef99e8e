"""Laws of GRD: gradients that are exactly zero, and NaN at keys that no query may read."""

import itertools

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.strategies import cases, vary
from attnspec.conformance.attention.subject import WRT, Subject
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.helpers.calls import in_groups, plain, readable
from attnspec.conformance.laws.helpers.cases import (
    DTYPES,
    EMPTY_ROWS,
    F16,
    F32,
    F64,
    LENGTHS,
    OPTIONS,
    PADDING,
)
from attnspec.conformance.laws.helpers.gradients import (
    BACKWARD,
    GROUPED,
    SMALL,
    TINIEST,
    check_zero,
    differentiate_and_judge,
    empty_rows_are_zero,
    incoming_gradient,
    operands_with_gradient,
)
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Feature, Mask, MaskKind, MaskPattern, MaskShape, Values

CAUSAL = {"is_causal": True}
LEFT = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.LEFT_PADDING, shape=MaskShape.BATCH)
DOCUMENTS = Mask(pattern=MaskPattern.DOCUMENTS, shape=MaskShape.RANK_2)
EMPTY_ROWS_FLOAT = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.FULL)
HIDING_PATTERNS = (MaskPattern.PADDING, MaskPattern.LEFT_PADDING, MaskPattern.DOCUMENTS)
TAME = (Values.NORMAL, Values.PEAKED, Values.NEGATIVE, Values.ONE_HOT, Values.INTEGERS, Values.TIES)
"""Contents whose products stay far below the range of every dtype."""


def unread_keys(subject: Subject, call: Call, rows: torch.Tensor | None = None) -> torch.Tensor:
    """Return true for the keys of a key/value head that no query, or none of `rows`, may read."""
    seen = readable(subject, call)
    if rows is not None:
        seen = seen & rows[..., None]
    return ~in_groups(subject, seen.any(2), call.key.shape[1]).any(2)


@law(
    "GRD-4",
    pinned=(
        TINIEST.but(mask=PADDING),
        TINIEST.but(queries=2, keys=5, **CAUSAL),
        *vary(SMALL.but(mask=PADDING), dtype=DTYPES),
        SMALL.but(mask=LEFT),
        SMALL.but(mask=PADDING, is_causal=True),
        SMALL.but(mask=DOCUMENTS, keys=11),
        *vary(GROUPED.but(mask=PADDING, batch=3), seed=range(3)),
        *vary(SMALL.but(keys=17, is_causal=True), dtype=DTYPES),
        SMALL.but(queries=17, keys=33, window=(1, 2)),
        SMALL.but(queries=5, keys=129, is_causal=True),
    ),
    wide=(SMALL.but(queries=3, keys=70, mask=LEFT, seed=60, batch=1),),
    explore=cases(
        always=BACKWARD,
        sometimes=OPTIONS,
        patterns=HIDING_PATTERNS,
        families=TAME,
        lengths=LENGTHS,
        only=plain,
    ),
    cost=3,
)
def law_unreadable_keys_have_no_gradient(subject: Subject, case: Case) -> None:
    """GRD-4: dK and dV are exactly zero at keys that no query may read."""
    call = subject.draw(case, backward=True)
    hidden = unread_keys(subject, call)
    if not bool(hidden.any()):
        raise NotClaimed("no key is hidden from every query")
    grad = incoming_gradient(case)
    if not empty_rows_are_zero(subject):
        # the gradient through a row of means or of NaN is not defined
        reads = readable(subject, call).any(-1)
        if not bool(reads.all()):
            raise NotClaimed("the gradient of an empty row is defined only if the row gives zero")
    message = "the gradient is wrong if some keys are hidden"
    gradients, _ = differentiate_and_judge(subject, call, grad, WRT, message)
    for name in ("key", "value"):
        where = hidden[..., None].expand(gradients[name].shape)
        check_zero(gradients[name], name, where, "a key that no query reads has a gradient")


@law(
    "GRD-5",
    pinned=(
        TINIEST.but(mask=EMPTY_ROWS),
        *vary(SMALL.but(mask=EMPTY_ROWS), dtype=DTYPES),
        SMALL.but(mask=EMPTY_ROWS_FLOAT),
        GROUPED.but(mask=EMPTY_ROWS),
        SMALL.but(mask=LEFT, is_causal=True),
        *vary(SMALL.but(mask=EMPTY_ROWS, queries=17, keys=33), seed=range(3)),
        SMALL.but(window=(1, 1), queries=9, keys=3),
        SMALL.but(queries=9, keys=3, window=(0, 0), softcap=3.0),
    ),
    wide=(
        *vary(SMALL.but(mask=EMPTY_ROWS_FLOAT), dtype=DTYPES),
        SMALL.but(mask=EMPTY_ROWS_FLOAT, mask_gradient=True),
        SMALL.but(mask=EMPTY_ROWS, queries=65, keys=65),
    ),
    explore=cases(
        always=BACKWARD,
        sometimes=(Feature.WINDOW, Feature.SOFTCAP, Feature.ALIBI),
        patterns=(MaskPattern.EMPTY_ROWS,),
        families=TAME,
        lengths=LENGTHS,
        only=plain,
    ),
    cost=4,
)
def law_an_empty_row_adds_nothing_to_gradients(subject: Subject, case: Case) -> None:
    """GRD-5: a row that reads nothing has dQ exactly zero and adds nothing to dK and dV."""
    if not empty_rows_are_zero(subject):
        raise NotClaimed("the gradient of an empty row is defined only if the row gives zero")
    call = subject.draw(case, backward=True)
    empty = ~readable(subject, call).any(-1)
    if not bool(empty.any()):
        raise NotClaimed("every query reads some key")
    wrt = operands_with_gradient(subject, case)
    grad = incoming_gradient(case)
    changed = torch.where(empty[..., None], 16 * grad.double() + 100, grad.double()).to(grad.dtype)
    message = "a row that reads nothing changes the gradients"
    for incoming in (grad, changed):
        gradients, _ = differentiate_and_judge(subject, call, incoming, wrt, message)
        where = empty[..., None].expand(gradients["query"].shape)
        check_zero(gradients["query"], "query", where, message)


@law(
    "GRD-6",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        GROUPED,
        SMALL.but(softcap=2.0),
        SMALL.but(sinks=True),
    ),
    wide=(
        SMALL.but(**CAUSAL),
        SMALL.but(queries=17, keys=65),
    ),
    explore=cases(
        always=BACKWARD, sometimes=OPTIONS, families=TAME, lengths=(1, 2, 5, 17, 65), only=plain
    ),
    cost=2,
)
def law_zero_incoming_gradients_give_zeros(subject: Subject, case: Case) -> None:
    """GRD-6: an incoming gradient of zeros gives gradients of zeros."""
    call = subject.draw(case, backward=True)
    if not (empty_rows_are_zero(subject) or bool(readable(subject, call).any(-1).all())):
        raise NotClaimed("the gradient of an empty row is defined only if the row gives zero")
    wrt = operands_with_gradient(subject, case)
    gradients, _ = differentiate_and_judge(
        subject,
        call,
        torch.zeros_like(incoming_gradient(case)),
        wrt,
        "an incoming gradient of zeros gives wrong gradients",
    )
    for name, gradient in gradients.items():
        check_zero(gradient, name, None, "an incoming gradient of zeros does not give zeros")


@law(
    "GRD-7",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES, is_causal=(True,)),
        *vary(SMALL, seed=(1, 3)),
        *vary(GROUPED, seed=range(3)),
        SMALL.but(mask=DOCUMENTS, keys=9),
        SMALL.but(queries=9, keys=9, window=(2, 1)),
        SMALL.but(queries=17, keys=17, is_causal=True, seed=2),
        *vary(SMALL.but(queries=65, keys=65, window=(4, 0)), seed=range(2)),
    ),
    wide=(
        *vary(SMALL, seed=range(1, 4)),
        *vary(GROUPED, seed=range(3), is_causal=(True,)),
        GROUPED.but(batch=3, heads=12, kv_heads=4),
        *vary(SMALL.but(queries=17, keys=17, is_causal=True), seed=range(3)),
        SMALL.but(queries=70, keys=70, is_causal=True, seed=2),
        SMALL.but(queries=70, keys=70, mask=DOCUMENTS, seed=1, dtype=F16),
    ),
    explore=cases(
        always=BACKWARD,
        sometimes=OPTIONS,
        patterns=(*HIDING_PATTERNS, MaskPattern.RANDOM),
        families=TAME,
        lengths=LENGTHS,
        only=plain,
    ),
    cost=3,
)
def law_a_gradient_reaches_only_what_its_row_reads(subject: Subject, case: Case) -> None:
    """GRD-7: dO of one row alone reaches dQ of that row, and dK and dV of the keys it may read."""
    call = subject.draw(case, backward=True)
    if not (empty_rows_are_zero(subject) or bool(readable(subject, call).any(-1).all())):
        raise NotClaimed("the gradient of an empty row is defined only if the row gives zero")
    rows = torch.zeros(call.query.shape[:3], dtype=torch.bool, device=call.query.device)
    if not rows.numel():
        raise NotClaimed("there is no row")
    # the last row for some seeds, another one for the rest
    rows.view(-1)[-1 - (5 * case.seed) % rows.numel()] = True
    grad = incoming_gradient(case) * rows[..., None]
    message = "the gradient of one row is wrong"
    gradients, _ = differentiate_and_judge(subject, call, grad, WRT, message)
    other_rows = ~rows[..., None].expand(gradients["query"].shape)
    check_zero(
        gradients["query"], "query", other_rows, "the gradient of a query depends on another row"
    )
    hidden = unread_keys(subject, call, rows)
    for name in ("key", "value"):
        where = hidden[..., None].expand(gradients[name].shape)
        check_zero(
            gradients[name],
            name,
            where,
            "the gradient of a key depends on a row that may not read it",
        )


@law(
    "GRD-8",
    pinned=(
        *vary(TINIEST.but(mask=PADDING), seed=range(2)),
        *vary(SMALL.but(mask=PADDING), dtype=(F32, F64, F16)),
        SMALL.but(mask=LEFT),
        SMALL.but(queries=5, keys=9, is_causal=True),
        GROUPED.but(mask=PADDING),
        SMALL.but(queries=3, keys=33, window=(1, 1)),
    ),
    wide=(
        TINIEST.but(mask=PADDING, seed=2),
        *vary(SMALL.but(mask=PADDING), dtype=DTYPES, seed=range(3)),
        SMALL.but(queries=17, keys=129, is_causal=True),
    ),
    explore=cases(
        always=BACKWARD,
        sometimes=OPTIONS,
        patterns=HIDING_PATTERNS,
        families=TAME,
        lengths=LENGTHS,
        only=plain,
    ),
    cost=6,
)
def law_unreadable_nan_and_infinity_reach_no_gradient(subject: Subject, case: Case) -> None:
    """GRD-8: NaN, infinity and large numbers in keys and values that no query may read."""
    call = subject.draw(case, backward=True)
    hidden = unread_keys(subject, call)
    if not bool(hidden.any()):
        raise NotClaimed("no key is hidden from every query")
    grad = incoming_gradient(case)
    large = 1e3 if case.dtype == F16 else 1e6
    poisons = (large, torch.nan, torch.inf, -torch.inf)
    combinations = list(itertools.product(poisons, ({"value"}, {"key"}, {"key", "value"})))
    for poison, changed in combinations[case.seed % 3 :: 3]:
        operands = {name: getattr(call, name) for name in changed}
        where = hidden[..., None]
        tensors = {name: torch.where(where, poison, operand) for name, operand in operands.items()}
        names = " and ".join(sorted(changed))
        message = f"{poison} in {names} at keys that no query reads changes a gradient"
        differentiate_and_judge(subject, call.but(**tensors), grad, WRT, message)
