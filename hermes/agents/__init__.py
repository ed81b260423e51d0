"""Agents: `OfflineAgent`, agents with a model (`chat_agents`), and bridges to other agents.

- `chat_agents` opens a `ChatAgents` factory for a model `Endpoint`; `tool` and `Toolbox` make tools
  of functions; `Spending`, `Price` and `Budgets` limit the cost; `Retries` configures retries.
- `ModelCompressor` and `ModelTitler` write summaries and titles with a model; `open_transcriber`
  opens a `ModelTranscriber` for voice messages.
- `blocking_agent` and `asyncio_agent` run functions in threads and on asyncio.
- `OfflineAgent` answers without a model.

Suggested reading order: providers.base, providers.openai_chat, chat, factory, tools.toolbox,
compressor, titler, bridges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes._lazy import lazy_names

if TYPE_CHECKING:
    from hermes.agents.bridges import (
        asyncio_agent as asyncio_agent,
        blocking_agent as blocking_agent,
    )
    from hermes.agents.budgets import (
        Budgets as Budgets,
        BudgetSpent as BudgetSpent,
        Price as Price,
        Spending as Spending,
    )
    from hermes.agents.chat import ChatAgent as ChatAgent
    from hermes.agents.compressor import ModelCompressor as ModelCompressor
    from hermes.agents.factory import ChatAgents as ChatAgents, chat_agents as chat_agents
    from hermes.agents.offline import OfflineAgent as OfflineAgent
    from hermes.agents.providers.base import (
        Endpoint as Endpoint,
        FileBody as FileBody,
        Provider as Provider,
        ProviderError as ProviderError,
        Secret as Secret,
    )
    from hermes.agents.providers.retries import Retries as Retries
    from hermes.agents.remote_runtime import LoopFile as LoopFile, ThreadFile as ThreadFile
    from hermes.agents.remote_turns import LoopTurn as LoopTurn, ThreadTurn as ThreadTurn
    from hermes.agents.titler import ModelTitler as ModelTitler
    from hermes.agents.tools.definitions import Tool as Tool, tool as tool
    from hermes.agents.tools.outputs import ToolOutcome as ToolOutcome, ToolOutput as ToolOutput
    from hermes.agents.tools.toolbox import Toolbox as Toolbox
    from hermes.agents.transcriber import (
        ModelTranscriber as ModelTranscriber,
        open_transcriber as open_transcriber,
    )

# `import hermes.agents` does not load an HTTP client.
_NAMES = {
    "bridges": "asyncio_agent blocking_agent",
    "budgets": "BudgetSpent Budgets Price Spending",
    "chat": "ChatAgent",
    "compressor": "ModelCompressor",
    "factory": "ChatAgents chat_agents",
    "offline": "OfflineAgent",
    "providers.base": "Endpoint FileBody Provider ProviderError Secret",
    "providers.retries": "Retries",
    "remote_runtime": "LoopFile ThreadFile",
    "remote_turns": "LoopTurn ThreadTurn",
    "titler": "ModelTitler",
    "transcriber": "ModelTranscriber open_transcriber",
    "tools.definitions": "Tool tool",
    "tools.outputs": "ToolOutcome ToolOutput",
    "tools.toolbox": "Toolbox",
}
if not TYPE_CHECKING:
    __all__ = sorted(" ".join(_NAMES.values()).split())  # noqa: PLE0605 - the names above
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
