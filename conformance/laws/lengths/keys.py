"""Laws of LEN: a batch element reads the keys that it has, and what lies behind them is nothing."""

import torch

from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.helpers.calls import (
    check_equal_calls,
    normal_like,
    plain,
    require_evidence,
)
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    BIAS,
    CLEAN,
    DTYPES,
    F16,
    GROUPED,
    HIDDEN,
    OPTIONS,
    SMALL,
    TILES,
)
from attnspec.conformance.laws.helpers.lengths import comparable_rows, each_element, has_keys
from attnspec.conformance.laws.helpers.options import check_lse
from attnspec.conformance.laws.helpers.rows import check_empty_rows, check_rows
from attnspec.conformance.laws.law import law
from attnspec.spec import (
    Case,
    Feature,
    KeyLengths,
    Mask,
    MaskedNonfinite,
    MaskPattern,
    MaskShape,
    Values,
)

RAGGED = SMALL.but(key_lengths=KeyLengths.RAGGED)
SMALLEST = Case(
    batch=2, queries=1, keys=3, d_head=2, d_value=2, dtype=torch.float32,
    key_lengths=KeyLengths.RAGGED,
)  # fmt: skip
OF_TILES = TILES.but(batch=3, key_lengths=KeyLengths.RAGGED)
DECODING = Case(
    batch=5, heads=8, kv_heads=2, queries=1, keys=300, d_head=64, d_value=64, dtype=BF16,
    key_lengths=KeyLengths.RAGGED,
)  # fmt: skip
LENGTHS = (Feature.KEY_LENGTHS,)


@law(
    "LEN-1",
    pinned=(
        SMALLEST,
        *vary(RAGGED, dtype=DTYPES),
        *vary(RAGGED, seed=range(1, 5)),
        RAGGED.but(batch=6, keys=19),
        RAGGED.but(heads=6, kv_heads=2, keys=33),
        OF_TILES,
        OF_TILES.but(keys=129, seed=1, dtype=F16),
        DECODING,
    ),
    explore=cases(
        always=LENGTHS,
        masked=False,
        causal=False,
        scales=POSITIVE,
        only=lambda case: plain(case) and case.key_lengths is KeyLengths.RAGGED,
    ),
    cost=3,
)
def law_numbers_beyond_the_length_change_nothing(subject: Subject, case: Case) -> None:
    """LEN-1: other keys and values beyond the length of their batch element change no output."""
    call = subject.draw(case)
    hidden = ~has_keys(call)
    if not bool(hidden.any()):
        raise NotClaimed("every batch element has all keys")
    changed = {}
    for name, size in (("key", 3.0), ("value", 100.0)):
        tensor = getattr(call, name)
        other = size * normal_like(case, f"beyond {name}", tensor).double()
        changed[name] = torch.where(hidden, other.to(tensor.dtype), tensor)
    message = "numbers beyond the length of a batch element change its output"
    check_equal_calls(subject, call, call.but(**changed), message)


@law(
    "LEN-1",
    pinned=(
        SMALLEST,
        *vary(RAGGED, dtype=DTYPES),
        RAGGED.but(is_causal=True),
        RAGGED.but(heads=6, kv_heads=2, keys=17, seed=2),
        OF_TILES,
        OF_TILES.but(queries=1, keys=257, seed=3),
    ),
    explore=cases(always=LENGTHS, families=CLEAN, masked=False, scales=POSITIVE, only=plain),
    cost=8,
)
def law_nan_and_infinity_beyond_the_length_follow_the_profile(subject: Subject, case: Case) -> None:
    """LEN-1: NaN or infinity beyond the length has no effect, or gives NaN by profile."""
    call = subject.draw(case)
    expected = subject.expect(call)
    beyond = ~has_keys(call)
    if not bool(beyond.any()):
        raise NotClaimed("every batch element has all keys")
    profile = subject.implementation.profile
    answers = {"key": profile.masked_keys, "value": profile.masked_values}
    finite = torch.finfo(case.dtype).max
    for name, poison in (
        ("value", torch.nan),
        ("key", torch.nan),
        ("value", -torch.inf),
        ("key", torch.inf),
        ("key", -torch.inf),
        ("key", finite),
    ):
        changed = call.but(**{name: getattr(call, name).masked_fill(beyond, poison)})
        rows = comparable_rows(subject, changed)
        message = f"{poison:.3g} in a {name} beyond the length changes the output"
        may_be_nan = answers[name] is MaskedNonfinite.PROPAGATES
        out = subject.call(changed)
        check_rows(changed, out, expected.out, expected, rows, message, or_nan=may_be_nan)
    require_evidence(call, expected)


