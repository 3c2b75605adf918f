"""Quota of a shared resource for each source."""

from __future__ import annotations

import pytest
from rappor_server.base.source_quota import SourceQuota, identify_source


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
