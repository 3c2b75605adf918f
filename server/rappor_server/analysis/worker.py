"""The heavy work of analysis, in a process of its own with a time limit.

The process stays between requests, and is killed when one takes too long, so that no request,
however large, stops the collector. It ends with its parent.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rappor.errors import DecodeError, FileError, MissingExtraError, RapporError
from rappor.protocol.encodings import encoding_of
from rappor_server.analysis.request import (
    ARROW,
    CandidatesFile,
    CountsRequest,
    EstimateRequest,
)
from rappor_server.errors import StoreError

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates

Request = CountsRequest | EstimateRequest

_CACHED_BYTES: Final = 64_000_000
_WAITING: Final = 8
_START_SECONDS: Final = 60.0


class Analyst:
    """Answers one request at a time; the latest answers are cached by what they depend on.

    Requests wait in threads of their own, because the threads of the event loop are for quick work.
    """

    def __init__(self, *, seconds: float) -> None:
        """Limit the time of each request, in seconds; the process starts with the first one."""
        self._seconds = seconds
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_WAITING, thread_name_prefix="rappor-analyst")
        self._n_waiting = 0
        self._process: SpawnProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._cached_bytes = 0

    async def answer(self, request: Request) -> bytes:
        """Return the rendered answer.

        Raises a retryable StoreError when too many requests wait, DecodeError when the answer
        takes too long, and otherwise what the analysis raises.
        """
        digest = await asyncio.to_thread(request.digest)
        if (cached := self._cache.get(digest)) is not None:
            return cached
        if self._n_waiting >= _WAITING:
            raise StoreError("too many requests wait for the analysis")
        self._n_waiting += 1
        try:
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self._threads, self._ask, request)
        finally:
            self._n_waiting -= 1
        self._remember(digest, answer)
        return answer

    def _remember(self, digest: bytes, answer: bytes) -> None:
        """Cache an answer, and as many of the latest others as there is room for."""
        if digest in self._cache or len(answer) > _CACHED_BYTES:
            return
        self._cache[digest] = answer
        self._cached_bytes += len(answer)
        while self._cached_bytes > _CACHED_BYTES:
            _, oldest = self._cache.popitem(last=False)
            self._cached_bytes -= len(oldest)

    def close(self) -> None:
        """End the process, and with it every request that waits for it."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None

    def _ask(self, request: Request) -> bytes:
        with self._lock:
            try:
                return self._exchange(request)
            except (EOFError, OSError):
                self._end()
                raise DecodeError("the analysis has failed; try fewer candidates") from None

    def _exchange(self, request: Request) -> bytes:
        connection = self._ready()
        connection.send(request)
        if not connection.poll(self._seconds):
            self._end()
            raise DecodeError(f"an answer must take at most {self._seconds:g} seconds")
        result = connection.recv()
        if isinstance(result, Exception):
            raise result
        return bytes(result)

    def _is_running(self) -> bool:
        """Tell whether the process waits for a request; one that has ended closed its side."""
        return (
            self._process is not None
            and self._connection is not None
            and self._process.is_alive()
            and not self._connection.poll()
        )

    def _ready(self) -> Connection[Any, Any]:
        """Return the connection to a process that is alive and has imported what it needs."""
        if not self._is_running():
            self._end()
            context = multiprocessing.get_context("spawn")
            self._connection, other = context.Pipe()
            self._process = context.Process(target=_serve, args=(other,), daemon=True)
            self._process.start()
            other.close()
            if not self._connection.poll(_START_SECONDS):
                self._end()
                raise StoreError("the analysis does not start")
            self._connection.recv()
        assert self._connection is not None
        return self._connection


def _serve(connection: Connection[Any, Any]) -> None:
    """Answer requests until the parent process is gone."""
    import rappor.decoding.decoder  # noqa: F401, PLC0415 - loaded before the clock runs

    connection.send("ready")
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        connection.send(_answer_or_error(request))


def _answer_or_error(request: Request) -> bytes | Exception:
    try:
        return _answer(request)
    except MissingExtraError as error:
        return DecodeError(str(error))
    except RapporError as error:
        return error
    except Exception as error:  # noqa: BLE001 - a bug must not end the process
        return DecodeError(f"the analysis has failed: {type(error).__name__}")


def _answer(request: Request) -> bytes:
    if isinstance(request, CountsRequest):
        return _render_counts(request)
    return _render_estimates(request)


def _render_estimates(request: EstimateRequest) -> bytes:
    from rappor.decoding.decoder import decode  # noqa: PLC0415

    estimates = decode(
        list(request.release.collections),
        _candidates(request),
        level=request.level,
        correction=request.correction,
        confidence=request.confidence,
        distribution=request.distribution,
    )
    only = not request.everything
    match request.media_type:
        case "text/csv":
            return estimates.to_csv(detected_only=only).encode()
        case "application/json":
            return estimates.to_json(detected_only=only).encode()
        case _:
            table = estimates.to_arrow()
            return _stream(table.filter(table["detected"]) if only else table)


def _candidates(request: EstimateRequest) -> Candidates | None:
    from rappor.candidates.candidates import Candidates  # noqa: PLC0415

    params = request.release.collections[0].params
    candidates = request.candidates
    if not encoding_of(params).hashed:
        return None
    if not isinstance(candidates, CandidatesFile):
        return Candidates.from_list(candidates or (), normalize=params.normalize)
    try:
        return Candidates.from_file(candidates.path, normalize=params.normalize)
    except FileError as error:
        place = "" if error.line is None else f"line {error.line}: "
        raise candidates.unreadable(place + error.reason) from None


def _render_counts(request: CountsRequest) -> bytes:
    """Write the counts of one parameter set as `Counts` reads them."""
    import tempfile  # noqa: PLC0415

    collections = request.release.collections
    if len(collections) != 1:
        raise DecodeError(
            f"counts in this format must be of one parameter set, got {len(collections)}: "
            "name it with params=FINGERPRINT"
        )
    if request.media_type == ARROW:
        return _stream(collections[0].to_arrow())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counts.csv"
        collections[0].to_csv(path)
        return path.read_bytes()


def _stream(table: Any) -> bytes:
    """Write a pyarrow.Table as an Arrow stream."""
    from rappor.counts.tables import load_pyarrow  # noqa: PLC0415

    pa = load_pyarrow()
    sink = pa.BufferOutputStream()
    with load_pyarrow("pyarrow.ipc").new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
