"""Every text about estimates names the values of the metric by the noun of their encoding.

Strings are the values of the encoding `bloom` only. A reader of a page about categories, buckets,
items or yes/no values would not know what its "strings" are.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence

import pytest
from decodings import build_released_counts

from rappor import Params, Population, simulate_counts
from rappor.base.sentence_numbers import format_plural
from rappor.candidates.candidates import Candidates
from rappor.comparison.overview import Overview, compute_overview
from rappor.comparison.site_edition import SiteEdition
from rappor.planning import predict_power
from rappor.protocol.encodings import get_encoding
from rappor.reporting.comparison_page import comparison_page
from rappor.reporting.comparison_text import comparison_text
from rappor.reporting.overview import overview_card, overview_content
from rappor.reporting.page import estimates_page
from rappor.reporting.plan_tables import plan_table
from rappor.reporting.plots import comparison_plot, estimates_plot, plan_plot
from rappor.reporting.site import edition_page, metric_page
from rappor.reporting.text import estimates_text

FIRST = datetime.date(2026, 10, 5)
"""The overview begins on this day."""
CASES = [
    (
        "category",
        Params.profile("balanced", encoding="onehot", categories=("a", "b", "c")),
        ("a", "b"),
    ),
    ("bucket", Params.profile("balanced", encoding="buckets", categories=("1", "5")), ("0", "2")),
    ("value", Params.profile("balanced", encoding="boolean"), ("true", "false")),
    ("item", Params.profile("once", encoding="set", items=2), ("git\tvim", "vim")),
]
"""Each case has the noun of an encoding, its parameters, and two values of devices."""


def build_overview(params: Params, values: Sequence[str]) -> Overview:
    """Return the overview of two days with 3,000 reports each."""
    population = Population(values, [1 / len(values)] * len(values))
    days = {
        FIRST + datetime.timedelta(number): simulate_counts(
            population, params, n_reports=3_000, seed=number, metric="metric"
        )
        for number in range(2)
    }
    is_hashed = get_encoding(params).is_hashed
    candidates = Candidates.from_list(("git", "vim", "emacs")) if is_hashed else None
    released = build_released_counts(days, "metric")
    return compute_overview(released, list(days.values()), candidates, n_latest=2, by="day")


def list_texts(overview: Overview, candidates: Candidates | None) -> list[str]:
    """Return all pages, charts and terminal texts about an overview, with their markup."""
    comparison, estimates = overview.comparison, overview.estimates
    released = build_released_counts({FIRST: ()}, "metric")
    edition = SiteEdition(
        trend=comparison, released=released, candidates=candidates, notice=("metric",)
    )
    return [
        f"{overview_card(overview)}",
        overview_content(overview).page(),
        estimates_page(estimates, forged=True),
        estimates_text(estimates, forged=True),
        estimates_plot(estimates, rest=True).svg(),
        comparison_page(comparison),
        comparison_text(comparison),
        comparison_plot(comparison).svg(),
        edition_page(edition),
        metric_page("metric", ("metric",), [edition.entry]),
    ]


@pytest.mark.parametrize(("noun", "params", "values"), CASES, ids=[case[0] for case in CASES])
def test_no_text_calls_other_values_strings(
    noun: str, params: Params, values: Sequence[str]
) -> None:
    """Pages, charts and texts about categories, buckets, items and yes/no values use their noun."""
    candidates = Candidates.from_list(("git", "vim", "emacs")) if noun == "item" else None
    texts = list_texts(build_overview(params, values), candidates)
    for text in texts:
        assert not re.findall(r".{30}\bstrings?\b.{30}", text, flags=re.IGNORECASE)
    pattern = rf"\b({noun}|{format_plural(noun)})\b"
    *_, edition, metric = texts
    assert re.search(pattern, edition)
    assert f"{format_plural(noun)} found" in metric


def test_a_tuple_is_a_combination() -> None:
    """A tuple of categories and a tuple of strings are combinations, as in the glossary."""
    params = Params.profile("balanced", field_names=("site", "country"))
    assert get_encoding(params).value_noun == "combination"


def test_strings_stay_strings() -> None:
    """The public page of a metric of strings counts the strings that were found."""
    overview = build_overview(Params.profile("balanced"), ("git", "vim"))
    texts = list_texts(overview, Candidates.from_list(("git", "vim", "emacs")))
    assert "strings found" in texts[-1]


def test_a_plan_has_the_noun_of_its_encoding() -> None:
    """The plan of a metric of categories has no "rare string" and no "detected strings"."""
    params = Params.profile("balanced", encoding="onehot", categories=tuple("abcdef"))
    planned = predict_power(params, 6, reports=100_000)
    text = plan_table(planned).to_text(100) + plan_plot(planned).svg()
    assert "detected categories" in text
    assert "Which categories are detected" in text
    assert "string" not in text
