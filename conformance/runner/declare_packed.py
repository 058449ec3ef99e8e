"""Declare a bare function as a packed attention: features by parameters, the profile by calls."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from attnspec.conformance.comparison.violation import Raised, Violation
from attnspec.conformance.laws.packed.neighbours import poison
from attnspec.conformance.laws.paged.reading import among_poison
from attnspec.conformance.operators.packed.case import GARBAGE, PackedCase
from attnspec.conformance.operators.packed.subject import PackedBase
from attnspec.conformance.operators.paged.call import PagedCall
from attnspec.conformance.operators.paged.case import PagedCase, Past
from attnspec.conformance.operators.subjects import subject_of_operator
from attnspec.conformance.runner.claims import DTYPES, Claims, with_answers
from attnspec.conformance.runner.declare import parameters_of
from attnspec.spec import Values
from attnspec.spec.packed import (
    CAUSAL,
    EVERYWHERE,
    EmptySequences,
    IndexType,
    LseLayout,
    OutsideRows,
    PackedImplementation,
    causal_alone,
)
from attnspec.spec.paged import PagedImplementation
from attnspec.spec.profiles import EmptyRow, MaskedNonfinite, RoundingLevel

_PLAIN: dict[str, Any] = {
    "packed": PackedCase(queries=(2, 3), keys=(3, 4), d_head=8),
    "paged": PagedCase(queries=(2, 3), keys=(3, 4), d_head=8),
}
"""A case that every implementation takes, but for its storage type and page size."""

PAGE_SIZES = (1, 3, 4, 16, 24, 64, 128, 256)
"""The page sizes that are tried."""

BY_PARAMETER = {
    "window_size": ("causal", "window"),
    "enable_gqa": ("gqa",),
    "return_aux": ("lse",),
    "softcap": ("softcap",),
    "sinks": ("sinks",),
    "alibi_slopes": ("alibi",),
    "new_key": ("append",),
}

USES: dict[str, dict[str, Any]] = {
    "causal": {"window": CAUSAL},
    "window": {"window": (1, 0)},
    "gqa": {"heads": 2},
    "lse": {"lse": True},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "alibi": {"alibi": True},
    "append": {"append": True},
}
"""The fields of a case that uses a feature."""

_NUMEROUS: dict[str, Any] = {
    "queries": (33, 9),
    "keys": (65, 9),
    "heads": 2,
    "kv_heads": 2,
    "d_head": 16,
}
"""Sizes with enough elements for the largest rounding errors."""


def declare_packed(
    declaration: type[PackedImplementation], name: str, function: Callable[..., Any], claims: Claims
) -> PackedImplementation:
    """Return the declaration of a bare function that takes packed sequences, or pages.

    Features, storage types and answers that the claims do not give are found by calls: a feature is
    claimed if the function has its parameter and a call with it raises nothing.

    Args:
        declaration: the type of the declaration.
        name: the target.
        function: the packed attention.
        claims: of the user.

    Raises:
        ValueError: for an answer that the profile has not.
    """
    features = claims.features
    dtypes = claims.dtypes or tuple(DTYPES.values())
    declared = declaration(name=name, function=function, features=features or frozenset())
    declared = replace(
        declared,
        profile=with_answers(declaration.operator, declared.profile, claims.profile),
    )
    given = {key for key, _ in claims.profile}
    first = with_first_answers(declared, dtypes)
    declared = replace(declared, supports=first.supports)
    if "index_type" not in given:
        declared = replace(declared, profile=first.profile)
    if isinstance(declared, PagedImplementation):
        declared = replace(declared, page_sizes=page_sizes(declared, dtypes))
    plain = plain_case(declared)
    accepted = tuple(dtype for dtype in dtypes if not raises_for(declared, plain.but(dtype=dtype)))
    declared = replace(declared, dtypes=claims.dtypes or accepted or dtypes[:2])
    if features is None:
        declared = replace(declared, features=_features(declared, parameters_of(function) or {}))
    found: dict[str, Any] = {}
    for question, answer in ANSWERS.items():
        if question not in given and question in declared.profile.QUESTIONS:
            found[question] = answer(declared)
            declared = replace(declared, profile=replace(declared.profile, **found))
    return declared


def plain_case(implementation: PackedImplementation) -> Any:
    """Return a case that a bare function takes, in the first page size that it accepts."""
    case = _PLAIN[implementation.operator]
    if isinstance(implementation, PagedImplementation) and implementation.page_sizes:
        sizes = implementation.page_sizes
        case = case if case.page_size in sizes else case.but(page_size=sizes[0])
    return case.but(window=CAUSAL) if implementation.supports is causal_alone else case


def with_first_answers(
    implementation: PackedImplementation, dtypes: Sequence[torch.dtype]
) -> PackedImplementation:
    """Return a declaration with what every other experiment needs: integer types, and the diagonal.

    An integer type counts if a call with it raises nothing: one that reads other numbers than it
    gets is a finding. If all calls raise but causal ones, other calls are declared as refused.
    """
    plain = _PLAIN[implementation.operator]
    sizes: tuple[int, ...] = ()
    if isinstance(implementation, PagedImplementation):
        sizes = (plain.page_size, *(each for each in PAGE_SIZES if each != plain.page_size))
    plains = [plain.but(page_size=size) for size in sizes] or [plain]
    for window in (EVERYWHERE, CAUSAL):
        accepted = [
            answer
            for answer in (IndexType.INT32, IndexType.INT64)
            if any(
                not raises_for(_answering(implementation, answer), case)
                for each in plains
                for dtype in dtypes
                for case in [each.but(dtype=dtype, window=window)]
            )
        ]
        if accepted:
            if window == CAUSAL:
                implementation = replace(implementation, supports=causal_alone)
            answer = accepted[0] if len(accepted) == 1 else IndexType.EITHER
            return _answering(implementation, answer)
    return implementation


def _answering(implementation: PackedImplementation, answer: IndexType) -> PackedImplementation:
    return replace(implementation, profile=replace(implementation.profile, index_type=answer))


def _index_type(implementation: PackedImplementation) -> IndexType:
    return with_first_answers(implementation, implementation.dtypes).profile.index_type


def page_sizes(
    implementation: PagedImplementation, dtypes: Sequence[torch.dtype]
) -> tuple[int, ...] | None:
    """Return the page sizes whose calls raise nothing, in some storage type; None for all."""
    plain = plain_case(replace(implementation, page_sizes=None))
    accepted = tuple(
        size
        for size in PAGE_SIZES
        if any(not raises_for(implementation, plain.but(page_size=size, dtype=d)) for d in dtypes)
    )
    return accepted if 0 < len(accepted) < len(PAGE_SIZES) else None


def _call(implementation: PackedImplementation, case: Any) -> Any:
    """Return the output of a case, in a storage type that is claimed.

    Raises:
        Raised: if the function raises.
        Violation: if the output has a wrong form.
    """
    subject = subject_of_operator(implementation)
    assert isinstance(subject, PackedBase)
    return subject.call(subject.fit(case).draw(subject.profile)).out


def raises_for(implementation: PackedImplementation, case: Any) -> bool:
    """Return whether a call raises; a result of a wrong form is a finding, and no refusal."""
    subject = subject_of_operator(implementation)
    assert isinstance(subject, PackedBase)
    try:
        subject.call(case.draw(subject.profile))
    except Raised:
        return True
    except Violation:
        pass
    return False


def _features(implementation: PackedImplementation, names: Any) -> frozenset[str]:
    """Return the features whose parameters a function has, and which a call may use."""
    named = [each for name in names for each in BY_PARAMETER.get(name, ())]
    dtype = implementation.dtypes[0]
    return frozenset(
        each
        for each in named
        if not raises_for(implementation, plain_case(implementation).but(dtype=dtype, **USES[each]))
    )


def _empty_row(implementation: PackedImplementation) -> EmptyRow:
    """Return the output of the first query if there are more queries than keys."""
    if "causal" not in implementation.features:
        return EmptyRow.ZERO
    case = plain_case(implementation).but(queries=(3, 2), keys=(2, 2), window=CAUSAL)
    found: EmptyRow = _first_right(implementation, [case], "empty_row", tuple(EmptyRow))
    return found


def _empty_sequences(implementation: PackedImplementation) -> EmptySequences:
    """Return `undefined` if calls with empty sequences raise: a wrong result is a finding."""
    dtype, plain = implementation.dtypes[0], plain_case(implementation)
    cases = (
        plain.but(queries=(2, 0, 3), keys=(3, 0, 4)),
        plain.but(queries=(2, 2), keys=(3, 0)),
        plain.but(queries=(2, 0), keys=(3, 2)),
        plain.but(queries=(2, 1), keys=(0, 0)),
        plain.but(queries=(0, 0), keys=(2, 0)),
    )
    raised = any(raises_for(implementation, case.but(dtype=dtype)) for case in cases)
    return EmptySequences.UNDEFINED if raised else EmptySequences.ALLOWED


def _outside_rows(implementation: PackedImplementation) -> OutsideRows:
    with suppress(Raised, Violation):
        out = _call(implementation, plain_case(implementation).but(outside=3))
        if not bool(out[sum(plain_case(implementation).queries) :].any()):
            return OutsideRows.ZERO
    return OutsideRows.UNDEFINED


def _unwritten(implementation: PackedImplementation) -> MaskedNonfinite:
    """Return `propagates` if NaN in the rest of a page reaches the rows of its sequence."""
    return _spreads(implementation, plain_case(implementation).but(columns=0), "unwritten")


def _neighbours(implementation: PackedImplementation) -> MaskedNonfinite:
    """Return `propagates` if NaN of other sequences, or of none, reaches a row, as NaN alone."""
    case = plain_case(implementation)
    if isinstance(case, PagedCase):
        full = case.but(page_size=case.page_size, keys=(case.page_size, 2 * case.page_size))
        of_none = _spreads(implementation, full.but(past=Past.POISONED), "neighbours")
    else:
        of_none = _spreads(implementation, case.but(outside=3), "neighbours")
    if of_none is MaskedNonfinite.PROPAGATES:
        return of_none
    subject: Any = subject_of_operator(without_nan(implementation))
    call = subject.fit(case).draw(subject.profile)
    poisoned: Any = among_poison if isinstance(call, PagedCall) else poison
    with suppress(Raised, Violation):
        outs = [subject.call(poisoned(call, 1, number)).out for number in (torch.nan, GARBAGE)]
        seen = [bool(out[call.rows(1)].isnan().any()) for out in outs]
        if seen == [True, False]:
            return MaskedNonfinite.PROPAGATES
    return MaskedNonfinite.BLOCKED


def without_nan(implementation: PackedImplementation) -> PackedImplementation:
    """Return a declaration whose calls have no NaN in numbers that no query may read."""
    profile = implementation.profile
    names = [each for each in ("neighbours", "unwritten") if hasattr(profile, each)]
    known: dict[str, Any] = dict.fromkeys(names, MaskedNonfinite.PROPAGATES)
    return replace(implementation, profile=replace(profile, **known))


def _spreads(implementation: PackedImplementation, case: Any, question: str) -> MaskedNonfinite:
    """Return `propagates` if NaN reaches a result, and large numbers in its place do not."""
    finite = without_nan(implementation)
    answer: dict[str, Any] = {question: MaskedNonfinite.BLOCKED}
    poisoned = replace(finite, profile=replace(finite.profile, **answer))
    with suppress(Raised, Violation):
        rows = sum(case.queries)
        seen = [_call(each, case)[:rows].isnan().any() for each in (poisoned, finite)]
        if bool(seen[0]) and not bool(seen[1]):
            return MaskedNonfinite.PROPAGATES
    return MaskedNonfinite.BLOCKED


def _lse_layout(implementation: PackedImplementation) -> LseLayout:
    if "lse" not in implementation.features:
        return LseLayout.HEADS_FIRST
    case = plain_case(implementation).but(heads=2, kv_heads=2, lse=True)
    found: LseLayout = _first_right(implementation, [case], "lse_layout", tuple(LseLayout))
    return found


def _rounding(implementation: PackedImplementation) -> RoundingLevel:
    """Return `fused` if its bounds hold in all storage types, else `eager`, the widest.

    Few calls reach the difference of the levels between: a profile may declare these.
    """
    families = (Values.NORMAL, Values.PEAKED, Values.CANCELLATION, Values.OFFSET, Values.NEGATIVE)
    cases = [
        plain_case(implementation).but(dtype=dtype, values=family, seed=seed, **_NUMEROUS)
        for dtype in implementation.dtypes
        for family in families
        for seed in (0, 1)
    ]
    levels = (RoundingLevel.FUSED, RoundingLevel.EAGER)
    found: RoundingLevel = _first_right(implementation, cases, "rounding", levels)
    return found


def _first_right(
    implementation: PackedImplementation,
    cases: Sequence[Any],
    question: str,
    answers: Sequence[Any],
) -> Any:
    """Return the first answer under which all cases are right, or the first of all."""
    for answer in answers:
        profile = replace(implementation.profile, **{question: answer})
        subject = subject_of_operator(replace(implementation, profile=profile))
        try:
            for case in cases:
                subject.judge_case(subject.fit(case), "wrong")
        except (Raised, Violation):
            continue
        return answer
    return answers[0]


ANSWERS: dict[str, Callable[[PackedImplementation], Any]] = {
    "empty_sequences": _empty_sequences,
    "neighbours": _neighbours,
    "unwritten": _unwritten,
    "outside_rows": _outside_rows,
    "rounding": _rounding,
    "empty_row": _empty_row,
    "index_type": _index_type,
    "lse_layout": _lse_layout,
}
"""The experiments, in the order in which they need each other's answers."""
