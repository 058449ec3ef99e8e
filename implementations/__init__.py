"""Implementations under judgement, one a file, imported only when asked for by name.

Each module declares what it claims: as `IMPLEMENTATION` (of attention, or of a model), as
`TOKENIZER` or as `SAMPLER`. A framework that is missing or broken costs nothing until it is asked
for.
"""

from importlib import import_module
from typing import Any

from attnspec.spec import (
    Implementation,
    ModelImplementation,
    SamplerImplementation,
    TokenizerImplementation,
)

_ATTENTION = (
    "eager",
    "sdpa",
    "sdpa_math",
    "sdpa_flash",
    "compiled",
    "custom_op",
    "cuda_flash",
    "cuda_efficient",
    "cuda_cudnn",
    "cuda_compiled",
)
_MODELS = ("huggingface_gpt2",)
_TOKENIZERS = ("tiktoken_gpt2", "huggingface_tokenizer")
_SAMPLERS = ("huggingface_sampler",)


def names() -> tuple[str, ...]:
    """The names of the attention implementations, the simplest first."""
    return _ATTENTION


def load(name: str) -> Implementation:
    """Import an attention implementation.

    Raises:
        KeyError: for a name that is not registered, listing those that are.
    """
    found: Implementation = _load("implementation", name, _ATTENTION)
    return found


def model_names() -> tuple[str, ...]:
    """The names of the GPT-2 models."""
    return _MODELS


def load_model(name: str) -> ModelImplementation:
    """Import a GPT-2 model.

    Raises:
        KeyError: for a name that is not registered, listing those that are.
    """
    found: ModelImplementation = _load("model", name, _MODELS)
    return found


def tokenizer_names() -> tuple[str, ...]:
    """The names of the tokenizers."""
    return _TOKENIZERS


def load_tokenizer(name: str) -> TokenizerImplementation:
    """Import a tokenizer.

    Raises:
        KeyError: for a name that is not registered, listing those that are.
    """
    found: TokenizerImplementation = _load("tokenizer", name, _TOKENIZERS)
    return found


def sampler_names() -> tuple[str, ...]:
    """The names of the samplers."""
    return _SAMPLERS


def load_sampler(name: str) -> SamplerImplementation:
    """Import a sampler.

    Raises:
        KeyError: for a name that is not registered, listing those that are.
    """
    found: SamplerImplementation = _load("sampler", name, _SAMPLERS)
    return found


_ATTRIBUTE = {"tokenizer": "TOKENIZER", "sampler": "SAMPLER"}


def _load(kind: str, name: str, known: tuple[str, ...]) -> Any:
    if name not in known:
        raise KeyError(f"no {kind} {name!r}; there are {', '.join(known)}")
    module = import_module(f"attnspec.implementations.{name}")
    return getattr(module, _ATTRIBUTE.get(kind, "IMPLEMENTATION"))
