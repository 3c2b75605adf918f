"""Structured logs: one JSON object a line, of fixed events with fixed fields.

No line has an address, a header, a query, a body or an id of an upload. No upload has a line of
its own: what arrives is told as totals, at most once a minute. Libraries may put anything into
their messages, and are told as the place in their code that warned, without the message.
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
_FRAMES: Final = 12


class _JsonFormatter(logging.Formatter):
    """Writes the time, level and name of an event, its fields, and where an error came from."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
        }
        if record.name == _LOG.name:
            document["event"] = record.getMessage()
            document |= getattr(record, "fields", {})
        else:
            document["event"] = "library warned"
            document["place"] = f"{record.name} {record.module}:{record.lineno}"
        if record.exc_info and record.exc_info[0] is not None:
            kind, _, trace = record.exc_info
            document["error"] = kind.__name__  # its message may hold anything
            document["trace"] = _places(trace)
        return json.dumps(document)


def _places(trace: TracebackType | None) -> list[str]:
    """Return the innermost lines of code that a traceback passed, without any value."""
    frames = traceback.extract_tb(trace)[-_FRAMES:]
    files = ["/".join(Path(frame.filename).parts[-2:]) for frame in frames]
    return [f"{file}:{each.lineno} {each.name}" for file, each in zip(files, frames, strict=True)]


def _is_told(record: logging.LogRecord) -> bool:
    """Return whether a line is written: libraries have a word from errors on."""
    return record.name == _LOG.name or record.levelno >= logging.ERROR


def configure() -> None:
    """Send all lines, those of libraries too, to standard error as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter())
    handler.addFilter(_is_told)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    _LOG.setLevel(logging.INFO)
    for name in (
        "uvicorn",
        "uvicorn.error",
        "uvicorn.access",
        "uvicorn.asgi",
        "alembic",
        "asyncio",
    ):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True
        logger.setLevel(logging.WARNING)


def event(name: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Write one line with the name of an event and its fields."""
    _LOG.log(level, name, extra={"fields": fields})


def unexpected(error: BaseException | None) -> None:
    """Write a line for an error that nobody has foreseen: its class and place, not its words."""
    _LOG.error("unexpected error", exc_info=error)


def refused_reload(error: Exception) -> None:
    """Log that files were read again and are wrong; the old ones stay in force."""
    event("reload refused", level=logging.ERROR, reason=str(error))


def tell_loop_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Let a loop tell errors that nobody awaits by their class: its own words name addresses."""

    def tell(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError):  # strangers break connections and handshakes at will
            unexpected(error)

    loop.set_exception_handler(tell)
