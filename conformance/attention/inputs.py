"""Draw the tensors of a case's call."""

from contextlib import nullcontext

import torch
from jaxtyping import Bool, Float32, Int

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.layouts import lay_out, lay_out_operands
from attnspec.conformance.attention.values import contents, generator, normal
from attnspec.spec import CallMode, Case, KeyLengths, Mask, MaskKind, MaskPattern, MaskShape
from attnspec.spec.case import BIASES


def draw(case: Case) -> Call:
    """Return the call of a case: the same bits on every machine.

    Returns:
        Tensors in the case's dtype, on its device, each in its layout; made in inference mode where
        a server calls.
    """
    is_served = case.mode is CallMode.SERVING
    with torch.inference_mode() if is_served else nullcontext():
        return _draw(case)


def _draw(case: Case) -> Call:
    operands = tuple(operand.to(case.device, case.dtype) for operand in contents(case))
    query, key, value = lay_out_operands(operands, case.layouts)
    mask = None if case.mask is None else attention_mask(case, case.mask).to(case.device)
    lengths = None if case.key_lengths is None else key_lengths(case, case.key_lengths)
    return Call(
        query=query,
        key=key,
        value=value,
        attn_mask=None if mask is None else lay_out(mask, case.layouts.mask),
        dropout_p=case.dropout_p,
        is_causal=case.is_causal,
        scale=case.scale,
        window=case.window,
        softcap=case.softcap,
        sinks=lay_out(_sinks(case), case.layouts.sinks) if case.sinks else None,
        alibi_slopes=lay_out(_slopes(case), case.layouts.slopes) if case.alibi else None,
        key_lengths=lengths,
        query_offset=query_offset(case, lengths) if case.query_offset else None,
        return_lse=case.return_lse,
        mode=case.mode,
    )


FOR_ALL_ELEMENTS = (MaskShape.HEADS, MaskShape.RANK_3, MaskShape.RANK_2)
"""Shapes of masks that all batch elements share."""


def attention_mask(case: Case, mask: Mask) -> torch.Tensor:
    """Return the `attn_mask` of a case: bool, or float with minus infinity at hidden keys."""
    # random masks are drawn in order of memory, so that a part at the front is drawn alone
    is_of_all = {"batch": 1} if mask.shape in FOR_ALL_ELEMENTS else {}
    is_of_all |= {"heads": 1, "kv_heads": 1} if mask.shape is MaskShape.RANK_2 else {}
    full = visible_pairs(case.but(**is_of_all), mask.pattern)
    shape = {
        MaskShape.FULL: full,
        MaskShape.HEADS: full[:1],
        MaskShape.BATCH: full[:, :1],
        MaskShape.KEYS: full[:, :1, :1],
        MaskShape.KEYS_OF_HEADS: full[:, :, :1],
        MaskShape.QUERIES: full[:, :1].any(-1, keepdim=True),
        MaskShape.RANK_3: full[0],
        MaskShape.RANK_2: full[0, 0],
    }
    visible = shape[mask.shape]
    if mask.kind is MaskKind.BOOL:
        return visible
    bias = torch.zeros(visible.shape, dtype=torch.float64)
    if mask.pattern in BIASES:
        bias = 2 * normal(case, "bias", *visible.shape)
    if mask.pattern is MaskPattern.LARGE_BIAS:
        bias = 25 * (bias + 2 * bias.sign())
    return bias.masked_fill(~visible, -torch.inf).to(mask.dtype or case.dtype)


