"""Inference attack: an observer collects n reports of one device and guesses its bits and value.

Researchers and privacy engineers use it to express the loss of a parameter set as a share of right
guesses. The input is `Params`. The output is an `Exposure` with one row (`Learned`) for each n.

Two kinds of devices are compared:

- *memoized*: the device of the protocol. It draws one permanent response of its value and adds
  fresh noise (the instantaneous response) for each report.
- *redrawn*: a hypothetical device that draws a new permanent response for each report.

The n reports of a device show n noisy copies of each bit. Averaging the copies removes the
instantaneous noise. For a memoized device the average reveals the permanent response and nothing
behind it: the loss of any number of reports is at most epsilon_inf. For a redrawn device the
average reveals the true bits: the loss of n reports is n epsilon_1, without a limit.

Symbols of this module, for one bit and n reports of one device:

    p, q      probability of a reported 1 if the permanent bit is 0, 1
    f1        probability that the permanent bit is 1 although the true bit is 0
    f0        probability that the permanent bit is 0 although the true bit is 1
    p*, q*    probability of a reported 1 if the true bit is 0, 1 (permanent bit drawn anew)
    x         number of the n reports in which the bit is 1, from 0 to n
    B(n, r)   binomial distribution of x if each report shows a 1 with probability r
    loss      privacy loss: largest log-likelihood ratio of two values, in nats
    epsilon_1, epsilon_n, epsilon_inf     loss of 1 report, of n reports, of any number of reports

Distribution of x for a true bit:

    true bit    memoized                              redrawn
    0           (1 - f1) B(n, p) + f1 B(n, q)         B(n, p*)
    1           f0 B(n, p) + (1 - f0) B(n, q)         B(n, q*)

Two guesses follow from these distributions:

- A single bit: the observer names the true bit under which x is more probable. The share of right
  guesses is computed exactly, (1 + TV) / 2 with the total variation distance TV of the two rows.
- The value: the bits of a report are independent, so the log-likelihood of a candidate is the sum
  over the candidate's bits of ln(P(x | true 1) / P(x | true 0)), plus a term that is equal for all
  candidates. The observer names the candidate with the largest sum. The share of right names is
  simulated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import stats

from rappor.auditing.pairs import choose_pairs, repeat_in_fields, unpack
from rappor.base.errors import ParamsError
from rappor.base.progress import Progress, no_progress
from rappor.base.ranges import check_integer, read_count
from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.privacy.report_linkage import reports_to_recover
from rappor.protocol.encodings import get_encoder
from rappor.protocol.loss import epsilon_1, epsilon_n, posterior_bound
from rappor.protocol.params import Params
from rappor.simulation.keystream import Keystream

REPORTS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Numbers of reports (n) that the result has rows for, on a logarithmic scale.

1,000 daily reports take nearly three years. Under each named set of parameters
(`Params.profile`), 37 reports reveal all permanent bits of a device with probability .99.
"""

_MAX_COUNT: Final = 1_000_000
"""Largest number of devices and of candidates.

The limit bounds memory: the counts of a million devices of 128 bits take a gigabyte (8 bytes each).
"""

_MAX_COHORTS: Final = 8
"""Largest number of cohorts that the simulated devices are in.

The limit bounds memory: each cohort has a table of all candidates' bits. Cohorts differ only in
their hash functions, so more cohorts do not change the mean over devices.
"""

_MAX_LOG_RATIO: Final = 700.0
"""Log-likelihood ratio, in nats, that replaces infinity.

A number of ones that only one true bit can produce has an infinite ratio, and the sum of two
infinite ratios of opposite sign would be NaN. Finite ratios beyond 700 are cut too: e^700 is near
the largest float, so the bit is certain either way.
"""

_RELATIVE_TOLERANCE: Final = 1e-9
"""Relative difference below which the scores of two candidates are a tie.

Candidates with the same bits have the same score except for rounding, which is about 1e-13 in a sum
of k ratios. The tolerance lies far above the rounding and far below a real difference.
"""

