"""Shapes and dtypes in the reference's signatures are true: they are checked while it runs."""

import subprocess
import sys

import pytest

PROGRAM = """
from jaxtyping import install_import_hook

install_import_hook("attnspec.reference", "beartype.beartype")

import torch

from attnspec.reference import build, generate, scaled_dot_product_attention
from attnspec.reference.linear import linear
from attnspec.reference.loss import next_token_loss
from attnspec.reference.masks import alibi_slopes, window
from attnspec.reference.model import gpt2
from attnspec.reference.parameters import parameter_shapes
from attnspec.reference.scalar_attention import scalar_attention
from attnspec.spec import CausalAlignment, EmptyRow, GPT2Config

query, key, value = (torch.randn(2, *shape) for shape in [(4, 3, 5), (2, 7, 5), (2, 7, 6)])
out, lse = scaled_dot_product_attention(
    query, key, value, torch.randn(2, 1, 3, 7), is_causal=True, enable_gqa=True, window=(2, None),
    softcap=3.0, sinks=torch.ones(4), alibi_slopes=alibi_slopes(4).float(), return_lse=True,
    dropout_p=0.1, causal_alignment=CausalAlignment.LOWER_RIGHT, empty_row=EmptyRow.MEAN,
)
assert window(3, 7, 1, 1).shape == (3, 7)
arrays = [tensor.double().numpy() for tensor in (query, key, value)]
scalar_attention(*arrays, window=(1, None), sinks=torch.ones(4).double().numpy())

for tied, layers in [(True, 2), (False, 1)]:
    config = GPT2Config(
        vocab_size=11, n_positions=9, n_embd=6, n_layer=layers, n_head=3, tie_word_embeddings=tied
    )
    shapes = parameter_shapes(config)
    weights = {name: torch.randn(shape) for name, shape in shapes.items()}
    model = build(config, weights)
    ids, mask = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
    assert gpt2(ids, weights, config).shape == (2, 3, 11)
    logits, cache = model(ids, cache=model.empty_cache(), attention_mask=mask)
    places = torch.tensor([[7]])
    model(ids[:, :1], cache=cache.truncate(2), position_ids=places, output_hidden_states=True)
    next_token_loss(logits, ids)
    assert len(list(generate(model, [1, 2], max_new_tokens=5, top_k=3, top_p=0.5, seed=0))) == 5

try:
    linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.rotating(parts=4)
def test_annotations_hold_while_the_reference_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    # The last call is wrong, and only the annotations say so: the checks are on.
    assert done.stdout.split() == ["TypeCheckError"]
