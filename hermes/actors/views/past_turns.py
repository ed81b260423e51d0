"""Recorded turns: what an agent was given and answered, and the bytes of its requests."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import trio

from hermes.actors.context import RuntimeContext
from hermes.actors.intake import Intake
from hermes.actors.recording.repeating import copied_parts, input_of
from hermes.errors import CannotRebuild, HermesError, UnknownTurn
from hermes.messages import (
    CallRows,
    ConversationSettings,
    Inbound,
    PastTurn,
    RebuiltCall,
    Receipt,
    RecordedCall,
    Repeats,
    Source,
    TurnOfRows,
    file_id_of,
)

NOT_SENT = "the request was not sent to its end, so its bytes are unknown"
NO_MODEL_CLIENT = "this runtime cannot put requests together again"
REDACTED = "a secret was removed from it before it was stored"
MISSING = "{count} of its messages do not exist any more"
CHANGED = "a message, a file or the way in which requests are put together has changed since"


class PastTurns:
    """The part of `runtime.api` that reads recorded turns."""

    _context: RuntimeContext
    _intake: Intake

    async def past_turns(
        self, session_key: str, *, before: int | None = None, limit: int = 50
    ) -> list[PastTurn]:
        """Return the turns of a key's current conversation, the latest first.

        `before` is the id of the last one of the page before.
        """
        return await self._context.store.list_turns(session_key, before=before, limit=limit)

    async def turns_of_rows(self, row_ids: Sequence[int]) -> list[TurnOfRows]:
        """Return the recorded turns that have stored these rows."""
        return await self._context.store.turns_of_rows(row_ids) if row_ids else []

    async def past_turn(self, session_key: str, turn_id: int) -> PastTurn:
        """Return a turn of a key, with its messages. Raises `UnknownTurn`."""
        turn = await self._context.store.get_past_turn(session_key, turn_id)
        if turn is None:
            raise UnknownTurn(f"no turn {turn_id} of this conversation was recorded")
        return turn

    async def call_rows(self, session_key: str, turn_id: int, number: int) -> CallRows:
        """Return the messages that a request was made of. Raises `UnknownTurn`."""
        return (await self._call(session_key, turn_id, number))[1]

    async def rebuild_call(self, session_key: str, turn_id: int, number: int) -> RebuiltCall:
        """Put the request of a call together again, and compare its hash.

        `number` counts the calls of the turn from 0. Raises `UnknownTurn`.
        """
        call, rows = await self._call(session_key, turn_id, number)
        if self._context.rebuild_request is None:
            return RebuiltCall(None, "unknown", (NO_MODEL_CLIENT,))
        open_file = functools.partial(self._context.store.open_file, session_key=session_key)
        try:
            body = await self._context.rebuild_request(call, rows, open_file)
        except CannotRebuild as error:
            return RebuiltCall(None, "different", (str(error),))
        except HermesError as error:
            return RebuiltCall(None, "unknown", (str(error),))
        await trio.lowlevel.checkpoint()
        return _compared(call, rows, body)

    async def repeat_turn(  # noqa: PLR0913 - what a repetition may change
        self,
        session_key: str,
        turn_id: int,
        *,
        to: str,
        source: Source,
        text: str | None = None,
        instructions: str | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> Receipt:
        """Run a recorded turn again, in a branch before it that the new key `to` continues.

        The results of its tool calls are used for the same calls. `text` replaces the question;
        `instructions` are a system message for this turn; `agent` and `model` replace the settings
        of the conversation. Raises `UnknownTurn`, and `HistoryChanged` if `to` has messages.
        """
        self._intake.require_running()
        turn = await self.past_turn(session_key, turn_id)
        question = input_of(turn)
        if not question:
            raise UnknownTurn(f"turn {turn_id} does not begin with a message that still exists")
        store = self._context.store
        await store.open_branch(to, source, of=session_key, upto=question[0].id - 1)
        route = await store.get_route(session_key)
        kept = ConversationSettings.from_json(None if route is None else route.settings)
        await store.configure(
            to, agent=agent or kept.agent, model=model or kept.model, metadata=kept.metadata or None
        )
        parts = [part for row in question for part in row.parts or ()]
        files = await copied_parts(store, [p for p in parts if file_id_of(p)], session_key, to)
        said = "\n\n".join(row.content for row in question if row.content)
        inbound = Inbound(
            to,
            f"repeat:{turn_id}",
            said if text is None else text,
            source,
            parts=files or None,
            per_conversation=True,
            repeats=Repeats(session_key=session_key, turn_id=turn_id, instructions=instructions),
        )
        return (await self._intake.submit(inbound)).receipt

    async def _call(
        self, session_key: str, turn_id: int, number: int
    ) -> tuple[RecordedCall, CallRows]:
        found = await self._context.store.get_call_rows(session_key, turn_id, number)
        if found is None:
            raise UnknownTurn(f"no call {number} of turn {turn_id} was recorded")
        return found


def _compared(call: RecordedCall, rows: CallRows, body: bytes) -> RebuiltCall:
    if call.digest is None:
        return RebuiltCall(body, "unknown", (NOT_SENT,))
    if hashlib.sha256(body).hexdigest() == call.digest:
        return RebuiltCall(body, "same")
    reasons = [REDACTED] if call.redacted else []
    if rows.missing:
        reasons.append(MISSING.format(count=rows.missing))
    return RebuiltCall(body, "different", tuple(reasons or [CHANGED]))
