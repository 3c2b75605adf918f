"""The page about pictures: its example draws one."""

from __future__ import annotations

import doctest
import os
import re
from pathlib import Path

from places import ROOT

FOLDER = ROOT / "rappor" / "reporting"
DOCUMENT = (FOLDER / "README.md").read_text(encoding="utf-8")


def test_the_example_draws_a_chart(tmp_path: Path) -> None:
    """It runs as it stands, but for the folder that it writes into."""
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    path = os.fspath(tmp_path / "error.svg")
    runs = example.replace('"error.svg"', repr(path))
    test = doctest.DocTestParser().get_doctest(runs, {}, "reporting", None, None)
    assert doctest.DocTestRunner().run(test).failed == 0
    assert Path(path).read_text(encoding="utf-8").startswith("<svg")
