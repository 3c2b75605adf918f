"""The time of an encoder: the verdict follows the interval."""

from __future__ import annotations

import pytest
from audits import SMALL

from rappor import ParamsError
from rappor.auditing import Response, audit_timing
from rappor.auditing.timing import _BATCH, timing_check
from rappor.simulation.keystream import Keystream


@pytest.mark.parametrize(
    ("even", "odd", "verdict"), [(0, 0, "pass"), (100, 100, "fault"), (0, 100, "not seen")]
)
def test_verdict_on_time_follows_the_interval(even: int, odd: int, verdict: str) -> None:
    """On a clock that only encoding moves: no difference, 10 % of it, and 10 % in half the rounds.

    The interval of the last reaches from one half to the other, whatever the order drawn.
    """
    now, turn = [0], [0]

    def respond(secret: bytes, name: str, value: str) -> Response:
        del secret, name
        now[0] += 1000 + now[0] % 7
        if value == "b":
            now[0] += even if turn[0] // _BATCH % 2 == 0 else odd
            turn[0] += 1
        return Response(0, b"")

    check = timing_check(
        "time",
        respond,
        "audited",
        ("a", "b"),
        rounds=200,
        rng=Keystream(),
        progress=lambda _stage, _done, _total: None,
        clock=lambda: now[0],
    )
    assert check.verdict == verdict


def test_time_of_the_shipped_encoder_is_measured() -> None:
    """One line for each pair, with both intervals; the verdict depends on the machine."""
    checks = audit_timing(SMALL, rounds=20)
    assert [check.name for check in checks] == ["time: pair 1", "time: pair 2", "time: pair 3"]
    assert all("the same value twice" in check.detail for check in checks)


def test_no_rounds_time_nothing() -> None:
    """A median needs at least one round."""
    with pytest.raises(ParamsError, match="rounds must be an integer of at least 1, got 0"):
        audit_timing(SMALL, rounds=0)
