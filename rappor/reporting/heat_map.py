"""Heat map: a grid of shares as a drawing, in which larger shares have a stronger colour.

Each cell contains its share and its standard error as text. Colour only repeats the text, so a
reader without colour vision, or a print in grey, loses nothing.
"""

from __future__ import annotations

from typing import Final

from rappor.reporting.association_tables import Grid, GridCell
from rappor.reporting.charts import COLORS, Chart
from rappor.reporting.markup import Markup, count_columns, join, shorten, tag

_CELL_WIDTH: Final = 84
"""Width of a cell, in units of SVG. A share of seven characters fits into it, with a margin."""

_CELL_HEIGHT: Final = 40
"""Height of a cell, in units of SVG. Two lines of text fit into it."""

_HEADING: Final = 24
"""The titles of the columns have this height, in units of SVG."""

_NAME_COLUMNS: Final = 24
"""Largest width of the name of a row, in columns of a terminal. Longer names are shortened. A
larger number allows a wider margin on the left side of the chart."""

_TITLE_COLUMNS: Final = 11
"""Largest width of the title of a column, in columns of a terminal. Longer titles are shortened. 12
columns are 90 units of SVG, which is more than the width of a cell, so neighbouring titles could
overlap."""

_CHARACTER: Final = 7.5
"""Width of an average character, in units of SVG. Fonts differ, so it leaves a margin."""

_MAX_OPACITY: Final = 0.5
"""Opacity of the colour of the largest share. With more, black or white text above it would have
less contrast than 4.5 to 1."""


def draw_heat_map(grid: Grid) -> Chart:
    """Draw a grid as a chart of fixed width."""
    names = [shorten(name, _NAME_COLUMNS) for name, _ in grid.rows]
    left = max(count_columns(name) for name in names) * _CHARACTER + 8
    marks = [
        tag(
            "text",
            shorten(title, _TITLE_COLUMNS),
            x=left + (number + 0.5) * _CELL_WIDTH,
            y=_HEADING - 8,
            text_anchor="middle",
            font_weight="bold",
        )
        for number, title in enumerate(grid.columns)
    ]
    for number, ((_, cells), name) in enumerate(zip(grid.rows, names, strict=True)):
        top = _HEADING + number * _CELL_HEIGHT
        marks.append(tag("text", name, x=0, y=top + 24))
        marks += [
            _draw_cell(cell, left + column * _CELL_WIDTH, top) for column, cell in enumerate(cells)
        ]
    return Chart(
        title=grid.title,
        content=join(*marks),
        height=_HEADING + len(names) * _CELL_HEIGHT,
        width=left + len(grid.columns) * _CELL_WIDTH,
    )


def _draw_cell(cell: GridCell, left: float, top: float) -> Markup:
    """Draw a cell: its colour, its share, and its error. A pointer shows its interval."""
    middle = left + _CELL_WIDTH / 2
    parts = [tag("title", f"{cell.text}, interval {cell.interval}")]
    if cell.heat is not None:
        parts.append(
            tag(
                "rect",
                x=left + 1,
                y=top + 1,
                width=_CELL_WIDTH - 2,
                height=_CELL_HEIGHT - 2,
                fill=COLORS[0],
                fill_opacity=_MAX_OPACITY * cell.heat,
                stroke=COLORS[0],
                stroke_opacity=0.3,
            )
        )
    parts.append(tag("text", cell.share, x=middle, y=top + 18, text_anchor="middle"))
    parts.append(tag("text", cell.error, x=middle, y=top + 33, text_anchor="middle", font_size=11))
    return tag("g", *parts)
