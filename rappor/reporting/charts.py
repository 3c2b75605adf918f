"""Frames of charts in SVG, for pages, notebooks and files.

This module draws no marks (dots, lines, bars). Other modules draw marks and texts, and pass them as
the content of a `Chart`. Three words:

    chart     one drawing with a title
    picture   a chart, or a grid of charts
    figure    a chart with its title and a description, as HTML

Coordinates: the x of a mark is in per cent of the width, and its y in units of SVG (pixels at a
zoom of 1), from the top. A chart without a width of its own therefore fills a window of any width,
and its text keeps its size. A chart with a width is scaled as a whole.

A chart needs no style sheet and no script. Text has the colour `currentColor`, which follows light
and dark windows. The colours of marks have contrast on white and on black. Colour is never the only
difference between two series: their shapes or dashes differ, too.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rappor.base.atomic_files import save_text
from rappor.base.errors import FileError, MissingExtraError, ParamsError
from rappor.reporting.document import document
from rappor.reporting.markup import Markup, count_columns, join, mark_breaks, tag

SUFFIXES: Final = (".svg", ".png", ".html")
"""Suffixes of the files that `Picture.save` can write."""

COLORS: Final = ("#1f77c9", "#d55e00", "#0b8f6a", "#a05fc0", "#8a7300", "#c2306a", "#7a7a7a")
"""Colours of series, in their order. People with all kinds of colour vision can distinguish them on
white and on black. The last colour is grey."""

_FONTS: Final = (
    "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'Noto Sans', 'DejaVu Sans', "
    "'Liberation Sans', sans-serif"
)
"""Fonts of all texts. `system-ui` stands for the font of the operating system. Names of fonts
follow, because the library for PNG does not support `system-ui`."""

_WIDTH: Final = 720
"""Width of the file of a chart that has no width of its own, in units of SVG. A convention: the
width of a column of text."""

_CELL: Final = 420
"""Width of each chart in the file of a grid, in units of SVG, if the chart has no width of its own.
A convention."""

_MARGIN: Final = 20
"""Distance of a drawing to the edges of its file, and to the row below it, in units of SVG.
Neighbours in a row have twice this distance."""

_HEADING: Final = 30
"""Height of the title of a file, and of the title of each chart in a grid, in units of SVG."""

_SUBJECT_LINE: Final = 20
"""Height of the line below the title of a file, in units of SVG."""

_TITLE_CHARACTER: Final = 10
"""Width that a file reserves for each column of its title, in units of SVG. A bold character of
16 units is 9 wide on average. Fonts differ, so the number leaves a margin."""

_ZOOM: Final = 2
"""Pixels of a PNG for each unit of SVG. A larger number gives sharper and larger files."""


class Picture:
    """Base class of drawings. A notebook shows them, and `save` writes .svg, .png or .html."""

    __slots__ = ()

    title: str
    subject: str

    def inline(self) -> Markup:
        """Return the drawing as a part of a page."""
        raise NotImplementedError

    def svg(self) -> Markup:
        """Return the drawing as a file, dark on white."""
        raise NotImplementedError

    def _repr_svg_(self) -> str:
        """Return the drawing for a notebook, dark on white. Jupyter calls this method."""
        return self.svg()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the drawing in the format of the path's suffix.

        An HTML file needs no other file.

        Parameters
        ----------
        path : path with the suffix .svg, .png or .html.

        Raises
        ------
        ParamsError
            The suffix is not in SUFFIXES.
        MissingExtraError
            The suffix is .png, and the extra `png` is not installed.
        FileError
            The suffix is .png, and the machine has no font.
        """
        match check_suffix(path):
            case ".svg":
                save_text(self.svg() + "\n", path)
            case ".png":
                Path(path).write_bytes(render_png(self.svg(), path))
            case _:
                head = [tag("h1", self.title), *([tag("p", self.subject)] if self.subject else [])]
                save_text(document(_join_title(self), *head, self.inline()), path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart(Picture):
    """A drawing with a title.

    Attributes
    ----------
    title : name of the drawing, which assistive technology reads.
    content : the marks and texts.
    height : height in units of SVG.
    width : width in units of SVG, or None for a drawing that fills the width of its page.
    subject : the metric and its days, for the line below the title of a file. A page has its own
        heading, and does not contain the subject.
    """

    title: str
    content: Markup
    height: float
    width: float | None = None
    subject: str = ""

    def inline(self) -> Markup:
        """Return the drawing as a part of a page. Assistive technology reads it as one picture."""
        return self.to_element(
            xmlns="http://www.w3.org/2000/svg", role="img", aria_label=self.title,
            fill="currentColor", font_family=_FONTS, font_size=13,
        )  # fmt: skip

    def figure(self, description: str = "", *, name: str = "") -> Markup:
        """Return the drawing under its title, with a description below.

        A figure with a `name` has an anchor with this name, and a link to the anchor.
        """
        # A narrow window may break the title into lines, also inside of a long name.
        words = [tag("strong", mark_breaks(self.title))]
        if name:
            label = f"Link to the figure of {self.title}"
            words += [join(" "), tag("a", "#", href=f"#{name}", aria_label=label)]
        paragraphs = [tag("p", description)] if description else []
        return tag("figure", tag("figcaption", *words), self.inline(), *paragraphs, id=name or None)

    def to_element(self, **attributes: str | float) -> Markup:
        """Return the `svg` element of the drawing."""
        has_width = self.width is not None
        return tag(
            "svg", self.content, width=self.width if has_width else "100%", height=self.height,
            viewBox=f"0 0 {self.width:g} {self.height:g}" if has_width else None, **attributes,
        )  # fmt: skip

    def svg(self) -> Markup:
        """Return the drawing as a file of its own."""
        width = _WIDTH if self.width is None else self.width
        # The drawing (inner `svg`) may have a width and positions in per cent. They refer to the
        # element around it. The outer `svg` gives them a width in units of SVG.
        content = tag("svg", self.to_element(), width=width)
        return _build_file(self, content, width, self.height)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartGrid(Picture):
    """Charts in rows.

    The style sheet of a page shows fewer charts in a row if the window is narrow.

    Attributes
    ----------
    title : name of the grid.
    charts : the charts, in the order of reading.
    columns : largest number of charts in a row of a file.
    subject : as for `Chart`, for all charts together.
    """

    title: str
    charts: Sequence[Chart]
    columns: int = 3
    subject: str = ""

    def inline(self, *, has_addresses: bool = False) -> Markup:
        """Return all charts as parts of a page. With `has_addresses`, each chart has an anchor."""
        parts = (
            chart.figure(name=f"figure-{number}" if has_addresses else "")
            for number, chart in enumerate(self.charts)
        )
        return tag("div", *parts, class_="panels")

    def svg(self) -> Markup:
        """Return the grid as a file of its own."""
        # Case: no charts. The file is empty except for its title.
        columns = max(1, min(self.columns, len(self.charts)))
        width = max((chart.width or _CELL for chart in self.charts), default=_CELL)
        head = _HEADING if any(chart.title for chart in self.charts) else 0
        parts, top = [], 0.0
        for first in range(0, len(self.charts), columns):
            row = self.charts[first : first + columns]
            for column, chart in enumerate(row):
                heading = tag("text", chart.title, y=14, font_weight="bold")
                body = tag("svg", chart.to_element(), y=head, width=width)
                left = column * (width + 2 * _MARGIN)
                parts.append(tag("svg", heading, body, x=left, y=top, width=width))
            top += max(chart.height for chart in row) + head + _MARGIN
        total_width = columns * (width + 2 * _MARGIN) - 2 * _MARGIN
        return _build_file(self, join(*parts), total_width, top)


def check_suffix(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a picture's path, if this machine can write such a picture.

    Raises
    ------
    ParamsError
        The suffix is not in SUFFIXES.
    MissingExtraError
        The suffix is .png, and the extra `png` is not installed.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ParamsError(f"chart must end in {', '.join(SUFFIXES)}, got {os.fspath(path)!r}")
    if suffix == ".png":
        # A missing extra is reported before the chart is computed, and not minutes later.
        _load_rasteriser()
    return suffix


def render_png(svg: str, name: str | os.PathLike[str]) -> bytes:
    """Return a drawing as the bytes of a PNG.

    Parameters
    ----------
    svg : the drawing.
    name : name of the file, for the error.

    Raises
    ------
    MissingExtraError
        The extra `png` is not installed.
    FileError
        The machine has no font, so the drawing would have no words.
    """

    def rasterise(text: str, zoom: int) -> bytes:
        return bytes(_load_rasteriser().svg_to_bytes(svg_string=text, zoom=zoom))

    # Case: a machine without fonts, such as a container. The library draws no letter and reports no
    # error. The picture of a letter is therefore compared with a picture without a letter.
    drawn_letter, empty_drawing = (
        tag("svg", tag("text", text, y=9, font_family=_FONTS), width=9, height=9,
            xmlns="http://www.w3.org/2000/svg")
        for text in ("M", "")
    )  # fmt: skip
    if rasterise(drawn_letter, 1) == rasterise(empty_drawing, 1):
        raise FileError(name, "this machine has no font for a PNG; write an .svg file instead")
    return rasterise(svg, _ZOOM)


def _join_title(picture: Picture) -> str:
    """Return the subject and the title of a drawing in one line."""
    return ": ".join(filter(None, (picture.subject, picture.title)))


def _build_file(picture: Picture, content: Markup, width: float, height: float) -> Markup:
    """Return a drawing with its title and subject on a white background, as a file of its own.

    `width` and `height` are the size of the content in units of SVG, without title and margins.
    """
    # Case: a chart that is narrower than its title, such as a heat map of three columns. A file of
    # the width of the chart would cut the end of the title.
    columns = max(count_columns(text) for text in (picture.title, picture.subject))
    width = max(width, columns * _TITLE_CHARACTER)
    top, lines = _MARGIN + _HEADING, []
    if picture.subject:
        lines.append(tag("text", picture.subject, x=_MARGIN, y=top + 2))
        top += _SUBJECT_LINE
    width, height = width + 2 * _MARGIN, height + top + _MARGIN
    return tag(
        "svg",
        tag("title", _join_title(picture)),
        tag("rect", width="100%", height="100%", fill="#fff"),
        tag("text", picture.title, x=_MARGIN, y=_MARGIN + 12, font_size=16, font_weight="bold"),
        *lines,
        tag("svg", content, x=_MARGIN, y=top),
        xmlns="http://www.w3.org/2000/svg", width=width, height=height,
        viewBox=f"0 0 {width:g} {height:g}", color="#1a1a1a", fill="currentColor",
        font_family=_FONTS, font_size=13,
    )  # fmt: skip


def _load_rasteriser() -> Any:
    """Import the library that draws an SVG as pixels."""
    try:
        return importlib.import_module("resvg_py")
    except ImportError:
        raise MissingExtraError("png") from None
