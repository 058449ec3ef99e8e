"""Causes: the broken laws of a subject, joined where one explanation serves several.

One mistake breaks many laws. A broken law may name what explains it: an answer of the profile under
which its failing case holds, planted bugs whose results agree, the first stage of a model that
diverges, a size on which it depends, the exception that was raised, or what the law itself found
the implementation to do instead. Laws with a common explanation have one cause.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from attnspec.conformance.report.matrix import LEAST_SHARE, other_profile
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.report.text import order_of_clauses
from attnspec.conformance.report.view import broken, subjects_of

SMALL = 64
"""Size up to which calls are equally simple, so that the order of the laws decides."""


CONFIGURATION = "GPT-28"
"""The clause whose law names itself what is wrong: fields that a build does not follow."""

TORCH_BUG = (
    "torch, not the function, is wrong: on this CPU a row of NaN or infinity makes another row of "
    "a bfloat16 matrix product NaN (docs/findings.md#the-row-before-a-row-of-nan). The laws hold "
    "once these rows are restored, so the function keeps them where torch multiplies rightly; to "
    "leave bfloat16 out here, pass --dtypes float64,float32,float16"
)
"""The explanation of laws that a bug of torch alone breaks."""

SMALLEST_TILE = 8
"""Size below which a failure that depends on the size is not one of tiles."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Broken laws of one subject with a common explanation.

    Attributes:
        subject: the subject's name.
        explanation: the explanation in a sentence; empty if none was found.
        records: the records of its laws; the first has the smallest call.
    """

    subject: str
    explanation: str
    records: tuple[Record, ...]


def causes_of(records: Sequence[Record]) -> list[Cause]:
    """Return the causes of all broken laws, subject by subject, those of most laws first."""
    failures = broken(records)
    causes = []
    for subject in subjects_of(failures):
        own = [record for record in failures if record.subject == subject]
        groups: dict[str, list[Record]] = {}
        for record, explanation in zip(own, _explanations(own), strict=True):
            groups.setdefault(explanation, []).append(record)
        unexplained = groups.pop("", [])
        ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
        ordered += [("", unexplained)] if unexplained else []
        for explanation, group in ordered:
            first, *others = sorted(group, key=_size)
            if explanation and explanation == _exception(first):
                explanation = f"it does not return: {_raised(first)}"
            causes.append(Cause(subject=subject, explanation=explanation, records=(first, *others)))
    return causes


def _explanations(records: Sequence[Record]) -> list[str]:
    """Return the explanation of each broken law of a subject, or an empty string."""
    own = [record for record in records if not record.torch_bug]
    profiles = _common_answers([other_profile(record, records) for record in records])
    bugs = _common_bugs(records)
    counts = Counter(bug for bug in bugs if bug)
    explanations = []
    for record, profile, bug in zip(records, profiles, bugs, strict=True):
        if record.outcome is Outcome.ERRORED:
            explanations.append(_exception(record))
        elif record.torch_bug:
            explanations.append(TORCH_BUG)
        elif CONFIGURATION in record.clauses:
            explanations.append(record.reason.partition(";")[0])
        elif record.cause:
            explanations.append(record.cause)
        elif record.undeclared:
            explanations.append(f"it accepts a feature that it does not claim: {record.undeclared}")
        elif (
            profile
            and profiles.count(profile) >= LEAST_SHARE * len(own)
            and profiles.count(profile) >= counts[bug]
        ):
            explanations.append(
                _under(profile, profiles.count(profile), len(own) - profiles.count(profile))
            )
        elif record.stage:
            explanations.append(f"the first stage that diverges is {record.stage}")
        else:
            explanations.append(bug or _size_that_matters(record))
    return explanations


def _common_answers(profiles: Sequence[str]) -> list[str]:
    """Return each profile answer, or an empty string if more laws give its question another.

    A case that few answers tell apart may hold under several, and only one can be the subject's.
    """
    counts = Counter(profiles)
    most: dict[str, str] = {}
    for profile, _ in counts.most_common():
        most.setdefault(profile.partition("=")[0], profile)
    return [profile if most[profile.partition("=")[0]] == profile else "" for profile in profiles]


def _under(profile: str, count: int, others: int) -> str:
    """Return the sentence about a profile answer that explains some broken laws, or all."""
    these = "this law passes" if count == 1 else f"these {count} laws pass"
    if not others:
        return f"with --profile {profile} {these}: declare it if this is intended"
    rest = "the other broken law still fails" if others == 1 else f"{others} others still fail"
    return f"with --profile {profile} {these}, and {rest}: it is not the only cause"


def _size_that_matters(record: Record) -> str:
    """Return a sentence about the first size, of a tile or more, that decides whether it fails."""
    for line in record.sizes:
        axis, _, outcomes = line.partition(": ")
        size = re.search(r"[0-9]+", outcomes)
        if size is not None and int(size[0]) >= SMALLEST_TILE:
            return f"whether it is wrong depends on {axis}"
    return ""


def _common_bugs(records: Sequence[Record]) -> list[str]:
    """Return for each record the planted bugs that most records of the subject look like."""
    counts: dict[str, int] = {}
    for record in records:
        for identifier in record.looks_like:
            counts[identifier] = counts.get(identifier, 0) + 1
    sentences = []
    for record in records:
        most = max((counts[each] for each in record.looks_like), default=0)
        titles = record.titles or ("",) * len(record.looks_like)  # older reports have none
        named = [
            f"{identifier}: {title}" if title else identifier
            for identifier, title in zip(record.looks_like, titles, strict=False)
            if counts[identifier] == most
        ]
        sentences.append(f"it looks like {', or '.join(named)}" if named else "")
    return sentences


def _exception(record: Record) -> str:
    """Return the exception of a record without its numbers, which differ from call to call."""
    return f"it does not return: {re.sub(r'[0-9]+', 'n', _raised(record))}"


def _raised(record: Record) -> str:
    """Return the first line of an exception."""
    return record.reason.partition("\n")[0][:160]


def _size(record: Record) -> tuple[int, int]:
    """Return the size of the failing case, and the place of the law, to put the simplest first."""
    order = order_of_clauses()
    product = 1
    for name in ("batch", "heads", "queries", "keys", "d_head", "length", "n_layer", "vocab_size"):
        match = re.search(rf"\b{name}=(\d+)", record.case)
        product *= max(1, int(match[1])) if match else 1
    clause = record.clauses[0] if record.clauses else ""
    return max(product, SMALL) if record.case else 0, order.get(clause, len(order))
