"""The table that says what goes where."""

from __future__ import annotations

import re

from places import ROOT


def test_what_is_added_goes_to_places_that_exist() -> None:
    """Every path in the table of the house is a file or a folder."""
    text = (ROOT / "rappor" / "README.md").read_text(encoding="utf-8")
    table = text.partition("| you add | it goes to |")[2].partition("\n\n")[0]
    paths = re.findall(r"`([\w/]+/(?:[\w/]*\.\w+)?)`", table)
    assert len(paths) > 40
    for path in paths:
        base = ROOT if path.startswith(("client/", "server/", "tests/")) else ROOT / "rappor"
        assert (base / path).exists(), path
