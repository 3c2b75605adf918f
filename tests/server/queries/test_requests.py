"""Requests for estimates that fail or wait: each gets an answer, and none stops the collector."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import httpx
import plain_http
import pyarrow as pa
import pytest
from collectors import Running, make_token, report_of, serving_file, upload_of
from programs import until

ARROW = "application/vnd.apache.arrow.stream"
N_WAITING, N_ASKED = 8, 13


class Asker:
    """An analyst of a running collector."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.token = make_token(running.database)
        self.headers = {"Authorization": f"Bearer {self.token}"}

    def ask(self, body: object, **more: str) -> httpx.Response:
        """Ask for estimates."""
        return self.running.ask(self.token, body, **more)

    def ask_briefly(self, body: object) -> int | None:
        """Ask for estimates and hang up soon; return the status if there is one by then."""
        try:
            response = plain_http.post(
                f"{self.running.url}/v1/metrics/page/estimates",
                json=body,
                headers=self.headers,
                timeout=httpx.Timeout(60, read=0.5),
            )
        except httpx.ReadTimeout:
            return None
        assert response.status_code != 429 or int(response.headers["retry-after"]) > 0
        return response.status_code

    def get(self, path: str) -> httpx.Response:
        """Read a path."""
        return plain_http.get(f"{self.running.url}{path}", headers=self.headers, timeout=60)


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """An analyst of a collector with two hundred reports, and with one decoder."""
    folder = tmp_path_factory.mktemp("questions")
    flags = ("--suspicious", "accept", "--decoders", "1", "--queries-per-token", "2")
    with serving_file(folder, *flags) as running:
        reports = [report_of(cohort=i % 4, bits=i * 77) for i in range(200)]
        assert running.post(upload_of(*reports)).status_code == 200
        yield Asker(running)


def stop_the_decoder(asker: Asker) -> int:
    """Stop the one process that decodes, once it is warm; return its number."""
    assert asker.ask({"candidates": ["warm"]}).status_code == 200
    (stopped,) = decoders_of(asker.running)
    os.kill(stopped, signal.SIGSTOP)
    return stopped


def decoders_of(running: Running) -> list[int]:
    """Return the processes that decode."""
    return running.children_named("rappor-decoder")


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


def test_a_decoder_that_dies_reads_as_a_limit_and_is_replaced(asker: Asker) -> None:
    """The request under way gets 422, however the process ends; the next one has a new process."""
    stopped = stop_the_decoder(asker)
    with ThreadPoolExecutor(1) as pool:
        large = {"candidates": [f"candidate {i}" for i in range(100_000)]}
        asked = pool.submit(asker.ask, large)
        with pytest.raises(TimeoutError):
            asked.result(timeout=3)
        os.kill(stopped, signal.SIGKILL)
        answer = asked.result(timeout=90)
    assert answer.status_code == 422
    assert "at most 60 seconds and 4,000 MB of memory" in answer.json()["detail"]
    assert asker.ask({"candidates": ["c"]}).status_code == 200


def test_a_token_has_a_few_requests_that_wait(asker: Asker) -> None:
    """One too many is refused at once; the same request again is answered from its file."""
    stopped = stop_the_decoder(asker)
    bodies = [{"candidates": [name]} for name in ("first", "second", "third")]
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(asker.ask, body) for body in bodies]
        try:
            refused = next(as_completed(waiting, timeout=90)).result()
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) > 0
        finally:
            os.kill(stopped, signal.SIGCONT)
        results = [each.result(timeout=150) for each in waiting]
    assert sorted(each.status_code for each in results) == [200, 200, 429]
    (decoder,) = decoders_of(asker.running)
    os.kill(decoder, signal.SIGSTOP)
    try:
        for body, result in zip(bodies, results, strict=True):
            if result.status_code == 200:
                assert asker.ask(body).content == result.content
    finally:
        os.kill(decoder, signal.SIGCONT)


def test_who_hangs_up_frees_the_decoder(asker: Asker) -> None:
    """Askers that leave a stopped decoder make room for a small question, answered soon after."""
    stopped = stop_the_decoder(asker)
    for i in range(N_WAITING + 2):
        asker.ask_briefly({"candidates": [f"left {i}"]})  # 429 until earlier ones are seen to leave
    until(lambda: asker.ask({"candidates": ["small"]}).status_code == 200)
    assert stopped not in decoders_of(asker.running)


