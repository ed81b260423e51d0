"""The agent of the settings: the offline agent, or a model with its tools and MCP servers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import attrs

from hermes.agents.budgets import Spending
from hermes.agents.offline import OfflineAgent
from hermes.agents.providers.base import Endpoint
from hermes.agents.tools.toolbox import Tool
from hermes.embed.agent import default_spec
from hermes.protocols import Build, Compressor, Describe, Titler
from hermes.redaction import Redactor, Secret
from hermes.run.references import resolve_secret, resolve_tool, server_secrets
from hermes.settings import Settings
from hermes.settings.environment import default_base_url
from hermes.settings.installation import command

SYSTEM_PROMPT = "You are a helpful assistant. Answer briefly."
OFFLINE_GREETING = (
    "No model is connected, so the offline agent answers: say help to see what it can do.\n"
    "To connect a model: {setup}"
)


@attrs.frozen(kw_only=True)
class AgentSetup:
    """The arguments of `open_runtime` that concern agents, and a greeting that describes them."""

    greeting: str
    build: Build
    model: str | None = None
    """The model that answers; None: the offline agent does."""
    servers: Callable[[], Mapping[str, str]] = dict
    """Returns the state of each MCP server."""
    agent_spec: Describe = default_spec
    compressor: Compressor | None = None
    titler: Titler | None = None


@asynccontextmanager
async def open_agent_setup(
    settings: Settings, redact: Redactor, reason: str
) -> AsyncIterator[AgentSetup]:
    """Set up the agent; its connections and servers are closed at the end of the block.

    `reason` is the end of a sentence that says why this agent was chosen.
    """
    if settings.agent.kind in {"openai", "anthropic"}:
        async with _open_model(settings, redact, reason) as setup:
            yield setup
    else:
        agent = OfflineAgent()
        greeting = OFFLINE_GREETING.format(setup=command("setup"))
        yield AgentSetup(greeting=greeting, build=lambda _: agent)


@asynccontextmanager
async def _open_model(
    settings: Settings, redact: Redactor, reason: str
) -> AsyncIterator[AgentSetup]:
    from hermes.agents.factory import chat_agents  # noqa: PLC0415 - it brings an HTTP client

    endpoint = endpoint_of(settings)
    async with AsyncExitStack() as stack:
        mcp = await open_mcp(settings, stack)
        tools = [resolve_tool("agent.tools", name) for name in settings.agent.tools]
        agents = await stack.enter_async_context(
            chat_agents(
                endpoint,
                protocol="anthropic" if settings.agent.kind == "anthropic" else "openai",
                system=settings.agent.system or SYSTEM_PROMPT,
                tools=[*tools, *mcp.tools],
                spending=Spending(settings.agent.prices, settings.agent.budgets),
                redact=redact,
            )
        )
        compression, titles = settings.compression, settings.titles
        compressor = agents.compressor(
            _with_model(endpoint, compression.model), window=compression.window
        )
        yield AgentSetup(
            greeting=f"{endpoint.model} at {host_of(endpoint)} answers, {reason}.",
            model=endpoint.model,
            servers=mcp.states,
            build=agents.build,
            agent_spec=agents.agent_spec,
            compressor=compressor if compression.enabled else None,
            titler=agents.titler(_with_model(endpoint, titles.model)) if titles.enabled else None,
        )


def endpoint_of(settings: Settings) -> Endpoint:
    """Return the model of the settings, with its key. Raises `SettingsError`."""
    agent = settings.agent
    key = Secret.env("OPENAI_API_KEY") if agent.kind == "openai" else Secret()
    if agent.key is not None:
        key = resolve_secret("agent.key", agent.key)
    return Endpoint(
        base_url=agent.base_url or default_base_url(agent.kind or "openai", os.environ),
        model=agent.model or "",
        name="the model",
        key=key,
        headers=tuple(agent.headers.items()),
        max_tokens=agent.max_tokens,
        parameters=tuple(agent.parameters.items()),
        alternate_roles=agent.alternate,
    )


def host_of(endpoint: Endpoint) -> str:
    """Return the host of the endpoint, for people."""
    try:
        url = urlsplit(endpoint.base_url)
        port = f":{url.port}" if url.port else ""
    except ValueError:
        return "an invalid URL"
    return f"{url.hostname}{port}"


def _with_model(endpoint: Endpoint, model: str | None) -> Endpoint | None:
    return None if model is None else attrs.evolve(endpoint, model=model)


@attrs.frozen
class McpSetup:
    """The MCP servers of the settings."""

    tools: Sequence[Tool] = ()
    states: Callable[[], Mapping[str, str]] = dict
    """Returns the state of each server."""
    problems: Callable[[], Mapping[str, str]] = dict
    """Returns why servers cannot be used; only those that cannot."""


async def open_mcp(settings: Settings, stack: AsyncExitStack) -> McpSetup:
    """Start the MCP servers; slow ones start in the background. They end with the stack."""
    if not settings.mcp:
        return McpSetup()
    from hermes.agents.tools.mcp_servers import McpServer, open_servers, tools_of  # noqa: PLC0415

    servers = [
        McpServer(
            name=name,
            command=table.command,
            url=table.url,
            environment={**table.environment, **server_secrets(name, table)},
        )
        for name, table in settings.mcp.items()
    ]
    connections = await stack.enter_async_context(open_servers(servers))
    tools = [
        tool
        for connection in connections
        for tool in tools_of([connection], approval=settings.mcp[connection.server.name].approval)
    ]

    def problems() -> Mapping[str, str]:
        return {each.server.name: each.problem for each in connections if each.problem is not None}

    def states() -> Mapping[str, str]:
        running = {each.server.name: _running(len(each.offered)) for each in connections}
        return {**running, **problems()}

    return McpSetup(tools, states, problems)


def _running(tools: int) -> str:
    return f"running, {tools} tool{'' if tools == 1 else 's'}"
