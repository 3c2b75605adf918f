"""Normalizers: they map different spellings of a value to one spelling.

Device and analyst normalize separately. If they disagree about a value, its candidate is never
found.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from programs import run_python

from rappor.base.errors import MissingExtraError, ParamsError, ReportError
from rappor.protocol.normalizers import MAX_TEXT_BYTES, NORMALIZERS, normalize

URL_PARTS = st.lists(
    st.sampled_from([*"/\\:@[]%.。aBßéÉ\u0301-_?# \uff0f", "http:", "//", "::1", "xn--"])
    | st.sampled_from(["80", "127.0.0.1", "co.uk", "example"])
).map("".join)
"""Texts that look like addresses: parts of URLs in any order. `st.text()` seldom draws them."""

TEXTS = st.text() | URL_PARTS


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMALIZERS)
@given(text=TEXTS)
@example(text="\u0149" * (MAX_TEXT_BYTES // 2))
@example(text="\U0001d160" * (MAX_TEXT_BYTES // 4))
@example(text="a" * MAX_TEXT_BYTES)
def test_normalising_again_changes_nothing(name: str, text: str) -> None:
    """A normalizer accepts any text, and normalizing its result changes nothing.

    A program may record a value that it has normalized already. The first two examples grow beyond
    the limit of length while they are normalized, and the third has the largest length.
    """
    normalized = normalize(name, text)
    assert normalize(name, normalized) == normalized


def test_case_folds_to_a_fixed_point() -> None:
    """Folding the case twice equals folding once, for all characters that folding changes.

    Each character stands alone, before an acute accent, and before an iota subscript, because
    composing a mark can undo or repeat the folding.
    """
    changing = (chr(c) for c in range(sys.maxunicode + 1) if chr(c).casefold() != chr(c))
    for text in [c + mark for c in changing for mark in ("", "\u0301", "\u0345")]:
        folded = normalize("casefold", text)
        assert normalize("casefold", folded) == folded


@given(st.text())
def test_casefold_ignores_how_a_text_is_composed(text: str) -> None:
    """Canonically equal texts, such as é and e with an accent, have one normal form."""
    decomposed = unicodedata.normalize("NFD", text)
    assert normalize("casefold", decomposed) == normalize("casefold", text)
    assert normalize("nfc", decomposed) == normalize("nfc", text)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("none", " Ä\u0308\n", " Ä\u0308\n"),
        ("nfc", "e\u0301 ", "é "),
        ("casefold", "STRASSE Straße ΌΣΟΣ", "strasse strasse όσοσ"),
        ("casefold", "\u03b1\u0345\u0301", "\u03ac\u03b9"),  # composed first, then folded
        ("strip", "\t a b \u3000\n", "a b"),
    ],
)
def test_texts(name: str, text: str, expected: str) -> None:
    """Each normalizer changes a text as documented and not otherwise."""
    assert normalize(name, text) == expected


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("https://User:pa@ss@Example.COM:8080/path?x#y", "example.com"),
        ("Example.COM:8080/path", "example.com"),
        (" example.com. ", "example.com"),
        ("example.com?q=http://other.org", "example.com"),
        ("//cdn.example.com/x", "cdn.example.com"),
        ("HTTP://EXAMPLE.com\\@evil.org", "example.com"),
        ("http://münchen.de/", "xn--mnchen-3ya.de"),
        ("http://MÜNCHEN.DE", "xn--mnchen-3ya.de"),
        ("faß.de", "fass.de"),
        ("bücher。example。", "xn--bcher-kva.example"),
        ("_dmarc.example.com", "_dmarc.example.com"),
        ("localhost:3000", "localhost"),
        ("127.0.0.1:80", "127.0.0.1"),
        ("http://[2001:DB8::1]:443/", "[2001:db8::1]"),
        ("[::1]", "[::1]"),
        ("a" * 63 + ".com", "a" * 63 + ".com"),
    ],
)
def test_hosts(text: str, host: str) -> None:
    """`host` returns the host of an address in lower-case ASCII, without user, port and path."""
    assert normalize("host", text) == host


def test_characters_after_unicode_3_2_are_in_no_host() -> None:
    """A text with U+023A, which came with Unicode 4.1, has no host.

    IDNA 2003 does not know the character. Python would fold it by the tables of its own version of
    Unicode, so two versions of Python would return different hosts.
    """
    assert normalize("host", "\u023a.example") == ""
    assert normalize("host", "\u00c9.example") == "xn--9ca.example"


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "about:blank", "mailto:someone@example.com", "file:///etc/passwd", "http://"),
        *("two words", "http://a b/", "a..b", ".", "a" * 64 + ".com", "\uff41\uff0f\uff42.com"),
        *("user@example.com", "[::1", "[::1]x", "[::g]", "http://[fe80::1%25eth0]/", "100%.com"),
        *("C:\\Users", "example.com:port"),
    ],
)
def test_a_text_without_a_host_becomes_empty(text: str) -> None:
    """All texts without a host become the empty text, so none of them is reported in detail."""
    assert normalize("host", text) == ""
    assert normalize("domain", text) == ""


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("https://www.a.example.co.uk/x", "example.co.uk"),
        ("example.com", "example.com"),
        ("maps.someone.github.io", "someone.github.io"),
        ("www.bücher.de", "xn--bcher-kva.de"),
        ("co.uk", "co.uk"),
        ("com", "com"),
        ("localhost", "localhost"),
        ("127.0.0.1", "127.0.0.1"),
        ("http://[::1]/", "[::1]"),
    ],
)
def test_domains(text: str, domain: str) -> None:
    """`domain` returns the registrable domain: the public suffix and one label before it.

    Public suffixes, names without a dot and IP addresses stay unchanged.
    """
    assert normalize("domain", text) == domain


def test_without_the_public_suffix_list_the_error_names_the_extra(tmp_path: Path) -> None:
    """`domain` needs a library for names. If it is missing, the error names the extra to install.

    An IP address needs no library.
    """
    code = (
        "import sys; sys.modules['publicsuffixlist'] = None\n"
        "from rappor.base.errors import MissingExtraError\n"
        "from rappor.protocol.normalizers import normalize\n"
        "assert normalize('domain', '127.0.0.1') == '127.0.0.1'\n"
        "try: normalize('domain', 'example.com')\n"
        "except MissingExtraError as error: print(error)\n"
    )
    output = run_python("-c", code, folder=tmp_path).stdout
    assert output.strip() == str(MissingExtraError("domain"))


@pytest.mark.parametrize("name", NORMALIZERS)
def test_a_value_that_is_not_a_text_is_refused_without_showing_it(name: str) -> None:
    """A value that is no text is refused, and the message contains its length or type only.

    An unknown normalizer is refused with the list of the known normalizers.
    """
    with pytest.raises(ReportError, match="valid Unicode, got 8 characters") as caught:
        normalize(name, "secret \ud800")
    assert not re.search(r"secret|ud800", str(caught.value))
    with pytest.raises(ReportError, match="a value must be a text, got bytes"):
        normalize(name, b"secret")
    allowed = ", ".join(NORMALIZERS)
    with pytest.raises(ParamsError, match=f"normalize must be one of {allowed}, got 'upper'"):
        normalize("upper", "a")


@pytest.mark.parametrize("name", NORMALIZERS)
def test_each_normalizer_has_another_spelling_that_it_maps_back(name: str) -> None:
    """`respell` returns another spelling with the same normal form. Only `none` has none.

    An audit passes both spellings to a client. A client that derives its noise from the spelling
    gives them different permanent responses.
    """
    for text in ("caf\u00e9.com", "audit.com"):
        respelled = NORMALIZERS[name].respell(text)
        assert normalize(name, respelled) == normalize(name, text)
    assert (NORMALIZERS[name].respell("caf\u00e9.com") == "caf\u00e9.com") == (name == "none")


def test_case_folding_is_equal_for_every_spelling_with_a_subscript_iota() -> None:
    """Composed, decomposed and title-case letters fold to one text, with any other mark."""
    letters = [chr(code) for code in range(0x370, 0x2000)]
    with_iota = [text for text in letters if "\u0345" in unicodedata.normalize("NFD", text)]
    assert len(with_iota) > 50
    for letter in with_iota:
        for accent in ("", "\u0301", "\u0313", "\u0342"):
            texts = (
                [letter + accent, letter.title() + accent] if len(letter.title()) == 1 else [letter]
            )
            spellings = [unicodedata.normalize("NFC", text) for text in texts]
            spellings += [unicodedata.normalize("NFD", text) for text in texts]
            folded = {normalize("casefold", text) for text in (*texts, *spellings)}
            assert len(folded) == 1, (letter, accent)
            assert {normalize("casefold", text) for text in folded} == folded
    title = unicodedata.normalize("NFD", "\u1ff7").replace("\u03c9", "\u03a9")
    assert normalize("casefold", "\u1ff7") == normalize("casefold", title)
