"""Which planted bugs answer as a broken attention does.

The failing call is put to every mutant, and those that answer within the error bound of what the
implementation answered are put to more calls beside it. What agrees on all of them, right and
wrong, forward and backward, is what the implementation looks like. Nothing is said where nothing
agrees, or too much.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from attnspec.conformance.answers import REFUSED, Answer, Answered, Question, answer, asked, key_of
from attnspec.conformance.call import Call
from attnspec.conformance.compare import check_close
from attnspec.conformance.inputs import draw
from attnspec.conformance.mutants.registry import Mutant, planted
from attnspec.conformance.subject import WRT, Subject
from attnspec.conformance.values import normal
from attnspec.conformance.violation import Violation
from attnspec.spec import (
    Case,
    Feature,
    Implementation,
    Layout,
    Layouts,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    Profile,
    Values,
)

FEW = 3
"""More bugs than this are not named: they say nothing."""

LARGEST = 2**24
"""Bytes of the memory behind a call that is put to the whole catalogue: each mutant gets a copy."""

LONGEST = 2**12
"""Keys of such a call, at most: hundreds of mutants answer it, some with all scores at once."""

REMEMBERED = 2**15
"""Bytes of the memory behind a failing call whose answers are remembered."""

SMALL = Case(batch=2, heads=3, kv_heads=3, queries=5, keys=7, d_head=8, d_value=8)
WIDE = SMALL.but(batch=1, heads=2, kv_heads=2, queries=33, keys=70, d_head=65, d_value=65)
EXTRA = (
    SMALL,
    SMALL.but(queries=7, keys=5, is_causal=True),
    SMALL.but(queries=5, keys=5, is_causal=True, values=Values.PEAKED),
    SMALL.but(is_causal=True),
    SMALL.but(queries=1, values=Values.ONE_HOT),
    SMALL.but(heads=6, kv_heads=2, keys=17),
    SMALL.but(heads=12, kv_heads=4, batch=4),
    SMALL.but(d_value=3),
    SMALL.but(mask=Mask(shape=MaskShape.FULL)),
    SMALL.but(mask=Mask(pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.RANK_3)),
    SMALL.but(mask=Mask(pattern=MaskPattern.LEFT_PADDING, shape=MaskShape.KEYS), is_causal=True),
    SMALL.but(mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.HEADS)),
    SMALL.but(scale=-0.7),
    SMALL.but(scale=2.0, values=Values.TIES),
    SMALL.but(keys=19, values=Values.OFFSET),
    SMALL.but(keys=40, values=Values.GROWING),
    SMALL.but(values=Values.NEGATIVE, keys=33),
    SMALL.but(keys=0),
    WIDE,
    WIDE.but(d_head=128, d_value=128, queries=129),
    WIDE.but(values=Values.PEAKED, queries=70, is_causal=True),
    SMALL.but(layouts=Layouts(query=Layout.HEADS_INSIDE, key=Layout.TRANSPOSED)),
    SMALL.but(layouts=Layouts(value=Layout.SLICED, key=Layout.EXPANDED)),
    SMALL.but(window=(2, 1), queries=9, keys=9),
    SMALL.but(window=(3, 0), queries=4, keys=9, is_causal=True),
    SMALL.but(softcap=1.5, values=Values.PEAKED, mask=Mask(shape=MaskShape.FULL)),
    SMALL.but(sinks=True, return_lse=True),
    SMALL.but(alibi=True, heads=6, kv_heads=6),
    SMALL.but(return_lse=True),
)
"""What is asked beside the failing call."""


def resembles(
    subject: Subject,
    *,
    among: Sequence[Mutant] | None = None,
    without: frozenset[str] = frozenset(),
) -> list[Mutant]:
    """Name the few mutants that answer as a subject does, beginning with its last call.

    Args:
        subject: whose `last_call` broke a law.
        among: the mutants that are considered; `None` is all of them.
        without: ids of mutants that are not.

    Returns:
        At most `FEW`, none where nothing, or more, agrees.
    """
    found = [each for each in alike(subject, among=among) if each.id not in without]
    return found if len(found) <= FEW else []


def alike(
    subject: Subject,
    *,
    among: Sequence[Mutant] | None = None,
    answered: Answered | None = None,
) -> list[Mutant]:
    """Find all mutants that answer as a subject does, however many they are.

    Args:
        subject: whose `last_call` broke a law.
        among: the mutants that are considered; `None` is all of them.
        answered: what mutants answered when other subjects were compared with them.
    """
    import attnspec.conformance.mutants  # noqa: F401  (registers them)

    if subject.last_call is None or subject.last_call.dropout_p > 0:
        return []
    stored = sum(each.untyped_storage().nbytes() for each in subject.last_call.tensors.values())
    if stored > LARGEST or subject.last_call.key.shape[2] > LONGEST:
        return []
    grad_out, wrt = subject.last_grad or (None, ())
    first = _question(subject, None, subject.last_call, grad_out, wrt)
    if first is None:
        return []
    given = answer(subject.implementation, first)
    if given is None or _is_right(subject, first, given, subject.implementation.profile):
        return []
    every = [
        mutant
        for mutant in (planted().values() if among is None else among)
        if isinstance(mutant.subject, Implementation)
    ]
    if answered is None:
        found = _agreeing(given, every, first)
    else:
        kept = answered if stored <= REMEMBERED else None
        found = _few_asked(subject, given, every, first, answered, kept)
    # with other answers declared, what is wrong here may be right there
    found = [each for each in found if not _is_right(subject, first, given, each.subject.profile)]
    if answered is not None and len(found) > FEW + 1:
        # too many are not named, whoever of them answers otherwise now
        return found
    return _alike_elsewhere(subject, found)


def _few_asked(
    subject: Subject,
    given: Answer,
    every: list[Mutant],
    first: Question,
    answered: Answered,
    kept: Answered | None,
) -> list[Mutant]:
    """Of all mutants those that agree with a subject: what is known by heart leaves few to ask."""
    # the entry of the subject itself may remember what it was asked meanwhile
    own = [mutant for mutant in every if mutant.subject is subject.implementation]
    others = [mutant for mutant in every if mutant.subject is not subject.implementation]
    agreeing = _agreeing(given, own, first)
    agreeing += _agreeing(given, _alike_elsewhere(subject, others, answered), first, kept)
    ids = {mutant.id for mutant in agreeing}
    return [mutant for mutant in every if mutant.id in ids]


def _alike_elsewhere(
    subject: Subject, mutants: list[Mutant], answered: Answered | None = None
) -> list[Mutant]:
    """Of some mutants those that answer as a subject does to all that is asked beside the call."""
    for question in _more(subject):
        if not mutants:
            break
        given = answer(subject.implementation, question)
        mutants = _agreeing(given, mutants, question, answered)
    return mutants


def _agreeing(
    given: Answer | None,
    mutants: list[Mutant],
    question: Question,
    answered: Answered | None = None,
) -> list[Mutant]:
    """Of some mutants those that answer a question alike, or claim nothing of the kind.

    Without a memory, which keeps what is answered, each answer is let go once it is compared.
    """
    agrees = {REFUSED: True, key_of(given, ""): True}
    ask = asked(question) if answered is None else answered.to(question)
    left = []
    for mutant in mutants:
        key, theirs = ask(mutant)
        if key not in agrees:
            agrees[key] = _agree(given, theirs, question.slack)
        if agrees[key]:
            left.append(mutant)
    return left


def _more(subject: Subject) -> Iterator[Question]:
    """What else is put to a subject, within its claims."""
    dtype = max(subject.implementation.dtypes, key=lambda each: torch.finfo(each).bits)
    for case in EXTRA:
        case = case.but(dtype=dtype, device=subject.device)
        if Feature.BACKWARD in subject.implementation.features:
            case = case.but(backward=True)
        if subject.refuses(case) is not None:
            case = case.but(d_value=case.d_head, layouts=Layouts())
        if subject.refuses(case) is None:
            call = draw(case)
            shape = (*call.query.shape[:3], call.value.shape[3])
            grad_out = normal(case, "grad_out", *shape).to(call.value) if case.backward else None
            question = _question(subject, case, call, grad_out, WRT)
            if question is not None:
                yield question


def _question(
    subject: Subject,
    case: Case | None,
    call: Call,
    grad_out: torch.Tensor | None,
    wrt: tuple[str, ...],
) -> Question | None:
    """A question with its slack: two answers may each be off by their bound."""
    try:
        expected = subject.oracle(call, subject.implementation.profile)
        slack = {"out": 2 * expected.bound, "lse": 2 * expected.lse_bound}
        if grad_out is not None:
            due = subject.oracle_gradients(call, grad_out, subject.implementation.profile)
            for name in wrt:
                slack[name] = 2 * getattr(due, name).bound
    except (RuntimeError, TypeError, ValueError):
        # what the law handed to the subject may be refused on purpose, and has no answer
        return None
    return Question(case, call, grad_out, wrt, slack)


def _is_right(subject: Subject, question: Question, given: Answer, profile: Profile) -> bool:
    """True where an answer is what a profile demands: it shows no mistake."""
    expected = subject.oracle(question.call, profile)
    due = {
        "out": (expected.out, expected.bound, expected.may_be_nan),
        "lse": (expected.lse, expected.lse_bound, expected.lse_may_be_nan),
    }
    if question.grad_out is not None:
        gradients = subject.oracle_gradients(question.call, question.grad_out, profile)
        for name in question.wrt:
            each = getattr(gradients, name)
            due[name] = each.exact, each.bound, each.may_be_nan
    try:
        for name, got in given.items():
            exact, bound, may_be_nan = due[name]
            check_close(got, exact, bound, what=name, message="wrong", may_be_nan=may_be_nan)
    except Violation:
        return False
    return True


def _agree(one: Answer | None, two: Answer | None, slack: Answer) -> bool:
    """True where two answers are the same but for rounding."""
    if one is None or two is None:
        return one is two
    return (
        all(_same(one[name], two[name], slack[name]) for name in one.keys() & two.keys())
        and one.keys() == two.keys()
    )


def _same(one: Any, two: Any, slack: torch.Tensor) -> bool:
    if not (isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor)):
        return False
    if one.shape != two.shape or one.shape != slack.shape:
        return one.shape == two.shape and torch.equal(one.double(), two.double())
    left, right = one.detach().double(), two.detach().double()
    gap = (left - right).abs()
    if bool((gap <= slack).all()):
        return True
    # the bound of an element is that of its right answer: wrong ones are as far apart as any, and
    # the farther, the larger they are
    widest = torch.where(slack.isfinite(), slack, 0.0).amax() if slack.numel() else 0.0
    room = widest * (1 + torch.maximum(left.abs(), right.abs()).nan_to_num(0.0, 0.0, 0.0))
    room = torch.where(slack.isfinite(), room, torch.inf)
    close = (gap <= room) | (left == right) | (left.isnan() & right.isnan())
    return bool(close.all())
