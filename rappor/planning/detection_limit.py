"""Detection limits from randomization noise alone, in closed form; collisions are left out."""

from __future__ import annotations

import math

from rappor.base.ranges import check_number, read_count
from rappor.protocol.params import Params


def rare_variance(params: Params) -> float:
    """Return the variance of a rare string's count, divided by the number of reports.

    p*(1-p*) / (h (q*-p*)^2); its root times that of N is in [EPK14] Tables 1 and 2.
    """
    gap = params.q_star - params.p_star
    return params.p_star * (1 - params.p_star) / (params.h * gap**2)


def standard_error(params: Params, n_reports: int, *, reports_per_device: float = 1.0) -> float:
    """Return the standard error of a rare string's count, in reports.

    sqrt(p*(1-p*) N / h) / (q* - p*), the noise of the coins alone ([EPK14] Tables 1 and 2).
    Where each device sends R reports, its permanent response comes again with each of them, which
    adds (R - 1) (p* - p) (q - p*) to p*(1-p*). Strings that collide add to it; a larger m k makes
    collisions rarer.

    Raises ParamsError if n_reports is not a positive whole number, or reports_per_device is less
    than 1.
    """
    check_number("reports_per_device", reports_per_device, "[1, infinity)")
    again = (params.p_star - params.p) * (params.q - params.p_star)
    again /= params.h * (params.q_star - params.p_star) ** 2
    variance = rare_variance(params) + (reports_per_device - 1) * again
    return math.sqrt(variance * read_count("n_reports", n_reports))


def detection_limit(
    params: Params,
    n_reports: int,
    *,
    n_candidates: int = 1,
    level: float = 0.05,
    power: float = 0.8,
    reports_per_device: float = 1.0,
) -> float:
    """Return the smallest share of devices that is detected with probability `power`.

    Bonferroni's correction at `level` over the candidates, one-sided. `n_reports` are those of
    n_reports / reports_per_device devices.
    """
    # The standard library's normal quantiles: this must not need scipy.
    from statistics import NormalDist  # noqa: PLC0415  # 10 ms that only this needs

    n_candidates = read_count("n_candidates", n_candidates)
    check_number("level", level, "(0, 1)")
    check_number("power", power, "(0, 1)")
    normal = NormalDist()
    reach = normal.inv_cdf(1 - level / n_candidates) + normal.inv_cdf(power)
    error = standard_error(params, n_reports, reports_per_device=reports_per_device)
    return reach * error / n_reports
