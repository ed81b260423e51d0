"""Receives updates by long polling; an update is confirmed only after it is on disk.

The `offset` of `getUpdates` is a confirmation, not a position. It is sent for processed updates
until a poll succeeds, and then no more, so that nothing unseen is confirmed: after an idle week
Telegram may start again with lower update ids. The offset is not stored. After a restart Telegram
sends unconfirmed updates again, and the store detects duplicates.

While a file is downloaded, its update and those after it stay unconfirmed, so Telegram sends them
with each poll. The poller then polls twice a second and processes those that are new.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import attrs
import msgspec
import trio
from msgspec.structs import replace

from hermes.actors.runtime import Runtime
from hermes.adapters.telegram.api import BotApi, Revoked, Unreadable
from hermes.adapters.telegram.bot_api_types import (
    MALFORMED,
    InvalidUpdate,
    Post,
    PressedButton,
    Update,
    User,
    decode_updates,
    first_update_id,
)
from hermes.adapters.telegram.download import Downloads
from hermes.adapters.telegram.inbound import (
    GroupPolicy,
    Ignored,
    inbound_of,
    post_of,
    pressed_inbound,
)
from hermes.adapters.telegram.media import MAX_DOWNLOAD, RemoteFile, file_of
from hermes.adapters.telegram.ordering import Confirmations, Lanes, Position
from hermes.adapters.telegram.sender import ChatTarget, Sender
from hermes.background import start_soon
from hermes.errors import (
    ActorStopped,
    AttachmentRefused,
    Draining,
    HermesError,
    NotAdmitted,
    OutcomeUnknown,
    Overloaded,
    RetryAfter,
    StoreFailed,
)
from hermes.messages import Attachment, Inbound
from hermes.retry import Backoff

log: logging.Logger = logging.getLogger(__name__)

POLL_TIMEOUT = 50
BATCH = 100
MAX_ALBUMS = 1000
DOWNLOADING_INTERVAL = 0.5
"""Seconds between two polls while files are downloaded."""
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
    max_file_size: int = MAX_DOWNLOAD
    """The largest file to download, in bytes."""
    wall: Callable[[], float] = time.time
    _backoff: Backoff = attrs.field(
        init=False,
        default=attrs.Factory(lambda it: Backoff(it.retry_delay, MAX_RETRY_DELAY), takes_self=True),
    )
    _confirmations: Confirmations = attrs.field(init=False, factory=Confirmations)
    _lanes: Lanes = attrs.field(
        init=False,
        default=attrs.Factory(lambda it: Lanes(it.nursery, it.processed), takes_self=True),
    )
    _downloads: Downloads = attrs.field(
        init=False,
        default=attrs.Factory(
            lambda it: Downloads(api=it.api, limit=it.max_file_size, retry_delay=it.retry_delay),
            takes_self=True,
        ),
    )
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
        """Poll once and process the new updates in order."""
        updates = await self._poll()
        self._report(None)
        for update in updates:
            update_id = update.update_id
            if self._confirmations.is_done(update_id) or update_id in self._lanes.running:
                continue
            await self._process(update, bot)
            if update_id not in self._lanes.running:
                self.processed(update_id)
        await self._lanes.wait(DOWNLOADING_INTERVAL)
        self._backoff.reset()

    def processed(self, update_id: int) -> None:
        """Note that an update is on disk or needs no answer."""
        self._confirmations.done(update_id)
        self._processed_at = self.wall()

    async def _poll(self) -> list[Update | InvalidUpdate]:
        # The wall clock, because the monotonic one may stop while a computer sleeps.
        if not 0.0 <= self.wall() - self._processed_at <= CONFIRM_TIMEOUT:
            self._confirmations.clear()
        offset = self._confirmations.offset(self._lanes.running)
        params = {
            "offset": offset,
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
        numbers = [update.update_id for update in updates]
        self._confirmations.receive(numbers, offset, all_open=self._limit == BATCH)
        self._limit = BATCH
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
        inbound = inbound_of(
            update, bot, self.group_policy, self._albums, original_id, self.max_file_size
        )
        if isinstance(inbound, Ignored) or post is None:
            why = inbound.why if isinstance(inbound, Ignored) else "no message"
            log.debug("update %d is ignored: %s", update.update_id, why)
        else:
            await self._submit_post(update.update_id, inbound, post)

    async def _submit_post(self, update_id: int, inbound: Inbound, post: Post) -> None:
        """Submit a message, or begin to if it has a file or follows one that has."""
        file, _ = file_of(post, self.max_file_size)
        key, album = inbound.session_key, post.media_group_id
        if file is not None:
            self._lanes.start(
                update_id, key, lambda position: self._submit_file(inbound, file, position), album
            )
        elif album or self._lanes.is_busy(key):
            self._lanes.start(
                update_id, key, lambda position: self._submit_at(inbound, position), album
            )
        else:
            await self._submit(inbound)

    async def _submit_at(self, inbound: Inbound, position: Position) -> bool:
        """Submit a message after those before it. Returns whether it was accepted."""
        await position.reach()
        return await self._submit(inbound)

    async def _submit_file(self, inbound: Inbound, file: RemoteFile, position: Position) -> None:
        """Submit a message with a file, which is downloaded if the sender is admitted.

        If the file is refused, the message is submitted with a note instead.
        """
        key, event_id, source = inbound.session_key, inbound.event_id, inbound.source
        if await self.runtime.receipt_of(key, event_id, source=source) is not None:
            return  # Telegram has sent it again
        failed = self.runtime.texts.file_not_downloaded
        async with self._downloads.open(
            file, position.reach, lambda: self._notify(inbound, failed)
        ) as download:
            try:
                await self._submit(inbound, Attachment(chunks=download, name=file.name))
            except AttachmentRefused as refusal:
                reason = str(refusal)
            else:
                return
        self._notify(inbound, self.runtime.texts.file_refused.format(error=reason))
        text = f"{inbound.text} {file.note(reason)}".strip()
        await self._submit_at(replace(inbound, text=text), position)

    async def _press(self, update: Update, bot: User) -> None:
        """Submit the command of a button that was pressed."""
        button = update.callback_query
        post = None if button is None else button.message
        original_id = None if post is None else await self._original_id(post, bot)
        inbound = pressed_inbound(update, bot, self.group_policy, original_id)
        if button is None or post is None:
            log.debug("update %d is ignored: its message is unknown", update.update_id)
        elif isinstance(inbound, Ignored):
            log.debug("update %d is ignored: %s", update.update_id, inbound.why)
            self._confirm_press(button, post, accepted=False)
        elif self._lanes.is_busy(inbound.session_key):

            async def submit(position: Position) -> None:
                self._confirm_press(button, post, accepted=await self._submit_at(inbound, position))

            self._lanes.start(update.update_id, inbound.session_key, submit)
        else:
            self._confirm_press(button, post, accepted=await self._submit(inbound))

    def _confirm_press(self, button: PressedButton, post: Post, *, accepted: bool) -> None:
        target, message_id = ChatTarget(str(post.chat.id)), post.message_id if accepted else None
        start_soon(self.nursery, self.sender.press, target, button.id, message_id)

    async def _submit(self, inbound: Inbound, attachment: Attachment | None = None) -> bool:
        """Submit a message. Returns whether it was accepted. Raises `AttachmentRefused`."""
        self.on_message(inbound)
        try:
            if attachment is None:
                await self.runtime.submit(inbound)
            else:
                await self.runtime.submit(inbound, attachments=[attachment])
        except NotAdmitted as refusal:
            log.debug("a message was not admitted: %s", refusal)  # access control logs it too
        except Overloaded:
            self._notify(inbound, self.runtime.texts.overloaded)
        except AttachmentRefused:
            raise
        except ValueError as error:
            log.warning("message %s is skipped: %s", inbound.event_id, error)
        else:
            return True
        return False

    def _notify(self, inbound: Inbound, text: str) -> None:
        """Tell the sender of a message something, if possible."""
        target = ChatTarget(str(inbound.source.chat_id), inbound.source.thread_id)
        start_soon(self.nursery, self.sender.notice, target, text)

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
