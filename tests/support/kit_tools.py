"""Small command-line tools and a server with the kit, started in processes of their own.

The kit (`rappor_client.kit`) adds telemetry to a program: the consent question, the command
`telemetry`, and the recording of runs.
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
"""End of a source of click or typer: adds telemetry to the program and runs the program. COLLECTOR
stands for the address of the collector."""

_TERMINAL: Final = (
    "import os, signal, sys; os.setsid(); os.open(os.ttyname(0), os.O_RDWR); "
    "signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Source of a program that makes the terminal of its standard input its controlling terminal, and
then runs the command of its arguments, as a shell does. SIGINT is not ignored there, although the
tests ignore SIGINT if a shell runs them in the background. A tool that ignored Ctrl-C waited for a
response without end."""

QUESTION: Final = "[y/N]"
"""End of the consent question. A test types its response when this text appears."""
CTRL_C: Final = b"\x03"
"""Byte that the key Ctrl-C types. The terminal turns it into a signal."""

THEME = """
[metrics.theme]
description = "Light or dark appearance"
owner = "a@example.org"
expires = 2099-12-31
encoding = "onehot"
categories = ["light", "dark"]
profile = "strict"
epoch = "quarter"
"""
"""A metric that a maker adds to the registry of `telemetry init`. It costs 8 nats a year."""
_REGISTRIES: Final[dict[str, bytes]] = {}
"""Maps the source of a program to the registry that `telemetry init` writes for it. A process of
tests has one entry for each source."""
_MACHINE_VARIABLES: Final = (
    *("CI", "DO_NOT_TRACK", "PYTEST_CURRENT_TEST", "BUILD_NUMBER", "JENKINS_URL"),
)
"""Environment variables of test machines, in which telemetry is off."""


class Tool:
    """A program with the kit, its registry, and the data folder of one person.

    Attributes
    ----------
    program : path of the program
    registry : path of the registry
    data : path of the person's data folder, which contains the device's folder
    folder : path of the device's folder
    """

    def __init__(self, folder: Path, *, source: str = CLICK, collector: str = "") -> None:
        """Write the program and its registry. The person has not seen the question yet."""
        self.program = folder / "mytool.py"
        self.registry = folder / "metrics.toml"
        self.data = folder / "data"
        self.folder = self.data / "mytool" / "telemetry"
        address = collector or "http://127.0.0.1:9"  # no server listens on this port
        program = source if source == MCP else source + _CALL
        self.program.write_text(program.replace("COLLECTOR", repr(address)), encoding="utf-8")
        # A registry depends on the commands of the program alone. `telemetry init` takes half a
        # second, so it runs once for each source and not for each test.
        if source not in _REGISTRIES:
            self.run("telemetry", "init", "--owner", "a@example.org")
            _REGISTRIES[source] = self.registry.read_bytes()
        self.registry.write_bytes(_REGISTRIES[source])

    @property
    def consent_path(self) -> Path:
        """Path of the file with the person's response to the consent question."""
        return self.folder / "answer"

    def build_environment(self, more: dict[str, str]) -> dict[str, str]:
        """Return the environment variables of a person, without the variables of test machines."""
        variables = {
            name: text for name, text in os.environ.items() if name not in _MACHINE_VARIABLES
        }
        return variables | {"XDG_DATA_HOME": str(self.data), "PYTHONDONTWRITEBYTECODE": "1"} | more

    def run(
        self, *words: str, code: int = 0, before: str = "", env: dict[str, str] | None = None
    ) -> str:
        """Run the tool without a terminal; return its output on both streams.

        `code` is the expected exit code. `before` is Python code that runs in the process before
        the tool.
        """
        start = (
            f"{before}\nimport runpy, sys; sys.argv[0] = {str(self.program)!r}\n"
            "runpy.run_path(sys.argv[0], run_name='__main__')"
        )
        process = subprocess.run(
            [sys.executable, "-c", start, *words] if before else self.command(*words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.build_environment(env or {}),
            text=True,
            check=False,
            timeout=120,
        )
        assert process.returncode == code, process.stdout
        return process.stdout

    def host(self, kind: type[HostT], **settings: Any) -> HostT:
        """Return a host of this class on the tool's folder.

        The host also works inside a test, although the environment of a test disables telemetry.
        """
        defaults = {"registry": self.registry, "collector": None, "folder": self.folder}
        host = kind("mytool", **defaults | settings)
        host.find_obstacle = lambda: ""  # type: ignore[method-assign]
        return host

    def add_theme(self) -> None:
        """Add a metric of categories, of one report a day, to the registry."""
        text = self.registry.read_text(encoding="utf-8").replace("total = 48", "total = 56")
        self.registry.write_text(text + THEME, encoding="utf-8")

    def agree(self) -> None:
        """Store the consent of the person, as `telemetry on` does, without a process."""
        self.host(Host).agree()

    def command(self, *words: str) -> list[str]:
        """Return the command line of a run."""
        return [sys.executable, str(self.program), *words]

    def run_on_terminal(
        self,
        *words: str,
        response: bytes = b"",
        env: dict[str, str] | None = None,
        around: Sequence[str] = (),
    ) -> str:
        """Run the tool on a terminal of its own; return the output.

        `response` is typed when the consent question appears. `around` is a command whose arguments
        are the command of the tool.
        """
        person_end, tool_end = os.openpty()
        with subprocess.Popen(
            [sys.executable, "-c", _TERMINAL, *around, *self.command(*words)],
            stdin=tool_end,
            stdout=tool_end,
            stderr=tool_end,
            env=self.build_environment(env or {}),
        ) as process:
            os.close(tool_end)
            decoder = codecs.getincrementaldecoder("utf-8")()  # a read may cut a letter
            output = ""
            is_typed = False
            with contextlib.suppress(OSError):  # the terminal is gone with its last program
                while True:
                    # Python handles signals before a read. A Ctrl-C between the last check and the
                    # read does not end the read, so a person presses the key again.
                    if (
                        is_typed
                        and response == CTRL_C
                        and not select.select([person_end], [], [], 5.0)[0]
                    ):
                        os.write(person_end, response)
                        continue
                    if not (data := os.read(person_end, 1000)):
                        break
                    output += decoder.decode(data)
                    if response and not is_typed and QUESTION in output:
                        os.write(person_end, response)
                        is_typed = True
            os.close(person_end)
            assert process.wait() == 0, output
        return output.replace("\r\n", "\n")
