"""A picture: where a result is wrong and what its queries may read, as small grids of numbers."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.violation import Errors
from attnspec.reference.masks import visible_keys
from attnspec.spec import Profile

SIDE = 64
"""Cells along a side at most; of what is larger, each cell stands for several elements."""
LARGEST_PATTERN = 2**22
"""Pairs of query and key up to which a visibility pattern is drawn."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Cells of a matrix, each standing for `step` rows and columns of it.

    Attributes:
        shape: rows and columns of the whole matrix.
        step: rows and columns per cell.
        cells: row by row.
    """

    shape: tuple[int, int]
    step: tuple[int, int]
    cells: list[list[Any]]

    def to_json(self) -> dict[str, Any]:
        """As a record holds it."""
        return {"shape": list(self.shape), "step": list(self.step), "cells": self.cells}


def pooled(matrix: torch.Tensor) -> Grid:
    """The largest number under each cell; NaN counts as the largest."""
    grid, step = _blocks(matrix.detach().cpu().double(), -1.0)
    return Grid(
        shape=(matrix.shape[0], matrix.shape[1]),
        step=step,
        # a maximum over NaN is NaN
        cells=[[_number(each) for each in row] for row in grid.amax(dim=(1, 3)).tolist()],
    )


def shares(visible: torch.Tensor) -> Grid:
    """What part of the pairs under each cell may be read, from 0 to 1."""
    known = visible.detach().cpu().double()
    grid, step = _blocks(known, torch.nan)
    return Grid(
        shape=(visible.shape[0], visible.shape[1]),
        step=step,
        cells=[[round(each, 2) for each in row] for row in grid.nanmean(dim=(1, 3)).tolist()],
    )


def _blocks(matrix: torch.Tensor, beyond: float) -> tuple[torch.Tensor, tuple[int, int]]:
    """Cut a matrix into blocks, (cells, step, cells, step), filled up at its far edges."""
    rows, columns = matrix.shape
    down, across = (max(1, math.ceil(each / SIDE)) for each in (rows, columns))
    height, width = math.ceil(rows / down), math.ceil(columns / across)
    padding = (0, width * across - columns, 0, height * down - rows)
    filled = torch.nn.functional.pad(matrix, padding, value=beyond)
    return filled.view(height, down, width, across), (down, across)


def _number(value: float) -> float | str:
    """Three digits of a number; JSON has none for NaN and infinity, which become words."""
    if math.isnan(value):
        return "nan"
    return float(f"{value:.3g}") if math.isfinite(value) else "inf"


def picture(
    errors: Errors | None, call: Call | None, profile: Profile | None
) -> dict[str, Any] | None:
    """What can be drawn of a failure, ready for JSON.

    Args:
        errors: of the matrix that holds the worst element, where a comparison found one.
        call: the failing call, where the subject is an attention.
        profile: of the subject; says where the diagonal lies.

    Returns:
        `errors`, with the axes, the place of the worst element and a grid; and `visible`, with the
        batch, the head and a grid; `None` where neither can be drawn.
    """
    drawn: dict[str, Any] = {}
    if errors is not None and errors.matrix.numel():
        drawn["errors"] = {
            "what": errors.what,
            "measure": errors.measure,
            "inside": errors.inside,
            "axes": list(errors.axes),
            "worst": list(errors.worst),
            "rows": errors.rows,
            **pooled(errors.matrix).to_json(),
        }
    if call is not None and profile is not None:
        pattern = _pattern(call, profile, errors)
        if pattern is not None:
            drawn["visible"] = pattern
    return drawn or None


def _pattern(call: Call, profile: Profile, errors: Errors | None) -> dict[str, Any] | None:
    """Which keys the queries of the failing batch element and head may read."""
    of = {} if errors is None else errors.place
    try:
        batch, heads, queries, _ = call.query.shape
        keys = call.key.shape[2]
        if not 0 < queries * keys <= LARGEST_PATTERN or not batch * heads:
            return None
        visible, _ = visible_keys(
            queries,
            keys,
            attn_mask=None if call.attn_mask is None else call.attn_mask.detach().cpu(),
            is_causal=call.is_causal,
            window=call.window,
            alignment=profile.causal_alignment,
        )
        element, head = min(of.get("batch", 0), batch - 1), min(of.get("head", 0), heads - 1)
        seen = visible.expand(batch, heads, queries, keys)[element, head]
    except (IndexError, RuntimeError, TypeError, ValueError):
        return None  # a law may try arguments that have no reading
    return {"batch": element, "head": head, **shares(seen).to_json()}
