"""Quota of a shared resource for each source, so that one source cannot keep the others out.

Source: an IPv4 address, or the first 64 bits of an IPv6 address. All clients of a process share
three resources, each with a `SourceQuota` of its own:

| resource                 | unit       | quota of one source       | used in                    |
|--------------------------|------------|---------------------------|----------------------------|
| connections              | connection | `max_source_connections`  | `http/bounded_protocol.py` |
| TLS handshakes           | handshake  | `max_source_connections`  | `http/handshakes.py`       |
| memory of request bodies | byte       | a quarter of `max_bodies` | `base/request_limits.py`   |

Why the quota of connections is not a fixed number. A process accepts 4,000 connections
(`max_connections`), at most 256 of one source (`max_source_connections`).

- In a test without a quota, one address opened 4,100 connections and sent nothing. No device could
  connect for the 15 seconds until the collector closed the idle connections.
- With the fixed quota of 256, 16 addresses could still take all connections: 16 * 256 = 4,096.
- The quota therefore shrinks while connections are scarce, which means that more than half of them
  are taken. A source then gets at most an eighth of the free connections (`limit_scarce`). If 16
  addresses take as many connections as they get, a third of all connections stays free:

      taken = 16 * free / 8 = 2 * free

An attacker with thousands of addresses still takes all connections. A firewall or a proxy has to
limit such an attack.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import Final

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

_SCARCE_SHARE: Final = 8
"""One source uses at most one in this number of the free connections, while more than half are
taken. A smaller number lets fewer sources take all connections. A larger number refuses a large
network, whose devices share one address, earlier. The number is a convention."""


def limit_scarce(n_taken: int, n_max: int) -> int | None:
    """Return the most connections of one source while connections are scarce; None otherwise.

    The limit is at least 1. A device of a new source is therefore never refused while a connection
    is free.

    Parameters
    ----------
    n_taken : number of connections in use
    n_max : largest number of connections

    Examples
    --------
    >>> limit_scarce(2000, 4000), limit_scarce(2400, 4000), limit_scarce(3999, 4000)
    (None, 200, 1)
    """
    if 2 * n_taken <= n_max:
        return None
    return max((n_max - n_taken) // _SCARCE_SHARE, 1)


def identify_source(address: str) -> str:
    """Return the source of an address: an IPv4 address, or the first 64 bits of an IPv6 address.

    A provider assigns at least 64 bits of IPv6 to one customer, so one sender has 2^64 addresses.

    Parameters
    ----------
    address : text of an address, or a name that a proxy gives to its client to hide the address
    """
    try:
        ip = ipaddress.IPv6Address(address)
    except ValueError:  # an IPv4 address, or the name of a client in X-Forwarded-For
        return address
    # A socket that listens on :: reports an IPv4 client as ::ffff:192.0.2.1. The first 64 bits of
    # such an address are the same for all IPv4 clients.
    return str(ip.ipv4_mapped or ipaddress.IPv6Address(int(ip) >> 64 << 64))


class SourceQuota:
    """Number of units of a resource that each source uses at present. Not thread-safe.

    An address is in memory only while it uses a unit. A trusted proxy sends the requests of many
    devices from one address, so it has no limit.
    """

    def __init__(self, limit: int, *, proxies: str) -> None:
        """Allow each source `limit` units.

        Parameters
        ----------
        limit : largest number of units of one source
        proxies : addresses and networks of trusted proxies, separated by commas, such as
            "127.0.0.1,10.0.0.0/8"; "*" trusts every address
        """
        self._limit = limit
        self._trusted = ProxyHeadersMiddleware(_ignore_request, proxies).trusted_hosts
        self._used: Counter[str] = Counter()

    def acquire(self, address: str, n: int = 1, *, limit: int | None = None) -> bool:
        """Count n more units for the source of an address.

        Returns False, and counts nothing, if the source would exceed its quota. Every success needs
        one call of `release` with the same address and n. A trusted proxy has no limit.

        Parameters
        ----------
        address : address of the client
        n : number of units
        limit : largest number of units of the source at present, for example the result of
            `limit_scarce`. It replaces the quota if it is smaller. None if the quota applies.
        """
        source = identify_source(address)
        largest = self._limit if limit is None else min(limit, self._limit)
        if self._used[source] + n > largest and address not in self._trusted:
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
    """Stand in for the application that uvicorn's middleware expects.

    Only the middleware's parser of addresses and networks is used.
    """
