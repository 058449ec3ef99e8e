"""Laws of SEQ: what does not belong to a sequence does nothing to it."""

import torch

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.packed.call import PackedCall
from attnspec.conformance.operators.packed.case import GARBAGE, PackedCase, cases, offsets
from attnspec.conformance.operators.packed.subject import AXES, PackedSubject
from attnspec.spec import MaskedNonfinite
from attnspec.spec.packed import CAUSAL

F32 = torch.float32
EMPTY = (
    PackedCase(queries=(0, 2), keys=(0, 2)),
    PackedCase(queries=(2, 0, 3), keys=(2, 0, 3)),
    PackedCase(queries=(2, 3, 0), keys=(2, 3, 0)),
    PackedCase(queries=(0, 2, 0, 0, 3), keys=(3, 2, 1, 0, 3)),
    PackedCase(queries=(1, 2, 1), keys=(0, 2, 0), dtype=F32),
    PackedCase(queries=(0, 1, 0, 1), keys=(0, 3, 0, 5), heads=3, kv_heads=1),
    PackedCase(queries=(0, 0), keys=(2, 0)),
    PackedCase(queries=(2, 1), keys=(0, 0)),
)


@law("SEQ-4", pinned=EMPTY, explore=lambda subject: cases(subject).filter(_is_partly_empty))
def law_empty_sequences_change_nothing(subject: PackedSubject, case: PackedCase) -> None:
    """SEQ-4: a sequence without queries or keys, wherever it lies, changes no other sequence."""
    case = subject.expressible(case)
    subject.judge_case(case, "a sequence of length zero changes a result")


def _is_partly_empty(case: PackedCase) -> bool:
    return case.has_empty_sequences


SEVERAL = (
    PackedCase(queries=(2, 2), keys=(2, 2)),
    PackedCase(queries=(2, 1, 3), keys=(3, 4, 2), dtype=F32, seed=1),
    PackedCase(queries=(17, 1, 3), keys=(17, 14, 2), dtype=F32, heads=2, kv_heads=2),
    PackedCase(queries=(2, 1, 3), keys=(3, 4, 2), window=CAUSAL, seed=2),
)


@law("SEQ-9", pinned=SEVERAL, explore=lambda subject: cases(subject, outside=0), cost=3.0)
def law_other_sequences_change_nothing(subject: PackedSubject, case: PackedCase) -> None:
    """SEQ-9: whatever the keys and values of other sequences hold, a sequence keeps its result."""
    case = subject.expressible(case)
    call = case.draw(subject.profile)
    blocked = subject.profile.neighbours is MaskedNonfinite.BLOCKED
    for kept in range(call.sequences):
        poisoned = poison(call, kept, torch.nan if blocked else GARBAGE)
        result = subject.call(poisoned)
        expected = subject.expect(call)[kept]
        try:
            check_close(
                result.out[call.rows(kept)],
                expected.out,
                expected.bound,
                what=f"out of sequence {kept}",
                message="the numbers of other sequences change the result of a sequence",
                may_be_nan=expected.may_be_nan,
                axes=AXES,
            )
        except Violation:
            # a result that is wrong by itself is named by what is wrong
            subject.judge(call, "a sequence differs from attention over its own keys")
            subject.call(poisoned)  # the call of the failure
            raise


def poison(call: PackedCall, kept: int, number: float) -> PackedCall:
    """Return the call with keys and values of all but one sequence replaced."""
    keys = call.key_rows(kept)
    others = torch.ones(len(call.key), dtype=torch.bool)
    others[keys] = False
    place = others[:, None, None]
    changed: PackedCall = call.but(
        key=torch.where(place, number, call.key), value=torch.where(place, number, call.value)
    )
    return changed


SLACK = (
    PackedCase(slack=1),
    PackedCase(queries=(2, 3), keys=(4, 3), slack=5, window=CAUSAL),
    PackedCase(queries=(1, 1), keys=(4, 3), slack=100, window=CAUSAL, dtype=F32),
    PackedCase(queries=(3, 1), keys=(4, 3), slack=3, dtype=F32, lse=True),
)


@law("SEQ-10", pinned=SLACK, explore=lambda subject: cases(subject, slack=9))
def law_larger_maxima_change_nothing(subject: PackedSubject, case: PackedCase) -> None:
    """SEQ-10: max_q and max_k larger than any length change no result."""
    case = subject.expressible(case)
    tight = case.but(slack=0)
    subject.judge_case(tight, "a sequence differs from attention over its own keys")
    subject.judge_case(case, "a result depends on max_q or max_k")


OUTSIDE = (
    PackedCase(queries=(2,), keys=(2,), outside=1),
    PackedCase(queries=(2, 3), keys=(4, 3), outside=2),
    PackedCase(queries=(2, 3), keys=(4, 3), outside=5, window=CAUSAL, dtype=F32),
    PackedCase(queries=(2, 0), keys=(4, 0), outside=3),
)


@law("SEQ-11", pinned=OUTSIDE, explore=lambda subject: cases(subject, outside=4))
def law_rows_outside_all_sequences_change_nothing(subject: PackedSubject, case: PackedCase) -> None:
    """SEQ-11: rows behind the last sequence are not read, and their output is the declared one."""
    case = subject.expressible(case)
    subject.judge_case(case, "rows behind the last sequence change a result")


