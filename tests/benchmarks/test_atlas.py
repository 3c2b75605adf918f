"""The benchmark `atlas`: it measures decodes over a grid of parameters and judges each cell.

A cell is one choice of a level for each factor (cohorts, bits, strings, devices ...). The grid has
every pair of levels of two factors in some cell. A cell is measured by many runs, and fails if a
measure (coverage, false detections, p-values) misses its target by more than chance explains.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from benchmark_modules import import_benchmark
from scipy import stats

from rappor.protocol.params import Params
from rappor.protocol.responses.generalized_response import GeneralizedResponse

if TYPE_CHECKING:
    from benchmarks import atlas, atlas_cells, atlas_sets, tables
else:
    atlas, atlas_cells, atlas_sets, tables = (
        import_benchmark(name) for name in ("atlas", "atlas_cells", "atlas_sets", "tables")
    )

FALSE_ALARM = 1e-9
SMALL: dict[str, int | str] = {
    "m": 8,
    "k": 32,
    "population": "5 heavy",
    "absent": 100,
    "devices": 30_000,
}


@pytest.mark.parametrize("name", atlas_cells.GRIDS)
def test_every_pair_of_levels_has_a_cell(name: str) -> None:
    """Every pair of levels of two factors has a cell, except uneven cohorts with one cohort."""
    factors = atlas_cells.GRIDS[name]
    cells = atlas_cells.build_cells(factors)
    for (factor, levels), (other_factor, other_levels) in itertools.combinations(
        factors.items(), 2
    ):
        pairs = {(cell[factor], cell[other_factor]) for cell in cells}
        missing = set(itertools.product(levels, other_levels)) - pairs
        assert missing <= {(1, atlas_cells.UNEVEN)}


def test_all_cells_take_at_most_80_minutes() -> None:
    """All cells take at most 80 minutes on two cores, if each cell takes its limit of time.

    The product of all levels would have far more cells.
    """
    n_cells = sum(len(cells) for cells in atlas_cells.list_cells().values())
    assert n_cells * atlas.SECONDS / 2 <= 80 * 60


def make_runs(**numbers: Any) -> list[atlas.Run]:
    """Return 200 equal runs without a missed target, except for the passed figures."""
    # (covered, all) of all intervals, of the 20 most frequent strings, and of adjusted intervals.
    # `false` and `found` are detections by three procedures, and `below` counts p-values of 100
    # absent strings below .05, .01, .001 and .0001.
    right = atlas.Run(
        covered=((190, 200), (19, 20), (10, 10)),
        false=(0, 0, 0),
        found=(10, 10, 10),
        below=(5, 1, 0, 0),
        absent=100,
    )
    return [dataclasses.replace(right, **numbers)] * 200


def test_right_numbers_do_not_fail() -> None:
    """Coverage of 95 %, no false detections, and p-values at their nominal rate pass."""
    judged = atlas.judge(SMALL, make_runs())
    assert judged.misses == ()
    assert judged.values["all"] == pytest.approx(0.95)
    assert judged.values["p 0.05"] == pytest.approx(1.0)
    assert judged.found == 10


@pytest.mark.parametrize(
    ("numbers", "failing"),
    [
        ({"covered": ((76, 200), (19, 20), (10, 10))}, "all"),
        ({"covered": ((190, 200), (17, 20), (10, 10))}, "top 20"),
        ({"covered": ((190, 200), (19, 20), (9, 10))}, "adjusted"),
        ({"false": (1, 0, 0)}, "FDR bh"),
        ({"false": (0, 1, 0)}, "FDR adaptive"),
        ({"false": (0, 0, 1)}, "any false, Bonferroni"),
        ({"below": (7, 1, 0, 0)}, "p 0.05"),
        ({"below": (5, 2, 0, 0)}, "p 0.01"),
        ({"below": (5, 1, 1, 0)}, "p 0.001"),
        ({"below": (5, 1, 0, 1)}, "p 0.0001"),
    ],
)
def test_a_wrong_number_fails_alone(numbers: dict[str, Any], failing: str) -> None:
    """Low coverage, false detections or frequent small p-values fail, one measure at a time."""
    assert atlas.judge(SMALL, make_runs(**numbers)).misses == (failing,)


def test_a_number_within_three_standard_errors_does_not_fail() -> None:
    """One run with bad numbers among twenty runs does not fail the cell.

    One of its two detections is false: 2.5 % in the mean of twenty runs. Its p-value below .0001 is
    one event in 2,000.
    """
    usual = make_runs()[:19]
    unusual = make_runs(false=(1, 1, 1), found=(2, 2, 2), below=(5, 1, 1, 1))[:1]
    assert atlas.judge(SMALL, usual + unusual).misses == ()


def test_an_error_or_a_warning_fails_the_cell() -> None:
    """The table shows the error, whatever the other runs found."""
    judged = atlas.judge(SMALL, [*make_runs(), atlas.Run(raised="RuntimeWarning: divide by zero")])
    (cells, levels) = atlas.describe({"strings": [judged]})
    assert cells.title == "atlas of strings: 1 of 1 cells fail, 0 are foretold to"
    assert cells.rows[0][-1] == "RuntimeWarning: divide by zero"
    assert ["m", "8", 1, 1] in levels.rows


def test_a_warning_in_most_runs_excuses_a_missed_target() -> None:
    """If 95 % of the runs warn of unreliable results, a missed target is yellow and passes.

    If only 90 % of the runs warn, the number is red and the cell fails.
    """
    low = {"covered": ((76, 200), (19, 20), (10, 10))}
    warned_runs, silent_runs = (make_runs(**low, unsure=unsure) for unsure in (True, False))
    foretold = atlas.judge(SMALL, warned_runs[:190] + silent_runs[:10])
    failing = atlas.judge(SMALL, warned_runs[:180] + silent_runs[:20])
    (cells, _) = atlas.describe({"strings": [foretold, failing]})
    assert cells.title == "atlas of strings: 1 of 2 cells fail, 1 are foretold to"
    assert [type(row[2]) for row in cells.rows] == [tables.Foretold, tables.Failing]
    assert "\x1b[33m0.38 !\x1b[0m" in cells.text(is_coloured=True)


def test_a_failing_number_is_red_and_marked() -> None:
    """A failing number has a colour in a terminal, and a mark everywhere."""
    table = tables.Table(title="t", columns=("cell", "all"), rows=[["a", tables.Failing(0.38)]])
    assert "\x1b[31m0.38 !\x1b[0m" in table.text(is_coloured=True)
    assert "\x1b" not in str(table)


@pytest.mark.slow
@pytest.mark.parametrize(
    "reports",
    [
        # Numbers between the smallest and the largest run the same code.
        pytest.param(reports, marks=pytest.mark.acceptance if reports in (7, 30) else ())
        for reports in atlas_cells.STRINGS["reports a device"]
    ],
)
def test_a_reduced_atlas_runs(reports: int | str) -> None:
    """No cell raises or warns, estimates match their truth, and dependent p-values do not fail."""
    first_levels = {name: levels[0] for name, levels in atlas_cells.STRINGS.items()}
    strings: dict[str, int | str] = {**first_levels, **SMALL, "reports a device": reports}
    categories = {name: levels[0] for name, levels in atlas_cells.ANSWERS.items()}
    cells: list[dict[str, int | str]] = [
        {**strings, "m": 1, "no candidates": "every other"},
        {**strings, "cohorts": atlas_cells.UNEVEN, "devices": 30},
        {**categories, "reports a device": reports},
        {**categories, "reports a device": reports, "encoding": "buckets, 16", "devices": 30},
    ]
    measurements = [atlas.measure(cell, n_runs=1) for cell in cells]
    assert [measurement.raised for measurement in measurements] == [""] * len(cells)
    runs = [atlas.run_once(cells[3], seed) for seed in range(15)]
    n_covered, n = np.array([run.covered[0] for run in runs]).sum(axis=0)
    # Intervals of categories are nearly independent, so the covered ones are binomial. The nominal
    # coverage is 95 %, and 94 % is allowed. The 255 intervals find a coverage of 80 % with
    # probability .91.
    assert n_covered >= stats.binom.ppf(FALSE_ALARM, n, 0.94)


@pytest.mark.parametrize("population", atlas_sets.SETS["population"])
def test_sets_are_drawn_from_their_exact_distribution(population: str) -> None:
    """The probability of each bucket is the mean over all choices of the production code.

    A report names one of 12 buckets. Padding or cutting gives a device two own buckets. For each
    set the test counts every choice of padding or cutting.
    """
    params = Params(encoding="set", k=12, m=1, items=2, keep=0.6)
    response = params.response
    assert isinstance(response, GeneralizedResponse)
    sets = atlas_sets._POPULATIONS[population](np.random.default_rng(1), 2)[:50]
    buckets = np.random.default_rng(2).integers(0, 12, size=(sets.shape[1],))
    probabilities, is_kept = atlas_sets._compute_report_probabilities(params, sets, buckets)
    expected = np.full(12, 0.4 / 12)
    for row, keep_probability in zip(sets, is_kept, strict=True):
        bits = sum(1 << bucket for bucket in set(buckets[row].tolist()))
        n_own = bits.bit_count()
        n_choices = [n_own, n_own - 1] if n_own > 2 else [12 - n_own - i for i in range(2 - n_own)]
        counts = np.zeros(12)
        for choice in itertools.product(*map(range, n_choices)):
            # The smallest coin for which the device takes this choice.
            coins = [-((-c << 32) // n) for c, n in zip(choice, n_choices, strict=True)]
            packed = bits.to_bytes(2, "little")
            counts[response.choose_own_buckets(packed, lambda _, u=coins: [*u, 0, 0])] += 1  # type: ignore[misc]
        expected += 0.6 * counts / counts.sum() / len(sets)
        assert keep_probability == pytest.approx(min(1, 2 / max(n_own, 1)))
    assert probabilities == pytest.approx(expected)


def test_indistinguishable_candidates_count_once() -> None:
    """With one cohort of 32 bits, 105 candidates have at most 32 distinguishable groups."""
    first_levels = {name: levels[0] for name, levels in atlas_cells.STRINGS.items()}
    run = atlas.run_once({**first_levels, **SMALL, "m": 1, "devices": 10**9}, seed=1)
    assert run.covered[0][1] <= 32
    assert run.absent < 32


def test_the_most_frequent_strings_are_chosen_by_their_true_shares() -> None:
    """The coverage of the 20 most frequent strings is for strings chosen by truth, not by estimate.

    300 strings are equally frequent here. The 20 largest estimates would be those with the largest
    errors, and their intervals would seldom cover.
    """
    first_levels = {name: levels[0] for name, levels in atlas_cells.STRINGS.items()}
    sizes: dict[str, int | str] = {"population": "300 equal", "absent": 0, "m": 16}
    cell = {**first_levels, **SMALL, **sizes}
    pairs = np.array([atlas.run_once(cell, seed).covered[1] for seed in range(4)])
    n_covered, n = pairs.sum(axis=0)
    assert n == 80
    # 4 runs of 20 strings are 80 nearly independent intervals.
    assert n_covered >= stats.binom.ppf(FALSE_ALARM, 80, 0.93)
