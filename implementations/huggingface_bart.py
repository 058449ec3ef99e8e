"""Hugging Face's BART, with its own attention, behind this project's contract."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int

from attnspec.implementations.frameworks import missing
from attnspec.spec.encoder_decoder import (
    EncoderDecoderConfig,
    EncoderDecoderImplementation,
    Positions,
)

_FIELDS = (
    *("vocab_size", "d_model", "encoder_layers", "decoder_layers"),
    *("encoder_attention_heads", "decoder_attention_heads"),
    *("encoder_ffn_dim", "decoder_ffn_dim", "activation_function"),
    *("max_position_embeddings", "scale_embedding"),
)
"""The fields of BART's configuration that are given."""
_SPECIAL = (
    *("pad_token_id", "bos_token_id", "eos_token_id"),
    *("decoder_start_token_id", "forced_eos_token_id"),
)
"""Tokens with a meaning of their own, of which there are none."""


class HuggingFaceBart:
    """A `BartForConditionalGeneration`, which computes with the tensors of a state dictionary."""

    def __init__(
        self, config: EncoderDecoderConfig, state_dict: Mapping[str, torch.Tensor]
    ) -> None:
        """Make the modules without allocating parameters.

        Raises:
            ValueError: if the configuration is none of BART's.
        """
        import transformers

        is_bart = config.position_embedding is Positions.LEARNED
        if not is_bart or config.norm_first or config.final_norm:
            raise ValueError("BART has learned positions, and LayerNorm after each sum alone")
        options: dict[str, Any] = {name: getattr(config, name) for name in _FIELDS} | {
            "dropout": 0.0,
            "attn_implementation": "eager",
            **dict.fromkeys(_SPECIAL),
        }
        made = transformers.BartConfig(**options)
        with torch.device("meta"):
            self.module = transformers.BartForConditionalGeneration(made).eval()
        for part in self.module.modules():
            if isinstance(part, torch.nn.LayerNorm):
                part.eps = config.layer_norm_eps  # fixed in BART's configuration
        shared = state_dict["model.shared.weight"]
        self.parameters = {
            **state_dict,
            "model.encoder.embed_tokens.weight": shared,
            "model.decoder.embed_tokens.weight": shared,
            "lm_head.weight": shared,
        }

    def __call__(
        self,
        input_ids: Int[torch.Tensor, "batch source"],
        decoder_input_ids: Int[torch.Tensor, "batch target"],
        *,
        attention_mask: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> Any:
        """Return the logits, and hidden states if they are requested."""
        output = self._run(
            input_ids=input_ids,
            decoder_input_ids=decoder_input_ids,
            attention_mask=attention_mask,
            decoder_attention_mask=decoder_attention_mask,
            output_hidden_states=True,
            use_cache=False,
        )
        if not output_hidden_states:
            return output.logits
        return (
            output.logits,
            tuple(output.encoder_hidden_states),
            tuple(output.decoder_hidden_states),
        )

    def start(
        self,
        input_ids: Int[torch.Tensor, "batch source"],
        attention_mask: torch.Tensor | None = None,
    ) -> dict[str, Any]:
        """Return the states of the encoder, whose keys and values the first step computes."""
        parameters = {
            name.removeprefix("model.encoder."): each
            for name, each in self.parameters.items()
            if name.startswith("model.encoder.")
        }
        encoded = torch.func.functional_call(
            self.module.model.encoder,
            parameters,
            (),
            {"input_ids": input_ids, "attention_mask": attention_mask},
        )
        return {"encoder_outputs": encoded, "attention_mask": attention_mask}

    def step(
        self, decoder_input_ids: Int[torch.Tensor, "batch next"], cache: dict[str, Any]
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the logits of the next target tokens, and the cache that holds them too."""
        output = self._run(decoder_input_ids=decoder_input_ids, use_cache=True, **cache)
        return output.logits, {**cache, "past_key_values": output.past_key_values}

    def _run(self, **options: Any) -> Any:
        return torch.func.functional_call(self.module, self.parameters, (), options)


IMPLEMENTATION = EncoderDecoderImplementation(
    name="huggingface_bart",
    function=HuggingFaceBart,
    features=EncoderDecoderImplementation.FEATURES - {"sinusoidal", "pre_norm", "final_norm"},
    unavailable=lambda: missing("transformers"),
)
