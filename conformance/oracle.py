"""The oracle: what a call must give, in float64 on the inputs as stored, and how nearly."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64

from attnspec.conformance.bounds import Scores, forward, model
from attnspec.conformance.call import Call
from attnspec.reference.heads import repeat_kv
from attnspec.reference.implementation import scaled_dot_product_attention
from attnspec.reference.masks import alibi, visible_keys
from attnspec.reference.numpy_attention import numpy_attention
from attnspec.spec import MaskedNonfinite, Profile


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a call must give.

    Attributes:
        out: the exact output; NaN where it must be NaN.
        bound: the largest distance from it that the profile allows; infinity where the call is
            out of range.
        lse: the exact log-sum-exp.
        lse_bound: likewise its bound.
        visible: true where a query may read a key.
        may_be_nan: true where the profile allows NaN beside the exact value; `None`: nowhere.
    """

    out: Float64[torch.Tensor, "batch heads queries d_value"]
    bound: Float64[torch.Tensor, "batch heads queries d_value"]
    lse: Float64[torch.Tensor, "batch heads queries"]
    lse_bound: Float64[torch.Tensor, "batch heads queries"]
    visible: Bool[torch.Tensor, "batch heads queries keys"]
    may_be_nan: Bool[torch.Tensor, "batch heads queries d_value"] | None


def expect(call: Call, profile: Profile) -> Expected:
    """What a call must give, by the reference."""
    out, lse = scaled_dot_product_attention(
        call.query.detach().double(),
        call.key.detach().double(),
        call.value.detach().double(),
        **_options(call),
        enable_gqa=call.enable_gqa,
        causal_alignment=profile.causal_alignment,
        empty_row=profile.empty_row,
        return_lse=True,
    )
    return _bounded(call, profile, out, lse)


def expect_numpy(call: Call, profile: Profile) -> Expected:
    """What a call must give, by the scalar definition: it judges the reference itself."""

    def array(tensor: torch.Tensor | None) -> np.ndarray | None:
        if tensor is None:
            return None
        tensor = tensor.detach().cpu()
        return (tensor if tensor.dtype == torch.bool else tensor.double()).numpy()

    options = {name: array(each) for name, each in call.tensors.items()}
    query, key, value = (options.pop(name) for name in ("query", "key", "value"))
    out, lse = numpy_attention(
        query,
        key,
        value,
        **options,
        is_causal=call.is_causal,
        scale=call.scale,
        window=call.window,
        softcap=call.softcap,
        causal_alignment=profile.causal_alignment,
        empty_row=profile.empty_row,
    )
    device = call.query.device
    return _bounded(call, profile, torch.tensor(out, device=device), torch.tensor(lse, device=device))


def _options(call: Call) -> dict[str, object]:
    """The arguments of the reference, in float64."""

    def wide(tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None or tensor.dtype == torch.bool:
            return tensor
        return tensor.detach().double()

    return {
        "attn_mask": wide(call.attn_mask),
        "is_causal": call.is_causal,
        "scale": call.scale,
        "window": call.window,
        "softcap": call.softcap,
        "sinks": wide(call.sinks),
        "alibi_slopes": wide(call.alibi_slopes),
    }


def _bounded(call: Call, profile: Profile, out: torch.Tensor, lse: torch.Tensor) -> Expected:
    """Put the bound beside an exact result."""
    heads = call.query.shape[1]
    query = call.query.detach().double()
    key = repeat_kv(call.key.detach().double(), heads)
    value = repeat_kv(call.value.detach().double(), heads)
    scores = _scores(call, profile, query, key)
    m = model(call.value.dtype, profile.rounding)
    sinks = None if call.sinks is None else call.sinks.detach().double()
    finite = value.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    settled = torch.where(out.isfinite(), out, 0.0)
    bound, lse_bound = forward(scores, finite, sinks, settled, query.shape[-1], m)
    if call.value.dtype == torch.float64:
        # The oracle rounds too, in the same arithmetic.
        bound, lse_bound = 2 * bound, 2 * lse_bound
    # Out of range nothing is promised, whatever came of it here.
    out = torch.where(bound.isinf() & out.isnan(), 0.0, out)
    lse = torch.where(lse_bound.isinf() & lse.isnan(), 0.0, lse)
    # Where the exact result is NaN or infinite it is demanded as it is, and no bound applies.
    bound = torch.where(out.isfinite(), bound, 0.0)
    lse_bound = torch.where(lse.isfinite(), lse_bound, 0.0)
    return Expected(
        out=out,
        bound=bound,
        lse=lse,
        lse_bound=lse_bound,
        visible=scores.visible,
        may_be_nan=_may_be_nan(call, profile, query, key, value, scores.visible),
    )


def _scores(call: Call, profile: Profile, query: torch.Tensor, key: torch.Tensor) -> Scores:
    """The magnitudes that the bound is made of."""
    shape = (*query.shape[:-1], key.shape[-2])
    queries, keys = shape[-2:]
    visible, bias = visible_keys(
        queries,
        keys,
        attn_mask=call.attn_mask,
        is_causal=call.is_causal,
        window=call.window,
        alignment=profile.causal_alignment,
        device=query.device,
    )
    visible = visible.expand(shape)
    scale = call.scale
    if scale is None:
        scale = query.shape[-1] ** -0.5 if query.shape[-1] else 1.0
    # A row that reads NaN is demanded to be NaN; its bound is never looked at.
    query, key = query.nan_to_num(), key.nan_to_num()
    scaled = scale * (query @ key.mT)
    logits, capped = scaled, None
    if call.softcap is not None:
        logits = call.softcap * torch.tanh(scaled / call.softcap)
        capped = logits.abs()
    size = None
    if bias is not None:
        added = bias.double().masked_fill(bias == -torch.inf, 0.0)
        logits, size = logits + added, added.abs()
    if call.alibi_slopes is not None:
        slopes = alibi(call.alibi_slopes.detach().double(), queries, keys, profile.causal_alignment)
        logits, size = logits + slopes, slopes.abs() if size is None else size + slopes.abs()
    products = abs(scale) * (query.abs() @ key.abs().mT)
    return Scores(
        products=torch.where(visible, products, 0.0),
        scaled=torch.where(visible, scaled.abs(), 0.0),
        capped=capped,
        bias=size,
        logits=torch.where(visible, logits, -torch.inf),
        visible=visible,
    )


def _may_be_nan(
    call: Call,
    profile: Profile,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: torch.Tensor,
) -> torch.Tensor | None:
    """Where something unreadable and not finite, or too large, may turn the output to NaN."""
    if profile.masked_nonfinite is not MaskedNonfinite.PROPAGATES:
        return None
    m = model(call.value.dtype, profile.rounding)
    scale = 1.0 if call.scale is None else abs(call.scale)
    score = scale * (query.abs() @ key.abs().mT)
    hidden = (~visible & ~(score <= m.largest)).any(-1, keepdim=True)
    unreadable = (~visible).double()
    values = unreadable @ (~value.isfinite()).double() > 0
    return hidden | values