def visible_pairs(
    case: Case, pattern: MaskPattern
) -> Bool[torch.Tensor, "batch heads queries keys"]:
    """Return the keys that each query may read under a pattern.

    The batch and the heads are at least one each, so that a mask can be cut from them.
    """
    batch, heads = max(case.batch, 1), max(case.heads, 1)
    query, key = torch.arange(case.queries)[:, None], torch.arange(case.keys)
    all_pairs = torch.ones(batch, heads, case.queries, case.keys, dtype=torch.bool)
    # hidden keys of each batch element: never all keys, and other numbers in neighbours
    hidden = 1 + (torch.arange(batch) + case.seed) % max(case.keys - 1, 1)
    match pattern:
        case MaskPattern.BIAS | MaskPattern.LARGE_BIAS:
            return all_pairs
        case MaskPattern.CAUSAL:
            return all_pairs & (key <= query)
        case MaskPattern.PADDING:
            return all_pairs & (key < case.keys - hidden[:, None, None, None])
        case MaskPattern.LEFT_PADDING:
            return all_pairs & (key >= hidden[:, None, None, None])
        case MaskPattern.DOCUMENTS:
            length = 2 + case.seed % 3
            return all_pairs & (query // length == key // length)
        case MaskPattern.MIDDLE:
            third = case.keys // 3
            return all_pairs & ((key < third) | (key >= case.keys - third) | (third == 0))
        case MaskPattern.ELEMENT:
            return all_pairs & (torch.arange(batch) > 0)[:, None, None, None]
        case MaskPattern.RANDOM | MaskPattern.BIASED:
            visible = _drawn(case) < 0.7
            if case.keys:
                visible |= key == query % case.keys
            return visible
        case MaskPattern.EMPTY_ROWS:
            return (_drawn(case) < 0.7) & (query % 3 != 0)
        case MaskPattern.HALF:
            return all_pairs & half_of_the_keys(batch, heads, case.keys)[:, :, None]


def _drawn(case: Case) -> Float32[torch.Tensor, "batch heads queries keys"]:
    """Return a number between 0 and 1 for each pair."""
    shape = (max(case.batch, 1), max(case.heads, 1), case.queries, case.keys)
    return torch.rand(*shape, generator=generator(case.seed, "mask"))


def half_of_the_keys(batch: int, heads: int, keys: int) -> Bool[torch.Tensor, "batch heads keys"]:
    """Return the keys that pattern `HALF` shows: at least one, if there is any.

    Neighbouring batch elements read different halves, and so do neighbouring heads: the keys of a
    tile that one of them hides are all readable for the other.
    """
    is_late = torch.arange(keys) >= keys // 2
    is_first = (torch.arange(batch)[:, None] + torch.arange(heads)) % 2 == 0
    return (is_late == is_first[..., None]) | (keys == 1)


def _sinks(case: Case) -> torch.Tensor:
    """Return sinks, one per head."""
    return normal(case, "sinks", case.heads).to(case.dtype).to(case.device)


def _slopes(case: Case) -> torch.Tensor:
    """Return positive slopes, one per head, all different."""
    slopes = 2.0 ** -(1 + torch.arange(case.heads, dtype=torch.float64) / 2)
    return slopes.to(torch.float32 if case.dtype != torch.float64 else torch.float64).to(
        case.device
    )


def key_lengths(case: Case, pattern: KeyLengths) -> Int[torch.Tensor, " batch"]:
    """Return how many keys each batch element has, in 32 bits or 64 by the seed."""
    keys = case.keys
    choices = (max(keys - 1, 1), keys, keys // 2, 1, 3 * keys // 4)
    turn = torch.arange(case.batch) + case.seed
    lengths = torch.tensor(choices)[turn % len(choices)].clamp(min(keys, 1), keys)
    if pattern is KeyLengths.EMPTY:
        lengths[:1] = 0
    return lengths.to(_index_dtype(case)).to(case.device)


def query_offset(
    case: Case, lengths: Int[torch.Tensor, " batch"] | None
) -> Int[torch.Tensor, " batch"]:
    """Return the place of the first query of each batch element; all are among the keys, or fit."""
    keys = torch.full((case.batch,), case.keys) if lengths is None else lengths.cpu().long()
    room = (keys - case.queries).clamp(min=0)
    # neighbours differ: the last place, the first one, and places between them
    turn = (torch.arange(case.batch) + case.seed) % 4
    return (room - room * turn // 3).to(_index_dtype(case)).to(case.device)


def _index_dtype(case: Case) -> torch.dtype:
    return (torch.int32, torch.int64)[case.seed % 2]


def size(case: Case) -> int:
    """Return roughly the number of multiplications of a case."""
    channels = case.d_head + case.d_value
    return case.batch * case.heads * case.queries * case.keys * max(channels, 1)
