"""A chart as SVG: inside a page, in a notebook, and as a file of three kinds.

Marks and text stand at parts of the width (per cent) and at fixed heights, so that one drawing
fills a window of any width with text of one size, and needs no style sheet and no script. Text is
`currentColor`, which follows light and dark; the colours of marks have contrast on both. No colour
says what a shape does not say too.
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
from rappor.reporting.markup import Markup, breakable, join, tag

SUFFIXES: Final = (".svg", ".png", ".html")
"""What `save` can write."""

COLORS: Final = ("#1f77c9", "#d55e00", "#0b8f6a", "#a05fc0", "#8a7300", "#c2306a", "#7a7a7a")
"""Hues that people with all kinds of colour vision can distinguish, on white and on black."""

_FONTS: Final = (
    "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'Noto Sans', 'DejaVu Sans', "
    "'Liberation Sans', sans-serif"
)
"""By name too: what makes a PNG knows no system-ui."""

_WIDTH: Final = 720
_CELL: Final = 420
_MARGIN: Final = 20
_HEADING: Final = 30
_SHARP: Final = 2
"""Pixels of a PNG for each unit."""


class Picture:
    """What can be shown in a notebook and saved as .svg, .png or .html."""

    __slots__ = ()

    title: str

    def inline(self) -> Markup:
        """Return it as a part of a page."""
        raise NotImplementedError

    def svg(self) -> Markup:
        """Return it as a file: dark on white."""
        raise NotImplementedError

    def _repr_svg_(self) -> str:
        """Return what a notebook shows: dark on white."""
        return self.svg()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it in the format of the path's suffix; an HTML file needs no other file.

        Raises ParamsError if the suffix is none of SUFFIXES; MissingExtraError for a PNG without
        the extra `png`, and FileError for one on a machine without any font.
        """
        match check_suffix(path):
            case ".svg":
                save_text(self.svg() + "\n", path)
            case ".png":
                Path(path).write_bytes(pixels(self.svg(), path))
            case _:
                save_text(document(self.title, tag("h1", self.title), self.inline()), path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart(Picture):
    """A drawing of a height; one without a width fills what it is given."""

    title: str
    content: Markup
    height: float
    width: float | None = None

    def inline(self) -> Markup:
        """Return it as a part of a page, read by assistive technology as one picture."""
        return self.drawn(
            xmlns="http://www.w3.org/2000/svg", role="img", aria_label=self.title,
            fill="currentColor", font_family=_FONTS, font_size=13,
        )  # fmt: skip

    def figure(self, description: str = "", *, name: str = "") -> Markup:
        """Return it under its title, with a description; one with a name has an address."""
        words = [tag("strong", breakable(self.title))]
        if name:
            label = f"Link to the figure of {self.title}"
            words += [join(" "), tag("a", "#", href=f"#{name}", aria_label=label)]
        below = [tag("p", description)] if description else []
        return tag("figure", tag("figcaption", *words), self.inline(), *below, id=name or None)

    def drawn(self, **attributes: str | float) -> Markup:
        """Return its `svg` element."""
        fixed = self.width is not None
        return tag(
            "svg", self.content, width=self.width if fixed else "100%", height=self.height,
            viewBox=f"0 0 {self.width:g} {self.height:g}" if fixed else None, **attributes,
        )  # fmt: skip

    def svg(self) -> Markup:
        """Return it as a file of its own."""
        width = _WIDTH if self.width is None else self.width
        return _paper(self.title, tag("svg", self.drawn(), width=width), width, self.height)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panels(Picture):
    """Charts in rows; a narrow window has fewer of them in a row."""

    title: str
    charts: Sequence[Chart]
    columns: int = 3

    def inline(self, *, addressed: bool = False) -> Markup:
        """Return all of them as parts of a page, on request each with an address of its own."""
        parts = (
            chart.figure(name=f"figure-{number}" if addressed else "")
            for number, chart in enumerate(self.charts)
        )
        return tag("div", *parts, class_="panels")

    def svg(self) -> Markup:
        """Return it as a file of its own."""
        columns = max(1, min(self.columns, len(self.charts)))
        width = max((chart.width or _CELL for chart in self.charts), default=_CELL)
        head = _HEADING if any(chart.title for chart in self.charts) else 0
        parts, top = [], 0.0
        for first in range(0, len(self.charts), columns):
            row = self.charts[first : first + columns]
            for place, chart in enumerate(row):
                heading = tag("text", chart.title, y=14, font_weight="bold")
                body = tag("svg", chart.drawn(), y=head, width=width)
                left = place * (width + 2 * _MARGIN)
                parts.append(tag("svg", heading, body, x=left, y=top, width=width))
            top += max(chart.height for chart in row) + head + _MARGIN
        whole = columns * (width + 2 * _MARGIN) - 2 * _MARGIN
        return _paper(self.title, join(*parts), whole, top)


def check_suffix(path: str | os.PathLike[str]) -> str:
    """Return a picture's suffix; raise ParamsError if it is none of SUFFIXES.

    Raises MissingExtraError if what makes a PNG is missing.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ParamsError(f"chart must end in {', '.join(SUFFIXES)}, got {os.fspath(path)!r}")
    if suffix == ".png":
        _rasteriser()
    return suffix


def _paper(title: str, content: Markup, width: float, height: float) -> Markup:
    """Return a drawing with its title on white paper, as a file of its own."""
    width, height = width + 2 * _MARGIN, height + _HEADING + 2 * _MARGIN
    return tag(
        "svg",
        tag("title", title),
        tag("rect", width="100%", height="100%", fill="#fff"),
        tag("text", title, x=_MARGIN, y=_MARGIN + 12, font_size=16, font_weight="bold"),
        tag("svg", content, x=_MARGIN, y=_MARGIN + _HEADING),
        xmlns="http://www.w3.org/2000/svg", width=width, height=height,
        viewBox=f"0 0 {width:g} {height:g}", color="#1a1a1a", fill="currentColor",
        font_family=_FONTS, font_size=13,
    )  # fmt: skip


def _rasteriser() -> Any:
    try:
        return importlib.import_module("resvg_py")
    except ImportError:
        raise MissingExtraError("png") from None


def pixels(svg: str, name: str | os.PathLike[str]) -> bytes:
    """Return a drawing as a PNG.

    Raises MissingExtraError without the extra `png`, and FileError, which has the `name`, on a
    machine without a font: the drawing would have no words.
    """

    def drawn(text: str, zoom: int) -> bytes:
        return bytes(_rasteriser().svg_to_bytes(svg_string=text, zoom=zoom))

    words, none = (
        tag("svg", tag("text", text, y=9, font_family=_FONTS), width=9, height=9,
            xmlns="http://www.w3.org/2000/svg")
        for text in ("M", "")
    )  # fmt: skip
    if drawn(words, 1) == drawn(none, 1):
        raise FileError(name, "this machine has no font for a PNG; write an .svg file instead")
    return drawn(svg, _SHARP)
