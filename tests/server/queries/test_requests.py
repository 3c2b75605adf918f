"""Requests for estimates that fail or wait: each gets a response, and none stops the collector.

The tests use a real collector with one decoder, a worker process. To make a request wait for as
long as a test needs, they stop the decoder by SIGSTOP and let it go on by SIGCONT.
"""

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
from collectors import Running, build_report, build_upload, make_token, run_file_collector
from programs import wait_until

ARROW = "application/vnd.apache.arrow.stream"
N_WAITING, N_REQUESTS = 8, 13
"""The collector lets eight requests wait for its decoder. A test sends thirteen: one is in the
decoder, eight wait, and four are refused."""


class Client:
    """An analyst of a running collector."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.token = make_token(running.database)
        self.headers = {"Authorization": f"Bearer {self.token}"}

    def request(self, body: object, **headers: str) -> httpx.Response:
        """Request estimates."""
        return self.running.request_estimates(self.token, body, **headers)

    def request_briefly(self, body: object) -> int | None:
        """Request estimates and disconnect soon; return the status if the response came before."""
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
        """Request a path."""
        return plain_http.get(f"{self.running.url}{path}", headers=self.headers, timeout=60)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """An analyst of a collector with two hundred reports and one decoder."""
    folder = tmp_path_factory.mktemp("questions")
    flags = ("--suspicious", "accept", "--decoders", "1", "--queries-per-token", "2")
    with run_file_collector(folder, *flags) as running:
        reports = [build_report(cohort=i % 4, bits=i * 77) for i in range(200)]
        assert running.post(build_upload(*reports)).status_code == 200
        yield Client(running)


def stop_decoder(client: Client) -> int:
    """Stop the only decoder after its first task; return its process number."""
    assert client.request({"candidates": ["warm"]}).status_code == 200
    (number,) = list_decoders(client.running)
    os.kill(number, signal.SIGSTOP)
    return number


def list_decoders(running: Running) -> list[int]:
    """Return the process numbers of the decoders."""
    return running.children_named("rappor-decoder")


@pytest.mark.parametrize("contents", [None, b"\xff\xfe\n", b""])
def test_unusable_candidates_file_is_a_problem(client: Client, contents: bytes | None) -> None:
    """A file of candidates that is missing, no text, or empty gives 422.

    The message names the file without its folder. With the right file, the next request succeeds.
    """
    path = client.running.folder / "pages.txt"
    before = path.read_bytes()
    path.unlink()
    try:
        if contents is not None:
            path.write_bytes(contents)
        response = client.request({})
    finally:
        path.write_bytes(before)
    assert response.status_code == 422
    assert "candidates" in response.json()["detail"]
    if contents != b"":
        message = "page: its candidates file pages.txt cannot be read: "
        assert response.json()["detail"].startswith(message)
    assert str(client.running.folder) not in response.text
    assert client.request({}).status_code == 200


def test_killed_decoder_is_replaced(client: Client) -> None:
    """If a decoder is killed, the request in progress gets 422 and the next one a new process.

    A process that exceeds its limits is killed, too. So the message names both limits: 60 seconds
    and 4,000 MB. On a busy machine the request may reach the collector after the decoder was
    killed. The new decoder then answers it, and the test waits longer before the next kill.
    """
    for seconds in (1, 3, 9, 27):
        stopped = stop_decoder(client)
        with ThreadPoolExecutor(1) as pool:
            large = {"candidates": [f"candidate {seconds} {i}" for i in range(100_000)]}
            future = pool.submit(client.request, large)
            with pytest.raises(TimeoutError):
                future.result(timeout=seconds)
            os.kill(stopped, signal.SIGKILL)
            response = future.result(timeout=90)
        if response.status_code != 200:
            break
    assert response.status_code == 422
    assert "at most 60 seconds and 4,000 MB of memory" in response.json()["detail"]
    assert client.request({"candidates": ["c"]}).status_code == 200


def test_requests_of_a_token_are_limited(client: Client) -> None:
    """A token may have two requests in progress (`--queries-per-token`). The third gets 429.

    Stored results need no decoder: equal requests get them while the decoder is stopped.
    """
    stopped = stop_decoder(client)
    bodies = [{"candidates": [name]} for name in ("first", "second", "third")]
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(client.request, body) for body in bodies]
        try:
            refused = next(as_completed(waiting, timeout=90)).result()
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) > 0
        finally:
            os.kill(stopped, signal.SIGCONT)
        results = [future.result(timeout=150) for future in waiting]
    assert sorted(response.status_code for response in results) == [200, 200, 429]
    (decoder,) = list_decoders(client.running)
    os.kill(decoder, signal.SIGSTOP)
    try:
        for body, result in zip(bodies, results, strict=True):
            if result.status_code == 200:
                assert client.request(body).content == result.content
    finally:
        os.kill(decoder, signal.SIGCONT)


@pytest.mark.slow
def test_disconnect_frees_the_decoder(client: Client) -> None:
    """Clients that disconnect from a stopped decoder make room for a small query."""
    stopped = stop_decoder(client)
    for i in range(N_WAITING + 2):
        # The response is 429 until the collector notices the end of earlier requests.
        client.request_briefly({"candidates": [f"left {i}"]})
    wait_until(lambda: client.request({"candidates": ["small"]}).status_code == 200)
    assert stopped not in list_decoders(client.running)


def test_waiting_requests_delay_nothing_else(client: Client) -> None:
    """Eight requests wait for a stopped decoder, further ones get 503, other endpoints respond."""
    stopped = stop_decoder(client)
    clients = [Client(client.running) for _ in range(N_REQUESTS)]
    with ThreadPoolExecutor(N_REQUESTS) as pool:
        futures = [
            pool.submit(requester.request, {"candidates": [f"w{i}"]})
            for i, requester in enumerate(clients)
        ]
        try:
            completed = as_completed(futures, timeout=90)
            refused = [next(completed).result() for _ in range(N_REQUESTS - N_WAITING - 1)]
            assert {response.status_code for response in refused} == {503}
            assert all(int(response.headers["retry-after"]) > 0 for response in refused)
            assert plain_http.get(f"{client.running.url}/readyz", timeout=20).status_code == 200
            assert client.get("/v1/metrics").status_code == 200
            assert client.running.post(build_upload()).status_code == 200
        finally:
            os.kill(stopped, signal.SIGCONT)
        statuses = [future.result(timeout=150).status_code for future in futures]
    assert sorted(statuses) == [200] * (N_WAITING + 1) + [503] * (N_REQUESTS - N_WAITING - 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "limit", "message"),
    [
        ("--decode-bytes", "20000000", "20 MB of memory"),
        ("--decode-seconds", "0.4", "at most 0.4 seconds"),
    ],
)
def test_expensive_query_is_refused(tmp_path: Path, flag: str, limit: str, message: str) -> None:
    """A query beyond the limits of a process gets 422. Other queries are served."""
    with run_file_collector(tmp_path, flag, limit, "--suspicious", "accept") as running:
        assert running.post(build_upload(*[build_report()] * 20)).status_code == 200
        limited = Client(running)
        large_body = {"candidates": [f"a long candidate of number {i}" for i in range(400_000)]}
        response = limited.request(large_body)
        assert response.status_code == 422
        assert message in response.json()["detail"]
        assert running.get("/readyz").status_code == 200
        assert limited.get("/v1/metrics/page/counts").status_code == 200


@pytest.mark.slow
def test_readiness_needs_no_reader(client: Client) -> None:
    """Readiness responds while all readers are stopped and clients wait."""
    assert client.get("/v1/metrics").status_code == 200
    (reader,) = client.running.children_named("rappor-reader")
    os.kill(reader, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(client.get, "/v1/metrics") for _ in range(4)]
            for _ in range(5):
                assert client.running.get("/readyz").status_code == 200
                assert client.running.post(build_upload()).status_code == 200
            assert not any(future.done() for future in futures)
            os.kill(reader, signal.SIGCONT)
            assert {future.result(timeout=90).status_code for future in futures} == {200}
    finally:
        os.kill(reader, signal.SIGCONT)


@pytest.mark.slow
def test_formats_have_equal_rows(client: Client) -> None:
    """JSON, CSV and Arrow contain the detected candidates, or all candidates on request.

    A list as text and the file of the metric give the same candidates as a JSON list.
    """
    for include_all in (False, True):
        body = {"candidates": ["a", "b", "c"], "all": include_all}
        rows = client.request(body).json()["estimates"]
        table = pa.ipc.open_stream(client.request(body, Accept=ARROW).content).read_all()
        lines = client.request(body, Accept="text/csv").text.splitlines()
        assert table["candidate"].to_pylist() == [row["candidate"] for row in rows]
        assert lines[0].startswith("candidate,count,std_error")
        assert len(lines) == 1 + len(rows)
        assert (len(rows) == 3) or not include_all
    record = client.request({"candidates": ["a", "b"], "all": True}).json()
    numbers = {"estimates", "reports", "unallocated", "unallocated_std_error"}
    assert set(record) == {*numbers, "assumptions", "warnings", "diagnostics"}
    assert client.request({"all": True}).json() == record
    text = client.request(b"a\r\nb\n", query="?all=true", Content_Type="text/plain")
    assert text.json() == record
