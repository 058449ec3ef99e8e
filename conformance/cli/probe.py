"""`attnspec probe`: find the profile and features of an attention by experiment."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnspec.conformance.cli.environment import set_variables
from attnspec.conformance.cli.options import Packed, Paged, operator_of
from attnspec.conformance.cli.report import PIPED, refuse

if TYPE_CHECKING:
    from rich.console import Console

    from attnspec.conformance.probe.experiment import Finding


def probe(
    target: Annotated[
        str, typer.Argument(help="A registered name, module:attribute or file.py:attribute.")
    ],
    features: Annotated[
        str | None, typer.Option(help="Only questions that concern these, such as causal,window.")
    ] = None,
    dtypes: Annotated[
        str | None, typer.Option(help="Only these storage types, such as float16,bfloat16.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to run: cpu, cuda, cuda:1.")] = "cpu",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for one experiment.")] = 60.0,
    memory: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="GiB that its process may hold; 0: all there are; by default 80 % of what is "
            "free. Linux, and on a CPU alone.",
        ),
    ] = None,
    operator: Annotated[
        str | None,
        typer.Option(help="packed or paged, for attention over sequences without padding."),
    ] = None,
    packed: Packed = False,
    paged: Paged = False,
    write: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="Write the declaration to this Python file, which must be new."
        ),
    ] = None,
) -> None:
    """Find out by experiment what an attention function does, and print how to declare it.

    Small calls are made, and each answer is compared with what the conventions in use would give:
    causal alignment, mask polarity, empty rows, windows, the log-sum-exp, NaN, scale, rounding. A
    question that no experiment settles is answered "unknown".

    Exit status 0: the experiments were made, whatever the results; 2: usage.

    For example, attnspec probe my_kernels.py:flash_attention, or

        attnspec probe my_kernels:flash_attention --device cuda --dtypes bfloat16

        attnspec probe my_kernels.py:varlen_attention --packed
    """
    operator = operator_of(operator, packed=packed, paged=paged)
    if write is not None:
        _require_new(write)
    set_variables()
    from rich.progress import Progress

    from attnspec.conformance.isolation.memory import memory_per_worker
    from attnspec.conformance.probe.declaration import declaration
    from attnspec.conformance.probe.packed import OPERATORS, packed_declaration, questions_of
    from attnspec.conformance.probe.process import find_import_code, probe_in_subprocess
    from attnspec.conformance.probe.target import select_experiments
    from attnspec.conformance.report.console import plain_console
    from attnspec.conformance.runner.claims import Claims
    from attnspec.conformance.runner.declare import TargetError

    try:
        Claims.read(dtypes=dtypes)
        if operator is None:
            questions = [each.question for each in select_experiments(features)]
        elif operator not in OPERATORS:
            raise ValueError(f"the probe knows {' and '.join(OPERATORS)}, got {operator!r}")
        elif features is not None or device != "cpu":
            raise ValueError(f"{operator} attention is probed on a CPU, and with all its features")
        else:
            questions = list(questions_of(operator))
        held = memory_per_worker(memory, 1, device)
        import_code = find_import_code(
            target, device, timeout=timeout, memory=held, operator=operator
        )
    except (TargetError, ValueError) as error:
        refuse(str(error))
    apart = probe_in_subprocess(
        target,
        questions,
        dtypes=dtypes,
        device=device,
        timeout=timeout,
        memory=held,
        operator=operator,
    )
    with Progress(console=plain_console(stderr=True), transient=True) as progress:
        findings = list(progress.track(apart, len(questions), description=f"probing {target}"))
    if operator is None:
        code = declaration(target, import_code, findings, device)
    else:
        code = packed_declaration(target, import_code, findings, operator)
    _tell(findings, target, code)
    if write is not None:
        _write(code, write)


def _require_new(path: Path) -> None:
    """End the command if a declaration cannot be written to a path."""
    if path.suffix != ".py" or not path.stem.isidentifier():
        refuse(f"{path}: not the name of a Python module")
    if path.exists():
        refuse(f"{path}: exists already; name a new file")
    if not path.absolute().parent.is_dir():
        refuse(f"{path}: no folder {path.parent}")


def _write(code: str, path: Path) -> None:
    """Write a declaration, and print how to use it."""
    from attnspec.conformance.probe.declaration import NOTHING
    from attnspec.conformance.report.file import write_atomically

    if code == NOTHING:
        refuse(f"{path}: not written: no storage type gives right results")
    try:
        write_atomically(path, f"{code}\n")
    except OSError as error:
        refuse(f"{path}: {error.strerror}")
    print(f"\nwritten to {path}; check it with: attnspec check {path}:IMPLEMENTATION")


def _tell(findings: "list[Finding]", name: str, code: str) -> None:
    """Print the table, the evidence and the declaration."""
    from attnspec.conformance.report.console import plain_console
    from attnspec.conformance.report.escape import escape_controls

    console = plain_console(width=None if sys.stdout.isatty() else PIPED)
    _table(findings, name, console)
    say: Any = lambda text: console.print(  # noqa: E731
        escape_controls(text), markup=False, highlight=False, soft_wrap=True
    )
    say("\nEvidence")
    for each in findings:
        say(f"  {each.question}: {each.answer}")
        for line in each.evidence:
            say(f"    {line}")
    say("\nDeclaration\n")
    say(code)


def _table(findings: "list[Finding]", name: str, console: "Console") -> None:
    """Print the table of questions, answers and deviations from the contract."""
    from rich.table import Table
    from rich.text import Text

    from attnspec.conformance.probe.declaration import conflicts
    from attnspec.conformance.probe.experiment import UNKNOWN
    from attnspec.conformance.report.escape import escape_controls

    table = Table(title=escape_controls(name), title_justify="left", pad_edge=False)
    for head in ("question", "answer", "deviates from the contract"):
        table.add_column(head)
    for each in findings:
        style = "red" if each.deviation else "dim" if each.answer in (UNKNOWN, "no") else "green"
        cells = (
            Text(escape_controls(each.answer), style=style),
            Text(escape_controls(each.deviation)),
        )
        table.add_row(each.question, *cells)
    for conflict in conflicts(findings):
        table.add_row("profile", Text("disagrees", style="red"), Text(escape_controls(conflict)))
    console.print(table)
