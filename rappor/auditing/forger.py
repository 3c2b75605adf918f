"""A forger who sends reports that no device made, to move the estimate of a string.

A forged report that sets all bits of a string counts as (1 - p*) / (q* - p*) reports of it, more
than one, because an honest report shows its bits with chance q* only. All ones lift the de-biased
counts of every bit at once. They have more ones than any honest device sends, and the decoder,
which knows that all shares sum to one, takes what lifts all bits alike for no string. Reports whose
other bits are drawn with chance p* look like any other, and move the decoder as the formula says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from rappor.auditing.pairs import unpack
from rappor.counts.counts import Counts
from rappor.counts.popcounts import popcount_range
from rappor.decoding.decoder import decode
from rappor.errors import ParamsError
from rappor.planning.detection_limit import standard_error
from rappor.progress import Progress
from rappor.protocol.encodings import encoder, encoding_of
from rappor.protocol.params import ONE, Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.keystream import Keystream
from rappor.simulation.population import Population

Forgery = Literal["all ones", "matched"]
"""All bits 1, or the target's bits 1 and the others as noise would have them."""

FORGERIES: Final[tuple[Forgery, ...]] = ("all ones", "matched")
SHARES: Final = (0.0001, 0.001, 0.01)
"""Forged reports as shares of all."""

TARGET: Final = "target.com"
"""A string that no device holds."""

_STRINGS: Final = 100
_BLOCK: Final = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """How far forged reports have moved the estimate of the target, in reports.

    `formula` is what (1 - p*) / (q* - p*) for each forged report makes. `bits` is the move of
    the de-biased counts of the target's bits, `decoded` that of the decoder's estimate, with its
    standard error over the runs. `counted` is the share of forged reports that came through.
    """

    share: float
    forgery: Forgery
    checked: bool
    counted: float
    formula: float
    bits: float
    decoded: float
    std_error: float


def shift(params: Params) -> float:
    """Return how many reports one forged report is worth to each string whose bits it sets."""
    return (1 - params.p_star) / (params.q_star - params.p_star)


def detectable_share(
    params: Params, n_reports: int, *, n_candidates: int, level: float = 0.05
) -> float:
    """Return the share of forged reports with which a fake is detected about half the time.

    At this share its estimate is at the limit of Bonferroni's correction in the mean.
    """
    if n_candidates < 1:
        raise ParamsError(f"n_candidates must be at least 1, got {n_candidates!r}")
    limit = NormalDist().inv_cdf(1 - level / n_candidates) * standard_error(params, n_reports)
    return limit / (shift(params) * n_reports)


def forge(
    params: Params,
    *,
    shares: Sequence[float] = SHARES,
    n_reports: int = 1_000_000,
    runs: int = 3,
    seed: int | None = None,
    progress: Progress = lambda _stage, _done, _total: None,
) -> list[Moved]:
    """Let a part of all reports be forged, and decode with and without the collector's check.

    The honest hold 100 strings with weights e^(-i/20) ([EPK14] 5.2); the target is held by
    nobody and is asked about with them. What is told is the difference of the target's estimate
    to that from the honest reports alone.

    Raises ParamsError for another encoding than strings or counts outside their range.
    """
    if not encoding_of(params).hashed:
        raise ParamsError(f"encoding must be bloom to forge a string, got {params.encoding!r}")
    if not 1000 <= n_reports <= 10**9 or not 2 <= runs <= 1000:
        raise ParamsError(
            "reports must be in [1,000, 1,000,000,000] and runs in [2, 1,000], "
            f"got {n_reports} and {runs}"
        )
    for share in shares:
        if not 0 < share < 1 or not 1 <= round(share * n_reports) < n_reports:
            raise ParamsError(
                f"share must be in (0, 1) and make at least one report of {n_reports:,}, "
                f"got {share!r}"
            )
    chance, moved = Keystream(seed), []
    for number, share in enumerate(shares):
        seen = []
        for run in range(runs):
            progress("forging", number * runs + run, len(shares) * runs)
            seen.append(_one_run(params, n_reports, share, chance.spawn(number * runs + run)))
        moved += [
            _summary(params, n_reports, share, key, [each[key] for each in seen]) for key in seen[0]
        ]
    return moved


