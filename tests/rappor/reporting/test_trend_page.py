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
from rappor.reporting.numbers import measured, moved, span
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
    panels = list(drawings(page).values())
    assert len(panels) == n_panels(found) == len(found.candidates) == 4
    for column, panel in enumerate(panels):
        marks = titles(panel)
        for number, period in enumerate(found.periods):
            levels = found.levels
            (mark,) = [each for each in marks if each.startswith(f"{period.name}: ")]
            if not period.reports:
                assert mark == f"{period.name}: no reports"
                continue
            share, error, low, high = (
                float(table[number, column])
                for table in (levels.proportion, levels.std_error, levels.ci_low, levels.ci_high)
            )
            told = f"{period.name}: {measured(share, error)}, {span(low, high, error)}"
            row = found.step(number, column)
            if row is not None and row["changed"]:
                told += f"; step of {moved(row['difference'], row['std_error'])} points"
            assert mark == told


def test_dots_lie_where_the_axis_says(found: Trend, page: str) -> None:
    """Shares and heights are in one line; full dots are detected; uprights end at the intervals."""
    for column, root in enumerate(drawings(page).values()):
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
            assert (circle.attrib["fill"] != "none") == found.levels.detected[number, column]
        slope, offset = np.polyfit(shares, heights, 1)
        assert slope < 0
        assert np.abs(np.array(shares) * slope + offset - heights).max() < 0.02


def test_ticks_are_the_first_days_and_a_far_axis_is_told(found: Trend, page: str) -> None:
    """Every period has a tick; an axis that does not begin at 0 says so, and no other does."""
    for column, root in enumerate(drawings(page).values()):
        words = [str(text.text) for text in root.findall(f"{SVG}text")]
        assert [word for word in words if word.startswith("Nov")] == ["Nov 2", "Nov 4", "Nov 6"]
        floor = [line for line in root.findall(f"{SVG}line") if line.get("y1") == "170"]
        assert len([line for line in floor if float(str(line.get("y2"))) > 170]) == 6
        assert found.smoothed is not None
        both = (found.levels, found.smoothed)
        ends = np.concatenate([(each.ci_low[:, column], each.ci_high[:, column]) for each in both])
        far = np.nanmin(ends) > 3 * (np.nanmax(ends) - np.nanmin(ends))
        assert ("The axis does not begin at 0." in words) is bool(far)
        assert ("0 %" in words) is not bool(far)


def test_the_line_is_interrupted_where_there_is_no_estimate(found: Trend, page: str) -> None:
    """Two periods together: none for the first, nor for the one without reports."""
    assert found.smoothed is not None
    root = next(iter(drawings(page).values()))
    bands = [each for each in root.findall(f"{SVG}svg") if each.find(f"{SVG}polygon") is not None]
    assert len(bands) == 2  # between the last three periods; the second has no neighbour


def test_the_tables_have_the_record(found: Trend, page: str) -> None:
    """All rows with shares and steps, and every period with its reports."""
    shown = tables(page)
    (rows,) = [rows for caption, rows in shown.items() if caption.startswith("Shares of")]
    assert len(rows) - 1 == len(list(found.rows())) == 24
    for cells, row in zip(rows[1:], found.rows(), strict=True):
        share = measured(row["proportion"], row["std_error"]) or "no reports"
        assert (cells[1], cells[2]) == (row["first"], share)
        assert cells[7] == moved(row.get("step"), row["std_error"])
    (periods,) = [rows for caption, rows in shown.items() if caption.startswith("Every day")]
    assert [cells[1] for cells in periods[1:]] == [f"{each.reports:,}" for each in found.periods]
    assert [cells[-1].endswith("(changed)") for cells in periods[1:]] == [
        each.name == "2026-11-06" for each in found.periods
    ]


def test_the_sentences_are_those_of_the_terminal(found: Trend, page: str) -> None:
    """What is missing, what changed, what is smoothed."""
    told = " ".join(over_time(found))
    assert "There are no reports for 2026-11-04." in told
    other = found.periods[4].fingerprints[0]
    assert f"From 2026-11-06 on, reports have other parameters: {other}" in told
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


def test_the_chart_has_the_same_panels(found: Trend, page: str) -> None:
    """The first of them, with the same marks."""
    chart = ElementTree.fromstring(found.plot(top=2)._repr_svg_())  # noqa: S314  # ours
    panels = list(drawings(page).values())
    assert titles(chart) == titles(panels[0]) + titles(panels[1])
