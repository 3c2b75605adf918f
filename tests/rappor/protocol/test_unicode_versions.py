"""Normalizers under different versions of Unicode agree on the characters of both versions."""

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
"""Characters whose decomposition corrigenda 3 and 4 changed. Since Unicode 4.0 none has changed."""


def find_interpreters() -> Iterator[str]:
    """Yield the running Python, and other versions from 3.10 on that the machine has."""
    yield sys.executable
    for minor in range(10, 30):
        name = f"python3.{minor}"
        folders = [Path(sys.base_prefix, "bin"), *Path(sys.base_prefix).parent.glob("*/bin")]
        yield from sorted(str(folder / name) for folder in folders if (folder / name).exists())


def read_table(interpreter: str) -> dict[str, Any] | None:
    """Return the characters that an interpreter has, and those that normalizers change.

    The result is None if the interpreter does not run.
    """
    run = [interpreter, str(ROOT / "tests" / "support" / "unicode_child.py")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(run, capture_output=True, text=True, check=False, env=environment)
    return json.loads(done.stdout) if done.returncode == 0 else None


def read_version(interpreter: str) -> tuple[int, ...] | None:
    """Return the Unicode version of an interpreter; None if it does not run."""
    run = [interpreter, "-c", "import unicodedata; print(unicodedata.unidata_version)"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    return tuple(map(int, done.stdout.split("."))) if done.returncode == 0 else None


def choose_interpreters() -> list[str]:
    """Return the interpreters with the oldest, the running and the newest Unicode version."""
    by_version: dict[tuple[int, ...], str] = {}
    for interpreter in find_interpreters():
        if (version := read_version(interpreter)) is not None:
            by_version.setdefault(version, interpreter)
    chosen = {min(by_version), max(by_version), read_version(sys.executable)}
    return [by_version[version] for version in sorted(v for v in chosen if v is not None)]


def list_characters(table: dict[str, Any]) -> set[int]:
    """Return the code points of a table."""
    return {point for first, last in table["runs"] for point in range(first, last + 1)}


@pytest.mark.slow
def test_versions_at_hand_agree_on_every_character_that_both_have() -> None:
    """A new Unicode version adds characters, and changes nfc, casefold and host of no other."""
    read = (read_table(interpreter) for interpreter in choose_interpreters())
    tables = [table for table in read if table is not None]
    assert tables[0]["changed"]
    for old, new in pairwise(tables):
        shared = list_characters(old) & list_characters(new)
        assert len(shared) > 130_000
        for point in map(str, sorted(shared)):
            assert old["changed"].get(point) == new["changed"].get(point), point


def test_composing_has_not_changed_since_unicode_3_2() -> None:
    """Nfc differs from Unicode 3.2 only for the characters of two corrigenda."""
    old = unicodedata.ucd_3_2_0
    points = (c for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000)
    shared = [c for c in points if old.category(chr(c)) not in ("Cn", "Co")]
    differing = {c for c in shared if old.normalize("NFC", chr(c)) != normalize("nfc", chr(c))}
    assert differing <= CORRECTED
    assert len(shared) > 90_000


def test_only_a_new_character_may_differ() -> None:
    """A capital letter of Unicode 16 folds only in versions that contain it."""
    capital, small = "\u1c89", "\u1c8a"
    is_known = unicodedata.category(capital) != "Cn"
    assert normalize("casefold", capital) == (small if is_known else capital)
