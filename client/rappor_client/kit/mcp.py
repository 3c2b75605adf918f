"""Telemetry for a server of FastMCP: which of its tools are called, and nothing of the calls.

    from rappor_client.kit.host import Host
    from rappor_client.kit.mcp import Telemetry

    server.add_middleware(Telemetry(Host("myserver", registry=..., collector=..., what="tools")))

The operator of the server agrees, by the program's own command line. Nobody is asked, and nothing
is written to standard output, over which a server may speak. It needs the extra `mcp`.
"""

from __future__ import annotations

import contextlib
from typing import Any

from fastmcp import FastMCP
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext

from rappor_client.kit.host import Host


class Telemetry(Middleware):
    """Records the name of each tool that is called and that the server has; no argument is read."""

    def __init__(self, host: Host) -> None:
        """Keep the host."""
        self._host = host

    async def on_call_tool(
        self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]
    ) -> Any:
        """Record the tool, and go on."""
        with contextlib.suppress(Exception):  # nothing of telemetry may stop its host
            if context.fastmcp_context is not None and self._host.listens():
                name = context.message.name
                if name in await tool_names(context.fastmcp_context.fastmcp):
                    self._host.record([name])
        return await call_next(context)


async def tool_names(server: FastMCP[Any]) -> list[str]:
    """Return the names of a server's tools, for `telemetry init`."""
    tools = await server.list_tools(run_middleware=False)
    return list(dict.fromkeys(tool.name for tool in tools))
