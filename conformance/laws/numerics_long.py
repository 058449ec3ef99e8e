"""Laws of NUM: long sequences, judged by some of their rows, so that any length fits in memory."""

import torch

from attnspec.conformance.compare import check_close
from attnspec.conformance.law import Judged, law
from attnspec.conformance.memory import demand_length
from attnspec.conformance.subject import Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.values import generator
from attnspec.spec import Case, Feature, Layout, Layouts, Values

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
HEADS_INSIDE = Layout.HEADS_INSIDE
SEQUENCE = Case(
    queries=2100,
    keys=2100,
    d_head=16,
    d_value=16,
    dtype=F32,
    is_causal=True,
    values=Values.ONE_HOT,
)
PEAKED = SEQUENCE.but(values=Values.PEAKED)
# of this seed the last keys carry much: at such a length the bound is a fiftieth of the values
FEW = PEAKED.but(queries=2, keys=70_000, d_head=2, d_value=2, is_causal=False, seed=7)
UNEVEN = PEAKED.but(queries=17, keys=2101, is_causal=False)
ACROSS = PEAKED.but(queries=1100, keys=1099, is_causal=False)
LONG = PEAKED.but(queries=131_072, keys=131_072, d_head=64, d_value=64)

TRIED = 4096
"""The length at which a call is tried before it is made at a length beyond this."""

AT_RANDOM = 16
"""Rows taken at random, beside those at borders."""


def sampled(case: Case) -> torch.Tensor:
    """The rows by which a call is judged: both ends, about each power of two, and some at random.

    Powers of two are where tiles end and where narrow integers and floats run out.
    """
    last = case.queries - 1
    wanted = {0, 1, 15, 17, last - 1, last}
    wanted |= {2**n + near for n in range(4, last.bit_length() + 1) for near in (-1, 0, 1)}
    dice = generator(case.seed, "rows")
    wanted |= set(torch.randint(case.queries, (AT_RANDOM,), generator=dice).tolist())
    return torch.tensor(sorted(each for each in wanted if 0 <= each <= last))


@law(
    "NUM-14",
    "NUM-15",
    judges=Judged.ATTENTION,
    pinned=(
        UNEVEN,
        UNEVEN.but(queries=523, keys=613, dtype=BF16, seed=2),
        PEAKED.but(queries=1030, keys=1030, dtype=BF16, seed=1),
        ACROSS.but(window=(37, 5)),
        ACROSS.but(window=(300, 0), is_causal=True, seed=1),
        ACROSS.but(softcap=3.0, alibi=True, sinks=True),
        SEQUENCE,
        FEW,
        FEW.but(keys=40_000, dtype=F16, heads=2, kv_heads=2, layouts=Layouts(key=HEADS_INSIDE)),
    ),
    large=(LONG,),
    needs={Feature.CAUSAL},
)
def law_rows_of_a_long_sequence_stay_within_the_bound(subject: Subject, case: Case) -> None:
    """NUM-14: at any length, each row is within its own bound."""
    if max(case.queries, case.keys) > TRIED and case.queries * case.keys > TRIED**2:

        def run(length: int) -> object:
            return subject.call(subject.draw(case.but(queries=length, keys=length)))

        demand_length(run, TRIED, max(case.queries, case.keys), case.device)
    call = subject.draw(case)
    rows = sampled(case)
    expected = subject.expect(call, rows=rows)
    if not expected.is_evidence:
        raise NotClaimed("the bound is not small against the values at this length")
    out = subject.call(call)[:, :, rows.to(call.query.device)]
    check_close(
        out,
        expected.out,
        expected.bound,
        what="out",
        message="a row of a long sequence is wrong",
        dtype=call.value.dtype,
        may_be_nan=expected.may_be_nan,
        rows=rows,
    )
