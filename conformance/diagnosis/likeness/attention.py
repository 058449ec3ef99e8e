"""Find the mutants, i.e. planted bugs, whose outputs agree with a broken attention's.

Mutants run the failing call and a series of others, the short ones first, for as long as their
outputs agree with the implementation's within the error bound. The report names the mutants that
agree on all of them, right and wrong, forward and backward; it names none if none agrees, or too
many do. A mutant has to show the numbers of the mistake, too: wherever an output is clearly wrong,
that of the mutant has to be wrong by the same amount, in several elements.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch

from attnspec.conformance import mutants
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.subject import WRT, Subject
from attnspec.conformance.attention.values import normal
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.diagnosis.likeness.outputs import (
    REFUSED,
    ComparisonCall,
    OutputCache,
    Outputs,
    outputs_of,
    outputs_of_mutant,
)
from attnspec.conformance.mutants.registry import Mutant
from attnspec.spec import (
    Case,
    EmptyRow,
    Feature,
    Implementation,
    KeyLengths,
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
"""Maximum number of mutants that are named: more would not narrow down the mistake."""

CLEARLY = 2.0
"""Errors above this multiple of the tolerance, which is twice the bound, are no rounding."""

SHARE = 0.25
"""Share of such an error by which a mutant's output may differ from the subject's."""

SEVERAL = 3
"""Minimum number of elements that are clearly wrong, and in the same way, to name a mutant."""

LARGEST = 2**24
"""Maximum bytes of storage of a call that all mutants run: each gets a copy."""

LONGEST = 2**12
"""Maximum number of keys of such a call: of hundreds of mutants, some store all scores at once."""

SHORT = 2**15
"""Maximum bytes of storage of a failing call that comes first, and whose outputs are cached."""

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
    # scores so large that finite numbers in hidden places leak
    SMALL.but(mask=Mask(shape=MaskShape.FULL), values=Values.PEAKED, scale=64.0),
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
    SMALL.but(key_lengths=KeyLengths.RAGGED, is_causal=True),
    SMALL.but(key_lengths=KeyLengths.RAGGED, query_offset=True, window=(3, 1), keys=12),
    SMALL.but(return_lse=True),
)
"""The cases of the calls that are compared besides the failing one."""


def likely_mutants(
    subject: Subject,
    *,
    among: Sequence[Mutant] | None = None,
    without: frozenset[str] = frozenset(),
) -> list[Mutant]:
    """Return the mutants whose outputs agree with a subject's, if there are few.

    Args:
        subject: a subject whose `last_call` broke a law.
        among: the mutants to consider; `None` for all.
        without: ids of mutants to leave out.

    Returns:
        At most `FEW` mutants; an empty list if more agree.
    """
    agreeing = [
        mutant for mutant in similar_mutants(subject, among=among) if mutant.id not in without
    ]
    return agreeing if len(agreeing) <= FEW else []


def similar_mutants(
    subject: Subject,
    *,
    among: Sequence[Mutant] | None = None,
    cache: OutputCache | None = None,
) -> list[Mutant]:
    """Return all mutants whose outputs agree with a subject's.

    Args:
        subject: a subject whose `last_call` broke a law.
        among: the mutants to consider; `None` for all.
        cache: outputs of mutants from comparisons with other subjects.
    """
    first = _last_comparison(subject)
    if first is None:
        return []
    return _similar_mutants(subject, first, among, cache)


def mutants_similar_in_ordinary_calls(subject: Subject) -> list[Mutant]:
    """Return the mutants whose outputs agree with a subject's in ordinary calls, if there are few.

    A call with NaN, one that is long or one with a single wrong element tells few mutants apart. So
    this looks at the first ordinary call that the subject gets wrong, if there is one.

    Args:
        subject: a subject that broke a law.

    Returns:
        At most `FEW` mutants; an empty list if more agree.
    """
    for comparison in _more_comparisons(subject, subject.widest):
        outputs = outputs_of(subject.implementation, comparison)
        if outputs is not None and not _are_right(
            subject, comparison, outputs, subject.implementation.profile
        ):
            agreeing = _similar_mutants(subject, comparison, None, None)
            return agreeing if len(agreeing) <= FEW else []
    return []


def _last_comparison(subject: Subject) -> ComparisonCall | None:
    """Return the failing call of a subject, or None if it is too large to compare or random."""
    if subject.last_call is None or subject.last_call.dropout_p > 0:
        return None
    if _stored(subject.last_call) > LARGEST or subject.last_call.key.shape[2] > LONGEST:
        return None
    grad_out, wrt = subject.last_grad or (None, ())
    return _comparison(subject, None, subject.last_call, grad_out, wrt)


def _stored(call: Call) -> int:
    """Return the bytes of the storage of a call's tensors."""
    return sum(tensor.untyped_storage().nbytes() for tensor in call.tensors.values())


