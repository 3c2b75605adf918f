"""The page of a trend: equal to the record, whole, and harmless."""

from __future__ import annotations

import dataclasses
import datetime
from xml.etree import ElementTree

import numpy as np
import pytest
from pages import SVG, drawings, tables, tags

from rappor import Params, Population, Trend, trend
from rappor.counts.released import Period, Released
from rappor.reporting.numbers import percent, points
from rappor.reporting.plots import trend_plot
from rappor.reporting.remarks import over_time
from rappor.reporting.trend_page import n_panels, trend_page
from rappor.simulation import simulate_days

PARAMS = Params(k=32, h=1, m=8, f=0.1, p=0.1, q=0.9)
NAMES = ["</script><script>alert(1)</script>", "\u202egpj.exe", "=1+1", "plain"]
FIRST = datetime.date(2026, 11, 2)


@pytest.fixture(scope="module")
def found() -> Trend:
    """Six days, of which the third has no reports; shares change on the last, parameters before."""
    other = dataclasses.replace(PARAMS, p=0.2)
    periods = []
    for number, params in ((0, PARAMS), (1, PARAMS), (3, PARAMS), (4, other), (5, other)):
        weights = [1, 1, 1, 5] if number == 5 else [2, 2, 2, 2]
        (counts,) = simulate_days(
            Population(NAMES, weights), params, n_devices=2e4, n_days=1, seed=number, metric="m"
        )
        day = FIRST + datetime.timedelta(number)
        periods.append(Period(first=day, last=day, collections=(counts,)))
    return trend(
        Released(
            metric="m",
            first=FIRST,
            last=periods[-1].last,
            periods=tuple(periods),
            withheld=(),
        ),
        [*NAMES, "absent"],
        smooth=2,
    )


@pytest.fixture(scope="module")
def page(found: Trend) -> str:
    return trend_page(found)


def titles(root: ElementTree.Element) -> list[str]:
    """Return the titles of the marks of a panel."""
    return [str(each.findtext(f"{SVG}title")) for each in root.iter(f"{SVG}g")]


def test_every_mark_has_the_numbers_of_the_record(found: Trend, page: str) -> None:
    """Dots and intervals of every period in every panel, and a cross where there are none."""
    panels = drawings(page)
    assert len(panels) == n_panels(found) == len(found.candidates) == 4
    for column in range(4):
        marks = titles(panels[f"trend-{column}"])
        for number, period in enumerate(found.periods):
            levels = found.levels
            (mark,) = [each for each in marks if each.startswith(f"{period.name}: ")]
            if not period.reports:
                assert mark == f"{period.name}: no reports"
                continue
            low, high = levels.ci_low[number, column], levels.ci_high[number, column]
            share = percent(levels.proportion[number, column], 3)
            told = f"{period.name}: {share}, {percent(low, 3)} .. {percent(high, 3)}"
            row = found.step(number, column)
            if row is not None and row["changed"]:
                told += f"; step of {points(row['difference'])} points"
            assert mark == told


def test_dots_lie_where_the_axis_says(found: Trend, page: str) -> None:
    """Shares and heights are in one line; full dots are told alone; lines end at the intervals."""
    for column in range(4):
        root = drawings(page)[f"trend-{column}"]
        groups = [each for each in root.iter(f"{SVG}g") if each.find(f"{SVG}circle") is not None]
        known = [number for number, period in enumerate(found.periods) if period.reports]
        assert len(groups) == len(known)
        heights, shares = [], []
        for number, group in zip(known, groups, strict=True):
            (circle,), (line,) = group.findall(f"{SVG}circle"), group.findall(f"{SVG}line")
            heights += [float(circle.attrib["cy"]), float(line.attrib["y1"])]
            heights.append(float(line.attrib["y2"]))
            both = (found.levels.ci_low, found.levels.ci_high)
            shares += [float(t[number, column]) for t in (found.levels.proportion, *both)]
            full = circle.attrib["fill"] == "currentColor"
            assert full == found.levels.detected[number, column]
        slope, offset = np.polyfit(shares, heights, 1)
        assert slope < 0
        assert np.abs(np.array(shares) * slope + offset - heights).max() < 0.02


def test_the_line_is_interrupted_where_there_is_no_estimate(found: Trend, page: str) -> None:
    """Two periods together: none for the first, nor for the one without reports."""
    assert found.smoothed is not None
    lines = drawings(page)["trend-0"].findall(f"{SVG}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [1, 3] * 3


def test_the_tables_have_the_record(found: Trend, page: str) -> None:
    """All rows with shares and steps, and every period with its reports."""
    shown = tables(page)
    (rows,) = [rows for caption, rows in shown.items() if caption.startswith("Shares of")]
    assert len(rows) - 1 == len(list(found.rows())) == 24
    for cells, row in zip(rows[1:], found.rows(), strict=True):
        share = "no reports" if row["proportion"] is None else percent(row["proportion"], 3)
        assert (cells[1], cells[2]) == (row["first"], share)
        assert cells[8] == ("" if row.get("step") is None else points(row["step"]))
    (periods,) = [rows for caption, rows in shown.items() if caption.startswith("Every day")]
    assert [cells[1] for cells in periods[1:]] == [f"{each.reports:,}" for each in found.periods]
    assert [cells[-1].endswith("(changed)") for cells in periods[1:]] == [
        each.name == "2026-11-06" for each in found.periods
    ]


def test_the_sentences_are_those_of_the_terminal(found: Trend, page: str) -> None:
    """What is missing, what changed, what is smoothed."""
    told = " ".join(over_time(found))
    assert "There are no reports of 2026-11-04." in told
    other = found.periods[4].fingerprints[0]
    assert f"From 2026-11-06 on reports have other parameters: {other}" in told
    assert "Smoothed estimates are of 2 days together" in told
    for sentence in over_time(found):
        assert sentence in page


def test_the_page_needs_nothing_and_runs_nothing_of_a_string(page: str) -> None:
    """One style sheet, one script, no address; strings are text, their hidden letters named."""
    names = [name for name, _ in tags(page)]
    assert names.count("script") == names.count("style") == 1
    assert not {"link", "img", "iframe", "form"} & set(names)
    assert "alert(1)</script>" not in page
    assert "\u202e" not in page
    assert "[U+202E]gpj.exe" in page


def test_the_chart_has_the_same_dots(found: Trend) -> None:
    """A panel each, gaps and borders at their days."""
    spec = trend_plot(found, top=2).to_dict()
    assert len(spec["concat"]) == 2
    for column, panel in enumerate(spec["concat"]):
        data = [spec["datasets"][layer["data"]["name"]] for layer in panel["layer"]]
        spans, dots, line, gaps, borders = data
        known = [number for number, period in enumerate(found.periods) if period.reports]
        assert len(spans) == len(dots) == 5
        assert [row["proportion"] for row in dots] == [
            found.levels.proportion[number, column] for number in known
        ]
        assert len(line) == 6
        assert [row["day"] for row in gaps] == ["2026-11-04"]
        assert [row["day"] for row in borders] == ["2026-11-06"]
