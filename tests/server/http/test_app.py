"""HTTP endpoints of a running collector, on both databases.

The tests follow the readers of the interface: devices (uploads), analysts (counts and estimates),
operators (health, failures of the database), and a thief of log and database (privacy).
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import io
import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import plain_http
import pyarrow as pa
import pytest
from collectors import (
    ACCEPTED,
    REGISTRY,
    Running,
    build_report,
    build_upload,
    count_reports,
    make_token,
    run_collector,
    run_file_collector,
)
from programs import wait_until
from rappor_server.http.application import ROUTES
from rappor_server.ingest.retry_keys import key_of_upload
from rappor_server.operations.backup import backup
from rappor_server.storage.database import open_database
from sqlalchemy import create_engine, text

from rappor import Counts, Params

QUERYLESS = [
    route.path for route in ROUTES if "GET" in (route.methods or ()) and "{" not in route.path
]
"""Paths of all addresses of the HTTP interface that have no query parameter and no upload."""
UNKNOWN_PARAMS = Params(k=16, m=4, f=0.5, p=0.2, q=0.8)
"""Parameters of no metric in the registry. The collector refuses reports with these parameters."""


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Running]:
    """Run a collector that accepts reports with any number of ones."""
    with run_file_collector(tmp_path, "--suspicious", "accept") as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    """Run a collector for several tests, and yield it with a token for all metrics."""
    folder = tmp_path_factory.mktemp("collector")
    with run_file_collector(folder, "--suspicious", "accept") as running:
        yield running, make_token(running.database)


def check_problem(response: httpx.Response, status: int) -> dict[str, Any]:
    """Check that a response is a problem document with this status, and return the document."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert set(document) == {"type", "title", "status", "detail"}
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]
    return document


# Uploads


@pytest.mark.slow
def test_bad_bodies_are_counted_by_their_reason(collector: Running) -> None:
    """Each malformed upload gets a problem document. Analysts can read the number by reason."""
    token = make_token(collector.database)
    check_problem(collector.post(b"{}"), 400)
    check_problem(collector.post(b"\xff"), 400)
    check_problem(collector.post(build_upload(*[build_report()] * 1001)), 400)
    check_problem(collector.post(b"x" * 1_000_001), 413)
    check_problem(collector.post(build_upload(), Content_Type="text/plain"), 415)
    check_problem(collector.post(build_upload(), Content_Encoding="br"), 415)
    check_problem(collector.post(build_upload(), Content_Encoding="gzip"), 400)
    check_problem(plain_http.get(f"{collector.url}/v1/reports"), 405)
    check_problem(plain_http.get(f"{collector.url}/nothing"), 404)
    check_problem(plain_http.get(f"{collector.url}/v1/metrics/"), 404)

    def read_refusals() -> dict[str, int]:
        refusals = collector.get("/v1/metrics", token).json()["refusals"]
        return {row["reason"]: row["number"] for row in refusals}

    # Refusals are written by the next commit, and read by another process.
    wait_until(lambda: len(read_refusals()) == 5)
    assert read_refusals() == {
        "bad-request": 1,  # a body that is not gzip
        "malformed": 2,
        "too-many": 1,
        "request-entity-too-large": 1,
        "unsupported-media-type": 2,  # another media type, another encoding
    }


@pytest.mark.slow
def test_uploads_beyond_the_rate_get_429(tmp_path: Path) -> None:
    """A source beyond the rate of three uploads a minute gets 429 with Retry-After.

    A trusted proxy names the source in X-Forwarded-For, so another source is accepted.
    """
    with run_file_collector(tmp_path, "--rate", "3") as running:
        responses = [running.post(build_upload()) for _ in range(5)]
        assert [response.status_code for response in responses] == [200] * 3 + [429] * 2
        check_problem(responses[-1], 429)
        assert 0 < int(responses[-1].headers["retry-after"]) <= 60
        assert running.post(build_upload(), X_Forwarded_For="203.0.113.9").status_code == 200


# Requests of analysts


@pytest.mark.slow
def test_reading_needs_a_token_for_the_metric(shared: tuple[Running, str]) -> None:
    """A missing, unknown or expired token gets 401. A token for another metric gets 403.

    The list of metrics has only the metrics of the token.
    """
    collector, token = shared
    paths = ["/v1/metrics", "/v1/metrics/page/counts"]
    for path in paths:
        for wrong in ("", "nonsense", token + "x"):
            response = collector.get(path, wrong)
            check_problem(response, 401)
            assert response.headers["www-authenticate"] == "Bearer"
    limited = make_token(collector.database, "sound")
    check_problem(collector.get("/v1/metrics/page/counts", limited), 403)
    assert collector.get("/v1/metrics/sound/counts", limited).status_code == 200
    metrics = collector.get("/v1/metrics", limited).json()["metrics"]
    assert [metric["name"] for metric in metrics] == ["sound"]
    expired = make_token(collector.database, expires=datetime.date(2020, 1, 1))
    check_problem(collector.get("/v1/metrics", expired), 401)


