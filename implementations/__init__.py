"""Implementations under test, one per file, imported only when they are loaded by name.

Each module declares its claims: as `IMPLEMENTATION` (of attention, or of a model), as `TOKENIZER`
or as `SAMPLER`. A missing or broken framework has no effect until its implementation is loaded.
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
_FRAMEWORKS: dict[str, tuple[str, ...]] = {
    "torch": ("flex", "flex_compiled", "multi_head_attention", "nested_sdpa"),
    "transformers": (
        *("gpt2_eager", "gpt2_sdpa", "gpt2_flex"),
        *("llama_eager", "llama_sdpa", "llama_flex"),
    ),
    "triton": ("triton_flash",),
    "jax": ("jax_attention", "pallas_attention"),
    "flax": ("flax_attention",),
    "keras": ("keras_attention",),
    "x-transformers": ("x_transformers_attend", "x_transformers_flash"),
    "mlx": ("mlx_attention",),
    "onnxruntime": (
        *("ort_attention", "ort_attention_cache"),
        *("ort_multi_head_attention", "ort_group_query_attention"),
    ),
    "onnx": ("onnx_reference", "onnx_reference_cache"),
    # for CUDA devices
    "flash-attn": ("flash_attn_2",),
    "flash-attn-3": ("flash_attn_3",),
    "xformers": ("xformers_attention",),
    "transformer-engine": ("transformer_engine_attention",),
    "flashinfer-python": ("flashinfer_attention",),
}
"""Further attention implementations by library, which a run includes only if it names them."""
_MODELS = ("huggingface_gpt2",)
_TOKENIZERS = ("tiktoken_gpt2", "huggingface_tokenizer", "huggingface_words")
_SAMPLERS = ("huggingface_sampler",)
_OPERATORS = (
    *("torch_layer_norm", "torch_gelu", "torch_gelu_tanh"),
    *("torch_rms_norm", "llama_rms_norm", "gemma_rms_norm"),
    *("compiled_rms_norm", "compiled_rotary", "compiled_gated_mlp"),
    *("triton_rms_norm", "triton_rotary"),
    *("llama_rotary", "gpt_neox_rotary", "gptj_rotary"),
    *("llama_mlp", "gemma_mlp", "phi3_mlp"),
    *("mixtral_router", "gpt_oss_router", "mixtral_experts", "gpt_oss_experts"),
    *("torch_softmax", "huggingface_bert", "torch_transformer", "huggingface_bart"),
    *("packed_eager", "packed_nested"),
    *("paged_eager", "paged_transformers"),
)
_CUDA_OPERATORS = (
    *("packed_varlen", "packed_flash_attn", "packed_flashinfer", "packed_xformers"),
    *("paged_varlen", "paged_flash_attn", "paged_flashinfer", "paged_vllm"),
    *("liger_rms_norm", "liger_layer_norm", "liger_rotary", "liger_mlp"),
)
_LONG_OPERATORS = ("packed_flex", "paged_flex")
"""Operators that a run includes only if it names them: torch traces each shape of these."""


def names() -> tuple[str, ...]:
    """Return the names of the attention implementations, the simplest first."""
    return _ATTENTION


def framework_names() -> dict[str, tuple[str, ...]]:
    """Return the names of the attention implementations of other libraries, by library.

    A run of all implementations does not include them; `load` loads them by name.
    """
    return dict(_FRAMEWORKS)


def attention_names() -> tuple[str, ...]:
    """Return every name that `load` takes: of a run of all implementations, then by library."""
    return (*_ATTENTION, *(name for names in _FRAMEWORKS.values() for name in names))


_OF_TORCH = ("sdpa", "sdpa_math", "sdpa_flash", "cuda_flash", "cuda_efficient", "cuda_cudnn")
"""Attention implementations of every run that torch makes, and this project only calls."""


def libraries() -> dict[str, str]:
    """Return the library of each attention implementation that is not this project's own."""
    of_frameworks = {name: library for library, names in _FRAMEWORKS.items() for name in names}
    return dict.fromkeys(_OF_TORCH, "torch") | of_frameworks


def load(name: str) -> Implementation:
    """Import an attention implementation.

    Raises:
        KeyError: if the name is not registered; lists the registered names.
    """
    implementation: Implementation = _load("implementation", name, attention_names())
    return implementation


def model_names() -> tuple[str, ...]:
    """Return the names of the GPT-2 models."""
    return _MODELS


def load_model(name: str) -> ModelImplementation:
    """Import a GPT-2 model.

    Raises:
        KeyError: if the name is not registered; lists the registered names.
    """
    model: ModelImplementation = _load("model", name, _MODELS)
    return model


def tokenizer_names() -> tuple[str, ...]:
    """Return the names of the tokenizers."""
    return _TOKENIZERS


def load_tokenizer(name: str) -> TokenizerImplementation:
    """Import a tokenizer.

    Raises:
        KeyError: if the name is not registered; lists the registered names.
    """
    tokenizer: TokenizerImplementation = _load("tokenizer", name, _TOKENIZERS)
    return tokenizer


def sampler_names() -> tuple[str, ...]:
    """Return the names of the samplers."""
    return _SAMPLERS


def load_sampler(name: str) -> SamplerImplementation:
    """Import a sampler.

    Raises:
        KeyError: if the name is not registered; lists the registered names.
    """
    sampler: SamplerImplementation = _load("sampler", name, _SAMPLERS)
    return sampler


def operator_names() -> tuple[str, ...]:
    """Return every name that `load_operator` takes: of a run, of minutes, and for CUDA devices."""
    return (*_OPERATORS, *_LONG_OPERATORS, *_CUDA_OPERATORS)


def operators_of_a_run() -> tuple[str, ...]:
    """Return the names of the operators that a run of all implementations includes."""
    return _OPERATORS


def load_operator(name: str) -> Any:
    """Import an operator.

    Raises:
        KeyError: if the name is not registered; lists the registered names.
    """
    return _load("operator", name, operator_names())


_ATTRIBUTE = {"tokenizer": "TOKENIZER", "sampler": "SAMPLER"}


def _load(kind: str, name: str, known: tuple[str, ...]) -> Any:
    if name not in known:
        raise KeyError(f"no {kind} {name!r}; there are {', '.join(known)}")
    module = import_module(f"attnspec.implementations.{name}")
    return getattr(module, _ATTRIBUTE.get(kind, "IMPLEMENTATION"))
