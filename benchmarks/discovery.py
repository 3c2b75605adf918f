"""Discovery: strings found without a list of candidates, compared with an oracle.

`discover` finds strings part by part: some devices report a prefix, the others the whole string.
The search extends every detected prefix by all letters. Each case simulates 1,000 random strings of
six letters by Zipf's law, and counts the true and false strings that are found.

The oracle is an imagined search without collisions. It has the same parts, devices, noise, number
of kept prefixes and error control as `discover`. But every string and every prefix has a bit of its
own, so a real search finds about as many strings at best. The reports of the oracle are not
simulated. Instead the score of each string is drawn: its estimated share, divided by the standard
error of the estimate of an absent string.
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
"""False discovery rate at which strings are detected."""
LENGTH: Final = 6
"""Each string has this number of letters."""
N_STRINGS: Final = 1000
"""Number of strings. Their frequencies follow Zipf's law."""

_TAIL: Final = 50.0
"""The oracle draws p-values of absent strings only up to this multiple of a threshold.

The threshold is that of Benjamini-Hochberg if as many strings are detected as are present. There
are millions of absent strings. Nearly all have larger p-values, which are never detected, so these
p-values need not be drawn.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Parameters of one search.

    Attributes
    ----------
    profile : name of the profile, which has the noise
    n_reports : number of reports of all parts together
    parts : the reported parts, with their shares of the devices. The last part has the other
        devices
    keep : number of prefixes that the search keeps after each step
    k, m : number of bits of a report, and number of cohorts
    """

    profile: str
    n_reports: int
    parts: tuple[Part, ...]
    keep: int = 1000
    k: int = 256
    m: int = 256

    @property
    def params(self) -> Params:
        """Parameters with the noise of the profile, and the bits and cohorts of the case."""
        return dataclasses.replace(Params.profile(self.profile), k=self.k, m=self.m)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Strings found in one collection, and the cost of the search.

    Attributes
    ----------
    found, false : number of true and false strings that `discover` detects
    oracle, oracle_false : the same of the oracle
    candidates : number of strings that `discover` tests in its last step
    seconds : CPU seconds of `discover`
    megabytes : peak memory of the process so far
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
"""Parts of a search that adds one letter in each step. Each part has a sixth of the devices."""

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
"""Case of each row, by the name of the row. A full run searches each case with 20 seeds. A quick
run searches a reduced case with one seed."""


def discovery(*, quick: bool) -> list[Table]:
    """Find the strings of 20 collections for each case.

    A quick run has one collection for each case, and keeps few prefixes.
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
    """Return the row of a case without its name, with the columns of `discovery`."""
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
        # Linux reports KiB.
        megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def draw_strings(seed: int) -> list[str]:
    """Draw distinct strings of six letters."""
    rng = np.random.default_rng([seed, 7])
    strings: dict[str, None] = {}
    while len(strings) < N_STRINGS:
        strings["".join(LETTERS[i] for i in rng.integers(0, len(LETTERS), LENGTH))] = None
    return list(strings)


def count_oracle_detections(case: Case, population: Population, seed: int) -> tuple[int, int]:
    """Return the numbers of true and false strings that the oracle detects."""
    rng = np.random.default_rng([seed, 8])
    # The true prefixes that the search keeps, the number of all kept prefixes (prefixes of absent
    # strings included), and their length.
    true_prefixes, n_prefixes, prefix_length = {""}, 1, 0
    for part, n, part_seed in split_devices(case.parts, case.n_reports, seed):
        params = dataclasses.replace(case.params, part=part.name, insecure=True)
        simulated = simulate(population, params, n_reports=n, seed=part_seed)
        # Shares of the true prefixes, or whole strings, of this part that extend a kept prefix.
        shares: dict[str, float] = {}
        for text, n_devices in zip(population.values, simulated.devices, strict=True):
            if text[:prefix_length] in true_prefixes:
                piece = extract_part(part.name, text)
                shares[piece] = shares.get(piece, 0.0) + n_devices / n
        # The search extends each kept prefix by 0 to length - prefix_length letters. Each of these
        # extensions is a candidate.
        length = LENGTH if part.name == WHOLE else parse_prefix_length(part.name)
        n_candidates = n_prefixes * sum(
            len(LETTERS) ** added for added in range(length - prefix_length + 1)
        )
        z = _draw_scores(np.array(list(shares.values())), params, n, rng)
        if part.name == WHOLE:
            return detect(z, n_candidates - len(shares), rng)
        # The scores of absent prefixes are standard normal. Keep the best `keep` prefixes.
        all_scores = np.concatenate([z, rng.standard_normal(n_candidates - len(shares))])
        threshold = np.sort(all_scores)[::-1][: case.keep][-1]
        true_prefixes = {
            piece for piece, score in zip(shares, z, strict=True) if score >= threshold
        }
        n_prefixes, prefix_length = min(case.keep, n_candidates), length
    raise AssertionError("the last part is the whole")


def _draw_scores(
    share: NDArray[np.float64], params: Params, n: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw the z scores of strings with these shares of n devices. Each string has its own bit.

    The score is the excess of the bit's share of ones over p*, in standard errors of an absent
    string. A share s adds (q* - p*) s to the share of ones. The variance of the share of ones is
    (s q* (1 - q*) + (1 - s) p* (1 - p*)) / n.
    """
    gap = params.q_star - params.p_star
    absent_variance = params.p_star * (1 - params.p_star) / n
    variance = share * params.q_star * (1 - params.q_star) / n + (1 - share) * absent_variance
    excess = gap * share + np.sqrt(variance) * rng.standard_normal(len(share))
    return np.asarray(excess / absent_variance**0.5)


def detect(z: NDArray[np.float64], n_absent: int, rng: np.random.Generator) -> tuple[int, int]:
    """Apply Benjamini-Hochberg to present strings with scores `z` and to `n_absent` absent strings.

    Returns the numbers of true and false detections. The p-values of absent strings are uniform.
    Only p-values up to a limit are drawn (`_TAIL`): their number is nearly Poisson.
    """
    n = len(z) + n_absent
    limit = min(_TAIL * LEVEL * len(z) / n, 1.0)
    absent = limit * rng.random(rng.poisson(n_absent * limit))
    p_values = np.concatenate([stats.norm.sf(z), absent])
    ordered = np.sort(p_values)
    passing_ranks = np.flatnonzero(ordered <= LEVEL * np.arange(1, len(ordered) + 1) / n)
    # Without a passing rank nothing is detected: no p-value is below 0.
    threshold = ordered[passing_ranks[-1]] if len(passing_ranks) else -1.0
    return int((p_values[: len(z)] <= threshold).sum()), int((absent <= threshold).sum())
