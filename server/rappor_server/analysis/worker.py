"""The analyst's heavy work, in a process of its own with a time limit.

The process is kept warm between questions and killed when one takes too long, so that no
question, however large, stops the collector. It ends with its parent.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final

from rappor.errors import DecodeError, FileError, MissingExtraError, RapporError
from rappor.protocol.encodings import encoding_of
from rappor_server.analysis.question import ARROW, Question
from rappor_server.errors import StoreError

_CACHED_BYTES: Final = 64_000_000
_WAITING: Final = 8
_START_SECONDS: Final = 60.0


class Analyst:
    """Answers one question at a time; the latest answers are remembered by their content.

    Questions wait in threads of their own: those of the event loop are for what is quick.
    """

    def __init__(self, *, seconds: float) -> None:
        """Take the time limit of a question; the process starts with the first one."""
        self._seconds = seconds
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_WAITING, thread_name_prefix="rappor-analyst")
        self._n_waiting = 0
        self._process: SpawnProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._cached_bytes = 0

    async def answer(self, question: Question) -> bytes:
        """Return the rendered answer.

        Raises StoreError, to be tried again, when too many questions wait; DecodeError when it
        takes too long; otherwise what the analysis raises.
        """
        digest = await asyncio.to_thread(question.digest)
        if (known := self._cache.get(digest)) is not None:
            return known
        if self._n_waiting >= _WAITING:
            raise StoreError("too many questions wait for an answer")
        self._n_waiting += 1
        try:
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self._threads, self._ask, question)
        finally:
            self._n_waiting -= 1
        self._remember(digest, answer)
        return answer

    def _remember(self, digest: bytes, answer: bytes) -> None:
        """Keep an answer, and as many of the latest others as there is room for."""
        if digest in self._cache or len(answer) > _CACHED_BYTES:
            return
        self._cache[digest] = answer
        self._cached_bytes += len(answer)
        while self._cached_bytes > _CACHED_BYTES:
            _, oldest = self._cache.popitem(last=False)
            self._cached_bytes -= len(oldest)

    def close(self) -> None:
        """End the process, and with it whatever waits for it."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None

    def _ask(self, question: Question) -> bytes:
        with self._lock:
            try:
                return self._exchange(question)
            except (EOFError, OSError):
                self._end()
                raise DecodeError("the analysis has failed; a smaller question may not") from None

    def _exchange(self, question: Question) -> bytes:
        connection = self._ready()
        connection.send(question)
        if not connection.poll(self._seconds):
            self._end()
            raise DecodeError(f"an answer must take at most {self._seconds:g} seconds")
        result = connection.recv()
        if isinstance(result, Exception):
            raise result
        return bytes(result)

    def _is_running(self) -> bool:
        """Tell whether the process waits for a question; one that has ended has closed its side."""
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
    """Answer questions until the parent is gone."""
    import rappor.decoding  # noqa: F401, PLC0415 - warmed up before the clock runs

    connection.send("ready")
    while True:
        try:
            question = connection.recv()
        except EOFError:
            return
        connection.send(_answer_or_error(question))


def _answer_or_error(question: Question) -> bytes | Exception:
    try:
        return _answer(question)
    except FileError as error:  # it cannot be pickled, and its path is nobody's business
        return DecodeError(f"the metric's own candidates cannot be read: {error.reason}")
    except MissingExtraError as error:
        return DecodeError(str(error))
    except RapporError as error:
        return error
    except Exception as error:  # noqa: BLE001 - a bug must not end the process
        return DecodeError(f"the analysis has failed: {type(error).__name__}")


def _answer(question: Question) -> bytes:
    from rappor.counts.counts import Counts  # noqa: PLC0415 - numpy's compiler, this process only
    from rappor.decoding.decoder import decode  # noqa: PLC0415

    name = question.release.metric
    collections = [
        Counts(counts.params, counts.ones, counts.reports, name)
        for counts in question.release.collections
    ]
    if question.what == "counts":
        return _render_counts(collections, question.media_type)
    if not collections:
        raise DecodeError("the range must hold reports that may be released, got none")
    estimates = decode(
        collections,
        _candidates(question),
        level=question.level,
        correction=question.correction,
        confidence=question.confidence,
        distribution=question.distribution,
    )
    only = not question.everything
    match question.media_type:
        case "text/csv":
            return estimates.to_csv(detected_only=only).encode()
        case "application/json":
            return estimates.to_json(detected_only=only).encode()
        case _:
            table = estimates.to_arrow()
            return _stream(table.filter(table["detected"]) if only else table)


def _candidates(question: Question) -> Any:
    from rappor.candidates.candidates import Candidates  # noqa: PLC0415

    params = question.release.collections[0].params
    if not encoding_of(params).hashed:
        return None
    if isinstance(question.candidates, str):
        return Candidates.from_file(question.candidates, normalize=params.normalize)
    return Candidates.from_list(question.candidates or (), normalize=params.normalize)


def _render_counts(collections: Sequence[Any], media_type: str) -> bytes:
    """Write the counts of one parameter set as `Counts` reads them."""
    import tempfile  # noqa: PLC0415

    if len(collections) != 1:
        raise DecodeError(
            f"counts in this format must be of one parameter set, got {len(collections)}: "
            "name it with params=FINGERPRINT"
        )
    if media_type == ARROW:
        return _stream(collections[0].to_arrow())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counts.csv"
        collections[0].to_csv(path)
        return path.read_bytes()


def _stream(table: Any) -> bytes:
    from rappor.counts.tables import load_pyarrow  # noqa: PLC0415

    pa = load_pyarrow()
    sink = pa.BufferOutputStream()
    with load_pyarrow("pyarrow.ipc").new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
