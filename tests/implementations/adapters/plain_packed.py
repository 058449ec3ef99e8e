"""Attention of one sequence in a few lines, from which the tests make kernels for serving."""

import math
from dataclasses import replace

import torch
from plain_kernel import in_place, plain

from attnspec.conformance import laws
from attnspec.conformance.operators.subjects import subject_of_operator
from attnspec.conformance.report.record import CONFORMING, Outcome
from attnspec.conformance.runner.check import check
from attnspec.spec.packed import OutsideRows, PackedImplementation, PackedProfile
from attnspec.spec.paged import PagedImplementation, PagedProfile
from attnspec.spec.profiles import MaskedNonfinite, RoundingLevel

LAWS = {name: law for name, law in laws.load().items() if law.judges in ("packed", "paged")}
ANSWERS = {"outside_rows": OutsideRows.ZERO, "rounding": RoundingLevel.EAGER}
PACKED = PackedProfile(**ANSWERS)
PAGED = PagedProfile(**ANSWERS)
SPREADING = replace(PAGED, neighbours=MaskedNonfinite.PROPAGATES)


def attended(q, k, v, *, left=-1, right=-1, scale=None, softcap=None, slopes=None, sinks=None):
    """Return out (queries, heads, d_head) and lse (heads, queries) of one sequence."""
    after = in_place(len(q), len(k), len(k) - len(q))
    visible = torch.ones_like(after, dtype=torch.bool)
    if left >= 0:
        visible &= after >= -left
    if right >= 0:
        visible &= after <= right
    bias = None if slopes is None else -slopes.to(q.dtype)[:, None, None] * after.abs()
    heads_first = (x.transpose(0, 1)[None] for x in (q, k, v))
    out, lse = plain(
        *heads_first, visible=visible, bias=bias, scale=scale, softcap=softcap, sinks=sinks
    )
    return out[0].transpose(0, 1), lse[0]


def of_each(q, offsets, keys_of, **options):
    """Return the results of all sequences; rows behind the last one are zero."""
    out = torch.zeros_like(q)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    lse = torch.full((q.shape[1], len(q)), -math.inf, dtype=wide)
    for b in range(len(offsets) - 1):
        rows = slice(int(offsets[b]), int(offsets[b + 1]))
        out[rows], lse[:, rows] = attended(q[rows], *keys_of(b), **options)
    return out, lse


def in_pages(pools, table, lengths):
    """Return a function that gives the keys and values of a sequence."""
    size = pools[0].shape[1]

    def keys_of(b):
        token = torch.arange(int(lengths[b]))
        return [pool[table[b].long()[token // size], token % size] for pool in pools]

    return keys_of


def outcomes(function, *features, names=None, profile=None, supports=None, sizes=None):
    """Return the outcome of each law that judges packed or paged attention, on its pinned cases."""
    is_paged = "block_table" in function.__signature__.parameters
    kind = PagedImplementation if is_paged else PackedImplementation
    declared = kind(
        name="adapted",
        function=function,
        features=frozenset(features),
        dtypes=(torch.float64, torch.float32),
        has_gradients=False,
        profile=profile or (PAGED if is_paged else PACKED),
        **({"page_sizes": sizes} if is_paged else {}),
        **({"supports": supports} if supports else {}),
    )
    found = {}
    for name, law in LAWS.items():
        if law.judges == declared.operator and (names is None or name in names):
            found[name] = check(law, subject_of_operator(declared), None).outcome
    return found


def is_right(found, least):
    """Return whether no law is broken, and at least so many were tried."""
    passed = sum(outcome is Outcome.PASSED for outcome in found.values())
    return set(found.values()) <= CONFORMING and passed >= least


def is_wrong(found):
    """Return whether a law is broken by a wrong result."""
    return Outcome.FAILED in found.values()
