"""The command `attnspec generate`: continue a text with a GPT-2 checkpoint."""

import codecs
import io
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from attnspec.reference.tokenizer import Tokenizer

END = "<|endoftext|>"


class Precision(StrEnum):
    """The storage type in which the model computes."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"


class Stopping(StrEnum):
    """The rules of GEN-18, by which a beam search ends before the maximum length."""

    NEVER = "never"
    HEURISTIC = "heuristic"
    FULL = "full"


def generate(
    prompt: Annotated[
        str, typer.Argument(help="The text to continue; empty starts with <|endoftext|>.")
    ],
    weights: Annotated[
        str, typer.Option(help="A folder, a file, or a name on the Hugging Face hub such as gpt2.")
    ],
    max_new_tokens: Annotated[
        int, typer.Option(help="How many tokens to add at most.", min=0)
    ] = 30,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Always take the likeliest token.")
    ] = False,
    temperature: Annotated[float, typer.Option(help="Below 1 sharpens, above 1 flattens.")] = 1.0,
    top_k: Annotated[
        int | None, typer.Option(help="Draw from this many of the likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the fewest tokens that have this probability.")
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="Draw from the tokens with this share of the largest probability."),
    ] = None,
    beams: Annotated[
        int, typer.Option(help="Search with this many hypotheses; nothing is drawn.", min=1)
    ] = 1,
    length_penalty: Annotated[
        float | None,
        typer.Option(help="Of a beam search: 0 for none, larger for longer texts; 1 by default."),
    ] = None,
    early_stopping: Annotated[
        Stopping | None, typer.Option(help="When a beam search ends; heuristic by default.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Compute every token anew: slower, the same text.")
    ] = False,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="A folder with vocab.json and merges.txt. Otherwise those beside the weights are "
            "taken, or else GPT-2's own vocabulary."
        ),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Of the hub's repository.")] = None,
    dtype: Annotated[Precision, typer.Option(help="What to compute in.")] = Precision.FLOAT64,
) -> None:
    """Continue a text with a GPT-2 checkpoint, as it comes. Ends at <|endoftext|>.

    For example, attnspec generate "Paris is" --weights gpt2 --max-new-tokens 30 --greedy
    """
    try:
        import torch

        from attnspec.reference import beam_search, generation
        from attnspec.reference.model import build
        from attnspec.reference.weights import load, locate
        from attnspec.spec import EarlyStopping

        path = locate(weights, revision=revision)
        text = _tokenizer(tokenizer, path.parent)
        config, state_dict = load(path, dtype=getattr(torch, dtype.value))
        if text.vocab_size > config.vocab_size:
            raise ValueError(
                f"the tokenizer has {text.vocab_size} ids, the checkpoint {config.vocab_size}; "
                "name a fitting one with --tokenizer"
            )
        end = text.encode(END, allowed_special={END}) if END in text.special_tokens else []
        model, ids = build(config, state_dict), text.encode(prompt) or end
        common: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "stop_tokens": end,
            "use_cache": not no_cache,
        }
        drawing: dict[str, Any] = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
        }
        search: dict[str, Any] = {
            "length_penalty": length_penalty,
            "early_stopping": early_stopping,
        }
        search = {name: value for name, value in search.items() if value is not None}
        if beams == 1 and search:
            raise ValueError(f"{next(iter(search))} is a setting of a beam search: give --beams")
        if beams == 1:
            tokens = generation.generate(model, ids, greedy=greedy, seed=seed, **drawing, **common)
        else:
            if greedy or seed is not None or tuple(drawing.values()) != (1.0, None, None, None):
                raise ValueError(
                    "a beam search draws nothing: greedy, seed, temperature, top_k, top_p and "
                    "min_p cannot be given with beams"
                )
            if "early_stopping" in search:
                search["early_stopping"] = EarlyStopping(search["early_stopping"])
            best = beam_search.generate_beams(model, ids, beams=beams, **search, **common)[0]
            tokens = (token for token in best.tokens if token not in end)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        typer.echo(prompt, nl=False)
        for piece in _text_of(tokens, text):
            typer.echo(piece, nl=False)
            sys.stdout.flush()
        typer.echo()
    except ImportError as error:
        raise _failed(f"{error}: run pip install '.[gpt2]' in a checkout") from error
    except (ValueError, TypeError) as error:
        raise _failed(error) from error


def _tokenizer(given: Path | None, beside: Path) -> "Tokenizer":
    """Load the named tokenizer, or the one beside the weights, or GPT-2's own."""
    from attnspec.reference.tokenizer import Tokenizer

    folder = beside if given is None else given
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    if given is None and not (vocab.is_file() and merges.is_file()):
        return Tokenizer.gpt2()
    return Tokenizer.from_files(vocab, merges)


def _text_of(tokens: Iterator[int], tokenizer: "Tokenizer") -> Iterator[str]:
    """Decode token by token; a character of several tokens is yielded with its last one."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in tokens:
        yield decoder.decode(tokenizer.decode_bytes([token]))
    yield decoder.decode(b"", final=True)


def _failed(error: Exception | str) -> typer.Exit:
    """Print the error in one line, and return the exit."""
    typer.echo(f"attnspec generate: {' '.join(str(error).split())}", err=True)
    return typer.Exit(2)
