"""Checkpoints: from files on disk, or a name on the hub, to a configuration and parameters."""

import json
import pickle
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from zipfile import BadZipFile

import torch

from attnspec.reference.configuration import infer_config, read_config
from attnspec.reference.parameters import HEAD, TOKENS, WeightsError, check_parameters
from attnspec.spec import GPT2Config

__all__ = ["WeightsError", "load", "locate"]

SAFETENSORS, SHARDED_SAFETENSORS = "model.safetensors", "model.safetensors.index.json"
PICKLED, SHARDED_PICKLED = "pytorch_model.bin", "pytorch_model.bin.index.json"
FILES = (SAFETENSORS, SHARDED_SAFETENSORS, PICKLED, SHARDED_PICKLED)
"""File names of a checkpoint's weights, in order of preference."""

OLD_BUFFER = re.compile(r"transformer\.h\.(\d+)\.attn\.(bias|masked_bias)")
"""Causal masks that old checkpoints store among the parameters."""

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def load(
    source: str | PathLike[str], *, revision: str | None = None, dtype: torch.dtype | None = None
) -> tuple[GPT2Config, dict[str, torch.Tensor]]:
    """Load a GPT-2 checkpoint of Hugging Face's layout.

    Names may lack the prefix ``transformer.``, old causal buffers are ignored, and the head may be
    stored or left out if it is tied.

    Args:
        source: a folder, a file (``.safetensors``, ``.bin`` or an ``.index.json``; `config.json` is
            looked for beside it), or a name on the Hugging Face hub such as ``gpt2``. A path that
            exists on disk comes first.
        revision: revision of the hub's repository; None is its default.
        dtype: the dtype to convert to; None keeps the checkpoint's own, which must be a single one.

    Returns:
        The configuration, and the parameters under their full names.

    Raises:
        WeightsError: if a tensor or a file is missing, extra, misshapen or corrupt; it names it.
    """
    path = locate(source, revision=revision)
    tensors = _full_names(_read(path), path)
    config_path = path.parent / "config.json"
    config = read_config(config_path) if config_path.is_file() else infer_config(tensors)
    if config.tie_word_embeddings and HEAD in tensors:
        tensors.setdefault(TOKENS, tensors[HEAD])
    parameters = {name: tensor for name, tensor in tensors.items() if not _is_buffer(name, config)}
    try:
        return config, check_parameters(config, parameters, dtype=dtype)
    except WeightsError as error:
        raise WeightsError(f"{path}: {error}") from error


def locate(source: str | PathLike[str], *, revision: str | None = None) -> Path:
    """Find the file that holds a checkpoint's weights, downloading it if it is on the hub.

    Args:
        source: as `load` takes it.
        revision: as `load` takes it.

    Returns:
        A file of a kind that `load` can read. Its folder holds `config.json` and the tokenizer's
        files if the checkpoint has them.

    Raises:
        WeightsError: if there is no such checkpoint.
    """
    path = Path(source)
    if path.is_file():
        return path
    if path.is_dir():
        for name in FILES:
            if (path / name).is_file():
                return path / name
        raise WeightsError(f"{path}: holds none of {', '.join(FILES)}")
    if not HUB_NAME.fullmatch(str(source)):
        raise WeightsError(f"{source}: no such file or folder")
    folder = _download(str(source), revision)
    for name in FILES:
        if (folder / name).is_file():
            return folder / name
    raise WeightsError(f"{source}: the hub's repository holds none of {', '.join(FILES)}")


def _download(name: str, revision: str | None) -> Path:
    """Fetch a checkpoint's files into the hub's cache; pickled weights only without any others."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise WeightsError(
            f"{name}: no such file or folder, and the package huggingface_hub is missing"
        ) from error
    always = ["config.json", "vocab.json", "merges.txt"]
    preferred = [SAFETENSORS, SHARDED_SAFETENSORS, "model-*-of-*.safetensors"]
    fallback = [PICKLED, SHARDED_PICKLED, "pytorch_model-*-of-*.bin"]
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=always + preferred))
        if not any((folder / file).is_file() for file in (SAFETENSORS, SHARDED_SAFETENSORS)):
            snapshot_download(name, revision=revision, allow_patterns=fallback)
    except Exception as error:  # the hub raises whatever its HTTP library does
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise WeightsError(
            f"{name}: no such file or folder, and the hub did not give it ({reason})"
        ) from error
    return folder


def _read(path: Path) -> dict[str, torch.Tensor]:
    """Read one file, or every shard that an index names."""
    if not path.name.endswith(".index.json"):
        return _read_file(path)
    try:
        shard_of = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        shards = sorted(set(shard_of.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path}: cannot be read as a shard index: {error!r}") from error
    tensors: dict[str, torch.Tensor] = {}
    for shard in shards:
        if Path(shard).name != shard or not (path.parent / shard).is_file():
            raise WeightsError(f"{path.parent / shard}: missing, though {path.name} names it")
        tensors |= _read_file(path.parent / shard)
    for name, shard in shard_of.items():
        if name not in tensors:
            raise WeightsError(
                f"{path.parent / shard}: holds no {name}, though {path.name} says so"
            )
    return tensors


def _read_file(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        try:
            from safetensors import SafetensorError
            from safetensors.torch import load_file
        except ImportError as error:
            raise WeightsError(f"{path}: the package safetensors is missing") from error
        try:
            return load_file(path)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise WeightsError(f"{path}: corrupt or truncated: {error}") from error
    if path.suffix not in (".bin", ".pt", ".pth"):
        raise WeightsError(f"{path}: must end in .safetensors, .bin or .index.json")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise WeightsError(f"{path}: corrupt, or holds more than tensors: {reason}") from error
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsError(f"{path}: corrupt or truncated: {reason}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path}: must hold a dict of tensors, got {type(content).__name__}")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise WeightsError(f"{path}: {name!r}: must be a tensor, got {type(tensor).__name__}")
    return content


def _full_names(tensors: Mapping[str, torch.Tensor], path: Path) -> dict[str, torch.Tensor]:
    """Add the prefix to every name that lacks it."""
    full: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        full_name = name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"
        if full_name in full:
            raise WeightsError(f"{path}: {full_name}: stored twice, with and without its prefix")
        full[full_name] = tensor
    return full


def _is_buffer(name: str, config: GPT2Config) -> bool:
    match = OLD_BUFFER.fullmatch(name)
    return match is not None and int(match[1]) < config.n_layer
