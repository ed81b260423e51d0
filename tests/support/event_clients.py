"""A client of an event stream that keeps a model of the conversation, as a page would."""

from __future__ import annotations

from contextlib import asynccontextmanager

import h11
import msgspec
import trio

from hermes.adapters.http.api.streams.events import ConversationStream, RenderedStream
from hermes.adapters.http.markdown.parsing import parse
from hermes.events import AssistantMessage, ReasoningDelta, Steered, TextDelta, ToolStarted


class Model:
    """What a client knows of a conversation: a snapshot, and every event since."""

    def __init__(self):
        self.state = {}
        self.texts = []

    def apply(self, kind, data):
        if kind == "reset":
            self.state = {**data, "history": data["history"]["messages"]}
            self.state["waiting"] = {each["inbox_id"]: each for each in data["waiting"]}
            return
        event = data.get("event")
        if event is not None:
            self._receive(event["type"], event, data["turn_id"])
        self._change(data.get("changes", {}))

    def _receive(self, kind, event, turn_id):
        waiting, turn = self.state["waiting"], self.state["turn"]
        if kind == "message_accepted":
            waiting.setdefault(event["inbox_id"], event)
        elif kind == "turn_started":
            self.state["turn"] = {
                "turn_id": turn_id, "text": "", "tools": [], "inbox_ids": event["inbox_ids"],
                "attempt": event["attempt"], "session_id": event["session_id"],
            }  # fmt: skip
        elif kind == "turn_ended":
            for inbox_id in event["inbox_ids"]:
                waiting.pop(inbox_id, None)
            if turn is not None and turn["turn_id"] == turn_id:
                self.state["turn"] = None
        elif turn is not None and turn["turn_id"] == turn_id:
            self._progress(turn, kind, event)

    def _progress(self, turn, kind, event):
        if kind == "text_delta":
            turn["text"] = "" if event["restart"] else turn["text"] + event["text"]
        elif kind == "tool_started":
            turn["tools"] = [*turn["tools"], {"call": event["call"]}]
        elif kind == "tool_finished":
            for tool in turn["tools"]:
                if tool["call"]["id"] == event["call_id"]:
                    tool.update(finished=True, content=event["content"])
        elif kind == "steered":
            turn["inbox_ids"] = [*turn["inbox_ids"], *event["inbox_ids"]]

    def _change(self, changes):
        for name, value in changes.items():
            if name == "history":
                known = [] if value["replace"] else self.state["history"]
                ids = {row["id"] for row in known}
                new = [row for row in value["messages"] if row["id"] not in ids]
                self.state["history"] = [*known, *new]
            elif name == "waiting":
                self.state["waiting"] = {each["inbox_id"]: each for each in value}
            else:
                self.state[name] = value

    def comparable(self):
        """Return what must be equal to the stored state."""
        state, turn = self.state, self.state["turn"]
        return {
            "session_id": state["session_id"],
            "title": state["title"],
            "archived": state["archived"],
            "settings": state["settings"],
            "history": [(row["id"], row["role"], row["text"]) for row in state["history"]],
            "waiting": sorted(state["waiting"]),
            "approvals": [each["approval_id"] for each in state["approvals"]],
            "turn": None
            if turn is None
            else (
                turn["turn_id"],
                turn["attempt"],
                turn["text"],
                sorted(turn["inbox_ids"]),
                [(tool["call"]["id"], tool.get("finished", False)) for tool in turn["tools"]],
            ),
        }


class RenderedModel(Model):
    """What the page knows: texts are blocks of nodes."""

    def apply(self, kind, data):
        if kind == "reset":
            self.blocks = {row["id"]: row.get("nodes") for row in data["history"]["messages"]}
            self.turns = {row["id"]: told(row) for row in data["history"]["messages"]}
            self._take(data["turn"])
        elif kind == "progress":
            assert self.state["turn"]["turn_id"] == data["turn_id"]
            self._grow(data)
            return
        event = data.get("event")
        if event is not None and event["type"] == "turn_started":
            self.parts = []
        elif event is not None and event["type"] == "tool_started":
            self.parts.append({"type": "tool", "call_id": event["call"]["id"]})
        for row in data.get("changes", {}).get("history", {}).get("messages", ()):
            assert not ("part" in row and "nodes" in row)
            self.turns[row["id"]] = told(row)
            self.blocks[row["id"]] = self._part(row["part"]) if "part" in row else row.get("nodes")
        if "turn" in data.get("changes", {}):
            self._take(data["changes"]["turn"])
        super().apply(kind, data)

    def _take(self, turn):
        self.parts = [{**part} for part in ([] if turn is None else turn["parts"])]
        for part in self.parts:
            if part["type"] == "text":
                part["nodes"] = part["finished"] + part["open"]
                part["done"] = len(part["finished"])

    def _part(self, number):
        [found] = [part for part in self.parts if part.get("number") == number]
        assert found["done"] == len(found["nodes"])
        return found["nodes"]

    def _grow(self, data):
        if data.get("restart"):
            self.parts = [part for part in self.parts if part["type"] != "text"]
        for update in data.get("parts", ()):
            known = [part for part in self.parts if part.get("number") == update["number"]]
            if not known:
                new = {"type": update["type"], "number": update["number"]}
                known = [{**new, "nodes": [], "done": 0, "text": ""}]
                self.parts += known
            [part] = known
            if update["type"] == "reasoning":
                part["text"] += update["text"]
            else:
                done = part["done"]
                part["nodes"][done:] = patched(part["nodes"][done:], update["patch"])
                part["done"] += update["finished"]

    def comparable(self):
        found = super().comparable()
        found["blocks"] = [self.blocks[row["id"]] for row in self.state["history"]]
        found["turns"] = [self.turns[row["id"]] for row in self.state["history"]]
        if found["turn"] is not None:
            turn_id, attempt, _, *rest = found["turn"]
            found["turn"] = (turn_id, attempt, [shown(part) for part in self.parts], *rest)
        return found


