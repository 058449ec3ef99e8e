"""The last step of the exercise: English text, by a learner's model and the weights of another."""

from pathlib import Path
from typing import Any

import torch

from attnspec.conformance.comparison.violation import NotAvailable
from attnspec.conformance.exercise.judge import Finding
from attnspec.conformance.exercise.learner import Learner
from attnspec.conformance.exercise.steps import BUILD, GENERATE
from attnspec.conformance.models.bounds.enclosure import UNKNOWN
from attnspec.conformance.models.oracle import Allowed, is_narrow
from attnspec.conformance.runner.declare_model import MODEL_DTYPES, why_not
from attnspec.conformance.text.byte_pair import BytePairTokenizer
from attnspec.conformance.text.vocabularies import vocabulary
from attnspec.reference.generation import generate
from attnspec.reference.model import build
from attnspec.reference.weights import load, locate
from attnspec.spec import GPT2Config, Vocabulary

PROMPT = "The lighthouse keeper"
NEW_TOKENS = 30

LARGEST = 2**20
"""Parameters of the largest model whose logits are held to their error bound."""


def judge_english(learner: Learner, weights: Path) -> Finding:
    """Continue a sentence with a learner's model, and compare with the reference.

    The logits of a small model are held to their error bound. Those of a large one have none that
    is narrow, so its tokens are compared alone.

    Args:
        learner: whose model builds and runs on small cases.
        weights: the folder or file of a checkpoint.

    Raises:
        WeightsError: if the checkpoint cannot be loaded.
        NotAvailable: if it has no vocabulary beside it, and GPT-2's is not available.
    """
    build_learners = learner.functions[BUILD]
    dtype = next(each for each in MODEL_DTYPES if not why_not(build_learners, each))
    config, parameters = load(weights, dtype=dtype)
    tokenizer = BytePairTokenizer(_vocabulary(locate(weights).parent))
    prompt = tokenizer.encode(PROMPT)
    exact = build(config, parameters)
    expected = [*generate(exact, prompt, max_new_tokens=NEW_TOKENS, greedy=True)]
    try:
        model = build_learners(config, {name: each.clone() for name, each in parameters.items()})
        ids = torch.tensor([[*prompt, *expected]])
        with torch.no_grad():
            logits = model(ids)
            got = _continue(learner, model, prompt)
            distance = float((logits - exact(ids)).abs().amax())
    except Exception as error:
        return Finding(
            holds=False,
            sentence=f"With the weights of {weights.name} the model raises "
            f"{type(error).__name__}: {error}",
            details=(("Where", learner.place(error)),),
        )
    text = tokenizer.decode([*prompt, *got])
    allowed = _allowed(config, parameters, ids)
    if got == expected and distance <= allowed:
        return Finding(holds=True, sentence=text)
    return Finding(
        holds=False,
        sentence="The model writes another text than the reference with these weights."
        if got != expected
        else "The text is right, but the logits are farther from the reference's than rounding "
        "explains.",
        details=(
            ("Expected", tokenizer.decode([*prompt, *expected])),
            ("Got", text),
            ("Logits", f"{distance:.3g} from the reference's at most"),
            ("To do", f"run attnspec check-gpt2 FILE.py:{BUILD}, which tries every law and size"),
        ),
    )


def _vocabulary(folder: Path) -> Vocabulary:
    """Return the vocabulary beside the weights, or GPT-2's own."""
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    if not (vocab.is_file() and merges.is_file()):
        return vocabulary("gpt2")
    return Vocabulary(
        name=folder.name,
        vocab_json=vocab.read_text("utf-8"),
        merges_txt=merges.read_text("utf-8"),
    )


def _continue(learner: Learner, model: Any, prompt: list[int]) -> list[int]:
    """Generate by the learner's function if it is written, else token by token."""
    function = learner.functions.get(GENERATE)
    try:
        if function is not None:
            return [int(each) for each in function(model, torch.tensor([prompt]), NEW_TOKENS)]
    except NotImplementedError:
        pass
    tokens = list(prompt)
    for _ in range(NEW_TOKENS):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


def _allowed(config: GPT2Config, parameters: dict[str, torch.Tensor], ids: torch.Tensor) -> float:
    """Return the largest distance allowed to the logits; infinity without a narrow bound."""
    if sum(each.numel() for each in parameters.values()) > LARGEST:
        return UNKNOWN
    bound = Allowed(config, parameters, ids)
    tolerance = bound.tolerance(lambda passed: passed.logits)
    # both are rounded in this dtype
    return (
        2 * float(tolerance.amax()) if is_narrow(tolerance, bound.model.logits.value) else UNKNOWN
    )


__all__ = ["NotAvailable", "judge_english"]
