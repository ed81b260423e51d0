"""Sends replies, previews of running replies, typing indicators and notices.

Each reply results in exactly one final message. If a preview of it is shown, the preview is edited
into the final message, which is harmless if repeated; otherwise a new message is sent. A preview
whose outcome is unknown is not tried again.
"""

from __future__ import annotations

import logging
import math
import re
from contextlib import suppress

import attrs
import msgspec
import trio
from msgspec.structs import replace

from hermes.adapters.rate_limit import RateLimiter
from hermes.adapters.telegram.api import BotApi, Refused, Revoked, Unreachable
from hermes.adapters.telegram.bot_api_types import Int
from hermes.adapters.telegram.buttons import Questions, keyboard
from hermes.adapters.telegram.inbound import GENERAL_TOPIC, owner_of
from hermes.adapters.telegram.markdown import markdown_v2, visible_text
from hermes.adapters.telegram.upload import MAX_UPLOAD, Upload, fields_for
from hermes.adapters.telegram.utf16 import extract
from hermes.errors import HermesError, MessageRefused, RetryAfter, UnknownFile, Unsendable
from hermes.messages import JsonObject, OutboxRow
from hermes.protocols import FileReader
from hermes.retry import Backoff
from hermes.texts import Texts
from hermes.transcript.attachments import describe

log: logging.Logger = logging.getLogger(__name__)

MAX_LENGTH = 4096
MAX_MARK = 90
"""The longest line before a message that may be sent twice, in UTF-16 code units."""
CURSOR = " ▌"
"""The end of a preview."""
MAX_PREVIEWS = 10_000
MAX_PREVIEW_SOURCE = 2 * MAX_LENGTH
"""How much of the Markdown of a running answer is parsed for each preview."""
PREVIEW_TIMEOUT = 5.0
MAX_MIGRATIONS = 3
PERMIT_LIFETIME = 1.0
"""How long a call may be made after the rate limiter has allowed it, in seconds."""
REVOKED_DELAY = 3600.0
BAD_REQUEST, TOO_LARGE = 400, 413


class _SentMessage(msgspec.Struct):
    message_id: Int


_NOT_FOUND = "message to edit not found"
_NUMBER = re.compile("-?[0-9]{1,18}", re.ASCII)
_decode_message = msgspec.json.Decoder(_SentMessage).decode


@attrs.frozen
class ChatTarget:
    """A chat, and a topic in it."""

    chat_id: str
    thread_id: str | None = None

    @property
    def is_group(self) -> bool:
        """Whether it is a group or channel; these have negative ids."""
        return self.chat_id.startswith("-")


@attrs.define
class _Preview:
    """A message that shows the text of a running turn."""

    target: ChatTarget
    """Where it was sent. Its id is not valid in the supergroup that a group becomes."""
    message_id: int
    text: str


