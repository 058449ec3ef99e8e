"""The encoder of the reference: equal to Hugging Face's BERT and to torch's encoder layer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.conformance.models.bounds.enclosure import Arithmetic, Enclosure
from attnspec.conformance.operators.bert.bounds import block_result, forward
from attnspec.conformance.operators.bert.case import ACTS, BertCase
from attnspec.conformance.operators.bert.gradients import gradients
from attnspec.conformance.operators.bert.subject import results
from attnspec.conformance.operators.padding import SIDES
from attnspec.reference.encoder import build, encoder_block
from attnspec.spec.encoder import BertConfig, BertProfile

DRAWN = st.builds(
    BertCase,
    layers=st.integers(1, 3),
    heads=st.integers(1, 3),
    d_head=st.integers(2, 5),
    d_inner=st.integers(1, 9),
    vocab=st.integers(2, 9),
    positions=st.integers(7, 9),
    types=st.integers(1, 3),
    act=st.sampled_from(ACTS),
    epsilon=st.sampled_from([1e-12, 1e-5, 0.1]),
    batch=st.integers(1, 3),
    length=st.integers(1, 7),
    padded=st.booleans(),
    padding_side=st.sampled_from(SIDES),
    typed=st.booleans(),
    seed=st.integers(0, 2**16),
)


@pytest.fixture(scope="module")
def peer():
    """The function that builds Hugging Face's model."""
    pytest.importorskip("transformers")
    from attnspec.implementations.huggingface_bert import HuggingFaceBert

    return HuggingFaceBert


@pytest.mark.rotating(parts=4)
@settings(max_examples=200)
@given(case=DRAWN)
def test_states_logits_and_pooled_vectors_equal_hugging_faces(peer, case):
    weights, inputs = case.draw_parameters(), case.draw()
    mine = results(build(case.config, weights), inputs)
    theirs = results(peer(case.config, weights), inputs)
    enclosed = forward(case.config, weights, inputs, BertProfile(), Arithmetic.of(torch.float64))
    radii = {f"state {place}": each.radius for place, each in enumerate(enclosed.states)}
    radii |= {"logits": enclosed.logits.radius, "pooled": enclosed.pooled.radius}
    is_real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    for name, value in mine.items():
        near = (value - theirs[name]).abs() <= 2 * radii[name]
        assert bool(near.all() if name == "pooled" else near[is_real].all()), name


@pytest.mark.rotating(parts=3)
@settings(max_examples=200)
@given(case=DRAWN)
def test_gradients_of_the_parameters_equal_hugging_faces(peer, case):
    weights, inputs = case.draw_parameters(), case.draw()
    options = dict(inputs)
    ids = options.pop("input_ids")
    found = []
    cotangent = case.draw_cotangent()
    for make in (build, peer):
        leaves = {
            name: each.clone().requires_grad_()
            for name, each in weights.items()
            if "pooler" not in name
        }
        logits = make(case.config, {**weights, **leaves})(ids, **options)
        grads = torch.autograd.grad(logits, list(leaves.values()), cotangent)
        found.append(dict(zip(leaves, grads, strict=True)))
    arithmetic = Arithmetic.of(torch.float64)
    enclosed = forward(case.config, weights, inputs, BertProfile(), arithmetic)
    bounds = gradients(case.config, weights, inputs, BertProfile(), enclosed, cotangent, arithmetic)
    assert bounds.keys() == found[0].keys()
    for name, each in bounds.items():
        assert bool(((found[0][name] - found[1][name]).abs() <= 2 * each.radius).all()), name
        # the closed forms of the reverse pass are a third way
        assert bool(((found[0][name] - each.value).abs() <= 2 * each.radius).all()), name


def layer_of_torch(config: BertConfig, weights, *, norm_first: bool):
    """Torch's encoder layer with the parameters of block 0."""
    layer = torch.nn.TransformerEncoderLayer(
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        dropout=0.0,
        activation="gelu" if config.hidden_act == "gelu" else "relu",
        layer_norm_eps=config.layer_norm_eps,
        batch_first=True,
        norm_first=norm_first,
        dtype=torch.float64,
    )
    name = "bert.encoder.layer.0"
    attention = layer.self_attn
    packed = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
    attention.in_proj_weight.data = torch.cat([weights[f"{each}.weight"] for each in packed])
    attention.in_proj_bias.data = torch.cat([weights[f"{each}.bias"] for each in packed])
    for module, stored in (
        (attention.out_proj, "attention.output.dense"),
        (layer.linear1, "intermediate.dense"),
        (layer.linear2, "output.dense"),
        (layer.norm1, "attention.output.LayerNorm"),
        (layer.norm2, "output.LayerNorm"),
    ):
        module.weight.data = weights[f"{name}.{stored}.weight"].clone()
        module.bias.data = weights[f"{name}.{stored}.bias"].clone()
    return layer


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("is_inference", [False, True])
@settings(max_examples=200)
@given(case=DRAWN, norm_first=st.booleans(), act=st.sampled_from(["gelu", "relu"]))
def test_a_block_equals_the_encoder_layer_of_torch(is_inference, case, norm_first, act):
    """In both orders of LayerNorm, in training and on the fast path of inference."""
    case = case.but(act=act)
    weights, inputs = case.draw_parameters(), case.draw()
    x = build(case.config, weights).states(**inputs)[0]
    mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
    layer = layer_of_torch(case.config, weights, norm_first=norm_first)
    if is_inference:
        layer.eval()
        with torch.no_grad():
            expected = layer(x, src_key_padding_mask=mask == 0)
    else:
        expected = layer(x, src_key_padding_mask=mask == 0).detach()
    visible = mask[:, None, None].bool()
    name = "bert.encoder.layer.0"
    got = encoder_block(case.config, weights, name, x, visible, norm_first=norm_first)
    is_real = mask.bool()
    enclosed = block_result(
        case.config,
        weights,
        name,
        Enclosure.exact(x),
        visible,
        Arithmetic.of(torch.float64),
        norm_first=norm_first,
    )
    near = (got - expected).abs() <= 2 * enclosed.radius
    assert bool(near[is_real].all())
    # the bound of a block is far below its result
    assert float(enclosed.radius[is_real].max()) < 1e-6 * float(enclosed.value.abs().max())


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_inference_takes_the_fast_path(norm_first, padded, monkeypatch):
    """Cases with an even number of heads are judged on it."""
    calls, kernel = [], torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(
        torch,
        "_transformer_encoder_layer_fwd",
        lambda *arguments, **options: calls.append(1) or kernel(*arguments, **options),
    )
    case = BertCase(heads=2, padded=padded, batch=2, length=4)
    weights, mask = case.draw_parameters(), case.draw().get("attention_mask")
    layer = layer_of_torch(case.config, weights, norm_first=norm_first).eval()
    x = build(case.config, weights).states(case.draw()["input_ids"])[0]
    with torch.no_grad():
        layer(x, src_key_padding_mask=None if mask is None else mask == 0)
    assert calls
