"""What the bot says: replies, previews of replies, and signs that it is at work.

A reply has exactly one final message. Where a preview of it is shown, that is edited into the
final, which does no harm if it is done twice; else it is sent. A preview whose message is not known
for sure is never shown a second time.
"""

from __future__ import annotations

import logging
import math
import re

import attrs
import msgspec
import trio

from hermes.adapters.rate_limit import RateLimiter
from hermes.adapters.telegram.api import BotApi, Refused, Revoked, Unreachable
from hermes.adapters.telegram.bot_api_types import Int
from hermes.adapters.telegram.inbound import GENERAL
from hermes.adapters.telegram.markdown import markdown_v2, shown
from hermes.errors import HermesError, MessageRefused, RetryAfter, Unsendable
from hermes.messages import JsonObject, OutboxRow

log = logging.getLogger(__name__)

LONGEST = 4096
RECOVERED = "_You may have seen this before:_\n"
UNFINISHED = " ▌"
REMEMBERED = 10_000
SHOWN_SECONDS = 5.0
MOVES = 3
FRESH_SECONDS = 1.0
"""For how long a call that was allowed may be made without asking again."""
REVOKED_SECONDS = 3600.0
FORBIDDEN = 403
GONE = (
    "chat not found", "thread not found", "topic_closed", "topic_deleted", "no rights to send",
    "not enough rights", "chat_write_forbidden",
)  # fmt: skip
"""What Telegram says, besides 403, where nothing can be sent to a chat or topic."""


class _Sent(msgspec.Struct):
    message_id: Int


_NUMBER = re.compile("-?[0-9]{1,18}", re.ASCII)
_message = msgspec.json.Decoder(_Sent).decode


@attrs.frozen
class ChatTarget:
    """Where something is said."""

    chat_id: str
    thread_id: str | None = None

    @property
    def is_group(self) -> bool:
        """Groups and channels have negative numbers."""
        return self.chat_id.startswith("-")


@attrs.define
class _Preview:
    """A message that shows what a turn has said so far."""

    message_id: int
    text: str


