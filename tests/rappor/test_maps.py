"""The maps of the analyst's wings: each README names every file of its folder, and no other."""

from __future__ import annotations

import re

import pytest
from places import ROOT

WINGS = (
    "candidates",
    "counts",
    "decoding",
    "discovery",
    "engines",
    "google",
    "planning",
    "remote",
    "simulation",
)


def test_what_is_added_goes_to_places_that_exist() -> None:
    """Every path in the table of the house is a file or a folder."""
    text = (ROOT / "rappor" / "README.md").read_text(encoding="utf-8")
    table = text.partition("| you add | it goes to |")[2].partition("\n\n")[0]
    paths = re.findall(r"`([\w/]+/(?:[\w/]*\.\w+)?)`", table)
    assert len(paths) > 40
    for path in paths:
        base = ROOT if path.startswith(("client/", "server/", "tests/")) else ROOT / "rappor"
        assert (base / path).exists(), path


@pytest.mark.parametrize("wing", WINGS)
def test_the_map_is_whole(wing: str) -> None:
    """Every module has its line, and every line its module."""
    folder = ROOT / "rappor" / wing
    text = (folder / "README.md").read_text(encoding="utf-8")
    modules = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    rooms = [line for line in text.splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`(\w+\.py)`", "\n".join(line.split(" | ")[0] for line in rooms)))
    assert modules <= named
    assert all((folder / name).exists() for name in named)
