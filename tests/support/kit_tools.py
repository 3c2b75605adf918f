"""Small command-line tools and a server with the kit, started in processes of their own.

The kit is the part of the client for host programs: the question for consent, commands and
recording.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from rappor_client.kit.host import Host

HostT = TypeVar("HostT", bound=Host)

CLICK: Final = """
import click
from rappor_client.kit.click import telemetry

@click.group()
@click.option("--verbose", is_flag=True)
@click.version_option("1")
def cli(verbose):
    pass

@cli.command()
@click.option("--release/--debug", default=False)
@click.option("--target")
def build(release, target):
    click.echo("built")

@cli.command()
@click.argument("path")
def check(path):
    click.echo("checked")

@cli.command()
def fail():
    raise SystemExit(3)

@cli.group()
def db():
    pass

@db.command()
@click.option("-f", "--force", is_flag=True)
def wipe(force):
    click.echo("wiped")

"""

TYPER: Final = """
import typer
from rappor_client.kit.click import telemetry

cli = typer.Typer()
db = typer.Typer()
cli.add_typer(db, name="db")

@cli.callback()
def root(verbose: bool = False):
    pass

@cli.command()
def build(release: bool = typer.Option(False, "--release/--debug"), target: str = ""):
    print("built")

@cli.command()
def check(path: str):
    print("checked")

@cli.command()
def fail():
    raise typer.Exit(3)

@db.command()
def wipe(force: bool = typer.Option(False, "--force", "-f")):
    print("wiped")

"""

MCP: Final = """
import asyncio, os, sys
import fastmcp
from rappor_client.kit.host import Host
from rappor_client.kit.mcp import Telemetry, tool_names

server = fastmcp.FastMCP("mytool")
server.tool(lambda: print("built"), name="build")
server.tool(lambda: print("checked"), name="check")
registry = os.path.join(os.path.dirname(__file__), "metrics.toml")
host = Host("mytool", registry=registry, collector=COLLECTOR, what="tools", containers=())
server.add_middleware(Telemetry(host))

async def call():
    async with fastmcp.Client(server) as client:
        await client.call_tool(sys.argv[1], {})

if sys.argv[1] == "telemetry":
    from rappor_client.kit.commands import manage
    sys.exit(manage(host, sys.argv[2:], asyncio.run(tool_names(server))))
asyncio.run(call())
"""
"""Source of an MCP server that calls one of its own tools, and ends. It records the call itself, so
`Tool` does not append a call to this source."""

_CALL: Final = """
telemetry(cli, registry="metrics.toml", collector=COLLECTOR, containers=())
if __name__ == "__main__":
    cli()
"""

_TERMINAL: Final = (
    "import os, sys; os.setsid(); os.open(os.ttyname(0), os.O_RDWR); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Program that makes the terminal of its standard input its controlling terminal, as a shell does,
and then runs the command of its arguments."""

QUESTION: Final = "[y/N]"
"""End of the consent question. A test types its response when this text appears."""
CTRL_C: Final = b"\x03"
"""Byte that the key Ctrl-C types. The terminal turns it into a signal."""

_MACHINES: Final = ("CI", "DO_NOT_TRACK", "PYTEST_CURRENT_TEST", "BUILD_NUMBER", "JENKINS_URL")


class Tool:
    """Tool, its registry, and the home folder of one person."""

    def __init__(self, folder: Path, *, source: str = CLICK, collector: str = "") -> None:
        """Write the program and its registry. The person has not answered the question yet."""
        self.program = folder / "mytool.py"
        self.registry = folder / "metrics.toml"
        self.data = folder / "data"
        self.folder = self.data / "mytool" / "telemetry"
        address = collector or "http://127.0.0.1:9"
        program = source if source == MCP else source + _CALL
        self.program.write_text(program.replace("COLLECTOR", repr(address)), encoding="utf-8")
        self.run("telemetry", "init", "--owner", "a@example.org")

    @property
    def answer(self) -> Path:
        """Path of the file with the person's answer."""
        return self.folder / "answer"

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        """Return the environment variables of a person, without the variables of test machines."""
        own = {name: text for name, text in os.environ.items() if name not in _MACHINES}
        return own | {"XDG_DATA_HOME": str(self.data), "PYTHONDONTWRITEBYTECODE": "1"} | more

    def run(
        self, *words: str, code: int = 0, before: str = "", env: dict[str, str] | None = None
    ) -> str:
        """Run the tool without a terminal; return its output on both streams.

        `before` is Python code that runs in the process before the tool.
        """
        start = (
            f"{before}\nimport runpy, sys; sys.argv[0] = {str(self.program)!r}\n"
            "runpy.run_path(sys.argv[0], run_name='__main__')"
        )
        ended = subprocess.run(
            [sys.executable, "-c", start, *words] if before else self.command(*words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment(env or {}),
            text=True,
            check=False,
            timeout=120,
        )
        assert ended.returncode == code, ended.stdout
        return ended.stdout

    def host(self, kind: type[HostT], **more: Any) -> HostT:
        """Return a host of the tool's folder that also works inside a test."""
        given = {"registry": self.registry, "collector": None, "folder": self.folder} | more
        host = kind("mytool", **given)
        host.find_obstacle = lambda: ""  # type: ignore[method-assign]
        return host

    def command(self, *words: str) -> list[str]:
        """Return the command line of a run."""
        return [sys.executable, str(self.program), *words]

    def on_terminal(
        self,
        *words: str,
        types: bytes = b"",
        env: dict[str, str] | None = None,
        around: Sequence[str] = (),
    ) -> str:
        """Run the tool on a terminal of its own, and type an answer after the question appears.

        `around` is a command whose arguments are the command of the tool.
        """
        ours, theirs = os.openpty()
        with subprocess.Popen(
            [sys.executable, "-c", _TERMINAL, *around, *self.command(*words)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=self.environment(env or {}),
        ) as process:
            os.close(theirs)
            shown, whole = "", codecs.getincrementaldecoder("utf-8")()  # a read may cut a letter
            is_typed = False
            with contextlib.suppress(OSError):  # the terminal is gone with its last program
                while True:
                    # Python looks for signals before a read, not between that look and the read.
                    # A Ctrl-C in between does not end the read, so a person presses it again.
                    if is_typed and types == CTRL_C and not select.select([ours], [], [], 5.0)[0]:
                        os.write(ours, types)
                        continue
                    if not (read := os.read(ours, 1000)):
                        break
                    shown += whole.decode(read)
                    if types and not is_typed and QUESTION in shown:
                        os.write(ours, types)
                        is_typed = True
            os.close(ours)
            assert process.wait() == 0, shown
        return shown.replace("\r\n", "\n")
