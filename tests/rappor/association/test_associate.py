"""`associate`: cells, margins and conditional shares of the fields of a tuple."""

from __future__ import annotations

import json
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
    """Return parameters of a one-hot tuple of some fields; without noise if there is no profile."""
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
    """Return the counts of devices whose tuples have these shares. The rest fits no category."""
    flat = np.ravel(shares)
    values, weights = list(params.categories), list(flat)
    if flat.sum() < 1 - 1e-9:
        values.append("elsewhere\x1f" * (len(params.field_names) - 1) + "elsewhere")
        weights.append(1 - flat.sum())
    return simulate_counts(Population(values, weights), params, n_reports=n, seed=seed)


@pytest.fixture(scope="module")
def three_fields() -> Estimates:
    """Return the estimates of three fields."""
    return decode(simulate_tuples(make_params("editor", "system", "theme"), TABLE))


def test_cells_without_noise_are_the_proportions() -> None:
    """Without noise, cells, margins and conditional shares are those of the simulated devices."""
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
    # A conditional share without noise has the binomial error of the devices of its row.
    np.testing.assert_allclose(
        association.within_rows.std_error,
        np.sqrt(cells / margins[0] * (1 - cells / margins[0]) / (1e5 * margins[0])),
        rtol=1e-6,
    )


def test_margins_are_the_contrasts_of_the_estimates(three_fields: Estimates) -> None:
    """Each margin equals the sum of its candidates that the decode computes."""
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


def test_other_fields_are_summed_over(three_fields: Estimates) -> None:
    """The cells of two of three fields are sums, and their order follows the request."""
    association = associate(three_fields, fields=("theme", "editor"))
    assert association.summed_fields == ("system",)
    assert association.row_values == LISTS["theme"]
    assert association.column_values == LISTS["editor"]
    errors = (association.cells.share - TABLE.sum(axis=1).T) / association.cells.std_error
    assert np.abs(errors).max() < stats.norm.isf(FALSE_ALARM / 12)


def test_cells_of_two_fields_have_the_intervals_of_the_decode() -> None:
    """The interval of a cell of one candidate is the exact interval of the decode."""
    estimates = decode(simulate_tuples(make_params("editor", "system"), TABLE.sum(axis=2), n=200))
    association = associate(estimates)
    np.testing.assert_array_equal(association.cells.ci_low.ravel(), estimates.ci_low)
    turned = associate(estimates, fields=("system", "editor"))
    np.testing.assert_array_equal(turned.cells.ci_high, association.cells.ci_high.T)
    np.testing.assert_allclose(turned.within_columns.ci_low, association.within_rows.ci_low.T)


@pytest.mark.slow
def test_values_outside_the_lists_leave_independent_fields_independent() -> None:
    """With 30 % of the devices outside the lists, independent fields are not rejected.

    The false-alarm rate is set by the level: the smallest of 40 p-values is below 1e-9 / 40 with
    probability 1e-9.
    """
    params = make_params("editor", "system", profile="balanced")
    product = 0.7 * np.outer([0.5, 0.3, 0.2], [0.6, 0.4])
    p_values = [
        associate(decode(simulate_tuples(params, product, seed=seed))).independence.p_value
        for seed in range(40)
    ]
    assert min(p_values) > FALSE_ALARM / 40
    assert stats.kstest(p_values, "uniform").pvalue > FALSE_ALARM
    # The power of these checks: dependent fields are rejected in every collection.
    dependent = 0.7 * np.array([[0.4, 0.1], [0.1, 0.2], [0.1, 0.1]])
    for seed in range(5):
        estimates = decode(simulate_tuples(params, dependent, seed=seed))
        assert associate(estimates).independence.p_value < FALSE_ALARM


def test_complete_fields_add_up_to_one() -> None:
    """The shares of complete categories add up to 1, without an error."""
    params = make_params("editor", "system", profile="balanced")
    product = np.outer([0.5, 0.3, 0.2], [0.6, 0.4])
    estimates = decode(simulate_tuples(params, product), complete=True)
    association = associate(estimates)
    assert association.listed.estimate == pytest.approx(1.0)
    assert association.listed.std_error == 0.0
    assert "100.000 % ± 0.000" in str(association)
    assert "have a listed editor" not in str(association)
    assert association.independence.p_value > FALSE_ALARM


def test_value_that_no_device_has_keeps_the_test() -> None:
    """A margin of zero has unknown conditional shares, and the test stays finite."""
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


def test_other_argument_is_refused() -> None:
    """Counts in place of estimates get a sentence with the remedy."""
    counts = simulate_tuples(make_params("editor", "system"), TABLE.sum(axis=2))
    with pytest.raises(ParamsError, match=r"estimates must be an Estimates, got Counts; pass"):
        associate(counts)  # type: ignore[arg-type]


def test_too_many_combinations_are_refused() -> None:
    """Lists of 2,048 combinations are loaded, and longer ones refused, also if they are no list."""
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
    """CSV, JSON and data frames contain the same rows: three tables and two margins."""
    association = associate(three_fields, fields=("editor", "theme"))
    rows = list(association.rows())
    assert len(rows) == 3 * 6 + 3 + 2
    assert len({(row["kind"], row["row"], row["column"]) for row in rows}) == len(rows)
    document = json.loads(association.to_json())
    assert document["shares"] == rows
    assert document["independence"]["degrees_of_freedom"] == 2
    assert len(association.to_csv().splitlines()) == len(rows) + 1
    assert association.to_arrow().shape == (len(rows), 7)
    assert "3 x 2 cells" in repr(association)


def test_cells_of_strings_are_within_their_errors() -> None:
    """Strings outside the lists have 30 %; cells, margins and their sum are within the errors."""
    params = Params.profile("low-noise", field_names=("site", "country"))
    pairs = [f"{site}\x1f{country}" for site in "abcd" for country in ("de", "fr", "jp")]
    truth = 0.7 * np.outer([0.4, 0.3, 0.2, 0.1], [0.5, 0.3, 0.2])
    others = [f"other {i}\x1fde" for i in range(100)]
    population = Population([*pairs, *others], [*truth.ravel(), *[0.003] * 100])
    estimates = decode(simulate_counts(population, params, n_reports=1e5, seed=1), pairs)
    association = associate(estimates)
    # Values of strings are sorted by their shares. The margins of neighbours are 20 errors apart.
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


def test_cells_with_the_same_bits_are_refused() -> None:
    """With one cohort of two bits, some of 16 cells share all bits, and none of them is known."""
    params = Params(
        k=2, h=1, m=1, f=0.2, p=0.1, q=0.9, insecure=True, field_names=("site", "country")
    )
    pairs = [f"{site}\x1f{country}" for site in "abcd" for country in "efgh"]
    counts = simulate_counts(Population(pairs, [1] * 16), params, n_reports=1e4, seed=1)
    with pytest.raises(DecodeError, match=r"cells must have different bits, got . \| . and . \| ."):
        associate(decode(counts, pairs))