def told(row):
    """Return what a rendered message tells of its turn."""
    return row.get("turn_id"), "duration" in row, row.get("failed")


def patched(nodes, patch):
    """Return nodes as a patch changes them."""
    keep, change, rest = patch
    kept = nodes[:keep]
    if isinstance(change, str):
        kept.append(nodes[keep] + change)
    elif change is not None:
        tag, children, attributes = nodes[keep]
        kept.append([tag, patched(children, change), attributes])
    return kept + rest


def shown(part):
    """Return what a part shows."""
    return part["type"], part.get("nodes") or part.get("text") or part.get("call_id") or []


def parts_of(events):
    """Return the parts that a turn has after these events, as `shown` does."""
    parts = []
    for event in events:
        if isinstance(event, TextDelta) and event.restart:
            parts = [part for part in parts if part[0] != "text"]
        elif isinstance(event, TextDelta | ReasoningDelta) and event.text:
            kind = "text" if isinstance(event, TextDelta) else "reasoning"
            if not parts or parts[-1][0] != kind:
                parts.append([kind, ""])
            parts[-1][1] += event.text
        elif isinstance(event, ToolStarted):
            parts.append(["tool", event.call.id])
        elif isinstance(event, Steered | AssistantMessage):
            parts.append(["end", ""])
    return [
        (kind, blocks_of(value) if kind == "text" else value)
        for kind, value in parts
        if kind != "end"
    ]


def blocks_of(text):
    """Return the blocks of a text as a client gets them."""
    return msgspec.to_builtins(parse(text))


async def rendered_state(runtime, key):
    """Return the state that the page must have, in the form of `RenderedModel.comparable`."""
    view, events = await runtime.api.view(key), runtime.api.turn_events(key)
    found = await stored_state(runtime, key)
    shown_roles = [row.role in {"user", "assistant"} and row.content for row in view.rows]
    found["blocks"] = [
        blocks_of(row.content) if is_shown else None
        for row, is_shown in zip(view.rows, shown_roles, strict=True)
    ]
    found["turns"] = await recorded_turns(runtime, key, view.rows)
    if found["turn"] is not None:
        turn_id, attempt, _, *rest = found["turn"]
        found["turn"] = (turn_id, attempt, parts_of(events), *rest)
    return found


async def recorded_turns(runtime, key, rows):
    """Return what is recorded of the turns of these rows, as `told` does."""
    known = {}
    for turn in reversed(await runtime.api.past_turns(key, limit=1000)):
        turn = await runtime.api.past_turn(key, turn.turn_id)  # noqa: PLW2901
        tools = {each.call_id: each for each in turn.events if each.duration is not None}
        for row in turn.messages:
            tool = tools.get(row.tool_call_id) if row.role == "tool" else None
            known[row.id] = turn.turn_id, tool is not None, tool and tool.failed
    return [known.get(row.id, (None, False, None)) for row in rows]


async def stored_state(runtime, key):
    """Return the state that a client must have, in the form of `Model.comparable`."""
    view, turn = await runtime.api.view(key), runtime.api.progress(key)
    return {
        "session_id": view.session_id,
        "title": view.title,
        "archived": view.archived,
        "settings": msgspec.to_builtins(view.settings),
        "history": [(row.id, row.role, row.content) for row in view.rows],
        "waiting": sorted(message.inbox_id for message in view.waiting),
        "approvals": [approval.approval_id for approval in view.approvals],
        "turn": None
        if turn is None
        else (
            turn.turn_id,
            turn.attempt,
            turn.text,
            sorted(turn.inbox_ids),
            [(tool.call.id, tool.finished) for tool in turn.tools],
        ),
    }


