"""Bounds on what one source may send."""

from __future__ import annotations

import gzip

import pytest
from hostile_uploads import seeded
from rappor_server.base.problems import Problem
from rappor_server.base.request_limits import BodyBudget, RateLimit, decompress


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
    """Return whether an upload of a source is within the rate."""
    try:
        limit.check(address)
    except Problem:
        return False
    return True


def test_a_share_of_the_budget_is_given_back_whole() -> None:
    """What is held together is bounded, and what ends, by an error too, makes room for others."""
    budget = BodyBudget(100)
    with budget.share() as first:
        first.grow(60)
        with budget.share() as second:
            second.grow(40)
            with pytest.raises(Problem) as caught:
                second.grow(1)
        assert caught.value.status == 503
        assert caught.value.retry_after is not None
        first.grow(40)
    with budget.share() as third:
        third.grow(100)
    with budget.share(spare=30) as modest, budget.share() as other:
        modest.grow(70)
        with pytest.raises(Problem):
            modest.grow(1)
        other.grow(30)
        modest.release()
        with pytest.raises(Problem):
            modest.grow(41)


@pytest.mark.parametrize(("n_bytes", "status"), [(0, None), (500, None), (100_000, 413)])
def test_unpacking_stops_at_ten_times_the_size(n_bytes: int, status: int | None) -> None:
    """What repeats itself more is refused before it is unpacked further."""
    data = seeded(0).randbytes(200) + bytes(n_bytes)
    packed = gzip.compress(data)
    with BodyBudget(10_000_000).share() as share:
        if status is None:
            assert decompress(packed, "gzip", share, max_bytes=1_000_000) == data
            return
        with pytest.raises(Problem) as caught:
            decompress(packed, "gzip", share, max_bytes=1_000_000)
    assert caught.value.status == status
    assert share.n_bytes <= 10 * len(packed)
