"""Sums of detected rows: what is unallocated, and what the rows after the first ten hold together.

Truth is what the population's shares say of the rows that were detected. Beside each is what a
plain sum of the estimates says, with the root of the sum of their squared errors: rows are detected
because they came out high, so it is too large.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from benchmarks.accuracy import DESIGNS, run_many, start_pool, true_shares
from benchmarks.populations import POPULATIONS
from benchmarks.tables import Table
from rappor.decoding.decoder import decode
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts

WITHIN: Final = 1.96
"""Standard errors that hold the truth in 95 of 100 collections."""

AFTER: Final = 10

BALANCED: Final = Params.profile("balanced")

CELLS: Final = {
    "150 falling, 150 absent": ("falling", BALANCED, 500_000),
    "[EPK14] 5.2": ("exp", DESIGNS["paper"], 1_000_000),
    "Zipf 1,000, half asked, 1e5": ("zipf_half", BALANCED, 100_000),
    "Zipf 1,000, half asked, 1e6": ("zipf_half", BALANCED, 1_000_000),
    "ten equal, ten absent": ("ten", BALANCED, 100_000),
    "the words of the demo": ("words", BALANCED, 1_000_000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of one collection, each with the standard error that was said.

    Of what is unallocated, of the plain sum in its place, and of the detected rows after the first
    ten; the last is missing where there are none.
    """

    unallocated: tuple[float, float]
    plain: tuple[float, float]
    rest: tuple[float, float] | None


def measure(seed: int, name: str) -> Errors:
    """Decode one collection of a cell."""
    kind, params, n_reports = CELLS[name]
    collection = POPULATIONS[kind](seed)
    counts = simulate_counts(collection.population, params, n_reports=n_reports, seed=seed)
    found = decode(counts, collection.candidates)
    truth = true_shares(found, collection)[found.detected]
    estimate, error = found.proportion[found.detected], found.std_error[found.detected]
    rests = [rest for rest in found.rests if rest.after == AFTER]
    return Errors(
        unallocated=(found.unallocated - (1 - truth.sum()), found.unallocated_std_error),
        plain=(truth.sum() - estimate.sum(), float(np.sqrt((error**2).sum()))),
        rest=(rests[0].proportion - truth[AFTER:].sum(), rests[0].std_error) if rests else None,
    )


def held(errors: list[tuple[float, float]]) -> float:
    """Return the part of the errors that are within 1.96 standard errors."""
    return float(np.mean([abs(error) <= WITHIN * said for error, said in errors]))


def sums(*, quick: bool) -> list[Table]:
    """Hold sums of detected rows and their errors to the truth."""
    n_runs = 40 if quick else 1000
    table = Table(
        title=f"sums: what is unallocated, {n_runs} collections a row, seeds 0 to {n_runs - 1}",
        columns=(
            "collection",
            "unallocated held",
            "mean error %",
            "error said %",
            "after ten held",
            "plain sum held",
            "its mean error %",
        ),
        note="Held: the truth is within 1.96 standard errors. Mean error: of the estimate, in "
        "percent of the reports. After ten: the detected rows after the first ten together.",
    )
    with start_pool() as pool:
        for name in CELLS:
            runs = run_many(partial(measure, name=name), n_runs, pool)
            rest = [run.rest for run in runs if run.rest is not None]
            table.rows.append(
                [
                    name,
                    held([run.unallocated for run in runs]),
                    100 * float(np.mean([run.unallocated[0] for run in runs])),
                    100 * float(np.mean([run.unallocated[1] for run in runs])),
                    held(rest) if rest else float("nan"),
                    held([run.plain for run in runs]),
                    100 * float(np.mean([run.plain[0] for run in runs])),
                ]
            )
    return [table]
