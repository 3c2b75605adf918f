"""The key of a query for estimates: the same request has the same result, any other has another."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import msgspec
import pytest
from collectors import ACCEPTED, close_days, commit, day, report_of, upload_of
from rappor_server.queries.candidate_sources import CandidatesFile
from rappor_server.queries.counts import CSV, JSON
from rappor_server.queries.estimates import EstimateBody, EstimatesQuery
from rappor_server.queries.query import QueryResult, Subject, hash_parts
from sqlalchemy import Engine

from rappor.estimator.error_control import ErrorControl

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


def query_of(listed: Path, metric: str = "page") -> EstimatesQuery:
    """Return a query for the estimates of all candidates in a file."""
    return EstimatesQuery(
        subject=Subject(
            metric=ACCEPTED.registry[metric],
            source=CandidatesFile(metric=metric, candidates=listed.name, folder=listed.parent),
            error_control=ErrorControl(),
        ),
        body=b'{"all": true}',
        fields=None,
        media_type=JSON,
        max_candidates=1000,
    )


def test_a_key_changes_with_everything_on_which_a_result_depends(
    engine: Engine, tmp_path: Path
) -> None:
    """Other counts, candidates, media types and arguments; nothing else does."""
    commit(engine, upload_of(*[report_of(cohort=i % 4, bits=i * 77) for i in range(200)]))
    listed = tmp_path / "pages.txt"
    listed.write_text("a\nb\n")
    query = query_of(listed)
    keys = [query.compute_key(engine)]
    assert query_of(listed).compute_key(engine) == keys[0]
    others = (
        dataclasses.replace(query, media_type=CSV),
        dataclasses.replace(query, body=b'{"all": true, "level": 0.1}'),
        dataclasses.replace(query, body=b'{"all": true, "candidates": ["a"]}'),
        dataclasses.replace(query, fields=EstimateBody(level=0.1)),
    )
    keys += [other.compute_key(engine) for other in others]
    listed.write_text("a\nc\n")
    keys.append(query.compute_key(engine))
    commit(engine, upload_of())
    keys.append(query.compute_key(engine))
    assert len(set(keys)) == len(keys) == 7
    result = msgspec.msgpack.decode(query.run(engine, lambda _: None), type=QueryResult)
    rows = json.loads(result.files[JSON])["estimates"]
    assert {row["candidate"] for row in rows} == {"a", "c"}


def test_a_key_changes_when_a_block_closes(engine: Engine, tmp_path: Path) -> None:
    """Days of a request may be open; a report that waits for its block changes nothing."""
    metric = ACCEPTED.registry["small"]
    query = query_of(tmp_path / "none", "small")
    keys = [query.compute_key(engine)]
    commit(engine, *(upload_of(report_of("small")) for _ in range(7)))
    assert query.compute_key(engine) == keys[0]
    close_days(engine, metric, day(1))
    assert query.compute_key(engine) != keys[0]


def test_parts_of_a_key_do_not_run_into_each_other(database: str) -> None:
    """A byte that moves from one part to the next makes another key."""
    del database
    assert hash_parts([b"ab", b"c"]) == hash_parts([b"ab", b"c"])
    assert hash_parts([b"ab", b"c"]) != hash_parts([b"a", b"bc"])


def test_a_query_shows_no_body(tmp_path: Path, database: str) -> None:
    """The repr is in a key and may be in a log; candidates are not in it."""
    del database
    query = dataclasses.replace(query_of(tmp_path / "x"), body=b'{"candidates": ["telltale"]}')
    assert "telltale" not in repr(query)
