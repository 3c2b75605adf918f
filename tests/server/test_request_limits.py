"""Bounds on what one source may send."""

from __future__ import annotations

import pytest
from rappor_server.problems import Problem
from rappor_server.request_limits import RateLimit


def test_rate_keeps_no_address() -> None:
    """Sources are keyed hashes, and the key is drawn anew every minute."""
    now, keys = [0.0], [b"first", b"second", b"third"]
    limit = RateLimit(2, clock=lambda: now[0], new_key=lambda: keys.pop(0))
    for _ in range(2):
        limit.check("203.0.113.7")
    with pytest.raises(Problem) as caught:
        limit.check("203.0.113.7")
    assert caught.value.retry_after == 60
    limit.check("203.0.113.8")
    assert "203.0.113" not in str(vars(limit))
    assert keys == [b"second", b"third"]
    now[0] = 60.0
    limit.check("203.0.113.7")
    assert keys == [b"third"]


def test_without_a_rate_everything_passes() -> None:
    """A rate of 0 draws no key and counts nothing."""
    limit = RateLimit(0, new_key=pytest.fail)
    for _ in range(1000):
        limit.check("anyone")
    assert "anyone" not in str(vars(limit))


def test_memory_for_sources_is_bounded() -> None:
    """Sources beyond the bound share one count."""
    limit = RateLimit(2, clock=lambda: 0.0, max_sources=10)
    passed = sum(is_within(limit, f"192.0.2.{i}") for i in range(50))
    assert passed == 10 + 2


def is_within(limit: RateLimit, address: str) -> bool:
    """Tell whether an upload of a source is within the rate."""
    try:
        limit.check(address)
    except Problem:
        return False
    return True
