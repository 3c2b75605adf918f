"""The HTML page of a comparison.

Its drawings and tables must have the numbers of the record (the `Comparison`), for samples, days
and segments. It must load nothing from the network, and strings of the collection, which are
hostile here, must stay text.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
from types import SimpleNamespace
from typing import cast
from xml.etree import ElementTree

import numpy as np
import pytest
from decodings import released
from pages import SVG, drawings, tables, tags

from rappor import (
    Candidates,
    Comparison,
    ErrorControl,
    Params,
    Population,
    compare_samples,
    compare_segments,
    simulate_counts,
    trend,
)
from rappor.comparison.overview import OverviewRow, compute_overview
from rappor.reporting.changes import name_changes
from rappor.reporting.comparison_page import comparison_page, count_drawings
from rappor.reporting.footnotes import list_comparison_footnotes
from rappor.reporting.numbers import (
    format_change,
    format_change_interval,
    format_interval,
    format_share,
)
from rappor.reporting.overview import build_ranking, overview_card
from rappor.reporting.plots import select_contrast_interval, sort_changes

PARAMS = Params(k=32, h=1, m=8, f=0.1, p=0.1, q=0.9)
NAMES = ["</script><script>alert(1)</script>", "\u202egpj.exe", "=1+1", "plain"]
FIRST = datetime.date(2026, 11, 2)
SAME, OTHER = [2.0, 2.0, 2.0, 2.0], [1.0, 1.0, 1.0, 5.0]
"""SAME contains the weights of NAMES before a change, and OTHER their weights after the change."""


def compare_months() -> Comparison:
    """Return a comparison of three samples.

    The second differs from the first, the third does not.
    """
    samples = {
        name: simulate_counts(Population(NAMES, weights), PARAMS, n_reports=2e4, seed=number)
        for number, (name, weights) in enumerate((("May", SAME), ("<June>", OTHER), ("July", SAME)))
    }
    return compare_samples(samples, [*NAMES, "absent"])


def compare_days() -> Comparison:
    """Return a trend of six days. The third has no reports, and parameters and shares change."""
    other = dataclasses.replace(PARAMS, p=0.2)
    counts = {}
    for number, params in ((0, PARAMS), (1, PARAMS), (3, PARAMS), (4, other), (5, other)):
        population = Population(NAMES, OTHER if number == 5 else SAME)
        day = FIRST + datetime.timedelta(number)
        counts[day] = simulate_counts(population, params, n_reports=2e4, seed=number, metric="m")
    return trend(released(counts, "m"), [*NAMES, "absent"], smooth=2)


def compare_versions() -> Comparison:
    """Return a comparison of two versions that differ."""
    counts = [
        simulate_counts(
            Population(NAMES, weights),
            PARAMS.with_segment((("version", version),)),
            n_reports=2e4,
            seed=1,
        )
        for version, weights in (("<1>", SAME), ("2", OTHER))
    ]
    return compare_segments(counts, [*NAMES, "absent"])


@pytest.fixture(scope="module", params=[compare_months, compare_days, compare_versions])
def record(request: pytest.FixtureRequest) -> Comparison:
    comparison: Comparison = request.param()
    return comparison


@pytest.fixture(scope="module")
def days() -> Comparison:
    return compare_days()


def titles(root: ElementTree.Element) -> list[str]:
    """Return the titles of the marks of a drawing."""
    return [str(title.text) for title in root.iter(f"{SVG}title")]


@pytest.mark.slow
def test_changes_are_drawn_as_in_the_record(record: Comparison) -> None:
    """Exactly the significant changes are drawn, each with its adjusted interval."""
    first, *shares = drawings(comparison_page(record)).values()
    expected = [row for row in sort_changes(record) if row["changed"]]
    assert len(expected) == record.n_changed > 1
    for row in expected:
        ends = format_change_interval(*select_contrast_interval(row), row["std_error"])
        numbers = f"{format_change(row['estimate'], row['std_error'])}, {ends}"
        assert any(title.endswith(f": {numbers}") for title in titles(first))
    assert len(titles(first)) == len(expected)
    assert len(shares) == count_drawings(record)


@pytest.mark.parametrize(
    ("n_periods", "n_charts"), [(2, 12), (52, 12), (58, 12), (59, 11), (200, 3), (365, 1), (800, 1)]
)
def test_all_charts_have_at_most_700_dots(n_periods: int, n_charts: int) -> None:
    """A chart of a string has a dot for each period. Up to 58 periods there are 12 charts.

    12 * 58 = 696 dots. With more periods there are fewer charts, so that a page has at most 700
    dots, and at least one chart.
    """
    comparison = SimpleNamespace(by="day", samples=range(n_periods), shown_rows=np.arange(20))
    assert count_drawings(cast("Comparison", comparison)) == n_charts


@pytest.mark.slow
def test_changes_are_named_with_the_segment_or_the_time() -> None:
    """A sentence names the segment, or the periods of a new or vanished string."""
    assert "is more common in version 2 (" in comparison_page(compare_versions())
    days = compare_days()
    row = {"candidate": "x", "name": "", "std_error": 0.01, "before": 0.2, "after": 0.1}
    sentences = [
        str(name_changes([row | {"direction": direction}], days))
        for direction in ("newcomer", "leaver")
    ]
    assert sentences == [
        "<bdi>x</bdi> is new: 10.0\u00a0% in the last day",
        "<bdi>x</bdi> is gone: 20.0\u00a0% in the first day",
    ]


def test_the_nearest_are_drawn_where_nothing_changed() -> None:
    """Without a change, the nearest candidates have hollow dots and their own intervals."""
    samples = {
        name: simulate_counts(Population(NAMES, SAME), PARAMS, n_reports=2e4, seed=seed)
        for seed, name in enumerate(("May", "June"))
    }
    same = compare_samples(samples, NAMES, error_control=ErrorControl(alpha=1e-6))
    assert not same.n_changed
    (drawing,) = drawings(comparison_page(same)).values()
    assert [dot.get("fill") for dot in drawing.iter(f"{SVG}circle")] == ["none"] * 4


def test_bars_of_an_overview_are_as_long_as_their_shares() -> None:
    """Lengths of bars are proportional to shares, also if one string has almost all reports."""
    population = Population(["most", *map(str, range(9))], [300, *range(9, 0, -1)])
    counts = simulate_counts(population, PARAMS, n_reports=1e6, seed=1, metric="m")
    overview = compute_overview(
        released({FIRST: counts}, "m"), [counts], Candidates.from_list(population.values),
        n_latest=1, by="day",
    )  # fmt: skip
    bars = drawings(str(overview_card(overview))).values()
    widths = [float(bar.findall(f"{SVG}rect")[0].attrib["width"].rstrip("%")) for bar in bars]
    shares = [line.share for line in overview.list_rows()[: len(widths)]]
    assert len(widths) == 3
    assert np.array(widths) / widths[0] == pytest.approx(np.array(shares) / shares[0], abs=1e-3)


def test_a_trend_without_changes_says_so() -> None:
    """The sentence states that nothing changed, without the number 0."""
    counts = {
        FIRST + datetime.timedelta(day): simulate_counts(
            Population(NAMES, SAME), PARAMS, n_reports=2e4, seed=day, metric="m"
        )
        for day in range(3)
    }
    sentence = next(
        list_comparison_footnotes(
            trend(released(counts, "m"), NAMES, error_control=ErrorControl(alpha=1e-6))
        )
    )
    assert sentence.startswith(
        "No value changed significantly over the range (trend line through all days), at a false"
    )


def test_one_day_is_a_ranking_on_one_scale() -> None:
    """One period has bars with their intervals, the longest first, and no charts of one dot."""
    counts = simulate_counts(Population(NAMES, OTHER), PARAMS, n_reports=2e4, seed=0, metric="m")
    comparison = trend(released({FIRST: counts}, "m"), NAMES)
    bars = drawings(comparison_page(comparison))
    rows = sorted(
        (comparison.share_row(0, i) for i in comparison.shown_rows.tolist()),
        key=lambda row: -row["estimate"],
    )
    assert rows[0]["candidate"] == "plain"
    assert list(bars) == [
        f"{format_share(row['estimate'], row['std_error'])}, ".replace(" ", "\u00a0", 1)
        + format_interval(row["ci_low"], row["ci_high"], row["std_error"])
        for row in rows
    ]
    widths = [
        float(bar.findall(f"{SVG}rect")[0].attrib["width"].rstrip("%")) for bar in bars.values()
    ]
    shares = [row["estimate"] for row in rows]
    assert np.array(widths) / widths[0] == pytest.approx(np.array(shares) / shares[0], abs=1e-3)


def test_numbers_of_a_ranking_have_equal_digits() -> None:
    """All shares of a ranking have the digits of the median error."""
    rows = [
        OverviewRow(
            name=f"{share}", share=share, std_error=error, low=share - error, high=share + error,
            detected=True, course=(), change=None,
        )
        for share, error in ((0.40612, 0.011), (0.29184, 0.0094), (0.1, 0.012))
    ]  # fmt: skip
    text = str(build_ranking(rows, "week"))
    assert re.findall(r"<strong>(.*?)\u00a0%</strong> <small>(.*?)</small>", text) == [
        ("40.6", "39.5 % to 41.7 %"),
        ("29.2", "28.2 % to 30.1 %"),
        ("10.0", "8.8 % to 11.2 %"),
    ]


@pytest.mark.slow
def test_a_sentence_has_no_negative_share() -> None:
    """Noise makes the estimate of an absent string negative. A sentence says 0."""
    row = {"candidate": "x", "name": "", "std_error": 0.01, "before": -0.002, "after": 0.1}
    sentence = str(name_changes([row | {"direction": "rise"}], compare_days()))
    assert sentence == "<bdi>x</bdi> rose from 0.0\u00a0% to 10.0\u00a0%"


def test_one_day_has_no_table_of_changes() -> None:
    """One period has shares and no changes. The date stays on one line."""
    counts = simulate_counts(Population(NAMES, SAME), PARAMS, n_reports=2e4, seed=0, metric="m")
    page = comparison_page(trend(released({FIRST: counts}, "m"), NAMES))
    assert re.search(
        'class="short-1"[^>]*>(?:(?!<table).)*<tbody align="right"><tr><th>2026-11-02<', page
    )
    captions = list(tables(page))
    assert not any("Changes" in caption for caption in captions)
    assert any("Shares of the reports" in caption for caption in captions)


@pytest.mark.slow
def test_the_tables_are_the_record(record: Comparison) -> None:
    """The tables contain all contrasts, changes first, all shown shares and all samples."""
    page_tables = tables(comparison_page(record))
    changes, *others = page_tables.values()
    rows = sort_changes(record)
    assert len(changes) - 1 == len(rows) == 5 * len(record.primary)
    offset = len(record.primary) > 1
    for cells, row in zip(changes[1:], rows, strict=True):
        assert cells[1 + offset : 4 + offset] == [
            row["direction"],
            format_change(row["estimate"], row["std_error"]),
            format_change_interval(*select_contrast_interval(row), row["std_error"]),
        ]
    levels = [row for row in record.rows() if row["what"] in ("share", "smoothed")]
    for cells, row in zip(others[0][1:], levels, strict=True):
        assert cells[2] == (format_share(row["estimate"], row["std_error"]) or "no reports")
    assert [cells[1] for cells in others[1][1:]] == [
        f"{sample.reports:,}" for sample in record.samples
    ]
    unknown = "0" if record.by == "day" else ""
    assert [cells[3] for cells in others[1][1:] if cells[1] != "0"] == [unknown] * sum(
        sample.reports > 0 for sample in record.samples
    )


def test_the_sentences_are_those_of_the_terminal(record: Comparison) -> None:
    """Page and terminal have the same footnotes, escaped on the page."""
    page = comparison_page(record)
    for sentence in list_comparison_footnotes(record):
        assert sentence.replace("<", "&lt;").replace(">", "&gt;") in page


def test_the_page_needs_nothing_and_runs_nothing_of_a_string(record: Comparison) -> None:
    """The page has one style sheet, one script and no address, and strings are text."""
    page = comparison_page(record)
    names = [name for name, _ in tags(page)]
    assert names.count("script") == names.count("style") == 1
    assert not {"link", "img", "iframe", "form"} & set(names)
    assert "alert(1)</script>" not in page
    assert "\u202e" not in page
    assert "[U+202E]gpj.exe" in page


@pytest.mark.slow
def test_every_mark_of_time_has_the_numbers_of_the_record(days: Comparison) -> None:
    """Dots and intervals equal the record, and a period without reports has a cross.

    The chart of a trend has the same marks.
    """
    _, *parts = drawings(comparison_page(days)).values()
    chart = ElementTree.fromstring(days.plot(top=2)._repr_svg_())  # noqa: S314  # ours
    assert titles(chart)[1:] == titles(parts[0]) + titles(parts[1])
    steps = [contrast for contrast in days.contrasts if contrast.kind == "step"]
    for i, part in zip(days.shown_rows.tolist(), parts, strict=True):
        for number, sample in enumerate(days.samples):
            marks = [title for title in titles(part) if title.startswith(f"{sample.first}: ")]
            if not sample.reports:
                assert marks == [f"{sample.first}: no reports"]
                continue
            row = days.share_row(number, i)
            caption = f"{sample.first}: {format_share(row['estimate'], row['std_error'])}"
            caption += f", {format_interval(row['ci_low'], row['ci_high'], row['std_error'])}"
            has_triangle = False
            for step in steps:
                if step.weights[number] > 0 and step.changed[i]:
                    points = format_change(float(step.estimate[i]), float(step.std_error[i]))
                    caption += f"; step of {points} points"
                    has_triangle = True
            assert marks == [caption] * (1 + has_triangle)


@pytest.mark.slow
def test_dots_lie_where_the_axis_says(days: Comparison) -> None:
    """Heights are linear in shares, full dots are detected, and bars end at the intervals."""
    known = [number for number, sample in enumerate(days.samples) if sample.reports]
    _, *parts = drawings(comparison_page(days)).values()
    for i, root in zip(days.shown_rows.tolist(), parts, strict=True):
        (group,) = [
            group for group in root.iter(f"{SVG}g") if group.find(f"{SVG}*/{SVG}title") is not None
        ]
        (bars,) = [path for path in root.iter(f"{SVG}path") if path.get("stroke-opacity") == "0.6"]
        ends = re.findall(r"M(\S+) (\S+)V([^M]+)", bars.attrib["d"])
        heights, shares = [], []
        for number, dot, (x, low, high) in zip(known, group, ends, strict=True):
            is_full = dot.tag == f"{SVG}path"
            if is_full:
                dot_x, height = dot.attrib["d"].removeprefix("M").removesuffix("h0").split()
            else:
                dot_x, height = dot.attrib["cx"], dot.attrib["cy"]
                assert dot.attrib["fill"] == "none"
            assert dot_x == x
            heights += [float(height), float(low), float(high)]
            both = (days.per_sample.ci_low, days.per_sample.ci_high)
            shares += [float(t[number, i]) for t in (days.per_sample.share, *both)]
            assert is_full == days.per_sample.detected[number, i]
        slope, offset = np.polyfit(shares, heights, 1)
        assert slope < 0
        # Heights are rounded to a tenth of a unit. The fitted line adds a part of the rounding.
        assert np.abs(np.array(shares) * slope + offset - heights).max() < 0.1


def test_ticks_are_the_first_days_and_a_far_axis_is_told(days: Comparison) -> None:
    """Every period has a tick. Only an axis that does not begin at 0 has a sentence about it."""
    assert days.smoothed is not None
    _, *parts = drawings(comparison_page(days)).values()
    for i, root in zip(days.shown_rows.tolist(), parts, strict=True):
        words = [str(text.text) for text in root.iter(f"{SVG}text")]
        assert [word for word in words if word.startswith("Nov")] == ["Nov 2", "Nov 4", "Nov 6"]
        ticks = [re.findall(r"M\S+ 170v[47]", path.attrib["d"]) for path in root.iter(f"{SVG}path")]
        assert [len(tick) for tick in ticks if tick] == [6]
        both = (days.per_sample, days.smoothed)
        ends = np.concatenate([(samples.ci_low[:, i], samples.ci_high[:, i]) for samples in both])
        far = np.nanmin(ends) > 3 * (np.nanmax(ends) - np.nanmin(ends))
        assert ("The axis does not begin at 0." in words) is bool(far)
        assert ("0 %" in words) is not bool(far)


def test_the_line_is_interrupted_where_there_is_no_estimate(days: Comparison) -> None:
    """A smoothed line begins with the second period, and stops at a period without reports."""
    _, root, *_ = drawings(comparison_page(days)).values()
    (band,) = [path for path in root.findall(f"{SVG}path") if path.get("fill-opacity")]
    # The last three periods have two ends of intervals each. The second period has no neighbour.
    first, *differences = re.findall(r"-?[\d.]+ -?[\d.]+", band.attrib["d"])
    assert (band.attrib["d"].count("M"), len([first, *differences])) == (1, 6)


def test_gaps_smoothing_and_new_parameters_are_told(days: Comparison) -> None:
    """Gaps, smoothing and new parameters are in the sentences and in the table."""
    sentences = " ".join(list_comparison_footnotes(days))
    assert "There are no reports for 2026-11-04." in sentences
    other = days.samples[4].fingerprints[0]
    assert f"From 2026-11-06 on, reports have other parameters: {other}" in sentences
    assert "of 2 days together: the named day and the 1 before it" in sentences
    *_, periods = tables(comparison_page(days)).values()
    assert [cells[-1].endswith("(changed)") for cells in periods[1:]] == [
        sample.name == "2026-11-06" for sample in days.samples
    ]
