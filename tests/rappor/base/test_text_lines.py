"""Lines and numbers as files contain them, not as Python's own functions read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rappor.base.text_lines import (
    read_decimal,
    read_whole_number,
    split_filled_lines,
    split_lines,
)


@given(st.lists(st.text(st.characters(exclude_characters="\r\n"), min_size=1)))
def test_every_line_is_itself_again(lines: list[str]) -> None:
    """Only CR and LF end a line, whatever characters the line has."""
    for end in ("\n", "\r", "\r\n"):
        assert split_lines(end.join(lines)) == lines
        assert split_lines("".join(line + end for line in lines)) == lines


def test_a_line_of_other_white_space_is_filled() -> None:
    """No-break and ideographic spaces are strings. Blanks, tabs and form feeds are white space."""
    text = "a\n\n \t\x0c\n\u00a0\n\u3000\r\u2028\n"
    assert split_filled_lines(text) == ["a", "\u00a0", "\u3000", "\u2028"]


@given(st.integers(0, 2**63 - 1), st.integers(0, 20), st.sampled_from("eE"))
def test_every_spelling_of_a_whole_number_is_read(number: int, shift: int, letter: str) -> None:
    """Zeros after a point and exponents of both signs are read exactly."""
    digits = str(number)
    mantissa = f"{digits[0]}.{digits[1:]}{letter}+{len(digits) - 1:02}"
    scaled = f"{digits}{'0' * shift}{letter}-{shift:02}"
    for text in (
        digits,
        f"{digits}.",
        f"{digits}.00",
        f" {digits}\t",
        f"0{digits}",
        mantissa,
        scaled,
    ):
        assert read_whole_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e+05", 100_000), ("100000.0", 100_000), ("2E+06", 2_000_000), ("2.5e1", 25), ("0e999", 0)],
)
def test_spellings_of_r_and_of_data_frames(text: str, number: int) -> None:
    """R writes the number 100000 as 1e+05."""
    assert read_whole_number(text) == number


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "2.5", "nan", "NA", "inf", "0x10", "1e400", "1e9999999", "-1", "-0", "+1"),
        *("1_000", "1,000", "1 000", "\u0661", "\u00b2", "1e-1", "25e-2", ".5", "e5", "1e"),
        *("1e5.0", "1\u00a0", "9223372036854775808", "1e19", "9" * 41),
    ],
)
def test_another_text_is_no_whole_number(text: str) -> None:
    """Fractions, signs, other digits, separators of thousands and too large numbers are refused."""
    with pytest.raises(ValueError, match="number"):
        read_whole_number(text)


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["", " ", "\t\r\n"]))
def test_every_float_is_read_from_its_spellings(number: float, space: str) -> None:
    """Python's repr, an exponent and 17 digits stand for the same number."""
    for text in (repr(number), f"{number:.17e}", f"{number:+.17E}"):
        assert read_decimal(space + text + space) == number


@pytest.mark.parametrize(
    ("text", "number"), [(".5", 0.5), ("5.", 5.0), ("-0", 0.0), ("+1e-2", 0.01)]
)
def test_short_spellings_of_decimals(text: str, number: float) -> None:
    """A point may stand at either end, and a sign before the digits."""
    assert read_decimal(text) == number


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "nan", "inf", "-infinity", "NA", "1e400", "1_0", "0,5", "1 0", "0x1p3", "1e"),
        *("\uff10.5", "\u0661", "\u00bd", "1\u00a0", "--1", "1.2.3", "e5"),
    ],
)
def test_another_text_is_no_decimal(text: str) -> None:
    """Python's `float` reads some of these, and no other program writes them."""
    with pytest.raises(ValueError, match="number"):
        read_decimal(text)
