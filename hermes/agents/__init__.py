"""What answers: an offline agent, models over HTTP, and bridges to agents of other kinds.

Read: provider, http, wire, openai_chat, anthropic_messages, prompts, chat, models, summaries,
titles, tools, bridges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes._lazy import loader

if TYPE_CHECKING:
    from hermes.agents.bridges import (
        asyncio_agent as asyncio_agent,
        blocking_agent as blocking_agent,
    )
    from hermes.agents.budgets import Budgets as Budgets, Price as Price, Spending as Spending
    from hermes.agents.chat import ChatAgent as ChatAgent, Retries as Retries
    from hermes.agents.compressor import ModelCompressor as ModelCompressor
    from hermes.agents.factory import ChatAgents as ChatAgents, chat_agents as chat_agents
    from hermes.agents.offline import OfflineAgent as OfflineAgent
    from hermes.agents.providers.base import Endpoint as Endpoint, Secret as Secret
    from hermes.agents.titler import ModelTitler as ModelTitler
    from hermes.agents.tools.toolbox import Tool as Tool, Toolbox as Toolbox, tool as tool

# Who needs no model does not wait for an HTTP client.
_NAMES = {
    "bridges": "asyncio_agent blocking_agent",
    "chat": "ChatAgent Retries",
    "factory": "ChatAgents chat_agents",
    "offline": "OfflineAgent",
    "providers.base": "Endpoint Secret",
    "budgets": "Budgets Price Spending",
    "compressor": "ModelCompressor",
    "titler": "ModelTitler",
    "tools.toolbox": "Tool Toolbox tool",
}
__all__ = sorted(" ".join(_NAMES.values()).split())  # noqa: PLE0605 - the names above
__getattr__ = loader(__name__, _NAMES)
