"""The regression grid of google/rappor: five populations, four sizes, five settings.

For comparison with the reference implementation: parameters and populations come from its
`tests/regtest_spec.py` and `gen_counts.R` (commit a13fa96). The hash layout is this project's, and
every seed has its own names. The tables show, for each of the 100 cases, total variation and true
and false detections of `decode`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.accuracy import run_many, start_pool
from benchmarks.tables import Cell, Table
from rappor.decoding.decoder import decode
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate
from rappor.simulation.population import Population

Weights = NDArray[np.float64]

POPULATIONS: dict[str, Callable[[int], Weights]] = {
    "unif": lambda n: np.full(n, 1.0),
    "exp": lambda n: np.exp(-5 / n * np.arange(1, n + 1)),
    "gauss": lambda n: np.exp(-0.5 * ((np.arange(n) + 1 - n / 2) / (n / 6)) ** 2),
    "zipf1": lambda n: 1 / np.arange(1.0, n + 1),
    "zipf1.5": lambda n: np.arange(1.0, n + 1) ** -1.5,
}
"""Weights of n strings, (n,), by the name of the population. The weights need not add up to 1,
because `Population` divides them by their sum."""

SIZES = {
    "tiny": (100, 1_000),
    "small": (100, 1_000_000),
    "medium": (1_000, 10_000_000),
    "large": (10_000, 100_000_000),
}
"""Maps the name of a size to the number of distinct values and the number of clients."""

_USUAL = Params(k=8, h=2, m=128, f=0.45, p=0.39, q=0.61)
"""Parameters that all settings but "loose" have."""
_LOOSE = Params(k=8, h=2, m=128, f=0.0, p=0.225, q=0.775)
"""Parameters of the setting "loose": f is 0, so that only the instantaneous response adds noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Parameters of a collection, and its candidates.

    `extra` is the number of absent candidates for each true value. With `missing`, every string
    whose number ends in 9 is left out of the candidates, absent strings included.
    """

    params: Params
    extra: float
    missing: bool


SETTINGS = {
    "typical": Setting(params=_USUAL, extra=0.2, missing=True),
    "sharp": Setting(params=_USUAL, extra=0.0, missing=False),
    "loose": Setting(params=_LOOSE, extra=0.2, missing=True),
    "over_x2": Setting(params=_USUAL, extra=2.0, missing=True),
    "over_x10": Setting(params=_USUAL, extra=10.0, missing=True),
}
"""Setting of each group of cases, by the name that google/rappor gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Total variation and detections of one decode.

    `false_negatives` are candidates with clients that are not detected.
    """

    variation: float
    true: int
    false_positives: int
    false_negatives: int

    @property
    def false_share(self) -> float:
        """Share of the detections that are false, 0 without detections."""
        return self.false_positives / max(self.true + self.false_positives, 1)


def run_case(seed: int, population: str, size: str, setting: str) -> Result:
    """Simulate and decode one case.

    Total variation is against the shares of the devices that reported. All strings that are not
    candidates count as one cell, to which the decode gives no share.
    """
    n_values, n_clients = SIZES[size]
    chosen = SETTINGS[setting]
    # The first n_values names are strings of clients, the others are absent candidates.
    names = [f"{seed}/v{i}" for i in range(1, n_values + round(n_values * chosen.extra) + 1)]
    present = Population(names[:n_values], POPULATIONS[population](n_values))
    collection = simulate(present, chosen.params, n_reports=n_clients, seed=seed)
    candidates = [name for name in names if not (chosen.missing and name.endswith("9"))]
    estimates = decode(collection.counts, candidates, distribution=True)
    truth = dict(zip(present.values, (collection.devices / n_clients).tolist(), strict=True))
    candidate_shares = np.array([truth.get(name, 0.0) for name in estimates.candidates])
    non_candidate_share = 1 - candidate_shares.sum()
    assert estimates.posterior_share is not None
    return Result(
        variation=float(
            np.abs(estimates.posterior_share - candidate_shares).sum() + non_candidate_share
        )
        / 2,
        true=int((estimates.detected & (candidate_shares > 0)).sum()),
        false_positives=int((estimates.detected & (candidate_shares == 0)).sum()),
        false_negatives=int((~estimates.detected & (candidate_shares > 0)).sum()),
    )


def grid(*, quick: bool) -> list[Table]:
    """Run all 100 cases over several seeds. A quick run leaves out the two larger sizes."""
    n_seeds = 2 if quick else 10
    sizes = ("tiny", "small") if quick else tuple(SIZES)
    tables = []
    pooled = Table(
        title="grid, all cases of a size together, detected at Benjamini-Hochberg 5 %",
        columns=("size", "decodes", "true", "false pos.", "of all detected", "mean false share"),
        note="The rate that is kept to 5 % is the mean share: most decodes of the uniform cases "
        "detect nothing or one string.",
    )
    with start_pool() as pool:
        for size in sizes:
            n_values, n_clients = SIZES[size]
            table = Table(
                title=f"grid, {size}: {n_values:,} values, {n_clients:,} clients, {n_seeds} seeds",
                columns=(
                    *("case", "TV", "TV +-", "true", "false pos.", "false pos. +-"),
                    *("false neg.", "false neg. +-", "false share"),
                ),
                note="TV of the distribution answer, non-candidates included. "
                "+- is half the 95 % interval\nof the mean over the seeds. False share: its mean, "
                "0 of nothing detected.",
            )
            size_results = []
            for population in POPULATIONS:
                for setting in SETTINGS:
                    measure = partial(run_case, population=population, size=size, setting=setting)
                    results = run_many(measure, n_seeds, pool)
                    table.rows.append([f"{population} {setting}", *_summarise(results)])
                    size_results += results
            tables.append(table)
            pooled.rows.append([size, *_summarise_all(size_results)])
    return [*tables, pooled]


def _summarise(results: list[Result]) -> list[Cell]:
    """Return the cells of a row, as the columns of the table name them."""
    return [
        *_compute_mean([result.variation for result in results]),
        float(np.mean([result.true for result in results])),
        *_compute_mean([result.false_positives for result in results]),
        *_compute_mean([result.false_negatives for result in results]),
        float(np.mean([result.false_share for result in results])),
    ]


def _summarise_all(results: list[Result]) -> list[Cell]:
    """Return the number of decodes of a size, their detections together, and two false shares.

    The first share is of all detections together. The second is the mean of the shares of the
    decodes, which is the false discovery rate.
    """
    true = sum(result.true for result in results)
    false_positives = sum(result.false_positives for result in results)
    mean_share = float(np.mean([result.false_share for result in results]))
    pooled_share = false_positives / max(true + false_positives, 1)
    return [len(results), true, false_positives, pooled_share, mean_share]


def _compute_mean(values: list[float] | list[int]) -> tuple[float, float]:
    """Return the mean, and half its 95 % interval by Student's t."""
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(half)