@pytest.mark.parametrize(
    ("body", "status", "arguments"),
    [
        (b"{", 400, {}),
        (b"[]", 422, {}),
        (b'{"candidate":[]}', 422, {}),
        (b'{"candidates":[1]}', 422, {}),
        (b'{"candidates":["a"],"level":2}', 422, {}),
        (b'{"candidates":["a"],"correction":"none"}', 422, {}),
        (b'{"candidates":[]}', 422, {}),
        (b'{"candidates":["a"]}', 422, {"metric": "sound"}),  # a boolean metric has no candidates
        (b"a", 415, {"Content_Type": "x/y"}),
    ],
)
def test_invalid_requests_for_estimates_are_problems(
    shared: tuple[Running, str], body: bytes, status: int, arguments: dict[str, str]
) -> None:
    """Invalid JSON, options, candidates and media types get problem documents.

    `arguments` are further arguments of `request_estimates`: another metric than `page`, or another
    media type than JSON.
    """
    collector, token = shared
    collector.post(build_upload(build_report(), build_report("sound")))
    check_problem(collector.request_estimates(token, body, **arguments), status)


def test_invalid_requests_for_counts_are_problems(shared: tuple[Running, str]) -> None:
    """Invalid ranges, media types and metrics get problem documents.

    The problem of a mistyped metric suggests the right name.
    """
    collector, token = shared
    for query in ("from=2026", "to=yesterday", "from=2026-02-01&to=2026-01-01", "from=20261121"):
        check_problem(collector.get(f"/v1/metrics/page/counts?{query}", token), 422)
    check_problem(collector.get("/v1/metrics/page/counts", token, Accept="image/png"), 406)
    check_problem(collector.get("/v1/metrics/nothing/counts", token), 404)
    mistyped = collector.get("/v1/metrics/smal/counts", token)
    assert "small" in check_problem(mistyped, 404)["detail"]


def test_query_parameters_are_checked(shared: tuple[Running, str]) -> None:
    """The message names the unknown, repeated or malformed parameter.

    For an unknown or malformed parameter it also names the allowed parameters.
    """
    collector, token = shared
    counts = collector.get("/v1/metrics/page/counts?form=2026-11-21", token)
    assert check_problem(counts, 422)["detail"] == (
        "unknown query parameter 'form'; did you mean from? allowed: from, to, by, params, segments"
    )
    counts = collector.get("/v1/metrics/page/counts?from=2026-11-21&to=&from=2026-11-22", token)
    assert check_problem(counts, 422)["detail"] == (
        "query parameter 'from' must occur once, got it 2 times"
    )
    allowed = "allowed: from, to, level, correction, confidence, distribution, all"
    for query, media_type, sentence in (
        ("?x=1", "text/plain", allowed),
        ("?level=high", "text/plain", "malformed query parameter: "),
        ("?level=high", "text/plain", "$.level"),
        ("?level=1e400", "text/plain", "level"),
        ("?level=NaN", "text/plain", "level"),
        # A parser of JSON calls itself for each nested list, until the stack is full.
        ("?level=" + "[" * 20_000, "text/plain", "level"),
        ("?from=x", "text/plain", "from"),
        ("?all=true&all=true", "text/plain", "'all' must occur once"),
        ("?from=2026-01-01", "application/json", "the query must be empty with a JSON body"),
    ):
        response = collector.request_estimates(token, b"{}", query=query, Content_Type=media_type)
        assert sentence in check_problem(response, 422)["detail"]


@pytest.mark.parametrize("path", QUERYLESS)
def test_address_without_query_parameters_refuses_all(
    shared: tuple[Running, str], path: str
) -> None:
    """An address without query parameters refuses any of them, as the other addresses do.

    The check comes before the token, so no request needs one. Without a query, the address has
    another response.
    """
    collector, _ = shared
    response = collector.get(f"{path}?form=2026-11-21")
    detail = "unknown query parameter 'form'; allowed: none"
    assert check_problem(response, 422)["detail"] == detail
    assert collector.get(path).status_code != 422


def test_upload_with_a_query_is_refused(shared: tuple[Running, str]) -> None:
    """An upload has no query parameters either. Its refusal is counted as that of other uploads."""
    collector, token = shared
    url = f"{collector.url}/v1/reports?form=1"
    headers = {"Content-Type": "application/json"}
    check_problem(plain_http.post(url, content=build_upload(), headers=headers, timeout=30), 422)

    def is_counted() -> bool:
        response = collector.get("/v1/metrics", token).json()
        lists = response["refusals"], response["refusal_totals"]
        return all("unprocessable-entity" in {row["reason"] for row in rows} for rows in lists)

    wait_until(is_counted)


