"""Without consent a program writes nothing and sends nothing.

Python calls an audit hook (`sys.addaudithook`) for every operation that could write, connect or
start a process. The tests store these events.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from kit_tools import CLICK, MCP, TYPER, Tool
from rappor_client.kit.consent_file import Consent, read_consent, write_consent

AUDIT_HOOK = """
import os
events = []
def store_event(event, arguments):
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
    if event == "open" and arguments[2] & writes:
        events.append((event, arguments[0]))
    elif event in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo",
                   "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"):
        events.append((event,))
    elif event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink",
                   "os.truncate", "os.chmod", "os.utime", "sqlite3.connect"):
        events.append((event, arguments[0]))
"""
"""Source of an audit hook that stores writes, connections and started processes in `events`."""
STARTER = (
    AUDIT_HOOK
    + """
import atexit, contextlib, importlib, json, runpy, sys

modules, program, consent_path, cases, n = json.loads(sys.argv[1])
for module in modules:
    importlib.import_module(module)
for i in range(n):
    consent, words = cases[i % len(cases)]
    if consent:
        os.makedirs(os.path.dirname(consent_path), exist_ok=True)
        with open(consent_path, "w") as file:
            file.write(consent)
    if (child := os.fork()) == 0:
        if consent.startswith("yes 2"):
            os.environ["DO_NOT_TRACK"] = "1"
        assert not any(name.startswith("rappor") for name in sys.modules)
        sys.addaudithook(store_event)
        sys.argv = [program, *words]
        with contextlib.suppress(SystemExit):
            runpy.run_path(program, run_name="__main__")
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(bool(events))
    assert os.waitpid(child, 0)[1] == 0, (consent, words)
    paths = [os.path.join(folder, name) for folder, _, names in os.walk("data") for name in names]
    assert len(paths) == bool(consent)
    if consent:
        with open(consent_path) as file:
            assert file.read() == consent
        os.unlink(consent_path)
"""
)
"""Source of a program that starts another program n times in forks of one process.

