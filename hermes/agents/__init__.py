"""What answers: an offline agent, models over HTTP, and bridges to agents of other kinds.

Read: provider, http, wire, openai_chat, anthropic_messages, prompts, chat, models, summaries,
titles, tools, bridges.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes.agents.bridges import (
        asyncio_agent as asyncio_agent,
        blocking_agent as blocking_agent,
    )
    from hermes.agents.chat import ChatAgent as ChatAgent, Retries as Retries
    from hermes.agents.models import ChatAgents as ChatAgents, chat_agents as chat_agents
    from hermes.agents.offline import OfflineAgent as OfflineAgent
    from hermes.agents.provider import Endpoint as Endpoint, Secret as Secret
    from hermes.agents.spending import Budgets as Budgets, Price as Price, Spending as Spending
    from hermes.agents.summaries import ModelCompressor as ModelCompressor
    from hermes.agents.titles import ModelTitler as ModelTitler
    from hermes.agents.tools import Tool as Tool, Toolbox as Toolbox, tool as tool

# Loaded when they are asked for: who needs no model does not wait for an HTTP client.
_WHERE = {
    "asyncio_agent": "bridges",
    "blocking_agent": "bridges",
    "ChatAgent": "chat",
    "Retries": "chat",
    "ChatAgents": "models",
    "chat_agents": "models",
    "OfflineAgent": "offline",
    "Endpoint": "provider",
    "Secret": "provider",
    "Budgets": "spending",
    "Price": "spending",
    "Spending": "spending",
    "ModelCompressor": "summaries",
    "ModelTitler": "titles",
    "Tool": "tools",
    "Toolbox": "tools",
    "tool": "tools",
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'hermes.agents' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hermes.agents.{_WHERE[name]}"), name)
