"""Laws of CAC: batches of unequal lengths, buffers not yet full, shared prefixes."""

import torch
from jaxtyping import Bool

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.decoding.decoder import GARBAGE
from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.laws.helpers.calls import (
    check_equal_calls,
    normal_like,
    plain,
    require_claimed,
)
from attnspec.conformance.laws.helpers.cases import BF16, F16, F32, F64
from attnspec.conformance.laws.helpers.rows import additive_mask, has_mask
from attnspec.conformance.laws.law import law
from attnspec.spec import (
    Case,
    Feature,
    Layout,
    Mask,
    MaskedNonfinite,
    MaskKind,
    MaskPattern,
    MaskShape,
    Values,
)

RIGHT = Mask(pattern=MaskPattern.PADDING, shape=MaskShape.BATCH)
LEFT = Mask(pattern=MaskPattern.LEFT_PADDING, shape=MaskShape.BATCH)
RIGHT_FLOAT = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.PADDING, shape=MaskShape.BATCH)
LEFT_FLOAT = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.LEFT_PADDING, shape=MaskShape.BATCH)
TINIEST = Case(batch=2, queries=1, keys=3, d_head=2, d_value=2, dtype=F32)
SMALL = Case(
    batch=3, heads=2, kv_heads=2, queries=3, keys=7, d_head=8, d_value=8, dtype=F32, seed=1
)
GROUPED = SMALL.but(heads=6, kv_heads=2, keys=17, d_head=16, d_value=16)
FAMILIES = (Values.NORMAL, Values.PEAKED, Values.TIES, Values.INTEGERS, Values.ONE_HOT)


@law(
    "CAC-4",
    pinned=(
        *vary(TINIEST, mask=(RIGHT, LEFT, RIGHT_FLOAT)),
        *vary(SMALL, mask=(RIGHT, LEFT, LEFT_FLOAT)),
        *vary(SMALL.but(queries=1, mask=RIGHT), dtype=(F64, F16, BF16)),
        GROUPED.but(mask=RIGHT),
        GROUPED.but(batch=2, mask=LEFT, seed=5),
        SMALL.but(queries=17, keys=65, mask=RIGHT, d_head=64, d_value=64),
    ),
    wide=(
        TINIEST.but(mask=LEFT_FLOAT),
        SMALL.but(mask=RIGHT_FLOAT),
        *vary(SMALL.but(queries=1, mask=LEFT), dtype=(F64, F16, BF16)),
    ),
    explore=cases(
        masked=True,
        causal=False,
        patterns=(MaskPattern.PADDING, MaskPattern.LEFT_PADDING),
        lengths=(1, 2, 3, 5, 7, 8, 15, 17, 33),
        scales=POSITIVE,
        families=FAMILIES,
        sometimes=(Feature.SOFTCAP, Feature.SINKS),
        only=lambda case: has_mask(case) and case.batch > 1 and case.queries <= case.keys,
    ),
    cost=4,
)
def law_a_ragged_batch_equals_separate_calls(subject: Subject, case: Case) -> None:
    """CAC-4: elements of unequal lengths under a padding mask give what each gives alone."""
    call = subject.draw(case)
    visible, lengths = _ragged_mask(case, call)
    unused = ~visible.any(-2)[:, 0]  # keys that no query of an element may read
    profile = subject.implementation.profile
    call = call.but(
        key=_with_garbage(profile.masked_keys, case, call.key, unused),
        value=_with_garbage(profile.masked_values, case, call.value, unused),
        attn_mask=visible if _is_bool(case) else additive_mask(visible, case.dtype),
    )
    expected = subject.expect(call)
    expected_alone = []
    for element, length in enumerate(lengths):
        alone = _element_alone(case, call, element, length)
        require_claimed(subject, case.but(batch=1, keys=length, mask=_recipe_of_mask(alone)))
        message = f"the output of element {element} of {length} keys alone is wrong"
        expected_alone.append(subject.judge(alone, subject.call(alone), message))
    out = subject.call(call)
    check_oracle(call, out, expected, "the output of a ragged batch is wrong")
    for element, length in enumerate(lengths):
        check_close(
            out[element : element + 1],
            expected_alone[element].out,
            expected_alone[element].bound + expected.bound[element : element + 1],
            what="out",
            message=f"element {element} of {length} keys differs in a batch and alone",
            dtype=case.dtype,
            may_be_nan=_element_of(expected.may_be_nan, element),
        )


def _element_of(whole: torch.Tensor | None, element: int) -> torch.Tensor | None:
    return None if whole is None else whole[element : element + 1]


def _is_bool(case: Case) -> bool:
    return case.mask is not None and case.mask.kind is MaskKind.BOOL


def _recipe_of_mask(call: Call) -> Mask | None:
    return None if call.attn_mask is None else Mask()


