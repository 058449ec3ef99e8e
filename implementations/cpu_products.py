"""A known bug of torch's matrix products in bfloat16 on CPUs with AMX.

If the inner length is odd, the last number of a row is multiplied together with the first number of
the next row, whose factor is zero: a NaN or an infinity there makes the row before it NaN. Seen in
torch 2.13.0 (oneDNN 3.12.0) with inner lengths from 5 on and some numbers of rows, such as 17 and
65; which ones depends on the number of threads.
"""

import functools

import torch

from attnspec.spec import Case, Deviation

SHOWN = Case(queries=17, keys=63, d_head=5, d_value=4, dtype=torch.bfloat16)
SPOILED_ROWS_LAWS = {
    "a-visible-nan-stays-visible": SHOWN.but(seed=1),
    "a-readable-nan-key-stays-visible": SHOWN.but(is_causal=True, seed=1),
    "unreadable-nan-and-infinity-follow-the-profile": SHOWN.but(is_causal=True),
    "nan-and-infinity-beyond-the-window-follow-the-profile": SHOWN.but(window=(None, 0)),
}
"""The laws that detect it, each with a case."""


@functools.cache
def rows_are_apart() -> str | None:
    """Return the reason why this machine does not show the bug, or None if it does."""
    rows = torch.zeros(17, 63, dtype=torch.bfloat16)
    rows[1] = torch.nan
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    product = rows @ torch.zeros(63, 4, dtype=torch.bfloat16)
    torch.set_num_threads(threads)
    if bool(product[0].isnan().any()):
        return None
    return "the bug of products in bfloat16 needs a CPU with AMX"


def is_stored_in_bfloat16(case: Case) -> bool:
    """Return whether the products of a case are in the storage type of the bug."""
    return case.dtype == torch.bfloat16


SPOILED_ROWS = tuple(
    Deviation(
        law=law,
        reason=(
            "a row of NaN makes the row before it NaN in matrix products of bfloat16 on CPUs with "
            "AMX (seen in torch 2.13.0)"
        ),
        link="docs/findings.md#the-row-before-a-row-of-nan",
        applies=is_stored_in_bfloat16,
        example=case,
        unavailable=rows_are_apart,
    )
    for law, case in SPOILED_ROWS_LAWS.items()
)
"""The bug, for each law that detects it in an attention that multiplies in bfloat16."""
