"""Templates and their files: the style sheets and scripts that pages name, and no others.

Every text is escaped where it is written, and characters that would not be seen are named.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.util
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import jinja2
from markupsafe import Markup

from rappor.base.sentence_numbers import format_count
from rappor.reporting.markup import visible
from rappor.reporting.numbers import format_nats


class StaticFile(NamedTuple):
    """A file as it is sent; `version` is in its address, so that it may be kept for long."""

    content: bytes
    media_type: str
    version: str


def _read(package: str, path: str) -> StaticFile:
    content = pkgutil.get_data(package, path)
    assert content is not None
    kind = "text/css" if path.endswith(".css") else "text/javascript"
    return StaticFile(content, kind, hashlib.sha256(content).hexdigest()[:12])


FILES: Final[Mapping[str, StaticFile]] = {
    "report.css": _read("rappor.reporting", "page.css"),
    "report.js": _read("rappor.reporting", "page.js"),
    "pages.js": _read("rappor_server.pages", "static/pages.js"),
}
"""Of the library, for what it draws, and of this room."""


def _write(value: object) -> object:
    """Name the characters of a text that would not be seen."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _sentence(detail: str) -> str:
    """Write an error as a sentence of a page."""
    return f"{detail[:1].upper()}{detail[1:].removesuffix('.')}."


def spans(days: Sequence[datetime.date]) -> str:
    """Write days in order, those that follow one another as one span."""
    found: list[list[datetime.date]] = []
    for day in days:
        if found and day - found[-1][-1] == datetime.timedelta(days=1):
            found[-1] = [found[-1][0], day]
        else:
            found.append([day])
    return ", ".join(" to ".join(map(str, span)) for span in found)


def _address(name: str) -> str:
    return f"/pages/static/{name}?v={FILES[name].version}"


_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.PackageLoader(__package__),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    finalize=_write,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.globals["static"] = _address
_TEMPLATES.globals["has_png"] = importlib.util.find_spec("resvg_py") is not None
_TEMPLATES.filters["number"] = lambda number: f"{number:,}"
_TEMPLATES.filters["counted"] = format_count
_TEMPLATES.filters["nats"] = format_nats
_TEMPLATES.filters["sentence"] = _sentence
_TEMPLATES.filters["spans"] = spans


def render(template: str, **values: Any) -> str:
    """Return a page."""
    return _TEMPLATES.get_template(template).render(values)
