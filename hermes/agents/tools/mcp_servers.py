"""Tools of MCP servers, over stdio or HTTP. A server that dies is started again.

Needs the `mcp` extra, so it is imported only if a server is configured.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TextIO

import attrs
import trio
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import CONNECTION_CLOSED, TextContent, Tool as McpTool

from hermes import user_code
from hermes.agents.tools.definitions import Tool
from hermes.agents.tools.mcp_causes import cause_of, too_slow
from hermes.agents.tools.mcp_errors import ErrorOutput, reporting
from hermes.agents.tools.mcp_results import outputs_of_result, text_of
from hermes.agents.tools.outputs import ToolOutput
from hermes.agents.tools.schema import GivenSignature
from hermes.background import open_background, set_event, start_soon
from hermes.errors import HermesError
from hermes.messages import JsonObject
from hermes.retry import Backoff

log: logging.Logger = logging.getLogger(__name__)

FIRST_DELAY, MAX_DELAY = 0.5, 30.0
STABLE_SECONDS = 60.0
"""If a server ran for longer than this, its next start is not delayed by earlier failures."""
MAX_NAME = 64
MAX_TOOLS = 1_000
"""How many tools of one server are used. A model can choose among far fewer."""
MAX_PAGES = 100
_INVALID = re.compile(r"[^a-zA-Z0-9_-]")


class ToolRefused(HermesError):
    """A tool of an MCP server reported an error."""


class ServerDown(HermesError):
    """The MCP server is not running; it is being restarted."""


@attrs.frozen(kw_only=True)
class McpServer:
    """How to reach an MCP server: a command that speaks MCP over stdio, or a URL.

    Raises `ValueError` unless exactly one of `command` and `url` is given.
    """

    name: str
    """Becomes the prefix of the names of its tools."""
    command: Sequence[str] = ()
    url: str | None = attrs.field(default=None, repr=False)
    environment: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """Environment variables for the command. Not part of the repr, because they may be secrets."""
    start_timeout: float = 30.0
    call_timeout: float = 120.0
    ping_interval: float = 10.0
    """Seconds between two checks whether the server still responds."""

    def __attrs_post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ValueError(f"MCP server {self.name}: give either a command or a url")

    def client(self, errors: TextIO) -> Client:
        """Return a client that is not connected yet; a command writes its errors to a file."""
        if self.url is not None:
            return Client(self.url)
        program, *arguments = self.command
        path = shutil.which(program, path=self.environment.get("PATH"))
        if path is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
        command, *rest = reporting(path, arguments)
        environment = dict(self.environment) or None
        parameters = StdioServerParameters(command=command, args=rest, env=environment)
        return Client(stdio_client(parameters, errlog=errors))


class Connection:
    """A supervised connection to one MCP server. Opened by `open_servers`."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.problem: str | None = "it has not started yet"
        """Why the server cannot be used now; None while it runs."""
        self.starts: int = 0
        """How often the server was started."""
        self._client: Client | None = None
        self._errors = ErrorOutput(server.name)
        self._loss: Exception | None = None
        """Why a call has given up the connection."""
        self._reported = ""
        """The last problem that was logged as a warning; empty while the server runs."""
        self._offered: dict[str, McpTool] = {}
        self._lost = trio.Event()
        self._tried = trio.Event()
        self._up = trio.Event()

    @property
    def offered(self) -> Mapping[str, McpTool]:
        """The tools of the server when it was last started, by name."""
        return self._offered

    async def supervise(self) -> None:
        """Keep the server running, until cancelled."""
        backoff = Backoff(FIRST_DELAY, MAX_DELAY)
        while True:
            started, in_time = trio.current_time(), True
            with user_code.contained() as caught:
                in_time = await self._run()
            if in_time:
                error = caught.error or self._loss
                cause = cause_of(error, self.server.url, self._errors.status)
            else:
                cause = too_slow(self.server.start_timeout)
            cause = cause.with_last_line(self._errors.last)
            self.problem, self._client = f"it {cause.shown}", None
            set_event(self._tried)
            if self._up.is_set():
                self._up = trio.Event()
            if trio.current_time() - started > STABLE_SECONDS:
                backoff.reset()
            delay = backoff.next()
            self._report(cause.logged, delay)
            await trio.sleep(delay)

    def _report(self, problem: str, delay: float) -> None:
        """Log a problem; the same one again, after another attempt, is no warning."""
        level = logging.INFO if problem == self._reported else logging.WARNING
        self._reported = problem
        text = "MCP server %s %s; Hermes tries again in %g s."
        log.log(level, text, self.server.name, problem, delay)

    async def _run(self) -> bool:
        """Start the server and wait until it is lost. Returns False if it did not start in time."""
        self.starts += 1
        self._lost, self._loss = trio.Event(), None
        with trio.CancelScope(deadline=trio.current_time() + self.server.start_timeout) as starting:
            async with self._errors.open() as errors, self.server.client(errors) as client:
                offered = await _list_tools(client, self.server.name)
                starting.deadline = float("inf")
                self._offered = offered
                self._client, self.problem, self._reported = client, None, ""
                set_event(self._tried)
                set_event(self._up)
                await self._wait_lost(client)
        return not starting.cancelled_caught

    async def _wait_lost(self, client: Client) -> None:
        """Wait until a call loses the connection; raise an exception if a ping fails."""
        while True:
            with trio.move_on_after(self.server.ping_interval):
                await self._lost.wait()
                return
            with trio.fail_after(self.server.start_timeout):
                await client.list_tools(cache_mode="bypass")  # a real request to the server

    def _mark_lost(self, error: Exception) -> ServerDown:
        """Stop using the connection, so that the supervisor opens another one."""
        self._client, self._loss = None, error
        self.problem = f"it {cause_of(error, self.server.url, None).shown}"
        set_event(self._lost)
        self._up = trio.Event()
        return self._down()

    def _down(self) -> ServerDown:
        name, problem = self.server.name, self.problem
        return ServerDown(f"MCP server {name} is not running: {problem}; it is being restarted")

    async def wait_up(self) -> None:
        """Wait until the server runs."""
        await self._up.wait()

    async def wait_tried(self) -> None:
        """Wait until the first attempt to start the server has succeeded or failed."""
        await self._tried.wait()

    async def call(self, name: str, arguments: JsonObject) -> tuple[str, bool]:
        """Call a tool; returns the text of its output and whether it failed.

        Raises `ServerDown` if the server is not running, or if the connection fails.
        """
        outputs, failed = await self.call_with_files(name, arguments)
        return text_of(outputs), failed

    async def call_with_files(
        self, name: str, arguments: JsonObject
    ) -> tuple[list[ToolOutput], bool]:
        """Call a tool; returns its output with the files, and whether it failed.

        Raises `ServerDown` if the server is not running, or if the connection fails.
        """
        client = self._client
        if client is None:
            raise self._down()
        try:
            with trio.fail_after(self.server.call_timeout):
                result = await client.call_tool(name, arguments)
        except trio.TooSlowError:
            text = f"it timed out after {self.server.call_timeout:g} seconds"
            return [ToolOutput(text)], True
        except MCPError as error:
            if error.error.code != CONNECTION_CLOSED:
                return [ToolOutput(str(error))], True
            raise self._mark_lost(error) from error
        except Exception as error:
            raise self._mark_lost(error) from error
        if all(isinstance(content, TextContent) for content in result.content):
            return outputs_of_result(result), bool(result.is_error)
        outputs = await trio.to_thread.run_sync(outputs_of_result, result)
        return outputs, bool(result.is_error)


