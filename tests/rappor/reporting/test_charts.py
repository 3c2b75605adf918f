"""Charts: what is drawn, in every form it is saved in, and without anything from outside."""

from __future__ import annotations

import html.parser
import json
import math
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from altair import LayerChart

from rappor.errors import ParamsError
from rappor.reporting.charts import SUFFIXES, Axis, line_chart, save, shared_labels, side_by_side

ROWS = [
    {"n": 10.0**i, "sd": 10 ** (i / 2) * c, "who": who}
    for who, c in (("local", 1), ("central", 0.1))
    for i in range(2, 7)
]
N = Axis(field="n", title="devices", log=True)
SD = Axis(field="sd", title="standard deviation, devices", log=True)
HOSTILE = "</script><script>alert(1)</script>&"


def texts(path: Path) -> list[str]:
    """Return the words that an SVG shows."""
    found = ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")  # noqa: S314  # ours
    return [str(element.text) for element in found]


def lines(path: Path) -> int:
    """Return how many lines an SVG draws."""
    root = ElementTree.parse(path)  # noqa: S314  # ours
    paths = root.iter("{http://www.w3.org/2000/svg}path")
    return sum(element.get("aria-roledescription") == "line mark" for element in paths)


def drawn(chart: LayerChart) -> list[list[dict[str, Any]]]:
    """Return the rows behind a chart's lines, and those behind its dots."""
    spec = chart.to_dict()
    return [spec["datasets"][layer["data"]["name"]] for layer in spec["layer"]]


