"""Hermes keeps conversations whole.

Read: messages, events, protocols, actors.kernel, actors.session, actors.runtime, store, embed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes._lazy import loader

if TYPE_CHECKING:
    from hermes.actors.admission.access import (
        AccessPolicy as AccessPolicy,
        PlatformRules as PlatformRules,
        RateLimit as RateLimit,
    )
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

# Who looks after a file, or needs one value, does not wait for the whole runtime.
_NAMES = {
    "actors.admission.access": "AccessPolicy PlatformRules RateLimit",
    "config": "CompressionConfig Config",
    "context": "current_session_id current_session_key current_turn_id set_current_session_id",
    "embed": "open_runtime",
    "errors": "HermesError",
    "messages": "AgentSpec ExpiryPolicy Inbound Message Receipt Reply Source ToolCall TurnResult "
    "Usage",
}
__all__ = sorted(" ".join(_NAMES.values()).split())  # noqa: PLE0605 - the names above
__getattr__ = loader(__name__, _NAMES)
