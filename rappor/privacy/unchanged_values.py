"""Privacy loss of a value that stays the same for years, by the length of an epoch.

A device draws a permanent response (noisy bits that all reports of an epoch repeat) for each epoch.
The losses of an unchanged value add up over all epochs whose reports an observer links, by address,
by account, or because the person has only one device. With `epoch = "life"` there is one permanent
response and one loss, as in [EPK14]. Shorter epochs prevent linking between epochs, and cost more
for unchanged values. Example: 4 nats for life are 16 nats a year if the epoch is a quarter.

The module also computes the probability that an observer names the value among n equally likely
values. The observer knows the permanent responses of all linked epochs, adds up the ones at the
bits of each value, and names the value with the most ones. Equal sums are drawn by lot. The model:

    f1   probability that a permanent bit is 1 if the true bit is 0
    f0   probability that a permanent bit is 0 if the true bit is 1
    N    number of bits of a value in all epochs: epochs * h, with h bits in each epoch

    ones of the device's value   x ~ Binomial(N, 1 - f0)
    ones of another value        y ~ Binomial(N, f1), independently

Given x, let a = P(y < x) and b = P(y = x). The device's value is named with probability

    ((a + b)^n - a^n) / (n b)

The probability is exact if no two values share a bit. `rappor.privacy.recognition` explains the
formula, which contains the lot.

A set is not one of n equally likely values. For a metric of sets the module has the expected number
of items that the observer names instead (`rappor.privacy.named_items`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rappor.privacy.named_items import count_named_items
from rappor.privacy.recognition import binomial_probability
from rappor.protocol.encodings import get_encoding
from rappor.protocol.loss import epsilon_inf, epsilon_n, posterior_bound
from rappor.protocol.params import EPOCHS, Params
from rappor.registry.budget import count_most_reports, most_reports, scope_loss
from rappor.registry.metric import Metric

CANDIDATES: Final = 100
"""Number of equally likely strings among which an observer names one. A convention: with more
candidates the observer names the value less often. For categories, the number of categories takes
its place."""

YEARS: Final = (1, 2)
"""Numbers of years for which the losses are listed. Two years show that the losses add."""

_RARE: Final = 1e-9
"""Ratio b / a of the formula below which ties are left out. The difference of the two powers would
lose all digits, and so rare ties change no printed digit."""

_EPOCHS_A_YEAR: Final = {"year": 1, "quarter": 4, "month": 12}
"""Number of epochs in a year. An epoch for life is treated as a case of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnchangedValueLoss:
    """Privacy loss of a value that stays the same, with a permanent response for each epoch.

    Attributes
    ----------
    epoch : length of an epoch: "life", "year", "quarter" or "month".
    years : number of years for which the value stays the same.
    epsilon : loss in nats.
    most : largest belief after the reports if the belief before was 50 %, as a probability.
    named : probability that the observer names the value among `candidates`; None for an encoding
        whose values share bits, and for sets.
    candidates : number of equally likely values.
    named_items : expected number of items of a set that the observer names; None for an encoding
        without sets.
    """

    epoch: str
    years: int
    epsilon: float
    most: float
    named: float | None
    candidates: int
    named_items: float | None


def list_unchanged_losses(
    params: Params, interval: str | None = None
) -> tuple[UnchangedValueLoss, ...]:
    """List the losses of an unchanged value by length of an epoch, after one and two years.

    Parameters
    ----------
    params : the parameters of the reports.
    interval : time in which a device reports once: "day", "week" or "epoch". It determines the
        number of reports of an epoch. Without an interval, any number of reports is assumed.

    Returns
    -------
    One record for each pair of an epoch's length and a number of years, also for lengths that a
    metric does not have, so that a reader can compare them.
    """
    rows = []
    for epoch in EPOCHS:
        # A metric with one report an epoch needs an epoch that ends. For life, the device would
        # report once and never again.
        if interval == "epoch" and epoch == "life":
            continue
        n_reports = None if interval is None else count_most_reports(epoch, interval)
        loss = epsilon_inf(params) if n_reports is None else epsilon_n(params, n_reports)
        is_single = n_reports == 1
        rows += [_compute_row(params, epoch, years, loss, is_single=is_single) for years in YEARS]
    return tuple(rows)


def compute_unchanged_loss(metric: Metric) -> UnchangedValueLoss:
    """Compute the loss of a metric's value that stays the same for a year."""
    is_single = most_reports(metric) == 1
    return _compute_row(metric.params, metric.epoch, 1, scope_loss(metric), is_single=is_single)


