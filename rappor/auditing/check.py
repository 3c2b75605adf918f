"""Check: one question of an audit with its verdict, and the statistical tests behind the verdict.

Every audit of this package is a list of checks. This module has the three kinds of tests:

- An *exact* test (`check_condition`, `check_exact`) tests a condition that every correct encoder
  fulfils with certainty. An exact test never raises a false alarm.
- A *binomial* test (`check_binomial`, `check_counts`) compares counts with their known
  probabilities. A count that should be Binomial(n, P) gets its exact two-sided p-value,
  min(1, 2 min(P(X <= count), P(X >= count))). The check reports the smallest p-value of its counts,
  multiplied by their number (Bonferroni's correction).
- A *rare-event* test (`check_rare`) counts devices that show an event of small, possibly different
  probabilities.

A check of the second and third kind finds a fault if its p-value is below `FALSE_ALARM_RATE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from scipy import stats

from rappor.auditing.likelihood_ratios import LogRatio, convert_to_p_value
from rappor.counts.arrays import Floats, Integers

Verdict = Literal["pass", "fault", "not seen"]
"""Result of a check. `not seen` means that no response allowed the comparison."""

FALSE_ALARM_RATE: Final = 1e-9
"""Largest probability that one check of a distribution finds a fault in a correct encoder.

An audit makes about 30 such checks. With one audit a night, one false alarm is expected in 100,000
years.
"""


class Case(NamedTuple):
    """A count of ones among n trials that should be Binomial(n, probability).

    `description` names the count in the check's sentence, such as "bit 3 given true 1".
    """

    description: str
    ones: int
    n: int
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check of an audit.

    Attributes
    ----------
    name : str
        The question, as the README of this package lists it.
    verdict : str
        "pass", "fault", or "not seen" if no response allowed the comparison.
    detail : str
        One sentence with the measured values.
    p_value : float or None
        p-value under a correct encoder, corrected for all counts that the check compares. None for
        an exact test.
    bound : float or None
        For the check of a loss: measured lower bound on the loss, in nats.
    claim : float or None
        For the check of a loss: loss of the parameters, in nats. A bound above it is a fault.
    reach : float or None
        For the check of a loss: approximate bound that a correct encoder gives with as many trials,
        in nats.
    """

    name: str
    verdict: Verdict
    detail: str
    p_value: float | None = None
    bound: float | None = None
    claim: float | None = None
    reach: float | None = None


def check_p_value(name: str, p_value: float, detail: str) -> Check:
    """Return a check that finds a fault if the p-value is below FALSE_ALARM_RATE."""
    verdict: Verdict = "fault" if p_value < FALSE_ALARM_RATE else "pass"
    return Check(name=name, verdict=verdict, p_value=p_value, detail=detail)


def check_condition(name: str, detail: str, *, is_fault: bool) -> Check:
    """Return a check of a condition that every correct encoder fulfils with certainty."""
    return Check(name=name, verdict="fault" if is_fault else "pass", detail=detail)


def mark_not_seen(name: str, detail: str) -> Check:
    """Return a check without a verdict, because no response allows the comparison."""
    return Check(name=name, verdict="not seen", detail=detail)


def compute_binomial_p_values(ones: Integers, n: Integers, probability: Floats) -> Floats:
    """Compute exact two-sided p-values of counts that should be Binomial(n, probability)."""
    p_at_most = stats.binom.cdf(ones, n, probability)
    p_at_least = stats.binom.sf(ones - 1, n, probability)
    p_values: Floats = np.minimum(1.0, 2 * np.minimum(p_at_most, p_at_least))
    return p_values


def check_binomial(name: str, cases: Iterable[Case], ratios: Sequence[LogRatio] = ()) -> Check:
    """Compare counts with their binomial distributions, and faults by their log ratios.

    All p-values are multiplied by the number of counts and ratios (Bonferroni's correction). The
    check describes the smallest p-value, of a count or of a ratio. Cases without a trial are left
    out. If none is left, the check is not seen, whatever the ratios are.
    """
    counted = [case for case in cases if case.n > 0]
    if not counted:
        return mark_not_seen(name, "no response can be compared")
    descriptions, ones, n, probabilities = zip(*counted, strict=True)
    check = check_counts(
        name,
        np.array(ones),
        np.array(n),
        np.array(probabilities),
        lambda index: descriptions[index],
        n_more=len(ratios),
    )
    if not ratios:
        return check
    largest = max(ratios, key=lambda ratio: ratio.value)
    p_value = min(1.0, convert_to_p_value(largest.value) * (len(counted) + len(ratios)))
    if check.p_value is not None and check.p_value <= p_value:
        return check
    return check_p_value(name, p_value, f"{largest.description}: {_format_ratio(largest.value)}")


