"""Draws a leak matrix, in a terminal and as a PNG.

A leak matrix says how much the output of one document moves when another is changed: entry [i][j] is the change of
document j when document i is perturbed, relative to the size of its output. All off-diagonal entries of an exact
model are rounding noise. Both drawings use one logarithmic scale, so that two matrices can be compared by eye.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.columns import Columns
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

Matrix = Sequence[Sequence[float]]

WEAKEST = 1e-7  # about the rounding of float32; nothing below it can be told from zero
STRONGEST = 1.0
# From dark to bright as a leak grows: background and foreground of a cell.
SHADES = (
    ("#1b1030", "grey70"),
    ("#3b1155", "grey85"),
    ("#6a1c6e", "white"),
    ("#a32c5f", "white"),
    ("#dd513a", "white"),
    ("#f98e09", "black"),
    ("#f9e55f", "black"),
)


def in_terminal(matrices: Mapping[str, Matrix]) -> RenderableType:
    """The matrices side by side, each under its title. Below WEAKEST an entry is drawn as a dot."""
    return Columns([_table(title, matrix) for title, matrix in matrices.items()], padding=(0, 3))


def _table(title: str, matrix: Matrix) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=0, pad_edge=False, header_style="")
    table.add_column("", justify="right")
    for column in range(len(matrix)):
        table.add_column(f"doc {column + 1}", justify="center")
    for row, values in enumerate(matrix):
        cells = [_cell(value, own=row == column) for column, value in enumerate(values)]
        table.add_row(f"doc {row + 1} ", *cells)
    return table


def _cell(value: float, *, own: bool) -> Text:
    if own:
        return Text("  ───  ", style="dim")
    background, foreground = SHADES[shade(value)]
    return Text(f"{_number(value):^7}", style=f"{foreground} on {background}")


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "nan"
    if value < WEAKEST:
        return "·"
    return f"{value:.2f}" if value >= 0.01 else f"{value:.0e}".replace("e-0", "e-")


def shade(value: float) -> int:
    """The index into SHADES of a leak: 0 for rounding noise, the last for a change as large as the output itself."""
    if not math.isfinite(value):
        return len(SHADES) - 1
    share = math.log(max(value, WEAKEST) / WEAKEST) / math.log(STRONGEST / WEAKEST)
    return min(len(SHADES) - 1, math.floor(share * len(SHADES)))


def as_png(matrices: Mapping[str, Matrix], path: Path, caption: str = "") -> None:
    """Write the matrices as heat maps beside each other into `path`. Needs matplotlib; opens no window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.figure import Figure

    # Grey is the diagonal: a document's effect on itself is no leak.
    ramp = LinearSegmentedColormap.from_list("leak", [background for background, _ in SHADES])
    colours = ramp.with_extremes(bad="#dddddd")
    figure = Figure(figsize=(4.1 * len(matrices) + 1, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(matrices), squeeze=False)[0]
    image: Any = None
    for panel, (title, matrix) in zip(panels, matrices.items(), strict=True):
        count = len(matrix)
        values = [
            [math.nan if row == column else max(value, WEAKEST) for column, value in enumerate(entries)]
            for row, entries in enumerate(matrix)
        ]
        image = panel.imshow(values, cmap=colours, norm=LogNorm(WEAKEST, STRONGEST))
        panel.set_title(title)
        panel.set_xlabel("document that is read")
        panel.set_xticks(range(count), [str(number + 1) for number in range(count)])
        panel.set_yticks(range(count), [str(number + 1) for number in range(count)])
    panels[0].set_ylabel("document that is changed")
    figure.colorbar(image, ax=panels, label="change of its output, relative", shrink=0.8)
    if caption:
        figure.suptitle(caption)
    figure.savefig(path, dpi=150)
