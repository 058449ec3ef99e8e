"""Laws of CAC, second part: batches of unequal lengths, buffers not yet full, shared prefixes."""

import torch
from jaxtyping import Bool

from attnspec.conformance.call import Call
from attnspec.conformance.compare import check_close
from attnspec.conformance.decoder import GARBAGE
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import POSITIVE, check_sides, claimed, drawn, plain
from attnspec.conformance.laws.masking_sides import additive, check_oracle, masked
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
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

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
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
    judges=Judged.ATTENTION,
    pinned=(
        *every(TINIEST, mask=(RIGHT, LEFT, RIGHT_FLOAT)),
        *every(SMALL, mask=(RIGHT, LEFT, LEFT_FLOAT)),
        *every(SMALL.but(queries=1, mask=RIGHT), dtype=(F64, F16, BF16)),
        GROUPED.but(mask=RIGHT),
        GROUPED.but(batch=2, mask=LEFT, seed=5),
        SMALL.but(queries=17, keys=65, mask=RIGHT, d_head=64, d_value=64),
    ),
    wide=(
        TINIEST.but(mask=LEFT_FLOAT),
        SMALL.but(mask=RIGHT_FLOAT),
        *every(SMALL.but(queries=1, mask=LEFT), dtype=(F64, F16, BF16)),
    ),
    explore=cases(
        masked=True,
        causal=False,
        patterns=(MaskPattern.PADDING, MaskPattern.LEFT_PADDING),
        lengths=(1, 2, 3, 5, 7, 8, 15, 17, 33),
        scales=POSITIVE,
        families=FAMILIES,
        sometimes=(Feature.SOFTCAP, Feature.SINKS),
        only=lambda case: masked(case) and case.batch > 1 and case.queries <= case.keys,
    ),
    needs={Feature.MASK},
    cost=4,
)
def law_each_element_of_a_ragged_batch_is_as_alone(subject: Subject, case: Case) -> None:
    """CAC-4: elements of unequal lengths under a padding mask give what each gives alone."""
    call = subject.draw(case)
    visible, lengths = _ragged(case, call)
    unused = ~visible.any(-2)[:, 0]  # keys that no query of an element may read
    call = call.but(
        key=_spoilt(subject, case, call.key, unused),
        value=_spoilt(subject, case, call.value, unused),
        attn_mask=visible if _is_bool(case) else additive(visible, case.dtype),
    )
    expected = subject.expect(call)
    own = []
    for element, length in enumerate(lengths):
        alone = _alone(case, call, element, length)
        claimed(subject, case.but(batch=1, keys=length, mask=_mask_of(alone)))
        told = f"element {element} of {length} keys is not right alone"
        own.append(subject.judge(alone, subject.call(alone), told))
    out = subject.call(call)
    check_oracle(call, out, expected, "a ragged batch is not right")
    for element, length in enumerate(lengths):
        check_close(
            out[element : element + 1],
            own[element].out,
            own[element].bound + expected.bound[element : element + 1],
            what="out",
            message=f"element {element} of {length} keys is not what it is alone",
            dtype=case.dtype,
            may_be_nan=_part(expected.may_be_nan, element),
        )


def _part(whole: torch.Tensor | None, element: int) -> torch.Tensor | None:
    return None if whole is None else whole[element : element + 1]


def _is_bool(case: Case) -> bool:
    return case.mask is not None and case.mask.kind is MaskKind.BOOL


def _mask_of(call: Call) -> Mask | None:
    return None if call.attn_mask is None else Mask()


def _ragged(
    case: Case, call: Call
) -> tuple[Bool[torch.Tensor, "batch one queries keys"], list[int]]:
    """Which keys the last queries of each element may read, and how many keys it has."""
    spare = case.keys - case.queries + 1
    lengths = [case.queries + (case.seed + 2 * each) % spare for each in range(case.batch)]
    is_left = case.mask is not None and case.mask.pattern is MaskPattern.LEFT_PADDING
    key = torch.arange(case.keys, device=call.query.device)
    row = torch.arange(case.queries, device=key.device)[:, None]
    parts = []
    for length in lengths:
        start = case.keys - length if is_left else 0
        place = start + length - case.queries + row
        parts.append((key >= start) & (key <= place))
    return torch.stack(parts)[:, None], lengths


