"""A forger who sends reports that no device sent, to move the estimate of a string.

A forged report that sets all bits of a string counts as (1 - p*) / (q* - p*) reports of it, more
than one, because an honest report sets each of its bits with probability q* only. Forged reports
of all ones lift the de-biased counts of every bit at once. They have more ones than any honest
device sends, and the decoder, which knows that all shares sum to one, assigns what lifts all bits
alike to no string. Forged reports whose other bits are one with probability p* look like honest
ones, and move the decoder as the formula says.

The background takes what lifts or lowers all bits alike. So a forged report of which a share w of
the other bits is one lifts a string by (1 - p*) / (q* - p*) less (w - p*) / (q* - p*), that is by
(1 - w) / (q* - p*) reports, and one without the string's bits takes w / (q* - p*) from it. With
w = p* they look honest. The collector's check of popcounts admits others too: fewer ones lift more,
and leave room for the bits of many strings; more ones take more. This forger spreads the other ones
evenly. One who knows the candidates chooses them, and does more: `rappor/decoding/breakdown.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rappor.auditing.pairs import unpack
from rappor.counts.counts import Counts
from rappor.counts.popcounts import popcount_range
from rappor.decoding.decoder import decode
from rappor.ground.errors import ParamsError
from rappor.ground.progress import Progress, no_progress
from rappor.ground.ranges import check_number, read_count
from rappor.planning.detection_limit import standard_error
from rappor.protocol.encodings import encoder, encoding_of
from rappor.protocol.params import ONE, Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.keystream import Keystream
from rappor.simulation.population import Population

Forgery = Literal["all ones", "matched"]
"""All bits 1; or the target's bits 1 and as many others as noise would set."""

FORGERIES: Final[tuple[Forgery, ...]] = ("all ones", "matched")
SHARES: Final = (0.0001, 0.001, 0.01)
"""Forged reports as shares of all: below, near and above what is detected in a million reports
under `balanced`, .14 %."""

TARGET: Final = "target.com"
"""A string that no device holds."""

_STRINGS: Final = 100
"""Strings that the honest devices hold, with weights e^(-i/20) as in [EPK14] 5.2."""

_BLOCK: Final = 1 << 14
"""Forged reports that are drawn at a time: 8 MB of coins at 128 bits."""

_LEAST_REPORTS, _MOST_REPORTS = 1000, 10**9
"""Fewer reports decode to nothing; more would take hours to forge one by one."""

