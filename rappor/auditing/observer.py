"""An observer of many reports of one device.

Averaging washes the instantaneous noise out and lays the permanent response bare: that much is
conceded, and its loss is eps_inf. Were the permanent response drawn anew for each report, the
average would lay the truth bare, and the loss would be n eps_1 without end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rappor.auditing.pairs import choose_pairs, unpack
from rappor.errors import ParamsError
from rappor.privacy.loss import belief_bound, epsilon_1, epsilon_n
from rappor.progress import Progress
from rappor.protocol.encodings import encoder
from rappor.protocol.params import Params
from rappor.simulation.keystream import Keystream

REPORTS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""How many reports the observer has."""

_COHORTS: Final = 8
"""Cohorts that the devices are in, at most: they differ in nothing but the hashing."""

_CERTAIN: Final = 700.0
"""Log-likelihood ratio that stands for infinity, so that sums of it stay numbers."""

_Laws = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What n reports of one device tell, with a permanent response or without.

    `permanent_bits` and `true_bits` are the shares of bits that the observer gets right, zeros
    and ones alike, exact; one half is guessing. `values` is the share of devices whose value the
    observer names, simulated, with its standard error, and `bound` what no observer's share can
    exceed at `epsilon` nats. `ceiling` is the share that the true bits would give away: candidates
    with the same bits cannot be told apart.
    """

    n: int
    memoised: bool
    epsilon: float
    permanent_bits: float | None
    true_bits: float
    values: float
    std_error: float
    bound: float
    ceiling: float


def learn(
    params: Params,
    *,
    memoised: bool,
    reports: Sequence[int] = REPORTS,
    devices: int = 1000,
    candidates: int = 100,
    seed: int | None = None,
    progress: Progress = lambda _stage, _done, _total: None,
) -> list[Learned]:
    """Let an observer name the value of each device, after more and more reports.

    Each device holds one of the candidates, all as likely; the observer knows them, the
    parameters and the cohort, and names the most likely (the first of equals counts for its
    part). Encodings other than strings bring their own candidates.

    Raises ParamsError for counts outside their range.
    """
    for name, value, least in (("devices", devices, 10), ("candidates", candidates, 2)):
        if not least <= value <= 1_000_000:
            raise ParamsError(f"{name} must be an integer in [{least}, 1,000,000], got {value}")
    if not reports or list(reports) != sorted(set(reports)) or reports[0] < 1:
        raise ParamsError("reports must be integers of at least 1, each larger than the last")
    chance = Keystream(seed).generator()
    tables = _tables(params, candidates)
    held = chance.integers(len(tables[0]), size=devices)
    cohorts = chance.integers(len(tables), size=devices)
    truth = np.stack([tables[j][value] for j, value in zip(cohorts, held, strict=True)])
    bits = _respond(truth, params, chance) if memoised else truth
    low, high = (params.p, params.q) if memoised else (params.p_star, params.q_star)
    ones = np.zeros(truth.shape, dtype=np.int64)
    learned: list[Learned] = []
    for before, n in itertools.pairwise([0, *reports]):
        ones += chance.binomial(n - before, np.where(bits, high, low))
        named = _share_named(ones, _log_ratios(params, n, memoised=memoised), tables, cohorts, held)
        learned.append(_row(params, n, named, tables, memoised=memoised))
        progress("observing", len(learned), len(reports))
    return learned


def permanent_bits_known(params: Params, n: int) -> float:
    """Return the share of permanent bits that n reports give away.

    The observer says 1 where a permanent 1 is the likelier reason for what it saw: zeros and
    ones are right equally often in the mean, (1 + total variation) / 2.
    """
    shown = np.arange(n + 1)
    return _told_apart((stats.binom.pmf(shown, n, params.p), stats.binom.pmf(shown, n, params.q)))


def _row(
    params: Params,
    n: int,
    named: NDArray[np.float64],
    tables: Sequence[NDArray[np.bool_]],
    *,
    memoised: bool,
) -> Learned:
    candidates = len(tables[0])
    distinct = [len(np.unique(table, axis=0)) for table in tables]
    epsilon = epsilon_n(params, n) if memoised else n * epsilon_1(params)
    return Learned(
        n=n,
        memoised=memoised,
        epsilon=epsilon,
        permanent_bits=permanent_bits_known(params, n) if memoised else None,
        true_bits=_told_apart(_laws(params, n, memoised=memoised)),
        values=float(named.mean()),
        std_error=float(named.std(ddof=1) / math.sqrt(len(named))),
        bound=belief_bound(epsilon, 1 / candidates)[1],
        ceiling=float(np.mean(distinct)) / candidates,
    )


def _tables(params: Params, candidates: int) -> list[NDArray[np.bool_]]:
    """Return the candidates' bits, (candidates, k), in each cohort that is looked at."""
    encode = encoder(params)
    if encode.hashed:
        texts = [f"candidate{number:06}.com" for number in range(candidates)]
    else:
        texts = list(dict.fromkeys(text for pair in choose_pairs(params) for text in pair))
    values = [encode.parse_value(text) for text in texts]
    return [
        unpack(b"".join(encode.encode(value, j) for value in values), params)
        for j in range(min(params.m, _COHORTS))
    ]


