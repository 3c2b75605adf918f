"""Structured logs: each line is one JSON object with a fixed event name and fixed fields.

A log must not reveal which device sent an upload, or when. Three rules follow:

- No line contains an address, a header, a query, a body or the id of an upload.
- No upload has a line of its own. Uploads are logged as totals, at most once a minute.
- The message of a library or of an unexpected error may contain anything, for example an address
  or uploaded bytes. The log contains only the class of the error and the lines of code.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Final

_LOG: Final = logging.getLogger("rappor_server")
_MAX_FRAMES: Final = 12
"""Largest number of frames of a traceback in a line. More frames make the line longer."""
_LIBRARIES: Final = (
    *("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"),
    *("alembic", "asyncio"),
)
"""Loggers of libraries that install handlers of their own, which would write plain text."""


class _JsonFormatter(logging.Formatter):
    """Formats a log record as JSON: time, level, event, fields, and the code that failed."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
        }
        if record.name == _LOG.name:
            document["event"] = record.getMessage()
            document |= getattr(record, "fields", {})
        else:
            # The message of a library may contain an address or a query string.
            document["event"] = "library warned"
            document["location"] = f"{record.name} {record.module}:{record.lineno}"
        if record.exc_info and record.exc_info[0] is not None:
            error_class, _, trace = record.exc_info
            document["error"] = error_class.__name__  # the message may contain uploaded bytes
            document["trace"] = _format_frames(trace)
        return json.dumps(document)


def _format_frames(trace: TracebackType | None) -> list[str]:
    """Return file, line and function of the innermost frames of a traceback, without values."""
    lines = []
    for frame in traceback.extract_tb(trace)[-_MAX_FRAMES:]:
        file = "/".join(Path(frame.filename).parts[-2:])
        lines.append(f"{file}:{frame.lineno} {frame.name}")
    return lines


def _should_write(record: logging.LogRecord) -> bool:
    """Return whether to write a record: all events of the collector, but only errors of others."""
    return record.name == _LOG.name or record.levelno >= logging.ERROR


def configure() -> None:
    """Write all log records, including those of libraries, to standard error as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter())
    handler.addFilter(_should_write)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    _LOG.setLevel(logging.INFO)
    for name in _LIBRARIES:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True
        logger.setLevel(logging.WARNING)


def log_event(name: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Write one line with the name of an event and its fields."""
    _LOG.log(level, name, extra={"fields": fields})


def log_unexpected_error(error: BaseException | None) -> None:
    """Write one line for a programming error: class and lines of code, without the message."""
    _LOG.error("unexpected error", exc_info=error)


def log_refused_reload(error: Exception) -> None:
    """Write one line for a reload of invalid files. The files read before stay in force."""
    log_event("reload refused", level=logging.ERROR, reason=str(error))


def log_loop_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Make an event loop log errors of callbacks and tasks that nothing awaits.

    The default handler of asyncio would write messages, which contain addresses.
    """

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        # Clients reset connections and break TLS handshakes at will. A line for each would let a
        # stranger fill the disk.
        if not isinstance(error, OSError):
            log_unexpected_error(error)

    loop.set_exception_handler(handle)
