"""Predicted power of the test of independence of two fields."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from decodings import FALSE_ALARM
from registries import metric_of
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
    """The predicted standard error is the standard error of equally frequent cells."""
    params = make_params(profile)
    counts = simulate_counts(Population(CATEGORIES, [1] * 6), params, n_reports=1e5, seed=1)
    association = associate(decode(counts))
    planned = predict_association(params, (3, 2), reports=1e5)
    assert association.cells.std_error.mean() == pytest.approx(planned.cell_error, rel=0.01)
    assert planned.cell_share == pytest.approx(1 / 6)


@pytest.mark.parametrize("profile", ["balanced", "once"])
def test_power_is_the_share_of_rejections(profile: str) -> None:
    """Of 100 collections with V at which the power is .8, the test rejects as many."""
    params = make_params(profile)
    planned = predict_association(params, (3, 2), reports=20_000)
    assert planned.cramers_v is not None
    assert planned.compute_power(planned.cramers_v) == pytest.approx(0.8)
    # With equal margins, V^2 is the sum of squared relative differences divided by the 6 cells.
    difference = np.array([1, -1, -1, 1, 0, 0]) * planned.cramers_v * math.sqrt(6 / 4)
    population = Population(CATEGORIES, (1 + difference) / 6)
    rejected = sum(
        associate(
            decode(simulate_counts(population, params, n_reports=20_000, seed=seed))
        ).independence.p_value
        <= 0.05
        for seed in range(100)
    )
    least = float(stats.binom.ppf(FALSE_ALARM / 2, 100, 0.8))
    most = float(stats.binom.ppf(1 - FALSE_ALARM / 2, 100, 0.8))
    assert least <= rejected <= most


def test_power_of_no_association_is_the_level() -> None:
    """Without an association the test rejects at its level; power grows with V up to 1."""
    planned = predict_association(make_params("balanced"), (3, 2), reports=1e4, level=0.01)
    powers = [planned.compute_power(v) for v in (0.0, 0.02, 0.1, 1.0)]
    assert powers[0] == 0.01
    assert powers == sorted(powers)
    assert powers[-1] == 1.0
    assert planned.find_strength(0.005) == 0.0


def test_few_reports_detect_no_association() -> None:
    """If even V = 1 is not detected with the power, there is no smallest strength."""
    planned = predict_association(make_params("strict"), (3, 2), reports=20)
    assert planned.cramers_v is None


def test_summed_fields_and_unlisted_values_cost_power() -> None:
    """A third field of 4 values multiplies the variance; unlisted values make cells smaller."""
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
    """Each number has its range."""
    values: dict[str, Any] = {"n_values": (3, 2), "reports": 1e4} | arguments
    n_values = values.pop("n_values")
    with pytest.raises(ParamsError, match=sentence):
        predict_association(make_params("balanced"), n_values, **values)


def test_encoding_without_fields_is_refused() -> None:
    """Only encodings of tuples have an association."""
    params = Params.profile("balanced", encoding="boolean")
    with pytest.raises(ParamsError, match="encoding must have fields, got boolean"):
        predict_association(params, (2, 2), reports=1e4)


def test_lists_of_an_entry_are_counted() -> None:
    """Closed lists and lists in the registry have sizes; files and plain metrics have none."""
    strings = Params.profile("balanced", field_names=("a", "b"))
    assert count_listed_values(metric_of(make_params("balanced"))) == (3, 2)
    table = {"a": ("x", "y", "z"), "b": ("1", "2", "3", "4")}
    assert count_listed_values(metric_of(strings, candidates=table)) == (3, 4)
    named = {"a": "sites.txt", "b": ("1", "2")}
    assert count_listed_values(metric_of(strings, candidates=named)) == ()
    assert count_listed_values(metric_of(Params.profile("balanced"))) == ()
