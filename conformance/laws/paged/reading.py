"""Laws of PAG: attention over the keys in the pages of a sequence, and over nothing else."""

import torch

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.laws.tensors.large import FARTHER, spread_out
from attnspec.conformance.operators.packed.case import GARBAGE
from attnspec.conformance.operators.packed.subject import AXES
from attnspec.conformance.operators.paged.call import PagedCall
from attnspec.conformance.operators.paged.case import PagedCase, Past, Places, cases
from attnspec.conformance.operators.paged.subject import PagedSubject
from attnspec.spec import MaskedNonfinite
from attnspec.spec.packed import CAUSAL

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
MIXED = PagedCase(queries=(1, 2, 3), keys=(9, 5, 14), heads=2, kv_heads=2, d_head=8)
PINNED = (
    PagedCase(queries=(1,), keys=(1,), page_size=1, columns=0, d_head=1),
    PagedCase(queries=(1, 1), keys=(3, 2), page_size=2, places=Places.ORDERED),
    PagedCase(queries=(1, 1), keys=(6, 3), page_size=4),
    MIXED,
    *(MIXED.but(dtype=dtype, queries=(1, 4, 1), keys=(33, 4, 17)) for dtype in (F32, F16, BF16)),
)


@law("PAG-1", pinned=PINNED, explore=cases)
def law_paged_equals_packed_on_the_tokens_of_the_pages(
    subject: PagedSubject, case: PagedCase
) -> None:
    """PAG-1: token t of sequence b is slot t mod page_size of page table[b, t // page_size]."""
    subject.judge_case(subject.expressible(case), "a sequence is not attention over its pages")


LENGTHS = (
    PagedCase(queries=(1, 1), keys=(2, 3), window=CAUSAL),
    PagedCase(queries=(2, 3), keys=(3, 6), window=CAUSAL, columns=2),
    PagedCase(queries=(3, 1, 2), keys=(9, 4, 2), window=CAUSAL, columns=5, slack=9, dtype=F32),
    PagedCase(queries=(2, 3), keys=(7, 6), window=(2, 0), columns=3),
)


@law("PAG-2", pinned=LENGTHS, explore=lambda subject: cases(subject, window=CAUSAL, columns=4))
def law_positions_count_from_the_used_length(subject: PagedSubject, case: PagedCase) -> None:
    """PAG-2: the last query has the position of the last token in use, whatever has room."""
    subject.judge_case(subject.expressible(case), "positions do not count from seqused_k")


SHUFFLED = (
    PagedCase(queries=(1, 1), keys=(6, 5), page_size=2),
    PagedCase(queries=(2, 1, 3), keys=(9, 4, 14), dtype=F32, window=CAUSAL, seed=1),
    PagedCase(queries=(1,), keys=(40,), page_size=3, dtype=F32, heads=2, kv_heads=2),
)


@law("PAG-3", pinned=SHUFFLED, explore=cases, cost=2.0)
def law_the_places_of_pages_are_irrelevant(subject: PagedSubject, case: PagedCase) -> None:
    """PAG-3: pages moved in the pool, and the table with them, give the same rows."""
    case = subject.expressible(case)
    call = case.draw(subject.profile)
    subject.judge(call, "a sequence is not attention over its pages")
    generator = torch.Generator().manual_seed(case.seed + 1)
    order = torch.randperm(len(call.key), generator=generator)
    subject.judge(moved(call, order), "a sequence is wrong after its pages have moved")


def moved(call: PagedCall, order: torch.Tensor) -> PagedCall:
    """Return the call whose page `order[p]` is page p of before."""
    key, value = torch.empty_like(call.key), torch.empty_like(call.value)
    key[order], value[order] = call.key, call.value
    table = call.block_table
    entry = order.to(table.dtype)[table.long().clamp(min=0)]
    changed: PagedCall = call.but(
        key=key, value=value, block_table=torch.where(table >= 0, entry, table)
    )
    return changed


ENTRIES = tuple(
    PagedCase(queries=queries, keys=keys, past=past, columns=3, page_size=size)
    for past in Past
    for queries, keys, size in (((1,), (2,), 2), ((1, 2), (4, 9), 4), ((1, 1, 1), (0, 1, 8), 4))
)


