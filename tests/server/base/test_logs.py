"""What a line of the log may hold."""

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
    logs.tell_loop_errors(asyncio.get_running_loop())
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
logs.event("collector started", metrics=3)
"""


def test_libraries_are_told_by_place_and_errors_without_their_words() -> None:
    """Whatever a library writes, only where it warned and the lines that failed are logged."""
    answer = run_python("-c", PROGRAM)
    lines = [json.loads(line) for line in answer.stderr.splitlines()]
    assert "telltale" not in answer.stderr
    assert "203.0.113.77" not in answer.stderr
    assert [line["event"] for line in lines] == [
        *["library warned"] * 4,
        "unexpected error",
        "collector started",
    ]
    failed = lines[3]
    assert failed["error"] == "ValueError"
    assert failed["trace"][-1].endswith(" fail")


def test_events_have_their_fields(caplog: pytest.LogCaptureFixture) -> None:
    """Fields are kept beside the name."""
    with caplog.at_level(logging.INFO, logger="rappor_server"):
        logs.event("collector started", metrics=3)
    (record,) = caplog.records
    assert record.fields == {"metrics": 3}  # type: ignore[attr-defined]
