"""`attnspec probe`: which profile and features anyone's attention follows, by experiment."""

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnspec.conformance.cli_report import PIPED, refuse

if TYPE_CHECKING:
    from rich.console import Console

    from attnspec.conformance.probe import Finding


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
) -> None:
    """Find out by experiment what an attention function does, and print how to declare it.

    Small calls are made, and each answer is compared with what the conventions in use would give:
    causal alignment, mask polarity, empty rows, windows, the log-sum-exp, NaN, scale, rounding. A
    question that no experiment settles is answered "unknown".

    Exit status 0: the experiments were made, whatever they found; 2: usage.

    For example, attnspec probe my_kernels.py:flash_attention, or

        attnspec probe my_kernels:flash_attention --device cuda --dtypes bfloat16
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from rich.console import Console
    from rich.progress import Progress

    from attnspec.conformance.claims import Claims
    from attnspec.conformance.memory import most
    from attnspec.conformance.probe_process import importing_apart, probe_apart
    from attnspec.conformance.probe_target import chosen
    from attnspec.conformance.targets import TargetError

    try:
        Claims.read(dtypes=dtypes)
        questions = [each.question for each in chosen(features)]
        held = most(memory, 1, device)
        importing = importing_apart(target, device, timeout=timeout, memory=held)
    except (TargetError, ValueError) as error:
        refuse(str(error))
    apart = probe_apart(
        target, questions, dtypes=dtypes, device=device, timeout=timeout, memory=held
    )
    with Progress(console=Console(stderr=True), transient=True) as progress:
        findings = list(progress.track(apart, len(questions), description=f"probing {target}"))
    _tell(findings, target, importing, device)


def _tell(findings: "list[Finding]", name: str, importing: str, device: str) -> None:
    """Print the table, the evidence and the declaration."""
    from rich.console import Console

    from attnspec.conformance.probe_declaration import declaration
    from attnspec.conformance.unseen import clean

    console = Console(width=None if sys.stdout.isatty() else PIPED)
    _table(findings, name, console)
    code = declaration(name, importing, findings, device)
    say: Any = lambda text: console.print(  # noqa: E731
        clean(text), markup=False, highlight=False, soft_wrap=True
    )
    say("\nEvidence")
    for each in findings:
        say(f"  {each.question}: {each.answer}")
        for line in each.evidence:
            say(f"    {line}")
    say("\nDeclaration\n")
    say(code)


def _table(findings: "list[Finding]", name: str, console: "Console") -> None:
    """Question, answer, and how it departs from the contract."""
    from rich.table import Table
    from rich.text import Text

    from attnspec.conformance.probe import UNKNOWN
    from attnspec.conformance.probe_declaration import conflicts
    from attnspec.conformance.unseen import clean

    table = Table(title=clean(name), title_justify="left", pad_edge=False)
    for head in ("question", "answer", "deviates from the contract"):
        table.add_column(head)
    for each in findings:
        style = "red" if each.deviation else "dim" if each.answer in (UNKNOWN, "no") else "green"
        cells = Text(clean(each.answer), style=style), Text(clean(each.deviation))
        table.add_row(each.question, *cells)
    for told in conflicts(findings):
        table.add_row("profile", Text("disagrees", style="red"), Text(clean(told)))
    console.print(table)
