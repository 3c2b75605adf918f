"""Normalizers under different versions of Unicode agree on the characters of both versions.

Each version of Python has tables of its own version of Unicode. Device and analyst may run
different versions, and must map a value to the same normal form.
"""

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
"""Characters whose decomposition corrigenda 3 and 4 of Unicode changed. Unicode 4.0 contains both,
and no decomposition has changed since."""


def find_interpreters() -> Iterator[str]:
    """Yield the running Python, and other versions from 3.10 on that the machine has."""
    yield sys.executable
    for minor in range(10, 30):
        name = f"python3.{minor}"
        folders = [Path(sys.base_prefix, "bin"), *Path(sys.base_prefix).parent.glob("*/bin")]
        yield from sorted(str(folder / name) for folder in folders if (folder / name).exists())


def read_table(interpreter: str) -> dict[str, Any] | None:
    """Return the output of `unicode_child` under an interpreter: all characters, and normal forms.

    The result is None if the interpreter does not run.
    """
    run = [interpreter, str(ROOT / "tests" / "support" / "unicode_child.py")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.run(run, capture_output=True, text=True, check=False, env=environment)
    return json.loads(process.stdout) if process.returncode == 0 else None


def read_version(interpreter: str) -> tuple[int, ...] | None:
    """Return the Unicode version of an interpreter; None if it does not run."""
    run = [interpreter, "-c", "import unicodedata; print(unicodedata.unidata_version)"]
    process = subprocess.run(run, capture_output=True, text=True, check=False)
    return tuple(map(int, process.stdout.split("."))) if process.returncode == 0 else None


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
def test_installed_versions_agree_on_every_character_that_both_have() -> None:
    """Two installed versions of Python map every character of both to the same normal forms.

    A new version of Unicode adds characters. It must not change how `nfc`, `casefold` and `host`
    map the older characters. Every version has more than 130,000 characters, so a smaller number
    would mean that the comparison left some out.
    """
    read = (read_table(interpreter) for interpreter in choose_interpreters())
    tables = [table for table in read if table is not None]
    assert tables[0]["changed"]
    for old, new in pairwise(tables):
        shared = list_characters(old) & list_characters(new)
        assert len(shared) > 130_000
        for point in map(str, sorted(shared)):
            assert old["changed"].get(point) == new["changed"].get(point), point


def test_composing_has_not_changed_since_unicode_3_2() -> None:
    """NFC of a character is as in Unicode 3.2, except for the characters of two corrigenda.

    So `nfc` is stable over all versions, including the versions that no test machine has.
    """
    old = unicodedata.ucd_3_2_0
    points = (c for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000)
    shared = [c for c in points if old.category(chr(c)) not in ("Cn", "Co")]
    differing = {c for c in shared if old.normalize("NFC", chr(c)) != normalize("nfc", chr(c))}
    assert differing <= CORRECTED
    assert len(shared) > 90_000


def test_only_a_new_character_may_differ() -> None:
    """A version of Unicode that lacks a letter leaves the letter unchanged.

    U+1C89 is a capital letter of Unicode 16, and folds to U+1C8A there. Two versions may differ for
    new characters only.
    """
    capital, small = "\u1c89", "\u1c8a"
    is_known = unicodedata.category(capital) != "Cn"
    assert normalize("casefold", capital) == (small if is_known else capital)
