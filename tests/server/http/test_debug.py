"""The debug door of a running collector: it shows, it counts nothing, and it is bounded."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import plain_http
import pytest
from collectors import (
    Running,
    free_port,
    report_of,
    serving_file,
    upload_of,
)
from rappor_server.http.debug import MOST_LINES

KEY = {"Authorization": "Bearer sesame"}


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A collector that has a debug door."""
    folder = tmp_path_factory.mktemp("door")
    (folder / "keys").write_text("anna sesame\nben simsim 2020-01-01\n")
    with serving_file(folder, "--debug-key-file", str(folder / "keys")) as running:
        yield running


def post(running: Running, body: bytes, key: str = "sesame") -> int:
    """Send an upload to the door; return the status."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    url = f"{running.url}/v1/debug"
    return plain_http.post(url, content=body, headers=headers, timeout=30).status_code


def lines(running: Running) -> list[str]:
    """Return what the door shows, the newest first."""
    shown = running.get("/v1/debug", **KEY)
    assert shown.status_code == 200
    assert shown.headers["refresh"] == "2"
    head, _, rest = shown.text.partition("\n\n")
    assert head.endswith("None is counted.")
    return rest.splitlines()


def content(database: Path) -> list[str]:
    """Return all that a database holds but what a collector notes of each day, as SQL."""
    db = sqlite3.connect(database)
    try:
        noted = ('INSERT INTO "heartbeat"', 'INSERT INTO "rule"')
        return [line for line in db.iterdump() if not line.startswith(noted)]
    finally:
        db.close()


def test_without_keys_there_is_no_door(tmp_path: Path) -> None:
    """It is off by default: nothing is at its path."""
    with serving_file(tmp_path) as running:
        assert post(running, upload_of()) == 404
        assert running.get("/v1/debug", **KEY).status_code == 404


def test_what_the_collector_would_refuse_is_shown(door: Running) -> None:
    """With its reason; nothing of what was sent is repeated."""
    other = upload_of(report_of(), report_of("old", bits=1)).replace(b'"page"', b'"paeg"')
    assert post(door, other) == 200
    refused = [line.partition("anna  ")[2] for line in lines(door)[:2]]
    assert sorted(refused) == ["a report  refused: unknown-metric", "old  refused: expired"]


def test_door_needs_a_key(door: Running) -> None:
    """A wrong one, one whose last day is over, none; a browser sends it as a password."""
    before = lines(door)
    for key in ("other", "simsim"):
        assert post(door, upload_of(), key) == 401
    assert status_of(door, {}) == 401
    assert status_of(door, {"Authorization": "Basic !"}) == 401
    browser = plain_http.get(f"{door.url}/v1/debug", auth=("any", "sesame"), timeout=30)
    assert browser.status_code == 200
    assert lines(door) == before


def status_of(running: Running, headers: dict[str, str]) -> int:
    """Return the status of a look at the door."""
    return plain_http.get(f"{running.url}/v1/debug", headers=headers, timeout=30).status_code


def test_door_is_bounded(door: Running) -> None:
    """In lines, in reports and in bytes of an upload."""
    assert post(door, upload_of(*[report_of()] * 11)) == 400
    assert post(door, b" " * 10_001) == 413
    assert post(door, b"{}") == 400
    for _ in range(MOST_LINES // 10 + 3):
        assert post(door, upload_of(*[report_of(bits=0xFF)] * 10)) == 200
    assert len(lines(door)) == MOST_LINES


def test_door_is_at_the_address_of_devices(tmp_path: Path) -> None:
    """Developers reach it where their programs do."""
    (tmp_path / "keys").write_text("sesame\n")
    flags = ("--debug-key-file", str(tmp_path / "keys"))
    with serving_file(tmp_path, *flags, admin=free_port()) as running:
        assert post(running, upload_of()) == 200
        assert len(lines(running)) == 1
