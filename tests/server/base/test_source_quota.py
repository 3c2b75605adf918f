"""Quota of a shared resource for each source."""

from __future__ import annotations

import pytest
from rappor_server.base.source_quota import SourceQuota, identify_source, limit_scarce


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8:0:0:ffff::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("unknown", "hidden", False),
    ],
)
def test_a_source_is_an_address_or_the_first_64_bits(
    first: str, second: str, *, is_same: bool
) -> None:
    """A source is one IPv4 address, or all IPv6 addresses with the same first 64 bits.

    A provider gives a customer 2^64 IPv6 addresses, and a quota for each address would be none. A
    socket for IPv6 reports an IPv4 client as ::ffff:192.0.2.1, whose first 64 bits are the same for
    all IPv4 clients, so such an address counts as IPv4. A proxy that hides the address of its
    client may send a name in place of the address. Each name is a source of its own.
    """
    assert (identify_source(first) == identify_source(second)) is is_same


def test_a_source_cannot_exceed_its_quota() -> None:
    """A source has at most three units at a time here, and its released units are free again.

    A unit is a connection or a byte, whichever resource the quota protects. Sources do not affect
    each other. A trusted proxy has no limit, because many devices share its address. The quota
    forgets an address with its last unit, so no list of visitors accumulates in memory.
    """
    quota = SourceQuota(3, proxies="192.0.2.9, 2001:db8:9::/48")
    assert [quota.acquire(f"2001:db8::{i}") for i in range(1, 5)] == [True, True, True, False]
    assert quota.acquire("192.0.2.1", 3)
    assert not quota.acquire("192.0.2.1")
    assert all(quota.acquire(proxy, 9) for proxy in ("192.0.2.9", "2001:db8:9::7") * 2)
    quota.release("2001:db8::9", 2)
    assert quota.acquire("2001:db8::4", 2)
    quota.release("2001:db8::9", 3)
    assert "192.0.2.1" in str(vars(quota))
    quota.release("192.0.2.1", 3)
    assert "192.0.2.1" not in str(vars(quota))


def test_a_few_sources_do_not_take_all_connections() -> None:
    """Sixteen hostile sources together leave a third of all connections to other sources.

    Each source has a quota of 256 of 4,000 connections, so sixteen sources could take all of them
    (16 * 256 = 4,096). While more than half of the connections are taken, the limit of a source is
    an eighth of the free connections. The sources stop at taken = 16 * free / 8, which is two
    thirds of all connections.
    """
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
    """The limit of a source is at least 1, so a new source is refused no connection that is free.

    An eighth of seven free connections, or of one, would be rounded down to 0. With half of the
    connections free or more, there is no limit beside the quota.
    """
    assert [limit_scarce(n, 100) for n in (0, 50, 51, 93, 99)] == [None, None, 6, 1, 1]
