"""Inference attack: what an observer infers from many reports of one device.

Averaging removes the instantaneous noise and recovers the permanent response. The design accepts
this: the loss of the permanent response itself is epsilon_inf. If each report drew a new permanent
response, averaging would recover the true bits, and n reports would lose n epsilon_1, without a
limit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import stats

from rappor.auditing.pairs import choose_pairs, unpack
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
"""Numbers of reports that the observer has, on a logarithmic scale."""

_MAX_COUNT: Final = 1_000_000
"""Largest number of devices and candidates. A million devices of 128 bits take a gigabyte."""

_MAX_COHORTS: Final = 8
"""Largest number of cohorts of the devices. Cohorts differ only in their hash functions."""

_MAX_LOG_RATIO: Final = 700.0
"""Log-likelihood ratio that replaces infinity. e^700 is near the largest float."""

_RELATIVE_TOLERANCE: Final = 1e-9
"""Relative difference below which two scores are equal. Sums of k ratios round to 1e-13."""

_Distributions = tuple[Floats, Floats]
"""Two (n + 1,) arrays: probabilities of 0 to n ones, given true bit 0 and given true bit 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Success of an observer with n reports of one device.

    `permanent_bits` and `true_bits` are the exact shares of bits that the observer guesses right.
    Zeros and ones have equal weight, so 0.5 is guessing. `values` is the simulated share of devices
    whose value the observer names, with its standard error. No observer's share can exceed `bound`,
    which follows from `epsilon`, the loss of the n reports in nats. `memoised` is False for the
    hypothetical device that draws a new permanent response for each report.
    """

    n: int
    memoised: bool
    epsilon: float
    permanent_bits: float | None
    true_bits: float
    values: float
    std_error: float
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What an observer of many reports of one device learns.

    `memoised` is what the protocol exposes, `redrawn` what it would if each report had a
    permanent response of its own. `ceiling` is the share of values that the true bits would give
    away: candidates with the same bits are indistinguishable. After `reports_to_recover` reports
    all bits of the permanent response are known with probability .99 (None beyond ten thousand).
    """

    devices: int
    candidates: int
    memoised: tuple[Learned, ...]
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
    the parameters and the cohort, and names the most likely candidate. A tie between several
    candidates counts as the corresponding fraction. Encodings other than strings use their own
    candidates.

    Parameters
    ----------
    params : Params
        Parameters of the devices.
    reports : sequence of int
        Increasing numbers of reports.
    devices : int
        Number of simulated devices, from 10 to a million.
    candidates : int
        Number of candidates, from 2 to a million.
    seed : int, optional
        Seed of the simulation.
    progress : callable
        Called with a stage, the completed steps and all steps.

    Returns
    -------
    Exposure

    Raises
    ------
    ParamsError
        If a count is outside its range.

    Examples
    --------
    >>> from rappor import Params
    >>> from rappor.auditing import inference_attack
    >>> params = Params.profile("balanced")
    >>> exposure = inference_attack(params, reports=[1, 50], devices=100, seed=1)
    >>> f"{exposure.memoised[-1].true_bits:.1%}"
    '78.7%'
    """
    devices = read_count("devices", devices, 10, _MAX_COUNT)
    candidates = read_count("candidates", candidates, 2, _MAX_COUNT)
    _check_reports(reports)
    rng = Keystream(seed)
    group = _draw_devices(params, devices, candidates, rng.generator())
    memoised, redrawn = (
        _simulate_observer(params, group, reports, rng, progress, memoised=memoised)
        for memoised in (True, False)
    )
    return Exposure(
        devices=devices,
        candidates=group.n_candidates,
        memoised=memoised,
        redrawn=redrawn,
        ceiling=group.ceiling,
        reports_to_recover=reports_to_recover(params),
    )


def compute_permanent_bits_known(params: Params, n: int) -> float:
    """Compute the share of permanent bits that an observer of n reports guesses right.

    The observer guesses 1 if a permanent 1 explains the reports better. Averaged over zeros and
    ones, the share is (1 + total variation) / 2.
    """
    ones = np.arange(n + 1)
    return _compute_share_right(
        (stats.binom.pmf(ones, n, params.p), stats.binom.pmf(ones, n, params.q))
    )


def _check_reports(reports: Sequence[int]) -> None:
    for before, n in itertools.pairwise([0, *reports]):
        check_integer("reports", n, 1)
        if n <= before:
            raise ParamsError(f"reports must grow, got {n} after {before}")
    if not reports:
        raise ParamsError("reports must have at least one number, got none")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Simulated devices: bits of all candidates by cohort, and each device's candidate.

    `tables` contains a (candidates, k) bool array for each cohort. `values` (indices of candidates)
    and `cohorts` are (devices,) int64.
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
        """Largest share of values that the true bits reveal."""
        distinct = [len(np.unique(table, axis=0)) for table in self.tables]
        return float(np.mean(distinct)) / self.n_candidates

    def truth(self) -> Booleans:
        """Return the (devices, k) true bits."""
        each = zip(self.cohorts, self.values, strict=True)
        return np.stack([self.tables[cohort][value] for cohort, value in each])


def _draw_devices(
    params: Params, devices: int, candidates: int, rng: np.random.Generator
) -> _Group:
    encode = get_encoder(params)
    if encode.is_hashed:
        texts = [f"candidate{number:06}.com" for number in range(candidates)]
    else:
        texts = list(dict.fromkeys(text for pair in choose_pairs(params) for text in pair))
    values = [encode.parse_value(text) for text in texts]
    tables = [
        unpack(b"".join(encode.encode(value, cohort) for value in values), params)
        for cohort in range(min(params.m, _MAX_COHORTS))
    ]
    return _Group(
        tables=tables,
        values=rng.integers(len(values), size=devices),
        cohorts=rng.integers(len(tables), size=devices),
    )


def _simulate_observer(
    params: Params,
    group: _Group,
    reports: Sequence[int],
    keystream: Keystream,
    progress: Progress,
    *,
    memoised: bool,
) -> tuple[Learned, ...]:
    truth, rng = group.truth(), keystream.spawn(int(memoised)).generator()
    u = rng.random(truth.shape)
    bits = (u < params.f1) | (truth & (u >= params.f)) if memoised else truth
    low, high = (params.p, params.q) if memoised else (params.p_star, params.q_star)
    ones = np.zeros(truth.shape, dtype=np.int64)
    results: list[Learned] = []
    for before, n in itertools.pairwise([0, *reports]):
        progress("observing", len(results), len(reports))
        ones += rng.binomial(n - before, np.where(bits, high, low))
        named = _compute_share_named(ones, _compute_log_ratios(params, n, memoised=memoised), group)
        epsilon = epsilon_n(params, n) if memoised else n * epsilon_1(params)
        results.append(
            Learned(
                n=n,
                memoised=memoised,
                epsilon=epsilon,
                permanent_bits=compute_permanent_bits_known(params, n) if memoised else None,
                true_bits=_compute_share_right(
                    _compute_distributions(params, n, memoised=memoised)
                ),
                values=float(named.mean()),
                std_error=float(named.std(ddof=1) / math.sqrt(len(named))),
                bound=posterior_bound(epsilon, 1 / group.n_candidates)[1],
            )
        )
    return tuple(results)


def _compute_distributions(params: Params, n: int, *, memoised: bool) -> _Distributions:
    ones = np.arange(n + 1)
    if not memoised:
        return stats.binom.pmf(ones, n, params.p_star), stats.binom.pmf(ones, n, params.q_star)
    zero, one = stats.binom.pmf(ones, n, params.p), stats.binom.pmf(ones, n, params.q)
    f1, f0 = params.f1, params.f0
    return (1 - f1) * zero + f1 * one, f0 * zero + (1 - f0) * one


def _compute_share_right(distributions: _Distributions) -> float:
    """Compute the share of right guesses of the likelier distribution: (1 + TV) / 2."""
    return min(1.0, float(np.maximum(*distributions).sum() / 2))


def _compute_log_ratios(params: Params, n: int, *, memoised: bool) -> Floats:
    """Compute (n + 1,) log-likelihood ratios of true bit 1 against 0, by number of ones."""
    ones = np.arange(n + 1)
    low, high = (params.p, params.q) if memoised else (params.p_star, params.q_star)
    with np.errstate(divide="ignore", invalid="ignore"):  # a count that cannot occur has ratio 0
        zero, one = stats.binom.logpmf(ones, n, low), stats.binom.logpmf(ones, n, high)
        if memoised:
            f1, f0 = params.f1, params.f0
            zero, one = (
                np.logaddexp(math.log1p(-f1) + zero, np.log(f1) + one),
                np.logaddexp(np.log(f0) + zero, math.log1p(-f0) + one),
            )
        ratios = np.nan_to_num(one - zero)
    return np.clip(ratios, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)


def _compute_share_named(ones: Integers, ratios: Floats, group: _Group) -> Floats:
    """Compute (devices,) scores: 1 if the device's value ranks first, 1 / ties if others tie."""
    named = np.empty(len(group.values))
    for cohort, table in enumerate(group.tables):
        rows = np.flatnonzero(group.cohorts == cohort)
        scores = ratios[ones[rows]] @ table.T.astype(np.float64)
        best = scores.max(axis=1, keepdims=True)
        equal = scores >= best - _RELATIVE_TOLERANCE * np.maximum(1.0, np.abs(best))
        right = equal[np.arange(len(rows)), group.values[rows]]
        named[rows] = right / equal.sum(axis=1)
    return named
