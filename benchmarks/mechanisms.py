"""Other mechanisms at equal epsilon: variance of the same estimate, compared with the optimum.

Question: how much more noise than the best known mechanism does each mechanism add? Compared are
designs of this project and the mechanisms of the package pure-ldp (optimized unary encoding OUE,
optimized local hashing OLH, Hadamard response, count-mean sketches). Each client sends one report,
so epsilon (eps, in nats) is the loss of that report.

A run draws a value for each of n = 10,000 clients, adds the noise, and estimates the count of each
of 100 values. Its error is the mean square error of the 50 rarest values. Reported is the mean over
the runs of the ratio

    error / (n * V(eps)),   V(eps) = 4 e^eps / (e^eps - 1)^2,

where V(eps) is the smallest variance of one report that is known for large domains. OUE and OLH
reach it (Wang, Blocki, Li, Jha, USENIX Security 2017), so their ratio is about 1. For the designs
of this project, the table also contains the ratio by the planner's formula (columns "closed").
"""

from __future__ import annotations

import json
import math
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import run_many
from benchmarks.tables import Table
from rappor.decoding.decoder import decode
from rappor.planning.detection_limit import compute_standard_error
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate
from rappor.simulation.population import Population

EPSILONS = (1.0, 2.0, 4.0)
"""The table has a column for each of these privacy losses of one report, in nats."""
N_REPORTS, N_VALUES = 10_000, 100
"""Numbers of reports and of values. The shares of the values follow Zipf's law."""

ROOT = Path(__file__).resolve().parents[1]
"""Folder of the repository. A path relative to the current folder would depend on the folder in
which a benchmark starts."""
PEERS = ROOT / ".peers" / "bin" / "python"
"""This interpreter belongs to the environment of the other packages, which `peers.txt` lists."""

_ABSENT = (
    "The rows of pure-ldp are missing: make its environment with `python -m venv .peers && "
    ".peers/bin/pip install -r benchmarks/peers.txt`."
)


def compute_optimum(epsilon: float) -> float:
    """Return the smallest known variance of a rare value's count, for each report."""
    return 4 * math.exp(epsilon) / math.expm1(epsilon) ** 2


def list_designs(epsilon: float) -> dict[str, Params]:
    """Return this project's designs with the loss epsilon of one report, by name.

    A bit is sent as 1 with probability q if the value sets it, and else with probability p. A value
    sets at most h bits, where h is the number of hash functions (1 for one-hot). Another value sets
    h other bits at worst, so the probabilities of a report differ by at most the factor e^epsilon,

        epsilon = h (ln(q / p) + ln((1 - p) / (1 - q))).

    | design               | epsilon             | p                          |
    |----------------------|---------------------|----------------------------|
    | q = 1/2, h = 1       | ln((1 - p) / p)     | 1 / (e^epsilon + 1)        |
    | symmetric: q = 1 - p | 2 h ln((1 - p) / p) | 1 / (e^(epsilon / 2h) + 1) |
    """
    names = tuple(f"v{i:03}" for i in range(N_VALUES))
    p = 1 / (math.exp(epsilon) + 1)
    p_one_hash, p_two_hashes = 1 / (math.exp(epsilon / 2) + 1), 1 / (math.exp(epsilon / 4) + 1)
    onehot = Params(k=N_VALUES, h=1, m=1, f=0, p=p, q=0.5, encoding="onehot", categories=names)
    return {
        "one-hot, q = .5": onehot,
        "Bloom h = 1, q = .5": Params(k=128, h=1, m=64, f=0, p=p, q=0.5),
        "Bloom h = 1, symmetric": Params(k=128, h=1, m=64, f=0, p=p_one_hash, q=1 - p_one_hash),
        "Bloom h = 2, symmetric": Params(k=128, h=2, m=64, f=0, p=p_two_hashes, q=1 - p_two_hashes),
    }


