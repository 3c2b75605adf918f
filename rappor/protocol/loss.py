"""Privacy loss: epsilon_1 of one report, epsilon_n of n reports, epsilon_inf of any number.

How to think about it
---------------------
The privacy loss is the largest log-likelihood ratio, in nats, between two values of a device, over
everything that an observer can receive:

    epsilon = max over values v, w and observations o of ln P(o | v) - ln P(o | w)

All reports of one value repeat one permanent response. Given its bits, the reports are independent,
and so are the bits. The loss therefore follows from a single bit, in two directions:

- `up`: the observation is the strongest evidence for a true 1. Every report shows a 1 at the bit.
- `down`: the observation is the strongest evidence for a true 0. Every report shows a 0.

The encoding then says in how many bits, and in which direction, two values differ. Two strings with
h hash functions differ in at most h bits in each direction, so their loss is h (up + down).

Let f1 be the probability that a true 0 becomes a permanent 1, and f0 the probability that a true 1
becomes a permanent 0. For n reports,

    up   = ln [ ((1 - f0) q^n + f0 p^n) / (f1 q^n + (1 - f1) p^n) ]
    down = ln [ ((1 - f1) (1-p)^n + f1 (1-q)^n) / (f0 (1-p)^n + (1 - f0) (1-q)^n) ]

Example: f1 = f0 = 0.25, p = 0.5, q = 0.75 and h = 2 lose epsilon_1 = 1.07 nats, and epsilon_inf =
2 h ln((1 - 0.25) / 0.25) = 4.39 nats ([EPK14] section 5.2).

[EPK14] states n = 1 (Theorem 2) and the limit n to infinity (Theorem 1), both for f1 = f0 = f/2. It
leaves n reports open. The formula above fills the gap; tests compare it with an enumeration of all
coins.

[EPK14] Erlingsson, Pihur, Korolova. RAPPOR. CCS 2014, arXiv 1407.6981.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from rappor.base.argument_checks import check_type
from rappor.base.errors import ParamsError
from rappor.base.ranges import check_integer, check_number
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params

_MAX_REPORTS: Final = 10**15
"""Largest number of reports of one value. All devices together will send fewer. Far larger numbers
overflow the floating-point log-likelihoods."""


def epsilon_1(params: Params) -> float:
    """Return the privacy loss of one report, in nats ([EPK14] Theorem 2 for g = 1/2).

    The loss is infinite if one report can reveal a true bit with certainty.

    Parameters
    ----------
    params : the parameter set of the report.

    Examples
    --------
    >>> round(epsilon_1(Params(k=128, h=2, m=8, f=0.5, p=0.5, q=0.75)), 4)
    1.0743
    """
    return epsilon_n(params, 1)


def epsilon_n(params: Params, n: int) -> float:
    """Return the privacy loss of n reports of one value under one permanent response, in nats.

    n = 1 gives [EPK14] Theorem 2, and the limit n to infinity gives [EPK14] Theorem 1. The paper
    does not state the loss for other n.

    Parameters
    ----------
    params : the parameter set of all reports.
    n : number of reports, at least 1.

    Raises
    ------
    ParamsError
        n is not an integer in [1, 10^15].

    Examples
    --------
    >>> params = Params(k=128, h=2, m=8, f=0.5, p=0.5, q=0.75)
    >>> [round(epsilon_n(params, n), 3) for n in (1, 2, 5, 10)]
    [1.074, 2.017, 3.656, 4.299]
    """
    check_type("params", params, Params, "call Params.profile(name)")
    return epsilon_reports({params: n})


def epsilon_reports(reports: Mapping[Params, int]) -> float:
    """Return the privacy loss of reports with different p and q, in nats.

    A change of p and q during the life of a metric keeps the permanent responses. Given the
    permanent response, the reports are independent, so the log-likelihoods of all reports add.

    Parameters
    ----------
    reports : number of reports by parameter set. The parameter sets must have the same permanent
        fingerprint.

    Raises
    ------
    ParamsError
        There is no parameter set, a number is outside [1, 10^15], or the parameter sets have
        different permanent responses.
    """
    if not reports:
        raise ParamsError("reports must count at least one parameter set, got none")
    for n in reports.values():
        check_integer("n", n, 1, _MAX_REPORTS)
    if len({params.permanent_fingerprint for params in reports}) > 1:
        raise ParamsError("reports must share a permanent response: only p and q may differ")
    params = next(iter(reports))
    # Log-likelihood of the observation under the less likely permanent bit, less the
    # log-likelihood under the more likely one. All reports show a 1 (or all a 0).
    log_ratio_of_ones = sum(n * _log_ratio(used.p, used.q) for used, n in reports.items())
    log_ratio_of_zeros = sum(n * _log_ratio(1 - used.q, 1 - used.p) for used, n in reports.items())
    return _compute_loss(params, log_ratio_of_ones, log_ratio_of_zeros)


def epsilon_inf(params: Params) -> float:
    """Return the privacy loss of any number of reports of one value, in nats.

    This is the loss of the permanent response itself, which many reports reveal ([EPK14] Theorem 1
    for g = 1/2).

    Parameters
    ----------
    params : the parameter set of the reports.

    Examples
    --------
    >>> round(epsilon_inf(Params(k=128, h=2, m=8, f=0.5, p=0.5, q=0.75)), 4)
    4.3944
    """
    check_type("params", params, Params, "call Params.profile(name)")
    # Infinitely many reports show the permanent bit with certainty: the ratio of its two states is
    # 0.
    return _compute_loss(params, -math.inf, -math.inf)


def _compute_loss(params: Params, log_ratio_of_ones: float, log_ratio_of_zeros: float) -> float:
    """Return the largest loss between two values from the log-likelihood ratios of one bit.

    Parameters
    ----------
    log_ratio_of_ones : ln P(ones | permanent 0) - ln P(ones | permanent 1), at most 0.
    log_ratio_of_zeros : ln P(zeros | permanent 1) - ln P(zeros | permanent 0), at most 0.
    """
    # For ones the target state is a permanent 1: a true 0 gets into it with f1, and a true 1 out of
    # it with f0. For zeros the roles are exchanged.
    f1, f0 = params.f1, params.f0
    up = _compute_bit_loss(f1, f0, log_ratio_of_ones)
    down = _compute_bit_loss(f0, f1, log_ratio_of_zeros)
    return get_encoding(params).compute_largest_loss(up, down)


def posterior_bound(epsilon: float, prior: float) -> tuple[float, float]:
    """Return the range of an observer's posterior belief after a privacy loss.

    Parameters
    ----------
    epsilon : privacy loss, in nats.
    prior : probability that the observer assigned to a statement about the value, in [0, 1].

    Returns
    -------
    tuple of float
        Smallest and largest posterior probability of the statement.

    Raises
    ------
    ParamsError
        epsilon is negative, or prior is outside [0, 1].

    Examples
    --------
    >>> low, high = posterior_bound(math.log(3), 0.5)
    >>> round(low, 4), round(high, 4)
    (0.25, 0.75)
    """
    check_number("epsilon", epsilon, "[0, infinity]")
    check_number("prior", prior, "[0, 1]")
    # Certainty stays certainty. With an infinite loss the formulas below would be 0/0.
    if prior in (0, 1):
        return prior, prior
    # Bayes' theorem, where the likelihood ratio is between e^-epsilon and e^epsilon.
    doubt, odds = 1 - prior, math.exp(-epsilon)
    return prior * odds / (prior * odds + doubt), prior / (prior + doubt * odds)


def _log_ratio(low: float, high: float) -> float:
    """Return ln(low / high) of two probabilities, low <= high; -infinity for low = 0."""
    # log1p keeps the digits of close probabilities. For distant ones, low - high loses the digits
    # of low.
    if low > high / 2:
        return math.log1p((low - high) / high)
    return math.log(low / high) if low > 0 else -math.inf


def _compute_bit_loss(into: float, out_of: float, log_r: float) -> float:
    """Return the largest log-likelihood ratio of the two true values of one bit, in nats.

    The observation is the strongest evidence for one state of the permanent bit, the target state.

    Parameters
    ----------
    into : probability that the permanent response forces the opposite true bit into the target
        state.
    out_of : probability that it forces an equal true bit out of the target state.
    log_r : log-likelihood of the observation in the other state, less that in the target state.

    Notes
    -----
    With r = exp(log_r), the likelihood ratio is

        (1 - out_of + out_of r) / (into + (1 - into) r)

    The code writes the ratio as 1 + (1 - into - out_of) (1 - r) / (into + (1 - into) r), in which
    nothing cancels for small losses.
    """
    if into == 0:
        # The opposite true bit never reaches the target state. With log_r = -infinity the
        # observation proves the true bit, and the loss is infinite.
        return -log_r + math.log1p(out_of * math.expm1(log_r))
    kept = 1 - into - out_of
    return math.log1p(kept * -math.expm1(log_r) / (into + (1 - into) * math.exp(log_r)))
