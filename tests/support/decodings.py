"""Collections for tests of decoders, and bounds on the errors of estimates."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rappor.candidates.compiled_hashing import compute_cells
from rappor.candidates.texts import Texts
from rappor.candidates.uncompiled_hashing import hash_texts
from rappor.counts.counts import Counts
from rappor.counts.released_counts import Period, ReleasedCounts
from rappor.decoding.estimates import Estimates
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

FALSE_ALARM: Final = 1e-9
"""Probability that a statistical check fails although the code is right. It is so small that no run
of all checks fails by chance."""

PARAMS: Final = Params(k=64, h=1, m=32, f=0.25, p=0.1, q=0.6)
POPULATION: Final = Population([f"true {i}" for i in range(8)], [30, 20, 15, 10, 10, 8, 5, 2])
ABSENT: Final = [f"absent {i}" for i in range(24)]
CANDIDATES: Final = [*POPULATION.values, *ABSENT]
N: Final = 1_000_000

_Days = TypeVar("_Days", bound=datetime.date | tuple[datetime.date, datetime.date])


def counted(params: Params = PARAMS, *, n: int = N, seed: int = 1) -> Counts:
    """Return simulated counts of `POPULATION`."""
    return simulate_counts(POPULATION, params, n_reports=n, seed=seed)


def by_name(estimates: Estimates, column: NDArray[Any]) -> dict[str, Any]:
    """Return a column of estimates by the names of the candidates."""
    return dict(zip(estimates.candidates, column.tolist(), strict=True))


def cells_of(texts: list[str], params: Params) -> NDArray[np.int32]:
    """Return the cells of each text, (n, m h), -1 for a repeated bit."""
    return compute_cells(hash_texts(Texts.from_bytes([text.encode() for text in texts])), params)


def truth_of(estimates: Estimates, population: Population) -> NDArray[np.float64]:
    """Return the true shares of the rows."""
    shares = dict(zip(population.values, population.weights, strict=True))
    return np.array([shares.get(text, 0.0) for text in estimates.candidates])


def covered(estimates: Estimates, truth: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return for each row whether its confidence interval contains the true share."""
    return (estimates.ci_low <= truth) & (truth <= estimates.ci_high)


def standardised_errors(estimates: Estimates, population: Population) -> NDArray[np.float64]:
    """Return the errors of the shares in units of their standard errors."""
    errors = estimates.share - truth_of(estimates, population)
    return np.asarray(errors / estimates.std_error)


def largest_error(n_checks: int) -> float:
    """Return the bound on the errors of several estimates, in standard errors.

    With normal errors, one of `n_checks` errors exceeds the bound with probability `FALSE_ALARM`.
    """
    return float(stats.norm.isf(FALSE_ALARM / 2 / n_checks))


def released(
    counts: Mapping[_Days, Counts | Sequence[Counts]],
    metric: str = "",
    *,
    withheld: tuple[datetime.date, ...] = (),
) -> ReleasedCounts:
    """Return released counts from counts by day, or by first and last day."""
    periods = []
    for days, of_period in counts.items():
        first, last = days if isinstance(days, tuple) else (days, days)
        collections = (of_period,) if isinstance(of_period, Counts) else tuple(of_period)
        periods.append(Period(first=first, last=last, collections=collections))
    return ReleasedCounts(
        metric=metric,
        first=periods[0].first,
        last=periods[-1].last,
        periods=tuple(periods),
        withheld=withheld,
    )