def _format_ratio(log_ratio: float) -> str:
    """Format a log ratio in nats as a power of ten that compares a fault with a correct client."""
    if math.isinf(log_ratio):
        return "a correct client cannot give these reports"
    exponent = log_ratio / math.log(10)
    return f"explains the reports 10^{exponent:.1f} times as well as a correct client"


def check_counts(
    name: str,
    ones: Integers,
    n: Integers,
    probabilities: Floats,
    describe: Callable[[int], str],
    *,
    n_more: int = 0,
) -> Check:
    """Compare counts in arrays with their binomial distributions; every n must be positive.

    `describe(i)` returns words for the count at index i. Only the least likely count is described.
    `n_more` is the number of other p-values of the same check, for Bonferroni's correction.
    """
    p_values = compute_binomial_p_values(ones, n, probabilities)
    least_likely = int(np.argmin(p_values))
    p_value = min(1.0, float(p_values[least_likely]) * (len(p_values) + n_more))
    n_worst = int(n[least_likely])
    # A standard error is about 1 / (2 sqrt(n)) or less: show one digit more than that.
    digits = max(3, 1 + math.ceil(math.log10(n_worst) / 2))
    observed, expected = (
        f"{share:.{digits}f}"
        for share in (int(ones[least_likely]) / n_worst, float(probabilities[least_likely]))
    )
    head = "" if len(n) == 1 else f"largest deviation of {len(n):,} counts: "
    shares = f"observed {observed}, expected {expected}, n = {n_worst:,}"
    return check_p_value(name, p_value, f"{head}{describe(least_likely)}: {shares}")


def check_exact(name: str, counted: tuple[int, int]) -> Check:
    """Return a check of a condition from the numbers of violations and of comparisons."""
    wrong, n = counted
    if not n:
        return mark_not_seen(name, "no report was seen")
    return check_condition(name, f"violated in {wrong:,} of {n:,} cases", is_fault=wrong > 0)


def compute_rare_p_value(observed_count: int, n: int, probability: float) -> float:
    """Compute the p-value of a rare event that `observed_count` of n devices show.

    Devices may have different probabilities of the event, and `probability` is an upper bound on
    their mean. If the count exceeds the expected number by more than 1, the tail of the count's
    distribution is at most the binomial tail with the mean probability (Hoeffding 1956). Below that
    the inequality does not hold, and the p-value is 1.
    """
    probability = min(1.0, probability)
    if observed_count <= n * probability + 1:
        return 1.0
    return float(stats.binom.sf(observed_count - 1, n, probability))


def compute_rare_threshold(n: int, probability: float) -> float:
    """Compute the smallest number of devices with a rare event that is a fault.

    `probability` is an upper bound on the mean probability of the event for n devices.
    """
    probability = min(1.0, probability)
    return max(n * probability + 2, float(stats.binom.isf(FALSE_ALARM_RATE, n, probability)) + 1)


def check_rare(name: str, observed_count: int, n: int, probability: float, predicate: str) -> Check:
    """Test the number of devices, `observed_count` of n, that show a rare event.

    `probability` is an upper bound on the mean probability of the event. `predicate` is the
    predicate of the sentence about the devices, such as "have such a report". Bad case: even the
    event on all n devices would not be a fault, because it is too probable. Then the check is not
    seen.
    """
    p_value = compute_rare_p_value(observed_count, n, probability)
    if compute_rare_threshold(n, probability) > n and p_value >= FALSE_ALARM_RATE:
        return mark_not_seen(name, f"even if all {n:,} devices {predicate}, that may be chance")
    mean = f"expected at most {n * probability:.2g}"
    return check_p_value(name, p_value, f"{observed_count:,} of {n:,} devices {predicate}, {mean}")
