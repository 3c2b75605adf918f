"""Discovery: strings that are found without a list, beside the limit without collisions.

The oracle has no collisions. Every string has its own bit with the noise of the same parameters.
Parts, devices, kept prefixes and error control are the same.
"""

from __future__ import annotations

import dataclasses
import math
import resource
import string
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.tables import Table
from rappor.discovery.part_by_part import discover
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.params import Params
from rappor.protocol.parts import WHOLE, Part, extract_part, parse_prefix_length
from rappor.simulation.collection import simulate
from rappor.simulation.part_collections import simulate_parts, split_devices
from rappor.simulation.population import Population

LETTERS: Final = string.ascii_lowercase
"""Alphabet from which the random strings are drawn."""
LEVEL: Final = 0.05
"""False discovery rate that the detected strings have."""
LENGTH: Final = 6
"""Number of letters that each string has."""
N_STRINGS: Final = 1000
"""Number of strings. Their frequencies follow Zipf's law."""

_TAIL: Final = 50.0
"""Number of absent strings that the oracle draws, as a multiple of the threshold of the last rank.

More strings make no difference.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A population of 1,000 random strings by Zipf's law, and the parameters of the search."""

    profile: str
    n_reports: int
    parts: tuple[Part, ...]
    keep: int = 1000
    k: int = 256
    m: int = 256

    @property
    def params(self) -> Params:
        """The profile under this case's bits and cohorts."""
        return dataclasses.replace(Params.profile(self.profile), k=self.k, m=self.m)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Strings found by `discover` and by the oracle in one collection.

    Both are counted as true and false, with the cost.
    """

    found: int
    false: int
    oracle: int
    oracle_false: int
    candidates: int
    seconds: float
    megabytes: float


_TWO: Final = (Part("prefix:3", 0.2), Part(WHOLE))
"""Parts of a search in two steps. It finds three letters first, then the whole string."""
_LETTER_BY_LETTER: Final = (*(Part(f"prefix:{n}", 1 / 6) for n in range(1, 6)), Part(WHOLE))
"""Parts of a search that adds one letter in each step."""

CASES: Final[Mapping[str, Case]] = {
    "3 and 6 letters, epsilon_1 = 2, 1e7": Case(
        profile="balanced", n_reports=10_000_000, parts=_TWO
    ),
    "3 and 6 letters, epsilon_1 = 2, 1e6": Case(
        profile="balanced", n_reports=1_000_000, parts=_TWO
    ),
    "3 and 6 letters, epsilon_1 = 4, 1e7": Case(
        profile="low-noise", n_reports=10_000_000, parts=_TWO, k=512
    ),
    "a letter a part, epsilon_1 = 2, 1e7": Case(
        profile="balanced", n_reports=10_000_000, parts=_LETTER_BY_LETTER
    ),
    "a letter a part, epsilon_1 = 2, 1e6": Case(
        profile="balanced", n_reports=1_000_000, parts=_LETTER_BY_LETTER
    ),
}
"""Parameters that each row measures."""


def discovery(*, quick: bool) -> list[Table]:
    """Find the strings of 20 collections for each case.

    A quick run finds those of one collection with few prefixes.
    """
    table = Table(
        title="discover: strings found without a list, mean over the seeds",
        columns=(
            "case",
            "seeds",
            "candidates",
            "found",
            "error",
            "oracle",
            "ratio",
            "false share",
            "oracle's",
            "CPU s",
            "MB",
        ),
        note="Zipf 1 over 1,000 random strings of six letters. Oracle: no collisions. Error: "
        "standard error of the mean found.",
    )
    for name, case in CASES.items():
        runs = (
            [measure(case, seed) for seed in range(20)]
            if not quick
            else [measure(_reduce_case(case), 0)]
        )
        table.rows.append([name, *summarise(runs)])
    return [table]


def _reduce_case(case: Case) -> Case:
    """Return a case with few prefixes and few cohorts. It takes seconds and finds fewer strings."""
    return dataclasses.replace(case, keep=50, k=128, m=128)


def summarise(runs: Sequence[Run]) -> list[str | int | float]:
    """Return the cells of a row."""
    found_counts = np.array([run.found for run in runs])
    oracle = np.array([run.oracle for run in runs])
    return [
        len(runs),
        f"{np.mean([run.candidates for run in runs]):,.0f}",
        float(found_counts.mean()),
        float(found_counts.std(ddof=1) / len(runs) ** 0.5) if len(runs) > 1 else math.nan,
        float(oracle.mean()),
        float(found_counts.sum() / oracle.sum()),
        float(np.mean([run.false / max(run.found + run.false, 1) for run in runs])),
        float(np.mean([run.oracle_false / max(run.oracle + run.oracle_false, 1) for run in runs])),
        float(np.mean([run.seconds for run in runs])),
        max(run.megabytes for run in runs),
    ]


def measure(case: Case, seed: int) -> Run:
    """Simulate one collection, and search its strings."""
    strings = draw_strings(seed)
    population = Population(strings, 1 / np.arange(1.0, N_STRINGS + 1))
    counts = simulate_parts(
        population, case.params, case.parts, n_reports=case.n_reports, seed=seed
    )
    start = time.process_time()
    discovered = discover(
        counts, LETTERS, keep=case.keep, longest=LENGTH, error_control=ErrorControl(alpha=LEVEL)
    )
    seconds = time.process_time() - start
    true = len(set(discovered.strings) & set(strings))
    oracle, oracle_false = count_oracle_detections(case, population, seed)
    return Run(
        found=true,
        false=len(discovered.strings) - true,
        oracle=oracle,
        oracle_false=oracle_false,
        candidates=discovered.estimates.n_candidates,
        seconds=seconds,
        megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def draw_strings(seed: int) -> list[str]:
    """Draw distinct strings of six letters."""
    rng = np.random.default_rng([seed, 7])
    drawn: dict[str, None] = {}
    while len(drawn) < N_STRINGS:
        drawn["".join(LETTERS[i] for i in rng.integers(0, len(LETTERS), LENGTH))] = None
    return list(drawn)


def count_oracle_detections(case: Case, population: Population, seed: int) -> tuple[int, int]:
    """Count the true and false strings of a decoder without collisions, for the same devices."""
    rng = np.random.default_rng([seed, 8])
    kept, n_kept, before = {""}, 1, 0
    for part, n, own_seed in split_devices(case.parts, case.n_reports, seed):
        params = dataclasses.replace(case.params, part=part.name, insecure=True)
        own = simulate(population, params, n_reports=n, seed=own_seed)
        shares: dict[str, float] = {}
        for text, n_held in zip(population.values, own.devices, strict=True):
            if text[:before] in kept:
                piece = extract_part(part.name, text)
                shares[piece] = shares.get(piece, 0.0) + n_held / n
        length = LENGTH if part.name == WHOLE else parse_prefix_length(part.name)
        n_candidates = n_kept * sum(len(LETTERS) ** added for added in range(length - before + 1))
        z = _draw_scores(np.array(list(shares.values())), params, n, rng)
        if part.name == WHOLE:
            return detect(z, n_candidates - len(shares), rng)
        everyone = np.concatenate([z, rng.standard_normal(n_candidates - len(shares))])
        least = np.sort(everyone)[::-1][: case.keep][-1]
        kept = {piece for piece, score in zip(shares, z, strict=True) if score >= least}
        n_kept, before = min(case.keep, n_candidates), length
    raise AssertionError("the last part is the whole")


def _draw_scores(
    share: NDArray[np.float64], params: Params, n: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw the z scores of strings with these shares of n devices. Each string has its own bit."""
    gap = params.q_star - params.p_star
    absent = params.p_star * (1 - params.p_star) / n
    own = share * params.q_star * (1 - params.q_star) / n + (1 - share) * absent
    return np.asarray((gap * share + np.sqrt(own) * rng.standard_normal(len(share))) / absent**0.5)


def detect(z: NDArray[np.float64], n_absent: int, rng: np.random.Generator) -> tuple[int, int]:
    """Apply Benjamini-Hochberg to present strings and many absent ones.

    Only the smallest p-values of absent strings are drawn.
    """
    n = len(z) + n_absent
    most = min(_TAIL * LEVEL * len(z) / n, 1.0)
    absent = most * rng.random(rng.poisson(n_absent * most))
    p_values = np.concatenate([stats.norm.sf(z), absent])
    ordered = np.sort(p_values)
    passed = np.flatnonzero(ordered <= LEVEL * np.arange(1, len(ordered) + 1) / n)
    threshold = ordered[passed[-1]] if len(passed) else -1.0
    return int((p_values[: len(z)] <= threshold).sum()), int((absent <= threshold).sum())
