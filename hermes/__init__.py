"""Hermes keeps conversations whole.

Read: messages, events, protocols, actors.mailbox, actors.session, actors.answering, actors.runtime,
store, embed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes.actors.admission import Access as Access, Rates as Rates, Rules as Rules
    from hermes.config import CompressionConfig as CompressionConfig, Config as Config
    from hermes.context import (
        current_session_id as current_session_id,
        current_session_key as current_session_key,
        current_turn_id as current_turn_id,
        set_current_session_id as set_current_session_id,
    )
    from hermes.embed import open_runtime as open_runtime
    from hermes.errors import HermesError as HermesError
    from hermes.messages import (
        AgentSpec as AgentSpec,
        ExpiryPolicy as ExpiryPolicy,
        Inbound as Inbound,
        Message as Message,
        Receipt as Receipt,
        Reply as Reply,
        Source as Source,
        ToolCall as ToolCall,
        TurnResult as TurnResult,
        Usage as Usage,
    )

__version__ = "0.1.0.dev0"

# Loaded when they are asked for: who looks after a file, or needs one value, does not wait for the
# whole runtime.
_NAMES = {
    "actors.admission": "Access Rates Rules",
    "config": "CompressionConfig Config",
    "context": "current_session_id current_session_key current_turn_id set_current_session_id",
    "embed": "open_runtime",
    "errors": "HermesError",
    "messages": "AgentSpec ExpiryPolicy Inbound Message Receipt Reply Source ToolCall TurnResult "
    "Usage",
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_WHERE)  # noqa: PLE0605 - the names above


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'hermes' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"hermes.{_WHERE[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*globals(), *_WHERE]
