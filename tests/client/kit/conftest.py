"""Fixture of the tests of the kit: a program with telemetry."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit_tools import CLICK, Tool


@pytest.fixture
def tool(tmp_path: Path, request: pytest.FixtureRequest) -> Tool:
    """Return a program of click whose person has not seen the question yet.

    A test gets another program by indirect parametrization with its source, such as `TYPER`.
    """
    return Tool(tmp_path, source=getattr(request, "param", CLICK))