_Distributions = tuple[Floats, Floats]
"""Two distributions of the number of ones x in n reports: given true bit 0, given true bit 1.

Each is an (n + 1,) array of probabilities, indexed by x.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Success of an observer who has n reports of one device.

    Attributes
    ----------
    n : int
        Number of reports of the device.
    memoized : bool
        True for a device of the protocol, False for the hypothetical device that draws a new
        permanent response for each report.
    epsilon : float
        Loss of the n reports in nats: epsilon_n, or n epsilon_1 if the response is redrawn.
    permanent_bits : float or None
        Share of bits of the permanent response that the observer guesses right, exact. Zeros and
        ones have equal weight, so 0.5 is the success of guessing blindly. None if the response is
        redrawn, because there is then no single permanent response.
    true_bits : float
        Share of true bits that the observer guesses right, exact, with the same weights.
    values : float
        Share of the simulated devices whose value the observer names. If t candidates are tied for
        the first rank, the device counts as 1 / t.
    std_error : float
        Standard error of `values`.
    bound : float
        Largest share of values that any observer can name, computed from `epsilon`.
    """

    n: int
    memoized: bool
    epsilon: float
    permanent_bits: float | None
    true_bits: float
    values: float
    std_error: float
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Result of the attack: the success of the observer for each number of reports.

    Attributes
    ----------
    devices : int
        Number of simulated devices.
    candidates : int
        Number of candidate values that the observer chooses from.
    memoized : tuple of Learned
        Rows for devices of the protocol, by increasing n.
    redrawn : tuple of Learned
        Rows for devices that draw a new permanent response for each report, by increasing n.
    ceiling : float
        Share of values that an observer of the true bits would name. The share is below 1 if two
        candidates have the same bits, because nobody can distinguish these candidates.
    reports_to_recover : int or None
        Number of reports after which all bits of the permanent response are known with probability
        .99. None if more than ten thousand reports are needed.
    """

    devices: int
    candidates: int
    memoized: tuple[Learned, ...]
    redrawn: tuple[Learned, ...]
    ceiling: float
    reports_to_recover: int | None


def inference_attack(
    params: Params,
    *,
    reports: Sequence[int] = REPORTS,
    devices: int = 1000,
    candidates: int = 100,
    seed: int | None = None,
    progress: Progress = no_progress,
) -> Exposure:
    """Simulate an observer who names the value of each device, from more and more reports.

    Each device has one of the candidates, all equally likely. The observer knows the candidates,
    the parameters and the device's cohort, and names the most likely candidate.

    Parameters
    ----------
    params : Params
        Parameters of the devices.
    reports : sequence of int
        Increasing numbers of reports.
    devices : int
        Number of simulated devices, from 10 to a million.
    candidates : int
        Number of candidates, from 2 to a million. Only encodings of strings use this number. Other
        encodings have few values, and all of these are candidates.
    seed : int, optional
        Seed of the simulation. By default each call draws another seed.
    progress : callable
        Called with a stage, the completed steps and all steps.

    Returns
    -------
    Exposure

    Raises
    ------
    ParamsError
        If `devices` or `candidates` is outside its range, or `reports` is empty or not increasing.

    Examples
    --------
    >>> from rappor import Params
    >>> from rappor.auditing import inference_attack
    >>> params = Params.profile("balanced")
    >>> exposure = inference_attack(params, reports=[1, 50], devices=100, seed=1)
    >>> f"{exposure.memoized[-1].true_bits:.1%}"
    '78.7%'
    """
    devices = read_count("devices", devices, 10, _MAX_COUNT)
    candidates = read_count("candidates", candidates, 2, _MAX_COUNT)
    _check_reports(reports)
    keystream = Keystream(seed)
    population = _draw_devices(params, devices, candidates, keystream.generator())
    memoized, redrawn = (
        _simulate_observer(params, population, reports, keystream, progress, memoized=memoized)
        for memoized in (True, False)
    )
    return Exposure(
        devices=devices,
        candidates=population.n_candidates,
        memoized=memoized,
        redrawn=redrawn,
        ceiling=population.ceiling,
        reports_to_recover=reports_to_recover(params),
    )


def compute_permanent_bits_known(params: Params, n: int) -> float:
    """Compute the share of permanent bits that an observer of n reports guesses right.

    The observer names 1 if the number of ones is more probable under q than under p. Zeros and ones
    have equal weight, so the share is (1 + TV) / 2, with TV the total variation distance of
    B(n, p) and B(n, q).
    """
    ones = np.arange(n + 1)
    return _compute_share_right(
        (stats.binom.pmf(ones, n, params.p), stats.binom.pmf(ones, n, params.q))
    )


def _check_reports(reports: Sequence[int]) -> None:
    """Raise ParamsError unless the numbers of reports are positive and strictly increasing."""
    for previous, n in itertools.pairwise([0, *reports]):
        check_integer("reports", n, 1)
        if n <= previous:
            raise ParamsError(f"reports must grow, got {n} after {previous}")
    if not reports:
        raise ParamsError("reports must have at least one number, got none")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Population:
    """Simulated devices: the bits of all candidates in each cohort, and each device's value.

    Attributes
    ----------
    tables : for each cohort, a (candidates, k) bool array with the true bits of the candidates.
    values : (devices,) int64, index of each device's candidate, a row of its cohort's table.
    cohorts : (devices,) int64, cohort of each device, an index of `tables`.
    """

    tables: Sequence[Booleans]
    values: Integers
    cohorts: Integers

    @property
    def n_candidates(self) -> int:
        """Number of candidates."""
        return len(self.tables[0])

    @property
    def ceiling(self) -> float:
        """Share of values that the true bits reveal, as a mean over cohorts.

        Of c candidates with the same bits, the observer names the right one with probability 1 / c.
        Each distinct bit pattern so adds c (1 / c) = 1 right name, and the share of values is the
        number of distinct patterns divided by the number of candidates.
        """
        n_patterns = [len(np.unique(table, axis=0)) for table in self.tables]
        return float(np.mean(n_patterns)) / self.n_candidates

    def compute_true_bits(self) -> Booleans:
        """Return the (devices, k) true bits of the devices' values."""
        cohorts_and_values = zip(self.cohorts, self.values, strict=True)
        return np.stack([self.tables[cohort][value] for cohort, value in cohorts_and_values])


