"""Power of a test of independence: how strong an association of two fields must be to be detected.

A value of a metric with fields consists of two texts, such as a site and a country. An analyst
calls `predict_association` before a collection. The input is a parameter set, a number of reports,
and the numbers of listed values of the two fields. The output is the probability that
`rappor.associate` rejects independence, by the strength of the association (Cramer's V: 0 for
independent fields, 1 if one field determines the other). No collection is simulated.

Theory of operation
-------------------
A *cell* is a pair of listed values, one of each field.

| symbol | meaning |
|---|---|
| A, B | numbers of listed values of the two fields |
| C | number of combinations of the other fields, over which each cell is summed; 1 without others |
| T | share of the devices whose values are listed in both fields |
| V | Cramer's V |
| sigma^2 | variance of the estimated share of a cell |
| c | covariance of the estimated shares of two cells |
| d | true share of each cell minus its share under independence, A x B |

Assumption: all values of a field are equally frequent. So each cell has about the share T / (A B),
and all cells have nearly the same errors. The covariance matrix of the estimates then has sigma^2
on its diagonal and c elsewhere: it is (sigma^2 - c) I + c 11', with I the identity matrix and 1 the
vector of ones.

The statistic of `rappor.association.independence` is a weighted squared distance of the estimates
from independence. If the fields depend on each other, its mean is larger by d' (covariance)^-1 d:
it has a non-central chi-squared distribution with (A - 1)(B - 1) degrees of freedom, and this
number is its non-centrality lambda. The entries of d add up to 0, so 1'd = 0, and d is an
eigenvector of the covariance matrix with the eigenvalue sigma^2 - c:

    lambda = sum of d^2 / (sigma^2 - c)

Cramer's V is defined by the squared differences from independence, each divided by the share that
independence gives the cell. That share is T / (A B) in every cell, and all shares are relative to
T:

    V^2 = sum of (d / T)^2 / (1 / (A B)) / (min(A, B) - 1) = A B sum of d^2 / (T^2 (min(A, B) - 1))

Solving for the sum of d^2 gives

    lambda = V^2 (min(A, B) - 1) T^2 / (A B (sigma^2 - c))

If an association lies in rare values, the same V has a smaller sum of d^2, and less power.

*Example.* A = 20 sites, B = 5 countries, T = 1, and a cell has the standard error .003, with c near
0. V = .1 gives lambda = .01 (4) / (100 (.000009)) = 44. The test has 76 degrees of freedom, and at
level .05 it rejects independence if the statistic exceeds 97.4. The statistic has the mean 76 + 44
= 120, so the association is detected with a probability of 90 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_number, read_count
from rappor.planning.frequencies import Frequencies
from rappor.planning.power import DetectionTarget, predict
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params
from rappor.registry.metric import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class AssociationPower:
    """Predicted power of the test of independence of two fields.

    Attributes
    ----------
    n_values : A and B, numbers of listed values of the fields.
    listed : T, share of the devices whose values are listed in both fields.
    level : probability that independent fields are rejected.
    power : requested probability of detection.
    cramers_v : smallest Cramer's V that is detected with this probability. None if even V = 1 is
        detected with a smaller probability.
    cell_share : share of each cell, T / (A B).
    cell_error : standard error of the share of a cell, a sum of C combinations.
    noncentrality : non-centrality of the test statistic at V = 1.
    """

    n_values: tuple[int, int]
    listed: float
    level: float
    power: float
    cell_share: float
    cell_error: float
    noncentrality: float

    @property
    def cramers_v(self) -> float | None:
        """Smallest Cramer's V that is detected with the requested probability.

        None if even V = 1 is detected less often.
        """
        return self.find_strength(self.power)

    def compute_power(self, cramers_v: float) -> float:
        """Compute the probability that an association of a strength is detected."""
        return _compute_power(
            cramers_v**2 * self.noncentrality, _count_degrees(self.n_values), self.level
        )

    def find_strength(self, power: float) -> float | None:
        """Find the Cramer's V that is detected with a probability; None if it would be above 1."""

        def excess(cramers_v: float) -> float:
            """Compute the power at a V, minus the requested power. It rises with V."""
            return self.compute_power(cramers_v) - power

        if excess(1.0) < 0:
            return None
        # Case: the requested power is below the level. Even independent fields are rejected as
        # often.
        if excess(0.0) >= 0:
            return 0.0
        return float(optimize.brentq(excess, 0.0, 1.0))


