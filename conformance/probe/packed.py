"""Experiments on packed and paged attention, and the declaration that their findings support."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import Parameter
from typing import Any

import torch

from attnspec.conformance.comparison.violation import NotAvailable, Raised, Violation
from attnspec.conformance.operators.packed.invalid import invalid_packs
from attnspec.conformance.operators.packed.subject import PackedBase
from attnspec.conformance.operators.paged.invalid import invalid_tables
from attnspec.conformance.operators.subjects import DECLARATIONS, subject_of_operator
from attnspec.conformance.probe.declaration import NOTHING, comment, identifier
from attnspec.conformance.probe.experiment import Finding, inconclusive, not_supported
from attnspec.conformance.runner.claims import DTYPES
from attnspec.conformance.runner.declare import parameters_of
from attnspec.conformance.runner.declare_packed import (
    ANSWERS,
    BY_PARAMETER,
    USES,
    page_sizes,
    plain_case,
    with_first_answers,
    without_nan,
)
from attnspec.spec.packed import LseLayout, PackedImplementation, PackedProfile, causal_alone
from attnspec.spec.paged import PagedImplementation
from attnspec.spec.profiles import RoundingLevel

OPERATORS = ("packed", "paged")
"""The kinds of attention beside the padded one that the probe knows."""

_WORDS = {torch_dtype: word for word, torch_dtype in DTYPES.items()}
_PARAMETERS = {feature: name for name, each in BY_PARAMETER.items() for feature in each}
_CALLS = {
    "empty_sequences": "sequences without queries, without keys, and without both; all of them so",
    "neighbours": "NaN in keys and values of other sequences, or of none",
    "unwritten": "NaN in the rest of the last page of a sequence",
    "outside_rows": "three rows of queries behind the last sequence",
    "rounding": "ten calls of numbers that are hard to add, in each storage type",
    "empty_row": "three queries of a sequence with two keys, causal",
    "index_type": "offsets, lengths and tables of int32, and of int64",
    "lse_layout": "the log-sum-exp of two heads and five tokens",
}
"""The calls of the experiment that answers a question of the profile."""
_SHARPER = {"gqa": {"heads": 4, "kv_heads": 2}}
"""Fields of a case that tells the ways of a feature apart."""
_NEEDS = {"empty_row": "causal", "lse_layout": "lse"}
"""The feature without which a question has no answer."""


@dataclass(frozen=True, kw_only=True)
class PackedHarness:
    """A function to probe, and what experiments have found out so far.

    Attributes:
        operator: `packed` or `paged`.
        function: the attention.
        dtypes: the storage types to try.
    """

    operator: str
    function: Callable[..., Any]
    dtypes: tuple[torch.dtype, ...]

    @cached_property
    def bare(self) -> PackedImplementation:
        """The function without claims, in the integer types and page sizes that it accepts."""
        declaration: Any = DECLARATIONS[self.operator]
        made: Any = declaration(name="probed", function=self.function)
        # right calls keep to the bound of the widest answers; others are found later
        eager = replace(made.profile, rounding=RoundingLevel.EAGER)
        made = with_first_answers(without_nan(replace(made, profile=eager)), self.dtypes)
        if isinstance(made, PagedImplementation):
            return replace(made, page_sizes=page_sizes(made, self.dtypes))
        declared: PackedImplementation = made
        return declared

    @cached_property
    def types(self) -> dict[torch.dtype, str]:
        """The result of a plain call in each storage type: empty if it is right."""
        plain = plain_case(self.bare)
        return {dtype: trial(self.bare, plain.but(dtype=dtype)) for dtype in self.dtypes}

    @cached_property
    def typed(self) -> PackedImplementation:
        """The function with the storage types in which plain calls are right.

        Raises:
            NoRightCall: if there are none.
        """
        right = tuple(dtype for dtype, problem in self.types.items() if not problem)
        if not right:
            raise NoRightCall(next(iter(self.types.values())))
        return replace(self.bare, dtypes=right)

    @cached_property
    def uses(self) -> dict[str, str]:
        """The result of a call with each feature that has a parameter: empty if it is right."""
        names = parameters_of(self.function) or {}
        takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in names.values())
        known = [each for each in _FEATURES if each != "append" or self.operator == "paged"]
        present = [each for each in known if takes_any or _PARAMETERS[each] in names]
        return {feature: self._use(feature) for feature in present}

    def _use(self, feature: str) -> str:
        fields = {**USES[feature], **_SHARPER.get(feature, {})}
        case = plain_case(self.typed).but(dtype=self.typed.dtypes[0], **fields)
        problem = trial(self.typed, case)
        if not problem or feature != "lse":
            return problem
        profiles = [replace(self.typed.profile, lse_layout=each) for each in LseLayout]
        tried = [trial(replace(self.typed, profile=each), case) for each in profiles]
        return "" if "" in tried else problem

    @cached_property
    def featured(self) -> PackedImplementation:
        """The function with the features that are right."""
        right = frozenset(feature for feature, problem in self.uses.items() if not problem)
        return replace(self.typed, features=right)

    @cached_property
    def answered(self) -> PackedImplementation:
        """The function with the answers of the profile that calls give."""
        declared = self.featured
        for question, experiment in ANSWERS.items():
            if question in declared.profile.QUESTIONS:
                given: dict[str, Any] = {question: experiment(declared)}
                declared = replace(declared, profile=replace(declared.profile, **given))
        return declared

    @property
    def subject(self) -> PackedBase:
        """The function as a subject, under the answers that were found."""
        subject = subject_of_operator(self.answered)
        assert isinstance(subject, PackedBase)
        return subject


class NoRightCall(Exception):
    """No plain call is right; the message says what happens."""


def trial(implementation: PackedImplementation, case: Any) -> str:
    """Return what is wrong about a call, in words; empty if it is right."""
    try:
        subject_of_operator(implementation).judge_case(case, "wrong")
    except Raised as error:
        return f"raises {error}"
    except Violation as error:
        return str(error).partition("\n")[0]
    return ""


def _storage_types(harness: PackedHarness) -> Finding:
    types = {_WORDS[dtype]: problem for dtype, problem in harness.types.items()}
    right = [word for word, problem in types.items() if not problem]
    wrong = [word for word, problem in types.items() if problem and "raises" not in problem[:6]]
    return Finding(
        answer=", ".join(right) or "none",
        evidence=(
            *(f"{word}: {problem or 'right'}" for word, problem in types.items()),
            *(["calls that are not causal raise"] * (harness.bare.supports is causal_alone)),
        ),
        deviation=f"{', '.join(wrong)}: {types[wrong[0]]}" if wrong else "",
        facts={"dtypes": right, "causal_alone": [harness.bare.supports is causal_alone]},
    )


def _page_sizes(harness: PackedHarness) -> Finding:
    sizes = harness.typed.page_sizes if isinstance(harness.typed, PagedImplementation) else None
    if sizes is None:
        return Finding(answer="any", evidence=("calls with pages of 1 to 256 tokens are made",))
    words = ", ".join(map(str, sizes))
    return Finding(
        answer=words, evidence=("other page sizes raise",), facts={"page_sizes": list(sizes)}
    )


def _feature(feature: str) -> Callable[[PackedHarness], Finding]:
    def measure(harness: PackedHarness) -> Finding:
        parameter = _PARAMETERS[feature]
        if feature not in harness.uses:
            return not_supported(f"no parameter {parameter}")
        problem = harness.uses[feature]
        if problem.startswith("raises"):
            return not_supported(f"a call with {parameter} {problem}")
        if problem:
            return Finding(
                answer="wrong",
                evidence=(problem,),
                deviation=f"{feature}: {problem.partition(': out')[0]}",
            )
        return Finding(
            answer="yes",
            evidence=(f"a call with {parameter} is right",),
            facts={"features": [feature]},
        )

    return measure


def _answer(question: str) -> Callable[[PackedHarness], Finding]:
    def measure(harness: PackedHarness) -> Finding:
        needed = _NEEDS.get(question)
        if needed and needed not in harness.featured.features:
            return not_supported(f"{needed} is not supported, or wrong")
        answer = str(getattr(harness.answered.profile, question))
        return Finding(
            answer=answer,
            evidence=(f"{_CALLS[question]}: {answer}",),
            facts={"profile": {question: answer}},
        )

    return measure


def _batch_invariant(harness: PackedHarness) -> Finding:
    """Compare the bits of each sequence with those that it has alone."""
    subject, differ = harness.subject, []
    case = plain_case(harness.answered).but(
        queries=(33, 1, 7), keys=(65, 40, 9), d_head=16, dtype=harness.answered.dtypes[-1]
    )
    try:
        call = case.draw(subject.profile)
        together = subject.call(call).out
        for b, lengths in enumerate(zip(case.queries, case.keys, strict=True)):
            # the numbers of a sequence are drawn from the seed of its place
            single = case.but(queries=lengths[:1], keys=lengths[1:], seed=case.seed + 2 * b).draw(
                subject.profile
            )
            if not torch.equal(single.query, call.query[call.rows(b)]):
                return inconclusive("the numbers of a sequence alone are not those it has packed")
            if not torch.equal(subject.call(single).out, together[call.rows(b)]):
                differ.append(f"sequence {b} has other bits alone than beside two others")
    except (Raised, Violation) as error:
        return inconclusive(f"a call of three sequences fails: {error}")
    if differ:
        return Finding(answer="no", evidence=tuple(differ))
    same = "three sequences have the bits alone that they have together"
    return Finding(answer="no difference found", evidence=(same,), facts={"seems": True})


def _invalid_arguments(harness: PackedHarness) -> Finding:
    """Make calls whose lengths or tables do not fit, each in a process of its own."""
    subject = harness.subject
    is_paged = isinstance(harness.answered, PagedImplementation)
    case = plain_case(harness.answered).but(dtype=harness.answered.dtypes[0])
    call = case.draw(subject.profile)
    wrong = (invalid_tables if is_paged else invalid_packs)(call, subject.profile.index_type)
    accepted = []
    for problem, each in wrong.items():
        try:
            subject.judge_refused(each, problem)
        except NotAvailable as error:
            return inconclusive(str(error))
        except Violation as error:
            accepted.append(str(error))
    if accepted:
        answer = f"{len(accepted)} of {len(wrong)} accepted"
        return Finding(answer=answer, evidence=tuple(accepted))
    return Finding(
        answer="all refused",
        evidence=(f"{len(wrong)} calls raise: {', '.join(wrong)}",),
        facts={"features": ["validates"]},
    )


_FEATURES = {
    "causal": "causal",
    "window": "window",
    "gqa": "grouped heads",
    "lse": "log-sum-exp",
    "softcap": "softcap",
    "sinks": "sinks",
    "alibi": "ALiBi",
    "append": "appending",
}


def default_profile(operator: str) -> PackedProfile:
    """Return the profile of a declaration that answers no question.

    Args:
        operator: `packed` or `paged`.
    """
    declaration: Any = DECLARATIONS[operator]
    profile: PackedProfile = declaration(name="default", function=print).profile
    return profile


def questions_of(operator: str) -> dict[str, Callable[[PackedHarness], Finding]]:
    """Return the experiments on an operator by their questions, in the order of a report.

    Args:
        operator: `packed` or `paged`.
    """
    is_paged = operator == "paged"
    experiments: dict[str, Callable[[PackedHarness], Finding]] = {"storage types": _storage_types}
    if is_paged:
        experiments["page sizes"] = _page_sizes
    for feature, words in _FEATURES.items():
        if is_paged or feature != "append":
            experiments[words] = _feature(feature)
    for question in default_profile(operator).QUESTIONS:
        experiments[question.replace("_", " ")] = _answer(question)
    return {
        **experiments,
        "batch invariant": _batch_invariant,
        "invalid arguments": _invalid_arguments,
    }


def run_packed(question: str, harness: PackedHarness) -> Finding:
    """Run one experiment and return a finding, whatever the target does."""
    measure = questions_of(harness.operator)[question]
    try:
        return replace(measure(harness), question=question)
    except NoRightCall as error:
        found = inconclusive(f"no plain call is right: {error}")
        return replace(found, question=question)


def probe_packed(
    function: Callable[..., Any],
    operator: str = "packed",
    *,
    dtypes: Iterable[torch.dtype] | None = None,
) -> list[Finding]:
    """Find the features and profile of a packed or paged attention, in this process.

    Args:
        function: a callable with the parameters of `attnspec.spec.packed.PackedAttention`.
        operator: `packed` or `paged`.
        dtypes: the storage types to try; `None` tries all that have a bound.
    """
    tried = tuple(DTYPES.values() if dtypes is None else dtypes)
    harness = PackedHarness(operator=operator, function=function, dtypes=tried)
    return [run_packed(question, harness) for question in questions_of(operator)]


def packed_declaration(
    name: str, import_code: str, findings: Iterable[Finding], operator: str
) -> str:
    """Write the declaration that findings about a packed or paged attention support.

    Args:
        name: the name of the target.
        import_code: code that defines the name of the operator.
        findings: the findings.
        operator: `packed` or `paged`.

    Returns:
        Code that defines `IMPLEMENTATION`; a comment if no storage type is right.
    """
    findings = list(findings)
    names = ("dtypes", "features", "page_sizes", "causal_alone")
    facts: dict[str, Any] = {"profile": {}, **{name: [] for name in names}}
    for finding in findings:
        for key, value in finding.facts.items():
            if isinstance(value, dict):
                facts[key] |= value
            elif isinstance(value, list):
                facts[key] += value
    if not facts["dtypes"]:
        return NOTHING
    kind: Any = DECLARATIONS[operator]
    profile = default_profile(operator)
    used = {kind, type(profile)} | ({causal_alone} if any(facts["causal_alone"]) else set())
    answers = []
    for question, answers_of in profile.QUESTIONS.items():
        if question in facts["profile"]:
            used.add(answers_of)
            member = answers_of(facts["profile"][question]).name
            answers.append(f"        {question}={answers_of.__name__}.{member},")
        elif question not in _NEEDS:
            answers.append(f"        # {question}: unknown")
    types = "".join(f"torch.{each}, " for each in facts["dtypes"]).strip()
    named = ", ".join(repr(each) for each in sorted(facts["features"]))
    sizes = "".join(f"{each}, " for each in facts["page_sizes"]).strip()
    modules = sorted({each.__module__ for each in used})
    return "\n".join(
        [
            "import torch",
            *(
                f"from {module} import "
                + ", ".join(sorted(each.__name__ for each in used if each.__module__ == module))
                for module in modules
            ),
            "",
            *(comment(line) for line in import_code.split("; ")),
            "",
            f"IMPLEMENTATION = {kind.__name__}(",
            f"    name={identifier(name)!r},",
            f"    function={operator},",
            *(f"    # deviates: {comment(each.deviation)}" for each in findings if each.deviation),
            f"    features=frozenset({{{named}}}),",
            f"    dtypes=({types}),",
            *([f"    page_sizes=({sizes}),"] if sizes else []),
            *(["    supports=causal_alone,"] if any(facts["causal_alone"]) else []),
            f"    profile={type(profile).__name__}(",
            *answers,
            "    ),",
            ")",
        ]
    )
