"""The profile that a function without a declaration follows, found before it is judged.

A textbook attention is right, but not under the default profile: a softmax over nothing is NaN, and
a weight of zero times NaN is NaN. Its author has declared nothing, so that it is judged under the
answers that it gives itself. Where it contradicts itself, the default answer remains, and fails.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from attnspec.conformance.diagnosis.stages.search import is_deterministic
from attnspec.conformance.isolation.process import SendNote
from attnspec.conformance.operators.subject import OperatorSubject
from attnspec.conformance.probe.harness import LOOSEST
from attnspec.conformance.probe.probe import experiments, harness_of, run_experiment
from attnspec.conformance.runner.claims import MASK_KINDS, spelled
from attnspec.conformance.runner.declare import (
    OPTIONS,
    BrokenCall,
    check_first_call,
    unset_parameters,
)
from attnspec.conformance.runner.declare_model import MODEL_DTYPES, why_not
from attnspec.conformance.runner.declare_operator import profile_in_words
from attnspec.conformance.runner.first_call import announce, announcing, differing_answers
from attnspec.conformance.runner.first_call import experiment as step_of_experiment
from attnspec.conformance.runner.plan import reply_of_target, subjects_of
from attnspec.conformance.runner.targets import LoadedSubject
from attnspec.conformance.runner.task import PlannedSubject
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.spec import Feature, Implementation, MaskKind, Profile

LEFT_OUT = frozenset({"batch invariant", "dropout", "backward", "refusals", "invalid arguments"})
"""The experiments that find neither an answer of a profile nor what an argument means."""


TYPES, ROUNDING = "storage types", "rounding"
"""The questions about storage types, by the plainest call, and about rounding, if it is right."""


def look_up(request: dict[str, Any], send_note: SendNote) -> str:
    """Reply with the subjects of a target, functions with the profile that they follow."""
    planned = PlannedSubject.from_data(request["subject"])

    def find() -> dict[str, Any]:
        subjects = list(subjects_of(planned))
        failure = _first_failure(subjects)
        if failure:
            return {"subjects": [each.to_data() for each, _ in subjects], "failure": failure}
        has_dtypes = planned.claims.dtypes is not None
        found = (with_profile(each, loaded, has_dtypes=has_dtypes) for each, loaded in subjects)
        return {"subjects": [each.to_data() for each in found]}

    with announcing(send_note):
        return reply_of_target(planned.target, find)


def _first_failure(subjects: Iterable[tuple[PlannedSubject, LoadedSubject]]) -> str:
    """Return the verdict on a target on which no law says anything, or an empty string.

    This is an attention function whose first call fails, or a GPT-2 that is not deterministic.
    """
    for planned, loaded in subjects:
        if loaded.kind is SubjectKind.MODEL and planned.is_external:
            if is_deterministic(loaded.subject):
                continue
            return differing_answers(loaded.name)
        if loaded.is_function and planned.is_external:
            implementation = loaded.subject.implementation
            try:
                check_first_call(
                    loaded.name,
                    implementation.attention,
                    implementation.dtypes,
                    loaded.subject.device,
                )
            except BrokenCall as error:
                return str(error)
    return ""


def with_profile(
    planned: PlannedSubject, loaded: LoadedSubject, *, has_dtypes: bool = True
) -> PlannedSubject:
    """Return a planned subject with a remark on its profile, and the profile that it follows.

    Args:
        planned: a subject of any kind; one that has declared a profile keeps it. Answers that the
            user gives for a function are held; experiments find the others.
        loaded: the same subject, imported.
        has_dtypes: whether the user claims storage types. If not, float64 is not claimed for a
            function that computes it with the accuracy of float32.
    """
    if planned.is_external and loaded.kind is SubjectKind.MODEL and loaded.is_function:
        return planned if has_dtypes else _with_refused_dtypes(planned, loaded)
    if planned.is_external and isinstance(loaded.subject, OperatorSubject):
        found = profile_in_words(loaded.subject.implementation)
        remark = f"{planned.name} is judged under the profile {found}"
        return replace(planned, remark=remark) if found else planned
    if not planned.is_external or loaded.kind is not SubjectKind.ATTENTION:
        return planned
    name, typed = planned.name, planned.claims.profile
    given = f"{name} is judged under the profile given: {', '.join(typed)}"
    if not loaded.is_function:
        if typed:
            return replace(planned, remark=given)
        return replace(planned, remark=f"{name} is judged under the profile that it declares")
    implementation = loaded.subject.implementation
    found_by = experiment_on(implementation, loaded.subject.device)
    other, deviations, accuracy = found_by.answers, found_by.deviations, found_by.accuracy
    deviating = "".join(f"\nexperiments show: {each}" for each in deviations)
    if unset := unset_parameters(implementation.attention):
        deviating += (
            f"\nparameters that no call sets: {', '.join(unset)}; rename those that are options "
            f"of the contract ({', '.join(OPTIONS)}), or write an adapter"
        )
    narrower = [name for name in (planned.claims.dtypes or "").split(",") if name != "float64"]
    is_given = any(each.startswith("float64_precision") for each in typed)
    if accuracy and not has_dtypes and narrower and not is_given:
        other.pop("float64_precision")
        planned = replace(planned, claims=replace(planned.claims, dtypes=",".join(narrower)))
        deviating += (
            f"\nfloat64 is accepted with float32 accuracy ({accuracy}): not claimed; "
            "compute in float64, or claim it by --dtypes and --profile float64_precision=float32"
        )
    if planned.claims.features is None and len(found_by.refused_masks) == 1:
        refused, message = next(iter(found_by.refused_masks.items()))
        (taken,) = (kind for kind in MaskKind if kind is not refused)
        planned = replace(planned, claims=replace(planned.claims, masks=str(taken)))
        deviating += (
            f"\na {refused} mask is refused ({message}): not claimed; to pin it: "
            f"--features {_with_masks(implementation, taken)}"
        )
    # an answer for every empty row is one for each way of hiding
    questions = tuple(each.partition("=")[0] for each in typed)
    answers = spelled({key: each for key, each in other.items() if not key.startswith(questions)})
    if typed:
        found = f"; and, as experiments show, {', '.join(answers)}" if answers else ""
        claims = replace(planned.claims, profile=(*typed, *answers))
        return replace(planned, remark=given + found + deviating, claims=claims)
    if not answers:
        follows = "" if deviations else ", which it follows in experiments"
        remark = f"{name} is judged under the default profile{follows}"
        return replace(planned, remark=remark + deviating)
    pinning = " ".join(f"--profile {answer}" for answer in answers)
    remark = (
        f"{name} is judged under the profile that it follows in experiments: "
        f"{', '.join(answers)}; to pin it: {pinning}"
    )
    claims = replace(planned.claims, profile=answers)
    return replace(planned, remark=remark + deviating, claims=claims)


def _with_refused_dtypes(planned: PlannedSubject, loaded: LoadedSubject) -> PlannedSubject:
    """Return a planned GPT-2 with a remark on the dtypes in which its first call fails."""
    refused = [each for each in MODEL_DTYPES if each not in loaded.subject.dtypes]
    build = loaded.subject.build
    remarks = [
        f"{str(dtype).removeprefix('torch.')} is not claimed: {why_not(build, dtype)}"
        for dtype in refused
    ]
    return replace(planned, remark="\n".join(remarks))


def _with_masks(implementation: Implementation, taken: MaskKind) -> str:
    """Return the features of an implementation as a user types them, with masks of one kind."""
    others = sorted(str(each) for each in implementation.features if each is not Feature.MASK)
    (word,) = (word for word, kind in MASK_KINDS.items() if kind is taken)
    return ",".join([*others, word])


@dataclass(frozen=True, kw_only=True)
class Found:
    """The findings of experiments on a function.

    Attributes:
        answers: the answers of its profile that are not the default ones.
        deviations: how it deviates from the contract, a sentence each.
        accuracy: the error of float64 if it has the accuracy of float32, or an empty string.
        refused_masks: the kinds of masks that it refuses, each with its message.
    """

    answers: dict[str, Any]
    deviations: list[str]
    accuracy: str
    refused_masks: dict[MaskKind, str]


UNKNOWN_ROUNDING = "; wrong results do not tell the rounding, so that the widest bound applies"
"""The end of the remark on a function that is wrong in its plainest call."""

QUESTIONS_OF_MASKS = {f"{kind} mask": kind for kind in MaskKind}
"""The questions whose answer is no if masks of a kind are refused."""


def experiment_on(implementation: Implementation, device: str) -> Found:
    """Find the profile that an implementation follows, and how it deviates from the contract.

    Args:
        implementation: its features and storage types select the experiments.
        device: the device of all tensors.
    """
    harness = harness_of(implementation.attention, implementation.dtypes, device)
    found: dict[str, set[Any]] = defaultdict(set)
    deviations, accuracy, is_wrong = [], "", False
    refused_masks = {}
    for experiment in experiments(implementation.features):
        if experiment.question in LEFT_OUT:
            continue
        if experiment.question == ROUNDING and is_wrong:
            continue  # of wrong results, the rounding says nothing
        announce(step_of_experiment(f"“{experiment.question}”"))
        finding = run_experiment(experiment, harness)
        announce(None)
        for key, answer in finding.facts.get("profile", {}).items():
            found[key].add(answer)
        accuracy = finding.facts.get("float64", accuracy)
        if finding.deviation:
            is_of_types = experiment.question == TYPES
            is_wrong |= is_of_types
            deviations.append(finding.deviation + (UNKNOWN_ROUNDING if is_of_types else ""))
        if experiment.question in QUESTIONS_OF_MASKS and finding.answer == "no":
            message = finding.evidence[0] if finding.evidence else "no result"
            refused_masks[QUESTIONS_OF_MASKS[experiment.question]] = message
        if "dtypes" in finding.facts and not finding.facts["dtypes"]:
            break  # no further experiment says anything if the plainest call is wrong
    default = Profile()
    usual = {key: getattr(default, key) for key in (*Profile.QUESTIONS, "deterministic")}
    usual["rounding"] = default.rounding.level
    answers = {key: next(iter(given)) for key, given in found.items() if len(given) == 1}
    if is_wrong:
        # a level that it may not follow would break laws that the mistake does not
        answers["rounding"] = LOOSEST.rounding.level
    return Found(
        answers={key: answer for key, answer in answers.items() if answer != usual[key]},
        deviations=deviations,
        accuracy=accuracy,
        refused_masks=refused_masks,
    )
