"""Packed and paged attentions seen as padded ones, and the other way round.

The laws of a padded call judge a packed or a paged attention by these. Each batch element is a
sequence of its own; what a packed call cannot say is refused, with the reason.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int

from attnspec.implementations.adapters.grouped_heads import demand_flag
from attnspec.implementations.adapters.packed_parameters import (
    asks_for_lse,
    limited_packed,
    offsets_of,
)
from attnspec.implementations.adapters.parameters import limited, parameters, require
from attnspec.spec import (
    Attention,
    Case,
    CausalAlignment,
    Deviation,
    Feature,
    Implementation,
    KeyLengths,
    MaskedNonfinite,
    MaskKind,
    MaskPattern,
    MaskShape,
    Profile,
    Rounding,
)
from attnspec.spec.packed import (
    EVERYWHERE,
    NEVER_ROUNDED,
    UNBOUNDED,
    AuxRequest,
    EmptySequences,
    LseLayout,
    OutsideRows,
    PackedImplementation,
    PackedProfile,
)
from attnspec.spec.paged import PagedImplementation

_OF_PARAMETER = {
    "window_size": ("is_causal", "window"),
    "return_aux": ("return_lse",),
    "scale": ("scale",),
    "enable_gqa": ("enable_gqa",),
    "softcap": ("softcap",),
    "sinks": ("sinks",),
    "alibi_slopes": ("alibi_slopes",),
}
"""The contract's options that a parameter of a packed attention gives."""

_OF_FEATURE = {
    "causal": ("is_causal", Feature.CAUSAL),
    "window": ("window", Feature.WINDOW),
    "gqa": ("enable_gqa", Feature.GQA),
    "lse": ("return_lse", Feature.LSE),
    "softcap": ("softcap", Feature.SOFTCAP),
    "sinks": ("sinks", Feature.SINKS),
    "alibi": ("alibi_slopes", Feature.ALIBI),
}
"""The option and the feature of a padded attention, by the feature of a packed one."""

PAGE_SIZE = 16
"""Tokens of a page, unless the implementation claims other sizes alone."""


def from_packed(
    function: Callable[..., Any],
    *,
    lse_layout: LseLayout = LseLayout.HEADS_FIRST,
    index_dtype: torch.dtype = torch.int32,
) -> Callable[..., Any]:
    """Adapt a packed attention to the padded contract: each batch element is a sequence.

    Args:
        function: has the parameters of `attnspec.spec.packed.PackedAttention`, or some of them.
        lse_layout: the order of the axes of its log-sum-exp.
        index_dtype: the integer type of the offsets that it gets.

    Returns:
        An attention of the contract with the function's options, aligned at the lower right, with
        `key_lengths`, and with bool masks that hide the last keys of a batch element, which shorten
        its sequence. It raises `ValueError` for any other mask, and for a mask beside a causal
        flag, a window or lengths.

    Raises:
        TypeError: if the function takes no offsets.
    """
    require(function, "cu_seq_q", "cu_seq_k", "max_q", "max_k")
    return _packed(function, _names(function), lse_layout, index_dtype)


def from_paged(
    function: Callable[..., Any],
    *,
    page_size: int = PAGE_SIZE,
    lse_layout: LseLayout = LseLayout.HEADS_FIRST,
    index_dtype: torch.dtype = torch.int32,
) -> Callable[..., Any]:
    """Adapt a paged attention to the padded contract: each batch element fills pages of its own.

    The pages lie in the pool in descending order, so that a function cannot do without the table.

    Args:
        function: has the parameters of `attnspec.spec.paged.PagedAttention`, or some of them.
        page_size: tokens of a page.
        lse_layout: the order of the axes of its log-sum-exp.
        index_dtype: the integer type of the offsets, the lengths and the table that it gets.

    Returns:
        An attention as that of `from_packed`.

    Raises:
        TypeError: if the function takes no table.
    """
    require(function, "cu_seq_q", "seqused_k", "block_table")
    return _packed(_on_pages(function, page_size), _names(function), lse_layout, index_dtype)


def _names(function: Callable[..., Any]) -> set[str]:
    declared = parameters(function)
    options = (names for own, names in _OF_PARAMETER.items() if own in declared)
    return {"attn_mask", "key_lengths", *(name for names in options for name in names)}


