"""Correct attentions of every profile, and with every restriction, for the test of the laws.

Each subject is the reference, which raises if a call is among those that its declaration refuses.
"""

import functools
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from attnspec.conformance.attention.inputs import attention_mask
from attnspec.conformance.laws.helpers.pairwise import pairwise
from attnspec.reference.implementation import REFERENCE, scaled_dot_product_attention
from attnspec.reference.masks import visible_keys
from attnspec.spec import (
    Case,
    CausalAlignment,
    CausalSingleQuery,
    EmptyRow,
    Feature,
    Float64Precision,
    Grouping,
    Implementation,
    Layouts,
    MaskedNonfinite,
    MaskKind,
    Profile,
    Rounding,
    RoundingLevel,
    SoftcapOrder,
)
from attnspec.spec.case import BIASES

RANDOM_PROFILES = 20

ANSWERS: dict[str, tuple[Any, ...]] = {
    "causal_alignment": tuple(CausalAlignment),
    "causal_single_query": tuple(CausalSingleQuery),
    "empty_row": tuple(EmptyRow),
    "empty_row_bool_mask": (None, *EmptyRow),
    "empty_row_float_mask": (None, *EmptyRow),
    "masked_keys": tuple(MaskedNonfinite),
    "masked_values": tuple(MaskedNonfinite),
    "grouping": tuple(Grouping),
    "softcap_order": tuple(SoftcapOrder),
    "float64_precision": tuple(Float64Precision),
    "deterministic": (True, False),
    "batch_invariant": (False, True),
    "level": tuple(RoundingLevel),
    "accumulator": (None, 2.0**-23, 2.0**-11),
    "partial_writes": ((1, 1), (3, 5)),
    "exp_error": (32.0, 1.0, 1000.0),
    "weight_exp_error": (None, 1.0, 2000.0),
    "tanh_error": (32.0, 1.0, 1000.0),
}
"""The answers of a profile and of its rounding, the default first."""

OF_PROFILE = tuple(each.name for each in fields(Profile) if each.name in ANSWERS)


def profile_of(answers: Mapping[str, Any]) -> Profile:
    """Return the profile of these answers, and the default for all others."""
    answers = {name: values[0] for name, values in ANSWERS.items()} | dict(answers)
    of_profile = {name: answers.pop(name) for name in OF_PROFILE}
    writes = answers.pop("partial_writes")
    rounding = Rounding(partial_writes=_writes(writes), **answers)
    return Profile(rounding=rounding, **of_profile)


@functools.cache
def _writes(numbers: tuple[int, int]) -> Callable[[int, int, int], tuple[int, int]]:
    return lambda queries, keys, group: numbers


def profiles() -> Iterator[tuple[str, dict[str, Any]]]:
    """List answers: each alone, all pairs in few profiles, and random profiles."""
    for name, values in ANSWERS.items():
        for value in values[1:]:
            yield f"{name}={value}", {name: value}
    for number, row in enumerate(pairwise(ANSWERS)):
        yield f"pairs_{number}", row
    rng = random.Random(0)
    for number in range(RANDOM_PROFILES):
        yield (
            f"random_{number}",
            {name: rng.choice(values) for name, values in ANSWERS.items()},
        )


def _each_batch_element(*operands: torch.Tensor, **options: Any) -> Any:
    """Compute the batch elements one by one, so that each has the same bits in every batch."""
    batch = operands[0].shape[0]
    if batch < 2:
        return scaled_dot_product_attention(*operands, **options)
    mask = options.pop("attn_mask", None)
    is_own = mask is not None and mask.dim() == 4 and mask.shape[0] > 1
    results = [
        scaled_dot_product_attention(
            *(operand[index : index + 1] for operand in operands),
            attn_mask=mask[index : index + 1] if is_own else mask,
            **options,
        )
        for index in range(batch)
    ]
    if options.get("return_lse"):
        return tuple(torch.cat(parts) for parts in zip(*results, strict=True))
    return torch.cat(results)


def _in_float32(function: Callable[..., Any], *operands: torch.Tensor, **options: Any) -> Any:
    """Compute a call with tensors of float64 in float32."""
    if operands[0].dtype != torch.float64:
        return function(*operands, **options)

    def narrow(each: Any) -> Any:
        is_wide = isinstance(each, torch.Tensor) and each.dtype == torch.float64
        return each.float() if is_wide else each

    options = {name: narrow(each) for name, each in options.items()}
    result = function(*map(narrow, operands), **options)
    if isinstance(result, tuple):
        return tuple(each.double() for each in result)
    return result.double()