def _draw_devices(
    params: Params, devices: int, candidates: int, rng: np.random.Generator
) -> _Population:
    """Draw the value and the cohort of each device, uniformly."""
    encoder = get_encoder(params)
    if encoder.is_hashed:
        texts = [
            repeat_in_fields(params, f"candidate{number:06}.com") for number in range(candidates)
        ]
    else:
        # An encoding with listed values accepts no invented string. `choose_pairs` returns pairs of
        # its values for the audit. Here each of these values is needed once: dict.fromkeys removes
        # repetitions and keeps the order.
        texts = list(dict.fromkeys(text for pair in choose_pairs(params) for text in pair))
    values = [encoder.parse_value(text) for text in texts]
    tables = [
        unpack(b"".join(encoder.encode(value, cohort) for value in values), params)
        for cohort in range(min(params.m, _MAX_COHORTS))
    ]
    return _Population(
        tables=tables,
        values=rng.integers(len(values), size=devices),
        cohorts=rng.integers(len(tables), size=devices),
    )


def _simulate_observer(
    params: Params,
    population: _Population,
    reports: Sequence[int],
    keystream: Keystream,
    progress: Progress,
    *,
    memoized: bool,
) -> tuple[Learned, ...]:
    """Simulate the reports of all devices, and let the observer guess after each number of reports.

    Only the number of ones of each bit matters to the observer, so each step adds a binomial number
    of ones instead of single reports.
    """
    true_bits, rng = population.compute_true_bits(), keystream.spawn(int(memoized)).generator()
    # One uniform number decides each permanent bit: below f1 it is forced to 1, from f1 to f it is
    # forced to 0, and above f it is the true bit. A redrawn device does not use these numbers.
    uniform = rng.random(true_bits.shape)
    if memoized:
        repeated_bits = (uniform < params.f1) | (true_bits & (uniform >= params.f))
        p_one_given_0, p_one_given_1 = params.p, params.q
    else:
        # A new permanent response for each report: the reports repeat only the true bits.
        repeated_bits = true_bits
        p_one_given_0, p_one_given_1 = params.p_star, params.q_star
    ones = np.zeros(true_bits.shape, dtype=np.int64)
    results: list[Learned] = []
    for previous, n in itertools.pairwise([0, *reports]):
        progress("observing", len(results), len(reports))
        ones += rng.binomial(n - previous, np.where(repeated_bits, p_one_given_1, p_one_given_0))
        log_ratios = _compute_log_ratios(params, n, memoized=memoized)
        p_named = _compute_p_named(ones, log_ratios, population)
        epsilon = epsilon_n(params, n) if memoized else n * epsilon_1(params)
        results.append(
            Learned(
                n=n,
                memoized=memoized,
                epsilon=epsilon,
                permanent_bits=compute_permanent_bits_known(params, n) if memoized else None,
                true_bits=_compute_share_right(
                    _compute_distributions(params, n, memoized=memoized)
                ),
                values=float(p_named.mean()),
                std_error=float(p_named.std(ddof=1) / math.sqrt(len(p_named))),
                bound=posterior_bound(epsilon, 1 / population.n_candidates)[1],
            )
        )
    return tuple(results)