_MOST_RUNS: Final = 1000
"""A thousand runs have a thirtieth of the standard error of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """How far forged reports have moved the estimate of the target, in reports.

    `formula` is (1 - p*) / (q* - p*) times the forged reports. `bits` is the move of the
    de-biased counts of the target's bits, `decoded` that of the decoder's estimate, with its
    standard error over the runs. If `checked`, the collector refuses numbers of ones that no
    honest device sends; `counted` is the share of forged reports that it has accepted.
    """

    share: float
    forgery: Forgery
    checked: bool
    counted: float
    formula: float
    bits: float
    decoded: float
    std_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisoning:
    """What forged reports do to a collection of `n_reports`.

    `shift` is how many reports a forged report counts as that looks honest, `suppression` how many
    it takes from a string; `most_shift` and `most_suppression` are the most that the collector's
    check admits. A forged report can set all bits of `most_strings` strings, of any number if None.
    `detectable_share` is the share of forged reports with which a string is detected about half
    the time among `n_candidates`.
    """

    n_reports: int
    n_candidates: int
    shift: float
    most_shift: float
    suppression: float
    most_suppression: float
    most_strings: int | None
    detectable_share: float
    moved: tuple[Moved, ...]


def shift(params: Params) -> float:
    """Return how many reports one forged report counts as, for each string whose bits it sets."""
    return (1 - params.p_star) / (params.q_star - params.p_star)


def suppression(params: Params) -> float:
    """Return how many reports one forged report takes from a string whose bits it leaves 0.

    It counts as -p* / (q* - p*) reports of each bit that is 0.
    """
    return params.p_star / (params.q_star - params.p_star)


def most_suppression(params: Params) -> float:
    """Return the most that a report takes from a string if it has the most ones that pass.

    The background takes the other bits' mean w, so the contrast is w / (q* - p*) reports.
    """
    own = params.k * params.density
    w = min(popcount_range(params)[1] / (params.k - own), 1.0)
    return w / (params.q_star - params.p_star)


def most_shift(params: Params, n_strings: int = 1) -> float:
    """Return the most that a report lifts each of n strings by, on average over strings.

    Its ones are the strings' bits, and as few others as the check admits, a share w of them. Then
    n = 1 gives (1 - w) / (q* - p*). Of several strings the bits collide: a row that r of them set
    shows the lift L of one. With d the density of a string's bits, r is binomial (n, d), and least
    squares gives each string Cov(1[r > 0], r) / Var(r) = n d (1 - d)^n / (n d (1 - d)) of L.
    """
    k, d = params.k, params.density
    own = _expected_ones(params, n_strings)
    w = max(popcount_range(params)[0] - own, 0.0) / (k - own)
    return (1 - w) / (params.q_star - params.p_star) * (1 - d) ** (n_strings - 1)


def most_strings(params: Params) -> int | None:
    """Return how many strings' bits a report can set and pass the check; None for any number.

    n strings set k (1 - (1 - d)^n) bits on average over cohorts, d the density of one.
    """
    most = popcount_range(params)[1]
    if most >= params.k:
        return None
    return int(math.log(1 - most / params.k) / math.log(1 - params.density))


def _expected_ones(params: Params, n_strings: int) -> float:
    return params.k * (1 - (1 - params.density) ** n_strings)


def detectable_share(
    params: Params, n_reports: int, *, n_candidates: int, level: float = 0.05
) -> float:
    """Return the share of forged reports with which a fake is detected about half the time.

    At this share its mean estimate is at the limit of Bonferroni's correction.

    Raises ParamsError for counts or a level outside their range.
    """
    n_reports = read_count("n_reports", n_reports)
    n_candidates = read_count("n_candidates", n_candidates)
    check_number("level", level, "(0, 1)")
    limit = NormalDist().inv_cdf(1 - level / n_candidates) * standard_error(params, n_reports)
    return limit / (shift(params) * n_reports)


def forge(  # noqa: PLR0913 - the size of an attack
    params: Params,
    *,
    shares: Sequence[float] = SHARES,
    n_reports: int = 1_000_000,
    n_candidates: int = 1000,
    runs: int = 3,
    seed: int | None = None,
    progress: Progress = no_progress,
) -> Poisoning:
    """Forge a part of all reports, and decode with and without the collector's check.

    The honest devices hold 100 strings. The target is held by nobody and is a candidate beside
    them. What has moved is the difference between the target's estimate and that from the honest
    reports alone.

    Raises ParamsError for another encoding than strings or counts outside their range.
    """
    if not encoding_of(params).hashed:
        raise ParamsError(f"encoding must be bloom to forge a string, got {params.encoding!r}")
    n_reports = read_count("n_reports", n_reports, _LEAST_REPORTS, _MOST_REPORTS)
    runs = read_count("runs", runs, 2, _MOST_RUNS)
    _check_shares(shares, n_reports)
    rng, moved = Keystream(seed), list[Moved]()
    for number, share in enumerate(shares):
        outcomes = []
        for run in range(number * runs, (number + 1) * runs):
            progress("forging", run, len(shares) * runs)
            outcomes.append(_one_run(params, n_reports, share, rng.spawn(run)))
        moved += [
            _summary(params, n_reports, share, case, [each[case] for each in outcomes])
            for case in outcomes[0]
        ]
    return Poisoning(
        n_reports=n_reports,
        n_candidates=n_candidates,
        shift=shift(params),
        most_shift=most_shift(params),
        suppression=suppression(params),
        most_suppression=most_suppression(params),
        most_strings=most_strings(params),
        detectable_share=detectable_share(params, n_reports, n_candidates=n_candidates),
        moved=tuple(moved),
    )


def _check_shares(shares: Sequence[float], n_reports: int) -> None:
    for share in shares:
        check_number("share", share, "(0, 1)")
        if not 1 <= round(share * n_reports) < n_reports:
            raise ParamsError(
                f"share must make at least one report of {n_reports:,}, and not all, got {share!r}"
            )


class _Case(NamedTuple):
    forgery: Forgery
    checked: bool


class _Outcome(NamedTuple):
    """What one run gives: the share of forged reports that were counted, and both moves."""

    counted: float
    bits: float
    decoded: float


def _one_run(params: Params, n_reports: int, share: float, rng: Keystream) -> dict[_Case, _Outcome]:
    """Return the outcome of each forgery, without and with the check."""
    n_forged = round(share * n_reports)
    seed = int(rng.coins(1)[0])
    honest = simulate_counts(_population(), params, n_reports=n_reports - n_forged, seed=seed)
    before = _decoded(honest)
    outcomes: dict[_Case, _Outcome] = {}
    for forgery in FORGERIES:
        everything, passing = _forged_counts(params, n_forged, forgery, rng)
        unchecked = checked = _outcome(honest, before, everything, n_forged)
        if passing.n_reports < n_forged:  # something was refused
            checked = _outcome(honest, before, passing, n_forged)
        outcomes[_Case(forgery, checked=False)] = unchecked
        outcomes[_Case(forgery, checked=True)] = checked
    return outcomes


def _outcome(honest: Counts, before: float, forged: Counts, n_forged: int) -> _Outcome:
    decoded = _decoded(honest + forged) - before if forged.n_reports else 0.0
    return _Outcome(forged.n_reports / n_forged, _from_bits(forged), decoded)


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
    target = _bits_of(TARGET, params)
    return float(((unbiased * target).sum(axis=1) / target.sum(axis=1)).sum())


def _bits_of(value: str, params: Params) -> NDArray[np.bool_]:
    """Return (m, k) bool, a string's bits in each cohort."""
    encode = encoder(params)
    return unpack(b"".join(encode.encode(value, j) for j in range(params.m)), params)


