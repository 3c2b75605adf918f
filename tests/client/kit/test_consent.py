"""Without consent a program writes nothing and sends nothing.

An audit hook of the interpreter sees every system call that could write, connect or start a
process.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time

import pytest
from kit_tools import CLICK, MCP, TYPER, Tool

WATCH = """
import os
seen = []
def watch(event, given):
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
    if event == "open" and given[2] & writes:
        seen.append((event, given[0]))
    elif event in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo",
                   "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"):
        seen.append((event,))
    elif event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink",
                   "os.truncate", "os.chmod", "os.utime", "sqlite3.connect"):
        seen.append((event, given[0]))
"""
START = (
    WATCH
    + """
import atexit, contextlib, importlib, json, runpy, sys

libraries, program, answer, cases, n = json.loads(sys.argv[1])
for library in libraries:  # each start has them, and imports all that is ours
    importlib.import_module(library)
for i in range(n):
    said, words = cases[i % len(cases)]
    if said:
        os.makedirs(os.path.dirname(answer), exist_ok=True)
        with open(answer, "w") as file:
            file.write(said)
    if (child := os.fork()) == 0:
        if said.startswith("yes 2"):
            os.environ["DO_NOT_TRACK"] = "1"
        assert not any(name.startswith("rappor") for name in sys.modules)
        sys.addaudithook(watch)
        sys.argv = [program, *words]
        with contextlib.suppress(SystemExit):
            runpy.run_path(program, run_name="__main__")
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(bool(seen))
    assert os.waitpid(child, 0)[1] == 0, (said, words)
    kept = [os.path.join(where, name) for where, _, names in os.walk("data") for name in names]
    assert len(kept) == bool(said)
    if said:
        with open(answer) as file:
            assert file.read() == said
        os.unlink(answer)
"""
)
"""Starts a program n times in children of one process.

The process has imported the library of the program, such as click, so a start takes milliseconds.
Each
child imports the kit itself, and ends with code 1 if the hook has seen a call.
"""

STARTS = {
    CLICK: (("build", "--release"), ("check", "a file"), ("db", "wipe"), ("telemetry", "status")),
    MCP: (("build",), ("check",), ("telemetry", "status")),
}
LIBRARIES = (("fastmcp", "fastmcp.client", "fastmcp.server.server"), ("typer",), ("click",))
ANSWERS = (
    "",
    "no 20000",
    "asked 20000",
    "asked 20000 20001",
    "yes",
    "nonsense",
    "yes 20000 command",
)
"""Contents of the file of the consent that are no consent. The last one is a yes, and its start has
DO_NOT_TRACK in the environment."""


TOOLS = pytest.mark.parametrize(
    "tool", [CLICK, TYPER, MCP], ids=["click", "typer", "mcp"], indirect=True
)


def starts(tool: Tool, n: int) -> str:
    """Start a tool n times, with each command under each of `ANSWERS`; return its output."""
    libraries = next(
        each for each in LIBRARIES if f"import {each[0]}\n" in tool.program.read_text()
    )
    cases = [*itertools.product(ANSWERS, STARTS[MCP if len(libraries) > 1 else CLICK])]
    given = [libraries, str(tool.program), str(tool.answer), cases, n]
    return subprocess.run(
        [sys.executable, "-c", START, json.dumps(given)],
        cwd=tool.program.parent,
        env=tool.environment({}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


@TOOLS
@pytest.mark.parametrize(
    "n",
    [
        pytest.param(28, marks=pytest.mark.slow),
        pytest.param(1000, marks=[pytest.mark.acceptance, pytest.mark.timeout(7200)]),
    ],
)
def test_nothing_is_written_or_sent_without_consent(tool: Tool, n: int) -> None:
    """No start writes, connects or starts a process, and every command does its work."""
    assert starts(tool, n).count("built") >= n // 4


@pytest.mark.slow
@TOOLS
def test_the_hook_sees_what_a_device_does(tool: Tool) -> None:
    """With consent the same hook sees the start of the recording process."""
    today = int(time.time()) // 86400
    tool.folder.mkdir(parents=True)
    tool.answer.write_text(f"yes {today} command\n")
    at_exit = "import atexit, sys; sys.addaudithook(watch); atexit.register(lambda: print(seen))"
    assert "subprocess.Popen" in tool.run("build", before=WATCH + at_exit)


@pytest.mark.slow
@pytest.mark.parametrize("tool", [CLICK, TYPER], ids=["click", "typer"], indirect=True)
def test_a_run_without_consent_imports_ten_modules(tool: Tool) -> None:
    """They find out whether telemetry is on. The device would slow every command."""
    loaded = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sorted(m for m in sys.modules if m.startswith('rappor'))))"
    )
    tool.folder.mkdir(parents=True)
    tool.answer.write_text("no 20000")
    assert tool.run("build", before=loaded).splitlines()[-1].split() == [
        *("rappor", "rappor.base", "rappor.base.errors", "rappor.base.lazy_exports"),
        *("rappor_client", "rappor_client.kit", "rappor_client.kit.click"),
        *("rappor_client.kit.consent_file", "rappor_client.kit.host", "rappor_client.switches"),
    ]
