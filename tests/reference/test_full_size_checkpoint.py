"""A checkpoint of GPT-2's full size, 124 million parameters, as safetensors and pickled."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config as HuggingFaceConfig
from transformers import GPT2LMHeadModel

from attnspec.reference.model import build
from attnspec.reference.tokenizer import Tokenizer, TokenizerError
from attnspec.reference.weights import load
from attnspec.spec import GPT2Config

PARAGRAPH = """\
The ferry to the outer islands leaves at half past six, before the bakery opens, so most passengers
arrive with yesterday's bread. On a clear morning the captain lets the children steer as far as the
second buoy; on a foggy one he rings the bell himself, twice a minute, and nobody talks. There
aren't many rules on board. "Keep your bags off the hatch," says the sign, "and don't feed the
gulls." The gulls, it must be said, have read neither. In 1987 one of them stole a wedding ring and
was followed, by rowing boat, for three and a half miles.
"""


@dataclass(frozen=True)
class Checkpoint:
    """Two folders that hold the same parameters, and the model that was saved."""

    safetensors: Path
    pickled: Path
    model: GPT2LMHeadModel


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoint]:
    """Save with transformers; and with torch, without prefix and with the old buffers."""
    root = tmp_path_factory.mktemp("full-size")
    torch.manual_seed(0)
    model = GPT2LMHeadModel(HuggingFaceConfig()).eval()
    model.save_pretrained(root / "safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in model.state_dict().items()}
    for layer in range(12):
        old[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 1024, 1024, dtype=torch.uint8).tril()
        old[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    (root / "pickled").mkdir()
    shutil.copy(root / "safetensors" / "config.json", root / "pickled")
    torch.save(old, root / "pickled" / "pytorch_model.bin")
    yield Checkpoint(root / "safetensors", root / "pickled", model)
    shutil.rmtree(root)


def test_both_forms_hold_the_same_parameters(checkpoint: Checkpoint) -> None:
    config, weights = load(checkpoint.safetensors)
    other_config, other = load(checkpoint.pickled)
    assert config == other_config == GPT2Config()
    saved = checkpoint.model.state_dict()
    assert weights.keys() == other.keys() == saved.keys() - {"lm_head.weight"}
    assert sum(tensor.numel() for tensor in weights.values()) == 124_439_808
    for name, weight in weights.items():
        assert torch.equal(weight, saved[name])
        assert torch.equal(weight, other[name])


def test_english_gives_hugging_faces_logits(
    checkpoint: Checkpoint, record_property: Callable[[str, object], None]
) -> None:
    try:
        ids = torch.tensor([Tokenizer.gpt2().encode(PARAGRAPH)])
    except TokenizerError as error:
        pytest.skip(str(error))
    assert ids.shape[1] > 100
    config, weights = load(checkpoint.safetensors)
    with torch.no_grad():
        theirs = checkpoint.model(ids).logits
        ours = build(config, weights)(ids)
        exact = build(config, weights, dtype=torch.float64)(ids)
    error, their_error = ((logits - exact).abs().max().item() for logits in (ours, theirs))
    record_property("largest_logit", exact.abs().max().item())
    record_property("error_of_the_reference_in_float32", error)
    record_property("error_of_hugging_face_in_float32", their_error)
    print(f"float32 logits off by {error:.2g}, Hugging Face's by {their_error:.2g}")
    assert ours.dtype == torch.float32
    # Both round as often, in another order; a mistake would not be of the size of rounding.
    assert error <= 64 * their_error


def test_every_state_is_hugging_faces_in_float64(checkpoint: Checkpoint) -> None:
    config, weights = load(checkpoint.pickled, dtype=torch.float64)
    ids = torch.randint(50257, (1, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        narrow = checkpoint.model(ids, output_hidden_states=True)
        exact = checkpoint.model.double()(ids, output_hidden_states=True)
        logits, states = build(config, weights)(ids, output_hidden_states=True)
    assert len(states) == len(exact.hidden_states) == 13
    triples = [
        *zip(states, exact.hidden_states, narrow.hidden_states, strict=True),
        (logits, exact.logits, narrow.logits),
    ]
    for depth, (ours, theirs, rounded) in enumerate(triples):
        # Roundoff is 2^29 times smaller than in float32, and so is what rounding does; a mistake
        # is not. A few bits are left for sums in another order.
        rounding = (rounded - theirs).abs().max()
        assert rounding > 0
        assert (ours - theirs).abs().max() <= rounding * 2.0**-29 * 64, f"state {depth}"
