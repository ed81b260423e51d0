"""Event streams: server-sent events that continue after a lost connection."""

from __future__ import annotations

from contextlib import AbstractContextManager

import msgspec
import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hermes.adapters.http.api.live.types import LiveSnapshot
from hermes.adapters.http.api.names import is_visible, prefixes, resolve
from hermes.adapters.http.api.streams.channels import Channel, Entry, Listener, frame
from hermes.adapters.http.api.streams.hub import Conversation, Hub
from hermes.adapters.http.api.streams.rendered.channel import rendered_snapshot
from hermes.adapters.http.api.streams.rendered.types import (
    Progress,
    RenderedEvent,
    RenderedSnapshot,
)
from hermes.adapters.http.api.streams.state import (
    ConversationEvent,
    ListEvent,
    ListSnapshot,
    Snapshot,
)
from hermes.adapters.http.endpoints import Call, Endpoint, json_response
from hermes.adapters.http.errors import ApiError
from hermes.background import cancel, open_background, start_soon

KEEP_ALIVE = 15.0
"""Seconds after which a comment is sent if there was no event."""
MAX_CHUNK = 65_536
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


class EventsQuery(msgspec.Struct):
    """Where to go on: the id of the last event, for clients that cannot send `Last-Event-ID`."""

    last_event_id: str | None = None


class RenderedQuery(msgspec.Struct):
    """With `rendered`, texts are blocks of nodes, as the web page shows them."""

    rendered: bool = False


class ConversationQuery(EventsQuery):
    """Where to go on; with `rendered`, texts are blocks of nodes, as the web page shows them.

    The texts of the running turn are then in events `progress`.
    """

    rendered: bool = False


class EventStream(Response):
    """The response of an event stream. A client that reads slowly delays nobody.

    It has no buffer: what it has not sent is in its channel, or it sends a new snapshot.
    """

    def __init__(self, hub: Hub, channel: Channel, position: int | None) -> None:
        super().__init__()
        self.hub = hub
        self._channel = channel
        self._position = position

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client leaves or the server ends."""
        headers = [*HEADERS, *(each for each in self.raw_headers if each[0] != b"content-length")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body"})
            return
        with self._listening() as listener, trio.CancelScope() as connected:
            async with open_background() as background:
                start_soon(background, _watch, receive, connected)
                await self._send_events(send, listener)
        if not connected.cancel_called:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _listening(self) -> AbstractContextManager[Listener]:
        return self.hub.listening(self._channel)

    async def _send_events(self, send: Send, listener: Listener) -> None:
        channel, is_new = self._channel, True
        while not self.hub.closed:
            if self._position is None or not channel.has_all_after(self._position):
                found = await self._reset()
                if found is None:
                    return
                self._position = int(found.id.rpartition(".")[2])
                await _send(send, frame(found.id, "reset", found))
            elif entries := channel.after(self._position):
                await _send(send, self._take(entries))
            elif is_new:
                is_new = False
                await _send(send, caught_up(channel.event_id(channel.numbers.last)))
            else:
                with trio.move_on_after(KEEP_ALIVE) as idle:
                    await listener.wait()
                if idle.cancelled_caught:
                    await _send(send, b": keep-alive\n\n")

    def _take(self, entries: list[Entry]) -> bytes:
        """Return the next events as one piece, and move on."""
        taken, size = [], 0
        for entry in entries:
            if size > MAX_CHUNK:
                break
            self._position = entry.number
            if self._shows(entry):
                taken.append(entry.frame)
                size += len(entry.frame)
        return b"".join(taken)

    def _shows(self, entry: Entry) -> bool:
        del entry
        return True

    async def _reset(self) -> Snapshot | ListSnapshot | LiveSnapshot | None:
        """Return the state from which the events go on; None if the server ends."""
        raise NotImplementedError


class ConversationStream(EventStream):
    """The events of one conversation."""

    def __init__(self, hub: Hub, channel: Conversation, position: int | None) -> None:
        super().__init__(hub, channel, position)
        self._conversation = channel

    async def _reset(self) -> Snapshot | None:
        return await self.hub.snapshot(self._conversation)


class RenderedStream(EventStream):
    """The events of one conversation, with texts as nodes."""

    def __init__(self, hub: Hub, session_key: str, event_id: str | None) -> None:
        channel = hub.rendered(session_key)
        super().__init__(hub, channel, channel.position(event_id))
        self._conversation = hub.conversation(session_key)

    async def _reset(self) -> RenderedSnapshot | None:
        return await rendered_state(self.hub, self._conversation)


class ListStream(EventStream):
    """The conversations of a caller, as they change."""

    def __init__(self, call: Call, position: int | None) -> None:
        hub = call.services.hub
        super().__init__(hub, hub.list, position)
        self._call = call

    def _shows(self, entry: Entry) -> bool:
        return is_visible(self._call.caller, entry.session_key)

    async def _reset(self) -> ListSnapshot:
        feed, api, caller = self.hub.list, self._call.runtime.api, self._call.caller
        await feed.compare()  # what other nodes change from now on is sent
        event_id = feed.event_id(feed.numbers.last)  # what is sent after it repeats no harm
        found = await api.conversations(prefixes=prefixes(caller))
        visible = [each for each in found if is_visible(caller, each.session_key)]
        turns = {each.session_key: api.progress(each.session_key) for each in visible}
        running = {key: turn.turn_id for key, turn in turns.items() if turn is not None}
        return ListSnapshot(id=event_id, conversations=visible, turns=running)


def caught_up(event_id: str) -> bytes:
    """Return what follows the events that a client has missed: an id without an event."""
    return b"id: %b\n: caught up\n\n" % event_id.encode()


async def _send(send: Send, body: bytes) -> None:
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _watch(receive: Receive, connected: trio.CancelScope) -> None:
    """Cancel the stream when the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
    cancel(connected)


