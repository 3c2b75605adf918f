"""Records of the public API in a notebook: as HTML, as charts, and as tables of other libraries."""

from __future__ import annotations

import dataclasses
import datetime
import math
from typing import Any
from xml.etree import ElementTree

import pytest
from decodings import build_released_counts
from pages import SVG, parse_drawings, parse_tables, parse_tags
from registries import build_metric

from rappor import (
    Association,
    Comparison,
    Estimates,
    MissingExtraError,
    Params,
    Plan,
    Population,
    associate,
    compare_samples,
    decode,
    predict_power,
    simulate_counts,
    trend,
)
from rappor.auditing import Audit, Check
from rappor.base.display import DisplayedRecord, call_renderer
from rappor.planning.frequencies import Frequencies
from rappor.planning.power import DetectionTarget
from rappor.privacy import PrivacyReport
from rappor.privacy.assessment import privacy_report_of
from rappor.protocol.tuples import combine_categories
from rappor.reporting.numbers import format_change, format_share
from rappor.reporting.plots import sort_changes


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Return the predicted power of a metric with 100 values after 100,000 reports."""
    target = DetectionTarget(frequencies=Frequencies.zipf(100))
    return predict_power(Params.profile("balanced"), target, reports=100_000)


@pytest.fixture(scope="module")
def privacy() -> PrivacyReport:
    """Return the privacy losses of the profile "balanced"."""
    return privacy_report_of(Params.profile("balanced"))


@pytest.fixture(scope="module")
def audit() -> Audit:
    """Return an audit with one check of a loss that passed, and one check that found a fault."""
    checks = (
        Check(name="epsilon_1", verdict="pass", detail="at least 1.9", bound=1.9, claim=2.0),
        Check(name="bits", verdict="fault", detail="<b>bit 3</b> never falls", p_value=0.0),
    )
    return Audit(
        metric=build_metric(Params.profile("balanced")),
        trials=1000,
        n_reports=2,
        level=1e-4,
        checks=checks,
        not_examined=("Time was not looked at.",),
    )


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    """Return a comparison of two samples in which "cat" and "dog" exchange their shares."""
    params = Params.profile("low-noise")
    samples = {
        f"<i>{name}</i>": simulate_counts(
            Population(["<b>cat</b>", "dog", "emu"], weights), params, n_reports=50_000, seed=seed
        )
        for seed, (name, weights) in enumerate((("a", [5, 3, 2]), ("b", [3, 5, 2])))
    }
    return compare_samples(samples, ["<b>cat</b>", "dog", "emu", "yak"])


@pytest.fixture(scope="module")
def over_days() -> Comparison:
    """Return a trend of two days, with a day without reports between them."""
    params = dataclasses.replace(Params.profile("low-noise"), k=32, m=8)
    population = Population(["<b>cat</b>", "dog"], [5, 3])
    days = [datetime.date(2026, 11, number) for number in (1, 3)]
    counts = {
        day: simulate_counts(population, params, n_reports=20_000, seed=day.day) for day in days
    }
    return trend(build_released_counts(counts), ["<b>cat</b>", "dog", "yak"])


@pytest.fixture(scope="module")
def association() -> Association:
    """Return the association of two fields that depend on each other."""
    lists = {"editor": ["<b>vim</b>", "code"], "system": ["linux", "mac", "other"]}
    categories = combine_categories(lists)
    params = Params.profile(
        "once", encoding="onehot", categories=categories, field_names=tuple(lists)
    )
    population = Population(categories, [4, 1, 1, 1, 2, 1])
    return associate(decode(simulate_counts(population, params, n_reports=20_000, seed=1)))


@pytest.fixture(
    params=["association", "estimates", "comparison", "over_days", "plan", "privacy", "audit"]
)
def record(request: pytest.FixtureRequest) -> DisplayedRecord:
    """Return a record of each kind that a notebook can show."""
    fixture = request.getfixturevalue(request.param)
    assert isinstance(fixture, DisplayedRecord)
    return fixture


def read_chart(record: DisplayedRecord, **options: Any) -> list[tuple[str, ...]]:
    """Return the words of each row of a record's chart: name and number."""
    root = ElementTree.fromstring(record.plot(**options)._repr_svg_())  # noqa: S314  # ours
    rows = root.iter(f"{SVG}g")
    return [tuple(str(text.text) for text in row.findall(f"{SVG}text")) for row in rows]


@pytest.mark.slow
def test_a_notebook_shows_a_record_without_scripts(record: DisplayedRecord) -> None:
    """The HTML of a record is one element `div` with a table, without scripts, styles or images.

    A notebook without the mark "trusted" runs no scripts, and a style sheet would change the
    other cells of the notebook.
    """
    html = record._repr_html_()
    names = {name for name, _ in parse_tags(html)}
    assert html.startswith("<div>")
    assert "table" in names
    assert not names & {"script", "style", "img", "link"}


@pytest.mark.slow  # pandas and polars are in the extra dev only
def test_every_record_is_a_table_of_three_libraries(record: DisplayedRecord) -> None:
    """pandas, polars and Arrow get the same columns and the same number of rows of a record."""
    import polars  # noqa: PLC0415 - the extra test lacks it

    frame, arrow = record.to_pandas(), record.to_arrow()
    assert list(frame.columns) == arrow.column_names == record.to_polars().columns
    assert len(frame) == arrow.num_rows == len(record.to_polars()) > 0
    assert isinstance(record.to_polars(), polars.DataFrame)


