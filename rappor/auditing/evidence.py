"""Counters of a black-box audit: the statistics of the responses of many devices.

The responses of 100,000 devices do not fit into memory at once. So an audit reads them in blocks of
devices (`rappor.auditing.queries`). Each counter of this module adds a block and forgets the
responses. `rappor.auditing.probabilities` then compares the counters with the distributions of a
correct encoder.

Every count is binomial under a correct encoder: a sum of independent events with one known
probability. So a device is in one pair at most of each count of pairs of devices. Two pairs with a
common device would be dependent.

    counter               counts                                       P(event) if correct
    OneCounts             ones at each bit                             p* or q*
    MatchCounts           pairs of bits of two responses, both 1       p*^2 or q*^2 if independent
    BitPairCounts         bits i and j of one response, both 1         product of two of p*, q*
    Patterns              patterns of 3 or more bits of one response   product of p*, 1 - p*, ...
    CopyCounts            responses equal to their input               (1 - p*)^zeros q*^ones
    LearnedDistinguisher  right and wrong guesses of a classifier      P(right) / P(wrong) is at
                                                                       most e^epsilon_1

p* and q* are the probabilities of a reported 1 for a true bit 0 and 1. *Example.* With p* = .25 and
q* = .75, 1,000 responses have about 250 ones at a bit of true value 0. A response equals its input
of two zeros and one 1 with probability .75^2 (.75) = .42: each zero stays with 1 - p*, and each one
with q*.

The counters of permanent responses use other probabilities in place of p* and q*: f1 is the
probability that the permanent bit is 1 for a true 0, and 1 - f0 the same for a true 1. n is a
number of devices, k the number of bits of a response. Arrays of bits are (n, k) bool.
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
"""Part of a response that is observed: one report, several reports together, or the permanent
response. Several reports repeat one permanent response, so together they reveal more than one
report.
"""

Occasion = Literal["when asked again", "after 64 reports", "after a restart", "in another spelling"]
"""Circumstance in which an audit sends the same value to the same device a second time."""

DEVICE_OFFSETS: Final = ((0, 1), (1, 1), (0, 2), (0, 3), (0, 4), (0, 10), (0, 100))
"""Pairs (start, lag): devices `start + i` and `start + i + lag` are tested for shared coins.

A generator that is seeded anew for every few devices repeats its coins at a fixed lag, such as 10
or 100 devices. The lag 1 occurs twice, from device 0 and from device 1, so that each device is
compared with both of its neighbours.
"""

_MIN_DEVICES: Final = 1000
"""Smallest number of devices with the first pair of values for which a classifier is trained.

Half of them train the classifier and half test it. With fewer than 500 tests, the lower bound on
the loss would be near 0.
"""

_MAX_DEVICES: Final = 40_000
"""Largest number of devices whose reports are stored for the classifier.

The limit bounds memory (k + 6 columns of 2 bytes for each device) and the time of training.
"""

_SCORE_BINS: Final = 32
"""Number of bins, with equally many devices, of the absolute score of the classifier.

The bound treats all scores of a bin as one event. More bins resolve the scores better. But each bin
then has fewer devices, and its frequencies have larger errors.
"""

GameKeys = tuple[Integers, Integers]
"""Two (trials,) int64 arrays of keys, from `rappor.auditing.lower_bound.compute_game_keys`.

A key is a summary of a response as one integer, by which the observer of a game decides. The first
array has the key of each trial if the observer names the device's value (a right guess). The second
array has the key if the observer names the other value of the pair (a wrong guess).
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

    def get_bits_by_stage(self) -> dict[Stage, Booleans]:
        """Return the bits of every stage that the encoder reveals, by stage."""
        stages: dict[Stage, Booleans] = {"report": self.reports}
        return stages if self.permanents is None else stages | {"permanent": self.permanents}


class OneCounts:
    """Number of ones at each bit, for true bit 0 and true bit 1: (2, k) int64 arrays."""

    def __init__(self, k: int) -> None:
        self.n = np.zeros((2, k), dtype=np.int64)
        """Number of responses by true bit (row) and index of the bit (column)."""
        self.ones = np.zeros((2, k), dtype=np.int64)
        """Number of the responses in which the bit is one: a part of `n`."""

    def add(self, bits: Booleans, truth: Booleans) -> None:
        """Add the (n, k) bits of responses, given their (n, k) true bits."""
        self.n += (~truth).sum(axis=0), truth.sum(axis=0)
        self.ones += (bits & ~truth).sum(axis=0), (bits & truth).sum(axis=0)


