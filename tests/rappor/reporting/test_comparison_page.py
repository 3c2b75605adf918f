"""The HTML page of a comparison.

Its drawings and tables must have the numbers of the record (the `Comparison`), for samples, days
and segments. It must load nothing from the network, and strings of the collection, which are
hostile here, must stay text.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast
from xml.etree import ElementTree

import numpy as np
import pytest
from decodings import build_released_counts
from pages import SVG, parse_drawings, parse_tables, parse_tags

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
from rappor.decoding.diagnostics import Caution
from rappor.reporting.changes import name_changes
from rappor.reporting.comparison_page import comparison_page, count_drawings
from rappor.reporting.comparison_tables import changes_of_contrast, explain_changes
from rappor.reporting.footnotes import list_comparison_footnotes
from rappor.reporting.markup import escape
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
"""First day of the trends."""
SAME, OTHER = [2.0, 2.0, 2.0, 2.0], [1.0, 1.0, 1.0, 5.0]
"""Weights of NAMES before a change (SAME) and after it (OTHER). "plain" rises from 1/4 to 5/8, and
the other three strings fall from 1/4 to 1/8."""


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
    new_params = dataclasses.replace(PARAMS, p=0.2)
    counts = {}
    for number, params in ((0, PARAMS), (1, PARAMS), (3, PARAMS), (4, new_params), (5, new_params)):
        population = Population(NAMES, OTHER if number == 5 else SAME)
        day = FIRST + datetime.timedelta(number)
        counts[day] = simulate_counts(population, params, n_reports=2e4, seed=number, metric="m")
    return trend(build_released_counts(counts, "m"), [*NAMES, "absent"], smooth=2)


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
    """Return a comparison of each kind: samples, days of a trend, and segments."""
    comparison: Comparison = request.param()
    return comparison


@pytest.fixture(scope="module")
def days() -> Comparison:
    """Return the trend of six days."""
    return compare_days()


def list_tooltips(root: ElementTree.Element) -> list[str]:
    """Return the tooltips of the marks of a drawing. A tooltip of SVG is an element `title`."""
    return [str(title.text) for title in root.iter(f"{SVG}title")]


@pytest.mark.slow
def test_a_comparison_is_printed_as_text(record: Comparison) -> None:
    """`print` shows the titles, the changed strings and the footnotes, in lines of 100 columns.

    A control character in a string is replaced, so that a terminal does not execute it.
    """
    text = str(record)
    assert record.primary[0].name in text
    shown = record.shown_rows.tolist()
    assert changes_of_contrast(record, record.primary[0], shown, 100).to_text(100) in text
    assert " ".join([*list_comparison_footnotes(record)][-1].split()) in " ".join(text.split())
    assert max(map(len, text.split("\n"))) <= 100
    contrast = dataclasses.replace(record.primary[0], name="from a\x1b[2J to b")
    renamed = dataclasses.replace(record, contrasts=(contrast, *record.contrasts[1:]))
    assert "\x1b" not in str(renamed)
    assert "from a" in str(renamed)


@pytest.mark.slow
def test_changes_are_drawn_as_in_the_record(record: Comparison) -> None:
    """The first drawing has exactly the significant changes, each with its adjusted interval.

    An unadjusted interval would be too short, because the changes were selected for their size.
    """
    first, *shares = parse_drawings(comparison_page(record)).values()
    expected = [row for row in sort_changes(record) if row["changed"]]
    assert len(expected) == record.n_changed > 1
    for row in expected:
        ends = format_change_interval(*select_contrast_interval(row), row["std_error"])
        numbers = f"{format_change(row['estimate'], row['std_error'])}, {ends}"
        assert any(tooltip.endswith(f": {numbers}") for tooltip in list_tooltips(first))
    assert len(list_tooltips(first)) == len(expected)
    assert len(shares) == count_drawings(record)


@pytest.mark.parametrize(
    ("n_periods", "n_charts"), [(2, 12), (52, 12), (58, 12), (59, 11), (200, 3), (365, 1), (800, 1)]
)
def test_all_charts_have_at_most_700_dots(n_periods: int, n_charts: int) -> None:
    """All charts of shares together have at most 700 dots, so that a page stays below 200 kB.

    The chart of a string has a dot for each period. Up to 58 periods there are 12 charts, because
    12 * 58 = 696. With more periods there are fewer charts. At least one chart is drawn, also if it
    alone has more than 700 dots.
    """
    comparison = SimpleNamespace(by="day", samples=range(n_periods), shown_rows=np.arange(20))
    assert count_drawings(cast("Comparison", comparison)) == n_charts


@pytest.mark.slow
def test_changes_are_named_with_the_segment_or_the_time() -> None:
    """The sentence about a change names the segment, or the period of a new or vanished string.

    "More common" without a segment would leave open where. A new string has no earlier share, and a
    vanished string no later one, so the sentence has one share and its period.
    """
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


def test_without_a_significant_change_the_nearest_candidates_are_drawn() -> None:
    """Without a significant change, the candidates with the smallest p-values have hollow dots.

    The intervals of the dots show which changes are excluded, which an empty drawing would not. The
    error rate of 1e-6 is for samples from equal populations, so a detection would be a fault.
    """
    samples = {
        name: simulate_counts(Population(NAMES, SAME), PARAMS, n_reports=2e4, seed=seed)
        for seed, name in enumerate(("May", "June"))
    }
    comparison = compare_samples(samples, NAMES, error_control=ErrorControl(alpha=1e-6))
    assert not comparison.n_changed
    (drawing,) = parse_drawings(comparison_page(comparison)).values()
    assert [dot.get("fill") for dot in drawing.iter(f"{SVG}circle")] == ["none"] * 4


def test_bars_of_an_overview_are_as_long_as_their_shares() -> None:
    """Lengths of bars are proportional to shares, also if one string has almost all reports.

    Readers compare bars by their lengths. A broken or logarithmic axis would mislead them.
    """
    population = Population(["most", *map(str, range(9))], [300, *range(9, 0, -1)])
    counts = simulate_counts(population, PARAMS, n_reports=1e6, seed=1, metric="m")
    overview = compute_overview(
        build_released_counts({FIRST: counts}, "m"),
        [counts],
        Candidates.from_list(population.values),
        n_latest=1,
        by="day",
    )
    bars = parse_drawings(str(overview_card(overview))).values()
    widths = [float(bar.findall(f"{SVG}rect")[0].attrib["width"].rstrip("%")) for bar in bars]
    shares = [line.share for line in overview.list_rows()[: len(widths)]]
    assert len(widths) == 3
    assert np.array(widths) / widths[0] == pytest.approx(np.array(shares) / shares[0], abs=1e-3)


def test_a_trend_without_changes_says_so() -> None:
    """The first footnote of a trend without changes is in words, instead of "0 values"."""
    counts = {
        FIRST + datetime.timedelta(day): simulate_counts(
            Population(NAMES, SAME), PARAMS, n_reports=2e4, seed=day, metric="m"
        )
        for day in range(3)
    }
    sentence, intervals, *_ = list_comparison_footnotes(
        trend(build_released_counts(counts, "m"), NAMES, error_control=ErrorControl(alpha=1e-6))
    )
    assert sentence.startswith(
        "No value changed significantly over the range (trend line through all days), at a false"
    )
    assert intervals.startswith(
        "Each interval holds for its candidate alone. Where nothing has changed, about 5 %"
    )


def test_one_day_is_a_ranking_on_one_scale() -> None:
    """A trend of one period is shown as a ranking: bars with intervals, the longest first.

    A chart over time would have one dot. All bars have one scale, so their widths are proportional
    to the shares. The names of the drawings contain the share and its interval.
    """
    counts = simulate_counts(Population(NAMES, OTHER), PARAMS, n_reports=2e4, seed=0, metric="m")
    comparison = trend(build_released_counts({FIRST: counts}, "m"), NAMES)
    bars = parse_drawings(comparison_page(comparison))
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
    """All shares of a ranking have the same number of digits, which follows from the median error.

    Numbers below each other are compared by their digits. With an error of about 0.01, one digit
    after the decimal point has a meaning.
    """
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
def test_a_sentence_has_no_impossible_share() -> None:
    """A sentence writes a negative estimate as 0, and an estimate above 1 as 100 %.

    Noise makes the estimate of an absent string negative half of the time, and that of an item of
    all devices larger than 1. The tables keep these numbers, because a sum of estimates needs them.
    No reader of a sentence does.
    """
    row = {"candidate": "x", "name": "", "std_error": 0.01, "before": -0.002, "after": 1.012}
    sentence = str(name_changes([row | {"direction": "rise"}], compare_days()))
    assert sentence == "<bdi>x</bdi> rose from 0.0\u00a0% to 100.0\u00a0%"


def test_one_day_has_no_table_of_changes() -> None:
    """The page of one period has a table of shares and none of changes. Its date is not broken."""
    counts = simulate_counts(Population(NAMES, SAME), PARAMS, n_reports=2e4, seed=0, metric="m")
    page = comparison_page(trend(build_released_counts({FIRST: counts}, "m"), NAMES))
    assert re.search(
        'class="short-1"[^>]*>(?:(?!<table).)*<tbody align="right"><tr><th>2026-11-02<', page
    )
    captions = list(parse_tables(page))
    assert not any("Changes" in caption for caption in captions)
    assert any("Shares of the reports" in caption for caption in captions)


@pytest.mark.slow
def test_the_tables_are_the_record(record: Comparison) -> None:
    """The page has three tables: all contrasts, the shares, and the samples with their reports.

    Their cells are the formatted numbers of the record. Significant changes come first.
    """
    page_tables = parse_tables(comparison_page(record))
    changes, *further_tables = page_tables.values()
    rows = sort_changes(record)
    assert len(changes) - 1 == len(rows) == 5 * len(record.primary)
    # With several contrasts, a row has the name of its contrast in a further column.
    offset = len(record.primary) > 1
    for cells, row in zip(changes[1:], rows, strict=True):
        assert cells[1 + offset : 4 + offset] == [
            row["direction"],
            format_change(row["estimate"], row["std_error"]),
            format_change_interval(*select_contrast_interval(row), row["std_error"]),
        ]
    levels = [row for row in record.rows() if row["what"] in ("share", "smoothed")]
    for cells, row in zip(further_tables[0][1:], levels, strict=True):
        assert cells[2] == (format_share(row["estimate"], row["std_error"]) or "no reports")
    assert [cells[1] for cells in further_tables[1][1:]] == [
        f"{sample.reports:,}" for sample in record.samples
    ]
    # The fourth column has the number of missing days, which only a trend has.
    n_missing = "0" if record.by == "day" else ""
    assert [cells[3] for cells in further_tables[1][1:] if cells[1] != "0"] == [n_missing] * sum(
        sample.reports > 0 for sample in record.samples
    )


def test_the_sentences_are_those_of_the_terminal(record: Comparison) -> None:
    """The page contains every footnote of the terminal, with its angle brackets escaped."""
    page = comparison_page(record)
    for sentence in list_comparison_footnotes(record):
        assert sentence.replace("<", "&lt;").replace(">", "&gt;") in page
    # Warnings are marked as on other pages.
    warned = dataclasses.replace(record, warnings=(Caution("code", "A warning."),))
    assert '<p class="warning">A warning.</p>' in comparison_page(warned)
    assert 'class="warning"' not in comparison_page(dataclasses.replace(record, warnings=()))
    # The column of the intervals has two kinds of intervals, and a sentence explains both.
    assert record.n_changed
    assert "at most 5 % of the adjusted intervals of significant changes miss the true" in page
    assert "Each other interval holds for its candidate alone." in page


def simulate_trend(params: Params, n_days: int) -> Comparison:
    """Return a trend whose shares change after the first day.

    The names of the categories of `params` are the candidates, if it has categories.
    """
    counts = {
        FIRST + datetime.timedelta(day): simulate_counts(
            Population(NAMES, OTHER if day else SAME), params, n_reports=2e4, seed=day, metric="m"
        )
        for day in range(n_days)
    }
    return trend(build_released_counts(counts, "m"), None if params.categories else NAMES)


def compare_separate_shapes() -> Comparison:
    """Return a comparison of two samples whose numbers of bits differ."""
    samples = {
        f"{k} bits": simulate_counts(
            Population(NAMES, weights), dataclasses.replace(PARAMS, k=k), n_reports=2e4, seed=k
        )
        for k, weights in ((32, SAME), (64, OTHER))
    }
    return compare_samples(samples, NAMES)


CATEGORIES = Params.profile("balanced", encoding="onehot", categories=tuple("abcd"))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (compare_months, 'is not exactly "after" minus "before"'),
        (compare_versions, 'is not exactly "here" minus "elsewhere"'),
        (lambda: simulate_trend(PARAMS, 2), 'is not exactly "last day" minus "first day"'),
        (
            lambda: simulate_trend(PARAMS, 6),
            "it is not the last third (2026-11-06 to 2026-11-07) minus the first third (2026-11-02 "
            "to 2026-11-03)",
        ),
        (lambda: simulate_trend(CATEGORIES, 3), "line through all days"),
        # The change of a category is the difference of the shares, and so is the change of strings
        # of samples with different bits. With two periods, the line is a difference.
        (lambda: simulate_trend(CATEGORIES, 2), None),
        (compare_separate_shapes, None),
    ],
)
def test_a_sentence_explains_changes_that_are_no_difference_of_shares(
    build: Callable[[], Comparison], reason: str | None
) -> None:
    """Page and notebook explain a change that differs from the two shares beside it, and only then.

    A reader subtracts the shares 29.79 % and 26.29 %, gets 3.50, and finds the change 3.62.
    """
    comparison = build()
    rows = sort_changes(comparison)
    differences = [row["estimate"] - (row["after"] - row["before"]) for row in rows]
    sentences = list(explain_changes(comparison))
    assert (max(map(abs, differences)) > 1e-9) == (reason is not None) == bool(sentences)
    page, notebook = comparison_page(comparison), comparison._repr_html_()
    for sentence in sentences:
        assert reason is not None
        assert reason in sentence
        # The paragraph follows the table, without another section between them.
        assert re.search(rf"</table>(?:(?!<section).)*<p>{re.escape(escape(sentence))}</p>", page)
        assert escape(sentence) in notebook


def test_the_page_needs_nothing_and_runs_nothing_of_a_string(record: Comparison) -> None:
    """The page loads no file and runs no script but its own, whatever strings the devices sent.

    Its own style sheet and script are inside the page. A mark that turns the direction of writing
    would let "exe.jpg" appear for "gpj.exe", so the page names the mark.
    """
    page = comparison_page(record)
    names = [name for name, _ in parse_tags(page)]
    assert names.count("script") == names.count("style") == 1
    assert not {"link", "img", "iframe", "form"} & set(names)
    assert "alert(1)</script>" not in page
    assert "\u202e" not in page
    assert "[U+202E]gpj.exe" in page


@pytest.mark.slow
def test_every_mark_of_time_has_the_numbers_of_the_record(days: Comparison) -> None:
    """The tooltip of each mark has the share and the interval of the record, and a step its points.

    A period without reports has a mark with the tooltip "no reports". A step is a significant
    change from one day to the next, and has a triangle besides its dot. `plot` draws the same marks
    as the page.
    """
    _, *parts = parse_drawings(comparison_page(days)).values()
    chart = ElementTree.fromstring(days.plot(top=2)._repr_svg_())  # noqa: S314  # ours
    assert list_tooltips(chart)[1:] == list_tooltips(parts[0]) + list_tooltips(parts[1])
    steps = [contrast for contrast in days.contrasts if contrast.kind == "step"]
    for i, part in zip(days.shown_rows.tolist(), parts, strict=True):
        for number, sample in enumerate(days.samples):
            marks = [text for text in list_tooltips(part) if text.startswith(f"{sample.first}: ")]
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
    """The heights of dots and of the ends of intervals are a linear function of their shares.

    One line through all heights of a chart must fit them all, so each mark lies at its position on
    the axis. A full dot is a detected candidate, and a hollow dot an undetected one. Heights of SVG
    grow downwards, so the slope is negative.
    """
    periods_with_reports = [number for number, sample in enumerate(days.samples) if sample.reports]
    _, *parts = parse_drawings(comparison_page(days)).values()
    for i, root in zip(days.shown_rows.tolist(), parts, strict=True):
        (group,) = [
            group for group in root.iter(f"{SVG}g") if group.find(f"{SVG}*/{SVG}title") is not None
        ]
        (bars,) = [path for path in root.iter(f"{SVG}path") if path.get("stroke-opacity") == "0.6"]
        ends = re.findall(r"M(\S+) (\S+)V([^M]+)", bars.attrib["d"])
        heights, shares = [], []
        for number, dot, (x, low, high) in zip(periods_with_reports, group, ends, strict=True):
            is_full = dot.tag == f"{SVG}path"
            if is_full:
                dot_x, height = dot.attrib["d"].removeprefix("M").removesuffix("h0").split()
            else:
                dot_x, height = dot.attrib["cx"], dot.attrib["cy"]
                assert dot.attrib["fill"] == "none"
            assert dot_x == x
            heights += [float(height), float(low), float(high)]
            ends_of_interval = (days.per_sample.ci_low, days.per_sample.ci_high)
            shares += [float(t[number, i]) for t in (days.per_sample.share, *ends_of_interval)]
            assert is_full == days.per_sample.detected[number, i]
        slope, offset = np.polyfit(shares, heights, 1)
        assert slope < 0
        # Heights are rounded to a tenth of a unit. The fitted line adds a part of the rounding.
        assert np.abs(np.array(shares) * slope + offset - heights).max() < 0.1


def test_ticks_are_the_first_days_and_an_axis_without_0_is_named(days: Comparison) -> None:
    """Every period has a tick, and an axis that does not begin at 0 has a sentence about it.

    Small changes of a large share are invisible on an axis that begins at 0. So the axis begins
    above 0 if the smallest number is more than three times the range of the numbers. Without the
    sentence, a reader would assume that the axis begins at 0.
    """
    assert days.smoothed is not None
    _, *parts = parse_drawings(comparison_page(days)).values()
    for i, root in zip(days.shown_rows.tolist(), parts, strict=True):
        words = [str(text.text) for text in root.iter(f"{SVG}text")]
        assert [word for word in words if word.startswith("Nov")] == ["Nov 2", "Nov 4", "Nov 6"]
        ticks = [re.findall(r"M\S+ 170v[47]", path.attrib["d"]) for path in root.iter(f"{SVG}path")]
        assert [len(tick) for tick in ticks if tick] == [6]
        drawn = (days.per_sample, days.smoothed)
        ends = np.concatenate([(samples.ci_low[:, i], samples.ci_high[:, i]) for samples in drawn])
        is_far_from_0 = bool(np.nanmin(ends) > 3 * (np.nanmax(ends) - np.nanmin(ends)))
        assert ("The axis does not begin at 0." in words) is is_far_from_0
        assert ("0 %" in words) is not is_far_from_0


def test_the_line_is_interrupted_where_there_is_no_estimate(days: Comparison) -> None:
    """A smoothed line exists only for consecutive periods with reports.

    A line over a period without reports would suggest an estimate for it. A smoothed share is the
    mean of a period and the one before, so the first period of a run has none.
    """
    _, root, *_ = parse_drawings(comparison_page(days)).values()
    (band,) = [path for path in root.findall(f"{SVG}path") if path.get("fill-opacity")]
    # The band consists of the two ends of the intervals of the last three periods. The second
    # period has a smoothed share as well, but no neighbour to be joined with.
    first, *differences = re.findall(r"-?[\d.]+ -?[\d.]+", band.attrib["d"])
    assert (band.attrib["d"].count("M"), len([first, *differences])) == (1, 6)


def test_gaps_smoothing_and_new_parameters_are_explained(days: Comparison) -> None:
    """The footnotes name the day without reports, the days of a smoothed share, and new parameters.

    A new fingerprint changes the noise from this day on, so a change of the error bars is no change
    of the devices. The table of days marks the day, too.
    """
    sentences = " ".join(list_comparison_footnotes(days))
    assert "There are no reports for 2026-11-04." in sentences
    new_fingerprint = days.samples[4].fingerprints[0]
    assert f"From 2026-11-06 on, reports have other parameters: {new_fingerprint}" in sentences
    assert "of 2 days together: the named day and the 1 before it" in sentences
    *_, periods = parse_tables(comparison_page(days)).values()
    assert [cells[-1].endswith("(changed)") for cells in periods[1:]] == [
        sample.name == "2026-11-06" for sample in days.samples
    ]
