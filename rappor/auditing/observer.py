"""An observer of many reports of one device.

Averaging removes the instantaneous noise and recovers the permanent response. The design concedes
this: the loss of the permanent response itself is epsilon_inf. If each report drew a permanent
response of its own, averaging would recover the true bits, and n reports would lose n epsilon_1
without end.
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
from rappor.protocol.encodings import encoder
from rappor.protocol.loss import epsilon_1, epsilon_n, posterior_bound
from rappor.protocol.params import Params
from rappor.simulation.keystream import Keystream

REPORTS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""How many reports the observer has, on a logarithmic scale."""

_MOST: Final = 1_000_000
"""Most devices and candidates: the counts of a million devices of 128 bits take a gigabyte."""

_COHORTS: Final = 8
"""Cohorts that the devices are in, at most: they differ in nothing but the hashing."""

_CERTAIN: Final = 700.0
"""Log-likelihood ratio that stands for infinity: e^700 is near the largest float."""

_ROUNDING: Final = 1e-9
"""Relative difference of two scores that counts as none: sums of k ratios round to 1e-13."""

_Distributions = tuple[Floats, Floats]
"""(n + 1,) float64 twice: probabilities of 0 to n ones at a true 0 and at a true 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What n reports of one device tell, with one permanent response or with redrawn ones.

    `permanent_bits` and `true_bits` are the shares of bits that the observer gets right, exact;
    zeros and ones count alike, so one half is guessing. `values` is the share of devices whose
    value the observer names, simulated, with its standard error. No observer's share can exceed
    `bound`, which follows from `epsilon`, the loss of the n reports in nats.
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
    """Let an observer name the value of each device, after more and more reports.

    Each device holds one of the candidates, all as likely; the observer knows them, the
    parameters and the cohort, and names the most likely candidate. Each of several equally
    likely ones counts for its part. Encodings other than strings bring their own candidates.

    Raises ParamsError for counts outside their range.
    """
    devices = read_count("devices", devices, 10, _MOST)
    candidates = read_count("candidates", candidates, 2, _MOST)
    _check_reports(reports)
    rng = Keystream(seed)
    group = _draw_devices(params, devices, candidates, rng.generator())
    memoised, redrawn = (
        _learn(params, group, reports, rng, progress, memoised=memoised)
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


def permanent_bits_known(params: Params, n: int) -> float:
    """Return the share of permanent bits that n reports give away.

    The observer says 1 where a permanent 1 explains the reports better: zeros and ones are right
    equally often on average, (1 + total variation) / 2.
    """
    ones = np.arange(n + 1)
    return _share_right((stats.binom.pmf(ones, n, params.p), stats.binom.pmf(ones, n, params.q)))


def _check_reports(reports: Sequence[int]) -> None:
    for before, n in itertools.pairwise([0, *reports]):
        check_integer("reports", n, 1)
        if n <= before:
            raise ParamsError(f"reports must grow, got {n} after {before}")
    if not reports:
        raise ParamsError("reports must have at least one number, got none")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Devices: the bits of all candidates by cohort, and each device's candidate and cohort.

    `tables` has a (candidates, k) bool array for each cohort; `values`, positions in it, and
    `cohorts` are (devices,) int64.
    """

    tables: Sequence[Booleans]
    values: Integers
    cohorts: Integers

    @property
    def n_candidates(self) -> int:
        """How many values a device may hold."""
        return len(self.tables[0])

    @property
    def ceiling(self) -> float:
        """The share of values that the true bits give away."""
        distinct = [len(np.unique(table, axis=0)) for table in self.tables]
        return float(np.mean(distinct)) / self.n_candidates

    def truth(self) -> Booleans:
        """Return the (devices, k) true bits."""
        each = zip(self.cohorts, self.values, strict=True)
        return np.stack([self.tables[cohort][value] for cohort, value in each])


def _draw_devices(
    params: Params, devices: int, candidates: int, rng: np.random.Generator
) -> _Group:
    encode = encoder(params)
    if encode.hashed:
        texts = [f"candidate{number:06}.com" for number in range(candidates)]
    else:
        texts = list(dict.fromkeys(text for pair in choose_pairs(params) for text in pair))
    values = [encode.parse_value(text) for text in texts]
    tables = [
        unpack(b"".join(encode.encode(value, cohort) for value in values), params)
        for cohort in range(min(params.m, _COHORTS))
    ]
    return _Group(
        tables=tables,
        values=rng.integers(len(values), size=devices),
        cohorts=rng.integers(len(tables), size=devices),
    )


def _learn(
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
    learned: list[Learned] = []
    for before, n in itertools.pairwise([0, *reports]):
        progress("observing", len(learned), len(reports))
        ones += rng.binomial(n - before, np.where(bits, high, low))
        named = _share_named(ones, _log_ratios(params, n, memoised=memoised), group)
        epsilon = epsilon_n(params, n) if memoised else n * epsilon_1(params)
        learned.append(
            Learned(
                n=n,
                memoised=memoised,
                epsilon=epsilon,
                permanent_bits=permanent_bits_known(params, n) if memoised else None,
                true_bits=_share_right(_distributions(params, n, memoised=memoised)),
                values=float(named.mean()),
                std_error=float(named.std(ddof=1) / math.sqrt(len(named))),
                bound=posterior_bound(epsilon, 1 / group.n_candidates)[1],
            )
        )
    return tuple(learned)


def _distributions(params: Params, n: int, *, memoised: bool) -> _Distributions:
    ones = np.arange(n + 1)
    if not memoised:
        return stats.binom.pmf(ones, n, params.p_star), stats.binom.pmf(ones, n, params.q_star)
    zero, one = stats.binom.pmf(ones, n, params.p), stats.binom.pmf(ones, n, params.q)
    f1, f0 = params.f1, params.f0
    return (1 - f1) * zero + f1 * one, f0 * zero + (1 - f0) * one


def _share_right(distributions: _Distributions) -> float:
    """Return how often the likelier of two distributions is right: (1 + total variation) / 2."""
    return min(1.0, float(np.maximum(*distributions).sum() / 2))


def _log_ratios(params: Params, n: int, *, memoised: bool) -> Floats:
    """Return (n + 1,) float64, ln of how much likelier a true 1 is than a true 0."""
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
    return np.clip(ratios, -_CERTAIN, _CERTAIN)


def _share_named(ones: Integers, ratios: Floats, group: _Group) -> Floats:
    """Return (devices,) float64: 1 where its value scores highest, less where others equal it."""
    named = np.empty(len(group.values))
    for cohort, table in enumerate(group.tables):
        rows = np.flatnonzero(group.cohorts == cohort)
        scores = ratios[ones[rows]] @ table.T.astype(np.float64)
        best = scores.max(axis=1, keepdims=True)
        equal = scores >= best - _ROUNDING * np.maximum(1.0, np.abs(best))
        right = equal[np.arange(len(rows)), group.values[rows]]
        named[rows] = right / equal.sum(axis=1)
    return named