def tools_of(connections: Sequence[Connection], *, approval: bool = False) -> list[Tool]:
    """Return the tools of MCP servers, named `server_tool`.

    The list does not change later: an agent keeps it, so that its prompt stays the same while a
    server is down. Calls then fail with a message that says so.

    Args:
        connections: From `open_servers`.
        approval: Whether each call needs the user's approval.
    """
    tools: dict[str, Tool] = {}
    for connection in connections:
        for name, offered in sorted(connection.offered.items()):
            unique = _unique_name(connection, name, tools)
            tools[unique] = Tool(
                name=unique,
                function=_caller(connection, name),
                signature=GivenSignature.given(
                    offered.description or "", dict(offered.input_schema)
                ),
                once=approval,
                approval=approval,
                timeout=connection.server.call_timeout + 1,
            )
    return list(tools.values())


def _unique_name(connection: Connection, tool: str, taken: Container[str]) -> str:
    """Return a valid tool name; numbered if another tool has it already."""
    name = base = _INVALID.sub("_", f"{connection.server.name}_{tool}")[:MAX_NAME]
    numbers = itertools.count(2)
    while name in taken:
        ending = f"_{next(numbers)}"
        name = base[: MAX_NAME - len(ending)] + ending
    return name


async def _list_tools(client: Client, server: str) -> dict[str, McpTool]:
    """Return the tools of a server by name, from all pages, within the limits."""
    tools: dict[str, McpTool] = {}
    cursor = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="bypass")
        tools.update((tool.name, tool) for tool in page.tools[:MAX_TOOLS])
        cursor = page.next_cursor
        if len(page.tools) > MAX_TOOLS or len(tools) > MAX_TOOLS:
            break
        if cursor is None:
            return tools
    tools = dict(itertools.islice(tools.items(), MAX_TOOLS))
    log.warning("MCP server %s offers too many tools; the first %d are used", server, len(tools))
    return tools


def _caller(connection: Connection, name: str) -> Callable[..., Awaitable[str | list[ToolOutput]]]:
    async def call(**arguments: object) -> str | list[ToolOutput]:
        outputs, failed = await connection.call_with_files(name, arguments)
        if failed:
            raise ToolRefused(text_of(outputs))
        return outputs if any(output.files for output in outputs) else text_of(outputs)

    return call


@asynccontextmanager
async def open_servers(servers: Sequence[McpServer]) -> AsyncIterator[list[Connection]]:
    """Start MCP servers and keep them running until the end of the block.

    The block begins when each server has started or failed to; a server that fails is retried in
    the background.
    """
    connections = [Connection(server) for server in servers]
    async with open_background() as nursery:
        for connection in connections:
            start_soon(nursery, connection.supervise)
        for connection in connections:
            await connection.wait_tried()
        yield connections
