"""The atlas: where coverage, false discovery rates and p-values hold, and where they do not.

The input is the cells of `benchmarks.atlas_cells`, which are settings of a collection. Every cell
is simulated and decoded many times, and the results are compared with the truth. The output is a
table of all cells, and a table of the levels in which cells fail.

A number is marked, and printed in red, if it misses its target by more than three standard errors.
The targets are:

- The coverage of 95 % intervals is at least 94 % over all candidates, and at least 93 % over the
  twenty most frequent candidates.
- The coverage of adjusted intervals is at least 94 % over the detected candidates. A collection
  without detections counts as covered.
- The false discovery rate is at most 5 %. So is the probability of any false detection under
  Bonferroni.
- P-values of absent candidates fall below .05, 1e-2, 1e-3 and 1e-4 (the tails) at most 1.2 times as
  often as their nominal probability. A p-value of an absent candidate should be below .05 in 5 % of
  the cases.
- Decoding raises no error and no warning.

`decode` warns if the errors of a result are unreliable (`_is_unsure`). A cell is called *foretold*
if 19 of 20 of its results have such a warning, because the warning foretells that targets may be
missed. Missed targets of a foretold cell are printed in yellow, and the cell does not fail.

Intervals that cover more than 96 % of all candidates are too wide. That breaks no promise, so the
cell does not fail and is marked as wide.

Order of the work: `run_once` draws and decodes one collection (`Run`), `measure` repeats it for a
cell, `judge` compares the figures with the targets (`CellFigures`), and `describe` makes the
tables.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.accuracy import LEVEL, TOP, start_pool
from benchmarks.atlas_cells import GRIDS, Cell, draw, list_cells
from benchmarks.tables import Cell as TableCell
from benchmarks.tables import Failing, Foretold, Table
from rappor.decoding.decoder import decode
from rappor.decoding.diagnostics import FEW_PATTERNS
from rappor.decoding.estimates import Estimates
from rappor.estimator.detection_thresholds import Thresholds
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.p_values import PValues

N_RUNS: Final = 200
"""Largest number of collections of a cell.

More collections take longer, and make the standard errors of the figures smaller.
"""

SECONDS: Final = 54.0
"""Seconds of CPU time on one core after which no further collection of a cell is measured.

At least `LEAST` collections are measured. With 54 seconds, 170 cells take 77 minutes on two cores.
"""

LEAST: Final = 10
"""Smallest number of collections of a cell. They are measured even if they take longer than
`SECONDS`."""

TAILS: Final = (0.05, 1e-2, 1e-3, 1e-4)
"""Limits of p-values. The absent candidates with a p-value up to each limit are counted."""

COVERAGE: Final = {"all": 0.94, "top 20": 0.93, "adjusted": 0.94}
"""Smallest acceptable coverage of 95 % intervals, by the set of candidates. A smaller bound would
pass cells whose intervals miss the true share too often."""

ERROR_RATES: Final = {
    "bh": "FDR bh",
    "adaptive": "FDR adaptive",
    "bonferroni": "any false, Bonferroni",
}
"""Name of the measure of false detections, by the correction for multiple tests. Two corrections
limit the false discovery rate, and Bonferroni limits the probability of any false detection."""

ALL_MOST: Final = 0.96
"""Coverage of all candidates above which the intervals of a cell are called wide."""

FEW_DEVICES: Final = 1000
"""Number of devices up to which `decode` may replace the adaptive correction by another.

In such cells the applied correction is read from the result.
"""

FORETOLD: Final = 0.95
"""Smallest share of results with a warning at which a cell counts as foretold."""

TAIL_MOST: Final = 1.2
"""Largest acceptable ratio of the number of p-values below a tail to the nominal number. It is
above 1 because small p-values are approximate."""
ERRORS: Final = 3.0
"""Number of standard errors by which a measured number may miss its target by chance.

