"""Claims on the command line: features, storage types and answers of the profile."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

import torch

from attnspec.conformance.attention.given_sizes import GivenSizes
from attnspec.conformance.operators.subjects import declaration_of
from attnspec.spec import (
    Case,
    Extra,
    Feature,
    Implementation,
    MaskKind,
    ModelFeature,
    ModelImplementation,
    Profile,
    Rounding,
    RoundingLevel,
)
from attnspec.spec.operator import OperatorImplementation

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}

MASK_KINDS = {f"{kind}_mask": kind for kind in MaskKind}
"""Words for masks of one kind alone, in place of the feature `mask`, which is both."""

_FEATURES = tuple(dict.fromkeys(map(str, (*Feature, *ModelFeature, *MASK_KINDS))))

_ANSWERS: dict[str, type[StrEnum]] = {**Profile.QUESTIONS, "rounding": RoundingLevel}


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Claims about a target that override its declaration; `None` for no claim.

    Attributes:
        features: features beyond plain attention; a word of `MASK_KINDS` is `mask` of one kind.
        dtypes: the storage types that it accepts.
        profile: its answers, by the names of `Profile`'s fields; `rounding` is a level.
        extras: tools of torch that it works with.
        masks: the only kind of masks that it takes.
        operator: the operator that it is; `None` for an attention or a GPT-2.
        sizes: those at which an attention is called beside all others.
    """

    features: frozenset[str] | None = None
    dtypes: tuple[torch.dtype, ...] | None = None
    profile: tuple[tuple[str, Any], ...] = ()
    extras: frozenset[Extra] | None = None
    masks: MaskKind | None = None
    operator: str | None = None
    sizes: tuple[GivenSizes, ...] = ()

    @classmethod
    def read(
        cls,
        features: str | None = None,
        dtypes: str | None = None,
        profile: Iterable[str] = (),
        extras: str | None = None,
        operator: str | None = None,
        sizes: Iterable[str] = (),
    ) -> "Claims":
        """Read claims as a user types them.

        Args:
            features: names separated by commas, such as `causal,gqa`.
            dtypes: names separated by commas, such as `float16,bfloat16`.
            profile: `key=value` each, such as `empty_row=nan` or `rounding=eager`.
            extras: names separated by commas, such as `compile,vmap`.
            operator: its name, such as `router`, whose features and profile are then meant.
            sizes: of one kind of calls each; see `GivenSizes.read`.

        Raises:
            ValueError: for a word that is not one of the choices, naming it and them.
        """
        given = tuple(map(GivenSizes.read, sizes))
        if operator is not None:
            _refuse_sizes(given, operator)
        named = set(_words(features or ""))
        known = _FEATURES if operator is None else sorted(declaration_of(operator).FEATURES)
        kinds = [kind for word, kind in MASK_KINDS.items() if word in named]
        return cls(
            features=None
            if features is None
            else frozenset(_choice("feature", each, known) for each in _words(features)),
            operator=operator,
            sizes=given,
            masks=kinds[0] if len(kinds) == 1 and Feature.MASK not in named else None,
            dtypes=None
            if dtypes is None
            else tuple(DTYPES[_choice("dtype", each, DTYPES)] for each in _words(dtypes)),
            profile=tuple(
                _answer(each) if operator is None else _key_and_word(each) for each in profile
            ),
            extras=None
            if extras is None
            else frozenset(Extra(_choice("extra", each, Extra)) for each in _words(extras)),
        )

    def override(self, implementation: Implementation) -> Implementation:
        """Return a copy of an implementation with these claims overriding its own.

        Raises:
            ValueError: for a feature of models.
        """
        changes: dict[str, Any] = {}
        if self.features is not None:
            kinds = self.features & MASK_KINDS.keys()
            names = (self.features - kinds) | ({str(Feature.MASK)} if kinds else set())
            changes["features"] = _members(Feature, names)
        if self.dtypes is not None:
            changes["dtypes"] = self.dtypes
        if self.profile:
            changes["profile"] = self._profile(implementation.profile)
        if self.extras is not None:
            changes["extras"] = self.extras
        if self.masks is not None:
            changes["supports"] = MasksOfOneKind(self.masks, implementation.supports)
        return replace(implementation, **changes)

    def override_model(self, model: ModelImplementation) -> ModelImplementation:
        """Return a copy of a GPT-2 with these claims overriding its own.

        Raises:
            ValueError: for a profile or extras, which a GPT-2 has not, or a feature of attention.
        """
        changes: dict[str, Any] = {}
        if self.profile:
            raise ValueError(f"{model.name}: a GPT-2 has no profile: omit the profile")
        if self.extras is not None:
            raise ValueError(f"{model.name}: a GPT-2 has no extras: omit them")
        _refuse_sizes(self.sizes, model.name)
        if self.features is not None:
            changes["features"] = _members(ModelFeature, self.features)
        if self.dtypes is not None:
            changes["dtypes"] = self.dtypes
        return replace(model, **changes)

    def override_operator(self, implementation: OperatorImplementation) -> OperatorImplementation:
        """Return a copy of an operator with these claims overriding its own.

        Raises:
            ValueError: for another operator, for extras, which no operator has, and for a feature
                or an answer that this one has not.
        """
        operator = implementation.operator
        if self.operator not in (None, operator):
            raise ValueError(f"declared as {operator}, not {self.operator}")
        if self.extras is not None:
            raise ValueError("an operator has no extras: omit them")
        _refuse_sizes(self.sizes, operator)
        changes: dict[str, Any] = {}
        if self.features is not None:
            known = sorted(implementation.FEATURES)
            what = f"feature of {operator}"
            changes["features"] = frozenset(
                _choice(what, each, known) for each in sorted(self.features)
            )
        if self.dtypes is not None:
            changes["dtypes"] = self.dtypes
        if self.profile:
            changes["profile"] = with_answers(operator, implementation.profile, self.profile)
        return replace(implementation, **changes)

    def _profile(self, declared: Profile) -> Profile:
        answers = dict(self.profile)
        if "rounding" in answers:
            rounding: Rounding = declared.rounding
            answers["rounding"] = replace(rounding, level=answers["rounding"])
        return replace(declared, **answers)


