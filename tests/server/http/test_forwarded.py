"""The client behind a proxy, as Forwarded and X-Forwarded-For name it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from rappor_server.http.forwarded import ForwardedHeaders, parse_forwarded

PROXY = "10.0.0.1"


def request(*headers: tuple[str, str], peer: str = PROXY) -> tuple[str, str] | int:
    """Return client and scheme of a request from a peer, or the status of its refusal."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        seen.append((scope["client"][0], scope["scheme"]))

    async def send(message: Any) -> None:
        seen.append(message.get("status"))

    async def receive() -> Any:
        return {"type": "http.request"}

    scope = {
        "type": "http",
        "client": (peer, 1),
        "scheme": "http",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
    }
    asyncio.run(ForwardedHeaders(app, f"{PROXY},10.0.0.2")(scope, receive, send))
    result: tuple[str, str] | int = seen[0]
    return result


FORWARDED = ("Forwarded", 'for=192.0.2.60;proto=https, For="[2001:db8::17]:4711"')


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], (PROXY, "http")),
        ([FORWARDED], ("2001:db8::17", "https")),
        ([("Forwarded", "for=192.0.2.60;by=10.0.0.1")], ("192.0.2.60", "http")),
        ([("Forwarded", "for=192.0.2.60, for=10.0.0.2")], ("192.0.2.60", "http")),
        ([("Forwarded", "for=192.0.2.1"), ("Forwarded", "for=192.0.2.2")], ("192.0.2.2", "http")),
        ([("Forwarded", "for=_hidden")], ("_hidden", "http")),
        ([("Forwarded", "proto=https")], ("unknown", "https")),
        ([FORWARDED, ("X-Forwarded-For", "2001:db8::18")], ("2001:db8::18", "https")),
        ([FORWARDED, ("X-Forwarded-For", "192.0.2.60")], 400),
        ([FORWARDED, ("X-Forwarded-Proto", "http")], ("2001:db8::17", "http")),
        *(
            ([("Forwarded", text)], 400)
            for text in ("192.0.2.60", "for", "for=a b", 'for="192.0.2.60', "for=a,, for=b", ";")
        ),
    ],
)
def test_a_trusted_proxy_names_the_client(
    headers: list[tuple[str, str]], expected: tuple[str, str] | int
) -> None:
    """Both headers may name addresses of one source. Different sources get 400."""
    assert request(*headers) == expected


def test_other_clients_cannot_choose_their_address() -> None:
    """Headers of a client that is no proxy change nothing, also if they are malformed."""
    for headers in ([FORWARDED], [("Forwarded", ";;")], [("X-Forwarded-For", "192.0.2.60")]):
        assert request(*headers, peer="203.0.113.7") == ("203.0.113.7", "http")


def test_quoted_pairs_are_unescaped() -> None:
    """A quoted value may contain separators and escaped characters."""
    parsed = parse_forwarded(r'for="a\"b,;c" ; proto=HTTPS')
    assert parsed == (['a"b,;c'], "https")
