"""Checks of numbers and names: one sentence for each value outside its range."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rappor.base.errors import DecodeError, ParamsError
from rappor.base.ranges import (
    check_choice,
    check_integer,
    check_number,
    read_count,
    read_number,
)


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("[0, 1)", (0, 0.0, 0.5), (1, 1.0, -1e-300, math.nan, True, None, "0.5")),
        ("(0, 1]", (1, 5e-324), (0, 1.0000000000000002, math.inf)),
        ("(0, 1)", (0.5,), (0, 1, -math.inf)),
        ("[0, infinity]", (0, math.inf), (-1, math.nan)),
        ("[0, infinity)", (1e308,), (math.inf,)),
        ("[0.001, 40]", (0.001, 40), (0.0009, 41)),
    ],
)
def test_a_number_lies_in_its_interval(
    interval: str, inside: tuple[float, ...], outside: tuple[object, ...]
) -> None:
    """The brackets decide about the ends. NaN and booleans are in no interval."""
    for value in inside:
        check_number("x", value, interval)
    for wrong in outside:
        with pytest.raises(ParamsError) as caught:
            check_number("x", wrong, interval)
        assert str(caught.value) == f"x must be a number in {interval}, got {wrong!r}"


def test_an_integer_lies_between_its_ends() -> None:
    """Both ends are included, and a whole float is not an integer."""
    check_integer("n", 1, 1)
    check_integer("n", 10**30, 1)
    check_integer("n", 2040, 1, 2040)
    for wrong in (0, 2041, 1.0, True, "1", None):
        with pytest.raises(ParamsError) as caught:
            check_integer("n", wrong, 1, 2040)
        assert str(caught.value) == f"n must be an integer in [1, 2,040], got {wrong!r}"
    with pytest.raises(DecodeError, match="n must be an integer of at least 1, got 0"):
        check_integer("n", 0, 1, error=DecodeError)


def test_a_count_may_be_written_as_a_float() -> None:
    """1e6 is a million. Fractions, infinity and NaN are refused."""
    assert read_count("n", 1e6) == 10**6
    assert type(read_count("n", np.int64(7))) is int
    assert type(read_count("n", 1e6)) is int
    for wrong in (1.5, math.inf, math.nan, True, 0, 11):
        with pytest.raises(ParamsError, match=r"n must be an integer in \[1, 10\]"):
            read_count("n", wrong, 1, 10)


def test_a_number_of_numpy_becomes_a_number_of_python() -> None:
    """Its products with Python's numbers are then exact, and JSON can contain it."""
    for given, kind in ((np.int32(7), int), (np.uint64(7), int), (np.float32(7), float), (7, int)):
        number = read_number("x", given, "[1, 10]")
        assert (number, type(number)) == (7, kind)
    for wrong in (np.int64(11), np.float32(math.nan), np.True_, True, "7", np.array([7]), None):
        with pytest.raises(DecodeError, match=r"x must be a number in \[1, 10\]"):
            read_number("x", wrong, "[1, 10]", error=DecodeError)


def test_a_choice_is_one_of_the_names() -> None:
    """The message has all names."""
    check_choice("color", "red", ("red", "blue"))
    for wrong in ("green", 1, ["red"]):
        with pytest.raises(ParamsError) as caught:
            check_choice("color", wrong, ("red", "blue"))
        assert str(caught.value) == f"color must be one of red, blue, got {wrong!r}"
