"""A small GPT-2 that writes English: trained on a page of text, in seconds, from a fixed seed.

It stands in for the released weights, which not every machine has. It knows the words and the
sentences of its text and nothing else, and has the layout of a released checkpoint.
"""

import hashlib
import inspect
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

import torch

from attnspec.conformance.isolation.state import restored_state
from attnspec.conformance.models.case import draw_parameters
from attnspec.conformance.text.byte_pair import BytePairTokenizer
from attnspec.conformance.text.vocabularies import train as train_vocabulary
from attnspec.reference.loss import next_token_loss
from attnspec.reference.model import gpt2
from attnspec.spec import GPT2Config, Vocabulary

SEED = 0
MERGES = 300
CONTEXT = 48
"""Tokens of a training sequence."""
STEPS, BATCH, RATE = 200, 8, 8e-3
"""Steps of AdamW, sequences in each, and the largest learning rate."""


def text() -> str:
    """Return the text that the model is trained on."""
    return files("attnspec.conformance.exercise").joinpath("harbour.txt").read_text("utf-8")


def configuration(vocab_size: int) -> GPT2Config:
    """Return the configuration: two layers of four heads, with the switches of released models."""
    return GPT2Config(vocab_size=vocab_size, n_positions=64, n_embd=64, n_layer=2, n_head=4)


def train() -> tuple[GPT2Config, dict[str, torch.Tensor], Vocabulary]:
    """Train the vocabulary, then the model, and return both with the configuration.

    The same machine computes the same numbers each time. Another may round otherwise.
    """
    with restored_state():
        torch.set_num_threads(1)  # several wait for each other longer than such tensors take
        return _train()


def _train() -> tuple[GPT2Config, dict[str, torch.Tensor], Vocabulary]:
    vocabulary = train_vocabulary("harbour", text(), MERGES)
    ids = torch.tensor(BytePairTokenizer(vocabulary).encode(text()))
    config = configuration(len(vocabulary.ids))
    parameters = draw_parameters(config, seed=SEED, spread=0.02, dtype=torch.float32)
    for name, tensor in parameters.items():
        if ".ln_" in name and name.endswith("weight"):
            tensor.fill_(1.0)
        elif name.endswith("bias"):
            tensor.zero_()
        tensor.requires_grad_()
    optimiser = torch.optim.AdamW(parameters.values(), lr=RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=STEPS)
    draws = torch.Generator().manual_seed(SEED)
    for _ in range(STEPS):
        starts = torch.randint(len(ids) - CONTEXT, (BATCH,), generator=draws)
        batch = torch.stack([ids[start : start + CONTEXT] for start in starts.tolist()])
        loss = next_token_loss(gpt2(batch, parameters, config), batch)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    # rounded, since a page offers the parameters in an archive, and zeros take no room there
    trained = {name: tensor.detach().half().float() for name, tensor in parameters.items()}
    return config, trained, vocabulary


def write(folder: Path) -> None:
    """Train the model, and write it as a checkpoint of Hugging Face's layout.

    Args:
        folder: of the files `config.json`, `vocab.json`, `merges.txt` and the parameters, as
            safetensors if that package is installed, else as torch saves them.
    """
    config, parameters, vocabulary = train()
    folder.mkdir(parents=True, exist_ok=True)
    entries = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **asdict(config)}
    folder.joinpath("config.json").write_text(json.dumps(entries, indent=1), "utf-8")
    folder.joinpath("vocab.json").write_text(vocabulary.vocab_json, "utf-8")
    folder.joinpath("merges.txt").write_text(vocabulary.merges_txt, "utf-8")
    try:
        from safetensors.torch import save_file
    except ImportError:
        torch.save(parameters, folder / "pytorch_model.bin")
    else:
        save_file(parameters, folder / "model.safetensors", {"format": "pt"})


def cached(on_training: Callable[[], None] = lambda: None) -> Path:
    """Return the folder of the small model; train and write it if this machine has none yet.

    Args:
        on_training: called before it is trained.
    """
    this = inspect.getsource(sys.modules[__name__])
    version = hashlib.sha256(f"{this}{text()}".encode()).hexdigest()[:16]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "attnspec")
    folder = caches / f"small-gpt2-{version}"
    if not folder.is_dir():
        on_training()
        caches.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=caches))
        try:
            write(made)
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process may have been first
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return folder


if __name__ == "__main__":
    write(Path(sys.argv[1]))
