"""Tests that run in Node: all files `*.test.mjs`, and a check of the client's types."""

from __future__ import annotations

import subprocess

import pytest
from node import TESTS, run_node, summarize_failure
from tools import need


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(TESTS.glob("*.test.mjs")), ids=lambda path: path.name)
def test_file_of_node_passes(path: object) -> None:
    """Every test of the file passes, and the file has tests."""
    output = run_node("--test", "--test-reporter=tap", str(path))
    lines = output.splitlines()
    (n_passed,) = (int(line.split()[2]) for line in lines if line.startswith("# pass "))
    assert n_passed > 0


@pytest.mark.slow
def test_types_hold() -> None:
    """TypeScript checks sources, declarations and a program that uses them, under `strict`."""
    process = subprocess.run(
        [str(need("tsc")), "--project", str(TESTS)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout


def test_summary_of_a_failure_begins_with_the_failed_tests() -> None:
    """The names of failed tests and their errors come first, however long the output is."""
    failure = "    not ok 2 - breaks\n      ---\n      error: '2 !== 3'\n      ...\n"
    output = "ok 1 - works\n" + failure + "    ok 3 - works\n" + "#\n" * 9000
    assert summarize_failure(output, "").startswith(f"not ok 2 - breaks\n{failure}#\n")
