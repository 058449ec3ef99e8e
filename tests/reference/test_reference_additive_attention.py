"""Additive attention of the reference, held to Keras; and the GRU of the copy task, to torch."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.conformance.operators.additive_attention.bounds import forward
from attnspec.conformance.operators.additive_attention.case import AdditiveAttentionCase, Content
from attnspec.reference.additive_attention import additive_attention
from attnspec.spec.additive_attention import AdditiveAttentionProfile
from attnspec.spec.profiles import Float64Precision

sys.path.append(str(Path(__file__).parents[2] / "docs" / "examples"))

DRAWN = st.builds(
    AdditiveAttentionCase,
    batch=st.integers(1, 3),
    queries=st.integers(1, 5),
    keys=st.integers(1, 9),
    d_query=st.integers(1, 7),
    d_key=st.integers(1, 7),
    d_value=st.integers(1, 7),
    d_inner=st.integers(1, 9),
    content=st.sampled_from([Content.NORMAL, Content.SATURATED]),
    padded=st.booleans(),
    seed=st.integers(0, 2**16),
)


@pytest.fixture(scope="module")
def keras(tmp_path_factory):
    """Keras on torch, or skip."""
    patch = pytest.MonkeyPatch()
    patch.setenv("KERAS_BACKEND", "torch")
    patch.setenv("KERAS_HOME", str(tmp_path_factory.mktemp("keras")))
    yield pytest.importorskip("keras", reason="keras is not installed")
    patch.undo()


def by_keras(keras, tensors):
    """The layer of Keras on projected queries and keys, computed in float32."""
    layer = keras.layers.AdditiveAttention(dtype="float32")
    query = (tensors["query"] @ tensors["w_query"].mT).float()
    key = (tensors["key"] @ tensors["w_key"].mT).float()
    value = tensors["value"].float()
    layer.build([query.shape, value.shape, key.shape])
    layer.set_weights([tensors["w_score"].float().numpy()])
    mask = None if "mask" not in tensors else [None, tensors["mask"]]
    return layer([query, value, key], mask=mask)


# one state is a softmax over one key, against which Keras warns
@pytest.mark.filterwarnings("ignore:.*You are using a softmax over axis:UserWarning")
@settings(max_examples=200)
@given(case=DRAWN)
def test_it_equals_the_layer_of_keras(keras, case):
    tensors = case.draw()
    # Keras lowers the scores of padding by 1e9, which no score of these sizes exceeds
    got = by_keras(keras, tensors).detach().double()
    profile = AdditiveAttentionProfile(float64_precision=Float64Precision.FLOAT32)
    bound = forward(tensors, profile, torch.float64).out.radius
    assert bool(((got - additive_attention(**tensors)).abs() <= bound).all())


def decoder_step(cell, module, state, states, last):
    """One step of a decoder in torch's modules, with attention over the states of the encoder."""
    hidden = torch.tanh(module["query"](state)[:, None] + module["key"](states))
    shares = torch.softmax(module["score"](hidden)[..., 0], dim=1)
    context = (shares[:, :, None] * states).sum(1)
    state = cell(torch.cat([last, context], dim=-1), state)
    return state, torch.cat([state, context], dim=-1)


@settings(max_examples=200)
@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 8),
    width=st.integers(1, 6),
    seed=st.integers(0, 2**16),
)
def test_the_gru_of_the_copy_task_equals_that_of_torch(batch, length, width, seed):
    from copy_task import gru_step

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        gru = torch.nn.GRU(width, width + 1, batch_first=True).double()
        x = torch.randn(batch, length, width, dtype=torch.float64)
    weights = {
        f"it.{name.removesuffix('_l0')}": each.detach() for name, each in gru.named_parameters()
    }
    state, states = torch.zeros(batch, width + 1, dtype=torch.float64), []
    for place in range(length):
        state = gru_step(x[:, place], state, weights, "it")
        states.append(state)
    torch.testing.assert_close(torch.stack(states, dim=1), gru(x)[0].detach(), rtol=0, atol=1e-13)


@settings(max_examples=200)
@given(batch=st.integers(1, 3), length=st.integers(1, 8), seed=st.integers(0, 2**16))
def test_the_copy_task_equals_a_model_of_modules(batch, length, seed):
    """A sequence-to-sequence model written with `nn.GRU`, `nn.GRUCell` and `nn.Linear`."""
    from copy_task import EMBEDDED, LETTERS, START, WIDTH, first_weights, write

    weights = {name: each.detach().double() for name, each in first_weights().items()}
    gru = torch.nn.GRU(EMBEDDED, WIDTH, batch_first=True).double()
    cell = torch.nn.GRUCell(EMBEDDED + WIDTH, WIDTH).double()
    module = {
        "query": torch.nn.Linear(WIDTH, WIDTH).double(),
        "key": torch.nn.Linear(WIDTH, WIDTH, bias=False).double(),
        "score": torch.nn.Linear(WIDTH, 1, bias=False).double(),
    }
    of_gru = {"encoder": (gru, "_l0"), "decoder": (cell, "")}
    for name, (each, suffix) in of_gru.items():
        for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(each, part + suffix).data = weights[f"{name}.{part}"]
    module["query"].weight.data = weights["attention.query"]
    module["query"].bias.data = weights["attention.bias"]
    module["key"].weight.data = weights["attention.key"]
    module["score"].weight.data = weights["attention.score"][None]
    draws = torch.Generator().manual_seed(seed)
    texts = torch.randint(0, LETTERS, (batch, length), generator=draws)
    states, _ = gru(weights["embedding"][texts])
    state, last, logits = states[:, -1], weights["embedding"][[START] * batch], []
    for place in range(length):
        state, read = decoder_step(cell, module, state, states, last)
        logits.append(read @ weights["output"].mT)
        last = weights["embedding"][texts[:, place]]
    got = write(texts, weights, has_attention=True, is_given=True).logits
    expected = torch.stack(logits, dim=1).detach()
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
