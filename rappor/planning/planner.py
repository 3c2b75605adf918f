"""Planning of a collection: parameters for a privacy budget, and the shares that they detect.

| function | chooses | for |
|---|---|---|
| `plan` | noise, bits, hashes and cohorts | strings |
| `plan_categorical` | noise | categories, buckets, yes-or-no questions |
| `plan_sets` | noise, buckets and cohorts | sets of items |
| `predict_power` | nothing | parameters that exist |

Each function takes either an expected number of reports and predicts the smallest detected share,
or a share and finds the number of reports that detects the share. The result is a `Plan`, which
`rappor.planning.plans.build_plan` computes from the chosen parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from rappor.base.errors import DecodeError, ParamsError
from rappor.base.ranges import check_number, read_count
from rappor.planning.category_noise import choose_category_noise
from rappor.planning.detection_limit import compute_standard_error
from rappor.planning.dimensions import choose_params, choose_set_params, compute_min_cohorts
from rappor.planning.noise import Budget
from rappor.planning.plans import Plan, build_plan
from rappor.planning.power import DetectionTarget, predict
from rappor.protocol import loss
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params

MAX_REPORTS: Final = 10**15
"""Largest number of reports of a plan: a hundred thousand reports from every person. It refuses
mistyped numbers and ends the search for a share that no number of reports detects."""

_SEARCH_RATIO: Final = 1.001
"""Ratio of the upper to the lower bound at which the search for the number of reports stops. The
result is rounded to three digits, so a smaller ratio changes nothing."""


def plan(  # noqa: PLR0913 - a budget, a goal and the limits of a design
    target: DetectionTarget | int,
    *,
    epsilon_1: float,
    epsilon_inf: float,
    reports: float | None = None,
    share: float | None = None,
    max_bytes: int | None = None,
    hashes: int | None = None,
    symmetric: bool = False,
) -> Plan:
    """Choose the best parameters of strings for a privacy budget, and predict detections.

    Parameters
    ----------
    target : the strings to detect, and how they are tested. A number means as many strings with
        shares by Zipf's law, and Benjamini-Hochberg at 5 %.
    epsilon_1 : limit of the privacy loss of one report, in nats.
    epsilon_inf : limit of the privacy loss of all reports of one value, in nats.
    reports : expected number of reports.
    share : smallest share of the devices to detect, in place of `reports`. The plan then has the
        necessary number of reports, rounded up to three digits.
    max_bytes : largest size of a report's bits, in bytes; None for no limit.
    hashes : number of hash functions; None for the best number.
    symmetric : require q = 1 - p.

    Returns
    -------
    Plan, with the parameters, the predicted detections and some alternative designs.

    Raises
    ------
    ParamsError
        A number is outside its range, or limits contradict each other.
    DecodeError
        No number of reports up to 1e15 detects the share.

    Examples
    --------
    >>> planned = plan(1000, epsilon_1=2, epsilon_inf=4, reports=1e6)
    >>> params = planned.params
    >>> params.h, params.k, round(params.p_star, 6), round(params.q_star, 6)
    (1, 128, 0.122147, 0.506935)
    >>> f"{planned.share:.2%}"
    '0.31%'
    """
    budget = Budget(epsilon_1, epsilon_inf)
    target = DetectionTarget.of(target)

    def choose(n_reports: int) -> Params:
        """Return the best parameters for a number of reports."""
        return choose_params(
            budget,
            n_reports=n_reports,
            target=target,
            max_bytes=max_bytes,
            hashes=hashes,
            symmetric=symmetric,
        )

    n_reports = _resolve_reports(choose, target, reports, share)
    return build_plan(choose(n_reports), n_reports, target, budget)


def plan_categorical(  # noqa: PLR0913 - a budget, a goal and the limits of a design
    encoding: str,
    categories: Sequence[str] = (),
    *,
    epsilon_1: float,
    epsilon_inf: float,
    reports: float | None = None,
    share: float | None = None,
    target: DetectionTarget | None = None,
    symmetric: bool = False,
) -> Plan:
    """Choose the best noise of an encoding with one bit for each category, and predict detections.

    Parameters
    ----------
    encoding : name of an encoding that does not hash values, such as "onehot" or "boolean".
    categories : the categories or bucket edges of the encoding.
    epsilon_1, epsilon_inf, reports, share, symmetric : as for `plan`.
    target : the shares of the categories, and how the categories are tested. By default the shares
        follow Zipf's law.

    Returns
    -------
    Plan.

    Raises
    ------
    ParamsError
        As for `plan`, or the encoding hashes its values.
    DecodeError
        No number of reports up to 1e15 detects the share.

    Examples
    --------
    >>> planned = plan_categorical("boolean", epsilon_1=1, epsilon_inf=2, reports=10_000)
    >>> round(planned.params.p_star, 6), f"{planned.share:.1%}"
    (0.268941, '2.1%')
    """
    budget = Budget(epsilon_1, epsilon_inf)
    params = choose_category_noise(budget, encoding, categories, symmetric=symmetric)
    target = DetectionTarget.of(params.k if target is None else target)
    return _plan_for_params(params, target, budget, reports, share)


def plan_sets(
    target: DetectionTarget | int,
    *,
    items: int,
    epsilon: float,
    reports: float | None = None,
    share: float | None = None,
) -> Plan:
    """Choose the best parameters of sets for a privacy loss, and predict the detected items.

    Every device sends one report in an epoch, of one bucket (generalized randomized response).

    Parameters
    ----------
    target : the items to detect, and how they are tested. The shares of its frequencies are
        shares of devices, so their sum is the mean number of items of a set. A number stands for as
        many candidates with popularity by Zipf's law. Sets then have 3/4 of `items` on average, as
        if all numbers of items from `items` / 2 to `items` were equally frequent. With fewer
        candidates than `items`, sets have 3/4 of the candidates on average.
    items : largest number of items of a set.
    epsilon : limit of the privacy loss of a set, in nats.
    reports, share : as for `plan`. The share is the smallest share of the devices to detect.

    Returns
    -------
    Plan, with designs for half and for twice the number of items as alternatives.

    Raises
    ------
    ParamsError
        A number is outside its range.
    DecodeError
        No number of reports up to 1e15 detects the share.

    Examples
    --------
    >>> planned = plan_sets(1000, items=8, epsilon=4, reports=1e6)
    >>> planned.params.k, f"{planned.share:.2%}"
    (464, '0.20%')
    """
    budget = Budget(epsilon, epsilon)
    target = DetectionTarget.of(target, items=items)

    def choose(n_reports: int) -> Params:
        """Return the best parameters for a number of reports."""
        return choose_set_params(items, epsilon, n_reports=n_reports, target=target)

    n_reports = _resolve_reports(choose, target, reports, share)
    return build_plan(choose(n_reports), n_reports, target, budget)


def predict_power(
    params: Params,
    target: DetectionTarget | int,
    *,
    reports: float | None = None,
    share: float | None = None,
) -> Plan:
    """Predict the detections of existing parameters, and of alternatives with the same losses.

    Parameters
    ----------
    params : the parameters, for example of a live metric.
    target, reports, share : as for `plan`, for parameters of sets as for `plan_sets`.

    Returns
    -------
    Plan.

    Raises
    ------
    ParamsError
        A number is outside its range, the parameters have no finite loss, or they have too few
        cohorts to distinguish the candidates.
    DecodeError
        No number of reports up to 1e15 detects the share.

    Examples
    --------
    >>> from rappor import Params
    >>> f"{predict_power(Params.profile('balanced'), 1000, reports=1e6).share:.2%}"
    '0.31%'
    """
    budget = Budget(loss.epsilon_1(params), loss.epsilon_inf(params))
    items = params.items if get_encoding(params).supports_items else None
    return _plan_for_params(params, DetectionTarget.of(target, items=items), budget, reports, share)


def _plan_for_params(
    params: Params,
    target: DetectionTarget,
    budget: Budget,
    reports: float | None,
    share: float | None,
) -> Plan:
    """Check that the parameters can distinguish the candidates, and predict."""
    _check_candidates(params, target.frequencies.n_candidates)
    n_reports = _resolve_reports(lambda _: params, target, reports, share)
    return build_plan(params, n_reports, target, budget)


def _check_candidates(params: Params, n_candidates: int) -> None:
    """Raise ParamsError if the parameters cannot distinguish this number of candidates."""
    if not get_encoding(params).is_hashed:
        n_categories = get_encoding(params).n_categories
        if n_candidates != n_categories:
            raise ParamsError(
                f"candidates must number {n_categories}, as the categories of the encoding, "
                f"got {n_candidates:,}"
            )
        return
    min_m = math.ceil(compute_min_cohorts(params.k, n_candidates))
    if params.m < min_m:
        raise ParamsError(
            f"m must be at least {min_m} to distinguish {n_candidates:,} candidates "
            f"at k = {params.k}, got {params.m}"
        )


def _resolve_reports(
    choose: Callable[[int], Params],
    target: DetectionTarget,
    reports: float | None,
    share: float | None,
) -> int:
    """Return the passed number of reports, or the number that detects the share.

    Parameters
    ----------
    choose : function from a number of reports to the parameters.
    target : the strings to detect, and how they are tested.
    reports, share : exactly one of them is not None.
    """
    if (reports is None) == (share is None):
        raise ParamsError("exactly one of reports and share must be given")
    if share is not None:
        return _find_reports(share, choose, target)
    return read_count("reports", reports, 1, MAX_REPORTS)


def _find_reports(share: float, choose: Callable[[int], Params], target: DetectionTarget) -> int:
    """Return the smallest number of reports that detects the share, rounded up to three digits.

    The search is a bisection. It needs a monotone function: the smallest detected share decreases
    as reports grow, even if the number of cohorts grows with the reports.
    """
    check_number("share", share, "(0, 1]")

    def is_enough(n_reports: int) -> bool:
        detected = predict(choose(n_reports), n_reports, target).detectable_share
        return detected is not None and detected <= share

    # The search begins at a number of reports that is almost surely too small: the share equals one
    # standard error there. With N reports the standard error of a share is the standard error with
    # one report, divided by sqrt(N). So sqrt(N) is the standard error with one report, divided by
    # the share.
    root_of_reports = compute_standard_error(choose(1), 1) / share
    low, high = 0, max(1, int(min(root_of_reports * root_of_reports, MAX_REPORTS)))
    while not is_enough(high):
        if high == MAX_REPORTS:
            # Case: a share below the error of collisions, which more reports do not lower.
            raise DecodeError(
                f"share must be larger to be detected in {MAX_REPORTS:.0e} reports, got {share:g}"
            )
        low, high = high, min(4 * high, MAX_REPORTS)
    while high - low > 1 and high > _SEARCH_RATIO * low:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    # Round up to three digits.
    unit: int = 10 ** max(len(str(high)) - 3, 0)
    return -(-high // unit) * unit
