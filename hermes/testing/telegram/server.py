"""The server: HTTP calls in, chats and updates behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from hermes.actors.delivery.split import utf16
from hermes.background import open_background
from hermes.messages import JsonObject
from hermes.testing.loopback import Request, Response, serve_http
from hermes.testing.markdown_v2 import CannotParse, parse
from hermes.testing.telegram.chats import Chat, ChatType, SentMessage, buttons_of, entities_of
from hermes.testing.telegram.errors import ApiError, Fault, json_response
from hermes.testing.telegram.limits import NO_LIMITS, FloodControl, Limits
from hermes.testing.telegram.updates import UpdateQueue, wait_any

MAX_LENGTH = 4096
TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
"""The example token of the Bot API's documentation; it is not valid anywhere."""
_NOT_MODIFIED = (
    "Bad Request: message is not modified: specified new message content and reply markup are "
    "exactly the same as a current content and reply markup of the message"
)
_OTHER_POLLER = (
    "Conflict: terminated by other getUpdates request; make sure that only one bot instance is "
    "running"
)


class LoopbackTelegram:
    """A Bot API server for one bot; use `open_telegram`."""

    def __init__(self, *, token: str, username: str, limits: Limits, seed: int) -> None:
        self.url: str = ""
        self.token: str = token
        self.me: JsonObject = {
            "id": int(token.partition(":")[0]), "is_bot": True, "first_name": "Hermes",
            "username": username,
        }  # fmt: skip
        self.chats: dict[int, Chat] = {}
        self.calls: list[tuple[str, JsonObject]] = []
        self.counts: Counter[str] = Counter()
        """Calls by method."""
        self.broken: Counter[str] = Counter()
        """Calls by method that failed because of a `Fault`."""
        self.conflicts: int = 0
        """How many polls were ended by another poll."""
        self.flood_control: FloodControl = FloodControl(limits)
        self.up: bool = True
        self.refuse_formatting = False
        """Whether every parse mode is refused."""
        self.commands: list[str] = []
        """The menu of commands."""
        self.answered_queries: list[str] = []
        """The ids of pressed buttons that the bot has confirmed."""
        self._time_offset = 0.0
        self._updates = UpdateQueue(seed)
        self._next_message_id = 1
        self._faults: list[Fault] = []
        self._poller: trio.Event | None = None
        """Set to end the current poll."""
        self._update_arrived = trio.Event()
        self._switch_requested = trio.Event()
        self._switched = trio.Event()
        self._changed = trio.Event()

    # Time

    @property
    def now(self) -> float:
        """The server's time, in seconds."""
        return trio.current_time() + self._time_offset

    def pass_time(self, seconds: float) -> None:
        """Advance the server's time."""
        self._time_offset += seconds
        self._update_arrived.set()

    # Users

    def private(self, user_id: int) -> Chat:
        """Return the chat of a user with the bot."""
        return self.chats.setdefault(user_id, Chat(user_id, "private"))

    def group(self, chat_id: int, type: ChatType = "supergroup", **options: Any) -> Chat:  # noqa: A002
        """Return a group or channel of which the bot is a member."""
        return self.chats.setdefault(chat_id, Chat(chat_id, type, **options))

    def say(
        self, chat_id: int, text: str, *, user_id: int | None = None, topic: int | None = None,
        **fields: Any,
    ) -> int:  # fmt: skip
        """Let a user send a text, with its mentions and commands marked; returns the message id."""
        entities = list(entities_of(text))
        content = {"text": text, "entities": entities} if entities else {"text": text}
        return self.post(chat_id, user_id=user_id, topic=topic, **{**content, **fields})

    def post(
        self, chat_id: int, *, user_id: int | None = None, topic: int | None = None,
        kind: str = "message", message_id: int | None = None, **fields: Any,
    ) -> int:  # fmt: skip
        """Let a user send any message, or edit one if `message_id` is given; returns the id."""
        chat = self.chats.get(chat_id) or self.private(chat_id)
        number = self._new_message_id() if message_id is None else message_id
        author = chat_id if user_id is None and chat.type == "private" else user_id
        message: JsonObject = {
            "message_id": number, "date": int(self.now), "chat": chat.as_json(),
        }  # fmt: skip
        if author is not None:
            message["from"] = {"id": author, "is_bot": False, "first_name": f"user {author}"}
        if topic is not None:
            message |= {"message_thread_id": topic, "is_topic_message": True}
        self.update(kind, {**message, **fields})
        return number

    def press(self, chat_id: int, message_id: int, text: str, *, user_id: int | None = None) -> str:
        """Let a user press a button below a message; returns the id of the query."""
        chat = self.chats[chat_id]
        message = chat.find(message_id, "press")
        author = chat_id if user_id is None else user_id
        query_id = str(self._new_message_id())
        body = {
            "id": query_id,
            "from": {"id": author, "is_bot": False, "first_name": f"user {author}"},
            "message": {
                "message_id": message_id, "date": int(message.at), "chat": chat.as_json(),
                "from": self.me, "text": message.text,
            },
            "data": message.buttons[text],
        }  # fmt: skip
        self.update("callback_query", body)
        return query_id

    def update(self, kind: str, body: object) -> int | None:
        """Add an update; returns its id, or None if the bot has not asked for this kind."""
        return self.raw_update(kind, msgspec.json.encode(body))

    def raw_update(self, kind: str, body: bytes) -> int | None:
        """Add an update from raw JSON, which may be invalid; see `update`."""
        update_id = self._updates.add(kind, body, self.now)
        self._update_arrived.set()
        return update_id

    def migrate(self, chat_id: int, new_id: int) -> Chat:
        """Turn a group into a supergroup, which has a new id."""
        old = self.chats[chat_id]
        old.moved_to = new_id
        new = self.group(new_id, "supergroup", title=old.title)
        self.post(chat_id, migrate_to_chat_id=new_id)
        self.post(new_id, migrate_from_chat_id=chat_id)
        return new

    @property
    def polled(self) -> bool:
        """Whether a poll is waiting for updates now."""
        return self._poller is not None

    @property
    def pending(self) -> int:
        """How many updates are not confirmed."""
        return self._updates.count(self.now)

    @property
    def floods(self) -> int:
        """How many calls were refused because of the limits."""
        return self.flood_control.floods

    # Faults

    def fail(self, *faults: Fault) -> None:
        """Let the next calls fail, one per fault."""
        self._faults += faults

    def clear_faults(self) -> None:
        """Remove the faults that have not occurred yet."""
        self._faults.clear()

    def revoke(self) -> None:
        """Revoke the token."""
        self.token = "revoked"

    async def go_down(self) -> None:
        """Refuse new connections, and close the existing ones."""
        await self._switch(up=False)

    async def come_up(self) -> None:
        """Accept connections again."""
        await self._switch(up=True)

    async def _switch(self, *, up: bool) -> None:
        if up != self.up:
            self._switched = trio.Event()
            self.up = up
            self._switch_requested.set()
            await self._switched.wait()

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        """Listen while the server is up, always on the same port."""
        port = 0
        while True:
            if self.up:
                async with serve_http(self.respond, port) as port:
                    self.url = f"http://127.0.0.1:{port}"
                    task_status.started()
                    self._switched.set()
                    await self._switch_requested.wait()
            else:
                self._switched.set()
                await self._switch_requested.wait()
            task_status = trio.TASK_STATUS_IGNORED
            self._switch_requested = trio.Event()

    async def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition is true; it is checked when a call arrives or is answered."""
        while not condition():
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # Calls

    async def respond(self, request: Request) -> Response:
        """Answer an HTTP request."""
        try:
            return await self._respond(request)
        finally:
            self._notify()

    async def _respond(self, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        _, bot, method = [*request.path.split("/"), "", ""][:3]
        fault = self._next_fault(method)
        if fault is not None and not fault.taken:
            self.broken[method] += 1
            await trio.sleep(fault.seconds)
            if fault.kind != "slow":
                return fault.response()
        try:
            result = await self._call(bot, method, request.body)
        except ApiError as error:
            return error.response()
        if fault is not None and fault.taken:
            self.broken[method] += 1
            self._notify()
            await trio.sleep(fault.seconds)
            if fault.kind != "slow":
                return fault.response()
        return json_response(200, b'{"ok":true,"result":%s}' % result)

    def _next_fault(self, method: str) -> Fault | None:
        for index, fault in enumerate(self._faults):
            if fault.method in {None, method}:
                return self._faults.pop(index)
        return None

    async def _call(self, bot: str, method: str, body: bytes) -> bytes:
        if bot != f"bot{self.token}":
            raise ApiError(401, "Unauthorized")
        params = msgspec.json.decode(body or b"{}")
        self.calls.append((method, params))
        self.counts[method] += 1
        if method == "getUpdates":
            return await self._get_updates(params)
        known = {
            "getMe": lambda _: self.me,
            "sendMessage": self._send_message,
            "editMessageText": self._edit_message,
            "deleteMessage": self._delete_message,
            "editMessageReplyMarkup": self._edit_buttons,
            "answerCallbackQuery": self._answer_query,
            "setMyCommands": self._set_commands,
            "sendChatAction": self._chat_action,
        }
        if method not in known:
            raise ApiError(404, "Not Found")
        return msgspec.json.encode(known[method](params))

    def _delete_message(self, params: JsonObject) -> bool:
        self._chat(params).find(params.get("message_id"), "delete").deleted = True
        return True

    def _edit_buttons(self, params: JsonObject) -> bool:
        self._chat(params).find(params.get("message_id"), "edit").buttons = buttons_of(params)
        return True

    def _answer_query(self, params: JsonObject) -> bool:
        self.answered_queries.append(str(params.get("callback_query_id")))
        return True

    def _set_commands(self, params: JsonObject) -> bool:
        self.commands = [str(each["command"]) for each in params["commands"]]
        return True

    def _chat_action(self, params: JsonObject) -> bool:
        self._chat(params).typing += 1
        return True

    async def _get_updates(self, params: JsonObject) -> bytes:
        if self._poller is not None:
            self._poller.set()  # the newer poll ends the older one
        ended = self._poller = trio.Event()
        self._updates.confirm(params.get("offset") or 0, self.now)
        self._updates.allowed = params.get("allowed_updates", self._updates.allowed)
        self._notify()
        try:
            with trio.move_on_after(params.get("timeout", 0)):
                while not ended.is_set() and not self.pending:
                    self._update_arrived = trio.Event()
                    await wait_any(self._update_arrived, ended)
            if ended.is_set():
                self.conflicts += 1
                raise ApiError(409, _OTHER_POLLER)
        finally:
            if self._poller is ended:
                self._poller = None
        return self._updates.first(max(1, min(100, params.get("limit", 100))))

    # Messages

    def _chat(self, params: JsonObject) -> Chat:
        chat = self.chats.get(int(params.get("chat_id", 0)))
        if chat is None:
            raise ApiError(400, "Bad Request: chat not found")
        if chat.moved_to is not None:
            raise ApiError(
                400,
                "Bad Request: group chat was upgraded to a supergroup chat",
                {"migrate_to_chat_id": chat.moved_to},
            )
        if chat.gone is not None:
            raise ApiError(403, f"Forbidden: {chat.gone}")
        return chat

    def _send_message(self, params: JsonObject) -> JsonObject:
        chat = self._chat(params)
        self.flood_control.check(chat, self.now)
        thread = params.get("message_thread_id")
        if thread is not None and thread not in chat.topics:
            raise ApiError(400, "Bad Request: message thread not found")
        text = self._text(params)
        reply_to = params.get("reply_parameters", {}).get("message_id")
        parsed = params.get("parse_mode") is not None
        message = SentMessage(
            self._new_message_id(), text, thread, reply_to, self.now, parsed,
            buttons=buttons_of(params),
        )  # fmt: skip
        chat.messages.append(message)
        return {"message_id": message.message_id, "chat": chat.as_json(), "text": text}

    def _edit_message(self, params: JsonObject) -> JsonObject:
        chat = self._chat(params)
        self.flood_control.check(chat, self.now)
        message = chat.find(params.get("message_id"), "edit")
        text = self._text(params)
        parsed = params.get("parse_mode") is not None
        if (message.text, message.parsed) == (text, parsed):
            raise ApiError(400, _NOT_MODIFIED)
        message.versions.append(message.text)
        message.text, message.parsed = text, parsed
        return {"message_id": message.message_id, "chat": chat.as_json(), "text": text}

    def _text(self, params: JsonObject) -> str:
        text = str(params.get("text", ""))
        if params.get("parse_mode") == "MarkdownV2":
            try:
                text, _ = parse("*" if self.refuse_formatting else text)
            except CannotParse as error:
                raise ApiError(400, f"Bad Request: can't parse entities: {error}") from None
        if not text.strip():
            raise ApiError(400, "Bad Request: message text is empty")
        if utf16(text) > MAX_LENGTH:
            raise ApiError(400, "Bad Request: message is too long")
        return text

    def _new_message_id(self) -> int:
        self._next_message_id += 1
        return self._next_message_id - 1


@asynccontextmanager
async def open_telegram(
    *,
    token: str = TOKEN,
    username: str = "hermes_bot",
    limits: Limits = NO_LIMITS,
    seed: int = 0,
) -> AsyncIterator[LoopbackTelegram]:
    """Serve the Bot API on loopback for the duration of a block."""
    server = LoopbackTelegram(token=token, username=username, limits=limits, seed=seed)
    async with open_background() as background:
        await background.start(server.serve)
        yield server
