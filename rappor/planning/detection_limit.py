"""Detection limits from the noise of coins, in closed form; collisions are neglected."""

from __future__ import annotations

import math

from rappor.base.ranges import check_number, read_count
from rappor.protocol.params import Params


def compute_rare_variance(params: Params) -> float:
    """Return the variance of a rare string's count, divided by the number of reports.

    The variance is p*(1-p*) / (h (q*-p*)^2). Its root times sqrt(N) is in [EPK14] Tables 1 and 2.
    """
    gap = params.q_star - params.p_star
    return params.p_star * (1 - params.p_star) / (params.h * gap**2)


def compute_standard_error(
    params: Params, n_reports: int, *, reports_per_device: float = 1.0
) -> float:
    """Return the standard error of a rare string's count, in reports.

    The error is sqrt(p*(1-p*) N / h) / (q* - p*), from coins alone ([EPK14] Tables 1 and 2). If
    each device sends R reports, all of them have the same permanent response, which adds (R - 1)
    (p* - p) (q - p*) to p*(1-p*). Collisions would add to the error. Collisions become rarer as m k
    grows.

    Parameters
    ----------
    n_reports : number of reports.
    reports_per_device : R.

    Raises
    ------
    ParamsError
        n_reports is not a positive integer, or reports_per_device is less than 1.
    """
    check_number("reports_per_device", reports_per_device, "[1, infinity)")
    repeated_variance = (params.p_star - params.p) * (params.q - params.p_star)
    repeated_variance /= params.h * (params.q_star - params.p_star) ** 2
    variance = compute_rare_variance(params) + (reports_per_device - 1) * repeated_variance
    return math.sqrt(variance * read_count("n_reports", n_reports))


def compute_detection_limit(
    params: Params,
    n_reports: int,
    *,
    n_candidates: int = 1,
    level: float = 0.05,
    power: float = 0.8,
    reports_per_device: float = 1.0,
) -> float:
    """Return the smallest share of devices that is detected with probability `power`.

    The test is one-sided, with Bonferroni's correction over the candidates.

    Parameters
    ----------
    n_reports : number of reports, from n_reports / reports_per_device devices.
    n_candidates : number of tests.
    level : error rate over all tests.
    power : probability of detection.

    Raises
    ------
    ParamsError
        A number is outside its range.
    """
    # The standard library's normal quantiles, because scipy is an optional dependency here.
    from statistics import NormalDist  # noqa: PLC0415  # 10 ms that only this needs

    n_candidates = read_count("n_candidates", n_candidates)
    check_number("level", level, "(0, 1)")
    check_number("power", power, "(0, 1)")
    normal = NormalDist()
    z_sum = normal.inv_cdf(1 - level / n_candidates) + normal.inv_cdf(power)
    error = compute_standard_error(params, n_reports, reports_per_device=reports_per_device)
    return z_sum * error / n_reports
