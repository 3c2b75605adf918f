"""Node as tests of the client in JavaScript start it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from typing import Any

from places import ROOT
from tools import need

CLIENT = ROOT / "client" / "javascript"
TESTS = ROOT / "tests" / "client" / "javascript"


def run_node(*words: str, text: str | None = None) -> str:
    """Run a program to its end and return what it prints; AssertionError with the rest if it fails.

    The program is a path, or what Node's own options name.
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
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    return ended.stdout


def answers(program: str, questions: Iterable[Any]) -> Iterator[Any]:
    """Ask a program of the tests questions, one a line of JSON, and yield its answers."""
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    return map(json.loads, run_node(program, text=lines).rstrip("\n").split("\n"))
