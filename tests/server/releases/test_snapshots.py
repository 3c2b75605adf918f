"""A reader of several tables sees one state of the database, also while sums are deleted.

A reader lists the release windows of a metric by one statement, and reads their blocks by the next.
Between the two statements, another process may delete a window with its blocks (`forget`). On
PostgreSQL a statement usually sees what was committed before it, so without a snapshot the reader
would find a window without blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from collectors import ACCEPTED, build_report, build_upload, close_days, commit, day
from databases import ON_BOTH_DATABASES
from rappor_server.releases.installations import read_installations
from rappor_server.releases.overviews import read_overviews
from rappor_server.releases.releases import read_release
from rappor_server.releases.warning_signs import count_in_small_blocks
from rappor_server.storage.database import open_database
from rappor_server.storage.forgetting import forget
from sqlalchemy import Engine, event

SMALL = ACCEPTED.registry["small"]
"""A daily metric. A window needs five reports, and a block needs two reports for each day."""
STRICTER = dataclasses.replace(SMALL, min_cohort=50)
"""The metric after its registry was edited, so that all its blocks are too small."""
N_DAYS = 3

Read = Callable[[Engine], Any]


@ON_BOTH_DATABASES
@pytest.mark.parametrize(
    ("read", "statement"),
    [
        (
            lambda engine: read_release(engine, SMALL, day(0), day(9)),
            "SELECT release_window.params",
        ),
        (lambda engine: read_installations(engine, SMALL, day(9)), "SELECT release_window.params"),
        (lambda engine: repr(read_overviews(engine, [SMALL])), "SELECT release_window.metric"),
        (lambda engine: count_in_small_blocks(engine, [STRICTER]), "SELECT block_total.metric"),
    ],
    ids=["release", "installations", "overview", "small blocks"],
)
def test_a_reader_sees_no_part_of_a_deletion(
    engine: Engine, database: str, read: Read, statement: str
) -> None:
    """A deletion after the first statement of a reader does not change what the reader returns.

    `statement` is the beginning of the statement that lists the windows. Directly after it, another
    connection deletes all windows.
    """
    for number in range(N_DAYS):
        commit(engine, build_upload(*[build_report("small")] * 6), today=day(number))
    close_days(engine, SMALL, day(N_DAYS))
    expected = read(engine)
    n_deletions = 0

    def delete_windows(*arguments: Any) -> None:
        nonlocal n_deletions
        if arguments[2].startswith(statement) and not n_deletions:
            n_deletions += 1
            with open_database(database) as other:
                assert forget(other, "small", before=day(N_DAYS)).blocks == N_DAYS

    event.listen(engine, "after_cursor_execute", delete_windows)
    assert read(engine) == expected
    assert n_deletions == 1
    assert read(engine) != expected
