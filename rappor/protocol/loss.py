"""Privacy loss: epsilon_1 of one report, epsilon_n of n reports, epsilon_inf of any number.

How to think about it
---------------------
The privacy loss is the largest log-likelihood ratio, in nats, between two values of a device, over
everything that an observer can receive:

    epsilon = max over values v, w and observations o of ln P(o | v) - ln P(o | w)

All reports of one value repeat one permanent response, so the loss of n reports grows from
epsilon_1 to the limit epsilon_inf. Each response has its own formula (`rappor.protocol.responses`).

Example: RAPPOR's responses with f = 0.5, g = 0.5, p = 0.5, q = 0.75 and h = 2 lose epsilon_1 = 1.07
nats in one report and epsilon_inf = 4.39 nats in any number of reports ([EPK14] section 5.2).

[EPK14] Erlingsson, Pihur, Korolova. RAPPOR. CCS 2014, arXiv 1407.6981.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from rappor.base.argument_checks import check_type
from rappor.base.errors import ParamsError
from rappor.base.ranges import check_integer, check_number
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

    A change of p and q during the life of a metric keeps the permanent responses.

    Parameters
    ----------
    reports : number of reports of one value in one epoch, by parameter set. The parameter sets must
        have the same permanent fingerprint. The losses of several epochs add up.

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
    return next(iter(reports)).response.compute_loss(reports)


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
    return params.response.compute_loss(None)


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
