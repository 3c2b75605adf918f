"""Records in a notebook, as Altair charts, and as tables of other libraries."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import pytest
from pages import drawings, tables, tags

from rappor import (
    Comparison,
    Estimates,
    Frequencies,
    MissingExtraError,
    Params,
    Plan,
    Population,
    Question,
    Trend,
    assess,
    compare,
    simulate_counts,
    trend,
)
from rappor.auditing import Audit, Check
from rappor.counts.released import Period, Released
from rappor.display import Displayed, draw
from rappor.privacy import PrivacyReport
from rappor.privacy.report import assess_params
from rappor.registry.metric import Metric


@pytest.fixture(scope="module")
def plan() -> Plan:
    question = Question(frequencies=Frequencies.zipf(100))
    return assess(Params.profile("balanced"), question, reports=100_000)


@pytest.fixture(scope="module")
def privacy() -> PrivacyReport:
    return assess_params(Params.profile("balanced"))


@pytest.fixture(scope="module")
def audit() -> Audit:
    metric = Metric(
        name="page",
        params=Params.profile("balanced"),
        description="d",
        owner="o",
        expires=datetime.date(2030, 1, 1),
        epoch="year",
    )
    checks = (
        Check(name="epsilon_1", verdict="pass", detail="at least 1.9", bound=1.9, claim=2.0),
        Check(name="bits", verdict="fault", detail="<b>bit 3</b> never falls", p_value=0.0),
    )
    return Audit(
        metric=metric,
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
    return compare(samples, ["<b>cat</b>", "dog", "emu", "yak"])


@pytest.fixture(scope="module")
def over_days() -> Trend:
    """Two days of the pets, and one without reports between them."""
    params = dataclasses.replace(Params.profile("low-noise"), k=32, m=8)
    population = Population(["<b>cat</b>", "dog"], [5, 3])
    days = [datetime.date(2026, 11, number) for number in (1, 3)]
    periods = tuple(
        Period(
            first=day,
            last=day,
            collections=(simulate_counts(population, params, n_reports=20_000, seed=day.day),),
        )
        for day in days
    )
    released = Released(metric="", first=days[0], last=days[1], periods=periods, withheld=())
    return trend(released, ["<b>cat</b>", "dog", "yak"])


@pytest.fixture(params=["estimates", "comparison", "over_days", "plan", "privacy", "audit"])
def record(request: pytest.FixtureRequest) -> Displayed:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Displayed)
    return found


def values(chart: Any, layer: int = -1) -> list[dict[str, Any]]:
    """Return the rows behind a layer of a chart."""
    spec = chart.to_dict()
    data = spec["layer"][layer].get("data") or spec["data"]  # one layer shares its chart's
    return list(spec["datasets"][data["name"]])


def test_a_notebook_shows_a_record_without_scripts(record: Displayed) -> None:
    """One division, with a table, and nothing that a notebook would have to trust."""
    shown = record._repr_html_()
    names = {name for name, _ in tags(shown)}
    assert shown.startswith("<div>")
    assert "table" in names
    assert not names & {"script", "style", "img", "link"}


def test_every_record_is_a_table_of_three_libraries(record: Displayed) -> None:
    """The same columns and rows in pandas, polars and Arrow."""
    polars = pytest.importorskip("polars")
    frame, arrow = record.to_pandas(), record.to_arrow()
    assert list(frame.columns) == arrow.column_names == record.to_polars().columns
    assert len(frame) == arrow.num_rows == len(record.to_polars()) > 0
    assert isinstance(record.to_polars(), polars.DataFrame)


def test_a_library_that_is_missing_is_named() -> None:
    """Asking a drawing by a wrong name is an error of ours, a missing library one sentence."""
    with pytest.raises(ModuleNotFoundError):
        draw("no_such_module", "page")
    assert str(MissingExtraError("polars", library=True)).startswith("this needs polars")


def test_estimates_in_a_notebook_are_their_first_rows(estimates: Estimates) -> None:
    """Twenty rows at most, a chart, and the sentences of the terminal."""
    shown = estimates._repr_html_()
    ((_, rows),) = tables(shown).items()
    assert [row[0] for row in rows[1:]] == list(estimates.candidates[:20])
    assert len(drawings(shown)) == 1
    assert estimates.assumed in shown


def test_estimates_plot_has_the_top_rows_with_their_intervals(estimates: Estimates) -> None:
    """Every dot and line equals its row; `rest` adds what the others hold and what is left."""
    found = list(estimates.rows(detected_only=True))
    for layer in (0, 1):
        drawn = values(estimates.plot(top=10), layer)
        assert len(drawn) == 10
        for row, entry in zip(found, drawn, strict=False):
            assert entry["candidate"].endswith(row["candidate"])
            assert (entry["share"], entry["low"], entry["high"]) == (
                row["proportion"],
                row["ci_low_adjusted"],
                row["ci_high_adjusted"],
            )
    *_, other, left = values(estimates.plot(top=10, rest=True))
    (rest,) = (each for each in estimates.rests if each.after == 10)
    assert other["share"] == rest.proportion
    assert other["low"] < rest.proportion - 1.9 * rest.std_error < other["share"]
    assert left["share"] == estimates.unallocated


def test_plan_plot_is_its_prediction(plan: Plan) -> None:
    """The probability of each share, and the smallest share that is detected."""
    drawn = values(plan.plot(), 0)
    assert sorted(row["probability"] for row in drawn) == sorted(
        plan.prediction.probabilities.tolist()
    )
    (point,) = values(plan.plot(), 1)
    assert (point["share"], point["probability"]) == (plan.share, 0.8)


def test_audit_plot_has_each_bound_beside_its_claim(audit: Audit) -> None:
    """Checks without a loss are not drawn."""
    assert [(row["loss"], row["nats"]) for row in values(audit.plot())] == [
        ("epsilon_1", 1.9),
        ("epsilon_1", 2.0),
    ]


def test_audit_in_a_notebook_says_what_was_found(audit: Audit) -> None:
    """The verdict, the checks as text, and what was not examined."""
    shown = audit._repr_html_()
    assert "1 of 2 checks found a fault in 1,000 trials of page." in shown
    assert "&lt;b&gt;bit 3" in shown
    assert "Time was not looked at." in shown


def test_beliefs_in_a_notebook_are_rounded_up(privacy: PrivacyReport) -> None:
    """As every promise: 88.08 % is written as 88.1 %."""
    rows = tables(privacy._repr_html_())[
        "The most that an observer can believe after reports of one value"
    ]
    assert rows[1][:2] == ["1", "2.0000"]
    assert rows[1][4] == "88.1 %"
    assert rows[-1][0] == "any number"


def test_the_chart_of_changes_is_the_table(comparison: Comparison) -> None:
    """Every dot and interval is that of a changed row, largest first."""
    rows = list(comparison.rows(changed_only=True))
    assert len(rows) >= 2
    drawn = values(comparison.plot(top=2))
    assert [row["difference"] for row in drawn] == [row["difference"] for row in rows[:2]]
    assert [row["low"] for row in drawn] == [row["ci_low_adjusted"] for row in rows[:2]]
    assert [row["high"] for row in drawn] == [row["ci_high_adjusted"] for row in rows[:2]]
    assert [row["candidate"] for row in drawn] == [
        f"{number}. {row['candidate']}" for number, row in enumerate(rows[:2], start=1)
    ]


def test_the_table_of_changes_is_the_record(comparison: Comparison) -> None:
    """In a notebook: shares, points, interval and kind, and the test that nothing changed."""
    shown = comparison._repr_html_()
    (rows,) = tables(shown).values()
    first = next(comparison.rows(changed_only=True))
    assert rows[1][0] == first["candidate"]
    assert rows[1][3] == f"{100 * first['difference']:+.3f}"
    assert rows[1][5] == first["kind"]
    assert "something changed in" in shown
