"""The matrix of clauses by implementation, and the lines that a run prints below it."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnspec.conformance.comparison.tally import (
    GIVEN,
    LARGEST,
    REFUSED_COMBINATION,
    WITH_GRADIENTS,
)
from attnspec.conformance.report.escape import escape_controls
from attnspec.conformance.report.record import CONFORMING, DEVIATING, HIDDEN, Outcome, Record
from attnspec.conformance.report.source import lines_of_no_call
from attnspec.spec import RoundingLevel, all_clauses

SYMBOLS = {
    Outcome.PASSED: ("pass", "green"),
    Outcome.FAILED: ("FAIL", "bold red"),
    Outcome.ERRORED: ("ERROR", "bold red"),
    Outcome.FLAKY: ("FLAKY", "bold red"),
    Outcome.UNEXPECTED_PASS: ("XPASS", "bold red"),
    Outcome.QUALITY_WARNING: ("warn", "yellow"),
    Outcome.EXPECTED_FAILURE: ("known", "yellow"),
    Outcome.INTERNAL_ERROR: ("TOOL", "bold magenta"),
    Outcome.NOT_DECIDED: ("open", "dim"),
    Outcome.NOT_CLAIMED: ("-", "dim"),
    Outcome.NOT_AVAILABLE: ("n/a", "dim"),
}
"""The word and style of each outcome in the terminal."""

LONG = 40
"""Length in characters from which a name is folded, so that it leaves room for other columns."""

WIDEST = 8
"""Maximum number of subjects of which one table shows all clauses."""

FLOAT64_UNCLAIMED = "dtype not claimed: float64"
LEAST_WITHOUT_FLOAT64 = 5
"""Laws of models with cases of an unclaimed float64, beyond which a report says so: an attention
meets one of them."""

LEAST_SHARE = 0.25
"""Share of the broken laws of a subject that another profile must explain to be named.

A wrong result may agree with another profile by chance in a small call.
"""

_LEVELS = tuple(f"rounding={level}" for level in RoundingLevel)
"""The rounding levels as `--profile` names them; the last permits everything that others do."""

_WORST_FIRST = (
    Outcome.ERRORED,
    Outcome.FAILED,
    Outcome.FLAKY,
    Outcome.UNEXPECTED_PASS,
    Outcome.INTERNAL_ERROR,
    Outcome.NOT_DECIDED,
    Outcome.QUALITY_WARNING,
    Outcome.EXPECTED_FAILURE,
    Outcome.PASSED,
    Outcome.NOT_CLAIMED,
    Outcome.NOT_AVAILABLE,
)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the gravest outcome, which a cell shows if several laws enforce its clause."""
    return min(outcomes, key=_WORST_FIRST.index)


def conforming(records: Sequence[Record]) -> bool:
    """Return whether no law failed; False without records, which prove nothing."""
    return bool(records) and all(record.outcome in CONFORMING for record in records)


def print_matrix(records: Sequence[Record], console: Console, *, is_whole: bool = True) -> None:
    """Print clause by implementation, the counts, the figures, the remarks and missing things.

    Args:
        records: of any number of subjects.
        console: where to print.
        is_whole: false leaves out the clauses, of which there are many.
    """
    absent = _absent(records)
    present = [record for record in records if record.subject not in absent]
    subjects = list(dict.fromkeys(record.subject for record in present))
    if subjects:
        if is_whole:
            for table in _clauses(present, subjects):
                console.print(table)
        console.print(_counts(present, subjects))
    for line in figures(present):
        console.print(escape_controls(line), highlight=False, markup=False)
    for line in run_notes(present):
        console.print(escape_controls(line), highlight=False, markup=False, soft_wrap=True)
    for line in missing(records):
        console.print(escape_controls(line), highlight=False, markup=False, soft_wrap=True)


def _absent(records: Sequence[Record]) -> set[str]:
    """Return the subjects of which no law could run."""
    ran = {record.subject for record in records if record.outcome is not Outcome.NOT_AVAILABLE}
    return {record.subject for record in records} - ran


