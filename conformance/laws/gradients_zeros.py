"""Laws of GRD: where a gradient is exactly zero, and what poison that nobody reads may do."""

import itertools

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import plain, readable
from attnspec.conformance.laws.gradients_sides import (
    BACKWARD,
    DTYPES,
    F16,
    F32,
    F64,
    FEATURES,
    GROUPED,
    LENGTHS,
    SMALL,
    TINIEST,
    check_zero,
    gradients_of,
    incoming,
    judged_gradients,
    zero_empty_rows,
)
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import WRT, Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.spec import Case, Feature, Mask, MaskKind, MaskPattern, MaskShape, Values

CAUSAL = {"is_causal": True}
PADDING = Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS)
LEFT = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.LEFT_PADDING, shape=MaskShape.BATCH)
DOCUMENTS = Mask(pattern=MaskPattern.DOCUMENTS, shape=MaskShape.RANK_2)
EMPTY = Mask(pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.FULL)
EMPTY_FLOAT = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.FULL)
HIDING = (MaskPattern.PADDING, MaskPattern.LEFT_PADDING, MaskPattern.DOCUMENTS)
TAME = (Values.NORMAL, Values.PEAKED, Values.NEGATIVE, Values.ONE_HOT, Values.INTEGERS, Values.TIES)
"""Contents whose products stay far below the range of every dtype."""


def unread(subject: Subject, call: Call, rows: torch.Tensor | None = None) -> torch.Tensor:
    """True for the keys of a key/value head that no query, or none of some rows, may read."""
    seen = readable(subject, call)
    if rows is not None:
        seen = seen & rows[..., None]
    batch, heads, _, keys = seen.shape
    shared = call.key.shape[1]
    return ~seen.any(2).reshape(batch, shared, heads // shared, keys).any(2)


@law(
    "GRD-4",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(mask=PADDING),
        TINIEST.but(queries=2, keys=5, **CAUSAL),
        *every(SMALL.but(mask=PADDING), dtype=DTYPES),
        SMALL.but(mask=LEFT),
        SMALL.but(mask=PADDING, is_causal=True),
        SMALL.but(mask=DOCUMENTS, keys=11),
        *every(GROUPED.but(mask=PADDING, batch=3), seed=range(3)),
        *every(SMALL.but(keys=17, is_causal=True), dtype=DTYPES),
        SMALL.but(queries=17, keys=33, window=(1, 2)),
        SMALL.but(queries=5, keys=129, is_causal=True),
    ),
    wide=(SMALL.but(queries=3, keys=70, mask=LEFT, seed=60, batch=1),),
    explore=cases(
        always=BACKWARD,
        sometimes=FEATURES,
        patterns=HIDING,
        families=TAME,
        lengths=LENGTHS,
        only=plain,
    ),
    needs={Feature.BACKWARD},
    cost=3,
)
def law_keys_that_nobody_reads_have_no_gradient(subject: Subject, case: Case) -> None:
    """GRD-4: dK and dV are exactly zero at keys that no query may read."""
    call = subject.draw(case, backward=True)
    hidden = unread(subject, call)
    if not bool(hidden.any()):
        raise NotClaimed("every key is read by some query")
    grad = incoming(case)
    if not zero_empty_rows(subject):
        # what a row of means or of NaN gives to the keys is not said
        alive = readable(subject, call).any(-1)
        if not bool(alive.all()):
            raise NotClaimed("the gradient of an empty row that is not zero is not said")
    message = "the gradient is wrong where some keys are hidden"
    found, _ = judged_gradients(subject, call, grad, WRT, message)
    for name in ("key", "value"):
        where = hidden[..., None].expand(found[name].shape)
        check_zero(found[name], name, where, "a key that nobody reads has a gradient")


@law(
    "GRD-5",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(mask=EMPTY),
        *every(SMALL.but(mask=EMPTY), dtype=DTYPES),
        SMALL.but(mask=EMPTY_FLOAT),
        GROUPED.but(mask=EMPTY),
        SMALL.but(mask=LEFT, is_causal=True),
        *every(SMALL.but(mask=EMPTY, queries=17, keys=33), seed=range(3)),
        SMALL.but(window=(1, 1), queries=9, keys=3),
        SMALL.but(queries=9, keys=3, window=(0, 0), softcap=3.0),
    ),
    wide=(
        *every(SMALL.but(mask=EMPTY_FLOAT), dtype=DTYPES),
        SMALL.but(mask=EMPTY_FLOAT, mask_gradient=True),
        SMALL.but(mask=EMPTY, queries=65, keys=65),
    ),
    explore=cases(
        always=BACKWARD,
        sometimes=(Feature.WINDOW, Feature.SOFTCAP, Feature.ALIBI),
        patterns=(MaskPattern.EMPTY_ROWS,),
        families=TAME,
        lengths=LENGTHS,
        only=plain,
    ),
    needs={Feature.BACKWARD},
    cost=4,
)
def law_an_empty_row_takes_no_part_in_gradients(subject: Subject, case: Case) -> None:
    """GRD-5: a row that reads nothing has dQ exactly zero and adds nothing to dK and dV."""
    if not zero_empty_rows(subject):
        raise NotClaimed("the gradient of an empty row that is not zero is not said")
    call = subject.draw(case, backward=True)
    empty = ~readable(subject, call).any(-1)
    if not bool(empty.any()):
        raise NotClaimed("every query reads some key")
    wrt = gradients_of(subject, case)
    grad = incoming(case)
    louder = torch.where(empty[..., None], 16 * grad.double() + 100, grad.double()).to(grad.dtype)
    message = "a row that reads nothing is felt in the gradients"
    for each in (grad, louder):
        found, _ = judged_gradients(subject, call, each, wrt, message)
        where = empty[..., None].expand(found["query"].shape)
        check_zero(found["query"], "query", where, message)


