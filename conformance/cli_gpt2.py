"""`attnspec check-gpt2`: a GPT-2 of anyone's, from a function that builds it."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from attnspec.conformance.effort import Effort

USAGE = 2


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
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for one law.")] = 300.0,
    report: Annotated[
        Path | None, typer.Option(help="Write one JSON record per law to this file.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as one page.")] = None,
) -> None:
    """Try every law of GPT-2 on a model, and name the first stage that diverges.

    A model needs no more than to be called with token ids and to give logits. What it takes beyond
    that is read from its parameters; what it lacks is reported as not claimed. A build may raise
    NotImplementedError or ValueError for configurations that it does not support.

    For example, attnspec check-gpt2 my_gpt2.py:build -x
    """
    from attnspec.conformance.claims import Claims
    from attnspec.conformance.cli import check
    from attnspec.conformance.law import Judged
    from attnspec.conformance.targets import TargetError, resolve

    try:
        claims = Claims.read(features, dtypes)
        for target in targets:
            kinds = {each.kind for each in resolve(target, claims=claims)}
            if Judged.MODEL not in kinds:
                raise TargetError(
                    f"{target}: no GPT-2, which is built from two arguments, a configuration and "
                    "a state dictionary"
                )
    except (TargetError, ValueError) as error:
        print(f"attnspec: {error}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    check(
        targets=targets,
        features=features,
        dtypes=dtypes,
        effort=effort,
        laws=laws,
        stop=stop,
        timeout=timeout,
        report=report,
        html=html,
        workers=workers,
    )
