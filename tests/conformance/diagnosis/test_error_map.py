"""Tests of the pictures of failures: small grids of numbers that keep the worst element."""

import json
import math

import pytest
import torch

from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.close import check_close, check_equal
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.diagnosis.failure.error_map import (
    LONGEST_SIDE,
    failure_picture,
    max_pooled,
    visible_fractions,
)
from attnspec.conformance.laws.law import registered
from attnspec.conformance.report.drawing import heat_map, visibility
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort
from attnspec.implementations import load
from attnspec.spec import Case, Mask, MaskPattern, MaskShape, Profile
from attnspec.spec.profiles import CausalAlignment

EAGER = load("eager")


def errors_of(got, expected, bound, **options):
    """Return the errors that a failed comparison stores."""
    with pytest.raises(Violation) as broken:
        check_close(got, expected, bound, what="out", message="wrong", **options)
    return broken.value.mismatch.errors


def test_errors_are_those_around_the_worst_element():
    expected = torch.zeros(2, 3, 4, 5, dtype=torch.float64)
    got = expected.clone()
    got[1, 2, 3, 4], got[1, 2, 0, 1], got[0, 0, 0, 0] = 8.0, 0.5, 4.0
    errors = errors_of(got, expected, torch.ones_like(expected))
    assert errors.place == {"batch": 1, "head": 2, "query": 3, "channel": 4}
    assert errors.measure == "error / bound"
    assert errors.matrix.shape == (4, 5)
    assert errors.matrix.nonzero().tolist() == [[0, 1], [3, 4]]
    assert (errors.matrix[3, 4], errors.matrix[0, 1]) == (8.0, 0.5)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 2, 3), (1, 2, 2, 2, 3)])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, 5.0])
def test_errors_of_any_rank_are_drawn(shape, wrong):
    expected = torch.zeros(shape, dtype=torch.float64)
    got = expected.clone()
    got.view(-1)[-1] = wrong
    errors = errors_of(got, expected, torch.ones_like(expected))
    assert errors.matrix.shape == (1, 1, *shape)[-2:]
    assert errors.matrix[-1, -1] == (5.0 if wrong == 5.0 else math.inf)
    picture = failure_picture(errors, None, None)
    assert json.loads(json.dumps(picture, allow_nan=False)) == picture
    assert "<svg" in heat_map(picture["errors"])


def test_an_expected_infinity_is_no_error():
    expected = torch.tensor([[[[math.inf, 0.0, 1.0]]]], dtype=torch.float64)
    errors = errors_of(torch.tensor([[[[math.inf, 9.0, 1.0]]]]), expected, torch.ones(1, 1, 1, 3))
    assert errors.matrix.tolist() == [[0.0, 9.0, 0.0]]


def test_sampled_rows_keep_their_numbers():
    expected = torch.zeros(1, 1, 2, 1, dtype=torch.float64)
    got = torch.tensor([[[[0.0], [3.0]]]])
    errors = errors_of(
        got, expected, torch.ones_like(expected), places={"query": torch.tensor([7, 900])}
    )
    assert errors.rows == [7, 900]
    text = heat_map(failure_picture(errors, None, None)["errors"])
    assert "query 900, channel 0: 3<" in text


def test_errors_without_a_bound_are_distances():
    with pytest.raises(Violation) as broken:
        check_equal(torch.tensor([1, 2]), torch.tensor([1, 5]), what="ids", message="wrong")
    errors = broken.value.mismatch.errors
    assert (errors.measure, errors.matrix.tolist()) == ("distance", [[0.0, 3.0]])
    text = heat_map(failure_picture(errors, None, None)["errors"])
    assert "different <span>(1)" in text


def test_a_large_matrix_is_reduced_to_the_largest_errors():
    matrix = torch.zeros(1000, 65)
    matrix[999, 64], matrix[0, 0] = math.nan, 2.0
    grid = max_pooled(matrix)
    assert (grid.shape, grid.step) == ((1000, 65), (16, 2))
    assert len(grid.cells) == 63
    assert len(grid.cells[0]) == 33
    assert max(len(grid.cells), len(grid.cells[0])) <= LONGEST_SIDE
    assert (grid.cells[0][0], grid.cells[62][32], grid.cells[5][5]) == (2.0, "nan", 0.0)


