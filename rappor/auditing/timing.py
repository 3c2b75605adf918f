"""Whether the time that an encoder takes tells which value it encodes.

Each round encodes two values, and the first one again as a control, in an order drawn anew. The
median of the differences is robust against whatever else the machine does. Its interval comes from
the ranks, which are binomial, and holds for any distribution of the noise (at LEVEL).
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
from rappor.auditing.shipped_encoder import Respond
from rappor.progress import Progress
from rappor.protocol.randomizer import SECRET_BYTES
from rappor.simulation.keystream import Keystream

BOUND: Final = 0.02
"""Difference that is allowed, as a share of the time of one report.

It is one or two microseconds of the shipped encoder; the delay of a network varies by more.
"""

_BATCH: Final = 8
"""Reports between two looks at the clock, which itself takes a tenth of a microsecond."""

_NOTICE: Final = 64
"""Rounds between two signs of progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Median difference of two encodings and its interval, and the median time, in seconds."""

    difference: float
    low: float
    high: float
    median: float


def timing_check(
    name: str,
    respond: Respond,
    metric: str,
    values: tuple[str, str],
    *,
    rounds: int,
    rng: Keystream,
    progress: Progress,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Check:
    """Compare the times of two values; a pass or a fault only where the interval decides."""
    spent = np.empty((rounds, 3))
    for number in range(rounds):
        spent[number] = _one_round(respond, metric, values, rng, clock)
        if number % _NOTICE == 0:
            progress("timing", number, rounds)
    timing = _compare(spent[:, 0], spent[:, 1])
    control = _compare(spent[:, 0], spent[:, 2])
    allowed = BOUND * timing.median
    inside = -allowed <= timing.low and timing.high <= allowed
    outside = timing.low > allowed or timing.high < -allowed
    return Check(
        name=name,
        verdict="pass" if inside else "fault" if outside else "not seen",
        detail=f"the other value takes {_share(timing)} of {timing.median * 1e6:.1f} us longer, "
        f"{BOUND:.0%} is allowed; the same value twice: {_share(control)}",
    )


def _one_round(
    respond: Respond,
    metric: str,
    values: tuple[str, str],
    rng: Keystream,
    clock: Callable[[], int],
) -> list[float]:
    """Return seconds a report: of the two values, and of the first again."""
    texts, spent = (*values, values[0]), [0.0, 0.0, 0.0]
    stream = rng.coins(_BATCH * SECRET_BYTES // 4).tobytes()
    secrets = [stream[at : at + SECRET_BYTES] for at in range(0, len(stream), SECRET_BYTES)]
    for place in np.argsort(rng.coins(3)).tolist():
        begun = clock()
        for secret in secrets:
            respond(secret, metric, texts[place])
        spent[place] = (clock() - begun) / (_BATCH * 1e9)
    return spent


def _compare(first: NDArray[np.float64], second: NDArray[np.float64]) -> Timing:
    differences = np.sort(second - first)
    n = len(differences)
    # The median lies between these ranks unless n throws of a fair coin are this far off n/2.
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
