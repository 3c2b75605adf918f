"""Losses (epsilon, delta) of reports in a shuffled batch.

A shuffler removes the order of n reports, so the report of one device hides among the others. The
bound compares two values, a and b, of this device. Each other report is a "clone" with probability
2 / (e^local + 1): it is as if it came from a or from b (Feldman, McMillan and Talwar 2023). The
letters: `local` is the loss of a report alone, and `epsilon` is the loss inside the batch, both in
nats. `delta` is the probability with which the loss may exceed epsilon.

The tests compare the bound with enumerated batches, with exact sums over clones, and with the
closed form of the paper.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import pytest
from enumeration import enumerate_reports
from scipy import stats

from rappor.privacy.shuffling import Clones, compute_shuffled_epsilon, find_local_epsilon
from rappor.protocol.encodings import get_encoder
from rappor.protocol.loss import epsilon_n
from rappor.protocol.params import Params

pytestmark = pytest.mark.slow  # numerical work of seconds

Shuffled = Mapping[tuple[int, ...], float]
"""Distribution of a shuffled batch. A key contains the numbers of reports of each kind, and its
value is the probability of these numbers. A shuffler hides the order, so the batch shows no
more."""


def enumerate_batch(reports: Sequence[Sequence[float]]) -> Shuffled:
    """Return the distribution of a shuffled batch.

    `reports` has, for each device, the probability of each kind of report.
    """
    batch: dict[tuple[int, ...], float] = {(0,) * len(reports[0]): 1.0}
    for device in reports:
        grown: dict[tuple[int, ...], float] = defaultdict(float)
        for (numbers, weight), (kind, probability) in itertools.product(
            batch.items(), enumerate(device)
        ):
            grown[(*numbers[:kind], numbers[kind] + 1, *numbers[kind + 1 :])] += (
                weight * probability
            )
        batch = grown
    return batch


def compute_delta(first: Shuffled, second: Shuffled, epsilon: float) -> float:
    """Return the smallest delta for which two batches are (epsilon, delta)-indistinguishable.

    It is the larger of the sums of max(0, P - e^epsilon Q) and max(0, Q - e^epsilon P).
    """
    differences = [(first[key], second.get(key, 0.0)) for key in first]
    return max(
        sum(max(0.0, x - math.exp(epsilon) * y) for x, y in differences),
        sum(max(0.0, y - math.exp(epsilon) * x) for x, y in differences),
    )


def compute_delta_bound(epsilon: float, local: float, n: int) -> float:
    """Return the bound on delta that the package computes.

    Its sums neglect outcomes with a total probability of at most `lost`.
    """
    return Clones.among(local, n, lost=1e-15).delta(epsilon)


def compute_clones_delta(epsilon: float, odds: Fraction, n: int) -> Fraction:
    """Return the exact delta of the clone distributions, summed over all outcomes.

    `odds` is e^local. An outcome is a pair: the numbers of reports that look like value a and like
    value b.
    """
    share = 2 / (odds + 1)
    if_a: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    if_b: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for clones in range(n):
        probability = math.comb(n - 1, clones) * share**clones * (1 - share) ** (n - 1 - clones)
        for a in range(clones + 1):
            weight = probability * math.comb(clones, a) / Fraction(2) ** clones
            # The device itself reports its own value with probability odds / (odds + 1).
            for outcomes, report_a in ((if_a, odds / (odds + 1)), (if_b, 1 / (odds + 1))):
                outcomes[a + 1, clones - a] += weight * report_a
                outcomes[a, clones - a + 1] += weight * (1 - report_a)
    factor = Fraction(math.exp(epsilon))
    return sum((max(Fraction(0), x - factor * if_b[key]) for key, x in if_a.items()), Fraction(0))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("local", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("part", [0.0, 0.2, 0.7, 0.99])
def test_small_batches_are_summed_exactly(local: float, n: int, part: float) -> None:
    """The bound is at least the exact delta of the clones, and exceeds it by at most 0.1 %."""
    epsilon = part * local
    exact = float(compute_clones_delta(epsilon, Fraction(math.exp(local)), n))
    bound = compute_delta_bound(epsilon, local, n)
    assert exact <= bound <= exact * 1.001 + 1e-12


def test_delta_is_not_the_probability_of_a_larger_loss() -> None:
    """The loss exceeds epsilon with a larger probability than delta, in the module's example.

    Of the outcome's probabilities P and Q under the two values, the loss is ln(P / Q).
    """
    epsilon = compute_shuffled_epsilon(2.0, 30, delta=1e-3)
    assert round(epsilon, 2) == 1.95
    odds, share = math.exp(2.0), 2 / (math.exp(2.0) + 1)
    larger_loss = 0.0
    for clones in range(30):
        weight = math.comb(29, clones) * share**clones * (1 - share) ** (29 - clones)
        for x in range(clones + 2):
            first, second = x * odds + clones + 1 - x, x + (clones + 1 - x) * odds
            if math.log(first / second) > epsilon:
                ways = math.comb(clones + 1, x) / 2**clones
                larger_loss += weight * ways * first / ((odds + 1) * (clones + 1))
    assert round(larger_loss, 3) == 0.022


@pytest.mark.parametrize("n", [2, 5, 12])
@pytest.mark.parametrize("local", [0.5, 1.0, 3.0])
def test_the_bound_holds_for_shuffled_randomized_response(local: float, n: int) -> None:
    """The exact delta of shuffled randomized response, one bit a device, is at most the bound.

    It is so for every number of other devices with the value 1.
    """
    low = 1 / (math.exp(local) + 1)
    from_zero, from_one = (1 - low, low), (low, 1 - low)
    for n_ones in range(n):
        other_devices = [from_one] * n_ones + [from_zero] * (n - 1 - n_ones)
        first, second = (
            enumerate_batch([from_zero, *other_devices]),
            enumerate_batch([from_one, *other_devices]),
        )
        for part in (0.0, 0.1, 0.3, 0.6, 0.9):
            epsilon = part * local
            assert compute_delta(first, second, epsilon) <= compute_delta_bound(epsilon, local, n)
        for delta in (1e-1, 1e-3, 1e-6):
            stated = compute_shuffled_epsilon(local, n, delta=delta)
            assert compute_delta(first, second, stated) <= delta


@pytest.mark.parametrize("reports", [1, 2])
def test_the_bound_holds_for_histories_of_a_metric(reports: int) -> None:
    """The bound holds if the histories of three devices are shuffled, each with `reports` reports.

    The local loss is then the loss of a whole history. "c" is a value outside the categories.
    """
    params = Params(k=2, encoding="onehot", categories=("a", "b"), f=0.25, p=0.25, q=0.5)
    local = epsilon_n(params, reports)
    encoder = get_encoder(params)
    rows = [
        enumerate_reports(encoder.encode(value, 0), params, reports) for value in ("a", "b", "c")
    ]
    kinds = sorted({kind for row in rows for kind in row})
    a, b, unlisted = ([float(row.get(kind, 0)) for kind in kinds] for row in rows)
    for other_devices in itertools.combinations_with_replacement((a, b, unlisted), 2):
        first, second = enumerate_batch([a, *other_devices]), enumerate_batch([b, *other_devices])
        for part in (0.0, 0.3, 0.7, 0.95):
            epsilon = part * local
            assert compute_delta(first, second, epsilon) <= compute_delta_bound(epsilon, local, 3)


def compute_delta_by_scipy(epsilon: float, local: float, n: int) -> float:
    """Return the delta of the clones by scipy's binomials, over all numbers of clones."""
    share = 2 / (math.exp(local) + 1)
    total = 0.0
    for clones, probability in enumerate(stats.binom.pmf(np.arange(n), n - 1, share).tolist()):
        if probability < 1e-25:  # too small to change the sum
            continue
        split = stats.binom.pmf(np.arange(clones + 1), clones, 0.5)
        high, low = np.append(0.0, split), np.append(split, 0.0)
        truth = 1 / (1 + math.exp(-local))
        from_first, from_second = (
            truth * high + (1 - truth) * low,
            (1 - truth) * high + truth * low,
        )
        total += probability * float(
            np.maximum(from_first - math.exp(epsilon) * from_second, 0).sum()
        )
    return total


