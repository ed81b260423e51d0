"""Receives updates by long polling; an update is confirmed only after it is on disk.

The `offset` of `getUpdates` is a confirmation, not a position. It is sent for processed updates
until a poll succeeds, and then no more, so that nothing unseen is confirmed: after an idle week
Telegram may start again with lower update ids. The offset is not stored. After a restart Telegram
sends unconfirmed updates again, and the store detects duplicates.
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
    InvalidUpdate,
    Post,
    Update,
    User,
    decode_updates,
    first_update_id,
)
from hermes.adapters.telegram.inbound import (
    GroupPolicy,
    Ignored,
    inbound_of,
    post_of,
    pressed_inbound,
)
from hermes.adapters.telegram.sender import ChatTarget, Sender
from hermes.background import start_soon
from hermes.errors import (
    ActorStopped,
    Draining,
    HermesError,
    NotAdmitted,
    OutcomeUnknown,
    Overloaded,
    RetryAfter,
    StoreFailed,
)
from hermes.messages import Inbound
from hermes.retry import Backoff

log: logging.Logger = logging.getLogger(__name__)

POLL_TIMEOUT = 50
BATCH = 100
MAX_ALBUMS = 1000
MAX_RETRY_DELAY = 60.0
MAX_WAIT = 3600.0
"""However long Telegram asks to wait, polling continues after this time."""
CONFIRM_TIMEOUT = 3600.0
"""A confirmation that fails for so long is dropped; its updates then arrive again."""
KINDS = ("message", "channel_post", "callback_query")
EDITED_KINDS = ("edited_message", "edited_channel_post")
_decode_user = msgspec.json.Decoder(User).decode


def _ignore(_: object) -> None:
    pass


@attrs.define(eq=False, kw_only=True)
class Poller:
    """Receives the updates of one bot, in order."""

    api: BotApi
    runtime: Runtime
    sender: Sender
    group_policy: GroupPolicy
    nursery: trio.Nursery
    on_message: Callable[[Inbound], None] = _ignore
    """Called with each message before it is submitted."""
    on_problem: Callable[[str | None], None] = _ignore
    """Called with one sentence when receiving fails, and with None when it works again."""
    poll_timeout: int = POLL_TIMEOUT
    retry_delay: float = 1.0
    """Seconds before the first retry after a failure; doubled each time."""
    wall: Callable[[], float] = time.time
    _backoff: Backoff = attrs.field(
        init=False,
        default=attrs.Factory(lambda it: Backoff(it.retry_delay, MAX_RETRY_DELAY), takes_self=True),
    )
    _offset: int | None = attrs.field(init=False, default=None)
    _processed_at: float = attrs.field(init=False, default=0.0)
    _limit: int = attrs.field(init=False, default=BATCH)
    _problem: str | None = attrs.field(init=False, default=None)
    _albums: set[str] = attrs.field(init=False, factory=set)
    _original_ids: dict[str, str | None] = attrs.field(init=False, factory=dict)

    async def run(self) -> None:
        """Receive until the runtime drains or the token is rejected."""
        try:
            bot: User | None = None
            while True:
                try:
                    bot = bot or _decode_user(await self.api.call("getMe", {}))
                    await self._receive(bot)
                except (Draining, ActorStopped, StoreFailed, Revoked):
                    raise
                except (*MALFORMED, HermesError) as error:
                    await self._wait_after(error)
        except (Draining, ActorStopped):
            log.info("the runtime is ending: no more messages are received from Telegram")
        except Revoked as revoked:
            self._report(str(revoked))

    async def _wait_after(self, error: Exception) -> None:
        """Wait before the next poll; Telegram keeps the updates."""
        if isinstance(error, RetryAfter):
            if error.seconds > MAX_RETRY_DELAY:
                self._report(str(error))
            await trio.sleep(min(error.seconds, MAX_WAIT))
            return
        self._report(str(error))
        await trio.sleep(self._backoff.next())

    def _report(self, problem: str | None) -> None:
        """Log a problem once, and once that it is over."""
        if problem == self._problem:
            return
        if problem is None:
            log.warning("receiving messages from Telegram again")
        else:
            log.error("%s", problem)
        self._problem = problem
        self.on_problem(problem)

    # Polling

    async def _receive(self, bot: User) -> None:
        """Poll once and process the updates in order."""
        updates = await self._poll()
        self._report(None)
        for update in updates:
            await self._process(update, bot)
            self._offset, self._processed_at = update.update_id + 1, self.wall()
        self._backoff.reset()

    async def _poll(self) -> list[Update | InvalidUpdate]:
        # The wall clock, because the monotonic one may stop while a computer sleeps.
        if not 0.0 <= self.wall() - self._processed_at <= CONFIRM_TIMEOUT:
            self._offset = None
        params = {
            "offset": self._offset,
            "limit": self._limit,
            "timeout": self.poll_timeout,
            "allowed_updates": KINDS + EDITED_KINDS if self.group_policy.edits else KINDS,
        }
        try:
            result = await self.api.call("getUpdates", params, wait=self.poll_timeout)
            updates = decode_updates(result)
        except Unreadable as unreadable:
            return self._skip_unreadable(unreadable.body)
        except MALFORMED:
            raise OutcomeUnknown("the result of getUpdates is not a list") from None
        self._offset, self._limit = None, BATCH
        return sorted(updates, key=lambda update: update.update_id)

    def _skip_unreadable(self, body: bytes) -> list[Update | InvalidUpdate]:
        """Handle a response that cannot be decoded because of one update.

        Poll for single updates until that one is alone in a response, then skip it.
        """
        update_id = first_update_id(body)
        if self._limit > 1 or update_id is None:
            self._limit = 1
            raise OutcomeUnknown("the response of Telegram to getUpdates cannot be decoded")
        return [InvalidUpdate(update_id, "it is not valid JSON")]

    # Updates

    async def _process(self, update: Update | InvalidUpdate, bot: User) -> None:
        """Submit an update; when this returns, it is on disk or needs no answer."""
        if isinstance(update, InvalidUpdate):
            log.warning("update %d is skipped: %s", update.update_id, update.why)
            return
        if update.callback_query is not None:
            await self._press(update, bot)
            return
        post, _ = post_of(update)
        original_id = None
        if post is not None:
            await self._record_migration(post, bot)
            original_id = await self._original_id(post, bot)
        if len(self._albums) > MAX_ALBUMS:
            self._albums.clear()
        inbound = inbound_of(update, bot, self.group_policy, self._albums, original_id)
        if isinstance(inbound, Ignored):
            log.debug("update %d is ignored: %s", update.update_id, inbound.why)
        else:
            await self._submit(inbound)

    async def _press(self, update: Update, bot: User) -> None:
        """Submit the command of a button that was pressed."""
        button = update.callback_query
        post = None if button is None else button.message
        original_id = None if post is None else await self._original_id(post, bot)
        inbound = pressed_inbound(update, bot, self.group_policy, original_id)
        if button is None or post is None:
            log.debug("update %d is ignored: its message is unknown", update.update_id)
            return
        accepted = False
        if isinstance(inbound, Ignored):
            log.debug("update %d is ignored: %s", update.update_id, inbound.why)
        else:
            accepted = await self._submit(inbound)
        target, message_id = ChatTarget(str(post.chat.id)), post.message_id if accepted else None
        start_soon(self.nursery, self.sender.press, target, button.id, message_id)

    async def _submit(self, inbound: Inbound) -> bool:
        """Submit a message. Returns whether it was accepted."""
        self.on_message(inbound)
        source = inbound.source
        try:
            await self.runtime.submit(inbound)
        except NotAdmitted as refusal:
            log.debug("a message was not admitted: %s", refusal)  # access control logs it too
        except Overloaded:
            target = ChatTarget(str(source.chat_id), source.thread_id)
            start_soon(self.nursery, self.sender.notice, target, self.runtime.texts.overloaded)
        except ValueError as error:
            log.warning("message %s is skipped: %s", inbound.event_id, error)
        else:
            return True
        return False

    # Groups that become supergroups, with a new id

    async def _record_migration(self, post: Post, bot: User) -> None:
        """Record the new id of a group, so that its conversations continue under it."""
        if post.migrate_to_chat_id is None:
            return
        old, new = str(post.chat.id), str(post.migrate_to_chat_id)
        await self.runtime.adapter_state.set(_migration_name(bot, new), old)
        self._original_ids[new] = old
        self.sender.migrate(old, new)

    async def _original_id(self, post: Post, bot: User) -> str | None:
        """Return the id under which the conversations of this group started, if it has changed."""
        chat = str(post.chat.id)
        if post.chat.type != "supergroup":
            return None
        if chat not in self._original_ids:
            self._original_ids[chat] = await self.runtime.adapter_state.get(
                _migration_name(bot, chat)
            )
        return self._original_ids[chat]


def _migration_name(bot: User, chat: str) -> str:
    return f"telegram:{bot.id}:moved:{chat}"
