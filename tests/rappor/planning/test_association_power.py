"""Predicted power of the test of independence of two fields.

The strength of an association is Cramer's V, from 0 (independent fields) to 1. The power is the
probability that the test detects an association of this strength. The tuples of the tests have 3 x
2 values, six cells of a table.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from decodings import FALSE_ALARM
from registries import build_metric
from scipy import stats

from rappor import Params, ParamsError, Population, associate, decode, simulate_counts
from rappor.planning import predict_association
from rappor.planning.association_power import count_listed_values
from rappor.protocol.tuples import combine_categories

LISTS = {"editor": ["vim", "code", "nano"], "system": ["linux", "mac"]}
CATEGORIES = combine_categories(LISTS)


def make_params(profile: str, **more: Any) -> Params:
    """Return parameters of a one-hot tuple of 3 x 2 values."""
    values = {"encoding": "onehot", "categories": CATEGORIES, "field_names": tuple(LISTS)}
    return Params.profile(profile, **values | more)


@pytest.mark.parametrize("profile", ["balanced", "once"])
def test_error_of_a_cell_is_that_of_the_decode(profile: str) -> None:
    """The predicted standard error of a cell is the one that the decoder reports.

    The prediction assumes equally frequent values, so all six cells of the population have the
    share 1/6.
    """
    params = make_params(profile)
    counts = simulate_counts(Population(CATEGORIES, [1] * 6), params, n_reports=1e5, seed=1)
    association = associate(decode(counts))
    planned = predict_association(params, (3, 2), reports=1e5)
    assert association.cells.std_error.mean() == pytest.approx(planned.cell_error, rel=0.01)
    assert planned.cell_share == pytest.approx(1 / 6)


@pytest.mark.slow
@pytest.mark.parametrize("n_runs", [50, pytest.param(100, marks=pytest.mark.acceptance)])
@pytest.mark.parametrize("profile", ["balanced", "once"])
def test_power_is_the_share_of_rejections(profile: str, n_runs: int) -> None:
    """The test rejects independence in as many simulated collections as the power predicts.

    The collections come from an association of the strength V that is detected with probability .8
    by the prediction. The number of rejections is binomial. FALSE_ALARM is the probability that a
    correct prediction fails the test. 50 collections find a power of .3 with probability .9, and
    100 collections a power of .45. Only 100 collections find a power above .8.
    """
    params = make_params(profile)
    planned = predict_association(params, (3, 2), reports=20_000)
    assert planned.cramers_v is not None
    assert planned.compute_power(planned.cramers_v) == pytest.approx(0.8)
    # A cell has the share (1 + difference) / 6. With equal margins, the definition of Cramer's V
    # gives: V^2 = (sum of the squares of the six differences) / 6, as min(3, 2) - 1 = 1. Four
    # differences of V sqrt(6 / 4) have this sum. Their signs keep the sums of rows and columns.
    difference = np.array([1, -1, -1, 1, 0, 0]) * planned.cramers_v * math.sqrt(6 / 4)
    population = Population(CATEGORIES, (1 + difference) / 6)
    rejected = sum(
        associate(
            decode(simulate_counts(population, params, n_reports=20_000, seed=seed))
        ).independence.p_value
        <= 0.05
        for seed in range(n_runs)
    )
    least = float(stats.binom.ppf(FALSE_ALARM / 2, n_runs, 0.8))
    most = float(stats.binom.ppf(1 - FALSE_ALARM / 2, n_runs, 0.8))
    assert least <= rejected <= most


def test_power_of_no_association_is_the_level() -> None:
    """The power at V = 0 is the level of the test, and grows with V up to 1.

    Without an association, every rejection is a false alarm, whose probability is the level.
    """
    planned = predict_association(make_params("balanced"), (3, 2), reports=1e4, level=0.01)
    powers = [planned.compute_power(v) for v in (0.0, 0.02, 0.1, 1.0)]
    assert powers[0] == 0.01
    assert powers == sorted(powers)
    assert powers[-1] == 1.0
    # The power .005 is less than the level .01, so no strength at all is needed.
    assert planned.find_strength(0.005) == 0.0


def test_few_reports_detect_no_association() -> None:
    """If even V = 1 is detected too seldom, the smallest detectable strength is None."""
    planned = predict_association(make_params("strict"), (3, 2), reports=20)
    assert planned.cramers_v is None


def test_summed_fields_and_unlisted_values_cost_power() -> None:
    """A third field multiplies the variance, and unlisted values make the cells smaller.

    The third field has 4 values. A sum over them has 4 times the variance and twice the error. With
    half of the reports in the cells, each cell has half the share and the same error. A dependence
    must then be twice as strong to be detected.
    """
    params = Params.profile("balanced", field_names=("a", "b"))
    plain = predict_association(params, (5, 4), reports=1e5)
    summed = predict_association(params, (5, 4), reports=1e5, n_summed=4)
    unlisted = predict_association(params, (5, 4), reports=1e5, listed=0.5)
    assert summed.cell_error == pytest.approx(2 * plain.cell_error, rel=0.05)
    assert plain.cramers_v is not None
    assert summed.cramers_v == pytest.approx(2 * plain.cramers_v, rel=0.05)
    assert unlisted.cramers_v == pytest.approx(2 * plain.cramers_v, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"n_values": (1, 5)}, "n_values must be"),
        ({"reports": 0}, "reports must be"),
        ({"listed": 0.0}, r"listed must be a number in \(0, 1\]"),
        ({"level": 1.0}, "level must be"),
        ({"power": 0.0}, "power must be"),
    ],
)
def test_numbers_outside_their_ranges_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    """A number outside its range is refused with the name of the argument and the range."""
    values: dict[str, Any] = {"n_values": (3, 2), "reports": 1e4} | arguments
    n_values = values.pop("n_values")
    with pytest.raises(ParamsError, match=sentence):
        predict_association(make_params("balanced"), n_values, **values)


def test_encoding_without_fields_is_refused() -> None:
    """A metric without fields has no association, so its encoding is refused."""
    params = Params.profile("balanced", encoding="boolean")
    with pytest.raises(ParamsError, match="encoding must have fields, got boolean"):
        predict_association(params, (2, 2), reports=1e4)


def test_lists_of_an_entry_are_counted() -> None:
    """The numbers of listed values come from the categories or the lists of candidates of an entry.

    A list in a file is not read here, and a metric without fields has no lists: the result is
    empty.
    """
    strings = Params.profile("balanced", field_names=("a", "b"))
    assert count_listed_values(build_metric(make_params("balanced"))) == (3, 2)
    table = {"a": ("x", "y", "z"), "b": ("1", "2", "3", "4")}
    assert count_listed_values(build_metric(strings, candidates=table)) == (3, 4)
    with_file = {"a": "sites.txt", "b": ("1", "2")}
    assert count_listed_values(build_metric(strings, candidates=with_file)) == ()
    assert count_listed_values(build_metric(Params.profile("balanced"))) == ()
