"""The `attnspec` command."""

import os
from pathlib import Path
from typing import Annotated

import typer

from attnspec import __version__
from attnspec.conformance.cli_generate import generate
from attnspec.conformance.cli_gpt2 import check_gpt2
from attnspec.conformance.cli_mutants import mutants
from attnspec.conformance.cli_probe import probe
from attnspec.conformance.cli_report import refuse, report
from attnspec.conformance.cli_run import BROKEN, Asked, run
from attnspec.conformance.effort import Effort

app = typer.Typer(
    name="attnspec",
    help="Check an attention implementation, or a GPT-2, against an executable specification.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        from attnspec.spec import SPEC_VERSION

        typer.echo(f"attnspec {__version__}, specification {SPEC_VERSION}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the versions."),
    ] = False,
) -> None:
    pass


def check(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="Registered names, module:attribute or file.py:attribute; none: all registered."
        ),
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="What a bare callable claims, such as mask,causal,gqa.")
    ] = None,
    dtypes: Annotated[
        str | None, typer.Option(help="Its storage types, such as float16,bfloat16.")
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(help="Its answers, key=value, such as rounding=eager or empty_row=nan."),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to run: cpu, cuda, cuda:1.")] = "cpu",
    effort: Annotated[Effort, typer.Option(help="How hard to look.")] = Effort.STANDARD,
    laws: Annotated[
        list[str] | None,
        typer.Option(help="Only laws, clauses or families that match, such as MSK or 'ATT-1*'."),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", "-n", min=1, help="Processes.")] = max(
        os.cpu_count() or 1, 1
    ),
    stop: Annotated[bool, typer.Option("-x", help="Stop at the first failure.")] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Repeat the cases that another run drew afresh.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for one law.")] = 300.0,
    memory: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="GiB that a worker may hold; 0: all there are; by default its part of 80 % of "
            "what is free, and 2 at least. Linux, and on a CPU alone.",
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write one JSON record per law to this file.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write one page that needs nothing beside itself.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write Markdown to this file.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML to this file.")] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Also compare the reference with Hugging Face on this checkpoint."),
    ] = None,
) -> None:
    """Try every law on each target and print implementation by clause.

    Exit status 0: every law that a target claims holds; 1: some law is broken; 2: usage.

    For example, attnspec check eager sdpa, or

        attnspec check my_kernels:flash_attention --features causal,gqa --dtypes float16,bfloat16
    """
    asked = Asked(
        targets=tuple(targets or ()),
        features=features,
        dtypes=dtypes,
        profile=tuple(profile or ()),
        device=device,
        effort=effort,
        laws=tuple(laws or ()),
        workers=workers,
        stop=stop,
        seed=seed,
        timeout=timeout,
        memory=memory,
        report=report,
        html=html,
        markdown=markdown,
        junit=junit,
    )
    if weights is not None:
        _compare_checkpoint(weights, asked)
    run(asked)


def _compare_checkpoint(weights: str, asked: Asked) -> None:
    from attnspec.conformance.checkpoint import compare
    from attnspec.conformance.law import Judged
    from attnspec.conformance.memory import most
    from attnspec.conformance.planned import Words, plan
    from attnspec.conformance.targets import TargetError
    from attnspec.conformance.violation import Violation
    from attnspec.reference.weights import WeightsError

    words = Words(features=asked.features, dtypes=asked.dtypes, profile=asked.profile)
    try:
        held = most(asked.memory, asked.workers, asked.device)
        planned = plan(
            asked.targets, words, asked.device, asked.laws, limit=asked.timeout, memory=held
        )
        found = [each for each in planned if each.kind is Judged.ATTENTION and not each.broken]
        typer.echo(compare(weights, [each.load().subject for each in found]))
    except (TargetError, ValueError, WeightsError, ImportError) as error:
        refuse(str(error))
    except Violation as error:
        typer.echo(f"{weights}: {error}")
        raise typer.Exit(BROKEN) from None


def list_everything() -> None:
    """List the implementations, and the laws with the clauses that they enforce.

    For example, attnspec list
    """
    import attnspec.conformance.laws  # noqa: F401  (registers them)
    from attnspec.conformance.law import registered
    from attnspec.conformance.targets import every_name

    typer.echo("Implementations")
    for name in every_name():
        typer.echo(f"  {name}")
    typer.echo("Laws")
    for law in registered().values():
        typer.echo(f"  {', '.join(law.clauses):<16} {law.name}")


def explain(identifier: Annotated[str, typer.Argument(help="A clause, such as ATT-2.")]) -> None:
    """Print a clause of the specification.

    For example, attnspec explain ATT-2
    """
    from attnspec.spec import clause

    try:
        found = clause(identifier.upper())
    except KeyError as error:
        refuse(str(error.args[0]))
    else:
        where = f"chapter {found.chapter}, since {found.since}"
        typer.echo(f"{found.id} {found.title} ({where})\n\n{found.text}")


# the order of the help, each in words that fit a line
app.command(short_help="Try every law on an attention.")(check)
app.command(short_help="Try every law on a GPT-2, and name where it diverges.")(check_gpt2)
app.command(short_help="Find out what an attention does, and how to declare it.")(probe)
app.command(short_help="Show a report again, or compare several.")(report)
app.command("list", short_help="List implementations, and laws with their clauses.")(
    list_everything
)
app.command(short_help="Print a clause of the specification.")(explain)
app.command(short_help="Try the laws on planted bugs.")(mutants)
app.command(short_help="Continue a text with a GPT-2 checkpoint.")(generate)


if __name__ == "__main__":
    app()
