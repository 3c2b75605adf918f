"""Total variation of the distribution of all strings, compared with non-negative least squares.

Question: how near is `Estimates.posterior_share` to the true shares, compared with plain
non-negative least squares (NNLS, `scipy.optimize.nnls`)? NNLS fits the de-biased proportion of each
bit of each cohort by the shares of all candidates, without weights, constant or selection. It is
the estimator that an analyst would write down first. Without a constant, its shares have about the
sum 1, so it assumes that no string is missing from the list.

Total variation is half of the sum of the absolute errors of all shares. The share of all strings
that are no candidates counts as one more share. Its estimate is 1 minus the sum of the estimated
shares, and at least 0.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize

from benchmarks.accuracy import run_many, start_pool
from benchmarks.populations import POPULATIONS, Collection, from_weights
from benchmarks.sums import BALANCED, CELLS, LOW_NOISE
from benchmarks.tables import Table
from rappor.candidates.candidates import Candidates
from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts

_MOST_CANDIDATES: Final = 2000
"""Largest number of candidates of a cell. NNLS of 2,500 takes a minute."""

_ZIPF: Final = {
    "Zipf 200 + 200, 1e6": (200, 200, BALANCED, 1_000_000),
    "Zipf 200 + 200, low-noise, 1e6": (200, 200, LOW_NOISE, 1_000_000),
    "Zipf 400 + 100, 1e7": (400, 100, Params(k=128, h=2, m=16, f=0, p=0.225, q=0.775), 10_000_000),
}
"""Cells of Zipf's law: present strings, absent candidates, parameters and number of reports."""

_INCOMPLETE: Final = {
    "Zipf 1,000, 900 asked, 1e6": ("zipf_missing", BALANCED, 1_000_000),
    "[EPK14] without ten of 100, 1e6": ("exp_missing", BALANCED, 1_000_000),
}
"""Further cells, whose lists lack frequent and rare strings. A cell is a population, parameters and
a number of reports, as in `benchmarks.sums`."""


def compare_with_nnls(*, quick: bool) -> list[Table]:
    """Compare the total variation of `decode` with NNLS, over complete and incomplete lists."""
    n_runs = 3 if quick else 20
    table = Table(
        title=f"distributions: total variation, mean of {n_runs} collections a row",
        columns=(
            "collection",
            "candidates",
            "no candidates %",
            "decode",
            "NNLS",
            "difference",
            "+-",
        ),
        note="No candidates: true share of all strings that are no candidates. Difference: decode "
        "minus NNLS, with its standard error.",
    )
    with start_pool() as pool:
        for name in [*CELLS, *_ZIPF, *_INCOMPLETE]:
            collection = _draw(name, seed=0)
            if len(collection.candidates) > _MOST_CANDIDATES:
                continue
            runs = np.array(run_many(partial(measure_variations, name=name), n_runs, pool))
            difference = runs[:, 0] - runs[:, 1]
            table.rows.append(
                [
                    name,
                    len(collection.candidates),
                    100 * collection.non_candidate_share,
                    *map(float, runs.mean(axis=0)),
                    float(difference.mean()),
                    float(difference.std(ddof=1) / np.sqrt(n_runs)),
                ]
            )
    return [table]


def _get_design(name: str) -> tuple[Params, int]:
    """Return parameters and number of reports of a cell."""
    if name in _ZIPF:
        _, _, params, n_reports = _ZIPF[name]
    else:
        _, params, n_reports = (CELLS | _INCOMPLETE)[name]
    return params, n_reports


def _draw(name: str, seed: int) -> Collection:
    """Draw the population and the candidates of a cell."""
    if name in _ZIPF:
        n_present, n_absent, _, _ = _ZIPF[name]
        return from_weights(1 / np.arange(1.0, n_present + 1), n_absent, seed)
    return POPULATIONS[(CELLS | _INCOMPLETE)[name][0]](seed)


def measure_variations(seed: int, name: str) -> tuple[float, float]:
    """Return the total variations of `decode` and of NNLS on one collection of a cell."""
    collection = _draw(name, seed)
    params, n_reports = _get_design(name)
    counts = simulate_counts(collection.population, params, n_reports=n_reports, seed=seed)
    estimates = decode(counts, collection.candidates, distribution=True)
    assert estimates.posterior_share is not None
    shares = dict(zip(estimates.candidates, estimates.posterior_share, strict=True))
    posterior_shares = np.array([shares[text] for text in collection.candidates])
    return (
        compute_variation(posterior_shares, collection),
        compute_variation(estimate_by_nnls(counts, collection.candidates), collection),
    )


def estimate_by_nnls(counts: Counts, candidates: list[str]) -> NDArray[np.float64]:
    """Estimate the shares of all candidates by plain NNLS, (c,).

    The rows are the bits of all cohorts, and a candidate has a 1 in each row that it sets. The
    normal equations are solved, because they have c rows instead of one for each bit.
    """
    params = counts.params
    observed = counts.bit_counts / counts.cohort_reports[:, None]
    proportions = ((observed - params.p_star) / (params.q_star - params.p_star)).ravel()
    cells = Candidates.from_list(candidates).compute_cells(params, 0, len(candidates))
    design = np.zeros((proportions.size, len(candidates)))
    # A cell is -1 if an earlier hash function of the cohort sets the same bit.
    is_set = cells >= 0
    design[cells[is_set], np.nonzero(is_set)[0]] = 1
    # The least squares of a Cholesky root have the same minimum.
    root = linalg.cholesky(design.T @ design + 1e-9 * np.eye(len(candidates)))
    right_side = linalg.solve_triangular(root, design.T @ proportions, trans="T")
    shares, _ = optimize.nnls(root, right_side, maxiter=30 * len(candidates))
    return np.asarray(shares)


def compute_variation(shares: NDArray[np.float64], collection: Collection) -> float:
    """Compute the total variation, with all strings that are no candidates as one more string."""
    remainder = max(0.0, 1 - float(shares.sum()))
    errors = float(np.abs(shares - collection.shares).sum())
    return (errors + abs(remainder - collection.non_candidate_share)) / 2