class MatchCounts:
    """Number of pairs of bits that are both one, for pairs with equal true bits.

    A pair is one bit of a response and the same bit of another response. With independent noise,
    both bits are one with probability p*^2 given true 0 and q*^2 given true 1. Shared coins make
    the two bits equal more often, so that the count is larger.
    """

    def __init__(self) -> None:
        self.n = np.zeros(2, dtype=np.int64)
        """Number of pairs with true bits (0, 0), and with true bits (1, 1)."""
        self.both = np.zeros(2, dtype=np.int64)
        """Number of these pairs in which both bits are one."""

    def add(self, first: Booleans, second: Booleans, truths: tuple[Booleans, Booleans]) -> None:
        """Add two (n, k) arrays of bits, and the (n, k) true bits of each array."""
        both = first & second
        for truth in (0, 1):
            same_truth = (truths[0] == truth) & (truths[1] == truth)
            self.n[truth] += same_truth.sum()
            self.both[truth] += (both & same_truth).sum()


class BitPairCounts:
    """Number of responses in which bits i and j are both one, for all i, j and their true bits."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._n_responses = 0
        # Row a k + i and column b k + j: responses in which the bits i and j are both one, bit i
        # with true bit a and bit j with true bit b.
        self._both = np.zeros((2 * k, 2 * k), dtype=np.int32)
        # Row i and column j: responses whose true bits i and j are both one.
        self._both_true = np.zeros((k, k), dtype=np.int32)

    def add(self, bits: Booleans, truth: Booleans) -> None:
        """Add the (n, k) bits of at most 2^24 responses, given their (n, k) true bits.

        float32 represents all integers up to 2^24.
        """
        ones = np.hstack([bits & ~truth, bits & truth]).astype(np.float32)
        true_ones = truth.astype(np.float32)
        self._n_responses += len(bits)
        # A float32 product of 0/1 matrices is fast. Its entries are counts of responses, so they
        # are exact up to 2^24 responses.
        self._both += (ones.T @ ones).astype(np.int32)
        self._both_true += (true_ones.T @ true_ones).astype(np.int32)

    def count_pairs(self, truths: tuple[int, int]) -> tuple[Integers, Integers]:
        """Return (k, k) arrays: responses with both bits one, and responses with these true bits.

        Row i is the first bit of a pair, with true bit `truths[0]`. Column j is the second bit,
        with true bit `truths[1]`.
        """
        first_true_bit, second_true_bit = truths
        k, both_true = self._k, self._both_true.astype(np.int64)
        n_true = np.diag(both_true)  # responses with true bit 1, by bit
        rows = slice(first_true_bit * k, (first_true_bit + 1) * k)
        columns = slice(second_true_bit * k, (second_true_bit + 1) * k)
        both = self._both[rows, columns].astype(np.int64)
        # Number of responses with these true bits i and j, from the number with true 1 and 1:
        #     n(1, 0) = n(1, any) - n(1, 1)
        #     n(0, 1) = n(any, 1) - n(1, 1)
        #     n(0, 0) = n(0, any) - n(0, 1)
        if first_true_bit:
            n_first = n_true[:, None]
            n_first_and_true_second = both_true
        else:
            n_first = self._n_responses - n_true[:, None]
            n_first_and_true_second = n_true[None, :] - both_true
        if second_true_bit:
            return both, n_first_and_true_second
        return both, n_first - n_first_and_true_second


class CopyCounts:
    """Number of responses that equal their input bit for bit, as if the encoder had added no noise.

    The input is the true bits or, for a report, the permanent response. Devices are counted in
    groups, such as the devices with one value. The number of ones in the input determines the
    probability of a copy, so responses are also counted by the number of ones.
    """

    def __init__(self, groups: int, k: int) -> None:
        self.n = np.zeros((groups, k + 1), dtype=np.int64)
        """Number of responses, by group of devices and by number of ones in the input."""
        self.equal = np.zeros((groups, k + 1), dtype=np.int64)
        """Number of the responses that equal their input: a part of `n`."""

    def add(self, bits: Booleans, inputs: Booleans, groups: Integers) -> None:
        """Add the (n, k) bits of responses, their (n, k) inputs, and the (n,) group of each."""
        n_ones = inputs.sum(axis=1)
        is_equal = (bits == inputs).all(axis=1)
        np.add.at(self.n, (groups, n_ones), 1)
        np.add.at(self.equal, (groups[is_equal], n_ones[is_equal]), 1)


class RepeatCounts:
    """Agreement between two responses of a device to the same value."""

    def __init__(self) -> None:
        self.matches = MatchCounts()
        """Pairs of the same bit in two reports of one device."""
        self.returned = 0
        """Number of devices whose permanent response was seen at least twice."""
        self.changed = 0
        """Number of these devices whose permanent response changed. A correct encoder has none."""


class IndependenceCounts(NamedTuple):
    """Matches of two responses of one device that must have independent coins.

    The two responses are of two values, two metrics or two spellings. `all_devices` counts the bits
    of all devices. `same_bits` counts only devices whose two responses have equal true bits. Equal
    coins then make the two permanent responses of a device completely equal, so this counter finds
    shared coins with the fewest devices.
    """

    all_devices: MatchCounts
    same_bits: MatchCounts

    def add(
        self,
        first: Booleans,
        second: Booleans,
        truths: tuple[Booleans, Booleans],
        is_included: Booleans,
    ) -> None:
        """Add two responses of each device that the (n,) array `is_included` selects.

        `first` and `second` are (n, k), `truths` their (n, k) true bits.
        """
        has_same_bits = is_included & (truths[0] == truths[1]).all(axis=1)
        for matches, rows in ((self.all_devices, is_included), (self.same_bits, has_same_bits)):
            matches.add(first[rows], second[rows], (truths[0][rows], truths[1][rows]))


class StageCounts:
    """All counters of one stage: of reports, or of permanent responses.

    Counters of single responses read the first response of each device only. A device's later
    responses share its permanent response, so their bits would be dependent.
    """

    def __init__(self, k: int, n_values: int, rng: np.random.Generator) -> None:
        """Create empty counters for an audit of `n_values` values."""
        self.ones = OneCounts(k)
        """Ones at each bit."""
        self.bit_pairs = BitPairCounts(k)
        """Pairs of different bits of one response."""
        self.patterns = Patterns(k, rng)
        """Sets of three or more bits of one response."""
        self.copies_of_true_bits = CopyCounts(n_values, k)
        """Responses that equal their true bits, by value."""
        self.other_value = IndependenceCounts(MatchCounts(), MatchCounts())
        """Responses of one device to the two values of a pair."""
        self.other_metric = IndependenceCounts(MatchCounts(), MatchCounts())
        """Responses of one device to one value for two metrics."""
        self.next_device = tuple(MatchCounts() for _ in DEVICE_OFFSETS)
        """Pairs of devices at the lags of `DEVICE_OFFSETS`."""

    def add(self, bits: Booleans, truth: Booleans, values: Integers) -> None:
        """Add the first response of each device of a block.

        `bits` and `truth` are (n, k), `values` is (n,): the index of each device's value.
        """
        self.ones.add(bits, truth)
        self.bit_pairs.add(bits, truth)
        self.patterns.add(bits, truth)
        self.copies_of_true_bits.add(bits, truth, values)
        for (start, lag), matches in zip(DEVICE_OFFSETS, self.next_device, strict=True):
            first = np.arange(start, len(values) - lag)
            # Use each device in at most one pair per lag: of 2 lag devices in a row, the first lag
            # devices are paired with the others. Pairs with a common device would be dependent, and
            # their count would not be binomial.
            first = first[(first - start) // lag % 2 == 0]
            second = first + lag
            matches.add(bits[first], bits[second], (truth[first], truth[second]))


class LearnedDistinguisher:
    """A classifier of the reports of two values. Its success bounds epsilon_1 from below.

    The game of `rappor.auditing.lower_bound` reads only the bits that differ between the two
    values. This classifier also reads the cohort, all other bits and their number, so it finds
    leaks outside the two values' bits. The steps:

    1. Train boosted trees on one half of the devices to guess which of two values a device has.
    2. Count right and wrong guesses on the other half.
    3. Right guesses of any rule are at most e^epsilon_1 times as frequent as wrong guesses
       (`lower_bound` proves it). So ln(right / wrong), minus its error, is a lower bound on
       epsilon_1. For example, 7,500 right and 2,500 wrong guesses show a loss of about 1.1 nats.

    The bound is too high with probability at most the `level` of `bound`. A leak that the trees do
    not learn, such as a parity of many bits, is missed.
    """

    def __init__(self) -> None:
        self._n_stored = 0
        # For each block, (n, k + 6) features and the (n,) index of each device's value, 0 or 1.
        self._features: list[NDArray[np.int16]] = []
        self._sides: list[Integers] = []

    def add(
        self, cohorts: Integers, reports: Booleans, pair: tuple[Booleans, Booleans], sides: Integers
    ) -> None:
        """Add reports of devices with the first (side 0) or the second value (side 1) of a pair.

        Parameters
        ----------
        cohorts : (n,) int64. Cohort of each device.
        reports : (n, k) bool. One report of each device.
        pair : two (n, k) bool arrays. True bits of both values in each device's cohort.
        sides : (n,) int64. 0 or 1: the value that the device has.
        """
        is_stored = slice(0, max(0, _MAX_DEVICES - self._n_stored))
        bits_of_one_value = pair[0] & ~pair[1], pair[1] & ~pair[0]
        n_set = [(reports & bits).sum(axis=1) for bits in bits_of_one_value]
        n_other_set = (reports & ~(pair[0] | pair[1])).sum(axis=1)
        # The parities of two numbers are features of their own. A tree compares a feature with
        # thresholds, and would need a threshold at each integer to learn whether it is even.
        columns = np.column_stack(
            [*n_set, n_other_set, n_other_set % 2, cohorts, cohorts % 2, reports]
        )
        self._features.append(columns[is_stored].astype(np.int16))
        self._sides.append(sides[is_stored])
        self._n_stored += len(sides[is_stored])

    def bound(self, level: float) -> float | None:
        """Return a lower bound on epsilon_1 in nats, or None if there are too few devices.

        The bound exceeds the true loss with probability at most `level`.
        """
        if self._n_stored < _MIN_DEVICES:
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
        # The log-odds are positive if the classifier guesses side 1.
        log_odds = model.decision_function(features[half:])
        is_right = np.where(sides[half:] == 1, log_odds > 0, log_odds < 0)
        # The larger the absolute log-odds are, the surer is the classifier. They are divided into
        # bins of equally many devices.
        bin_edges = np.quantile(np.abs(log_odds), np.linspace(0, 1, _SCORE_BINS + 1)[1:-1])
        score_bin = np.searchsorted(bin_edges, np.abs(log_odds))
        # In the game of `lower_bound` each trial has two keys: the key of the observer's response
        # if the observer names the right value, and the key if the observer names the wrong value.
        # Here bin b has two keys: 2 b + 1 for the value that the classifier guesses, and 2 b for
        # the other value. If the guess is right, the right value has the odd key.
        right, wrong = 2 * score_bin + is_right, 2 * score_bin + ~is_right
        return bound_loss(right.astype(np.int64), wrong.astype(np.int64), level=level)


class Evidence:
    """All counters of one audit."""

    def __init__(self, params: Params, n_values: int, rng: np.random.Generator) -> None:
        """Create empty counters for an audit of `n_values` values."""
        self.trials = 0
        """Number of new devices that were queried for a value of a pair."""
        self._keys: dict[Stage, list[GameKeys]] = {}
        self.cohorts = np.zeros((2, params.m), dtype=np.int64)
        """Number of devices, by side and by cohort: (2, m) int64.

        The side is 0 for devices with the first value of a pair, 1 for the second value.
        """
        self.stages: dict[Stage, StageCounts] = {
            stage: StageCounts(params.k, n_values, rng) for stage in ("report", "permanent")
        }
        """Counters of single reports, and of permanent responses if the encoder reveals them."""
        self.distinguisher = LearnedDistinguisher()
        """Classifier of the reports of the first pair of values."""
        self.copied_permanents = CopyCounts(1, params.k)
        """Number of reports with a visible permanent response, and of those that equal it."""
        self.repeats = {occasion: RepeatCounts() for occasion in get_args(Occasion)}
        """Agreement of two responses of a device to one value, by occasion."""
        self.changed_cohorts = 0
        """Number of devices whose cohort changed between two responses."""

    def add_game(self, stage: Stage, keys: GameKeys) -> None:
        """Add the keys of a block of trials of the observer's game."""
        self._keys.setdefault(stage, []).append(keys)

    def get_game_keys(self, stage: Stage) -> GameKeys | None:
        """Return the keys of all trials of the game with this stage.

        Returns None if the encoder showed no such responses, so that the game was not played.
        """
        if stage not in self._keys:
            return None
        right, wrong = zip(*self._keys[stage], strict=True)
        return np.concatenate(right), np.concatenate(wrong)
