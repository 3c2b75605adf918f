"""Power of a client audit for reports that name one bucket: the faults that N devices show.

Input: the parameters of a metric and the values of the audit. Output: the probability that the
audit finds each fault of a list. `rappor.auditing.detectable_faults` chooses the numbers of devices
by these probabilities, and lists the faults that an audit would miss.

Such a report names one of k buckets. The own buckets of a device are the bucket of its category, or
the buckets of the items of its set, padded or cut at random to a fixed number. A report is drawn
from the own buckets with probability `keep`, and from all k buckets otherwise.

Theory. A check of `rappor.auditing.bucket_reports` counts the reports that name a bucket of
a subset (an event). For n devices, the count is nearly Binomial(n, P) under a correct client, and
Binomial(n, P') under the fault. The check finds the fault if the one-sided p-value of the count,
multiplied by twice the number of counts of the check, is below FALSE_ALARM_RATE. The power is the
probability of such a count under the fault. All faults here raise the probability of an event:

    fault                                event                 P'
    small sets are not padded            an own bucket         keep + (1 - keep) |event| / k
    large sets are cut to first items    the first third       keep + (1 - keep) |event| / k
    the lowest own bucket is drawn       the lowest bucket     keep + (1 - keep) |event| / k
    the empty set has its own bucket     bucket 0              1
    all devices are in one cohort        two equal cohorts     1
    two epochs have one response         two equal buckets     1
    the first event is reported          its value is named    P of a report of this value

In the first three rows the fault puts every report that is drawn from the own buckets into the
event. A report that is drawn from all k buckets is in the event with probability |event| / k, where
|event| is the number of buckets of the event.

Two faults have other formulas. A device with a second response differs from its copy with the
probability 1 - (sum over r of P_r^2), and one such device is a fault. One secret of all devices is
found if its log ratio reaches the limit. Each device but the first of each value adds -ln P_r to
the log ratio, where r is the bucket that all devices of the value name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from scipy import stats

from rappor.auditing.bucket_reports import compute_bucket_probabilities, list_rank_events
from rappor.auditing.check import FALSE_ALARM_RATE
from rappor.auditing.device_histories import EVENTS_TO_CHOOSE
from rappor.auditing.pairs import TrueBits, split_items
from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.protocol.params import Params

MIN_POWER: Final = 0.95
"""Smallest acceptable power: the audit lists the faults that it finds with a smaller probability.

A larger number makes audits larger.
"""

_COHORTS: Final = 4
"""Largest number of cohorts over which probabilities are averaged. Cohorts differ in the items that
share a bucket, so more cohorts would change the means little."""

_COUNTS_OF_DRAW: Final = 64
"""Assumed number of counts of the check of drawn buckets, in addition to a count of each bucket.

The check has nine events (`list_rank_events`) for each set of two or more items. At most four of
the six audited sets have two or more items. With nine counts of all sets together, these are at
most 45, rounded up. A larger number would make the predicted power smaller.
"""

_COUNTS_OF_SMALL_CHECK: Final = 20
"""Assumed number of counts and ratios of each other check.

