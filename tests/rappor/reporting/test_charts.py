"""Line charts and dot charts: their marks, labels and file formats."""

from __future__ import annotations

import dataclasses
import math
import struct
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pages import SVG, parse_drawings, parse_tags

from rappor import MissingExtraError
from rappor.base.errors import FileError, ParamsError
from rappor.reporting.charts import SUFFIXES, ChartGrid
from rappor.reporting.dots import Dot, Row, draw_dots
from rappor.reporting.lines import Axis, draw_lines, merge_labels

ROWS = [
    {"n": 10.0**i, "sd": 10 ** (i / 2) * c, "who": who}
    for who, c in (("local", 1), ("central", 0.1))
    for i in range(2, 7)
]
"""Points of two lines: the standard deviation by number of devices, under two trust models. It
grows with the square root of the number, and the line "central" is a tenth of the line "local"."""
N = Axis(field="n", title="devices", log=True)
SD = Axis(field="sd", title="standard deviation, devices", log=True)
HOSTILE = "</script><script>alert(1)</script>&\u202e"
"""A title that would run a script and turn the direction of writing."""


def parse_svg(picture: Any) -> ElementTree.Element:
    """Return the root element of the SVG of a chart, as a notebook shows it."""
    return ElementTree.fromstring(picture._repr_svg_())  # noqa: S314  # ours


def list_texts(picture: Any) -> list[str]:
    """Return all texts of a chart in the order of the drawing."""
    return [str(element.text) for element in parse_svg(picture).iter(f"{SVG}text")]


def list_lines(picture: Any) -> list[list[tuple[float, ...]]]:
    """Return the positions of the points of each line."""
    return [
        [tuple(map(float, point.split(","))) for point in str(line.get("points")).split()]
        for line in parse_svg(picture).iter(f"{SVG}polyline")
    ]


def test_a_picture_says_what_its_axes_and_lines_are() -> None:
    """Axes have titles with units and round ticks, and each series has a line and a name.

    In SVG, y grows downwards: the smaller numbers of "central" have the larger y.
    """
    chart = draw_lines(ROWS, x=N, y=SD, series="who", title="Noise")
    labels = list_texts(chart)
    assert {"devices", "standard deviation, devices", "Noise", "local", "central"} <= set(labels)
    assert {"100", "10k", "1M"} <= set(labels)
    (local, central) = list_lines(chart)
    assert len(local) == len(central) == 5
    assert [x for x, _ in local] == [x for x, _ in central]
    assert all(
        y_central > y_local for (_, y_central), (_, y_local) in zip(central, local, strict=True)
    )


def test_coinciding_lines_share_a_label() -> None:
    """Lines that differ by at most half a per cent become one line with both names.

    Such lines lie on one another, and only the last one would be visible. A reader would miss the
    others. A line that differs by one per cent stays separate.
    """
    names = {"near": 1.004, "one": 1.0, "far": 1.01}
    rows: list[dict[str, Any]] = [
        {"n": n, "sd": n * c, "who": who} for n in (1.0, 9.0) for who, c in names.items()
    ]
    labels = merge_labels(rows, value="sd", series="who")
    assert labels == {"near": "near; one", "one": "near; one", "far": "far"}
    assert merge_labels([], value="sd", series="who") == {}
    chart = draw_lines([row | {"who": labels[row["who"]]} for row in rows], x=N, y=SD, series="who")
    assert [len(line) for line in list_lines(chart)] == [2, 2]


def test_a_series_of_dots_is_a_dot_in_the_legend() -> None:
    """Measured values are dots without a line, and the legend names each series once.

    A line between measurements would suggest further measured values.
    """
    measured_rows = [row | {"who": "measured"} for row in ROWS[:3]]
    chart = draw_lines(ROWS, x=N, y=SD, series="who", points=measured_rows)
    labels = list_texts(chart)
    assert [labels.count(name) for name in ("local", "central", "measured")] == [1, 1, 1]
    assert len(list_lines(chart)) == 2


