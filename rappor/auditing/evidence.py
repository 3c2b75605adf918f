"""What an audit keeps of the responses: tallies, added a block of devices at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from rappor.auditing.lower_bound import loss_bound
from rappor.auditing.patterns import Patterns
from rappor.counts.arrays import Booleans, Integers
from rappor.protocol.params import Params

Stage = Literal["report", "reports", "permanent"]
"""What an observer sees of a device: one report, several, or the permanent response itself."""

Occasion = Literal["when asked again", "after 64 reports", "after a restart", "in another spelling"]
"""When a device is asked about a value for the second time."""

DISTANCES: Final = ((0, 1), (1, 1), (0, 2), (0, 3), (0, 4), (0, 10), (0, 100))
"""The first device that is compared, and how many places later the other one was asked."""

_LEAST: Final = 1000
"""Devices of a pair below which nothing is learned."""

_MOST_LEARNED: Final = 40_000
"""Devices of a pair that are kept at most."""

_BINS: Final = 32
"""Steps of the odds that a learned answer may have."""

Keys = tuple[Integers, Integers]
"""(trials,) twice, from `game_keys`: where naming a value is right, and where it is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Responses of n devices to one request each; `permanents` only if all can be seen.

    `cohorts` is (n,) int64, `reports` and `permanents` are (n, k) bool.
    """

    cohorts: Integers
    reports: Booleans
    permanents: Booleans | None

    def stages(self) -> dict[Stage, Booleans]:
        """Return the bits of every stage that can be seen."""
        seen: dict[Stage, Booleans] = {"report": self.reports}
        return seen if self.permanents is None else seen | {"permanent": self.permanents}


class Ones:
    """How often each bit was one, by its true bit: (2, k) int64, true 0 first."""

    def __init__(self, k: int) -> None:
        self.n = np.zeros((2, k), dtype=np.int64)
        self.ones = np.zeros((2, k), dtype=np.int64)

    def add(self, bits: Booleans, truth: Booleans) -> None:
        """Add the (n, k) bits of responses and the true bits behind them."""
        self.n += (~truth).sum(axis=0), truth.sum(axis=0)
        self.ones += (bits & ~truth).sum(axis=0), (bits & truth).sum(axis=0)


class Matches:
    """How often two bits with the same truth are both one: (2,) int64, true 0 first."""

    def __init__(self) -> None:
        self.n = np.zeros(2, dtype=np.int64)
        self.both = np.zeros(2, dtype=np.int64)

    def add(self, first: Booleans, second: Booleans, truths: tuple[Booleans, Booleans]) -> None:
        """Add two arrays of bits of one shape, and the true bits behind each."""
        both = first & second
        for truth in (0, 1):
            alike = (truths[0] == truth) & (truths[1] == truth)
            self.n[truth] += alike.sum()
            self.both[truth] += (both & alike).sum()


class Pairs:
    """How often two bits of one response are both one, for every two bits and their truths."""

    def __init__(self, k: int) -> None:
        self._k, self._n = k, 0
        self._both = np.zeros((2 * k, 2 * k), dtype=np.int32)
        self._set = np.zeros((k, k), dtype=np.int32)

    def add(self, bits: Booleans, truth: Booleans) -> None:
        """Add the (n, k) bits of responses and the true bits behind them, n below 2^24."""
        ones = np.hstack([bits & ~truth, bits & truth]).astype(np.float32)
        truths = truth.astype(np.float32)
        self._n += len(bits)
        self._both += (ones.T @ ones).astype(np.int32)  # float32 counts exactly up to 2^24
        self._set += (truths.T @ truths).astype(np.int32)

    def counts(self, truths: tuple[int, int]) -> tuple[Integers, Integers]:
        """Return (k, k) twice: in how many responses the two bits were both one, and of how many.

        Rows are the first bit of a pair, whose true bit is `truths[0]`, columns the second.
        """
        a, b = truths
        k, both_set = self._k, self._set.astype(np.int64)
        own = np.diag(both_set)
        first = own[:, None] if a else self._n - own[:, None]
        both = self._both[a * k : (a + 1) * k, b * k : (b + 1) * k].astype(np.int64)
        set_first = both_set if a else own[None, :] - both_set  # the second set, the first as a
        return both, set_first if b else first - set_first


class Copies:
    """How often a response equals a pattern: the true bits, or the permanent response behind it.

    (groups, k + 1) int64: by group of devices and by how many bits of the pattern are set.
    """

    def __init__(self, groups: int, k: int) -> None:
        self.n = np.zeros((groups, k + 1), dtype=np.int64)
        self.equal = np.zeros((groups, k + 1), dtype=np.int64)

    def add(self, bits: Booleans, pattern: Booleans, groups: Integers) -> None:
        """Add (n, k) bits of responses, the patterns and the (n,) groups of the devices."""
        set_bits = pattern.sum(axis=1)
        equal = (bits == pattern).all(axis=1)
        np.add.at(self.n, (groups, set_bits), 1)
        np.add.at(self.equal, (groups[equal], set_bits[equal]), 1)


class Repeats:
    """What devices respond about a value for the second time."""

    def __init__(self) -> None:
        self.matches = Matches()
        """The same bit in two reports of one device and value."""
        self.returned = self.changed = 0
        """Devices whose permanent response was seen twice, and those in which it changed."""


class Unrelated(NamedTuple):
    """Matches of two responses of a device that must share no coins.

    Shared coins are clearest in `same_bits`, the devices with the same true bits both times.
    """

    everyone: Matches
    same_bits: Matches

    def add(
        self, first: Booleans, second: Booleans, truths: tuple[Booleans, Booleans], asked: Booleans
    ) -> None:
        """Add two responses of each device, and their true bits, of the devices in `asked`."""
        alike = asked & (truths[0] == truths[1]).all(axis=1)
        for matches, rows in ((self.everyone, asked), (self.same_bits, alike)):
            matches.add(first[rows], second[rows], (truths[0][rows], truths[1][rows]))


class Tallies:
    """What is kept of one stage: reports, or permanent responses."""

    def __init__(self, k: int, n_values: int, rng: np.random.Generator) -> None:
        """Start with no response; `n_values` values will be asked about."""
        self.ones = Ones(k)
        self.within = Pairs(k)
        """Two different bits of one response."""
        self.patterns = Patterns(k, rng)
        """More bits of one response."""
        self.true = Copies(n_values, k)
        """Responses that are the true bits, by value."""
        self.other_value = Unrelated(Matches(), Matches())
        self.other_metric = Unrelated(Matches(), Matches())
        self.next_device = tuple(Matches() for _ in DISTANCES)
        """Devices asked some places after another, by `DISTANCES`."""

    def add(self, bits: Booleans, truth: Booleans, values: Integers) -> None:
        """Add one response of each device, of which none has been seen before."""
        self.ones.add(bits, truth)
        self.within.add(bits, truth)
        self.patterns.add(bits, truth)
        self.true.add(bits, truth, values)
        for (start, apart), matches in zip(DISTANCES, self.next_device, strict=True):
            first = np.arange(start, len(values) - apart)
            first = first[(first - start) // apart % 2 == 0]  # pairs without a common device
            second = first + apart
            matches.add(bits[first], bits[second], (truth[first], truth[second]))


class Lessons:
    """Reports of one pair of values: any rule that tells these by a report bounds the loss.

    The game of `rappor.auditing.lower_bound` reads the bits of the two values only. Here an
    observer also looks at the cohort, at every other bit and at how many are set. Boosted trees
    learn on one half of the devices which value a report speaks for; on the other half their
    answers are counted, and bounded as the game's.
    """

    def __init__(self) -> None:
        self._kept = 0
        self._features: list[NDArray[np.int16]] = []
        self._sides: list[Integers] = []

    def add(
        self, cohorts: Integers, reports: Booleans, pair: tuple[Booleans, Booleans], sides: Integers
    ) -> None:
        """Add reports of devices with the first (0) or the second value (1) of the pair.

        `pair` are the (n, k) true bits of both values in each device's cohort.
        """
        room = slice(0, max(0, _MOST_LEARNED - self._kept))
        only = pair[0] & ~pair[1], pair[1] & ~pair[0]
        own = [(reports & bits).sum(axis=1) for bits in only]
        rest = (reports & ~(pair[0] | pair[1])).sum(axis=1)
        columns = np.column_stack([*own, rest, rest % 2, cohorts, cohorts % 2, reports])
        self._features.append(columns[room].astype(np.int16))
        self._sides.append(sides[room])
        self._kept += len(sides[room])

    def bound(self, level: float) -> float | None:
        """Return a lower bound of the loss of a report, in nats; None if too few were seen."""
        if self._kept < _LEAST:
            return None
        from sklearn.ensemble import HistGradientBoostingClassifier  # noqa: PLC0415 - a second

        features, sides = np.concatenate(self._features), np.concatenate(self._sides)
        half = len(sides) // 2
        if len(np.unique(sides[:half])) < 2:
            return None
        model = HistGradientBoostingClassifier(max_iter=40, max_leaf_nodes=15, random_state=0)
        model.fit(features[:half], sides[:half])
        odds = model.decision_function(features[half:])
        signed = np.where(sides[half:] == 1, odds, -odds)
        edges = np.quantile(np.abs(odds), np.linspace(0, 1, _BINS + 1)[1:-1])
        steps = np.searchsorted(edges, np.abs(signed)) * 2
        right, wrong = steps + (signed > 0), steps + (signed <= 0)
        return loss_bound(right.astype(np.int64), wrong.astype(np.int64), level=level)


class Evidence:
    """All tallies of one audit."""

    def __init__(self, params: Params, n_values: int, rng: np.random.Generator) -> None:
        """Start with no response; `n_values` values will be asked about."""
        self.trials = 0
        self._keys: dict[Stage, list[Keys]] = {}
        self.cohorts = np.zeros((2, params.m), dtype=np.int64)
        """Devices by side of their pair and cohort."""
        self.stages: dict[Stage, Tallies] = {
            stage: Tallies(params.k, n_values, rng) for stage in ("report", "permanent")
        }
        self.lessons = Lessons()
        self.bare_reports = Copies(1, params.k)
        """Reports that are the permanent response."""
        self.repeats = {occasion: Repeats() for occasion in get_args(Occasion)}
        self.moved = 0
        """Devices whose cohort changed."""

    def add_game(self, stage: Stage, keys: Keys) -> None:
        """Add the trials of an observer's game."""
        self._keys.setdefault(stage, []).append(keys)

    def game(self, stage: Stage) -> Keys | None:
        """Return the keys of a game over all trials, None if it was not played."""
        if stage not in self._keys:
            return None
        right, wrong = zip(*self._keys[stage], strict=True)
        return np.concatenate(right), np.concatenate(wrong)
