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
"""Parameters with little noise. With `N_REPORTS` reports, the standard error of a share is 0.001,
so every string of `POPULATION` is detected, and an error of half a percent is visible."""

POPULATION: Final = Population([f"true {i}" for i in range(8)], [30, 20, 15, 10, 10, 8, 5, 2])
"""Eight strings that devices report, with their shares in percent. The largest share is 15
times the smallest, so a test also shows errors that only rare strings have."""

ABSENT: Final = [f"absent {i}" for i in range(24)]
"""Strings that no device reports. A decoder must not detect them."""

CANDIDATES: Final = [*POPULATION.values, *ABSENT]
"""Most tests decode these candidates: the eight reported strings first, then the absent strings."""

N_REPORTS: Final = 1_000_000
"""Number of simulated reports. Standard errors are proportional to 1 / sqrt(N_REPORTS)."""

_Days = TypeVar("_Days", bound=datetime.date | tuple[datetime.date, datetime.date])


def simulate_population_counts(
    params: Params = PARAMS, *, n: int = N_REPORTS, seed: int = 1
) -> Counts:
    """Simulate n reports of devices of `POPULATION`, and return their counts."""
    return simulate_counts(POPULATION, params, n_reports=n, seed=seed)


def map_by_candidate(estimates: Estimates, column: NDArray[Any]) -> dict[str, Any]:
    """Return a column of estimates as a dictionary from candidates to values.

    Estimates are sorted by their shares. A test needs the value of a certain candidate.
    """
    return dict(zip(estimates.candidates, column.tolist(), strict=True))


def compute_text_cells(texts: list[str], params: Params) -> NDArray[np.int32]:
    """Return the cells of each text, the rows of the design matrix where its column is 1.

    The result is (n, m h) int32. An entry is -1 if an earlier hash function of the same cohort has
    set the same bit, so that no cell of a text is counted twice.
    """
    return compute_cells(hash_texts(Texts.from_bytes([text.encode() for text in texts])), params)


def compute_true_shares(estimates: Estimates, population: Population) -> NDArray[np.float64]:
    """Return the share of each candidate in a population, in the order of the estimates.

    A candidate that no device reports has the share 0. The result is (n_candidates,) float64.
    """
    shares = dict(zip(population.values, population.weights, strict=True))
    return np.array([shares.get(text, 0.0) for text in estimates.candidates])


def is_covered(estimates: Estimates, true_shares: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return, for each candidate, whether its confidence interval contains its true share.

    The mean of the result over many simulated collections is the coverage of the intervals.
    """
    return (estimates.ci_low <= true_shares) & (true_shares <= estimates.ci_high)


def compute_standardised_errors(
    estimates: Estimates, population: Population
) -> NDArray[np.float64]:
    """Return the error of each share, divided by the standard error of the share.

    If the standard errors are right, the quotients are approximately standard normal.
    """
    errors = estimates.share - compute_true_shares(estimates, population)
    return np.asarray(errors / estimates.std_error)


def compute_error_bound(n_checks: int) -> float:
    """Return an upper bound on the absolute errors of several estimates, in standard errors.

    If the errors are normal and the standard errors are right, the probability that any of
    `n_checks` errors exceeds the bound is at most `FALSE_ALARM` (union bound, two-sided).
    """
    return float(stats.norm.isf(FALSE_ALARM / 2 / n_checks))


def build_released_counts(
    counts: Mapping[_Days, Counts | Sequence[Counts]],
    metric: str = "",
    *,
    withheld: tuple[datetime.date, ...] = (),
) -> ReleasedCounts:
    """Return released counts, as a collector sends them, from the counts of each period.

    Parameters
    ----------
    counts : maps a day, or the first and the last day of a period, to the counts of the period.
        The counts are a sequence if the period has several parameter sets. Periods are in the order
        of their days.
    withheld : days whose reports the collector has not released yet.
    """
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
