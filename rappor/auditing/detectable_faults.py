"""Power of a client audit: how many devices find a fault, and which faults an audit would miss.

Input: the parameters of a metric and the values of the audit. Output: the numbers of devices of the
audit (`choose_sizes`), and the list of faults that these devices find too rarely
(`list_missed_faults`).

The evidence of a device depends on its bits and its noise. With reports of 128 bits under the
profile `balanced`, a dozen devices show a second permanent response. With three categories under
the profile `strict`, hundreds of devices are needed. So the audit chooses the number of devices by
the parameters, up to a limit of time.

A simulated device records two values of a pair: the first value, and later the other value, whose
bits differ as much as possible. A *run* is one call of the client for one device.

Theory. The log ratio of a fault (`rappor.auditing.likelihood_ratios`) is a sum over independent
bits and devices. Let `mean` and `variance` be the mean and the variance of the log ratio of one
device of a client with the fault, in nats. Both are computed exactly, from all outcomes of the
reports of one bit. The sum of n devices is nearly normal. The check finds the fault if the p-value
exp(-sum), multiplied by the number of tests of the check, is below FALSE_ALARM_RATE. So the power
is

    Phi((n mean - ln(tests / FALSE_ALARM_RATE)) / sqrt(n variance)),

where Phi is the distribution function of the standard normal distribution.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Final, NamedTuple

import numpy as np
from scipy import stats
from scipy.special import gammaln

from rappor.auditing.check import FALSE_ALARM_RATE
from rappor.auditing.device_calendar import RESTART_DAY, Calendar
from rappor.auditing.device_histories import EVENTS_TO_CHOOSE, MANY_REPORTS
from rappor.auditing.likelihood_ratios import (
    OnesOf,
    compute_log_likelihood,
    compute_noiseless_ratio,
    compute_redrawn_ratio,
    compute_repeated_coins_ratio,
    compute_second_response_ratio,
    compute_shared_response_ratio,
)
from rappor.auditing.pairs import TrueBits
from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.protocol.params import Params
from rappor.registry.metric import Metric

MIN_POWER: Final = 0.95
"""Smallest acceptable power: the audit lists the faults that it finds with a smaller probability.

A larger number makes audits larger.
"""

HISTORY_SIZES: Final = (50, 100, 200, 400)
"""Possible numbers of devices with a history. The smallest sufficient number is chosen.

Each device takes 0.08 seconds of CPU time, so that the largest number takes half a minute.
"""

CHOOSING_SIZES: Final = (300, 600, 900, 1200)
"""Possible numbers of choosing devices. Each device takes 0.014 seconds of CPU time."""

SENDING_SIZES: Final = (8, 16, 32)
"""Possible numbers of sending devices. Each device takes 0.5 seconds of CPU time."""

_TESTS_OF_A_CHECK: Final = 20
"""Assumed number of counts and ratios that a check compares (`tests` in the formula).

A daily metric has 3 to 14 in each check of the histories, and 17 in the check of the choice among
events. A larger number would make the predicted power smaller.
"""

_COUNTS_OF_MANY_REPORTS: Final = 5000
"""Assumed number of counts and ratios of the check of 1,000 reports.