@pytest.mark.parametrize("n", [200, 2_000])
@pytest.mark.parametrize("local", [0.5, 2.0, 4.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-9])
def test_larger_batches_are_summed_tightly(local: float, n: int, delta: float) -> None:
    """The computed epsilon has at most the required delta, by an independent summation.

    An epsilon that is smaller by 1 % has a larger delta, so the bound wastes less than 1 %.
    """
    stated = compute_shuffled_epsilon(local, n, delta=delta)
    assert compute_delta_by_scipy(stated, local, n) <= delta
    assert stated == 0 or compute_delta_by_scipy(0.99 * stated - delta, local, n) > delta


def compute_closed_form(local: float, n: int, *, delta: float) -> float:
    """Return the bound of Feldman, McMillan and Talwar 2023, infinite if its condition fails."""
    if local > math.log(max(n / (8 * math.log(2 / delta)) - 1, 1e-9)):
        return math.inf
    noise = 4 * math.sqrt(2 * math.log(4 / delta) / ((math.exp(local) + 1) * n)) + 4 / n
    return math.log1p(math.expm1(local) * noise)


@pytest.mark.parametrize("delta", [1e-6, 1e-9])
@pytest.mark.parametrize("n", [1_000, 10_000, 10**6, 10**9, 10**12])
@pytest.mark.parametrize("local", [0.1, 1.0, 2.0, 4.0, 8.0])
def test_the_bound_is_below_the_closed_form(local: float, n: int, delta: float) -> None:
    """The numerical bound is below the closed form of the paper, and at most the local loss."""
    stated = compute_shuffled_epsilon(local, n, delta=delta)
    assert stated < compute_closed_form(local, n, delta=delta)
    assert stated <= local


