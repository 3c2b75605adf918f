"""Lists of candidates that people keep for a metric."""

from __future__ import annotations

import pytest
from collectors import TODAY, beside
from rappor_server.analysis import candidate_lists
from sqlalchemy import Engine

from rappor.ground.errors import ParamsError


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite has one writer
def test_of_two_lists_of_one_name_the_second_is_refused(engine: Engine) -> None:
    """Two who keep a list at once have one list, and the other is told that its name is taken."""
    told: list[str] = []

    def keep(text: bytes) -> None:
        candidate_lists.keep(engine, "page", "own", text, most=10, today=TODAY)

    def ask() -> None:
        with pytest.raises(ParamsError, match="the name must be new"):
            keep(b"theirs")
        told.append("taken")

    other = beside(engine, "INSERT INTO candidate_list", ask)
    keep(b"ours")
    other.join()
    assert told == ["taken"]
    assert [each.name for each in candidate_lists.list_all(engine, "page")] == ["own"]
