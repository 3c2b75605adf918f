"""Telemetry for a server of FastMCP: names of its called tools, and no data of the calls.

    from rappor_client.kit.host import Host
    from rappor_client.kit.mcp import Telemetry

    server.add_middleware(Telemetry(Host("myserver", registry=..., collector=..., what="tools")))

`what` is the noun for the recorded names, in sentences for people. The operator of the server gives
consent with the command `telemetry` of the server's program (`rappor_client.kit.commands`). This
module asks no consent question and writes nothing to the standard output, because a server may send
its protocol there. The module needs the extra `mcp`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from fastmcp import FastMCP
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext

from rappor_client.kit.host import Host


class Telemetry(Middleware):
    """Middleware that records the name of each called tool. It reads no argument of a call.

    Parameters
    ----------
    host : Host
        The program with its registry and collector.
    """

    def __init__(self, host: Host) -> None:
        self._host = host

    async def on_call_tool(
        self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]
    ) -> Any:
        """Record the tool, and pass the call on.

        A client of the server may send any text as the name of a tool. So only a name that the
        server lists is recorded.
        """
        with contextlib.suppress(Exception):  # nothing of telemetry may stop its host
            if context.fastmcp_context is not None and self._host.is_recording():
                name = context.message.name
                if name in await tool_names(context.fastmcp_context.fastmcp):
                    # `record` starts a process, or sends by a transport of the program. In the
                    # event loop it would hold the calls of all other clients meanwhile.
                    await asyncio.to_thread(self._host.record, [name])
        return await call_next(context)


async def tool_names(server: FastMCP[Any]) -> list[str]:
    """Return the names of a server's tools. `telemetry init` writes them into the registry."""
    tools = await server.list_tools(run_middleware=False)
    return list(dict.fromkeys(tool.name for tool in tools))
