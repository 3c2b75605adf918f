"""Likelihood ratios: how much better a fault explains a client's reports than a correct client.

Used by the audit of a client (`rappor.auditing.device`), which sees reports but no permanent
responses. For each fault of a list, the audit computes one number, the log ratio, and converts the
number to a p-value.

A *run* is one call of the client for one device: the client opens the folder of the device and
records values. The audit makes one run of each device a day (`rappor.auditing.device_histories`).

Model of a correct client. A bit's permanent response is 1 with probability f1 if its true bit is 0,
and with probability 1 - f0 if its true bit is 1. All reports of one epoch share the permanent
response. Each report shows 1 with probability q if the permanent response is 1, else with
probability p. So a correct client gives `ones` ones and `zeros` zeros in a certain order with
probability

    L(ones, zeros) = a q^ones (1 - q)^zeros + (1 - a) p^ones (1 - p)^zeros,   a = f1 or 1 - f0.

A fault gives the same reports with another probability. For example, a client that draws a second
permanent response for the later of two groups of reports gives them with probability
L(earlier) L(later), where a correct client has L(earlier and later). The logarithm of the quotient
fault / correct, summed over all bits and devices, is the log ratio of the fault, in nats.

    function                         fault: the client ...
    compute_second_response_ratio    draws a second permanent response within an epoch
    compute_shared_response_ratio    repeats one permanent response in two epochs or on two devices
    compute_common_response_ratio    repeats one permanent response on all devices of a group
    compute_redrawn_ratio            draws a new permanent response for each report
    compute_noiseless_ratio          adds no fresh noise to some of the reports
    compute_repeated_coins_ratio     repeats the fresh coins of the run before

Why the log ratio gives a p-value. The expectation of the quotient under a correct client is 1,
because the probabilities of the fault sum to 1. So by Markov's inequality a correct client has a
log ratio of ln(1 / alpha) or more with probability at most alpha: exp(-log ratio) is a valid
p-value, for any number of bits and devices. The sum needs independent bits and devices. Two twins
(devices with one secret) with equal true bits share their permanent coins, so only the first of
them is counted.

Example: let p = .19, q = .75, f1 = .14 and a true bit 0. Six reports show a 1 on the last three
days only. A second permanent response explains them exp(1.0) times as well as one response. One bit
is no evidence. Hundreds of such bits are, and metrics of many bits or audits of many devices have
them.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.protocol.params import Params

_SHARED_RUNS: Final = 0.75
"""Assumed probability that a run repeats the coins of the run before, for a client with that fault.

At 1, a single run with fresh coins, such as the first run of a new device, would hide the fault. A
smaller number makes the evidence of each pair of equal runs weaker.
"""

_REMAINING_NOISE: Final = 1 / 8
"""Assumed share of the fresh noise that a report "without fresh noise" still has.