@law(
    "GRD-6",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL, dtype=DTYPES),
        GROUPED,
        SMALL.but(softcap=2.0),
        SMALL.but(sinks=True),
    ),
    wide=(
        SMALL.but(**CAUSAL),
        SMALL.but(queries=17, keys=65),
    ),
    explore=cases(
        always=BACKWARD, sometimes=FEATURES, families=TAME, lengths=(1, 2, 5, 17, 65), only=plain
    ),
    needs={Feature.BACKWARD},
    cost=2,
)
def law_no_incoming_gradient_gives_none(subject: Subject, case: Case) -> None:
    """GRD-6: an incoming gradient of zeros gives gradients of zeros."""
    call = subject.draw(case, backward=True)
    if not (zero_empty_rows(subject) or bool(readable(subject, call).any(-1).all())):
        raise NotClaimed("the gradient of an empty row that is not zero is not said")
    wrt = gradients_of(subject, case)
    found, _ = judged_gradients(
        subject, call, torch.zeros_like(incoming(case)), wrt, "zeros do not give zeros"
    )
    for name, got in found.items():
        check_zero(got, name, None, "an incoming gradient of zeros gives another gradient")


@law(
    "GRD-7",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL, dtype=DTYPES, is_causal=(True,)),
        *every(SMALL, seed=(1, 3)),
        *every(GROUPED, seed=range(3)),
        SMALL.but(mask=DOCUMENTS, keys=9),
        SMALL.but(queries=9, keys=9, window=(2, 1)),
        SMALL.but(queries=17, keys=17, is_causal=True, seed=2),
        *every(SMALL.but(queries=65, keys=65, window=(4, 0)), seed=range(2)),
    ),
    wide=(
        *every(SMALL, seed=range(1, 4)),
        *every(GROUPED, seed=range(3), is_causal=(True,)),
        GROUPED.but(batch=3, heads=12, kv_heads=4),
        *every(SMALL.but(queries=17, keys=17, is_causal=True), seed=range(3)),
        SMALL.but(queries=70, keys=70, is_causal=True, seed=2),
        SMALL.but(queries=70, keys=70, mask=DOCUMENTS, seed=1, dtype=F16),
    ),
    explore=cases(
        always=BACKWARD,
        sometimes=FEATURES,
        patterns=(*HIDING, MaskPattern.RANDOM),
        families=TAME,
        lengths=LENGTHS,
        only=plain,
    ),
    needs={Feature.BACKWARD},
    cost=3,
)
def law_a_gradient_reaches_only_what_its_row_reads(subject: Subject, case: Case) -> None:
    """GRD-7: dO of one row alone reaches dQ of that row, and dK and dV of the keys it may read."""
    call = subject.draw(case, backward=True)
    if not (zero_empty_rows(subject) or bool(readable(subject, call).any(-1).all())):
        raise NotClaimed("the gradient of an empty row that is not zero is not said")
    rows = torch.zeros(call.query.shape[:3], dtype=torch.bool, device=call.query.device)
    if not rows.numel():
        raise NotClaimed("there is no row")
    # the last row for some seeds, any other one for the rest
    rows.view(-1)[-1 - (5 * case.seed) % rows.numel()] = True
    grad = incoming(case) * rows[..., None]
    message = "the gradient of one row is wrong"
    found, _ = judged_gradients(subject, call, grad, WRT, message)
    others = ~rows[..., None].expand(found["query"].shape)
    check_zero(found["query"], "query", others, "a query feels the gradient of another row")
    hidden = unread(subject, call, rows)
    for name in ("key", "value"):
        where = hidden[..., None].expand(found[name].shape)
        check_zero(found[name], name, where, "a key feels a row that may not read it")


@law(
    "GRD-8",
    judges=Judged.ATTENTION,
    pinned=(
        *every(TINIEST.but(mask=PADDING), seed=range(2)),
        *every(SMALL.but(mask=PADDING), dtype=(F32, F64, F16)),
        SMALL.but(mask=LEFT),
        SMALL.but(queries=5, keys=9, is_causal=True),
        GROUPED.but(mask=PADDING),
        SMALL.but(queries=3, keys=33, window=(1, 1)),
    ),
    wide=(
        TINIEST.but(mask=PADDING, seed=2),
        *every(SMALL.but(mask=PADDING), dtype=DTYPES, seed=range(3)),
        SMALL.but(queries=17, keys=129, is_causal=True),
    ),
    explore=cases(
        always=BACKWARD,
        sometimes=FEATURES,
        patterns=HIDING,
        families=TAME,
        lengths=LENGTHS,
        only=plain,
    ),
    needs={Feature.BACKWARD},
    cost=6,
)
def law_poison_that_nobody_reads_reaches_no_gradient(subject: Subject, case: Case) -> None:
    """GRD-8: NaN, infinity and large numbers in keys and values that no query may read."""
    call = subject.draw(case, backward=True)
    hidden = unread(subject, call)
    if not bool(hidden.any()):
        raise NotClaimed("every key is read by some query")
    grad = incoming(case)
    large = 1e3 if case.dtype == F16 else 1e6
    poisons = (large, torch.nan, torch.inf, -torch.inf)
    tried = list(itertools.product(poisons, ({"value"}, {"key"}, {"key", "value"})))
    for poison, changed in tried[case.seed % 3 :: 3]:
        given = {name: getattr(call, name) for name in changed}
        there = hidden[..., None]
        tensors = {name: torch.where(there, poison, each) for name, each in given.items()}
        message = f"{poison} in {' and '.join(sorted(changed))} that nobody reads is felt"
        judged_gradients(subject, call.but(**tensors), grad, WRT, message)
