"""A sequential model of a bot that starts with a backlog, and the comparison with what it did.

The model reads the file only. Each reply in the outbox is one step of its conversation, in the
order of the replies. A start finds open messages; fresh ones follow in the order of their inbox
ids. What a step may do:

- the last stopping command that the start found comes first, and cancels all that is before it;
- a turn takes the first open messages; of those that the start found, all up to the next command
  (or one, if messages are not merged, or its turn was begun twice before);
- a command that waits is run when it is the first; the start treats all of its commands so;
- a fresh command runs at any time, or stops and cancels all that is open before it;
- a fresh message may be refused or steer a turn if its sender wants that.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path

import apsw
import attrs

from hermes.store import SessionStore
from tests.campaigns.killing import VIOLATIONS, sending_violations

STOPPING = ("/stop", "/new", "/reset")
AT_ONCE = ("/sessions", "/title", "/status", "/usage", "/help", "/whoami", "/nonsense",
           "/background")  # fmt: skip
BEGUN = "SELECT id FROM inbox WHERE state = 'open' AND attempts > 1"
CARRYING = ("/queue", "/steer")


@attrs.frozen
class Start:
    """What a file holds before a start."""

    open: Sequence[int]
    keys: Mapping[int, str]
    """The keys of the open messages."""
    crashed: Collection[int]
    """The open messages whose turn was begun twice before."""
    pending: Sequence[int]
    lanes: Counter[str]
    """How many replies wait in each lane."""
    accepted: int
    """The last message that an earlier bot accepted; later ones were stored while none ran."""
    last_message: int
    last_reply: int

    @classmethod
    def read(cls, path: Path, accepted: int) -> Start:
        with contextlib.closing(apsw.Connection(str(path))) as db:
            rows = db.execute("SELECT id, session_key FROM inbox WHERE state = 'open' ORDER BY id")
            keys = dict(rows)
            unsent = "FROM outbox WHERE state IN ('pending', 'sending')"
            return cls(
                open=list(keys),
                keys=keys,
                crashed={row[0] for row in db.execute(BEGUN)},
                pending=[row[0] for row in db.execute(f"SELECT id {unsent} ORDER BY id")],
                lanes=Counter(row[0] for row in db.execute(f"SELECT lane {unsent}")),
                accepted=accepted,
                last_message=_newest(db, "inbox"),
                last_reply=_newest(db, "outbox"),
            )


def _newest(db: apsw.Connection, table: str) -> int:
    return db.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchall()[0][0]


@attrs.frozen
class Row:
    """An accepted message, and the step that closed it."""

    id: int
    event: str
    text: str
    when_busy: str | None
    turn_id: int | None
    reply: Mapping | None

    @property
    def word(self) -> str:
        """The command; empty for a message."""
        word = self.text.split()[0] if self.text.startswith("/") else ""
        return "" if word in CARRYING else word

    @property
    def number(self) -> str:
        """What the transcript shows of a message."""
        return self.text.removeprefix("/queue ").removeprefix("/steer ")[:6]

    @property
    def steers(self) -> bool:
        return self.when_busy == "steer" or self.text.startswith("/steer")


def violations(
    path: Path,
    said: Mapping[str, Sequence],
    acked: Collection[str],
    starts: Sequence[Start],
    *,
    merges: bool,
) -> list[str]:
    """Return all differences between a file and the model."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        rows = _rows(db, said)
        known = {row.event for each in rows.values() for row in each}
        found = [f"{event} was lost" for event in acked if event not in known]
        steps, stored = _steps(db), _stored(db)
        for key, accepted in rows.items():
            model = _Model(key, accepted, merges=merges)
            found += model.compare(starts, steps[key])
            found += _transcript(stored[key], key, model)
        for what, sql in VIOLATIONS.items():
            found += [f"{what}: {row}" for row in db.execute(sql)]
    with SessionStore(path) as store:
        found += store.integrity_check()
    return found + list(sending_violations(path))


def _rows(db: apsw.Connection, said: Mapping[str, Sequence]) -> dict[str, list[Row]]:
    """Return the accepted messages of each key, in inbox order."""
    rows: dict[str, list[Row]] = {}
    sql = (
        "SELECT m.session_key, m.id, m.event_id, m.turn_id, t.reply FROM inbox m "
        "LEFT JOIN inbox t ON t.id = m.turn_id ORDER BY m.id"
    )
    for key, inbox_id, event, turn_id, reply in db.execute(sql):
        if event in said:
            _, _, text, when_busy = said[event]
            decoded = None if reply is None else json.loads(reply)
            row = Row(inbox_id, event, text, when_busy, turn_id, decoded)
            rows.setdefault(key, []).append(row)
    return rows


def _steps(db: apsw.Connection) -> dict[str, list[tuple[int, int, Mapping]]]:
    """Return the replies of each key: outbox id, turn and body."""
    steps: dict[str, list[tuple[int, int, Mapping]]] = defaultdict(list)
    sql = "SELECT session_key, id, turn_id, body FROM outbox ORDER BY id"
    for key, outbox_id, turn_id, body in db.execute(sql):
        steps[key].append((outbox_id, turn_id, json.loads(body)))
    return steps


def _stored(db: apsw.Connection) -> dict[str, list[tuple[int, str]]]:
    """Return the questions in the transcripts of each key: the session, and how it begins."""
    stored: dict[str, list[tuple[int, str]]] = defaultdict(list)
    sql = (
        "SELECT s.session_key, s.no, substr(m.content, 1, 6) FROM all_messages m "
        "JOIN sessions s ON s.no = m.id >> 32 WHERE m.role = 'user' ORDER BY m.id"
    )
    for key, session, text in db.execute(sql):
        stored[key].append((session, text))
    return stored


