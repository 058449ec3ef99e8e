"""`attnspec check-gpt2`: a GPT-2 of anyone's, from a function that builds it."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from attnspec.conformance.cli_run import Asked, run
from attnspec.conformance.effort import Effort

_NO_MODEL = "no GPT-2, which is built from two arguments, a configuration and a state dictionary"


def check_gpt2(
    targets: Annotated[
        list[str],
        typer.Argument(
            help="module:build or file.py:build: takes a configuration and a state dictionary."
        ),
    ],
    features: Annotated[
        str | None,
        typer.Option(help="What the model claims: cache, padding, hidden_states, backward."),
    ] = None,
    dtypes: Annotated[
        str | None, typer.Option(help="In which it computes, such as float32.")
    ] = None,
    effort: Annotated[Effort, typer.Option(help="How hard to look.")] = Effort.STANDARD,
    laws: Annotated[
        list[str] | None,
        typer.Option(help="Only laws, clauses or families that match, such as GPT or 'LNM-1*'."),
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
        float | None, typer.Option(min=0, help="GiB that a worker may hold; as of check.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write one JSON record per law to this file.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write one page that needs nothing beside itself.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write Markdown to this file.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML to this file.")] = None,
) -> None:
    """Try every law of GPT-2 on a model, and name the first stage that diverges.

    A model needs no more than to be called with token ids and to give logits. What it takes beyond
    that is read from its parameters; what it lacks is reported as not claimed. A build may raise
    NotImplementedError or ValueError for configurations that it does not support.

    For example, attnspec check-gpt2 my_gpt2.py:build -x
    """
    asked = Asked(
        targets=tuple(targets),
        features=features,
        dtypes=dtypes,
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
    run(asked, _no_models)


def _no_models(told: dict[str, Any]) -> str:
    """Which target stands for no GPT-2, in words that are about GPT-2."""
    planned, refused = told["planned"], str(told["refused"])
    fitting = {each["target"] for each in planned if each["kind"] == "model" or each["broken"]}
    for each in planned:
        if each["target"] not in fitting:
            return f"{each['target']}: {_NO_MODEL}"
    # what is not built from two arguments was taken for an attention, and called as one
    target, _, reason = refused.partition(": ")
    return f"{target}: {_NO_MODEL}; {reason}" if "refuses ones of shape" in reason else refused