@law("SEQ-12", pinned=SEVERAL, explore=lambda subject: cases(subject, outside=0), cost=2.0)
def law_sequences_may_come_in_any_order(subject: PackedSubject, case: PackedCase) -> None:
    """SEQ-12: a pack in another order has the same rows in that order."""
    case = subject.expressible(case)
    call = case.draw(subject.profile)
    subject.judge(call, "a sequence differs from attention over its own keys")
    order = list(range(call.sequences))[::-1]
    subject.judge(reordered(call, order), "a sequence is wrong in another order of the sequences")


def reordered(call: PackedCall, order: list[int]) -> PackedCall:
    """Return the pack of some of the sequences, in a given order."""
    rows = [call.rows(b) for b in order]
    keys = [call.key_rows(b) for b in order]
    changed: PackedCall = call.but(
        query=torch.cat([call.query[each] for each in rows]),
        key=torch.cat([call.key[each] for each in keys]),
        value=torch.cat([call.value[each] for each in keys]),
        cu_seq_q=_offsets(call, rows),
        cu_seq_k=_offsets(call, keys),
    )
    return changed


def _offsets(call: PackedCall, parts: list[slice]) -> torch.Tensor:
    """Return the offsets of some parts, in the integer type of a call."""
    return offsets((each.stop - each.start for each in parts), call.cu_seq_q.dtype)


CHUNKED = (
    PackedCase(queries=(2,), keys=(2,), window=CAUSAL),
    PackedCase(queries=(3, 2), keys=(4, 5), window=CAUSAL),
    PackedCase(queries=(5, 9), keys=(7, 9), window=CAUSAL, dtype=F32, heads=2, kv_heads=2),
)


@law(
    "SEQ-13",
    pinned=CHUNKED,
    explore=lambda subject: cases(subject, window=CAUSAL, outside=0, alibi=False),
    needs={"causal"},
    cost=2.0,
)
def law_chunks_of_a_sequence_equal_the_whole(subject: PackedSubject, case: PackedCase) -> None:
    """SEQ-13: queries in chunks, each with the keys up to its end, have the rows of the whole."""
    call = case.draw(subject.profile)
    whole = subject.judge(call, "a sequence differs from attention over its own keys")
    chunked, rows = chunks(call)
    if not rows:
        raise NotClaimed("a sequence of one query has no chunks")
    lengths = [tuple(each.diff().tolist()) for each in (chunked.cu_seq_q, chunked.cu_seq_k)]
    subject.demand(case.but(queries=lengths[0], keys=lengths[1]))
    parts = subject.judge(chunked, "a chunk of queries is wrong by itself")
    expected, own = subject.expect(call), subject.expect(chunked)
    for place, (b, row) in enumerate(rows):
        begin = call.rows(b).start + row
        length = own[place].out.shape[0]
        out = whole.out[begin : begin + length].double()
        bound = own[place].bound + expected[b].bound[row : row + length]
        # of an empty row a sequence without keys may give zero, and the whole sequence NaN
        bound = torch.where(out.isfinite(), bound, torch.inf)
        check_close(
            parts.out[chunked.rows(place)],
            out.nan_to_num(0.0),
            bound,
            what=f"out of a chunk of sequence {b}",
            message="a chunk of queries differs from the whole sequence",
            may_be_nan=own[place].may_be_nan,
            axes=AXES,
        )


def chunks(call: PackedCall) -> tuple[PackedCall, list[tuple[int, int]]]:
    """Return the pack of both halves of each sequence, and the place of the first row of each.

    The last query of a chunk has the position of the last key of the chunk.
    """
    queries, keys, places = [], [], []
    for b in range(call.sequences):
        of_query, of_key = call.rows(b), call.key_rows(b)
        count = of_query.stop - of_query.start
        first = count // 2
        for begin, end in ((0, first), (first, count)):
            last_key = max(of_key.stop - (count - end), of_key.start)
            if begin < end:
                queries.append(slice(of_query.start + begin, of_query.start + end))
                keys.append(slice(of_key.start, last_key))
                places.append((b, begin))
    changed: PackedCall = call.but(
        query=torch.cat([call.query[each] for each in queries] or [call.query[:0]]),
        key=torch.cat([call.key[each] for each in keys] or [call.key[:0]]),
        value=torch.cat([call.value[each] for each in keys] or [call.value[:0]]),
        cu_seq_q=_offsets(call, queries),
        cu_seq_k=_offsets(call, keys),
    )
    return changed, places


INVARIANT = (
    PackedCase(queries=(1, 2), keys=(5, 40), dtype=F32),
    PackedCase(queries=(3, 1, 20), keys=(3, 33, 65), dtype=F32, heads=2, kv_heads=2, d_head=16),
)


@law("SEQ-14", pinned=INVARIANT, explore=lambda subject: cases(subject, outside=0), cost=3.0)
def law_declared_batch_invariance_holds_bit_for_bit(
    subject: PackedSubject, case: PackedCase
) -> None:
    """SEQ-14: if batch invariance is declared, a sequence alone has the bits that it has packed."""
    if not subject.profile.batch_invariant:
        raise NotClaimed("batch invariance is not declared")
    case = subject.expressible(case)
    call = case.draw(subject.profile)
    together = subject.call(call)
    for b in range(call.sequences):
        alone = reordered(call, [b])
        alone = alone.but(max_q=len(alone.query), max_k=len(alone.key))
        got = subject.call(alone)
        check_close(
            got.out,
            together.out[call.rows(b)].double(),
            torch.zeros_like(got.out, dtype=torch.float64),
            what=f"out of sequence {b} alone",
            message="the bits of a sequence depend on the other sequences",
            axes=AXES,
        )