@law(
    "LEN-2",
    pinned=(
        SMALLEST,
        *vary(RAGGED, dtype=DTYPES),
        *vary(RAGGED, seed=range(1, 5)),
        RAGGED.but(mask=HIDDEN, keys=12),
        RAGGED.but(mask=BIAS),
        RAGGED.but(mask=Mask(shape=MaskShape.KEYS, pattern=MaskPattern.LEFT_PADDING), keys=15),
        RAGGED.but(is_causal=True, queries=7),
        GROUPED.but(key_lengths=KeyLengths.RAGGED, seed=1),
        RAGGED.but(values=Values.PEAKED, batch=7, keys=40),
        OF_TILES,
        OF_TILES.but(queries=65, keys=200, batch=5, is_causal=True),
        DECODING,
    ),
    explore=cases(always=LENGTHS, sometimes=OPTIONS, scales=POSITIVE, only=plain),
    cost=5,
)
def law_a_batch_of_lengths_equals_separate_calls(subject: Subject, case: Case) -> None:
    """LEN-2: each batch element gives what a call with its keys alone gives."""
    call = subject.draw(case)
    out, expected = subject.call(call), subject.expect(call)
    for number, alone in each_element(subject, call):
        own = subject.call(alone)
        exact = subject.expect(alone)
        message = "alone, with the keys that it has, a batch element gives another output"
        rows = comparable_rows(subject, alone)
        check_rows(alone, own, expected.out[number : number + 1], exact, rows, message)
        require_evidence(alone, exact)
    subject.judge(call, out, "the output is wrong where batch elements have unequal lengths")


@law(
    "LEN-5",
    pinned=(
        SMALLEST.but(key_lengths=KeyLengths.EMPTY),
        *vary(RAGGED.but(key_lengths=KeyLengths.EMPTY), dtype=DTYPES),
        RAGGED.but(key_lengths=KeyLengths.EMPTY, is_causal=True),
        RAGGED.but(key_lengths=KeyLengths.EMPTY, softcap=2.0),
        GROUPED.but(key_lengths=KeyLengths.EMPTY),
        OF_TILES.but(key_lengths=KeyLengths.EMPTY),
        DECODING.but(key_lengths=KeyLengths.EMPTY),
    ),
)
def law_a_batch_element_without_keys_is_empty(subject: Subject, case: Case) -> None:
    """LEN-5: every query of a batch element of length zero gives what an empty row gives."""
    call = subject.draw(case)
    out, expected = subject.call(call), subject.expect(call)
    check_empty_rows(
        subject, call, out, expected, "a query of a batch element without keys does not give"
    )
    subject.judge(call, out, "an output beside an element without keys is wrong")


@law(
    "LEN-6",
    pinned=(
        *vary(RAGGED, mask=(HIDDEN, BIAS)),
        *vary(RAGGED.but(keys=15), window=((3, 1), (2, None), (None, None))),
        RAGGED.but(keys=15, softcap=1.0, values=Values.PEAKED),
        RAGGED.but(sinks=True),
        RAGGED.but(alibi=True, keys=15),
        *vary(RAGGED.but(return_lse=True), dtype=DTYPES),
        RAGGED.but(key_lengths=KeyLengths.EMPTY, return_lse=True),
        RAGGED.but(is_causal=True, queries=6, keys=15),
        *vary(RAGGED.but(is_causal=True, mask=HIDDEN, keys=15), dtype=DTYPES),
        GROUPED.but(key_lengths=KeyLengths.RAGGED, is_causal=True),
        GROUPED.but(key_lengths=KeyLengths.RAGGED, window=(4, 0), is_causal=True, seed=2),
        OF_TILES.but(window=(16, 0), keys=130),
        OF_TILES.but(sinks=True, queries=1, heads=4, kv_heads=2, keys=130, return_lse=True),
        DECODING.but(window=(64, 0)),
        DECODING.but(softcap=30.0, keys=1031),
    ),
    explore=cases(
        always=LENGTHS, sometimes=(*OPTIONS, Feature.QUERY_OFFSET), scales=POSITIVE, only=plain
    ),
)
def law_lengths_and_options_combine(subject: Subject, case: Case) -> None:
    """LEN-6: with lengths, each option does to the keys of a batch element what it does alone."""
    call = subject.draw(case)
    message = "lengths and another option do not both apply"
    expected = subject.judge(call, subject.call(call), message)
    if case.return_lse:
        _, lse = subject.call_with_lse(call)
        check_lse(lse, expected.lse, expected, "the log-sum-exp counts other keys than there are")
    require_evidence(call, expected)
