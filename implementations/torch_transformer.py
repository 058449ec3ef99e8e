"""PyTorch's `nn.Transformer`, between embeddings and a head of its own, behind the contract."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import nn
from torch.nn import functional

from attnspec.spec.encoder_decoder import (
    EncoderDecoderConfig,
    EncoderDecoderImplementation,
    Positions,
)

_ACTS = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
}
_OWN = {
    "self_attn": "self_attn",
    "encoder_attn": "multihead_attn",
    "fc1": "linear1",
    "fc2": "linear2",
}
"""The names of PyTorch's parts, by those of the state dictionary."""


class TorchTransformer:
    """An `nn.Transformer` that computes with the tensors of a state dictionary."""

    def __init__(
        self, config: EncoderDecoderConfig, state_dict: Mapping[str, torch.Tensor]
    ) -> None:
        """Make the modules without allocating parameters."""
        self.config, self.weights = config, state_dict
        with torch.device("meta"):
            self.module = nn.Transformer(
                config.d_model,
                config.encoder_attention_heads,
                batch_first=True,
                norm_first=config.norm_first,
                custom_encoder=nn.TransformerEncoder(
                    self._layer(nn.TransformerEncoderLayer, "encoder"),
                    config.encoder_layers,
                    self._final(),
                    enable_nested_tensor=False,
                ),
                custom_decoder=nn.TransformerDecoder(
                    self._layer(nn.TransformerDecoderLayer, "decoder"),
                    config.decoder_layers,
                    self._final(),
                ),
            ).eval()
        self.parameters = {
            **self._of_side("encoder", config.encoder_layers, ("self_attn",)),
            **self._of_side("decoder", config.decoder_layers, ("self_attn", "encoder_attn")),
        }

    def _layer(self, kind: Any, side: str) -> Any:
        return kind(
            self.config.d_model,
            getattr(self.config, f"{side}_attention_heads"),
            getattr(self.config, f"{side}_ffn_dim"),
            dropout=0.0,
            activation=_ACTS[self.config.activation_function],
            layer_norm_eps=self.config.layer_norm_eps,
            batch_first=True,
            norm_first=self.config.norm_first,
        )

    def _final(self) -> nn.Module | None:
        if not self.config.final_norm:
            return None
        return nn.LayerNorm(self.config.d_model, self.config.layer_norm_eps)

    def _of_side(
        self, side: str, layers: int, attentions: tuple[str, ...]
    ) -> dict[str, torch.Tensor]:
        """Return the parameters of a side by PyTorch's names."""
        result = {}
        for layer in range(layers):
            theirs, ours = f"{side}.layers.{layer}", f"model.{side}.layers.{layer}"
            norms = [*(f"{each}_layer_norm" for each in attentions), "final_layer_norm"]
            for end in ("weight", "bias"):
                for name in attentions:
                    packed = [self.weights[f"{ours}.{name}.{part}_proj.{end}"] for part in "qkv"]
                    result[f"{theirs}.{_OWN[name]}.in_proj_{end}"] = torch.cat(packed)
                    out = self.weights[f"{ours}.{name}.out_proj.{end}"]
                    result[f"{theirs}.{_OWN[name]}.out_proj.{end}"] = out
                for name in ("fc1", "fc2"):
                    result[f"{theirs}.{_OWN[name]}.{end}"] = self.weights[f"{ours}.{name}.{end}"]
                for place, name in enumerate(norms, start=1):
                    result[f"{theirs}.norm{place}.{end}"] = self.weights[f"{ours}.{name}.{end}"]
        if self.config.final_norm:
            for end in ("weight", "bias"):
                result[f"{side}.norm.{end}"] = self.weights[f"model.{side}.layer_norm.{end}"]
        return result

    def __call__(
        self,
        input_ids: Int[torch.Tensor, "batch source"],
        decoder_input_ids: Int[torch.Tensor, "batch target"],
        *,
        attention_mask: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
    ) -> Float[torch.Tensor, "batch target vocab"]:
        """Return the logits."""
        padding = None if attention_mask is None else attention_mask == 0
        target_padding = None if decoder_attention_mask is None else decoder_attention_mask == 0
        length = decoder_input_ids.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        states = torch.func.functional_call(
            self.module,
            self.parameters,
            (self._embed("encoder", input_ids), self._embed("decoder", decoder_input_ids)),
            {
                "tgt_mask": later,
                "src_key_padding_mask": padding,
                "memory_key_padding_mask": padding,
                "tgt_key_padding_mask": target_padding,
            },
        )
        table = self.weights["model.shared.weight"]
        return functional.linear(states, table) + self.weights["final_logits_bias"]

    def _embed(self, side: str, ids: torch.Tensor) -> torch.Tensor:
        width = self.config.d_model
        rows = functional.embedding(ids, self.weights["model.shared.weight"])
        if self.config.scale_embedding:
            rows = rows * math.sqrt(width)
        places = torch.arange(ids.shape[1])
        if self.config.position_embedding is Positions.LEARNED:
            rows = rows + self.weights[f"model.{side}.embed_positions.weight"][2:][places]
            name = f"model.{side}.layernorm_embedding"
            gain, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
            return functional.layer_norm(rows, (width,), gain, bias, self.config.layer_norm_eps)
        rates = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * -math.log(1e4) / width)
        table = torch.empty(len(places), width, dtype=torch.float64)
        table[:, 0::2] = torch.sin(places[:, None] * rates)
        table[:, 1::2] = torch.cos(places[:, None] * rates)
        return rows + table.to(rows.dtype)


IMPLEMENTATION = EncoderDecoderImplementation(
    name="torch_transformer",
    function=TorchTransformer,
    # a target that begins with padding gives NaN: these rows read nothing, and later ones read them
    features=EncoderDecoderImplementation.FEATURES
    - {"hidden_states", "steps", "any_target_padding"},
)