def missing(records: Sequence[Record]) -> list[str]:
    """Return a line for each thing that this machine lacks, with the laws that need it."""
    absent, affected = _absent(records), dict[str, list[Record]]()
    for record in records:
        is_untried = record.outcome is Outcome.NOT_AVAILABLE
        for reason in record.missing or ((record.reason,) if is_untried else ()):
            affected.setdefault(reason, []).append(record)
    lines = []
    for reason, group in affected.items():
        subjects = dict.fromkeys(record.subject for record in group if record.subject in absent)
        others = [record for record in group if record.subject not in absent]
        untried = [record for record in others if record.outcome is Outcome.NOT_AVAILABLE]
        fewer = [record for record in others if record.outcome is not Outcome.NOT_AVAILABLE]
        parts = [
            f"no law of {', '.join(subjects)} was tried" if subjects else "",
            f"not tried: {_clauses_and_subjects(untried)}" if untried else "",
            f"tried on fewer cases: {_clauses_and_subjects(fewer)}" if fewer else "",
        ]
        lines.append(f"not available here: {reason} ({'; '.join(filter(None, parts))})")
    return lines


def _clauses_and_subjects(records: Sequence[Record]) -> str:
    """Return the first clauses of records, and their subjects: "ATT-1, MSK-2 of eager"."""
    identifiers = dict.fromkeys(record.clauses[0] for record in records)
    subjects = dict.fromkeys(record.subject for record in records)
    return f"{', '.join(identifiers)} of {', '.join(subjects)}"


def figures(records: Sequence[Record]) -> list[str]:
    """Return a line for each figure, with the largest value of each implementation."""
    return [
        f"{name}: " + ", ".join(f"{subject} {value:.2g}" for subject, value in row.items())
        for name, row in _largest_figures(records).items()
        if not name.startswith((GIVEN, LARGEST))
    ]


