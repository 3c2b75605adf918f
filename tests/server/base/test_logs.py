"""Log lines: their format, and data that they must not contain."""

from __future__ import annotations

import json
import logging

import pytest
from programs import run_python
from rappor_server.base import logs

PROGRAM = """
import asyncio, logging
from rappor_server.base import logs

def fail(value):
    raise ValueError(f"telltale {value}")

async def main():
    logs.log_loop_errors(asyncio.get_running_loop())
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": "telltale", "exception": OSError("telltale")})
    loop.call_exception_handler({"message": "telltale", "exception": ValueError("telltale")})

logs.configure()
for name in ("uvicorn.error", "asyncio", "somebody"):
    logging.getLogger(name).info("telltale %s", "203.0.113.77")
    logging.getLogger(name).warning("telltale %s", "203.0.113.77")
    logging.getLogger(name).error("telltale %s", "203.0.113.77")
try:
    fail("telltale")
except ValueError:
    logging.getLogger("uvicorn.error").exception("telltale")
asyncio.run(main())
logs.log_event("collector started", metrics=3)
"""
"""Program whose libraries and errors write messages that must stay out of the log.

Every such message contains the word "telltale". The three loggers are of uvicorn, of asyncio and of
an unknown library. Each writes an information, a warning and an error."""


def test_messages_of_libraries_and_errors_are_not_logged() -> None:
    """The log replaces the message of a library or an exception by its line of code and its class.

    Such a message may contain the address of a device or uploaded bytes. Information and warnings
    of libraries are not logged, because a stranger could fill the disk with malformed requests. For
    the same reason an OSError in the event loop, such as a reset connection, is not logged.
    """
    result = run_python("-c", PROGRAM)
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert "telltale" not in result.stderr
    assert "203.0.113.77" not in result.stderr
    assert [line["event"] for line in lines] == [
        *["library warned"] * 4,  # the errors of three loggers, and the exception of `fail`
        "unexpected error",  # the ValueError in the event loop
        "collector started",
    ]
    line_of_fail = lines[3]
    assert line_of_fail["error"] == "ValueError"
    assert line_of_fail["trace"][-1].endswith(" fail")


def test_events_have_their_fields(caplog: pytest.LogCaptureFixture) -> None:
    """A log record contains the fields of its event, from which the JSON line is written.

    Dashboards of operators read these fields, and have no text to parse.
    """
    with caplog.at_level(logging.INFO, logger="rappor_server"):
        logs.log_event("collector started", metrics=3)
    (record,) = caplog.records
    assert record.fields == {"metrics": 3}  # type: ignore[attr-defined]
