"""Closing: which pattern each report of a scope is drawn from."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from rappor.protocol.closing import Answered


def shown(values: Sequence[str], patterns: int) -> str:
    """Return the pattern behind each report, as text."""
    state: Answered[str] = Answered()
    answers = []
    for value in values:
        state = state.with_value(value, patterns=patterns)
        assert state.last is not None
        answers.append(state.last)
    return "".join(answers)


@pytest.mark.parametrize(
    ("values", "patterns", "answers"),
    [
        ("abcab", 1, "aaaaa"),
        ("aabab", 1, "aaaaa"),
        ("abab", 2, "abab"),
        ("abcab", 2, "abbbb"),
        ("abacb", 2, "abaaa"),
        ("abcd", 3, "abcc"),
        ("abcabc", 3, "abcabc"),
    ],
)
def test_the_first_value_that_is_not_admitted_closes(
    values: str, patterns: int, answers: str
) -> None:
    """From then on every report repeats the last one's pattern, whatever its value."""
    assert shown(values, patterns) == answers


def test_no_more_patterns_are_shown_than_admitted() -> None:
    """Over all histories of five reports of four values."""
    for patterns in (1, 2, 3):
        for values in itertools.product("abcd", repeat=5):
            assert len(set(shown(values, patterns))) <= patterns