class Sender:
    """Makes all calls that send something, within the rate limits."""

    def __init__(self, api: BotApi, rate_limiter: RateLimiter, texts: Texts) -> None:
        self._api = api
        self._rate_limiter = rate_limiter
        mark = extract(texts.recovered, 0, MAX_MARK) or texts.recovered
        self._mark = f"_{mark}_\n"
        self._texts = texts
        self._migrations: dict[str, str] = {}
        self._permits: dict[ChatTarget, float] = {}
        """When the rate limiter has allowed a reply that is not sent yet."""
        self._previews: dict[int, _Preview | None] = {}
        """By turn id; None if the outcome of the last call is not known."""
        self._abandoned: dict[int, _Preview] = {}
        """By turn id: previews that cannot be edited into the final message."""
        self._noticing: set[str] = set()
        self._questions: Questions[tuple[ChatTarget, int]] = Questions()
        self._backoff = Backoff(2.0, 64.0)

    def migrate(self, old: str, new: str) -> None:
        """Send to the new id of a group from now on."""
        if self._migrations.get(old) != new:
            log.warning("the group %s has the new id %s; messages are sent there", old, new)
            self._migrations[old] = new

    # Replies

    async def ready(self, row: OutboxRow) -> None:
        """Make the calls that must precede a reply, and wait until the rate limiter allows it."""
        target = _target(row)
        if not _is_visible(row):
            return
        await self._delete_abandoned(row)
        await self._rate_limiter.acquire(self._chat(target), group=target.is_group)
        self._permits[target] = trio.current_time()

    async def send(self, row: OutboxRow) -> None:
        """Send a reply: edit the preview of its turn, if there is one."""
        target = _target(row)
        if not _is_visible(row):
            return
        await self._delete_abandoned(row)
        text, is_final = str(row.body["text"]), _is_final(row)
        preview = self._previews.get(row.turn_id) if is_final else None
        try:
            if preview is None or not await self._edit_into_final(preview, text):
                await self._send_text(target, (self._mark if row.recovered else "") + text, row)
        except (Revoked, Unreachable, Refused) as error:
            raise self._delivery_error(error) from None
        self._backoff.reset()
        if is_final:
            self._previews.pop(row.turn_id, None)

    async def send_file(self, row: OutboxRow, file: FileReader) -> None:
        """Send a file of a reply, or a line that names it if it is too large for Telegram."""
        if file.file.size > MAX_UPLOAD:
            text = describe(file.file.part, self._texts.file_too_large)
            await self.send(replace(row, body={**row.body, "text": text}))
            return
        target = _target(row)
        params = self._reply_parameters(target, row)
        if row.recovered:
            params["caption"] = self._mark.strip("_\n")
        try:
            await self._send_file(target, params, file)
        except UnknownFile as error:  # the platform does not have all of it
            raise RetryAfter(str(error), 0.0) from None
        except (Revoked, Unreachable, Refused) as error:
            raise self._delivery_error(error) from None
        self._backoff.reset()

    async def _send_file(self, target: ChatTarget, params: JsonObject, file: FileReader) -> None:
        """Send a file as what it is, or as a document if Telegram refuses that."""
        fields = fields_for(file.file)
        for field in fields:
            try:
                await self._call(f"send{field.title()}", target, params, (field, file))
            except Refused as refusal:
                about_file = refusal.code in {BAD_REQUEST, TOO_LARGE} and not refusal.is_gone
                if field == fields[-1] or not about_file:
                    raise
                log.info("a file is sent as a document: %s", refusal)
            else:
                return

    async def _delete_abandoned(self, row: OutboxRow) -> None:
        """Delete a preview that cannot be edited into the final message."""
        if _is_final(row) and (preview := self._abandoned.pop(row.turn_id, None)):
            params: JsonObject = {"message_id": preview.message_id}
            await self._try_call("deleteMessage", preview.target, params)

    def _delivery_error(self, error: Revoked | Unreachable | Refused) -> HermesError:
        """Return what an error of a call means for the delivery of a reply."""
        if isinstance(error, Revoked):  # the reply can be sent after a restart with a new token
            return RetryAfter(str(error), REVOKED_DELAY)
        if isinstance(error, Unreachable):
            return RetryAfter(str(error), self._backoff.next())
        return Unsendable(str(error)) if error.is_gone else MessageRefused(str(error))

    async def _edit_into_final(self, preview: _Preview, text: str) -> bool:
        """Edit a preview into the final message; return False if the preview is gone."""
        try:
            params: JsonObject = {"message_id": preview.message_id}
            await self._call_formatted("editMessageText", preview.target, text, params)
        except Refused as refusal:
            if "not modified" in refusal.why:
                return True
            if _NOT_FOUND in refusal.why or "can't be edited" in refusal.why:
                return False
            raise
        return True

    async def _send_text(self, target: ChatTarget, text: str, row: OutboxRow) -> None:
        params = self._reply_parameters(target, row)
        approval = row.body.get("approval")
        if approval is not None:
            params["reply_markup"] = keyboard(
                f"{approval} {owner_of(row.session_key)}", self._texts
            )
        sent = await self._call_formatted("sendMessage", target, text, params)
        if isinstance(approval, int):
            with suppress(msgspec.MsgspecError):  # it was sent, whatever the response says
                message_id = _decode_message(sent).message_id
                self._questions.asked(approval, (ChatTarget(self._chat(target)), message_id))

    def _reply_parameters(self, target: ChatTarget, row: OutboxRow) -> JsonObject:
        """Return the message that the first part of a reply in a group replies to."""
        reply_to = str(row.body.get("reply_to"))
        if not target.is_group or row.part or not _NUMBER.fullmatch(reply_to):
            return {}
        replied = {"message_id": int(reply_to), "allow_sending_without_reply": True}
        return {"reply_parameters": replied}

    async def _call_formatted(
        self, method: str, target: ChatTarget, text: str, params: JsonObject
    ) -> msgspec.Raw:
        """Call with MarkdownV2, and with plain text if Telegram cannot parse that."""
        formatted = {**params, "text": markdown_v2(text), "parse_mode": "MarkdownV2"}
        try:
            return await self._call(method, target, formatted)
        except Refused as refusal:
            if "can't parse entities" not in refusal.why:
                raise
            log.warning("a reply is sent without formatting: %s", refusal)
            return await self._call(method, target, {**params, "text": text})

    async def _call(
        self,
        method: str,
        target: ChatTarget,
        params: JsonObject,
        file: tuple[str, FileReader] | None = None,
    ) -> msgspec.Raw:
        """Wait for the rate limiter and call; call again if a group has a new id."""
        for _ in range(MAX_MIGRATIONS):
            chat = self._chat(target)
            if chat != target.chat_id:
                params = _in_supergroup(method, params)
            # A permit expires: other calls may have been allowed while a full disk delayed this.
            if trio.current_time() - self._permits.pop(target, -math.inf) > PERMIT_LIFETIME:
                await self._rate_limiter.acquire(chat, group=target.is_group)
            try:
                return await self._post(method, chat, target, params, file)
            except Refused as refusal:
                if refusal.migrate_to is None:
                    raise
                self.migrate(target.chat_id, str(refusal.migrate_to))
        raise Unsendable(f"the id of the group {target.chat_id} keeps changing")

    def _chat(self, target: ChatTarget) -> str:
        return self._migrations.get(target.chat_id, target.chat_id)

    async def _post(
        self,
        method: str,
        chat: str,
        target: ChatTarget,
        params: JsonObject,
        file: tuple[str, FileReader] | None = None,
    ) -> msgspec.Raw:
        """Call without waiting for the rate limiter."""
        thread = None if target.thread_id in {None, GENERAL_TOPIC} else target.thread_id
        address: JsonObject = {"chat_id": int(chat)}
        if thread is not None and "message_id" not in params:
            address["message_thread_id"] = int(thread)
        try:
            if file is not None:
                return await self._api.upload(method, Upload(*file, {**address, **params}))
            return await self._api.call(method, {**address, **params})
        except RetryAfter as wait:
            self._rate_limiter.pause(wait.seconds, chat)
            raise

    # Optional calls

    async def preview(self, target: ChatTarget, turn_id: int, text: str) -> None:
        """Show the text of a running turn, if the rate limits leave room for it."""
        text = visible_text(text[:MAX_PREVIEW_SOURCE]).strip()[: MAX_LENGTH // 2]
        known = self._previews.get(turn_id)
        chat = self._chat(target)
        lost = known is None and turn_id in self._previews
        unchanged = known is not None and known.text == text
        moved = known is not None and known.target.chat_id != chat
        if not text or lost or unchanged or moved:
            return
        if not self._rate_limiter.try_acquire(chat, group=target.is_group):
            return
        try:
            await self._show_preview(target, chat, turn_id, text)
        except (Refused, RetryAfter):  # certainly not shown
            self._abandoned.pop(turn_id, None)
            del self._previews[turn_id]
            if known is not None:
                self._previews[turn_id] = known
            raise

    async def _show_preview(self, target: ChatTarget, chat: str, turn_id: int, text: str) -> None:
        """Send or edit a preview. It counts as lost until the outcome of the call is known.

        A lost message must not be sent twice, and a delayed edit could overwrite the final message.
        """
        known = self._previews.pop(turn_id, None)
        self._previews[turn_id] = None
        if len(self._previews) > MAX_PREVIEWS:
            del self._previews[next(iter(self._previews))]
        method = "sendMessage"
        params: JsonObject = {"text": text + CURSOR}
        if known is not None:
            self._abandoned[turn_id], params["message_id"] = known, known.message_id
            method = "editMessageText"
        # Shielded from the end of the bot: the final message needs the id of the preview.
        with trio.move_on_after(PREVIEW_TIMEOUT, shield=True):
            result = await self._post(method, chat, target, params)
            message_id = _decode_message(result).message_id if known is None else known.message_id
            shown_in = attrs.evolve(target, chat_id=chat)
            self._previews[turn_id] = _Preview(shown_in, message_id, text)
            self._abandoned.pop(turn_id, None)

    async def finish_preview(self, turn_id: int) -> None:
        """Remove the cursor from the preview of a turn that was stopped and has no reply."""
        known = self._previews.pop(turn_id, None)
        if known is not None:
            params: JsonObject = {"message_id": known.message_id, "text": known.text}
            await self._try_call("editMessageText", known.target, params)

    async def typing(self, target: ChatTarget) -> None:
        """Show a typing indicator. It counts towards the rate of the token, not of the chat."""
        chat = self._chat(target)
        if self._rate_limiter.try_acquire(f"{chat}/typing", group=False):
            await self._post("sendChatAction", chat, target, {"action": "typing"})

    async def press(self, target: ChatTarget, query_id: str, message_id: int | None) -> None:
        """Confirm that a button was pressed, and remove the buttons of a message.

        Errors are logged.
        """
        try:
            await self._api.call("answerCallbackQuery", {"callback_query_id": query_id})
        except HermesError as error:
            log.debug("answerCallbackQuery failed: %s", error)  # it is too old, for example
        if message_id is not None and self._questions.pressed((target, message_id)):
            await self._try_call("editMessageReplyMarkup", target, {"message_id": message_id})

    async def decided(self, number: int) -> None:
        """Remove the buttons below the question about a call, if its message is known.

        Errors are logged.
        """
        if (question := self._questions.decided(number)) is not None:
            target, message_id = question
            await self._try_call("editMessageReplyMarkup", target, {"message_id": message_id})

    async def notice(self, target: ChatTarget, text: str) -> None:
        """Send a text that is not a reply, one at a time per chat; errors are logged."""
        if target.chat_id in self._noticing:
            return
        self._noticing.add(target.chat_id)
        await self._try_call("sendMessage", target, {"text": text})
        self._noticing.discard(target.chat_id)

    async def _try_call(self, method: str, target: ChatTarget, params: JsonObject) -> None:
        try:
            await self._call(method, target, params)
        except HermesError as error:
            log.warning("%s failed: %s", method, error)


def _in_supergroup(method: str, params: JsonObject) -> JsonObject:
    """Return the parameters of a call for the supergroup that a group has become.

    The ids of its messages are others. Raises `Refused` if the call is about one of the old ones.
    """
    if "message_id" in params:
        raise Refused(method, BAD_REQUEST, _NOT_FOUND)
    return {name: value for name, value in params.items() if name != "reply_parameters"}


def _target(row: OutboxRow) -> ChatTarget:
    """Return the target of a reply; raises `Unsendable` if its ids are not valid in Telegram."""
    thread = row.body.get("thread_id")
    target = ChatTarget(str(row.body.get("chat_id")), str(thread) if thread else None)
    thread_id = target.thread_id or GENERAL_TOPIC
    if not _NUMBER.fullmatch(target.chat_id) or not _NUMBER.fullmatch(thread_id):
        raise Unsendable(f"{target.chat_id!r} is not a Telegram chat")
    return target


def _is_visible(row: OutboxRow) -> bool:
    """Return whether there is a file, or a text that Telegram can show."""
    return "file" in row.body or bool(visible_text(str(row.body["text"])).strip())


def _is_final(row: OutboxRow) -> bool:
    """Return whether the row replaces the preview of its turn."""
    return row.body.get("kind") == "reply" and not row.part
