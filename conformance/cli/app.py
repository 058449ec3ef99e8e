"""The `attnspec` command."""

import dataclasses
import sys
from typing import Annotated

import typer

from attnspec import __version__
from attnspec.conformance.cli.check_gpt2 import check_gpt2
from attnspec.conformance.cli.check_model import check_model
from attnspec.conformance.cli.generate import generate
from attnspec.conformance.cli.mutants import mutants
from attnspec.conformance.cli.options import (
    CPUS,
    Efforts,
    Html,
    JUnit,
    Markdown,
    Packed,
    Paged,
    Report,
    Seed,
    Stop,
    Timeout,
    Verbose,
    Workers,
    operator_of,
    settings_of,
)
from attnspec.conformance.cli.probe import probe
from attnspec.conformance.cli.report import refuse, report
from attnspec.conformance.cli.run import BROKEN, run
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.hub import HubError, pinned
from attnspec.conformance.runner.settings import Settings

app = typer.Typer(
    name="attnspec",
    help="Check an attention implementation, or a GPT-2, against an executable specification.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(is_set: bool) -> None:
    if is_set:
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
    context: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="Registered names, module:attribute, file.py:attribute or "
            "hub:owner/name:function; none: all registered."
        ),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="What a bare callable claims, such as mask,causal,gqa, or bool_mask for mask."
        ),
    ] = None,
    dtypes: Annotated[
        str | None, typer.Option(help="Its storage types, such as float16,bfloat16.")
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(help="Its answers, key=value, such as rounding=eager or empty_row=nan."),
    ] = None,
    extras: Annotated[
        str | None, typer.Option(help="Tools of torch that it claims, of compile,vmap,opcheck.")
    ] = None,
    operator: Annotated[
        str | None,
        typer.Option(
            help="The operator that it is, instead: layer_norm, gelu, rms_norm, rotary, gated_mlp, "
            "router, experts, online_softmax, softmax_merge, additive_attention, bert, "
            "encoder_decoder, packed or paged."
        ),
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            help="Sizes at which your model calls it, such as "
            "batch=8,heads=32,kv_heads=8,queries=1,keys=1-4096,d_head=128; may be repeated."
        ),
    ] = None,
    packed: Packed = False,
    paged: Paged = False,
    device: Annotated[str, typer.Option(help="Where to run: cpu, cuda, cuda:1.")] = "cpu",
    revision: Annotated[
        str | None,
        typer.Option(help="The commit of a kernel of the Hugging Face hub, 40 digits."),
    ] = None,
    allow_foreign_code: Annotated[
        bool,
        typer.Option("--allow-foreign-code", help="Fetch that kernel and run its code."),
    ] = False,
    effort: Efforts = Effort.STANDARD,
    laws: Annotated[
        list[str] | None,
        typer.Option(help="Only laws, clauses or families that match, such as MSK,'ATT-1*'."),
    ] = None,
    workers: Workers = CPUS,
    stop: Stop = False,
    seed: Seed = None,
    timeout: Timeout = 600.0,
    memory: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="GiB that a worker may hold; 0: all there are; by default its part of 80 % of "
            "what is free, and 2 at least. Linux, and on a CPU alone.",
        ),
    ] = None,
    report: Report = None,
    html: Html = None,
    markdown: Markdown = None,
    junit: JUnit = None,
    verbose: Verbose = False,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="List the pairs of regimes that no call combines.")
    ] = False,
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
    settings = settings_of(context)
    operator = operator_of(settings.operator, packed=packed, paged=paged)
    settings = dataclasses.replace(settings, operator=operator)
    try:
        settings = dataclasses.replace(settings, targets=pinned(settings.targets, revision))
    except HubError as error:
        refuse(str(error))
    if weights is not None:
        _compare_checkpoint(weights, settings, workers)
    run(settings, workers=workers, stop=stop, junit=junit)


def _compare_checkpoint(weights: str, settings: Settings, workers: int) -> None:
    from attnspec.conformance.cli.checkpoint import compare
    from attnspec.conformance.comparison.violation import Violation
    from attnspec.conformance.isolation.memory import memory_per_worker
    from attnspec.conformance.runner.declare import TargetError
    from attnspec.conformance.runner.plan import plan
    from attnspec.conformance.runner.task import TypedClaims
    from attnspec.conformance.subjects.kinds import SubjectKind
    from attnspec.reference.weights import WeightsError

    claims = TypedClaims.of(settings)
    try:
        memory = memory_per_worker(settings.memory, workers, settings.device)
        planned = plan(
            settings.targets,
            claims,
            settings.device,
            settings.laws,
            limit=settings.timeout,
            memory=memory,
            allow_foreign_code=settings.allow_foreign_code,
        )
        attentions = [
            each for each in planned if each.kind is SubjectKind.ATTENTION and not each.broken
        ]
        typer.echo(compare(weights, [each.load().subject for each in attentions]))
    except (TargetError, ValueError, WeightsError, ImportError) as error:
        refuse(str(error))
    except Violation as error:
        typer.echo(f"{weights}: {error}")
        raise typer.Exit(BROKEN) from None


def list_everything() -> None:
    """List the implementations, and the laws with the clauses that they enforce.

    For example, attnspec list
    """
    from attnspec import implementations
    from attnspec.conformance import laws
    from attnspec.conformance.runner.targets import every_name

    typer.echo("Implementations")
    for name in every_name():
        typer.echo(f"  {name}")
    typer.echo("Implementations of further libraries, which a run includes only if it names them")
    for library, names in implementations.framework_names().items():
        typer.echo(f"  {library}: {', '.join(names)}")
    listed = set(every_name())
    others = [name for name in implementations.operator_names() if name not in listed]
    typer.echo("Operators that take minutes, which a run includes only if it names them")
    typer.echo(f"  {', '.join(others)}")
    typer.echo("Laws")
    for law in laws.load().values():
        typer.echo(f"  {', '.join(law.clauses):<16} {law.name}")


WIDTH = 100
"""Characters of a line of a clause, where there is no terminal."""


def explain(identifier: Annotated[str, typer.Argument(help="A clause, such as ATT-2.")]) -> None:
    """Print a clause of the specification.

    For example, attnspec explain ATT-2
    """
    from attnspec.spec import clause

    try:
        wanted = clause(identifier.upper())
    except KeyError as error:
        refuse(str(error.args[0]))
    else:
        from rich.markdown import Markdown

        from attnspec.conformance.report.console import plain_console
        from attnspec.conformance.report.plain_clause import plain_markdown

        console = plain_console(width=None if sys.stdout.isatty() else WIDTH)
        where = f"chapter {wanted.chapter}, since {wanted.since}"
        console.print(f"{wanted.id} {wanted.title} ({where})\n", markup=False, highlight=False)
        console.print(Markdown(plain_markdown(wanted), code_theme="bw"))


# the order of the help, each in words that fit a line
app.command(short_help="Try every law on an attention.")(check)
app.command(short_help="Try every law on a GPT-2, and name where it diverges.")(check_gpt2)
app.command(short_help="Try every law on a BERT or an encoder-decoder.")(check_model)
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
