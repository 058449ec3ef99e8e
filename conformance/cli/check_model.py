"""`attnspec check-model`: judge a model of an architecture by the function that builds it."""

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from attnspec.conformance.cli.options import (
    CPUS,
    Builders,
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
from attnspec.conformance.cli.run import run
from attnspec.conformance.runner.effort import Effort


class Architecture(StrEnum):
    """The architectures beside GPT-2, for which there is `check-gpt2`."""

    BERT = "bert"
    ENCODER_DECODER = "encoder_decoder"


def check_model(
    context: typer.Context,
    targets: Builders,
    architecture: Annotated[Architecture, typer.Option(help="The architecture of the model.")],
    features: Annotated[
        str | None,
        typer.Option(
            help="What it claims: padding, any_padding, hidden_states, gradients; of a BERT also "
            "token_types, pooler; of an encoder-decoder also target_padding, any_target_padding, "
            "steps, sinusoidal, learned, pre_norm, final_norm."
        ),
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(help="Its answers, key=value, such as positions=real_tokens."),
    ] = None,
    dtypes: Computed = None,
    effort: Efforts = Effort.STANDARD,
    laws: Annotated[
        list[str] | None,
        typer.Option(help="Only laws, clauses or families that match, such as 'ENC-1*'."),
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
) -> None:
    """Try every law of an architecture on a model, and name the first stage that diverges.

    A model needs only to take token ids and return logits. Further claims are read from its
    parameters; the rest is reported as not claimed.

    For example, attnspec check-model my_bert.py:build --architecture bert -x
    """
    settings = replace(settings_of(context), operator=architecture.value)
    run(settings, workers=workers, stop=stop, junit=junit)
