"""Texts about estimates of sets: a share is of all devices, and shares do not add up to 100 %."""

from __future__ import annotations

import dataclasses
import datetime
import re

import pytest
from decodings import build_released_counts

from rappor import Counts, Params, Population, simulate_counts
from rappor.candidates.candidates import Candidates
from rappor.comparison.overview import Overview, compute_overview
from rappor.reporting.comparison_page import comparison_page
from rappor.reporting.overview import name_leader, overview_card, overview_content
from rappor.reporting.page import estimates_page
from rappor.reporting.text import estimates_text

ITEMS = {"git": 0.9, "vim": 0.5, "spell": 0.3}
"""Probability that a device has each item. Their sum, 1.7, is the mean number of items."""
FIRST = datetime.date(2026, 10, 5)


@pytest.fixture(scope="module")
def overview() -> Overview:
    """Return the overview of two days with 450,000 devices each. All three items are listed."""
    params = dataclasses.replace(Params.profile("once", encoding="set", items=2), m=8)
    population = Population.of_independent_items(ITEMS, n_sets=20_000, seed=1)
    days: dict[datetime.date, Counts] = {
        FIRST + datetime.timedelta(number): simulate_counts(
            population, params, n_reports=450_000, seed=number, metric="plugins"
        )
        for number in range(2)
    }
    return compute_overview(
        build_released_counts(days, "plugins"),
        list(days.values()),
        Candidates.from_list(tuple(ITEMS)),
        n_latest=2,
        by="day",
        listed=tuple(ITEMS),
    )


def extract_text(page: object) -> str:
    """Return the text of a page, without tags and style sheet, with single blanks."""
    body = re.sub(r"<style>.*?</style>", " ", str(page), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", "", body.replace("><", "> <")).split()).replace(
        "\u00a0", " "
    )


@pytest.mark.slow
def test_the_overview_has_the_share_of_devices_with_an_item(overview: Overview) -> None:
    """The overview states the share of devices with the most frequent item.

    A device may have several items, so no item "leads". The page has the mean number of items of a
    device, and no share of strings outside the list.
    """
    card = extract_text(overview_card(overview))
    assert re.match(r"\d\d(\.\d+)? % of the devices have git[;.]", card)
    # Public pages name the period, which belongs to the devices and not to the item.
    clause = extract_text(
        name_leader(overview.list_rows(), overview.comparison, period="2030-05-01")
    )
    assert re.fullmatch(r"\d\d(\.\d+)? % of the devices of 2030-05-01 have git", clause)
    page = extract_text(overview_content(overview).page())
    assert "Bars: shares of the devices in" in page
    mean = overview.estimates.mean_listed_items
    assert mean is not None
    assert f"a device has {mean.estimate:.2f} of the listed items on average" in page
    assert "not in the list" not in page
    assert "no detected string" not in page


@pytest.mark.slow
def test_shares_of_items_are_of_all_devices(overview: Overview) -> None:
    """Text and pages state that shares are of devices, and that large sets are cut.

    No text has a share of the reports, or an unallocated share.
    """
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
