"""Requests for estimates that fail or wait: each gets an answer, and none stops the collector."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

import httpx
import pyarrow as pa
import pytest
from collectors import Running, make_token, report_of, serving, upload_of

ARROW = "application/vnd.apache.arrow.stream"
N_WAITING, N_ASKED = 8, 12


class Asker:
    """An analyst of a running collector."""

    def __init__(self, running: Running, token: str) -> None:
        self.running = running
        self._headers = {"Authorization": f"Bearer {token}"}

    def ask(self, body: object = None, *, query: str = "", **headers: str) -> httpx.Response:
        """Ask for estimates; without a body, by a list of candidates as text."""
        text = "a\nb\n" if body is None else json.dumps(body)
        kind = "text/plain" if body is None else "application/json"
        return httpx.post(
            f"{self.running.url}/v1/metrics/page/estimates{query}",
            content=text,
            headers=self._headers | {"Content-Type": kind} | headers,
            timeout=120,
        )


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """An analyst of a collector with two hundred reports."""
    folder = tmp_path_factory.mktemp("questions")
    database = f"sqlite:///{folder}/counts.sqlite3"
    with serving(folder, database, "--suspicious", "accept") as running:
        reports = [report_of(cohort=i % 4, bits=i * 77) for i in range(200)]
        assert running.post(upload_of(*reports)).status_code == 200
        yield Asker(running, make_token(folder, database))


def decoders_of(running: Running) -> list[int]:
    """Return the processes that decode, one or none; dead ones do not count."""
    command = ["ps", "-ww", "-o", "pid=,stat=,args=", "--ppid", str(running.process.pid)]
    lines = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
    return [
        int(line.split()[0])
        for line in lines
        if "multiprocessing-fork" in line and "Z" not in line.split()[1]
    ]


@pytest.mark.parametrize("contents", [None, b"\xff\xfe\n", b""])
def test_candidates_that_cannot_be_read_are_a_problem(asker: Asker, contents: bytes | None) -> None:
    """The metric's own file is gone, no text, or empty; the answer names it without its folder."""
    path = asker.running.folder / "pages.txt"
    before = path.read_bytes()
    path.unlink()
    try:
        if contents is not None:
            path.write_bytes(contents)
        answer = asker.ask({})
    finally:
        path.write_bytes(before)
    assert answer.status_code == 422
    assert "candidates" in answer.json()["detail"]
    if contents != b"":
        told = "page: its candidates file pages.txt cannot be read: "
        assert answer.json()["detail"].startswith(told)
    assert str(asker.running.folder) not in answer.text
    assert asker.ask({}).status_code == 200


@pytest.mark.parametrize(
    "query", ["?level=1e400", "?level=NaN", "?level=" + "[" * 20_000, "?more=1", "?from=x"]
)
def test_queries_that_do_not_fit_are_problems(asker: Asker, query: str) -> None:
    """Numbers out of range, unknown parameters and days that are none get 422."""
    assert asker.ask(query=query).status_code == 422


def test_a_decoder_that_was_killed_is_replaced(asker: Asker) -> None:
    """The request under way gets 422; the next one is answered by a new process."""
    assert asker.ask({"candidates": ["a"]}).status_code == 200
    (found,) = decoders_of(asker.running)
    os.kill(found, signal.SIGKILL)
    assert asker.ask({"candidates": ["b"]}).status_code in (200, 422)  # it may be dying still
    assert asker.ask({"candidates": ["b"]}).status_code == 200
    (stopped,) = decoders_of(asker.running)
    os.kill(stopped, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        large = {"candidates": [f"candidate {i}" for i in range(100_000)]}
        asked = pool.submit(asker.ask, large)
        with pytest.raises(TimeoutError):
            asked.result(timeout=3)
        os.kill(stopped, signal.SIGKILL)
        assert asked.result(timeout=60).status_code == 422
    assert asker.ask({"candidates": ["c"]}).status_code == 200


def test_questions_that_wait_hold_up_nothing_else(asker: Asker) -> None:
    """Eight requests wait for a stopped decoder, more get 503, and everything else is served."""
    assert asker.ask({"candidates": ["warm"]}).status_code == 200
    (stopped,) = decoders_of(asker.running)
    os.kill(stopped, signal.SIGSTOP)
    with ThreadPoolExecutor(N_ASKED) as pool:
        asked = [pool.submit(asker.ask, {"candidates": [f"w{i}"]}) for i in range(N_ASKED)]
        try:
            refused = [answer.result() for answer in first_answers(asked, N_ASKED - N_WAITING)]
            assert {answer.status_code for answer in refused} == {503}
            assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)
            assert httpx.get(f"{asker.running.url}/readyz", timeout=20).status_code == 200
            assert asker.running.post(upload_of()).status_code == 200
        finally:
            os.kill(stopped, signal.SIGCONT)
        answered = [answer.result(timeout=120).status_code for answer in asked]
    assert sorted(answered) == [200] * N_WAITING + [503] * (N_ASKED - N_WAITING)


def first_answers(asked: list[Future[httpx.Response]], n: int) -> list[Future[httpx.Response]]:
    """Wait for the first n answers."""
    answers = as_completed(asked, timeout=60)
    return [next(answers) for _ in range(n)]


def test_tables_hold_the_same_rows_in_every_form(asker: Asker) -> None:
    """JSON, CSV and Arrow hold the detected candidates, or all of them if asked."""
    for everything in (False, True):
        body = {"candidates": ["a", "b", "c"], "all": everything}
        rows = asker.ask(body).json()["estimates"]
        table = pa.ipc.open_stream(asker.ask(body, Accept=ARROW).content).read_all()
        lines = asker.ask(body, Accept="text/csv").text.splitlines()
        assert table["candidate"].to_pylist() == [row["candidate"] for row in rows]
        assert len(lines) == 1 + len(rows)
        assert (len(rows) == 3) or not everything
