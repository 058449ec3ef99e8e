"""Drawings: the grids of a record as SVG, whose meaning is in shapes and words beside colours."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from attnspec.conformance.unseen import clean

SMALL = 400
"""Cells up to which each says its number when it is pointed at."""
LARGEST = 256
"""Cells along a side that are drawn at most."""


class Level(NamedTuple):
    """A class of cells.

    Attributes:
        name: the CSS class, which has the colour.
        side: how long the sides of its squares are, in cells; 0 draws nothing.
        words: for the legend.
    """

    name: str
    side: float
    words: str


NOTHING = Level("h0", 0.0, "exact")
HEAT = (
    (0.0, NOTHING),
    (0.1, Level("h1", 0.3, "up to 0.1 of the bound")),
    (0.5, Level("h2", 0.45, "up to 0.5 of the bound")),
    (1.0, Level("h3", 0.6, "up to the bound")),
    (10.0, Level("h4", 1.0, "up to 10 times the bound")),
    (1e4, Level("h5", 1.0, "up to 10 000 times the bound")),
    (math.inf, Level("h6", 1.0, "over 10 000 times the bound")),
)
"""Levels of error / bound by their upper ends. What is wrong fills its cell."""
NO_DISTANCE = Level("h7", 1.0, "no distance: NaN, infinity, or an error where none is allowed")
EQUAL, DIFFERENT = Level("h0", 0.0, "equal"), Level("h5", 1.0, "different")
HIDDEN, PARTLY, VISIBLE = (
    Level("v0", 0.0, "hidden"),
    Level("v1", 0.5, "some pairs under this cell visible"),
    Level("v2", 0.9, "visible"),
)


def heat_map(errors: dict[str, Any]) -> Markup:
    """Draw the errors of a record's picture.

    Args:
        errors: as `attnspec.conformance.picture.picture` made it.

    Raises:
        KeyError, TypeError, ValueError, IndexError: where it is not.
    """
    of_bound = errors["measure"] == "error / bound"

    def level(cell: float) -> Level:
        if not math.isfinite(cell):
            return NO_DISTANCE
        if not of_bound:
            return DIFFERENT if cell else EQUAL
        return next(each for end, each in HEAT if cell <= end)

    rows, columns = (str(each) or "index" for each in errors["axes"])
    caption = f"{errors['what']}{', ' if errors['inside'] else ''}{errors['inside']}: "
    caption += f"{errors['measure']}, {_size(errors, rows, columns)}"
    names = errors["rows"]
    return _figure(errors, level, caption, (rows, columns), names=names, worst=errors["worst"])


def visibility(pattern: dict[str, Any]) -> Markup:
    """Draw which keys the queries of a record's picture may read; raises as `heat_map` does."""

    def level(cell: float) -> Level:
        return VISIBLE if cell >= 1 else PARTLY if cell > 0 else HIDDEN

    caption = f"visible, batch {int(pattern['batch'])}, head {int(pattern['head'])}: "
    caption += _size(pattern, "query", "key")
    return _figure(pattern, level, caption, ("query", "key"))


def _size(grid: dict[str, Any], rows: str, columns: str) -> str:
    """What the rows and the columns of a drawing are."""
    (height, width), (down, across) = grid["shape"], grid["step"]
    size = f"{_many(int(height), rows)} ↓ × {_many(int(width), columns)} →"
    return size if down == across == 1 else f"{size}, {int(down)} × {int(across)} to a cell"


def _many(count: int, name: str) -> str:
    """A number of rows or columns."""
    several = {"query": "queries", "index": "elements"}.get(name, f"{name}s")
    return f"{count} {name if count == 1 else several}"


def _figure(
    grid: dict[str, Any],
    level: Callable[[float], Level],
    caption: str,
    axes: tuple[str, str],
    *,
    names: Sequence[int] | None = None,
    worst: Sequence[int] | None = None,
) -> Markup:
    cells = [[float(each) for each in row] for row in grid["cells"]]
    height, width = len(cells), len(cells[0])
    if any(len(row) != width for row in cells):
        raise ValueError("rows of different lengths")
    if max(height, width) > LARGEST:
        raise ValueError("a grid too large to draw")
    levels: dict[Level, list[tuple[int, int]]] = {}
    for row, line in enumerate(cells):
        for column, cell in enumerate(line):
            levels.setdefault(level(cell), []).append((row, column))
    steps = [int(each) for each in grid["step"]]
    drawn = []
    for each, places in levels.items():
        squares = "".join(_square(each, row, column) for row, column in places)
        if squares:
            drawn.append(Markup('<path class="{}" d="{}"/>').format(each.name, squares))
    if worst is not None:
        row, column = (int(each) // step for each, step in zip(worst, steps, strict=True))
        if not (0 <= row < height and 0 <= column < width):
            raise ValueError("the worst element lies outside")
        drawn.append(
            Markup('<rect class="worst" x="{}" y="{}" width="1" height="1"/>').format(column, row)
        )
    if height * width <= SMALL:
        for row, line in enumerate(cells):
            for column, cell in enumerate(line):
                where = f"{axes[0]} {_span(row, steps[0], names)}, {axes[1]} "
                where += f"{_span(column, steps[1], None)}: {cell:.3g}"
                where = clean(where)
                drawn.append(
                    Markup(
                        '<rect class="tip" x="{}" y="{}" width="1" height="1">'
                        "<title>{}</title></rect>"
                    ).format(column, row, where)
                )
    side = max(3, min(22, 320 // max(height, width)))
    legend = Markup("").join(
        Markup(
            '<li><svg class="key" viewBox="0 0 1 1" aria-hidden="true"><path class="{}" d="{}"/>'
            "</svg>{} <span>({})</span></li>"
        ).format(each.name, _square(each, 0, 0), each.words, len(places))
        for each, places in sorted(levels.items(), key=lambda pair: pair[0].name)
    )
    return Markup(
        '<figure><svg class="grid" role="img" aria-label="{caption}" viewBox="0 0 {width} {height}"'
        ' style="width:{pixels}px">{drawn}</svg>'
        '<figcaption>{caption}<ul class="legend">{legend}</ul></figcaption></figure>'
    ).format(
        caption=clean(caption),
        width=width,
        height=height,
        pixels=side * width,
        drawn=Markup("").join(drawn),
        legend=legend,
    )


def _square(level: Level, row: int, column: int) -> str:
    """A path around a square in the middle of its cell."""
    if not level.side:
        return ""
    side = level.side
    x, y = column + (1 - side) / 2, row + (1 - side) / 2
    return f"M{x:g} {y:g}h{side:g}v{side:g}h-{side:g}z"


def _span(cell: int, step: int, names: Sequence[int] | None) -> str:
    """Which rows or columns a cell stands for."""
    first, last = cell * step, cell * step + step - 1
    if names is not None:
        first, last = names[first], names[min(last, len(names) - 1)]
    return str(first) if first == last else f"{first} to {last}"
