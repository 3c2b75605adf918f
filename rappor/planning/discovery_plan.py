"""Plans of a discovery: the parts of strings, and the number of strings that they find.

A discovery finds frequent strings without a list of candidates. Each device reports one part of its
string: a prefix of some length, or the whole string. The analyst tests all short prefixes, keeps
the best, appends further characters to them, tests the results with the reports of the next part,
and so on up to whole strings (`rappor.discovery`). The plan chooses the lengths of the prefixes and
the share of the devices that reports each part.

Example: the prefix lengths 3 and 6 of strings of at most 8 letters. There are 1 + 26 + 26^2 + 26^3
= 18,279 strings of at most 3 letters. The analyst tests all of them and keeps the best 1,000. Each
is extended by up to 3 letters, which gives 18,279,000 candidates of at most 6 letters. The analyst
keeps the best of these, and extends them to whole strings.

`plan_discovery` runs these steps:

1. Choose bits, cohorts and noise (`_choose_dimensions`).
2. Generate lengths of prefixes whose numbers of candidates are small enough (`_generate_lengths`).
3. Predict the number of found strings for each combination of lengths and shares of the devices
   (`_predict_layout`).
4. Keep the best *layout* (lengths and shares) of each number of parts (`_find_best_layouts`).

Theory of operation
-------------------
A string is found if its prefix is kept in each part, and the string passes the last test. For one
part:

| symbol | meaning |
|---|---|
| n | number of reports of the part |
| s | share of the devices with the string |
| error(n) | standard error of an absent string in n reports |
| z | score of a prefix: its estimate divided by error(n). Normal with mean s / error(n) |
| C | number of candidates (prefixes) of the part |
| K | number of candidates that are kept |
| P | number of strings whose prefix was kept in all parts before |

Other strings with the same prefix raise the score of the prefix. They are neglected. The K best of
C candidates are those with a score above t, where

    absent Pr(standard normal > t) + sum over P strings Pr(z > t) = K
    absent = C exp(-P / C)

`absent` is the expected number of candidates that are no prefix of one of the P strings, if the
strings are placed at random. The last test finds R of C whole strings. By Benjamini and Hochberg,
each of them has a p-value of at most level R / C. The equation is solved for R.

All parts of prefixes have the same share of the devices. Lengths and shares are searched for the
largest number of found strings. Among the layouts that find nearly as many, the layout with the
fewest candidates is chosen. Bits and cohorts are the first pair of a list for which collisions add
little to the noise of the coins.
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
from rappor.discovery.continuation import count_continuations, count_kept_prefixes
from rappor.estimator.selection import SCREENED
from rappor.planning.detection_limit import compute_rare_variance
from rappor.planning.entry import DESCRIPTION, OWNER, write_registry
from rappor.planning.frequencies import Frequencies
from rappor.planning.noise import Budget, choose_noise
from rappor.planning.power import DetectionTarget
from rappor.protocol import loss
from rappor.protocol.params import LETTERS, Params
from rappor.protocol.parts import WHOLE, Part
from rappor.registry.metric import Metric

_DIMENSIONS: Final = ((128, 64), (128, 128), (256, 128), (256, 256), (512, 256))
"""Pairs of bits k and cohorts m among which a plan chooses, smallest first. The time of a candidate
grows with m, and the memory of a decode with k m."""

_NEGLIGIBLE_COLLISIONS: Final = 0.05
"""Largest variance of collisions, relative to the variance of coins. More bits and cohorts are
added until the variance is smaller. A larger bound gives smaller reports."""

_EXPLAINED_Z: Final = 5.0
"""Smallest share, in standard errors of the coins, at which a string counts as detected. The
regression explains the collisions of detected strings, so only rarer strings add variance. A
convention: a larger number counts more strings as variance."""

_MAX_CANDIDATES: Final = 20_000_000
"""Largest number of candidates of a part. It bounds the decoding of a part to a minute or two."""

_MAX_PREFIXES: Final = 5
"""Largest number of parts of prefixes that the search tries. Each part takes reports from the other
parts, so more parts seldom find more strings."""

_SHARES: Final = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""Shares of the devices that report any prefix. The search tries each share, and divides it evenly
among the parts of prefixes. A finer list takes more time and finds few strings more."""

