"""Snapshots: texts that a command or a page prints, stored in a file that a person has read.

`check_snapshot` compares a text with its file. To write the files anew after an intended change:

    RAPPOR_SNAPSHOTS=write pytest -m '' tests/test_refusals.py
    git diff                      # read each change before you commit it
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Final

VARIABLE: Final = "RAPPOR_SNAPSHOTS"
"""Environment variable. With its value `write`, `check_snapshot` writes the files."""


def check_snapshot(path: Path, text: str) -> None:
    """Assert that a text equals the content of a file; fail with the lines that differ.

    Line breaks are compared as they are. A missing file is a failure, so a new snapshot is written
    on purpose.
    """
    if os.environ.get(VARIABLE) == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
        return
    assert path.exists(), f"{path} must exist: write it with {VARIABLE}=write, and read it"
    expected = path.read_bytes().decode("utf-8")
    changes = difflib.unified_diff(
        expected.splitlines(), text.splitlines(), str(path), "printed", lineterm="", n=1
    )
    difference = "\n".join(changes) or "only line breaks differ"
    assert text == expected, f"the text is not that of the snapshot:\n{difference}"