def _respond(
    truth: NDArray[np.bool_], params: Params, chance: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw permanent responses."""
    u = chance.random(truth.shape)
    return (u < params.f / 2) | (truth & (u >= params.f))


def _laws(params: Params, n: int, *, memoised: bool) -> _Laws:
    """Return the chances of 0 to n ones at a true 0 and at a true 1."""
    shown = np.arange(n + 1)
    if not memoised:
        return stats.binom.pmf(shown, n, params.p_star), stats.binom.pmf(shown, n, params.q_star)
    zero, one = stats.binom.pmf(shown, n, params.p), stats.binom.pmf(shown, n, params.q)
    a = params.f / 2
    return (1 - a) * zero + a * one, a * zero + (1 - a) * one


def _told_apart(laws: _Laws) -> float:
    """Return how often the likelier of two laws is the right one: (1 + total variation) / 2."""
    return min(1.0, float(np.maximum(*laws).sum() / 2))


def _log_ratios(params: Params, n: int, *, memoised: bool) -> NDArray[np.float64]:
    """Return (n + 1,) float64, ln of how much likelier a true 1 is than a true 0."""
    shown = np.arange(n + 1)
    low, high = (params.p, params.q) if memoised else (params.p_star, params.q_star)
    with np.errstate(divide="ignore", invalid="ignore"):  # what cannot happen speaks for none
        zero, one = stats.binom.logpmf(shown, n, low), stats.binom.logpmf(shown, n, high)
        if memoised:
            a = params.f / 2
            zero, one = (
                np.logaddexp(math.log1p(-a) + zero, np.log(a) + one),
                np.logaddexp(np.log(a) + zero, math.log1p(-a) + one),
            )
        ratios = np.nan_to_num(one - zero)
    return np.clip(ratios, -_CERTAIN, _CERTAIN)


def _share_named(
    ones: NDArray[np.int64],
    ratios: NDArray[np.float64],
    tables: Sequence[NDArray[np.bool_]],
    cohorts: NDArray[np.int64],
    held: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return (devices,) float64: 1 where its value scores highest, less where others equal it."""
    named = np.empty(len(held))
    for j, table in enumerate(tables):
        rows = np.flatnonzero(cohorts == j)
        scores = ratios[ones[rows]] @ table.T.astype(np.float64)
        best = scores.max(axis=1, keepdims=True)
        equal = scores >= best - 1e-9 * np.maximum(1.0, np.abs(best))
        right = equal[np.arange(len(rows)), held[rows]]
        named[rows] = right / equal.sum(axis=1)
    return named
