"""The declaration that findings support, as code to paste."""

import re
from collections.abc import Iterable
from typing import Any

from attnspec.conformance.probe.experiment import Finding
from attnspec.conformance.report.escape import escape_controls
from attnspec.spec import Feature, Profile, RoundingLevel

NOTHING = "# no storage type gives right results: there is nothing to declare"
"""What is written instead of a declaration of a function that is always wrong."""

_EXCEPTIONS = (
    "causal_single_query",
    "empty_row_bool_mask",
    "empty_row_float_mask",
    "float64_precision",
)
"""Answers that a profile need not have."""

_OF_FEATURE = {"grouping": Feature.GQA, "softcap_order": Feature.SOFTCAP}
"""Profile entries that concern one feature, and are left out without it."""

_NAMES = (
    "CausalAlignment",
    "CausalSingleQuery",
    "EmptyRow",
    "Feature",
    "Float64Precision",
    "Grouping",
    "Implementation",
    "Layout",
    "MaskKind",
    "MaskShape",
    "MaskedNonfinite",
    "Profile",
    "Rounding",
    "RoundingLevel",
    "SoftcapOrder",
)
"""Names of the specification that a declaration may use."""


def conflicts(findings: Iterable[Finding]) -> list[str]:
    """Describe the profile entries on which two experiments disagree, a sentence each."""
    answers: dict[str, dict[str, str]] = {}
    for finding in findings:
        for key, answer in finding.facts.get("profile", {}).items():
            answers.setdefault(key, {})[finding.question] = str(answer)
    return [
        f"{key}: "
        + ", ".join(f"{question} says {answer}" for question, answer in by_question.items())
        for key, by_question in answers.items()
        if len(set(by_question.values())) > 1
    ]


def declaration(name: str, import_code: str, findings: Iterable[Finding], device: str) -> str:
    """Write the `Implementation(...)` that the findings support.

    Args:
        name: the name of the target.
        import_code: code that defines the name `attention`.
        findings: the findings; an unknown answer stays at its default, with a comment.
        device: the device of the experiments.

    Returns:
        Code that defines `IMPLEMENTATION`; a comment if no storage type is right.
    """
    findings = list(findings)
    dtypes = [dtype for finding in findings for dtype in finding.facts.get("dtypes", [])]
    if not dtypes:
        return NOTHING
    features = {feature for finding in findings for feature in finding.facts.get("features", [])}
    types = ", ".join(f"torch.{dtype}" for dtype in dtypes) + "," * (len(dtypes) == 1)
    supports = [
        tuple(refusal) for finding in findings for refusal in finding.facts.get("supports", [])
    ]
    body = [
        "IMPLEMENTATION = Implementation(",
        f"    name={identifier(name)!r},",
        "    attention=attention,",
        *_features(features, findings),
        f"    dtypes=({types}),",
        f"    devices=({device.partition(':')[0]!r},),",
        *(["    supports=supports,"] if supports else []),
        "    profile=Profile(",
        *(f"        {line}" for line in _profile(findings)),
        "    ),",
        ")",
    ]
    supports_function = _supports(dict.fromkeys(supports)) if supports else []
    code = "\n".join([*supports_function, *body])
    names = [name for name in _NAMES if re.search(rf"\b{name}\b", code)]
    head = ["import torch", "from attnspec.spec import (", *(f"    {name}," for name in names)]
    head += [")", ""]
    head += [escape_controls(line) for line in import_code.split("; ")]
    return "\n".join([*head, "", "", code])


def identifier(name: str) -> str:
    """Return a target's Python name: `pkg_kernels_flash_attend` for `pkg.kernels:Flash.attend`."""
    stem = re.sub(r"\.py(?=:|$)", "", name.rpartition("/")[2])
    return re.sub(r"\W+", "_", stem).strip("_").lower() or "attention"


def _features(features: set[str], findings: list[Finding]) -> list[str]:
    """Return the lines for the features that are right, and comments on those that deviate."""
    members = [f"Feature.{feature.name}" for feature in Feature if str(feature) in features]
    lines = ["    features=frozenset({" + ", ".join(members) + "}),"]
    if len(lines[0]) > 100:
        lines = ["    features=frozenset(", "        {", *(f"            {m}," for m in members)]
        lines += ["        }", "    ),"]
    comments = [
        f"    # deviates: {comment(finding.deviation)}" for finding in findings if finding.deviation
    ]
    return [*comments, *(lines if members else ["    features=frozenset(),"])]


def _profile(findings: list[Finding]) -> list[str]:
    """Return the lines for the profile."""
    answers: dict[str, Any] = {}
    for finding in findings:
        for key, answer in finding.facts.get("profile", {}).items():
            answers.setdefault(key, answer)
    features = {feature for finding in findings for feature in finding.facts.get("features", [])}
    lines = [f"# experiments disagree on {comment(conflict)}" for conflict in conflicts(findings)]
    for key, kind in Profile.QUESTIONS.items():
        if key in answers:
            member = kind(answers[key])
            lines.append(f"{key}={kind.__name__}.{member.name},")
        elif key not in _EXCEPTIONS and (
            key not in _OF_FEATURE or str(_OF_FEATURE[key]) in features
        ):
            lines.append(f"# {key}: unknown")
    if "rounding" in answers:
        level = RoundingLevel(answers["rounding"])
        lines.append(f"rounding=Rounding(level=RoundingLevel.{level.name}),")
    else:
        lines.append("# rounding: unknown")
    if "deterministic" in answers:
        lines.append(f"deterministic={answers['deterministic']},")
    else:
        lines.append("# deterministic: unknown")
    if any("batch_invariant" in finding.facts.get("seems", []) for finding in findings):
        lines.append("# batch_invariant=True, if that is a promise: no difference was found")
    return lines


def _supports(refused: Iterable[tuple[str, str]]) -> list[str]:
    """Return the lines of a function that refuses cases, with a reason for each condition."""
    lines = ["def supports(case):"]
    for condition, reason in refused:
        lines += [f"    if {condition}:", f"        return {comment(reason)!r}"]
    return [*lines, "    return None", "", ""]


def comment(text: str) -> str:
    """Return untrusted text as one short line without control characters."""
    line = " ".join(escape_controls(text).split())
    return line if len(line) <= 160 else f"{line[:157]}..."
