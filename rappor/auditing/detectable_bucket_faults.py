"""Predict the power of a client audit under generalized randomized response (GRR).

The power is the probability that the audit finds a certain fault of a client. Input: the parameters
of a metric, the values of the audit and a number of devices. Output: the faults of a list, each
with its power. `rappor.auditing.detectable_faults` chooses the numbers of devices by the power, and
lists the faults that an audit would miss.

A report of GRR names one of k buckets. The own buckets of a device are the bucket of its category,
or the buckets of the items of its set. A device adds random buckets to its own buckets (padding),
or removes some at random (cutting), until it has n = `items` buckets. Then the device draws the
named bucket from these n buckets with probability `keep`, and from all k buckets otherwise.

The audit records one value on each of N devices, and the same value on a copy of the device. The
copy has the same folder, and so the same secret. The N devices are called copied devices. For sets,
the audit has six values: sets of n, n, 0, 3 n, 1 and n / 2 items. Each of the six sets is recorded
on a sixth of the devices (`rappor.auditing.device_histories`).

Power of a check that counts
----------------------------
A check of `rappor.auditing.bucket_reports` counts the reports that name a bucket of a subset of the
buckets. This is the event of the count. For N devices, the count is nearly Binomial(N, P) under a
correct client, and Binomial(N, P') under the fault. The check finds the fault if the one-sided
p-value of the count, multiplied by twice the number of counts of the check, is below
FALSE_ALARM_RATE. The power is the probability of such a count under the fault. All faults here
raise the probability of an event:

    fault of the client                 event                           P'
    ----------------------------------  ------------------------------  ------------------------
    does not pad a set of one item      an own bucket is named          keep + (1 - keep) e / k
    cuts a set of 3 n items to its      a bucket of the first third     keep + (1 - keep) e / k
      first n items                     of the 3 n items is named
    always draws the lowest own bucket  the lowest own bucket is named  keep + (1 - keep) e / k
    has a bucket of its own for the     this bucket is named            1
      empty set
    puts all devices into one cohort    two devices have one cohort     1
    has one response for two epochs     the buckets of both epochs are  1
                                        equal
    always reports the first event of   the bucket is one that only     P of a report that has
      an interval                       the value of the first event    this value
                                        owns

Here e is the number of buckets of the event. Under the first three faults, a report that is drawn
from the n buckets always has the event. A report that is drawn from all k buckets has the event
with probability e / k.

Power of the two other checks
-----------------------------
Fault: the client draws the response to a value anew, instead of deriving it from the secret. A
device and its copy then name two independent buckets, which differ with probability
1 - (sum over r of P_r^2). P_r is the probability that a report of the value names bucket r. A
correct client never makes two different reports here. So one device whose report differs from the
report of its copy proves the fault.

Fault: all devices have the same secret. All devices with the same value and cohort then name one
bucket r. The check computes the log ratio

    ln(P(reports, given the fault) / P(reports, given a correct client)),

to which each device but the first of its value and cohort adds -ln P_r. The check finds the fault
if the log ratio is at least ln(number of counts and ratios of the check / FALSE_ALARM_RATE).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

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
"""Largest number of cohorts over which probabilities are averaged.

In each cohort, other items of a set have the same bucket by chance. The number of own buckets
therefore differs by a few buckets between cohorts. Four cohorts give almost the mean of all
cohorts. A larger number would take longer.
"""

_COUNTS_OF_DRAW: Final = 64
"""Assumed number of counts of the check of drawn buckets, in addition to a count of each bucket.

The check counts nine events (`list_rank_events`) for each set of two or more items. At most four of
the six sets have two or more items, which gives 36 counts. Nine further counts are of all sets
together. The assumed number is larger than the 45 counts, so the predicted power is a little too
small and never too large. A larger number would make the predicted power smaller.
"""

_COUNTS_OF_SMALL_CHECK: Final = 20
"""Assumed number of counts and ratios of each other check.