def with_profile(name: str, answers: Mapping[str, Any]) -> Implementation:
    """Return the reference, computing and declaring these answers."""
    profile = profile_of(answers)
    function = _each_batch_element if profile.batch_invariant else scaled_dot_product_attention
    if profile.float64_precision is Float64Precision.FLOAT32:
        function = functools.partial(_in_float32, function)

    def attention(*operands: torch.Tensor, **options: Any) -> Any:
        def attend(empty_row: EmptyRow) -> Any:
            return function(
                *operands,
                causal_alignment=profile.causal_alignment,
                causal_single_query=profile.causal_single_query,
                empty_row=empty_row,
                grouping=profile.grouping,
                softcap_order=profile.softcap_order,
                **options,
            )

        mask = options.get("attn_mask")
        if mask is None:
            return attend(profile.empty_row)
        is_bool = mask.dtype == torch.bool
        answer = profile.empty_row_answers["bool" if is_bool else "float"]
        by_mask, by_position = attend(answer), attend(profile.empty_row)
        if answer == profile.empty_row:
            return by_mask
        hides = ~(mask if is_bool else mask != -torch.inf).all(-1, keepdim=True)
        if options.get("return_lse"):
            return torch.where(hides, by_mask[0], by_position[0]), by_mask[1]
        return torch.where(hides, by_mask, by_position)

    return replace(REFERENCE, name=name, attention=attention, profile=profile)


@dataclass(frozen=True, kw_only=True)
class Restriction:
    """A kind of call that an implementation refuses.

    Attributes:
        of_case: true for the cases that it declares to refuse.
        of_call: `of_call(query, key, value, options)` is true for the calls that raise.
        features: features that it does not claim.
        dtypes: the dtypes that it claims.
    """

    of_case: Callable[[Case], bool] = lambda case: False
    of_call: Callable[..., bool] = lambda q, k, v, options: False
    features: frozenset[Feature] = frozenset()
    dtypes: tuple[torch.dtype, ...] = REFERENCE.dtypes


class Refused(Exception):
    """A call that the implementation does not claim."""


def restricted(
    name: str, restriction: Restriction, base: Implementation = REFERENCE
) -> Implementation:
    """Return a correct attention that declares a restriction, and raises if a call ignores it."""

    def attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> Any:
        if restriction.of_call(query, key, value, options) or query.dtype not in restriction.dtypes:
            raise Refused(name)
        return base.attention(query, key, value, **options)

    return replace(
        base,
        name=name,
        attention=attention,
        features=base.features - restriction.features,
        dtypes=restriction.dtypes,
        supports=lambda case: f"refuses {name}" if restriction.of_case(case) else None,
    )


def _needs_gradient(q: Any, k: Any, v: Any, options: dict[str, Any]) -> bool:
    mask = options.get("attn_mask")
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    return any(operand.requires_grad for operand in operands)


USES: dict[Feature, Callable[..., bool]] = {
    Feature.MASK: lambda q, k, v, o: o.get("attn_mask") is not None,
    Feature.CAUSAL: lambda q, k, v, o: bool(o.get("is_causal")),
    Feature.GQA: lambda q, k, v, o: q.shape[1] != k.shape[1],
    Feature.WINDOW: lambda q, k, v, o: o.get("window") is not None,
    Feature.SOFTCAP: lambda q, k, v, o: o.get("softcap") is not None,
    Feature.SINKS: lambda q, k, v, o: o.get("sinks") is not None,
    Feature.ALIBI: lambda q, k, v, o: o.get("alibi_slopes") is not None,
    Feature.KEY_LENGTHS: lambda q, k, v, o: o.get("key_lengths") is not None,
    Feature.QUERY_OFFSET: lambda q, k, v, o: o.get("query_offset") is not None,
    Feature.LSE: lambda q, k, v, o: bool(o.get("return_lse")),
    Feature.DROPOUT: lambda q, k, v, o: bool(o.get("dropout_p")),
    Feature.BACKWARD: _needs_gradient,
}
"""True for calls that use a feature."""


def _mask(test: Callable[[torch.Tensor], bool]) -> Callable[..., bool]:
    """Return a test of calls that is true for those whose mask passes a test."""
    return lambda q, k, v, o: o.get("attn_mask") is not None and test(o["attn_mask"])


def _mask_of(test: Callable[[Any], bool]) -> Callable[[Case], bool]:
    return lambda case: case.mask is not None and test(case.mask)


def _has_empty_row(visible: torch.Tensor, keys: int) -> bool:
    return not bool(visible.any(-1).all()) or keys == 0