_TOO_FEW = "needs 5 reports from days that have ended and cohorts with 2 reports, and has fewer"
"""Ends the message for a metric with `min_reports = 5` and `min_cohort = 2`."""


def test_message_for_a_range_without_results(shared: tuple[Running, str]) -> None:
    """The message states the minimum of the metric, and not the number of its reports.

    The number of reports below the minimum is not released.
    """
    collector, token = shared
    for _ in range(3):
        collector.post(build_upload(build_report("small")))
    for metric, first, last, reason in (
        ("small", "2026-06-01", "2100-01-01", _TOO_FEW),
        ("page", "2020-01-01", "2020-12-31", "has no reports"),
    ):
        body = {"candidates": ["a"], "from": first, "to": last}
        detail = check_problem(collector.request_estimates(token, body, metric=metric), 422)[
            "detail"
        ]
        assert detail == f"No results for these dates: {metric} {reason}."


@pytest.mark.slow
def test_counts_as_json_csv_and_arrow(shared: tuple[Running, str], tmp_path: Path) -> None:
    """The counts of a metric are equal in JSON, CSV and Arrow, as `Counts` reads them."""
    collector, token = shared
    for i in range(50):
        collector.post(build_upload(build_report(bits=i * 31, cohort=i % 4)))
    params = ACCEPTED.registry["page"].params
    as_csv = collector.get("/v1/metrics/page/counts", token, Accept="text/csv")
    (tmp_path / "counts.csv").write_bytes(as_csv.content)
    counts = Counts.from_csv(tmp_path / "counts.csv", params)
    arrow = "application/vnd.apache.arrow.stream"
    as_arrow = collector.get("/v1/metrics/page/counts", token, Accept=arrow)
    table = pa.ipc.open_stream(io.BytesIO(as_arrow.content)).read_all()
    assert Counts.from_arrow(table).bit_counts.tolist() == counts.bit_counts.tolist()
    (tmp_path / "counts.json").write_bytes(collector.get("/v1/metrics/page/counts", token).content)
    loaded = Counts.load(tmp_path / "counts.json")
    assert loaded.n_reports >= 50
    assert loaded.bit_counts.tolist() == counts.bit_counts.tolist()


# Operations


@pytest.mark.slow
def test_health_metrics_and_description(collector: Running) -> None:
    """Endpoints for operators respond, and count uploads, reports and refusals.

    No header of a response names the software or the time.
    """
    collector.post(build_upload(build_report(), build_report("old")))
    collector.post(b"{}")
    assert collector.get("/").json()["description"] == "/openapi.json"
    assert collector.get("/healthz").text == "alive\n"
    assert collector.get("/readyz").text == "ready\n"
    lines = collector.get("/metrics").text.splitlines()
    assert 'rappor_uploads_total{status="200"} 1.0' in lines
    assert 'rappor_uploads_total{status="400"} 1.0' in lines
    assert 'rappor_reports_total{metric="page"} 1.0' in lines
    assert 'rappor_refusals_total{reason="expired"} 1.0' in lines
    assert "rappor_queue_uploads 0.0" in lines
    # The refusal of the second upload may be written by a second commit.
    commits = [line for line in lines if line.startswith("rappor_commit_seconds_count ")]
    assert commits in (["rappor_commit_seconds_count 1.0"], ["rappor_commit_seconds_count 2.0"])
    response = collector.get("/openapi.json")
    assert response.json()["openapi"] == "3.1.0"
    assert not {"server", "date", "set-cookie"} & set(response.headers)
    assert collector.get("/v1/registry").text == REGISTRY


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Lock an SQLite file, so that no other process can write it."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@pytest.mark.slow
def test_uploads_get_503_while_the_inbox_is_locked(tmp_path: Path) -> None:
    """While another process locks the inbox, uploads get 503, and `/readyz` responds with 503.

    The inbox is the file that stores accepted uploads until their reports are added to the sums of
    the database. An upload that got 503 is not stored later, but its retry is. When the lock ends,
    the collector is ready again. A lock on the database delays no upload.
    """
    with run_file_collector(tmp_path, "--commit-seconds", "0.5") as running:
        token = make_token(running.database)
        assert running.post(build_upload()).status_code == 200
        body = build_upload()
        with lock_file(tmp_path / "counts.sqlite3-inbox"):
            # Each of these uploads waits for half a second and gets 503.
            for upload in (body, build_upload(), build_upload()):
                response = running.post(upload)
                problem = check_problem(response, 503)
                assert "did not commit within 0.5 seconds" in problem["detail"]
                assert int(response.headers["retry-after"]) > 0
            end = time.monotonic() + 5  # more than two probes of the database, which succeed
            while time.monotonic() < end:
                check_problem(running.get("/readyz"), 503)
                time.sleep(0.2)
            assert running.get("/healthz").status_code == 200
            # Late uploads leave the queue, or they would fill it.
            wait_until(lambda: "rappor_queue_uploads 0.0" in running.get("/metrics").text)
            assert len(running.events("database failing")) == 1
        wait_until(lambda: running.get("/readyz").status_code == 200)
        # The inbox is another file than the database, so a lock on the database stops merges only.
        with lock_file(tmp_path / "counts.sqlite3"):
            assert running.post(body).status_code == 200
            assert running.get("/readyz").status_code == 200
        assert len(running.events("database recovered")) == 1
        assert running.get("/v1/metrics/page/counts", token).json()["reports"] == 2


