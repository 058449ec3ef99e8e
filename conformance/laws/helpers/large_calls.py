"""The check of a large call by a sample of its batch elements, heads and rows."""

from dataclasses import replace

import torch
from jaxtyping import Int

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.launches import judged_heads
from attnspec.conformance.attention.layouts import lay_out
from attnspec.conformance.attention.part import Part
from attnspec.conformance.attention.subject import WRT, Subject
from attnspec.conformance.attention.values import generator
from attnspec.conformance.laws.helpers.gradients import empty_rows_are_zero
from attnspec.conformance.laws.helpers.mask_dtype import may_refuse_mask_dtype
from attnspec.conformance.laws.helpers.sample import Limits, Sample, may_have_empty_rows
from attnspec.spec import Case, Layout

SAMPLE = Limits(numbers=2_000_000, scores=2**17, rows=1)
"""The batch elements and heads by which a call is judged; its rows are those of `_rows`."""

SAMPLE_WITH_GRADIENTS = Limits(numbers=1, scores=2**16, rows=1)
"""Likewise of a backward pass: one batch element and key/value head."""

RESULTS = 2**16
"""Elements of the output by which a call is judged, whose bound takes most of the time."""

TILE = 64
"""Half of the rows lie at the beginning or the end of a tile of this length."""

KINDS_OF_GRADIENT = ("normal", "spiked", "small", "normal", "large")
"""Kinds of the incoming gradient in turn."""

LAYOUTS = (
    Layout.HEADS_INSIDE,
    Layout.CONTIGUOUS,
    Layout.HEADS_INSIDE,
    "one number per row",
    Layout.LENGTH_FIRST,
    "one row for all queries",
)
"""Layouts of the incoming gradient in turn: a model that joins its heads sends it heads inside, and
sums and means over channels or tokens expand theirs."""

REQUIRED = (WRT, WRT, WRT, ("query",), WRT, WRT, WRT, ("key", "value"))
"""Operands that require a gradient, in turn: those of other layers may be frozen."""

POOLED = 2**20
"""Scores up to which a call is judged by all rows, into which one expanded row comes."""


def check_call(subject: Subject, case: Case) -> None:
    """Check the output and the log-sum-exp of a call."""
    call = subject.draw(case)
    with may_refuse_mask_dtype(case):
        _sample(subject, case, call, SAMPLE).check_call(subject)


def check_gradients(subject: Subject, case: Case) -> None:
    """Check the output and the gradients of a call; a gradient comes into the sample alone."""
    call = subject.draw(case)
    sample = _sample(subject, case, call, SAMPLE_WITH_GRADIENTS)
    turn, kind = divmod(case.seed, len(KINDS_OF_GRADIENT))
    layout = LAYOUTS[turn % len(LAYOUTS)]
    wrt = REQUIRED[turn // len(LAYOUTS) % len(REQUIRED)]
    is_pooled = layout == "one row for all queries"
    if is_pooled and sample.few.query.shape[:2].numel() * case.queries * case.keys <= POOLED:
        sample = replace(sample, rows=torch.arange(case.queries))
    grad = sample.draw_incoming_alone(case, KINDS_OF_GRADIENT[kind])
    if isinstance(layout, Layout):
        grad = lay_out(grad, layout)
    elif is_pooled and len(sample.rows) == case.queries:
        grad = grad[:, :, :1].expand(grad.shape)
    else:
        grad = grad[..., :1].expand(grad.shape)
    with may_refuse_mask_dtype(case):
        out, gradients = subject.differentiate(call, grad, wrt=wrt)
    sample.check_output(subject, out)
    sample.check_gradients(subject, gradients, grad)


def _sample(subject: Subject, case: Case, call: Call, limits: Limits) -> Sample:
    """Return the sample of a call, whose rows lie beside multiples of a tile by half.

    All rows of a backward pass are judged where the gradient of an empty row may be NaN, if a mask
    or a window may make one.
    """
    sample = Sample.of(subject, case, call, limits)
    batch, kv_heads, members = sample.part.batch.cpu(), sample.part.kv_heads.cpu(), _members(case)
    # the last element and head, where a list of work ends, in every second backward pass
    is_last = case.backward and case.seed // 2 % 2 == 1
    if is_last:
        batch, kv_heads = torch.tensor([case.batch - 1]), torch.tensor([case.kv_heads - 1])
    if is_last or members is not None:
        grouping = subject.implementation.profile.grouping
        part = Part.of(call, batch, kv_heads, grouping, members)
        sample = replace(sample, part=part, few=part.call(call))
    if case.backward and may_have_empty_rows(case) and not empty_rows_are_zero(subject):
        return sample
    heads = sample.few.query.shape[:2].numel()
    of_row = max(1, heads * case.keys), max(1, heads * case.d_value)
    count = max(4, min(limits.scores // of_row[0], RESULTS // of_row[1]))
    return replace(sample, rows=_rows(case, count))


def _members(case: Case) -> torch.Tensor | None:
    """Return the query heads of a group that are judged: the ends and others; None for all."""
    group, judged = case.heads // case.kv_heads, judged_heads(case)
    if judged == group:
        return None
    others = torch.randperm(group - 2, generator=generator(case.seed, "group")) + 1
    return torch.cat([torch.tensor([0, group - 1]), others[: judged - 2]])


def _rows(case: Case, count: int) -> Int[torch.Tensor, " rows"]:
    """Return some rows, ascending: the ends, some at an end of a tile, and others."""
    every = torch.arange(case.queries)
    if count >= case.queries:
        return every
    dice = generator(case.seed, "rows")
    at_an_end = every[(every + 1) % TILE <= 1]
    drawn = [each[torch.randperm(len(each), generator=dice)] for each in (at_an_end, every)]
    ends = torch.tensor([0, case.queries - 1])
    rows: torch.Tensor = torch.cat([ends, *(each[: count // 2] for each in drawn)]).unique()
    return rows
