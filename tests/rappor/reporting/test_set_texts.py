"""Texts about estimates of sets: a share is of all devices, and shares do not add up to 100 %."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import json
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from decodings import FALSE_ALARM, build_released_counts
from scipy import stats

from rappor import Counts, Params, Population, decode, simulate_counts
from rappor.candidates.candidates import Candidates
from rappor.comparison.overview import Overview, compute_overview
from rappor.decoding.estimates import Estimates
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


@pytest.mark.parametrize(("share", "text"), [(0.61, "61.0"), (1.04, "100.0"), (-0.01, "0.0")])
def test_a_sentence_has_no_impossible_share_of_devices(share: float, text: str) -> None:
    """An estimate above 1, as noise makes it for an item of all devices, is written as 100 %."""
    row: Any = SimpleNamespace(name="git", share=share, std_error=0.01)
    comparison: Any = SimpleNamespace(share_unit="devices", has_sets=True)
    clause = extract_text(name_leader([row], comparison))
    assert clause == f"{text} % of the devices have git"


PARAMS = dataclasses.replace(Params.profile("once", encoding="set", items=2), m=8)


def decode_sets(values: list[str], *, n: int, m: int = PARAMS.m) -> Estimates:
    """Decode n reports of equally frequent sets, whose items are separated by tabs.

    The candidates are the three listed items of `ITEMS` and ten absent items.
    """
    params = dataclasses.replace(PARAMS, m=m)
    counts = simulate_counts(
        Population(values, np.ones(len(values))), params, n_reports=n, seed=1, metric="plugins"
    )
    return decode(counts, [f"absent {i}" for i in range(10)], listed=tuple(ITEMS))


def test_shares_of_sets_are_shares_of_devices() -> None:
    """The share of an item is the share of the devices that have it, however large their sets are.

    Half of the devices have one item, and half have two. A mechanism that draws one of the items
    first would estimate 3/4 for git and 1/4 for vim, the shares of the draws.
    """
    estimates = decode_sets(["git", "git\tvim"], n=100_000)
    assert estimates.share_unit == "devices"
    rows = estimates.indices_of(["git", "vim"])
    error = estimates.std_error[rows]
    allowed = stats.norm.isf(FALSE_ALARM / 4) * error
    # The test has power: the shares of the draws are outside these bounds.
    assert (allowed < 0.25).all()
    assert (np.abs(estimates.share[rows] - [1.0, 0.5]) < allowed).all()


def test_files_of_sets_have_no_unallocated_share() -> None:
    """JSON, CSV and page have the shares of devices, and the mean number of listed items.

    1 minus the sum of the shares means nothing if a device may have several items, so JSON has null
    for it, and no file states it as a number.
    """
    estimates = decode_sets(["git\tvim", "git"], n=100_000)
    document = json.loads(estimates.to_json())
    assert document["unallocated"] is document["unallocated_std_error"] is None
    assert "not_listed" not in document
    shares = {row["candidate"]: row["share"] for row in document["estimates"]}
    items = document["mean_listed_items"]
    assert items["estimate"] == pytest.approx(sum(shares[name] for name in ITEMS))
    assert sum(shares.values()) > 1.2
    table = {row["candidate"]: row for row in csv.DictReader(estimates.to_csv().splitlines())}
    assert {name: float(row["share"]) for name, row in table.items()} == pytest.approx(shares)
    assert {row["metric"] for row in table.values()} == {"plugins"}
    page = extract_text(estimates.to_html())
    # Noise may make the estimate of an item of all devices larger than 1. A sentence says 100 %.
    largest = re.search(r"The largest is \u201cgit\u201d with ([\d.]+) % of the devices", page)
    assert largest is not None
    assert 90 < float(largest[1]) <= 100
    assert f"A device has {items['estimate']:.2f} of the listed items on average" in page
    assert "unallocated" not in page


@pytest.mark.parametrize("n", [1, 10])
def test_texts_of_one_device_are_complete_and_warn(n: int) -> None:
    """With one device, or ten, texts and files are complete, and warn that errors are unreliable.

    A single report detects nothing. The few reports of ten devices that all have one item may name
    its bucket so often that the exact test detects it, but never an absent item.
    """
    estimates = decode_sets(["git"], n=n)
    assert set(estimates.detected_candidates) <= {"git"}
    assert n > 1 or not estimates.detected.any()
    assert "few_reports" in {warning.code for warning in estimates.warnings}
    sentence = f"A bucket has {n / PARAMS.k:.2g} reports on average. Below 2, standard errors"
    for text in (
        " ".join(estimates_text(estimates).split()),
        extract_text(estimates.to_html()),
    ):
        assert sentence in text
        assert not re.search(r"\bnan\b", text)
    json.loads(estimates.to_json())


def test_texts_of_one_cohort_warn_of_few_patterns() -> None:
    """With one cohort an absent item has the bucket of a present one in 1 of 112 cases.

    No number of reports distinguishes the two items, so no p-value is smaller, and the texts state
    this limit.
    """
    estimates = decode_sets(["git\tvim", "git"], n=100_000, m=1)
    assert estimates.p_value.min() >= (1 - 1e-9) / PARAMS.k
    assert "few_patterns" in {warning.code for warning in estimates.warnings}
    for text in (
        " ".join(estimates_text(estimates).split()),
        extract_text(estimates.to_html()),
    ):
        assert "no p-value can be below 0.0089, however many reports there are" in text
        assert "unallocated" not in text
