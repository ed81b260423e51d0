"""Which sessions of a home can be taken, in which order, and who continues whom."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import msgspec

from hermes.messages import Kind
from hermes.store.conversations import codec, sessions
from hermes.store.import_hermes_agent.report import ImportNotes
from hermes.store.import_hermes_agent.tables import THE_SESSION, Tables, Values, number, plain


@attrs.frozen
class Planned:
    """A session of theirs, and what it is to be here."""

    rowid: int
    id: str
    kind: Kind
    parent: str | None


@attrs.define
class _Node:
    rowid: int
    id: str
    parent: str | None
    source: str
    end_reason: str | None
    started_at: float
    ended_at: float | None
    branched: bool
    delegated: bool
    kind: Kind = "new"


class Plan:
    """The sessions, parents first; what is not among them is noted and counted."""

    def __init__(self, tables: Tables, notes: ImportNotes) -> None:
        self._tables = tables
        self._notes = notes
        self.refused = 0
        self.lost_messages = 0
        """Those of sessions that are refused, and of none."""
        self.sessions = self._plan()
        self._count_orphans()

    def _plan(self) -> list[Planned]:
        nodes = self._nodes()
        children: dict[str, list[_Node]] = {}
        for node in nodes.values():
            self._place(node, nodes)
            if node.kind == "compression" and node.parent is not None:
                children.setdefault(node.parent, []).append(node)
        for twins in children.values():
            self._choose(twins)
        ordered = self._parents_first(nodes)
        for node in ordered:
            if node.kind == "import" and node.parent is not None:
                self._notes.add("delegate", node.id, node.parent)
        return [Planned(node.rowid, node.id, node.kind, node.parent) for node in ordered]

    def _nodes(self) -> dict[str, _Node]:
        nodes: dict[str, _Node] = {}
        texts = ("id", "parent_session_id", "source", "end_reason", "model_config")
        numbers = ("started_at", "ended_at")
        for rowid, row in self._tables.select("sessions", texts, numbers, "ORDER BY rowid"):
            try:
                name = sessions.require_id((row["id"] or b"").decode())
            except ValueError:
                self._refuse("bad-id", repr((row["id"] or b"")[:60]), rowid)
                continue
            nodes[name] = _node(rowid, name, row)
        return nodes

    def _rows_of(self, rowid: int) -> int:
        sql = f"SELECT count(*) FROM messages WHERE session_id IS {THE_SESSION}"
        return int(self._tables.value(sql, rowid))

    def _refuse(self, code: str, subject: str, rowid: int) -> None:
        self._notes.add(code, subject)
        self.refused += 1
        self.lost_messages += self._rows_of(rowid)

    def _count_orphans(self) -> None:
        sql = (
            "SELECT count(*) FROM messages m WHERE NOT EXISTS "
            "(SELECT 1 FROM sessions s WHERE s.id IS m.session_id)"
        )
        orphans = int(self._tables.value(sql))
        if orphans:
            self._notes.add("no-session", "messages", count=orphans)
            self.lost_messages += orphans

    def _place(self, node: _Node, nodes: Mapping[str, _Node]) -> None:
        """What a session is, by its parent and by the marks that hermes-agent sets."""
        if node.parent is None:
            return
        parent = nodes.get(node.parent)
        if parent is None:
            self._notes.add("parent-missing", node.id, node.parent)
            node.parent, node.kind = None, "import"
        elif node.branched or _branched_of_old(node, parent):
            node.kind = "branch"
        elif parent.end_reason == "compression" and not node.delegated and node.source != "tool":
            node.kind = "compression"
        else:
            node.kind = "import"

    def _choose(self, twins: list[_Node]) -> None:
        """Of several that continue one parent, the one that hermes-agent would go on with."""
        if len(twins) == 1:
            return
        twins.sort(key=self._preference, reverse=True)
        for node in twins[1:]:
            node.kind = "fork"
            self._notes.add("fork", node.id, node.parent or "")

    def _preference(self, node: _Node) -> tuple[int, float, float, str]:
        newest = f"SELECT max({number('timestamp')}) FROM messages WHERE session_id = {THE_SESSION}"
        last = self._tables.value(newest, node.rowid)
        goes_on = 2 if node.end_reason == "compression" else int(node.ended_at is None)
        return goes_on, node.started_at if last is None else last, node.started_at, node.id

    def _parents_first(self, nodes: Mapping[str, _Node]) -> list[_Node]:
        ordered: dict[str, _Node] = {}
        for node in nodes.values():
            line: dict[str, _Node] = {}
            step: _Node | None = node
            while step is not None and step.id not in ordered:
                if step.id in line:  # it bites its own tail: cut there
                    last = next(reversed(line.values()))
                    self._notes.add("cycle", last.id, step.id)
                    last.parent, last.kind = None, "import"
                    break
                line[step.id] = step
                step = None if step.parent is None else nodes[step.parent]
            ordered.update(reversed(line.items()))
        return list(ordered.values())


def _node(rowid: int, name: str, row: Values) -> _Node:
    config = row.get("model_config") or b""
    marks: object = None
    if b"_from" in config:
        text = config.decode(errors="replace")
        if not codec.is_deep(text):
            marks = _decoded_or_none(text)
    marked = marks if isinstance(marks, dict) else {}
    return _Node(
        rowid=rowid,
        id=name,
        parent=plain(row.get("parent_session_id")),
        source=plain(row["source"]) or "unknown",
        end_reason=plain(row.get("end_reason")),
        started_at=row.get("started_at") or 0.0,
        ended_at=row.get("ended_at"),
        branched=marked.get("_branched_from") is not None,
        delegated=marked.get("_delegate_from") is not None,
    )


def _decoded_or_none(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _branched_of_old(node: _Node, parent: _Node) -> bool:
    """How branches were told before they were marked."""
    ended = parent.ended_at
    return parent.end_reason == "branched" and ended is not None and node.started_at >= ended
