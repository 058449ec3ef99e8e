"""The reference model against Hugging Face's, and against itself with and without a cache."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config as HuggingFaceConfig
from transformers import GPT2LMHeadModel

from attnspec.reference.block import attention_scale
from attnspec.reference.loss import next_token_loss
from attnspec.reference.model import build, gpt2
from attnspec.reference.parameters import WeightsError
from attnspec.spec import GPT2Config

SMALL: dict[str, Any] = {
    "vocab_size": 53,
    "n_positions": 29,
    "n_embd": 15,
    "n_layer": 3,
    "n_head": 3,
}
CLOSE = 1e-11
"""Far above the rounding errors of these small models, far below the effect of any mistake."""

SWITCHES: list[dict[str, Any]] = [
    {},
    {"scale_attn_weights": False},
    {"scale_attn_by_inverse_layer_idx": True},
    {"activation_function": "gelu"},
    {"activation_function": "relu"},
    {"layer_norm_epsilon": 0.3},
    {"n_inner": 37},
    {"n_head": 1},
    {"tie_word_embeddings": False},
    {"n_layer": 0},
]


def pair(**switches: Any) -> tuple[GPT2LMHeadModel, GPT2Config, dict[str, torch.Tensor]]:
    """Build a Hugging Face model with random parameters, and the arguments of `build` for it."""
    torch.manual_seed(0)
    sizes = SMALL | switches
    theirs = GPT2LMHeadModel(
        HuggingFaceConfig(**sizes, initializer_range=0.4, bos_token_id=0, eos_token_id=0)
    )
    theirs = theirs.double().eval()
    for parameter in theirs.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)  # biases and gains start at 0 and 1
    return theirs, GPT2Config(**sizes), dict(theirs.state_dict(keep_vars=True))


def tokens(length: int = 11) -> torch.Tensor:
    return torch.randint(53, (2, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_logits_states_and_gradients_are_hugging_faces(switches: dict[str, Any]) -> None:
    theirs, config, state_dict = pair(**switches)
    ids = tokens()
    expected = theirs(ids, output_hidden_states=True)
    logits, states = build(config, state_dict)(ids, output_hidden_states=True)
    assert (logits - expected.logits).abs().max() < CLOSE
    assert len(states) == config.n_layer + 1
    for state, other in zip(states, expected.hidden_states, strict=config.n_layer > 0):
        assert (state - other).abs().max() < CLOSE

    parameters = list(theirs.parameters())
    expected_gradients = torch.autograd.grad(next_token_loss(expected.logits, ids), parameters)
    gradients = torch.autograd.grad(next_token_loss(logits, ids), parameters)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        assert (gradient - other).abs().max() < CLOSE


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_the_plain_definition_is_the_model_to_the_bit(
    switches: dict[str, Any], dtype: torch.dtype
) -> None:
    _, config, state_dict = pair(**switches)
    model = build(config, state_dict, dtype=dtype)
    logits = gpt2(tokens(), model.weights, config)
    assert torch.equal(logits, model(tokens()))
    assert torch.equal(logits, model(tokens(), cache=model.empty_cache())[0])


def test_a_call_leaves_its_cache_as_it_was() -> None:
    _, config, state_dict = pair()
    model = build(config, state_dict)
    _, cache = model(tokens()[:, :6], cache=model.empty_cache())
    before = [tensor.clone() for layer in cache.layers if layer for tensor in layer]
    model(tokens()[:, 6:], cache=cache)
    assert cache.length == 6
    after = [tensor for layer in cache.layers if layer for tensor in layer]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_has_no_effect(side: str) -> None:
    theirs, config, state_dict = pair()
    model = build(config, state_dict)
    ids, mask = tokens(), torch.ones(2, 11, dtype=torch.long)
    hidden = slice(0, 4) if side == "left" else slice(7, 11)
    mask[0, hidden] = 0
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=mask, position_ids=places)
    expected = theirs(ids, attention_mask=mask, position_ids=places).logits
    assert (logits - expected)[mask.bool()].abs().max() < CLOSE
    assert logits.isfinite().all()
    alone = model(ids[:1, mask[0].bool()])
    assert (alone - logits[:1, mask[0].bool()]).abs().max() < CLOSE
    changed = ids.clone()
    changed[0, hidden] = 7
    again = model(changed, attention_mask=mask, position_ids=places)
    assert torch.equal(again[mask.bool()], logits[mask.bool()])


@pytest.mark.parametrize("switches", [{}, {"n_layer": 0}], ids=str)
@pytest.mark.parametrize("cuts", [(1,) * 11, (4, 0, 7), (3, 1, 6, 1), (11,)], ids=str)
def test_step_by_step_is_all_at_once(cuts: tuple[int, ...], switches: dict[str, Any]) -> None:
    _, config, state_dict = pair(**switches)
    model = build(config, state_dict)
    whole, cache, parts, start = model(tokens()), model.empty_cache(), [], 0
    for length in cuts:
        logits, cache = model(tokens()[:, start : start + length], cache=cache)
        parts.append(logits)
        start += length
    assert cache.length == 11
    assert (torch.cat(parts, dim=1) - whole).abs().max() < CLOSE


def test_a_rolled_back_cache_forgets() -> None:
    _, config, state_dict = pair()
    model = build(config, state_dict)
    _, cache = model(tokens(), cache=model.empty_cache())
    again, cache = model(tokens()[:, 5:8], cache=cache.truncate(5))
    assert (again - model(tokens())[:, 5:8]).abs().max() < CLOSE
    assert cache.length == 8


def test_padding_works_with_a_cache() -> None:
    theirs, config, state_dict = pair()
    model = build(config, state_dict)
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[1, :3] = 0
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    expected = theirs(tokens(), attention_mask=mask, position_ids=places).logits
    cache, start = model.empty_cache(), 0
    for stop in (6, 7, 11):
        logits, cache = model(
            tokens()[:, start:stop],
            cache=cache,
            attention_mask=mask[:, :stop],
            position_ids=places[:, start:stop],
        )
        real = mask[:, start:stop].bool()
        assert (logits - expected[:, start:stop])[real].abs().max() < CLOSE
        start = stop


def test_an_attention_that_is_plugged_in_is_called_once_a_layer_within_its_contract() -> None:
    _, config, state_dict = pair(scale_attn_by_inverse_layer_idx=True)
    scales: list[float] = []

    def plugged(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        scales.append(options["scale"])
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)

    ids = tokens()
    model = build(config, state_dict, attention=plugged)
    assert (model(ids) - build(config, state_dict)(ids)).abs().max() < CLOSE
    assert scales == [attention_scale(config, layer) for layer in range(3)]
    logits, cache = model(ids[:, :6], cache=model.empty_cache())
    more, _ = model(ids[:, 6:], cache=cache)
    assert (torch.cat([logits, more], dim=1) - model(ids)).abs().max() < CLOSE


def test_the_reference_calls_no_library_function_that_it_defines() -> None:
    called: set[str] = set()

    class Names(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            called.add(str(func))
            return func(*args, **(kwargs or {}))

    _, config, state_dict = pair()
    with Names():
        logits = build(config, state_dict)(tokens())
        next_token_loss(logits, tokens())
    forbidden = ("softmax", "norm", "gelu", "attention", "cross_entropy", "nll", "embedding")
    assert len(called) > 10
    assert not [name for name in called for part in forbidden if part in name]


def test_the_dtype_asked_for_is_computed_in() -> None:
    _, config, state_dict = pair()
    exact = build(config, state_dict)(tokens())
    narrow = build(config, state_dict, dtype=torch.float32)(tokens())
    assert narrow.dtype == torch.float32
    assert 1e-9 < (narrow - exact).abs().max() < 1e-3


def test_a_head_stored_though_tied_must_be_the_table() -> None:
    _, config, state_dict = pair()
    assert "lm_head.weight" in state_dict
    state_dict["lm_head.weight"] = state_dict["lm_head.weight"] + 1
    with pytest.raises(
        WeightsError, match=r"lm_head\.weight: differs from transformer\.wte\.weight"
    ):
        build(config, state_dict)


def test_arguments_without_a_meaning_are_refused() -> None:
    _, config, state_dict = pair()
    model = build(config, state_dict)
    with pytest.raises(ValueError, match=r"attention_mask must have shape .* \(2, 11\)"):
        model(tokens(), attention_mask=torch.ones(2, 10))
    with pytest.raises(ValueError, match=r"input_ids\[0, 0\]"):
        model(tokens() + 53)
    with pytest.raises(ValueError, match=r"position_ids\[0, 29\]"):
        model(torch.zeros(1, 30, dtype=torch.long))
    _, cache = model(tokens(), cache=model.empty_cache())
    with pytest.raises(ValueError, match="cache: layer 0 keeps a key of"):
        model(tokens()[:1], cache=cache)
    with pytest.raises(ValueError, match="activation_function must be one of gelu_new"):
        build(GPT2Config(**SMALL, activation_function="prelu"), state_dict)
