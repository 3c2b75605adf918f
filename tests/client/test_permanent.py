"""The permanent response: it stays the same, and is independent of every other.

Independence is tested by Hoeffding's inequality at a false-alarm rate of 1e-9 a check. Each
check looks at every bit position for a true 0 and a true 1; a shared coin would make pairs
agree whenever the noise decides both, f^2 (1/2) of the time more, which is far outside.
"""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from devices import Opener, metric_of, open_device, secret_of
from rappor_client.budget.prepared import prepare
from rappor_client.testing import FixedClock, MemoryTransport

from rappor import Params, Registry
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


def test_response_outlives_processes_restarts_and_changes_of_p_and_q(
    open_client: Opener, tmp_path: Path
) -> None:
    """Bit for bit, in this process, the next, and another one."""
    registry = (
        '[budget]\ntotal = inf\n[metrics.page]\ndescription="a"\nowner="b"\nexpires=2100-01-01\n'
    )
    registry += 'epoch="life"\nencoding="bloom"\nk=128\nm=64\nf=0.5\np={p}\nq={q}\n'
    folder = tmp_path / "device"
    program = (
        "from pathlib import Path\nfrom rappor import Registry\n"
        "from rappor_client.budget.prepared import prepare\n"
        "from rappor_client.budget.identity import read_state\n"
        "from rappor.protocol.randomizer import system_coins\n"
        f"registry = Registry.loads({registry.format(p=0.1, q=0.6)!r})\n"
        f"secret = read_state(Path({str(folder)!r}))[0].secret\n"
        "prepared = prepare(secret, registry['page'], 'x', epoch='', coins=system_coins)\n"
        "print(prepared.permanent.hex())\n"
    )
    seen = set()
    for p, q in ((0.25, 0.75), (0.4, 0.6), (0.01, 0.99)):
        metric = Registry.loads(registry.format(p=p, q=q))["page"]
        client = open_client(metric)
        prepared = prepare(secret_of(folder), metric, "x", epoch="", coins=lambda n: [2**31] * n)
        seen.add(prepared.permanent.hex())
        client.close()
    for _ in range(2):
        answer = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        seen.add(answer.stdout.strip())
    assert len(seen) == 1


def test_response_of_a_value_that_comes_back_is_the_same(tmp_path: Path) -> None:
    """With p = 0 and q = 1 the report shows it: a, b, a."""
    clear = Params(k=128, h=4, m=64, f=0.5, p=0.0, q=1.0)  # a and b collide in no cohort
    transport = MemoryTransport()
    with open_device(
        tmp_path / "device",
        metric_of(params=clear, patterns=2),
        collector=transport,
        clock=FixedClock("2026-11-18"),
    ) as client:
        for value in ("a", "b", "a"):
            client.record("page", value)
        assert client.flush()
    first, second, third = (report.bits for report in transport.reports)
    assert first == third != second
