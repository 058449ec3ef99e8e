"""The configuration of a checkpoint: read from `config.json`, or inferred from shapes."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from attnspec.reference.activation import ACTIVATIONS
from attnspec.reference.parameters import HEAD, POSITIONS, TOKENS, WeightsError
from attnspec.spec import GPT2Config

KINDS: Mapping[str, tuple[type, ...]] = {
    "vocab_size": (int,),
    "n_positions": (int,),
    "n_embd": (int,),
    "n_layer": (int,),
    "n_head": (int,),
    "n_inner": (int, type(None)),
    "activation_function": (str,),
    "layer_norm_epsilon": (int, float),
    "scale_attn_weights": (bool,),
    "scale_attn_by_inverse_layer_idx": (bool,),
    "reorder_and_upcast_attn": (bool,),
    "tie_word_embeddings": (bool,),
}
OTHER_NAMES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
UNSUPPORTED = ("add_cross_attention", "is_encoder_decoder", "pruned_heads", "quantization_config")
D_HEAD = 64
"""Channels of a head in every released GPT-2; used only without a configuration."""


def read_config(path: Path) -> GPT2Config:
    """Read the entries that change the result, and refuse unsupported ones.

    Args:
        path: a `config.json` as Hugging Face writes it.

    Returns:
        The configuration; entries that the file lacks have the defaults of `GPT2Config`.

    Raises:
        WeightsError: if the file or an entry cannot be used; it names the file and the entry.

    Source:
        Hugging Face transformers, `GPT2Config`
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(entries, dict):
        raise WeightsError(f"{path}: must hold a JSON object, got {type(entries).__name__}")
    if entries.get("model_type", "gpt2") != "gpt2":
        raise WeightsError(f"{path}: model_type must be gpt2, got {entries['model_type']}")
    for name in UNSUPPORTED:
        if entries.get(name):
            raise WeightsError(f"{path}: {name} changes the result and is not supported")
    switches = _switches(path, entries)
    if switches.get("activation_function", "gelu_new") not in ACTIVATIONS:
        raise WeightsError(
            f"{path}: activation_function must be one of {', '.join(ACTIVATIONS)}, "
            f"got {switches['activation_function']}"
        )
    try:
        return GPT2Config(**switches)
    except ValueError as error:
        raise WeightsError(f"{path}: {error}") from error


def _switches(path: Path, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Collect known entries under the names of `GPT2Config`, and check their types."""
    switches: dict[str, Any] = {}
    for name in (*(item.name for item in fields(GPT2Config)), *OTHER_NAMES):
        if name not in entries:
            continue
        ours, value = OTHER_NAMES.get(name, name), entries[name]
        kinds = KINDS[ours]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            raise WeightsError(f"{path}: {name} must be {wanted}, got {value!r}")
        if switches.get(ours, value) != value:
            raise WeightsError(
                f"{path}: {name} says {value!r} where {ours} says {switches[ours]!r}"
            )
        switches[ours] = value
    return switches


def infer_config(state_dict: Mapping[str, torch.Tensor]) -> GPT2Config:
    """Infer a configuration from shapes, with GPT-2's defaults for all other entries.

    Args:
        state_dict: parameters by name, with the prefix ``transformer.``.

    Returns:
        A configuration with heads of 64 channels, as in every released GPT-2.

    Raises:
        WeightsError: if the shapes do not determine the sizes; it asks for a `config.json`.
    """
    hint = "; put the checkpoint's config.json beside it"
    for name in (TOKENS, POSITIONS):
        if name not in state_dict or state_dict[name].ndim != 2:
            raise WeightsError(f"{name}: missing or no table, so no size can be read off it{hint}")
    vocab_size, n_embd = state_dict[TOKENS].shape
    if n_embd % D_HEAD:
        raise WeightsError(
            f"n_head cannot be told from {n_embd} channels, which are no multiple of {D_HEAD}{hint}"
        )
    layers = {name.split(".")[2] for name in state_dict if name.startswith("transformer.h.")}
    numbers = {int(layer) for layer in layers if layer.isdecimal()}
    up = state_dict.get("transformer.h.0.mlp.c_fc.weight")
    inner = 4 * n_embd if up is None or up.ndim != 2 else up.shape[1]
    try:
        return GPT2Config(
            vocab_size=vocab_size,
            n_positions=state_dict[POSITIONS].shape[0],
            n_embd=n_embd,
            n_layer=max(numbers, default=-1) + 1,
            n_head=n_embd // D_HEAD,
            n_inner=None if inner == 4 * n_embd else inner,
            tie_word_embeddings=HEAD not in state_dict
            or torch.equal(state_dict[HEAD], state_dict[TOKENS]),
        )
    except ValueError as error:
        raise WeightsError(f"{error}{hint}") from error
