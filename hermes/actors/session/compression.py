"""Room for one conversation in the window of its model: when it is compressed, and what then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from hermes import user_code
from hermes.actors.compression.compressor import (
    Compressed,
    CompressionFailed,
    CompressionJob,
    CompressionResult,
    Trigger,
    prompt_tokens,
)
from hermes.actors.context import outbound
from hermes.actors.session.agent_cache import CachedTranscript
from hermes.actors.session.part import Part
from hermes.actors.session.running_turn import RunningTurn
from hermes.errors import HermesError, StoreFailed
from hermes.events import Notice, SessionMoved
from hermes.messages import InboxReply, Message, Skipped, Usage
from hermes.transcript.compaction import estimate_tokens

log = logging.getLogger(__name__)


class SessionCompression(Part):
    """Compresses the session an actor is at, and leads the actor to where it goes on."""

    __slots__ = ()

    async def make(self, turn: RunningTurn) -> list[str]:
        """Compress where the conversation has become too long; returns what the user must know."""
        if not self._context.compression.possible:
            return []
        held = await self._cache.transcript(await self._place.locate())
        self._place.seen(held.head)
        if self.taken(held) + estimate_tokens(turn.input) < self._limit:
            return []
        outcome = await self.compress_for(turn, "size")
        return [outcome.text] if isinstance(outcome, CompressionFailed) else []

    @property
    def _limit(self) -> int:
        return self._context.compression.limits.compress_at

    def taken(self, held: CachedTranscript) -> int:
        """How much of the window the conversation takes: counted by the provider, or estimated.

        An estimate knows nothing of the system prompt and the tools, and may be wrong about words:
        by how much it was too low at the last count, it is taken to be too low now.
        """
        session_id, counted, unseen = self._cache.counted
        if session_id == held.head.session_id:
            return max(held.tokens, counted)
        return held.tokens + unseen

    async def compress_for(self, turn: RunningTurn, occasion: Trigger) -> CompressionResult | None:
        """Compress before a turn, or before it is tried again."""
        rotation_id = f"{turn.turn_id}:{occasion}"
        return await self._unasked(rotation_id, occasion, waiting=turn.input, turn=turn)

    async def keep(self, session_id: str, call: Usage, turn: RunningTurn) -> None:
        """Note what the provider counted for a finished turn, and compress where it was much."""
        counted = prompt_tokens(call) + call.output_tokens
        unseen = self._cache.counted[2]
        if estimate := self._cache.estimate(session_id):
            # At most half: or a child would count as too long from its first message on.
            unseen = min(max(0, counted - estimate), self._limit // 2)
        self._cache.counted = (session_id, counted, unseen)
        if counted < self._limit or not self._context.compression.possible:
            return
        outcome = await self._unasked(f"{turn.turn_id}:after", "size")
        if not isinstance(outcome, CompressionFailed):
            return
        self._context.publish(self._key, turn.turn_id, Notice(outcome.text))
        said = outbound(turn.mails[-1], session_id, outcome.text, "notice")
        try:
            await self._context.store.answer(
                InboxReply(session_key=self._key, inbox_ids=(), outbox=said)
            )
        except StoreFailed:
            raise
        except HermesError as error:
            log.warning("after a turn of %s: %s", self._key, user_code.loggable(error))

    async def _unasked(
        self,
        rotation_id: str,
        occasion: Trigger,
        *,
        waiting: Sequence[Message] = (),
        turn: RunningTurn | None = None,
    ) -> CompressionResult | None:
        """Compress where nobody asked for it: what hinders it must not hinder the turn."""
        try:
            return await self.compress(rotation_id, occasion=occasion, waiting=waiting, turn=turn)
        except StoreFailed:
            raise
        except (HermesError, ValueError) as error:
            log.warning("%s was not compressed: %s", self._key, user_code.loggable(error))
            return None

    async def compress(  # noqa: PLR0913 - what a compression can be told
        self,
        rotation_id: str,
        *,
        occasion: Trigger = "asked",
        focus: str | None = None,
        keep_exchanges: int | None = None,
        waiting: Sequence[Message] = (),
        answer: Callable[[str], InboxReply] | None = None,
        turn: RunningTurn | None = None,
    ) -> CompressionResult:
        """Compress the current session, and go on in its child; `turn` is what runs meanwhile."""
        head = await self._place.locate(look=turn is None)
        outcome = await self._context.compression.run(
            CompressionJob(
                session_key=self._key,
                session_id=head.session_id,
                epoch=self._place.epoch,
                rotation_id=rotation_id,
                occasion=occasion,
                focus=focus,
                keep_exchanges=keep_exchanges,
                waiting=waiting,
                answer=answer,
            )
        )
        if isinstance(outcome, Compressed):
            rotated = outcome.rotated
            self._place.moved(rotated.epoch or self._place.epoch, rotated.head)
            self.left(head.session_id, rotated.session_id, turn)
        elif isinstance(outcome, Skipped) and outcome.winner is not None:
            self._place.forget()  # another process was quicker, and may have moved the key
            await self._place.locate()
        return outcome

    def left(self, old: str, new: str, turn: RunningTurn | None) -> None:
        """The conversation goes on in another session of its lineage."""
        self._cache.release(old)
        if turn is not None:
            turn.cell.session_id = new
        turn_id = None if turn is None else turn.turn_id
        self._context.publish(self._key, turn_id, SessionMoved(old, new, "compression"))