def _largest_figures(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Return the largest value of each figure, by its name and the implementation."""
    largest: dict[str, dict[str, float]] = {}
    for record in records:
        for name, value in record.figures.items():
            row = largest.setdefault(name, {})
            row[record.subject] = max(value, row.get(record.subject, value))
    return largest


def _largest_calls(records: Sequence[Record]) -> list[str]:
    """Return a line for each subject of attention: how large its largest calls were."""
    calls: dict[str, list[str]] = {}
    for name, row in sorted(_largest_figures(records).items(), reverse=True):
        if name.startswith(LARGEST):
            for subject, value in row.items():
                kind = name.removeprefix(LARGEST)
                calls.setdefault(subject, []).append(f"{_rounded(value)} {kind}")
    subjects = dict.fromkeys(record.subject for record in records)
    return [
        f"largest calls: {each}: {', '.join(calls[each])}" for each in subjects if each in calls
    ]


def _calls_at_given_sizes(records: Sequence[Record]) -> list[str]:
    """Return a line for each subject and the sizes that a user gave: how many calls had them."""
    calls: dict[tuple[str, str], dict[str, str]] = {}
    for record in records:
        for name, count in record.figures.items():
            if name.startswith(GIVEN):
                sizes, with_gradients, _ = name.removeprefix(GIVEN).partition(WITH_GRADIENTS)
                kind = with_gradients.strip() or "without gradients"
                of_sizes = calls.setdefault((record.subject, sizes), {})
                if record.outcome in CONFORMING:
                    of_sizes.setdefault(kind, f"{round(count) or 'no'} calls")
                else:
                    of_sizes[kind] = "calls until one failed"
    return [
        f"your sizes: {subject}: {sizes}: "
        + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items(), reverse=True))
        for (subject, sizes), counts in calls.items()
    ]


MILLION = 10**6


def _rounded(value: float) -> str:
    """Return a size in digits, or in millions from two of them on."""
    return f"{value / MILLION:.0f} million" if value >= 2 * MILLION else f"{value:.0f}"


def run_notes(records: Sequence[Record]) -> list[str]:
    """Return the remarks: warnings, undeclared features, other profiles, and seeds of cases."""
    lines = [
        f"quality warning: {record.subject}, {record.law}: {record.reason}"
        for record in records
        if record.outcome is Outcome.QUALITY_WARNING
    ]
    lines += _undeclared(records)
    lines += _calls_at_given_sizes(records)
    lines += _largest_calls(records)
    lines += _pairs_of_regimes(records)
    lines += lines_of_no_call(records)
    lines += _refused(records)
    lines += _without_float64(records)
    lines += _other_profiles(records)
    seeds: dict[int, dict[str, None]] = {}
    for record in records:
        if record.seed is not None:
            seeds.setdefault(record.seed, {})[record.law] = None
    for seed, laws in seeds.items():
        names = ", ".join(laws) if len(laws) <= 3 else f"{len(laws)} laws"
        lines.append(f"fresh cases of {names}: repeat them with --seed {seed}")
    return lines


def _pairs_of_regimes(records: Sequence[Record]) -> list[str]:
    """Return a line for each subject that says how many pairs of regimes were called."""
    parts: dict[str, list[str]] = {}
    for record in records:
        if record.coverage is not None:
            reasons = record.coverage["not tried"]
            hidden = len(reasons.get(HIDDEN, ()))
            deviating = len(reasons.get(DEVIATING, ()))
            untried = sum(map(len, reasons.values())) - hidden - deviating
            part = f"{record.coverage['called']} of {record.coverage['claimed']}"
            part += f" claimed pairs were called {_kind_of_calls(record)}"
            part += f", {untried} are too large to try" if untried else ""
            part += f", {hidden} have results that no bound can judge" if hidden else ""
            part += f", {deviating} meet a known deviation" if deviating else ""
            parts.setdefault(record.subject, []).append(part)
    return [f"regimes: {subject}: {'; '.join(of_calls)}" for subject, of_calls in parts.items()]


def _kind_of_calls(record: Record) -> str:
    """Return whether a law about regimes calls the backward pass."""
    is_backward = bool(record.coverage and record.coverage.get("backward"))
    return f"{'with' if is_backward else 'without'} a backward pass"


_NUMBER = re.compile(r"\d+\.\d+")
"""The memory or time in a reason, such as "needs 2.1 GiB"."""


def coverage(records: Sequence[Record]) -> list[str]:
    """Return the pairs of regimes that were not called: by reason, and by one regime of each."""
    lines = []
    for record in records:
        if record.coverage is None:
            continue
        by_kind: dict[str, dict[str, list[str]]] = {}
        missing = {"missing": record.coverage["missing"]}
        for reason, pairs in (missing | record.coverage["not tried"]).items():
            if pairs:
                by_kind.setdefault(_NUMBER.sub("{}", reason), {})[reason] = pairs
        for kind, by_reason in by_kind.items():
            pairs = [pair for each in by_reason.values() for pair in each]
            numbers = sorted({float(n) for reason in by_reason for n in _NUMBER.findall(reason)})
            ends = dict.fromkeys(numbers[:1] + numbers[-1:])
            reason = kind.format(" to ".join(f"{number:g}" for number in ends))
            calls = f"{record.subject}: {len(pairs)} pairs not called {_kind_of_calls(record)}"
            lines += [f"{calls}: {reason}", *_by_regime(pairs)]
    return lines


def _by_regime(pairs: Sequence[str]) -> list[str]:
    """Return a line for each regime that is in many pairs, with its partners: "a with b; c"."""
    left = [tuple(pair.split(" with ")) for pair in pairs]
    lines = []
    while left:
        (regime, _), *_ = Counter(each for pair in left for each in pair).most_common()
        its = [pair for pair in left if regime in pair]
        partners = sorted(each for pair in its for each in pair if each != regime)
        lines.append(f"  {regime} with {'; '.join(partners)}")
        left = [pair for pair in left if regime not in pair]
    return lines


def _undeclared(records: Sequence[Record]) -> list[str]:
    """Return a line for each subject and feature that is accepted, not claimed, and wrong."""
    lines: dict[tuple[str, str], str] = {}
    for record in records:
        if record.undeclared:
            features, _, details = record.undeclared.partition(": ")
            line = f"undeclared: {record.subject} does not claim {features}: {details}"
            lines.setdefault((record.subject, features), f"{line} ({record.law})")
    return list(lines.values())


def _refused(records: Sequence[Record]) -> list[str]:
    """Return a line for each subject and combination of arguments that it refuses."""
    lines: dict[tuple[str, str], str] = {}
    for record in records:
        for reason in record.refused:
            if reason.startswith(REFUSED_COMBINATION):
                combination = reason.partition(": ")[0]
                line = f"not claimed: {record.subject}: {reason} (--features would claim it)"
                lines.setdefault((record.subject, combination), line)
    return list(lines.values())


def _without_float64(records: Sequence[Record]) -> list[str]:
    """Return a line for each GPT-2 that is judged in float32 alone.

    Most cases of the sizes of released models are in float64: the worst case that the bound of
    float32 allows for is as large there as many mistakes.
    """
    left_out = Counter(
        record.subject
        for record in records
        if FLOAT64_UNCLAIMED in record.refused
        and any(clause.startswith("GPT-") for clause in record.clauses)
    )
    return [
        f"not tried: {subject}: cases of {laws} laws in float64, among them most large models: in "
        "float32 their bound hides mistakes (--dtypes float64,float32 claims both)"
        for subject, laws in left_out.items()
        if laws > LEAST_WITHOUT_FLOAT64
    ]


def other_profile(record: Record, records: Sequence[Record]) -> str:
    """Return the other profile under which a record's law would hold, among its subject's records.

    If several rounding levels are named, it is the widest of them.
    """
    counts = _with_one_level(Counter(each.holds_under for each in records))
    if record.holds_under not in _LEVELS:
        return record.holds_under
    return next(each for each in counts if each in _LEVELS)


def _other_profiles(records: Sequence[Record]) -> list[str]:
    """Return a line for each other profile under which broken laws would hold."""
    lines = []
    for subject in dict.fromkeys(record.subject for record in records if record.holds_under):
        own = [record for record in records if record.subject == subject]
        broken = sum(record.outcome is Outcome.FAILED for record in own)
        counts = _with_one_level(Counter(record.holds_under for record in own))
        for profile, count in counts.items():
            if profile and count >= LEAST_SHARE * broken:
                lines.append(
                    f"{subject}: {count} of {broken} broken laws would hold on their failing "
                    f"cases with --profile {profile}: declare it if this is intended"
                )
    return lines


def _with_one_level(counts: Counter[str]) -> Counter[str]:
    """Merge several rounding levels into the widest: each case names the narrowest sufficient."""
    levels = [profile for profile in counts if profile in _LEVELS]
    if len(levels) < 2:
        return counts
    others = Counter({profile: count for profile, count in counts.items() if profile not in levels})
    return Counter({_LEVELS[-1]: sum(counts[level] for level in levels)}) + others


def _clauses(records: Sequence[Record], subjects: Sequence[str]) -> list[Table]:
    """Return the matrix; of many subjects, a table for the clauses of each kind of subject."""
    known = all_clauses()
    order = {identifier: place for place, identifier in enumerate(known)}
    cells: dict[str, dict[str, list[Outcome]]] = {}
    for record in records:
        for identifier in record.clauses:
            row = cells.setdefault(identifier, {})
            row.setdefault(record.subject, []).append(record.outcome)
    groups: dict[tuple[str, ...], list[str]] = {}
    for identifier in sorted(cells, key=lambda clause: order.get(clause, len(order))):
        columns = [
            each for each in subjects if len(subjects) <= WIDEST or each in cells[identifier]
        ]
        groups.setdefault(tuple(columns), []).append(identifier)
    return [
        _clauses_of(columns, {each: cells[each] for each in identifiers})
        for columns, identifiers in groups.items()
    ]


def _clauses_of(subjects: Sequence[str], cells: Mapping[str, Mapping[str, list[Outcome]]]) -> Table:
    """Return a row for each clause, with the worst outcome of each subject."""
    table = Table(title="Clause by implementation", title_justify="left", pad_edge=False)
    table.add_column("clause", no_wrap=True)
    table.add_column("", overflow="ellipsis", no_wrap=True, max_width=44, style="dim")
    for subject in subjects:
        is_long = len(escape_controls(subject)) > LONG
        width = LONG if is_long else None
        name = Text(escape_controls(subject), overflow="fold")
        table.add_column(name, justify="center", no_wrap=not is_long, max_width=width)
    known = all_clauses()
    for identifier, row in cells.items():
        title = known[identifier].title if identifier in known else ""
        table.add_row(
            Text(escape_controls(identifier)),
            title,
            *(_cell(row.get(subject)) for subject in subjects),
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
    occurring = {record.outcome for record in records}
    columns = [outcome for outcome in Outcome if outcome in occurring]
    for outcome in columns:
        table.add_column(str(outcome), justify="right")
    for title in ("cases", "worst of bound", "seconds"):
        table.add_column(title, justify="right")
    for subject in subjects:
        own = [record for record in records if record.subject == subject]
        counts = Counter(record.outcome for record in own)
        judged = [record for record in own if record.outcome is not Outcome.EXPECTED_FAILURE]
        fractions = [record.worst for record in judged if record.worst is not None]
        seconds = sum(record.seconds.get("total", 0.0) for record in own)
        table.add_row(
            Text(escape_controls(subject)),
            *(str(counts[outcome]) for outcome in columns),
            str(sum(record.examples for record in own)),
            f"{max(fractions):.2f}" if fractions else "-",
            f"{seconds:.1f}",
        )
    return table
