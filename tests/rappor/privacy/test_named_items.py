"""The number of items of an unchanged set that an observer names.

An observer who links the reports of several epochs names an item if it is more than 90 % certain
that the device has the item. The computed number is compared with an enumeration of all sequences
of reports. Texts and pages are compared with the computed number.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from pathlib import Path

import pytest

from rappor import Params, Registry
from rappor.privacy.consent_text import write_consent_texts
from rappor.privacy.impact_assessment import write_impact_assessment
from rappor.privacy.named_items import (
    CERTAINTY,
    KNOWN_ITEMS,
    count_named_items,
    list_popularities,
)
from rappor.privacy.notice import privacy_notice
from rappor.privacy.registry_datasheet import write_datasheet
from rappor.privacy.unchanged_values import list_unchanged_losses, naming_probability
from rappor.reporting.papers import paper_markdown

PARAMS = Params.profile("once", encoding="set", items=8)

REGISTRY = """
[budget]
total = 16
[metrics.plugins]
description = "Installed plugins"
owner = "o@example.org"
expires = 2099-12-31
encoding = "set"
profile = "once"
epoch = "quarter"
interval = "epoch"
"""


def enumerate_named_items(params: Params, epochs: int) -> float:
    """Return the expected number of named items, by Bayes' rule for every sequence of reports.

    A hit is a report that names the bucket of an item. It has the probability q* if the device has
    the item, and 1/k if not. The prior is the popularity of the item.
    """
    k, q = params.k, params.q_star
    total = 0.0
    for prior in list_popularities(params.items):
        for hits in itertools.product((True, False), repeat=epochs):
            with_item = math.prod(q if hit else 1 - q for hit in hits)
            without_item = math.prod(1 / k if hit else 1 - 1 / k for hit in hits)
            joint = prior * with_item
            posterior = joint / (joint + (1 - prior) * without_item)
            if posterior > CERTAINTY >= prior:
                total += joint
    return total


@pytest.mark.parametrize("items", [1, 8, 64])
@pytest.mark.parametrize("epochs", [1, 2, 4])
def test_the_number_equals_an_enumeration_of_all_reports(items: int, epochs: int) -> None:
    """The number equals Bayes' rule, applied to every item and every sequence of reports."""
    params = Params.profile("once", encoding="set", items=items)
    expected = enumerate_named_items(params, epochs)
    assert count_named_items(params, epochs) == pytest.approx(expected, rel=1e-9)


def test_a_report_names_the_bucket_of_an_absent_item_with_probability_1_in_k() -> None:
    """A report names each of the k buckets equally often, averaged over all hash functions.

    A report names exactly one bucket: each of the n own buckets with probability q*, and each of
    the k - n other buckets with probability p*. So n q* + (k - n) p* = 1. The hash function puts an
    item that the device does not have into a uniform bucket, which is named with probability 1/k.
    """
    n, k = PARAMS.items, PARAMS.k
    assert n * PARAMS.q_star + (k - n) * PARAMS.p_star == pytest.approx(1)


@pytest.mark.parametrize("items", [1, 8, 64])
def test_popularities_fall_with_the_rank_and_add_up(items: int) -> None:
    """The assumed popularities of items fall with their rank, and add to `items`.

    The sum is the mean number of items of a device.
    """
    shares = list_popularities(items)
    assert len(shares) == KNOWN_ITEMS
    assert sum(shares) == pytest.approx(items)
    assert list(shares) == sorted(shares, reverse=True)
    assert 0 < shares[-1] < shares[0] <= 1


def test_more_epochs_and_less_noise_name_more() -> None:
    """More epochs and less noise let an observer name more items, never more than the set has."""
    by_epochs = [count_named_items(PARAMS, epochs) for epochs in (1, 4, 12, 40, 400)]
    assert by_epochs == sorted(by_epochs)
    assert by_epochs[-1] <= PARAMS.items
    noisier = dataclasses.replace(PARAMS, keep=0.1)
    assert count_named_items(noisier, 12) < by_epochs[2] / 2


def test_sets_have_a_number_of_items_and_no_probability() -> None:
    """For sets, an observer names items. For all other encodings, an observer names the value.

    A set is not one of 100 equally likely values, so it has no probability of being named. Strings
    have no number of named items.
    """
    assert naming_probability(PARAMS, 4, 100, is_single=True) is None
    for row in list_unchanged_losses(PARAMS):
        assert row.named is None
        assert row.named_items is not None
    assert all(row.named_items is None for row in list_unchanged_losses(Params.profile("strict")))


def test_texts_contain_the_number_of_named_items() -> None:
    """Notice, data sheet, assessment and consent text contain the number of named items.

    The number is for an observer who links the reports of the four quarters of a year.
    """
    registry = Registry.loads(REGISTRY)
    number = f"{math.ceil(100 * count_named_items(PARAMS, 4)) / 100:g}"
    assert number == "0.35"
    texts = [
        privacy_notice(registry["plugins"]),
        *(
            " ".join(paper_markdown(write(registry)).split())
            for write in (write_datasheet, write_impact_assessment, write_consent_texts)
        ),
    ]
    for text in texts:
        assert re.search(rf"\b{re.escape(number)}\b", text)
        assert "equally likely ones" not in text
        assert "of 100" not in text
    notice, sheet, assessment, _ = texts
    assert "Nothing in the reports links the quarters." in notice
    assert "| plugins | a year | 16 | almost certain | 0.35 of 8 items |" in sheet
    assert 'Choose the epoch "quarter" or "year" for sets' in sheet
    assert 'epoch = "life"' not in assessment


def test_the_page_has_the_numbers() -> None:
    """The numbers in the page about privacy equal the computed numbers, within 5 %."""
    page = Path(__file__).parents[3] / "rappor" / "privacy" / "README.md"
    text = " ".join(page.read_text(encoding="utf-8").split())
    sentence = re.search(r"names ([\d.]+) items after one epoch, (.*?) after 40\b", text)
    assert sentence is not None
    numbers = [float(number) for number in re.findall(r"\d*\.\d+", sentence[0])]
    expected = [count_named_items(PARAMS, epochs) for epochs in (1, 4, 12, 40)]
    assert numbers == pytest.approx(expected, rel=0.05)