def _packed(
    function: Callable[..., Any],
    names: Collection[str],
    lse_layout: LseLayout,
    index_dtype: torch.dtype,
) -> Callable[..., Any]:
    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_head"],
        attn_mask: Bool[torch.Tensor, "batch 1 1 keys"] | None = None,
        is_causal: bool = False,
        enable_gqa: bool = False,
        window: tuple[int | None, int | None] | None = None,
        key_lengths: Int[torch.Tensor, " batch"] | None = None,
        return_lse: bool = False,
        **given: Any,
    ) -> Any:
        demand_flag(query, key, enable_gqa=enable_gqa)
        batch, heads, queries, _ = query.shape
        lengths = torch.full((batch,), key.shape[2], device=key.device)
        if key_lengths is not None:
            lengths = key_lengths.to(lengths)
        if attn_mask is not None:
            if is_causal or window is not None or key_lengths is not None:
                raise ValueError("a shorter sequence would move the diagonal: give no mask beside")
            lengths = _lengths(attn_mask, batch, key.shape[2])
        shortened = None if attn_mask is None and key_lengths is None else lengths
        keywords = {name: value for name, value in given.items() if value is not None}
        if heads != key.shape[1]:
            keywords["enable_gqa"] = True
        if return_lse:
            keywords["return_aux"] = AuxRequest(lse=True)
        sides = _window_size(window, is_causal=is_causal)
        if sides != EVERYWHERE:
            keywords["window_size"] = sides
        result = function(
            _tokens(query, None),
            *(_tokens(each, shortened) for each in (key, value)),
            offsets_of(torch.full((batch,), queries, device=query.device), index_dtype),
            offsets_of(lengths, index_dtype),
            queries,
            int(lengths.max()),
            **keywords,
        )
        out, lse = result if return_lse else (result, None)
        out = out.reshape(batch, queries, heads, out.shape[-1]).transpose(1, 2)
        if lse is None:
            return out
        lse = lse if lse_layout is LseLayout.HEADS_FIRST else lse.T
        return out, lse.reshape(heads, batch, queries).transpose(0, 1)

    return limited(attention, names, function)