The check of the choice among events has the most: 17. A larger number would make the predicted
power smaller.
"""


def yield_copied_powers(
    params: Params, truth: TrueBits, devices: int
) -> Iterator[tuple[str, float]]:
    """Yield each fault that copied devices show, with the power of the audit."""
    yield "a second response of a device to one value", _predict_copy_power(params, truth, devices)
    yield "one response for two epochs", _predict_epoch_power(params, truth, devices)
    if params.m > 1:
        power = _predict_power(devices // 2, 1 / params.m, 1.0, _COUNTS_OF_SMALL_CHECK)
        yield "one cohort of all devices", power
    else:
        # With a single cohort, a client with one secret for all devices shows itself only by equal
        # reports of each value. With several cohorts it shows itself by the fault of the other
        # branch: all its devices are in one cohort.
        yield "one secret of all devices", _predict_secret_power(params, truth, devices)
    sizes = [len(split_items(params, text)) for text in truth.values]
    if max(sizes) <= 1:
        return
    keep, n_tests = _get_keep(params), params.k + _COUNTS_OF_DRAW
    n_of_value = devices // len(truth.values)
    faults = {
        "sets of one item that are not padded": (sizes.index(1), "own"),
        "sets of too many items that are cut to their first items": (
            sizes.index(max(sizes)),
            "the first third",
        ),
        "the lowest own bucket that is always drawn": (0, "the lowest bucket"),
    }
    for fault, (value, event_name) in faults.items():
        # With items = 1 no set of one item is padded, and no set but the large one has two items.
        if event_name != "the first third" and params.items == 1:
            continue
        owned, probabilities, cohorts = _list_buckets(params, truth, value)
        event = owned
        if event_name != "own":
            items = split_items(params, truth.values[value])
            event = list_rank_events(params, items, cohorts)[event_name]
        p_correct = float((probabilities * event).sum(axis=1).mean())
        p_fault = keep + (1 - keep) * float(event.sum(axis=1).mean()) / params.k
        yield fault, _predict_power(n_of_value, p_correct, p_fault, n_tests)
    power = _predict_power(n_of_value, 1 / params.k, 1.0, n_tests)
    yield "a bucket of its own for the empty set", power


def describe_small_faults(params: Params, truth: TrueBits, devices: int) -> str:
    """Describe the deviations of the share of own buckets that `devices` copied devices may miss.

    P is the probability that a report names an own bucket, averaged over all values. The share of
    such reports has the standard error sqrt(P (1 - P) / devices). A deviation of x standard errors
    is found with the probability Phi(x - x_0), where x_0 is the limit of the check.
    """
    p_own = []
    for value in range(len(truth.values)):
        owned, probabilities, _ = _list_buckets(params, truth, value)
        p_own.append(float((probabilities * owned).sum(axis=1).mean()))
    mean = float(np.mean(p_own))
    limit = stats.norm.isf(FALSE_ALARM_RATE / (2 * _COUNTS_OF_SMALL_CHECK))
    errors = limit + stats.norm.ppf(MIN_POWER)
    smallest = errors * math.sqrt(mean * (1 - mean) / devices)
    return (
        f"Small faults: a share of reports with an own bucket that deviates by less than "
        f"{smallest:.3f}, for example by another rounding of keep, may be missed. Compare the "
        "client with the known answers of `rappor encode --secret-hex --json`."
    )


def predict_bucket_choice_power(params: Params, truth: TrueBits, devices: int) -> tuple[str, float]:
    """Return the power for a client that reports the first event of every interval.

    A report indicates a value if it names a bucket that only this value owns. Let `right` be the
    probability that a report indicates its own value, and `wrong` the probability that it indicates
    the other value. The check counts the reports that indicate the value of the first of n events.
    A correct client reports the first event once in n times. Otherwise the first event has the
    reported value or the other value with probability 1/2 each, because the values are fair coins:

        P = (right + (n - 1) (right + wrong) / 2) / n.

    The faulty client has P = right.
    """
    owned, probabilities, _ = _list_buckets(params, truth, 0)
    other, _, _ = _list_buckets(params, truth, 1)
    right, wrong = (
        float((probabilities * event).sum(axis=1).mean())
        for event in (owned & ~other, other & ~owned)
    )
    p_correct = (right + (EVENTS_TO_CHOOSE - 1) * (right + wrong) / 2) / EVENTS_TO_CHOOSE
    power = _predict_power(devices, p_correct, right, _COUNTS_OF_SMALL_CHECK)
    return "the first event of an interval that is always reported", power


def _predict_copy_power(params: Params, truth: TrueBits, devices: int) -> float:
    """Return the probability that at least one of `devices` differs from its copy."""
    log_equal = 0.0
    for value in range(len(truth.values)):
        _, probabilities, _ = _list_buckets(params, truth, value)
        p_equal = float((probabilities**2).sum(axis=1).mean())
        log_equal += devices / len(truth.values) * math.log(p_equal)
    return -math.expm1(log_equal)


def _predict_epoch_power(params: Params, truth: TrueBits, devices: int) -> float:
    """Return the power for a client that repeats the response of the first epoch in the next."""
    p_equal = []
    for value in range(len(truth.values)):
        _, probabilities, _ = _list_buckets(params, truth, value)
        # Two epochs have independent cohorts, so two different cohorts stand for them: the first
        # and the last of the listed cohorts. With a single cohort these are the same.
        p_equal.append(float((probabilities[0] * probabilities[-1]).sum()))
    return _predict_power(devices, float(np.mean(p_equal)), 1.0, _COUNTS_OF_SMALL_CHECK)


def _predict_secret_power(params: Params, truth: TrueBits, devices: int) -> float:
    """Return a lower bound on the power for a client with one secret on all devices.

    With one cohort, all devices of a value name one bucket r. Each device but the first adds
    -ln P_r to the log ratio. The bound is 1 if the likeliest bucket r of every value gives enough
    evidence, else 0.
    """
    n_of_value = devices / len(truth.values) - 1
    log_ratio = 0.0
    for value in range(len(truth.values)):
        _, probabilities, _ = _list_buckets(params, truth, value)
        log_ratio -= n_of_value * math.log(float(probabilities[0].max()))
    return float(log_ratio >= math.log(_COUNTS_OF_SMALL_CHECK / FALSE_ALARM_RATE))


def _list_buckets(params: Params, truth: TrueBits, value: int) -> tuple[Booleans, Floats, Integers]:
    """Return own buckets and probabilities of buckets of a value, (c, k), in the first c cohorts.

    The third result is (c,), the cohorts.
    """
    cohorts = np.arange(min(params.m, _COHORTS))
    owned = truth.bits(np.full(len(cohorts), value), cohorts)
    return owned, compute_bucket_probabilities(owned, params), cohorts


def _predict_power(n: int, p_correct: float, p_fault: float, n_tests: int) -> float:
    """Return the probability that a count has a significant one-sided p-value under the fault."""
    limit = FALSE_ALARM_RATE / (2 * n_tests)
    return float(stats.binom.sf(stats.binom.isf(limit, n, p_correct), n, p_fault))


def _get_keep(params: Params) -> float:
    """Return the probability that a report is drawn from the own buckets."""
    assert params.keep is not None
    return params.keep
