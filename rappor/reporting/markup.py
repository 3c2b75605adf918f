"""HTML and SVG that are escaped by construction: text becomes markup in one place only.

`tag` escapes every text and every attribute that it is given; only `Markup`, which nothing else
makes, goes through as it is. So no string of a device or an analyst can begin a tag, leave an
attribute, turn the reading direction of what surrounds it, or hide.
"""

from __future__ import annotations

import html
import pkgutil
import re
import unicodedata
from typing import Final

_UNSEEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad"  # controls, soft hyphen
    "\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Characters that turn the direction, are not seen, or cannot be written: they are named instead.
Joiners stay, because words and emoji need them."""

_PICTURES: Final = 0x2400
"""Unicode's pictures of the 32 control characters begin here."""

_VOID: Final = frozenset({"meta", "br", "col"})

_WORDS: Final = re.compile(r"[/._:@=?&+-](?=[^\W\d_])|[^\W_]{30}")
"""After these a long name may be broken: signs before a word, and 30 letters of what no word is."""

_WHOLE: Final = 20
"""Characters of a name that a phone shows on one line."""


class Markup(str):
    """Text that is HTML or SVG already; only this module makes it."""

    __slots__ = ()


def tag(name: str, /, *content: str, **attributes: str | float | None) -> Markup:
    """Return an element. Attributes: a trailing `_` is dropped, another one becomes `-`.

    Numbers are written with six digits, None leaves an attribute out, and text is escaped unless
    it is Markup.
    """
    words = "".join(
        f' {key.removesuffix("_").replace("_", "-")}="{html.escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(each if isinstance(each, Markup) else escape(each) for each in content)
    return Markup(f"<{name}{words}>" if name in _VOID else f"<{name}{words}>{inner}</{name}>")


def join(*parts: str) -> Markup:
    """Return parts one after another, text escaped."""
    return Markup("".join(each if isinstance(each, Markup) else escape(each) for each in parts))


def constant(file: str) -> Markup:
    """Return a style sheet or a script that lies in this folder: nobody's input is in it."""
    data = pkgutil.get_data(__package__, file)
    assert data is not None
    return Markup(data.decode("utf-8"))


def escape(text: str) -> Markup:
    """Return text as HTML that shows it."""
    return Markup(html.escape(visible(text)))


def breakable(text: str) -> Markup:
    """Return text as HTML that a narrow window breaks between words, and only if it is long."""
    shown = visible(text)
    marked = _WORDS.sub("\\g<0>\0", shown) if len(shown) > _WHOLE else shown
    return Markup(html.escape(marked).replace("\0", "<wbr>"))


def visible(text: str) -> str:
    """Return text in which characters that would not be seen are named."""
    return _UNSEEN.sub(_named, text)


def _named(found: re.Match[str]) -> str:
    code = ord(found.group())
    return chr(_PICTURES + code) if code < 0x20 else f"[U+{code:04X}]"


def shorten(text: str, columns: int) -> str:
    """Return visible text that takes at most this many columns; an ellipsis ends what is cut."""
    shown = visible(text[: 4 * columns])
    taken = 0
    for place, character in enumerate(shown):
        taken += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if taken > columns - 1 and place < len(shown) - 1:
            return shown[:place] + "\u2026"
    return shown if len(text) <= 4 * columns else shown + "\u2026"


def _text(value: str | float) -> str:
    return visible(value) if isinstance(value, str) else f"{value:.6g}"