@functools.lru_cache(maxsize=4096)
def _case_has_empty_row(
    case: Case, alignment: CausalAlignment = CausalAlignment.UPPER_LEFT
) -> bool:
    mask = None if case.mask is None else attention_mask(case, case.mask)
    visible, _ = visible_keys(
        case.queries,
        case.keys,
        attn_mask=mask,
        is_causal=case.is_causal,
        window=case.window,
        alignment=alignment,
    )
    return _has_empty_row(visible, case.keys)


def _call_has_empty_row(q: Any, k: Any, v: Any, o: dict[str, Any]) -> bool:
    visible, _ = visible_keys(
        q.shape[2],
        k.shape[2],
        attn_mask=o.get("attn_mask"),
        is_causal=bool(o.get("is_causal")),
        window=o.get("window"),
        alignment=CausalAlignment.UPPER_LEFT,
    )
    return _has_empty_row(visible, k.shape[2])


def _is_bias(mask: torch.Tensor) -> bool:
    return mask.is_floating_point() and bool(((mask != 0) & mask.isfinite()).any())


def _has_size_one(mask: torch.Tensor, q: Any, k: Any) -> bool:
    full = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])[4 - mask.dim() :]
    return mask.dim() < 4 or any(a == 1 != b for a, b in zip(mask.shape, full, strict=True))


def _case_broadcasts(case: Case) -> bool:
    if case.mask is None:
        return False
    mask = attention_mask(case, case.mask)
    full = (case.batch, case.heads, case.queries, case.keys)
    return tuple(mask.shape) != full