class Tags(html.parser.HTMLParser):
    """Collects the tags of a page, with their attributes."""

    def __init__(self) -> None:
        """Start with none."""
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep one."""
        self.found.append((tag, dict(attrs)))


def test_a_picture_says_what_its_axes_and_lines_are(tmp_path: Path) -> None:
    """Titles with units, a tick at powers of ten, a line and a name for each series."""
    save(line_chart(ROWS, x=N, y=SD, series="who", title="Noise"), tmp_path / "a.svg")
    shown = texts(tmp_path / "a.svg")
    assert {"devices", "standard deviation, devices", "Noise", "local", "central"} <= set(shown)
    assert {"100", "10k", "1M"} <= set(shown)
    assert lines(tmp_path / "a.svg") == 2


def test_lines_in_one_place_share_a_label() -> None:
    """Half a per cent apart is one line with both names; more is two."""
    names = {"near": 1.004, "one": 1.0, "far": 1.01}
    rows: list[dict[str, Any]] = [
        {"n": n, "sd": n * c, "who": who} for n in (1.0, 9.0) for who, c in names.items()
    ]
    labels = shared_labels(rows, value="sd", series="who")
    assert labels == {"near": "near; one", "one": "near; one", "far": "far"}
    assert shared_labels([], value="sd", series="who") == {}
    chart = line_chart([row | {"who": labels[row["who"]]} for row in rows], x=N, y=SD, series="who")
    assert [(row["who"], row["sd"]) for row in drawn(chart)[0]] == [
        ("near; one", 1.004),
        ("far", 1.01),
        ("near; one", 9 * 1.004),
        ("far", 9 * 1.01),
    ]


def test_a_series_of_dots_is_a_dot_in_the_legend(tmp_path: Path) -> None:
    """Every series is named once: lines by a stroke, dots alone by a circle."""
    measured = [row | {"who": "measured"} for row in ROWS[:3]]
    save(line_chart(ROWS, x=N, y=SD, series="who", points=measured), tmp_path / "a.svg")
    shown = texts(tmp_path / "a.svg")
    assert [shown.count(name) for name in ("local", "central", "measured")] == [1, 1, 1]
    assert lines(tmp_path / "a.svg") == 2


def test_what_an_axis_cannot_show_is_left_out(tmp_path: Path) -> None:
    """Infinity, nothing, and zero on a logarithmic axis are no points; the others stay."""
    bad = [{"n": n, "sd": 1.0, "who": "x"} for n in (math.inf, math.nan, None, 0.0, -1.0)]
    chart = line_chart([*bad, *ROWS], x=N, y=SD, series="who", points=[*bad, ROWS[0]])
    assert drawn(chart) == [ROWS, ROWS[:1]]
    linear = line_chart(bad, x=Axis(field="n", title="n"), y=SD, series="who")
    assert [row["n"] for row in drawn(linear)[0]] == [0, -1]
    save(line_chart([], x=N, y=SD, series="who"), tmp_path / "empty.svg")
    assert lines(tmp_path / "empty.svg") == 0


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_form_is_written(suffix: str, tmp_path: Path) -> None:
    """The suffix decides, in capitals too."""
    chart = line_chart(ROWS, x=N, y=SD, series="who")
    for name in ("a" + suffix, "B" + suffix.upper()):
        path = tmp_path / name
        save(side_by_side(chart, chart), path)
        if suffix == ".png":
            head = path.read_bytes()[:24]
            assert head[:8] == b"\x89PNG\r\n\x1a\n"
            assert min(struct.unpack(">II", head[16:])) > 300
        elif suffix == ".svg":
            assert lines(path) == 4
        else:
            assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_a_page_is_whole_in_itself(tmp_path: Path) -> None:
    """No tag names another file, and no text of a row can end the script."""
    path = tmp_path / "a.html"
    rows = [{"n": 1, "sd": 1, "who": HOSTILE}]
    save(line_chart(rows, x=N, y=SD, series="who", title=HOSTILE), path)
    page = path.read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(page)
    assert [name for name, _ in tags.found].count("script") == 2
    assert not [tag for tag in tags.found if {"src", "href"} & set(tag[1])]
    start = page.index("const spec = ") + len("const spec = ")
    spec, _ = json.JSONDecoder().raw_decode(page, start)
    assert spec["title"] == HOSTILE


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_scripts_of_a_page_run(tmp_path: Path) -> None:
    """Both scripts parse, and the first defines what the second calls."""
    path = tmp_path / "a.html"
    save(line_chart(ROWS, x=N, y=SD, series="who"), path)
    first, second = [
        part.split("</script>")[0]
        for part in path.read_text(encoding="utf-8").split("<script>")[1:]
    ]
    program = (
        "globalThis.window = globalThis;\n"
        f"{first}\nif (typeof vegaEmbed !== 'function') process.exit(3);\n"
        f"(vegaEmbed => {{ {second} }})((where, spec) => console.log(where, spec.layer.length))"
    )
    (tmp_path / "page.js").write_text(program, encoding="utf-8")
    answer = subprocess.run(
        ["node", str(tmp_path / "page.js")],  # noqa: S607  # whichever the reader has
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.split() == ["#chart", "2"]


@pytest.fixture(scope="module")
def script_of_three(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of a page that shows three charts side by side."""
    path = tmp_path_factory.mktemp("three") / "a.html"
    chart = line_chart(ROWS, x=N, y=SD, series="who")
    save(side_by_side(chart, chart, chart), path)
    return path.read_text(encoding="utf-8").split("<script>")[2].split("</script>")[0]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize(("width", "columns"), [(1200, 3), (1199, 2), (800, 2), (799, 1), (9, 1)])
def test_a_narrow_window_has_fewer_charts_in_a_row(
    width: int, columns: int, script_of_three: str, tmp_path: Path
) -> None:
    """The charts and the legend have as many columns as there is place for."""
    program = (
        f"const window = {{innerWidth: {width}}};\n"
        f"(vegaEmbed => {{ {script_of_three} }})((where, spec) => "
        "console.log(spec.columns, spec.config.legend.columns))"
    )
    (tmp_path / "page.js").write_text(program, encoding="utf-8")
    answer = subprocess.run(
        ["node", str(tmp_path / "page.js")],  # noqa: S607  # whichever the reader has
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.split() == [str(columns)] * 2


@pytest.mark.parametrize("name", ["a", "a.pdf", "svg", ".svg"])
def test_other_suffixes_are_refused(name: str, tmp_path: Path) -> None:
    """One sentence, and nothing written."""
    with pytest.raises(ParamsError, match=r"chart must end in \.svg, \.png, \.html, got"):
        save(line_chart(ROWS, x=N, y=SD, series="who"), tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_missing_library_names_the_extra(missing: str) -> None:
    """Charts say which extra they need."""
    program = (
        f"import sys\nsys.modules[{missing!r}] = None\nimport rappor\n"
        "try:\n    import rappor.reporting.charts\n"
        "except rappor.MissingExtraError as error:\n    print(error.extra)\n"
    )
    answer: Any = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["charts"]
