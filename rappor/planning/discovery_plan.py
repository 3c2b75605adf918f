"""Plan a discovery: which parts, and how many strings they will find.

Theory of operation
-------------------
A string of share s is found if its prefix is among those that are kept, part after part, and then
passes the last test. In a part of n reports its z score is normal around s / error(n); other
strings with the same prefix only help, and are left out. The K best of C prefixes are those above
the score t at which

    absent P(absent > t) + sum over strings P(z > t) = K,

    absent = C exp(-strings / C).

The last test of C candidates finds R strings where each passes at the p-value level R / C, which is
solved for R. All parts of prefixes have one share. Lengths and share are searched for the most
strings found; of those that find nearly as many, the one with the fewest candidates is taken. The
first bits and cohorts are taken whose collisions add little to the coins' noise.
"""

from __future__ import annotations

import datetime
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from scipy import optimize, special

from rappor.base.errors import DecodeError, ParamsError
from rappor.base.ranges import check_integer, read_count
from rappor.counts.arrays import Floats
from rappor.discovery.continuation import n_continuations, n_kept
from rappor.estimator.selection import SCREENED
from rappor.planning.detection_limit import rare_variance
from rappor.planning.entry import DESCRIPTION, OWNER, write_registry
from rappor.planning.frequencies import Frequencies
from rappor.planning.noise import Budget, choose_noise
from rappor.planning.power import DetectionTarget
from rappor.protocol import loss
from rappor.protocol.params import LETTERS, Params
from rappor.protocol.parts import WHOLE, Part
from rappor.registry.metric import Metric

_DIMENSIONS: Final = ((128, 64), (128, 128), (256, 128), (256, 256), (512, 256))
"""Bits and cohorts to choose from: a candidate takes time with the cohorts, memory with both."""

_LITTLE: Final = 0.05
"""Variance of collisions, over that of the coins, that needs no more bits and cohorts."""

_EXPLAINED: Final = 5.0
"""Standard errors from which on a string is found, and its collisions are explained."""

_MOST_CANDIDATES: Final = 20_000_000
"""Candidates of a part that are planned for: a minute or two of decoding."""

_MOST_PREFIXES: Final = 5
"""Parts of prefixes at most."""