@dataclass(frozen=True)
class MasksOfOneKind:
    """The `supports` of an implementation whose masks are all of one kind.

    Attributes:
        kind: the kind.
        supports: its `supports` for all other reasons.
    """

    kind: MaskKind
    supports: Callable[[Case], str | None]

    def __call__(self, case: Case) -> str | None:
        """Return the reason why a case is refused, or None."""
        if case.mask is not None and case.mask.kind is not self.kind:
            return f"a {case.mask.kind} mask is not claimed"
        return self.supports(case)


def with_answers(operator: str, profile: Any, given: Iterable[tuple[str, Any]]) -> Any:
    """Return the profile of an operator with some answers, each a word, in place of its own."""
    # an answer that is a number or a function has no word
    questions = [
        each.name
        for each in fields(profile)
        if isinstance(getattr(profile, each.name), (bool, StrEnum))
    ]
    answers: dict[str, Any] = {}
    for key, word in given:
        declared = getattr(profile, _choice(f"question of {operator}", key, questions))
        if isinstance(declared, bool):
            answers[key] = _choice(key, str(word), ("yes", "no")) == "yes"
        else:
            kind = type(declared)
            answers[key] = kind(_choice(key, str(word), [str(each) for each in kind]))
    return replace(profile, **answers)


def _refuse_sizes(sizes: tuple[GivenSizes, ...], name: str) -> None:
    if sizes:
        raise ValueError(f"{name}: sizes are those of attention: omit them")


def _members(kind: type[StrEnum], names: Iterable[str]) -> frozenset[Any]:
    return frozenset(kind(_choice("feature", each, kind)) for each in sorted(names))


def spelled(answers: Mapping[str, Any]) -> tuple[str, ...]:
    """Return answers of a profile as a user types them: the inverse of reading them."""
    words = {True: "yes", False: "no"}
    return tuple(
        f"{key}={words[answer] if isinstance(answer, bool) else answer}"
        for key, answer in answers.items()
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _choice(what: str, word: str, choices: Iterable[str]) -> str:
    allowed = [str(each) for each in choices]
    if word not in allowed:
        raise ValueError(f"no {what} {word!r}; there are {', '.join(allowed) or 'none'}")
    return word


def _key_and_word(text: str) -> tuple[str, str]:
    key, equals, word = text.partition("=")
    if not equals:
        raise ValueError(f"a profile is given as key=value, got {text!r}")
    return key, word


def _answer(text: str) -> tuple[str, Any]:
    key, word = _key_and_word(text)
    if key in ("deterministic", "batch_invariant"):
        return key, _choice(key, word, ("yes", "no")) == "yes"
    questions = [*_ANSWERS, "deterministic", "batch_invariant"]
    answers = _ANSWERS[_choice("question of a profile", key, questions)]
    return key, answers(_choice(key, word, answers))
