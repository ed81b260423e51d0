"""Agents that answer with a model, ready for a runtime: one HTTP client, one set of tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import attrs
import httpx2
import trio

from hermes.agents.budgets import Spending
from hermes.agents.chat import ChatAgent, Facts, Retries
from hermes.agents.compressor import INSTRUCTIONS, ModelCompressor
from hermes.agents.providers.anthropic_messages import AnthropicMessages
from hermes.agents.providers.base import Endpoint, Provider
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.agents.titler import NAMING, ModelTitler
from hermes.agents.tools.toolbox import Tool, Toolbox
from hermes.messages import AgentSpec, JsonObject, Source

Protocol = Literal["openai", "anthropic"]
CONNECTIONS = 100


@attrs.frozen(kw_only=True)
class ChatAgents:
    """Builds agents for conversations: give `build` and `describe` to a runtime."""

    client: httpx2.AsyncClient
    endpoint: Endpoint
    protocol: Protocol = "openai"
    system: str | None = None
    tools: Sequence[Tool] = ()
    facts: Facts | None = None
    retries: Retries = attrs.Factory(Retries)
    spending: Spending = attrs.Factory(Spending)
    redact: Callable[[str], str] | None = None
    """Takes secrets out of what tools answer."""
    _toolbox: Toolbox = attrs.field(init=False, repr=False)
    """All agents share its threads: it is they that are bounded, whoever's call they run."""

    @_toolbox.default
    def _make_toolbox(self) -> Toolbox:
        return Toolbox(self.tools, redact=self.redact)

    def describe(self, session_key: str, source: Source) -> AgentSpec:
        """What an agent is built from; two conversations with the same need no rebuild."""
        return AgentSpec(
            session_key=session_key,
            platform=source.platform,
            user_id=source.user_id,
            model=self.endpoint.model,
            endpoint=self.endpoint.base_url,
            credential=self.endpoint.key.reveal(),
            toolset=tuple(str(each["name"]) for each in self._toolbox.on(source.platform).schemas),
            system_prompt=self.system,
            settings=(("protocol", self.protocol), ("parameters", repr(self.endpoint.parameters))),
        )

    def build(self, spec: AgentSpec) -> ChatAgent:
        """An agent for one conversation."""
        toolbox = self._toolbox.on(spec.platform)
        provider = self._provider(self.endpoint, self.system, toolbox.schemas)
        return ChatAgent(
            provider, toolbox, facts=self.facts, retries=self.retries, spending=self.spending
        )

    def compressor(
        self, endpoint: Endpoint | None = None, *, window: int = 100_000
    ) -> ModelCompressor:
        """A compressor, with the same model or with another one."""
        provider = self._provider(endpoint or self.endpoint, INSTRUCTIONS, ())
        return ModelCompressor(provider=provider, window=window, spending=self.spending)

    def titler(self, endpoint: Endpoint | None = None) -> ModelTitler:
        """What names conversations, with the same model or with another one."""
        provider = self._provider(endpoint or self.endpoint, NAMING, ())
        return ModelTitler(provider=provider, spending=self.spending)

    def _provider(
        self, endpoint: Endpoint, system: str | None, tools: tuple[JsonObject, ...]
    ) -> Provider:
        make: Callable[..., Provider] = (
            AnthropicMessages if self.protocol == "anthropic" else OpenAIChat
        )
        return make(self.client, endpoint, system, tools)


@asynccontextmanager
async def chat_agents(  # noqa: PLR0913 - what all of them share
    endpoint: Endpoint,
    *,
    protocol: Protocol = "openai",
    system: str | None = None,
    tools: Sequence[Tool] = (),
    facts: Facts | None = None,
    spending: Spending | None = None,
    redact: Callable[[str], str] | None = None,
) -> AsyncIterator[ChatAgents]:
    """Agents that share a client; its connections are closed at the end of the block."""
    limits = httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    async with httpx2.AsyncClient(limits=limits, trust_env=True) as client:
        yield ChatAgents(
            client=client,
            endpoint=endpoint,
            protocol=protocol,
            system=system,
            tools=tools,
            facts=facts,
            spending=spending or Spending(),
            redact=redact,
        )
        await trio.lowlevel.checkpoint()
