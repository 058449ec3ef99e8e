"""The command `attnspec generate`, on small checkpoints on disk."""

import json
import shutil
from pathlib import Path

import pytest
import tokenizers
import typer
from transformers import GPT2Config as HuggingFaceConfig
from transformers import GPT2LMHeadModel, set_seed
from typer.testing import CliRunner, Result

from attnspec.conformance.cli.generate import generate
from attnspec.reference.beam_search import generate_beams
from attnspec.reference.generation import generate as generate_tokens
from attnspec.reference.model import build
from attnspec.reference.tokenizer import Tokenizer
from attnspec.reference.weights import load

END = "<|endoftext|>"
PROMPT = "Paris is the capital of"
VOCAB = 300

app = typer.Typer()
app.command()(generate)


def run(*arguments: str | Path) -> Result:
    """Call the command."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a checkpoint with its vocabulary beside it."""
    folder = tmp_path_factory.mktemp("checkpoint")
    trained = tokenizers.ByteLevelBPETokenizer()
    corpus = [PROMPT + " France, Rome is the capital of Italy, 東京は日本の首都です."] * 3
    trained.train_from_iterator(corpus, vocab_size=VOCAB, special_tokens=[END])
    trained.save_model(str(folder))
    size = trained.get_vocab_size()
    set_seed(0)
    config = HuggingFaceConfig(
        vocab_size=size,
        n_positions=48,
        n_embd=16,
        n_layer=2,
        n_head=2,
        initializer_range=0.6,
        bos_token_id=0,
        eos_token_id=0,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "options",
    [
        ("--greedy",),
        ("--seed", "1"),
        ("--seed", "2", "--top-k", "9", "--top-p", "0.9", "--min-p", "0.01"),
        ("--beams", "3"),
        ("--beams", "2", "--length-penalty", "0", "--early-stopping", "never"),
    ],
)
def test_with_and_without_a_cache_the_text_is_the_same(
    checkpoint: Path, options: tuple[str, ...]
) -> None:
    command = (PROMPT, "--weights", checkpoint, "--max-new-tokens", "12", *options)
    first, second = run(*command), run(*command, "--no-cache")
    assert first.exit_code == 0, first.stderr
    assert first.stdout.startswith(PROMPT)
    assert len(first.stdout) > len(PROMPT) + 1
    assert first.stdout == second.stdout
    assert first.stderr == ""


def test_the_text_is_what_the_tokens_spell(checkpoint: Path) -> None:
    config, weights = load(checkpoint)
    tokenizer = Tokenizer.from_files(checkpoint / "vocab.json", checkpoint / "merges.txt")
    model = build(config, {name: weight.double() for name, weight in weights.items()})
    for seed in range(4):
        tokens = generate_tokens(
            model, tokenizer.encode(PROMPT), max_new_tokens=20, seed=seed, stop_tokens=[0]
        )
        out = run(PROMPT, "--weights", checkpoint, "--max-new-tokens", "20", "--seed", str(seed))
        assert out.stdout == PROMPT + tokenizer.decode(tokens) + "\n"


def test_a_beam_search_writes_its_best_hypothesis(checkpoint: Path) -> None:
    config, weights = load(checkpoint)
    tokenizer = Tokenizer.from_files(checkpoint / "vocab.json", checkpoint / "merges.txt")
    model = build(config, {name: weight.double() for name, weight in weights.items()})
    best, *others = generate_beams(
        model, tokenizer.encode(PROMPT), max_new_tokens=20, beams=3, stop_tokens=[0]
    )
    out = run(PROMPT, "--weights", checkpoint, "--max-new-tokens", "20", "--beams", "3")
    tokens = [token for token in best.tokens if token != 0]
    assert out.stdout == PROMPT + tokenizer.decode(tokens) + "\n"
    assert len(others) == 2


def test_no_prompt_starts_a_text(checkpoint: Path) -> None:
    out = run("", "--weights", checkpoint, "--greedy", "--max-new-tokens", "3")
    assert out.exit_code == 0, out.stderr


def test_a_tokenizer_is_taken_from_a_folder(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(checkpoint / name, tmp_path)
    command = (PROMPT, "--greedy", "--max-new-tokens", "4", "--weights")
    result = run(*command, tmp_path / "model.safetensors", "--tokenizer", checkpoint)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == run(*command, checkpoint).stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--top-p", "2"), "top_p must lie in (0, 1]"),
        (("--temperature", "0"), "temperature must be finite and positive"),
        (("--top-k", "0"), "top_k must be at least 1"),
        (("--greedy", "--top-k", "2"), "greedy draws nothing"),
        (("--min-p", "2"), "min_p must lie in [0, 1]"),
        (("--length-penalty", "0"), "length_penalty is a setting of a beam search"),
        (("--early-stopping", "full"), "early_stopping is a setting of a beam search"),
        (("--beams", "2", "--seed", "0"), "a beam search draws nothing"),
        (("--beams", "2", "--min-p", "0.1"), "a beam search draws nothing"),
        (("--beams", "2", "--length-penalty", "nan"), "length_penalty must be finite"),
        (("--max-new-tokens", "99"), "do not fit into the model's 48 positions"),
        (("--tokenizer", "nowhere"), "vocab.json: cannot be read"),
        (("--weights", "/no/such/folder"), "/no/such/folder: no such file or folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(
    checkpoint: Path, options: tuple[str, ...], message: str
) -> None:
    out = run(PROMPT, "--weights", checkpoint, *options)
    assert out.exit_code == 2
    assert message in out.stderr
    assert out.stderr.count("\n") == 1
    assert out.stdout == ""


def test_a_tokenizer_too_large_for_the_model_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    ids = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(ids | {"<|more|>": 1000}))
    out = run(PROMPT, "--weights", folder)
    assert out.exit_code == 2
    assert "the tokenizer has 1001 ids" in out.stderr


def test_a_broken_checkpoint_is_named(checkpoint: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    (folder / "model.safetensors").write_bytes(b"short")
    out = run(PROMPT, "--weights", folder)
    assert out.exit_code == 2
    assert "model.safetensors: corrupt" in out.stderr
