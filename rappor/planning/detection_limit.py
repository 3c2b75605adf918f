"""Detection limits of rare strings from the noise of coins, in closed form.

Coins are the random numbers of a device's two responses. The permanent response is drawn once and
repeated in all reports, and the instantaneous response is drawn for each report. The formulas
neglect collisions of strings, which `rappor.planning.power` includes.

| symbol | meaning |
|---|---|
| p*, q* | probability that a true 0, and a true 1, is sent as 1 |
| p, q | probability that a permanent 0, and a permanent 1, is sent as 1 |
| h, k, m | number of hash functions, bits and cohorts |
| N, R | number of reports, number of reports of each device |

*Example.* With p* = .25, q* = .75 and h = 1, a rare string in N = 1,000,000 reports has the
standard error sqrt(.25 (.75) 1,000,000) / .5 = 866 reports, which is a share of .00087. For one
candidate at level 5 % and power 80 %, the smallest detected share is (1.64 + .84) .00087 = .0022.
"""

from __future__ import annotations

import math

from rappor.base.ranges import check_number, read_count
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params


def compute_rare_variance(params: Params) -> float:
    """Compute the variance of a rare string's estimated count, divided by the number of reports.

    The count is the estimated share times N. The result is p*(1-p*) / (h (q*-p*)^2). [EPK14] Tables
    1 and 2 contain its root times sqrt(N).

    For an item of sets it is 1 / ((k - 1) (q' - p')^2), with p' and q' of
    `Response.regression_probabilities`. A report of a set names one of k buckets.
    Averaged over the hash functions, each bucket is named with probability 1/k. This probability
    does not depend on the items of the devices. So the variance of a report at a bucket is
    (1/k) (1 - 1/k). If the share pi of the
    devices has the item, the probability of its bucket is larger by pi (q' - p') (k - 1) / k. The
    result is the variance divided by the square of (q' - p') (k - 1) / k.
    """
    if get_encoding(params).supports_items:
        low, high = params.response.regression_probabilities
        return 1 / ((params.k - 1) * (high - low) ** 2)
    gap = params.q_star - params.p_star
    return params.p_star * (1 - params.p_star) / (params.h * gap**2)


def compute_standard_error(
    params: Params, n_reports: int, *, reports_per_device: float = 1.0
) -> float:
    """Compute the standard error of a rare string's estimated count, in reports.

    The error is sqrt(p*(1-p*) N / h) / (q* - p*), from coins alone ([EPK14] Tables 1 and 2). If
    each device sends R reports, all R reports have the same permanent response, which adds
    (R - 1) (p* - p) (q - p*) to p*(1-p*). Collisions would add to the error. They become rarer as
    m k grows.

    Parameters
    ----------
    params : the parameters of all reports.
    n_reports : number of reports of all devices, N.
    reports_per_device : number of reports of each device, R.

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
    """Compute the smallest share of devices that is detected with probability `power`.

    The test is one-sided, with Bonferroni's correction over the candidates. With z(x) the normal
    quantile of x, the limit is (z(1 - level / n_candidates) + z(power)) times the standard error.
    It is 0 if even an absent string is detected with probability `power`.

    Parameters
    ----------
    params : the parameters of all reports.
    n_reports : number of reports, from n_reports / reports_per_device devices.
    n_candidates : number of tests, one for each candidate.
    level : probability of one or more false detections over all tests.
    power : probability that a string with the smallest share is detected.
    reports_per_device : number of reports of each device.

    Raises
    ------
    ParamsError
        A number is outside its range.
    """
    # The standard library computes the normal quantiles, because scipy is an optional dependency
    # here. The import takes 10 ms, and only this function needs the module.
    from statistics import NormalDist  # noqa: PLC0415

    n_candidates = read_count("n_candidates", n_candidates)
    check_number("level", level, "(0, 1)")
    check_number("power", power, "(0, 1)")
    normal = NormalDist()
    # z(1 - x) = -z(x). For a small x, a float64 would round 1 - x to 1, which has no quantile.
    z_sum = normal.inv_cdf(power) - normal.inv_cdf(level / n_candidates)
    error = compute_standard_error(params, n_reports, reports_per_device=reports_per_device)
    return max(z_sum, 0.0) * error / n_reports
