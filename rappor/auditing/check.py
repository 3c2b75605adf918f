"""Check: one question of an audit and its answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Verdict = Literal["pass", "fault", "not seen"]

ALARM: Final = 1e-9
"""False-alarm rate of each check of a law."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A question, the verdict and one sentence with what was measured.

    `p_value` is that of a correct encoder, over all that the check has looked at; `bound` and
    `claim` are nats, of checks of the loss.
    """

    name: str
    verdict: Verdict
    detail: str
    p_value: float | None = None
    bound: float | None = None
    claim: float | None = None


def binomial_p(
    ones: NDArray[np.int64], n: NDArray[np.int64], chance: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return exact two-sided p-values of counts that should be Binomial(n, chance)."""
    low = stats.binom.cdf(ones, n, chance)
    high = stats.binom.sf(ones - 1, n, chance)
    p_values: NDArray[np.float64] = np.minimum(1.0, 2 * np.minimum(low, high))
    return p_values


def law_check(name: str, cases: Iterable[tuple[str, int, int, float]]) -> Check:
    """Hold counts against their binomial laws, Bonferroni over the cases.

    Each case is what is counted, the count, out of how many, and the chance of each.
    """
    listed = [case for case in cases if case[2] > 0]
    if not listed:
        return Check(name=name, verdict="not seen", detail="nothing was shown that it could ask")
    labels, ones, n, chances = zip(*listed, strict=True)
    p_values = binomial_p(np.array(ones), np.array(n), np.array(chances))
    worst = int(np.argmin(p_values))
    p_value = min(1.0, float(p_values[worst]) * len(listed))
    share = ones[worst] / n[worst]
    return Check(
        name=name,
        verdict="fault" if p_value < ALARM else "pass",
        p_value=p_value,
        detail=f"furthest off of {len(listed):,}: {labels[worst]}, {share:.5f} for "
        f"{chances[worst]:.5f} in {n[worst]:,}",
    )
