"""Laws of LEN: where queries are among the keys of their batch element."""

import torch

from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.laws.helpers.calls import plain, require_evidence
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    BIAS,
    DTYPES,
    F16,
    F32,
    GROUPED,
    HIDDEN,
    OPTIONS,
    SMALL,
    TILES,
)
from attnspec.conformance.laws.helpers.lengths import as_mask, lengths_of
from attnspec.conformance.laws.helpers.rows import check_equal_call, check_rows
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Feature, KeyLengths

PLACED = SMALL.but(key_lengths=KeyLengths.RAGGED, keys=15)
CHUNK = SMALL.but(query_offset=True, keys=15, is_causal=True)
SMALLEST = Case(
    batch=2, queries=2, keys=5, d_head=2, d_value=2, dtype=F32, query_offset=True, is_causal=True
)
OF_TILES = TILES.but(batch=4, keys=130)
SERVING = Case(
    batch=4, heads=8, kv_heads=2, queries=16, keys=400, d_head=64, d_value=64, dtype=BF16,
    query_offset=True, key_lengths=KeyLengths.RAGGED, is_causal=True,
)  # fmt: skip


def has_positions(case: Case) -> bool:
    """Return whether a plain case has an option that counts positions."""
    return plain(case) and (case.is_causal or case.alibi or case.window not in (None, (None, None)))


@law(
    "LEN-3",
    pinned=(
        SMALLEST.but(query_offset=False, key_lengths=KeyLengths.RAGGED),
        *vary(PLACED.but(is_causal=True), dtype=DTYPES),
        *vary(PLACED.but(is_causal=True), seed=range(1, 5)),
        *vary(PLACED, window=((2, 0), (0, 0), (3, 2), (None, 1))),
        PLACED.but(alibi=True),
        PLACED.but(is_causal=True, queries=1),
        PLACED.but(is_causal=True, queries=12, batch=6),
        GROUPED.but(key_lengths=KeyLengths.RAGGED, is_causal=True, keys=33, seed=3),
        OF_TILES.but(key_lengths=KeyLengths.RAGGED, is_causal=True),
        OF_TILES.but(key_lengths=KeyLengths.RAGGED, window=(20, 0), dtype=F16, seed=1),
        SERVING.but(query_offset=False),
        SERVING.but(query_offset=False, queries=1, keys=1031, window=(128, 0)),
    ),
    explore=cases(
        always=(Feature.KEY_LENGTHS,),
        sometimes=OPTIONS,
        scales=POSITIVE,
        only=has_positions,
    ),
)
def law_positions_count_from_the_length(subject: Subject, case: Case) -> None:
    """LEN-3: flag, window and slopes count from the last key of the element, or from the first."""
    call = subject.draw(case)
    lengths_of(call)
    expected = subject.judge(
        call, subject.call(call), "positions are not counted in the keys of each batch element"
    )
    require_evidence(call, expected)


@law(
    "LEN-4",
    pinned=(
        SMALLEST,
        *vary(CHUNK, dtype=DTYPES),
        *vary(CHUNK, seed=range(1, 5)),
        *vary(CHUNK.but(is_causal=False), window=((2, 0), (0, 0), (3, 2), (None, 1))),
        CHUNK.but(is_causal=False, alibi=True),
        CHUNK.but(queries=1),
        CHUNK.but(mask=HIDDEN),
        CHUNK.but(mask=BIAS, window=(4, 0)),
        *(CHUNK.but(**each) for each in ({"softcap": 2.0}, {"sinks": True}, {"return_lse": True})),
        CHUNK.but(heads=6, kv_heads=2),
        CHUNK.but(key_lengths=KeyLengths.RAGGED, batch=5),
        CHUNK.but(key_lengths=KeyLengths.RAGGED, queries=1, batch=6, keys=40),
        GROUPED.but(query_offset=True, is_causal=True, keys=33),
        OF_TILES.but(query_offset=True, is_causal=True),
        OF_TILES.but(query_offset=True, window=(20, 0), dtype=F16),
        SERVING,
        SERVING.but(window=(128, 0), keys=600),
    ),
    explore=cases(
        always=(Feature.QUERY_OFFSET,),
        sometimes=(*OPTIONS, Feature.KEY_LENGTHS),
        scales=POSITIVE,
        only=has_positions,
    ),
)
def law_queries_begin_at_their_offset(subject: Subject, case: Case) -> None:
    """LEN-4: query i of a batch element is at its offset plus i, under either alignment."""
    call = subject.draw(case)
    if call.query_offset is None:
        raise ValueError("a law of offsets needs a case with offsets")
    expected = subject.judge(call, subject.call(call), "a query is not at its offset")
    require_evidence(call, expected)


