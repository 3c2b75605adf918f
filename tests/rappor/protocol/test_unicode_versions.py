"""Normalizers under other versions of Unicode: what both know, they normalise alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

from rappor.protocol.normalizers import normalize

CORRECTED = {0xF951, 0x2F868, 0x2F874, 0x2F91F, 0x2F95F, 0x2F9BF}
"""Corrigenda 3 and 4: since 4.0 no decomposition of a character has been changed."""


def interpreters() -> Iterator[str]:
    """Yield this Python and its neighbours on the machine, from 3.10 on."""
    yield sys.executable
    for minor in range(10, 30):
        name = f"python3.{minor}"
        folders = [Path(sys.base_prefix, "bin"), *Path(sys.base_prefix).parent.glob("*/bin")]
        yield from sorted(str(folder / name) for folder in folders if (folder / name).exists())


def tables(interpreter: str) -> dict[str, Any] | None:
    """Return what an interpreter does with all characters; None if it does not run."""
    run = [interpreter, str(ROOT / "tests" / "support" / "unicode_child.py")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(run, capture_output=True, text=True, check=False, env=environment)
    return json.loads(done.stdout) if done.returncode == 0 else None


def version(interpreter: str) -> tuple[int, ...] | None:
    """Return an interpreter's version of Unicode; None if it does not run."""
    run = [interpreter, "-c", "import unicodedata; print(unicodedata.unidata_version)"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    return tuple(map(int, done.stdout.split("."))) if done.returncode == 0 else None


def oldest_own_and_newest() -> list[str]:
    """Return up to three interpreters of this machine with different versions of Unicode."""
    by_version: dict[tuple[int, ...], str] = {}
    for interpreter in interpreters():
        if (found := version(interpreter)) is not None:
            by_version.setdefault(found, interpreter)
    ends = {min(by_version), max(by_version), version(sys.executable)}
    return [by_version[found] for found in sorted(end for end in ends if end is not None)]


def characters(table: dict[str, Any]) -> set[int]:
    """Return the characters that a version of Unicode has."""
    return {point for first, last in table["runs"] for point in range(first, last + 1)}


@pytest.mark.slow
def test_versions_at_hand_agree_on_every_character_that_both_have() -> None:
    """Composing, folding and hosts: an update adds characters and changes none."""
    found = [table for each in oldest_own_and_newest() if (table := tables(each)) is not None]
    assert found[0]["changed"]
    for old, new in pairwise(found):
        shared = characters(old) & characters(new)
        assert len(shared) > 130_000
        for point in map(str, sorted(shared)):
            assert old["changed"].get(point) == new["changed"].get(point), point


def test_composing_has_not_changed_since_unicode_3_2() -> None:
    """But for the characters of two corrigenda, which are listed."""
    old = unicodedata.ucd_3_2_0
    points = (c for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000)
    shared = [c for c in points if old.category(chr(c)) not in ("Cn", "Co")]
    differing = {c for c in shared if old.normalize("NFC", chr(c)) != normalize("nfc", chr(c))}
    assert differing <= CORRECTED
    assert len(shared) > 90_000


def test_a_new_character_is_what_may_differ() -> None:
    """A capital letter of Unicode 16 folds where it is known, and stays as it is elsewhere."""
    capital, small = "\u1c89", "\u1c8a"
    known = unicodedata.category(capital) != "Cn"
    assert normalize("casefold", capital) == (small if known else capital)
