"""The matrix: implementation by clause, as people see it at the end of a run."""

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnspec.conformance.record import CONFORMING, Outcome, Record
from attnspec.conformance.tally import TOGETHER
from attnspec.conformance.unseen import clean
from attnspec.spec import RoundingLevel, clauses

SYMBOLS = {
    Outcome.PASSED: ("pass", "green"),
    Outcome.FAILED: ("FAIL", "bold red"),
    Outcome.ERRORED: ("ERROR", "bold red"),
    Outcome.FLAKY: ("FLAKY", "bold red"),
    Outcome.UNEXPECTED_PASS: ("XPASS", "bold red"),
    Outcome.QUALITY_WARNING: ("warn", "yellow"),
    Outcome.EXPECTED_FAILURE: ("known", "yellow"),
    Outcome.NOT_CLAIMED: ("-", "dim"),
    Outcome.NOT_AVAILABLE: ("n/a", "dim"),
}
"""How each outcome is printed, the worst last to be hidden by another in one cell."""

LONG = 40
"""Letters of a name after which it is folded, so that the other columns keep their place."""

_LEVELS = tuple(f"rounding={level}" for level in RoundingLevel)
"""As a profile names them; the last permits whatever the others do."""

_WORST_FIRST = (
    Outcome.ERRORED,
    Outcome.FAILED,
    Outcome.FLAKY,
    Outcome.UNEXPECTED_PASS,
    Outcome.QUALITY_WARNING,
    Outcome.EXPECTED_FAILURE,
    Outcome.PASSED,
    Outcome.NOT_CLAIMED,
    Outcome.NOT_AVAILABLE,
)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome that a cell shows where several laws enforce its clause."""
    return min(outcomes, key=_WORST_FIRST.index)


def conforming(records: Sequence[Record]) -> bool:
    """True where nothing failed; a run without records proves nothing."""
    return bool(records) and all(record.outcome in CONFORMING for record in records)


def print_matrix(records: Sequence[Record], console: Console) -> None:
    """Print clause by implementation, then the counts, then who was not available and why."""
    absent = _absent(records)
    present = [record for record in records if record.subject not in absent]
    subjects = list(dict.fromkeys(record.subject for record in present))
    if subjects:
        console.print(_clauses(present, subjects))
        console.print(_counts(present, subjects))
    for line in figures(present):
        console.print(clean(line), highlight=False, markup=False)
    for line in asides(present):
        console.print(clean(line), highlight=False, markup=False, soft_wrap=True)
    for subject, reason in absent.items():
        line = clean(f"{subject}: not available here: {reason}")
        console.print(line, highlight=False, markup=False)


def _absent(records: Sequence[Record]) -> dict[str, str]:
    """The subjects of which no law could run, each with the reason."""
    reasons: dict[str, str] = {}
    for record in records:
        if record.outcome is Outcome.NOT_AVAILABLE:
            reasons.setdefault(record.subject, record.reason)
    ran = {record.subject for record in records if record.outcome is not Outcome.NOT_AVAILABLE}
    return {subject: reason for subject, reason in reasons.items() if subject not in ran}


def figures(records: Sequence[Record]) -> list[str]:
    """What was measured and not judged: a line per figure, the largest of each implementation."""
    found: dict[str, dict[str, float]] = {}
    for record in records:
        for name, value in record.figures.items():
            row = found.setdefault(name, {})
            row[record.subject] = max(value, row.get(record.subject, value))
    return [
        f"{name}: " + ", ".join(f"{subject} {value:.2g}" for subject, value in row.items())
        for name, row in found.items()
    ]


def asides(records: Sequence[Record]) -> list[str]:
    """Warnings, each with its reason, and the seeds of cases that no run has drawn before."""
    warned = [each for each in records if each.outcome is Outcome.QUALITY_WARNING]
    lines = [f"quality warning: {each.subject}, {each.law}: {each.reason}" for each in warned]
    lines += _undeclared(records)
    lines += _refused(records)
    lines += _other_profiles(records)
    seeds: dict[int, dict[str, None]] = {}
    for each in records:
        if each.seed is not None:
            seeds.setdefault(each.seed, {})[each.law] = None
    for seed, laws in seeds.items():
        few = ", ".join(laws) if len(laws) <= 3 else f"{len(laws)} laws"
        lines.append(f"fresh cases of {few}: repeat them with --seed {seed}")
    return lines


def _undeclared(records: Sequence[Record]) -> list[str]:
    """What is accepted without being claimed, and wrong: once for each subject and feature."""
    lines: dict[tuple[str, str], str] = {}
    for each in records:
        if each.undeclared:
            features, _, told = each.undeclared.partition(": ")
            line = f"undeclared: {each.subject} does not claim {features}, and yet: {told}"
            lines.setdefault((each.subject, features), f"{line} ({each.law})")
    return list(lines.values())


def _refused(records: Sequence[Record]) -> list[str]:
    """What bare callables refuse together, once for each subject and combination."""
    found: dict[tuple[str, str], str] = {}
    for each in records:
        for reason in each.refused:
            if reason.startswith(TOGETHER):
                what = reason.partition(": ")[0]
                line = f"not claimed: {each.subject}: {reason} (--features would claim it)"
                found.setdefault((each.subject, what), line)
    return list(found.values())


def _other_profiles(records: Sequence[Record]) -> list[str]:
    """How many broken laws would hold if something else were declared."""
    lines = []
    for subject in dict.fromkeys(each.subject for each in records if each.holds_under):
        mine = [each for each in records if each.subject == subject]
        broken = sum(each.outcome is Outcome.FAILED for each in mine)
        for words, count in _one_level(Counter(each.holds_under for each in mine)).items():
            if words:
                lines.append(
                    f"{subject}: {count} of {broken} broken laws would hold, where they failed, "
                    f"with --profile {words}: declare it, if that is what is meant"
                )
    return lines


def _one_level(counts: Counter[str]) -> Counter[str]:
    """Count under one level of rounding what holds under several: each case names the narrowest."""
    named = [each for each in counts if each in _LEVELS]
    if len(named) < 2:
        return counts
    others = Counter({words: count for words, count in counts.items() if words not in named})
    return Counter({_LEVELS[-1]: sum(counts[each] for each in named)}) + others


def _clauses(records: Sequence[Record], subjects: Sequence[str]) -> Table:
    table = Table(title="Clause by implementation", title_justify="left", pad_edge=False)
    table.add_column("clause", no_wrap=True)
    table.add_column("", overflow="ellipsis", no_wrap=True, max_width=44, style="dim")
    for subject in subjects:
        is_long = len(clean(subject)) > LONG
        width = LONG if is_long else None
        name = Text(clean(subject), overflow="fold")
        table.add_column(name, justify="center", no_wrap=not is_long, max_width=width)
    known = clauses()
    order = {identifier: place for place, identifier in enumerate(known)}
    cells: dict[str, dict[str, list[Outcome]]] = {}
    for record in records:
        for identifier in record.clauses:
            row = cells.setdefault(identifier, {})
            row.setdefault(record.subject, []).append(record.outcome)
    for identifier in sorted(cells, key=lambda each: order.get(each, len(order))):
        title = known[identifier].title if identifier in known else ""
        row = cells[identifier]
        table.add_row(
            Text(clean(identifier)), title, *(_cell(row.get(subject)) for subject in subjects)
        )
    return table


def _cell(outcomes: list[Outcome] | None) -> str:
    if not outcomes:
        return ""
    word, style = SYMBOLS[worst(outcomes)]
    return f"[{style}]{word}[/{style}]"


def _counts(records: Sequence[Record], subjects: Sequence[str]) -> Table:
    table = Table(title="Laws by outcome", title_justify="left", pad_edge=False)
    table.add_column("implementation", max_width=LONG, overflow="fold")
    shown = [outcome for outcome in Outcome if any(each.outcome is outcome for each in records)]
    for outcome in shown:
        table.add_column(str(outcome), justify="right")
    for title in ("cases", "worst of bound", "seconds"):
        table.add_column(title, justify="right")
    for subject in subjects:
        mine = [record for record in records if record.subject == subject]
        counts = Counter(record.outcome for record in mine)
        held = [each for each in mine if each.outcome is not Outcome.EXPECTED_FAILURE]
        fractions = [each.worst for each in held if each.worst is not None]
        seconds = sum(each.seconds.get("total", 0.0) for each in mine)
        table.add_row(
            Text(clean(subject)),
            *(str(counts[outcome]) for outcome in shown),
            str(sum(each.examples for each in mine)),
            f"{max(fractions):.2f}" if fractions else "-",
            f"{seconds:.1f}",
        )
    return table
