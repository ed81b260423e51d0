"""What the settings offer to users: the agents to choose from, their tools and MCP servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from hermes.agents.tools.toolbox import Tool
from hermes.messages import ConversationSettings, Source
from hermes.protocols import AgentCatalog, AgentChoice, ServerInfo, ToolInfo
from hermes.run.model_agents import ModelAgents
from hermes.settings.agents import agent_for


@attrs.frozen
class SettingsCatalog(AgentCatalog):
    """The agents of the latest settings."""

    agents: ModelAgents
    states: Callable[[], Sequence[ServerInfo]]

    def choices(self, source: Source) -> Sequence[AgentChoice]:
        """Return all agents: budgets limit what they may cost."""
        return [self._choice(name) for name in self.agents.current.agents]

    def current(self, settings: ConversationSettings, source: Source) -> AgentChoice:
        """Return the agent that a conversation has chosen, or that of its chat."""
        name = agent_for(self.agents.current.settings, source, settings.agent)
        return self._choice(name)

    def servers(self) -> Sequence[ServerInfo]:
        """Return the MCP servers of all agents."""
        return self.states()

    def _choice(self, name: str) -> AgentChoice:
        agents = self.agents.current.agents[name]
        tools = tuple(_info(tool) for tool in agents.tools)
        return AgentChoice(name=name, model=agents.endpoint.model, tools=tools)


def _info(tool: Tool) -> ToolInfo:
    description = str(tool.schema.get("description") or "")
    return ToolInfo(name=tool.name, summary=description.strip(), approval=tool.approval)
