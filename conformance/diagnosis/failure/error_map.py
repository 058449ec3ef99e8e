"""Pictures of failures: the errors of a result and the visible keys, as small grids of numbers."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.comparison.violation import Errors
from attnspec.reference.masks import visible_keys
from attnspec.spec import Profile

LONGEST_SIDE = 64
"""Maximum number of cells along a side; in a larger matrix, a cell covers several elements."""
LARGEST_PATTERN = 2**22
"""Maximum number of pairs of query and key of a visibility pattern."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A matrix reduced to cells, each of which covers `step` rows and columns.

    Attributes:
        shape: rows and columns of the whole matrix.
        step: rows and columns per cell.
        cells: row by row.
    """

    shape: tuple[int, int]
    step: tuple[int, int]
    cells: list[list[Any]]

    def to_json(self) -> dict[str, Any]:
        """Return the grid as a record stores it."""
        return {"shape": list(self.shape), "step": list(self.step), "cells": self.cells}


def max_pooled(matrix: torch.Tensor) -> Grid:
    """Return the largest number in each cell; NaN counts as the largest."""
    grid, step = _blocks(matrix.detach().cpu().double(), -1.0)
    return Grid(
        shape=(matrix.shape[0], matrix.shape[1]),
        step=step,
        # a maximum over NaN is NaN
        cells=[[_number(cell) for cell in row] for row in grid.amax(dim=(1, 3)).tolist()],
    )


def visible_fractions(visible: torch.Tensor) -> Grid:
    """Return the fraction of visible pairs in each cell, from 0 to 1."""
    grid, step = _blocks(visible.detach().cpu().double(), torch.nan)
    return Grid(
        shape=(visible.shape[0], visible.shape[1]),
        step=step,
        cells=[[round(cell, 2) for cell in row] for row in grid.nanmean(dim=(1, 3)).tolist()],
    )


def _blocks(matrix: torch.Tensor, padding: float) -> tuple[torch.Tensor, tuple[int, int]]:
    """Cut a matrix into blocks, (cells, step, cells, step), padded at its ends."""
    rows, columns = matrix.shape
    down, across = (max(1, math.ceil(length / LONGEST_SIDE)) for length in (rows, columns))
    height, width = math.ceil(rows / down), math.ceil(columns / across)
    widths = (0, width * across - columns, 0, height * down - rows)
    padded = torch.nn.functional.pad(matrix, widths, value=padding)
    return padded.view(height, down, width, across), (down, across)


def _number(value: float) -> float | str:
    """Round a number to three digits; NaN and infinity become strings, which JSON can store."""
    if math.isnan(value):
        return "nan"
    return float(f"{value:.3g}") if math.isfinite(value) else "inf"


def failure_picture(
    errors: Errors | None, call: Call | None, profile: Profile | None
) -> dict[str, Any] | None:
    """Return the picture of a failure, ready for JSON.

    Args:
        errors: errors of the matrix with the worst element, if a comparison failed.
        call: the failing call, if the subject is an attention.
        profile: the profile of the subject, which sets the causal alignment.

    Returns:
        `errors`, with the axes, the place of the worst element and a grid; and `visible`, with the
        batch, the head and a grid; `None` if neither is available.
    """
    grids: dict[str, Any] = {}
    if errors is not None and errors.matrix.numel():
        grids["errors"] = {
            "what": errors.what,
            "measure": errors.measure,
            "inside": errors.inside,
            "axes": list(errors.axes),
            "worst": list(errors.worst),
            "rows": errors.rows,
            **max_pooled(errors.matrix).to_json(),
        }
    if call is not None and profile is not None:
        pattern = _pattern(call, profile, errors)
        if pattern is not None:
            grids["visible"] = pattern
    return grids or None


def _pattern(call: Call, profile: Profile, errors: Errors | None) -> dict[str, Any] | None:
    """Return the visible keys of the failing batch element and head."""
    worst = {} if errors is None else errors.place
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
        element, head = min(worst.get("batch", 0), batch - 1), min(worst.get("head", 0), heads - 1)
        pattern = visible.expand(batch, heads, queries, keys)[element, head]
    except (IndexError, RuntimeError, TypeError, ValueError):
        return None  # a law may try invalid arguments, which have no pattern
    return {"batch": element, "head": head, **visible_fractions(pattern).to_json()}