@law("PAG-4", pinned=ENTRIES, explore=lambda subject: cases(subject, columns=3))
def law_entries_past_the_length_are_not_read(subject: PagedSubject, case: PagedCase) -> None:
    """PAG-4: entries of the table past the last page of a sequence change nothing."""
    if subject.refuses(case) is not None:
        case = case.but(keys=tuple(max(each, 1) for each in case.keys))
    subject.judge_case(subject.expressible(case), "an entry past the last page changes a result")


RESTS = (
    PagedCase(queries=(1,), keys=(1,), page_size=2),
    PagedCase(queries=(1, 1), keys=(5, 7), page_size=4, dtype=F32),
    PagedCase(queries=(3, 2), keys=(17, 3), page_size=16, window=CAUSAL),
    PagedCase(queries=(1, 1), keys=(5, 7), page_size=64, dtype=BF16),
)


@law("PAG-5", pinned=RESTS, explore=cases, cost=2.0)
def law_the_rest_of_the_last_page_is_not_read(subject: PagedSubject, case: PagedCase) -> None:
    """PAG-5: slots of the last page that no token has reached change nothing."""
    case = subject.expressible(case)
    call = case.draw(subject.profile)
    subject.judge(call, "the rest of the last page changes a result")
    clean: PagedCall = call.but(key=call.key.nan_to_num(0.0), value=call.value.nan_to_num(0.0))
    subject.judge(clean, "a result is wrong without NaN in the pool")


SHARED = (
    PagedCase(queries=(1, 1), keys=(5, 6), places=Places.SHARED),
    PagedCase(queries=(2, 1, 3), keys=(9, 12, 10), places=Places.SHARED, dtype=F32, seed=1),
    PagedCase(queries=(1,), keys=(9,), places=Places.TWICE),
    PagedCase(queries=(1, 2), keys=(9, 11), places=Places.TWICE, window=CAUSAL, dtype=F32),
)


@law("PAG-6", pinned=SHARED, explore=lambda subject: cases(subject, places=Places.SHARED))
def law_pages_may_be_shared(subject: PagedSubject, case: PagedCase) -> None:
    """PAG-6: a page may belong to several sequences, and to one of them twice."""
    subject.judge_case(subject.expressible(case), "a page that is shared gives a wrong result")


SIZES = tuple(
    PagedCase(queries=(1, 1), keys=(max(3, size + 1), 2 * size), page_size=size, dtype=F32)
    for size in (1, 3, 16, 24, 64, 128, 256)
)


@law("PAG-7", pinned=SIZES)
def law_any_page_size_that_is_claimed_holds(subject: PagedSubject, case: PagedCase) -> None:
    """PAG-7: the page size changes no result: 1, powers of two, and others that are claimed."""
    subject.judge_case(subject.expressible(case), "a page size gives a wrong result")


STRIDED = (
    PagedCase(strided=True),
    PagedCase(queries=(1, 3), keys=(9, 5), strided=True, columns=3, dtype=F32, window=CAUSAL),
    PagedCase(queries=(1, 1, 1), keys=(9, 5, 2), columns=7),
)


@law("PAG-8", pinned=STRIDED, explore=lambda subject: cases(subject, strided=True))
def law_strides_of_pools_and_tables_mean_nothing(subject: PagedSubject, case: PagedCase) -> None:
    """PAG-8: pools that interleave keys and values, and tables with room, change no result."""
    case = subject.expressible(case)
    subject.judge_case(case.but(strided=False, columns=0), "a contiguous call is wrong")
    subject.judge_case(case, "strides of the pools or the table change a result")


FAR_APART = (
    PagedCase(queries=(1, 1), keys=(5, 7), dtype=F16),
    PagedCase(queries=(2, 1), keys=(9, 6), heads=4, kv_heads=2, window=CAUSAL, dtype=BF16),
)


@law("PAG-8", pinned=FAR_APART, cost=2.0)
def law_pages_may_lie_far_apart(subject: PagedSubject, case: PagedCase) -> None:
    """PAG-8: pages at offsets that 32 bits cannot count are read at their places."""
    call = subject.expressible(case).draw(subject.profile)
    subject.judge(call, "the output is wrong before the pages are spread out")
    for name in ("key", "value"):
        # half of the pages are beyond 2**31 numbers, and the pool holds two that no sequence has
        far: PagedCall = call.but(**{name: spread_out(getattr(call, name), 0, FARTHER)})
        subject.judge_in_place(far, f"the output is wrong if the pages of {name} lie far apart")


