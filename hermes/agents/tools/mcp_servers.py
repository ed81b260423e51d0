"""Tools of MCP servers, over stdio or HTTP: each server is watched, and started again when it dies.

Imported only where a server is configured: it needs the `mcp` extra.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs
import trio
from mcp import Client, MCPError, StdioServerParameters
from mcp_types import CONNECTION_CLOSED, CallToolResult, TextContent, Tool as Offered

from hermes import user_code
from hermes.agents.tools.schema import GivenSignature
from hermes.agents.tools.toolbox import Tool
from hermes.errors import HermesError
from hermes.messages import JsonObject

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
MAX_NAME = 64
STEADY_SECONDS = 60.0
"""After so long a life, a death is a new one and not one more of a row."""


_UNNAMEABLE = re.compile(r"[^a-zA-Z0-9_-]")


class ToolRefused(HermesError):
    """What a tool of a server says has gone wrong."""


class ServerDown(HermesError):
    """The server does not run now; it is being started again."""


@attrs.frozen(kw_only=True)
class McpServer:
    """How a server is reached: a command that speaks over stdio, or the URL of one."""

    name: str
    command: Sequence[str] = ()
    url: str | None = attrs.field(default=None, repr=False)
    environment: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """Keys come this way, or in the url: neither shows itself."""
    start_seconds: float = 30.0
    call_seconds: float = 120.0
    look_seconds: float = 10.0
    """How often it is asked whether it is still there."""

    def __attrs_post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ValueError(f"MCP server {self.name}: give either a command or a url")

    def client(self) -> Client:
        """A connection that is not open yet."""
        if self.url is not None:
            return Client(self.url)
        command, *arguments = self.command
        environment = dict(self.environment) or None
        return Client(StdioServerParameters(command=command, args=arguments, env=environment))


class Connection:
    """One server, from now until its nursery ends."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.problem: str | None = "it was not started yet"
        """Why it cannot be used now; None while it runs."""
        self.starts = 0
        self._client: Client | None = None
        self._offered: dict[str, Offered] = {}
        self._broken = trio.Event()
        self._tried = trio.Event()
        self._up = trio.Event()

    @property
    def offered(self) -> Mapping[str, Offered]:
        """The tools it has offered last, by name."""
        return self._offered

    async def watch(self) -> None:
        """Keep it running; never ends by itself, whatever the server does."""
        pause = FIRST_PAUSE
        while True:
            begun = trio.current_time()
            try:
                reason = await self._live()
            except BaseException as error:  # noqa: BLE001 - foreign code, in another process
                if (through := user_code.passing(error)) is not None:
                    raise through from None
                self.problem = user_code.describe(error)[:300]
                reason = user_code.loggable(user_code.leaf(error))
            self._client = None
            self._tried.set()
            if self._up.is_set():
                self._up = trio.Event()
            log.warning("MCP server %s has ended: %s", self.server.name, reason)
            if trio.current_time() - begun > STEADY_SECONDS:
                pause = FIRST_PAUSE
            await trio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _live(self) -> str:
        """One life of the server: start it, ask what it offers, look after it; says how it ended.

        Without the words of errors, which may be what a tool was told.
        """
        self.starts += 1
        self._broken = trio.Event()
        with trio.CancelScope(deadline=trio.current_time() + self.server.start_seconds) as starting:
            async with self.server.client() as client:
                offered = await _listed(client)
                starting.deadline = float("inf")
                self._offered = offered
                self._client, self.problem = client, None
                self._tried.set()
                self._up.set()
                await self._look_after(client)
        if starting.cancelled_caught:
            self.problem = f"it did not start within {self.server.start_seconds:g} seconds"
            return self.problem
        return "it broke off"

    def _lost(self, error: Exception) -> ServerDown:
        """The connection is gone: nobody else is to try it, and it is opened again."""
        self._client = None
        self.problem = user_code.describe(error)[:200]
        self._broken.set()
        self._up = trio.Event()
        return ServerDown(f"the server {self.server.name} broke off ({self.problem})")

    async def _look_after(self, client: Client) -> None:
        while True:
            with trio.move_on_after(self.server.look_seconds):
                await self._broken.wait()
                return
            with trio.fail_after(self.server.start_seconds):
                await client.list_tools(cache_mode="bypass")  # it is the server that is asked

    async def wait_up(self) -> None:
        """Wait until it runs."""
        await self._up.wait()

    async def wait_tried(self) -> None:
        """Wait until it has been started, or has failed to."""
        await self._tried.wait()

    async def call(self, name: str, arguments: JsonObject) -> tuple[str, bool]:
        """What a tool says, and whether it failed."""
        client = self._client
        if client is None:
            raise ServerDown(
                f"the server {self.server.name} does not run now ({self.problem}); "
                "it is being started again"
            )
        try:
            with trio.fail_after(self.server.call_seconds):
                result = await client.call_tool(name, arguments)
        except trio.TooSlowError:
            return f"it took longer than {self.server.call_seconds:g} seconds", True
        except MCPError as error:
            if error.error.code != CONNECTION_CLOSED:
                return str(error), True
            raise self._lost(error) from error
        except Exception as error:
            raise self._lost(error) from error
        return _text(result), bool(result.is_error)


def tools_of(connections: Sequence[Connection], *, approval: bool = False) -> list[Tool]:
    """What the servers offer, as tools named after server and tool.

    The list is that of now: an agent keeps it, so that its prompt stays the same while a server is
    away, and calls of its tools say so.
    """
    tools: dict[str, Tool] = {}
    for connection in connections:
        for name, offered in sorted(connection.offered.items()):
            named = _named(connection, name, tools)
            tools[named] = Tool(
                name=named,
                function=_caller(connection, name),
                signature=GivenSignature.given(
                    offered.description or "", dict(offered.input_schema)
                ),
                once=approval,
                approval=approval,
                seconds=connection.server.call_seconds + 1,
            )
    return list(tools.values())


def _named(connection: Connection, tool: str, taken: Container[str]) -> str:
    """Its name for a model; numbered where others come to the same one, cut and cleaned."""
    name = base = _UNNAMEABLE.sub("_", f"{connection.server.name}_{tool}")[:MAX_NAME]
    numbers = itertools.count(2)
    while name in taken:
        end = f"_{next(numbers)}"
        name = base[: MAX_NAME - len(end)] + end
    return name


async def _listed(client: Client) -> dict[str, Offered]:
    """All tools of a server by name, page by page."""
    found: dict[str, Offered] = {}
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor, cache_mode="bypass")
        found.update((tool.name, tool) for tool in page.tools)
        cursor = page.next_cursor
        if cursor is None:
            return found


def _caller(connection: Connection, name: str) -> Callable[..., Awaitable[str]]:
    async def call(**arguments: object) -> str:
        text, failed = await connection.call(name, arguments)
        if failed:
            raise ToolRefused(text)
        return text

    return call


def _text(result: CallToolResult) -> str:
    texts = [
        part.text if isinstance(part, TextContent) else f"({part.type})" for part in result.content
    ]
    return "\n".join(texts) or "(no output)"


@asynccontextmanager
async def open_servers(servers: Sequence[McpServer]) -> AsyncIterator[list[Connection]]:
    """Connections to servers, watched during the block; one that does not start hinders nobody."""
    connections = [Connection(server) for server in servers]
    raised: BaseException | None = None
    async with trio.open_nursery() as nursery:
        for connection in connections:
            nursery.start_soon(connection.watch)
        for connection in connections:
            await connection.wait_tried()
        try:
            yield connections
        except BaseException as error:  # noqa: BLE001 - raised below, not in a group
            raised = error
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised
