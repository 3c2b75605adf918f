"""A forger who sends reports that no device sent, to move the estimate of a string.

A forged report that sets all bits of a string counts as (1 - p*) / (q* - p*) reports of it, more
than one, because an honest report sets each of its bits with probability q* only. The decoder knows
that all shares sum to one, so that its background takes what lifts or lowers all bits alike. A
forged report of which a share w of the other bits is one lifts a string by (1 - w) / (q* - p*)
reports, and one without the string's bits takes w / (q* - p*) from it. With w = p* they look
honest. The collector's check of popcounts refuses reports of all ones and admits others: fewer ones
lift more, and leave room for the bits of many strings; more ones take more. This forger spreads the
other ones evenly. One who knows the candidates chooses them, and does more:
`rappor/decoding/breakdown.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from rappor.counts.popcounts import popcount_range
from rappor.ground.errors import ParamsError
from rappor.ground.ranges import read_count
from rappor.planning.detection_limit import standard_error
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisoning:
    """What one forged report does to a collection of `n_reports`, in reports.

    `shift` is how many reports one counts as that looks honest, `suppression` how many it takes
    from a string; `most_shift` and `most_suppression` are the most that the collector's check
    admits. A forged report can set all bits of `most_strings` strings, of any number if None.
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


def forge(params: Params, *, n_reports: int = 1_000_000, n_candidates: int = 1000) -> Poisoning:
    """Return what a forger can do, in closed form.

    Raises ParamsError for another encoding than strings or counts outside their range.
    """
    if not encoding_of(params).hashed:
        raise ParamsError(f"encoding must be bloom to forge a string, got {params.encoding!r}")
    return Poisoning(
        n_reports=n_reports,
        n_candidates=n_candidates,
        shift=shift(params),
        most_shift=most_shift(params),
        suppression=suppression(params),
        most_suppression=most_suppression(params),
        most_strings=most_strings(params),
        detectable_share=detectable_share(params, n_reports, n_candidates=n_candidates),
    )


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
    own = k * (1 - (1 - d) ** n_strings)
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


def detectable_share(params: Params, n_reports: int, *, n_candidates: int) -> float:
    """Return the share of forged reports with which a fake is detected about half the time.

    At this share its mean estimate is at the limit of Bonferroni's correction at 5 %.

    Raises ParamsError for counts outside their range.
    """
    n_reports = read_count("n_reports", n_reports)
    n_candidates = read_count("n_candidates", n_candidates)
    limit = NormalDist().inv_cdf(1 - 0.05 / n_candidates) * standard_error(params, n_reports)
    return limit / (shift(params) * n_reports)
