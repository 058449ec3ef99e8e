"""Find the mutants, i.e. planted bugs, whose outputs agree with a broken attention's.

Mutants run the failing call and a series of others, the short ones first, for as long as their
outputs agree with the implementation's within the error bound. The report names the mutants that
agree on all of them, right and wrong, forward and backward; it names none if none agrees, or too
many do.
"""

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
    key_of,
    outputs_of,
    outputs_of_mutant,
)
from attnspec.conformance.mutants.registry import Mutant
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
"""Maximum number of mutants that are named: more would not narrow down the mistake."""

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
    if subject.last_call is None or subject.last_call.dropout_p > 0:
        return []
    tensors = subject.last_call.tensors.values()
    stored = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
    if stored > LARGEST or subject.last_call.key.shape[2] > LONGEST:
        return []
    grad_out, wrt = subject.last_grad or (None, ())
    first = _comparison(subject, None, subject.last_call, grad_out, wrt)
    if first is None:
        return []
    outputs = outputs_of(subject.implementation, first)
    if outputs is None or _are_right(subject, first, outputs, subject.implementation.profile):
        return []
    agreeing = [
        mutant
        for mutant in (mutants.load().values() if among is None else among)
        if isinstance(mutant.subject, Implementation)
        # a mistake with a tool of torch; a custom operator imports torch.compile, which takes long
        and (subject.implementation.extras or not mutant.subject.extras)
    ]
    # a long failing call comes last: few mutants agree on all short calls
    failing, is_short = [first], stored <= SHORT
    others = _more_comparisons(subject)
    for comparison in chain(failing, others) if is_short else chain(others, failing):
        if not agreeing:
            return []
        if comparison is not first:
            outputs_here, cache_here = outputs_of(subject.implementation, comparison), cache
        else:
            outputs_here, cache_here = outputs, cache if is_short else None
        agreeing = _agreeing(subject, outputs_here, agreeing, comparison, cache_here)
    # outputs that are wrong under the subject's profile may be right under a mutant's; and a
    # mutant that is right on the failing call has another mistake
    return [
        mutant
        for mutant in agreeing
        if not _are_right(subject, first, outputs, mutant.subject.profile)
        and _is_wrong(subject, first, mutant)
    ]


def _is_wrong(subject: Subject, comparison: ComparisonCall, mutant: Mutant) -> bool:
    """Return whether a mutant's own outputs are wrong, or refused."""
    if mutant.subject is subject.implementation:
        return True
    _, outputs = outputs_of_mutant(mutant, comparison)
    profile = mutant.subject.profile
    return outputs is None or not _are_right(subject, comparison, outputs, profile)


def _agreeing(
    subject: Subject,
    outputs: Outputs | None,
    mutants: list[Mutant],
    comparison: ComparisonCall,
    cache: OutputCache | None,
) -> list[Mutant]:
    """Return the mutants whose outputs agree with a subject's, or that do not claim the case.

    Without a cache, outputs are freed after their comparison.
    """
    agrees = {REFUSED: True, key_of(outputs, ""): True}
    agreeing = []
    for mutant in mutants:
        # a mutant with state may have changed since its outputs were cached: run the subject's own
        if cache is None or mutant.subject is subject.implementation:
            key, mutants_own = outputs_of_mutant(mutant, comparison)
        else:
            key, mutants_own = cache.outputs_of_mutant(mutant, comparison)
        if key not in agrees:
            agrees[key] = _agree(outputs, mutants_own, comparison.tolerance)
        if agrees[key]:
            agreeing.append(mutant)
    return agreeing


def _more_comparisons(subject: Subject) -> Iterator[ComparisonCall]:
    """Yield the comparison calls besides the failing one that a subject claims."""
    dtype = max(subject.implementation.dtypes, key=lambda dtype: torch.finfo(dtype).bits)
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
        if grad_out is not None:
            gradients = subject.oracle_gradients(call, grad_out, subject.implementation.profile)
            # the oracle has no gradients of sinks and slopes
            wrt = tuple(name for name in wrt if getattr(gradients, name, None) is not None)
            for name in wrt:
                tolerance[name] = 2 * getattr(gradients, name).bound
    except (IndexError, RuntimeError, TypeError, ValueError):
        # a law may try invalid arguments on purpose, for which there is no right result
        return None
    return ComparisonCall(case, call, grad_out, wrt, tolerance)


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


def _agree(one: Outputs | None, two: Outputs | None, tolerance: Outputs) -> bool:
    """Return whether two outputs are the same but for rounding."""
    if one is None or two is None:
        return one is two
    return (
        all(_same(one[name], two[name], tolerance[name]) for name in one.keys() & two.keys())
        and one.keys() == two.keys()
    )


def _same(one: Any, two: Any, tolerance: torch.Tensor) -> bool:
    if not (isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor)):
        return False
    if one.shape != two.shape or one.shape != tolerance.shape:
        return one.shape == two.shape and torch.equal(one.double(), two.double())
    left, right = one.detach().double(), two.detach().double()
    distance = (left - right).abs()
    if bool((distance <= tolerance).all()):
        return True
    # the bound of an element holds for its right value: of a wrong one, the error may be as large
    # as that of any other element, and grows with the value
    is_finite = tolerance.isfinite()
    widest = torch.where(is_finite, tolerance, 0.0).amax() if tolerance.numel() else 0.0
    largest = torch.maximum(left.abs(), right.abs()).nan_to_num(0.0, 0.0, 0.0)
    scaled = torch.where(is_finite, widest * (1 + largest), torch.inf)
    close = (distance <= scaled) | (left == right) | (left.isnan() & right.isnan())
    return bool(close.all())