class Outgoing:
    """All that is sent, within the rates that Telegram allows."""

    def __init__(self, api: BotApi, governor: RateLimiter) -> None:
        self._api = api
        self._governor = governor
        self._moved: dict[str, str] = {}
        self._allowed: dict[ChatTarget, float] = {}
        """When a reply was last allowed that is not yet on its way."""
        self._previews: dict[int, _Preview | None] = {}
        self._abandoned: dict[int, int] = {}
        """Messages of previews that cannot be edited into a final."""
        self._noticed: set[str] = set()
        self._failures = 0

    def move(self, old: str, new: str) -> None:
        """A group has another number now."""
        if self._moved.get(old) != new:
            log.warning("the group %s is %s now; what is said to it goes there", old, new)
            self._moved[old] = new

    # Replies

    async def ready(self, row: OutboxRow) -> None:
        """Wait until a reply may be said. What has to be called before it is called now."""
        spot = _spot(row)
        if not _is_shown(row):
            return
        await self._clear(row, spot)
        await self._governor.wait(self._chat(spot), group=spot.is_group)
        self._allowed[spot] = trio.current_time()

    async def send(self, row: OutboxRow) -> None:
        """Say a reply: into the preview of its turn, where there is one."""
        spot = _spot(row)
        if not _is_shown(row):
            return
        await self._clear(row, spot)
        text, is_final = str(row.body["text"]), _is_final(row)
        preview = self._previews.get(row.turn_id) if is_final else None
        try:
            if preview is None or not await self._finish(spot, preview, text):
                await self._say(spot, (RECOVERED if row.recovered else "") + text, row)
        except (Revoked, Unreachable, Refused) as error:
            raise self._failed(error) from None
        self._failures = 0
        if is_final:
            self._previews.pop(row.turn_id, None)

    async def _clear(self, row: OutboxRow, spot: ChatTarget) -> None:
        """Take away a preview that the final cannot be made of."""
        if _is_final(row) and (abandoned := self._abandoned.pop(row.turn_id, None)):
            await self._tried("deleteMessage", spot, {"message_id": abandoned})

    def _failed(self, error: Revoked | Unreachable | Refused) -> HermesError:
        """What a failure means to who has something to send."""
        if isinstance(error, Revoked):
            # It may be sent when there is a new token: nothing is lost, and nobody tries in vain.
            return RetryAfter(str(error), REVOKED_SECONDS)
        if isinstance(error, Unreachable):
            self._failures = min(self._failures + 1, 6)
            return RetryAfter(str(error), 2.0**self._failures)
        gone = error.code == FORBIDDEN or any(word in error.why for word in GONE)
        return Unsendable(str(error)) if gone else MessageRefused(str(error))

    async def _finish(self, spot: ChatTarget, preview: _Preview, text: str) -> bool:
        """Make the final of a preview; False where the preview is gone."""
        try:
            number = {"message_id": preview.message_id}
            await self._formatted("editMessageText", spot, text, number)
        except Refused as refusal:
            if "not modified" in refusal.why:
                return True
            if "message to edit not found" in refusal.why or "can't be edited" in refusal.why:
                return False
            raise
        return True

    async def _say(self, spot: ChatTarget, text: str, row: OutboxRow) -> None:
        extra: JsonObject = {}
        answered = str(row.body.get("reply_to"))
        if spot.is_group and not row.part and _NUMBER.fullmatch(answered):
            extra["reply_parameters"] = {
                "message_id": int(answered),
                "allow_sending_without_reply": True,
            }
        await self._formatted("sendMessage", spot, text, extra)

    async def _formatted(self, method: str, spot: ChatTarget, text: str, extra: JsonObject) -> None:
        """Say it with its formatting, and plainly where Telegram does not understand that."""
        styled = {**extra, "text": markdown_v2(text), "parse_mode": "MarkdownV2"}
        try:
            await self._call(method, spot, styled)
        except Refused as refusal:
            if "can't parse entities" not in refusal.why:
                raise
            log.warning("a reply is sent without its formatting: %s", refusal)
            await self._call(method, spot, {**extra, "text": text})

    async def _call(self, method: str, spot: ChatTarget, params: JsonObject) -> msgspec.Raw:
        """Wait for our turn, and call; again where a group has moved meanwhile."""
        for _ in range(MOVES):
            chat = self._chat(spot)
            # Between the two a disk may have been full for long: then others were allowed as well.
            if trio.current_time() - self._allowed.pop(spot, -math.inf) > FRESH_SECONDS:
                await self._governor.wait(chat, group=spot.is_group)
            try:
                return await self._post(method, chat, spot, params)
            except Refused as refusal:
                if refusal.migrate_to is None:
                    raise
                self.move(spot.chat_id, str(refusal.migrate_to))
        raise Unsendable(f"the group {spot.chat_id} moves on and on")

    def _chat(self, spot: ChatTarget) -> str:
        return self._moved.get(spot.chat_id, spot.chat_id)

    async def _post(
        self, method: str, chat: str, spot: ChatTarget, params: JsonObject
    ) -> msgspec.Raw:
        """Call, without a wait."""
        thread = None if spot.thread_id in {None, GENERAL} else spot.thread_id
        place: JsonObject = {"chat_id": int(chat)}
        if thread is not None and "message_id" not in params:
            place["message_thread_id"] = int(thread)
        try:
            return await self._api.call(method, {**place, **params})
        except RetryAfter as wait:
            self._governor.pause(wait.seconds, chat)
            raise

    # What may be left out

    async def preview(self, spot: ChatTarget, turn_id: int, text: str) -> None:
        """Show what a turn has said so far, if there is room for it."""
        text = shown(text).strip()[: LONGEST // 2]
        known = self._previews.get(turn_id)
        chat = self._chat(spot)
        lost = known is None and turn_id in self._previews
        stale = known is not None and known.text == text
        if not text or lost or stale or not self._governor.try_now(chat, group=spot.is_group):
            return
        try:
            await self._show(spot, chat, turn_id, text)
        except (Refused, RetryAfter):  # surely not shown
            self._abandoned.pop(turn_id, None)
            del self._previews[turn_id]
            if known is not None:
                self._previews[turn_id] = known
            raise

    async def _show(self, spot: ChatTarget, chat: str, turn_id: int, text: str) -> None:
        """Send or edit a preview. It counts as lost until it is known what came of it.

        A lost one must not become two, and an edit that is still on its way could undo the final.
        """
        known = self._previews.pop(turn_id, None)
        self._previews[turn_id] = None
        if len(self._previews) > REMEMBERED:
            del self._previews[next(iter(self._previews))]
        method = "sendMessage"
        params: JsonObject = {"text": text + UNFINISHED}
        if known is not None:
            self._abandoned[turn_id] = params["message_id"] = known.message_id
            method = "editMessageText"
        # Not to be left in the middle when the bot ends: the final must know its message.
        with trio.move_on_after(SHOWN_SECONDS, shield=True):
            sent = await self._post(method, chat, spot, params)
            number = _message(sent).message_id if known is None else known.message_id
            self._previews[turn_id] = _Preview(number, text)
            self._abandoned.pop(turn_id, None)

    async def leave(self, spot: ChatTarget, turn_id: int) -> None:
        """A turn was stopped and has no final: its preview stays, but does not look unfinished."""
        known = self._previews.pop(turn_id, None)
        if known is not None:
            params = {"message_id": known.message_id, "text": known.text}
            await self._tried("editMessageText", spot, params)

    async def typing(self, spot: ChatTarget) -> None:
        """Show that the bot is at work. It counts for the token, but is no message to the chat."""
        chat = self._chat(spot)
        if self._governor.try_now(f"{chat}/typing", group=False):
            await self._post("sendChatAction", chat, spot, {"action": "typing"})

    async def notice(self, spot: ChatTarget, text: str) -> None:
        """Say something that is no reply, once at a time; its failure is only logged."""
        if spot.chat_id in self._noticed:
            return
        self._noticed.add(spot.chat_id)
        await self._tried("sendMessage", spot, {"text": text})
        self._noticed.discard(spot.chat_id)

    async def _tried(self, method: str, spot: ChatTarget, params: JsonObject) -> None:
        try:
            await self._call(method, spot, params)
        except HermesError as error:
            log.warning("something was not said: %s", error)


def _spot(row: OutboxRow) -> ChatTarget:
    """Where a reply is for; raises `Unsendable` where Telegram can have no such place."""
    thread = row.body.get("thread_id")
    spot = ChatTarget(str(row.body.get("chat_id")), str(thread) if thread else None)
    if not _NUMBER.fullmatch(spot.chat_id) or not _NUMBER.fullmatch(spot.thread_id or GENERAL):
        raise Unsendable(f"Telegram has no chat {spot.chat_id!r}")
    return spot


def _is_shown(row: OutboxRow) -> bool:
    """Whether there is anything in it that Telegram could show."""
    return bool(shown(str(row.body["text"])).strip())


def _is_final(row: OutboxRow) -> bool:
    """Whether it takes the place of its turn's preview."""
    return row.body.get("kind") == "reply" and not row.part
