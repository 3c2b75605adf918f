"""Numbers in sentences."""

from __future__ import annotations

from rappor.base.sentence_numbers import format_count


def test_one_is_singular() -> None:
    """Every number except 1 has a plural, also 0."""
    assert [format_count(n, "report") for n in (0, 1, 2_000)] == [
        "0 reports",
        "1 report",
        "2,000 reports",
    ]
