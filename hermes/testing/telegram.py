"""The Bot API behind a real socket, with its real semantics, limits and moods; for tests.

People talk by `say` and friends; what the bot has said is in `shown`. Updates are kept for a day,
confirmed by offset, and sent again until they are. Time is the server's own, and can be moved.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias

import attrs
import msgspec
import trio

from hermes.actors.delivery.split import utf16
from hermes.messages import JsonObject
from hermes.testing.loopback import Request, Response, listening
from hermes.testing.markdown_v2 import CannotParse, parse

DAY, WEEK = 86400.0, 604800.0
LONGEST = 4096
ON_ITS_WAY = 0.25
"""A call that comes so soon after a refusal was probably sent before it was heard."""
TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
"""The one of the Bot API's own documentation; it opens nothing."""
ChatType: TypeAlias = Literal["private", "group", "supergroup", "channel"]


@attrs.frozen
class Refusal(Exception):
    """An answer that is an error."""

    code: int
    description: str
    parameters: JsonObject = attrs.Factory(dict)


@attrs.frozen
class Fault:
    """What goes wrong with a call. `taken`: it was done as asked, and only the answer is lost.

    `method` is the one it waits for; any, where there is none.
    """

    kind: Literal["reset", "502", "slow", "garbage"] = "reset"
    taken: bool = False
    method: str | None = None
    seconds: float = 0.0


@attrs.define
class Shown:
    """A message of the bot as a chat shows it now."""

    message_id: int
    text: str
    thread_id: int | None
    reply_to: int | None
    at: float
    parsed: bool = False
    """Whether it came with formatting."""
    deleted: bool = False
    versions: list[str] = attrs.Factory(list)
    """What it showed before."""


@attrs.define
class Chat:
    """A chat, and what the bot has said there."""

    id: int
    type: ChatType
    title: str = ""
    is_forum: bool = False
    topics: set[int] = attrs.Factory(set)
    messages: list[Shown] = attrs.Factory(list)
    gone: str | None = None
    """Why nothing can be sent: the words of a 403."""
    moved_to: int | None = None
    typing: int = 0

    @property
    def texts(self) -> list[str]:
        """What the bot's messages show now."""
        return [message.text for message in self.messages if not message.deleted]


@attrs.frozen(kw_only=True)
class Limits:
    """How many messages in how many seconds: in a chat, in a group besides, and altogether."""

    per_chat: tuple[int, float] = (1, 1.0)
    per_group: tuple[int, float] = (20, 60.0)
    per_token: tuple[int, float] = (30, 1.0)


NO_LIMITS = Limits(per_chat=(10**6, 1.0), per_group=(10**6, 1.0), per_token=(10**6, 1.0))


@attrs.define
class _Waiting:
    update_id: int
    kind: str
    body: bytes
    at: float


