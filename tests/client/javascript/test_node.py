"""The client in JavaScript, as Node's own runner tests it, and its types."""

from __future__ import annotations

import subprocess

import pytest
from node import TESTS, run_node
from tools import need


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(TESTS.glob("*.test.mjs")), ids=lambda path: path.name)
def test_what_node_tests(path: object) -> None:
    """Every test of the file passes, and there are some."""
    told = run_node("--test", "--test-reporter=tap", str(path))
    (n_passed,) = (int(line.split()[2]) for line in told.splitlines() if line[:7] == "# pass ")
    assert n_passed > 0


@pytest.mark.slow
def test_types_hold() -> None:
    """The sources and their declarations under `strict`, and a program that uses both."""
    ended = subprocess.run(
        [str(need("tsc")), "--project", str(TESTS)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout
