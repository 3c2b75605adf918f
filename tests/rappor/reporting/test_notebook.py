"""Records in a notebook, as charts, and as tables of other libraries."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any
from xml.etree import ElementTree

import pytest
from decodings import released
from pages import SVG, drawings, tables, tags
from registries import metric_of

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
    question = DetectionTarget(frequencies=Frequencies.zipf(100))
    return predict_power(Params.profile("balanced"), question, reports=100_000)


@pytest.fixture(scope="module")
def privacy() -> PrivacyReport:
    return privacy_report_of(Params.profile("balanced"))


@pytest.fixture(scope="module")
def audit() -> Audit:
    checks = (
        Check(name="epsilon_1", verdict="pass", detail="at least 1.9", bound=1.9, claim=2.0),
        Check(name="bits", verdict="fault", detail="<b>bit 3</b> never falls", p_value=0.0),
    )
    return Audit(
        metric=metric_of(Params.profile("balanced")),
        trials=1000,
        n_reports=2,
        level=1e-4,
        checks=checks,
        not_examined=("Time was not looked at.",),
    )


@pytest.fixture(scope="module")
def comparison() -> Comparison:
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
    return trend(released(counts), ["<b>cat</b>", "dog", "yak"])


@pytest.fixture(scope="module")
def association() -> Association:
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
    fixture = request.getfixturevalue(request.param)
    assert isinstance(fixture, DisplayedRecord)
    return fixture


def drawn(record: DisplayedRecord, **options: Any) -> list[tuple[str, ...]]:
    """Return the words of each row of a record's chart: name and number."""
    root = ElementTree.fromstring(record.plot(**options)._repr_svg_())  # noqa: S314  # ours
    rows = root.iter(f"{SVG}g")
    return [tuple(str(text.text) for text in row.findall(f"{SVG}text")) for row in rows]


@pytest.mark.slow
def test_a_notebook_shows_a_record_without_scripts(record: DisplayedRecord) -> None:
    """The HTML is one division with a table, without scripts."""
    html = record._repr_html_()
    names = {name for name, _ in tags(html)}
    assert html.startswith("<div>")
    assert "table" in names
    assert not names & {"script", "style", "img", "link"}


@pytest.mark.slow  # pandas and polars are in the extra dev only
def test_every_record_is_a_table_of_three_libraries(record: DisplayedRecord) -> None:
    """pandas, polars and Arrow get the same columns and rows."""
    import polars  # noqa: PLC0415 - the extra test lacks it

    frame, arrow = record.to_pandas(), record.to_arrow()
    assert list(frame.columns) == arrow.column_names == record.to_polars().columns
    assert len(frame) == arrow.num_rows == len(record.to_polars()) > 0
    assert isinstance(record.to_polars(), polars.DataFrame)


def test_a_library_that_is_missing_is_named() -> None:
    """A missing library gives one sentence. A wrong name of a renderer is an AttributeError."""
    with pytest.raises(ModuleNotFoundError):
        call_renderer("no_such_module", "page")
    assert str(MissingExtraError("polars", is_library=True)).startswith("this needs polars")


def test_estimates_in_a_notebook_are_their_first_rows(estimates: Estimates) -> None:
    """The HTML has at most twenty rows, a chart, and the footnotes of the terminal."""
    html = estimates._repr_html_()
    ((_, rows),) = tables(html).items()
    assert [row[0] for row in rows[1:]] == list(estimates.candidates[:20])
    assert len(drawings(html)) == 1
    assert estimates.assumptions in html


def test_estimates_plot_has_the_top_rows(estimates: Estimates) -> None:
    """The chart has the first rows, and `rest` adds sums of shares."""
    rows = list(estimates.rows(detected_only=True))[:10]
    expected = [
        (row["candidate"], format_share(row["share"], row["std_error"] / estimates.reports))
        for row in rows
    ]
    assert drawn(estimates, top=10) == expected
    (rest,) = (remaining for remaining in estimates.remaining if remaining.after == 10)
    *first, other, remaining = drawn(estimates, top=10, rest=True)
    assert first == expected
    assert other == (f"other detected ({rest.rows})", format_share(rest.share, rest.std_error))
    assert remaining[1] == format_share(estimates.unallocated, estimates.unallocated_std_error)


def test_plan_plot_is_its_prediction(plan: Plan) -> None:
    """The curve has a point for each share, and a dot for the smallest detected share."""
    root = ElementTree.fromstring(plan.plot()._repr_svg_())  # noqa: S314  # ours
    (line,) = root.iter(f"{SVG}polyline")
    assert len(str(line.get("points")).split()) == len(set(plan.question.frequencies.shares))
    markers = [
        element for element in root.iter(f"{SVG}svg") if element.find(f"{SVG}path") is not None
    ]
    assert len(markers) == 2  # on the curve and in the legend


def test_audit_in_a_notebook_says_what_was_found(audit: Audit) -> None:
    """The HTML has verdict, checks and parts that were not examined. Only losses are drawn."""
    assert drawn(audit) == [("epsilon_1", "1.9 / 2")]
    html = audit._repr_html_()
    assert "1 of 2 checks found a fault in 1,000 trials of page." in html
    assert "&lt;b&gt;bit 3" in html
    assert "Time was not looked at." in html


def test_beliefs_in_a_notebook_are_rounded_to_the_safe_side(privacy: PrivacyReport) -> None:
    """The bounds 11.92 % and 88.08 % are written as 11.9 and 88.1 %."""
    caption = "What an observer can believe after reports of one value"
    rows = tables(privacy._repr_html_())[caption]
    assert rows[1][:2] == ["1", "2.0000"]
    assert rows[1][4] == "11.9 to 88.1 %"
    assert rows[-1][0] == "any number"


@pytest.mark.slow
def test_changes_in_a_notebook_are_the_record(comparison: Comparison) -> None:
    """Chart and table have the changes in points with their intervals, the largest first."""
    rows = [row for row in sort_changes(comparison) if row["changed"]]
    assert len(rows) >= 2
    numbers = [
        (row["candidate"], format_change(row["estimate"], row["std_error"])) for row in rows[:2]
    ]
    assert drawn(comparison, top=2) == numbers
    html = comparison._repr_html_()
    (cells,) = tables(html).values()
    assert [(line[0], line[2]) for line in cells[1:3]] == numbers
    assert cells[1][1] == rows[0]["direction"]
    assert "significant: from" in html