def _compute_row(
    params: Params, epoch: str, years: int, loss: float, *, is_single: bool
) -> UnchangedValueLoss:
    """Compute the loss over several years from the loss of one epoch, in nats."""
    # For life, the device has one permanent response, whatever the number of years.
    epochs = years * _EPOCHS_A_YEAR[epoch] if epoch != "life" else 1
    encoding = get_encoding(params)
    n = CANDIDATES if encoding.is_hashed else encoding.n_categories
    return UnchangedValueLoss(
        epoch=epoch,
        years=years,
        epsilon=epochs * loss,
        most=posterior_bound(epochs * loss, 0.5)[1],
        named=naming_probability(params, epochs, n, is_single=is_single),
        candidates=n,
        named_items=count_named_items(params, epochs) if encoding.supports_items else None,
    )


def naming_probability(
    params: Params, epochs: int, n: int, *, is_single: bool = False
) -> float | None:
    """Compute the probability that an observer names the value among n equally likely values.

    Parameters
    ----------
    params : the parameters of the reports.
    epochs : number of epochs that the observer links.
    n : number of equally likely values.
    is_single : whether the observer sees one report of each epoch, instead of the permanent
        responses.

    Returns
    -------
    The probability, or None for encodings whose values share bits, such as "boolean", and for sets.
    """
    encoding = get_encoding(params)
    # With one value there is nothing to name. Other encodings have values that share bits, such as
    # "yes" and "no" of "boolean". The model of independent ones does not hold for such values.
    # A set has several items, which are not equally likely.
    if n < 2 or encoding.supports_items or not (encoding.is_hashed or encoding.is_exclusive):
        return None
    if params.response.is_exclusive and not encoding.is_hashed:
        return _name_by_buckets(params, epochs, n)
    bits = epochs * params.h
    # With a single report of each epoch, the observer sees the bits after both responses.
    probabilities = (params.p_star, params.q_star) if is_single else (params.f1, 1 - params.f0)
    of_other, of_value = (
        [binomial_probability(bits, x, probability) for x in range(bits + 1)]
        for probability in probabilities
    )
    # x grows from 0 to `bits`. `fewer` and `equal` are a and b of the module's formula.
    total, fewer = 0.0, 0.0
    for probability, equal in zip(of_value, of_other, strict=True):
        if equal < _RARE * fewer:
            # The limit of the formula for b -> 0. (a + b)^n - a^n would lose all digits.
            total += probability * fewer ** (n - 1)
        elif equal > 0:
            total += probability * ((fewer + equal) ** n - fewer**n) / (n * equal)
        # Rounding errors of the sum could exceed 1.
        fewer = min(1.0, fewer + equal)
    return min(1.0, total)


def _name_by_buckets(params: Params, reports: int, n: int) -> float:
    """Compute the probability that an observer names one of n values by reports of one bucket.

    The reports name the bucket of the value with probability q*, and each of the k - 1 other
    buckets with p*. The observer names the value whose bucket has most reports, and draws lots
    among equal numbers.

    Notes
    -----
    Given x reports of the own bucket, the other reports are spread evenly over the other buckets.
    The number of ways in which y of the n - 1 other values have x reports and the rest have fewer
    is the coefficient of z^(reports - x) of

        C(n - 1, y) (z^x / x!)^y (sum over j < x of z^j / j!)^(n - 1 - y) e^((k - n) z)

    times (reports - x)!, and the observer is right once in y + 1 times.
    """
    total = 0.0
    for x in range(reports + 1):
        remaining = reports - x
        chance = math.comb(reports, x) * params.q_star**x * params.p_star**remaining
        unlisted = [(params.k - n) ** j / math.factorial(j) for j in range(remaining + 1)]
        fewer = [1 / math.factorial(j) if j < x else 0.0 for j in range(remaining + 1)]
        # Without a report of the own bucket (x = 0), no other value can have fewer reports.
        numbers_of_ties = range(min(n - 1, remaining // x) + 1) if x else [n - 1]
        for y in numbers_of_ties:
            degree = remaining - x * y
            ways = _multiply(_raise(fewer, n - 1 - y), unlisted)[degree]
            ways *= math.comb(n - 1, y) / math.factorial(x) ** y * math.factorial(remaining)
            total += chance * ways / (y + 1)
    return min(1.0, total)


def _multiply(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Multiply two polynomials of one length, and drop the terms beyond that length."""
    return [sum(first[j] * second[i - j] for j in range(i + 1)) for i in range(len(first))]


def _raise(base: Sequence[float], exponent: int) -> list[float]:
    """Raise a polynomial to a power by repeated squaring, as `_multiply` multiplies."""
    power = [1.0, *[0.0] * (len(base) - 1)]
    square = list(base)
    while exponent:
        if exponent & 1:
            power = _multiply(power, square)
        square = _multiply(square, square)
        exponent >>= 1
    return power
