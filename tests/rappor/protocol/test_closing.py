"""Closing: which pattern each report of a scope is drawn from."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from rappor.protocol.closing import Answered


def shown(values: Sequence[str], patterns: int | Sequence[int]) -> str:
    """Return the pattern behind each report, as text; the number of patterns may change."""
    state: Answered[str] = Answered()
    answers = []
    most = [patterns] * len(values) if isinstance(patterns, int) else patterns
    for value, patterns_now in zip(values, most, strict=True):
        state = state.with_value(value, patterns=patterns_now)
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
    """Over all histories of four reports of four values, whatever their number becomes meanwhile.

    Where more were shown than a report may have, no later one shows another.
    """
    for patterns in itertools.product((1, 2, 3), repeat=4):
        for values in itertools.product("abcd", repeat=4):
            answers = shown(values, patterns)
            assert len(set(answers)) <= max(patterns)
            for i, most in enumerate(patterns[1:], 1):
                assert len(set(answers[:i])) <= most or len(set(answers[i - 1 :])) == 1
