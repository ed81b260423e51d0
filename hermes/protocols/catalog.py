"""What users may know and choose about the agents that answer them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from hermes.messages import AttachmentKind, ConversationSettings, Source


class ToolInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A tool, as `/tools` lists it."""

    name: str
    summary: str
    approval: bool = False
    """Whether each call needs the user's approval."""


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server and its state."""

    name: str
    tools: int
    """How many tools it offers."""
    problem: str | None = None
    """Why it cannot be used now; None while it runs."""


class AgentChoice(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that a user may choose."""

    name: str
    """What `/model` calls it, and `ConversationSettings.agent` stores."""
    model: str
    """The model that answers."""
    tools: tuple[ToolInfo, ...] = ()
    takes: tuple[AttachmentKind, ...] = ()
    """What the model takes beside text."""


class AgentCatalog(Protocol):
    """Lists the agents of a host, for `/model`, `/tools` and `/status`."""

    def choices(self, source: Source) -> Sequence[AgentChoice]:
        """Return the agents that this sender may choose."""
        ...

    def current(self, settings: ConversationSettings, source: Source) -> AgentChoice | None:
        """Return the agent that answers a conversation with these settings; None if unknown."""
        ...

    def servers(self) -> Sequence[ServerInfo]:
        """Return the MCP servers of the agents."""
        ...
