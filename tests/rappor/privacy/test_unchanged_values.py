"""Losses of a value that stays the same, and the exact probability that it is named."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import pytest
from places import ROOT
from registries import metric_of

from rappor import Params
from rappor.privacy.unchanged_values import (
    compute_unchanged_loss,
    list_unchanged_losses,
    naming_probability,
)
from rappor.protocol.loss import epsilon_inf, posterior_bound

BALANCED = Params.profile("balanced")
METRIC = metric_of(BALANCED, epoch="quarter")


def enumerate_naming(params: Params, epochs: int, n: int) -> float:
    """Return the probability that the first of n values has the most ones, over all responses."""
    probability = 0.0
    for bits in itertools.product((0, 1), repeat=n * epochs):
        rows = [bits[i * epochs : (i + 1) * epochs] for i in range(n)]
        ones = (1 - params.f0, *[params.f1] * (n - 1))
        weight = math.prod(
            one if bit else 1 - one for row, one in zip(rows, ones, strict=True) for bit in row
        )
        sums = [sum(row) for row in rows]
        probability += weight * (sums[0] == max(sums)) / sums.count(max(sums))
    return probability


@pytest.mark.parametrize(("epochs", "n"), [(1, 2), (2, 3), (3, 4), (4, 2)])
def test_the_share_named_is_that_of_all_responses(epochs: int, n: int) -> None:
    """The probability equals the enumeration for few values and epochs. Ties are drawn by lot."""
    assert naming_probability(BALANCED, epochs, n) == pytest.approx(
        enumerate_naming(BALANCED, epochs, n)
    )


def test_more_epochs_name_more_values() -> None:
    """The probability grows with the epochs to 1, also if ties are rarer than rounding errors."""
    shares = [
        naming_probability(BALANCED, epochs, 100) or 0 for epochs in (1, 2, 4, 8, 12, 40, 200)
    ]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)


def test_losses_add_up_over_the_epochs_of_a_year() -> None:
    """A year has one scope for life, four quarters or twelve months.

    Two years have twice as many.
    """
    rows = {(row.epoch, row.years): row for row in list_unchanged_losses(BALANCED)}
    epochs = {("life", 2): 1, ("year", 1): 1, ("quarter", 1): 4, ("month", 2): 24}
    for key, n in epochs.items():
        assert rows[key].epsilon == n * epsilon_inf(BALANCED)
        assert rows[key].most == posterior_bound(rows[key].epsilon, 0.5)[1]
    daily = compute_unchanged_loss(METRIC)
    assert daily == replace(rows["quarter", 1], epsilon=daily.epsilon, most=daily.most)
    once = replace(METRIC, interval="epoch")
    assert compute_unchanged_loss(once).epsilon == pytest.approx(8, abs=1e-4)
    assert {row.epoch for row in list_unchanged_losses(BALANCED, once)} == {
        "year",
        "quarter",
        "month",
    }


def test_yes_or_no_is_not_named() -> None:
    """The values "yes" and "no" share one bit, so no probability is computed."""
    assert naming_probability(Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75), 4, 1) is None


def test_the_page_has_the_numbers() -> None:
    """Every row of the page's table equals the computed losses."""
    page = (ROOT / "rappor" / "privacy" / "README.md").read_text(encoding="utf-8")
    row = r"^\| (.*) \| (life|quarter) \| (\d+) \| (\d+) % \| (\d+) \| (\d+) % \|$"
    table = re.findall(row, page, re.MULTILINE)
    assert len(table) == 6
    for name, epoch, *cells in table:
        one, two = (
            row for row in list_unchanged_losses(Params.profile(name)) if row.epoch == epoch
        )
        numbers = [one.epsilon, 100 * (one.named or 0), two.epsilon, 100 * (two.named or 0)]
        assert [round(number) for number in numbers] == [int(cell) for cell in cells]


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("reports", [1, 2, 3, 4, 5])
def test_an_observer_of_single_buckets_is_enumerated(n: int, reports: int) -> None:
    """The probability equals the sum over all sequences of reports, with lots among equals."""
    names = tuple("abcd"[:n])
    params = Params(k=n + 1, keep=0.4, encoding="onehot", categories=names)
    expected = 0.0
    for buckets in itertools.product(range(n + 1), repeat=reports):
        numbers = [buckets.count(bucket) for bucket in range(n)]
        n_best = numbers.count(max(numbers))
        if numbers[0] == max(numbers):
            own = buckets.count(0)
            weight = params.q_star**own * params.p_star ** (reports - own)
            expected += weight / n_best
    assert naming_probability(params, reports, n, is_single=True) == pytest.approx(expected)
