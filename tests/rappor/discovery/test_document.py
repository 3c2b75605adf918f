"""The README of discovery: its example runs."""

from __future__ import annotations

import re

from places import ROOT

DOCUMENT = (ROOT / "rappor" / "discovery" / "README.md").read_text(encoding="utf-8")


def test_the_example_runs() -> None:
    """With its assertion."""
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    assert "assert" in example
    exec(example, {})  # noqa: S102  # our own document
