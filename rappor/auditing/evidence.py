"""Counters of an audit: the statistics that it keeps of the responses of devices.

The responses of 100,000 devices do not fit into memory at once. So an audit reads them in blocks of
devices, and each class of this module adds a block to its counters and forgets the responses.
`rappor.auditing.probabilities` compares the counters with the distributions of a correct encoder.

Every counter is binomial under a correct encoder. Pairs of devices or bits are therefore chosen so
that no device or bit is in two pairs of one count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from rappor.auditing.lower_bound import bound_loss
from rappor.auditing.patterns import Patterns
from rappor.counts.arrays import Booleans, Integers
from rappor.protocol.params import Params

Stage = Literal["report", "reports", "permanent"]
"""Level of the observation: one report, several reports together, or the permanent response."""

Occasion = Literal["when asked again", "after 64 reports", "after a restart", "in another spelling"]
"""Circumstance in which an audit sends the same value to the same device a second time."""

DEVICE_OFFSETS: Final = ((0, 1), (1, 1), (0, 2), (0, 3), (0, 4), (0, 10), (0, 100))
"""Pairs (start, lag): devices `start + i` and `start + i + lag` are tested for shared coins.

A generator that is seeded once for several devices repeats its coins at a fixed lag. The lag 1
stands twice, so that each device is compared with both of its neighbours.
"""

_MIN_DEVICES: Final = 1000
"""Smallest number of devices with the first pair of values for which a classifier is trained."""

_MAX_DEVICES: Final = 40_000
"""Largest number of devices whose reports are stored for the classifier.

Limits its memory and time.
"""

_SCORE_BINS: Final = 32
"""Number of bins of the classifier's score. The bound treats all scores of a bin as one event."""

