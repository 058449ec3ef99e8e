"""The verdict of a run in the terminal: conforming or not, then each cause once."""

import re
from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from attnspec.conformance.report.causes import Cause, causes_of
from attnspec.conformance.report.escape import escape_controls
from attnspec.conformance.report.record import UNTRIED, Outcome, Record, lines_of_mismatch
from attnspec.conformance.report.source import places_of_no_call
from attnspec.conformance.report.text import known_clause
from attnspec.conformance.report.view import broken, headline, subjects_of

DTYPES = ("float64", "float32", "float16", "bfloat16")
"""The names of storage types, widest first."""

MOST = 0.8
"""Share of the failing cases that must pass in other storage types to be worth a sentence."""

MOST_LINES = 25
"""Lines that are printed of a cause; a snippet that would exceed them needs `--verbose`."""

MOST_SIZES = 3
"""Lines about sizes that are printed of a cause."""

LINES_OF_REASON, LINES_OF_ERROR = 12, 3
"""Lines that are printed of what a law says, and of an exception."""

WIDEST = 500
"""Characters of the longest line of such a snippet."""

LAWS_NAMED = 12
"""Further laws of a cause that are named."""


def print_verdict(
    records: Sequence[Record], console: Console, *, is_verbose: bool, left: int = 0
) -> None:
    """Print a verdict for each subject, and then the causes of all broken laws.

    Args:
        records: of any number of subjects.
        console: where to print.
        is_verbose: print the whole message of every broken law, and not one for each cause.
        left: laws that a run has not tried because it ended before.
    """

    def line(text: str, style: str = "") -> None:
        console.print(
            escape_controls(text), style=style, markup=False, highlight=False, soft_wrap=True
        )

    causes = causes_of(records)
    explained = sum(bool(cause.explanation) for cause in causes)
    for subject in subjects_of(records):
        own = [record for record in records if record.subject == subject]
        its = [cause for cause in causes if cause.subject == subject]
        line(verdict_of(own, its, left))
    for record in records:
        if record.outcome is Outcome.INTERNAL_ERROR:
            for text in ("", *_lines_of_internal_error(record)):
                line(text)
    for number, cause in enumerate(causes, start=1):
        line("")
        title = f"Cause {number} of {explained}" if explained > 1 else "Cause"
        title = title if cause.explanation else "No explanation was found"
        for text in lines_of(cause, title):
            line(text, "bold" if text.startswith(title) else "")
        if is_verbose:
            for record in cause.records:
                line("")
                line(f"{record.outcome}: {record.law}, {record.subject}")
                line(record.message or record.reason)
    if causes and not is_verbose:
        line("")
        line("--verbose prints every broken law with the code that repeats its failure")


def verdict_of(records: Sequence[Record], causes: Sequence[Cause], left: int = 0) -> str:
    """Return the verdict on one subject in a sentence.

    Args:
        records: those of the subject.
        causes: those of its broken laws.
        left: laws that the run has not tried because it ended before.
    """
    subject = records[0].subject
    tried = [record for record in records if record.outcome not in UNTRIED]
    failures = broken(records)
    untried = Counter(record.outcome for record in records if record.outcome in UNTRIED)
    rest = ", ".join(f"{count} {outcome}" for outcome, count in untried.items())
    rest = f" ({rest})" if rest else ""
    internal = [record for record in records if record.outcome is Outcome.INTERNAL_ERROR]
    if internal and not failures:
        return (
            f"{subject}: not decided{rest}: attnspec itself failed in "
            f"{_count(len(internal), 'law')}, and in none of {len(tried)} others did the subject"
        )
    undecided = [record for record in records if record.outcome is Outcome.NOT_DECIDED]
    if undecided and not failures:
        return f"{subject}: NOT conforming{rest}: {undecided[0].reason}"
    if not tried:
        return f"{subject}: nothing was tried{rest}"
    if not failures and left:
        return (
            f"{subject}: not decided{rest}: the run ended before {_count(left, 'law')} of it; "
            f"{len(tried)} held"
        )
    if not failures:
        known = sum(record.outcome is Outcome.EXPECTED_FAILURE for record in tried)
        but = f", but for {known} known deviations" if known else ""
        places = len(places_of_no_call(records))
        unseen = f"; no call reached {_count(places, 'place')} in its code" if places else ""
        return f"{subject}: conforming in all of {len(tried)} laws{but}{rest}{unseen}"
    named = [cause for cause in causes if cause.explanation]
    found = f", {_count(len(named), 'cause')} found" if named else ""
    types = _dtypes_of(failures)
    of_torch = sum(bool(record.torch_bug) for record in failures)
    here = " on this machine" if of_torch == len(failures) else ""
    blame = ", all" if here else f", {of_torch} of them" if of_torch else ""
    blame += " by a bug of torch in bfloat16" if blame else ""
    return (
        f"{subject}: NOT conforming{here}: {len(failures)} of {len(tried)} laws broken"
        f"{blame}{found}{types}{rest}"
    )


