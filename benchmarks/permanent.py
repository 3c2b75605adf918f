"""Permanent responses compared at equal losses: strings found by devices that report several times.

The permanent response forces a bit with probability f, whatever the true bit is. A share g of the
forced bits become 1. Question: is it better that equally many bits become 1 and 0, as in [EPK14] (g
= .5, "symmetric"), or fewer bits become 1, as in the profiles? At equal losses and the same (p*,
q*), each cell decodes collections of devices that send 1, 30 or 90 reports. The table shows the
strings found, the error of an absent string, and the coverage of the intervals. It also shows how
often two reports of a device identify the device.

Population: the 50,000 words of `rappor demo` on 100,000 devices. The candidates are the 10,000 most
frequent words and as many absent strings.

[EPK14] Erlingsson, Pihur, Korolova. RAPPOR. CCS 2014.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import LEVEL, TOP, run_many, start_pool
from benchmarks.tables import Table
from rappor.decoding.decoder import decode
from rappor.estimator.error_control import ErrorControl
from rappor.privacy.report_linkage import linkability
from rappor.protocol.params import Params
from rappor.simulation.population import english_words
from rappor.simulation.repeated_reports import simulate_repeated

DEVICES: Final = 100_000
"""A collection has this number of devices."""
N_PRESENT: Final = 10_000
"""Number of candidates that are present. As many candidates are absent."""
RUNS: Final = 40
"""Number of collections that each cell has."""


def choose_symmetric(epsilon_1: float, epsilon_inf: float) -> Params:
    """Return the response of least variance at q* = 1/2 with as many forced ones as zeros.

    f follows from epsilon_inf = 2 ln((1 - f/2) / (f/2)), and p* from epsilon_1 with q* = 1/2. The
    gap q - p follows from q* - p* = (q - p) (1 - f).
    """
    p_star, f = 1 / (1 + math.exp(epsilon_1)), 2 / (1 + math.exp(epsilon_inf / 2))
    gap = (0.5 - p_star) / (1 - f)
    p = p_star - gap * f / 2
    return Params(k=128, h=1, m=128, f=f, p=p, q=p + gap)


LESS_NOISE: Final = Params(k=128, h=1, m=128, f=0.201341, g=0.006661, p=0.017177, q=0.620705)
"""These parameters have the losses epsilon_1 = 4.00 and epsilon_inf = 8.00 nats, and force fewer
bits to 1 than to 0."""

CELLS: Final = {
    "(2, 4), symmetric, 30": (choose_symmetric(2, 4), 30),
    "balanced, 30": (Params.profile("balanced"), 30),
    "(2, 4), symmetric, 90": (choose_symmetric(2, 4), 90),
    "balanced, 90": (Params.profile("balanced"), 90),
    "(4, 8), symmetric, 30": (choose_symmetric(4, 8), 30),
    "(4, 8), f0 = .2, 30": (LESS_NOISE, 30),
    "(4, 8), symmetric, 90": (choose_symmetric(4, 8), 90),
    "(4, 8), f0 = .2, 90": (LESS_NOISE, 90),
    "low-noise, 30": (Params.profile("low-noise"), 30),
    "once, 1": (Params.profile("once"), 1),
    "balanced, 1": (Params.profile("balanced"), 1),
    "(2, 4), symmetric, 1": (choose_symmetric(2, 4), 1),
}
"""Parameters, and number of reports of a device, of each cell.

The name of a cell has the losses (epsilon_1, epsilon_inf) in nats, the permanent response, and the
number of reports.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Figures of one collection.

    Attributes
    ----------
    true, false : number of detected strings that devices have, and that no device has
    absent_error : root mean square of the estimates of the absent strings, as a share
    coverages : share of the intervals that contain the true share: of absent strings, of present
        strings after the 20 most frequent strings, and of the 20 most frequent strings
    """

    true: int
    false: int
    absent_error: float
    coverages: tuple[float, float, float]


def measure(seed: int, name: str) -> Run:
    """Decode one collection of a cell. Ties among equal shares are broken at random."""
    params, n_reports = CELLS[name]
    words = english_words()
    counts = simulate_repeated(words, params, devices={n_reports: DEVICES}, seed=seed).counts
    order = np.argsort(-words.weights, kind="stable")[:N_PRESENT]
    truth = {words.values[i]: float(words.weights[i]) for i in order}
    names = [*truth, *(f"{seed}/absent/{i}" for i in range(N_PRESENT))]
    estimates = decode(counts, names, error_control=ErrorControl(alpha=LEVEL))
    shares = np.array([truth.get(text, 0.0) for text in estimates.candidates])
    inside = (estimates.ci_low <= shares) & (shares <= estimates.ci_high)
    ties = np.random.default_rng(seed).random(len(shares))
    rank = np.empty(len(shares), dtype=np.int64)
    rank[np.lexsort((ties, -shares))] = np.arange(len(shares))
    absent = shares == 0
    return Run(
        true=int((estimates.detected & ~absent).sum()),
        false=int((estimates.detected & absent).sum()),
        absent_error=float(np.sqrt((estimates.share[absent] ** 2).mean())),
        coverages=(
            _mean(inside[absent]),
            _mean(inside[~absent & (rank >= TOP)]),
            _mean(inside[rank < TOP]),
        ),
    )


def compare_permanent_responses(*, quick: bool) -> list[Table]:
    """Decode collections of devices that report several times, under both permanent responses."""
    n_runs = 4 if quick else RUNS
    table = Table(
        title=f"permanent: {DEVICES:,} devices, 10,000 words and as many absent candidates, "
        f"{n_runs} collections a row, seeds 0 to {n_runs - 1}",
        columns=(
            "losses, response, reports",
            "found",
            "its error",
            "false share",
            "absent: error %",
            "absent covered",
            "middle covered",
            "top 20 covered",
            "linked by two reports",
        ),
        note="Covered: share of the 95 % intervals that contain the population's share. Linked: "
        "probability that two reports of a device identify two others of it among all devices.",
    )
    with start_pool() as pool:
        for name, (params, n_reports) in CELLS.items():
            runs = run_many(partial(measure, name=name), n_runs, pool)
            linked = linkability(params, DEVICES, (2,)).recognised[0].probability
            table.rows.append([name, *_summarise(runs), linked if n_reports > 1 else math.nan])
    return [table]


def _summarise(runs: list[Run]) -> list[float]:
    """Return the cells of a row, as the columns of the table name them."""
    true = np.array([run.true for run in runs])
    false = sum(run.false for run in runs)
    coverages = np.array([run.coverages for run in runs]).mean(axis=0)
    return [
        float(true.mean()),
        float(true.std(ddof=1) / math.sqrt(len(runs))),
        false / max(false + int(true.sum()), 1),
        100 * float(np.mean([run.absent_error for run in runs])),
        *(float(coverage) for coverage in coverages),
    ]


def _mean(coverages: NDArray[np.bool_]) -> float:
    """Return the share of True."""
    return float(coverages.mean())
