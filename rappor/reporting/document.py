"""A page as one HTML file.

It is whole without scripts, style sheets and any other file, also where a server forbids all three
(`Content-Security-ClientOptions: default-src 'none'`): such pages are opened inside build servers
and wikis. One style sheet arranges it and one script sorts and filters where they are allowed; the
page's own policy allows nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from rappor.reporting.markup import Markup, constant, tag

_STYLE: Final = constant("page.css")
_SCRIPT: Final = constant("page.js")


class Content(NamedTuple):
    """What a page shows, whole or inside another one: its title, its heading, its sections."""

    title: str
    parts: tuple[Markup, ...]

    def page(self) -> str:
        """Return the page."""
        return document(self.title, *self.parts)


def document(title: str, *parts: Markup) -> str:
    """Return the page of these parts, the first of which has the heading."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy()),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", _STYLE),
    )
    body = tag("body", tag("main", *parts), tag("script", _SCRIPT))
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"


def header(
    title: str, first: str, *others: str, warnings: Iterable[str] = (), above: Markup | None = None
) -> Markup:
    """Return the head of a page: its title, the answer, what else is said of it."""
    return tag(
        "header",
        *([tag("p", above)] if above else []),
        tag("h1", title),
        *([tag("p", first, class_="answer")] if first else []),
        *(tag("p", text) for text in others),
        *(tag("p", text, class_="warning") for text in warnings),
    )


def _policy() -> str:
    """Allow the page's own style sheet and script, by their hashes, and nothing else."""
    style, script = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (_STYLE, _SCRIPT)
    )
    return f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'"
