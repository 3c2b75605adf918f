"""HTML and SVG that are escaped by construction.

Strings of devices and analysts are untrusted: they may contain tags, quotation marks, invisible
characters, or characters that reverse the direction of text. `tag` is the only function that
creates an element. It escapes every text and every attribute, and passes `Markup` unchanged. Only
this module creates `Markup`. A string therefore cannot begin a tag, leave an attribute, change the
direction of the text around it, or hide.

>>> tag("p", "1 < 2", class_="note")
'<p class="note">1 &lt; 2</p>'
"""

from __future__ import annotations

import html
import pkgutil
import re
import unicodedata
from typing import Final

from rappor.protocol.normalizers import FIELD_SEPARATOR

_INVISIBLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad"  # controls, soft hyphen
    "\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Matches characters that change the text direction, are invisible, or cannot be encoded.
`_name_character` replaces them. `_JOINERS` are not in the list."""

_JOINERS: Final = "\u200c\u200d"
"""Zero-width non-joiner and joiner. They are invisible, but words and emoji need them."""

_PICTURES: Final = 0x2400
"""Code point at which the block "Control Pictures" of Unicode begins. It has a visible sign for
each of the 32 control characters."""

_WITHOUT_END: Final = frozenset({"meta", "br", "col", "th", "td", "tr"})
"""Elements of HTML that are written without an end tag. HTML forbids the end tags of the first
three. The end tags of cells and rows are optional, and are a fifth of a large table. The list
contains only elements that pages use."""

_BREAKS: Final = re.compile(r"[/._:@=?&+-](?=[^\W\d_])|[^\W_]{30}")
"""Matches a place after which a browser may break a long name: a sign before a letter, or 30
letters without a sign."""

_MAX_UNBROKEN_LENGTH: Final = 20
"""Largest number of characters of a name that is never broken. A phone shows a name of this length
in one line."""


class Markup(str):
    """Text that is HTML or SVG. Only this module creates it."""

    __slots__ = ()


def tag(name: str, /, *content: str, **attributes: str | float | None) -> Markup:
    """Return an element of HTML or SVG.

    Parameters
    ----------
    name : name of the element.
    content : texts, which are escaped, and Markup.
    attributes : attributes by their names. A trailing `_` is dropped, and any other `_` becomes a
        hyphen. Numbers are written with six digits. None omits the attribute.
    """
    words = "".join(
        f' {key.removesuffix("_").replace("_", "-")}="{html.escape(_format_attribute(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(
        f"<{name}{words}>{join(*content)}"
        if name in _WITHOUT_END
        else f"<{name}{words}>{join(*content)}</{name}>"
    )


def join(*parts: str) -> Markup:
    """Concatenate parts. Texts are escaped, and Markup stays as it is."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def read_static(file: str) -> Markup:
    """Read a style sheet or a script of this folder. The files contain no input of other people."""
    data = pkgutil.get_data(__package__, file)
    assert data is not None
    return Markup(data.decode("utf-8"))


def escape(text: str) -> Markup:
    """Return text as HTML that shows the text."""
    return Markup(html.escape(replace_invisible(text)))


def mark_breaks(text: str) -> Markup:
    """Return a long name as HTML that a narrow window may break after signs, such as dots.

    A name of at most 20 characters (`_MAX_UNBROKEN_LENGTH`) gets no mark.
    """
    visible_text = replace_invisible(text)
    # \0 marks the places while the text is escaped. The text itself has no \0 any more, because
    # `replace_invisible` has replaced it.
    marked = (
        _BREAKS.sub("\\g<0>\0", visible_text)
        if len(visible_text) > _MAX_UNBROKEN_LENGTH
        else visible_text
    )
    return Markup(html.escape(marked).replace("\0", "<wbr>"))


def replace_invisible(text: str) -> str:
    """Return text in which each invisible character is replaced by its picture or code point."""
    return _INVISIBLE.sub(_name_character, text)


def shorten(text: str, columns: int) -> str:
    """Return visible text of at most `columns` columns. A cut text ends with an ellipsis."""
    # Case: a text of a million characters. It is cut before the slow loop. Four characters for each
    # column suffice: each character takes at least one column, except for combining marks.
    visible_text = replace_invisible(text[: 4 * columns])
    is_complete = len(text) <= 4 * columns
    if is_complete and count_columns(visible_text) <= columns:
        return visible_text
    n_columns = 0
    for index, character in enumerate(visible_text):
        n_columns += count_columns(character)
        # The last column is for the ellipsis.
        if n_columns >= columns:
            return visible_text[:index] + "\u2026"
    return visible_text + "\u2026"


def count_columns(text: str) -> int:
    """Return the number of columns of a text on a terminal.

    A wide East Asian character has two columns. A combining mark, such as the accent of a
    decomposed letter, has no column of its own.
    """
    return sum(map(_count_columns_of_character, text))


def _count_columns_of_character(character: str) -> int:
    """Return 0 for a combining mark or a joiner, 2 for a wide character, and 1 for any other."""
    if character.isascii():
        return 1
    if _is_combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _is_combining(character: str) -> bool:
    """Return whether a character has no column of its own: a combining mark, or a joiner.

    Combining marks have the categories Mn (nonspacing mark) and Me (enclosing mark) of Unicode.
    """
    return character in _JOINERS or unicodedata.category(character) in ("Mn", "Me")


def _name_character(match: re.Match[str]) -> str:
    """Return the picture of a control character, or the code point of another character.

    U+001F stands between the fields of a tuple in the names of candidates and categories. Screens
    show a bar in its place.
    """
    if match.group() == FIELD_SEPARATOR:
        return " | "
    code = ord(match.group())
    return chr(_PICTURES + code) if code < 0x20 else f"[U+{code:04X}]"


def _format_attribute(value: str | float) -> str:
    """Format the value of an attribute. Six digits are enough for a position in a drawing."""
    return replace_invisible(value) if isinstance(value, str) else f"{value:z.6g}"
