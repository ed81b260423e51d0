"""What answers, as the settings say: the offline agent, or a model with its tools and servers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import attrs

from hermes.actors.runtime import Runtime
from hermes.agents.budgets import Budgets, Price, Spending
from hermes.agents.offline import OfflineAgent
from hermes.agents.providers.base import Endpoint, Secret
from hermes.agents.tools.toolbox import Tool
from hermes.embed.trio_host import plain_description
from hermes.protocols import Build, Compressor, Describe, Titler
from hermes.run import references
from hermes.settings import Settings
from hermes.settings.environment import base_url_of

SYSTEM = "You are a helpful assistant. Answer briefly."
OFFLINE = (
    "The offline agent answers, since no model is connected: say help to see what it can do.\n"
    "To connect one, set OPENAI_API_KEY (and OPENAI_BASE_URL for another endpoint than OpenAI's),\n"
    "or write a configuration: python -m hermes.run --example-config > hermes.toml"
)


@attrs.frozen(kw_only=True)
class AgentSetup:
    """The parts of a runtime that have to do with agents, and who that is."""

    says: str
    build: Build
    describe: Describe = plain_description
    compressor: Compressor | None = None
    titler: Titler | None = None
    begin: Callable[[Runtime], None] = lambda _: None
    """Called with the runtime before the first message."""


@asynccontextmanager
async def open_answering(
    settings: Settings, redact: Callable[[str], str]
) -> AsyncIterator[AgentSetup]:
    """The parts that the settings ask for; connections are closed at the end of the block."""
    if settings.agent.kind in {"openai", "anthropic"}:
        async with _open_model(settings, redact) as answering:
            yield answering
    else:
        yield _offline()


def _offline() -> AgentSetup:
    agent = OfflineAgent()

    def begin(runtime: Runtime) -> None:
        agent.search = runtime.search

    return AgentSetup(says=OFFLINE, build=lambda _: agent, begin=begin)


@asynccontextmanager
async def _open_model(
    settings: Settings, redact: Callable[[str], str]
) -> AsyncIterator[AgentSetup]:
    from hermes.agents.factory import chat_agents  # noqa: PLC0415 - it brings an HTTP client

    endpoint = endpoint_of(settings)
    async with AsyncExitStack() as stack:
        tools = [references.tool("agent.tools", each) for each in settings.agent.tools]
        tools += await _served(settings, stack)
        agents = await stack.enter_async_context(
            chat_agents(
                endpoint,
                protocol="anthropic" if settings.agent.kind == "anthropic" else "openai",
                system=settings.agent.system or SYSTEM,
                tools=tools,
                spending=_spending(settings),
                redact=redact,
            )
        )
        compression, titles = settings.compression, settings.titles
        compressor = agents.compressor(
            _other(endpoint, compression.model), window=compression.window
        )
        yield AgentSetup(
            says=f"{endpoint.model} answers.",
            build=agents.build,
            describe=agents.describe,
            compressor=compressor if compression.enabled else None,
            titler=agents.titler(_other(endpoint, titles.model)) if titles.enabled else None,
        )


def endpoint_of(settings: Settings) -> Endpoint:
    """Where the model is."""
    agent = settings.agent
    key = Secret.env("OPENAI_API_KEY") if agent.kind == "openai" else Secret()
    if agent.key is not None:
        key = references.secret("agent.key", agent.key)
    return Endpoint(
        base_url=agent.base_url or base_url_of(agent.kind or "openai", os.environ),
        model=agent.model or "",
        name="the model",
        key=key,
        headers=tuple(agent.headers.items()),
        max_tokens=agent.max_tokens,
        parameters=tuple(agent.parameters.items()),
        alternate=agent.alternate,
    )


def _other(endpoint: Endpoint, model: str | None) -> Endpoint | None:
    return None if model is None else attrs.evolve(endpoint, model=model)


def _spending(settings: Settings) -> Spending:
    agent = settings.agent
    prices = {
        model: Price(
            input=each.input,
            output=each.output,
            cache_read=each.cache_read,
            cache_write=each.cache_write,
        )
        for model, each in agent.prices.items()
    }
    budgets = agent.budgets
    return Spending(
        prices, Budgets(session=budgets.session, principal=budgets.principal, day=budgets.day)
    )


async def _served(settings: Settings, stack: AsyncExitStack) -> Sequence[Tool]:
    """The tools of the MCP servers; those that do not start yet are started behind the scenes."""
    if not settings.mcp:
        return ()
    from hermes.agents.tools.mcp_servers import McpServer, open_servers, tools_of  # noqa: PLC0415

    servers = [
        McpServer(
            name=name,
            command=each.command,
            url=each.url,
            environment={**each.environment, **references.keys(name, each)},
        )
        for name, each in settings.mcp.items()
    ]
    connections = await stack.enter_async_context(open_servers(servers))
    return [
        tool
        for connection in connections
        for tool in tools_of([connection], approval=settings.mcp[connection.server.name].approval)
    ]