def test_questions_that_wait_hold_up_nothing_else(asker: Asker) -> None:
    """Eight requests wait for a stopped decoder, more get 503, and everything else is served."""
    stopped = stop_the_decoder(asker)
    askers = [Asker(asker.running) for _ in range(N_ASKED)]
    with ThreadPoolExecutor(N_ASKED) as pool:
        asked = [pool.submit(each.ask, {"candidates": [f"w{i}"]}) for i, each in enumerate(askers)]
        try:
            answers = as_completed(asked, timeout=90)
            refused = [next(answers).result() for _ in range(N_ASKED - N_WAITING - 1)]
            assert {answer.status_code for answer in refused} == {503}
            assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)
            assert plain_http.get(f"{asker.running.url}/readyz", timeout=20).status_code == 200
            assert asker.get("/v1/metrics").status_code == 200
            assert asker.running.post(upload_of()).status_code == 200
        finally:
            os.kill(stopped, signal.SIGCONT)
        answered = [answer.result(timeout=150).status_code for answer in asked]
    assert sorted(answered) == [200] * (N_WAITING + 1) + [503] * (N_ASKED - N_WAITING - 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "limit", "told"),
    [
        ("--decode-bytes", "20000000", "20 MB of memory"),
        ("--decode-seconds", "0.4", "at most 0.4 seconds"),
    ],
)
def test_an_estimate_has_limits(tmp_path: Path, flag: str, limit: str, told: str) -> None:
    """A question that needs more than a process may take is refused, and others are answered."""
    with serving_file(tmp_path, flag, limit, "--suspicious", "accept") as running:
        assert running.post(upload_of(*[report_of()] * 20)).status_code == 200
        limited = Asker(running)
        many = {"candidates": [f"a long candidate of number {i}" for i in range(400_000)]}
        answer = limited.ask(many)
        assert answer.status_code == 422
        assert told in answer.json()["detail"]
        assert running.get("/readyz").status_code == 200
        assert limited.get("/v1/metrics/page/counts").status_code == 200


def test_readiness_needs_no_reader(asker: Asker) -> None:
    """While every process that reads is stopped and askers wait, readiness answers all the same."""
    assert asker.get("/v1/metrics").status_code == 200
    (reader,) = asker.running.children_named("rappor-reader")
    os.kill(reader, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(asker.get, "/v1/metrics") for _ in range(4)]
            for _ in range(5):
                assert asker.running.get("/readyz").status_code == 200
                assert asker.running.post(upload_of()).status_code == 200
            assert not any(each.done() for each in asked)
            os.kill(reader, signal.SIGCONT)
            assert {each.result(timeout=90).status_code for each in asked} == {200}
    finally:
        os.kill(reader, signal.SIGCONT)


def test_tables_hold_the_same_rows_in_every_form(asker: Asker) -> None:
    """JSON, CSV and Arrow hold the detected candidates, or all of them if asked.

    A list as text, and the metric's own file, are the same candidates as those of a record.
    """
    for everything in (False, True):
        body = {"candidates": ["a", "b", "c"], "all": everything}
        rows = asker.ask(body).json()["estimates"]
        table = pa.ipc.open_stream(asker.ask(body, Accept=ARROW).content).read_all()
        lines = asker.ask(body, Accept="text/csv").text.splitlines()
        assert table["candidate"].to_pylist() == [row["candidate"] for row in rows]
        assert lines[0].startswith("candidate,count,std_error")
        assert len(lines) == 1 + len(rows)
        assert (len(rows) == 3) or not everything
    record = asker.ask({"candidates": ["a", "b"], "all": True}).json()
    numbers = {"estimates", "reports", "unallocated", "unallocated_std_error"}
    assert set(record) == {*numbers, "assumptions", "warnings", "diagnostics"}
    assert asker.ask({"all": True}).json() == record
    text = asker.ask(b"a\r\nb\n", query="?all=true", Content_Type="text/plain")
    assert text.json() == record
