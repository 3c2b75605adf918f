"""Sets of items: generalized randomized response compared with three other mechanisms.

The question: of 2,000 items that devices have and 2,000 that no device has, how many does each
mechanism find, and how many of its detections are false? Every mechanism has the same devices, the
same loss of 4 nats for the whole set, and the same error control (Benjamini-Hochberg, 5 %).

- GRR: the report names one bucket of the padded set, by the device's own code.
- One drawn item: the device draws one of its items and reports it by GRR with one own bucket. The
  estimates are shares of draws, not of devices: an item of large sets is drawn more rarely.
- Pad and sample: as before, but the device draws one of n places, of which some are empty (Qin et
  al., LDPMiner, CCS 2016). The shares of devices are n times the shares of draws.
- PrivSet (Wang et al., INFOCOM 2018), in plain numpy: a report is a set of w items of the list and
  of n padding items. It meets the padded set with an odds ratio of exp(4). The list must be known
  to the devices, while buckets are hashes of any text.
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
"""False discovery rate of the detections."""

SIZES: Final = (8, 32)
"""Largest numbers of items of a set. Sizes are uniform between half of the number and the number,
so no set is cut."""

_AT_ONCE: Final = 2000
"""Number of devices whose items are drawn at a time. Limits memory: a number for each device and
item takes 32 MB."""

_DUMMIES: Final = 4096
"""Number of texts that stand for the empty places of pad and sample."""

PRESENT: Final = tuple(f"item {i}" for i in range(N_ITEMS))
ABSENT: Final = tuple(f"absent {i}" for i in range(N_ITEMS))


class Outcome(NamedTuple):
    """Numbers of detected items with devices and without devices."""

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
                found, false = runs.T
                table.rows.append(
                    [
                        str(size),
                        name,
                        buckets,
                        float(found.mean()),
                        float(found.std(ddof=1) / math.sqrt(n_runs)),
                        float(100 * false.sum() / max(runs.sum(), 1)),
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
    """Draw the set of each device: items without repetition, with Zipf popularity.

    The largest of log(weight) plus a Gumbel variable are a weighted sample without repetition.
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
    """Report one bucket of the padded set."""
    params = Params.profile("once", encoding="set", items=size)
    texts = ("\t".join(PRESENT[i] for i in items) for items in draw_sets(seed, size))
    return _decode(Population.from_values(texts), params, seed)


def measure_drawn_item(seed: int, size: int) -> Outcome:
    """Report one item of the set."""
    shares = np.zeros(N_ITEMS)
    for items in draw_sets(seed, size):
        shares[items] += 1 / len(items)
    return _decode(Population(PRESENT, shares), _one_bucket(), seed)


def measure_padded_draw(seed: int, size: int) -> Outcome:
    """Report one of `size` places, of which those without an item have a text of their own."""
    shares, empty = np.zeros(N_ITEMS), 0
    for items in draw_sets(seed, size):
        shares[items] += 1
        empty += size - len(items)
    dummies = [f"dummy {i}" for i in range(_DUMMIES)]
    weights = np.concatenate([shares, np.full(_DUMMIES, empty / _DUMMIES)])
    return _decode(Population((*PRESENT, *dummies), weights), _one_bucket(), seed)


def measure_privset(seed: int, size: int) -> Outcome:
    """Report a set of w items, which meets the padded set with an odds ratio of exp(epsilon)."""
    epsilon = epsilon_1(Params.profile("once", encoding="set", items=size))
    rng, n_items = np.random.default_rng(seed), 2 * N_ITEMS + size
    width = _choose_width(n_items, size, epsilon)
    hit, p_absent, _ = _compute_privset_probabilities(n_items, size, width, epsilon)
    numbers = np.arange(width + 1)
    overlaps = stats.hypergeom(n_items, size, width).pmf(numbers)
    overlaps[0] = 0
    met = rng.choice(numbers, size=N_DEVICES, p=overlaps / overlaps.sum())
    met *= rng.random(N_DEVICES) < hit
    ones, is_own = np.zeros(n_items, dtype=np.int64), np.zeros(n_items, dtype=np.bool_)
    for items, overlap in zip(draw_sets(seed, size), met, strict=True):
        padded = np.concatenate([items, np.arange(2 * N_ITEMS, n_items)[: size - len(items)]])
        ones[padded[rng.permutation(size)[:overlap]]] += 1
        # The other items of the report are outside the padded set. Of a few more random items than
        # needed, the items of the set are dropped.
        drawn = rng.choice(n_items, width + size, replace=False)
        is_own[padded] = True
        ones[drawn[~is_own[drawn]][: width - overlap]] += 1
        is_own[padded] = False
    # An item that no device has is in a report with probability p_absent.
    p_values = stats.binom.sf(ones[: 2 * N_ITEMS] - 1, N_DEVICES, p_absent)
    is_detected = stats.false_discovery_control(p_values) <= ALPHA
    return Outcome(int(is_detected[:N_ITEMS].sum()), int(is_detected[N_ITEMS:].sum()))


def _compute_privset_probabilities(
    n_items: int, size: int, width: int, epsilon: float
) -> tuple[float, float, float]:
    """Return the probabilities that a report meets the set, contains an absent, and a present item.

    A report that meets the padded set has the weight exp(epsilon), any other report 1.
    """
    miss = math.exp(_log_choose(n_items - size, width) - _log_choose(n_items, width))
    hit = math.exp(epsilon) * (1 - miss) / (math.exp(epsilon) * (1 - miss) + miss)
    mean_overlap = hit * (size * width / n_items) / (1 - miss)
    return hit, (width - mean_overlap) / (n_items - size), mean_overlap / size


def _choose_width(n_items: int, size: int, epsilon: float) -> int:
    """Return the number of items of a report with the smallest variance of a rare item."""

    def variance(width: int) -> float:
        _, absent, present = _compute_privset_probabilities(n_items, size, width, epsilon)
        return absent * (1 - absent) / (present - absent) ** 2

    return min(range(1, n_items // size), key=variance)


def _log_choose(n: int, k: int) -> float:
    """Return ln(n choose k)."""
    return float(special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1))


def _one_bucket() -> Params:
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