The process has imported the library of the program, such as click, so a start takes milliseconds.
Each fork imports the kit itself, and ends with code 1 if the hook has stored an event.
"""

COMMANDS = {
    CLICK: (("build", "--release"), ("check", "a file"), ("db", "wipe"), ("telemetry", "status")),
    MCP: (("build",), ("check",), ("telemetry", "status")),
}
"""The programs of click and typer have the first commands, and the MCP server has the others."""
LIBRARIES = (
    ("fastmcp", "fastmcp.client", "fastmcp.server.server"),
    ("typer", "pydantic.type_adapter", "pydantic.json_schema"),
    ("click",),
)
"""A program of a library imports these modules, beside the kit. typer imports pydantic when a
program has its first command."""
NO_CONSENTS = (
    "",
    "no 20000",
    "asked 20000",
    "asked 20000 20001",
    "yes",
    "nonsense",
    "yes 20000 command",
)
"""Contents of the consent file with which telemetry is off. Days are counted from 1970. The last
content is a valid yes, and its start has DO_NOT_TRACK in the environment."""


WITH_ALL_TOOLS = pytest.mark.parametrize(
    "tool", [CLICK, TYPER, MCP], ids=["click", "typer", "mcp"], indirect=True
)


def start_in_rounds(tool: Tool, n_rounds: int, *, all_pairs: bool) -> tuple[str, int]:
    """Start a tool with its commands under each of `NO_CONSENTS`, in some rounds.

    With `all_pairs`, a round has each command under each content. Otherwise it has two commands
    under each content: `telemetry status`, which is the kit's own command, and one of the others,
    which take turns.

    Returns the output, and the number of starts of the command `build`.
    """
    source = tool.program.read_text()
    modules = next(modules for modules in LIBRARIES if f"import {modules[0]}\n" in source)
    *commands, status = COMMANDS[MCP if modules[0] == "fastmcp" else CLICK]
    cases = [
        (consent, command)
        for i, consent in enumerate(NO_CONSENTS)
        for command in (*(commands if all_pairs else [commands[i % len(commands)]]), status)
    ]
    n_starts = n_rounds * len(cases)
    arguments = [modules, str(tool.program), str(tool.consent_path), cases, n_starts]
    output = subprocess.run(
        [sys.executable, "-c", STARTER, json.dumps(arguments)],
        cwd=tool.program.parent,
        env=tool.build_environment({}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    return output, n_rounds * sum(words[0] == "build" for _, words in cases)


@WITH_ALL_TOOLS
@pytest.mark.parametrize(
    ("n_rounds", "all_pairs"),
    [
        pytest.param(1, False, marks=pytest.mark.slow),
        pytest.param(40, True, marks=[pytest.mark.acceptance, pytest.mark.timeout(7200)]),
    ],
)
def test_nothing_is_written_or_sent_without_consent(
    tool: Tool, n_rounds: int, all_pairs: bool
) -> None:
    """No start writes, connects or starts a process, and every command does its work."""
    output, n_builds = start_in_rounds(tool, n_rounds, all_pairs=all_pairs)
    assert n_builds > 0
    assert output.count("built") == n_builds


@pytest.mark.slow
@WITH_ALL_TOOLS
def test_the_hook_stores_the_start_of_a_process(tool: Tool) -> None:
    """With consent the same hook stores the start of the recording process.

    Otherwise the test above would pass without storing anything.
    """
    today = int(time.time()) // 86400
    tool.folder.mkdir(parents=True)
    tool.consent_path.write_text(f"yes {today} command\n")
    print_events = (
        "import atexit, sys; sys.addaudithook(store_event); atexit.register(lambda: print(events))"
    )
    assert "subprocess.Popen" in tool.run("build", before=AUDIT_HOOK + print_events)


@pytest.mark.slow
@pytest.mark.parametrize("tool", [CLICK, TYPER], ids=["click", "typer"], indirect=True)
def test_a_run_without_consent_imports_ten_modules(tool: Tool) -> None:
    """A run without consent imports ten modules, which find out that telemetry is off.

    An import of the device would slow every command.
    """
    print_modules = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sorted(m for m in sys.modules if m.startswith('rappor'))))"
    )
    tool.folder.mkdir(parents=True)
    tool.consent_path.write_text("no 20000")
    assert tool.run("build", before=print_modules).splitlines()[-1].split() == [
        *("rappor", "rappor.base", "rappor.base.errors", "rappor.base.lazy_exports"),
        *("rappor_client", "rappor_client.kit", "rappor_client.kit.click"),
        *("rappor_client.kit.consent_file", "rappor_client.kit.host", "rappor_client.switches"),
    ]


YES, NO = Consent("yes", (20000,), ("command",)), Consent("no", (20001,))


def test_threads_that_write_a_consent_leave_a_whole_line(tmp_path: Path) -> None:
    """The file contains the response of one of the threads at every time.

    Bad case: the threads of a process shared a draft, and the file contained parts of two lines.
    """

    def write(consent: Consent) -> None:
        for _ in range(20):
            write_consent(str(tmp_path), consent)

    write_consent(str(tmp_path), NO)
    threads = [threading.Thread(target=write, args=(consent,)) for consent in (YES, NO)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert read_consent(str(tmp_path)) in (YES, NO)
    assert read_consent(str(tmp_path)) in (YES, NO)


@pytest.mark.slow
def test_the_last_response_is_stored_after_a_disk_has_hung(tmp_path: Path) -> None:
    """A yes and then a no wait for a disk that hangs. When the disk answers, the no is stored.

    A write to a FIFO hangs until somebody reads the FIFO.
    """
    draft, path = tmp_path / f"answer.{os.getpid()}", tmp_path / "answer"
    os.mkfifo(draft)
    for consent in (YES, NO):
        with pytest.raises(TimeoutError):
            write_consent(str(tmp_path), consent)
    assert draft.read_text() == "yes 20000 command\n"
    end = time.monotonic() + 60.0
    while not path.is_file():  # the FIFO has replaced the file, or not yet
        assert time.monotonic() < end, "the no was not stored"
        time.sleep(0.01)
    assert read_consent(str(tmp_path)) == NO