def _ragged_mask(
    case: Case, call: Call
) -> tuple[Bool[torch.Tensor, "batch one queries keys"], list[int]]:
    """Return the readable keys of the last queries of each element, and its number of keys."""
    spare = case.keys - case.queries + 1
    lengths = [case.queries + (case.seed + 2 * element) % spare for element in range(case.batch)]
    is_left = case.mask is not None and case.mask.pattern is MaskPattern.LEFT_PADDING
    key = torch.arange(case.keys, device=call.query.device)
    row = torch.arange(case.queries, device=key.device)[:, None]
    parts = []
    for length in lengths:
        start = case.keys - length if is_left else 0
        position = start + length - case.queries + row
        parts.append((key >= start) & (key <= position))
    return torch.stack(parts)[:, None], lengths


def _with_garbage(
    masked: MaskedNonfinite,
    case: Case,
    tensor: torch.Tensor,
    unused: Bool[torch.Tensor, "batch keys"],
) -> torch.Tensor:
    """Replace unused keys or values by NaN, or by large numbers if NaN may propagate."""
    blocks = masked is MaskedNonfinite.BLOCKED
    garbage = GARBAGE * normal_like(case, f"unused {tensor.shape}", tensor)
    garbage = torch.full_like(garbage, torch.nan) if blocks else garbage
    return torch.where(unused[:, None, :, None], garbage, tensor)


def _element_alone(case: Case, call: Call, element: int, length: int) -> Call:
    """Return the call of one element with its own keys, with a mask only for several queries."""
    is_left = case.mask is not None and case.mask.pattern is MaskPattern.LEFT_PADDING
    keys = slice(case.keys - length, case.keys) if is_left else slice(0, length)
    only = slice(element, element + 1)
    position = torch.arange(length - case.queries, length, device=call.query.device)[:, None]
    visible = torch.arange(length, device=position.device) <= position
    return call.but(
        query=call.query[only],
        key=call.key[only, :, keys],
        value=call.value[only, :, keys],
        attn_mask=None if case.queries == 1 else visible,
    )


BUFFERED = (
    TINIEST,
    SMALL,
    *vary(SMALL.but(queries=1), dtype=(F64, F16, BF16)),
    SMALL.but(queries=7, is_causal=True),
    GROUPED.but(queries=1),
    GROUPED.but(mask=RIGHT),
    TINIEST.but(d_head=64, d_value=64, keys=129),
)
CONTIGUOUS_CASES = cases(
    scales=POSITIVE, families=FAMILIES, only=plain, layouts=(Layout.CONTIGUOUS,)
)


@law(
    "CAC-5",
    pinned=BUFFERED,
    wide=vary(TINIEST.but(d_head=64, d_value=64), keys=(15, 16, 17, 63, 64, 65)),
    explore=CONTIGUOUS_CASES,
    cost=5,
)
def law_the_unused_part_of_a_buffer_changes_nothing(subject: Subject, case: Case) -> None:
    """CAC-5: of a buffer that holds keys and values and more, nothing else is read."""
    call = subject.draw(case)
    expected = subject.expect(call)
    for where in ("behind", "before", "in other elements than", "in other heads than"):
        buffered = call.but(
            key=_in_a_buffer(call.key, where), value=_in_a_buffer(call.value, where)
        )
        message = f"memory {where} the keys and values of a buffer changes the output"
        check_oracle(call, subject.call(buffered), expected, message)


def _in_a_buffer(tensor: torch.Tensor, where: str) -> torch.Tensor:
    """Return the same numbers as a view of a buffer that holds NaN elsewhere."""
    batch, heads, keys, channels = tensor.shape
    shapes = {
        "behind": (batch, heads, keys + 5, channels),
        "before": (batch, heads, keys + 3, channels),
        "in other elements than": (batch + 2, heads, keys, channels),
        "in other heads than": (batch, heads + 1, keys, channels),
    }
    buffer = tensor.new_full(shapes[where], torch.nan)
    start = 3 if where == "before" else 0
    view = buffer[:batch, :heads, start : start + keys]
    view.copy_(tensor)
    return view


@law(
    "CAC-7",
    pinned=(
        TINIEST.but(queries=2),
        SMALL,
        *vary(SMALL, dtype=(F64, F16, BF16)),
        SMALL.but(queries=1),
        SMALL.but(batch=2, queries=7, is_causal=True),
        GROUPED,
        GROUPED.but(batch=4, queries=1, keys=65),
    ),
    explore=cases(
        scales=POSITIVE,
        families=FAMILIES,
        layouts=(Layout.CONTIGUOUS,),
        only=lambda case: plain(case) and case.batch > 1,
    ),
    cost=3,
)
def law_a_shared_prefix_equals_its_copies(subject: Subject, case: Case) -> None:
    """CAC-7: keys and values that all elements share, with stride 0, act as copies."""
    call = subject.draw(case)
    key, value = (tensor[:1].expand(tensor.shape) for tensor in (call.key, call.value))
    copied = call.but(key=key.contiguous(), value=value.contiguous())
    message = "a prefix that the batch shares and copies of it differ"
    check_equal_calls(subject, copied, call.but(key=key, value=value), message)
