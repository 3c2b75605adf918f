"""The fresh coins behind a subject's own reports, as far as its reports show them.

A report tells of each coin on which side of a threshold it fell. Where the threshold is one half,
that is the coin's top bit, and a generator that is a shift register, as the Mersenne Twister, gives
itself away under any seed. Where the threshold is another one, only dependence over short
distances and repetition can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rappor.auditing.check import ALARM, Case, Check, binomial_check
from rappor.auditing.evidence import Bits
from rappor.auditing.randomness import register_check
from rappor.protocol.params import ONE, Params

_LAGS = 64
"""Distances, in coins, over which coins are compared."""


def shows_top_bits(params: Params) -> bool:
    """Return whether a report can show the top bit of a coin."""
    return ONE // 2 in (params.t_p, params.t_q)


def fresh_checks(reports: Bits | None, permanents: Bits | None, params: Params) -> list[Check]:
    """Return the checks of the coins behind many reports, in the order in which they were made.

    Both are (n, k) bool, one report a row, with the permanent response behind it; None if the
    permanent response is not known.
    """
    names = [f"own coins: {what}" for what in ("lags", "repetition", "no shift register")]
    if reports is None or permanents is None:
        detail = "the permanent response behind the reports is not known"
        return [Check(name=name, verdict="not seen", detail=detail) for name in names]
    return [
        binomial_check(names[0], _lags(reports, permanents, params)),
        _repetition(names[1], reports, params),
        _register(names[2], reports, permanents, params),
    ]


def _lags(reports: Bits, permanents: Bits, params: Params) -> Iterator[Case]:
    """Yield coins at each distance, in pairs without a common coin, by their thresholds."""
    ones = (params.p, params.q)
    bits, behind = reports.ravel(), permanents.ravel()
    for lag in sorted({*range(1, _LAGS + 1), params.k, 2 * params.k}):
        first = np.arange(max(0, len(bits) - lag))
        first = first[first // lag % 2 == 0]
        kinds = 2 * behind[first].astype(np.int64) + behind[first + lag]
        n = np.bincount(kinds, minlength=4).tolist()
        both = np.bincount(kinds[bits[first] & bits[first + lag]], minlength=4).tolist()
        for kind in range(4):
            a, b = divmod(kind, 2)
            what = f"coins {lag} apart both hit, permanent {a} and {b}"
            yield Case(what, both[kind], n[kind], ones[a] * ones[b])


def _repetition(name: str, reports: Bits, params: Params) -> Check:
    """Look for reports in a row that come again, as in a generator of a short period."""
    same = max(one**2 + (1 - one) ** 2 for one in (params.p, params.q))
    n = len(reports)
    if same == 1:
        detail = "reports need no fresh coins: p = 0 and q = 1"
        return Check(name=name, verdict="not seen", detail=detail)
    row = max(1, math.ceil(math.log(2 * ALARM / n**2) / (params.k * math.log(same))))
    blocks = np.packbits(reports[: n // row * row].reshape(n // row, row * params.k), axis=1)
    repeated = len(blocks) - len(np.unique(blocks, axis=0))
    return Check(
        name=name,
        verdict="fault" if repeated else "pass",
        detail=f"{repeated:,} of {len(blocks):,} rows of {row:,} reports repeat an earlier one",
    )


def _register(name: str, reports: Bits, permanents: Bits, params: Params) -> Check:
    half = np.array([params.t_p == ONE // 2, params.t_q == ONE // 2])
    fair = half[permanents.astype(np.int64)].all(axis=0)
    if not fair.any():
        detail = "no bit is decided by the top bit of a coin: neither p nor q is one half"
        return Check(name=name, verdict="not seen", detail=detail)
    return register_check(name, reports[:, int(np.argmax(fair))].astype(np.uint8))