def test_a_cell_may_be_partly_visible():
    visible = torch.ones(130, 130, dtype=torch.bool).tril()
    grid = visible_fractions(visible)
    assert grid.step == (3, 3)
    assert (grid.cells[0][0], grid.cells[0][1], grid.cells[1][0]) == (0.67, 0.0, 1.0)
    text = visibility({"batch": 0, "head": 0, **grid.to_json()})
    assert "some pairs under this cell visible <span>(43)" in text


@pytest.mark.parametrize(
    ("alignment", "rows"),
    [
        (CausalAlignment.UPPER_LEFT, [[1, 0, 0], [1, 1, 0]]),
        (CausalAlignment.LOWER_RIGHT, [[1, 1, 0], [1, 1, 1]]),
    ],
)
def test_the_pattern_follows_the_profile(alignment, rows):
    call = Subject(EAGER).draw(Case(queries=2, keys=3, is_causal=True))
    picture = failure_picture(None, call, Profile(causal_alignment=alignment))
    assert picture["visible"]["cells"] == rows


def test_the_pattern_shows_the_failing_head():
    mask = Mask(pattern=MaskPattern.RANDOM, shape=MaskShape.FULL)
    case = Case(batch=2, heads=3, kv_heads=3, queries=4, keys=5, mask=mask)
    call = Subject(EAGER).draw(case)
    expected = torch.zeros(2, 3, 4, 2, dtype=torch.float64)
    got = expected.clone()
    got[1, 2, 0, 0] = 9.0
    picture = failure_picture(errors_of(got, expected, torch.ones_like(expected)), call, Profile())
    assert picture["visible"]["cells"] == call.attn_mask[1, 2].double().tolist()


def test_an_invalid_call_has_no_pattern():
    call = Subject(EAGER).draw(Case(queries=2, keys=3))
    for wrong in (
        call.but(attn_mask=torch.ones(7, 7, dtype=torch.bool)),
        call.but(attn_mask=torch.ones(2, 3, dtype=torch.int64)),
        call.but(window=(-1, 0)),
        call.but(query=torch.ones(2)),
        call.but(key=torch.ones(1, 1, 0, 4)),
    ):
        assert failure_picture(None, wrong, Profile()) is None


def test_the_record_of_a_broken_law_has_a_picture():
    from attnspec.conformance import laws, mutants
    from attnspec.conformance.mutants.registry import planted

    laws.load()
    mutants.load()

    subject = Subject(planted()["MSK-01"].subject)
    law = registered()["the-diagonal-lies-where-the-profile-says"]
    record = check(law, subject, Effort.SMOKE)
    assert record.outcome is Outcome.FAILED
    assert Record.from_json(record.to_json()) == record
    assert record.mismatch["what"] == "out"
    assert record.mismatch["expected"] in record.message
    cells = [cell for row in record.picture["errors"]["cells"] for cell in row]
    assert max(float(cell) for cell in cells) > 1
    assert record.picture["visible"]["shape"][0] == record.picture["errors"]["shape"][0]


@pytest.mark.parametrize(
    "grid",
    [
        {},
        {"cells": []},
        {"cells": [[1.0], [1.0, 2.0]]},
        {"cells": [["x"]]},
        {"cells": [[0.0] * 1000]},
        {"worst": [9, 9]},
        {"step": [0, 0]},
        {"shape": 3},
        {"rows": [1]},
    ],
)
def test_a_malformed_grid_is_rejected(grid):
    whole = {
        "what": "out",
        "measure": "error / bound",
        "inside": "",
        "axes": ["query", "channel"],
        "worst": [0, 0],
        "rows": None,
        "shape": [2, 1],
        "step": [1, 1],
        "cells": [[1.0], [2.0]],
    }
    assert "<svg" in heat_map(whole)
    with pytest.raises((ArithmeticError, LookupError, TypeError, ValueError)):
        heat_map(whole | grid if grid else grid)