def _dtypes_of(failures: Sequence[Record]) -> str:
    """Return the storage types in which failing cases fail, and others in which they pass.

    Empty unless at least `MOST` of the failing cases pass in another type, in which at most cases
    fail that fail in every type: a law may call several types for one case.
    """
    matches = [(re.search(r"\bdtype=(\w+)", record.case), record) for record in failures]
    failing = {match[1] for match, _ in matches if match}
    of_one = {match[1] for match, record in matches if match and record.passes_in}
    counts = Counter(name for record in failures for name in record.passes_in)
    passing = {name: counts[name] for name in DTYPES if name not in of_one and counts[name]}
    count = min(passing.values(), default=0)
    if count < MOST * len(failures) or not passing:
        return ""
    names = " and ".join(name for name in DTYPES if name in failing and name not in passing)
    where = f"mostly in {names}" if failing & passing.keys() else f"in {names} only"
    which = "the same cases" if count == len(failures) else f"{count} of these cases"
    return f", {where}: {which} pass in {' and '.join(passing)}"


def lines_of(cause: Cause, title: str) -> list[str]:
    """Return the lines that describe a cause: its explanation, its smallest call, other laws."""
    record, *others = cause.records
    where = f", in {len(cause.records)} laws" if others else ""
    explanation = f": {cause.explanation}" if cause.explanation else ""
    lines = [f"{title}{where}: {cause.subject}{explanation}"]
    identifier = record.clauses[0] if record.clauses else ""
    known = known_clause(identifier)
    lines.append(f"{identifier} {known.title if known else ''} ({record.law})")
    if known is not None:
        lines.append(f"  {known.sentence}")
    if record.case:
        lines.append(f"Case      {record.case}")
    lines += [f"Sizes     {each}" for each in record.sizes[:MOST_SIZES]]
    if record.passes_in:
        lines.append(f"Dtypes    the same case passes in {' and '.join(record.passes_in)}")
    lines += _found(record)
    code = [each for each in record.snippet.splitlines() if each]
    room = MOST_LINES - len(lines) - 1 - bool(others)
    if code and len(code) <= room and max(map(len, code)) <= WIDEST:
        lines += ["Reproduce:", *(f"    {each}" for each in code)]
    if others:
        named = [f"{each.clauses[0]} {each.law}" for each in others[:LAWS_NAMED]]
        more = f" and {len(others) - LAWS_NAMED} more" if len(others) > LAWS_NAMED else ""
        lines.append(f"Also broken: {', '.join(named)}{more}")
    return lines


def _lines_of_internal_error(record: Record) -> list[str]:
    """Return the lines about an exception of attnspec: where, and how to report it."""
    clause = record.clauses[0] if record.clauses else ""
    lines = [
        f"Internal error of attnspec, not of {record.subject}: {clause} ({record.law})",
        f"Found     {record.reason}",
    ]
    lines += [f"Case      {record.case}"] if record.case else []
    return [
        *lines,
        "To do     please report it with the file that --report FILE.jsonl writes, which has the "
        "traceback; --laws of other laws leaves this one out",
    ]


def _found(record: Record) -> list[str]:
    """Return the lines with the worst element of a result, or with the reason in words."""
    mismatch = record.mismatch
    if mismatch is None:
        most = LINES_OF_ERROR if record.outcome is Outcome.ERRORED else LINES_OF_REASON
        first, *further = record.reason.splitlines()[:most] or [""]
        return [f"Found     {first}", *(f"          {each}" for each in further)]
    return [f"Found     {headline(record)}", *lines_of_mismatch(mismatch)]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
