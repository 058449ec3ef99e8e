"""The profile that a function without a declaration follows, found before it is judged.

A textbook attention is right, but not under the default profile: a softmax over nothing is NaN, and
a weight of zero times NaN is NaN. Its author has declared nothing, so that it is judged under the
answers that it gives itself. Where it contradicts itself, the default answer remains, and fails.
"""

from collections import defaultdict
from dataclasses import replace
from typing import Any

from attnspec.conformance.isolation.process import SendNote
from attnspec.conformance.laws.law import SubjectKind
from attnspec.conformance.probe.probe import experiments, harness_of, run_experiment
from attnspec.conformance.runner.claims import spelled
from attnspec.conformance.runner.plan import reply_of_target, subjects_of
from attnspec.conformance.runner.targets import LoadedSubject
from attnspec.conformance.runner.task import PlannedSubject
from attnspec.spec import Implementation, Profile

LEFT_OUT = frozenset({"batch invariant", "dropout", "backward", "refusals", "invalid arguments"})
"""The experiments that find neither an answer of a profile nor what an argument means."""


def look_up(request: dict[str, Any], send_note: SendNote) -> str:
    """Reply with the subjects of a target, functions with the profile that they follow."""
    planned = PlannedSubject.from_data(request["subject"])

    def find() -> dict[str, Any]:
        found = (with_profile(each, loaded) for each, loaded in subjects_of(planned))
        return {"subjects": [each.to_data() for each in found]}

    return reply_of_target(planned.target, find)


def with_profile(planned: PlannedSubject, loaded: LoadedSubject) -> PlannedSubject:
    """Return a planned subject with a remark on its profile, and the profile that it follows.

    Args:
        planned: a subject of any kind; one that has declared a profile keeps it.
        loaded: the same subject, imported.
    """
    if not planned.is_external or loaded.kind is not SubjectKind.ATTENTION:
        return planned
    name, typed = planned.name, planned.claims.profile
    if typed:
        return replace(
            planned, remark=f"{name} is judged under the profile given: {', '.join(typed)}"
        )
    if not loaded.is_function:
        return replace(planned, remark=f"{name} is judged under the profile that it declares")
    other, deviations = experiment_on(loaded.subject.implementation, loaded.subject.device)
    answers = spelled(other)
    deviating = "".join(f"\nexperiments show: {each}" for each in deviations)
    if not answers:
        remark = f"{name} is judged under the default profile, which it follows in experiments"
        return replace(planned, remark=remark + deviating)
    pinning = " ".join(f"--profile {answer}" for answer in answers)
    remark = (
        f"{name} is judged under the profile that it follows in experiments: "
        f"{', '.join(answers)}; to pin it: {pinning}"
    )
    claims = replace(planned.claims, profile=answers)
    return replace(planned, remark=remark + deviating, claims=claims)


def experiment_on(implementation: Implementation, device: str) -> tuple[dict[str, Any], list[str]]:
    """Find the profile that an implementation follows, and how it deviates from the contract.

    Args:
        implementation: its features and storage types select the experiments.
        device: the device of all tensors.

    Returns:
        The answers that are not the default ones, and the deviations, a sentence each.
    """
    harness = harness_of(implementation.attention, implementation.dtypes, device)
    found: dict[str, set[Any]] = defaultdict(set)
    deviations = []
    for experiment in experiments(implementation.features):
        if experiment.question in LEFT_OUT:
            continue
        finding = run_experiment(experiment, harness)
        for key, answer in finding.facts.get("profile", {}).items():
            found[key].add(answer)
        deviations += [finding.deviation] if finding.deviation else []
    default = Profile()
    usual = {key: getattr(default, key) for key in (*Profile.QUESTIONS, "deterministic")}
    usual["rounding"] = default.rounding.level
    answers = {key: next(iter(given)) for key, given in found.items() if len(given) == 1}
    other = {key: answer for key, answer in answers.items() if answer != usual[key]}
    return other, deviations
