"""Node, the runtime of JavaScript, for tests of the JavaScript client."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from typing import Any, Final

from places import ROOT
from tools import need

CLIENT = ROOT / "client" / "javascript"
TESTS = ROOT / "tests" / "client" / "javascript"

_MESSAGE_CHARACTERS: Final = 4000
"""Number of characters of each output, and of the errors of the failed tests, that the message of a
failure contains. With more, the names of the failed tests are harder to find."""


def run_node(*words: str, text: str | None = None) -> str:
    """Run a program of Node to its end, and return its standard output.

    The program is a path, or the value of an option of Node. If the program fails, the message of
    the AssertionError contains the failed tests and the ends of both outputs.
    """
    process = subprocess.run(
        [str(need("node")), *words],
        input=text,
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=TESTS,
        check=False,
    )
    assert process.returncode == 0, summarize_failure(process.stdout, process.stderr)
    return process.stdout


def summarize_failure(stdout: str, stderr: str) -> str:
    """Return the names and errors of the tests that failed, and the end of both outputs.

    The output of Node's runner (TAP) has a line for each test, and a block in YAML that follows the
    line. The block of a failed test contains its error. A test that failed may be far from the end
    of a long output.
    """
    names, errors = [], []
    is_in_failure = False
    for line in stdout.splitlines():
        if line.lstrip().startswith("not ok "):
            names.append(line.strip())
            is_in_failure = True
        if is_in_failure:
            errors.append(line)
        if line.strip() == "...":  # the end of the block
            is_in_failure = False
    parts = ("\n".join(errors)[:_MESSAGE_CHARACTERS], stdout[-_MESSAGE_CHARACTERS:])
    return "\n".join([*names, *parts, stderr[-_MESSAGE_CHARACTERS:]])


def query_program(program: str, queries: Iterable[Any]) -> Iterator[Any]:
    """Send queries to a program of the tests, one line of JSON each, and yield its results."""
    lines = "".join(json.dumps(query) + "\n" for query in queries)
    return map(json.loads, run_node(program, text=lines).rstrip("\n").split("\n"))