def test_more_reports_and_more_delta_never_add_loss() -> None:
    """The bound falls with the number of reports and with delta, and grows with the local loss.

    Beyond 2^53 reports the bound is constant, because floating-point numbers do not distinguish
    larger integers.
    """
    sizes = [1, 2, 10, 100, 1_000, 10**5, 10**9, 2**53, 10**30]
    losses = [compute_shuffled_epsilon(2.0, n, delta=1e-9) for n in sizes]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == losses[-2]
    by_delta = [
        compute_shuffled_epsilon(2.0, 1_000, delta=d) for d in (1e-200, 1e-30, 1e-9, 1e-2, 0.9)
    ]
    assert by_delta == sorted(by_delta, reverse=True)
    assert by_delta[-1] == 0
    by_local = [
        compute_shuffled_epsilon(local, 1_000, delta=1e-6) for local in (0.01, 0.1, 1.0, 3.0, 9.0)
    ]
    assert by_local == sorted(by_local)


@pytest.mark.parametrize(
    ("local", "delta"), [(0.0, 1e-6), (1e-12, 1e-6), (200.0, 1e-6), (math.inf, 0.5), (1.0, 5e-324)]
)
def test_extreme_arguments_keep_the_local_loss(local: float, delta: float) -> None:
    """If the local loss is near 0 or very large, or delta near 0, the bound is the local loss.

    Shuffling then gains nothing that floating-point numbers could show.
    """
    assert compute_shuffled_epsilon(local, 10**6, delta=delta) == local
    if local < math.inf:
        assert find_local_epsilon(local, 10**6, delta=5e-324) == local


def test_a_batch_of_one_report_loses_nearly_the_local_loss() -> None:
    """One randomized response with e0 nats has delta = (e^e0 - e^epsilon) / (e^e0 + 1).

    With delta = .01 and e0 = 1, epsilon is therefore ln(e - .01 (e + 1)).
    """
    stated = compute_shuffled_epsilon(1.0, 1, delta=0.01)
    assert stated == pytest.approx(math.log(math.e - 0.01 * (math.e + 1)), rel=1e-4)
    assert stated >= math.log(math.e - 0.01 * (math.e + 1))
