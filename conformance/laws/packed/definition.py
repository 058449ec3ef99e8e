"""Laws of SEQ: attention of each sequence over its own keys, with every option."""

import torch

from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.packed.case import PackedCase, cases
from attnspec.conformance.operators.packed.subject import PackedSubject
from attnspec.spec import Values
from attnspec.spec.packed import CAUSAL, EVERYWHERE

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16

SMALLEST = PackedCase(queries=(1, 1), keys=(1, 1), d_head=1)
UNEVEN = PackedCase(queries=(2, 1, 3), keys=(3, 4, 2), heads=2, kv_heads=2, d_head=8)
PINNED = (
    SMALLEST,
    PackedCase(queries=(2,), keys=(3,)),
    PackedCase(),
    UNEVEN,
    *(UNEVEN.but(dtype=dtype, queries=(5, 3, 17, 2), keys=(4, 9, 17, 5)) for dtype in (F32, F16)),
    UNEVEN.but(dtype=BF16, values=Values.PEAKED, seed=1),
    UNEVEN.but(dtype=F32, scale=0.1, values=Values.OFFSET, seed=2),
)


@law("SEQ-1", pinned=PINNED, explore=cases)
def law_packed_equals_a_call_for_each_sequence(subject: PackedSubject, case: PackedCase) -> None:
    """SEQ-1: the rows of a sequence are attention of its queries over its keys alone."""
    subject.judge_case(case, "a sequence differs from attention over its own keys")


DIAGONAL = (
    PackedCase(queries=(1, 2), keys=(2, 2), window=CAUSAL),
    PackedCase(queries=(3, 2), keys=(3, 4), window=CAUSAL),
    PackedCase(queries=(2, 4, 1), keys=(5, 4, 3), heads=2, kv_heads=2, window=CAUSAL, dtype=F32),
    PackedCase(queries=(5, 3), keys=(2, 7), window=CAUSAL, seed=1),
    PackedCase(queries=(1, 1, 1), keys=(6, 3, 1), window=CAUSAL, dtype=BF16),
)


@law(
    "SEQ-2",
    pinned=DIAGONAL,
    explore=lambda subject: cases(subject, window=CAUSAL),
    needs={"causal"},
)
def law_the_diagonal_of_each_sequence_ends_at_its_last_key(
    subject: PackedSubject, case: PackedCase
) -> None:
    """SEQ-2: the last query of a sequence reads up to its last key, the one before one less."""
    subject.judge_case(case, "the diagonal of a sequence does not end at its last key")


WINDOWED = (
    PackedCase(queries=(3, 4), keys=(3, 4), window=(1, 0)),
    PackedCase(queries=(2, 3), keys=(5, 4), window=(2, 0), heads=2, kv_heads=2),
    PackedCase(queries=(4, 5), keys=(4, 5), window=(1, 2), dtype=F32),
    PackedCase(queries=(5, 2), keys=(3, 6), window=(0, 0)),
    PackedCase(queries=(3, 4), keys=(6, 4), window=(-1, 1)),
    PackedCase(queries=(3, 4), keys=(6, 4), window=(1, -1)),
    PackedCase(queries=(20, 1), keys=(20, 33), window=(15, 0), dtype=F32, seed=1),
)


@law(
    "SEQ-3",
    pinned=WINDOWED,
    explore=lambda subject: cases(subject).filter(lambda case: "window" in case.features),
    needs={"window"},
)
def law_windows_count_within_each_sequence(subject: PackedSubject, case: PackedCase) -> None:
    """SEQ-3: a query reads the keys of its sequence at most so far to its left and right."""
    subject.judge_case(case, "a window does not hold exactly the keys near the query's position")


GROUPED = (
    PackedCase(heads=4, kv_heads=2),
    PackedCase(queries=(3, 1, 2), keys=(3, 4, 2), heads=6, kv_heads=2, d_head=8, dtype=F32),
    PackedCase(queries=(1, 1), keys=(5, 9), heads=7, kv_heads=1, dtype=F32),
    PackedCase(queries=(3, 17), keys=(5, 18), heads=14, kv_heads=2, dtype=F32),
)


@law(
    "SEQ-5",
    pinned=GROUPED,
    explore=lambda subject: cases(subject).filter(lambda case: "gqa" in case.features),
    needs={"gqa"},
)
def law_packed_heads_share_keys_in_runs(subject: PackedSubject, case: PackedCase) -> None:
    """SEQ-5: query head h reads key/value head h // (heads / kv_heads) of its own sequence."""
    subject.judge_case(case, "query heads do not share key/value heads in runs")


OPTIONS = (
    PackedCase(queries=(2, 3), keys=(4, 3), softcap=0.5),
    PackedCase(queries=(2, 3), keys=(4, 3), heads=2, kv_heads=2, sinks=True),
    PackedCase(queries=(2, 3), keys=(4, 3), heads=2, kv_heads=2, alibi=True),
    PackedCase(queries=(4, 3), keys=(2, 6), heads=2, kv_heads=2, alibi=True, dtype=F32),
    PackedCase(queries=(4, 3), keys=(2, 6), heads=2, kv_heads=2, sinks=True, dtype=BF16),
)


@law(
    "SEQ-6",
    pinned=OPTIONS,
    explore=lambda subject: cases(subject).filter(
        lambda case: bool(case.features & {"softcap", "sinks", "alibi"})
    ),
)
def law_packed_options_apply_within_each_sequence(subject: PackedSubject, case: PackedCase) -> None:
    """SEQ-6: softcap, sinks and slopes do to a sequence what they do to a call of its own."""
    subject.demand(case)
    subject.judge_case(case, "an option does not do to a sequence what it does in a padded call")


SUMMED = (
    PackedCase(lse=True),
    PackedCase(queries=(2, 1, 3), keys=(3, 4, 2), heads=2, kv_heads=2, lse=True, dtype=F32),
    PackedCase(queries=(4, 3), keys=(2, 6), heads=3, kv_heads=3, lse=True, seed=1),
)


@law(
    "SEQ-7",
    pinned=SUMMED,
    explore=lambda subject: cases(subject, lse=True),
    needs={"lse"},
)
def law_packed_log_sum_exp_is_that_of_each_sequence(
    subject: PackedSubject, case: PackedCase
) -> None:
    """SEQ-7: the log-sum-exp is natural, over the keys of the sequence, in the declared layout."""
    subject.judge_case(case, "the log-sum-exp is not that of the sequence")


TILES = (
    PackedCase(queries=(15, 17, 2), keys=(15, 17, 2), dtype=F32),
    PackedCase(queries=(16, 1, 33), keys=(16, 1, 33), dtype=F32, heads=2, kv_heads=2),
    PackedCase(queries=(63, 2, 65), keys=(63, 2, 65), dtype=F32, d_head=8),
    PackedCase(queries=(1, 2, 1, 1), keys=(129, 64, 3, 127), dtype=F32, d_head=8),
    PackedCase(queries=(1, 130, 1), keys=(1, 257, 1), dtype=F32, d_head=16),
    PackedCase(queries=(1,) * 9, keys=(1, 600, 1, 2, 3, 1, 1, 1, 16), dtype=F32, seed=1),
)


@law("SEQ-8", pinned=TILES)
def law_lengths_around_tiles_are_exact(subject: PackedSubject, case: PackedCase) -> None:
    """SEQ-8: sequences may end anywhere in a tile, several in one, and differ much in length."""
    causal = case.but(window=CAUSAL)
    case = causal if subject.refuses(causal) is None else case.but(window=EVERYWHERE)
    subject.judge_case(case, "a sequence is wrong whose end lies inside a tile")