def _compute_distributions(params: Params, n: int, *, memoized: bool) -> _Distributions:
    """Compute the distributions of the number of ones in n reports: the table of the module."""
    ones = np.arange(n + 1)
    if not memoized:
        return stats.binom.pmf(ones, n, params.p_star), stats.binom.pmf(ones, n, params.q_star)
    from_0, from_1 = stats.binom.pmf(ones, n, params.p), stats.binom.pmf(ones, n, params.q)
    f1, f0 = params.f1, params.f0
    return (1 - f1) * from_0 + f1 * from_1, f0 * from_0 + (1 - f0) * from_1


def _compute_share_right(distributions: _Distributions) -> float:
    """Compute the share of right guesses of an observer who names the likelier distribution.

    With equal prior weights the share is sum over x of max(P_0(x), P_1(x)) / 2 = (1 + TV) / 2.
    Rounding can give slightly more than 1, hence the minimum.
    """
    return min(1.0, float(np.maximum(*distributions).sum() / 2))


def _compute_log_ratios(params: Params, n: int, *, memoized: bool) -> Floats:
    """Compute ln(P(x | true bit 1) / P(x | true bit 0)) for each number of ones x: (n + 1,), nats.

    The mixtures of the module's table are computed as logarithms (`logaddexp`), because the
    probabilities of many reports underflow.
    """
    ones = np.arange(n + 1)
    p_one_given_0, p_one_given_1 = (
        (params.p, params.q) if memoized else (params.p_star, params.q_star)
    )
    # With p = 0, q = 1 or f = 0 some logarithms are of 0. A number of ones that neither true bit
    # can produce gives -inf - -inf = NaN, which becomes the ratio 0: no evidence.
    with np.errstate(divide="ignore", invalid="ignore"):
        log_p_given_0 = stats.binom.logpmf(ones, n, p_one_given_0)
        log_p_given_1 = stats.binom.logpmf(ones, n, p_one_given_1)
        if memoized:
            f1, f0 = params.f1, params.f0
            log_p_given_0, log_p_given_1 = (
                np.logaddexp(math.log1p(-f1) + log_p_given_0, np.log(f1) + log_p_given_1),
                np.logaddexp(np.log(f0) + log_p_given_0, math.log1p(-f0) + log_p_given_1),
            )
        ratios = np.nan_to_num(log_p_given_1 - log_p_given_0)
    return np.clip(ratios, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)


def _compute_p_named(ones: Integers, ratios: Floats, population: _Population) -> Floats:
    """Compute, by device, the probability that the observer names the device's value.

    Parameters
    ----------
    ones : (devices, k) int64. Number of reports in which each bit is 1.
    ratios : (n + 1,). Log-likelihood ratio in nats for each number of ones.
    population : the candidates' bits and the devices' values.

    Returns
    -------
    (devices,) float64. 1 if the device's value alone has the largest score, 1 / t if t candidates
    are tied with it, and 0 if another candidate has a larger score.
    """
    named = np.empty(len(population.values))
    for cohort, table in enumerate(population.tables):
        rows = np.flatnonzero(population.cohorts == cohort)
        # (devices of the cohort, candidates): sum of the ratios over the candidate's bits.
        scores = ratios[ones[rows]] @ table.T.astype(np.float64)
        best = scores.max(axis=1, keepdims=True)
        is_tied = scores >= best - _RELATIVE_TOLERANCE * np.maximum(1.0, np.abs(best))
        is_right = is_tied[np.arange(len(rows)), population.values[rows]]
        named[rows] = is_right / is_tied.sum(axis=1)
    return named
