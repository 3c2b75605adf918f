"""Address and scheme of a client behind a proxy, from the headers Forwarded and X-Forwarded-*."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from rappor_server.http.forwarded import ForwardedHeaders, parse_forwarded

PROXY = "10.0.0.1"
"""A trusted proxy. The second trusted proxy of the tests is 10.0.0.2."""


def find_client(*headers: tuple[str, str], peer: str = PROXY) -> tuple[str, str] | int:
    """Return the client and the scheme that the application sees, or the status of a refusal.

    `peer` is the address from which the request comes.
    """
    results: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        results.append((scope["client"][0], scope["scheme"]))

    async def send(message: Any) -> None:
        results.append(message.get("status"))

    async def receive() -> Any:
        return {"type": "http.request"}

    scope = {
        "type": "http",
        "client": (peer, 1),
        "scheme": "http",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
    }
    asyncio.run(ForwardedHeaders(app, f"{PROXY},10.0.0.2")(scope, receive, send))
    result: tuple[str, str] | int = results[0]
    return result


FORWARDED = ("Forwarded", 'for=192.0.2.60;proto=https, For="[2001:db8::17]:4711"')
"""The header names two clients. The last one counts, because the trusted proxy added it."""


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], (PROXY, "http")),
        ([FORWARDED], ("2001:db8::17", "https")),
        ([("Forwarded", "for=192.0.2.60;by=10.0.0.1")], ("192.0.2.60", "http")),
        # The last address is the second trusted proxy, so the address before it is the client.
        ([("Forwarded", "for=192.0.2.60, for=10.0.0.2")], ("192.0.2.60", "http")),
        ([("Forwarded", "for=192.0.2.1"), ("Forwarded", "for=192.0.2.2")], ("192.0.2.2", "http")),
        # Semicolons without a pair are allowed (RFC 7239).
        ([("Forwarded", "for=192.0.2.60;")], ("192.0.2.60", "http")),
        ([("Forwarded", "for=192.0.2.1;;proto=https ; , for=192.0.2.2; ")], ("192.0.2.2", "https")),
        # A proxy may hide the address of its client: by a name, or by an element without `for`.
        ([("Forwarded", "for=_hidden")], ("_hidden", "http")),
        ([("Forwarded", "proto=https")], ("unknown", "https")),
        # 2001:db8::17 and 2001:db8::18 have the same first 64 bits, so they are one source.
        ([FORWARDED, ("X-Forwarded-For", "2001:db8::18")], ("2001:db8::18", "https")),
        ([FORWARDED, ("X-Forwarded-For", "192.0.2.60")], 400),
        # The scheme of X-Forwarded-Proto comes before the scheme of Forwarded.
        ([FORWARDED, ("X-Forwarded-Proto", "http")], ("2001:db8::17", "http")),
        *(
            ([("Forwarded", text)], 400)
            for text in (
                "192.0.2.60",
                "for",
                "for=a b",
                "for=a;b",
                'for="192.0.2.60',
                "for=a,, for=b",
                ";",
            )
        ),
    ],
)
def test_a_trusted_proxy_names_the_client(
    headers: list[tuple[str, str]], expected: tuple[str, str] | int
) -> None:
    """The last client that is no trusted proxy counts.

    Forwarded and X-Forwarded-For may name different addresses of one source. If they name different
    sources, the request gets 400.
    """
    assert find_client(*headers) == expected


def test_other_clients_cannot_choose_their_address() -> None:
    """Headers of a client that is no trusted proxy are ignored, also if they are malformed."""
    for headers in ([FORWARDED], [("Forwarded", ";;")], [("X-Forwarded-For", "192.0.2.60")]):
        assert find_client(*headers, peer="203.0.113.7") == ("203.0.113.7", "http")


def test_quoted_pairs_are_unescaped() -> None:
    """A quoted value may contain separators and escaped characters."""
    parsed = parse_forwarded(r'for="a\"b,;c" ; proto=HTTPS')
    assert parsed == (['a"b,;c'], "https")
