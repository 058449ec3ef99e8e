"""Declare a bare function as an operator: its claims by its parameters, its profile by calls."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

import torch

from attnspec.conformance.comparison.violation import Raised, Violation
from attnspec.conformance.operators.additive_attention.case import AdditiveAttentionCase
from attnspec.conformance.operators.bert.case import BertCase
from attnspec.conformance.operators.bert.subject import BertSubject
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
from attnspec.spec.encoder import BertImplementation, BertProfile, Pooled
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
from attnspec.spec.padding import PaddedPositions
from attnspec.spec.profiles import Float64Precision
from attnspec.spec.rms_norm import Gain, RMSNormProfile, RoundingToStorage

_DTYPES = tuple(DTYPES.values())


def _always(_implementation: Any, _dtype: torch.dtype) -> bool:
    """Return true: no gradient decides on the profile."""
    return True


@dataclass(frozen=True, kw_only=True)
class Search:
    """The way in which the declaration of a bare function is found.

    Attributes:
        cases: the calls that find profile and storage types.
        profiles: returns the profiles that calls tell apart, the default first.
        parameters: the parameter whose name shows a feature, by the feature.
        features: returns the features that a function takes; by default those whose parameters it
            names.
        dtypes: the storage types that are tried, the widest first.
        has_right_gradients: returns whether gradients on which a profile decides are right under
            the declared one, in a storage type.
        declare: chooses among profiles, if other calls than `cases` do; `cases` is empty then.
    """

    cases: tuple[Any, ...]
    profiles: Callable[[], Iterable[Any]]
    parameters: Mapping[str, str] = field(default_factory=dict)
    features: Callable[[Callable[..., Any], Sequence[torch.dtype]], frozenset[str]] | None = None
    dtypes: tuple[torch.dtype, ...] = _DTYPES
    has_right_gradients: Callable[[Any, torch.dtype], bool] = _always
    declare: Callable[[Any, Sequence[Any], tuple[torch.dtype, ...] | None], Any] | None = None

    def features_of(
        self, function: Callable[..., Any], dtypes: Sequence[torch.dtype]
    ) -> frozenset[str]:
        """Return the features that a function takes."""
        if self.features is not None:
            return self.features(function, dtypes)
        names = parameters_of(function) or {}
        return frozenset(
            feature for feature, parameter in self.parameters.items() if parameter in names
        )


def _answered(profile: Callable[..., Any], **questions: Iterable[Any]) -> Callable[[], list[Any]]:
    """Return a function that returns the profiles of all answers; the last question varies fastest.

    Args:
        profile: the type of the profile.
        questions: the answers to each question, its default first.
    """
    names = tuple(questions)
    return lambda: [
        profile(**dict(zip(names, answers, strict=True)))
        for answers in product(*questions.values())
    ]


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
    if issubclass(declaration, PackedImplementation):
        return declare_packed(declaration, name, function, claims)
    search = _SEARCHES[operator]
    tried = search.dtypes
    if unjudged := set(claims.dtypes or ()) - set(tried):
        judged, names = (
            [str(each).removeprefix("torch.") for each in types] for types in (tried, unjudged)
        )
        raise ValueError(
            f"{operator} is judged in {' and '.join(judged)}, not in {', '.join(sorted(names))}"
        )
    features = claims.features
    if features is None:
        features = search.features_of(function, claims.dtypes or tried)
    dtypes = claims.dtypes
    profiles = _chosen(operator, claims.profile)
    declared = declaration(name=name, function=function, features=features, profile=profiles[0])
    if search.declare is not None:
        return search.declare(declared, profiles, dtypes)
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
            agreeing = (each for each in best if search.has_right_gradients(each, widest))
            found = next(agreeing, best[0])
            return replace(found, dtypes=dtypes or _accepted(found, widest))
    return replace(declared, dtypes=dtypes or _accepted(declared, tried[0]) or _DTYPES[:2])


def _accepted(implementation: Any, widest: torch.dtype) -> tuple[torch.dtype, ...]:
    """Return the storage types, none wider than a given one, in which a call raises nothing.

    Wrong results are a finding, and do not mean that a type is not meant.
    """
    search = _SEARCHES[implementation.operator]
    subject = _unexplained(implementation)
    case = subject.fit(search.cases[0])
    accepted = []
    for dtype in search.dtypes:
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
        name: is_word[answer] if isinstance(answer, bool) else _word(answer)
        for name, answer in words.items()
    }


def _word(answer: Any) -> str:
    """Return an answer, or the name of a function that gives it."""
    return str(getattr(answer, "__name__", answer))


def _chosen(operator: str, given: Sequence[tuple[str, str]]) -> list[Any]:
    """Return the profiles that have the answers that the user gives.

    Raises:
        ValueError: naming a question or an answer that there is not.
    """
    profiles = list(_SEARCHES[operator].profiles())
    for key, word in given:
        answers = list(dict.fromkeys(_answers(each).get(key, "") for each in profiles))
        if answers == [""]:
            raise ValueError(f"{operator} has no question {key!r} in its profile")
        if word not in answers:
            raise ValueError(f"{key} is one of {', '.join(answers)}, got {word!r}")
        profiles = [each for each in profiles if _answers(each)[key] == word]
    return profiles


_LEFT_PADDED = BertCase(length=4, batch=2, padded=True, padding_side="left")
_BEHIND_PADDING = (
    EncoderDecoderCase(batch=2, padded=True, padding_side="left"),
    EncoderDecoderCase(batch=2, target=4, target_padded=True, padding_side="left"),
)

_OPTIONS_OF_BERT = {
    "attention_mask": "padding",
    "token_type_ids": "token_types",
    "output_hidden_states": "hidden_states",
    "output_pooled": "pooler",
}
"""The features of a BERT by the parameters of the model that is built."""


def _features_of_bert(
    function: Callable[..., Any], _dtypes: Sequence[torch.dtype]
) -> frozenset[str]:
    """Return the features whose options a model takes, and `gradients`; none if it is not built."""
    case = BertCase()
    try:
        model = function(case.config, case.draw_parameters())
    except Exception:  # whatever it is, a law reports it
        return frozenset()
    names = parameters_of(getattr(model, "forward", model)) or {}
    found = {feature for name, feature in _OPTIONS_OF_BERT.items() if name in names}
    if "padding" in found:
        found.add("any_padding")
    subject = BertSubject(implementation=BertImplementation(name="it", function=function))
    # gradients are claimed if one reaches every parameter, right or wrong
    with suppress(Raised, Violation):
        subject.gradients(case, case.draw_parameters(), case.draw())
        found.add("gradients")
    return frozenset(found)


def _is_right(implementation: Any, dtype: torch.dtype) -> bool:
    """Return whether the calls of a storage type are right under the declared profile."""
    return _count_right(implementation, dtype) == len(_claimed_cases(implementation))


def _count_right(implementation: Any, dtype: torch.dtype) -> int:
    """Return how many calls of a storage type are right under the declared profile."""
    subject, count = _unexplained(implementation), 0
    for case in _claimed_cases(implementation):
        with suppress(Raised, Violation):
            subject.judge_case(subject.fit(case).but(dtype=dtype), "wrong")
            count += 1
    return count


def _claimed_cases(implementation: Any) -> list[Any]:
    """Return the first case of an operator, and the others whose features are claimed."""
    subject = subject_of_operator(implementation)
    first, *others = _SEARCHES[implementation.operator].cases
    features = implementation.features
    return [first, *(case for case in others if subject.fit(case).features <= features)]


def _has_right_scores(implementation: Any, dtype: torch.dtype) -> bool:
    """Return whether the gradients of a router are right."""
    subject = RouterSubject(implementation=implementation)
    case = _ROUTED.but(dtype=dtype, backward=True)
    tensors, grad_out = case.draw(), case.draw_gradient()
    try:
        scores = subject.call(tensors, case.top_k).scores
        routed, got = subject.gradients(tensors, case.top_k, grad_out.to(scores.dtype))
    except (Violation, Raised):
        return False
    expected = subject.expect_gradients(tensors, routed.indices, grad_out)
    return all(is_within(got[name], allowed) for name, allowed in expected.items())


def _has_right_sums(implementation: Any, _dtype: torch.dtype) -> bool:
    """Return whether the gradients of many rows are right in the types of 16 bits."""
    subject = LayerNormSubject(implementation=implementation)
    return all(_has_right_sum(subject, each) for each in (torch.float16, torch.bfloat16))


def _has_right_sum(subject: LayerNormSubject, dtype: torch.dtype) -> bool:
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


_ROUTED = RouterCase(tokens=5, d_model=6, experts=7, top_k=3)

_SEARCHES: dict[str, Search] = {
    "layer_norm": Search(
        cases=(
            LayerNormCase(shape=(3,), channels=64, epsilon=0.5),
            LayerNormCase(shape=(33,), channels=257),
            LayerNormCase(shape=(3,), channels=64, rows=LayerNormRows.LARGE),
        ),
        profiles=_answered(
            LayerNormProfile,
            float64_precision=Float64Precision,
            working=Working,
            rounding=RoundingToStorage,
            saved=Saved,
        ),
        has_right_gradients=_has_right_sums,
    ),
    "gelu": Search(
        cases=(
            GELUCase(shape=(257,), arguments=Arguments.WIDE),
            GELUCase(shape=(33,), arguments=Arguments.PEAKS),
        ),
        profiles=_answered(
            GELUProfile,
            float64_precision=Float64Precision,
            working=Working,
            approximate=Approximate,
        ),
    ),
    "rms_norm": Search(
        cases=(
            # epsilon is about as large as the mean square, so that its place and size show
            RMSNormCase(shape=(3,), channels=64, epsilon=0.5),
            # enough elements for the largest rounding errors, and squares beyond float16
            RMSNormCase(shape=(33,), channels=257),
            RMSNormCase(shape=(3,), channels=64, rows=Rows.LARGE),
        ),
        profiles=_answered(
            RMSNormProfile,
            float64_precision=Float64Precision,
            working=Working,
            rounding=RoundingToStorage,
            gain=Gain,
        ),
    ),
    "rotary": Search(
        cases=(), profiles=rotary_profiles, features=rotary_features, declare=declare_rotary
    ),
    "gated_mlp": Search(
        cases=(GatedMLPCase(shape=(5,), d_model=6, d_inner=8),),
        profiles=_answered(GatedMLPProfile, packing=GatePacking, form=GateForm),
        parameters={"bias": "down_bias"},
    ),
    "router": Search(
        cases=(_ROUTED,),
        profiles=_answered(
            RouterProfile,
            scores_precision=Float64Precision,
            scores=(RouterScores.SOFTMAX_CHOSEN, *RouterScores),
            renormalized=(False, True),
            ties=RouterTies,
        ),
        parameters={"bias": "bias"},
        has_right_gradients=_has_right_scores,
    ),
    "experts": Search(
        cases=(ExpertsCase(tokens=5, d_model=6, d_inner=8),),
        profiles=_answered(GatedMLPProfile, packing=GatePacking, form=GateForm),
        parameters={"bias": "down_bias", "shared": "shared"},
    ),
    "online_softmax": Search(
        cases=(
            OnlineSoftmaxCase(queries=3, keys=9),
            # exponentials of scores and of sums of exponentials overflow
            OnlineSoftmaxCase(queries=3, keys=9, scores=Scores.LARGE),
            OnlineSoftmaxCase(queries=3, keys=65, seed=1),
        ),
        profiles=_answered(OnlineSoftmaxProfile, keeps=Kept, base=LogBase),
    ),
    "softmax_merge": Search(
        cases=(SoftmaxMergeCase(rows=(3,)),), profiles=_answered(SoftmaxMergeProfile, base=LogBase)
    ),
    "bert": Search(
        cases=(BertCase(), _LEFT_PADDED, _LEFT_PADDED.but(pooled=True)),
        profiles=_answered(BertProfile, positions=PaddedPositions, pooler=Pooled),
        features=_features_of_bert,
        dtypes=_DTYPES[:2],  # a model is judged in these alone
    ),
    "encoder_decoder": Search(
        cases=(EncoderDecoderCase(), *_BEHIND_PADDING),
        profiles=_answered(EncoderDecoderProfile, sinusoids=Sinusoids, positions=PaddedPositions),
        features=encoder_decoder_features,
        dtypes=_DTYPES[:2],
    ),
    "additive_attention": Search(
        cases=(AdditiveAttentionCase(keys=5),),
        profiles=_answered(AdditiveAttentionProfile, float64_precision=Float64Precision),
        parameters={"bias": "bias", "mask": "mask"},
    ),
}
"""The search of each operator but those of packed sequences, by its name."""
