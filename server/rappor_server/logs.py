"""Structured logs: one JSON object a line, of fixed events with fixed fields.

No line has an address, a header, a body or an id of an upload. No upload has a line of its own:
what arrives is told as totals, at most once a minute.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Final

_LOG: Final = logging.getLogger("rappor_server")


class _JsonFormatter(logging.Formatter):
    """Writes the time, level and message of a record, and the fields of an event."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        document |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0] is not None:
            document["error"] = record.exc_info[0].__name__  # its message may hold anything
        return json.dumps(document)


def configure() -> None:
    """Send all lines, those of uvicorn too, to standard error as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    _LOG.setLevel(logging.INFO)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "alembic"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True
    logging.getLogger("uvicorn.error").setLevel(logging.INFO)


def event(name: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Write one line with the name of an event and its fields."""
    _LOG.log(level, name, extra={"fields": fields})