@law(
    "LEN-4",
    pinned=(
        SMALLEST.but(queries=5),
        *vary(CHUNK.but(queries=15), dtype=DTYPES),
        CHUNK.but(queries=15, is_causal=False, window=(3, 0)),
        CHUNK.but(queries=15, alibi=True),
        GROUPED.but(query_offset=True, is_causal=True, queries=33, keys=33),
        OF_TILES.but(query_offset=True, is_causal=True, queries=130),
    ),
    explore=cases(
        always=(Feature.QUERY_OFFSET,),
        sometimes=OPTIONS,
        masked=False,
        scales=POSITIVE,
        only=lambda case: has_positions(case) and case.queries == case.keys,
    ),
    cost=4,
)
def law_chunks_at_their_offsets_equal_one_call(subject: Subject, case: Case) -> None:
    """LEN-4: the queries of a text in chunks, each at its offset, give what they give at once."""
    call = subject.draw(case.but(query_offset=False))
    expected = subject.expect(call)
    subject.judge(call, subject.call(call), "the output is wrong before the text is cut")
    third = -(-case.queries // 3)
    for start in range(0, case.queries, third):
        rows = slice(start, start + third)
        offset = torch.full((case.batch,), start, dtype=torch.int32, device=call.query.device)
        chunk = call.but(query=call.query[:, :, rows], query_offset=offset)
        out, exact = subject.call(chunk), subject.expect(chunk)
        judged = torch.ones(out.shape[:3], dtype=torch.bool, device=out.device)
        message = f"queries from {start} on give another output at offset {start} than at once"
        check_rows(chunk, out, expected.out[:, :, rows], exact, judged, message)
        require_evidence(chunk, exact)


@law(
    "LEN-3",
    "LEN-4",
    pinned=(
        SMALLEST.but(key_lengths=KeyLengths.RAGGED),
        *vary(CHUNK.but(key_lengths=KeyLengths.RAGGED), dtype=DTYPES, seed=range(1, 4)),
        GROUPED.but(key_lengths=KeyLengths.RAGGED, query_offset=True, window=(3, 1), keys=40),
        OF_TILES.but(key_lengths=KeyLengths.RAGGED, query_offset=True, is_causal=True, queries=9),
    ),
    explore=cases(
        always=(Feature.KEY_LENGTHS, Feature.QUERY_OFFSET),
        sometimes=(Feature.WINDOW, Feature.SOFTCAP, Feature.SINKS),
        scales=POSITIVE,
        only=lambda case: has_positions(case) and not case.alibi,
    ),
    needs={Feature.MASK},
    cost=2,
)
def law_lengths_and_offsets_equal_a_mask(subject: Subject, case: Case) -> None:
    """LEN-3: a mask that hides the same keys, without lengths or offsets, gives the same."""
    call = subject.draw(case)
    masked = as_mask(subject, call)
    expected = subject.expect(call)
    message = "a mask differs from lengths and offsets that hide the same keys"
    check_equal_call(subject, masked, subject.call(masked), expected, message)
    subject.judge(call, subject.call(call), "lengths and offsets hide other keys than a mask does")
    require_evidence(call, expected)