GameKeys = tuple[Integers, Integers]
"""Two (trials,) arrays of `compute_game_keys`: the statistic if the guess is right, and if it is
wrong.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseBatch:
    """Responses of n devices to one request each.

    `cohorts` is (n,) int64, `reports` and `permanents` are (n, k) bool. `permanents` is None if the
    encoder does not reveal the permanent responses.
    """

    cohorts: Integers
    reports: Booleans
    permanents: Booleans | None

    def stages(self) -> dict[Stage, Booleans]:
        """Return the bits of every stage that the encoder reveals, by stage."""
        stages: dict[Stage, Booleans] = {"report": self.reports}
        return stages if self.permanents is None else stages | {"permanent": self.permanents}


class OneCounts:
    """Number of ones at each bit, for true bit 0 and true bit 1: (2, k) int64 arrays."""

    def __init__(self, k: int) -> None:
        self.n = np.zeros((2, k), dtype=np.int64)
        self.ones = np.zeros((2, k), dtype=np.int64)

    def add(self, bits: Booleans, truth: Booleans) -> None:
        """Add the (n, k) bits of responses, given their (n, k) true bits."""
        self.n += (~truth).sum(axis=0), truth.sum(axis=0)
        self.ones += (bits & ~truth).sum(axis=0), (bits & truth).sum(axis=0)


class MatchCounts:
    """Number of pairs of bits that are both one, for pairs with equal true bits: (2,) int64 arrays.

    With independent noise, both bits are one with probability p*^2 given true 0 and q*^2 given true
    1. Shared coins increase the count.
    """

    def __init__(self) -> None:
        self.n = np.zeros(2, dtype=np.int64)
        self.both = np.zeros(2, dtype=np.int64)

    def add(self, first: Booleans, second: Booleans, truths: tuple[Booleans, Booleans]) -> None:
        """Add two arrays of bits of the same shape, and the true bits of each array."""
        both = first & second
        for truth in (0, 1):
            same_truth = (truths[0] == truth) & (truths[1] == truth)
            self.n[truth] += same_truth.sum()
            self.both[truth] += (both & same_truth).sum()


class BitPairCounts:
    """Number of responses in which bits i and j are both one, for all i, j and their true bits."""

    def __init__(self, k: int) -> None:
        self._k, self._n = k, 0
        self._both = np.zeros((2 * k, 2 * k), dtype=np.int32)
        self._set = np.zeros((k, k), dtype=np.int32)

    def add(self, bits: Booleans, truth: Booleans) -> None:
        """Add the (n, k) bits of at most 2^24 responses, given their (n, k) true bits."""
        ones = np.hstack([bits & ~truth, bits & truth]).astype(np.float32)
        truths = truth.astype(np.float32)
        self._n += len(bits)
        # A float32 product of 0/1 matrices is fast, and exact as long as no sum exceeds 2^24.
        self._both += (ones.T @ ones).astype(np.int32)  # float32 counts exactly up to 2^24
        self._set += (truths.T @ truths).astype(np.int32)

    def counts(self, truths: tuple[int, int]) -> tuple[Integers, Integers]:
        """Return (k, k) arrays: responses with both bits one, and responses with these true bits.

        Row i is the first bit of a pair, with true bit `truths[0]`. Column j is the second bit,
        with true bit `truths[1]`.
        """
        a, b = truths
        k, both_set = self._k, self._set.astype(np.int64)
        set_counts = np.diag(both_set)
        first = set_counts[:, None] if a else self._n - set_counts[:, None]
        both = self._both[a * k : (a + 1) * k, b * k : (b + 1) * k].astype(np.int64)
        set_first = (
            both_set if a else set_counts[None, :] - both_set
        )  # the second set, the first as a
        return both, set_first if b else first - set_first


class CopyCounts:
    """Number of responses that equal their input bit for bit, as if the encoder had added no noise.

    The input is the true bits or, for a report, the permanent response. Both arrays are (groups, k
    + 1) int64: by group of devices, and by the number of ones in the input. The number of ones
    determines the probability of a copy.
    """

    def __init__(self, groups: int, k: int) -> None:
        self.n = np.zeros((groups, k + 1), dtype=np.int64)
        self.equal = np.zeros((groups, k + 1), dtype=np.int64)

    def add(self, bits: Booleans, pattern: Booleans, groups: Integers) -> None:
        """Add the (n, k) bits of responses, the (n, k) inputs and the (n,) device groups."""
        set_bits = pattern.sum(axis=1)
        equal = (bits == pattern).all(axis=1)
        np.add.at(self.n, (groups, set_bits), 1)
        np.add.at(self.equal, (groups[equal], set_bits[equal]), 1)


class RepeatCounts:
    """Agreement between two responses of a device to the same value."""

    def __init__(self) -> None:
        self.matches = MatchCounts()
        """The same bit in two reports of one device."""
        self.returned = self.changed = 0
        """Number of devices with two visible permanent responses, and number of those that differ.
        """


class IndependenceCounts(NamedTuple):
    """Matches of two responses of one device that must have independent coins.

    Devices with equal true bits in both responses are also counted separately in `same_bits`.
    There, every bit of two responses with shared coins agrees, so the fault is clearest.
    """

    everyone: MatchCounts
    same_bits: MatchCounts

    def add(
        self,
        first: Booleans,
        second: Booleans,
        truths: tuple[Booleans, Booleans],
        included: Booleans,
    ) -> None:
        """Add two responses of each selected device, with their true bits.

        `included` selects devices.
        """
        same_truth = included & (truths[0] == truths[1]).all(axis=1)
        for matches, rows in ((self.everyone, included), (self.same_bits, same_truth)):
            matches.add(first[rows], second[rows], (truths[0][rows], truths[1][rows]))


class StageCounts:
    """All counters of one stage: of reports, or of permanent responses."""

    def __init__(self, k: int, n_values: int, rng: np.random.Generator) -> None:
        """Create empty counters for an audit of `n_values` values."""
        self.ones = OneCounts(k)
        self.within = BitPairCounts(k)
        """Pairs of different bits of one response."""
        self.patterns = Patterns(k, rng)
        """Sets of three or more bits of one response."""
        self.true = CopyCounts(n_values, k)
        """Responses that equal their true bits, by value."""
        self.other_value = IndependenceCounts(MatchCounts(), MatchCounts())
        self.other_metric = IndependenceCounts(MatchCounts(), MatchCounts())
        self.next_device = tuple(MatchCounts() for _ in DEVICE_OFFSETS)
        """Pairs of devices at the lags of `DEVICE_OFFSETS`."""

    def add(self, bits: Booleans, truth: Booleans, values: Integers) -> None:
        """Add the first response of each device of a block."""
        self.ones.add(bits, truth)
        self.within.add(bits, truth)
        self.patterns.add(bits, truth)
        self.true.add(bits, truth, values)
        for (start, lag), matches in zip(DEVICE_OFFSETS, self.next_device, strict=True):
            first = np.arange(start, len(values) - lag)
            # Use each device in at most one pair per lag. Overlapping pairs would be dependent, and
            # their count would not be binomial.
            first = first[(first - start) // lag % 2 == 0]  # pairs without a common device
            second = first + lag
            matches.add(bits[first], bits[second], (truth[first], truth[second]))


class LearnedDistinguisher:
    """A classifier of the reports of two values. Its success bounds epsilon_1 from below.

    The game of `rappor.auditing.lower_bound` reads only the bits that differ between the two
    values. This classifier also reads the cohort, all other bits and their number, so it finds
    leaks outside the two values' bits. Boosted trees are trained on one half of the devices. On the
    other half, the classifier's right and wrong guesses are counted, and the counts give a lower
    bound as in the game.
    """

    def __init__(self) -> None:
        self._kept = 0
        self._features: list[NDArray[np.int16]] = []
        self._sides: list[Integers] = []

    def add(
        self, cohorts: Integers, reports: Booleans, pair: tuple[Booleans, Booleans], sides: Integers
    ) -> None:
        """Add reports of devices with the first (side 0) or the second value (side 1) of a pair.

        `pair` contains the (n, k) true bits of both values in each device's cohort.
        """
        free_rows = slice(0, max(0, _MAX_DEVICES - self._kept))
        only = pair[0] & ~pair[1], pair[1] & ~pair[0]
        set_counts = [(reports & bits).sum(axis=1) for bits in only]
        n_other_bits = (reports & ~(pair[0] | pair[1])).sum(axis=1)
        columns = np.column_stack(
            [*set_counts, n_other_bits, n_other_bits % 2, cohorts, cohorts % 2, reports]
        )
        self._features.append(columns[free_rows].astype(np.int16))
        self._sides.append(sides[free_rows])
        self._kept += len(sides[free_rows])

    def bound(self, level: float) -> float | None:
        """Return a lower bound on epsilon_1 in nats, or None if there are too few devices.

        The bound exceeds the true loss with probability at most `level`.
        """
        if self._kept < _MIN_DEVICES:
            return None
        # Import here: loading scikit-learn takes about a second, and most commands never need it.
        from sklearn.ensemble import HistGradientBoostingClassifier  # noqa: PLC0415 - a second

        features, sides = np.concatenate(self._features), np.concatenate(self._sides)
        # Train on one half and test on the other. A bound on the training data would be too high.
        half = len(sides) // 2
        # A training half with one value only gives the classifier nothing to distinguish.
        if len(np.unique(sides[:half])) < 2:
            return None
        model = HistGradientBoostingClassifier(max_iter=40, max_leaf_nodes=15, random_state=0)
        model.fit(features[:half], sides[:half])
        odds = model.decision_function(features[half:])
        signed = np.where(sides[half:] == 1, odds, -odds)
        edges = np.quantile(np.abs(odds), np.linspace(0, 1, _SCORE_BINS + 1)[1:-1])
        steps = np.searchsorted(edges, np.abs(signed)) * 2
        right, wrong = steps + (signed > 0), steps + (signed <= 0)
        return bound_loss(right.astype(np.int64), wrong.astype(np.int64), level=level)


class Evidence:
    """All counters of one audit."""

    def __init__(self, params: Params, n_values: int, rng: np.random.Generator) -> None:
        """Create empty counters for an audit of `n_values` values."""
        self.trials = 0
        self._keys: dict[Stage, list[GameKeys]] = {}
        self.cohorts = np.zeros((2, params.m), dtype=np.int64)
        """Number of devices, by side of their pair of values and by cohort: (2, m) int64."""
        self.stages: dict[Stage, StageCounts] = {
            stage: StageCounts(params.k, n_values, rng) for stage in ("report", "permanent")
        }
        self.distinguisher = LearnedDistinguisher()
        self.noiseless_reports = CopyCounts(1, params.k)
        """Reports that equal the permanent response."""
        self.repeats = {occasion: RepeatCounts() for occasion in get_args(Occasion)}
        self.changed_cohorts = 0
        """Number of devices whose cohort changed between two responses."""

    def add_game(self, stage: Stage, keys: GameKeys) -> None:
        """Add trials of the observer's game."""
        self._keys.setdefault(stage, []).append(keys)

    def game(self, stage: Stage) -> GameKeys | None:
        """Return the keys of all trials of a game, or None if the game was not played."""
        if stage not in self._keys:
            return None
        right, wrong = zip(*self._keys[stage], strict=True)
        return np.concatenate(right), np.concatenate(wrong)
