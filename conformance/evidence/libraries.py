"""Evidence: what the probe finds of attention functions of other libraries, for the pages.

Run as `attnspec.conformance.evidence.libraries [NAME ...] --file FILE`. Each library has its own
environment: a run adds its records to the file, and replaces those of the same implementation and
version.
"""

import datetime
import json
import sys
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from attnspec import __version__
from attnspec.conformance.probe.experiment import UNKNOWN, Finding
from attnspec.conformance.probe.probe import EXPERIMENTS
from attnspec.conformance.probe.process import probe_in_subprocess
from attnspec.conformance.report.file import Report, read_report, write_atomically
from attnspec.conformance.report.record import Outcome
from attnspec.spec import SPEC_VERSION

TIMEOUT = 600.0
"""Seconds for one experiment: a library that compiles takes minutes for some."""

FEATURES: dict[str, str] = {
    "causal": "causal",
    "bool mask": "bool mask",
    "float mask": "float mask",
    "gqa": "grouped heads",
    "window": "window",
    "softcap": "softcap",
    "sinks": "sinks",
    "alibi": "alibi",
    "key_lengths": "key lengths",
    "query_offset": "query offset",
    "lse": "log-sum-exp",
    "dropout": "dropout",
    "backward": "backward",
    "validates": "invalid arguments",
}
"""The rows about features, each with the experiment that answers it; `mask` has one for a kind."""

PROFILE: dict[str, str] = {
    "causal_alignment": "causal",
    "causal_single_query": "causal",
    "empty_row": "empty rows",
    "empty_row_bool_mask": "empty rows",
    "empty_row_float_mask": "empty rows",
    "masked_keys": "hidden NaN and infinity",
    "masked_values": "hidden NaN and infinity",
    "grouping": "grouped heads",
    "softcap_order": "softcap",
    "float64_precision": "storage types",
    "rounding": "rounding",
    "deterministic": "deterministic",
    "batch_invariant": "batch invariant",
}
"""The rows about questions of the profile, each with the experiment that answers it."""

FURTHER: dict[str, str] = {
    "storage types": "storage types",
    "default scale": "default scale",
    "refusals": "refusals",
}
"""Rows with the answer of an experiment as it is."""

NO = "no"
YES = "yes"
NONE = ""
"""The answer if a question does not concern an implementation."""