A larger number would hide larger faults. A smaller number would mark more correct cells.
"""

MEASURES: Final = (*COVERAGE, *ERROR_RATES.values(), *(f"p {tail:g}" for tail in TAILS))
"""The table has a column for each measure, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Figures of one collection.

    Attributes
    ----------
    covered : pairs (number of intervals that contain the truth, number of intervals), in the order
        of `COVERAGE`: intervals of all candidates, of the most frequent candidates, and adjusted
        intervals of the detected candidates.
    false, found : number of false detections and of all detections, in the order of `ERROR_RATES`.
    below : number of absent candidates with p-values up to each of `TAILS`.
    absent : number of absent candidates.
    unsure : whether the result warned that its errors are unreliable.
    raised : the error or warning of the decode; empty without one.
    """

    covered: tuple[tuple[int, int], ...] = ()
    false: tuple[int, ...] = ()
    found: tuple[int, ...] = ()
    below: tuple[int, ...] = ()
    absent: int = 0
    unsure: bool = False
    raised: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFigures:
    """Figures of one cell over all its collections.

    Attributes
    ----------
    cell : the levels of the factors.
    n_runs : number of collections.
    values : figures by name of the measure (`MEASURES`).
    misses : names of the measures that miss their targets.
    unsure : share of the results that warned that their errors are unreliable.
    wide : whether intervals are too wide.
    found : mean number of true detections.
    raised : the error or warning of a decode; empty without one.
    """

    cell: Cell
    n_runs: int
    values: Mapping[str, float]
    misses: tuple[str, ...]
    unsure: float
    wide: bool
    found: float
    raised: str

    @property
    def foretold(self) -> bool:
        """Whether the results warned that targets may be missed."""
        return self.unsure >= FORETOLD

    @property
    def fails(self) -> bool:
        """Whether decoding failed, or a target is missed without a warning."""
        return bool(self.raised or (self.misses and not self.foretold))


def run_once(cell: Cell, seed: int) -> Run:
    """Draw and decode one collection. A warning counts as an error."""
    sample = draw(cell, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            estimates = decode(
                sample.counts, sample.candidates, error_control=ErrorControl(alpha=LEVEL)
            )
            # With few devices `decode` decides whether the adaptive correction is applied.
            adaptive = "adaptive"
            if int(cell["devices"]) <= FEW_DEVICES:
                with_adaptive = decode(
                    sample.counts,
                    sample.candidates,
                    error_control=ErrorControl(method=adaptive),
                )
                adaptive = with_adaptive.error_control.method
        except Exception as error:  # noqa: BLE001  # whatever it is, the cell fails
            return Run(raised=f"{type(error).__name__}: {error}")
    return _compare(estimates, sample.shares, adaptive)


def _compare(estimates: Estimates, shares: Mapping[str, float], adaptive: str) -> Run:
    """Compare estimates with the truth.

    Candidates of an identifiability group set the same bits and cannot be distinguished, so a group
    counts as one candidate with the sum of the shares. `adaptive` is the correction that `decode`
    applied when the adaptive correction was requested.
    """
    names, group = estimates.candidates, estimates.group
    truth = np.array([shares[name] for name in names])
    # Group 0 means that a candidate is in no group.
    for number in range(1, int(group.max()) + 1):
        truth[group == number] = truth[group == number].sum()
    # (candidates,): True for candidates in no group, and for the first candidate of each group.
    first = group == 0
    first[np.unique(group, return_index=True)[1]] = True
    inside = (estimates.ci_low <= truth) & (truth <= estimates.ci_high)
    adjusted = (estimates.ci_low_adjusted <= truth) & (truth <= estimates.ci_high_adjusted)
    list_index = {name: i for i, name in enumerate(shares)}
    # Among equal shares the first in the list of candidates is taken. The rows are sorted by
    # estimate, so their order would select large errors.
    order = np.lexsort((np.array([list_index[name] for name in names]), -truth))
    top = order[first[order]][:TOP]
    detected = first & estimates.detected
    p_values, absent = estimates.p_value[first], truth[first] == 0
    applied = {**dict(zip(ERROR_RATES, ERROR_RATES, strict=True)), "adaptive": adaptive}
    decisions = [_detect(p_values, correction) for correction in applied.values()]
    return Run(
        covered=tuple(
            (int(is_covered.sum()), len(is_covered))
            for is_covered in (inside[first], inside[top], adjusted[detected])
        ),
        false=tuple(int((is_detected & absent).sum()) for is_detected in decisions),
        found=tuple(int(is_detected.sum()) for is_detected in decisions),
        below=tuple(int((p_values[absent] <= tail).sum()) for tail in TAILS),
        absent=int(absent.sum()),
        unsure=_is_unsure(estimates),
    )


def _is_unsure(estimates: Estimates) -> bool:
    """Return whether a result warns that its errors are unreliable.

    Two warnings count for every metric:

    - Strings collide too often (`overfull`).
    - The bits of a string can have so few patterns that the p-value of an absent string is never
      small (`least_p_value`).

    Three warnings count for sets only:

    - The buckets have few reports (`few_reports`).
    - The items are correlated (`correlated_items`).
    - The candidates do not explain the bits (`bad_fit`), because sets may have been cut.

    For strings `bad_fit` does not count. It occurs whenever some strings are no candidates, and the
    standard errors of strings include this case.
    """
    codes = {warning.code for warning in estimates.warnings}
    if estimates.has_sets and codes & {"bad_fit", "correlated_items", "few_reports"}:
        return True
    diagnostics = estimates.diagnostics
    capacity = diagnostics.get("capacity") or {"overfull": False}
    return bool(capacity["overfull"] or diagnostics.get("least_p_value", 0.0) > FEW_PATTERNS)


def _detect(p_values: NDArray[np.float64], correction: str) -> NDArray[np.bool_]:
    """Return which candidates are detected under a correction, (candidates,)."""
    error_control = ErrorControl(alpha=LEVEL, method=correction)
    return np.asarray(p_values <= Thresholds(error_control, PValues(in_memory=p_values)).largest)


def measure(cell: Cell, *, n_runs: int = N_RUNS, seconds: float = SECONDS) -> CellFigures:
    """Draw and decode collections of a cell until there are enough, or the time is over."""
    start = time.process_time()
    runs: list[Run] = []
    while len(runs) < n_runs and (len(runs) < LEAST or time.process_time() - start < seconds):
        runs.append(run_once(cell, seed=len(runs)))
    return judge(cell, runs)


def judge(cell: Cell, runs: Sequence[Run]) -> CellFigures:
    """Add up the runs, and name the measures that miss their targets."""
    decoded = [run for run in runs if not run.raised]
    judged = {
        **_judge_coverage(decoded),
        **_judge_detection(decoded),
        **_judge_tails(decoded),
    }
    values = {name: value for name, (value, _) in judged.items()}
    return CellFigures(
        cell=cell,
        n_runs=len(runs),
        values=values,
        misses=tuple(name for name, (_, misses) in judged.items() if misses),
        unsure=_mean([run.unsure for run in decoded]),
        wide=values["all"] > ALL_MOST,
        found=_mean([run.found[0] - run.false[0] for run in decoded]),
        raised=next((run.raised for run in runs if run.raised), ""),
    )


def _judge_coverage(runs: Sequence[Run]) -> dict[str, tuple[float, bool]]:
    """Return for each measure of coverage its mean, and whether it misses its target."""
    judged = {}
    for i, (name, least) in enumerate(COVERAGE.items()):
        # A collection without an interval, that is without detections, counts as covered.
        shares = [n_covered / n if n else 1.0 for n_covered, n in (run.covered[i] for run in runs)]
        judged[name] = _mean(shares), _mean(shares) + ERRORS * _compute_error(shares) < least
    return judged


def _judge_detection(runs: Sequence[Run]) -> dict[str, tuple[float, bool]]:
    """Return for each correction its error rate, and whether it exceeds `LEVEL`.

    The error rate is the mean share of false detections. For Bonferroni it is the share of
    collections with any false detection.
    """
    judged = {}
    for i, (correction, name) in enumerate(ERROR_RATES.items()):
        rates = [
            float(run.false[i] > 0)
            if correction == "bonferroni"
            else run.false[i] / max(run.found[i], 1)
            for run in runs
        ]
        judged[name] = _mean(rates), _mean(rates) - ERRORS * _compute_error(rates) > LEVEL
    return judged


def _judge_tails(runs: Sequence[Run]) -> dict[str, tuple[float, bool]]:
    """Return for each tail the ratio of observed to nominal numbers of small p-values.

    The p-values are those of absent candidates. The second result is whether the ratio misses its
    target. The ratio is NaN without absent candidates.

    If the candidates were independent, the number of p-values below a tail would be nearly a
    Poisson number, whose variance equals its mean. The candidates of one collection depend on each
    other, so the variance is `excess` times the mean. A number divided by `excess` has the ratio 1
    again (quasi-Poisson), and is compared with a Poisson number whose mean is divided by `excess`
    too.
    """
    judged = {}
    absent = sum(run.absent for run in runs)
    for i, tail in enumerate(TAILS):
        below = np.array([run.below[i] for run in runs], dtype=float)
        if not absent:
            judged[f"p {tail:g}"] = math.nan, False
            continue
        excess = max(1.0, float(below.var() / below.mean())) if below.any() else 1.0
        most = TAIL_MOST * tail * absent / excess
        p_value = stats.poisson.sf(math.ceil(below.sum() / excess) - 1, most)
        judged[f"p {tail:g}"] = (
            float(below.sum() / (tail * absent)),
            # The ratio misses its target if a correct decoder reaches so many small p-values with
            # a smaller probability than a normal variable exceeds `ERRORS` standard errors.
            bool(p_value < stats.norm.sf(ERRORS)),
        )
    return judged


def _mean(values: Sequence[float]) -> float:
    """Return the mean, or NaN without values."""
    return float(np.mean(values)) if len(values) else math.nan


def _compute_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean over independent collections; infinity for one."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.inf


def atlas(*, quick: bool) -> list[Table]:
    """Measure all cells of all grids.

    A quick run measures the first cells with few collections.
    """
    measure_quickly = partial(measure, n_runs=20, seconds=5.0)
    with start_pool() as pool:
        figures_by_grid = {
            name: list(pool.map(measure_quickly, cells[:8]) if quick else pool.map(measure, cells))
            for name, cells in list_cells().items()
        }
    return describe(figures_by_grid)


def describe(figures_by_grid: Mapping[str, Sequence[CellFigures]]) -> list[Table]:
    """Return a table of all cells of each grid, and a table of the levels in which cells fail."""
    tables = []
    for name, rows in figures_by_grid.items():
        tables += [_tabulate_cells(name, rows), _tabulate_levels(name, rows)]
    return tables


def _tabulate_cells(name: str, rows: Sequence[CellFigures]) -> Table:
    """Return a row for each cell. It names only the levels that are not the usual levels."""
    usual = {key: levels[0] for key, levels in GRIDS[name].items()}
    failing = sum(row.fails for row in rows)
    foretold = sum(bool(row.misses) and not row.fails for row in rows)
    table = Table(
        title=f"atlas of {name}: {failing} of {len(rows)} cells fail, {foretold} are foretold to",
        columns=("cell", "runs", *MEASURES, "found", "unsure", "error"),
        note=f'Where a cell says nothing: {_format_cell(usual)}. "wide": intervals hold more than '
        f"{ALL_MOST:.0%} of all. Found: present candidates detected, in the mean. Unsure: "
        "answers that say that their errors cannot be relied on.",
    )
    for row in rows:
        marked = Foretold if row.foretold else Failing
        numbers: list[TableCell] = [
            marked(row.values[measure]) if measure in row.misses else row.values[measure]
            for measure in MEASURES
        ]
        unusual = {key: level for key, level in row.cell.items() if level != usual[key]}
        wide = " (wide)" if row.wide else ""
        table.rows.append(
            [
                f"{_format_cell(unusual) or 'usual'}{wide}",
                row.n_runs,
                *numbers,
                row.found,
                row.unsure,
                row.raised or "-",
            ]
        )
    return table


def _tabulate_levels(name: str, rows: Sequence[CellFigures]) -> Table:
    """Count, for every level of every factor, its cells and its failing cells."""
    n_cells: Counter[tuple[str, str]] = Counter()
    failing: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for key, level in row.cell.items():
            n_cells[key, _format_level(level)] += 1
            failing[key, _format_level(level)] += row.fails
    table = Table(
        title=f"atlas of {name}: failing cells by level",
        columns=("factor", "level", "cells", "fail"),
    )
    table.rows += [[key, level, n, failing[key, level]] for (key, level), n in n_cells.items()]
    return table


def _format_cell(cell: Mapping[str, object]) -> str:
    """Format the levels of a cell."""
    return "; ".join(f"{key} {_format_level(level)}" for key, level in cell.items())


def _format_level(level: object) -> str:
    """Format a level."""
    return f"{level:,}" if isinstance(level, int) else str(level)
