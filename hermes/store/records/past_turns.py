"""Reads recorded turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from hermes.messages import (
    CallRows,
    Content,
    PastTurn,
    RecordedCall,
    StoredMessage,
    TurnEvent,
    TurnOfRows,
    Usage,
)
from hermes.store.conversations import codec, lineage, routes
from hermes.store.recordings import rows as recordings
from hermes.store.recordings.rows import Details, StoredCall, StoredEvent, StoredUsage
from hermes.store.transaction import Row, Transaction

_SELECT = (
    "SELECT t.id, t.session_no, s.id, t.first_id, t.row_count, t.started_at, t.ended_at, "
    "t.status, t.details FROM turns t JOIN sessions s ON s.no = t.session_no "
)
_OF_ROWS = (
    "SELECT id, first_id, row_count, details FROM turns WHERE session_no IN "
    "(SELECT CAST(value AS BIGINT) FROM json_each(?)) "
    "AND first_id <= ? AND first_id + row_count > ? ORDER BY id"
)
_GONE = Content("{}", "")
_decode_ranges = msgspec.json.Decoder(tuple[int, ...]).decode


def list_turns(
    tx: Transaction, session_key: str, *, before: int | None = None, limit: int = 50
) -> list[PastTurn]:
    """Return the recorded turns of a key's current conversation, the latest first.

    `before` is the id of the last turn of the page before. Of their calls, only the settings have
    texts.
    """
    route = routes.get_route(tx, session_key)
    if route is None:
        return []
    ids = lineage.get_compression_lineage(tx, route.session_id)
    rows = tx.all(
        f"{_SELECT} WHERE s.id IN (SELECT value FROM json_each(?)) AND t.id < ? "
        "ORDER BY t.id DESC LIMIT ?",
        codec.encode_json(list(ids)),
        codec.LAST_ID if before is None else before,
        limit,
    )
    return [_past(tx, row, whole=False) for row in rows]


def get_past_turn(tx: Transaction, session_key: str, turn_id: int) -> PastTurn | None:
    """Return a recorded turn of any session of a key, with its messages."""
    row = _find(tx, session_key, turn_id)
    if row is None:
        return None
    turn = _past(tx, row, whole=True)
    return msgspec.structs.replace(turn, messages=_messages(tx, row[3], row[4]))


def get_call_rows(
    tx: Transaction, session_key: str, turn_id: int, number: int
) -> tuple[RecordedCall, CallRows] | None:
    """Return a call of a recorded turn, counted from 0, with the rows of its request."""
    row = _find(tx, session_key, turn_id)
    turn = None if row is None else _past(tx, row, whole=True)
    if row is None or turn is None or not 0 <= number < len(turn.calls):
        return None
    call, stored = turn.calls[number], _calls(recordings.decode(row[8]))[number]
    base, wanted, history = (stored.session_no or row[1]) * codec.SPAN, 0, list[StoredMessage]()
    for first, last in zip(call.history[::2], call.history[1::2], strict=True):
        wanted += last - first + 1
        history += _messages(tx, base + first, last - first + 1)
    own = _messages(tx, row[3], min(call.rows, row[4]))
    missing = wanted + call.rows - len(history) - len(own)
    return call, CallRows(history=history, turn=own, missing=missing)


def turns_of_rows(tx: Transaction, row_ids: Sequence[int]) -> list[TurnOfRows]:
    """Return the recorded turns that have stored these rows, the oldest first.

    Rows of turns that were not recorded, and copies of rows, have none.
    """
    if not row_ids:
        return []
    numbers = sorted({row_id // codec.SPAN for row_id in row_ids})
    found = tx.all(_OF_ROWS, codec.encode_json(numbers), max(row_ids), min(row_ids))
    return [
        TurnOfRows(
            turn_id=turn_id,
            first_id=first_id,
            row_count=row_count,
            tools=[
                _event(each) for each in recordings.decode_events(details) if each.kind == "tool"
            ],
        )
        for turn_id, first_id, row_count, details in found
    ]


def _event(stored: StoredEvent) -> TurnEvent:
    return TurnEvent(*msgspec.structs.astuple(stored))


def _find(tx: Transaction, session_key: str, turn_id: int) -> Row | None:
    return tx.one(f"{_SELECT} WHERE t.id = ? AND {lineage.BELONGS}", turn_id, session_key)


def _messages(tx: Transaction, first: int, count: int) -> list[StoredMessage]:
    """Return this many rows, hidden ones included, from this id on."""
    rows = tx.all(
        f"SELECT {codec.COLUMNS} FROM all_messages WHERE id BETWEEN ? AND ? ORDER BY id",
        first,
        first + count - 1,
    )
    return codec.to_messages(rows)


def _calls(details: Details) -> list[StoredCall]:
    """Return the calls of a turn, each with its history."""
    calls: list[StoredCall] = []
    for call in details.calls:
        if call.history is None and calls:
            history, no = calls[-1].history, calls[-1].session_no
            call = msgspec.structs.replace(call, history=history, session_no=no)  # noqa: PLW2901
        calls.append(call)
    return calls


def _past(tx: Transaction, row: Row, *, whole: bool) -> PastTurn:
    turn_id, no, session_id, _, row_count, started_at, ended_at, status, stored = row
    details = recordings.decode(stored)
    calls = _calls(details)
    contents = _contents(tx, _wanted(calls, whole=whole))
    return PastTurn(
        turn_id=turn_id,
        session_id=session_id,
        started_at=started_at,
        ended_at=ended_at,
        status=status,
        agent=details.agent,
        error=details.error,
        repeats=details.repeats,
        calls=[_call(tx, call, contents, no, session_id) for call in calls],
        events=[_event(each) for each in details.events],
        row_count=row_count,
    )


def _wanted(calls: Iterable[StoredCall], *, whole: bool) -> set[int]:
    """Return the numbers of the contents that are read."""
    wanted = {call.settings for call in calls}
    for call in calls if whole else ():
        history = call.history if isinstance(call.history, int) else None
        numbers = call.tools, call.system, call.injected, history
        wanted |= {number for number in numbers if number is not None}
    return wanted


def _contents(tx: Transaction, numbers: Iterable[int]) -> dict[int, Content]:
    rows = tx.all(
        "SELECT id, content, digest FROM contents "
        "WHERE id IN (SELECT CAST(value AS BIGINT) FROM json_each(?))",
        codec.encode_json(sorted(numbers)),
    )
    return {number: Content(text, digest) for number, text, digest in rows}


def _call(
    tx: Transaction, stored: StoredCall, contents: dict[int, Content], no: int, session_id: str
) -> RecordedCall:
    def content(number: int | None) -> Content | None:
        return None if number is None else contents.get(number)

    history = stored.history or ()
    if isinstance(history, int):
        text = contents.get(history)
        history = () if text is None else _ranges(text.text)
    if stored.session_no not in {0, no}:
        found = tx.one("SELECT id FROM sessions WHERE no = ?", stored.session_no)
        session_id = "" if found is None else str(found[0])
    return RecordedCall(
        settings=content(stored.settings) or _GONE,
        tools=content(stored.tools),
        system=content(stored.system),
        injected=content(stored.injected),
        session_id=session_id,
        history=history,
        rows=stored.rows,
        digest=None if stored.digest is None else recordings.lengthened(stored.digest),
        redacted=stored.redacted,
        hidden_files=stored.hidden_files,
        started=stored.started,
        first=stored.first,
        duration=stored.duration,
        usage=_usage(stored.usage),
        error=stored.error,
    )


def _ranges(text: str) -> tuple[int, ...]:
    """Return ranges of messages that were stored as a text; none if it is damaged."""
    try:
        return _decode_ranges(text)
    except msgspec.MsgspecError:
        return ()


def _usage(stored: StoredUsage | None) -> Usage | None:
    if stored is None:
        return None
    return Usage(
        model=stored.model,
        provider=stored.provider,
        input_tokens=stored.input_tokens,
        output_tokens=stored.output_tokens,
        cache_read_tokens=stored.cache_read_tokens,
        cache_write_tokens=stored.cache_write_tokens,
        reasoning_tokens=stored.reasoning_tokens,
        cost=stored.cost,
    )