def mechanisms(*, quick: bool) -> list[Table]:
    """Measure every design and, if its environment exists, pure-ldp."""
    n_runs = 3 if quick else 20
    # Ratios by mechanism, one for each epsilon: measured ratios, and those of the closed form.
    rows: dict[str, list[float]] = {"optimum": [1.0] * len(EPSILONS)}
    closed = {name: [compute_closed_form(name, e) for e in EPSILONS] for name in list_designs(1.0)}
    for name in closed:
        rows[name] = [
            float(np.mean(run_many(partial(_measure_design, name=name, epsilon=e), n_runs, None)))
            for e in EPSILONS
        ]
    # Results of pure-ldp with the last epsilon, one for each run; empty without its environment.
    results: list[dict[str, Any]] = []
    if PEERS.exists():
        for column, epsilon in enumerate(EPSILONS):
            results = [_measure_peers(epsilon, seed) for seed in range(n_runs)]
            for name in results[0]["estimates"]:
                errors = [
                    _compute_ratio(result["estimates"][name], result["true_counts"], epsilon)
                    for result in results
                ]
                row = rows.setdefault(f"pure-ldp {name}", [float("nan")] * len(EPSILONS))
                row[column] = float(np.mean(errors))
    table = Table(
        title=f"mechanisms: variance as a multiple of the optimum, {N_REPORTS:,} reports, "
        f"Zipf over {N_VALUES} values, {n_runs} runs",
        columns=(
            "mechanism",
            *(f"eps {e:g}" for e in EPSILONS),
            *(f"closed {e:g}" for e in EPSILONS),
        ),
        note="Rarer half of the values; the standard error of a measured ratio is about "
        f"{math.sqrt(2 / (N_VALUES // 2 * n_runs)):.0%} of it.\nClosed: this project's designs "
        "for a rare value.",
    )
    for name, ratios in rows.items():
        forms = closed.get(name, [1.0 if name == "optimum" else float("nan")] * len(EPSILONS))
        table.rows.append([name, *ratios, *forms])
    table.note += "\n" + (_describe_fault(results[0]["rappor"]) if results else _ABSENT)
    return [table]


def compute_closed_form(name: str, epsilon: float) -> float:
    """Return the variance of a rare value's count by the planner's formula, as a ratio."""
    error = compute_standard_error(list_designs(epsilon)[name], N_REPORTS)
    return error**2 / N_REPORTS / compute_optimum(epsilon)


def _measure_design(seed: int, name: str, epsilon: float) -> float:
    """Collect and decode once with one of this project's designs, and return the ratio."""
    params = list_designs(epsilon)[name]
    names = [f"v{i:03}" for i in range(N_VALUES)]
    population = Population(names, 1 / np.arange(1.0, N_VALUES + 1))
    collection = simulate(population, params, n_reports=N_REPORTS, seed=seed)
    estimates = decode(collection.counts, None if params.encoding == "onehot" else names)
    counts = dict(zip(estimates.candidates, estimates.share * N_REPORTS, strict=True))
    return _compute_ratio([counts[name] for name in names], collection.devices, epsilon)


def _compute_ratio(
    estimates: list[float], true_counts: list[int] | NDArray[np.int64], epsilon: float
) -> float:
    """Return the mean square error of the rarer half, as a multiple of the optimum.

    Parameters
    ----------
    estimates : estimated number of clients of each value, the most frequent value first
    true_counts : true number of clients of each value, in the same order
    epsilon : loss of a report in nats
    """
    errors = (np.asarray(estimates) - np.asarray(true_counts))[N_VALUES // 2 :]
    return float(np.mean(errors**2)) / N_REPORTS / compute_optimum(epsilon)


def _measure_peers(epsilon: float, seed: int) -> dict[str, Any]:
    """Run the mechanisms of pure-ldp once, in their own environment.

    Returns the JSON object of `benchmarks.peers_once`.
    """
    numbers = [str(number) for number in (epsilon, N_REPORTS, N_VALUES, seed)]
    process = subprocess.run(  # noqa: S603  # ours, and the interpreter that the user has made
        [str(PEERS), str(Path(__file__).with_name("peers_once.py")), *numbers],
        capture_output=True,
        check=True,
    )
    document: dict[str, Any] = json.loads(process.stdout)
    return document


def _describe_fault(rappor: dict[str, float]) -> str:
    """Describe why pure-ldp's own RAPPOR is left out, with the measured evidence.

    `rappor` is the entry of that name in the JSON of `benchmarks.peers_once`. A client of RAPPOR
    must clear a true bit (send 0 for a bit that the value sets) with probability f / 2.
    """
    return (
        "pure-ldp's RAPPOR is left out, because it is not private: of true bits at f = .5 its "
        f"client cleared {rappor['cleared']:.0%}\n(right is {rappor['expected']:.0%}), so a zero "
        f"proves absence and the loss is infinite. Its f for eps = 2 is {rappor['f']:g}, which by "
        f"its own formula\nmeans eps = {rappor['epsilon']:.2f} with two hashes."
    )
