"""Plan a collection: parameters for a privacy budget, and what they will find."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from rappor.errors import DecodeError, ParamsError
from rappor.planning.detection_limit import standard_error
from rappor.planning.dimensions import choose_params, least_cohorts
from rappor.planning.frequencies import Crowd
from rappor.planning.noise import check_losses
from rappor.planning.plans import Plan, finish
from rappor.planning.power import Question, predict
from rappor.protocol.encodings import encoding_of
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import Params

MOST_REPORTS: Final = 10**15


_CLOSE: Final = 1.001
"""Ratio of too few and enough reports at which the search ends."""


def plan(
    question: Question | int,
    *,
    epsilon: float,
    lifetime: float,
    reports: int | None = None,
    share: float | None = None,
    max_bytes: int | None = None,
    hashes: int | None = None,
    symmetric: bool = False,
) -> Plan:
    """Choose the best parameters for a privacy budget and predict what they find.

    Parameters
    ----------
    question : who holds what and what will be asked. A number of candidates stands for
        as many strings by Zipf's law, and Benjamini-Hochberg at 5 %.
    epsilon, lifetime : loss of one report, and of all reports of one value, in nats.
    reports : how many will come; or else
    share : the share of devices that shall be detected; the plan then says how many
        reports that takes, to three digits.
    max_bytes : bytes that the bits of one report may take.
    hashes, symmetric : only designs with this h; only designs with q = 1 - p.

    Raises
    ------
    ParamsError
        A number is outside its range, or limits contradict each other.
    DecodeError
        No number of reports up to 1e15 shows the share.

    Examples
    --------
    >>> found = plan(1000, epsilon=2, lifetime=4, reports=1_000_000)
    >>> found.params.h, found.params.k, round(found.params.p_star, 6), round(found.params.q_star, 6)
    (1, 128, 0.119203, 0.5)
    >>> f"{found.share:.2%}"
    '0.31%'
    """
    check_losses(epsilon, lifetime)
    asked = _asked(question)

    def chosen(n_reports: int) -> Params:
        return choose_params(
            epsilon,
            lifetime,
            n_reports=n_reports,
            question=asked,
            max_bytes=max_bytes,
            hashes=hashes,
            symmetric=symmetric,
        )

    n_reports = _n_reports(chosen, asked, reports, share)
    return finish(chosen(n_reports), n_reports, asked, epsilon=epsilon, lifetime=lifetime)


def assess(
    params: Params,
    question: Question | int,
    *,
    reports: int | None = None,
    share: float | None = None,
) -> Plan:
    """Predict what given Bloom parameters find, beside the best of the same privacy; see `plan`.

    Raises
    ------
    ParamsError
        A number is outside its range, the parameters promise nothing, their encoding is
        another one, or so few cohorts cannot tell the candidates apart.
    DecodeError
        No number of reports up to 1e15 shows the share.
    """
    if not encoding_of(params).hashed:
        raise ParamsError(f"encoding must be bloom to be planned, got {params.encoding}")
    epsilon, lifetime = epsilon_1(params), epsilon_inf(params)
    check_losses(epsilon, lifetime)
    asked = _asked(question)
    least = math.ceil(least_cohorts(params.k, asked.crowd.n_candidates))
    if params.m < least:
        raise ParamsError(
            f"m must be at least {least} to tell {asked.crowd.n_candidates:,} candidates apart "
            f"at k = {params.k}, got {params.m}"
        )
    n_reports = _n_reports(lambda _: params, asked, reports, share)
    return finish(params, n_reports, asked, epsilon=epsilon, lifetime=lifetime)


def _asked(question: Question | int) -> Question:
    if isinstance(question, Question):
        return question
    return Question(crowd=Crowd.zipf(question))


def _n_reports(
    chosen: Callable[[int], Params], question: Question, reports: int | None, share: float | None
) -> int:
    """Return the reports given, or those that the share takes."""
    if (reports is None) == (share is None):
        raise ParamsError("either reports or share must be given, not both")
    if share is not None:
        return _reports_for(share, chosen, question)
    if (
        not isinstance(reports, int)
        or isinstance(reports, bool)
        or not 1 <= reports <= MOST_REPORTS
    ):
        raise ParamsError(f"reports must be an integer in [1, 1e15], got {reports!r}")
    return reports


def _reports_for(share: float, chosen: Callable[[int], Params], question: Question) -> int:
    """Return the least reports that show the share, rounded up to three digits.

    The smallest share shown falls as reports grow, also where m steps up with them.
    """
    if not isinstance(share, int | float) or not 0 < share <= 1:  # a NaN is not
        raise ParamsError(f"share must be a number in (0, 1], got {share!r}")

    def enough(n_reports: int) -> bool:
        shown = predict(chosen(n_reports), n_reports, question).share
        return shown is not None and shown <= share

    # From one standard error on, which is rarely enough.
    errors = standard_error(chosen(1), 1) / share
    low, high = 0, max(1, int(min(errors * errors, MOST_REPORTS)))
    while not enough(high):
        low, high = high, 4 * high
        if high > MOST_REPORTS:
            raise DecodeError(
                f"share must be larger to be detected in {MOST_REPORTS:.0e} reports, got {share:g}"
            )
    while high - low > 1 and high > _CLOSE * low:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    unit: int = 10 ** max(len(str(high)) - 3, 0)
    return -(-high // unit) * unit
