"""Repeat a recorded turn: its input, and the results of its tool calls."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hermes.errors import AttachmentRefused, UnknownFile
from hermes.messages import (
    JsonObject,
    PastTurn,
    RecordedResult,
    Repeats,
    StoredMessage,
    file_id_of,
)
from hermes.protocols import Store
from hermes.transcript.rows import INTERRUPTED


async def recorded_results(store: Store, repeats: Repeats, to: str) -> Sequence[RecordedResult]:
    """Return the tool calls of a recorded turn, with files that the key `to` can read."""
    turn = await store.get_past_turn(repeats.session_key, repeats.turn_id)
    if turn is None:  # deleted since: then each call needs an approval
        return ()
    found: list[RecordedResult] = []
    for each in _calls(turn):
        result = each.result
        if result is not None and result.parts:
            parts = await copied_parts(store, result.parts, repeats.session_key, to)
            each = replace(each, result=replace(result, parts=parts))  # noqa: PLW2901
        found.append(each)
    return found


def _calls(turn: PastTurn) -> list[RecordedResult]:
    """Return the calls of a turn with their results, in order.

    A result belongs to the latest call with its id: some models repeat ids.
    """
    calls: list[RecordedResult] = []
    waiting: dict[str, int] = {}
    tools = [event for event in turn.events if event.kind == "tool"]
    for row in turn.messages:
        for call in row.tool_calls:
            waiting[call.id] = len(calls)
            number = len(calls)
            failed = number < len(tools) and tools[number].failed
            calls.append(RecordedResult(call.name, call.arguments, None, failed))
        index = waiting.pop(row.tool_call_id or "", None) if row.role == "tool" else None
        if index is not None and row.content != INTERRUPTED:
            calls[index] = replace(calls[index], result=row)
    return calls


async def copied_parts(
    store: Store, parts: Sequence[JsonObject], session_key: str, to: str
) -> tuple[JsonObject, ...]:
    """Return parts whose files the key `to` can read; those that are gone are left out."""
    copied: list[JsonObject] = []
    for part in parts:
        file_id = file_id_of(part)
        if file_id is None:
            copied.append(part)
            continue
        try:
            copied.append((await store.copy_file(file_id, session_key=session_key, to=to)).part)
        except (UnknownFile, AttachmentRefused):
            continue
    return tuple(copied)


def input_of(turn: PastTurn) -> list[StoredMessage]:
    """Return the messages of the user that a turn began with."""
    first: list[StoredMessage] = []
    for row in turn.messages:
        if row.role != "user":
            break
        first.append(row)
    return first
