"""A tool with the kit, of click and of typer."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit_tools import CLICK, Tool


@pytest.fixture
def tool(tmp_path: Path, request: pytest.FixtureRequest) -> Tool:
    """A tool of click, or of the library that a test names, that nobody has answered."""
    return Tool(tmp_path, source=getattr(request, "param", CLICK))