def _spoilt(
    subject: Subject, case: Case, tensor: torch.Tensor, unused: Bool[torch.Tensor, "batch keys"]
) -> torch.Tensor:
    """The keys or values with something else where no query reads."""
    blocks = subject.implementation.profile.masked_nonfinite is MaskedNonfinite.BLOCKED
    other = GARBAGE * drawn(case, f"unused {tensor.shape}", tensor)
    other = torch.full_like(other, torch.nan) if blocks else other
    return torch.where(unused[:, None, :, None], other, tensor)


def _alone(case: Case, call: Call, element: int, length: int) -> Call:
    """One element with its own keys, and a mask only where it has several queries."""
    is_left = case.mask is not None and case.mask.pattern is MaskPattern.LEFT_PADDING
    own = slice(case.keys - length, case.keys) if is_left else slice(0, length)
    one = slice(element, element + 1)
    place = torch.arange(length - case.queries, length, device=call.query.device)[:, None]
    visible = torch.arange(length, device=place.device) <= place
    return call.but(
        query=call.query[one],
        key=call.key[one, :, own],
        value=call.value[one, :, own],
        attn_mask=None if case.queries == 1 else visible,
    )


BUFFERED = (
    TINIEST,
    SMALL,
    *every(SMALL.but(queries=1), dtype=(F64, F16, BF16)),
    SMALL.but(queries=7, is_causal=True),
    GROUPED.but(queries=1),
    GROUPED.but(mask=RIGHT),
    TINIEST.but(d_head=64, d_value=64, keys=129),
)
ANY = cases(scales=POSITIVE, families=FAMILIES, only=plain, layouts=(Layout.CONTIGUOUS,))


@law(
    "CAC-5",
    judges=Judged.ATTENTION,
    pinned=BUFFERED,
    wide=every(TINIEST.but(d_head=64, d_value=64), keys=(15, 16, 17, 63, 64, 65)),
    explore=ANY,
    cost=5,
)
def law_the_rest_of_a_buffer_is_not_felt(subject: Subject, case: Case) -> None:
    """CAC-5: keys and values that are a part of a longer buffer are all that is read of it."""
    call = subject.draw(case)
    expected = subject.expect(call)
    for where in ("behind", "before", "in other elements than", "in other heads than"):
        held = call.but(key=_in_a_buffer(call.key, where), value=_in_a_buffer(call.value, where))
        message = f"what stands {where} the keys and values in their buffer is felt"
        check_oracle(call, subject.call(held), expected, message)


def _in_a_buffer(tensor: torch.Tensor, where: str) -> torch.Tensor:
    """The same numbers as a view of a buffer that holds NaN elsewhere."""
    batch, heads, keys, channels = tensor.shape
    more = {
        "behind": (batch, heads, keys + 5, channels),
        "before": (batch, heads, keys + 3, channels),
        "in other elements than": (batch + 2, heads, keys, channels),
        "in other heads than": (batch, heads + 1, keys, channels),
    }
    buffer = tensor.new_full(more[where], torch.nan)
    start = 3 if where == "before" else 0
    view = buffer[:batch, :heads, start : start + keys]
    view.copy_(tensor)
    return view


@law(
    "CAC-7",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(queries=2),
        SMALL,
        *every(SMALL, dtype=(F64, F16, BF16)),
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
def law_a_shared_prefix_is_as_copied(subject: Subject, case: Case) -> None:
    """CAC-7: keys and values that all elements share, with stride 0, are as copies of them."""
    call = subject.draw(case)
    key, value = (each[:1].expand(each.shape) for each in (call.key, call.value))
    copied = call.but(key=key.contiguous(), value=value.contiguous())
    message = "a prefix that the batch shares is not what its copies are"
    check_sides(subject, copied, call.but(key=key, value=value), message)
