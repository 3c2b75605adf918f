"""Markup: strings of devices stay text in HTML, whatever they contain, and stay readable."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rappor.reporting.markup import (
    Markup,
    count_columns,
    escape,
    join,
    mark_breaks,
    replace_invisible,
    shorten,
    tag,
)


@given(st.text())
def test_no_text_begins_a_tag_or_leaves_an_attribute(text: str) -> None:
    """The four characters with a meaning in HTML become entities, in contents and in attributes.

    So no string of a device can begin a tag, or end the attribute that contains the string.
    """
    written = tag("p", text, title=text)
    inner = written.removeprefix('<p title="').removesuffix("</p>")
    attribute, _, content = inner.partition('">')
    for part in (attribute, content):
        assert not set(part) & set("<>\"'")


def test_markup_is_escaped_once() -> None:
    """Markup inside markup is not escaped again, and plain text beside it is.

    The type distinguishes the two: `tag` and `join` return `Markup`.
    """
    inner = tag("b", "a < b")
    assert tag("p", inner, "&") == "<p><b>a &lt; b</b>&amp;</p>"
    assert isinstance(join(inner, "<"), Markup)
    assert join(inner, "<") == "<b>a &lt; b</b>&lt;"


@pytest.mark.parametrize(
    ("text", "visible_text"),
    [
        ("a\u202egnp.exe", "a[U+202E]gnp.exe"),
        ("a\x00b\x1b[31m", "a\u2400b\u241b[31m"),
        ("a.org\x1fde", "a.org | de"),  # the fields of a tuple
        ("\u200b\ufeff\u200f", "[U+200B][U+FEFF][U+200F]"),
        ("\ud800", "[U+D800]"),
        ("\u2028\u202d\u2060\u2069", "[U+2028][U+202D][U+2060][U+2069]"),
        ("a\xadb\U000e0041", "a[U+00AD]b[U+E0041]"),
        ("\x7f\x85", "[U+007F][U+0085]"),
        ("\u0645\u0631 \u4f60\u597d", "\u0645\u0631 \u4f60\u597d"),
    ],
)
def test_invisible_characters_are_named(text: str, visible_text: str) -> None:
    """Control characters, marks of direction and lone surrogates are replaced by their names.

    Two strings that look equal may differ in an invisible character, a mark of direction lets
    "exe.png" appear for "gnp.exe", and an escape character changes the colours of a terminal. UTF-8
    has no code for a lone surrogate. Letters of any script stay.
    """
    assert replace_invisible(text) == visible_text
    assert escape(text).encode("utf-8")


@given(st.text() | st.text("a\u4f60\u0301\u200d"), st.integers(2, 40))
@example("a\u4f60", 2)  # the last character is wide, and has one column
@example("e\u0301" * 5, 5)
def test_a_shortened_text_fits_its_columns(text: str, columns: int) -> None:
    """A text that fits stays as it is, and a cut text ends with an ellipsis."""
    short = shorten(text, columns)
    if short != replace_invisible(text):
        assert short.endswith("\u2026")
    assert count_columns(short) <= columns


def test_a_wide_letter_takes_two_columns() -> None:
    """An East Asian letter takes two columns of a terminal.

    Counted as one column, it would push the numbers of its row out of line.
    """
    assert shorten("\u4f60" * 10, 10) == "\u4f60" * 4 + "\u2026"
    assert shorten("a" * 10, 10) == "a" * 10
    assert shorten("e\u0301" * 10, 10) == "e\u0301" * 10  # an accent has no column of its own
    assert shorten("a" * 10_000, 10) == "a" * 9 + "\u2026"


def test_attributes_are_written_or_left_out() -> None:
    """Underscores of keyword arguments become hyphens, and an attribute with None is left out."""
    assert tag("rect", x=1.5, stroke_width=2, class_="a", id=None) == (
        '<rect x="1.5" stroke-width="2" class="a"></rect>'
    )
    assert tag("meta", name="a", content="b") == '<meta name="a" content="b">'


def test_a_name_is_broken_between_its_words_only() -> None:
    """A long name may break after a sign that stands before a letter, or after 30 letters.

    A browser does not break a name without blanks, so a long host name would widen the table. Names
    of at most 20 characters and dates stay on one line. Breaks are never inside an escaped
    character such as `&lt;`.
    """
    assert mark_breaks("duckduckgo_search.org") == "duckduckgo_<wbr>search.<wbr>org"
    assert mark_breaks("search.yahoo.co.jp") == "search.yahoo.co.jp"
    assert mark_breaks("2026-09-28/2026-10-04") == "2026-09-28/2026-10-04"
    assert mark_breaks("x" * 31) == f"{30 * 'x'}<wbr>x"
    assert mark_breaks(f"{20 * '-'}</b>\0") == f"{20 * '-'}&lt;/<wbr>b&gt;\u2400"
