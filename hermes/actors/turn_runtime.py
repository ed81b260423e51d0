"""What agents and tools may do with the runtime during a turn: `Turn.runtime`."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, Unpack

import attrs

from hermes.actors.conversation import Conversation
from hermes.actors.intake import MessageOptions
from hermes.errors import HermesError
from hermes.messages import Reply, Source
from hermes.texts import Texts


class Ask(Protocol):
    """`Runtime.ask`, with the options that a turn may use."""

    def __call__(
        self, session_key: str, text: str, **options: Unpack[MessageOptions]
    ) -> Awaitable[Reply]: ...


@attrs.frozen
class RuntimeOfTurn:
    """The runtime as the turns of one conversation see it.

    Verbs of the conversation that would wait for its running turn raise `WaitCircle`.
    """

    conversation: Conversation
    texts: Texts
    _ask: Ask
    _may_ask: bool

    async def ask(
        self,
        session_key: str,
        text: str,
        *,
        source: Source | None = None,
        event_id: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - threads cannot cancel it
    ) -> Reply:
        """Send a text to another conversation and wait for the reply. See `TurnRuntime.ask`."""
        if not self._may_ask and session_key != self.conversation.session_key:
            raise HermesError(
                "agents may not ask other conversations: set agents_may_ask in the Config to let "
                "them"
            )
        return await self._ask(
            session_key, text, source=source, event_id=event_id, timeout=timeout, commands=False
        )
