"""Pages of results as single HTML files.

A page is readable without scripts, without a style sheet and without other files. People open pages
inside build servers and wikis, which forbid all three (`Content-Security-Policy: default-src
'none'`). Where they are allowed, one style sheet arranges the page, and one script sorts and
filters tables. The page's own policy allows these two by their hashes, and nothing else, so a
string of a device that became markup by a fault could not run as a script.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from rappor.reporting.markup import Markup, read_static, tag

_STYLE: Final = read_static("page.css")
_SCRIPT: Final = read_static("page.js")


class Content(NamedTuple):
    """Content of a page: a page of its own, or a part of another page such as a dashboard's.

    Attributes
    ----------
    title : title of the page.
    parts : the heading, then the sections.
    """

    title: str
    parts: tuple[Markup, ...]

    def page(self) -> str:
        """Return the content as a page of its own."""
        return document(self.title, *self.parts)


def document(title: str, *parts: Markup) -> str:
    """Return a page of parts. The first part contains the heading."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_build_policy()),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", _STYLE),
    )
    body = tag("body", tag("main", *parts), tag("script", _SCRIPT))
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"


def header(
    title: str,
    answer: str,
    *sentences: str,
    warnings: Iterable[str] = (),
    above: Markup | None = None,
    lead: Markup | None = None,
) -> Markup:
    """Return the head of a page.

    Parameters
    ----------
    title : heading of the page.
    answer : the result of the page in one sentence, in large letters. An empty text omits it.
    sentences : further sentences.
    warnings : sentences in the colour of warnings.
    above : a link above the heading, or None.
    lead : a part between the heading and the answer, or None.
    """
    return tag(
        "header",
        *([tag("p", above)] if above else []),
        tag("h1", title),
        *([lead] if lead else []),
        *([tag("p", answer, class_="answer")] if answer else []),
        *(tag("p", text) for text in sentences),
        *(tag("p", text, class_="warning") for text in warnings),
    )


def section(title: str, *parts: Markup, name: str) -> Markup:
    """Return a section of a page under a heading, with `name` as its address."""
    return tag("section", tag("h2", title, id=name), *parts)


def collapsible(title: str, *parts: Markup, name: str) -> Markup:
    """Return a section of a page that readers expand, without a script."""
    return tag("details", tag("summary", tag("strong", title)), *parts, id=name)


def _build_policy() -> str:
    """Return the policy that allows the style sheet and the script of a page, and nothing else."""
    style, script = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (_STYLE, _SCRIPT)
    )
    return f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'"
