"""The named populations on which accuracy is measured, and their candidates.

A population is a list of strings and their shares. A collection adds the candidates that a decode
tests: some or all strings of the population, and absent strings, which no device has.

The strings contain the seed, so the strings of each collection set other bits. A mean over
collections therefore does not depend on the bits of one collection, which may be lucky.

Each public function of this module has the name of a population. It takes a seed and returns a
collection (`from_weights` takes the weights, too). `POPULATIONS` has the functions by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from rappor.simulation.population import Population, english_words


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collection:
    """A population, and the candidates that a decode tests.

    Attributes
    ----------
    population : the true values and their shares.
    candidates : c distinct strings: strings of devices by falling share, then absent strings.
    shares : (c,) float64. The true share of each candidate, 0 for absent strings.
    """

    population: Population
    candidates: list[str]
    shares: NDArray[np.float64]

    @property
    def non_candidate_share(self) -> float:
        """Share of the devices whose string is not among the candidates."""
        return max(0.0, float(1 - self.shares.sum()))


def exp(seed: int) -> Collection:
    """Return weights exp(-.05 i) of 100 strings.

    The other candidates are 100 absent strings ([EPK14] section 5.2).
    """
    return _collect(_weigh_exponentially(), listed=np.arange(100), n_absent=100, seed=seed)


def zipf_half(seed: int) -> Collection:
    """Return Zipf's law over 1,000 strings. A random half of them are candidates."""
    # The second number separates this stream of random numbers from others of the same seed.
    listed = np.random.default_rng([seed, 1]).choice(1000, size=500, replace=False)
    return _collect(_weigh_by_rank(), listed=listed, n_absent=0, seed=seed)


def uniform(seed: int) -> Collection:
    """Return 500 equally frequent strings, and 500 absent candidates."""
    return _collect(np.ones(500), listed=np.arange(500), n_absent=500, seed=seed)


def one_heavy(seed: int) -> Collection:
    """Return one string on 90 % of the devices, and 99 strings on the rest.

    100 further candidates are absent.
    """
    weights = np.concatenate([[0.9], np.full(99, 0.1 / 99)])
    return _collect(weights, listed=np.arange(100), n_absent=100, seed=seed)


def exp_missing(seed: int) -> Collection:
    """Return `exp` without ten of its 100 candidates, two of the top ten among them."""
    return _collect(
        _weigh_exponentially(), listed=_drop_a_tenth(100, seed), n_absent=100, seed=seed
    )


def zipf_missing(seed: int) -> Collection:
    """Return Zipf's law over 1,000 strings, 900 of them candidates, and 1,000 absent candidates."""
    return _collect(_weigh_by_rank(), listed=_drop_a_tenth(1000, seed), n_absent=1000, seed=seed)


def falling(seed: int) -> Collection:
    """Return shares that fall as (3 + i)^-1.1, i = 0..149, and 150 absent candidates."""
    weights = np.arange(3.0, 153.0) ** -1.1
    return _collect(weights, listed=np.arange(150), n_absent=150, seed=seed)


def ten(seed: int) -> Collection:
    """Return ten equally frequent strings, and ten absent candidates."""
    return _collect(np.ones(10), listed=np.arange(10), n_absent=10, seed=seed)


def words(seed: int) -> Collection:
    """Return the 50,000 words of `rappor demo`.

    The 10,000 most frequent words are candidates. Only the frequencies are used: the strings are
    names with the seed, as in every population of this module.
    """
    weights = english_words().weights
    most_frequent = np.argsort(-weights, kind="stable")[:10_000]
    return _collect(weights, listed=most_frequent, n_absent=0, seed=seed)


def from_weights(weights: NDArray[np.float64], n_absent: int, seed: int) -> Collection:
    """Return a population of these weights. All its strings, and absent strings, are candidates."""
    return _collect(weights, listed=np.arange(len(weights)), n_absent=n_absent, seed=seed)


def _weigh_lognormally(n: int, deviation: float) -> NDArray[np.float64]:
    """Return the quantiles of a lognormal distribution at n evenly spaced probabilities."""
    probabilities = (np.arange(n) + 0.5) / n
    return np.asarray(np.exp(deviation * special.ndtri(probabilities)))


