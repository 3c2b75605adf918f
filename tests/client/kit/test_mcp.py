"""Servers of FastMCP: the middleware records names of called tools, and no data of a call."""

from __future__ import annotations

import asyncio
import datetime
import os
import sys
from pathlib import Path

import fastmcp
import pytest
from fastmcp.client.transports import StdioTransport
from rappor_client.kit.commands import manage
from rappor_client.kit.host import Host
from rappor_client.kit.init_command import format_registry
from rappor_client.kit.mcp import Telemetry, tool_names
from rappor_client.testing import MemoryTransport, peek

from rappor import Registry

pytestmark = pytest.mark.slow  # only the extra `dev` installs FastMCP

SERVER = """
from pathlib import Path
from fastmcp import FastMCP
from rappor_client.kit.host import Host
from rappor_client.kit.mcp import Telemetry

server = FastMCP("myserver")

@server.tool
def add(a: int, b: int) -> int:
    return a + b

here = Path(__file__).parent
server.add_middleware(
    Telemetry(Host("myserver", registry=here / "metrics.toml", collector=None, folder=here / "own",
                   consents="MYSERVER_TELEMETRY"))
)
server.run(show_banner=False)
"""


class NameRecorder(Host):
    """A host that appends recorded names to a list, also in the environment of a test."""

    def __init__(self, folder: Path) -> None:
        """Create a host whose registry and device are in a folder."""
        super().__init__(
            "myserver",
            registry=folder / "metrics.toml",
            collector=MemoryTransport(),
            folder=folder / "own",
            what="tools",
        )
        self.names: list[str] = []

    def is_on(self) -> bool:
        """Return True."""
        return True

    def record_and_send(self, use: str) -> None:
        """Append a use to the list."""
        self.names.append(use)


@pytest.fixture
def host(tmp_path: Path) -> NameRecorder:
    """Return a host whose operator has agreed to a registry of two tools."""
    host = NameRecorder(tmp_path)
    end = datetime.date(2099, 12, 31)
    text = format_registry(
        host, ["add", "multiply"], owner="a@example.org", expires=end, devices=None
    )
    (tmp_path / "metrics.toml").write_text(text)
    host.agree()
    return host


def test_a_registry_names_the_tools(host: NameRecorder) -> None:
    """The description of the metric `command` explains that a command is a tool here."""
    metric = Registry.load(host.registry)["command"]
    assert (
        metric.description == "Which tools of myserver are used (a command is one of these tools)"
    )
    assert metric.params.categories == ("add", "multiply")
    assert "plugin" not in Path(host.registry).read_text()


def test_init_speaks_of_tools(host: NameRecorder, capsys: pytest.CaptureFixture[str]) -> None:
    """The messages and the help of `init` speak of tools, and not of plugins."""
    Path(host.registry).unlink()
    words = ["init", "--owner", "a@example.org", "--devices", "300"]
    assert manage(host, words, ["add", "multiply"]) == 0
    output = capsys.readouterr().out
    assert "has 2 names of tools." in output
    assert "Unlisted tools are not counted" in output
    assert "plugin" not in output
    with pytest.raises(SystemExit):
        manage(host, ["init", "--help"], ["add", "multiply"])
    assert "With many, unlisted tools are found, too." in " ".join(capsys.readouterr().out.split())


def test_names_of_the_servers_own_tools_are_recorded(host: NameRecorder) -> None:
    """A client may call any name. A name that the server does not list is not recorded."""
    server = fastmcp.FastMCP("myserver")
    server.tool(add)
    server.add_middleware(Telemetry(host))

    async def call() -> None:
        assert await tool_names(server) == ["add"]
        async with fastmcp.Client(server) as client:
            assert (await client.call_tool("add", {"a": 1, "b": 2})).data == 3
            await client.call_tool("secret", {}, raise_on_error=False)

    asyncio.run(call())
    assert host.names == ["add"]


@pytest.mark.parametrize("source_of_consent", ["file", "environment"])
def test_a_server_over_stdio_works_as_without_telemetry(
    host: NameRecorder, tmp_path: Path, source_of_consent: str
) -> None:
    """A server with telemetry serves calls over its standard output, and records them.

    Telemetry must not write to standard output, which carries the protocol.
    """
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    env = {name: text for name, text in os.environ.items() if name not in ("CI", "DO_NOT_TRACK")}
    env.pop("PYTEST_CURRENT_TEST", None)
    if source_of_consent == "environment":
        (tmp_path / "own" / "answer").unlink()
        env["MYSERVER_TELEMETRY"] = "yes"

    async def call() -> int:
        transport = StdioTransport(sys.executable, [str(program)], env=env)
        async with fastmcp.Client(transport) as client:
            results = [await client.call_tool("add", {"a": 1, "b": 2}) for _ in range(3)]
            while not peek(host.folder).has_secret:  # until the recording process has a device
                await asyncio.sleep(0.05)
        return sum(int(result.data) for result in results)

    assert asyncio.run(asyncio.wait_for(call(), 200)) == 9


def add(a: int, b: int) -> int:
    """Return a sum: the tool of the servers of this module."""
    return a + b
