"""Hugging Face's GPT-2, with its own attention, behind this project's contract of a model."""

import importlib.util
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Int

from attnspec.spec import GPT2Config, ModelFeature, ModelImplementation


class HuggingFaceGPT2:
    """A `GPT2LMHeadModel` that computes with the tensors of a state dict, not with copies.

    So the tensors that require gradients receive them.
    """

    def __init__(self, config: GPT2Config, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Make the module without allocating parameters, and check that every one is given.

        Raises:
            ValueError: if a parameter is missing, extra or misshapen; names it.
        """
        import transformers

        options: dict[str, Any] = asdict(config) | {
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "bos_token_id": None,
            "eos_token_id": None,
            "attn_implementation": "eager",
        }
        self.config = transformers.GPT2Config(**options)
        with torch.device("meta"):
            self.module = transformers.GPT2LMHeadModel(self.config).eval()
        self.parameters = _checked(self.module, state_dict)

    def __call__(
        self,
        input_ids: Int[torch.Tensor, "batch length"],
        *,
        cache: Any = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: Int[torch.Tensor, "batch length"] | None = None,
        output_hidden_states: bool = False,
    ) -> Any:
        """Return one logit per token that may follow; with a cache or states, a tuple."""
        past = 0 if cache is None else cache.get_seq_length()
        if position_ids is not None and attention_mask is None:
            # Without a mask, Hugging Face reads positions that do not count up as packed sequences.
            shape = (input_ids.shape[0], past + input_ids.shape[1])
            attention_mask = torch.ones(shape, dtype=torch.int64, device=input_ids.device)
        copied_cache = None if cache is None else self._copied(cache)
        output = torch.func.functional_call(
            self.module,
            self.parameters,
            (input_ids,),
            {
                "past_key_values": copied_cache,
                "attention_mask": attention_mask,
                "position_ids": position_ids,
                "use_cache": cache is not None,
                "output_hidden_states": output_hidden_states,
            },
        )
        result = [output.logits]
        if cache is not None:
            result.append(output.past_key_values)
        if output_hidden_states:
            result.append(output.hidden_states)
        return tuple(result) if len(result) > 1 else result[0]

    def empty_cache(self) -> Any:
        """Return an empty cache for this model."""
        import transformers

        return transformers.DynamicCache(config=self.config)

    def _copied(self, cache: Any) -> Any:
        """Return a copy of a cache, because Hugging Face extends its argument in place."""
        copy = self.empty_cache()
        if cache.get_seq_length():
            for number, layer in enumerate(cache.layers):
                copy.update(layer.keys, layer.values, number)
        return copy


def _checked(
    module: torch.nn.Module, state_dict: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    parameters = dict(module.named_parameters())
    missing = [name for name in parameters if name not in state_dict]
    extra = [name for name in state_dict if name not in parameters]
    if missing or extra:
        raise ValueError(f"{(missing + extra)[0]}: {'missing' if missing else 'no such parameter'}")
    for name, parameter in parameters.items():
        if state_dict[name].shape != parameter.shape:
            shapes = f"{tuple(parameter.shape)}, got {tuple(state_dict[name].shape)}"
            raise ValueError(f"{name}: must have shape {shapes}")
    return dict(state_dict)


def supports(config: GPT2Config) -> str | None:
    """Return the reason why a configuration is refused, or None."""
    from transformers.activations import ACT2FN

    if config.reorder_and_upcast_attn:
        return "Hugging Face's reorder_and_upcast_attn fails in float64"
    if config.activation_function not in ACT2FN:
        return f"Hugging Face has no activation {config.activation_function}"
    return None


def unavailable() -> str | None:
    """Return the reason why the model cannot be made here, or None."""
    is_installed = importlib.util.find_spec("transformers")
    return None if is_installed else "transformers is not installed: pip install attnspec[gpt2]"


IMPLEMENTATION = ModelImplementation(
    name="huggingface_gpt2",
    build=HuggingFaceGPT2,
    features=frozenset(ModelFeature),
    dtypes=(torch.float64, torch.float32),
    supports=supports,
    unavailable=unavailable,
)
