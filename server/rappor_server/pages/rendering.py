"""Templates of the pages (jinja2), and the static files that they name.

The templates escape every text. They also make invisible characters visible, because a candidate
from an uploaded list may contain any character: two candidates that differ by a zero-width space
would look the same. HTML of `rappor.reporting` is escaped already, and templates mark it as safe.

Filters of the templates: `number` (1,234), `with_noun` (3 days), `plural` (days), `nats` (2.00),
`sentence`, `days`.
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

from rappor.base.sentence_numbers import format_count, format_plural
from rappor.reporting.markup import replace_invisible
from rappor.reporting.numbers import format_nats


class StaticFile(NamedTuple):
    """A style sheet or a script.

    Attributes
    ----------
    content : bytes of the file
    media_type : media type of the response
    version : digest of the bytes, 12 hexadecimal digits. It is a part of the URL, so browsers may
        cache the file for ever.
    """

    content: bytes
    media_type: str
    version: str


def _load_file(package: str, path: str) -> StaticFile:
    """Return a file of an installed package, which may be inside of an archive."""
    content = pkgutil.get_data(package, path)
    assert content is not None
    media_type = "text/css" if path.endswith(".css") else "text/javascript"
    return StaticFile(content, media_type, hashlib.sha256(content).hexdigest()[:12])


STATIC_FILES: Final[Mapping[str, StaticFile]] = {
    "report.css": _load_file("rappor.reporting", "page.css"),
    "report.js": _load_file("rappor.reporting", "page.js"),
    "pages.js": _load_file("rappor_server.pages", "static/pages.js"),
}
"""Static files by the names in their URLs. No other file can be requested, whatever the URL."""


def _show_invisible(value: object) -> object:
    """Replace the invisible characters of a text. jinja2 calls this for each inserted value."""
    return (
        replace_invisible(value)
        if isinstance(value, str) and not isinstance(value, Markup)
        else value
    )


def _format_sentence(detail: str) -> str:
    """Return the message of an error as a sentence: with a capital letter and a full stop."""
    return f"{detail[:1].upper()}{detail[1:].removesuffix('.')}."


def format_days(days: Sequence[datetime.date]) -> str:
    """Return ordered days as a text. Consecutive days are written as FIRST to LAST."""
    ranges: list[list[datetime.date]] = []
    for day in days:
        if ranges and day - ranges[-1][-1] == datetime.timedelta(days=1):
            ranges[-1] = [ranges[-1][0], day]
        else:
            ranges.append([day])
    return ", ".join(" to ".join(map(str, ends)) for ends in ranges)


def _format_static_url(name: str) -> str:
    """Return the URL of a static file, which contains the digest of the file."""
    return f"/pages/static/{name}?v={STATIC_FILES[name].version}"


_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.PackageLoader(__package__),
    autoescape=True,
    undefined=jinja2.StrictUndefined,  # a mistyped name raises an error, and is not an empty text
    finalize=_show_invisible,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.globals["static"] = _format_static_url
# Charts can be downloaded as PNG images if the extra `png` is installed.
_TEMPLATES.globals["has_png"] = importlib.util.find_spec("resvg_py") is not None
_TEMPLATES.filters["number"] = lambda number: f"{number:,}"
_TEMPLATES.filters["with_noun"] = format_count
_TEMPLATES.filters["plural"] = format_plural
_TEMPLATES.filters["nats"] = format_nats
_TEMPLATES.filters["sentence"] = _format_sentence
_TEMPLATES.filters["days"] = format_days


def render_template(template: str, **values: Any) -> str:
    """Return the HTML of a template.

    Parameters
    ----------
    template : name of the file in the folder `templates`
    values : values of the template by name
    """
    return _TEMPLATES.get_template(template).render(values)
