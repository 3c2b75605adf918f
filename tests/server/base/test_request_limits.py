"""Limits of requests: rate of one source, memory for bodies, decompression."""

from __future__ import annotations

import gzip

import pytest
from hostile_uploads import make_generator
from rappor_server.base.problems import Problem
from rappor_server.base.request_limits import BodyBudget, RateLimit, decompress


def test_rate_limit_stores_no_address() -> None:
    """The rate limit recognises a source within a minute, and stores no address.

    The state contains keyed hashes of sources. Each minute has a new key, so a memory dump does not
    reveal which addresses sent, or whether a source of one minute sent in the next. `keys` contains
    the keys that no minute has used yet. The third request of a source exceeds the rate of 2.
    """
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
    """A rate of 0 turns the limit off: any number of requests passes, and no source is stored.

    The limit also draws no key, because `new_key` would fail the test.
    """
    limit = RateLimit(0, new_key=pytest.fail)
    before = str(vars(limit))
    for _ in range(1000):
        limit.check("anyone")
    assert str(vars(limit)) == before


def test_memory_for_sources_is_bounded() -> None:
    """Sources beyond `max_sources` share one count, so many addresses cannot fill the memory.

    Each of 50 sources sends one request. The first ten sources have a count of their own. The other
    40 sources share one count, and the rate of 2 lets two of their requests pass.
    """
    limit = RateLimit(2, clock=lambda: 0.0, max_sources=10)
    n_passed = sum(is_within(limit, f"192.0.2.{i}") for i in range(50))
    assert n_passed == 10 + 2


def is_within(limit: RateLimit, address: str) -> bool:
    """Return whether an upload of a source is within the rate."""
    try:
        limit.check(address)
    except Problem:
        return False
    return True


def test_budget_limits_all_allocations_together() -> None:
    """All open allocations together get at most the bytes of the budget, here 100.

    An allocation releases its bytes at the end of its request, also if the request was refused with
    503. Otherwise refused requests would use up the memory for good.
    """
    budget = BodyBudget(100)
    with budget.allocate() as first:
        first.grow(60)
        with budget.allocate() as second:
            second.grow(40)
            with pytest.raises(Problem) as caught:
                second.grow(1)
        assert caught.value.status == 503
        assert caught.value.retry_after is not None
        first.grow(40)  # the bytes of the second allocation
    with budget.allocate() as third:
        third.grow(100)
    # An allocation for an analyst must leave `min_free` bytes to uploads, which have no such limit.
    with budget.allocate(min_free=30) as limited, budget.allocate() as unlimited:
        limited.grow(70)
        with pytest.raises(Problem):
            limited.grow(1)
        unlimited.grow(30)
        limited.release()
        with pytest.raises(Problem):
            limited.grow(41)


@pytest.mark.parametrize(("n_bytes", "status"), [(0, None), (500, None), (100_000, 413)])
def test_decompression_stops_at_ten_times_the_size(n_bytes: int, status: int | None) -> None:
    """A body that unpacks to more than ten times its size gets 413 without a larger allocation.

    A gzip bomb of less than a megabyte unpacks to a gigabyte. Random bytes do not compress, and
    zeros compress a thousand times, so 200 random bytes and 100,000 zeros exceed the ratio.
    """
    data = make_generator(0).randbytes(200) + bytes(n_bytes)
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
