"""The import plan: which sessions of a home are imported, in which order and as which kind."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import msgspec

from hermes.messages import SessionKind
from hermes.store.conversations import codec, sessions
from hermes.store.import_hermes_agent.report import ImportNotes
from hermes.store.import_hermes_agent.tables import SESSION_ID, Tables, Values, decode, number


@attrs.frozen
class PlannedSession:
    """A session of the home, with the kind and the parent it gets."""

    rowid: int
    id: str
    kind: SessionKind
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
    kind: SessionKind = "new"


class ImportPlan:
    """The sessions to import, parents first; refused ones are noted and counted."""

    def __init__(self, tables: Tables, notes: ImportNotes) -> None:
        self._tables = tables
        self._notes = notes
        self.refused: int = 0
        self.lost_messages: int = 0
        """The messages of refused sessions, and those without a session."""
        self.sessions: list[PlannedSession] = self._plan()
        self._count_orphaned_messages()

    def _plan(self) -> list[PlannedSession]:
        nodes = self._nodes()
        children: dict[str, list[_Node]] = {}
        for node in nodes.values():
            self._set_kind(node, nodes)
            if node.kind == "compression" and node.parent is not None:
                children.setdefault(node.parent, []).append(node)
        for siblings in children.values():
            self._choose_continuation(siblings)
        ordered = self._parents_first(nodes)
        for node in ordered:
            if node.kind == "subagent":
                self._notes.add("delegate", node.id, node.parent or "")
        return [PlannedSession(node.rowid, node.id, node.kind, node.parent) for node in ordered]

    def _nodes(self) -> dict[str, _Node]:
        nodes: dict[str, _Node] = {}
        texts = ("id", "parent_session_id", "source", "end_reason", "model_config")
        numbers = ("started_at", "ended_at")
        for rowid, row in self._tables.select("sessions", texts, numbers, "ORDER BY rowid"):
            try:
                session_id = sessions.require_id((row["id"] or b"").decode())
            except ValueError:
                self._refuse("bad-id", repr((row["id"] or b"")[:60]), rowid)
                continue
            nodes[session_id] = _node(rowid, session_id, row)
        return nodes

    def _count_messages(self, rowid: int) -> int:
        sql = f"SELECT count(*) FROM messages WHERE session_id IS {SESSION_ID}"
        return int(self._tables.value(sql, rowid))

    def _refuse(self, code: str, subject: str, rowid: int) -> None:
        self._notes.add(code, subject)
        self.refused += 1
        self.lost_messages += self._count_messages(rowid)

    def _count_orphaned_messages(self) -> None:
        sql = (
            "SELECT count(*) FROM messages m WHERE NOT EXISTS "
            "(SELECT 1 FROM sessions s WHERE s.id IS m.session_id)"
        )
        orphans = int(self._tables.value(sql))
        if orphans:
            self._notes.add("no-session", "messages", count=orphans)
            self.lost_messages += orphans

    def _set_kind(self, node: _Node, nodes: Mapping[str, _Node]) -> None:
        """Set the kind of a session from its parent and from the marks that hermes-agent sets."""
        if node.parent is None:
            node.kind = "subagent" if node.delegated else "new"
            return
        parent = nodes.get(node.parent)
        if parent is None:
            self._notes.add("parent-missing", node.id, node.parent)
            node.parent, node.kind = None, "subagent" if node.delegated else "import"
        elif node.branched or _is_old_branch(node, parent):
            node.kind = "branch"
        elif parent.end_reason == "compression" and not node.delegated and node.source != "tool":
            node.kind = "compression"
        else:
            node.kind = "subagent"

    def _choose_continuation(self, siblings: list[_Node]) -> None:
        """Of several children of a parent, keep the one that hermes-agent would continue with."""
        if len(siblings) == 1:
            return
        siblings.sort(key=self._preference, reverse=True)
        for node in siblings[1:]:
            node.kind = "fork"
            self._notes.add("fork", node.id, node.parent or "")

    def _preference(self, node: _Node) -> tuple[int, float, float, str]:
        newest = f"SELECT max({number('timestamp')}) FROM messages WHERE session_id = {SESSION_ID}"
        last = self._tables.value(newest, node.rowid)
        continues = 2 if node.end_reason == "compression" else int(node.ended_at is None)
        return continues, node.started_at if last is None else last, node.started_at, node.id

    def _parents_first(self, nodes: Mapping[str, _Node]) -> list[_Node]:
        ordered: dict[str, _Node] = {}
        for node in nodes.values():
            chain: dict[str, _Node] = {}
            step: _Node | None = node
            while step is not None and step.id not in ordered:
                if step.id in chain:  # a cycle: cut it here
                    last = next(reversed(chain.values()))
                    self._notes.add("cycle", last.id, step.id)
                    last.parent, last.kind = None, "subagent" if last.delegated else "import"
                    break
                chain[step.id] = step
                step = None if step.parent is None else nodes[step.parent]
            ordered.update(reversed(chain.items()))
        return list(ordered.values())


def _node(rowid: int, session_id: str, row: Values) -> _Node:
    config = row.get("model_config") or b""
    decoded: object = None
    if b"_from" in config:
        text = config.decode(errors="replace")
        if not codec.is_too_deep(text):
            decoded = _decode_json(text)
    marks = decoded if isinstance(decoded, dict) else {}
    return _Node(
        rowid=rowid,
        id=session_id,
        parent=decode(row.get("parent_session_id")),
        source=decode(row["source"]) or "unknown",
        end_reason=decode(row.get("end_reason")),
        started_at=row.get("started_at") or 0.0,
        ended_at=row.get("ended_at"),
        branched=marks.get("_branched_from") is not None,
        delegated=marks.get("_delegate_from") is not None,
    )


def _decode_json(text: str) -> object:
    """Return the decoded JSON, or None if it is invalid."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _is_old_branch(node: _Node, parent: _Node) -> bool:
    """Return whether the session is a branch of a version that did not mark branches."""
    ended = parent.ended_at
    return parent.end_reason == "branched" and ended is not None and node.started_at >= ended
