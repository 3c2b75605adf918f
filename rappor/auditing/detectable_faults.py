"""Power of a client audit: how many devices find a fault, and which faults an audit would miss.

The faults below are those of reports with separate bits. The module
`rappor.auditing.detectable_bucket_faults` has the faults of reports that name one bucket.

The input is the parameters of a metric and the values of the audit. The output is the numbers of
devices of the audit (`choose_sizes`), and the list of faults that these devices find too rarely
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
from rappor.auditing.detectable_bucket_faults import (
    MIN_POWER,
    predict_bucket_choice_power,
    yield_copied_powers,
)
from rappor.auditing.device_calendar import RESTART_DAY, Calendar
from rappor.auditing.device_histories import EVENTS_TO_CHOOSE, MANY_REPORTS
from rappor.auditing.likelihood_ratios import (
    OnesByBit,
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

HISTORY_SIZES: Final = (50, 100, 200, 400)
"""Possible numbers of devices with a history. The smallest sufficient number is chosen.

Each device takes 0.08 seconds of CPU time, so that the largest number takes half a minute.
"""

CHOOSING_SIZES: Final = (300, 600, 900, 1200)
"""Possible numbers of choosing devices. Each device takes 0.014 seconds of CPU time."""

SENDING_SIZES: Final = (8, 16, 32)
"""Possible numbers of sending devices. Each device takes 0.5 seconds of CPU time."""

COPIED_SIZES: Final = (200, 400, 800, 1200)
"""Possible numbers of copied devices. Each takes 0.05 seconds of CPU time, with its copy."""

_TESTS_OF_A_CHECK: Final = 20
"""Assumed number of counts and ratios that a check compares (`tests` in the formula).

A daily metric has 3 to 14 in each check of the histories (`rappor.auditing.device`), and 17 in the
check of the choice among events (`rappor.auditing.event_choice`): one for each of 16 events, and
one more. The number is rounded up. A larger number would make the predicted power smaller.
"""

_COUNTS_OF_MANY_REPORTS: Final = 5000
"""Assumed number of counts and ratios of the check of 1,000 reports.

Each of the 1,000 reports has four counts of ones, given the true bit 0 or 1 and given the permanent
bit 0 or 1, and one count of devices whose report equals their report before
(`rappor.auditing.many_reports`). A larger number would make the predicted power smaller.
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
    """Numbers of devices of a client audit: with histories, choosing, sending many, and copied.

    `rappor.auditing.device_histories` describes these four groups. Reports of separate bits need no
    copied devices. Reports that name one bucket are made once an epoch, so no device sends many.
    """

    histories: int
    choosing: int
    sending: int
    copied: int = 0


def choose_sizes(metric: Metric, truth: TrueBits) -> AuditSizes:
    """Choose the smallest numbers of devices that find every fault with probability MIN_POWER.

    If no number of a list is sufficient, the largest is chosen. `list_missed_faults` then names the
    faults that the audit finds too rarely.
    """

    def choose(sizes: Sequence[int], powers: Callable[[int], Iterator[tuple[str, float]]]) -> int:
        """Return the smallest number of devices with a sufficient power for every fault.

        `powers` takes a number of devices, and returns each fault with its power.
        """
        sufficient = (n for n in sizes if all(power >= MIN_POWER for _, power in powers(n)))
        return next(sufficient, sizes[-1])

    params = metric.params
    if params.response.is_exclusive:
        return AuditSizes(
            # Reports of one bucket have no fresh noise. All that the histories compare must agree
            # exactly, for example the cohorts of twins. One deviating device is a fault, without
            # any statistics, so few devices suffice.
            HISTORY_SIZES[0],
            choose(CHOOSING_SIZES, lambda n: iter([predict_bucket_choice_power(params, truth, n)])),
            0,
            choose(COPIED_SIZES, lambda n: yield_copied_powers(params, truth, n)),
        )
    calendar, shares = Calendar.of(metric), _count_truths(metric, truth)
    return AuditSizes(
        choose(HISTORY_SIZES, lambda n: _yield_history_powers(params, calendar, shares, n)),
        choose(CHOOSING_SIZES, lambda n: iter([_predict_choice_power(params, n)])),
        choose(SENDING_SIZES, lambda n: _yield_sending_powers(metric, shares, n)),
    )


