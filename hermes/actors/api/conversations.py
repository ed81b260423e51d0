"""What adapters of API clients need to know about conversations, and their branches."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.actors.context import RuntimeContext
from hermes.actors.supervisor import Supervisor
from hermes.messages import Source
from hermes.protocols import AgentChoice
from hermes.sanitize import scrub


class ApiConversations:
    """The agents that a client can choose, and branches of its conversations."""

    def __init__(self, context: RuntimeContext, supervisor: Supervisor) -> None:
        self._context = context
        self._supervisor = supervisor

    def list_agents(self, source: Source) -> Sequence[AgentChoice]:
        """Return the agents that a sender may choose; none if the host has no catalog of them."""
        self._supervisor.require_running()
        catalog = self._context.catalog
        return () if catalog is None else catalog.choices(source)

    async def list_branches(self, prefix: str, limit: int = 30) -> list[str]:
        """Return the session keys that begin with this text, last active first."""
        return await self._supervisor.store.list_branches(scrub(prefix), limit)
