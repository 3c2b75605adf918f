"""Power of a client audit: how many devices find a fault, and which faults an audit would miss.

The evidence of a device depends on its bits and its noise. A string of 128 bits under `balanced`
shows a second permanent response with a dozen devices; a category of three under `strict` needs
hundreds. So the number of devices follows from the parameters, up to a limit of time, and the audit
lists the faults that it would miss nevertheless.

The log ratio of a fault (`rappor.auditing.likelihood_ratios`) is a sum over independent bits and
devices. Its mean and variance, for a client with the fault, are computed from all outcomes of the
reports of one bit. The sum of n devices is nearly normal, so the fault is found with probability

    Phi((n mean - ln(tests / FALSE_ALARM_RATE)) / sqrt(n variance)).
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
from rappor.auditing.device_histories import (
    EVENTS_TO_CHOOSE,
    MANY_REPORTS,
    RESTART_DAY,
    Calendar,
)
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
"""Smallest probability of finding a fault. The audit lists the faults that it finds less often."""

HISTORY_SIZES: Final = (50, 100, 200, 400)
"""Numbers of devices with a history, of which the smallest sufficient one is chosen.

Each device takes 0.08 seconds of CPU time, so that the largest number takes half a minute.
"""

CHOOSING_SIZES: Final = (300, 600, 900, 1200)
"""Numbers of devices that choose among events. Each takes 0.014 seconds of CPU time."""

SENDING_SIZES: Final = (8, 16, 32)
"""Numbers of devices that send many reports. Each takes 0.5 seconds of CPU time."""

_TESTS_OF_A_CHECK: Final = 20
"""Assumed number of counts that a check compares. The p-value is multiplied by it."""

_COUNTS_OF_MANY_REPORTS: Final = 5000
"""The same for the check of many reports, which compares every report with the one before."""

FAULTY_PERIOD: Final = 100
"""Number of reports after which one without fresh noise is assumed to come."""


class TruthShare(NamedTuple):
    """Mean number of bits of a device whose true bits are `truths` for its two values."""

    truths: tuple[int, int]
    n_bits: float


class AuditSizes(NamedTuple):
    """Numbers of devices of a client audit: with histories, choosing, and sending many reports."""

    histories: int
    choosing: int
    sending: int


def choose_sizes(metric: Metric, truth: TrueBits) -> AuditSizes:
    """Choose the numbers of devices that find every listed fault, if the largest numbers do."""

    def choose(sizes: Sequence[int], powers: Callable[[int], Iterator[tuple[str, float]]]) -> int:
        sufficient = (n for n in sizes if all(power >= MIN_POWER for _, power in powers(n)))
        return next(sufficient, sizes[-1])

    params, calendar, shares = metric.params, Calendar.of(metric), _share_truths(metric, truth)
    return AuditSizes(
        choose(HISTORY_SIZES, lambda n: _yield_history_powers(params, calendar, shares, n)),
        choose(CHOOSING_SIZES, lambda n: iter([_predict_choice_power(params, n)])),
        choose(SENDING_SIZES, lambda n: _yield_sending_powers(metric, shares, n)),
    )


def list_missed_faults(metric: Metric, truth: TrueBits, sizes: AuditSizes) -> list[str]:
    """List the faults that an audit with these numbers of devices finds too rarely."""
    params, calendar, shares = metric.params, Calendar.of(metric), _share_truths(metric, truth)
    powers = [
        *_yield_history_powers(params, calendar, shares, sizes.histories),
        _predict_choice_power(params, sizes.choosing),
        *_yield_sending_powers(metric, shares, sizes.sending),
    ]
    return [f"{fault} ({power:.0%})" for fault, power in powers if power < MIN_POWER]


def _share_truths(metric: Metric, truth: TrueBits) -> list[TruthShare]:
    """Count the bits of a device by their true bits for its two values, as a mean over values.

    The mean over the values is taken in a few cohorts: bits of a string change with the cohort.
    """
    n_values = len(truth.values)
    values = np.arange(n_values)
    totals = np.zeros((2, 2))
    cohorts = range(min(metric.params.m, 4))
    for cohort in cohorts:
        bits = truth.bits(values, np.full(n_values, cohort))
        other = truth.bits(values ^ 1, np.full(n_values, cohort))
        for a, b in product((0, 1), repeat=2):
            totals[a, b] += ((bits == a) & (other == b)).sum()
    means = totals / (n_values * len(cohorts))
    return [TruthShare((a, b), means[a, b]) for a, b in product((0, 1), repeat=2)]


def _yield_history_powers(
    params: Params, calendar: Calendar, shares: Sequence[TruthShare], devices: int
) -> Iterator[tuple[str, float]]:
    """Yield each fault of the histories with the probability of finding the fault."""
    n_same, n_back, n_later = len(calendar.same), len(calendar.back), len(calendar.later)
    n_pairs = len(calendar.list_run_pairs())

    def second_response(
        n_earlier: int, n_after: int, *, is_same_value: bool = False
    ) -> Callable[[Booleans, Booleans], tuple[Floats, Floats]]:
        earlier, after, ways = _list_outcomes(n_earlier, n_after)

        def outcomes(first: Booleans, second: Booleans) -> tuple[Floats, Floats]:
            truths = (second, second) if is_same_value else (first, second)
            logs = compute_log_likelihood(earlier, truths[0], params)
            logs = ways + logs + compute_log_likelihood(after, truths[1], params)
            return logs, compute_second_response_ratio(earlier, after, truths, params)

        return outcomes

    def redrawn(first: Booleans, _: Booleans) -> tuple[Floats, Floats]:
        group = OnesOf(np.arange(n_same + 1), n_same)
        star = float(params.q_star if first else params.p_star)
        logs = stats.binom.logpmf(group.ones, n_same, star)
        return logs, compute_redrawn_ratio(group, first, params)

    def repeated_coins(first: Booleans, _: Booleans) -> tuple[Floats, Floats]:
        # All pairs of runs have equal reports, so that a pair has the probability of one report.
        both = np.arange(n_pairs + 1)
        pairs = OnesOf(both, n_pairs)
        logs = _log_choose(n_pairs, both) + compute_log_likelihood(pairs, first, params)
        ratio = compute_repeated_coins_ratio(both, n_pairs - both, n_pairs, first, params)
        return logs, ratio

    def shared_response(first: Booleans, second: Booleans) -> tuple[Floats, Floats]:
        earlier, later, ways = _list_outcomes(n_same, n_later)
        both = OnesOf(earlier.ones + later.ones, n_same + n_later)
        logs = ways + compute_log_likelihood(both, first, params)
        ratio = compute_shared_response_ratio(earlier, later, (first, second), params)
        return logs, ratio

    if n_same > RESTART_DAY + 1:
        n_before = RESTART_DAY + 1
        yield (
            "a second permanent response after the value has changed",
            _predict_power(shares, devices / 2, second_response(n_before, n_same - n_before)),
        )
        yield (
            "a new permanent response after each restart",
            _predict_power(shares, devices, redrawn),
        )
        yield (
            "fresh coins that a run repeats from the run before",
            _predict_power(shares, devices, repeated_coins),
        )
        if n_later:
            yield (
                "one permanent response for two epochs",
                _predict_power(shares, devices, shared_response),
            )
    if n_back:
        power = _predict_power(shares, devices, second_response(n_same, n_back))
        if params.m == 1:
            # With one cohort nothing says which epoch a correct client repeats, so the reports
            # must contradict both epochs. The values of the second epoch are recorded again.
            outcomes = second_response(n_later, n_back, is_same_value=True)
            power = min(power, _predict_power(shares, devices, outcomes))
        yield "a third permanent response after the clock was set back", power


def _predict_choice_power(params: Params, devices: int) -> tuple[str, float]:
    """Return the power for a client that reports the first event of every interval.

    A report indicates one of two values if exactly one of their two bits is set. The indication is
    right with probability q* (1 - p*) / (q* (1 - p*) + p* (1 - q*)). A correct client reports the
    first of the n events once in n times, and another event has its value every second time.
    """
    p, q = params.p_star, params.q_star
    indicating = q * (1 - p) + p * (1 - q)
    right = q * (1 - p) / indicating
    if params.k == 1:  # The bit is the indication: one for one value, zero for the other.
        indicating, right = 1.0, (q + 1 - p) / 2
    expected = (right + (EVENTS_TO_CHOOSE - 1) / 2) / EVENTS_TO_CHOOSE
    n = round(devices * indicating)
    limit = FALSE_ALARM_RATE / (2 * _TESTS_OF_A_CHECK)
    power = float(stats.binom.sf(stats.binom.isf(limit, n, expected), n, right))
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
        return
    others, noiseless, _ = _list_outcomes(n_in_epoch - 1, 1)

    def outcomes(first: Booleans, _: Booleans) -> tuple[Floats, Floats]:
        # The noiseless report repeats the permanent response, which the others show.
        repeated = dataclasses.replace(params, p=0.0, q=1.0, insecure=True)
        permanent = compute_log_likelihood(noiseless, first, repeated)
        is_one = noiseless.ones == 1
        stage = np.where(is_one, params.q, params.p)
        logs = permanent + stats.binom.logpmf(others.ones, others.n_reports, stage)
        return logs, compute_noiseless_ratio(others, noiseless, first, params)

    reports = devices * (MANY_REPORTS // FAULTY_PERIOD)
    yield (
        "no fresh noise in each 100th report of a device",
        _predict_power(shares, reports, outcomes, n_tests=_COUNTS_OF_MANY_REPORTS),
    )


def _count_reports_of_epoch(metric: Metric) -> int:
    """Return the number of reports of a device in a typical epoch."""
    if metric.interval == "epoch":
        return 1
    days = {"month": 30, "quarter": 91, "year": 365, "life": MANY_REPORTS}[metric.epoch]
    return days // 7 if metric.interval == "week" else days


def _list_outcomes(n_earlier: int, n_later: int) -> tuple[OnesOf, OnesOf, Floats]:
    """List the numbers of ones of two groups of reports, and ln(number of orders) of each."""
    earlier, later = np.indices((n_earlier + 1, n_later + 1))
    ways = _log_choose(n_earlier, earlier) + _log_choose(n_later, later)
    return OnesOf(earlier, n_earlier), OnesOf(later, n_later), ways


def _log_choose(n: int, ones: Integers) -> Floats:
    """Compute ln of the number of orders of `ones` ones in n reports."""
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

    `outcomes` takes the true bits for the two values. It returns, for all outcomes of the reports
    of one bit, the logarithm of the probability under the fault, and the log ratio.
    """
    mean = variance = 0.0
    for (first, second), n_bits in shares:
        logs, ratios = outcomes(np.array(first == 1), np.array(second == 1))
        possible = ~np.isneginf(logs)
        probability, ratio = np.exp(logs[possible]), ratios[possible]
        if np.isposinf(ratio).any():
            return 1.0  # A correct client cannot give these reports.
        bit_mean = float((probability * ratio).sum())
        mean += n_bits * bit_mean
        variance += n_bits * (float((probability * ratio**2).sum()) - bit_mean**2)
    limit = math.log(n_tests / FALSE_ALARM_RATE)
    spread = math.sqrt(max(devices * variance, 1e-12))
    return float(stats.norm.cdf((devices * mean - limit) / spread))