def test_points_without_a_position_are_left_out() -> None:
    """Points with infinite or unknown numbers, and with 0 on a logarithmic axis, are left out.

    An epsilon may be infinite, and a share may be 0. SVG has no such positions, and one bad number
    must not make the whole chart invalid. On a linear axis, 0 and -1 have positions.
    """
    rows_without_position = [
        {"n": n, "sd": 1.0, "who": "x"} for n in (math.inf, math.nan, None, 0.0, -1.0)
    ]
    assert list_lines(
        draw_lines([*rows_without_position, *ROWS], x=N, y=SD, series="who")
    ) == list_lines(draw_lines(ROWS, x=N, y=SD, series="who"))
    (line,) = list_lines(
        draw_lines(rows_without_position, x=Axis(field="n", title="n"), y=SD, series="who")
    )
    assert len(line) == 2
    assert list_lines(draw_lines([], x=N, y=SD, series="who")) == []


def draw_shares(*values: float) -> Any:
    """Return the dot chart of shares, each with an interval of one per cent to both sides."""
    rows = [Row(f"row {value}", "", (Dot(value, value * 0.99, value * 1.01),)) for value in values]
    return draw_dots("Shares", {"": rows})


def test_a_large_share_breaks_the_axis_and_the_chart_says_so() -> None:
    """One share far above the others breaks the axis, and a sentence below the chart names the gap.

    On an unbroken axis, a share of 60 % would press all rare strings together at the left. The gap
    contains no interval: it begins at 5.1 %, above the interval of the share of 5 %. The axis is
    unbroken for similar shares, for two shares, and for shares that decrease without a jump.
    """
    sentences = list_texts(draw_shares(0.6, 0.05, 0.03, 0.02, 0.01))
    (sentence,) = (text for text in sentences if "broken" in text)
    assert sentence == "The axis is broken: it leaves out 5.1 % to 59 %."
    zipf = [1 / rank for rank in range(1, 9)]
    for shares in ([0.3, 0.2, 0.1], [0.6, 0.05], zipf):
        assert not [text for text in list_texts(draw_shares(*shares)) if "broken" in text]


@pytest.mark.parametrize("sign", [1, -1])
def test_an_axis_contains_all_its_dots_but_not_all_of_their_intervals(sign: int) -> None:
    """Dots at 0.8, 1.6 and 2.4, or at their negatives, have equal distances.

    A share that falls from 90 % to 10 % has the change -0.8, so a dot may be below -0.5. Intervals
    alone do not make the axis longer than from -0.5 to 1.5.
    """
    rows = [Row("", "", (Dot(sign * n, sign * n - 9, sign * n + 9),)) for n in (0.8, 1.6, 2.4)]
    root = parse_svg(draw_dots("Changes", {"": rows}))
    # A position is a text such as "12.5%".
    first, second, third = (
        float(str(circle.get("cx")).rstrip("%")) for circle in root.iter(f"{SVG}circle")
    )
    assert abs(second - first) > 15
    assert third - second == pytest.approx(second - first, abs=0.02)


