"""Losses of a value that stays the same over several epochs, and the probability that it is named.

An observer who links the epochs of a device sees several independent permanent responses to one
value, so the losses add. The observer names the value, out of n equally likely values, whose bit is
1 in most responses.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import pytest
from places import ROOT
from registries import build_metric

from rappor import Params
from rappor.privacy.unchanged_values import (
    compute_unchanged_loss,
    list_unchanged_losses,
    naming_probability,
)
from rappor.protocol.loss import epsilon_inf, posterior_bound

BALANCED = Params.profile("balanced")
METRIC = build_metric(BALANCED, epoch="quarter")


def enumerate_naming(params: Params, epochs: int, n: int) -> float:
    """Return the probability that an observer names the right one of n values, over all responses.

    The device has the first value, which sets the first of n bits. The observer knows the permanent
    responses of all epochs, and names the value whose bit has the most ones. Among several, it
    names one at random.
    """
    total = 0.0
    for bits in itertools.product((0, 1), repeat=n * epochs):
        rows = [bits[i * epochs : (i + 1) * epochs] for i in range(n)]
        probabilities_of_one = (1 - params.f0, *[params.f1] * (n - 1))
        weight = math.prod(
            probability if bit else 1 - probability
            for row, probability in zip(rows, probabilities_of_one, strict=True)
            for bit in row
        )
        sums = [sum(row) for row in rows]
        total += weight * (sums[0] == max(sums)) / sums.count(max(sums))
    return total


@pytest.mark.parametrize(("epochs", "n"), [(1, 2), (2, 3), (3, 4), (4, 2)])
def test_the_probability_equals_an_enumeration_of_all_responses(epochs: int, n: int) -> None:
    """For few values and epochs, the probability of naming equals an enumeration."""
    assert naming_probability(BALANCED, epochs, n) == pytest.approx(
        enumerate_naming(BALANCED, epochs, n)
    )


def test_more_epochs_name_more_values() -> None:
    """The probability grows with the epochs and reaches 1.

    With 200 epochs, two values have equally many ones so seldom that rounding errors are larger.
    """
    shares = [
        naming_probability(BALANCED, epochs, 100) or 0 for epochs in (1, 2, 4, 8, 12, 40, 200)
    ]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)


def test_losses_add_up_over_the_epochs_of_a_year() -> None:
    """The losses of the scopes of a year add: one year, four quarters or twelve months.

    Two years have twice as many scopes. A metric for life has one scope in all years. A metric with
    one report an epoch loses epsilon_1 in each quarter: 4 times 2 nats.
    """
    rows = {(row.epoch, row.years): row for row in list_unchanged_losses(BALANCED)}
    n_scopes = {("life", 2): 1, ("year", 1): 1, ("quarter", 1): 4, ("month", 2): 24}
    for key, n in n_scopes.items():
        assert rows[key].epsilon == n * epsilon_inf(BALANCED)
        assert rows[key].most == posterior_bound(rows[key].epsilon, 0.5)[1]
    daily = compute_unchanged_loss(METRIC)
    assert daily == replace(rows["quarter", 1], epsilon=daily.epsilon, most=daily.most)
    once = replace(METRIC, interval="epoch")
    assert compute_unchanged_loss(once).epsilon == pytest.approx(8, abs=1e-4)
    assert {row.epoch for row in list_unchanged_losses(BALANCED, "epoch")} == {
        "year",
        "quarter",
        "month",
    }


def test_booleans_have_no_probability_of_naming() -> None:
    """The values "yes" and "no" share one bit, so no probability of naming is computed."""
    assert naming_probability(Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75), 4, 1) is None


def test_the_page_has_the_numbers() -> None:
    """Every row of the table in the page about privacy equals the computed losses."""
    page = (ROOT / "rappor" / "privacy" / "README.md").read_text(encoding="utf-8")
    row = r"^\| (.*) \| (life|quarter) \| (\d+) \| (\d+) % \| (\d+) \| (\d+) % \|$"
    table = re.findall(row, page, re.MULTILINE)
    assert len(table) == 6
    for name, epoch, *cells in table:
        first_loss, second_loss = (
            row for row in list_unchanged_losses(Params.profile(name)) if row.epoch == epoch
        )
        numbers = [
            first_loss.epsilon,
            100 * (first_loss.named or 0),
            second_loss.epsilon,
            100 * (second_loss.named or 0),
        ]
        assert [round(number) for number in numbers] == [int(cell) for cell in cells]


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("reports", [1, 2, 3, 4, 5])
def test_the_probability_for_reports_of_one_bucket_equals_an_enumeration(
    n: int, reports: int
) -> None:
    """With generalized randomized response, the probability of naming equals an enumeration.

    The observer names the category whose bucket the reports name most often, one of them at random
    if several are equal. The sum runs over all sequences of reports.
    """
    names = tuple("abcd"[:n])
    params = Params(k=n + 1, keep=0.4, encoding="onehot", categories=names)
    expected = 0.0
    for buckets in itertools.product(range(n + 1), repeat=reports):
        numbers = [buckets.count(bucket) for bucket in range(n)]
        n_best = numbers.count(max(numbers))
        if numbers[0] == max(numbers):
            n_right = buckets.count(0)  # reports that name the bucket of the device's category
            weight = params.q_star**n_right * params.p_star ** (reports - n_right)
            expected += weight / n_best
    assert naming_probability(params, reports, n, is_single=True) == pytest.approx(expected)