INDEXED = (
    PagedCase(queries=(1, 1), keys=(5, 7)),
    PagedCase(queries=(2, 1, 3), keys=(9, 4, 6), window=CAUSAL, dtype=F32),
    PagedCase(queries=(1, 1), keys=(9, 5), strided=True, columns=3, dtype=F16),
)


@law("PAG-19", pinned=INDEXED, explore=cases, cost=2.0)
def law_each_declared_integer_type_of_tables_is_read(
    subject: PagedSubject, case: PagedCase
) -> None:
    """PAG-19: offsets, lengths and a table of each declared integer type give the same rows."""
    case = subject.expressible(case)
    has_room = all(n <= m for n, m in zip(case.queries, case.keys, strict=True))
    if has_room and "append" in subject.implementation.features:
        case = case.but(append=True)
    for dtype in subject.profile.index_type.dtypes:
        what = str(dtype).partition(".")[2]
        message = f"a result is wrong for offsets, lengths and a table of {what}"
        call = case.but(indices=dtype).draw(subject.profile)
        subject.judge(call, message)
        if call.appends:
            subject.judge_pools(call, message)


OPTIONS = (
    PagedCase(queries=(1, 2), keys=(5, 9), heads=4, kv_heads=2),
    PagedCase(queries=(2, 3), keys=(5, 9), heads=7, kv_heads=1, dtype=F32),
    PagedCase(queries=(2, 3), keys=(5, 9), lse=True, dtype=F32),
    PagedCase(queries=(2, 3), keys=(12, 9), window=(3, 0)),
    PagedCase(queries=(1, 1), keys=(33, 20), window=(16, 0), page_size=16, dtype=F32),
    PagedCase(queries=(2, 3), keys=(5, 9), softcap=0.5),
    PagedCase(queries=(2, 3), keys=(5, 9), heads=2, kv_heads=2, sinks=True, alibi=True),
)


@law("PAG-9", pinned=OPTIONS, explore=cases)
def law_options_mean_the_same_on_pages(subject: PagedSubject, case: PagedCase) -> None:
    """PAG-9: groups, windows, softcap, sinks, slopes and log-sum-exp are those of a packed call."""
    subject.demand(case)
    subject.judge_case(case, "an option means something else on pages")


UNEQUAL = (
    PagedCase(queries=(1, 1, 1), keys=(1, 300, 17), page_size=16, dtype=F32),
    PagedCase(queries=(1, 1), keys=(700, 3), page_size=16, dtype=F32, heads=4, kv_heads=4),
    PagedCase(queries=(1, 1), keys=(528, 513), page_size=16, dtype=F32, window=(255, 0)),
    PagedCase(queries=(1, 129, 5), keys=(257, 129, 64), page_size=64, dtype=F32, window=CAUSAL),
)


@law("PAG-10", pinned=UNEQUAL)
def law_decoding_on_unequal_lengths_is_exact(subject: PagedSubject, case: PagedCase) -> None:
    """PAG-10: each sequence of a batch is read to its end, however many pages others have."""
    subject.judge_case(subject.expressible(case), "a sequence is wrong beside much longer ones")


BATCHES = (
    PagedCase(queries=(1, 1), keys=(5, 9)),
    PagedCase(queries=(2, 1, 3), keys=(9, 40, 14), dtype=F32, window=CAUSAL, seed=1),
)


@law("PAG-11", pinned=BATCHES, explore=lambda subject: cases(subject, outside=0), cost=3.0)
def law_the_rest_of_a_batch_changes_no_sequence(subject: PagedSubject, case: PagedCase) -> None:
    """PAG-11: alone, a sequence has its rows of the batch: bit for bit if that is declared."""
    case = subject.expressible(case.but(append=False))
    call = case.draw(subject.profile)
    together = subject.judge(call, "a sequence is not attention over its pages")
    for b in range(call.sequences):
        one = alone(call, b)
        got = subject.judge(one, "a sequence alone is wrong")
        if subject.profile.batch_invariant:
            check_close(
                got.out,
                together.out[call.rows(b)].double(),
                torch.zeros_like(got.out, dtype=torch.float64),
                what=f"out of sequence {b} alone",
                message="the bits of a sequence depend on the rest of the batch",
                axes=AXES,
            )
        _check_among_poison(subject, call, b)