The check of the choice among events has the most: 17. A larger number would make the predicted
power smaller.
"""

_OWN_BUCKETS: Final = "own"
"""Name of the event that a report names an own bucket. The names of all other events are the keys
of `list_rank_events`."""


class _DrawFault(NamedTuple):
    """A fault of a client that draws from the wrong buckets of a set.

    Attributes
    ----------
    description : the fault, as the record of an audit lists it.
    value : index of the set whose reports reveal the fault.
    event_name : `_OWN_BUCKETS`, or a key of `list_rank_events`.
    """

    description: str
    value: int
    event_name: str


def yield_copied_powers(
    params: Params, truth: TrueBits, devices: int
) -> Iterator[tuple[str, float]]:
    """Yield each fault that the reports of the copied devices can reveal, with its power.

    `devices` is the number of copied devices. The fault of `predict_bucket_choice_power` is not
    among them, because the reports of other devices reveal it.
    """
    yield "a second response of a device to one value", _predict_copy_power(params, truth, devices)
    yield "one response for two epochs", _predict_epoch_power(params, truth, devices)
    if params.m > 1:
        power = _predict_power(devices // 2, 1 / params.m, 1.0, _COUNTS_OF_SMALL_CHECK)
        yield "one cohort of all devices", power
    else:
        # Case: one cohort. A client with one secret for all devices can be recognised only by the
        # equal reports of each value. With several cohorts this fault needs no line of its own: the
        # secret determines the cohort, so the fault of the other branch includes it.
        yield "one secret of all devices", _predict_secret_power(params, truth, devices)
    sizes = [len(split_items(params, text)) for text in truth.values]
    if max(sizes) <= 1:
        return
    keep, n_tests = _get_keep(params), params.k + _COUNTS_OF_DRAW
    n_of_value = devices // len(truth.values)
    for fault, value, event_name in _list_draw_faults(sizes, params.items):
        owned, probabilities, cohorts = _list_buckets(params, truth, value)
        event = owned
        if event_name != _OWN_BUCKETS:
            items = split_items(params, truth.values[value])
            event = list_rank_events(params, items, cohorts)[event_name]
        p_correct = float((probabilities * event).sum(axis=1).mean())
        p_fault = keep + (1 - keep) * float(event.sum(axis=1).mean()) / params.k
        yield fault, _predict_power(n_of_value, p_correct, p_fault, n_tests)
    power = _predict_power(n_of_value, 1 / params.k, 1.0, n_tests)
    yield "a bucket of its own for the empty set", power


def _list_draw_faults(sizes: Sequence[int], n: int) -> list[_DrawFault]:
    """List the faults of a client that draws from the wrong buckets of a set.

    `sizes` are the numbers of items of the audited sets, and n is the parameter `items`.
    """
    cut_set = _DrawFault(
        "sets of too many items that are cut to their first items",
        sizes.index(max(sizes)),
        "the first third",
    )
    # With n = 1 the other two faults change nothing: a set of one item needs no padding, and its
    # only own bucket is the lowest one.
    if n == 1:
        return [cut_set]
    # The first set has exactly n items, so a device neither pads nor cuts it.
    full_set = 0
    return [
        _DrawFault("sets of one item that are not padded", sizes.index(1), _OWN_BUCKETS),
        cut_set,
        _DrawFault("the lowest own bucket that is always drawn", full_set, "the lowest bucket"),
    ]


def describe_small_faults(params: Params, truth: TrueBits, devices: int) -> str:
    """Describe the smallest deviation of the share of own buckets that the audit finds.

    The share is the number of reports that name an own bucket, divided by the number of devices. A
    correct client has the expected share P, averaged over all values, and the share has the
    standard error sqrt(P (1 - P) / devices). The check finds a deviation of x standard errors with
    the probability Phi(x - x_0), where x_0 is the limit of the check in standard errors. The
    smallest deviation is the deviation that the check finds with the probability MIN_POWER.
    """
    # Probability that a report names an own bucket, by value.
    p_own = []
    for value in range(len(truth.values)):
        owned, probabilities, _ = _list_buckets(params, truth, value)
        p_own.append(float((probabilities * owned).sum(axis=1).mean()))
    mean = float(np.mean(p_own))
    limit_in_errors = stats.norm.isf(FALSE_ALARM_RATE / (2 * _COUNTS_OF_SMALL_CHECK))
    smallest_in_errors = limit_in_errors + stats.norm.ppf(MIN_POWER)
    standard_error = math.sqrt(mean * (1 - mean) / devices)
    smallest = smallest_in_errors * standard_error
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
    """Return the power for a client that draws the response to a value anew.

    The power is the probability that at least one device makes another report than its copy.
    """
    # Logarithm of the probability that all devices make the same report as their copies.
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

    The metric has one cohort, so all devices of a value name one bucket r. Each device of the value
    but the first adds -ln P_r to the log ratio. This term is smallest for the bucket with the
    largest probability. The bound is 1 if the log ratio reaches the limit of the check even with
    the smallest term of every value. Otherwise the bound is 0.
    """
    n_but_first = devices / len(truth.values) - 1
    log_ratio = 0.0
    for value in range(len(truth.values)):
        _, probabilities, _ = _list_buckets(params, truth, value)
        log_ratio -= n_but_first * math.log(float(probabilities[0].max()))
    return float(log_ratio >= math.log(_COUNTS_OF_SMALL_CHECK / FALSE_ALARM_RATE))


def _list_buckets(params: Params, truth: TrueBits, value: int) -> tuple[Booleans, Floats, Integers]:
    """List the buckets of a value in the first c cohorts.

    Returns
    -------
    owned : (c, k) bool. True for the own buckets of the value.
    probabilities : (c, k) float64. Probability that a report of the value names each bucket.
    cohorts : (c,) int64. The cohorts.
    """
    cohorts = np.arange(min(params.m, _COHORTS))
    owned = truth.bits(np.full(len(cohorts), value), cohorts)
    return owned, compute_bucket_probabilities(owned, params), cohorts


def _predict_power(n: int, p_correct: float, p_fault: float, n_tests: int) -> float:
    """Return the probability that a count has a significant one-sided p-value under the fault.

    Parameters
    ----------
    n : number of reports, or of pairs of reports, that are counted or not.
    p_correct : probability P of the event under a correct client.
    p_fault : probability P' of the event under the fault.
    n_tests : number of counts of the check (Bonferroni's correction).
    """
    # The factor 2 is the factor of a two-sided p-value, which the check computes.
    limit = FALSE_ALARM_RATE / (2 * n_tests)
    return float(stats.binom.sf(stats.binom.isf(limit, n, p_correct), n, p_fault))


def _get_keep(params: Params) -> float:
    """Return the probability that a report is drawn from the own buckets."""
    assert params.keep is not None
    return params.keep
