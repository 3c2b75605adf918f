"""Standard output in other encodings, closed, without a reader, and on a full disk."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REGISTRY = """[budget]
total = 16

[metrics.search_engine]
description = "Where a typed 日本 query goes, naïvely"
owner = "search-team@example.org"
expires = 2099-12-31
encoding = "bloom"
profile = "balanced"
epoch = "quarter"
"""
COMMANDS = {
    "text": ("rappor", "collects", "--registry", "metrics.toml"),
    "json": ("rappor", "collects", "--registry", "metrics.toml", "--json"),
    "table": ("rappor", "privacy", "--registry", "metrics.toml", "search_engine"),
    "help": ("rappor", "--help"),
    "client": ("rappor_client", "preview", "metrics.toml", "search_engine", "x"),
    "server": ("rappor_server", "check", "metrics.toml"),
}
"""Commands of all three programs; each succeeds."""


def run_program(command: str, folder: Path, **settings: Any) -> subprocess.CompletedProcess[Any]:
    """Run a command as its script does."""
    (folder / "metrics.toml").write_text(REGISTRY, encoding="utf-8")
    package, *words = COMMANDS[command]
    program = f"import sys; from {package}.cli import main; sys.exit(main())"
    env = os.environ | settings.pop("env", {})
    start = settings.pop("before", ())
    return subprocess.run(
        [*start, sys.executable, "-c", program, *words],
        cwd=folder, env=env, check=False, **{"stderr": subprocess.PIPE} | settings,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_encoding_takes_the_text(command: str, tmp_path: Path) -> None:
    """Characters that the encoding lacks are escaped, and all other text is unchanged."""
    expected = run_program(
        command, tmp_path, stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "utf-8"}
    )
    assert expected.returncode == 0
    # All commands write to the same stream. A table has lines that cp437 contains.
    more = {"text": ("cp437", "cp1252", "shift_jis", "ascii"), "table": ("cp437",)}
    for encoding in ("latin-1", *more.get(command, ())):
        ran = run_program(
            command, tmp_path, stdout=subprocess.PIPE, env={"PYTHONIOENCODING": encoding}
        )
        assert (ran.returncode, ran.stderr) == (0, b""), encoding
        as_it_was = expected.stdout.decode()
        written = ran.stdout.decode("utf-8" if b"\xe6\x97\xa5" in ran.stdout else encoding)
        assert len(written.splitlines()) == len(as_it_was.splitlines())


def close_both(ends: list[int]) -> dict[str, Any]:
    """Return a standard output whose reader has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    ends.append(writer)
    return {"stdout": writer}


def close_at_start(_: list[int]) -> dict[str, Any]:
    """Return a shell that closes standard output before the program starts."""
    return {"before": ["sh", "-c", 'exec "$0" "$@" >&-']}


def simulate_full_disk(ends: list[int]) -> dict[str, Any]:
    """Return a standard output on a full disk."""
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    ends.append(os.open("/dev/full", os.O_WRONLY))
    return {"stdout": ends[-1]}


OUTPUTS: dict[str, tuple[Callable[[list[int]], dict[str, Any]], int, bytes]] = {
    "closed": (close_at_start, 0, b""),
    "without a reader": (close_both, 141, b""),
    "on a full disk": (simulate_full_disk, 2, b"No space left on device\n"),
}
"""Standard outputs that cannot be written, with the expected exit code and the end of the error."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "output"),
    # All programs handle failures by one function, so one output shows that the server calls it.
    [
        *itertools.product([name for name in COMMANDS if name != "server"], OUTPUTS),
        ("server", "on a full disk"),
    ],
)
def test_output_that_cannot_be_written_has_its_exit_code(
    command: str, output: str, tmp_path: Path
) -> None:
    """No traceback appears, and the exit code is never 1, which means "no"."""
    make, code, message = OUTPUTS[output]
    ends: list[int] = []
    ran = run_program(command, tmp_path, **make(ends))
    for end in ends:
        os.close(end)
    assert ran.returncode == code
    assert ran.stderr.endswith(message)
    assert ran.stderr.count(b"\n") == (code == 2)