def _similar_mutants(
    subject: Subject,
    first: ComparisonCall,
    among: Sequence[Mutant] | None,
    cache: OutputCache | None,
) -> list[Mutant]:
    """Return all mutants whose outputs agree with those of a subject that gets `first` wrong."""
    outputs = outputs_of(subject.implementation, first)
    if outputs is None or _are_right(subject, first, outputs, subject.implementation.profile):
        return []
    candidates = [
        mutant
        for mutant in (mutants.load().values() if among is None else among)
        if isinstance(mutant.subject, Implementation)
        # a mistake with a tool of torch; a custom operator imports torch.compile, which takes long
        and (subject.implementation.extras or not mutant.subject.extras)
    ]
    is_short = _stored(first.call) <= SHORT
    # a mistake may be of the narrow types alone, while that of a mutant is of all types
    for dtype in dict.fromkeys((subject.widest, first.call.query.dtype)):
        others = _more_comparisons(subject, dtype)
        agreeing, shown = candidates, Counter[str]()
        # a long failing call comes last: few mutants agree on all short calls
        for comparison in chain([first], others) if is_short else chain(others, [first]):
            if not agreeing:
                break
            if comparison is not first:
                outputs_here, cache_here = outputs_of(subject.implementation, comparison), cache
            else:
                outputs_here, cache_here = outputs, cache if is_short else None
            agreeing = _agreeing(subject, outputs_here, agreeing, comparison, cache_here, shown)
            if comparison is first:
                agreeing = [
                    each for each in agreeing if _is_mistaken(subject, first, outputs, each)
                ]
        similar = [mutant for mutant in agreeing if shown[mutant.id] >= SEVERAL]
        if similar:
            return similar
    return []


def _is_mistaken(
    subject: Subject, comparison: ComparisonCall, outputs: Outputs, mutant: Mutant
) -> bool:
    """Return whether a mutant gets a call wrong, and the subject does so under its profile too.

    Outputs that are wrong under the subject's profile may be right under a mutant's; and a mutant
    that is right, and does not refuse the call, has another mistake.
    """
    profile = mutant.subject.profile
    if _are_right(subject, comparison, outputs, profile):
        return False
    if mutant.subject is subject.implementation:
        return True
    _, mutants_own = outputs_of_mutant(mutant, comparison)
    return mutants_own is None or not _are_right(subject, comparison, mutants_own, profile)


def _agreeing(
    subject: Subject,
    outputs: Outputs | None,
    mutants: list[Mutant],
    comparison: ComparisonCall,
    cache: OutputCache | None,
    shown: Counter[str],
) -> list[Mutant]:
    """Return the mutants whose outputs agree with a subject's, or that do not claim the case.

    Without a cache, outputs are freed after their comparison. The number of elements in which a
    mutant shows the mistake of the subject is added to `shown`.
    """
    counts: dict[Any, int | None] = {}
    agreeing = []
    for mutant in mutants:
        # a mutant with state may have changed since its outputs were cached: run the subject's own
        if cache is None or mutant.subject is subject.implementation:
            key, mutants_own = outputs_of_mutant(mutant, comparison)
        else:
            key, mutants_own = cache.outputs_of_mutant(mutant, comparison)
        if key == REFUSED:
            agreeing.append(mutant)
            continue
        answers = _answers(mutant.subject.profile)
        where = key, answers
        if where not in counts:
            counts[where] = _common_mistakes(outputs, mutants_own, comparison, answers)
        count = counts[where]
        if count is not None:
            agreeing.append(mutant)
            shown[mutant.id] += count
    return agreeing


