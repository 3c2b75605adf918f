"""The key of a query for estimates: equal requests have equal keys, all others have other keys.

A result is stored under the key of its query. The key is a hash of everything on which the result
depends, so a stored result is never returned for other counts or other candidates.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import msgspec
import pytest
from collectors import ACCEPTED, build_report, build_upload, close_days, commit, day
from rappor_server.queries.candidate_sources import CandidatesFile
from rappor_server.queries.counts import CSV, JSON
from rappor_server.queries.estimates import EstimateBody, EstimatesQuery
from rappor_server.queries.query import QueryResult, Subject, hash_parts
from sqlalchemy import Engine

from rappor.estimator.error_control import ErrorControl

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


def build_query(listed: Path, metric: str = "page") -> EstimatesQuery:
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
    """Other counts, candidates, media types and arguments change the key.

    A second query with equal arguments has the same key. Seven keys are compared: of the first
    query, of four other queries, after a change of the candidates, and after a further report.
    """
    commit(engine, build_upload(*[build_report(cohort=i % 4, bits=i * 77) for i in range(200)]))
    listed = tmp_path / "pages.txt"
    listed.write_text("a\nb\n")
    query = build_query(listed)
    keys = [query.compute_key(engine)]
    assert build_query(listed).compute_key(engine) == keys[0]
    other_queries = (
        dataclasses.replace(query, media_type=CSV),
        dataclasses.replace(query, body=b'{"all": true, "level": 0.1}'),
        dataclasses.replace(query, body=b'{"all": true, "candidates": ["a"]}'),
        dataclasses.replace(query, fields=EstimateBody(level=0.1)),
    )
    keys += [other_query.compute_key(engine) for other_query in other_queries]
    listed.write_text("a\nc\n")
    keys.append(query.compute_key(engine))
    commit(engine, build_upload())
    keys.append(query.compute_key(engine))
    assert len(set(keys)) == len(keys) == 7
    result = msgspec.msgpack.decode(query.run(engine, lambda _: None), type=QueryResult)
    rows = json.loads(result.files[JSON])["estimates"]
    assert {row["candidate"] for row in rows} == {"a", "c"}


def test_a_key_changes_when_a_block_closes(engine: Engine, tmp_path: Path) -> None:
    """A report that waits for its block changes no key. The end of its block changes the key.

    Counts are released by blocks of days, so the report is in the result only after its block has
    closed.
    """
    metric = ACCEPTED.registry["small"]
    query = build_query(tmp_path / "none", "small")
    keys = [query.compute_key(engine)]
    commit(engine, *(build_upload(build_report("small")) for _ in range(7)))
    assert query.compute_key(engine) == keys[0]
    close_days(engine, metric, day(1))
    assert query.compute_key(engine) != keys[0]


def test_parts_of_a_key_do_not_run_into_each_other(database: str) -> None:
    """A byte that moves from one part to the next changes the hash of the parts."""
    del database
    assert hash_parts([b"ab", b"c"]) == hash_parts([b"ab", b"c"])
    assert hash_parts([b"ab", b"c"]) != hash_parts([b"a", b"bc"])


def test_a_query_shows_no_body(tmp_path: Path, database: str) -> None:
    """The repr of a query does not contain its body, because candidates must not be in a log."""
    del database
    query = dataclasses.replace(build_query(tmp_path / "x"), body=b'{"candidates": ["telltale"]}')
    assert "telltale" not in repr(query)