def test_a_library_that_is_missing_is_named() -> None:
    """A missing library raises an error that names the library, and a missing module its own error.

    A record finds its renderer by the name of a module. An error in this name is a fault of our
    program and must not ask a person to install something.
    """
    with pytest.raises(ModuleNotFoundError):
        call_renderer("no_such_module", "page")
    assert str(MissingExtraError("polars", is_library=True)).startswith("this needs polars")


def test_estimates_in_a_notebook_are_their_first_rows(estimates: Estimates) -> None:
    """The HTML of estimates has at most twenty rows, one chart, and all footnotes."""
    html = estimates._repr_html_()
    ((_, rows),) = parse_tables(html).items()
    assert [row[0] for row in rows[1:]] == list(estimates.candidates[:20])
    assert len(parse_drawings(html)) == 1
    assert estimates.assumptions in html


def test_estimates_plot_has_the_top_rows(estimates: Estimates) -> None:
    """`plot(top=10)` draws the first ten detected candidates, and `rest=True` adds two sums.

    The sums are the share of all other detected candidates, and the unallocated share, so that the
    rows of the chart add up to 100 %.
    """
    rows = list(estimates.rows(detected_only=True))[:10]
    expected = [
        (row["candidate"], format_share(row["share"], row["std_error"] / estimates.reports))
        for row in rows
    ]
    assert read_chart(estimates, top=10) == expected
    assert "share of the reports, with adjusted 95 % intervals" in estimates.plot(top=10).svg()
    (rest,) = (remaining for remaining in estimates.remaining if remaining.after == 10)
    *first, other_row, unallocated_row = read_chart(estimates, top=10, rest=True)
    assert first == expected
    assert other_row == (f"other detected ({rest.rows})", format_share(rest.share, rest.std_error))
    assert unallocated_row[1] == format_share(
        estimates.unallocated, estimates.unallocated_std_error
    )


def test_plan_plot_is_its_prediction(plan: Plan) -> None:
    """The curve of a plan has a point for each share, and a mark at the smallest detectable share.

    The curve is the probability of detection by share. The mark also stands in the legend.
    """
    root = ElementTree.fromstring(plan.plot()._repr_svg_())  # noqa: S314  # ours
    (line,) = root.iter(f"{SVG}polyline")
    assert len(str(line.get("points")).split()) == len(set(plan.target.frequencies.shares))
    markers = [
        element for element in root.iter(f"{SVG}svg") if element.find(f"{SVG}path") is not None
    ]
    assert len(markers) == 2  # on the curve and in the legend


def test_audit_in_a_notebook_says_what_was_found(audit: Audit) -> None:
    """The HTML of an audit has its verdict, its checks, and what the audit did not examine.

    The chart has the check with a bound only: the loss that was shown (1.9 nats) beside the loss
    that is claimed (2 nats).
    """
    assert read_chart(audit) == [("epsilon_1", "1.9 / 2")]
    html = audit._repr_html_()
    assert "1 of 2 checks found a fault in 1,000 trials of page." in html
    assert "&lt;b&gt;bit 3" in html
    assert "Time was not looked at." in html


def test_an_infinite_loss_is_a_word_of_the_chart(audit: Audit) -> None:
    """Without permanent noise (f = 0) epsilon_inf is infinite, and the axis has only the others."""
    check = Check(
        name="epsilon_inf", verdict="pass", detail="", bound=1.25, claim=math.inf, reach=1.5
    )
    infinite = dataclasses.replace(audit, checks=(check,))
    assert read_chart(infinite) == [("epsilon_inf", "1.25 / infinite / 1.5")]


def test_beliefs_in_a_notebook_are_rounded_to_the_safe_side(privacy: PrivacyReport) -> None:
    """A lower bound on a belief is rounded down, and an upper bound is rounded up.

    After a report with 2 nats, a belief of 50 % lies between 11.92 % and 88.08 %. Rounded to the
    nearest tenth, the upper bound would claim more privacy than there is.
    """
    caption = "What an observer can believe after reports of one value in one epoch"
    rows = parse_tables(privacy._repr_html_())[caption]
    assert rows[1][:2] == ["1", "2.0000"]
    assert rows[1][4] == "11.9 to 88.1 %"
    assert rows[-1][0] == "any number"


@pytest.mark.slow
def test_changes_in_a_notebook_are_the_record(comparison: Comparison) -> None:
    """Chart and table of a comparison have the same significant changes, the largest first."""
    rows = [row for row in sort_changes(comparison) if row["changed"]]
    assert len(rows) >= 2
    numbers = [
        (row["candidate"], format_change(row["estimate"], row["std_error"])) for row in rows[:2]
    ]
    assert read_chart(comparison, top=2) == numbers
    html = comparison._repr_html_()
    (cells,) = parse_tables(html).values()
    assert [(line[0], line[2]) for line in cells[1:3]] == numbers
    assert cells[1][1] == rows[0]["direction"]
    assert "), significant at the level 1 %: from" in html