def _weigh_by_zipf(n: int, exponent: float) -> NDArray[np.float64]:
    """Return n weights by Zipf's law: rank^-exponent."""
    return np.asarray(np.arange(1.0, n + 1) ** -exponent)


_SEASON: Final = 1 + 0.1 * np.sin(2 * np.pi * np.arange(365) / 365)
"""Weights of 365 strings, such as birthdays. They differ by at most a tenth from their mean."""
_TWO_LEVELS: Final = np.repeat([0.05, 0.005], [10, 100])
"""Weights of ten frequent and a hundred rare strings. No distribution of one shape fits them."""

SIMILAR_SHARES: Final[dict[str, tuple[NDArray[np.float64], int]]] = {
    "365 nearly equal": (_SEASON, 0),
    "100 equal + 300": (np.ones(100), 300),
    "30 equal + 30": (np.ones(30), 30),
    "100 equal + 400": (np.ones(100), 400),
    "lognormal .5, 200 + 200": (_weigh_lognormally(200, 0.5), 200),
    "two levels + 200": (_TWO_LEVELS, 200),
    "50 equal + 50": (np.ones(50), 50),
    "12 equal + 12": (np.ones(12), 12),
    "lognormal .5, 500 + 500": (_weigh_lognormally(500, 0.5), 500),
    "two levels": (_TWO_LEVELS, 0),
    "300 equal + 300": (np.ones(300), 300),
    "a falling line, 100 + 100": (np.arange(100.0, 0.0, -1.0), 100),
    "lognormal 1, 200 + 200": (_weigh_lognormally(200, 1.0), 200),
    "Zipf .5, 300 + 300": (_weigh_by_zipf(300, 0.5), 300),
    "Zipf .8, 50 + 50": (_weigh_by_zipf(50, 0.8), 50),
    "2,000 equal + 500": (np.ones(2000), 500),
}
"""Weights of a population and its number of absent candidates, by name.

Most populations have similar shares. An estimator whose prior distribution of shares has a fixed
shape fails on some of them.
"""

POPULATIONS: dict[str, Callable[[int], Collection]] = {
    "exp": exp,
    "zipf_half": zipf_half,
    "uniform": uniform,
    "one_heavy": one_heavy,
    "zipf_missing": zipf_missing,
    "exp_missing": exp_missing,
    "falling": falling,
    "ten": ten,
    "words": words,
    **{name: partial(from_weights, weights, n) for name, (weights, n) in SIMILAR_SHARES.items()},
}
"""Functions that draw a collection from a seed, by the name of the population. Two calls with the
same seed return the same collection, so benchmarks before and after a change are comparable."""


def _weigh_exponentially() -> NDArray[np.float64]:
    """Return the weights exp(-.05 i) of 100 strings, i = 0..99."""
    weights: NDArray[np.float64] = np.exp(-0.05 * np.arange(100))
    return weights


def _weigh_by_rank() -> NDArray[np.float64]:
    """Return the weights 1 / rank of 1,000 strings."""
    return np.asarray(1 / np.arange(1.0, 1001.0), dtype=np.float64)


def _drop_a_tenth(n: int, seed: int) -> NDArray[np.int64]:
    """Return the indices of n strings without n/10 random strings.

    Two of the dropped strings are among the first ten, because frequent strings that are no
    candidates disturb the candidates most.
    """
    rng = np.random.default_rng([seed, 2])
    frequent = rng.choice(10, size=2, replace=False)
    rarer = 10 + rng.choice(n - 10, size=n // 10 - 2, replace=False)
    return np.setdiff1d(np.arange(n, dtype=np.int64), np.concatenate([frequent, rarer]))


def _collect(
    weights: NDArray[np.float64], *, listed: NDArray[np.int64], n_absent: int, seed: int
) -> Collection:
    """Create a collection. `listed` are the indices of the strings that are candidates."""
    names = [f"{seed}/true/{i}" for i in range(len(weights))]
    population = Population(names, weights)
    listed = np.sort(listed)
    absent = [f"{seed}/absent/{i}" for i in range(n_absent)]
    return Collection(
        population=population,
        candidates=[names[i] for i in listed] + absent,
        shares=np.concatenate([population.weights[listed], np.zeros(n_absent)]),
    )
