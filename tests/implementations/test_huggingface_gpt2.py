"""Hugging Face's GPT-2 under the contract: cache, padding, states, gradients, refusals."""

import importlib.util

import pytest
import torch

from attnspec.implementations import load_model
from attnspec.spec import GPT2Config

pytest.importorskip("transformers")

CONFIG = GPT2Config(vocab_size=11, n_positions=9, n_embd=12, n_layer=2, n_head=3, n_inner=7)
MODEL = load_model("huggingface_gpt2")
IDS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


def weights(config: GPT2Config, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    d, inner = config.n_embd, config.d_inner
    shapes = {"wte.weight": (config.vocab_size, d), "wpe.weight": (config.n_positions, d)}
    for layer in range(config.n_layer):
        shapes |= {
            f"h.{layer}.{name}": shape
            for name, shape in {
                "ln_1.weight": (d,), "ln_1.bias": (d,), "ln_2.weight": (d,), "ln_2.bias": (d,),
                "attn.c_attn.weight": (d, 3 * d), "attn.c_attn.bias": (3 * d,),
                "attn.c_proj.weight": (d, d), "attn.c_proj.bias": (d,),
                "mlp.c_fc.weight": (d, inner), "mlp.c_fc.bias": (inner,),
                "mlp.c_proj.weight": (inner, d), "mlp.c_proj.bias": (d,),
            }.items()
        }  # fmt: skip
    shapes |= {"ln_f.weight": (d,), "ln_f.bias": (d,)}
    generator = torch.Generator().manual_seed(0)
    drawn = {
        f"transformer.{name}": torch.randn(shape, generator=generator, dtype=torch.float64) / 3
        for name, shape in shapes.items()
    }
    if not config.tie_word_embeddings:
        drawn["lm_head.weight"] = drawn["transformer.wte.weight"].flip(0)
    return {name: weight.to(dtype) for name, weight in drawn.items()}


@pytest.mark.parametrize("dtype", MODEL.dtypes, ids=str)
def test_logits_have_the_shape_and_type_of_the_contract(dtype):
    logits = MODEL.build(CONFIG, weights(CONFIG, dtype))(IDS)
    assert logits.shape == (2, 5, 11)
    assert logits.dtype == dtype


def test_token_by_token_with_a_cache_is_all_at_once_and_an_old_cache_stays_as_it_was():
    model = MODEL.build(CONFIG, weights(CONFIG))
    whole, cache, parts = model(IDS), model.empty_cache(), []
    for place in range(IDS.shape[1]):
        step = IDS[:, place : place + 1]
        logits, longer = model(step, cache=cache)
        again, _ = model(step, cache=cache)
        assert torch.equal(logits, again)
        parts.append(logits)
        cache = longer
    assert torch.allclose(torch.cat(parts, 1), whole, rtol=1e-13, atol=1e-13)


def test_padding_on_either_side_changes_no_real_token():
    model = MODEL.build(CONFIG, weights(CONFIG))
    alone = model(IDS[:1, :3])
    left = model(
        torch.tensor([[7, 7, 3, 1, 4]]),
        attention_mask=torch.tensor([[0, 0, 1, 1, 1]]),
        position_ids=torch.tensor([[0, 0, 0, 1, 2]]),
    )
    right = model(
        torch.tensor([[3, 1, 4, 7, 7]]),
        attention_mask=torch.tensor([[1, 1, 1, 0, 0]]),
        position_ids=torch.tensor([[0, 1, 2, 0, 0]]),
    )
    assert torch.allclose(left[:, 2:], alone, rtol=1e-13, atol=1e-13)
    assert torch.allclose(right[:, :3], alone, rtol=1e-13, atol=1e-13)


def test_positions_that_start_again_are_no_packed_sequence():
    parameters = weights(CONFIG)
    model = MODEL.build(CONFIG, parameters)
    restarted = model(IDS, position_ids=torch.tensor([[0, 1, 0, 1, 2]] * 2))
    earlier = IDS.clone()
    earlier[:, 0] = 7
    changed = model(earlier, position_ids=torch.tensor([[0, 1, 0, 1, 2]] * 2))
    assert not torch.allclose(restarted[:, -1], changed[:, -1])


def test_hidden_states_are_embeddings_blocks_and_the_last_one_normalized():
    parameters = weights(CONFIG)
    logits, states = MODEL.build(CONFIG, parameters)(IDS, output_hidden_states=True)
    assert len(states) == CONFIG.n_layer + 1
    table, places = parameters["transformer.wte.weight"], parameters["transformer.wpe.weight"]
    assert torch.equal(states[0], table[IDS] + places[: IDS.shape[1]])
    assert torch.allclose(states[-1] @ table.T, logits, rtol=1e-13, atol=1e-13)


def test_gradients_flow_to_the_tensors_given():
    parameters = {name: each.requires_grad_() for name, each in weights(CONFIG).items()}
    MODEL.build(CONFIG, parameters)(IDS).square().sum().backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in parameters.values())
    assert all(each.grad.abs().sum() > 0 for each in parameters.values())


@pytest.mark.parametrize(
    "change",
    [
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"activation_function": "relu"},
        {"layer_norm_epsilon": 0.3},
    ],
    ids=str,
)
def test_each_switch_reaches_the_model(change):
    changed = GPT2Config(**{**CONFIG.__dict__, **change})
    parameters = weights(CONFIG)
    assert not torch.allclose(
        MODEL.build(changed, parameters)(IDS), MODEL.build(CONFIG, parameters)(IDS)
    )


def test_an_untied_head_is_used_as_given():
    config = GPT2Config(**{**CONFIG.__dict__, "tie_word_embeddings": False})
    logits = MODEL.build(config, weights(config))(IDS)
    tied = MODEL.build(CONFIG, weights(CONFIG))(IDS)
    assert torch.allclose(logits, tied.flip(-1), rtol=1e-13, atol=1e-13)


def test_a_parameter_that_is_missing_extra_or_misshapen_is_named():
    name = "transformer.h.1.mlp.c_fc.bias"
    parameters = weights(CONFIG)
    with pytest.raises(ValueError, match=f"{name}: missing"):
        MODEL.build(CONFIG, {key: each for key, each in parameters.items() if key != name})
    with pytest.raises(ValueError, match=r"transformer\.extra: no such parameter"):
        MODEL.build(CONFIG, parameters | {"transformer.extra": torch.zeros(1)})
    with pytest.raises(ValueError, match=name):
        MODEL.build(CONFIG, parameters | {name: torch.zeros(8).double()})


def test_building_draws_no_random_numbers():
    before = torch.get_rng_state()
    MODEL.build(CONFIG, weights(CONFIG))
    assert torch.equal(torch.get_rng_state(), before)


def test_unsupported_configurations_are_refused():
    assert MODEL.supports(CONFIG) is None
    assert "gelu_old" in str(MODEL.supports(GPT2Config(activation_function="gelu_old")))
    assert MODEL.supports(GPT2Config(reorder_and_upcast_attn=True))


def test_a_missing_transformers_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert MODEL.unavailable() == "transformers is not installed: pip install attnspec[gpt2]"
