"""Quota of a shared resource for each source, so that one source cannot keep the others out.

Connections, TLS handshakes and the memory for request bodies are shared by all clients of a
process. Without a quota, 4,100 idle sockets of one address kept every device out for 15 seconds.
"""

from __future__ import annotations

import ipaddress
from collections import Counter

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware


def identify_source(address: str) -> str:
    """Return the source of an address: an IPv4 address, or the first 64 bits of an IPv6 address.

    A provider assigns at least 64 bits of IPv6 to one customer, so one sender has 2^64 addresses.
    """
    try:
        ip = ipaddress.IPv6Address(address)
    except ValueError:  # an IPv4 address, or a name by which a proxy calls its client
        return address
    # Dual-stack sockets write IPv4 addresses as ::ffff:192.0.2.1.
    return str(ip.ipv4_mapped or ipaddress.IPv6Address(int(ip) >> 64 << 64))


class SourceQuota:
    """Number of units of a resource that each source uses at present. Not thread-safe.

    An address is in memory only while it uses a unit. A trusted proxy sends the requests of many
    sources, so it has no limit.
    """

    def __init__(self, limit: int, *, proxies: str) -> None:
        """Allow each source `limit` units.

        Parameters
        ----------
        limit : largest number of units of one source
        proxies : addresses and networks of trusted proxies, separated by commas
        """
        self._limit = limit
        self._trusted = ProxyHeadersMiddleware(_ignore_request, proxies).trusted_hosts
        self._used: Counter[str] = Counter()

    def acquire(self, address: str, n: int = 1) -> bool:
        """Count n more units for the source of an address; return False if it has too many."""
        source = identify_source(address)
        if self._used[source] + n > self._limit and address not in self._trusted:
            return False
        self._used[source] += n
        return True

    def release(self, address: str, n: int = 1) -> None:
        """Subtract n units from the source of an address."""
        source = identify_source(address)
        self._used[source] -= n
        if not self._used[source]:
            # Otherwise every address that ever connected would stay in memory.
            del self._used[source]


async def _ignore_request(*_: object) -> None:
    """Do nothing. The middleware needs an application, but only its parser of proxies is used."""
