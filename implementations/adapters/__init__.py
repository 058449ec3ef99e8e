"""Adapters: from the signatures of other libraries to the contract of an attention.

An adapter takes a kernel and returns a function with the parameters of the contract, restricted to
those that the kernel takes: a bare function claims what its parameters name. It converts arguments
and results, raises where the kernel would misread a call, and computes nothing in its place.
Adapters combine: each takes the result of another.
"""

from attnspec.implementations.adapters.attention_interface import from_attention_interface
from attnspec.implementations.adapters.dot_product_attention import from_dot_product_attention
from attnspec.implementations.adapters.flash_attn_func import (
    from_flash_attn_func,
    from_flash_attn_kvpacked_func,
    from_flash_attn_qkvpacked_func,
    from_flash_attn_varlen_func,
)
from attnspec.implementations.adapters.flex_attention import from_flex_attention
from attnspec.implementations.adapters.grouped_heads import from_grouped_shapes
from attnspec.implementations.adapters.heads_after_length import from_heads_after_length
from attnspec.implementations.adapters.jax_arrays import from_jax, from_jax_arrays
from attnspec.implementations.adapters.log_sum_exp import from_log_sum_exp
from attnspec.implementations.adapters.mask_routing import from_mask_routing
from attnspec.implementations.adapters.memory_efficient_attention import (
    from_memory_efficient_attention,
)
from attnspec.implementations.adapters.numpy_arrays import from_numpy
from attnspec.implementations.adapters.onnx_model import from_onnx
from attnspec.implementations.adapters.other_names import from_other_names
from attnspec.implementations.adapters.packed_as_padded import (
    as_packed,
    as_padded,
    from_packed,
    from_paged,
)
from attnspec.implementations.adapters.packed_block_diagonal import (
    packed_from_block_diagonal,
    paged_from_block_diagonal,
)
from attnspec.implementations.adapters.packed_flash_attn import (
    packed_from_flash_attn_varlen_func,
    paged_from_flash_attn_varlen_func,
    paged_from_flash_attn_with_kvcache,
)
from attnspec.implementations.adapters.packed_flashinfer import (
    packed_from_ragged_wrapper,
    paged_from_decode_wrapper,
    paged_from_prefill_wrapper,
)
from attnspec.implementations.adapters.packed_heads import from_packed_heads
from attnspec.implementations.adapters.packed_vllm import (
    paged_from_paged_attention,
    paged_from_unified_attention,
)
from attnspec.implementations.adapters.shared_library import from_shared_library
from attnspec.implementations.adapters.single_prefill import from_single_prefill
from attnspec.implementations.adapters.window import from_sliding_window, from_window_size

__all__ = [
    "as_packed",
    "as_padded",
    "from_attention_interface",
    "from_dot_product_attention",
    "from_flash_attn_func",
    "from_flash_attn_kvpacked_func",
    "from_flash_attn_qkvpacked_func",
    "from_flash_attn_varlen_func",
    "from_flex_attention",
    "from_grouped_shapes",
    "from_heads_after_length",
    "from_jax",
    "from_jax_arrays",
    "from_log_sum_exp",
    "from_mask_routing",
    "from_memory_efficient_attention",
    "from_numpy",
    "from_onnx",
    "from_other_names",
    "from_packed",
    "from_packed_heads",
    "from_paged",
    "from_shared_library",
    "from_single_prefill",
    "from_sliding_window",
    "from_window_size",
    "packed_from_block_diagonal",
    "packed_from_flash_attn_varlen_func",
    "packed_from_ragged_wrapper",
    "paged_from_block_diagonal",
    "paged_from_decode_wrapper",
    "paged_from_flash_attn_varlen_func",
    "paged_from_flash_attn_with_kvcache",
    "paged_from_paged_attention",
    "paged_from_prefill_wrapper",
    "paged_from_unified_attention",
]
