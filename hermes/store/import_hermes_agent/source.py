"""A hermes-agent home that is open for reading: its import plan, routes and sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from hermes.errors import StoreError, StoreRefused
from hermes.store.import_hermes_agent.convert import Converted, SessionConverter
from hermes.store.import_hermes_agent.plan import ImportPlan, PlannedSession
from hermes.store.import_hermes_agent.readonly_source import ReadOnlySource, open_readonly
from hermes.store.import_hermes_agent.report import ImportNotes
from hermes.store.import_hermes_agent.routes import SourceRoute, read_routes, translate_key
from hermes.store.import_hermes_agent.tables import Tables, decode


class AgentHome:
    """The contents of a home as of one moment."""

    def __init__(self, source: ReadOnlySource, notes: ImportNotes) -> None:
        self.path: Path = source.path
        self.notes = notes
        self._tables = Tables(source.path, source.db)
        self.version: int = self._tables.version
        self.plan: ImportPlan = ImportPlan(self._tables, notes)
        self.routes: list[SourceRoute] = read_routes(
            self._routing_rows(), source.path.parent / "sessions", notes
        )
        self.convert: Callable[[PlannedSession], Converted] = SessionConverter(
            self._tables, self.routes, self._session_keys(), notes
        ).convert
        self.check_unchanged: Callable[[], None] = source.check_unchanged

    def _routing_rows(self) -> list[tuple[str, str, str]]:
        """Return (directory, key, entry) from the table that newer versions have for routes."""
        texts = ("scope", "session_key", "entry_json")
        if not self._tables.has("gateway_routing", *texts, "updated_at"):
            return []
        newest = "ORDER BY updated_at DESC, session_key"
        rows = self._tables.select("gateway_routing", texts, (), newest)
        return [
            (
                decode(row["scope"]) or "",
                decode(row["session_key"]) or "",
                decode(row["entry_json"]) or "",
            )
            for _, row in rows
        ]

    def _session_keys(self) -> dict[str, str]:
        """Return the translated session_key of each session.

        It is the key of the session itself, of its route, or of another session of its lineage.
        """
        translated = {route.source_key: route.session_key for route in self.routes}
        keys = {route.session_id: route.session_key for route in self.routes}
        for session_id, source_key, chat in self._stored_keys():
            key = translated.get(source_key) or translate_key(source_key, chat, self.notes)
            if key is not None:
                keys[session_id] = translated[source_key] = key
        continuations = [planned for planned in self.plan.sessions if planned.kind == "compression"]
        for planned in reversed(continuations):
            if planned.id in keys:
                keys.setdefault(planned.parent or "", keys[planned.id])
        for planned in continuations:
            if (planned.parent or "") in keys:
                keys.setdefault(planned.id, keys[planned.parent or ""])
        return keys

    def _stored_keys(self) -> Iterator[tuple[str, str, dict[str, str | None]]]:
        """Yield (session id, session_key, chat) from the sessions that have a key."""
        chat_columns = ("chat_id", "thread_id", "user_id")
        if self._tables.has("sessions", "session_key", *chat_columns):
            names = ("id", "session_key", *chat_columns)
            for _, row in self._tables.select(
                "sessions", names, (), "WHERE session_key IS NOT NULL ORDER BY rowid"
            ):
                chat = {name: decode(row[name]) for name in chat_columns}
                yield decode(row["id"]) or "", decode(row["session_key"]) or "", chat


def _read(source: ReadOnlySource, notes: ImportNotes) -> AgentHome:
    try:
        return AgentHome(source, notes)
    except UnicodeDecodeError as error:
        raise StoreRefused(
            f"{source.path} is damaged: its version, or the name of a table or column, is not UTF-8"
        ) from error


@contextmanager
def open_home(path: Path, notes: ImportNotes) -> Iterator[AgentHome]:
    """Open a hermes-agent home, or its `state.db`, for reading.

    Raises `StoreRefused` if it cannot be read or is not a home.
    """
    file = path / "state.db" if path.is_dir() else path
    if not file.is_file():
        raise StoreRefused(f"{path} is not a hermes-agent home: it has no state.db")
    with open_readonly(file) as source:
        try:
            yield _read(source, notes)
        except apsw.Error as error:
            raise StoreError(
                f"{file} cannot be read completely: {error}; "
                "the sessions imported so far are complete"
            ) from error
