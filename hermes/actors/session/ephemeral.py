"""Turns that belong to no conversation: requests of API clients that are not stored.

Such a request has a session_key of its own. Its actor runs one turn and ends, with its agent. The
history is that of the request, nothing is added to a transcript, and nothing is compressed, titled
or announced to hooks. `store.responses.erasure` deletes what is left after an hour.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio
from msgspec.structs import replace

from hermes.actors.context import RuntimeContext
from hermes.actors.session.actor import SessionActor
from hermes.actors.session.running_turn import RunningTurn
from hermes.actors.session.turn import Attempt, TurnRunner
from hermes.messages import (
    Committed,
    ConversationSettings,
    Discarded,
    InboxRow,
    Reply,
    TurnCommit,
)
from hermes.protocols import Store


class EphemeralActor(SessionActor):
    """The actor of one request."""

    __slots__ = ()

    def __init__(self, key: str, context: RuntimeContext, store: Store | None = None) -> None:
        super().__init__(key, context, store)
        self.runner: TurnRunner = EphemeralRunner(self.state, self.inbox)

    @property
    def has_session(self) -> bool:
        """False: there is no session that hooks could be told about."""
        return False

    async def _run_turn(self, rows: Sequence[InboxRow], *, retry: bool = False) -> None:
        await super()._run_turn(rows, retry=retry)
        if not self.inbox.known:  # the turn was not discarded
            # There is no checkpoint between this and the end of the actor.
            self.inbox.mailbox.close()


class EphemeralRunner(TurnRunner):
    """Runs the turn of a request with its own history, and commits only its reply and usage."""

    __slots__ = ()

    async def _answer(self, turn: RunningTurn, *, retry: bool) -> tuple[Attempt, list[str]]:
        try:
            attempt = await self._attempt(turn, await self._state.load(), retry=retry)
        finally:
            turn.close()
            self.turn: RunningTurn | None = None
            self._scope: trio.CancelScope | None = None
            self._stopped: bool = False
        self._state.cache.drop_abandoned()
        return attempt, []

    async def _run_agent(self, turn: RunningTurn, attempt: Attempt) -> None:
        request = turn.rows[0].inbound.request
        if request is not None:
            turn.history = request.history
            if request.agent is not None:
                turn.stored_settings = ConversationSettings(agent=request.agent).to_json()
        await super()._run_agent(turn, attempt)

    async def _commit(self, commit: TurnCommit) -> Committed | Discarded:
        reply = commit.reply and replace(commit.reply, approvals=())  # nobody can decide later
        unstored = replace(commit, rows=(), rotated_to=None, stored=False, reply=reply)
        return await super()._commit(unstored)

    async def _after_commit(
        self, turn: RunningTurn, done: Committed, commit: TurnCommit, reply: Reply
    ) -> None:
        """Nothing: there is no session to compress or to title."""