Each report has four counts of ones and one count of repeats.
"""

FAULTY_PERIOD: Final = 100
"""Period, in reports, of the predicted fault: each 100th report has no fresh noise."""


class TruthShare(NamedTuple):
    """Mean number of bits of a device with certain true bits.

    `truths` are the true bits of the device's first value and of its other value. `n_bits` is the
    mean number of the k bits that have these true bits.
    """

    truths: tuple[int, int]
    n_bits: float


class AuditSizes(NamedTuple):
    """Numbers of devices of a client audit: with histories, choosing, and sending many reports.

    `rappor.auditing.device_histories` describes these three groups.
    """

    histories: int
    choosing: int
    sending: int


def choose_sizes(metric: Metric, truth: TrueBits) -> AuditSizes:
    """Choose the numbers of devices that find every listed fault, if the largest numbers do."""

    def choose(sizes: Sequence[int], powers: Callable[[int], Iterator[tuple[str, float]]]) -> int:
        """Return the smallest number of devices whose powers all suffice, else the largest."""
        sufficient = (n for n in sizes if all(power >= MIN_POWER for _, power in powers(n)))
        return next(sufficient, sizes[-1])

    params, calendar, shares = metric.params, Calendar.of(metric), _count_truths(metric, truth)
    return AuditSizes(
        choose(HISTORY_SIZES, lambda n: _yield_history_powers(params, calendar, shares, n)),
        choose(CHOOSING_SIZES, lambda n: iter([_predict_choice_power(params, n)])),
        choose(SENDING_SIZES, lambda n: _yield_sending_powers(metric, shares, n)),
    )


def list_missed_faults(metric: Metric, truth: TrueBits, sizes: AuditSizes) -> list[str]:
    """List the faults that an audit with these numbers of devices finds too rarely.

    Each text ends with the predicted power in brackets.
    """
    params, calendar, shares = metric.params, Calendar.of(metric), _count_truths(metric, truth)
    powers = [
        *_yield_history_powers(params, calendar, shares, sizes.histories),
        _predict_choice_power(params, sizes.choosing),
        *_yield_sending_powers(metric, shares, sizes.sending),
    ]
    return [f"{fault} ({power:.0%})" for fault, power in powers if power < MIN_POWER]


def _count_truths(metric: Metric, truth: TrueBits) -> list[TruthShare]:
    """Compute how many of the k bits are 0 or 1 for the first and for the other value of a device.

    The number is a mean over all values. The bits of a string change with the cohort, so the mean
    is also over the first four cohorts. More cohorts would change the mean little.
    """
    n_values = len(truth.values)
    # The values 2i and 2i + 1 are a pair, so `values ^ 1` contains the other value of each pair.
    values = np.arange(n_values)
    # Row: true bit of the first value. Column: true bit of the other value.
    totals = np.zeros((2, 2))
    cohorts = range(min(metric.params.m, 4))
    for cohort in cohorts:
        bits = truth.bits(values, np.full(n_values, cohort))
        other_bits = truth.bits(values ^ 1, np.full(n_values, cohort))
        for first, other in product((0, 1), repeat=2):
            totals[first, other] += ((bits == first) & (other_bits == other)).sum()
    means = totals / (n_values * len(cohorts))
    return [
        TruthShare((first, other), means[first, other])
        for first, other in product((0, 1), repeat=2)
    ]


def _yield_history_powers(
    params: Params, calendar: Calendar, shares: Sequence[TruthShare], devices: int
) -> Iterator[tuple[str, float]]:
    """Yield each fault that devices with a history show, with the power of the audit.

    The inner functions describe one fault each. Given the true bits of the two values of a device,
    such a function returns two arrays over all outcomes of the reports of one bit: the logarithm of
    the outcome's probability under the fault, and the log ratio that the audit would compute.
    """
    # Numbers of days, with one report each: in the first epoch, in the first epoch after the clock
    # was set back, and in the next epoch.
    n_same, n_back, n_later = len(calendar.same), len(calendar.back), len(calendar.later)
    n_pairs = len(calendar.list_run_pairs())

    def model_second_response(
        n_earlier: int, n_after: int, *, is_same_value: bool = False
    ) -> Callable[[Booleans, Booleans], tuple[Floats, Floats]]:
        """Model a client that draws a second permanent response after `n_earlier` reports.

        The first response is of the first value. The device then records the second value, and the
        second response is of the second value. With `is_same_value` both responses are of the
        second value, because the clock was set back after the second value was recorded.
        """
        earlier, after, ways = _list_outcomes(n_earlier, n_after)

        def outcomes(first: Booleans, second: Booleans) -> tuple[Floats, Floats]:
            """Return logarithms of probabilities, and log ratios, of all outcomes."""
            truths = (second, second) if is_same_value else (first, second)
            logs = compute_log_likelihood(earlier, truths[0], params)
            logs = ways + logs + compute_log_likelihood(after, truths[1], params)
            return logs, compute_second_response_ratio(earlier, after, truths, params)

        return outcomes

    def model_redrawn_response(first: Booleans, _: Booleans) -> tuple[Floats, Floats]:
        """Model a client that draws a new permanent response after each restart."""
        group = OnesOf(np.arange(n_same + 1), n_same)
        p_one = float(params.q_star if first else params.p_star)
        logs = stats.binom.logpmf(group.ones, n_same, p_one)
        return logs, compute_redrawn_ratio(group, first, params)

    def model_repeated_coins(first: Booleans, _: Booleans) -> tuple[Floats, Floats]:
        """Model a client whose runs repeat the fresh coins of the run before."""
        # Under the fault both reports of a pair are equal, so a pair has the probability of one
        # report.
        both = np.arange(n_pairs + 1)
        pairs = OnesOf(both, n_pairs)
        logs = _log_choose(n_pairs, both) + compute_log_likelihood(pairs, first, params)
        ratio = compute_repeated_coins_ratio(both, n_pairs - both, n_pairs, first, params)
        return logs, ratio

    def model_shared_response(first: Booleans, second: Booleans) -> tuple[Floats, Floats]:
        """Model a client that repeats the permanent response of the first epoch in the next."""
        earlier, later, ways = _list_outcomes(n_same, n_later)
        both = OnesOf(earlier.ones + later.ones, n_same + n_later)
        logs = ways + compute_log_likelihood(both, first, params)
        ratio = compute_shared_response_ratio(earlier, later, (first, second), params)
        return logs, ratio

    # The checks of the first epoch need reports before and after the value changes.
    if n_same > RESTART_DAY + 1:
        n_before = RESTART_DAY + 1
        # Devices come in pairs (twins). Only the second twin, half of the devices, records another
        # value in the first epoch.
        yield (
            "a second permanent response after the value has changed",
            _predict_power(shares, devices / 2, model_second_response(n_before, n_same - n_before)),
        )
        yield (
            "a new permanent response after each restart",
            _predict_power(shares, devices, model_redrawn_response),
        )
        yield (
            "fresh coins that a run repeats from the run before",
            _predict_power(shares, devices, model_repeated_coins),
        )
        if n_later:
            yield (
                "one permanent response for two epochs",
                _predict_power(shares, devices, model_shared_response),
            )
    if n_back:
        power = _predict_power(shares, devices, model_second_response(n_same, n_back))
        if params.m == 1:
            # With one cohort the reports do not show which epoch a client repeats, so they must
            # contradict both epochs. The values of the second epoch are recorded again.
            outcomes = model_second_response(n_later, n_back, is_same_value=True)
            power = min(power, _predict_power(shares, devices, outcomes))
        yield "a third permanent response after the clock was set back", power


def _predict_choice_power(params: Params, devices: int) -> tuple[str, float]:
    """Return the power for a client that reports the first event of every interval.

    The check (`rappor.auditing.event_choice`) counts the reports that indicate the value of
    the first event. A report indicates one of two values if exactly one of their two bits is set.
    The indication is right with probability r = q* (1 - p*) / (q* (1 - p*) + p* (1 - q*)). A
    correct client reports the first of the n events once in n times, and another event has its
    value every second time: P = (r + (n - 1) / 2) / n. The faulty client has P = r.
    """
    p, q = params.p_star, params.q_star
    p_indicating = q * (1 - p) + p * (1 - q)
    p_right = q * (1 - p) / p_indicating
    if params.k == 1:
        # The single bit is always an indication: a one of one value, a zero of the other.
        p_indicating, p_right = 1.0, (q + 1 - p) / 2
    p_correct = (p_right + (EVENTS_TO_CHOOSE - 1) / 2) / EVENTS_TO_CHOOSE
    n = round(devices * p_indicating)
    # Two-sided test with Bonferroni's correction.
    limit = FALSE_ALARM_RATE / (2 * _TESTS_OF_A_CHECK)
    power = float(stats.binom.sf(stats.binom.isf(limit, n, p_correct), n, p_right))
    return "the first event of an interval that is always reported", power


def _yield_sending_powers(
    metric: Metric, shares: Sequence[TruthShare], devices: int
) -> Iterator[tuple[str, float]]:
    """Yield the power for a client whose 100th, 200th, ... report has no fresh noise.

    Such a report is compared with the other reports of its epoch.
    """
    params = metric.params
    n_in_epoch = _count_reports_of_epoch(metric)
    if n_in_epoch < 2:
        # A single report of an epoch has no other reports to be compared with.
        return
    others, noiseless, _ = _list_outcomes(n_in_epoch - 1, 1)

    def outcomes(first: Booleans, _: Booleans) -> tuple[Floats, Floats]:
        """Return logarithms of probabilities, and log ratios, of all outcomes of one epoch."""
        # The noiseless report equals the permanent bit. So its probability is that of the permanent
        # bit, and the other reports follow B(n, q) or B(n, p) given this bit.
        repeated = dataclasses.replace(params, p=0.0, q=1.0, insecure=True)
        permanent = compute_log_likelihood(noiseless, first, repeated)
        p_one = np.where(noiseless.ones == 1, params.q, params.p)
        logs = permanent + stats.binom.logpmf(others.ones, others.n_reports, p_one)
        return logs, compute_noiseless_ratio(others, noiseless, first, params)

    reports = devices * (MANY_REPORTS // FAULTY_PERIOD)
    yield (
        "no fresh noise in each 100th report of a device",
        _predict_power(shares, reports, outcomes, n_tests=_COUNTS_OF_MANY_REPORTS),
    )


def _count_reports_of_epoch(metric: Metric) -> int:
    """Return the number of reports of a device in a typical epoch of the metric."""
    if metric.interval == "epoch":
        return 1
    days = {"month": 30, "quarter": 91, "year": 365, "life": MANY_REPORTS}[metric.epoch]
    return days // 7 if metric.interval == "week" else days


def _list_outcomes(n_earlier: int, n_later: int) -> tuple[OnesOf, OnesOf, Floats]:
    """List all outcomes of one bit in two groups of reports.

    Returns the numbers of ones of both groups, and ln of the number of orders of each outcome. All
    arrays are (n_earlier + 1, n_later + 1): by the ones in the first and in the second group.
    """
    earlier, later = np.indices((n_earlier + 1, n_later + 1))
    ways = _log_choose(n_earlier, earlier) + _log_choose(n_later, later)
    return OnesOf(earlier, n_earlier), OnesOf(later, n_later), ways


def _log_choose(n: int, ones: Integers) -> Floats:
    """Compute ln of the binomial coefficient: the number of orders of `ones` ones in n reports."""
    logs: Floats = gammaln(n + 1) - gammaln(ones + 1) - gammaln(n - ones + 1)
    return logs


def _predict_power(
    shares: Sequence[TruthShare],
    devices: float,
    outcomes: Callable[[Booleans, Booleans], tuple[Floats, Floats]],
    *,
    n_tests: int = _TESTS_OF_A_CHECK,
) -> float:
    """Predict the probability that the log ratio of a fault exceeds the limit of its check.

    `outcomes` takes the true bits for the two values of a device. It returns, for all outcomes of
    the reports of one bit, the logarithm of the probability under the fault, and the log ratio.
    """
    # Mean and variance of the log ratio of one device, summed over its bits.
    mean = variance = 0.0
    for (first, second), n_bits in shares:
        logs, ratios = outcomes(np.array(first == 1), np.array(second == 1))
        is_possible = ~np.isneginf(logs)
        probability, ratio = np.exp(logs[is_possible]), ratios[is_possible]
        if np.isposinf(ratio).any():
            # A correct client cannot give these reports, so the first of them is a fault.
            return 1.0
        bit_mean = float((probability * ratio).sum())
        mean += n_bits * bit_mean
        variance += n_bits * (float((probability * ratio**2).sum()) - bit_mean**2)
    limit = math.log(n_tests / FALSE_ALARM_RATE)
    # With a constant log ratio the variance is 0. The small number in its place makes the quotient
    # huge, so the power is 0 or 1.
    spread = math.sqrt(max(devices * variance, 1e-12))
    return float(stats.norm.cdf((devices * mean - limit) / spread))
