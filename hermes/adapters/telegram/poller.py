"""What comes from Telegram, by long polling; only what is on disk is confirmed.

The offset of `getUpdates` is a confirmation, not a position: it is sent for what was taken until it
was heard, and then no more, so that nothing is confirmed which was never seen (after an idle week
numbers begin anew, perhaps lower). It is kept nowhere: after a restart Telegram sends again what
was not confirmed, and the store knows what it has.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import attrs
import msgspec
import trio

from hermes.actors.runtime import Runtime
from hermes.adapters.telegram.api import BotApi, Revoked, Unreadable
from hermes.adapters.telegram.bot_api_types import (
    MALFORMED,
    Post,
    Unread,
    Update,
    User,
    first_number,
    read_updates,
)
from hermes.adapters.telegram.inbound import GroupPolicy, Ignored, inbound_of, post_of
from hermes.adapters.telegram.sender import ChatTarget, Outgoing
from hermes.errors import (
    Draining,
    HermesError,
    NotAdmitted,
    OutcomeUnknown,
    Overloaded,
    RetryAfter,
    StoreFailed,
)
from hermes.messages import Inbound

log = logging.getLogger(__name__)

POLL_SECONDS = 50
BATCH = 100
ALBUMS = 1000
LONGEST_PAUSE = 60.0
LONGEST_WAIT = 3600.0
"""However long Telegram wants to be left alone, it is asked again after this."""
CONFIRM_SECONDS = 3600.0
"""A confirmation that is not heard for so long is given up: what it was for comes again."""
KINDS = ("message", "channel_post")
EDITED = ("edited_message", "edited_channel_post")
NOT_TAKEN = (
    "Too much is waiting here already, so your last message was not taken; send it again later."
)
_me = msgspec.json.Decoder(User).decode


@attrs.define(eq=False)
class Receiver:
    """One bot's updates, in order."""

    api: BotApi
    runtime: Runtime
    outgoing: Outgoing
    manners: GroupPolicy
    nursery: trio.Nursery
    expect: Callable[[Inbound], None] = lambda _: None
    """Hears of each message before it is submitted."""
    tell: Callable[[str | None], None] = lambda _: None
    """Hears in one sentence why nothing comes, and None once something does."""
    poll_seconds: int = POLL_SECONDS
    pause_seconds: float = 1.0
    """How long to wait after a failure; after the next one twice as long, and so on."""
    wall: Callable[[], float] = time.time
    _offset: int | None = None
    _taken_at: float = 0.0
    _limit: int = BATCH
    _failures: int = 0
    _trouble: str | None = None
    _albums: set[str] = attrs.Factory(set)
    _homes: dict[str, str | None] = attrs.Factory(dict)

    async def run(self) -> None:
        """Receive until the runtime ends, or until the token is not good any more."""
        try:
            me: User | None = None
            while True:
                try:
                    me = me or _me(await self.api.call("getMe", {}))
                    await self._receive(me)
                except (Draining, StoreFailed, Revoked):
                    raise
                except (*MALFORMED, HermesError) as error:
                    await self._rest(error)
        except Draining:
            log.info("the runtime ends: no more messages are taken from Telegram")
        except Revoked as revoked:
            self._note(str(revoked))

    async def _rest(self, error: Exception) -> None:
        """Something does not work at present; nothing is lost by waiting."""
        if isinstance(error, RetryAfter):
            if error.seconds > LONGEST_PAUSE:
                self._note(str(error))
            await trio.sleep(min(error.seconds, LONGEST_WAIT))
            return
        self._note(str(error))
        await trio.sleep(min(self.pause_seconds * 2.0**self._failures, LONGEST_PAUSE))
        self._failures = min(self._failures + 1, 20)

    def _note(self, trouble: str | None) -> None:
        """Say once what is wrong, and once that it is over."""
        if trouble == self._trouble:
            return
        if trouble is None:
            log.warning("messages come from Telegram again")
        else:
            log.error("%s", trouble)
        self._trouble = trouble
        self.tell(trouble)

    # Polling

    async def _receive(self, me: User) -> None:
        """The next updates, one after the other; the offset follows what is on disk."""
        updates = await self._poll()
        self._note(None)
        for update in updates:
            await self._take(update, me)
            self._offset, self._taken_at = update.update_id + 1, self.wall()
        self._failures = 0

    async def _poll(self) -> list[Update | Unread]:
        # By the wall's clock: the other one may stop while a computer sleeps.
        if not 0.0 <= self.wall() - self._taken_at <= CONFIRM_SECONDS:
            self._offset = None
        params = {
            "offset": self._offset,
            "limit": self._limit,
            "timeout": self.poll_seconds,
            "allowed_updates": KINDS + EDITED if self.manners.edits else KINDS,
        }
        try:
            answer = await self.api.call("getUpdates", params, wait=self.poll_seconds)
            updates = read_updates(answer)
        except Unreadable as unreadable:
            return self._unreadable(unreadable.body)
        except MALFORMED:
            raise OutcomeUnknown("Telegram's answer to getUpdates is no list") from None
        self._offset, self._limit = None, BATCH
        return sorted(updates, key=lambda update: update.update_id)

    def _unreadable(self, body: bytes) -> list[Update | Unread]:
        """One update spoils an answer: ask for one at a time, until it is that one's turn."""
        number = first_number(body)
        if self._limit > 1 or number is None:
            self._limit = 1
            raise OutcomeUnknown("Telegram's answer to getUpdates cannot be read")
        return [Unread(number, "it is no JSON that can be read")]

    # Updates

    async def _take(self, update: Update | Unread, me: User) -> None:
        """Have an update on disk, or know that nobody needs it."""
        if isinstance(update, Unread):
            log.warning("update %d is skipped: %s", update.update_id, update.why)
            return
        post, _ = post_of(update)
        home = None
        if post is not None:
            await self._learn_move(post, me)
            home = await self._home(post, me)
        if len(self._albums) > ALBUMS:
            self._albums.clear()
        said = inbound_of(update, me, self.manners, self._albums, home)
        if isinstance(said, Ignored):
            log.debug("update %d is ignored: %s", update.update_id, said.why)
        else:
            await self._submit(said)

    async def _submit(self, inbound: Inbound) -> None:
        self.expect(inbound)
        source = inbound.source
        try:
            await self.runtime.submit(inbound)
        except NotAdmitted as refusal:
            log.debug("a message was not admitted: %s", refusal)  # the door has a log of its own
        except Overloaded:
            spot = ChatTarget(str(source.chat_id), source.thread_id)
            self.nursery.start_soon(self.outgoing.notice, spot, NOT_TAKEN)
        except ValueError as error:
            log.warning("message %s is skipped: %s", inbound.event_id, error)

    # Groups whose number changes

    async def _learn_move(self, post: Post, me: User) -> None:
        """A group became a supergroup: what was said there goes on under the new number."""
        if post.migrate_to_chat_id is None:
            return
        old, new = str(post.chat.id), str(post.migrate_to_chat_id)
        await self.runtime.remember(_moved(me, new), old)
        self._homes[new] = old
        self.outgoing.move(old, new)

    async def _home(self, post: Post, me: User) -> str | None:
        """The number that the conversations of this group began under."""
        chat = str(post.chat.id)
        if post.chat.type != "supergroup":
            return None
        if chat not in self._homes:
            self._homes[chat] = await self.runtime.recall(_moved(me, chat))
        return self._homes[chat]


def _moved(me: User, chat: str) -> str:
    return f"telegram:{me.id}:moved:{chat}"
