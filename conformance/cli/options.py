"""Options that several commands share, and the settings that a command line gives."""

import os
from pathlib import Path
from typing import Annotated

import typer

from attnspec.conformance.cli.report import refuse
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.settings import Settings

CPUS = max(os.cpu_count() or 1, 1)

Efforts = Annotated[Effort, typer.Option(help="How hard to look.")]
Workers = Annotated[int, typer.Option("--workers", "-n", min=1, help="Processes.")]
Stop = Annotated[bool, typer.Option("-x", help="Stop at the first failure.")]
Seed = Annotated[
    int | None, typer.Option(min=0, help="Repeat the cases that another run drew afresh.")
]
Timeout = Annotated[float, typer.Option(min=1, help="Seconds for one law.")]
Report = Annotated[Path | None, typer.Option(help="Write one JSON record per law to this file.")]
Html = Annotated[Path | None, typer.Option(help="Write one page that needs nothing beside itself.")]
Markdown = Annotated[Path | None, typer.Option(help="Write Markdown to this file.")]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Print every broken law, and the matrix of clauses."),
]
Packed = Annotated[
    bool,
    typer.Option("--packed", help="It takes packed sequences: the same as --operator packed."),
]
Paged = Annotated[
    bool,
    typer.Option("--paged", help="It reads pages by a table: the same as --operator paged."),
]
JUnit = Annotated[Path | None, typer.Option(help="Write JUnit XML to this file.")]

Builders = Annotated[
    list[str],
    typer.Argument(
        help="module:build or file.py:build: takes a configuration and a state dictionary."
    ),
]
Computed = Annotated[str | None, typer.Option(help="In which it computes, such as float32.")]
Memory = Annotated[
    float | None, typer.Option(min=0, help="GiB that a worker may hold; as of check.")
]


def operator_of(operator: str | None, *, packed: bool, paged: bool) -> str | None:
    """Return the operator that is meant, by its name or by a flag.

    Args:
        operator: of the option `--operator`.
        packed: whether the flag `--packed` is given.
        paged: whether the flag `--paged` is given.
    """
    for kind, is_meant in (("packed", packed), ("paged", paged)):
        if is_meant and operator not in (None, kind):
            refuse(f"--{kind} means --operator {kind}, not {operator}")
        operator = kind if is_meant else operator
    return operator


def settings_of(context: typer.Context) -> Settings:
    """Return the settings that the options of a command give, matched by name."""
    return Settings.read(context.params)