_Key = tuple[Forgery, bool]
_Seen = tuple[float, float, float]


def _one_run(params: Params, n_reports: int, share: float, chance: Keystream) -> dict[_Key, _Seen]:
    """Return, for each forgery without and with check: share counted, both moves."""
    n_forged = round(share * n_reports)
    seed = int(chance.coins(1)[0])
    honest = simulate_counts(_population(), params, n_reports=n_reports - n_forged, seed=seed)
    before = _decoded(honest)
    seen: dict[_Key, _Seen] = {}
    for forgery in FORGERIES:
        for checked, added in zip(
            (False, True), _forged_counts(params, n_forged, forgery, chance), strict=True
        ):
            if checked and added.n_reports == n_forged:
                seen[forgery, True] = seen[forgery, False]  # nothing was refused
                continue
            moved = _decoded(honest + added) - before if added.n_reports else 0.0
            seen[forgery, checked] = added.n_reports / n_forged, _from_bits(added), moved
    return seen


def _population() -> Population:
    values = [f"string{i:03}.com" for i in range(_STRINGS)]
    return Population(values, [math.exp(-i / 20) for i in range(_STRINGS)])


def _decoded(counts: Counts) -> float:
    """Return the decoder's estimate of the target among the honest strings, in reports."""
    estimates = decode(counts, [*_population().values, TARGET])
    at = estimates.candidates.index(TARGET)
    return float(estimates.proportion[at]) * counts.n_reports


def _from_bits(counts: Counts) -> float:
    """Return the de-biased counts of the target's bits, summed over cohorts, in reports."""
    params = counts.params
    unbiased = (counts.ones - params.p_star * counts.reports[:, None]) / (
        params.q_star - params.p_star
    )
    target = _target_bits(params)
    return float(((unbiased * target).sum(axis=1) / target.sum(axis=1)).sum())


def _target_bits(params: Params) -> NDArray[np.bool_]:
    """Return (m, k) bool, the target's bits in each cohort."""
    encode = encoder(params)
    return unpack(b"".join(encode.encode(TARGET, j) for j in range(params.m)), params)


def _forged_counts(
    params: Params, n: int, forgery: Forgery, chance: Keystream
) -> tuple[Counts, Counts]:
    """Sum forged reports: all of them, and those with popcounts that honest devices send."""
    everything, passing = Counts.zero(params), Counts.zero(params)
    least, most = popcount_range(params)
    for packed, cohorts in _forged_reports(params, n, forgery, chance):
        ones = np.bitwise_count(packed).sum(axis=1, dtype=np.int64)
        passed = (least <= ones) & (ones <= most)
        everything += Counts.from_packed(packed, cohorts, params)
        passing += Counts.from_packed(packed[passed], cohorts[passed], params)
    return everything, passing


def _forged_reports(
    params: Params, n: int, forgery: Forgery, chance: Keystream
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """Yield blocks of packed forged reports and their cohorts."""
    target = _target_bits(params)
    for start in range(0, n, _BLOCK):
        size = min(_BLOCK, n - start)
        pick = chance.coins(size).astype(np.uint64) * np.uint64(params.m)
        cohorts = (pick >> np.uint64(32)).astype(np.int64)
        if forgery == "all ones":
            bits = np.ones((size, params.k), dtype=np.bool_)
        else:
            noise = chance.coins((size, params.k)) < params.p_star * ONE
            bits = target[cohorts] | noise
        yield np.packbits(bits, axis=1, bitorder="little"), cohorts


def _summary(params: Params, n_reports: int, share: float, key: _Key, runs: list[_Seen]) -> Moved:
    counted, bits, decoded = (np.array(each) for each in zip(*runs, strict=True))
    forgery, checked = key
    return Moved(
        share=share,
        forgery=forgery,
        checked=checked,
        counted=float(counted.mean()),
        formula=round(share * n_reports) * shift(params),
        bits=float(bits.mean()),
        decoded=float(decoded.mean()),
        std_error=float(decoded.std(ddof=1) / math.sqrt(len(decoded))),
    )