def predict_association(  # noqa: PLR0913 - a design, a size and a goal
    params: Params,
    n_values: tuple[int, int],
    *,
    reports: float,
    n_summed: int = 1,
    listed: float = 1.0,
    reports_per_device: float = 1.0,
    level: float = 0.05,
    power: float = 0.8,
) -> AssociationPower:
    """Predict how strong an association must be, so that a test of independence detects it.

    The prediction assumes that all listed values of a field are equally frequent. An association
    that lies in rare values is detected less often.

    Parameters
    ----------
    params : the parameters of a metric with fields.
    n_values : numbers of listed values of the two fields, each at least 2.
    reports : number of reports of all devices.
    n_summed : C, number of combinations of the values of all other fields of the metric.
    listed : share of the devices whose values are listed in both fields, in (0, 1].
    reports_per_device : mean number of reports of a device.
    level : probability that the test rejects fields that are independent.
    power : probability with which an association must be detected.

    Returns
    -------
    AssociationPower.

    Raises
    ------
    ParamsError
        A number is outside its range, or the encoding has no fields.

    Examples
    --------
    >>> from rappor import Params
    >>> params = Params.profile("balanced", field_names=("site", "country"))
    >>> planned = predict_association(params, (20, 5), reports=1e5)
    >>> round(planned.cramers_v, 2), round(planned.compute_power(0.05), 1)
    (0.08, 0.3)
    """
    n_reports = read_count("reports", reports, 1, 10**15)
    n_rows, n_columns = (read_count("n_values", number, 2, 10**6) for number in n_values)
    check_number("listed", listed, "(0, 1]")
    check_number("level", level, "(0, 1)")
    check_number("power", power, "(0, 1)")
    if not get_encoding(params).supports_fields:
        raise ParamsError(f"encoding must have fields, got {params.encoding}")
    n_summed = read_count("n_summed", n_summed, 1, 10**6)
    n_combinations = n_rows * n_columns * n_summed
    error = _predict_error(params, n_reports, n_combinations, listed, reports_per_device)
    covariance = _predict_covariance(params, n_reports, listed / n_combinations, reports_per_device)
    # `error` and `covariance` describe single combinations of all fields. A cell is the sum of C
    # combinations. The sum has the variance C error^2 + C (C - 1) covariance, and two cells have
    # the covariance c = C^2 covariance. So sigma^2 - c is C (error^2 - covariance).
    own_variance = n_summed * (error**2 - covariance)
    smaller = min(n_rows, n_columns) - 1
    noncentrality = smaller * listed**2 / (n_rows * n_columns * own_variance)
    return AssociationPower(
        n_values=(n_rows, n_columns),
        listed=listed,
        level=level,
        power=power,
        cell_share=listed / (n_rows * n_columns),
        # sigma, the root of (sigma^2 - c) + c.
        cell_error=math.sqrt(max(own_variance + n_summed**2 * covariance, 0.0)),
        noncentrality=noncentrality,
    )


def count_listed_values(metric: Metric) -> tuple[int, ...]:
    """Return the number of listed values of each field of a metric.

    The result is empty if the metric has no fields, or if its entry does not contain the lists.
    """
    params, table = metric.params, metric.candidates
    if params.field_categories:
        return tuple(map(len, params.field_categories))
    lists = [table[field] for field in params.field_names] if isinstance(table, Mapping) else []
    # A text is the name of a file.
    return () if any(isinstance(values, str) for values in lists) else tuple(map(len, lists))


def _predict_error(
    params: Params, n_reports: int, n_combinations: int, listed: float, reports_per_device: float
) -> float:
    """Predict the standard error of a combination. All combinations have equal shares.

    Values outside the lists are assumed to be spread over so many strings that they are part of the
    background of every row.
    """
    frequencies = Frequencies(
        shares=np.array([listed / n_combinations]),
        candidates=np.array([float(n_combinations)]),
        non_candidates=np.zeros(1),
        absent=0,
    )
    target = DetectionTarget(frequencies=frequencies, reports_per_device=reports_per_device)
    return predict(params, n_reports, target).largest_std_error


def _predict_covariance(
    params: Params, n_reports: int, share: float, reports_per_device: float
) -> float:
    """Predict the covariance of two combinations with equal shares.

    Strings have the covariance of a multinomial sample of devices. Categories have the covariance
    of their response, in which a report names one bucket and no other.
    """
    devices = n_reports / reports_per_device
    if get_encoding(params).is_hashed:
        return -(share**2) / devices
    gap = params.q_star - params.p_star
    mean = np.array([params.p_star + gap * share])
    return float(params.response.compute_covariance(mean, mean)[0] / (devices * gap**2))


def _compute_power(noncentrality: float, degrees: int, level: float) -> float:
    """Compute the probability that the test statistic exceeds its quantile under independence."""
    threshold = float(special.chdtri(degrees, level))
    # scipy's non-central distribution is not defined for lambda = 0.
    if noncentrality == 0:
        return level
    # Case: a huge lambda, for which scipy returns NaN. The root of the statistic is near
    # sqrt(lambda), with a standard deviation of 1. If sqrt(lambda) is 40 standard deviations above
    # the root of the threshold, the probability is 1 in a float64.
    if math.sqrt(noncentrality) > math.sqrt(threshold) + 40.0:
        return 1.0
    return 1.0 - float(special.chndtr(threshold, degrees, noncentrality))


def _count_degrees(n_values: tuple[int, int]) -> int:
    """Return the degrees of freedom of the test, (A - 1)(B - 1)."""
    return (n_values[0] - 1) * (n_values[1] - 1)