def list_missed_faults(metric: Metric, truth: TrueBits, sizes: AuditSizes) -> list[str]:
    """List the faults that an audit with these numbers of devices finds too rarely.

    Each text ends with the predicted power in brackets.
    """
    return [
        f"{fault} ({power:.0%})"
        for fault, power in _list_powers(metric, truth, sizes)
        if power < MIN_POWER
    ]


def _list_powers(metric: Metric, truth: TrueBits, sizes: AuditSizes) -> list[tuple[str, float]]:
    """List all predicted faults with the power of an audit with these numbers of devices."""
    params = metric.params
    if params.response.is_exclusive:
        return [
            predict_bucket_choice_power(params, truth, sizes.choosing),
            *yield_copied_powers(params, truth, sizes.copied),
        ]
    calendar, shares = Calendar.of(metric), _count_truths(metric, truth)
    return [
        *_yield_history_powers(params, calendar, shares, sizes.histories),
        _predict_choice_power(params, sizes.choosing),
        *_yield_sending_powers(metric, shares, sizes.sending),
    ]


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
        for first, second in product((0, 1), repeat=2):
            totals[first, second] += ((bits == first) & (other_bits == second)).sum()
    means = totals / (n_values * len(cohorts))
    return [
        TruthShare((first, second), means[first, second])
        for first, second in product((0, 1), repeat=2)
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
    n_first, n_back, n_later = (
        len(calendar.first_epoch),
        len(calendar.clock_set_back),
        len(calendar.next_epoch),
    )
    # Pairs of successive days whose reports are compared for repeated coins.
    n_pairs = len(calendar.list_run_pairs())

    def model_second_response(
        n_earlier: int, n_after: int, *, is_same_value: bool = False
    ) -> Callable[[Booleans, Booleans], tuple[Floats, Floats]]:
        """Model a client that draws a second permanent response after `n_earlier` reports.

        Both responses are permanent responses in one epoch, where a correct client draws only one.
        Usually the first is of the device's first value, and the second of its other value, which
        the device records after the change. With `is_same_value` both are of the other value: the
        device recorded it in the later epoch, and records it again after the clock was set back.
        """
        earlier, after, log_orders = _list_outcomes(n_earlier, n_after)

        def compute_outcomes(first: Booleans, second: Booleans) -> tuple[Floats, Floats]:
            """Return logarithms of probabilities, and log ratios, of all outcomes."""
            truths = (second, second) if is_same_value else (first, second)
            logs = compute_log_likelihood(earlier, truths[0], params)
            logs = log_orders + logs + compute_log_likelihood(after, truths[1], params)
            return logs, compute_second_response_ratio(earlier, after, truths, params)

        return compute_outcomes

    def model_redrawn_response(first: Booleans, _: Booleans) -> tuple[Floats, Floats]:
        """Model a client that draws a new permanent response after each restart.

        The program restarts before each report, because each day is a run of its own. So all
        reports have independent permanent responses, and a report has a 1 with probability p* or
        q*.
        """
        group = OnesByBit(np.arange(n_first + 1), n_first)
        p_one = float(params.q_star if first else params.p_star)
        logs = stats.binom.logpmf(group.ones, n_first, p_one)
        return logs, compute_redrawn_ratio(group, first, params)

    def model_repeated_coins(first: Booleans, _: Booleans) -> tuple[Floats, Floats]:
        """Model a client whose runs repeat the fresh coins of the run before.

        `both` is the number of pairs of reports that have a 1 in both reports.
        """
        # Under the fault both reports of a pair are equal, so a pair has the probability of one
        # report.
        both = np.arange(n_pairs + 1)
        pairs = OnesByBit(both, n_pairs)
        logs = _compute_log_choose(n_pairs, both) + compute_log_likelihood(pairs, first, params)
        ratio = compute_repeated_coins_ratio(both, n_pairs - both, n_pairs, first, params)
        return logs, ratio

    def model_shared_response(first: Booleans, second: Booleans) -> tuple[Floats, Floats]:
        """Model a client that repeats the permanent response of the first epoch in the next."""
        earlier, later, log_orders = _list_outcomes(n_first, n_later)
        both = OnesByBit(earlier.ones + later.ones, n_first + n_later)
        logs = log_orders + compute_log_likelihood(both, first, params)
        ratio = compute_shared_response_ratio(earlier, later, (first, second), params)
        return logs, ratio

    # The second twins change their value after day `RESTART_DAY`. Days are counted from 0, so
    # `RESTART_DAY` + 1 reports come before the change. The checks of the first epoch need at least
    # one report after the change.
    if n_first > RESTART_DAY + 1:
        n_before = RESTART_DAY + 1
        # Devices come in pairs (twins). Only the second twin, half of the devices, records another
        # value in the first epoch.
        yield (
            "a second permanent response after the value has changed",
            _predict_power(
                shares, devices / 2, model_second_response(n_before, n_first - n_before)
            ),
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
        power = _predict_power(shares, devices, model_second_response(n_first, n_back))
        if params.m == 1:
            # Case: one cohort. After the clock was set back, a correct client goes on with the
            # response of the first or of the next epoch. With several cohorts, the cohort of a
            # report shows which epoch that is. With one cohort, the check finds a third response
            # only if the reports contradict both epochs: it uses the larger of two p-values. So the
            # smaller power is used here. In the comparison with the next epoch both values are
            # equal, because the device records the values of that epoch again.
            third_response = model_second_response(n_later, n_back, is_same_value=True)
            power = min(power, _predict_power(shares, devices, third_response))
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
    other_reports, noiseless, _ = _list_outcomes(n_in_epoch - 1, 1)

    def compute_outcomes(first: Booleans, _: Booleans) -> tuple[Floats, Floats]:
        """Return logarithms of probabilities, and log ratios, of all outcomes of one epoch."""
        # The noiseless report equals the permanent bit. So its probability is that of the permanent
        # bit, and the other reports follow B(n, q) or B(n, p) given this bit.
        repeated = dataclasses.replace(params, p=0.0, q=1.0, insecure=True)
        permanent = compute_log_likelihood(noiseless, first, repeated)
        p_one = np.where(noiseless.ones == 1, params.q, params.p)
        logs = permanent + stats.binom.logpmf(other_reports.ones, other_reports.n_reports, p_one)
        return logs, compute_noiseless_ratio(other_reports, noiseless, first, params)

    reports = devices * (MANY_REPORTS // FAULTY_PERIOD)
    yield (
        "no fresh noise in each 100th report of a device",
        _predict_power(shares, reports, compute_outcomes, n_tests=_COUNTS_OF_MANY_REPORTS),
    )


def _count_reports_of_epoch(metric: Metric) -> int:
    """Return the number of reports of a device in a typical epoch of the metric."""
    if metric.interval == "epoch":
        return 1
    days = {"month": 30, "quarter": 91, "year": 365, "life": MANY_REPORTS}[metric.epoch]
    return days // 7 if metric.interval == "week" else days


def _list_outcomes(n_earlier: int, n_later: int) -> tuple[OnesByBit, OnesByBit, Floats]:
    """List all outcomes of one bit in two groups of reports.

    An outcome is the number of ones in each group. Returns the numbers of ones of both groups, and
    ln of the number of orders in which the ones of an outcome can occur. All arrays are
    (n_earlier + 1, n_later + 1): by the ones in the first and in the second group.
    """
    earlier, later = np.indices((n_earlier + 1, n_later + 1))
    log_orders = _compute_log_choose(n_earlier, earlier) + _compute_log_choose(n_later, later)
    return OnesByBit(earlier, n_earlier), OnesByBit(later, n_later), log_orders


def _compute_log_choose(n: int, ones: Integers) -> Floats:
    """Compute ln of the binomial coefficient: the number of orders of `ones` ones in n reports."""
    logs: Floats = gammaln(n + 1) - gammaln(ones + 1) - gammaln(n - ones + 1)
    return logs


def _predict_power(
    shares: Sequence[TruthShare],
    devices: float,
    compute_outcomes: Callable[[Booleans, Booleans], tuple[Floats, Floats]],
    *,
    n_tests: int = _TESTS_OF_A_CHECK,
) -> float:
    """Predict the probability that the log ratio of a fault exceeds the limit of its check.

    The log ratio is a sum of `devices` independent terms. A term belongs to a device, or to a
    faulty report of `_yield_sending_powers`. `compute_outcomes` takes the true bits for the two
    values of a device. It returns, for all outcomes of the reports of one bit, the logarithm of the
    probability under the fault, and the log ratio.
    """
    # Mean and variance of the log ratio of one device, summed over its bits.
    mean = variance = 0.0
    for (first, second), n_bits in shares:
        logs, ratios = compute_outcomes(np.array(first == 1), np.array(second == 1))
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