@dataclass(frozen=True, kw_only=True)
class LibraryRecord:
    """The findings of the probe about one implementation in one version of its library.

    Attributes:
        name: the implementation.
        library: the package that it is part of.
        version: the version of this package.
        torch: the version of torch.
        device: the device of the experiments.
        date: the day of the experiments (UTC), such as 2026-11-25.
        attnspec: the version of attnspec.
        spec: the version of the specification.
        answers: the answer of each row; empty if the question does not concern the implementation.
        findings: the findings of the probe, whose evidence the answers rest on.
        laws: the number of laws by outcome in a run of `attnspec check`; empty if there was none.
        effort: the effort of this run.
        checked: the day of this run (UTC); empty in a record that is older than the field.
        reasons: why calls fail that are pinned as known deviations.
    """

    name: str
    library: str
    version: str
    torch: str
    device: str
    date: str
    attnspec: str = __version__
    spec: str = SPEC_VERSION
    answers: dict[str, str]
    findings: tuple[Finding, ...]
    laws: dict[str, int] = field(default_factory=dict)
    effort: str = ""
    checked: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What a newer record replaces: the implementation, its versions and the device."""
        return self.name, self.version, self.torch, torch.device(self.device).type

    @property
    def title(self) -> str:
        """The library and its version, without the build."""
        return f"{self.library} {self.version.partition('+')[0]}"

    def finding(self, question: str) -> Finding:
        """Return the finding of an experiment.

        Raises:
            KeyError: if the experiment was not made.
        """
        return {each.question: each for each in self.findings}[question]

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "LibraryRecord":
        """Read the values that `asdict` returned."""
        findings = tuple(
            Finding(**each | {"evidence": tuple(each["evidence"])}) for each in data["findings"]
        )
        return cls(**data | {"findings": findings, "reasons": tuple(data["reasons"])})


def rows() -> dict[str, str]:
    """Return every row, with the question of the experiment that answers it."""
    return FEATURES | PROFILE | FURTHER


def answers(findings: tuple[Finding, ...]) -> dict[str, str]:
    """Return the answer of each row, from the findings of all experiments.

    Raises:
        KeyError: if an experiment is missing.
    """
    by_question = {each.question: each for each in findings}
    found = {row: _feature(row, by_question[question]) for row, question in FEATURES.items()}
    profile: dict[str, Any] = {}
    for each in findings:
        profile |= each.facts.get("profile", {})
    for row, question in PROFILE.items():
        found[row] = _of_profile(row, profile, by_question[question], found)
    return found | {row: by_question[question].answer for row, question in FURTHER.items()}


def _feature(row: str, finding: Finding) -> str:
    """Return yes, no, unknown, or how the implementation departs from the contract."""
    if finding.deviation:
        return finding.deviation
    if row == "validates":
        return YES if finding.facts.get("features") else NO
    if finding.answer in (NO, UNKNOWN):
        return finding.answer
    return YES


def _of_profile(row: str, profile: dict[str, Any], finding: Finding, found: dict[str, str]) -> str:
    """Return the answer of a question of the profile."""
    if row == "batch_invariant":
        return {"no difference found": "no difference found"}.get(finding.answer, finding.answer)
    if row == "deterministic":
        return finding.answer
    if row.startswith("empty_row"):
        needed = {"empty_row": "causal"}.get(row, row.removeprefix("empty_row_").replace("_", " "))
        if found[needed] != YES:
            return NONE
        if row == "empty_row" and not any("is_causal=True" in line for line in finding.evidence):
            return NONE  # no causal call left a query without a key
        return str(profile.get(row, profile.get("empty_row", _answer(finding))))
    if row == "float64_precision" and row not in profile:
        return "float64" if "float64" in finding.facts.get("dtypes", ()) else NONE
    if row in profile:
        return str(profile[row])
    return _answer(finding) if finding.deviation or finding.answer == UNKNOWN else NONE


def _answer(finding: Finding) -> str:
    return finding.deviation or finding.answer


def probe_library(
    name: str, library: str, *, device: str = "cpu", dtypes: str | None = None
) -> LibraryRecord:
    """Probe a registered implementation in a process of its own.

    Args:
        name: the implementation.
        library: the package whose version is recorded.
        device: the device of all tensors.
        dtypes: the storage types to try, as on the command line.

    Raises:
        PackageNotFoundError: if the library is not installed.
    """
    questions = [experiment.question for experiment in EXPERIMENTS]
    found = tuple(
        probe_in_subprocess(name, questions, dtypes=dtypes, device=device, timeout=TIMEOUT)
    )
    return LibraryRecord(
        name=name,
        library=library,
        version=version(library),
        torch=torch.__version__,
        device=device,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        answers=answers(found),
        findings=found,
    )


def with_laws(record: LibraryRecord, report: Report) -> LibraryRecord:
    """Return a record with the outcomes of the laws in a report about its implementation.

    Raises:
        ValueError: if the report does not say how it was made, or is about another subject.
    """
    own = [each for each in report.records if each.subject == record.name]
    if report.run is None or not own:
        raise ValueError(f"the report is not about {record.name}")
    counts = {
        str(outcome): sum(each.outcome is outcome for each in own)
        for outcome in Outcome
        if any(each.outcome is outcome for each in own)
    }
    pinned = [each.reason for each in own if each.outcome is Outcome.EXPECTED_FAILURE]
    data = asdict(record) | {
        "laws": counts,
        "effort": report.run.effort,
        "checked": report.run.date[:10],
        "reasons": list(dict.fromkeys(pinned)),
    }
    return LibraryRecord.from_data(data)


def read(path: Path) -> list[LibraryRecord]:
    """Return the records of a file, or none if there is no file.

    A question that is newer than a record has no answer in it.

    Raises:
        ValueError: if the file is not of this kind; names it.
    """
    if not path.exists():
        return []
    try:
        records = map(LibraryRecord.from_data, json.loads(path.read_text("utf-8")))
        return [
            replace(each, answers=dict.fromkeys(rows(), NONE) | each.answers) for each in records
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: no records of libraries: {error}") from error


def merged(old: list[LibraryRecord], new: list[LibraryRecord]) -> list[LibraryRecord]:
    """Return all records, sorted; a new one replaces an old one of the same key."""
    by_key = {record.key: record for record in (*old, *new)}
    return sorted(by_key.values(), key=lambda record: (record.library.lower(), *record.key))


def written(records: list[LibraryRecord]) -> str:
    """Return the text of a file: a JSON array with one record a line."""
    lines = (json.dumps(asdict(record), ensure_ascii=False) for record in records)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Registered implementations; all that are available by default."),
    ] = None,
    file: Annotated[
        Path, typer.Option(help="The file to which the records are added.", dir_okay=False)
    ] = Path("docs/results/libraries.json"),
    reports: Annotated[
        Path | None,
        typer.Option(
            help="A folder of reports NAME.jsonl, each by `attnspec check NAME --report`.",
            file_okay=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to run: cpu, cuda.")] = "cpu",
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the findings, and add the reports alone.")
    ] = False,
) -> None:
    """Probe implementations of other libraries, and add what is found to a file."""
    from attnspec import implementations

    known = implementations.libraries()
    chosen = names or [name for name in known if not implementations.load(name).unavailable()]
    try:
        for name in chosen:
            if name not in known:
                raise ValueError(f"{name}: no implementation of another library")
            reason = implementations.load(name).unavailable()
            if reason is not None:
                raise ValueError(f"{name}: not available here: {reason}")
            old = read(file)
            kept = [record for record in old if record.name == name and keep]
            if kept:
                found = {finding.question for finding in kept[-1].findings}
                if newer := sorted(set(rows().values()) - found):
                    questions = ", ".join(newer)
                    raise ValueError(f"{name}: its record is older than the questions {questions}")
                record = replace(kept[-1], answers=answers(kept[-1].findings))
            else:
                record = probe_library(name, known[name], device=device)
            report = None if reports is None else reports / f"{name}.jsonl"
            if report is not None and report.exists():
                record = with_laws(record, read_report(report))
            write_atomically(file, written(merged(old, [record])))
            print(f"{record.name}: {record.title}, {len(record.findings)} findings")
    except ValueError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    typer.run(main)
