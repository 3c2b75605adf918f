"""Quota of a shared resource for each source."""

from __future__ import annotations

import pytest
from rappor_server.base.source_quota import SourceQuota, identify_source, limit_scarce


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8:0:0:ffff::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("unknown", "hidden", False),
    ],
)
def test_a_source_is_an_address_or_the_first_64_bits(one: str, two: str, *, same: bool) -> None:
    """Addresses of one /64 of IPv6 are one source. A mapped IPv4 address is an IPv4 address."""
    assert (identify_source(one) == identify_source(two)) is same


def test_a_source_cannot_exceed_its_quota() -> None:
    """Released units can be acquired again, and leave no address in memory.

    Trusted proxies have no limit.
    """
    quota = SourceQuota(3, proxies="192.0.2.9, 2001:db8:9::/48")
    assert [quota.acquire(f"2001:db8::{i}") for i in range(1, 5)] == [True, True, True, False]
    assert quota.acquire("192.0.2.1", 3)
    assert not quota.acquire("192.0.2.1")
    assert all(quota.acquire(proxy, 9) for proxy in ("192.0.2.9", "2001:db8:9::7") * 2)
    quota.release("2001:db8::9", 2)
    assert quota.acquire("2001:db8::4", 2)
    quota.release("2001:db8::9", 3)
    quota.release("192.0.2.1", 3)
    assert "192.0.2.1" not in str(vars(quota))


def test_a_few_sources_do_not_take_all_connections() -> None:
    """Sixteen sources that open as many connections as they may leave a third for others."""
    n_max, n_taken = 4000, 0
    quota = SourceQuota(256, proxies="")
    is_open = True
    while is_open:
        is_open = False
        for i in range(16):
            if quota.acquire(f"192.0.2.{i}", limit=limit_scarce(n_taken, n_max)):
                n_taken += 1
                is_open = True
    assert n_max / 2 < n_taken <= n_max * 2 / 3
    assert quota.acquire("203.0.113.1", limit=limit_scarce(n_taken, n_max))


def test_a_new_source_gets_the_last_connection() -> None:
    """A limit of an eighth of seven free connections would be none."""
    assert [limit_scarce(n, 100) for n in (0, 50, 51, 93, 99)] == [None, None, 6, 1, 1]
