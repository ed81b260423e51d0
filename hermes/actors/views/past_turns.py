"""Recorded turns: what an agent was given and answered, and the bytes of its requests."""

from __future__ import annotations

import functools
import hashlib

import trio

from hermes.actors.context import RuntimeContext
from hermes.errors import CannotRebuild, HermesError, UnknownTurn
from hermes.messages import CallRows, PastTurn, RebuiltCall, RecordedCall

NOT_SENT = "the request was not sent to its end, so its bytes are unknown"
NO_MODEL_CLIENT = "this runtime cannot put requests together again"
REDACTED = "a secret was removed from it before it was stored"
MISSING = "{count} of its messages do not exist any more"
CHANGED = "a message, a file or the way in which requests are put together has changed since"


class PastTurns:
    """The part of `runtime.api` that reads recorded turns."""

    _context: RuntimeContext

    async def past_turns(
        self, session_key: str, *, before: int | None = None, limit: int = 50
    ) -> list[PastTurn]:
        """Return the turns of a key's current conversation, the latest first.

        `before` is the id of the last one of the page before.
        """
        return await self._context.store.list_turns(session_key, before=before, limit=limit)

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
