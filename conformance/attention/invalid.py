"""Invalid arguments: calls that an implementation which claims `validates` refuses."""

import torch

from attnspec.conformance.attention.call import Call

INVALID_SOFTCAPS = (0.0, -1.0, -50.0, float("nan"))
INVALID_PROBABILITIES = (-0.1, 1.5, float("nan"))
INVALID_WINDOWS = ((-1, 1), (1, -1), (-1, -1), (None, -2), (-2, None))


def misshapen(call: Call) -> dict[str, Call]:
    """Return calls whose shapes do not fit together, by the mistake in words.

    Args:
        call: a valid call. Each of its axes longer than two is cut, so that none broadcasts.
    """
    query, key, value = call.query, call.key, call.value
    heads, kv_heads, channels = query.shape[1], key.shape[1], query.shape[3]
    wrong = {"a value of one axis": call.but(value=value[0, 0, 0])} | _misshapen_masks(call)
    if kv_heads > 2 and heads % (kv_heads - 1):
        fewer = call.but(key=key[:, :-1], value=value[:, :-1])
        wrong["key/value heads that the query heads cannot share"] = fewer
    if channels > 2:
        wrong["a key with fewer channels than the query"] = call.but(key=key[..., :-1])
        wrong["a query with fewer channels than the key"] = call.but(query=query[..., :-1])
    return wrong


def unequal_lengths(call: Call) -> dict[str, Call]:
    """Return calls with unequal numbers of keys and values, by the numbers in words."""
    keys = call.key.shape[2]
    return {
        f"a call of {keys} keys and {keys - 1} values": call.but(value=call.value[:, :, :-1]),
        f"a call of {keys - 1} keys and {keys} values": call.but(key=call.key[:, :, :-1]),
    }


def _misshapen_masks(call: Call) -> dict[str, Call]:
    """Return calls whose mask does not broadcast to the scores, by the mistake in words."""
    mask, (heads, queries) = call.attn_mask, call.query.shape[1:3]
    wrong: dict[str, Call] = {}
    if mask is None:
        return wrong
    if mask.shape[-1] > 2:
        longer = torch.cat([mask, mask[..., :1]], -1)
        wrong["a mask with a key too few"] = call.but(attn_mask=mask[..., :-1])
        wrong["a mask with a key too many"] = call.but(attn_mask=longer, is_causal=False)
    if queries > 2 and mask.shape[-2] > 2:
        wrong["a mask with a query too few"] = call.but(attn_mask=mask[..., :-1, :])
    if heads > 2 and mask.dim() >= 3 and mask.shape[-3] > 2:
        wrong["a mask with a head too few"] = call.but(attn_mask=mask[..., :-1, :, :])
    return wrong
