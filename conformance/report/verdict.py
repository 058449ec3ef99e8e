"""The verdict of a run in the terminal: conforming or not, then each cause once."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from attnspec.conformance.report.causes import Cause, causes_of
from attnspec.conformance.report.escape import escape_controls
from attnspec.conformance.report.record import Outcome, Record, lines_of_mismatch
from attnspec.conformance.report.text import known_clause
from attnspec.conformance.report.view import broken, headline, subjects_of

LINES_OF_CODE = 12
"""Lines of a snippet that are printed with a cause; a longer one needs `--verbose`."""

WIDEST = 500
"""Characters of the longest line of such a snippet."""

LAWS_NAMED = 12
"""Further laws of a cause that are named."""

UNTRIED = (Outcome.NOT_DECIDED, Outcome.NOT_CLAIMED, Outcome.NOT_AVAILABLE)


def print_verdict(records: Sequence[Record], console: Console, *, is_verbose: bool) -> None:
    """Print a verdict for each subject, and then the causes of all broken laws.

    Args:
        records: of any number of subjects.
        console: where to print.
        is_verbose: print the whole message of every broken law, and not one for each cause.
    """

    def line(text: str, style: str = "") -> None:
        console.print(
            escape_controls(text), style=style, markup=False, highlight=False, soft_wrap=True
        )

    causes = causes_of(records)
    for subject in subjects_of(records):
        own = [record for record in records if record.subject == subject]
        line(verdict_of(own, [cause for cause in causes if cause.subject == subject]))
    for number, cause in enumerate(causes, start=1):
        line("")
        title = f"Cause {number} of {len(causes)}" if len(causes) > 1 else "Cause"
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


def verdict_of(records: Sequence[Record], causes: Sequence[Cause]) -> str:
    """Return the verdict on one subject in a sentence.

    Args:
        records: those of the subject.
        causes: those of its broken laws.
    """
    subject = records[0].subject
    tried = [record for record in records if record.outcome not in UNTRIED]
    failures = broken(records)
    untried = Counter(record.outcome for record in records if record.outcome in UNTRIED)
    rest = ", ".join(f"{count} {outcome}" for outcome, count in untried.items())
    rest = f" ({rest})" if rest else ""
    undecided = [record for record in records if record.outcome is Outcome.NOT_DECIDED]
    if undecided and not failures:
        return f"{subject}: NOT conforming{rest}: {undecided[0].reason}"
    if not tried:
        return f"{subject}: nothing was tried{rest}"
    if not failures:
        known = sum(record.outcome is Outcome.EXPECTED_FAILURE for record in tried)
        but = f", but for {known} known deviations" if known else ""
        return f"{subject}: conforming in all of {len(tried)} laws{but}{rest}"
    named = [cause for cause in causes if cause.explanation]
    found = f", {_count(len(named), 'cause')} found" if named else ""
    return f"{subject}: NOT conforming: {len(failures)} of {len(tried)} laws broken{found}{rest}"


def lines_of(cause: Cause, title: str) -> list[str]:
    """Return the lines that describe a cause: its explanation, its smallest call, other laws."""
    record, *others = cause.records
    where = f", in {len(cause.records)} laws" if others else ""
    explanation = cause.explanation or "no explanation was found"
    lines = [f"{title}{where}: {cause.subject}: {explanation}"]
    identifier = record.clauses[0] if record.clauses else ""
    known = known_clause(identifier)
    lines.append(f"{identifier} {known.title if known else ''} ({record.law})")
    if known is not None:
        lines.append(f"  {known.sentence}")
    if record.case:
        lines.append(f"Case      {record.case}")
    lines += _found(record)
    code = record.snippet.splitlines()
    if code and len(code) <= LINES_OF_CODE and max(map(len, code)) <= WIDEST:
        lines += ["Reproduce:", *(f"    {each}" for each in code)]
    if others:
        named = [f"{each.clauses[0]} {each.law}" for each in others[:LAWS_NAMED]]
        more = f" and {len(others) - LAWS_NAMED} more" if len(others) > LAWS_NAMED else ""
        lines.append(f"Also broken: {', '.join(named)}{more}")
    return lines


def _found(record: Record) -> list[str]:
    """Return the lines with the worst element of a result, or with the reason in words."""
    mismatch = record.mismatch
    if mismatch is None:
        return [f"Found     {each}" for each in record.reason.splitlines()[:3]]
    return [f"Found     {headline(record)}", *lines_of_mismatch(mismatch)]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