REFUSALS: dict[str, Restriction] = {
    # VALUES OF OPTIONS
    "a scale": Restriction(
        of_case=lambda case: case.scale is not None,
        of_call=lambda q, k, v, o: o.get("scale") is not None,
    ),
    "a scale of zero or less": Restriction(
        of_case=lambda case: case.scale is not None and case.scale <= 0,
        of_call=lambda q, k, v, o: o.get("scale") is not None and o["scale"] <= 0,
    ),
    "a negative scale": Restriction(
        of_case=lambda case: case.scale is not None and case.scale < 0,
        of_call=lambda q, k, v, o: o.get("scale") is not None and o["scale"] < 0,
    ),
    "a window with an open side": Restriction(
        of_case=lambda case: case.window is not None and None in case.window,
        of_call=lambda q, k, v, o: o.get("window") is not None and None in o["window"],
    ),
    "a window with two sides": Restriction(
        of_case=lambda case: case.window is not None and None not in case.window,
        of_call=lambda q, k, v, o: o.get("window") is not None and None not in o["window"],
    ),
    # SIZES
    "unequal lengths": Restriction(
        of_case=lambda case: case.queries != case.keys,
        of_call=lambda q, k, v, o: q.shape[2] != k.shape[2],
    ),
    "fewer queries than keys": Restriction(
        of_case=lambda case: case.queries < case.keys,
        of_call=lambda q, k, v, o: q.shape[2] < k.shape[2],
    ),
    "more queries than keys": Restriction(
        of_case=lambda case: case.queries > case.keys,
        of_call=lambda q, k, v, o: q.shape[2] > k.shape[2],
    ),
    "one query": Restriction(
        of_case=lambda case: case.queries == 1, of_call=lambda q, k, v, o: q.shape[2] == 1
    ),
    "several queries": Restriction(
        of_case=lambda case: case.queries > 1, of_call=lambda q, k, v, o: q.shape[2] > 1
    ),
    "lengths that are no multiples of 8": Restriction(
        of_case=lambda case: bool(case.queries % 8 or case.keys % 8),
        of_call=lambda q, k, v, o: bool(q.shape[2] % 8 or k.shape[2] % 8),
    ),
    "numbers of keys that are no multiples of 8": Restriction(
        of_case=lambda case: bool(case.keys % 8), of_call=lambda q, k, v, o: bool(k.shape[2] % 8)
    ),
    "no keys": Restriction(
        of_case=lambda case: case.keys == 0, of_call=lambda q, k, v, o: k.shape[2] == 0
    ),
    "no elements": Restriction(
        of_case=lambda case: (
            0 in (case.batch, case.heads, case.queries, case.keys, case.d_head, case.d_value)
        ),
        of_call=lambda q, k, v, o: 0 in (*q.shape, *k.shape, *v.shape),
    ),
    "unequal widths": Restriction(
        of_case=lambda case: case.d_head != case.d_value,
        of_call=lambda q, k, v, o: q.shape[3] != v.shape[3],
    ),
    "widths that are no multiples of 8": Restriction(
        of_case=lambda case: bool(case.d_head % 8 or case.d_value % 8),
        of_call=lambda q, k, v, o: bool(q.shape[3] % 8 or v.shape[3] % 8),
    ),
    "several batch elements": Restriction(
        of_case=lambda case: case.batch > 1, of_call=lambda q, k, v, o: q.shape[0] > 1
    ),
    "several heads": Restriction(
        of_case=lambda case: case.heads > 1, of_call=lambda q, k, v, o: q.shape[1] > 1
    ),
    "one key/value head": Restriction(
        of_case=lambda case: case.kv_heads == 1 < case.heads,
        of_call=lambda q, k, v, o: k.shape[1] == 1 < q.shape[1],
    ),
    # LAYOUTS
    "operands that are not contiguous": Restriction(
        of_case=lambda case: replace(case.layouts, mask=Layouts().mask) != Layouts(),
        of_call=lambda q, k, v, o: not all(x.is_contiguous() for x in (q, k, v)),
    ),
    "masks that are not contiguous": Restriction(
        of_case=lambda case: case.layouts.mask != Layouts().mask,
        of_call=_mask(lambda mask: not mask.is_contiguous()),
    ),
    # MASKS
    "bool masks": Restriction(
        of_case=_mask_of(lambda mask: mask.kind is MaskKind.BOOL),
        of_call=_mask(lambda mask: mask.dtype == torch.bool),
    ),
    "float masks": Restriction(
        of_case=_mask_of(lambda mask: mask.kind is MaskKind.FLOAT),
        of_call=_mask(lambda mask: mask.dtype != torch.bool),
    ),
    "biases": Restriction(
        of_case=_mask_of(lambda mask: mask.pattern in BIASES),
        of_call=_mask(_is_bias),
    ),
    "masks of another dtype": Restriction(
        of_case=lambda case: case.mask is not None and case.mask.dtype not in (None, case.dtype),
        of_call=lambda q, k, v, o: (
            o.get("attn_mask") is not None and o["attn_mask"].dtype not in (torch.bool, q.dtype)
        ),
    ),
    **{
        f"masks of rank {rank}": Restriction(
            of_case=_mask_of(lambda mask, rank=rank: len(mask.shape.split()) == rank),
            of_call=_mask(lambda mask, rank=rank: mask.dim() == rank),
        )
        for rank in (2, 3, 4)
    },
    "masks that broadcast": Restriction(
        of_case=_case_broadcasts,
        of_call=lambda q, k, v, o: (
            o.get("attn_mask") is not None and _has_size_one(o["attn_mask"], q, k)
        ),
    ),
    "empty rows": Restriction(of_case=_case_has_empty_row, of_call=_call_has_empty_row),
    "gradients of masks": Restriction(
        of_case=lambda case: case.mask_gradient,
        of_call=_mask(lambda mask: mask.requires_grad),
    ),
    # COMBINATIONS
    "the causal flag and unequal lengths": Restriction(
        of_case=lambda case: case.is_causal and case.queries != case.keys,
        of_call=lambda q, k, v, o: bool(o.get("is_causal")) and q.shape[2] != k.shape[2],
    ),
    **{
        f"{one} and {two}": Restriction(
            of_case=lambda case, pair=frozenset({one, two}): pair <= case.features,
            of_call=lambda *call, one=one, two=two: USES[one](*call) and USES[two](*call),
        )
        for one, two in itertools.combinations(USES, 2)
    },
}
"""Kinds of calls that an implementation may refuse although it claims the features, by name."""


def subjects() -> dict[str, Callable[[], Implementation]]:
    """Return all subjects of the test, by name."""
    found: dict[str, Callable[[], Implementation]] = {}
    for name, answers in profiles():
        found[name] = functools.partial(with_profile, name, answers)
    for feature in USES:
        missing = Restriction(features=frozenset({feature}), of_call=USES[feature])
        found[f"without {feature}"] = functools.partial(restricted, f"without {feature}", missing)
    nothing = Restriction(
        features=frozenset(Feature),
        of_call=lambda *call: any(uses(*call) for uses in USES.values()),
    )
    found["without any feature"] = functools.partial(restricted, "without any feature", nothing)
    for dtype in REFERENCE.dtypes:
        short = str(dtype).removeprefix("torch.")
        others = tuple(other for other in REFERENCE.dtypes if other != dtype)
        for name, dtypes in ((f"without {short}", others), (f"{short} only", (dtype,))):
            found[name] = functools.partial(restricted, name, Restriction(dtypes=dtypes))
    for name, refusal in REFUSALS.items():
        found[f"refuses {name}"] = functools.partial(restricted, name, refusal)
    return found
