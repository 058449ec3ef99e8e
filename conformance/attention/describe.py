"""Describe a call as a case, so that a declaration made for cases can judge the call."""

from dataclasses import replace

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.layouts import is_unaligned
from attnspec.reference.masks import visible_keys
from attnspec.spec import (
    CallMode,
    Case,
    CausalAlignment,
    KeyLengths,
    Layout,
    Layouts,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
)

LARGEST = 2**24
"""Numbers of a mask, times queries, up to which its rows are searched for an empty one."""


def cases_of(call: Call, alignment: CausalAlignment) -> list[Case]:
    """Return cases with the sizes, dtypes, options and layouts of a call.

    Their contents are not those of the call: seed and values are at their defaults, and the pattern
    of the mask says only whether the mask adds numbers, or whether a query may read no key. A mask
    of which both are true has two cases.

    Args:
        call: the call.
        alignment: the position of query 0, for the causal flag and the window.

    Returns:
        The cases; none if an argument is improper, so that no case has its size or type.
    """
    case = _case_of(call)
    if case is None or case.mask is None or not _has_empty_row(call, alignment):
        return [] if case is None else [case]
    empty = case.but(mask=replace(case.mask, pattern=MaskPattern.EMPTY_ROWS))
    return [case, empty] if case.mask.pattern is MaskPattern.BIAS else [empty]


def _case_of(call: Call) -> Case | None:
    """Return the case of a call, whose mask biases or hides some keys of each query."""
    if not call.query.dim() == call.key.dim() == call.value.dim() == 4:
        return None
    batch, heads, queries, d_head = call.query.shape
    kv_heads, keys = call.key.shape[1:3]
    if kv_heads == 0 or heads % kv_heads:
        return None
    mask = None if call.attn_mask is None else _mask_of(call.attn_mask, call)
    if call.attn_mask is not None and mask is None:
        return None
    operands = (call.query, call.key, call.value)
    backward = any(operand.requires_grad for operand in operands)
    is_float = mask is not None and mask.kind is MaskKind.FLOAT
    return Case(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        queries=queries,
        keys=keys,
        d_head=d_head,
        d_value=call.value.shape[3],
        dtype=call.query.dtype,
        device=str(call.query.device),
        mask=mask,
        is_causal=call.is_causal,
        scale=call.scale,
        window=call.window,
        softcap=call.softcap,
        sinks=call.sinks is not None,
        alibi=call.alibi_slopes is not None,
        key_lengths=_lengths_of(call),
        query_offset=call.query_offset is not None,
        return_lse=call.return_lse,
        dropout_p=call.dropout_p,
        backward=backward,
        mask_gradient=backward
        and is_float
        and call.attn_mask is not None
        and call.attn_mask.requires_grad,
        layouts=Layouts(
            query=_layout_of(call.query),
            key=_layout_of(call.key),
            value=_layout_of(call.value),
            mask=_layout_of(call.attn_mask),
            sinks=_layout_of(call.sinks),
            slopes=_layout_of(call.alibi_slopes),
        ),
        mode=CallMode.PLAIN if backward else call.mode,
    )


def _lengths_of(call: Call) -> KeyLengths | None:
    """Return the pattern of the numbers of keys of a call."""
    if call.key_lengths is None:
        return None
    return KeyLengths.EMPTY if bool((call.key_lengths == 0).any()) else KeyLengths.RAGGED


def with_contiguous_operands(call: Call) -> Call:
    """Return the same call with its tensors in contiguous memory; gradients reach the operands."""
    copied = {
        name: tensor.clone(memory_format=torch.contiguous_format)
        for name, tensor in call.tensors.items()
        if _layout_of(tensor) is not Layout.CONTIGUOUS
    }
    return call.but(**copied)


def _mask_of(mask: torch.Tensor, call: Call) -> Mask | None:
    """Return the description of a mask, or None if the mask is improper."""
    batch, heads, queries = call.query.shape[:3]
    shape = {2: MaskShape.RANK_2, 3: MaskShape.RANK_3, 4: MaskShape.FULL}.get(mask.dim())
    if shape is None:
        return None
    if mask.dim() == 4:
        if mask.shape[2] == 1 < queries:
            shape = MaskShape.KEYS if mask.shape[1] == 1 else MaskShape.KEYS_OF_HEADS
        elif mask.shape[3] == 1 < call.key.shape[2]:
            shape = MaskShape.QUERIES
        elif mask.shape[1] == 1 < heads:
            shape = MaskShape.BATCH
        elif mask.shape[0] == 1 < batch:
            shape = MaskShape.HEADS
    if mask.dtype == torch.bool:
        return Mask(kind=MaskKind.BOOL, pattern=MaskPattern.RANDOM, shape=shape)
    if not mask.is_floating_point():
        return None
    numbers = mask.detach()
    adds = bool(((numbers != 0) & (numbers != -torch.inf)).any())
    return Mask(
        kind=MaskKind.FLOAT,
        pattern=MaskPattern.BIAS if adds else MaskPattern.RANDOM,
        shape=shape,
        dtype=None if mask.dtype == call.query.dtype else mask.dtype,
    )


def _has_empty_row(call: Call, alignment: CausalAlignment) -> bool:
    """Return whether some query may read no key, by mask, causal flag and window together."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    mask = call.attn_mask
    if mask is not None and mask.numel() * queries > LARGEST:
        return False  # a law of long sequences has no empty rows
    try:
        visible, _ = visible_keys(
            queries,
            keys,
            attn_mask=None if mask is None else mask.detach(),
            is_causal=call.is_causal,
            window=call.window,
            alignment=alignment,
            device=call.query.device,
        )
    except (RuntimeError, ValueError):
        return False  # an improper mask or window
    return not bool(visible.any(-1).all())


def _layout_of(tensor: torch.Tensor | None) -> Layout:
    """Return the layout of a case that comes nearest to that of a tensor."""
    if tensor is None:
        return Layout.CONTIGUOUS
    if tensor.is_contiguous():
        return Layout.UNALIGNED if is_unaligned(tensor) else Layout.CONTIGUOUS
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    shared = [axis for axis, (size, stride) in enumerate(sizes) if size > 1 and stride == 0]
    if shared:
        return Layout.EXPANDED_BATCH if (tensor.dim(), shared) == (4, [0]) else Layout.EXPANDED
    if tensor.stride(-1) == 1 or tensor.shape[-1] == 1:
        return Layout.HEADS_INSIDE
    if tensor.dim() < 2:
        return Layout.SLICED
    return Layout.TRANSPOSED if tensor.mT.is_contiguous() else Layout.SLICED
