"""Draw the grids of a record as SVG; shapes and words repeat the meaning of the colours."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from attnspec.conformance.report.escape import escape_controls

SMALL = 400
"""Maximum number of cells of a grid whose cells have tooltips with their numbers."""
LARGEST = 256
"""Maximum number of cells along a side of a grid."""


class Level(NamedTuple):
    """A class of cells.

    Attributes:
        name: the CSS class, which sets the colour.
        side: side length of its squares, in cells; 0 draws nothing.
        words: its entry in the legend.
    """

    name: str
    side: float
    words: str


EXACT = Level("h0", 0.0, "exact")
HEAT = (
    (0.0, EXACT),
    (0.1, Level("h1", 0.3, "up to 0.1 of the bound")),
    (0.5, Level("h2", 0.45, "up to 0.5 of the bound")),
    (1.0, Level("h3", 0.6, "up to the bound")),
    (10.0, Level("h4", 1.0, "up to 10 times the bound")),
    (1e4, Level("h5", 1.0, "up to 10 000 times the bound")),
    (math.inf, Level("h6", 1.0, "over 10 000 times the bound")),
)
"""Upper ends and levels of error / bound. The square of a wrong element fills its cell."""
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
        errors: the `errors` of `attnspec.conformance.diagnosis.failure.error_map.failure_picture`.

    Raises:
        KeyError, TypeError, ValueError, IndexError: if it is malformed.
    """
    is_fraction = errors["measure"] == "error / bound"

    def level(cell: float) -> Level:
        if not math.isfinite(cell):
            return NO_DISTANCE
        if not is_fraction:
            return DIFFERENT if cell else EQUAL
        return next(heat for end, heat in HEAT if cell <= end)

    rows, columns = (str(axis) or "index" for axis in errors["axes"])
    caption = f"{errors['what']}{', ' if errors['inside'] else ''}{errors['inside']}: "
    caption += f"{errors['measure']}, {_size(errors, rows, columns)}"
    names = errors["rows"]
    return _figure(errors, level, caption, (rows, columns), names=names, worst=errors["worst"])


def visibility(pattern: dict[str, Any]) -> Markup:
    """Draw the keys that the queries of a record's picture may read.

    Args:
        pattern: the `visible` of that picture.

    Raises:
        KeyError, TypeError, ValueError, IndexError: if it is malformed.
    """

    def level(cell: float) -> Level:
        return VISIBLE if cell >= 1 else PARTLY if cell > 0 else HIDDEN

    caption = f"visible, batch {int(pattern['batch'])}, head {int(pattern['head'])}: "
    caption += _size(pattern, "query", "key")
    return _figure(pattern, level, caption, ("query", "key"))


def _size(grid: dict[str, Any], rows: str, columns: str) -> str:
    """Describe the rows and columns of a drawing: "5 queries ↓ × 7 keys →"."""
    (height, width), (down, across) = grid["shape"], grid["step"]
    size = f"{_counted(int(height), rows)} ↓ × {_counted(int(width), columns)} →"
    return size if down == across == 1 else f"{size}, {int(down)} × {int(across)} to a cell"


def _counted(count: int, name: str) -> str:
    """Return a count with its noun: "1 key", "7 keys"."""
    plural = {"query": "queries", "index": "elements"}.get(name, f"{name}s")
    return f"{count} {name if count == 1 else plural}"


def _figure(
    grid: dict[str, Any],
    level: Callable[[float], Level],
    caption: str,
    axes: tuple[str, str],
    *,
    names: Sequence[int] | None = None,
    worst: Sequence[int] | None = None,
) -> Markup:
    cells = [[float(cell) for cell in row] for row in grid["cells"]]
    height, width = len(cells), len(cells[0])
    if any(len(row) != width for row in cells):
        raise ValueError("rows of different lengths")
    if max(height, width) > LARGEST:
        raise ValueError("a grid too large to draw")
    levels: dict[Level, list[tuple[int, int]]] = {}
    for row, line in enumerate(cells):
        for column, cell in enumerate(line):
            levels.setdefault(level(cell), []).append((row, column))
    steps = [int(step) for step in grid["step"]]
    drawn = []
    for heat, places in levels.items():
        squares = "".join(_square(heat, row, column) for row, column in places)
        if squares:
            drawn.append(Markup('<path class="{}" d="{}"/>').format(heat.name, squares))
    if worst is not None:
        row, column = (int(place) // step for place, step in zip(worst, steps, strict=True))
        if not (0 <= row < height and 0 <= column < width):
            raise ValueError("the worst element lies outside")
        drawn.append(
            Markup('<rect class="worst" x="{}" y="{}" width="1" height="1"/>').format(column, row)
        )
    if height * width <= SMALL:
        for row, line in enumerate(cells):
            for column, cell in enumerate(line):
                tooltip = f"{axes[0]} {_span(row, steps[0], names)}, {axes[1]} "
                tooltip += f"{_span(column, steps[1], None)}: {cell:.3g}"
                tooltip = escape_controls(tooltip)
                drawn.append(
                    Markup(
                        '<rect class="tip" x="{}" y="{}" width="1" height="1">'
                        "<title>{}</title></rect>"
                    ).format(column, row, tooltip)
                )
    side = max(3, min(22, 320 // max(height, width)))
    legend = Markup("").join(
        Markup(
            '<li><svg class="key" viewBox="0 0 1 1" aria-hidden="true"><path class="{}" d="{}"/>'
            "</svg>{} <span>({})</span></li>"
        ).format(heat.name, _square(heat, 0, 0), heat.words, len(places))
        for heat, places in sorted(levels.items(), key=lambda pair: pair[0].name)
    )
    return Markup(
        '<figure><svg class="grid" role="img" aria-label="{caption}" viewBox="0 0 {width} {height}"'
        ' style="width:{pixels}px">{drawn}</svg>'
        '<figcaption>{caption}<ul class="legend">{legend}</ul></figcaption></figure>'
    ).format(
        caption=escape_controls(caption),
        width=width,
        height=height,
        pixels=side * width,
        drawn=Markup("").join(drawn),
        legend=legend,
    )


def _square(level: Level, row: int, column: int) -> str:
    """Return the path of a square in the middle of its cell."""
    if not level.side:
        return ""
    side = level.side
    x, y = column + (1 - side) / 2, row + (1 - side) / 2
    return f"M{x:g} {y:g}h{side:g}v{side:g}h-{side:g}z"


def _span(cell: int, step: int, names: Sequence[int] | None) -> str:
    """Return the rows or columns of a cell: "3" or "3 to 4"."""
    first, last = cell * step, cell * step + step - 1
    if names is not None:
        first, last = names[first], names[min(last, len(names) - 1)]
    return str(first) if first == last else f"{first} to {last}"
