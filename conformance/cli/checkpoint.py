"""Comparing the reference with Hugging Face's GPT-2 on the weights of a checkpoint."""

from collections.abc import Iterable
from pathlib import Path

import torch

from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.laws.model.attention import judged_attention
from attnspec.reference.model import build
from attnspec.reference.tokenizer import Tokenizer, TokenizerError
from attnspec.reference.weights import load

TEXT = (
    "When the lighthouse keeper retired, the village asked him to write down everything he knew "
    "about the weather. He filled forty notebooks. Most of them, it turned out, were about birds: "
    "which ones left before a storm, which ones stayed, and which ones came back too early. "
    "The harbour master, who couldn't tell a tern from a gull, read all forty in one winter."
)


def compare(source: str, subjects: Iterable[Subject] = ()) -> str:
    """Load a checkpoint, run GPT-2 on a paragraph of English, and compare the logits.

    Every attention call that the model makes with a subject plugged in is judged by its own bound.

    Args:
        source: a folder, a file or a hub name, as `attnspec.reference.weights.load` takes it.
        subjects: attention implementations to plug in, in float32.

    Returns:
        Lines of text: the checkpoint, and the distance of the logits of each model from those
        of the reference in float64.

    Raises:
        WeightsError: if the checkpoint cannot be loaded, naming the tensor or the file.
        ImportError: if transformers is not installed.
        Violation: if an attention call exceeds its bound.
    """
    from attnspec.implementations import load_model

    config, weights = load(source)
    ids = _ids(source, config.vocab_size)[: config.n_positions]
    prompt = torch.tensor([ids])
    hugging_face = load_model("huggingface_gpt2").build
    double, single = (
        {name: tensor.to(dtype) for name, tensor in weights.items()}
        for dtype in (torch.float64, torch.float32)
    )
    with torch.no_grad():
        exact = build(config, double)(prompt)
        logits = {
            "Hugging Face, float64": hugging_face(config, double)(prompt),
            "Hugging Face, float32": hugging_face(config, single)(prompt),
            "reference, float32": build(config, single)(prompt),
        }
        for subject in subjects:
            model = build(config, single, attention=judged_attention(subject))
            logits[f"reference with {subject.name}, float32"] = model(prompt)
    lines = [
        f"{source}: {config.n_layer} layers, {config.n_embd} channels, {len(ids)} tokens; "
        f"largest |logit| {exact.abs().max():.4g}",
        "Largest distance from the reference in float64, and positions with the same next token:",
    ]
    for name, each in logits.items():
        distance = (each.double() - exact).abs().max()
        same = (each.argmax(-1) == exact.argmax(-1)).double().mean()
        lines.append(f"  {name}: {distance:.3g}, {same:.1%}")
    return "\n".join(lines)


def _ids(source: str, vocab_size: int) -> list[int]:
    """Encode the paragraph by the checkpoint's vocabulary or GPT-2's, or else make ids up."""
    folder = Path(source)
    try:
        if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            return Tokenizer.from_files(folder / "vocab.json", folder / "merges.txt").encode(TEXT)
        ids = Tokenizer.gpt2().encode(TEXT)
    except TokenizerError:
        ids = []
    if ids and max(ids) < vocab_size:
        return ids
    return [(7 * place * place + 3) % vocab_size for place in range(64)]
