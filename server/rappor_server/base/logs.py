"""Structured log on standard error: each line is one JSON object with a fixed event name.

A line of the collector, and a line for an unexpected exception:

    {"time": "2026-11-29T19:51:10Z", "level": "info", "event": "uploads received",
     "uploads": 812, "reports": 812, "refused": 3}
    {"time": "2026-11-29T19:51:11Z", "level": "error", "event": "unexpected error",
     "error": "KeyError", "trace": ["app/collector.py:386 _observe", ...]}

A thief of the log must not learn which device sent an upload, or when. Three rules follow:

- No line contains an address, a header, a query, a body or the id of an upload.
- No upload has a line of its own. Uploads are logged as totals, at most once a minute.
- The message of a library or of an unexpected exception may contain anything, for example an
  address or uploaded bytes. The log contains only the class of the exception and the lines of code.
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
"""Logger of the collector's own events. All other loggers belong to libraries."""
_MAX_FRAMES: Final = 12
"""Largest number of frames of a traceback in a line. Twelve frames reach from the failing line of a
library into the collector's code. More frames make each line longer."""
_LIBRARIES: Final = (
    *("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"),
    *("alembic", "asyncio"),
)
"""Loggers of libraries that install handlers of their own. Such a handler writes plain text, with
addresses of clients."""


class _JsonFormatter(logging.Formatter):
    """Formats a log record as JSON: time (UTC), level, event, fields, and the failed code."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line without a line break."""
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
    """Return the innermost frames of a traceback, such as `app/collector.py:386 _observe`.

    A frame has no source line and no value of a variable: either may contain uploaded data.
    """
    lines = []
    for frame in traceback.extract_tb(trace)[-_MAX_FRAMES:]:
        # Folder and file are enough to find the code. The full path names the operator's account.
        file = "/".join(Path(frame.filename).parts[-2:])
        lines.append(f"{file}:{frame.lineno} {frame.name}")
    return lines


def _should_write(record: logging.LogRecord) -> bool:
    """Return whether to write a record: all events of the collector, only errors of libraries.

    A library warns for each malformed request, so a stranger could fill the disk with warnings.
    """
    return record.name == _LOG.name or record.levelno >= logging.ERROR


def configure() -> None:
    """Set up the log of this process: one JSON line on standard error for each record.

    Every process of the collector calls this function first, also a worker or merge process.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter())
    handler.addFilter(_should_write)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    _LOG.setLevel(logging.INFO)
    for name in _LIBRARIES:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True  # the handler of the root logger remains
        logger.setLevel(logging.WARNING)


def log_event(name: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Write one line with the name of an event and its fields.

    Parameters
    ----------
    name : fixed text by which operators filter lines, for example "uploads received"
    level : level of `logging`
    fields : JSON values. They must contain no data of a single upload.
    """
    _LOG.log(level, name, extra={"fields": fields})


def log_unexpected_error(error: BaseException | None) -> None:
    """Write one line for an exception that is a fault of the program.

    The line contains the class of the exception and lines of code, without the message.
    """
    _LOG.error("unexpected error", exc_info=error)


def log_refused_reload(error: Exception) -> None:
    """Write one line for a reload (SIGHUP) that found an invalid file.

    The contents of all files that were read before stay in force.
    """
    log_event("reload refused", level=logging.ERROR, reason=str(error))


def log_loop_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Make an event loop log errors of callbacks and tasks that nothing awaits.

    The default handler of asyncio would write messages, which contain addresses.
    """

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        # Clients reset connections and break TLS handshakes at will. A line for each reset would
        # let a stranger fill the disk.
        if not isinstance(error, OSError):
            log_unexpected_error(error)

    loop.set_exception_handler(handle)
