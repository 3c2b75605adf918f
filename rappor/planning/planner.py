"""Plan a collection: parameters for a privacy budget, and what they will find."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from rappor.base.errors import DecodeError, ParamsError
from rappor.base.ranges import check_number, read_count
from rappor.planning.answer_noise import choose_answer_noise
from rappor.planning.detection_limit import standard_error
from rappor.planning.dimensions import choose_params, least_cohorts
from rappor.planning.noise import Budget
from rappor.planning.plans import Plan, finish
from rappor.planning.power import DetectionTarget, predict
from rappor.protocol import loss
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params

MOST_REPORTS: Final = 10**15
"""Reports that can be planned for: a hundred thousand from everybody."""

_CLOSE: Final = 1.001
"""Ratio of too few and enough reports at which the search ends: the three digits that are shown."""


def plan(  # noqa: PLR0913 - a budget, a goal and the limits of a design
    question: DetectionTarget | int,
    *,
    epsilon_1: float,
    epsilon_inf: float,
    reports: float | None = None,
    share: float | None = None,
    max_bytes: int | None = None,
    hashes: int | None = None,
    symmetric: bool = False,
) -> Plan:
    """Choose the best parameters of strings for a privacy budget and predict what they find.

    The question says how frequent strings are and how they are tested; a number of candidates
    stands for as many strings by Zipf's law, and Benjamini-Hochberg at 5 %. One report loses
    `epsilon_1`, any number of reports of one value `epsilon_inf`, in nats. Give how many reports
    will come, or else the share of devices to be detected: the plan then says how many reports
    that takes, to three digits. `max_bytes` limits the bits of one report; `hashes` and
    `symmetric` allow only designs with this h, and with q = 1 - p.

    Raises ParamsError if a number is outside its range or limits contradict each other, and
    DecodeError if no number of reports up to 1e15 detects the share.

    Examples
    --------
    >>> found = plan(1000, epsilon_1=2, epsilon_inf=4, reports=1e6)
    >>> found.params.h, found.params.k, round(found.params.p_star, 6), round(found.params.q_star, 6)
    (1, 128, 0.122147, 0.506935)
    >>> f"{found.share:.2%}"
    '0.31%'
    """
    budget = Budget(epsilon_1, epsilon_inf)
    full_question = DetectionTarget.of(question)

    def chosen(n_reports: int) -> Params:
        return choose_params(
            budget,
            n_reports=n_reports,
            question=full_question,
            max_bytes=max_bytes,
            hashes=hashes,
            symmetric=symmetric,
        )

    n_reports = _n_reports(chosen, full_question, reports, share)
    return finish(chosen(n_reports), n_reports, full_question, budget)


def plan_answers(  # noqa: PLR0913 - a budget, a goal and the limits of a design
    encoding: str,
    categories: Sequence[str] = (),
    *,
    epsilon_1: float,
    epsilon_inf: float,
    reports: float | None = None,
    share: float | None = None,
    question: DetectionTarget | None = None,
    symmetric: bool = False,
) -> Plan:
    """Choose the best noise of an encoding that answers for every bit; see `plan`.

    The candidates of the question are all answers; their frequencies follow Zipf's law if it is
    None.

    Raises ParamsError as `plan` or if the encoding hashes its values, and DecodeError if no number
    of reports up to 1e15 detects the share.

    Examples
    --------
    >>> found = plan_answers("boolean", epsilon_1=1, epsilon_inf=2, reports=10_000)
    >>> round(found.params.p_star, 6), f"{found.share:.1%}"
    (0.268941, '2.1%')
    """
    budget = Budget(epsilon_1, epsilon_inf)
    params = choose_answer_noise(budget, encoding, categories, symmetric=symmetric)
    asked = DetectionTarget.of(params.k if question is None else question)
    return _finish_given(params, asked, budget, reports, share)


def predict_power(
    params: Params,
    question: DetectionTarget | int,
    *,
    reports: float | None = None,
    share: float | None = None,
) -> Plan:
    """Predict what given parameters find, beside the best of the same privacy; see `plan`.

    Raises ParamsError if a number is outside its range, the parameters have no finite loss, or they
    have too few cohorts to distinguish the candidates.
    DecodeError
        No number of reports up to 1e15 detects the share.
    """
    budget = Budget(loss.epsilon_1(params), loss.epsilon_inf(params))
    return _finish_given(params, DetectionTarget.of(question), budget, reports, share)


def _finish_given(
    params: Params,
    question: DetectionTarget,
    budget: Budget,
    reports: float | None,
    share: float | None,
) -> Plan:
    """Check that the question can be asked of the parameters, and predict."""
    _check_candidates(params, question.frequencies.n_candidates)
    n_reports = _n_reports(lambda _: params, question, reports, share)
    return finish(params, n_reports, question, budget)


def _check_candidates(params: Params, n_candidates: int) -> None:
    if not encoding_of(params).hashed:
        if n_candidates != params.k:
            raise ParamsError(
                f"candidates must number {params.k}, as the answers of the encoding, "
                f"got {n_candidates:,}"
            )
        return
    least = math.ceil(least_cohorts(params.k, n_candidates))
    if params.m < least:
        raise ParamsError(
            f"m must be at least {least} to distinguish {n_candidates:,} candidates "
            f"at k = {params.k}, got {params.m}"
        )


def _n_reports(
    chosen: Callable[[int], Params],
    question: DetectionTarget,
    reports: float | None,
    share: float | None,
) -> int:
    """Return the reports given, or those that the share takes."""
    if (reports is None) == (share is None):
        raise ParamsError("either reports or share must be given, not both")
    if share is not None:
        return _reports_for(share, chosen, question)
    return read_count("reports", reports, 1, MOST_REPORTS)


def _reports_for(share: float, chosen: Callable[[int], Params], question: DetectionTarget) -> int:
    """Return the least reports that detect the share, rounded up to three digits.

    The smallest share detected falls as reports grow, also where m steps up with them.
    """
    check_number("share", share, "(0, 1]")

    def enough(n_reports: int) -> bool:
        detected = predict(chosen(n_reports), n_reports, question).share
        return detected is not None and detected <= share

    # Begin where the share is one standard error, which is rarely enough.
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
