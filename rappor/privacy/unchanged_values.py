"""Privacy loss of a value that stays the same for years, by the length of an epoch.

Each epoch has its own permanent response. The losses of an unchanged value add up over all epochs
whose reports an observer links, by address, by account, or because the person has one device. With
`epoch = "life"` there is one permanent response and one loss, as in [EPK14]. Epochs prevent linking
between epochs, and cost more for unchanged values.

The probability that an observer names the value among n equally likely values is exact if the
observer knows all permanent responses and no two values share a bit. In each epoch, a bit of the
value is 1 with probability 1 - f0, and a bit of another value with probability f1. The observer
names the value with the most ones. Let the value have x ones, and let another value have fewer ones
with probability a and as many with probability b. Then the value ranks first, or is drawn among the
first, with probability ((a + b)^n - a^n) / (n b).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from rappor.privacy.recognition import binomial_probability
from rappor.protocol.encodings import encoding_of
from rappor.protocol.loss import epsilon_inf, posterior_bound
from rappor.protocol.params import EPOCHS, Params
from rappor.registry.budget import most_reports, scope_loss
from rappor.registry.metric import Metric

CANDIDATES: Final = 100
"""Equally likely values among which an observer names one; of categories, as many as there are."""

YEARS: Final = (1, 2)

_RARE: Final = 1e-9
"""Probability, of that of fewer ones, below which a tie changes nothing that is printed."""

_EPOCHS_A_YEAR: Final = {"year": 1, "quarter": 4, "month": 12}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnchangedValueLoss:
    """The loss of a value that stays for some years, with a permanent response for each epoch.

    `epsilon` is in nats, `most` what a belief of 50 % becomes at most, and `named` the share of
    values that an observer names among `candidates`; None where values share bits.
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
    """Return the losses of an unchanged value under each epoch, after one year and after two.

    With a metric, the number of reports follows from the metric's interval. Without a metric, any
    number of reports is assumed.
    """
    rows = []
    for epoch in EPOCHS:
        if metric is None:
            loss = epsilon_inf(params)
        elif metric.interval == "epoch" and epoch == "life":
            continue
        else:
            loss = scope_loss(dataclasses.replace(metric, epoch=epoch))
        once = metric is not None and most_reports(metric) == 1
        rows += [_row(params, epoch, years, loss, once=once) for years in YEARS]
    return tuple(rows)


def compute_unchanged_loss(metric: Metric) -> UnchangedValueLoss:
    """Return the loss of a metric's value that stays the same for a year."""
    once = most_reports(metric) == 1
    return _row(metric.params, metric.epoch, 1, scope_loss(metric), once=once)


def _row(
    params: Params, epoch: str, years: int, loss: float, *, once: bool = False
) -> UnchangedValueLoss:
    epochs = years * _EPOCHS_A_YEAR[epoch] if epoch != "life" else 1
    n = CANDIDATES if encoding_of(params).hashed else params.k
    return UnchangedValueLoss(
        epoch=epoch,
        years=years,
        epsilon=epochs * loss,
        most=posterior_bound(epochs * loss, 0.5)[1],
        named=naming_probability(params, epochs, n, once=once),
        candidates=n,
    )


def naming_probability(params: Params, epochs: int, n: int, *, once: bool = False) -> float | None:
    """Return the probability that an observer of all permanent responses names the value of n.

    If each epoch has `once` a report, the observer sees that. None for yes or no,
    which have one bit together.
    """
    encoding = encoding_of(params)
    if n < 2 or not (encoding.hashed or encoding.exclusive):
        return None
    bits = epochs * params.h
    ones = (params.p_star, params.q_star) if once else (params.f1, 1 - params.f0)
    other, own = ([binomial_probability(bits, x, one) for x in range(bits + 1)] for one in ones)
    total, below = 0.0, 0.0
    for mine, equal in zip(own, other, strict=True):
        if equal < _RARE * below:  # the difference of the powers would cancel
            total += mine * below ** (n - 1)
        elif equal > 0:
            total += mine * ((below + equal) ** n - below**n) / (n * equal)
        below = min(1.0, below + equal)
    return min(1.0, total)
