"""Sets of items: generalized randomized response compared with three other mechanisms.

The value of a device is a set of items, such as its installed plugins. The question: of 2,000 items
that devices have and 2,000 that no device has, how many does each mechanism detect, and how many of
its detections are false? Every mechanism has the same devices, the same loss of 4 nats for the
whole set, and the same error control (Benjamini-Hochberg, 5 %). Let n be the largest number of
items of a set.

- GRR (generalized randomized response), the mechanism of this project for sets: the device hashes
  its items to buckets, pads them with random buckets to n, and reports one bucket. The report is
  one of the n buckets with a higher probability than one of the other buckets.
- One drawn item: the device draws one of its items and reports it by GRR with n = 1. The estimates
  are shares of draws, not of devices: an item of large sets is drawn more rarely.
- Pad and sample (Qin et al., LDPMiner, CCS 2016): the device adds empty places to its items until
  there are n places, draws one of the places, and reports its item by GRR with n = 1. Every item of
  every device is drawn with probability 1 / n. So the shares of devices are n times the shares of
  draws.
- PrivSet (Wang et al., INFOCOM 2018), in plain numpy: the device pads its set with padding items to
  n items. A report is a set of w items, from the list of all 4,000 items and n padding items. A
  report that contains an item of the padded set is exp(4) times as probable as any other report.
  The devices must know the list, while buckets are hashes of any text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from benchmarks.accuracy import run_many, start_pool
from benchmarks.tables import Table
from rappor.decoding.decoder import decode
from rappor.protocol.loss import epsilon_1
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

N_ITEMS: Final = 2000
"""Number of items that devices have, and number of items that no device has."""

N_DEVICES: Final = 100_000
"""Number of devices, each of which makes one report."""

ALPHA: Final = 0.05
"""False discovery rate that the detections of every mechanism must not exceed."""

SIZES: Final = (8, 32)
"""Largest numbers of items of a set. Sizes are uniform between half of the number and the number,
so no set is cut."""

_AT_ONCE: Final = 2000
"""Number of devices whose items are drawn at a time. The limit bounds memory: a number for each
device and item takes 32 MB."""

_DUMMIES: Final = 4096
"""Number of texts that stand for the empty places of pad and sample."""

PRESENT: Final = tuple(f"item {i}" for i in range(N_ITEMS))
"""Items that devices have. Item i is the i-th most frequent item."""
ABSENT: Final = tuple(f"absent {i}" for i in range(N_ITEMS))
"""Items that no device has."""


class Outcome(NamedTuple):
    """Numbers of detected items in one collection.

    Attributes
    ----------
    found : detected items of `PRESENT`
    false : detected items of `ABSENT`
    """

    found: int
    false: int


def compare_set_mechanisms(*, quick: bool) -> list[Table]:
    """Compare the mechanisms for two sizes of sets."""
    n_runs = 2 if quick else 6
    table = Table(
        title=f"sets: items found at 4 nats, {N_DEVICES:,} devices, {n_runs} collections a row",
        columns=("largest set", "mechanism", "buckets", "found", "std error", "false %"),
        note="2,000 items of Zipf popularity and 2,000 absent items. std error: of the mean found. "
        "false %: false detections of all detections. One drawn item estimates shares of draws.",
    )
    with start_pool() as pool:
        for size in SIZES:
            for name, measure, buckets in _list_mechanisms(size):
                runs = np.array(run_many(partial(measure, size=size), n_runs, pool), dtype=float)
                n_true, n_false = runs.T
                table.rows.append(
                    [
                        str(size),
                        name,
                        buckets,
                        float(n_true.mean()),
                        float(n_true.std(ddof=1) / math.sqrt(n_runs)),
                        float(100 * n_false.sum() / max(runs.sum(), 1)),
                    ]
                )
    return [table]


def _list_mechanisms(size: int) -> list[tuple[str, partial[Outcome], str]]:
    """Return name, function and number of buckets of each mechanism."""
    buckets = [Params.profile("once", encoding="set", items=n).k for n in (size, 1)]
    return [
        ("GRR", partial(measure_grr), str(buckets[0])),
        ("one drawn item", partial(measure_drawn_item), str(buckets[1])),
        ("pad and sample", partial(measure_padded_draw), str(buckets[1])),
        ("PrivSet", partial(measure_privset), f"{2 * N_ITEMS} items"),
    ]


def draw_sets(seed: int, size: int) -> list[NDArray[np.int64]]:
    """Draw the set of each device: indices in `PRESENT` without repetition, by Zipf's law.

    The weight of an item is 1 / rank. The items with the largest values of log(weight) plus a
    Gumbel variable are a weighted sample without repetition. A Gumbel variable is minus the
    logarithm of an exponential variable.
    """
    rng = np.random.default_rng(seed)
    log_weights = -np.log(np.arange(1, N_ITEMS + 1))
    sets: list[NDArray[np.int64]] = []
    for _ in range(0, N_DEVICES, _AT_ONCE):
        keys = log_weights - np.log(rng.standard_exponential((_AT_ONCE, N_ITEMS)))
        items = np.argsort(-keys, axis=1)[:, :size]
        numbers = rng.integers(size // 2, size + 1, _AT_ONCE)
        sets += [row[:number] for row, number in zip(items, numbers, strict=True)]
    return sets


def measure_grr(seed: int, size: int) -> Outcome:
    """Simulate GRR, the mechanism of this project for sets."""
    params = Params.profile("once", encoding="set", items=size)
    texts = ("\t".join(PRESENT[i] for i in items) for items in draw_sets(seed, size))
    return _decode(Population.from_values(texts), params, seed)


def measure_drawn_item(seed: int, size: int) -> Outcome:
    """Simulate reports of one drawn item of each set."""
    shares = np.zeros(N_ITEMS)
    for items in draw_sets(seed, size):
        shares[items] += 1 / len(items)
    return _decode(Population(PRESENT, shares), _make_one_bucket_params(), seed)


def measure_padded_draw(seed: int, size: int) -> Outcome:
    """Simulate reports of one of `size` places of each set.

    Empty places have texts of their own, the dummies, which are spread over many buckets.
    """
    shares, empty = np.zeros(N_ITEMS), 0
    for items in draw_sets(seed, size):
        shares[items] += 1
        empty += size - len(items)
    dummies = [f"dummy {i}" for i in range(_DUMMIES)]
    weights = np.concatenate([shares, np.full(_DUMMIES, empty / _DUMMIES)])
    return _decode(Population((*PRESENT, *dummies), weights), _make_one_bucket_params(), seed)


def measure_privset(seed: int, size: int) -> Outcome:
    """Simulate PrivSet.

    The overlap is the number of items of the padded set in a report. Among the reports with an
    overlap of 1 or more, the overlap has the distribution of a uniform set of w items
    (hypergeometric, without 0).
    """
    epsilon = epsilon_1(Params.profile("once", encoding="set", items=size))
    # Items 0 to 1,999 are present, 2,000 to 3,999 absent, and the last `size` are padding.
    rng, n_items = np.random.default_rng(seed), 2 * N_ITEMS + size
    width = _choose_width(n_items, size, epsilon)
    p_overlap, p_absent, _ = _compute_privset_probabilities(n_items, size, width, epsilon)
    numbers = np.arange(width + 1)
    p_number = stats.hypergeom(n_items, size, width).pmf(numbers)
    p_number[0] = 0
    overlaps = rng.choice(numbers, size=N_DEVICES, p=p_number / p_number.sum())
    overlaps *= rng.random(N_DEVICES) < p_overlap
    ones, is_own = np.zeros(n_items, dtype=np.int64), np.zeros(n_items, dtype=np.bool_)
    for items, n_common in zip(draw_sets(seed, size), overlaps, strict=True):
        padded = np.concatenate([items, np.arange(2 * N_ITEMS, n_items)[: size - len(items)]])
        ones[padded[rng.permutation(size)[:n_common]]] += 1
        # The other width - n_common items of the report are uniform outside the padded set. Draw
        # `size` items more than the width, drop the items of the padded set, and take the first.
        sampled_items = rng.choice(n_items, width + size, replace=False)
        is_own[padded] = True
        ones[sampled_items[~is_own[sampled_items]][: width - n_common]] += 1
        is_own[padded] = False
    # An item that no device has is in a report with probability p_absent.
    p_values = stats.binom.sf(ones[: 2 * N_ITEMS] - 1, N_DEVICES, p_absent)
    is_detected = stats.false_discovery_control(p_values) <= ALPHA
    return Outcome(int(is_detected[:N_ITEMS].sum()), int(is_detected[N_ITEMS:].sum()))


def _compute_privset_probabilities(
    n_items: int, size: int, width: int, epsilon: float
) -> tuple[float, float, float]:
    """Return three probabilities of a report of PrivSet.

    A report that contains an item of the padded set has the weight exp(epsilon), and any other
    report has the weight 1.

    Returns
    -------
    The probabilities that the report contains any item of the padded set, that it contains a
    certain item outside the padded set, and that it contains a certain item of the padded set.
    """
    # Probability that a uniform set of `width` items contains no item of the padded set:
    # (n_items - size choose width) / (n_items choose width).
    p_disjoint = math.exp(_log_choose(n_items - size, width) - _log_choose(n_items, width))
    weight = math.exp(epsilon) * (1 - p_disjoint)
    p_overlap = weight / (weight + p_disjoint)
    # The mean overlap of a uniform set is size * width / n_items, of which disjoint sets have 0.
    mean_overlap = p_overlap * (size * width / n_items) / (1 - p_disjoint)
    return p_overlap, (width - mean_overlap) / (n_items - size), mean_overlap / size


def _choose_width(n_items: int, size: int, epsilon: float) -> int:
    """Return the number of items of a report at which the estimate of a rare item is most exact."""

    def compute_variance(width: int) -> float:
        """Return the variance of one report's estimate: p (1 - p) / (q - p)^2.

        p and q are the probabilities that a report contains a certain item that the device does not
        have, and that it has.
        """
        _, absent, present = _compute_privset_probabilities(n_items, size, width, epsilon)
        return absent * (1 - absent) / (present - absent) ** 2

    return min(range(1, n_items // size), key=compute_variance)


def _log_choose(n: int, k: int) -> float:
    """Return ln(n choose k)."""
    return float(special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1))


def _make_one_bucket_params() -> Params:
    """Return the parameters of a report of one item."""
    return Params.profile("once", encoding="set", items=1)


def _decode(population: Population, params: Params, seed: int) -> Outcome:
    """Simulate and decode a collection, and count the detected items."""
    counts = simulate_counts(population, params, n_reports=N_DEVICES, seed=seed)
    detected = set(decode(counts, [*PRESENT, *ABSENT]).detected_candidates)
    return Outcome(_count(detected, PRESENT), _count(detected, ABSENT))


def _count(detected: set[str], items: Sequence[str]) -> int:
    """Count the detected items among some items."""
    return len(detected.intersection(items))
