"""What one source may hold of what all share, so that no source keeps the others out."""

from __future__ import annotations

import ipaddress
from collections import Counter

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware


def source_of(address: str) -> str:
    """Return who sends from an address: of IPv6 its first 64 bits, which one sender has whole."""
    try:
        ip = ipaddress.IPv6Address(address)
    except ValueError:  # IPv4, or what a proxy calls its client
        return address
    return str(ip.ipv4_mapped or ipaddress.IPv6Address(int(ip) >> 64 << 64))


class Sources:
    """What each source holds, in memory while it does; for one thread.

    `proxies`, separated by commas, stand for many sources, and may hold any number.
    """

    def __init__(self, most: int, *, proxies: str) -> None:
        """Let a source hold `most`."""
        self._most = most
        self._trusted = ProxyHeadersMiddleware(_no_app, proxies).trusted_hosts
        self._held: Counter[str] = Counter()

    def take(self, address: str, n: int = 1) -> bool:
        """Let the source of an address hold n more; return False if that is too much."""
        source = source_of(address)
        if self._held[source] + n > self._most and address not in self._trusted:
            return False
        self._held[source] += n
        return True

    def give_back(self, address: str, n: int = 1) -> None:
        """Let a source hold n no longer."""
        source = source_of(address)
        self._held[source] -= n
        if not self._held[source]:
            del self._held[source]


async def _no_app(*_: object) -> None:
    """Answer nothing: only the reading of addresses is needed."""