def _answers(profile: Profile) -> frozenset[EmptyRow]:
    """Return the answers of a profile to rows that read nothing, whatever hides their keys."""
    return frozenset(profile.empty_row_answers.values())


def _more_comparisons(subject: Subject, dtype: torch.dtype) -> Iterator[ComparisonCall]:
    """Yield the comparison calls besides the failing one that a subject claims."""
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
            comparison = _comparison(subject, case, call, grad_out, WRT)
            if comparison is not None:
                yield comparison


def _comparison(
    subject: Subject,
    case: Case | None,
    call: Call,
    grad_out: torch.Tensor | None,
    wrt: tuple[str, ...],
) -> ComparisonCall | None:
    """Return a comparison call that tolerates twice the bound; None if nothing is expected."""
    try:
        expected = subject.oracle(call, subject.implementation.profile)
        tolerance = {"out": 2 * expected.bound, "lse": 2 * expected.lse_bound}
        exact = {"out": expected.out, "lse": expected.lse}
        if grad_out is not None:
            gradients = subject.oracle_gradients(call, grad_out, subject.implementation.profile)
            # the oracle has no gradients of sinks and slopes
            wrt = tuple(name for name in wrt if getattr(gradients, name, None) is not None)
            for name in wrt:
                tolerance[name] = 2 * getattr(gradients, name).bound
                exact[name] = getattr(gradients, name).exact
    except (IndexError, RuntimeError, TypeError, ValueError):
        # a law may try invalid arguments on purpose, for which there is no right result
        return None
    return ComparisonCall(case, call, grad_out, wrt, tolerance, exact)


def _are_right(
    subject: Subject, comparison: ComparisonCall, outputs: Outputs, profile: Profile
) -> bool:
    """Return whether outputs are right under a profile."""
    expected = subject.oracle(comparison.call, profile)
    right = {
        "out": (expected.out, expected.bound, expected.may_be_nan),
        "lse": (expected.lse, expected.lse_bound, expected.lse_may_be_nan),
    }
    if comparison.grad_out is not None:
        gradients = subject.oracle_gradients(comparison.call, comparison.grad_out, profile)
        for name in comparison.wrt:
            gradient = getattr(gradients, name)
            right[name] = gradient.exact, gradient.bound, gradient.may_be_nan
    try:
        for name, got in outputs.items():
            exact, bound, may_be_nan = right[name]
            check_close(got, exact, bound, what=name, message="wrong", may_be_nan=may_be_nan)
    except Violation:
        return False
    return True


def _common_mistakes(
    one: Outputs | None,
    two: Outputs | None,
    comparison: ComparisonCall,
    answers: frozenset[EmptyRow],
) -> int | None:
    """Return in how many elements two outputs are clearly wrong by the same amount.

    Args:
        one: the outputs of the subject.
        two: those of a mutant.
        comparison: the call.
        answers: the answers of the mutant's profile to rows that read nothing: there, a subject may
            have any other answer.

    Returns:
        The number of elements, or None if the outputs differ by more than rounding.
    """
    if one is None or two is None:
        return 0 if one is two else None
    if one["out"].shape == two["out"].shape == comparison.exact["out"].shape:
        empty = _empty_rows(one["out"], comparison.call, frozenset(EmptyRow))
        empty = empty & _empty_rows(two["out"], comparison.call, answers)
        is_other = empty & ~_equal(one["out"], two["out"]).all(-1)
        if bool(is_other.any()):
            # gradients follow from the answer
            one, two = (
                _with_right_rows(one, comparison, empty),
                _with_right_rows(two, comparison, empty),
            )
    if one.keys() != two.keys() or not all(
        _same(one[name], two[name], comparison.tolerance[name], comparison.exact[name])
        for name in one
    ):
        return None
    return _clearly_wrong(one, comparison)


