"""Law of GPT-21: every attention call inside GPT-2 is within its own error bound."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.attention.values import generator
from attnspec.conformance.comparison import tally
from attnspec.conformance.laws.helpers.calls import require_claimed
from attnspec.conformance.laws.helpers.cases import DTYPES, F16, F32
from attnspec.conformance.laws.law import law
from attnspec.conformance.models.case import draw_parameters
from attnspec.conformance.models.oracle import in_float64
from attnspec.reference.model import build
from attnspec.spec import Case, Feature, GPT2Config, Mask, MaskKind, MaskPattern, MaskShape

_PADDING = Mask(kind=MaskKind.BOOL, pattern=MaskPattern.LEFT_PADDING, shape=MaskShape.BATCH)
_CAUSAL_MASK = Mask(kind=MaskKind.BOOL, pattern=MaskPattern.CAUSAL, shape=MaskShape.RANK_2)
_SIZES = (
    ((1, 1, 2, 4), DTYPES),
    ((1, 2, 5, 8), (F32, F16)),
    ((2, 3, 17, 16), (F32,)),
)
"""Batch, heads, length and channels, with the dtypes in which they are tried."""

_PINNED = tuple(
    Case(
        batch=batch, heads=heads, kv_heads=heads, queries=length, keys=length, d_head=d_head,
        d_value=d_head, is_causal=True, dtype=dtype, seed=seed,
    )
    for seed, ((batch, heads, length, d_head), dtypes) in enumerate(_SIZES)
    for dtype in dtypes
)  # fmt: skip
_MASKED = tuple(
    _PINNED[4].but(is_causal=False, mask=mask, batch=2, queries=1 if mask is _CAUSAL_MASK else 5)
    for mask in (_PADDING, _CAUSAL_MASK)
)


def _cases(subject: Subject) -> st.SearchStrategy[Case]:
    sizes = st.fixed_dictionaries(
        {
            "batch": st.integers(1, 3),
            "heads": st.sampled_from([1, 2, 3, 5]),
            "keys": st.integers(1, 40),
            "d_head": st.sampled_from([1, 2, 5, 8, 16]),
            "dtype": st.sampled_from(subject.implementation.dtypes),
            "seed": st.integers(0, 2**16),
        }
    )
    return sizes.map(functools.partial(_square_case, subject.device))


def _square_case(device: str, drawn: dict[str, Any]) -> Case:
    equal = {"kv_heads": drawn["heads"], "queries": drawn["keys"], "d_value": drawn["d_head"]}
    return Case(is_causal=True, device=device, **drawn, **equal)


@law(
    "GPT-21",
    pinned=(*_PINNED, *_MASKED),
    explore=_cases,
    needs={Feature.CAUSAL},
    cost=6.0,
)
def law_every_attention_call_inside_gpt2_is_within_its_bound(subject: Subject, case: Case) -> None:
    """GPT-21: plugged into GPT-2, an attention is right on every call that the model makes.

    Heads, lengths, dtype and seed of a case select the model and the tokens. A padding mask means
    a padded batch, fewer queries than keys a step with a cache. The largest error of the final
    logits is reported and not judged: the model determines how errors grow.
    """
    # the model passes a scale to each call
    require_claimed(subject, case.but(scale=0.5))
    config, weights, ids, exact = _model_and_logits(case)
    with torch.no_grad():
        logits = _logits(build(config, weights, attention=judged_attention(subject)), ids, case)
    name = f"largest error of GPT-2's logits in {str(case.dtype).removeprefix('torch.')}"
    tally.record_figure(name, float((logits.double() - exact).abs().max()))


@functools.lru_cache(maxsize=128)
def _model_and_logits(
    case: Case,
) -> tuple[GPT2Config, dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """Return configuration, weights, tokens and float64 logits of a case, for all subjects."""
    config = _config(case)
    device = torch.device(case.device)
    weights = {
        name: tensor.to(device)
        for name, tensor in draw_parameters(
            config, seed=case.seed, spread=0.5, dtype=case.dtype
        ).items()
    }
    shape = (case.batch, case.keys)
    random = generator(case.seed, "ids")
    ids = torch.randint(config.vocab_size, shape, generator=random).to(device)
    with torch.no_grad():
        exact = _logits(build(config, in_float64(weights)), ids, case)
    return config, weights, ids, exact


def _config(case: Case) -> GPT2Config:
    """Return a configuration of two layers with different scales, unusual for odd seeds."""
    return GPT2Config(
        vocab_size=11,
        n_positions=case.keys,
        n_embd=case.heads * case.d_head,
        n_layer=2,
        n_head=case.heads,
        scale_attn_weights=case.seed % 2 == 0,
        scale_attn_by_inverse_layer_idx=True,
    )


def judged_attention(subject: Subject) -> Callable[..., torch.Tensor]:
    """Return an attention that calls the subject and judges each output before returning it."""

    def attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        options.pop("enable_gqa", None)
        call = Call(query=query, key=key, value=value, **options)
        out = subject.call(call)
        subject.judge(call, out, "an attention call that GPT-2 makes gives a wrong result")
        return out

    return attention


def _logits(model: Any, ids: torch.Tensor, case: Case) -> torch.Tensor:
    """Return the logits of real tokens, of a padded batch or with a cache as the case selects."""
    if case.mask is not None and case.mask.pattern is MaskPattern.LEFT_PADDING:
        missing = torch.arange(case.batch, device=ids.device)[:, None] % case.keys
        real = torch.arange(case.keys, device=ids.device) >= missing
        places = (real.long().cumsum(-1) - 1).clamp(min=0)
        return torch.as_tensor(model(ids, attention_mask=real.long(), position_ids=places)[real])
    if case.queries < case.keys:
        _, cache = model(ids[:, : case.keys - case.queries], cache=model.empty_cache())
        return torch.as_tensor(model(ids[:, case.keys - case.queries :], cache=cache)[0])
    return torch.as_tensor(model(ids))
