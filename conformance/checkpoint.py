"""A checkpoint: the reference and Hugging Face's GPT-2 on the same weights, compared."""

from pathlib import Path

import torch

from attnspec.reference.model import build
from attnspec.reference.tokenizer import Tokenizer, TokenizerError
from attnspec.reference.weights import load

TEXT = (
    "When the lighthouse keeper retired, the village asked him to write down everything he knew "
    "about the weather. He filled forty notebooks. Most of them, it turned out, were about birds: "
    "which ones left before a storm, which ones stayed, and which ones came back too early. "
    "The harbour master, who couldn't tell a tern from a gull, read all forty in one winter."
)


def compare(source: str) -> str:
    """Load a checkpoint, run both models on a paragraph of English, and say how far apart they are.

    Args:
        source: a folder, a file or a hub name, as `attnspec.reference.weights.load` takes it.

    Returns:
        Lines for people: the configuration, the text, and the largest distance between the
        logits in float64 (an error of either) and in float32.

    Raises:
        WeightsError: where the checkpoint cannot be loaded, naming the tensor or the file.
        ImportError: where transformers is not installed.
    """
    from attnspec.implementations import load_model

    config, weights = load(source)
    ids = _ids(source, config.vocab_size)[: config.n_positions]
    prompt = torch.tensor([ids])
    lines = [f"{source}: {config.n_layer} layers, {config.n_embd} channels, {len(ids)} tokens"]
    exact = None
    for dtype in (torch.float64, torch.float32):
        typed = {name: tensor.to(dtype) for name, tensor in weights.items()}
        with torch.no_grad():
            ours = build(config, typed)(prompt)
            theirs = load_model("huggingface_gpt2").build(config, typed)(prompt)
        exact = ours if exact is None else exact
        name = str(dtype).removeprefix("torch.")
        lines.append(
            f"  {name}: largest |logit| {exact.abs().max():.4g}, reference and Hugging Face differ "
            f"by at most {(ours - theirs).abs().max():.3g}; from the float64 reference, the "
            f"reference by {(ours - exact).abs().max():.3g}, Hugging Face by "
            f"{(theirs - exact).abs().max():.3g}; the same next token at "
            f"{(ours.argmax(-1) == theirs.argmax(-1)).double().mean():.1%} of positions"
        )
    return "\n".join(lines)


def _ids(source: str, vocab_size: int) -> list[int]:
    """The paragraph as ids, by the checkpoint's own vocabulary or GPT-2's; else ids in a pattern."""
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
