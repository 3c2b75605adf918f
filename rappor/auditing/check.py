"""Check: one question of an audit and its answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Verdict = Literal["pass", "fault", "not seen"]
"""`not seen` means that the responses hold nothing to which the question applies."""

ALARM: Final = 1e-9
"""Probability at most that a check of a distribution finds a fault in a correct encoder.

An audit makes about 30 of them: one audit a night errs once in 100,000 years.
"""


class Case(NamedTuple):
    """A count of ones among n that should be Binomial(n, probability), and what it counts."""

    what: str
    ones: int
    n: int
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """The least likely of the counts that one check compares, as a share of its n."""

    what: str
    observed: float
    expected: float
    n: int
    n_counts: int

    def __str__(self) -> str:
        """Return one sentence, with a digit more than the standard error has."""
        digits = max(3, 1 + math.ceil(math.log10(self.n) / 2))
        observed, expected = (
            f"{share:.{digits}f}".removeprefix("0") for share in (self.observed, self.expected)
        )
        count = f"{self.what}: observed {observed}, expected {expected}, n = {self.n:,}"
        if self.n_counts == 1:
            return count
        return f"largest deviation of {self.n_counts:,} counts: {count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A question, the verdict and one sentence with what was measured.

    `p_value` is that of a correct encoder, corrected for all counts that the check compares, and
    `deviation` the least likely of them. Checks of a loss have, in nats, the `claim` of the
    parameters, the lower `bound` that was measured, and about what bound a correct encoder can
    `reach` in as many trials.
    """

    name: str
    verdict: Verdict
    detail: str
    p_value: float | None = None
    deviation: Deviation | None = None
    bound: float | None = None
    claim: float | None = None
    reach: float | None = None


def verdict_of(p_value: float) -> Verdict:
    """Return the verdict on a p-value."""
    return "fault" if p_value < ALARM else "pass"


def binomial_p(
    ones: NDArray[np.int64], n: NDArray[np.int64], probability: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return exact two-sided p-values of counts that should be Binomial(n, probability)."""
    low = stats.binom.cdf(ones, n, probability)
    high = stats.binom.sf(ones - 1, n, probability)
    p_values: NDArray[np.float64] = np.minimum(1.0, 2 * np.minimum(low, high))
    return p_values


def binomial_check(name: str, cases: Iterable[Case]) -> Check:
    """Compare counts with their binomial distributions, with Bonferroni's correction."""
    counted = [case for case in cases if case.n > 0]
    if not counted:
        return Check(name=name, verdict="not seen", detail="no response can be compared")
    what, ones, n, probabilities = zip(*counted, strict=True)
    return counts_check(
        name, np.array(ones), np.array(n), np.array(probabilities), lambda place: what[place]
    )


def counts_check(
    name: str,
    ones: NDArray[np.int64],
    n: NDArray[np.int64],
    probabilities: NDArray[np.float64],
    what: Callable[[int], str],
) -> Check:
    """Compare counts in arrays, all with n above 0; `what` says what the count at a place is."""
    p_values = binomial_p(ones, n, probabilities)
    least_likely = int(np.argmin(p_values))
    p_value = min(1.0, float(p_values[least_likely]) * len(p_values))
    n_worst = int(n[least_likely])
    deviation = Deviation(
        what=what(least_likely),
        observed=int(ones[least_likely]) / n_worst,
        expected=float(probabilities[least_likely]),
        n=n_worst,
        n_counts=len(p_values),
    )
    return Check(
        name=name,
        verdict=verdict_of(p_value),
        detail=str(deviation),
        p_value=p_value,
        deviation=deviation,
    )


def exact_check(name: str, counted: tuple[int, int]) -> Check:
    """Return the check of what must always be so, from how often it was not, and of how many."""
    wrong, n = counted
    if not n:
        return Check(name=name, verdict="not seen", detail="no report was seen")
    detail = f"{wrong:,} of {n:,} were otherwise"
    return Check(name=name, verdict="fault" if wrong else "pass", detail=detail)


def rare_p(found: int, n: int, probability: float) -> float:
    """Return the p-value of something rare that `found` of n do, each with another probability.

    `probability` bounds their mean. From the mean + 1 on the tail is below the binomial one of it
    (Hoeffding 1956).
    """
    probability = min(1.0, probability)
    return float(stats.binom.sf(found - 1, n, probability)) if found > n * probability + 1 else 1.0


def enough_of_rare(n: int, probability: float) -> float:
    """Return how many of n must be found for a fault."""
    probability = min(1.0, probability)
    return max(n * probability + 2, float(stats.binom.isf(ALARM, n, probability)) + 1)


def rare_check(name: str, found: int, n: int, probability: float, what: str) -> Check:
    """Count the devices of n that do something rare; `what` says what they do."""
    p_value = rare_p(found, n, probability)
    if enough_of_rare(n, probability) > n and verdict_of(p_value) == "pass":
        detail = f"{n:,} devices that {what} would not be unusual"
        return Check(name=name, verdict="not seen", detail=detail)
    return Check(
        name=name,
        verdict=verdict_of(p_value),
        p_value=p_value,
        detail=f"{found:,} of {n:,} devices {what}, expected at most {n * probability:.2g}",
    )
