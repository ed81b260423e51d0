"""The agents of the settings that call models; a reload replaces them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

import attrs
from msgspec.structs import replace

from hermes.agents.chat import ChatAgent
from hermes.agents.compressor import ModelCompressor
from hermes.agents.factory import ChatAgents
from hermes.agents.providers.attachments import acceptance_of
from hermes.agents.providers.base import Endpoint
from hermes.agents.titler import ModelTitler
from hermes.agents.tools.toolbox import Tool
from hermes.messages import AgentSpec, ConversationSettings, Source
from hermes.protocols import (
    AgentCatalog,
    AgentChoice,
    Compressor,
    RunsOnTrio,
    ServerInfo,
    Summary,
    SummaryRequest,
    Titler,
    TitleRequest,
    ToolInfo,
)
from hermes.redaction import Secret
from hermes.run.references import resolve_secret, resolve_tool
from hermes.settings import Settings
from hermes.settings.agents import DEFAULT_AGENT, agent_for, agent_tables, has_own_endpoint
from hermes.settings.environment import default_base_url
from hermes.settings.schema import AgentTable

log: logging.Logger = logging.getLogger(__name__)

SYSTEM_PROMPT = "You are a helpful assistant. Answer briefly."


@attrs.frozen(kw_only=True)
class _Built:
    """What is made from one state of the settings."""

    settings: Settings
    number: int
    """How often the agents have been replaced."""
    agents: Mapping[str, ChatAgents]
    compressor: ModelCompressor
    titler: ModelTitler


class ModelAgents(AgentCatalog):
    """Describes and builds agents: `agent_spec` and `build` are arguments of `open_runtime`.

    Also its `catalog`, which lists the agents for `/model` and `/tools`.

    Args:
        settings: The settings at the start.
        first: The agents of the default endpoint; the others share their HTTP client.
        tools: The tools of MCP servers, which all agents have.
        servers: Returns the state of these servers.
    """

    def __init__(
        self,
        settings: Settings,
        first: ChatAgents,
        tools: Sequence[Tool] = (),
        servers: Callable[[], Sequence[ServerInfo]] = tuple,
    ) -> None:
        self._first = first
        self._tools = tools
        self._servers = servers
        self._built = self._build_all(settings, 0)
        self.compressor: Compressor = _CurrentCompressor(self)
        self.titler: Titler = _CurrentTitler(self)

    @property
    def built(self) -> _Built:
        """What the latest settings have led to."""
        return self._built

    def apply(self, settings: Settings) -> None:
        """Use other settings for the calls from now on, and other agents for the next turns.

        Raises `SettingsError`, and then nothing is changed.
        """
        before = self._built
        changed = agent_tables(settings) != agent_tables(before.settings)
        self._built = self._build_all(settings, before.number + changed)
        self._first.spending.change(settings.agent.prices, settings.agent.budgets)

    def agent_spec(self, session_key: str, source: Source) -> AgentSpec:
        """Return what the agent of a chat is built from."""
        built = self._built
        name = agent_for(built.settings, source)
        spec = built.agents[name].agent_spec(session_key, source)
        # With the number, also agents that a conversation has chosen are built again.
        named = (("agent", name), ("reloads", str(built.number)))
        return attrs.evolve(spec, settings=(*spec.settings, *named))

    def build(self, spec: AgentSpec) -> ChatAgent:
        """Return an agent for one conversation: the one that it has chosen, or that of its chat."""
        agents, chosen = self._built.agents, spec.conversation.agent
        assigned = dict(spec.settings).get("agent", DEFAULT_AGENT)
        if chosen is not None and chosen not in agents:
            log.warning("a conversation has chosen an agent that is not configured any more")
        name = chosen if chosen in agents else assigned
        if name != assigned:
            spec = attrs.evolve(spec, model=spec.conversation.model)
        return agents.get(name or DEFAULT_AGENT, agents[DEFAULT_AGENT]).build(spec)

    def choices(self, source: Source) -> Sequence[AgentChoice]:
        """Return the agents that a user may choose."""
        return [self._choice(name, source) for name in self._built.agents]

    def current(self, settings: ConversationSettings, source: Source) -> AgentChoice:
        """Return the agent that answers a conversation with these settings."""
        choice = self._choice(agent_for(self._built.settings, source, settings.agent), source)
        return choice if settings.model is None else replace(choice, model=settings.model)

    def servers(self) -> Sequence[ServerInfo]:
        """Return the MCP servers."""
        return self._servers()

    def _choice(self, name: str, source: Source) -> AgentChoice:
        agents = self._built.agents[name]
        tools = tuple(
            ToolInfo(
                name=tool.name, summary=tool.signature.description or "", approval=tool.approval
            )
            for tool in agents.tools
            if tool.is_for(source.platform)
        )
        takes = acceptance_of(agents.protocol, agents.endpoint).kinds
        return AgentChoice(name=name, model=agents.endpoint.model, tools=tools, takes=tuple(takes))

    def _build_all(self, settings: Settings, number: int) -> _Built:
        agents = {
            name: attrs.evolve(
                self._first,
                endpoint=named_endpoint(settings, name, table),
                protocol=protocol_of(table),
                system=table.system or SYSTEM_PROMPT,
                tools=[*agent_tools(name, table), *self._tools],
            )
            for name, table in agent_tables(settings).items()
        }
        default = agents[DEFAULT_AGENT]
        compression, titles = settings.compression, settings.titles
        return _Built(
            settings=settings,
            number=number,
            agents=agents,
            compressor=default.compressor(
                _with_model(default.endpoint, compression.model), window=compression.window
            ),
            titler=default.titler(_with_model(default.endpoint, titles.model)),
        )


@attrs.frozen
class _CurrentCompressor(Compressor, RunsOnTrio):
    """Calls the compressor of the latest settings."""

    on_trio: ClassVar[bool] = True
    agents: ModelAgents

    async def summarize(self, request: SummaryRequest, /) -> Summary:
        return await self.agents.built.compressor.summarize(request)


@attrs.frozen
class _CurrentTitler(Titler, RunsOnTrio):
    """Calls the titler of the latest settings."""

    on_trio: ClassVar[bool] = True
    agents: ModelAgents

    async def title(self, request: TitleRequest, /) -> Summary:
        return await self.agents.built.titler.title(request)


def named_endpoint(settings: Settings, name: str, table: AgentTable) -> Endpoint:
    """Return the endpoint of an agent, with its key. Raises `SettingsError`."""
    key = Secret()
    if table.key is not None:
        prefix = "agent" if name == DEFAULT_AGENT else f"agents.{name}"
        key = resolve_secret(f"{prefix}.key", table.key)
    elif table.kind == "openai" and uses_environment_key(settings, name):
        key = Secret.env("OPENAI_API_KEY")
    return Endpoint(
        base_url=table.base_url or default_base_url(table.kind or "openai", os.environ),
        model=table.model or "",
        name="the model",
        key=key,
        headers=tuple(table.headers.items()),
        max_tokens=table.max_tokens,
        parameters=tuple(table.parameters.items()),
        alternate_roles=table.alternate,
        attachments=None if table.attachments is None else tuple(table.attachments),
    )


def uses_environment_key(settings: Settings, name: str) -> bool:
    """Return whether an agent without a key uses OPENAI_API_KEY.

    One with a URL of its own does not, so that the key is not sent to another endpoint.
    """
    table = settings.agents.get(name)
    return table is None or table.base_url is None or not has_own_endpoint(settings.agent, table)


def protocol_of(table: AgentTable) -> Literal["openai", "anthropic"]:
    """Return the protocol of an agent's endpoint."""
    return "anthropic" if table.kind == "anthropic" else "openai"


def agent_tools(name: str, table: AgentTable) -> list[Tool]:
    """Return the tools of an agent that are Python functions. Raises `SettingsError`."""
    key = "agent.tools" if name == DEFAULT_AGENT else f"agents.{name}.tools"
    return [resolve_tool(key, each) for each in table.tools]


def _with_model(endpoint: Endpoint, model: str | None) -> Endpoint | None:
    return None if model is None else attrs.evolve(endpoint, model=model)
