"""Laws of an attention inside GPT-2: every call that the model makes is captured and judged."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance import tally
from attnspec.conformance.call import Call
from attnspec.conformance.law import Judged, law
from attnspec.conformance.model_case import draw_weights
from attnspec.conformance.model_judge import doubled
from attnspec.conformance.subject import Subject
from attnspec.conformance.values import generator
from attnspec.reference.model import build
from attnspec.spec import Case, Feature, GPT2Config, Mask, MaskKind, MaskPattern, MaskShape

_PADDING = Mask(kind=MaskKind.BOOL, pattern=MaskPattern.LEFT_PADDING, shape=MaskShape.BATCH)
_CACHED = Mask(kind=MaskKind.BOOL, pattern=MaskPattern.CAUSAL, shape=MaskShape.RANK_2)
_F64, _F32, _F16, _BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
_SIZES = (
    ((1, 1, 2, 4), (_F32, _F64, _F16, _BF16)),
    ((1, 2, 5, 8), (_F32, _F16)),
    ((2, 3, 17, 16), (_F32,)),
)
"""Batch, heads, length and channels, with the storage types in which they are tried."""

_PINNED = tuple(
    Case(
        batch=batch, heads=heads, kv_heads=heads, queries=length, keys=length, d_head=d_head,
        d_value=d_head, is_causal=True, dtype=dtype, seed=seed,
    )
    for seed, ((batch, heads, length, d_head), dtypes) in enumerate(_SIZES)
    for dtype in dtypes
)  # fmt: skip
_MASKED = tuple(
    _PINNED[4].but(is_causal=False, mask=mask, batch=2, queries=1 if mask is _CACHED else 5)
    for mask in (_PADDING, _CACHED)
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
    return sizes.map(functools.partial(_case, subject.device))


def _case(device: str, drawn: dict[str, Any]) -> Case:
    equal = {"kv_heads": drawn["heads"], "queries": drawn["keys"], "d_value": drawn["d_head"]}
    return Case(is_causal=True, device=device, **drawn, **equal)


@law(
    "GPT-21",
    judges=Judged.ATTENTION,
    pinned=(*_PINNED, *_MASKED),
    explore=_cases,
    needs={Feature.CAUSAL},
    cost=6.0,
)
def law_every_attention_call_inside_gpt2_is_within_its_bound(subject: Subject, case: Case) -> None:
    """GPT-21: plugged into GPT-2, an attention is right on every call that the model makes.

    A case's heads, lengths, dtype and seed say which model and tokens; a mask of padding stands
    for a padded batch, fewer queries than keys for a step with a cache. The largest error of the
    final logits is reported beside, not judged: how far an error travels is the model's matter.
    """
    reason = subject.refuses(case)
    if reason is not None:
        raise tally.NotClaimed(reason)
    config, weights, ids, exact = _asked(case)
    with torch.no_grad():
        got = _logits(build(config, weights, attention=captured(subject)), ids, case)
    name = f"largest error of GPT-2's logits in {str(case.dtype).removeprefix('torch.')}"
    tally.figure(name, float((got.double() - exact).abs().max()))


@functools.lru_cache(maxsize=128)
def _asked(case: Case) -> tuple[GPT2Config, dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """The model and the tokens of a case, with the logits in float64: the same for each subject."""
    config = _config(case)
    device = torch.device(case.device)
    weights = {
        name: each.to(device)
        for name, each in draw_weights(config, seed=case.seed, spread=0.5, dtype=case.dtype).items()
    }
    shape = (case.batch, case.keys)
    random = generator(case.seed, "ids")
    ids = torch.randint(config.vocab_size, shape, generator=random).to(device)
    with torch.no_grad():
        exact = _logits(build(config, doubled(weights)), ids, case)
    return config, weights, ids, exact


def _config(case: Case) -> GPT2Config:
    """Two layers whose scales differ, and for odd seeds are none of the usual ones."""
    return GPT2Config(
        vocab_size=11,
        n_positions=case.keys,
        n_embd=case.heads * case.d_head,
        n_layer=2,
        n_head=case.heads,
        scale_attn_weights=case.seed % 2 == 0,
        scale_attn_by_inverse_layer_idx=True,
    )


def captured(subject: Subject) -> Callable[..., torch.Tensor]:
    """The subject, each of whose outputs is judged before the model sees it."""

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
    """The logits of real tokens: of a padded batch, or with a cache, as the case says."""
    if case.mask is not None and case.mask.pattern is MaskPattern.LEFT_PADDING:
        missing = torch.arange(case.batch, device=ids.device)[:, None] % case.keys
        real = torch.arange(case.keys, device=ids.device) >= missing
        places = (real.long().cumsum(-1) - 1).clamp(min=0)
        return torch.as_tensor(model(ids, attention_mask=real.long(), position_ids=places)[real])
    if case.queries < case.keys:
        _, cache = model(ids[:, : case.keys - case.queries], cache=model.empty_cache())
        return torch.as_tensor(model(ids[:, case.keys - case.queries :], cache=cache)[0])
    return torch.as_tensor(model(ids))
