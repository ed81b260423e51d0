"""The server: HTTP calls in, chats and updates behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from hermes.background import open_background
from hermes.messages import JsonObject
from hermes.testing.loopback import Request, Response, serve_http
from hermes.testing.telegram.chats import Chat, ChatType, entities_of
from hermes.testing.telegram.errors import ApiError, Fault, json_response
from hermes.testing.telegram.limits import NO_LIMITS, FloodControl, Limits
from hermes.testing.telegram.methods import BotMethods
from hermes.testing.telegram.updates import UpdateQueue, wait_any
from hermes.testing.telegram.uploads import FormFilter

TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
"""The example token of the Bot API's documentation; it is not valid anywhere."""
_OTHER_POLLER = (
    "Conflict: terminated by other getUpdates request; make sure that only one bot instance is "
    "running"
)


class LoopbackTelegram(BotMethods):
    """A Bot API server for one bot; use `open_telegram`."""

    def __init__(self, *, token: str, username: str, limits: Limits, seed: int) -> None:
        super().__init__(FloodControl(limits))
        self.url: str = ""
        self.token: str = token
        self.me: JsonObject = {
            "id": int(token.partition(":")[0]), "is_bot": True, "first_name": "Hermes",
            "username": username,
        }  # fmt: skip
        self.calls: list[tuple[str, JsonObject]] = []
        self.counts: Counter[str] = Counter()
        """Calls by method."""
        self.broken: Counter[str] = Counter()
        """Calls by method that failed because of a `Fault`."""
        self.conflicts: int = 0
        """How many polls were ended by another poll."""
        self.up: bool = True
        self._time_offset = 0.0
        self._updates = UpdateQueue(seed)
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
        number = self.new_message_id() if message_id is None else message_id
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
        query_id = str(self.new_message_id())
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
                async with serve_http(self.respond, port, new_filter=self._new_filter) as port:
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

    def _new_filter(self) -> FormFilter:
        return FormFilter(self._cuts_upload)

    def _cuts_upload(self) -> bool:
        cuts = self._next_fault("upload") is not None
        self.broken["upload"] += cuts
        return cuts

    async def _respond(self, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        if request.path.startswith("/file/"):
            return await self._respond_file(request)
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

    async def _respond_file(self, request: Request) -> Response:
        """Send a file, or a part of it."""
        _, _, bot, path = request.path.split("/", 3)
        self.counts["file"] += 1
        self._notify()
        if bot != f"bot{self.token}":
            return ApiError(401, "Unauthorized").response()
        fault = self._next_fault("file")
        if fault is not None:
            self.broken["file"] += 1
            await trio.sleep(fault.seconds)
        return self.files.response(path, request.headers, fault)

    def _next_fault(self, method: str) -> Fault | None:
        for index, fault in enumerate(self._faults):
            if fault.method == method or (fault.method is None and method != "upload"):
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
        if method == "getMe":
            return msgspec.json.encode(self.me)
        return msgspec.json.encode(self.method(method, params))

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