def _clearly_wrong(outputs: Outputs, comparison: ComparisonCall) -> int:
    """Return the number of elements that are wrong by far more than rounding."""
    return sum(
        int(_is_clearly_wrong(got, comparison.exact[name], comparison.tolerance[name]).sum())
        for name, got in outputs.items()
    )


def _is_clearly_wrong(
    got: torch.Tensor, exact: torch.Tensor, tolerance: torch.Tensor
) -> torch.Tensor:
    """Return for each element whether it is wrong by far more than rounding."""
    if got.shape != exact.shape:
        return torch.ones_like(got, dtype=torch.bool)
    got, exact = got.detach().double(), exact.double()
    is_close = (got - exact).abs() <= CLEARLY * tolerance
    return ~(is_close | _equal(got, exact) | tolerance.isinf())


def _with_right_rows(outputs: Outputs, comparison: ComparisonCall, rows: torch.Tensor) -> Outputs:
    """Return output and log-sum-exp with the right output in some rows."""
    right = comparison.exact["out"].to(outputs["out"])
    rows_right = {"out": torch.where(rows[..., None], right, outputs["out"])}
    return rows_right | ({"lse": outputs["lse"]} if "lse" in outputs else {})


def _empty_rows(out: torch.Tensor, call: Call, answers: frozenset[EmptyRow]) -> torch.Tensor:
    """Return the rows that equal an answer to a row that reads nothing, of which zero is one."""
    out = out.detach().double()
    is_empty = (out == 0).all(-1)
    if EmptyRow.NAN in answers:
        is_empty = is_empty | out.isnan().all(-1)
    value = call.value.detach().double()
    if EmptyRow.MEAN in answers and value.shape[2]:
        each_head = value.repeat_interleave(out.shape[1] // value.shape[1], 1)
        mean, size = each_head.mean(2, keepdim=True), each_head.abs().amax(2, keepdim=True)
        finest = torch.finfo(call.value.dtype).eps
        is_empty = is_empty | ((out - mean).abs() <= 8 * finest * size).all(-1)
    return is_empty


def _same(one: Any, two: Any, tolerance: torch.Tensor, exact: torch.Tensor) -> bool:
    if not (isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor)):
        return False
    if one.shape != two.shape or one.shape != tolerance.shape:
        return one.shape == two.shape and torch.equal(one.double(), two.double())
    left, right = one.detach().double(), two.detach().double()
    distance, are_equal = (left - right).abs(), _equal(left, right)
    is_wrong = _is_clearly_wrong(left, exact, tolerance)
    error = (left - exact.double()).abs().nan_to_num(torch.inf)
    is_wrong_alike = distance.isfinite() & (distance <= SHARE * error)
    if bool((is_wrong & ~is_wrong_alike & ~are_equal).any()):
        return False
    if bool((distance <= tolerance).all()):
        return True
    # the bound of an element holds for its right value: of a wrong one, the error may be as large
    # as that of any other element, and grows with the value
    is_finite = tolerance.isfinite()
    widest = torch.where(is_finite, tolerance, 0.0).amax() if tolerance.numel() else 0.0
    largest = torch.maximum(left.abs(), right.abs()).nan_to_num(0.0, 0.0, 0.0)
    scaled = torch.where(is_finite, widest * (1 + largest), torch.inf)
    return bool(((distance <= scaled) | are_equal).all())


def _equal(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    """Return for each element whether two tensors have the same number there, or both NaN."""
    return (one == two) | (one.isnan() & two.isnan())