@pytest.mark.slow
def test_uploads_are_merged_within_seconds(tmp_path: Path, database: str) -> None:
    """The merge process adds the reports of stored uploads to the sums of the database.

    If the process is killed, the collector logs this and starts another one, which goes on.
    """
    with run_collector(tmp_path, database, "--suspicious", "accept") as running:
        for n in (5, 10):
            for _ in range(5):
                assert running.post(build_upload()).status_code == 200
            with open_database(database) as engine:
                wait_until(lambda: count_reports(engine) == n)  # noqa: B023 - called in this iteration
            wait_until(lambda: "rappor_merged_uploads_total" in running.get("/metrics").text)
            os.kill(running.children()["rappor-merge"], signal.SIGKILL)
            wait_until(lambda: "merge process ended" in running.log.read_text())
        assert "rappor_inbox_failed_batches 0.0" in running.get("/metrics").text


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_uploads_get_503_while_postgresql_refuses_connections(
    tmp_path: Path, database: str, postgres: str
) -> None:
    """While PostgreSQL refuses connections, uploads get 503, and a later retry is stored."""
    name = database.partition("?")[0].rsplit("/", 1)[1]
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'"
    with run_collector(tmp_path, database, "--suspicious", "accept") as running:
        token = make_token(database)
        assert running.post(build_upload()).status_code == 200
        admin = create_engine(
            postgres.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
        )
        with admin.connect() as connection:
            connection.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
            connection.execute(text(cut.format(name)))
            body = build_upload()
            response = running.post(body)
            check_problem(response, 503)
            assert int(response.headers["retry-after"]) > 0
            check_problem(running.get("/readyz"), 503)
            assert running.get("/healthz").status_code == 200
            connection.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true"))
        admin.dispose()
        assert running.post(body).status_code == 200
        assert running.get("/v1/metrics/page/counts", token).json()["reports"] == 2


# Privacy


@pytest.mark.slow
def test_no_address_header_or_id_is_stored_or_logged(tmp_path: Path, database: str) -> None:
    """The log contains no address, header, id or body. The database contains no address or header.

    The database contains no id of an upload either, only the deduplication key made from it.
    """
    flags = ["--rate", "1000", "--suspicious", "accept"]
    with run_collector(tmp_path, database, *flags) as running:
        body = build_upload(build_report(), build_report("sound", bits=1))
        headers = {
            "User-Agent": "telltale-agent/7",
            "X-Forwarded-For": "203.0.113.77",
            "Cookie": "id=telltale-cookie",
            "Referer": "https://telltale.example",
        }
        refused = build_upload(build_report(params=UNKNOWN_PARAMS))
        for content in (body, body, b"telltale-body", refused):
            plain_http.post(
                f"{running.url}/v1/reports",
                content=content,
                headers=headers | {"Content-Type": "application/json"},
            )
        running.get("/v1/metrics", "telltale-token", **headers)
        running.get("/telltale-path", "", **headers)
        with open_database(database) as engine:
            # The second body is the retry of the first one, so `page` has one report. The merge may
            # log something, too.
            wait_until(lambda: count_reports(engine) == 1)
        log = running.log.read_text()
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(30)
    upload_id = json.loads(body)["id"]
    for secret in ("telltale", "203.0.113.77", "127.0.0.1:", upload_id):
        # The log contains the collector's own address.
        assert secret not in log.replace(f"http://127.0.0.1:{running.port}", "")
    stored = dump_database(database, tmp_path)
    for secret in (b"telltale", b"203.0.113.77", b"127.0.0.1"):
        assert secret not in stored
    id_bytes = base64.urlsafe_b64decode(upload_id + "==")
    assert id_bytes not in stored
    # The search finds bytes that are stored.
    assert key_of_upload(id_bytes, body) in stored


def dump_database(database: str, folder: Path) -> bytes:
    """Return the contents of a database as bytes."""
    if database.startswith("sqlite"):
        return b"".join(path.read_bytes() for path in folder.glob("counts.sqlite3*"))
    copy = folder / "dump.sqlite3"
    backup(database, copy)
    return copy.read_bytes()