def _check_among_poison(subject: PagedSubject, call: PagedCall, kept: int) -> None:
    """Check the rows of a sequence whose neighbours' pages hold NaN, or large numbers.

    Raises:
        Violation: if they are not its attention.
    """
    blocked = subject.profile.neighbours is MaskedNonfinite.BLOCKED
    poisoned = among_poison(call, kept, torch.nan if blocked else GARBAGE)
    expected = subject.expect(call)[kept]
    check_close(
        subject.call(poisoned).out[call.rows(kept)],
        expected.out,
        expected.bound,
        what=f"out of sequence {kept}",
        message="the numbers in pages of other sequences change the result of a sequence",
        may_be_nan=expected.may_be_nan,
        axes=AXES,
    )


def among_poison(call: PagedCall, kept: int, number: float) -> PagedCall:
    """Return the call with a number in all pages of the other sequences alone."""
    own = call.slots(kept, 0, call.lengths()[kept])[0]
    others = [call.slots(b, 0, length)[0] for b, length in enumerate(call.lengths())]
    pages = torch.zeros(len(call.key), dtype=torch.bool)
    pages[torch.cat(others)] = True
    pages[own] = False
    place = pages[:, None, None, None]
    changed: PagedCall = call.but(
        key=torch.where(place, number, call.key), value=torch.where(place, number, call.value)
    )
    return changed


def alone(call: PagedCall, b: int) -> PagedCall:
    """Return the call of one sequence of a batch."""
    rows, length = call.rows(b), call.lengths()[b]
    count = rows.stop - rows.start
    changed: PagedCall = call.but(
        query=call.query[rows],
        cu_seq_q=torch.tensor([0, count], dtype=call.cu_seq_q.dtype),
        cu_seq_k=torch.tensor([0, length], dtype=call.cu_seq_q.dtype),
        max_q=count,
        max_k=length,
        seqused_k=call.seqused_k[b : b + 1],
        block_table=call.block_table[b : b + 1],
    )
    return changed


WRITTEN = (PagedCase(), PagedCase(queries=(1, 2), keys=(5, 9), dtype=F32, window=CAUSAL))


@law("PAG-12", pinned=WRITTEN, explore=lambda subject: cases(subject, append=False))
def law_a_call_that_appends_nothing_writes_nothing(subject: PagedSubject, case: PagedCase) -> None:
    """PAG-12: without new tokens, a call leaves pools, table and lengths as they were."""
    case = subject.expressible(case)
    call = case.draw(subject.profile)
    before = {name: each.clone() for name, each in call.tensors().items()}
    subject.call_in_place(call)
    for name, each in call.tensors().items():
        if not bool(((each == before[name]) | (each.isnan() & before[name].isnan())).all()):
            raise Violation(f"a call that appends nothing writes to {name}")


REPEATED = (
    PagedCase(queries=(1,), keys=(3,)),
    PagedCase(queries=(1, 1), keys=(9, 5), dtype=F32),
    PagedCase(queries=(1, 1), keys=(9, 6), places=Places.SHARED),
)


@law("PAG-13", pinned=REPEATED, explore=lambda subject: cases(subject, append=False), cost=2.0)
def law_a_write_between_calls_is_seen(subject: PagedSubject, case: PagedCase) -> None:
    """PAG-13: after an engine has written to a page, the next call reads the new numbers."""
    case = subject.expressible(case)
    call = case.draw(subject.profile)
    if not sum(call.lengths()):
        raise NotClaimed("a call without keys reads no page")
    subject.judge_in_place(call, "the first call is wrong")
    for b, length in enumerate(call.lengths()):
        # the sequence rolls back a token and takes another, and a shared page has new tenants
        place = call.slots(b, max(length - 2, 0), length)
        call.key[place], call.value[place] = -call.key[place], call.value[place] + 1
    subject.judge_in_place(call, "a call after a write reads the numbers of before")