class _Model:
    """One conversation."""

    def __init__(self, key: str, accepted: Sequence[Row], *, merges: bool) -> None:
        self.key = key
        self.accepted = accepted
        self.merges = merges
        self.answered: list[Row] = []
        """Messages that had a turn."""
        self.cancelled: list[Row] = []
        self._left: list[Row] = []
        self._old: set[int] = set()
        """The messages that the start found."""
        self._crashed: Collection[int] = ()

    def compare(
        self, starts: Sequence[Start], steps: Sequence[tuple[int, int, Mapping]]
    ) -> Iterator[str]:
        """Yield each difference between the steps and the model, start by start."""
        for start, after in itertools.pairwise([*starts, None]):
            self._begin(start, inf if after is None else after.accepted)
            newest = inf if after is None else after.last_reply
            for reply_id, turn_id, body in steps:
                if start.last_reply < reply_id <= newest:
                    yield from (f"{self.key}: {text}" for text in self._step(turn_id, body))
            if after is not None:
                kept = [row.id for row in self.accepted if row.id in after.keys]
                if [row.id for row in self._left] != [i for i in kept if i <= after.accepted]:
                    yield f"{self.key}: a message was closed without a reply, or is open again"
        yield from (f"{self.key}: {row.event} has no reply" for row in self._left)

    def _begin(self, start: Start, last: float) -> None:
        self._old = {row.id for row in self.accepted if row.id in start.keys}
        self._crashed = start.crashed
        self._left = [
            row for row in self.accepted
            if row.id in self._old or start.last_message < row.id <= last
        ]  # fmt: skip

    def _step(self, turn_id: int, body: Mapping) -> Iterator[str]:
        row = next((row for row in self._left if row.id == turn_id), None)
        if row is None:
            yield f"{turn_id} is answered, but was not open: {body['text'][:60]!r}"
        elif row.word in STOPPING:
            yield from self._stop(row, body)
        elif row.word:
            older = [each for each in self._left[: self._left.index(row)]
                     if not self._runs_beside(each)]  # fmt: skip
            if older and (row.word not in AT_ONCE or row.id in self._old):
                yield f"{row.event} {row.word} ran before {older[0].event}"
            self._left.remove(row)
        elif body["kind"] == "notice":
            if row.when_busy != "reject" or row.id in self._old:
                yield f"{row.event} was refused"
            self.cancelled.append(row)
            self._left.remove(row)
        else:
            yield from self._turn(row)

    def _stop(self, row: Row, body: Mapping) -> Iterator[str]:
        index = self._left.index(row)
        beside = [each for each in self._left[:index] if self._runs_beside(each)]
        before = [each for each in self._left[:index] if each not in beside]
        self._left = [*beside, *self._left[index + 1 :]]
        if any(each.word in STOPPING and each.id in self._old for each in self._left):
            yield f"{row.event} ran before a later stopping command of the backlog"
        for each in before:
            told = each.reply is not None and each.reply["status"] == "refused"
            if not told or each.reply["text"] != body["text"] or each.turn_id != before[0].id:
                yield f"{row.event} {row.word} did not cancel {each.event}"
        if len(before) > 1 and f" {len(before)} queued messages" not in body["text"]:
            yield f"{row.event} cancelled {len(before)} messages and said {body['text'][:80]!r}"
        self.cancelled += [each for each in before if not each.word]

    def _runs_beside(self, row: Row) -> bool:
        """Return whether a message was handled without waiting, so that nothing cancelled it."""
        at_once = row.id not in self._old and (row.word in AT_ONCE or row.when_busy == "reject")
        return at_once and row.turn_id == row.id and row.reply is not None

    def _comes_first(self, row: Row) -> bool:
        """Return whether later messages must wait for this one."""
        return (row.id in self._old or not row.steers) and not self._runs_beside(row)

    def _turn(self, first: Row) -> Iterator[str]:
        """Take the messages of one turn."""
        rows = [row for row in self._left if row.turn_id == first.id]
        waiting = [row for row in rows if not row.steers or row.id in self._old]
        index = self._left.index(first)
        older = [row for row in self._left[:index] if self._comes_first(row)]
        if older:
            yield f"the turn of {first.event} ran before {older[0].event}"
        if any(row.word in STOPPING and row.id in self._old for row in self._left):
            yield f"the turn of {first.event} ran before a stopping command of the backlog"
        expected = self._expected(first)
        if [row.id for row in waiting if row.id in self._old] != expected:
            yield f"the turn of {first.event} has {len(waiting)} messages, not {len(expected)}"
        self.answered += rows
        self._left = [row for row in self._left if row not in rows]

    def _merge(self, rows: Sequence[int], row: Row) -> bool:
        """Return whether a message is part of the same turn as those before it."""
        return self.merges and rows[-1] not in self._crashed and row.id not in self._crashed

    def _expected(self, first: Row) -> list[int]:
        """Return the messages of the backlog that a turn takes."""
        expected: list[int] = []
        for row in self._left[self._left.index(first) :]:
            if row.word or row.id not in self._old or (expected and not self._merge(expected, row)):
                break
            expected.append(row.id)
        return expected


def _transcript(found: Sequence[tuple[int, str]], key: str, model: _Model) -> Iterator[str]:
    """Yield messages that are in no transcript, in a wrong place, or should not be in one."""
    stored = {number for _, number in found}
    yield from (f"{r.event} is in no transcript" for r in model.answered if r.number not in stored)
    yield from (f"{r.event} was cancelled" for r in model.cancelled if r.number in stored)
    places = {row.number: row.id for row in model.accepted if not row.steers}
    for session in {session for session, _ in found}:
        ids = [places[number] for no, number in found if no == session and number in places]
        first = list(dict.fromkeys(ids))
        if first != sorted(first):
            yield f"{key}: a transcript is out of order"
