"""`attnspec check-gpt2`: judge a GPT-2 by the function that builds it."""

from typing import Annotated, Any

import typer

from attnspec.conformance.cli.options import (
    CPUS,
    Computed,
    Efforts,
    Html,
    JUnit,
    Markdown,
    Memory,
    Report,
    Seed,
    Stop,
    Timeout,
    Verbose,
    Workers,
    settings_of,
)
from attnspec.conformance.cli.report import refuse
from attnspec.conformance.cli.run import run
from attnspec.conformance.runner.effort import Effort

_NO_MODEL = "no GPT-2, which is built from two arguments, a configuration and a state dictionary"


def check_gpt2(
    context: typer.Context,
    targets: Annotated[
        list[str],
        typer.Argument(
            help="module:build or file.py:build: takes a configuration and a state dictionary. "
            "With --exercise: a file or a folder of Python."
        ),
    ],
    features: Annotated[
        str | None,
        typer.Option(help="What the model claims: cache, padding, hidden_states, backward."),
    ] = None,
    dtypes: Computed = None,
    effort: Efforts = Effort.STANDARD,
    laws: Annotated[
        list[str] | None,
        typer.Option(help="Only laws, clauses or families that match, such as GPT or 'LNM-1*'."),
    ] = None,
    workers: Workers = CPUS,
    stop: Stop = False,
    seed: Seed = None,
    timeout: Timeout = 600.0,
    memory: Memory = None,
    report: Report = None,
    html: Html = None,
    markdown: Markdown = None,
    junit: JUnit = None,
    verbose: Verbose = False,
    exercise: Annotated[
        bool,
        typer.Option("--exercise", help="Mark the steps of a GPT-2 that you are writing."),
    ] = False,
    weights: Annotated[
        str | None,
        typer.Option(
            help="The checkpoint of the exercise's last step: a folder, a file or a name such as "
            "gpt2; by default a small model, trained here."
        ),
    ] = None,
) -> None:
    """Try every law of GPT-2 on a model, and name the first stage that diverges.

    A model needs only to take token ids and return logits. Further claims are read from its
    parameters; the rest is reported as not claimed. A build may raise
    NotImplementedError or ValueError for configurations that it does not support.

    With --exercise, mark the steps of a file or folder, as far as it is written, and name the
    next mistake.

    For example, attnspec check-gpt2 my_gpt2.py:build -x, or

        attnspec check-gpt2 my_gpt2 --exercise
    """
    if exercise:
        # it imports rich, which other commands do while their workers start
        from attnspec.conformance.cli.exercise import mark_exercise

        _refuse_options_of_a_run(context)
        if len(targets) != 1:
            refuse(f"--exercise marks one file or folder, got {len(targets)}")
        mark_exercise(targets[0], weights=weights, timeout=timeout, memory=memory)
    if weights is not None:
        refuse("--weights is an option of --exercise")
    settings = settings_of(context)
    run(settings, workers=workers, stop=stop, junit=junit, refuses=_no_models)


def _refuse_options_of_a_run(context: typer.Context) -> None:
    """Refuse options that mean nothing to the exercise."""
    known = {"targets", "exercise", "weights", "timeout", "memory"}
    for name in context.params.keys() - known:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            refuse(f"--{name} does not apply to --exercise")


def _no_models(plan: dict[str, Any]) -> str:
    """Name a target that is no GPT-2, or return an empty string."""
    planned, refused = plan["planned"], str(plan["refused"])
    fitting = {each["target"] for each in planned if each["kind"] == "model" or each["broken"]}
    for each in planned:
        if each["target"] not in fitting:
            return f"{each['target']}: {_NO_MODEL}"
    # what is not built from two arguments was taken for an attention, and called as one
    target, _, _ = refused.partition(": ")
    is_attention = "\n  Call    attention(" in refused
    return f"{target}: {_NO_MODEL}" if is_attention else refused