class LoopbackTelegram:
    """Telegram on this machine; `open_telegram` opens it."""

    def __init__(self, *, token: str, username: str, limits: Limits, seed: int) -> None:
        self.url = ""
        self.token = token
        self.me: JsonObject = {
            "id": int(token.partition(":")[0]), "is_bot": True, "first_name": "Hermes",
            "username": username,
        }  # fmt: skip
        self.rooms: dict[int, Chat] = {}
        self.calls: list[tuple[str, JsonObject]] = []
        self.counts: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        """How many calls of a method went wrong on purpose."""
        self.floods = 0
        self.impatient = 0
        """How many calls came before the time that an earlier one was told to wait for."""
        self.conflicts = 0
        self.limits = limits
        self.skew = 0.0
        self.up = True
        self.refuse_formatting = False
        self._random = random.Random(seed)
        self._updates: list[_Waiting] = []
        self._next_id = self._random.randrange(10**8, 10**9)
        self._last_at = -math.inf
        self._next_message = 1
        self._allowed: Sequence[str] = ()
        self._faults: list[Fault] = []
        self._sent: dict[object, deque[float]] = {}
        self._told: dict[int, tuple[float, float]] = {}
        self._poller: trio.Event | None = None
        self._news = trio.Event()
        self._changed = trio.Event()
        self._switched = trio.Event()
        self._stirred = trio.Event()

    # Time

    @property
    def now(self) -> float:
        return trio.current_time() + self.skew

    def pass_time(self, seconds: float) -> None:
        """Let time pass for the server."""
        self.skew += seconds
        self._news.set()

    # People

    def private(self, user_id: int) -> Chat:
        """The chat of a user with the bot."""
        return self.rooms.setdefault(user_id, Chat(user_id, "private"))

    def group(self, chat_id: int, type: ChatType = "supergroup", **options: Any) -> Chat:  # noqa: A002
        """A group or channel that the bot is in."""
        return self.rooms.setdefault(chat_id, Chat(chat_id, type, **options))

    def say(
        self, chat_id: int, text: str, *, user_id: int | None = None, topic: int | None = None,
        **fields: Any,
    ) -> int:  # fmt: skip
        """A user says something, marked as clients mark mentions and commands; its number."""
        entities = list(_entities(text))
        said = {"text": text, "entities": entities} if entities else {"text": text}
        return self.post(chat_id, user_id=user_id, topic=topic, **{**said, **fields})

    def post(
        self, chat_id: int, *, user_id: int | None = None, topic: int | None = None,
        kind: str = "message", message_id: int | None = None, **fields: Any,
    ) -> int:  # fmt: skip
        """A message of any form, or an edit of one where its number is given."""
        room = self.rooms.get(chat_id) or self.private(chat_id)
        number = self._new_number() if message_id is None else message_id
        who = chat_id if user_id is None and room.type == "private" else user_id
        message: JsonObject = {"message_id": number, "date": int(self.now), "chat": _chat(room)}
        if who is not None:
            message["from"] = {"id": who, "is_bot": False, "first_name": f"user {who}"}
        if topic is not None:
            message |= {"message_thread_id": topic, "is_topic_message": True}
        self.update(kind, {**message, **fields})
        return number

    def update(self, kind: str, body: object) -> int | None:
        """Something happens; its number, or None where the bot has not asked for such."""
        return self.raw_update(kind, msgspec.json.encode(body))

    def raw_update(self, kind: str, body: bytes) -> int | None:
        """`update`, with JSON that may be as odd as a test wants."""
        if self._allowed and kind not in self._allowed:
            return None
        if self.now - self._last_at >= WEEK and self._last_at > -math.inf:
            self._next_id = self._random.randrange(1, self._next_id)  # "random": here the lower
        update_id, self._next_id = self._next_id, self._next_id + 1
        self._last_at = self.now
        whole = b'{"update_id":%d,"%s":%s}' % (update_id, kind.encode(), body)
        self._updates.append(_Waiting(update_id, kind, whole, self.now))
        self._news.set()
        return update_id

    def migrate(self, chat_id: int, new_id: int) -> Chat:
        """A group becomes a supergroup, with another number."""
        old = self.rooms[chat_id]
        old.moved_to = new_id
        room = self.group(new_id, "supergroup", title=old.title)
        self.post(chat_id, migrate_to_chat_id=new_id)
        self.post(new_id, migrate_from_chat_id=chat_id)
        return room

    @property
    def polled(self) -> bool:
        """Whether somebody waits for updates now."""
        return self._poller is not None

    @property
    def pending(self) -> int:
        """How many updates are not confirmed."""
        self._forget_old()
        return len(self._updates)

    # Moods

    def fail(self, *faults: Fault) -> None:
        """Let the next calls go wrong, one each."""
        self._faults += faults

    def cut_faults(self) -> None:
        """Nothing more goes wrong."""
        self._faults.clear()

    def forget_floods(self) -> None:
        """Nobody remembers who was told to wait: it may be another who calls now."""
        self._told.clear()

    def revoke(self) -> None:
        """The token is good no more."""
        self.token = "revoked"

    async def go_down(self) -> None:
        """Refuse connections, and cut those that there are."""
        await self._switch(up=False)

    async def come_up(self) -> None:
        """Take connections again."""
        await self._switch(up=True)

    async def _switch(self, *, up: bool) -> None:
        if up != self.up:
            self._switched = trio.Event()
            self.up = up
            self._changed.set()
            await self._switched.wait()

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        """Listen, except while it is down; always on the same port."""
        port = 0
        while True:
            if self.up:
                async with listening(self.respond, port) as port:
                    self.url = f"http://127.0.0.1:{port}"
                    task_status.started()
                    self._switched.set()
                    await self._changed.wait()
            else:
                self._switched.set()
                await self._changed.wait()
            task_status = trio.TASK_STATUS_IGNORED
            self._changed = trio.Event()

    async def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until something is so; looked at whenever a call comes or is answered."""
        while not condition():
            await self._stirred.wait()

    def _stir(self) -> None:
        self._stirred.set()
        self._stirred = trio.Event()

    # Calls

    async def respond(self, request: Request) -> Response:
        """Answer a call."""
        try:
            return await self._respond(request)
        finally:
            self._stir()

    async def _respond(self, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        _, bot, method = [*request.path.split("/"), "", ""][:3]
        fault = self._fault(method)
        if fault is not None and not fault.taken:
            self.broken[method] += 1
            await trio.sleep(fault.seconds)
            if fault.kind != "slow":
                return _broken(fault)
        try:
            result = await self._call(bot, method, request.body)
        except Refusal as refusal:
            return _refused(refusal)
        if fault is not None and fault.taken:
            self.broken[method] += 1
            self._stir()
            await trio.sleep(fault.seconds)
            if fault.kind != "slow":
                return _broken(fault)
        return _answer(200, b'{"ok":true,"result":%s}' % result)

    def _fault(self, method: str) -> Fault | None:
        for place, fault in enumerate(self._faults):
            if fault.method in {None, method}:
                return self._faults.pop(place)
        return None

    async def _call(self, bot: str, method: str, body: bytes) -> bytes:
        if bot != f"bot{self.token}":
            raise Refusal(401, "Unauthorized")
        params = msgspec.json.decode(body or b"{}")
        self.calls.append((method, params))
        self.counts[method] += 1
        if method == "getUpdates":
            return await self._get_updates(params)
        encode = msgspec.json.encode
        match method:
            case "getMe":
                return encode(self.me)
            case "sendMessage":
                return encode(self._send_message(params))
            case "editMessageText":
                return encode(self._edit_message(params))
            case "deleteMessage":
                self._message(self._room(params), params, "delete").deleted = True
                return b"true"
            case "sendChatAction":
                self._room(params).typing += 1
                return b"true"
        raise Refusal(404, "Not Found")

    # Updates

    async def _get_updates(self, params: JsonObject) -> bytes:
        if self._poller is not None:
            self._poller.set()  # the older one is told to go
        ended = self._poller = trio.Event()
        self._confirm(params.get("offset") or 0)
        self._allowed = params.get("allowed_updates", self._allowed)
        self._stir()
        try:
            with trio.move_on_after(params.get("timeout", 0)):
                while not ended.is_set() and not self.pending:
                    await self._wait_for_news(ended)
            if ended.is_set():
                self.conflicts += 1
                raise Refusal(
                    409,
                    "Conflict: terminated by other getUpdates request; make sure that only one bot "
                    "instance is running",
                )
        finally:
            if self._poller is ended:
                self._poller = None
        first = self._updates[: max(1, min(100, params.get("limit", 100)))]
        return b"[%s]" % b",".join(update.body for update in first)

    async def _wait_for_news(self, ended: trio.Event) -> None:
        self._news = trio.Event()
        async with trio.open_nursery() as nursery:
            for event in (self._news, ended):
                nursery.start_soon(_first, event, nursery.cancel_scope)

    def _confirm(self, offset: int) -> None:
        """What is below the offset is forgotten, to the letter of the documentation."""
        self._forget_old()
        if offset < 0:
            self._updates = self._updates[offset:]
        elif offset:
            self._updates = [each for each in self._updates if each.update_id >= offset]

    def _forget_old(self) -> None:
        self._updates = [each for each in self._updates if self.now - each.at < DAY]

    # Messages

    def _room(self, params: JsonObject) -> Chat:
        room = self.rooms.get(int(params.get("chat_id", 0)))
        if room is None:
            raise Refusal(400, "Bad Request: chat not found")
        if room.moved_to is not None:
            raise Refusal(
                400,
                "Bad Request: group chat was upgraded to a supergroup chat",
                {"migrate_to_chat_id": room.moved_to},
            )
        if room.gone is not None:
            raise Refusal(403, f"Forbidden: {room.gone}")
        return room

    def _send_message(self, params: JsonObject) -> JsonObject:
        room = self._room(params)
        self._check_flood(room)
        thread = params.get("message_thread_id")
        if thread is not None and thread not in room.topics:
            raise Refusal(400, "Bad Request: message thread not found")
        text = self._text(params)
        reply = params.get("reply_parameters", {}).get("message_id")
        shown = Shown(
            self._new_number(), text, thread, reply, self.now, params.get("parse_mode") is not None
        )
        room.messages.append(shown)
        return {"message_id": shown.message_id, "chat": _chat(room), "text": text}

    def _edit_message(self, params: JsonObject) -> JsonObject:
        room = self._room(params)
        self._check_flood(room)
        shown = self._message(room, params, "edit")
        text = self._text(params)
        parsed = params.get("parse_mode") is not None
        if (shown.text, shown.parsed) == (text, parsed):
            raise Refusal(
                400,
                "Bad Request: message is not modified: specified new message content and reply "
                "markup are exactly the same as a current content and reply markup of the message",
            )
        shown.versions.append(shown.text)
        shown.text, shown.parsed = text, parsed
        return {"message_id": shown.message_id, "chat": _chat(room), "text": text}

    def _message(self, room: Chat, params: JsonObject, purpose: str) -> Shown:
        for each in room.messages:
            if each.message_id == params.get("message_id") and not each.deleted:
                return each
        raise Refusal(400, f"Bad Request: message to {purpose} not found")

    def _text(self, params: JsonObject) -> str:
        text = str(params.get("text", ""))
        if params.get("parse_mode") == "MarkdownV2":
            try:
                text, _ = parse("*" if self.refuse_formatting else text)
            except CannotParse as error:
                raise Refusal(400, f"Bad Request: can't parse entities: {error}") from None
        if not text.strip():
            raise Refusal(400, "Bad Request: message text is empty")
        if utf16(text) > LONGEST:
            raise Refusal(400, "Bad Request: message is too long")
        return text

    def _new_number(self) -> int:
        self._next_message += 1
        return self._next_message - 1

    def _check_flood(self, room: Chat) -> None:
        limits: list[tuple[object, tuple[int, float]]] = [
            (room.id, self.limits.per_chat), ("token", self.limits.per_token)
        ]  # fmt: skip
        if room.type != "private":
            limits.append((("group", room.id), self.limits.per_group))
        told, until = self._told.get(room.id, (math.inf, -math.inf))
        self.impatient += told + ON_ITS_WAY < self.now < until
        wait = max(self._wait_for(name, count, per) for name, (count, per) in limits)
        if wait > 0:
            self.floods += 1
            wait = math.ceil(wait) if wait > 1 else wait
            self._told[room.id] = (self.now, self.now + wait)
            raise Refusal(429, f"Too Many Requests: retry after {wait:g}", {"retry_after": wait})
        for name, (count, _) in limits:
            self._sent.setdefault(name, deque(maxlen=count)).append(self.now)

    def _wait_for(self, name: object, count: int, seconds: float) -> float:
        sent = self._sent.get(name) or deque[float]()
        return 0.0 if len(sent) < count else sent[0] + seconds - self.now


async def _first(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _chat(room: Chat) -> JsonObject:
    chat: JsonObject = {"id": room.id, "type": room.type}
    return {**chat, "is_forum": True} if room.is_forum else chat


def _entities(text: str) -> Sequence[JsonObject]:
    """Mentions and commands, as clients mark them."""
    found = []
    offset = 0
    for word in text.split(" "):
        kind = {"@": "mention", "/": "bot_command"}.get(word[:1])
        if kind and len(word) > 1:
            found.append({"type": kind, "offset": offset, "length": utf16(word.rstrip(",.!?:"))})
        offset += utf16(word) + 1
    return found


def _answer(status: int, body: bytes, kind: str = "application/json") -> Response:
    return Response(status=status, headers=[("content-type", kind)], pieces=[body])


def _refused(refusal: Refusal) -> Response:
    body: JsonObject = {
        "ok": False, "error_code": refusal.code, "description": refusal.description,
    }  # fmt: skip
    if refusal.parameters:
        body["parameters"] = refusal.parameters
    return _answer(refusal.code, msgspec.json.encode(body))


def _broken(fault: Fault) -> Response:
    if fault.kind == "reset":
        return Response(whole=False)
    if fault.kind == "garbage":
        return _answer(200, b'{"ok":true,"resu')
    page = b"<html><head><title>502 Bad Gateway</title></head></html>"
    return _answer(502, page, "text/html")


@asynccontextmanager
async def open_telegram(
    *,
    token: str = TOKEN,
    username: str = "hermes_bot",
    limits: Limits = NO_LIMITS,
    seed: int = 0,
) -> AsyncIterator[LoopbackTelegram]:
    """Serve the Bot API on this machine for as long as the block lasts."""
    server = LoopbackTelegram(token=token, username=username, limits=limits, seed=seed)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        try:
            yield server
        finally:
            nursery.cancel_scope.cancel()
