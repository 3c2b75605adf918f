"""Without consent nothing is written and nothing sent; an audit hook of the interpreter watches."""

from __future__ import annotations

import time

import pytest
from kit_tools import CLICK, MCP, TYPER, Tool

WATCH = """
import atexit, os, sys
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
sys.addaudithook(watch)
atexit.register(lambda: print("seen", seen))
"""

STARTS = {
    CLICK: (("build", "--release"), ("check", "a file"), ("db", "wipe"), ("telemetry", "status")),
    MCP: (("build",), ("check",), ("telemetry", "status")),
}
ANSWERS = (
    "",
    "no 20000",
    "asked 20000",
    "asked 20000 20001",
    "yes",
    "nonsense",
    "yes 20000 command",
)
"""The last one is a yes, which the environment overrules."""


TOOLS = pytest.mark.parametrize(
    "tool", [CLICK, TYPER, MCP], ids=["click", "typer", "mcp"], indirect=True
)


def starts(tool: Tool, n: int) -> None:
    """Start a tool n times, under every answer that is no consent."""
    words = STARTS[MCP if "fastmcp" in tool.program.read_text() else CLICK]
    for i in range(n):  # 7 answers with 4 or 3 commands: each pair comes, if there is time
        answer, start = ANSWERS[i % len(ANSWERS)], words[i % len(words)]
        if answer:
            tool.folder.mkdir(parents=True, exist_ok=True)
            tool.answer.write_text(answer)
        more = {"DO_NOT_TRACK": "1"} if answer == ANSWERS[-1] else {}
        assert tool.run(*start, before=WATCH, env=more).splitlines()[-1] == "seen []"
        kept = [path.read_text() for path in tool.data.rglob("*") if path.is_file()]
        assert kept == ([answer] if answer else [])
        if answer:
            tool.answer.unlink()


@TOOLS
def test_nothing_is_written_or_sent_without_consent(tool: Tool) -> None:
    """Under each answer that is no consent, with different commands."""
    starts(tool, 7 if "fastmcp" in tool.program.read_text() else 20)


@pytest.mark.acceptance
@pytest.mark.timeout(7200)
@TOOLS
def test_nothing_is_written_or_sent_in_a_thousand_starts(tool: Tool) -> None:
    """The same, a thousand times."""
    starts(tool, 1000)


@TOOLS
def test_the_hook_sees_what_a_device_does(tool: Tool) -> None:
    """With consent the same watcher sees its process start."""
    today = int(time.time()) // 86400
    tool.folder.mkdir(parents=True)
    tool.answer.write_text(f"yes {today} command command.other\n")
    assert "subprocess.Popen" in tool.run("build", before=WATCH)


@pytest.mark.parametrize("tool", [CLICK, TYPER], ids=["click", "typer"], indirect=True)
def test_a_run_that_is_off_imports_the_hook_alone(tool: Tool) -> None:
    """Two doors, the errors, and four modules of the kit that ask whether telemetry is on."""
    loaded = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sorted(m for m in sys.modules if m.startswith('rappor'))))"
    )
    tool.folder.mkdir(parents=True)
    tool.answer.write_text("no 20000")
    assert tool.run("build", before=loaded).splitlines()[-1].split() == [
        "rappor",
        "rappor.ground",
        "rappor.ground.errors",
        "rappor.ground.lazy_exports",
        "rappor_client",
        "rappor_client.kit",
        "rappor_client.kit.answer",
        "rappor_client.kit.click",
        "rappor_client.kit.host",
        "rappor_client.switches",
    ]
