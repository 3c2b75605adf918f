"""Texts about estimates of sets: shares are of devices, and do not add up to 100 %."""

from __future__ import annotations

import dataclasses
import datetime
import re

import pytest
from decodings import released

from rappor import Counts, Params, Population, simulate_counts
from rappor.candidates.candidates import Candidates
from rappor.comparison.overview import Overview, compute_overview
from rappor.reporting.comparison_page import comparison_page
from rappor.reporting.overview import overview_card, overview_content
from rappor.reporting.page import estimates_page
from rappor.reporting.text import estimates_text

ITEMS = {"git": 0.9, "vim": 0.5, "spell": 0.3}
FIRST = datetime.date(2026, 10, 5)


@pytest.fixture(scope="module")
def overview() -> Overview:
    """Return the overview of three items of 900,000 devices on two days. All three are listed."""
    params = dataclasses.replace(Params.profile("once", encoding="set", items=2), m=8)
    population = Population.of_independent_items(ITEMS, n_sets=20_000, seed=1)
    days: dict[datetime.date, Counts] = {
        FIRST + datetime.timedelta(number): simulate_counts(
            population, params, n_reports=450_000, seed=number, metric="plugins"
        )
        for number in range(2)
    }
    return compute_overview(
        released(days, "plugins"),
        list(days.values()),
        Candidates.from_list(tuple(ITEMS)),
        n_latest=2,
        by="day",
        listed=tuple(ITEMS),
    )


def extract_text(page: object) -> str:
    """Return the words of a page without its style sheet."""
    body = re.sub(r"<style>.*?</style>", " ", str(page), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", "", body.replace("><", "> <")).split()).replace(
        "\u00a0", " "
    )


@pytest.mark.slow
def test_the_overview_names_the_share_of_the_devices_with_the_item(overview: Overview) -> None:
    """Items do not compete, so no item leads. Bars and the mean number of items are of devices."""
    card = extract_text(overview_card(overview))
    assert re.match(r"\d\d(\.\d+)? % of the devices have git[;.]", card)
    page = extract_text(overview_content(overview).page())
    assert "Bars: shares of the devices in" in page
    mean = overview.estimates.mean_listed_items
    assert mean is not None
    assert f"a device has {mean.estimate:.2f} of the listed items on average" in page
    assert "not in the list" not in page
    assert "no detected string" not in page


@pytest.mark.slow
def test_results_are_of_devices(overview: Overview) -> None:
    """Terminal and pages have shares of devices, and warn about cut sets."""
    estimates = overview.estimates
    texts = [
        " ".join(estimates_text(estimates, detected_only=True).split()),
        extract_text(estimates_page(estimates)),
    ]
    for text in texts:
        assert "shares do not add up to 100 %. A device with more than 2 items cuts" in text
        assert "unallocated" not in text
        assert "of the reports" not in text
    changes = extract_text(comparison_page(overview.comparison))
    assert "share of the devices of each day" in changes
    assert "of the reports" not in changes
