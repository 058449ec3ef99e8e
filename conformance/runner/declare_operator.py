"""Declare a bare function as an operator: its claims by its parameters, its profile by calls."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from itertools import product
from typing import Any

import torch

from attnspec.conformance.comparison.violation import Raised, Violation
from attnspec.conformance.operators.additive_attention.case import AdditiveAttentionCase
from attnspec.conformance.operators.bert.case import BertCase
from attnspec.conformance.operators.built_model import BuiltModelSubject
from attnspec.conformance.operators.encoder_decoder.case import EncoderDecoderCase
from attnspec.conformance.operators.experts.case import ExpertsCase, RouterCase
from attnspec.conformance.operators.experts.router import RouterSubject
from attnspec.conformance.operators.gated_mlp.case import GatedMLPCase
from attnspec.conformance.operators.gated_mlp.subject import Allowed, is_within
from attnspec.conformance.operators.gelu.case import Arguments, GELUCase
from attnspec.conformance.operators.layer_norm.case import LayerNormCase
from attnspec.conformance.operators.layer_norm.case import Rows as LayerNormRows
from attnspec.conformance.operators.layer_norm.subject import LayerNormSubject
from attnspec.conformance.operators.online_softmax.case import (
    OnlineSoftmaxCase,
    Scores,
    SoftmaxMergeCase,
)
from attnspec.conformance.operators.rms_norm.case import RMSNormCase, Rows
from attnspec.conformance.operators.subject import OperatorSubject
from attnspec.conformance.operators.subjects import declaration_of, subject_of_operator
from attnspec.conformance.runner.claims import DTYPES, Claims
from attnspec.conformance.runner.declare import parameters_of
from attnspec.conformance.runner.declare_encoder_decoder import encoder_decoder_features
from attnspec.conformance.runner.declare_packed import declare_packed
from attnspec.conformance.runner.declare_rotary import (
    declare_rotary,
    rotary_features,
    rotary_profiles,
)
from attnspec.spec.additive_attention import AdditiveAttentionProfile
from attnspec.spec.encoder import BertProfile
from attnspec.spec.encoder_decoder import EncoderDecoderProfile, Sinusoids
from attnspec.spec.experts import RouterProfile, RouterScores, RouterTies
from attnspec.spec.gated_mlp import GatedMLPProfile, GateForm, GatePacking
from attnspec.spec.gelu import Approximate, GELUProfile
from attnspec.spec.layer_norm import LayerNormProfile, Saved
from attnspec.spec.online_softmax import (
    Kept,
    LogBase,
    OnlineSoftmaxProfile,
    SoftmaxMergeProfile,
)
from attnspec.spec.operator import Working
from attnspec.spec.packed import PackedImplementation
from attnspec.spec.profiles import Float64Precision
from attnspec.spec.rms_norm import Gain, RMSNormProfile, RoundingToStorage
from attnspec.spec.rotary import RotaryImplementation

_DTYPES = tuple(DTYPES.values())
_CASES: dict[str, tuple[Any, ...]] = {
    "layer_norm": (
        LayerNormCase(shape=(3,), channels=64, epsilon=0.5),
        LayerNormCase(shape=(33,), channels=257),
        LayerNormCase(shape=(3,), channels=64, rows=LayerNormRows.LARGE),
    ),
    "gelu": (
        GELUCase(shape=(257,), arguments=Arguments.WIDE),
        GELUCase(shape=(33,), arguments=Arguments.PEAKS),
    ),
    "rms_norm": (
        # epsilon is about as large as the mean square, so that its place and size show
        RMSNormCase(shape=(3,), channels=64, epsilon=0.5),
        # enough elements for the largest rounding errors, and squares beyond float16
        RMSNormCase(shape=(33,), channels=257),
        RMSNormCase(shape=(3,), channels=64, rows=Rows.LARGE),
    ),
    "gated_mlp": (GatedMLPCase(shape=(5,), d_model=6, d_inner=8),),
    "router": (RouterCase(tokens=5, d_model=6, experts=7, top_k=3),),
    "experts": (ExpertsCase(tokens=5, d_model=6, d_inner=8),),
    "online_softmax": (
        OnlineSoftmaxCase(queries=3, keys=9),
        # exponentials of scores and of sums of exponentials overflow
        OnlineSoftmaxCase(queries=3, keys=9, scores=Scores.LARGE),
        OnlineSoftmaxCase(queries=3, keys=65, seed=1),
    ),
    "softmax_merge": (SoftmaxMergeCase(rows=(3,)),),
    "bert": (BertCase(),),
    "encoder_decoder": (EncoderDecoderCase(),),
    "additive_attention": (AdditiveAttentionCase(keys=5),),
}
"""The cases of the calls that find profile and storage types."""
_MODELS = ("bert", "encoder_decoder")
"""The operators that are whole models, which are judged in float64 and float32 alone."""


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
    tried = _DTYPES[:2] if operator in _MODELS else _DTYPES
    if unjudged := set(claims.dtypes or ()) - set(tried):
        names = ", ".join(sorted(str(each).removeprefix("torch.") for each in unjudged))
        raise ValueError(f"{operator} is judged in float64 and float32, not in {names}")
    if claims.extras:
        raise ValueError("an operator has no extras: omit them")
    if issubclass(declaration, PackedImplementation):
        return declare_packed(declaration, name, function, claims)
    features = claims.features
    if features is None:
        features = _features(operator, function, claims.dtypes or tried)
    dtypes = claims.dtypes
    profiles = _chosen(operator, claims.profile)
    declared = declaration(name=name, function=function, features=features, profile=profiles[0])
    if isinstance(declared, RotaryImplementation):
        return declare_rotary(declared, profiles, dtypes)
    # in the widest type that it takes, since functions that differ little are alike in 16 bits
    for widest in dtypes or tried:
        candidates = [replace(declared, profile=profile) for profile in profiles]
        right = [each for each in candidates if _is_right(each, widest)]
        if right:
            # profiles that give equal results in one type may differ in others, or in the
            # rounding of gradients
            counts = [sum(_count_right(each, dtype) for dtype in tried) for each in right]
            most = max(counts)
            best = [each for each, count in zip(right, counts, strict=True) if count == most]
            found = next((each for each in best if _has_right_gradients(each, widest)), best[0])
            return replace(found, dtypes=dtypes or _accepted(found, widest))
    return replace(declared, dtypes=dtypes or _accepted(declared, tried[0]) or _DTYPES[:2])


def _accepted(implementation: Any, widest: torch.dtype) -> tuple[torch.dtype, ...]:
    """Return the storage types, none wider than a given one, in which a call raises nothing.

    Wrong results are a finding, and do not mean that a type is not meant.
    """
    subject = _unexplained(implementation)
    case = subject.fit(_CASES[implementation.operator][0])
    accepted = []
    for dtype in _DTYPES[:2] if implementation.operator in _MODELS else _DTYPES:
        if dtype.itemsize <= widest.itemsize:
            try:
                subject.judge_case(case.but(dtype=dtype), "wrong")
            except Raised:
                continue
            except Violation:
                pass
            accepted.append(dtype)
    return tuple(accepted)


def _unexplained(implementation: Any) -> OperatorSubject:
    """Return the subject of an operator, which names no causes: that takes seconds."""
    subject = subject_of_operator(implementation)
    if isinstance(subject, BuiltModelSubject):
        subject.explains = False
    return subject


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


def _features(
    operator: str, function: Callable[..., Any], dtypes: Sequence[torch.dtype]
) -> frozenset[str]:
    """Return the features whose parameters a function names."""
    if operator == "rotary":
        return rotary_features(function, dtypes)
    if operator == "bert":
        return _features_of_bert(function)
    if operator == "encoder_decoder":
        return encoder_decoder_features(function)
    names = parameters_of(function) or {}
    bias = "bias" if operator in ("router", "additive_attention") else "down_bias"
    found = {
        "bias": bias in names,
        "shared": operator == "experts" and "shared" in names,
        "mask": operator == "additive_attention" and "mask" in names,
    }
    return frozenset(name for name, is_found in found.items() if is_found)


_OPTIONS_OF_BERT = {
    "attention_mask": "padding",
    "token_type_ids": "token_types",
    "output_hidden_states": "hidden_states",
    "output_pooled": "pooler",
}
"""The features of a BERT by the parameters of the model that is built."""


def _features_of_bert(function: Callable[..., Any]) -> frozenset[str]:
    """Return the features whose options a model takes; none if it cannot be built."""
    case = BertCase()
    try:
        model = function(case.config, case.draw_parameters())
    except Exception:  # whatever it is, a law reports it
        return frozenset()
    names = parameters_of(getattr(model, "forward", model)) or {}
    return frozenset(feature for name, feature in _OPTIONS_OF_BERT.items() if name in names)


def _profiles(operator: str) -> Iterator[Any]:
    """Return the profiles that calls tell apart, the default first."""
    if operator == "rotary":
        yield from rotary_profiles()
        return
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
    if operator == "layer_norm":
        roundings = product(Float64Precision, Working, RoundingToStorage, Saved)
        for precision, working, rounding, saved in roundings:
            yield LayerNormProfile(
                rounding=rounding, working=working, saved=saved, float64_precision=precision
            )
        return
    if operator == "gelu":
        for precision, working, approximate in product(Float64Precision, Working, Approximate):
            yield GELUProfile(approximate=approximate, working=working, float64_precision=precision)
        return
    if operator == "online_softmax":
        for kept, base in product(Kept, LogBase):
            yield OnlineSoftmaxProfile(keeps=kept, base=base)
        return
    if operator == "additive_attention":
        for precision in Float64Precision:
            yield AdditiveAttentionProfile(float64_precision=precision)
        return
    if operator == "bert":
        yield BertProfile()
        return
    if operator == "encoder_decoder":
        for order in Sinusoids:
            yield EncoderDecoderProfile(sinusoids=order)
        return
    if operator == "softmax_merge":
        for base in LogBase:
            yield SoftmaxMergeProfile(base=base)
        return
    if operator == "rms_norm":
        answers = product(Float64Precision, Working, RoundingToStorage, Gain)
        for precision, working, rounding, gain in answers:
            yield RMSNormProfile(
                gain=gain, rounding=rounding, working=working, float64_precision=precision
            )
        return
    for packing in GatePacking:
        for form in GateForm:
            yield GatedMLPProfile(form=form, packing=packing)


def _is_right(implementation: Any, dtype: torch.dtype) -> bool:
    """Return whether the calls of a storage type are right under the declared profile."""
    return _count_right(implementation, dtype) == len(_CASES[implementation.operator])


def _count_right(implementation: Any, dtype: torch.dtype) -> int:
    """Return how many calls of a storage type are right under the declared profile."""
    subject, count = _unexplained(implementation), 0
    for case in _CASES[implementation.operator]:
        with suppress(Raised, Violation):
            subject.judge_case(subject.fit(case).but(dtype=dtype), "wrong")
            count += 1
    return count


def _has_right_gradients(implementation: Any, dtype: torch.dtype) -> bool:
    """Return whether gradients on which a profile decides are right under the declared one."""
    subject = subject_of_operator(implementation)
    if isinstance(subject, LayerNormSubject):
        return all(_has_right_sums(subject, each) for each in (torch.float16, torch.bfloat16))
    if not isinstance(subject, RouterSubject):
        return True
    case = _CASES["router"][0].but(dtype=dtype, backward=True)
    tensors, grad_out = case.draw(), case.draw_gradient()
    try:
        scores = subject.call(tensors, case.top_k).scores
        routed, got = subject.gradients(tensors, case.top_k, grad_out.to(scores.dtype))
    except (Violation, Raised):
        return False
    expected = subject.expect_gradients(tensors, routed.indices, grad_out)
    return all(is_within(got[name], allowed) for name, allowed in expected.items())


def _has_right_sums(subject: LayerNormSubject, dtype: torch.dtype) -> bool:
    """Return whether the gradients of many rows are right in a storage type, or it is not taken."""
    case = LayerNormCase(shape=(300,), channels=3, rows=LayerNormRows.OFFSET, dtype=dtype)
    operands, grad_out = case.draw(), case.draw_gradient()
    try:
        _, got = subject.gradients(operands, case.epsilon, grad_out)
    except Raised:
        return True
    except Violation:
        return False
    expected = subject.expect(operands, case.epsilon, grad_out)
    return all(
        is_within(got[name], Allowed(value=value, bound=getattr(expected.bounds, name)))
        for name, value in expected.grads.items()
    )
