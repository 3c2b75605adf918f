"""Charts: their marks, their file formats, and no reference to other files."""

from __future__ import annotations

import math
import struct
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pages import SVG, drawings, tags

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
N = Axis(field="n", title="devices", log=True)
SD = Axis(field="sd", title="standard deviation, devices", log=True)
HOSTILE = "</script><script>alert(1)</script>&\u202e"


def drawn(picture: Any) -> ElementTree.Element:
    """Return the SVG of a picture, as a notebook shows it."""
    return ElementTree.fromstring(picture._repr_svg_())  # noqa: S314  # ours


def texts(picture: Any) -> list[str]:
    return [str(element.text) for element in drawn(picture).iter(f"{SVG}text")]


def lines(picture: Any) -> list[list[tuple[float, ...]]]:
    """Return the positions of the points of each line."""
    return [
        [tuple(map(float, place.split(","))) for place in str(line.get("points")).split()]
        for line in drawn(picture).iter(f"{SVG}polyline")
    ]


def test_a_picture_says_what_its_axes_and_lines_are() -> None:
    """Axes have titles with units and ticks, and each series has a line and a name."""
    chart = draw_lines(ROWS, x=N, y=SD, series="who", title="Noise")
    labels = texts(chart)
    assert {"devices", "standard deviation, devices", "Noise", "local", "central"} <= set(labels)
    assert {"100", "10k", "1M"} <= set(labels)
    (local, central) = lines(chart)
    assert len(local) == len(central) == 5
    assert [x for x, _ in local] == [x for x, _ in central]
    assert all(low > high for (_, low), (_, high) in zip(central, local, strict=True))


def test_lines_in_one_place_share_a_label() -> None:
    """Lines that differ by half a per cent are one line with both names.

    Other lines are separate.
    """
    names = {"near": 1.004, "one": 1.0, "far": 1.01}
    rows: list[dict[str, Any]] = [
        {"n": n, "sd": n * c, "who": who} for n in (1.0, 9.0) for who, c in names.items()
    ]
    labels = merge_labels(rows, value="sd", series="who")
    assert labels == {"near": "near; one", "one": "near; one", "far": "far"}
    assert merge_labels([], value="sd", series="who") == {}
    chart = draw_lines([row | {"who": labels[row["who"]]} for row in rows], x=N, y=SD, series="who")
    assert [len(line) for line in lines(chart)] == [2, 2]


def test_a_series_of_dots_is_a_dot_in_the_legend() -> None:
    """Each series is named once, and measured values have no line."""
    measured = [row | {"who": "measured"} for row in ROWS[:3]]
    chart = draw_lines(ROWS, x=N, y=SD, series="who", points=measured)
    labels = texts(chart)
    assert [labels.count(name) for name in ("local", "central", "measured")] == [1, 1, 1]
    assert len(lines(chart)) == 2


def test_what_an_axis_cannot_show_is_left_out() -> None:
    """Infinite and unknown numbers, and 0 on a logarithmic axis, are left out."""
    bad = [{"n": n, "sd": 1.0, "who": "x"} for n in (math.inf, math.nan, None, 0.0, -1.0)]
    assert lines(draw_lines([*bad, *ROWS], x=N, y=SD, series="who")) == lines(
        draw_lines(ROWS, x=N, y=SD, series="who")
    )
    (line,) = lines(draw_lines(bad, x=Axis(field="n", title="n"), y=SD, series="who"))
    assert len(line) == 2
    assert lines(draw_lines([], x=N, y=SD, series="who")) == []


def shares(*values: float) -> Any:
    rows = [Row(f"row {value}", "", (Dot(value, value * 0.99, value * 1.01),)) for value in values]
    return draw_dots("Shares", {"": rows})


def test_a_large_share_breaks_the_axis_and_the_chart_says_so() -> None:
    """A gap contains no row, and the chart names it. Similar shares have an unbroken axis."""
    (sentence,) = (text for text in texts(shares(0.6, 0.05, 0.03, 0.02, 0.01)) if "broken" in text)
    assert sentence == "The axis is broken: it leaves out 5.1 % to 59 %."
    for whole in (shares(0.3, 0.2, 0.1), shares(0.6, 0.05), shares(*[1 / n for n in range(1, 9)])):
        assert not [text for text in texts(whole) if "broken" in text]


def test_a_dot_without_an_interval_is_alone_and_a_kind_has_a_shape() -> None:
    """Kinds of dots differ in shape and colour, and a legend names them."""
    rows = [Row("a", "1", (Dot(1.0), Dot(2.0, full=False, kind=1)))]
    root = drawn(
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
    """The suffix decides the format, also in capitals."""
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
            assert len(drawings(text)) == 1  # both have one title
            assert not [tag for tag in tags(text) if {"src", "href"} & set(tag[1])]


def test_words_are_in_the_pixels(tmp_path: Path) -> None:
    """A PNG contains its words: without a font it would be smaller."""
    sizes = []
    for title in ("", "W" * 60):
        draw_lines(ROWS, x=N, y=SD, series="who", title=title).save(tmp_path / "a.png")
        sizes.append((tmp_path / "a.png").stat().st_size)
    assert sizes[1] > sizes[0] + 300


@pytest.mark.parametrize("name", ["a", "a.pdf", "svg", ".svg"])
def test_other_suffixes_are_refused(name: str, tmp_path: Path) -> None:
    """Another suffix gives one sentence, and writes nothing."""
    with pytest.raises(ParamsError, match=r"chart must end in \.svg, \.png, \.html, got"):
        shares(0.1).save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_png_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, or without a font, a PNG is refused."""
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(MissingExtraError) as caught:
        shares(0.1).save(tmp_path / "a.png")
    assert caught.value.extra == "png"

    class Fontless:
        """Draws no words."""

        @staticmethod
        def svg_to_bytes(svg_string: str, zoom: int) -> bytes:
            """Return the same for every text."""
            del svg_string, zoom
            return b"png"

    monkeypatch.setitem(sys.modules, "resvg_py", Fontless)
    with pytest.raises(FileError, match="no font"):
        shares(0.1).save(tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