class EventClient:
    """Reads the stream of one conversation, as an ASGI server would send it.

    While `reading` is False, it takes nothing more, like a client whose buffers are full.
    """

    def __init__(self, key, *, rendered=False):
        self.key = key
        self.rendered = rendered
        self.model = RenderedModel() if rendered else Model()
        self.last_id = None
        self.resets = 0
        self.kinds = []
        self._rest = b""
        self._scope = None
        self._reading = trio.Event()
        self._reading.set()

    async def listen(self, hub):
        """Connect, with the id of the last event, and read until the stream ends."""
        self._rest = b""
        if self.rendered:
            stream = RenderedStream(hub, self.key, self.last_id)
        else:
            channel = hub.conversation(self.key)
            stream = ConversationStream(hub, channel, channel.position(self.last_id))
        with trio.CancelScope() as scope:
            self._scope = scope

            async def send(message):
                await self._reading.wait()
                if self._scope is scope and not scope.cancel_called:
                    self._receive(message.get("body", b""))
                await trio.lowlevel.checkpoint()

            await stream({"type": "http", "method": "GET"}, trio.sleep_forever, send)

    def cut(self):
        """Lose the connection."""
        if self._scope is not None:
            self._scope.cancel()

    def stop_reading(self):
        self._reading = trio.Event()

    def go_on(self):
        self._reading.set()

    def _receive(self, body):
        *frames, self._rest = (self._rest + body).split(b"\n\n")
        for frame in frames:
            fields = dict(line.split(b": ", 1) for line in frame.split(b"\n"))
            if b"event" in fields:
                kind = fields[b"event"].decode()
                self.kinds.append(kind)
                self.resets += kind == "reset"
                self.model.apply(kind, msgspec.json.decode(fields[b"data"]))
                self.last_id = fields[b"id"].decode()

    async def catch_up(self, hub):
        """Wait until the client has everything that was sent."""
        self.go_on()
        channel = hub.conversation(self.key)
        state = await hub.snapshot(channel, rendered=self.rendered)
        if self.rendered:
            channel = hub.rendered(self.key)
            while not channel.is_idle:
                await trio.lowlevel.checkpoint()
        final = int(state.id.rpartition(".")[2])
        while not self._has(channel, final):
            await trio.lowlevel.checkpoint()

    def _has(self, channel, final):
        position = channel.position(self.last_id)
        if position is None:
            return False
        return not [
            entry for entry in channel.after(position) if self.rendered or entry.number <= final
        ]


class Events:
    """The events of a stream over HTTP, as they arrive."""

    def __init__(self, stream):
        self._stream = stream
        self._connection = h11.Connection(h11.CLIENT)
        self._text = ""
        self.last_id = None
        self.response = None

    async def open(self, host, path, headers, body=None):
        """Send the request, and wait for the head of the response."""
        headers, sent = [("Host", host), *headers], [h11.EndOfMessage()]
        if body is not None:
            data = msgspec.json.encode(body)
            headers += [("Content-Type", "application/json"), ("Content-Length", str(len(data)))]
            sent.insert(0, h11.Data(data))
        method = "GET" if body is None else "POST"
        for event in (h11.Request(method=method, target=path, headers=headers), *sent):
            await self._stream.send_all(self._connection.send(event))
        self.response = await self._next()

    async def _next(self):
        while (event := self._connection.next_event()) is h11.NEED_DATA:
            self._connection.receive_data(await self._stream.receive_some(65536))
        return event

    async def frame(self):
        """Return the fields of the next frame; None at the end."""
        while "\n\n" not in self._text:
            event = await self._next()
            if not isinstance(event, h11.Data):
                return None
            self._text += event.data.decode()
        frame, _, self._text = self._text.partition("\n\n")
        return dict(line.split(": ", 1) for line in frame.split("\n"))

    async def next(self):
        """Return the name and the data of the next event; None at the end."""
        fields = await self.frame()
        if fields is None:
            return None
        if "data" not in fields:  # a comment
            return await self.next()
        self.last_id = fields["id"]
        return fields["event"], msgspec.json.decode(fields["data"])

    async def until(self, kind):
        """Return the data of the next event with this name."""
        while True:
            name, data = await self.next()
            if name == kind:
                return data


@asynccontextmanager
async def open_events(server, path, *, secret=None, last_id=None, body=None):
    """Open an event stream of a server, with a body by POST."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    headers = [("Authorization", f"Bearer {secret or server.secret}")]
    if last_id is not None:
        headers.append(("Last-Event-ID", last_id))
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        events = Events(stream)
        await events.open(f"{host}:{port}", path, headers, body)
        yield events