_SHARES: Final = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""Shares of the devices that answer for prefixes, all parts together."""

_NUMBERS_OF_PARTS: Final = 2
"""Numbers of parts that are compared."""

_NEARLY: Final = 0.98
"""Share of the most strings that is nearly as many."""

_STEPS: Final = 3
_MANY_PREFIXES: Final = 3
"""Lengths of a step that are tried; after the first, one where there are this many prefixes."""

_FAR: Final = 40.0
"""Score beyond which nothing is left."""

_ROUNDS: Final = 200
_SETTLED: Final = 1e-6
"""Rounds to the fixed point of what is found, and strings that it may still change by."""

_MOST_REPORTS: Final = 10**15


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Parts, and what they find.

    Attributes
    ----------
    parts : prefixes, with the share of each, and the whole.
    candidates, kept : how many candidates each part has, and how many prefixes are continued.
    found : expected number of strings found.
    """

    parts: tuple[Part, ...]
    candidates: tuple[int, ...]
    kept: tuple[int, ...]
    found: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DiscoveryPlan:
    """The parameters and parts of a metric whose strings nobody knows, and what they find.

    Attributes
    ----------
    layout : the parts that find most.
    others : the best layout for each other number of parts.
    """

    params: Params
    budget: Budget
    question: DetectionTarget
    reports: int
    characters: int
    longest: int
    layout: Layout
    others: tuple[Layout, ...]

    def to_toml(self, name: str, *, expires: datetime.date, epoch: str, interval: str) -> str:
        """Write a registry of the metric alone.

        Raises
        ------
        MetricError
            A metric cannot have this name.
        """
        return write_registry(
            Metric(
                name=name,
                params=self.params,
                expires=expires,
                description=DESCRIPTION,
                owner=OWNER,
                epoch=epoch,
                interval=interval,
                parts=self.layout.parts,
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as the object that `rappor plan --discover --json` prints."""
        return {
            **{letter: getattr(self.params, letter) for letter in LETTERS},
            "fingerprint": self.params.fingerprint,
            "epsilon_1": loss.epsilon_1(self.params),
            "epsilon_inf": loss.epsilon_inf(self.params),
            "report_bytes": self.params.n_bytes,
            "reports": self.reports,
            "strings": self.question.frequencies.n_candidates,
            "level": self.question.error_control.alpha,
            "longest": self.longest,
            "characters": self.characters,
            **asdict(self.layout),
            "others": [asdict(each) for each in self.others],
        }


def plan_discovery(
    question: DetectionTarget | int,
    *,
    epsilon_1: float,
    epsilon_inf: float,
    reports: float,
    longest: int,
    characters: int = 26,
) -> DiscoveryPlan:
    """Choose parts for strings that nobody knows, and predict how many of them are found.

    The question says how frequent the strings are, candidates or not, and how they are tested; a
    number stands for as many strings by Zipf's law, and Benjamini-Hochberg at 5 %. `epsilon_1`
    and `epsilon_inf` are in nats, as in `plan`; `reports` come of all parts together; `longest`
    and `characters` count those of the longest string and of the alphabet.

    Raises ParamsError if a number is outside its range, and DecodeError if no parts reach so long
    a string with few enough candidates.

    Examples
    --------
    >>> found = plan_discovery(1000, epsilon_1=2, epsilon_inf=4, reports=1e7, longest=6)
    >>> [part.name for part in found.layout.parts], round(found.layout.found)
    (['prefix:5', 'whole'], 84)
    """
    budget = Budget(epsilon_1, epsilon_inf)
    asked = DetectionTarget.of(question)
    if asked.error_control.method != "bh" or asked.reports_per_device != 1:
        raise ParamsError("a discovery is planned for Benjamini-Hochberg and one report a device")
    n_reports = read_count("reports", reports, 1, _MOST_REPORTS)
    check_integer("longest", longest, 2)
    check_integer("characters", characters, 1)
    params = _choose_dimensions(budget, asked.frequencies, n_reports)
    best = _best_layouts(params, asked, n_reports, longest, characters)
    if not best:
        raise DecodeError(
            f"{_MOST_PREFIXES} parts of prefixes over {characters:,} characters do not reach "
            f"strings of {longest:,}: one would have more than {_MOST_CANDIDATES:,} candidates"
        )
    layout = max(best, key=lambda each: each.found)
    return DiscoveryPlan(
        params=params,
        budget=budget,
        question=asked,
        reports=n_reports,
        characters=characters,
        longest=longest,
        layout=layout,
        others=tuple(each for each in best if each is not layout),
    )


def _best_layouts(
    params: Params, question: DetectionTarget, n_reports: int, longest: int, characters: int
) -> list[Layout]:
    """Return the layout that finds most for the least number of parts, and for one part more."""
    best: list[Layout] = []
    for n_prefixes in range(1, _MOST_PREFIXES + 1):
        layouts = [
            _predict(params, question, n_reports, (*lengths, longest), characters, share)
            for lengths in _lengths(n_prefixes, longest, characters)
            for share in _SHARES
        ]
        if layouts:
            most = max(each.found for each in layouts)
            near = [each for each in layouts if each.found >= _NEARLY * most]
            best.append(min(near, key=lambda each: (sum(each.candidates), -each.found)))
        if len(best) == _NUMBERS_OF_PARTS:
            break
    return best


def _lengths(n_prefixes: int, longest: int, characters: int) -> Iterator[tuple[int, ...]]:
    """Yield lengths of a number of prefixes with which no part has too many candidates.

    Of the steps from one prefix to the next only the longest few are tried: short ones cost
    devices and win nothing.
    """
    first = [n for n in range(1, longest) if n_continuations(characters, n) <= _MOST_CANDIDATES]
    steps = [n for n in range(1, longest) if _n_candidates(characters, n) <= _MOST_CANDIDATES]
    tried = _STEPS if n_prefixes < _MANY_PREFIXES else 1
    for taken in itertools.product(first[-_STEPS:], *[steps[-tried:]] * (n_prefixes - 1)):
        lengths = tuple(itertools.accumulate(taken))
        if lengths[-1] < longest and longest - lengths[-1] in steps:
            yield lengths


def _n_candidates(characters: int, added: int) -> int:
    """Return the candidates that continue as many prefixes as are kept."""
    return n_kept(characters, added) * n_continuations(characters, added)


def _choose_dimensions(budget: Budget, frequencies: Frequencies, n_reports: int) -> Params:
    """Return the least bits and cohorts whose collisions add little to the coins' noise."""
    for k, m in _DIMENSIONS:
        params = choose_noise(budget.epsilon_1, budget.epsilon_inf, k=k, m=m)
        coins = rare_variance(params) / n_reports
        if _collisions(params, frequencies, coins) <= _LITTLE * coins:
            break
    return params


def _collisions(params: Params, frequencies: Frequencies, coins: float) -> float:
    """Return the variance that strings add which are too rare to be explained."""
    number = frequencies.candidates + frequencies.non_candidates
    rare = frequencies.shares < _EXPLAINED * coins**0.5
    squares = float((number * frequencies.shares**2)[rare].sum())
    return squares / (params.m * params.k)


def _coins(params: Params, shares: Floats, n_reports: float) -> Floats:
    """Return the variance of coins and sampling for strings of these shares."""
    gap = params.q_star - params.p_star
    level = params.p_star + gap * np.minimum(shares + 1 / params.k, 1.0)
    return np.asarray(level * (1 - level) / gap**2 / n_reports)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Scores:
    """The z scores of one part, in standard errors of an absent string.

    `z` is (c,), the mean of a string of each class, and `spread` (c,) its standard deviation.
    """

    z: Floats
    spread: Floats

    @classmethod
    def of(cls, params: Params, frequencies: Frequencies, n_reports: float) -> _Scores:
        """Return those of a part with this number of reports."""
        coins = _coins(params, np.zeros(1), n_reports)[0]
        absent = coins + _collisions(params, frequencies, coins)
        more = _coins(params, frequencies.shares, n_reports) - coins
        return cls(z=frequencies.shares / absent**0.5, spread=np.sqrt(1 + more / absent))

    def above(self, score: float) -> Floats:
        """Return the probability of each class to score more, (c,)."""
        return np.asarray(special.ndtr((self.z - score) / self.spread))


def _predict(
    params: Params,
    question: DetectionTarget,
    n_reports: int,
    lengths: tuple[int, ...],
    characters: int,
    share: float,
) -> Layout:
    """Predict what is found with prefixes of these lengths, the last one that of whole strings."""
    each = round(share / (len(lengths) - 1), 4)
    frequencies = question.frequencies
    present = frequencies.candidates + frequencies.non_candidates
    of_prefix = _Scores.of(params, frequencies, each * n_reports)
    held = params.m * params.k + 2 * SCREENED
    candidates, kept = [], [1]
    for before, length, after in zip((0, *lengths), lengths, lengths[1:], strict=False):
        n = kept[-1] * n_continuations(characters, length - before)
        above = functools.partial(_above, n, of_prefix, present)
        kept.append(max(min(n_kept(characters, after - length), held, round(above(0.0))), 1))
        present = present * of_prefix.above(_rank(kept[-1], above, of_prefix))
        candidates.append(n)
    n = kept[-1] * n_continuations(characters, lengths[-1] - lengths[-2])
    of_whole = _Scores.of(params, frequencies, (1 - each * (len(lengths) - 1)) * n_reports)
    found = present * of_whole.above(_threshold(question.error_control.alpha, n, of_whole, present))
    return Layout(
        parts=(*(Part(f"prefix:{length}", each) for length in lengths[:-1]), Part(WHOLE)),
        candidates=(*candidates, n),
        kept=tuple(kept[1:]),
        found=float(found.sum()),
    )


def _above(n: int, scores: _Scores, present: Floats, score: float) -> float:
    """Return how many of n prefixes score more; strings that share one are not counted twice."""
    absent = n * float(np.exp(-present.sum() / n))
    held = min(float(present @ scores.above(score)), n - absent)
    return absent * float(special.ndtr(-score)) + held


def _rank(most: int, above: Callable[[float], float], scores: _Scores) -> float:
    """Return the score above which `most` prefixes are, at least 0."""
    if above(0.0) <= most:
        return 0.0
    far = float(scores.z.max()) + _FAR
    return float(optimize.brentq(lambda score: above(score) - most, 0.0, far))


def _threshold(level: float, n: int, scores: _Scores, present: Floats) -> float:
    """Return the score that Benjamini-Hochberg asks of n candidates."""
    found = max(float(present.sum()), 1.0)
    for _ in range(_ROUNDS):
        score = -float(special.ndtri(min(level * max(found, 1.0) / n, 1.0)))
        found, before = float(present @ scores.above(score)), found
        if abs(found - before) < _SETTLED:
            break
    return score
