"""Tests that run in Node: all files `*.test.mjs`."""

from __future__ import annotations

import pytest
from node import TESTS, run_node, summarize_failure


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(TESTS.glob("*.test.mjs")), ids=lambda path: path.name)
def test_file_of_node_passes(path: object) -> None:
    """Every test of the file passes, and the file has tests."""
    output = run_node("--test", "--test-reporter=tap", str(path))
    lines = output.splitlines()
    (n_passed,) = (int(line.split()[2]) for line in lines if line.startswith("# pass "))
    assert n_passed > 0


def test_summary_of_a_failure_begins_with_the_failed_tests() -> None:
    """The names of failed tests and their errors come first, however long the output is."""
    failure = "    not ok 2 - breaks\n      ---\n      error: '2 !== 3'\n      ...\n"
    output = "ok 1 - works\n" + failure + "    ok 3 - works\n" + "#\n" * 9000
    assert summarize_failure(output, "").startswith(f"not ok 2 - breaks\n{failure}#\n")
