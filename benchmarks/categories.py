"""Categories once an epoch: variance of reports of one bucket compared with noise on single bits.

Question: how many devices does generalized randomized response (GRR) save, at 4 nats? Each cell has
k = 2, 3, 8 or 24 categories. The first category has a share of 2 % or 50 %, and the other devices
are spread evenly over the other categories. The variance of the estimated share is measured over
many collections and multiplied by the number of devices. A ratio of two such numbers is the ratio
of the devices that two mechanisms need for equal errors. The number is compared with

- the formula mu (1 - mu) / (q* - p*)^2. A report names a category with the probability q* if the
  device has the category, and p* if it has another one, so a report of a random device names it
  with the probability mu = p* + (q* - p*) share,
- one permanent response of `balanced` (noise on single bits), which the profile `once` had before,
- the clients of multi-freq-ldpy, run in a separate environment (`peers.txt`): GRR without a bucket
  for values outside the categories, and the better of two unary encodings (optimized, OUE, and
  symmetric, SUE).

Columns of the table, each a variance of the share times the number of devices, or a ratio of two:

| column                | content                                                     |
|-----------------------|-------------------------------------------------------------|
| `formula`, `measured` | GRR of this package, by the formula and in the collections  |
| `by formula`          | ratio `measured` / `formula`, which should be 1             |
| `bits before`         | measured with the single bits that `once` had before        |
| `bits by ours`        | ratio `bits before` / `measured`: above 1, GRR saves devices |
| `GRR of peers`        | GRR of multi-freq-ldpy                                      |
| `best unary of peers` | the smaller number of OUE and SUE                           |
| `unary by ours`       | ratio `best unary of peers` / `measured`                    |
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.mechanisms import PEERS
from benchmarks.tables import Failing, Table
from rappor.decoding.closed_form import estimate_categories
from rappor.estimator.debias import debias
from rappor.estimator.device_assumptions import Repetition
from rappor.protocol.params import Params
from rappor.protocol.profiles import PROFILES
from rappor.protocol.responses.rappor_response import compute_noise
from rappor.protocol.thresholds import ONE
from rappor.simulation import Population, simulate_counts

EPSILON: Final = 4.0
"""Privacy loss of one report, in nats. The profile `once` has this loss, and the mechanisms of the
other package get the same loss, so that their variances are comparable."""

DEVICES: Final = 2_000
"""A collection has this number of devices, each with one report."""

RUNS: Final = 4_000
"""Number of collections of a cell.

The relative standard error of a measured variance is sqrt(2 / RUNS) = 2.2 %.
"""

PEER_RUNS: Final = 1_000
"""Number of collections of a cell by multi-freq-ldpy, which is slower. Standard error: 4.5 %."""

MOST_EXCESS: Final = 1.02
"""Largest mean over all cells of the measured variance divided by the formula.

The mean of the eight cells has a standard error of .8 %. So the target is 2.5 standard errors above
1, the value of a decoder that adds no variance.
"""


def make_params(k: int, *, are_bits: bool) -> Params:
    """Return the parameters of k categories: `once`, or the bits that `once` had before.

    The bits have no instantaneous noise (p = 0, q = 1). A threshold t stands for the probability
    t / `ONE` of the noise: of the thresholds (t_1, t_0, t_p, t_q) of `balanced`, the two of the
    permanent response stay, and 0 and `ONE` replace those of p and q.
    """
    names = tuple(f"c{i}" for i in range(k))
    if not are_bits:
        return Params.profile("once", encoding="onehot", categories=names)
    t_1, t_0, _, _ = PROFILES["balanced"].select_thresholds(k)
    noise = compute_noise(t_1, t_0, 0, ONE)
    return Params(k=k, encoding="onehot", categories=names, **noise)


def measure_variance(k: int, share: float, n_runs: int, *, are_bits: bool) -> float:
    """Return the variance of the estimated share of the first category, times the devices.

    The estimate is the closed form of the decoder (`rappor.decoding.closed_form`).
    """
    params = make_params(k, are_bits=are_bits)
    weights = [share, *[(1 - share) / (k - 1)] * (k - 1)]
    population = Population(params.categories, weights)
    once = Repetition(reports_per_device=1.0, source="counts")
    estimates = []
    for seed in range(n_runs):
        counts = simulate_counts(population, params, n_reports=DEVICES, seed=seed)
        categories = estimate_categories(debias([counts], [once]), params)
        estimates.append(categories.estimate[0])
    return float(np.var(estimates, ddof=1)) * DEVICES


def compute_formula(params: Params, share: float) -> float:
    """Return the variance of the estimated share, times the number of devices."""
    gap = params.q_star - params.p_star
    mean = params.p_star + gap * share
    return mean * (1 - mean) / gap**2


def run_peers(k: int, share: float, n_runs: int) -> dict[str, float]:
    """Return the variance times devices by mechanism, from multi-freq-ldpy.

    The result is empty if the environment of the other software is not installed.
    """
    if not PEERS.exists():
        return {}
    program = Path(__file__).with_name("peers_categories_once.py")
    numbers = map(str, (EPSILON, k, share, DEVICES, n_runs, 1))
    run = subprocess.run(  # noqa: S603  (our own program)
        [str(PEERS), str(program), *numbers], capture_output=True, text=True, check=True
    )
    variances: dict[str, float] = json.loads(run.stdout)
    return variances


def compare_categories(*, quick: bool) -> list[Table]:
    """Measure every cell, in one row of the table each."""
    n_runs, n_peer_runs = (500, 200) if quick else (RUNS, PEER_RUNS)
    table = Table(
        title=f"Variance of a share times devices, {EPSILON:g} nats, {n_runs:,} collections",
        columns=(
            *("categories", "share", "formula", "measured", "by formula"),
            *(
                "bits before",
                "bits by ours",
                "GRR of peers",
                "best unary of peers",
                "unary by ours",
            ),
        ),
    )
    excesses = []
    for k in (2, 3, 8, 24):
        for share in (0.02, 0.5):
            ours = measure_variance(k, share, n_runs, are_bits=False)
            bits = measure_variance(k, share, n_runs, are_bits=True)
            formula = compute_formula(make_params(k, are_bits=False), share)
            excesses.append(ours / formula)
            peers = run_peers(k, share, n_peer_runs)
            grr = peers.get("GRR", float("nan"))
            unary = min((peers[name] for name in ("OUE", "SUE") if peers), default=float("nan"))
            row = [k, share, formula, ours, ours / formula, bits, bits / ours, grr, unary]
            table.rows.append([*row, unary / ours])
    mean = float(np.mean(excesses))
    table.rows.append(
        ["mean", "", "", "", mean if mean <= MOST_EXCESS else Failing(mean), "", "", "", "", ""]
    )
    table.note = (
        "multi-freq-ldpy has k buckets, and this package k + 1: the last bucket is for values "
        "outside all categories. nan: multi-freq-ldpy is not installed."
    )
    return [table]
