"""Two curves: accuracy against the number of reports, and power at equal privacy.

The data is that of [EPK14] section 5.2: 100 strings with shares in proportion to exp(-.05 i), among
200 candidates. Three designs of equal privacy are compared. `benchmarks.charts` draws the curves.

[EPK14] Erlingsson, Pihur, Korolova. RAPPOR. CCS 2014.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy import stats

from benchmarks.accuracy import DESIGNS, LEVEL, detect, run_many, start_pool
from benchmarks.populations import POPULATIONS
from benchmarks.tables import Cell, Table
from rappor.decoding.decoder import decode
from rappor.estimator.error_control import ErrorControl
from rappor.planning.detection_limit import compute_standard_error
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts

SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 100_000_000)
"""Numbers of reports at which the first curve has points."""
POWER_REPORTS = 1_000_000
"""Number of reports of the second curve, which shows power against the share of a string."""
N_PRESENT, N_CANDIDATES = 100, 200
"""Numbers of strings that devices have, and of candidates."""

PRIVATE = {
    "h = 2, as in [EPK14] 5.2": DESIGNS["paper"],
    "h = 1, symmetric": Params(k=128, h=1, m=32, f=0.2, p=0.3361, q=0.6639),
    "h = 1, asymmetric": DESIGNS["asymmetric"],
}
"""Designs that have equal privacy: eps_inf = 4.394 and eps_1 = 1.0743 nats."""


def curves(*, quick: bool) -> list[Table]:
    """Measure both curves."""
    n_runs = 4 if quick else 40
    with start_pool() as pool:
        accuracy = Table(
            title=f"curves, accuracy: data of [EPK14] 5.2, {n_runs} runs a point",
            columns=("design", "reports", "found", "false", "total variation"),
            note="Of 200 candidates 100 are present; Benjamini-Hochberg 5 %.",
        )
        for name, params in PRIVATE.items():
            for n_reports in SIZES[::2] if quick else SIZES:
                measure = partial(detect, params=params, n_reports=n_reports)
                runs = run_many(measure, n_runs, pool)
                row: list[Cell] = [
                    float(np.mean([run.bh.true for run in runs])),
                    float(np.mean([run.bh.false for run in runs])),
                    float(np.mean([run.total_variation for run in runs])),
                ]
                accuracy.rows.append([name, n_reports, *row])
        power = Table(
            title=f"curves, probability of finding, {POWER_REPORTS:,} reports, {n_runs} runs",
            columns=("design", "share %", "closed form", "measured"),
            note="Bonferroni 5 % over 200 candidates; every fifth string of the same data.",
        )
        for name, params in PRIVATE.items():
            detection_rates = np.mean(
                run_many(partial(_detect_each, params=params), n_runs, pool), axis=0
            )
            error = compute_standard_error(params, POWER_REPORTS) / POWER_REPORTS
            shares = POPULATIONS["exp"](0).shares[:N_PRESENT]
            # The closed form: the estimate, in standard errors, is normal with the mean
            # share / error and the variance 1. A string is detected if it exceeds the quantile of
            # Bonferroni's level, `LEVEL` / `N_CANDIDATES`.
            closed = stats.norm.sf(stats.norm.isf(LEVEL / N_CANDIDATES) - shares / error)
            power.rows.extend(
                [name, 100 * float(shares[i]), float(closed[i]), float(detection_rates[i])]
                for i in range(0, 60, 5)
            )
    return [accuracy, power]


def _detect_each(seed: int, params: Params) -> list[float]:
    """Return for each present string whether it is detected, as 1 or 0."""
    collection = POPULATIONS["exp"](seed)
    counts = simulate_counts(collection.population, params, n_reports=POWER_REPORTS, seed=seed)
    estimates = decode(
        counts, collection.candidates, error_control=ErrorControl(alpha=LEVEL, method="bonferroni")
    )
    detected = {
        name for name, hit in zip(estimates.candidates, estimates.detected, strict=True) if hit
    }
    return [float(name in detected) for name in collection.candidates[:N_PRESENT]]
