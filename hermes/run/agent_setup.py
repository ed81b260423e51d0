"""The agent of the settings: the offline agent, or a model with its tools and MCP servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import attrs

from hermes.agents.budgets import Spending
from hermes.agents.offline import OfflineAgent
from hermes.agents.providers.base import Endpoint
from hermes.agents.tools.toolbox import Tool
from hermes.embed.agent import default_spec
from hermes.messages import ConversationSettings, Source
from hermes.protocols import (
    AgentCatalog,
    Build,
    Compressor,
    Describe,
    ServerInfo,
    Titler,
    Transcriber,
)
from hermes.redaction import Redactor
from hermes.run.references import server_secrets, transcriber_key
from hermes.settings import Settings
from hermes.settings.agents import DEFAULT_AGENT, agent_for
from hermes.settings.installation import command
from hermes.settings.schema import TranscriberTable

OFFLINE_GREETING = (
    "No model is connected, so the offline agent answers: say help to see what it can do.\n"
    "To connect a model: {setup}"
)
OFFLINE_HINT = "To chat with a model: {setup}"


@attrs.frozen(kw_only=True)
class AgentSetup:
    """The arguments of `open_runtime` that concern agents."""

    greeting: Callable[[ConversationSettings, Source], str]
    """Says what answers a conversation, and why."""
    build: Build
    model: str | None = None
    """The model that answers; None: the offline agent does."""
    servers: Callable[[], Mapping[str, str]] = dict
    """Returns the state of each MCP server."""
    apply: Callable[[Settings], None] | None = None
    """Replaces the agents by those of other settings; None: the offline agent answers."""
    catalog: AgentCatalog | None = None
    """Lists the agents for `/model` and `/tools`."""
    agent_spec: Describe = default_spec
    compressor: Compressor | None = None
    titler: Titler | None = None
    transcriber: Transcriber | None = None


@asynccontextmanager
async def open_agent_setup(
    settings: Settings, redact: Redactor, reason: str
) -> AsyncIterator[AgentSetup]:
    """Set up the agent; its connections and servers are closed at the end of the block.

    `reason` is the end of a sentence that says why this agent was chosen.
    """
    async with (
        transcriber_of(settings, redact) as transcriber,
        _open_agent(settings, redact, reason) as setup,
    ):
        yield attrs.evolve(setup, transcriber=transcriber)


@asynccontextmanager
async def transcriber_of(settings: Settings, redact: Redactor) -> AsyncIterator[Transcriber | None]:
    """Open the transcriber of the settings, if there is one. Raises `SettingsError`."""
    table = settings.transcriber
    if table is None:
        yield None
        return
    from hermes.agents.transcriber import open_transcriber  # noqa: PLC0415 - as for a model

    async with open_transcriber(transcriber_endpoint(table), redact=redact) as transcriber:
        yield transcriber


def transcriber_endpoint(table: TranscriberTable) -> Endpoint:
    """Return the endpoint of a transcriber, with its key. Raises `SettingsError`."""
    return Endpoint(
        base_url=table.base_url,
        model=table.model,
        name="the transcriber",
        key=transcriber_key(table),
        parameters=tuple(table.parameters.items()),
    )


@asynccontextmanager
async def _open_agent(
    settings: Settings, redact: Redactor, reason: str
) -> AsyncIterator[AgentSetup]:
    if settings.agent.kind in {"openai", "anthropic"}:
        async with _open_model(settings, redact, reason) as setup:
            yield setup
    else:
        agent = OfflineAgent(hint=OFFLINE_HINT.format(setup=command("setup")))
        greeting = OFFLINE_GREETING.format(setup=command("setup"))
        yield AgentSetup(greeting=lambda *_: greeting, build=lambda _: agent)


@asynccontextmanager
async def _open_model(
    settings: Settings, redact: Redactor, reason: str
) -> AsyncIterator[AgentSetup]:
    from hermes.agents.factory import chat_agents  # noqa: PLC0415 - it brings an HTTP client
    from hermes.run.model_agents import ModelAgents, protocol_of  # noqa: PLC0415

    endpoint = endpoint_of(settings)
    async with AsyncExitStack() as stack:
        mcp = await open_mcp(settings, stack)
        first = await stack.enter_async_context(
            chat_agents(
                endpoint,
                protocol=protocol_of(settings.agent),
                spending=Spending(settings.agent.prices, settings.agent.budgets),
                redact=redact,
            )
        )
        agents = ModelAgents(settings, first, mcp.tools, mcp.servers)

        def greeting(chosen: ConversationSettings, source: Source) -> str:
            name = agent_for(agents.built.settings, source, chosen.agent)
            used = agents.built.agents[name].endpoint
            model = chosen.model or used.model
            return f"{model} at {host_of(used)} answers, {_why(name, chosen) or reason}."

        yield AgentSetup(
            greeting=greeting,
            model=endpoint.model,
            servers=mcp.states,
            apply=agents.apply,
            catalog=agents,
            build=agents.build,
            agent_spec=agents.agent_spec,
            compressor=agents.compressor if settings.compression.enabled else None,
            titler=agents.titler if settings.titles.enabled else None,
        )


def _why(name: str, chosen: ConversationSettings) -> str | None:
    """Return why not the default agent answers; None if it does."""
    if name != DEFAULT_AGENT and name == chosen.agent:
        return f"because this conversation has chosen {name} with /model"
    if chosen.model is not None:
        return "because this conversation has chosen that model"
    return None if name == DEFAULT_AGENT else f"as configured in [agents.{name}]"


def endpoint_of(settings: Settings) -> Endpoint:
    """Return the default model of the settings, with its key. Raises `SettingsError`."""
    from hermes.run.model_agents import named_endpoint  # noqa: PLC0415

    return named_endpoint(settings, DEFAULT_AGENT, settings.agent)


def host_of(endpoint: Endpoint) -> str:
    """Return the host of the endpoint, for people."""
    try:
        url = urlsplit(endpoint.base_url)
        port = f":{url.port}" if url.port else ""
    except ValueError:
        return "an invalid URL"
    return f"{url.hostname}{port}"


@attrs.frozen
class McpSetup:
    """The MCP servers of the settings."""

    tools: Sequence[Tool] = ()
    states: Callable[[], Mapping[str, str]] = dict
    """Returns the state of each server."""
    problems: Callable[[], Mapping[str, str]] = dict
    """Returns why servers cannot be used; only those that cannot."""
    servers: Callable[[], Sequence[ServerInfo]] = tuple
    """Returns the servers, as `/tools` lists them."""


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

    def servers_now() -> Sequence[ServerInfo]:
        return [
            ServerInfo(name=each.server.name, tools=len(each.offered), problem=each.problem)
            for each in connections
        ]

    return McpSetup(tools, states, problems, servers_now)


def _running(tools: int) -> str:
    return f"running, {tools} tool{'' if tools == 1 else 's'}"
