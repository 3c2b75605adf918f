"""Privacy loss of a value that stays the same for years, by the length of an epoch.

Each epoch has its own permanent response. The losses of an unchanged value add up over all epochs
whose reports an observer links, by address, by account, or because the person has one device. With
`epoch = "life"` there is one permanent response and one loss, as in [EPK14]. Shorter epochs prevent
linking between epochs, and cost more for unchanged values.

The module also computes the probability that an observer names the value among n equally likely
values. It is exact if the observer knows all permanent responses and no two values share a bit. In
each epoch, a bit of the value is 1 with probability 1 - f0, and a bit of another value with
probability f1. The observer names the value with the most ones. Let the value have x ones, and let
another value have fewer ones with probability a and as many with probability b. Then the value
ranks first, or is drawn among the first, with probability ((a + b)^n - a^n) / (n b).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from rappor.privacy.recognition import binomial_probability
from rappor.protocol.encodings import get_encoding
from rappor.protocol.loss import epsilon_inf, posterior_bound
from rappor.protocol.params import EPOCHS, Params
from rappor.registry.budget import most_reports, scope_loss
from rappor.registry.metric import Metric

CANDIDATES: Final = 100
"""Number of equally likely strings among which an observer names one. With more candidates the
observer names the value less often. For categories the number of categories is used."""

YEARS: Final = (1, 2)
"""Numbers of years for which the losses are listed."""

_RARE: Final = 1e-9
"""Probability of a tie, as a multiple of the probability of fewer ones, below which ties are left
out. They would change no printed digit."""

_EPOCHS_A_YEAR: Final = {"year": 1, "quarter": 4, "month": 12}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnchangedValueLoss:
    """Privacy loss of a value that stays the same, with a permanent response for each epoch.

    Attributes
    ----------
    epoch : length of an epoch: "life", "year", "quarter" or "month".
    years : number of years for which the value stays the same.
    epsilon : loss in nats.
    most : largest belief after the reports, of an observer who believed 50 % before.
    named : probability that the observer names the value among `candidates`; None for an encoding
        whose values share bits.
    candidates : number of equally likely values.
    """

    epoch: str
    years: int
    epsilon: float
    most: float
    named: float | None
    candidates: int


def list_unchanged_losses(
    params: Params, metric: Metric | None = None
) -> tuple[UnchangedValueLoss, ...]:
    """List the losses of an unchanged value by length of an epoch, after one and two years.

    Parameters
    ----------
    params : the parameters of the reports.
    metric : the metric, whose interval determines the number of reports. Without a metric, any
        number of reports is assumed.
    """
    rows = []
    for epoch in EPOCHS:
        if metric is None:
            loss = epsilon_inf(params)
        elif metric.interval == "epoch" and epoch == "life":
            # A metric with one report an epoch needs an epoch that ends.
            continue
        else:
            loss = scope_loss(dataclasses.replace(metric, epoch=epoch))
        is_single = metric is not None and most_reports(metric) == 1
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
    # One permanent response for life, whatever the number of years.
    epochs = years * _EPOCHS_A_YEAR[epoch] if epoch != "life" else 1
    n = CANDIDATES if get_encoding(params).is_hashed else params.k
    return UnchangedValueLoss(
        epoch=epoch,
        years=years,
        epsilon=epochs * loss,
        most=posterior_bound(epochs * loss, 0.5)[1],
        named=naming_probability(params, epochs, n, is_single=is_single),
        candidates=n,
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
    The probability, or None for encodings whose values share bits, such as "boolean".
    """
    encoding = get_encoding(params)
    # With one value there is nothing to name. "yes" and "no" share one bit, so the observer's rule
    # (the most ones) does not apply.
    if n < 2 or not (encoding.is_hashed or encoding.is_exclusive):
        return None
    # h bits of the value in each epoch. An observer adds up the ones over all epochs.
    bits = epochs * params.h
    ones = (params.p_star, params.q_star) if is_single else (params.f1, 1 - params.f0)
    of_other, of_value = (
        [binomial_probability(bits, x, one) for x in range(bits + 1)] for one in ones
    )
    total, fewer = 0.0, 0.0
    for probability, equal in zip(of_value, of_other, strict=True):
        if equal < _RARE * fewer:
            # (fewer + equal)^n - fewer^n would cancel to nothing.
            total += probability * fewer ** (n - 1)
        elif equal > 0:
            total += probability * ((fewer + equal) ** n - fewer**n) / (n * equal)
        # Rounding errors of the sum could exceed 1.
        fewer = min(1.0, fewer + equal)
    return min(1.0, total)
