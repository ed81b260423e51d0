"""The events of a streamed response: items as they grow, and at last as the store has them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import attrs

from hermes.adapters.http.openai.responses.items import (
    CallNames,
    Lost,
    as_lost,
    call_bodies,
    message_body,
    new_item,
    open_bodies,
    reasoning_body,
    text_of,
    with_answer,
)
from hermes.events import (
    AssistantMessage,
    ReasoningDelta,
    RuntimeEvent,
    Steered,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnStarted,
)
from hermes.messages import JsonObject, Reply, ToolCall

TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}


@attrs.define
class _Slot:
    """An item of this attempt."""

    index: int
    body: JsonObject
    item: JsonObject
    text: list[str] = attrs.Factory(list)
    open: bool = True
    lost: bool = False


class ItemStream:
    """Turns the events of a turn into the events of a stream, without their numbers.

    It is deterministic: the same events lead to the same stream for every client.
    """

    def __init__(self, response_id: str, lost: Lost, *, mcp: bool = False) -> None:
        self._id = response_id
        self._mcp = mcp
        self._before = dict(lost)
        self._slots: list[_Slot] = []
        self._names = CallNames(lost)
        self._waiting: list[tuple[ToolCall, list[str]]] = []

    # What is there

    @property
    def count(self) -> int:
        """The number of items of this process."""
        return len(self._slots)

    @property
    def lost(self) -> dict[int, JsonObject]:
        """The items that are incomplete for good."""
        return self._before | {slot.index: slot.item for slot in self._slots if slot.lost}

    @property
    def output(self) -> list[JsonObject]:
        """All items so far, in order; one that grows is "in_progress"."""
        items = self.seen()
        return [items[index] for index in sorted(items)]

    def seen(self) -> dict[int, JsonObject]:
        """Return all items by index, as clients have seen them."""
        items = dict(self._before)
        for slot in self._slots:
            growing = {**_with_text(slot), "status": "in_progress"}
            items[slot.index] = growing if slot.open else slot.item
        return items

    # While the turn runs

    def feed(self, event: RuntimeEvent) -> Iterator[JsonObject]:  # noqa: C901 - one case per event
        """Yield the events of the stream for an event of the turn."""
        match event:
            case TextDelta(_, restart) if restart:
                yield from self._lose_open("message")
            case TextDelta(text) if text:
                yield from self._grow("message", text)
            case ReasoningDelta(text) if text:
                yield from self._grow("reasoning", text)
            case AssistantMessage() | Steered():
                yield from self._close()
            case ToolStarted(call):
                yield from self._close()
                self._waiting.append((call, []))
            case ToolFinished(call_id, content):
                yield from self._finished(call_id, content)
            case TurnStarted():
                self._waiting = []
                for slot in [slot for slot in self._slots if not slot.lost]:
                    yield self._lose(slot)

    def _grow(self, kind: str, text: str) -> Iterator[JsonObject]:
        slot = self._open_slot
        if slot is None or slot.body["type"] != kind:
            yield from self._close()
            body = message_body("") if kind == "message" else reasoning_body("")
            slot = self._add(body)
            yield from _begin(slot)
        slot.text.append(text)
        yield _delta(slot, text)

    def _finished(self, call_id: str, content: str) -> Iterator[JsonObject]:
        """Finish a tool; pairs are shown in the order of their calls."""
        for call, output in self._waiting:
            if call.id == call_id and not output:
                output.append(content)
                break
        while self._waiting and self._waiting[0][1]:
            call, [content] = self._waiting.pop(0)
            for body in call_bodies(call, content, mcp=self._mcp):
                yield from self._whole(body)

    @property
    def _open_slot(self) -> _Slot | None:
        return self._slots[-1] if self._slots and self._slots[-1].open else None

    def _add(self, body: JsonObject) -> _Slot:
        index = self._slots[-1].index + 1 if self._slots else 0
        while index in self._before:
            index += 1
        item = new_item(self._id, index, self._names.rename(body), "completed")
        slot = _Slot(index, body, item)
        self._slots.append(slot)
        return slot

    def _whole(self, body: JsonObject) -> Iterator[JsonObject]:
        """Yield the events of an item that is complete from the start."""
        slot = self._add(body)
        slot.open = False
        yield from whole_item(slot.index, slot.item)

    def _close(self) -> Iterator[JsonObject]:
        """Complete the item that grows."""
        slot = self._open_slot
        if slot is None:
            return
        yield from self._complete(slot, _body(slot))

    def _complete(self, slot: _Slot, body: JsonObject) -> Iterator[JsonObject]:
        slot.body, slot.open = body, False
        slot.item = new_item(self._id, slot.index, self._names.rename(body), "completed")
        yield from _end(slot.index, slot.item)

    def _lose_open(self, kind: str) -> Iterator[JsonObject]:
        slot = self._open_slot
        if slot is not None and slot.body["type"] == kind:
            yield self._lose(slot)

    def _lose(self, slot: _Slot) -> JsonObject:
        slot.item = as_lost(_with_text(slot))
        slot.open, slot.lost = False, True
        return _event("output_item.done", slot.index, item=slot.item)

    # When the turn has ended

    def finish(self, bodies: Sequence[JsonObject]) -> Iterator[JsonObject]:
        """Yield the events that lead from what was streamed to the items that are stored."""
        left = list(bodies)
        for slot in [slot for slot in self._slots if not slot.lost]:
            if left and _continues(slot, left[0]):
                yield from self._settle(slot, left.pop(0))
            else:
                yield self._lose(slot)
        for body in left:
            yield from self._whole(body)

    def _settle(self, slot: _Slot, body: JsonObject) -> Iterator[JsonObject]:
        """Complete an item as it is stored."""
        if not slot.open:
            if slot.body != body:
                slot.body = body
                slot.item = new_item(self._id, slot.index, self._names.rename(body), "completed")
                yield _event("output_item.done", slot.index, item=slot.item)
            return
        text, said = text_of(body), "".join(slot.text)
        rest = text[len(said) :] if text.startswith(said) else ""
        if rest:
            slot.text.append(rest)
            yield _delta(slot, rest)
        yield from self._complete(slot, body)

    def streamed(self, reply: Reply) -> list[JsonObject]:
        """Return the items of a turn of which only the reply is stored."""
        kept = [_body(slot) for slot in self._slots if not slot.lost]
        return [*with_answer(kept, reply), *open_bodies(self._id, reply)]


def bodies_of_events(
    response_id: str, events: Iterable[RuntimeEvent], reply: Reply, *, mcp: bool = False
) -> list[JsonObject]:
    """Return the items of a turn of which only the reply is stored, without ids."""
    items = ItemStream(response_id, {}, mcp=mcp)
    for event in events:
        deque(items.feed(event), maxlen=0)
    return items.streamed(reply)


def _continues(slot: _Slot, body: JsonObject) -> bool:
    """Whether what a client saw of an item is the beginning of a stored one, or all of it.

    White space around a whole text does not count: agents may trim what their model said.
    """
    if slot.body["type"] != body["type"]:
        return False
    if body["type"] not in TEXTS:
        return slot.body == body
    text, said = text_of(body), "".join(slot.text) if slot.open else text_of(slot.body)
    return (slot.open and text.startswith(said)) or text.strip() == said.strip()


def _with_text(slot: _Slot) -> JsonObject:
    """Return an item with the text that it has so far."""
    if not slot.open:
        return slot.item
    return {**slot.item, "content": _body(slot)["content"]}


def _body(slot: _Slot) -> JsonObject:
    """Return an item without its id, with the text that it has so far."""
    if not slot.open:
        return slot.body
    text = "".join(slot.text)
    return message_body(text) if slot.body["type"] == "message" else reasoning_body(text)


# Events of items


def whole_item(index: int, item: JsonObject) -> Iterator[JsonObject]:
    """Yield the events of a finished item."""
    kind = item["type"]
    if kind in TEXTS:
        yield from _begin_text(index, item)
        if text := text_of(item):
            yield _text_event(kind, "delta", index, item["id"], delta=text)
        yield from _end(index, item)
        return
    about = {"item_id": item["id"]}
    if kind == "function_call":
        added = {**item, "arguments": "", "status": "in_progress"}
        yield _event("output_item.added", index, item=added)
        name, arguments = "function_call_arguments", item["arguments"]
        yield _event(f"{name}.delta", index, **about, delta=arguments)
        yield _event(f"{name}.done", index, **about, name=item["name"], arguments=arguments)
    elif kind == "mcp_call":
        added = {**item, "arguments": "", "output": None, "status": "in_progress"}
        yield _event("output_item.added", index, item=added)
        yield _event("mcp_call.in_progress", index, **about)
        name, arguments = "mcp_call_arguments", item["arguments"]
        yield _event(f"{name}.delta", index, **about, delta=arguments)
        yield _event(f"{name}.done", index, **about, arguments=arguments)
        yield _event("mcp_call.completed", index, **about)
    else:
        yield _event("output_item.added", index, item=item)
    yield _event("output_item.done", index, item=item)


def _begin(slot: _Slot) -> Iterator[JsonObject]:
    yield from _begin_text(slot.index, slot.item)


def _begin_text(index: int, item: JsonObject) -> Iterator[JsonObject]:
    yield _event("output_item.added", index, item={**item, "status": "in_progress", "content": []})
    part = {**item["content"][0], "text": ""}
    part = {**part, "annotations": []} if item["type"] == "message" else part
    yield _event("content_part.added", index, item_id=item["id"], content_index=0, part=part)


def _delta(slot: _Slot, text: str) -> JsonObject:
    return _text_event(slot.body["type"], "delta", slot.index, slot.item["id"], delta=text)


def _end(index: int, item: JsonObject) -> Iterator[JsonObject]:
    """Yield the events that complete a text."""
    part, where = item["content"][0], {"item_id": item["id"], "content_index": 0}
    yield _text_event(item["type"], "done", index, item["id"], text=part["text"])
    for number, annotation in enumerate(part.get("annotations", ())):
        yield _event(
            "output_text.annotation.added", index, **where, annotation_index=number,
            annotation=annotation,
        )  # fmt: skip
    yield _event("content_part.done", index, **where, part=part)
    yield _event("output_item.done", index, item=item)


def _text_event(kind: str, name: str, index: int, item_id: str, **fields: object) -> JsonObject:
    more: JsonObject = {"logprobs": []} if kind == "message" else {}
    return _event(
        f"{TEXTS[kind]}.{name}", index, item_id=item_id, content_index=0, **fields, **more
    )


def _event(name: str, index: int, /, **fields: object) -> JsonObject:
    return {"type": f"response.{name}", "output_index": index, **fields}
