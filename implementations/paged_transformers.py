"""transformers' `paged|eager` attention on a `PagedAttentionCache`, as continuous batching has it.

The cache is made for each call, with the pages of the pools. Its own code finds the slots that are
written and read, and builds the mask, which is causal. The function always appends the keys of its
queries: in a call that appends none, the last tokens of each sequence are written once more.
"""

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int

from attnspec.spec.packed import CAUSAL, EVERYWHERE, EmptySequences, OutsideRows
from attnspec.spec.paged import PagedImplementation, PagedProfile
from attnspec.spec.profiles import MaskedNonfinite, RoundingLevel


def unavailable() -> str | None:
    """Return the reason why transformers cannot be imported, or None."""
    return None if find_spec("transformers") else "no module transformers"


def paged(
    query: Float[torch.Tensor, "total_q heads d_head"],
    key: Float[torch.Tensor, "pages page_size kv_heads d_head"],
    value: Float[torch.Tensor, "pages page_size kv_heads d_head"],
    cu_seq_q: Int[torch.Tensor, " sequences_plus_one"],
    cu_seq_k: None,
    max_q: int,
    max_k: int,
    *,
    seqused_k: Int[torch.Tensor, " sequences"],
    block_table: Int[torch.Tensor, "sequences columns"],
    new_key: Float[torch.Tensor, "total_q kv_heads d_head"] | None = None,
    new_value: Float[torch.Tensor, "total_q kv_heads d_head"] | None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = EVERYWHERE,
    enable_gqa: bool = False,
) -> Any:
    """Fill a cache with the pages, call transformers' function, and copy the pages back.

    Raises:
        ValueError: if the mask of the function, which is causal, would hide a key that is read.
    """
    from transformers.generation.continuous_batching.utils import build_attention_mask
    from transformers.integrations.eager_paged import eager_paged_attention_forward

    counts, used = cu_seq_q.diff().tolist(), seqused_k.tolist()
    # a single query reads all keys either way; max_q may be larger than every number of queries
    is_hiding = window_size == EVERYWHERE and max(counts, default=0) > 1
    if window_size not in (CAUSAL, EVERYWHERE) or is_hiding:
        raise ValueError(f"window_size must be {CAUSAL}, got {window_size}")
    total = int(cu_seq_q[-1])
    pages, page_size = key.shape[:2]
    cache = _cache(pages, page_size, query.shape[1:], key.shape[2], key.dtype)
    allocator = cache.layer_to_allocator[0]
    stride = allocator.block_physical_stride // page_size
    first = 2 * cache.bytes_per_sector // allocator.bytes_per_block  # two sectors are never used
    keys, values = (pool[first * stride :: stride] for pool in _pools(cache))
    keys[:pages], values[:pages] = key, value
    read: list[int] = []
    write: list[int] = []
    lengths, past = [], []
    for b, (row, count, length) in enumerate(zip(block_table.tolist(), counts, used, strict=True)):
        # all tokens in the pages before the call, of which the last may be those of the queries
        past.append(length if new_key is not None else length - count)
        allocator.block_table[str(b)] = [first + max(page, 0) for page in row]
        read += allocator.get_read_indices(str(b), past[b], count)
        write += allocator.get_write_indices(str(b), past[b], count)
        lengths.append(allocator.get_seqlen_k(past[b], count))
    offsets = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    if new_key is None or new_value is None:
        slots = [
            (torch.tensor(row)[token // page_size], token % page_size)
            for row, count, length in zip(block_table.tolist(), counts, used, strict=True)
            for token in [torch.arange(length - count, length)]
        ]
        new_key, new_value = (torch.cat([pool[slot] for slot in slots]) for pool in (key, value))
    mask = torch.full((1, 1, total, offsets[-1]), torch.finfo(query.dtype).min, dtype=query.dtype)
    build_attention_mask(mask, cu_seq_q.tolist(), offsets)
    kind = allocator.layer_type
    out, _ = eager_paged_attention_forward(
        SimpleNamespace(layer_idx=0, num_key_value_groups=query.shape[1] // key.shape[2]),
        query[:total].transpose(0, 1)[None],
        new_key.transpose(0, 1)[None],
        new_value.transpose(0, 1)[None],
        mask,
        query.shape[2] ** -0.5 if scale is None else scale,
        cache=cache,
        read_index=[torch.tensor(read)],
        write_index=[torch.tensor(write)],
        cu_seq_lens_k={kind: torch.tensor(offsets)},
        max_length_k={kind: max(lengths)},
    )
    key.copy_(keys[:pages])
    value.copy_(values[:pages])
    whole = torch.zeros_like(query)
    whole[:total] = out[0]
    return whole


def _pools(cache: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pages of keys and of values of the only layer; every second one is the other's."""
    keys, values = cache.layer_to_allocator[0].get_cache_for_block_table(0)
    return keys, values


def _cache(
    pages: int, page_size: int, of_query: torch.Size, kv_heads: int, dtype: torch.dtype
) -> Any:
    """Return an empty cache of one layer with room for so many pages."""
    from transformers import LlamaConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig
    from transformers.generation.continuous_batching.cache import PagedAttentionCache
    from transformers.generation.continuous_batching.distributed import DistributedHelper

    heads, d_head = of_query
    config = LlamaConfig(
        hidden_size=2 * heads,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        num_hidden_layers=1,
        vocab_size=8,
        intermediate_size=8,
    )
    config.head_dim = d_head  # not above, where an odd one is refused for the sake of positions
    config._attn_implementation = "paged|eager"
    batching = ContinuousBatchingConfig(
        page_size=page_size,
        # whole sectors, whose size is a multiple of 128 bytes, are made of these
        num_blocks=pages + 128,
        max_batch_tokens=64,
        max_memory_percent=0.5,
    )
    device = torch.device("cpu")
    return PagedAttentionCache(config, batching, device, DistributedHelper(None, 60), dtype)


def supports(case: Any) -> str | None:
    """Return the reason why the function refuses a case, or None."""
    if case.window != CAUSAL and max(case.queries) > 1:
        return "the mask of paged|eager is causal"
    if any(n > m for n, m in zip(case.queries, case.keys, strict=True)):
        return "each query appends a key"
    return None


IMPLEMENTATION = PagedImplementation(
    name="paged_transformers",
    function=paged,
    features=frozenset({"causal", "gqa", "append"}),
    # the softmax is computed in float32
    dtypes=(torch.float32, torch.float16, torch.bfloat16),
    supports=supports,
    unavailable=unavailable,
    profile=PagedProfile(
        outside_rows=OutsideRows.ZERO,
        empty_sequences=EmptySequences.UNDEFINED,
        # one product with the keys of all sequences, to which the mask adds a finite number
        neighbours=MaskedNonfinite.PROPAGATES,
        rounding=RoundingLevel.EAGER,
    ),
)
