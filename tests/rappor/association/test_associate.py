"""`associate`: cells, margins and conditional shares of the fields of a tuple."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from decodings import FALSE_ALARM
from scipy import stats

from rappor import Candidates, DecodeError, Params, ParamsError, Population, associate, decode
from rappor.association import field_cells
from rappor.counts.counts import Counts
from rappor.decoding.estimates import Estimates
from rappor.protocol.tuples import combine_categories
from rappor.simulation.collection import simulate, simulate_counts

LISTS = {"editor": ("vim", "code", "nano"), "system": ("linux", "mac"), "theme": ("light", "dark")}
TABLE = np.array([[[8, 6], [2, 4]], [[10, 10], [20, 10]], [[5, 5], [15, 5]]]) / 100
"""Shares of the combinations of values of `LISTS`, (3, 2, 2). The axes are editor, system and
theme, and the sum is 1."""


def make_params(
    *fields: str, profile: str | None = "once", lists: dict[str, tuple[str, ...]] = LISTS
) -> Params:
    """Return parameters of a one-hot tuple of these fields. A profile of None has no noise."""
    values: dict[str, Any] = {
        "encoding": "onehot",
        "categories": combine_categories({name: lists[name] for name in fields}),
        "field_names": fields,
    }
    if profile is not None:
        return Params.profile(profile, **values)
    k = len(values["categories"])
    return Params(k=k, m=1, h=1, f=0.0, p=0.0, q=1.0, insecure=True, **values)


def simulate_tuples(params: Params, shares: Any, *, n: float = 1e5, seed: int = 1) -> Counts:
    """Simulate n devices whose tuples have these shares.

    If the shares sum to less than 1, the values of the remaining devices are in no list.
    """
    flat = np.ravel(shares)
    values, weights = list(params.categories), list(flat)
    if flat.sum() < 1 - 1e-9:
        values.append("elsewhere\x1f" * (len(params.field_names) - 1) + "elsewhere")
        weights.append(1 - flat.sum())
    return simulate_counts(Population(values, weights), params, n_reports=n, seed=seed)


@pytest.fixture(scope="module")
def three_fields() -> Estimates:
    """Return the estimates of 1e5 devices with three fields."""
    return decode(simulate_tuples(make_params("editor", "system", "theme"), TABLE))


def test_shares_without_noise_are_those_of_the_devices() -> None:
    """Without noise, cells, margins and conditional shares are those of the simulated devices.

    Cramer's V is then the value that scipy computes from the numbers of devices.
    """
    params = make_params("editor", "system", profile=None)
    population = Population(list(params.categories), TABLE.sum(axis=2).ravel())
    simulation = simulate(population, params, n_reports=1e5, seed=1)
    association = associate(decode(simulation.counts))
    cells = simulation.devices.reshape(3, 2) / 1e5
    margins = cells.sum(axis=1, keepdims=True), cells.sum(axis=0, keepdims=True)
    np.testing.assert_allclose(association.cells.share, cells)
    np.testing.assert_allclose(association.row_margins.share, margins[0].ravel())
    np.testing.assert_allclose(association.column_margins.share, margins[1].ravel())
    np.testing.assert_allclose(association.within_rows.share, cells / margins[0])
    np.testing.assert_allclose(association.within_columns.share, cells / margins[1])
    assert association.listed.estimate == pytest.approx(1.0)
    counts = simulation.devices.reshape(3, 2)
    expected = stats.contingency.association(counts, method="cramer")
    assert association.cramers_v.estimate == pytest.approx(expected, abs=0.001)
    # The standard error of a conditional share s of n devices in a row is sqrt(s (1 - s) / n).
    np.testing.assert_allclose(
        association.within_rows.std_error,
        np.sqrt(cells / margins[0] * (1 - cells / margins[0]) / (1e5 * margins[0])),
        rtol=1e-6,
    )


def test_margins_are_the_totals_of_the_estimates(three_fields: Estimates) -> None:
    """Each margin equals `Estimates.total` of the candidates with its value."""
    association = associate(three_fields, fields=("system", "editor"))
    for margins, values in (
        (association.row_margins, association.row_values),
        (association.column_margins, association.column_values),
    ):
        for number, value in enumerate(values):
            total = three_fields.total([c for c in three_fields.candidates if value in c])
            row = margins.row(number)
            assert row["share"] == pytest.approx(total.estimate)
            assert row["std_error"] == pytest.approx(total.std_error)
            assert row["ci_low"] == pytest.approx(total.ci_low)


def test_fields_that_are_not_requested_are_summed(three_fields: Estimates) -> None:
    """The cells of two of three fields are sums over the third. Rows are the first requested field.

    The largest of 6 errors is below the two-sided bound of a normal distribution at FALSE_ALARM.
    """
    association = associate(three_fields, fields=("theme", "editor"))
    assert association.summed_fields == ("system",)
    assert association.row_values == LISTS["theme"]
    assert association.column_values == LISTS["editor"]
    errors = (association.cells.share - TABLE.sum(axis=1).T) / association.cells.std_error
    assert np.abs(errors).max() < stats.norm.isf(FALSE_ALARM / 12)


def test_cells_of_two_fields_have_the_intervals_of_the_decode() -> None:
    """A cell of a single candidate has the exact interval that the decode gives the candidate.

    If the two fields are exchanged, all tables are transposed.
    """
    estimates = decode(simulate_tuples(make_params("editor", "system"), TABLE.sum(axis=2), n=200))
    association = associate(estimates)
    np.testing.assert_array_equal(association.cells.ci_low.ravel(), estimates.ci_low)
    turned = associate(estimates, fields=("system", "editor"))
    np.testing.assert_array_equal(turned.cells.ci_high, association.cells.ci_high.T)
    np.testing.assert_allclose(turned.within_columns.ci_low, association.within_rows.ci_low.T)


@pytest.mark.slow
def test_independence_is_not_rejected_if_some_values_are_not_listed() -> None:
    """With 30 % of the devices outside the lists, p-values of independent fields are uniform.

    The smallest of 40 uniform p-values is below 1e-9 / 40 with a probability of at most 1e-9.
    """
    params = make_params("editor", "system", profile="balanced")
    product = 0.7 * np.outer([0.5, 0.3, 0.2], [0.6, 0.4])
    p_values = [
        associate(decode(simulate_tuples(params, product, seed=seed))).independence.p_value
        for seed in range(40)
    ]
    assert min(p_values) > FALSE_ALARM / 40
    assert stats.kstest(p_values, "uniform").pvalue > FALSE_ALARM
    # Power: the same test rejects dependent fields in each of five collections.
    dependent = 0.7 * np.array([[0.4, 0.1], [0.1, 0.2], [0.1, 0.1]])
    for seed in range(5):
        estimates = decode(simulate_tuples(params, dependent, seed=seed))
        assert associate(estimates).independence.p_value < FALSE_ALARM


@pytest.mark.parametrize("profile", ["once", "balanced", None])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    "shares", [np.full(6, 1 / 6), [0.5, 0, 0, 0, 0, 0.5], [0.3, 0.2, 0.2, 0.3, 0, 0]]
)
def test_few_devices_have_an_association(profile: str | None, n: int, shares: Any) -> None:
    """A few devices, also without noise, have a table without a warning of the arithmetic.

    A value that nobody reported has a variance of 0, or below 0 by rounding, and two cells with all
    devices have the correlation -1.
    """
    params = make_params("editor", "system", profile=profile)
    counts = simulate_tuples(params, shares, n=n, seed=n)
    for complete in (False, True):
        association = associate(decode(counts, complete=complete))
        assert 0 <= association.independence.p_value <= 1
        strength = association.cramers_v
        assert 0 <= strength.ci_low <= strength.ci_high <= 1
        if not np.isnan(strength.estimate):
            assert strength.ci_low <= strength.estimate <= strength.ci_high


def test_shares_of_complete_fields_sum_to_one() -> None:
    """With complete=True, the listed share is 1 with the standard error 0.

    The page then omits the sentence about the listed share.
    """
    params = make_params("editor", "system", profile="balanced")
    product = np.outer([0.5, 0.3, 0.2], [0.6, 0.4])
    estimates = decode(simulate_tuples(params, product), complete=True)
    association = associate(estimates)
    assert association.listed.estimate == pytest.approx(1.0)
    assert association.listed.std_error == 0.0
    assert "100.000 % ± 0.000" in str(association)
    assert "have a listed editor" not in str(association)
    assert association.independence.p_value > FALSE_ALARM


def test_a_value_without_devices_leaves_the_p_value_finite() -> None:
    """A row without devices may have unknown conditional shares, with intervals from 0 to 1.

    The p-value stays finite, and the JSON is valid.
    """
    params = make_params("editor", "system", profile="once")
    table = np.outer([0.6, 0.4, 0.0], [0.7, 0.3])
    association = associate(decode(simulate_tuples(params, table, seed=3)))
    assert FALSE_ALARM < association.independence.p_value <= 1
    row = association.within_rows.row(2, 0)
    if row["share"] is None:
        assert (row["ci_low"], row["ci_high"]) == (0.0, 1.0)
    json.loads(association.to_json())


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (None, "fields must be two of editor, system, theme: name the two"),
        (("editor",), "fields must be two different ones of editor, system, theme, got editor"),
        ("editor", "fields must be two different ones of editor, system, theme, got editor"),
        (("editor", "editor"), "fields must be two different ones .* got editor, editor"),
        (("editor", "shell"), "fields must be two different ones .* got editor, shell"),
        (("editor", "system", "theme"), "fields must be two different ones"),
    ],
)
def test_fields_must_be_two_of_the_metric(
    three_fields: Estimates, fields: Any, sentence: str
) -> None:
    """One field, an unknown field, the same field twice and three fields are refused."""
    with pytest.raises(DecodeError, match=sentence):
        associate(three_fields, fields)


def test_metric_without_fields_is_refused() -> None:
    """A metric of plain strings or categories has no association."""
    params = Params.profile("once", encoding="onehot", categories=("a", "b"))
    counts = simulate_counts(Population(["a", "b"], [1, 1]), params, n_reports=1e3, seed=1)
    with pytest.raises(DecodeError, match="the metric must be a tuple, got one without fields"):
        associate(decode(counts))


def test_counts_in_place_of_estimates_are_refused() -> None:
    """The error states that `associate` needs estimates, and the remedy."""
    counts = simulate_tuples(make_params("editor", "system"), TABLE.sum(axis=2))
    with pytest.raises(ParamsError, match=r"estimates must be an Estimates, got Counts; pass"):
        associate(counts)  # type: ignore[arg-type]


def test_too_many_combinations_are_refused() -> None:
    """At most 2,048 combinations are accepted, from a list, a product or estimates."""
    names = [f"{number}" for number in range(2049)]
    short, long = (Candidates.from_list(names[:n]) for n in (2048, 2049))
    assert len(field_cells.load_combinations(short)) == 2048
    with pytest.raises(DecodeError, match=r"must number at most 2,048 .* got 2,049: list fewer"):
        field_cells.load_combinations(long)
    product = Candidates.product([""], "abcdefghij", 6, 6)
    with pytest.raises(DecodeError, match=r"must number at most 2,048 .* got more: list fewer"):
        field_cells.load_combinations(product)
    params = Params.profile("balanced", field_names=("site", "country"))
    pairs = [f"{a}\x1f{b}" for a in names[:1025] for b in "xy"]
    counts = simulate_counts(Population(pairs[:2], [1, 1]), params, n_reports=100, seed=1)
    with pytest.raises(DecodeError, match=r"must number at most 2,048 .* got 2,050"):
        associate(decode(counts, pairs))


def test_records_have_all_shares_once(three_fields: Estimates) -> None:
    """CSV, JSON and Arrow tables contain the same rows, and no row twice."""
    association = associate(three_fields, fields=("editor", "theme"))
    rows = list(association.rows())
    # Three tables of 3 x 2 cells (shares, within rows, within columns), and both margins.
    assert len(rows) == 3 * 6 + 3 + 2
    assert len({(row["kind"], row["row"], row["column"]) for row in rows}) == len(rows)
    document = json.loads(association.to_json())
    assert document["shares"] == rows
    assert document["independence"]["degrees_of_freedom"] == 2
    assert len(association.to_csv().splitlines()) == len(rows) + 1
    assert association.to_arrow().shape == (len(rows), 7)
    assert "3 x 2 cells" in repr(association)


def test_cells_of_strings_are_within_their_errors() -> None:
    """Cells, margins and conditional shares of strings are within z standard errors of the truth.

    Strings outside the lists have 30 % of the devices. The bound z covers 40 comparisons together
    at FALSE_ALARM.
    """
    params = Params.profile("low-noise", field_names=("site", "country"))
    pairs = [f"{site}\x1f{country}" for site in "abcd" for country in ("de", "fr", "jp")]
    truth = 0.7 * np.outer([0.4, 0.3, 0.2, 0.1], [0.5, 0.3, 0.2])
    unlisted_pairs = [f"other {i}\x1fde" for i in range(100)]
    population = Population([*pairs, *unlisted_pairs], [*truth.ravel(), *[0.003] * 100])
    estimates = decode(simulate_counts(population, params, n_reports=1e5, seed=1), pairs)
    association = associate(estimates)
    # Rows and columns of strings are sorted by their estimated margins. Neighbouring margins differ
    # by 20 standard errors, so the estimated order is the true one.
    assert association.row_values == tuple("abcd")
    assert association.column_values == ("de", "fr", "jp")
    z = stats.norm.isf(FALSE_ALARM / 40)
    for table, shares in (
        (association.cells, truth),
        (association.row_margins, truth.sum(axis=1)),
        (association.column_margins, truth.sum(axis=0)),
        (association.within_rows, truth / truth.sum(axis=1, keepdims=True)),
    ):
        assert (np.abs(table.share - shares) < z * table.std_error).all()
    assert abs(association.listed.estimate - 0.7) < z * association.listed.std_error
    assert association.listed.std_error < 0.01
    assert association.independence.p_value > FALSE_ALARM


def test_cells_with_equal_bits_are_refused() -> None:
    """Cells whose candidates have equal bits cannot be told apart, so they are refused.

    With one cohort, one group of two cells has equal bits, and the two other cells have bits of
    their own.
    """
    params = Params(
        k=8, h=1, m=1, f=0.2, p=0.1, q=0.9, insecure=True, field_names=("site", "country")
    )
    pairs = [f"{site}\x1f{country}" for site in "ab" for country in "ef"]
    counts = simulate_counts(Population(pairs, [1] * 4), params, n_reports=1e4, seed=1)
    estimates = decode(counts, pairs)
    assert sorted(estimates.group) == [0, 0, 1, 1]
    with pytest.raises(DecodeError, match=r"cells must have different bits, got . \| . and . \| ."):
        associate(estimates)


def test_refusal_of_equal_bits_names_candidates_of_two_cells() -> None:
    """The message names two candidates of different cells, also if a cell has several candidates.

    The cells of site and country sum over the third field, so each cell has four candidates, which
    are neighbours in the list. One cohort of two bits gives them at most two sets of bits. So the
    first two members of a group are usually of one cell.
    """
    names = ("site", "country", "theme")
    params = Params(k=2, h=1, m=1, f=0.2, p=0.1, q=0.9, insecure=True, field_names=names)
    tuples = [f"{a}\x1f{b}\x1f{c}" for a in "xy" for b in "uv" for c in "abcd"]
    counts = simulate_counts(Population(tuples, [1] * 16), params, n_reports=1e4, seed=1)
    estimates = decode(counts, tuples)
    with pytest.raises(DecodeError) as caught:
        associate(estimates, fields=("site", "country"))
    first, second = re.findall(r"(\w \| \w) \| \w", str(caught.value))
    assert first != second
