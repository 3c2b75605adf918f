"""The README of discovery: its examples run."""

from __future__ import annotations

import re

import pytest
from places import ROOT

DOCUMENT = (ROOT / "rappor" / "discovery" / "README.md").read_text(encoding="utf-8")


EXAMPLES = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_run(example: str) -> None:
    """With their assertions."""
    assert "assert" in example
    exec(example, {})  # noqa: S102  # our own document
