"""The `attnspec` command."""

import json
import os
import secrets
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import pytest
import typer

from attnspec import __version__
from attnspec.conformance.cli_generate import generate
from attnspec.conformance.cli_gpt2 import check_gpt2
from attnspec.conformance.cli_mutants import mutants
from attnspec.conformance.cli_probe import probe
from attnspec.conformance.cli_report import check_paths, report, summary_of_actions
from attnspec.conformance.effort import Effort

if TYPE_CHECKING:
    from attnspec.conformance.planned import Planned

CONFORMING, BROKEN, USAGE = 0, 1, 2
"""Exit statuses: every law held, some law did not, the command could not be understood."""

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
    says = _Says(features=features, dtypes=dtypes, profile=tuple(profile or ()))
    most = most_memory(memory, workers, device)
    planned = _look_up(targets or [], says, device, laws or [], timeout, most)
    if weights is not None:
        _compare_checkpoint(weights, planned)
    arguments = _pytest_arguments(targets or [], says, device, effort, laws or [])
    arguments += ["-n", str(workers), f"--attnspec-timeout={timeout}"]
    arguments += [f"--attnspec-memory={0 if most is None else most / 2**30}"]
    arguments += ["-x"] if stop else []
    # one seed for all workers, so that one number repeats the run
    seed = secrets.randbelow(2**32) if seed is None else seed
    arguments += [f"--attnspec-seed={seed}"]
    check_paths(report, html, markdown, junit)
    written = {"attnspec-report": report, "attnspec-html": html, "attnspec-markdown": markdown}
    for option, path in {**written, "junitxml": junit}.items():
        arguments += [] if path is None else [f"--{option}={path.absolute()}"]
    summary = summary_of_actions()
    arguments += [] if summary is None else [f"--attnspec-summary={summary}"]
    with tempfile.TemporaryDirectory() as folder:
        # The settings and conftest files of whatever project we are called in are not for this run.
        settings = Path(folder, "pytest.ini")
        settings.write_text("[pytest]\n")
        found = Path(folder, "plan.json")
        found.write_text(json.dumps([each.to_data() for each in planned]), encoding="utf-8")
        arguments += [f"--attnspec-plan={found}", "-c", str(settings), f"--rootdir={folder}"]
        # Nor are its plugins, which cost time at best.
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            environment.delenv("PYTEST_PLUGINS", raising=False)
            environment.delenv("PYTEST_ADDOPTS", raising=False)
            environment.setenv("HYPOTHESIS_STORAGE_DIRECTORY", folder)
            status = pytest.main(arguments)
    raise typer.Exit(status if status in (CONFORMING, BROKEN) else USAGE)


@dataclass(frozen=True, kw_only=True)
class _Says:
    """What the command says of its targets, as typed."""

    features: str | None
    dtypes: str | None
    profile: tuple[str, ...]


def _look_up(
    targets: list[str],
    says: _Says,
    device: str,
    laws: list[str],
    timeout: float,
    memory: int | None,
) -> "list[Planned]":
    """Find the targets, and refuse what does not exist before any worker is started."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread per worker
    from attnspec.conformance.planned import Words, errands, plan
    from attnspec.conformance.targets import TargetError, every_name
    from attnspec.conformance.trials import chosen

    words = Words(features=says.features, dtypes=says.dtypes, profile=says.profile)
    try:
        chosen(laws)
        found = plan(targets or every_name(), words, device, limit=timeout, memory=memory)
        errands(found, laws)
        return found
    except (TargetError, ValueError) as error:
        _refuse(str(error))


def looked_up(
    targets: list[str],
    *,
    features: str | None,
    dtypes: str | None,
    laws: list[str],
    timeout: float,
    memory: float | None,
    workers: int,
) -> "list[Planned]":
    """Find targets for a CPU, each in a process of its own, or end the command with a word."""
    says = _Says(features=features, dtypes=dtypes, profile=())
    most = most_memory(memory, workers, "cpu")
    return _look_up(targets, says, "cpu", laws, timeout, most)


def most_memory(said: float | None, workers: int, device: str) -> int | None:
    """Bytes that a worker may hold, or `None` where it may hold all there are."""
    from attnspec.conformance.memory import GIBIBYTE, can_limit, fair

    if said is None:
        return fair(workers, device)
    if said and not (device == "cpu" and can_limit()):
        _refuse("--memory: memory can be limited on Linux and on a CPU alone")
    return int(said * GIBIBYTE) or None


def _pytest_arguments(
    targets: list[str], says: _Says, device: str, effort: Effort, laws: list[str]
) -> list[str]:
    """What pytest is told about whom to judge."""
    arguments = ["--pyargs", "attnspec.conformance.test_conformance", "--import-mode=importlib"]
    arguments += ["--noconftest", "-p", "no:cacheprovider", "--no-header", "-q", "-rN"]
    # nothing here asserts, and pytest would compile every module of ours anew
    arguments += ["--assert=plain", "-p", "xdist.plugin", "-p", "attnspec.conformance.plugin"]
    arguments += ["--disable-warnings", "--attnspec-progress"]
    # Not loadgroup: where a worker died, its successor is never given anything to do.
    arguments += ["--dist=load", "--max-worker-restart=1000000"]
    arguments += [f"--implementation={each}" for each in targets]
    arguments += [f"--laws={each}" for each in laws]
    arguments += [f"--effort={effort}", f"--attnspec-device={device}"]
    arguments += [] if says.features is None else [f"--attnspec-features={says.features}"]
    arguments += [] if says.dtypes is None else [f"--attnspec-dtypes={says.dtypes}"]
    arguments += [f"--attnspec-profile={each}" for each in says.profile]
    return arguments


def _compare_checkpoint(weights: str, planned: "list[Planned]") -> None:
    from attnspec.conformance.checkpoint import compare
    from attnspec.conformance.law import Judged
    from attnspec.conformance.violation import Violation
    from attnspec.reference.weights import WeightsError

    judged = (each.load() for each in planned if each.kind is Judged.ATTENTION and not each.broken)
    attentions = [each.subject for each in judged]
    try:
        typer.echo(compare(weights, attentions))
    except (WeightsError, ImportError) as error:
        _refuse(str(error))
    except Violation as error:
        typer.echo(f"{weights}: {error}")
        raise typer.Exit(BROKEN) from None


def _refuse(message: str) -> NoReturn:
    print(f"attnspec: {message}", file=sys.stderr)
    raise typer.Exit(USAGE)


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
        _refuse(str(error.args[0]))
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
