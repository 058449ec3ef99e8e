"""`attnspec check-gpt2 --exercise`: mark the steps of a GPT-2 that is being written."""

from typing import NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnspec.conformance.cli.report import refuse
from attnspec.conformance.report.console import plain_console
from attnspec.conformance.report.escape import escape_controls


def mark_exercise(
    target: str, *, weights: str | None, timeout: float, memory: float | None
) -> NoReturn:
    """Mark the steps, print them and the next mistake, and end the command.

    Args:
        target: a file of Python, or a folder of such files.
        weights: the checkpoint of the last step; None for the small model.
        timeout: seconds for one step.
        memory: GiB that the learner's code may hold; as of `attnspec check`.

    Raises:
        typer.Exit: always; status 0 if every step is done that is not optional, 1 if not, 2 if
            there is nothing to mark.
    """
    from attnspec.conformance.exercise.learner import NoExercise
    from attnspec.conformance.exercise.marking import Mark, mark
    from attnspec.conformance.exercise.steps import ENGLISH
    from attnspec.conformance.isolation.memory import memory_per_worker

    console = plain_console(highlight=False)
    try:
        marked = list(
            mark(
                target,
                weights=weights,
                limit=timeout,
                memory=memory_per_worker(memory, 1, "cpu"),
                on_training=_say_what_takes_time,
            )
        )
    except (NoExercise, ValueError) as error:
        refuse(str(error))
    table = Table(box=None, show_header=False, pad_edge=False)
    for each in marked:
        is_text = each.step.function == ENGLISH
        name = Text("" if is_text else each.step.function)
        table.add_row(Text(str(each.number)), Text(each.step.name), name, Text(str(each.mark)))
    required = [each for each in marked if not each.step.is_optional]
    done = sum(each.mark is Mark.DONE for each in required)
    console.print(Text(escape_controls(f"{target}: {done} of {len(required)} steps done")))
    console.print(table)
    following = next((each for each in marked if each.mark is Mark.NEXT), None)
    if following is None:
        _print(console, f"\nYour GPT-2 writes:\n  {_text_of(marked[-1])}")
        raise typer.Exit(0)
    _print(console, f"\nNext: {following.number}, {following.step.name}")
    if following.finding is not None:
        _print(console, f"  {following.finding.sentence}")
        details = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
        for heading, text in following.finding.details:
            details.add_row(Text(heading), Text(escape_controls(text)))
        console.print(details)
    raise typer.Exit(1)


def _text_of(marked: object) -> str:
    finding = getattr(marked, "finding", None)
    return "" if finding is None else str(finding.sentence)


def _print(console: Console, text: str) -> None:
    console.print(Text(escape_controls(text)), soft_wrap=True)


def _say_what_takes_time() -> None:
    """Say why the last step takes longer the first time."""
    typer.echo("training the small model of the last step, once (some ten seconds)", err=True)
