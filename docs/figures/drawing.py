"""Parts of figures: matrices as coloured cells, boxes and arrows."""

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

BLUE, RED, GREEN, GREY, INK = "#2a78b5", "#d1495b", "#3c8d5a", "#d9dde2", "#1c2733"


def cells(
    axes: Axes,
    values: torch.Tensor,
    *,
    title: str = "",
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    signed: bool = False,
    limit: float | None = None,
    form: str = "",
    visible: torch.Tensor | None = None,
    size: float = 8,
) -> None:
    """Draw a matrix as cells, the first row on top.

    Args:
        axes: the place.
        values: the matrix.
        title: above it.
        rows: names of the rows.
        columns: names of the columns, above them.
        signed: colour negative numbers red; otherwise the numbers are expected from 0 up.
        limit: the number with the darkest colour; None is the largest one.
        form: the format of the numbers in the cells; empty leaves them out.
        visible: false cells are grey and have no number.
        size: of the letters in the cells and at the margins.
    """
    height, width = values.shape
    shown = torch.ones_like(values, dtype=torch.bool) if visible is None else visible
    limit = limit or max(float(values[shown].abs().max()), 1e-9)
    axes.set_facecolor(GREY)
    axes.pcolormesh(
        values.masked_fill(~shown, torch.nan).numpy(),
        cmap="RdBu" if signed else "Blues",
        vmin=-1.25 * limit if signed else 0,
        vmax=1.25 * limit,
        edgecolors="white",
        lw=0.8,
    )
    for row, column in shown.nonzero().tolist() if form else ():
        value = float(values[row, column])
        colour = "white" if abs(value) > 0.6 * limit else INK
        text = format(value, form).replace("-", "−")
        axes.text(
            column + 0.5, row + 0.5, text, ha="center", va="center", color=colour, fontsize=size
        )
    axes.set_aspect("equal")
    axes.invert_yaxis()
    axes.xaxis.tick_top()
    axes.set_yticks([n + 0.5 for n in range(height)] if rows else [], rows or [], fontsize=size)
    steep = any(len(name) > 2 for name in columns) and width > 5
    axes.set_xticks(
        [n + 0.5 for n in range(width)] if columns else [],
        columns or [],
        fontsize=size,
        rotation=90 if steep else 0,
    )
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=9)


def canvas(axes: Axes, width: float, height: float) -> None:
    """Make an empty place for boxes and arrows, in units of your own, y upwards."""
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.axis("off")


def box(
    axes: Axes,
    middle: tuple[float, float],
    text: str,
    *,
    width: float,
    height: float,
    colour: str = BLUE,
    filled: bool = False,
    size: float = 9,
) -> None:
    """Draw a box with rounded corners and a text in it."""
    x, y = middle
    patch = FancyBboxPatch(
        (x - width / 2, y - height / 2),
        width,
        height,
        boxstyle=f"round,pad=0,rounding_size={min(width, height) / 5}",
        ec=colour,
        fc=colour if filled else "none",
        lw=1.3,
    )
    axes.add_patch(patch)
    axes.text(x, y, text, ha="center", va="center", fontsize=size, color="white" if filled else INK)


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    *,
    colour: str = INK,
    bend: float = 0,
) -> None:
    """Draw an arrow from one point to another."""
    look = {
        "arrowstyle": "-|>",
        "color": colour,
        "lw": 1.1,
        "shrinkA": 0,
        "shrinkB": 0,
        "connectionstyle": f"arc3,rad={bend}",
    }
    axes.annotate("", end, start, arrowprops=look)