def _forged_counts(
    params: Params, n: int, forgery: Forgery, rng: Keystream
) -> tuple[Counts, Counts]:
    """Sum forged reports: all of them, and those with popcounts that honest devices send."""
    everything, passing = Counts.zero(params), Counts.zero(params)
    least, most = popcount_range(params)
    for packed, cohorts in _forged_reports(params, n, forgery, rng):
        ones = np.bitwise_count(packed).sum(axis=1, dtype=np.int64)
        passed = (least <= ones) & (ones <= most)
        everything += Counts.from_packed(packed, cohorts, params)
        passing += Counts.from_packed(packed[passed], cohorts[passed], params)
    return everything, passing


def _forged_reports(
    params: Params, n: int, forgery: Forgery, rng: Keystream
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """Yield blocks of packed forged reports and their cohorts."""
    target = _bits_of(TARGET, params)
    for start in range(0, n, _BLOCK):
        size = min(_BLOCK, n - start)
        cohorts = _cohorts(params, size, rng)
        if forgery == "all ones":
            bits = np.ones((size, params.k), dtype=np.bool_)
        else:
            noise = rng.coins((size, params.k)) < params.p_star * ONE
            bits = target[cohorts] | noise
        yield np.packbits(bits, axis=1, bitorder="little"), cohorts


def _summary(
    params: Params, n_reports: int, share: float, case: _Case, outcomes: Sequence[_Outcome]
) -> Moved:
    counted, bits, decoded = (np.array(each) for each in zip(*outcomes, strict=True))
    return Moved(
        share=share,
        forgery=case.forgery,
        checked=case.checked,
        counted=float(counted.mean()),
        formula=round(share * n_reports) * shift(params),
        bits=float(bits.mean()),
        decoded=float(decoded.mean()),
        std_error=float(decoded.std(ddof=1) / math.sqrt(len(decoded))),
    )


def _cohorts(params: Params, n: int, rng: Keystream) -> NDArray[np.int64]:
    """Draw n cohorts as devices do."""
    pick = rng.coins(n).astype(np.uint64) * np.uint64(params.m)
    return (pick >> np.uint64(32)).astype(np.int64)