def _tokens(x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """Return (tokens, heads, channels) of (batch, heads, length, channels)."""
    tokens = x.transpose(1, 2)
    if lengths is None:
        return tokens.flatten(0, 1)
    return tokens[torch.arange(x.shape[2], device=x.device) < lengths[:, None]]


def _window_size(
    window: tuple[int | None, int | None] | None, *, is_causal: bool
) -> tuple[int, int]:
    """Return a causal flag and a window as one pair.

    Raises:
        ValueError: if a side is negative, which would mean no bound.
    """
    left, right = (UNBOUNDED if side is None else side for side in window or (None, None))
    if any(side is not None and side < 0 for side in window or ()):
        raise ValueError(f"window must have sides that are not negative, got {window}")
    return left, 0 if is_causal else right


def _lengths(mask: torch.Tensor, batch: int, keys: int) -> torch.Tensor:
    """Return the number of keys that each batch element reads.

    Raises:
        ValueError: if the mask is no padding mask.
    """
    if mask.dtype != torch.bool or mask.shape != (batch, 1, 1, keys):
        raise ValueError(f"attn_mask must be bool (batch, 1, 1, keys), got {tuple(mask.shape)}")
    lengths = mask.flatten(1).sum(1)
    if not torch.equal(mask.flatten(1), torch.arange(keys, device=mask.device) < lengths[:, None]):
        raise ValueError("attn_mask must hide the last keys of each batch element and no other")
    return lengths


def _on_pages(function: Callable[..., Any], page_size: int) -> Callable[..., Any]:
    """Return a paged attention as a packed one, which fills a pool for each call."""

    def packed(
        query: Float[torch.Tensor, "total_q heads d_head"],
        key: Float[torch.Tensor, "total_k kv_heads d_head"],
        value: Float[torch.Tensor, "total_k kv_heads d_head"],
        cu_seq_q: Int[torch.Tensor, " sequences_plus_one"],
        cu_seq_k: Int[torch.Tensor, " sequences_plus_one"],
        max_q: int,
        max_k: int,
        **given: Any,
    ) -> Any:
        lengths = cu_seq_k.diff()
        counts = [-(-length // page_size) for length in lengths.tolist()]
        pages = max(sum(counts), 1)
        pools = [x.new_zeros(pages, page_size, *x.shape[1:]) for x in (key, value)]
        table = torch.full(
            (len(counts), max(*counts, 1)), -1, dtype=cu_seq_k.dtype, device=query.device
        )
        free = list(range(pages))
        for b, count in enumerate(counts):
            own = [free.pop() for _ in range(count)]
            table[b, :count] = torch.tensor(own, dtype=table.dtype)
            token = torch.arange(int(lengths[b]))
            page = table[b].long()[token // page_size]
            for pool, x in zip(pools, (key, value), strict=True):
                pool[page, token % page_size] = x[int(cu_seq_k[b]) : int(cu_seq_k[b + 1])]
        paged = {"seqused_k": lengths, "block_table": table}
        return function(query, *pools, cu_seq_q, None, max_q, max_k, **paged, **given)

    return packed


def as_padded(declared: PackedImplementation, **answers: Any) -> Implementation:
    """Return the declaration of a packed or a paged attention as that of a padded one.

    Args:
        declared: the declaration. A paged attention gets pages of its first claimed size.
        answers: fields of the padded profile about which a packed one says nothing, such as
            `masked_keys`. NaN and infinity in hidden keys and values propagate by default: a
            packed profile speaks of other sequences alone.

    Raises:
        ValueError: if the declaration has `partial_outputs`, which no padded profile has.
    """
    if declared.profile.partial_outputs != NEVER_ROUNDED:
        raise ValueError(f"{declared.name}: a padded profile has no answer for rounded parts")
    profile, features = declared.profile, declared.features & _OF_FEATURE.keys()
    function, page_size = declared.function, PAGE_SIZE
    if isinstance(declared, PagedImplementation):
        page_size = (declared.page_sizes or (PAGE_SIZE,))[0]
        function = _on_pages(function, page_size)
    names = {"attn_mask", "key_lengths", "scale", *(_OF_FEATURE[each][0] for each in features)}
    padded_features = {Feature.MASK, Feature.KEY_LENGTHS}
    padded_features.update(_OF_FEATURE[each][1] for each in features)
    if declared.has_gradients:
        padded_features.add(Feature.BACKWARD)
    padded = Profile(
        causal_alignment=CausalAlignment.LOWER_RIGHT,
        empty_row=profile.empty_row,
        masked_keys=MaskedNonfinite.PROPAGATES,
        masked_values=MaskedNonfinite.PROPAGATES,
        rounding=Rounding(level=profile.rounding, accumulator=profile.accumulator),
        batch_invariant=profile.batch_invariant,
    )

    def supports(case: Case) -> str | None:
        return _refused(declared, page_size, case)

    return Implementation(
        name=f"{declared.name}_padded",
        attention=cast(
            Attention, _packed(function, names, profile.lse_layout, profile.index_type.dtypes[0])
        ),
        features=frozenset(padded_features),
        dtypes=declared.dtypes,
        supports=supports,
        unavailable=declared.unavailable,
        profile=replace(padded, **answers),
        deviations=(_SPREADING,) if profile.neighbours is MaskedNonfinite.PROPAGATES else (),
    )


_SPREADING = Deviation(
    law="batch-elements-are-independent",
    reason="NaN of a sequence reaches the others, as the packed profile says of neighbours",
    link="spec/packed.md#seq-9",
    applies=lambda case: True,  # the law adds batch elements
    example=Case(batch=2),
)
"""The deviation of a packed profile in which NaN spreads, which no padded profile can declare."""


def _refused(declared: PackedImplementation, page_size: int, case: Case) -> str | None:
    """Return the reason why a packed attention cannot make a padded call, or None."""
    if not (case.batch and case.heads and case.d_head):
        return "a packed call has at least one sequence, one head and one channel"
    if case.d_head != case.d_value:
        return "a packed call has keys and values of as many channels"
    may_be_empty = declared.profile.empty_sequences is EmptySequences.ALLOWED
    has_empty = case.key_lengths is KeyLengths.EMPTY or not (case.queries and case.keys)
    if has_empty and not may_be_empty:
        return "sequences of length zero are not claimed"
    if case.mask is not None:
        if (
            case.mask.kind is not MaskKind.BOOL
            or case.mask.pattern is not MaskPattern.PADDING
            or case.mask.shape is not MaskShape.KEYS
        ):
            return "a packed call says how many keys each sequence has, and takes no other mask"
        if case.key_lengths is not None:
            return "a packed call says how many keys each sequence has, and takes no mask beside"
        if case.is_causal or case.window is not None:
            return "the diagonal of a shorter sequence lies elsewhere than that of a mask"
    return declared.supports(
        SimpleNamespace(
            queries=(case.queries,) * case.batch,
            keys=(case.keys,) * case.batch,
            heads=case.heads,
            kv_heads=case.kv_heads,
            d_head=case.d_head,
            dtype=case.dtype,
            window=_window_size(case.window, is_causal=case.is_causal),
            scale=case.scale,
            backward=case.backward,
            outside=0,
            page_size=page_size,
            append=False,
            strided=False,
        )
    )


def as_packed(declared: Implementation) -> PackedImplementation:
    """Return the declaration of a padded attention as that of a packed one: a call each sequence.

    A padded attention that is aligned at the upper left takes causal flags and windows where a
    sequence has as many queries as keys.

    Args:
        declared: of an attention that takes a CPU's tensors.
    """
    profile = declared.profile
    features = {own for own, (_, padded) in _OF_FEATURE.items() if padded in declared.features}
    is_upper = profile.causal_alignment is CausalAlignment.UPPER_LEFT
    names = {own for own, padded in _OF_PARAMETER.items() if own != "window_size"}
    if features & {"causal", "window"}:
        names.add("window_size")

    def packed(
        query: Float[torch.Tensor, "total_q heads d_head"],
        key: Float[torch.Tensor, "total_k kv_heads d_head"],
        value: Float[torch.Tensor, "total_k kv_heads d_head"],
        cu_seq_q: Int[torch.Tensor, " sequences_plus_one"],
        cu_seq_k: Int[torch.Tensor, " sequences_plus_one"],
        max_q: int,
        max_k: int,
        window_size: tuple[int, int] = EVERYWHERE,
        **given: Any,
    ) -> Any:
        wants_lse = asks_for_lse(given)
        if wants_lse:
            given["return_lse"] = True
        left, right = (None if side == UNBOUNDED else side for side in window_size)
        if right == 0 and "causal" in features:
            given["is_causal"], right = True, None
        if (left, right) != (None, None):
            given["window"] = (left, right)
        attention: Callable[..., Any] = declared.attention
        outs: list[torch.Tensor] = []
        lses: list[torch.Tensor] = []
        for b in range(len(cu_seq_q) - 1):
            rows = slice(int(cu_seq_q[b]), int(cu_seq_q[b + 1]))
            keys = slice(int(cu_seq_k[b]), int(cu_seq_k[b + 1]))
            if is_upper and (window_size != EVERYWHERE or given.get("alibi_slopes") is not None):
                _demand_as_many(rows.stop - rows.start, keys.stop - keys.start)
            operands = (x.transpose(0, 1)[None] for x in (query[rows], key[keys], value[keys]))
            out, lse = attention(*operands, **given), None
            if wants_lse:
                out, lse = out
                lses.append(lse[0])
            outs.append(out[0].transpose(0, 1))
        outside = query.new_zeros(len(query) - int(cu_seq_q[-1]), *query.shape[1:])
        whole = torch.cat([*outs, outside])
        if not wants_lse:
            return whole
        beyond = lses[0].new_full((query.shape[1], len(outside)), -torch.inf)
        return whole, torch.cat([*lses, beyond], dim=1)

    def supports(case: Any) -> str | None:
        for queries, keys in zip(case.queries, case.keys, strict=True):
            if is_upper and (case.window != EVERYWHERE or case.alibi) and queries != keys:
                return "the diagonal of the padded function is aligned at the upper left"
            reason = declared.refuses(_padded_case(case, queries, keys))
            if reason is not None:
                return reason
        return None

    return PackedImplementation(
        name=f"{declared.name}_packed",
        function=limited_packed(packed, names, declared.attention),
        features=frozenset(features),
        dtypes=declared.dtypes,
        has_gradients=Feature.BACKWARD in declared.features,
        supports=supports,
        unavailable=declared.unavailable,
        profile=PackedProfile(
            empty_row=profile.empty_row,
            outside_rows=OutsideRows.ZERO,
            rounding=profile.rounding.level,
            accumulator=profile.rounding.accumulator,
        ),
    )


def _demand_as_many(queries: int, keys: int) -> None:
    if queries != keys:
        raise ValueError(
            f"the diagonal of the padded function is aligned at the upper left, and a sequence "
            f"has {queries} queries and {keys} keys"
        )


def _padded_case(case: Any, queries: int, keys: int) -> Case:
    """Return the padded call of one sequence of a packed case."""
    left, right = (None if side == UNBOUNDED else side for side in case.window)
    is_causal = case.window[1] == 0
    right = None if is_causal else right
    return Case(
        heads=case.heads,
        kv_heads=case.kv_heads,
        queries=queries,
        keys=keys,
        d_head=case.d_head,
        d_value=case.d_head,
        dtype=case.dtype,
        is_causal=is_causal,
        scale=case.scale,
        window=None if (left, right) == (None, None) else (left, right),
        softcap=case.softcap,
        sinks=case.sinks,
        alibi=case.alibi,
        return_lse=case.lse,
        backward=case.backward,
        values=case.values,
        seed=case.seed,
    )
