"""Query parameters of a URL: one rule for all addresses of the collector, and routes that check it.

An unknown query parameter, and one that occurs twice, gets the problem 422. If unknown parameters
were ignored, a mistyped `form=2026-11-21` would return the results of all days, and nobody would
notice. If the last of two parameters `from` were used, the results would be of other days than the
first one names.

Most addresses have no query parameter, or always the same ones. Their `CheckedRoute` checks the
query before the endpoint runs. The parameters of estimates depend on the media type of the body,
and the sentence about counts follows the check of the token, so these two endpoints call
`check_names` themselves.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from http import HTTPStatus
from typing import Any, Final

from starlette.datastructures import QueryParams
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rappor_server.base.problems import Problem

_MAX_ECHO: Final = 40
"""Largest number of characters of an unknown parameter that a message repeats. A larger value makes
a message longer than a line."""


def check_names(query: QueryParams, allowed: Collection[str]) -> None:
    """Raise Problem 422 if a query parameter is unknown or repeated.

    Parameters
    ----------
    query : the parameters, as pairs of name and value
    allowed : names of the parameters that the address has, in the order of the message
    """
    for name in query:
        if name not in allowed:
            name_start = name[:_MAX_ECHO]
            similar = difflib.get_close_matches(name_start, allowed, n=1)
            hint = f"did you mean {similar[0]}? " if similar else ""
            remedy = f"allowed: {', '.join(allowed) or 'none'}"
            raise _make_problem(f"unknown query parameter {name_start!r}; {hint}{remedy}")
    for name, number in Counter(name for name, _ in query.multi_items()).items():
        if number > 1:
            raise _make_problem(f"query parameter {name!r} must occur once, got it {number} times")


class CheckedRoute(Route):
    """Route whose endpoint runs only if the names of all query parameters are allowed."""

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Awaitable[Any]],
        *,
        methods: Sequence[str],
        query: Collection[str] = (),
    ) -> None:
        """Create a route.

        Parameters
        ----------
        path : pattern of the path
        endpoint : function or ASGI application that responds
        methods : allowed methods. Another method gets 405, whatever its query
        query : names of the allowed query parameters
        """
        super().__init__(path, endpoint, methods=methods)
        respond = self.app

        async def check_and_respond(scope: Scope, receive: Receive, send: Send) -> None:
            check_names(QueryParams(scope["query_string"]), query)
            await respond(scope, receive, send)

        self.app = check_and_respond


def _make_problem(detail: str) -> Problem:
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
