"""Check: one question of an audit and its answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from scipy import stats

from rappor.counts.arrays import Floats, Integers

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
class Check:
    """A question, the verdict and one sentence with what was measured.

    `p_value` is that of a correct encoder, corrected for all counts that the check compares. Checks
    of a loss have, in nats, the `claim` of the parameters, the lower `bound` that was measured, and
    about what bound a correct encoder can `reach` in as many trials.
    """

    name: str
    verdict: Verdict
    detail: str
    p_value: float | None = None
    bound: float | None = None
    claim: float | None = None
    reach: float | None = None


def measured(name: str, p_value: float, detail: str) -> Check:
    """Return the check of a p-value."""
    verdict: Verdict = "fault" if p_value < ALARM else "pass"
    return Check(name=name, verdict=verdict, p_value=p_value, detail=detail)


def judged(name: str, detail: str, *, is_fault: bool) -> Check:
    """Return the check of what must always be so."""
    return Check(name=name, verdict="fault" if is_fault else "pass", detail=detail)


def unseen(name: str, detail: str) -> Check:
    """Return the check of what no response tells."""
    return Check(name=name, verdict="not seen", detail=detail)


def binomial_p(ones: Integers, n: Integers, probability: Floats) -> Floats:
    """Return exact two-sided p-values of counts that should be Binomial(n, probability)."""
    low = stats.binom.cdf(ones, n, probability)
    high = stats.binom.sf(ones - 1, n, probability)
    p_values: Floats = np.minimum(1.0, 2 * np.minimum(low, high))
    return p_values


def binomial_check(name: str, cases: Iterable[Case]) -> Check:
    """Compare counts with their binomial distributions, with Bonferroni's correction."""
    counted = [case for case in cases if case.n > 0]
    if not counted:
        return unseen(name, "no response can be compared")
    what, ones, n, probabilities = zip(*counted, strict=True)
    return counts_check(
        name, np.array(ones), np.array(n), np.array(probabilities), lambda place: what[place]
    )


def counts_check(
    name: str, ones: Integers, n: Integers, probabilities: Floats, what: Callable[[int], str]
) -> Check:
    """Compare counts in arrays, all with n above 0; `what` says what the count at a place is."""
    p_values = binomial_p(ones, n, probabilities)
    least_likely = int(np.argmin(p_values))
    p_value = min(1.0, float(p_values[least_likely]) * len(p_values))
    n_worst = int(n[least_likely])
    digits = max(3, 1 + math.ceil(math.log10(n_worst) / 2))  # one more than the standard error has
    observed, expected = (
        f"{share:.{digits}f}"
        for share in (int(ones[least_likely]) / n_worst, float(probabilities[least_likely]))
    )
    head = "" if len(n) == 1 else f"largest deviation of {len(n):,} counts: "
    shares = f"observed {observed}, expected {expected}, n = {n_worst:,}"
    return measured(name, p_value, f"{head}{what(least_likely)}: {shares}")


def exact_check(name: str, counted: tuple[int, int]) -> Check:
    """Return the check of what must always be so, from how often it was not, and of how many."""
    wrong, n = counted
    if not n:
        return unseen(name, "no report was seen")
    return judged(name, f"{wrong:,} of {n:,} were otherwise", is_fault=wrong > 0)


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
    if enough_of_rare(n, probability) > n and p_value >= ALARM:
        return unseen(name, f"{n:,} devices that {what} would not be unusual")
    mean = f"expected at most {n * probability:.2g}"
    return measured(name, p_value, f"{found:,} of {n:,} devices {what}, {mean}")