_COMPARED_LAYOUTS: Final = 2
"""Number of layouts in a plan. A plan compares the best layout with the smallest possible number of
parts and the best layout with one part more."""

_NEARLY_BEST: Final = 0.98
"""Smallest number of found strings, relative to the best layout, at which a layout counts as nearly
as good. A smaller ratio gives faster decodes that find fewer strings."""

_TRIED_STEPS: Final = 3
"""Number of the longest possible steps that the search tries. A step is the number of characters
from one prefix to the next. A larger number multiplies the time."""

_SINGLE_STEP_PREFIXES: Final = 3
"""Number of parts of prefixes from which the search tries only the longest step after the first
step. The number of combinations would otherwise be 3 to the power of the number of parts."""

_MAX_Z: Final = 40.0
"""Distance above the largest mean score, in standard errors, at which a float64 rounds every
probability of exceedance to 0. The search for the score t ends there."""

_MAX_ITERATIONS: Final = 200
"""Largest number of iterations to the fixed point of the number of found strings. The limit ensures
an end. `_TOLERANCE` usually stops the iteration before."""

_TOLERANCE: Final = 1e-6
"""Change of the number of found strings at which the iteration stops. A plan prints whole
strings."""

_MAX_REPORTS: Final = 10**15
"""Largest number of reports of a plan: a hundred thousand reports from every person. It refuses
mistyped numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Parts of strings, and the number of strings that they find.

    Attributes
    ----------
    parts : parts of prefixes, each with its share of the devices, and the part of whole strings.
    candidates : number of candidates of each part, whole strings last.
    kept : number of prefixes that are kept and continued, for each part of prefixes.
    found : expected number of found strings.
    """

    parts: tuple[Part, ...]
    candidates: tuple[int, ...]
    kept: tuple[int, ...]
    found: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DiscoveryPlan:
    """Parameters and parts of a metric with unknown strings, and the number of found strings.

    Attributes
    ----------
    params : the parameters of the reports of every part.
    budget : limits of the privacy losses.
    target : shares of the strings and how they are tested.
    reports : number of reports of all parts.
    characters : number of characters of the alphabet.
    longest : length of the longest string, in characters.
    layout : the parts that find the most strings.
    others : the best layout for each other number of parts.
    """

    params: Params
    budget: Budget
    target: DetectionTarget
    reports: int
    characters: int
    longest: int
    layout: Layout
    others: tuple[Layout, ...]

    def to_toml(self, name: str, *, expires: datetime.date, epoch: str, interval: str) -> str:
        """Return a registry with the planned metric.

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
        """Return the object that `rappor plan --discover --json` prints."""
        return {
            **{letter: getattr(self.params, letter) for letter in LETTERS},
            "fingerprint": self.params.fingerprint,
            "epsilon_1": loss.epsilon_1(self.params),
            "epsilon_inf": loss.epsilon_inf(self.params),
            "report_bytes": self.params.n_bytes,
            "reports": self.reports,
            "strings": self.target.frequencies.n_candidates,
            "level": self.target.error_control.alpha,
            "longest": self.longest,
            "characters": self.characters,
            **asdict(self.layout),
            "others": [asdict(layout) for layout in self.others],
        }


def plan_discovery(
    target: DetectionTarget | int,
    *,
    epsilon_1: float,
    epsilon_inf: float,
    reports: float,
    longest: int,
    characters: int = 26,
) -> DiscoveryPlan:
    """Choose parts for unknown strings, and predict how many strings are found.

    Parameters
    ----------
    target : shares of the strings and how they are tested. A number means as many strings with
        shares by Zipf's law, and Benjamini-Hochberg at 5 %.
    epsilon_1, epsilon_inf : limits of the privacy loss, in nats, as for `plan`.
    reports : number of reports of all parts together.
    longest : length of the longest string, in characters.
    characters : size of the alphabet.

    Returns
    -------
    DiscoveryPlan.

    Raises
    ------
    ParamsError
        A number is outside its range.
    DecodeError
        No parts reach strings of this length with few enough candidates.

    Examples
    --------
    >>> planned = plan_discovery(1000, epsilon_1=2, epsilon_inf=4, reports=1e7, longest=6)
    >>> [part.name for part in planned.layout.parts], round(planned.layout.found)
    (['prefix:5', 'whole'], 84)
    """
    budget = Budget(epsilon_1, epsilon_inf)
    target = DetectionTarget.of(target)
    # The candidates of a discovery come from its reports, so they have no order of prior knowledge.
    target.error_control.refuse_ranked("discoveries")
    if target.error_control.method != "bh" or target.reports_per_device != 1:
        raise ParamsError("a discovery is planned for Benjamini-Hochberg and one report a device")
    n_reports = read_count("reports", reports, 1, _MAX_REPORTS)
    check_integer("longest", longest, 2)
    check_integer("characters", characters, 1)
    params = _choose_dimensions(budget, target.frequencies, n_reports)
    best = _find_best_layouts(params, target, n_reports, longest, characters)
    if not best:
        raise DecodeError(
            f"{_MAX_PREFIXES} parts of prefixes over {characters:,} characters do not reach "
            f"strings of {longest:,}: one would have more than {_MAX_CANDIDATES:,} candidates"
        )
    layout = max(best, key=lambda candidate: candidate.found)
    return DiscoveryPlan(
        params=params,
        budget=budget,
        target=target,
        reports=n_reports,
        characters=characters,
        longest=longest,
        layout=layout,
        others=tuple(candidate for candidate in best if candidate is not layout),
    )


def _find_best_layouts(
    params: Params, target: DetectionTarget, n_reports: int, longest: int, characters: int
) -> list[Layout]:
    """Return the best layout with the smallest possible number of parts, and with one part more.

    The list is empty if no number of parts reaches strings of this length.
    """
    best: list[Layout] = []
    # Short alphabets or long strings need several parts. Without possible lengths for a number of
    # parts, the search goes on with one part more.
    for n_prefixes in range(1, _MAX_PREFIXES + 1):
        layouts = [
            _predict_layout(params, target, n_reports, (*lengths, longest), characters, share)
            for lengths in _generate_lengths(n_prefixes, longest, characters)
            for share in _SHARES
        ]
        if layouts:
            max_found = max(layout.found for layout in layouts)
            nearly_best = [layout for layout in layouts if layout.found >= _NEARLY_BEST * max_found]
            best.append(
                min(nearly_best, key=lambda layout: (sum(layout.candidates), -layout.found))
            )
        if len(best) == _COMPARED_LAYOUTS:
            break
    return best


def _generate_lengths(n_prefixes: int, longest: int, characters: int) -> Iterator[tuple[int, ...]]:
    """Yield increasing lengths of prefixes for which no part has too many candidates.

    A step is the number of characters from one prefix to the next. Only the longest steps are
    tried. Short steps need more parts, so fewer devices report each part.

    Parameters
    ----------
    n_prefixes : number of parts of prefixes.
    longest : length of the longest string, in characters.
    characters : number of characters of the alphabet.
    """
    # Possible lengths of the first prefix. All its combinations of characters are candidates.
    # Their number grows with the length, so the list ends at the first length with too many. Case:
    # a longest string of 100,000 characters, whose combinations would be numbers of so many digits.
    first = list(
        itertools.takewhile(
            lambda n: count_continuations(characters, n) <= _MAX_CANDIDATES, range(1, longest)
        )
    )
    # Possible later steps. Every kept prefix is continued by all combinations, and at least one
    # prefix is kept.
    steps = [n for n in first if _count_candidates(characters, n) <= _MAX_CANDIDATES]
    n_tried = _TRIED_STEPS if n_prefixes < _SINGLE_STEP_PREFIXES else 1
    for chosen_steps in itertools.product(
        first[-_TRIED_STEPS:], *[steps[-n_tried:]] * (n_prefixes - 1)
    ):
        # The last step leads from the longest prefix to the whole string.
        lengths = tuple(itertools.accumulate(chosen_steps))
        if lengths[-1] < longest and longest - lengths[-1] in steps:
            yield lengths


def _count_candidates(characters: int, added: int) -> int:
    """Return the number of candidates after a step that appends up to `added` characters."""
    return count_kept_prefixes(characters, added) * count_continuations(characters, added)


def _choose_dimensions(budget: Budget, frequencies: Frequencies, n_reports: int) -> Params:
    """Return the first pair of `_DIMENSIONS` for which collisions add little noise.

    If there is no such pair, the parameters have the last pair.
    """
    for k, m in _DIMENSIONS:
        params = choose_noise(budget.epsilon_1, budget.epsilon_inf, k=k, m=m)
        coins = compute_rare_variance(params) / n_reports
        if (
            _compute_collision_variance(params, frequencies, coins)
            <= _NEGLIGIBLE_COLLISIONS * coins
        ):
            break
    return params


def _compute_collision_variance(params: Params, frequencies: Frequencies, coins: float) -> float:
    """Compute the variance of a share from collisions with strings that are not detected.

    A string shares each of its m bits with another string with probability 1 / k. Averaged over m
    cohorts, strings of the shares s therefore add the variance (sum of s^2) / (m k).

    Parameters
    ----------
    params : the parameters, with one bit of a string in each cohort.
    frequencies : shares of the strings.
    coins : variance of a rare string's share from the noise of the coins.
    """
    number = frequencies.candidates + frequencies.non_candidates
    rare = frequencies.shares < _EXPLAINED_Z * coins**0.5
    squares = float((number * frequencies.shares**2)[rare].sum())
    return squares / (params.m * params.k)


def _compute_noise(params: Params, shares: Floats, n_reports: float) -> Floats:
    """Compute the variance of each share from coins and from the sampling of the devices.

    The bit of a string is set by the devices with the string, and by a share 1 / k of all devices
    with other strings.

    Parameters
    ----------
    params : the parameters.
    shares : (classes,) float64. Shares of the strings.
    n_reports : number of reports of the part.

    Returns
    -------
    (classes,) float64, in squared shares.
    """
    gap = params.q_star - params.p_star
    level = params.p_star + gap * np.minimum(shares + 1 / params.k, 1.0)
    return np.asarray(level * (1 - level) / gap**2 / n_reports)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Scores:
    """Distribution of the z scores of one part, in standard errors of an absent string.

    Attributes
    ----------
    z : (classes,) float64. Mean score of a string of each class of shares.
    spread : (classes,) float64. Standard deviation of the score, above 1 for frequent strings.
    """

    z: Floats
    spread: Floats

    @classmethod
    def of(cls, params: Params, frequencies: Frequencies, n_reports: float) -> _Scores:
        """Compute the scores of a part with this number of reports."""
        coins = _compute_noise(params, np.zeros(1), n_reports)[0]
        # error(n)^2 of the module docstring.
        absent_variance = coins + _compute_collision_variance(params, frequencies, coins)
        additional = _compute_noise(params, frequencies.shares, n_reports) - coins
        return cls(
            z=frequencies.shares / absent_variance**0.5,
            spread=np.sqrt(1 + additional / absent_variance),
        )

    def exceedance_probability(self, score: float) -> Floats:
        """Return the probability that a string of each class has a larger score, (classes,)."""
        return np.asarray(special.ndtr((self.z - score) / self.spread))


def _predict_layout(
    params: Params,
    target: DetectionTarget,
    n_reports: int,
    lengths: tuple[int, ...],
    characters: int,
    share: float,
) -> Layout:
    """Predict the strings that are found with these parts.

    Parameters
    ----------
    params : the parameters of the reports.
    target : shares of the strings, and the last test.
    n_reports : number of reports of all parts.
    lengths : lengths of the prefixes, and last the length of the whole string, in characters.
    characters : number of characters of the alphabet.
    share : share of the devices that report any prefix.
    """
    # A registry contains shares with four decimals.
    prefix_share = round(share / (len(lengths) - 1), 4)
    frequencies = target.frequencies
    # Expected number of strings of each class whose prefix was kept so far, (classes,). The sum is
    # P of the module docstring.
    present = frequencies.candidates + frequencies.non_candidates
    of_prefix = _Scores.of(params, frequencies, prefix_share * n_reports)
    # `rappor.discovery` continues no more prefixes than the decoder can select.
    max_kept = params.m * params.k + 2 * SCREENED
    # Before the first part there is one prefix, the empty one.
    candidates, prefix_counts = [], [1]
    # The last length belongs to whole strings, which are no prefixes. So zip ends before it.
    for before, length, after in zip((0, *lengths), lengths, lengths[1:], strict=False):
        n = prefix_counts[-1] * count_continuations(characters, length - before)
        count_above = functools.partial(_count_above, n, of_prefix, present)
        # Three limits: prefixes whose continuations would be too many candidates, prefixes that the
        # decoder could not select, and prefixes without a positive score.
        most_kept = min(
            count_kept_prefixes(characters, after - length), max_kept, round(count_above(0.0))
        )
        prefix_counts.append(max(most_kept, 1))
        present = present * of_prefix.exceedance_probability(
            _find_score(prefix_counts[-1], count_above, of_prefix)
        )
        candidates.append(n)
    # The last part tests whole strings.
    n = prefix_counts[-1] * count_continuations(characters, lengths[-1] - lengths[-2])
    of_whole = _Scores.of(params, frequencies, (1 - prefix_share * (len(lengths) - 1)) * n_reports)
    expected_detections = present * of_whole.exceedance_probability(
        _solve_threshold(target.error_control.alpha, n, of_whole, present)
    )
    return Layout(
        parts=(*(Part(f"prefix:{length}", prefix_share) for length in lengths[:-1]), Part(WHOLE)),
        candidates=(*candidates, n),
        kept=tuple(prefix_counts[1:]),
        found=float(expected_detections.sum()),
    )


def _count_above(n: int, scores: _Scores, present: Floats, score: float) -> float:
    """Compute the expected number of candidates, of n, whose score exceeds `score`.

    Several strings may have the same prefix, which is one candidate. So at most n - absent
    candidates are present.

    Parameters
    ----------
    n : number of candidates, C of the module docstring.
    scores : distribution of the scores of the strings.
    present : (classes,) float64. Number of strings of each class.
    score : the score t.
    """
    absent = n * float(np.exp(-present.sum() / n))
    n_present = min(float(present @ scores.exceedance_probability(score)), n - absent)
    return absent * float(special.ndtr(-score)) + n_present


def _find_score(most: int, count_above: Callable[[float], float], scores: _Scores) -> float:
    """Find the score t, at least 0, that `most` candidates are expected to exceed.

    Parameters
    ----------
    most : number of candidates.
    count_above : function from a score to the expected number of candidates with a larger score.
    scores : distribution of the scores, which limits the search.
    """
    # Case: fewer candidates than allowed have a positive score. All of them are kept.
    if count_above(0.0) <= most:
        return 0.0
    far = float(scores.z.max()) + _MAX_Z
    return float(optimize.brentq(lambda score: count_above(score) - most, 0.0, far))


def _solve_threshold(level: float, n: int, scores: _Scores, present: Floats) -> float:
    """Compute the score that Benjamini-Hochberg requires for n candidates, as a fixed point.

    The required p-value is level R / n, and the number R of found strings depends on it.

    Parameters
    ----------
    level : false discovery rate.
    n : number of candidates.
    scores : distribution of the scores of the strings.
    present : (classes,) float64. Number of strings of each class.
    """
    n_detected = max(float(present.sum()), 1.0)
    for _ in range(_MAX_ITERATIONS):
        score = -float(special.ndtri(min(level * max(n_detected, 1.0) / n, 1.0)))
        n_detected, previous = float(present @ scores.exceedance_probability(score)), n_detected
        if abs(n_detected - previous) < _TOLERANCE:
            break
    return score
