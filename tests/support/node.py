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

_SHOWN: Final = 4000
"""Characters of each output that the message of a failure contains."""


def run_node(*words: str, text: str | None = None) -> str:
    """Run a program of Node to its end, and return its standard output.

    The program is a path, or the value of an option of Node. If the program fails, the message of
    the AssertionError contains the failed tests and the ends of both outputs.
    """
    ended = subprocess.run(
        [str(need("node")), *words],
        input=text,
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=TESTS,
        check=False,
    )
    assert ended.returncode == 0, summarize_failure(ended.stdout, ended.stderr)
    return ended.stdout


def summarize_failure(stdout: str, stderr: str) -> str:
    """Return the names of the tests that failed, and the end of both outputs.

    Node prints the result of every test in TAP, and a failure at its place among them. In the
    output of a long file, the end alone does not contain the failure.
    """
    failed = [line.strip() for line in stdout.splitlines() if line.strip().startswith("not ok ")]
    return "\n".join([*failed, stdout[-_SHOWN:], stderr[-_SHOWN:]])


def answers(program: str, questions: Iterable[Any]) -> Iterator[Any]:
    """Send questions to a program of the tests, one line of JSON each, and yield its answers."""
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    return map(json.loads, run_node(program, text=lines).rstrip("\n").split("\n"))
