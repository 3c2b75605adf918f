"""Whether the time of making a report tells its value.

Two values, and the first one again as a control, are encoded in turn, in an order drawn anew in
each round. The median of the differences is robust against whatever else the machine does; its
interval comes from the ranks and holds for any law of the noise (binomial, at LEVEL).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rappor.auditing.check import Check
from rappor.auditing.lower_bound import LEVEL
from rappor.auditing.shipped_encoder import Show
from rappor.progress import Progress
from rappor.protocol.randomizer import SECRET_BYTES
from rappor.simulation.keystream import Keystream

BOUND: Final = 0.02
"""Difference that is allowed, as a share of the time of one report."""

_BATCH: Final = 8
"""Reports between two looks at the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Median difference of two encodings and its interval, and the median time, in seconds."""

    difference: float
    low: float
    high: float
    median: float


def timing_check(
    name: str,
    show: Show,
    metric: str,
    values: tuple[str, str],
    *,
    rounds: int,
    progress: Progress,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Check:
    """Compare the times of two values; a pass or a fault only where the interval decides."""
    spent = _measure(show, metric, values, rounds, progress, clock)
    told = _compare(spent[:, 0], spent[:, 1])
    control = _compare(spent[:, 0], spent[:, 2])
    allowed = BOUND * told.median
    inside = -allowed <= told.low and told.high <= allowed
    outside = told.low > allowed or told.high < -allowed
    return Check(
        name=name,
        verdict="pass" if inside else "fault" if outside else "not seen",
        detail=f"{_share(told)} of {told.median * 1e6:.1f} us, within {BOUND:.0%} allowed; "
        f"the same value twice {_share(control)}",
    )


def _measure(
    show: Show,
    metric: str,
    values: tuple[str, str],
    rounds: int,
    progress: Progress,
    clock: Callable[[], int],
) -> NDArray[np.float64]:
    """Return (rounds, 3) seconds a report: of the two values, and of the first again."""
    chance = Keystream()
    texts = (*values, values[0])
    spent = np.empty((rounds, 3))
    orders = np.argsort(chance.coins((rounds, 3)), axis=1)
    for number, order in enumerate(orders.tolist()):
        stream = chance.coins(_BATCH * SECRET_BYTES // 4).tobytes()
        secrets = [stream[at : at + SECRET_BYTES] for at in range(0, len(stream), SECRET_BYTES)]
        for place in order:
            begun = clock()
            for secret in secrets:
                show(secret, metric, texts[place])
            spent[number, place] = (clock() - begun) / (_BATCH * 1e9)
        if number % 64 == 0:
            progress("timing", number, rounds)
    return spent


def _compare(first: NDArray[np.float64], second: NDArray[np.float64]) -> Timing:
    differences = np.sort(second - first)
    n = len(differences)
    # The median lies between these ranks unless a fair coin's n throws are this far off.
    rank = max(1, int(stats.binom.ppf(LEVEL / 2, n, 0.5)))
    return Timing(
        difference=float(np.median(differences)),
        low=float(differences[rank - 1]),
        high=float(differences[n - rank]),
        median=float(np.median(first)),
    )


def _share(timing: Timing) -> str:
    low, high = timing.low / timing.median, timing.high / timing.median
    return f"{timing.difference / timing.median:+.2%} ({low:+.2%} to {high:+.2%})"
