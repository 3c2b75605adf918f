"""What one source may hold of what all share."""

from __future__ import annotations

import pytest
from rappor_server.base.connection_limits import Sources, source_of


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
    """Whoever has an address of IPv6 has 2^64 of them; IPv4 in IPv6 is IPv4."""
    assert (source_of(one) == source_of(two)) is same


def test_a_source_holds_no_more_than_its_most() -> None:
    """What is given back is free again and leaves nothing behind; proxies hold any number."""
    sources = Sources(3, proxies="192.0.2.9, 2001:db8:9::/48")
    assert [sources.take(f"2001:db8::{i}") for i in range(1, 5)] == [True, True, True, False]
    assert sources.take("192.0.2.1", 3)
    assert not sources.take("192.0.2.1")
    assert all(sources.take(proxy, 9) for proxy in ("192.0.2.9", "2001:db8:9::7") * 2)
    sources.give_back("2001:db8::9", 2)
    assert sources.take("2001:db8::4", 2)
    sources.give_back("2001:db8::9", 3)
    sources.give_back("192.0.2.1", 3)
    assert "192.0.2.1" not in str(vars(sources))
