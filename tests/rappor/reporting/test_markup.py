"""Markup: text stays text, whatever it contains."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rappor.reporting.markup import Markup, breakable, escape, join, shorten, tag, visible


@given(st.text())
def test_no_text_begins_a_tag_or_leaves_an_attribute(text: str) -> None:
    """All characters with a meaning in HTML become entities."""
    written = tag("p", text, title=text)
    inner = written.removeprefix('<p title="').removesuffix("</p>")
    attribute, _, content = inner.partition('">')
    for part in (attribute, content):
        assert not set(part) & set("<>\"'")


def test_markup_goes_through_once() -> None:
    """Escaped text is not escaped again, also inside other elements."""
    inner = tag("b", "a < b")
    assert tag("p", inner, "&") == "<p><b>a &lt; b</b>&amp;</p>"
    assert isinstance(join(inner, "<"), Markup)
    assert join(inner, "<") == "<b>a &lt; b</b>&lt;"


@pytest.mark.parametrize(
    ("text", "shown"),
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
def test_characters_that_would_not_be_seen_are_named(text: str, shown: str) -> None:
    """Controls, marks of direction and lone surrogates are named. Letters of any script stay."""
    assert visible(text) == shown
    assert escape(text).encode("utf-8")


@given(st.text(), st.integers(2, 40))
def test_a_shortened_text_keeps_its_columns(text: str, columns: int) -> None:
    """A cut text ends with an ellipsis, and a text that fits stays."""
    short = shorten(text, columns)
    if len(short) > columns or short != visible(text):
        assert short.endswith("\u2026")
    assert len(short) <= columns


def test_a_wide_letter_takes_two_columns() -> None:
    """An East Asian letter is as wide as two other letters."""
    assert shorten("\u4f60" * 10, 10) == "\u4f60" * 4 + "\u2026"
    assert shorten("a" * 10, 10) == "a" * 10
    assert shorten("a" * 10_000, 10) == "a" * 9 + "\u2026"


def test_attributes_are_written_or_left_out() -> None:
    """Underscores become hyphens, numbers are short, and None omits an attribute."""
    assert tag("rect", x=1.5, stroke_width=2, class_="a", id=None) == (
        '<rect x="1.5" stroke-width="2" class="a"></rect>'
    )
    assert tag("meta", name="a", content="b") == '<meta name="a" content="b">'


def test_a_name_is_broken_between_its_words_only() -> None:
    """A long name may break after a sign before a letter, or within a very long word."""
    assert breakable("duckduckgo_search.org") == "duckduckgo_<wbr>search.<wbr>org"
    assert breakable("search.yahoo.co.jp") == "search.yahoo.co.jp"
    assert breakable("2026-09-28/2026-10-04") == "2026-09-28/2026-10-04"
    assert breakable("x" * 31) == f"{30 * 'x'}<wbr>x"
    assert breakable(f"{20 * '-'}</b>\0") == f"{20 * '-'}&lt;/<wbr>b&gt;\u2400"
