"""What adapters of API clients need to know about conversations, and their branches."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.actors.context import RuntimeContext
from hermes.actors.intake import Intake
from hermes.actors.supervisor import Supervisor
from hermes.messages import Message, Source
from hermes.protocols import AgentChoice
from hermes.sanitize import scrub
from hermes.session_keys import require_encodable


class ApiConversations:
    """The agents that a client can choose, and branches of its conversations."""

    def __init__(self, context: RuntimeContext, supervisor: Supervisor, intake: Intake) -> None:
        self._context = context
        self._supervisor = supervisor
        self._intake = intake

    def list_agents(self, source: Source) -> Sequence[AgentChoice]:
        """Return the agents that a sender may choose; none if the host has no catalog of them."""
        self._supervisor.require_running()
        catalog = self._context.catalog
        return () if catalog is None else catalog.choices(source)

    async def open_branch(
        self,
        session_key: str,
        source: Source,
        rows: Sequence[Message] = (),
        *,
        of: str | None = None,
        upto: int = 0,
    ) -> int:
        """Start a conversation with earlier messages; returns the id of the last one.

        These are the messages up to the id `upto` of the session that has it, and then `rows`. The
        new session is a branch of that one, or of the current one of the key `of` if `upto` is 0.
        Raises `HistoryChanged` if the conversation has messages.
        """
        require_encodable(session_key)
        self._intake.require_running()
        store = self._supervisor.store
        return await store.open_branch(session_key, source, rows, of=of, upto=upto)

    async def list_branches(self, prefix: str, limit: int = 30) -> list[str]:
        """Return the session keys that begin with this text, last active first."""
        return await self._supervisor.store.list_branches(scrub(prefix), limit)