Such a report flips a permanent bit with an eighth of the usual probability. At 0, a single correct
report among the faulty reports would hide the fault. At 1 there would be no fault.
"""


class OnesByBit(NamedTuple):
    """Number of reports with a 1 at each bit, among the reports of some days (a group of reports).

    `ones` is (n, k) int64: by device and bit. `n_reports` is the number of reports of each device
    in the group: one number, or (n, 1) if devices have different numbers.
    """

    ones: Integers
    n_reports: int | Integers


class LogRatio(NamedTuple):
    """A fault, named by `description`, and the log ratio of its likelihood in nats."""

    description: str
    value: float


def compute_log_likelihood(group: OnesByBit, truth: Booleans, params: Params) -> Floats:
    """Compute ln L of reports that share one permanent response: (n, k), by device and bit.

    `truth` is (n, k) bool, the true bits.
    """
    # With f = 0, p = 0 or q = 1 an event has probability 0 and the logarithm -inf.
    with np.errstate(divide="ignore"):
        # Logarithms of the probabilities that the permanent bit is 1, and 0, given the true bit.
        log_permanent_1 = np.log(np.where(truth, 1 - params.f0, params.f1))
        log_permanent_0 = np.log(np.where(truth, params.f0, 1 - params.f1))
    logs: Floats = np.logaddexp(
        log_permanent_1 + _compute_log_power(group, params.q),
        log_permanent_0 + _compute_log_power(group, params.p),
    )
    return logs


def compute_second_response_ratio(
    earlier: OnesByBit, later: OnesByBit, truths: tuple[Booleans, Booleans], params: Params
) -> Floats:
    """Compare a second permanent response of the later reports with one response of all reports.

    Returns the log ratios by device and bit, (n, k). `truths` contains the true bits of the first
    response, which all reports of a correct client share, and of the second response. The true bits
    differ if the device records another value before the later reports. A correct client still
    repeats the response of the first value until the epoch ends.
    """
    both = OnesByBit(earlier.ones + later.ones, earlier.n_reports + later.n_reports)
    fault = compute_log_likelihood(earlier, truths[0], params)
    fault = fault + compute_log_likelihood(later, truths[1], params)
    return _subtract(fault, compute_log_likelihood(both, truths[0], params))


def compute_shared_response_ratio(
    earlier: OnesByBit, later: OnesByBit, truths: tuple[Booleans, Booleans], params: Params
) -> Floats:
    """Compare one permanent response of two epochs with independent responses of the epochs.

    Returns the log ratios by device and bit, (n, k). `truths` contains the true bits of both
    epochs. A client with the fault repeats the response of the first epoch.
    """
    both = OnesByBit(earlier.ones + later.ones, earlier.n_reports + later.n_reports)
    correct = compute_log_likelihood(earlier, truths[0], params)
    correct = correct + compute_log_likelihood(later, truths[1], params)
    return _subtract(compute_log_likelihood(both, truths[0], params), correct)


def compute_common_response_ratio(
    devices: OnesByBit, groups: Integers, truth: Booleans, params: Params
) -> Floats:
    """Compare one permanent response of each group of devices with independent responses.

    A client with one secret for all devices has this fault, in every group of devices with equal
    true bits and one cohort. Groups find the fault with fewer devices than pairs do: each device of
    a group is compared with the common response that all other devices of the group show.

    Parameters
    ----------
    devices : reports of each device, (n, k).
    groups : (n,) int64. Index of the group of each device, 0 to g - 1, where g is their number.
    truth : (n, k) bool. True bits of each device. Devices of one group have equal true bits.
    params : parameters of the reports.

    Returns
    -------
    (g, k) float64. Log ratio of each group and bit, in nats.
    """
    _, first_of_group = np.unique(groups, return_index=True)
    shape = (len(first_of_group), devices.ones.shape[1])
    ones, correct = np.zeros(shape, dtype=np.int64), np.zeros(shape)
    np.add.at(ones, groups, devices.ones)
    np.add.at(correct, groups, compute_log_likelihood(devices, truth, params))
    n_reports = np.zeros((shape[0], 1), dtype=np.int64)
    np.add.at(n_reports, groups, np.broadcast_to(devices.n_reports, (len(groups), 1)))
    fault = compute_log_likelihood(OnesByBit(ones, n_reports), truth[first_of_group], params)
    return _subtract(fault, correct)


def compute_redrawn_ratio(group: OnesByBit, truth: Booleans, params: Params) -> Floats:
    """Compare a new permanent response of each report with one response of all reports.

    Returns the log ratios by device and bit, (n, k). Under the fault each report shows 1 with
    probability p* or q*, independently of the other reports.
    """
    star = np.where(truth, params.q_star, params.p_star)
    with np.errstate(divide="ignore"):
        zeros = group.n_reports - group.ones
        fault = _multiply_by_log(group.ones, np.log(star)) + _multiply_by_log(
            zeros, np.log1p(-star)
        )
    return _subtract(fault, compute_log_likelihood(group, truth, params))


def compute_noiseless_ratio(
    others: OnesByBit, noiseless: OnesByBit, truth: Booleans, params: Params
) -> Floats:
    """Compare reports without fresh noise among other reports with correct reports.

    Returns the log ratios by device and bit, (n, k). Both groups share one permanent response.
    Under the fault the reports of `noiseless` repeat the response, except for an eighth of the
    noise (`_REMAINING_NOISE`).
    """
    both = OnesByBit(others.ones + noiseless.ones, others.n_reports + noiseless.n_reports)
    with np.errstate(divide="ignore"):
        log_permanent_1 = np.log(np.where(truth, 1 - params.f0, params.f1))
        log_permanent_0 = np.log(np.where(truth, params.f0, 1 - params.f1))
    fault = np.logaddexp(
        log_permanent_1
        + _compute_log_power(others, params.q)
        + _compute_log_power(noiseless, 1 - _REMAINING_NOISE * (1 - params.q)),
        log_permanent_0
        + _compute_log_power(others, params.p)
        + _compute_log_power(noiseless, _REMAINING_NOISE * params.p),
    )
    return _subtract(fault, compute_log_likelihood(both, truth, params))


def compute_repeated_coins_ratio(
    both: Integers, neither: Integers, n_pairs: int, truth: Booleans, params: Params
) -> Floats:
    """Compare runs that repeat the fresh coins of the run before with runs of fresh coins.

    Returns the log ratios by device and bit, (n, k). `both` and `neither` are (n, k): of `n_pairs`
    pairs of runs of a device, the number in which a bit is 1 in both runs, and in neither. With
    equal coins and one permanent response the reports of both runs are equal. Under the fault that
    happens in a share s of the pairs (`_SHARED_RUNS`). So for a bit that a report shows as 1 with
    probability x, the pair of runs has

        P(both 1) = s x + (1 - s) x^2,    P(neither 1) = s (1 - x) + (1 - s) (1 - x)^2,
        P(1 then 0) = P(0 then 1) = (1 - s) x (1 - x).
    """
    differing = n_pairs - both - neither
    # Log-likelihoods for a permanent bit 0, then for a permanent bit 1.
    logs_by_permanent_bit = []
    with np.errstate(divide="ignore"):
        for p_one in (params.p, params.q):
            p_equal = (_SHARED_RUNS * x + (1 - _SHARED_RUNS) * x * x for x in (p_one, 1 - p_one))
            both_log, neither_log = (np.log(probability) for probability in p_equal)
            # The probability of one of the two orders, 1 then 0 or 0 then 1.
            differing_log = np.log((1 - _SHARED_RUNS) * p_one * (1 - p_one))
            logs_by_permanent_bit.append(
                _multiply_by_log(both, both_log)
                + _multiply_by_log(neither, neither_log)
                + _multiply_by_log(differing, differing_log)
            )
        log_permanent_1 = np.log(np.where(truth, 1 - params.f0, params.f1))
        log_permanent_0 = np.log(np.where(truth, params.f0, 1 - params.f1))
    fault = np.logaddexp(
        log_permanent_1 + logs_by_permanent_bit[1], log_permanent_0 + logs_by_permanent_bit[0]
    )
    group = OnesByBit(2 * both + differing, 2 * n_pairs)
    return _subtract(fault, compute_log_likelihood(group, truth, params))


def sum_log_ratio(description: str, ratios: Floats) -> LogRatio:
    """Sum the log ratios of all bits and devices; `description` names the fault in messages.

    The sum is 0, no evidence, if no reports can be compared.
    """
    return LogRatio(description, float(ratios.sum()) if ratios.size else 0.0)


def convert_to_p_value(log_ratio: float) -> float:
    """Return the p-value of a log ratio under a correct client: exp(-log ratio), at most 1."""
    return math.exp(-max(0.0, log_ratio))


def _compute_log_power(group: OnesByBit, probability: float) -> Floats:
    """Compute ln(x^ones (1 - x)^zeros) for x = `probability`."""
    with np.errstate(divide="ignore"):
        log_one, log_zero = np.log(probability), np.log1p(-probability)
    return _multiply_by_log(group.ones, log_one) + _multiply_by_log(
        group.n_reports - group.ones, log_zero
    )


def _multiply_by_log(count: Integers, log: Floats | np.floating) -> Floats:
    """Multiply a count by a logarithm. 0 ln(0) is 0: an event that did not occur."""
    with np.errstate(invalid="ignore"):
        product: Floats = np.where(count == 0, 0.0, count * log)
    return product


def _subtract(fault: Floats, correct: Floats) -> Floats:
    """Subtract logarithms of likelihoods: ln(fault / correct).

    Bad case: neither model can give the reports, so both logarithms are -inf. The log ratio is then
    0, no evidence for this fault. An example is p = 0 and q = 1, where all reports of one permanent
    response are equal, and a client with another fault gives reports that differ.
    """
    with np.errstate(invalid="ignore"):
        difference: Floats = np.where(np.isneginf(fault) & np.isneginf(correct), 0, fault - correct)
    return difference
