"""Declare a bare function as an operator: its claims by its parameters, its profile by calls."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from attnspec.conformance.comparison.violation import Raised, Violation
from attnspec.conformance.operators.experts.case import ExpertsCase, RouterCase
from attnspec.conformance.operators.experts.router import RouterSubject
from attnspec.conformance.operators.gated_mlp.case import GatedMLPCase
from attnspec.conformance.operators.gated_mlp.subject import is_within
from attnspec.conformance.operators.subjects import declaration_of, subject_of_operator
from attnspec.conformance.runner.claims import Claims
from attnspec.spec.experts import RouterProfile, RouterScores, RouterTies
from attnspec.spec.gated_mlp import GatedMLPProfile, GateForm, GatePacking
from attnspec.spec.profiles import Float64Precision

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_CASES: dict[str, Any] = {
    "gated_mlp": GatedMLPCase(shape=(5,), d_model=6, d_inner=8),
    "router": RouterCase(tokens=5, d_model=6, experts=7, top_k=3),
    "experts": ExpertsCase(tokens=5, d_model=6, d_inner=8),
}


def declare_operator(name: str, function: Callable[..., Any], claims: Claims) -> Any:
    """Return the declaration of a bare function.

    Args:
        name: the target.
        function: the operator that `claims.operator` names.
        claims: of the user; features and storage types that are not given are found by parameters
            and calls. The profile is the first with the given answers under which a call is
            right, or else the first of them.

    Raises:
        ValueError: if there is no such operator, or a claim is none of its own.
    """
    operator = claims.operator or ""
    declaration = declaration_of(operator)
    if claims.extras:
        raise ValueError("an operator has no extras: omit them")
    features = claims.features
    if features is None:
        features = _features(operator, function)
    dtypes = claims.dtypes
    profiles = _chosen(operator, claims.profile)
    declared = declaration(name=name, function=function, features=features, profile=profiles[0])
    # in the widest type that it takes, since functions that differ little are alike in 16 bits
    for widest in dtypes or _DTYPES:
        candidates = [replace(declared, profile=profile) for profile in profiles]
        right = [each for each in candidates if _is_right(each, widest)]
        if right:
            # profiles that give equal results may differ in the rounding of gradients
            best = next((each for each in right if _has_right_gradients(each, widest)), right[0])
            own = tuple(each for each in _DTYPES if _is_right(best, each))
            return replace(best, dtypes=dtypes or own)
    return replace(declared, dtypes=dtypes or _DTYPES[:2])


def profile_in_words(implementation: Any) -> str:
    """Return the profile of an operator as `key=value`, separated by commas."""
    return ", ".join(f"{key}={value}" for key, value in _answers(implementation.profile).items())


def _answers(profile: Any) -> dict[str, str]:
    """Return the answers of a profile as words."""
    words = {each.name: getattr(profile, each.name) for each in fields(profile)}
    is_word = {True: "yes", False: "no"}
    return {
        name: is_word[answer] if isinstance(answer, bool) else str(answer)
        for name, answer in words.items()
    }


def _chosen(operator: str, given: Sequence[tuple[str, str]]) -> list[Any]:
    """Return the profiles that have the answers that the user gives.

    Raises:
        ValueError: naming a question or an answer that there is not.
    """
    profiles = list(_profiles(operator))
    for key, word in given:
        answers = list(dict.fromkeys(_answers(each).get(key, "") for each in profiles))
        if answers == [""]:
            raise ValueError(f"{operator} has no question {key!r} in its profile")
        if word not in answers:
            raise ValueError(f"{key} is one of {', '.join(answers)}, got {word!r}")
        profiles = [each for each in profiles if _answers(each)[key] == word]
    return profiles


def _features(operator: str, function: Callable[..., Any]) -> frozenset[str]:
    """Return the features whose parameters a function names."""
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return frozenset()
    bias = "bias" if operator == "router" else "down_bias"
    found = {"bias": bias in names, "shared": operator == "experts" and "shared" in names}
    return frozenset(name for name, is_found in found.items() if is_found)


def _profiles(operator: str) -> Iterator[Any]:
    """Return the profiles that calls tell apart, the default first."""
    if operator == "router":
        for precision in Float64Precision:
            for scores in (RouterScores.SOFTMAX_CHOSEN, *RouterScores):
                for renormalized in (False, True):
                    for ties in RouterTies:
                        yield RouterProfile(
                            scores=scores,
                            renormalized=renormalized,
                            ties=ties,
                            scores_precision=precision,
                        )
        return
    for packing in GatePacking:
        for form in GateForm:
            yield GatedMLPProfile(form=form, packing=packing)


def _is_right(implementation: Any, dtype: torch.dtype) -> bool:
    """Return whether one call of a storage type is right under the declared profile."""
    case = _CASES[implementation.operator].but(dtype=dtype)
    try:
        subject_of_operator(implementation).judge_case(case, "wrong")
    except (Violation, Raised):
        return False
    return True


def _has_right_gradients(implementation: Any, dtype: torch.dtype) -> bool:
    """Return whether the gradients of a router are right under the declared profile."""
    subject = subject_of_operator(implementation)
    if not isinstance(subject, RouterSubject):
        return True
    case = _CASES["router"].but(dtype=dtype, backward=True)
    tensors, grad_out = case.draw(), case.draw_gradient()
    try:
        scores = subject.call(tensors, case.top_k).scores
        routed, got = subject.gradients(tensors, case.top_k, grad_out.to(scores.dtype))
    except (Violation, Raised):
        return False
    expected = subject.expect_gradients(tensors, routed.indices, grad_out)
    return all(is_within(got[name], allowed) for name, allowed in expected.items())
