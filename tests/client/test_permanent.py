"""The permanent response: it stays the same, and is independent of every other.

Independence is tested by Hoeffding's inequality at a false-alarm rate of 1e-9 a check. Each
check looks at every bit position for a true 0 and a true 1; a shared coin would make pairs
agree whenever the noise decides both, f^2 (1/2) of the time more, which is far outside.
"""

from __future__ import annotations

import math
import struct

import pytest

from rappor import Params
from rappor.protocol.randomizer import expand, permanent, permanent_response

FALSE_ALARM = 1e-9
N_PAIRS = 6000
PARAMS = Params(k=32, m=1, f=0.8, p=0.25, q=0.75)
OTHER_F = Params(k=32, m=1, f=0.7, p=0.25, q=0.75)
SECRETS = [bytes([i % 256, i // 256] * 16) for i in range(N_PAIRS)]
Context = tuple[bytes, str, str, Params]


def agreement(one: Context, other: Context, bits: bytes) -> list[float]:
    """Return for each bit position how often two contexts' responses agree over devices."""
    k = PARAMS.k
    equal = [0] * k
    for salt in SECRETS:
        answers = []
        for secret, metric, epoch, params in (one, other):
            own = bytes(a ^ b for a, b in zip(secret, salt, strict=True))
            answers.append(int.from_bytes(permanent(own, metric, epoch, params, bits), "little"))
        same = ~(answers[0] ^ answers[1])
        for i in range(k):
            equal[i] += same >> i & 1
    return [n / N_PAIRS for n in equal]


def expected(one: Params, other: Params, bit: int) -> float:
    """Return how often independent responses agree."""
    ones = [params.f1 + (1 - params.f) * bit for params in (one, other)]
    return ones[0] * ones[1] + (1 - ones[0]) * (1 - ones[1])


HOME: Context = (bytes(32), "page", "2026-11", PARAMS)
OTHERS: dict[str, Context] = {
    "metric": (bytes(32), "sage", "2026-11", PARAMS),
    "epoch": (bytes(32), "page", "2026-12", PARAMS),
    "no epochs": (bytes(32), "page", "", PARAMS),
    "secret": (bytes(31) + b"\1", "page", "2026-11", PARAMS),
    "f": (bytes(32), "page", "2026-11", OTHER_F),
}


@pytest.mark.parametrize("differs", OTHERS)
def test_responses_are_independent(differs: str) -> None:
    """Between metrics, epochs, secrets and values of f: for true zeros and true ones."""
    k = PARAMS.k
    bound = math.sqrt(math.log(2 * 2 * k / FALSE_ALARM) / (2 * N_PAIRS))
    for bits, truth in ((bytes(4), 0), (b"\xff" * 4, 1)):
        agreeing = expected(HOME[3], OTHERS[differs][3], truth)
        rates = agreement(HOME, OTHERS[differs], bits)
        assert all(abs(rate - agreeing) <= bound for rate in rates)


def test_the_check_would_see_shared_coins() -> None:
    """Its power: the same coins under another f agree far outside the bound, at every bit."""
    bound = math.sqrt(math.log(4 * PARAMS.k / FALSE_ALARM) / (2 * N_PAIRS))
    equal = [0] * PARAMS.k
    for secret in SECRETS:
        drawn = struct.unpack("<32I", expand(secret, b"shared", 128))
        one, other = (
            permanent_response(bytes(4), params, lambda n, drawn=drawn: drawn[:n])  # type: ignore[misc]
            for params in (PARAMS, OTHER_F)
        )
        same = ~(int.from_bytes(one, "little") ^ int.from_bytes(other, "little"))
        for i in range(PARAMS.k):
            equal[i] += same >> i & 1
    assert min(equal) / N_PAIRS > expected(PARAMS, OTHER_F, 0) + 3 * bound
