"""What a parameter set can find at best: closed forms in which nothing but the coins counts."""

from __future__ import annotations

import math

from rappor.errors import ParamsError
from rappor.protocol.params import Params


def rare_variance(params: Params) -> float:
    """Return the coins' variance of a rare string's count for each report.

    p*(1-p*) / (h (q*-p*)^2), whose root times that of N is in [EPK14] Tables 1 and 2.
    """
    gap = params.q_star - params.p_star
    return params.p_star * (1 - params.p_star) / (params.h * gap**2)


def standard_error(params: Params, n_reports: int) -> float:
    """Return the standard error of a rare string's count, in reports.

    sqrt(p*(1-p*) N / h) / (q* - p*), the coins' part alone ([EPK14] Tables 1 and 2);
    strings that collide add to it, the less the larger m k is.

    Raises
    ------
    ParamsError: n_reports is not a positive integer.
    """
    if not isinstance(n_reports, int) or isinstance(n_reports, bool) or n_reports < 1:
        raise ParamsError(f"n_reports must be an integer of at least 1, got {n_reports!r}")
    return math.sqrt(rare_variance(params) * n_reports)


def detection_limit(
    params: Params,
    n_reports: int,
    *,
    n_candidates: int = 1,
    level: float = 0.05,
    power: float = 0.8,
) -> float:
    """Return the smallest share of devices that is detected with a chance of `power`.

    Bonferroni at `level` over the candidates, one-sided.
    """
    # The standard library's normal quantiles: this must not need scipy.
    from statistics import NormalDist  # noqa: PLC0415  # 10 ms that only this needs

    if n_candidates < 1:
        raise ParamsError(f"n_candidates must be at least 1, got {n_candidates!r}")
    for name, value in (("level", level), ("power", power)):
        if not 0 < value < 1:
            raise ParamsError(f"{name} must be a number in (0, 1), got {value!r}")
    normal = NormalDist()
    reach = normal.inv_cdf(1 - level / n_candidates) + normal.inv_cdf(power)
    return reach * standard_error(params, n_reports) / n_reports
