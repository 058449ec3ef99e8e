"""Inputs: from a case to the tensors of its call."""

import torch
from jaxtyping import Bool

from attnspec.conformance.call import Call
from attnspec.conformance.layouts import lay_out
from attnspec.conformance.values import contents, generator, normal
from attnspec.spec import Case, Mask, MaskKind, MaskPattern, MaskShape


def draw(case: Case) -> Call:
    """Make the call that a case stands for: the same bits on every machine.

    Returns:
        Tensors in the case's dtype, on its device, each in its layout.
    """
    query, key, value = (each.to(case.device, case.dtype) for each in contents(case))
    mask = None if case.mask is None else attention_mask(case, case.mask).to(case.device)
    return Call(
        query=lay_out(query, case.layouts.query),
        key=lay_out(key, case.layouts.key),
        value=lay_out(value, case.layouts.value),
        attn_mask=None if mask is None else lay_out(mask, case.layouts.mask),
        dropout_p=case.dropout_p,
        is_causal=case.is_causal,
        scale=case.scale,
        window=case.window,
        softcap=case.softcap,
        sinks=normal(case, "sinks", case.heads).to(case.dtype).to(case.device)
        if case.sinks
        else None,
        alibi_slopes=_slopes(case) if case.alibi else None,
        return_lse=case.return_lse,
    )


def attention_mask(case: Case, mask: Mask) -> torch.Tensor:
    """The `attn_mask` of a case: bool, or floating point with minus infinity where hidden."""
    full = visible_pairs(case, mask.pattern)
    shape = {
        MaskShape.FULL: full,
        MaskShape.HEADS: full[:1],
        MaskShape.BATCH: full[:, :1],
        MaskShape.KEYS: full[:, :1, :1],
        MaskShape.RANK_3: full[0],
        MaskShape.RANK_2: full[0, 0],
    }
    visible = shape[mask.shape]
    if mask.kind is MaskKind.BOOL:
        return visible
    bias = torch.zeros(visible.shape, dtype=torch.float64)
    if mask.pattern is MaskPattern.BIAS:
        bias = 2 * normal(case, "bias", *visible.shape)
    return bias.masked_fill(~visible, -torch.inf).to(mask.dtype or case.dtype)


def visible_pairs(
    case: Case, pattern: MaskPattern
) -> Bool[torch.Tensor, "batch heads queries keys"]:
    """Which keys each query may read under a pattern.

    The batch and the heads are at least one each, so that a mask can be cut from them.
    """
    batch, heads = max(case.batch, 1), max(case.heads, 1)
    query, key = torch.arange(case.queries)[:, None], torch.arange(case.keys)
    everything = torch.ones(batch, heads, case.queries, case.keys, dtype=torch.bool)
    draw = torch.rand(batch, heads, case.queries, case.keys, generator=generator(case.seed, "mask"))
    # how many keys a batch element has: never all of them, different from one to the next
    hidden = 1 + (torch.arange(batch) + case.seed) % max(case.keys - 1, 1)
    match pattern:
        case MaskPattern.BIAS:
            return everything
        case MaskPattern.CAUSAL:
            return everything & (key <= query)
        case MaskPattern.PADDING:
            return everything & (key < case.keys - hidden[:, None, None, None])
        case MaskPattern.LEFT_PADDING:
            return everything & (key >= hidden[:, None, None, None])
        case MaskPattern.DOCUMENTS:
            length = 2 + case.seed % 3
            return everything & (query // length == key // length)
        case MaskPattern.RANDOM:
            visible = draw < 0.7
            if case.keys:
                visible |= key == query % case.keys
            return visible
        case MaskPattern.EMPTY_ROWS:
            return (draw < 0.7) & (query % 3 != 0)


def _slopes(case: Case) -> torch.Tensor:
    """Positive slopes, one per head, all different."""
    slopes = 2.0 ** -(1 + torch.arange(case.heads, dtype=torch.float64) / 2)
    return slopes.to(torch.float32 if case.dtype != torch.float64 else torch.float64).to(
        case.device
    )
