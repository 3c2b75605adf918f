"""Limits of requests: rate of one source, memory for bodies, decompression."""

from __future__ import annotations

import gzip

import pytest
from hostile_uploads import seeded
from rappor_server.base.problems import Problem
from rappor_server.base.request_limits import BodyBudget, RateLimit, decompress


def test_rate_limit_stores_no_address() -> None:
    """Sources are stored as keyed hashes. The key changes every minute."""
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


def test_rate_of_0_is_no_limit() -> None:
    """A rate of 0 draws no key and stores no source."""
    limit = RateLimit(0, new_key=pytest.fail)
    for _ in range(1000):
        limit.check("anyone")
    assert "anyone" not in str(vars(limit))


def test_memory_for_sources_is_bounded() -> None:
    """Sources beyond `max_sources` share one count."""
    limit = RateLimit(2, clock=lambda: 0.0, max_sources=10)
    passed = sum(is_within(limit, f"192.0.2.{i}") for i in range(50))
    assert passed == 10 + 2


def is_within(limit: RateLimit, address: str) -> bool:
    """Return whether an upload of a source is within the rate."""
    try:
        limit.check(address)
    except Problem:
        return False
    return True


def test_budget_limits_all_allocations_together() -> None:
    """An allocation releases its bytes at its end, also after an error."""
    budget = BodyBudget(100)
    with budget.allocate() as first:
        first.grow(60)
        with budget.allocate() as second:
            second.grow(40)
            with pytest.raises(Problem) as caught:
                second.grow(1)
        assert caught.value.status == 503
        assert caught.value.retry_after is not None
        first.grow(40)
    with budget.allocate() as third:
        third.grow(100)
    with budget.allocate(min_free=30) as limited, budget.allocate() as other:
        limited.grow(70)
        with pytest.raises(Problem):
            limited.grow(1)
        other.grow(30)
        limited.release()
        with pytest.raises(Problem):
            limited.grow(41)


@pytest.mark.parametrize(("n_bytes", "status"), [(0, None), (500, None), (100_000, 413)])
def test_decompression_stops_at_ten_times_the_size(n_bytes: int, status: int | None) -> None:
    """A body with a larger ratio gets 413, and its output is not allocated."""
    data = seeded(0).randbytes(200) + bytes(n_bytes)
    compressed = gzip.compress(data)
    with BodyBudget(10_000_000).allocate() as allocation:
        if status is None:
            for name in ("gzip", "x-gzip"):
                assert decompress(compressed, name, allocation, max_bytes=1_000_000) == data
            return
        with pytest.raises(Problem) as caught:
            decompress(compressed, "gzip", allocation, max_bytes=1_000_000)
    assert caught.value.status == status
    assert allocation.n_bytes <= 10 * len(compressed)