async def conversation_events(call: Call) -> Response:
    """Send what happens in a conversation, from its current state on."""
    await trio.lowlevel.checkpoint()
    hub, key = call.services.hub, resolve(call, call.path["key"])
    if call.query(ConversationQuery).rendered:
        return RenderedStream(hub, key, _last_id(call))
    channel = hub.conversation(key)
    return ConversationStream(hub, channel, channel.position(_last_id(call)))


async def list_events(call: Call) -> Response:
    """Send each conversation of the caller that changes; an operator sees all."""
    await trio.lowlevel.checkpoint()
    return ListStream(call, call.services.hub.list.position(_last_id(call)))


async def get_snapshot(call: Call) -> Response:
    """Return the state of a conversation, as the event `reset` does."""
    hub = call.services.hub
    channel = hub.conversation(resolve(call, call.path["key"]))
    rendered = call.query(RenderedQuery).rendered
    found = await (rendered_state(hub, channel) if rendered else hub.snapshot(channel))
    if found is None:
        raise ApiError(503, "The server is ending.", code="draining")
    return json_response(found)


async def rendered_state(hub: Hub, channel: Conversation) -> RenderedSnapshot | None:
    """Return the state of a conversation with nodes; None if the server ends."""
    found = await hub.snapshot(channel, rendered=True)
    return None if found is None else await rendered_snapshot(hub.renderer, found)


def _last_id(call: Call) -> str | None:
    """Return the id of the last event that the client knows."""
    query = call.request.query_params.get("last_event_id")
    return call.request.headers.get("last-event-id", query)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/api/conversations/{key}/events",
        handle=conversation_events,
        summary="Stream what happens in a conversation.",
        query=ConversationQuery,
        streams=True,
        events=(Snapshot, ConversationEvent, RenderedSnapshot, RenderedEvent, Progress),
    ),
    Endpoint(
        method="GET",
        path="/api/events",
        handle=list_events,
        summary="Stream the conversations that change.",
        query=EventsQuery,
        streams=True,
        events=(ListSnapshot, ListEvent),
    ),
    Endpoint(
        method="GET",
        path="/api/conversations/{key}/snapshot",
        handle=get_snapshot,
        summary="Return the state of a conversation, with its running turn.",
        query=RenderedQuery,
        result=Snapshot,
    ),
)
