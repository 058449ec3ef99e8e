"""The declaration that findings add up to, as code to paste."""

import re
from collections.abc import Iterable
from typing import Any

from attnspec.conformance.probe import Finding
from attnspec.conformance.unseen import clean
from attnspec.spec import (
    CausalAlignment,
    EmptyRow,
    Feature,
    MaskedNonfinite,
    RoundingLevel,
)

_ANSWERS: dict[str, type[Any]] = {
    "causal_alignment": CausalAlignment,
    "empty_row": EmptyRow,
    "masked_nonfinite": MaskedNonfinite,
}

_NAMES = (
    "CausalAlignment",
    "EmptyRow",
    "Feature",
    "Implementation",
    "Layout",
    "MaskKind",
    "MaskShape",
    "MaskedNonfinite",
    "Profile",
    "Rounding",
    "RoundingLevel",
)
"""What of the specification a declaration may mention."""


def conflicts(findings: Iterable[Finding]) -> list[str]:
    """Questions of the profile that two experiments answer differently, a sentence each."""
    given: dict[str, dict[str, str]] = {}
    for each in findings:
        for key, answer in each.facts.get("profile", {}).items():
            given.setdefault(key, {})[each.question] = str(answer)
    return [
        f"{key}: " + ", ".join(f"{question} says {answer}" for question, answer in said.items())
        for key, said in given.items()
        if len(set(said.values())) > 1
    ]


def declaration(name: str, importing: str, findings: Iterable[Finding], device: str) -> str:
    """Write the `Implementation(...)` that the findings support.

    Args:
        name: of the target.
        importing: code that makes the name `attention` known.
        findings: what was found; what was not stays at its default, with a comment.
        device: where it was found.

    Returns:
        Code that defines `IMPLEMENTATION`; a comment where no storage type is right.
    """
    found = list(findings)
    dtypes = [each for one in found for each in one.facts.get("dtypes", [])]
    if not dtypes:
        return "# no storage type is answered rightly: there is nothing to declare"
    features = {each for one in found for each in one.facts.get("features", [])}
    supports = [tuple(each) for one in found for each in one.facts.get("supports", [])]
    body = [
        "IMPLEMENTATION = Implementation(",
        f"    name={_identifier(name)!r},",
        "    attention=attention,",
        *_features(features, found),
        f"    dtypes=({', '.join(f'torch.{each}' for each in dtypes)}{',' * (len(dtypes) == 1)}),",
        f"    devices=({device.partition(':')[0]!r},),",
        *(["    supports=supports,"] if supports else []),
        "    profile=Profile(",
        *(f"        {line}" for line in _profile(found)),
        "    ),",
        ")",
    ]
    refusing = _supports(dict.fromkeys(supports)) if supports else []
    code = "\n".join([*refusing, *body])
    names = [each for each in _NAMES if re.search(rf"\b{each}\b", code)]
    head = ["import torch", "from attnspec.spec import (", *(f"    {each}," for each in names)]
    head += [")", ""]
    head += [clean(line) for line in importing.split("; ")]
    return "\n".join([*head, "", "", code])


def _identifier(name: str) -> str:
    """A name as declarations have it: of `pkg.kernels:Flash.attend`, `pkg_kernels_flash_attend`."""
    stem = re.sub(r"\.py(?=:|$)", "", name.rpartition("/")[2])
    return re.sub(r"\W+", "_", stem).strip("_").lower() or "attention"


def _features(features: set[str], found: list[Finding]) -> list[str]:
    """The features that are right, and as comments those that are not."""
    given = [f"Feature.{each.name}" for each in Feature if str(each) in features]
    lines = ["    features=frozenset({" + ", ".join(given) + "}),"]
    if len(lines[0]) > 100:
        lines = ["    features=frozenset(", "        {", *(f"            {g}," for g in given)]
        lines += ["        }", "    ),"]
    told = [f"    # deviates: {_comment(each.deviation)}" for each in found if each.deviation]
    return [*told, *(lines if given else ["    features=frozenset(),"])]


def _profile(found: list[Finding]) -> list[str]:
    """The answers to the questions of the profile."""
    answers: dict[str, Any] = {}
    for each in found:
        for key, answer in each.facts.get("profile", {}).items():
            answers.setdefault(key, answer)
    lines = [f"# experiments disagree on {_comment(each)}" for each in conflicts(found)]
    for key, kind in _ANSWERS.items():
        if key in answers:
            member = kind(answers[key])
            lines.append(f"{key}={kind.__name__}.{member.name},")
        else:
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
    if any("batch_invariant" in each.facts.get("seems", []) for each in found):
        lines.append("# batch_invariant=True, if that is a promise: no difference was found")
    return lines


def _supports(refused: Iterable[tuple[str, str]]) -> list[str]:
    """A function that names what is refused."""
    lines = ["def supports(case):"]
    for condition, reason in refused:
        lines += [f"    if {condition}:", f"        return {_comment(reason)!r}"]
    return [*lines, "    return None", "", ""]


def _comment(text: str) -> str:
    """A text of strangers as one harmless line."""
    line = " ".join(clean(text).split())
    return line if len(line) <= 160 else f"{line[:157]}..."