def test_kinds_of_dots_differ_in_shape_and_a_legend_names_them() -> None:
    """The first kind is a circle and the second a square, in the row and in the legend.

    Shapes also help readers with a colour vision deficiency. Dots without an interval have no bar.
    """
    rows = [Row("a", "1", (Dot(1.0), Dot(2.0, is_filled=False, kind=1)))]
    root = parse_svg(
        draw_dots("Losses", {"": rows}, kinds=("measured", "claimed"), write="{:g}".format)
    )
    assert [str(element.text) for element in root.iter(f"{SVG}text")][-2:] == [
        "measured",
        "claimed",
    ]
    assert (
        len([rectangle for rectangle in root.iter(f"{SVG}rect") if rectangle.get("fill-opacity")])
        == 0
    )
    assert len(list(root.iter(f"{SVG}circle"))) == len(list(root.iter(f"{SVG}path"))) == 2


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_form_is_written(suffix: str, tmp_path: Path) -> None:
    """The suffix of a path decides the format of the file, also in capitals.

    Whatever the format, a hostile title stays text, and an HTML file refers to no other file. The
    signature of PNG and the size in pixels stand in its first 24 bytes.
    """
    chart = draw_lines(ROWS, x=N, y=SD, series="who", title=HOSTILE)
    for name in ("a" + suffix, "B" + suffix.upper()):
        path = tmp_path / name
        ChartGrid(title="Both", charts=[chart, chart]).save(path)
        if suffix == ".png":
            head = path.read_bytes()[:24]
            assert head[:8] == b"\x89PNG\r\n\x1a\n"
            assert min(struct.unpack(">II", head[16:])) > 300
            continue
        text = path.read_text(encoding="utf-8")
        assert text.count("<polyline") == 4
        assert "\u202e" not in text
        assert "alert(1)</script>" not in text
        if suffix == ".html":
            # Both charts have the same title, and `drawings` returns a dict by title.
            assert len(parse_drawings(text)) == 1
            assert not [tag for tag in parse_tags(text) if {"src", "href"} & set(tag[1])]


def test_the_subject_is_a_line_below_the_title(tmp_path: Path) -> None:
    """A file has its subject below the title, and the drawing begins below both.

    A part of a page has no subject, because the heading of the page contains the metric.
    """
    chart = draw_lines(ROWS, x=N, y=SD, series="who", title="Noise")
    named = dataclasses.replace(chart, subject="editor & co, 2026-11-02")
    plain_root, named_root = (parse_svg(picture) for picture in (chart, named))
    tops = [float(root.findall(f"{SVG}svg")[-1].attrib["y"]) for root in (plain_root, named_root)]
    heights = [float(root.attrib["height"]) for root in (plain_root, named_root)]
    title, subject = (float(text.attrib["y"]) for text in named_root.findall(f"{SVG}text"))
    assert title < subject < tops[1]
    assert tops[1] - tops[0] == heights[1] - heights[0] > 0
    assert named_root.findtext(f"{SVG}title") == "editor & co, 2026-11-02: Noise"
    assert named.inline() == chart.inline()
    ChartGrid(title="Both", charts=[named], subject=HOSTILE).save(tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "alert(1)</script>" not in page
    assert "alert(1)" in page


def test_words_are_in_the_pixels(tmp_path: Path) -> None:
    """A PNG contains its words.

    A renderer without a font leaves words out without an error. A picture with a title of 60
    letters must therefore be larger than a picture without a title.
    """
    sizes = []
    for title in ("", "W" * 60):
        draw_lines(ROWS, x=N, y=SD, series="who", title=title).save(tmp_path / "a.png")
        sizes.append((tmp_path / "a.png").stat().st_size)
    assert sizes[1] > sizes[0] + 300


@pytest.mark.parametrize("name", ["a", "a.pdf", "svg", ".svg"])
def test_other_suffixes_are_refused(name: str, tmp_path: Path) -> None:
    """A path with another suffix is refused with the possible suffixes, and no file is written."""
    with pytest.raises(ParamsError, match=r"chart must end in \.svg, \.png, \.html, got"):
        draw_shares(0.1).save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_png_is_refused_without_a_renderer_or_a_font(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the extra to install, or states that the machine has no font.

    Without a font the renderer would return a chart without words.
    """
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(MissingExtraError) as caught:
        draw_shares(0.1).save(tmp_path / "a.png")
    assert caught.value.extra == "png"

    class Fontless:
        """Stands in for the renderer `resvg_py` on a machine without fonts: it draws no words."""

        @staticmethod
        def svg_to_bytes(svg_string: str, zoom: int) -> bytes:
            """Return the same picture for every text."""
            del svg_string, zoom
            return b"png"

    monkeypatch.setitem(sys.modules, "resvg_py", Fontless)
    with pytest.raises(FileError, match="no font"):
        draw_shares(0.1).save(tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
