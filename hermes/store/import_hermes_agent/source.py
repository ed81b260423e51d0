"""A hermes-agent home that is open for reading: its plan, its routes, and its sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from hermes.errors import StoreError, StoreRefused
from hermes.store.import_hermes_agent.convert import Reader
from hermes.store.import_hermes_agent.plan import Plan
from hermes.store.import_hermes_agent.readonly_source import Untouched, open_untouched
from hermes.store.import_hermes_agent.report import ImportNotes
from hermes.store.import_hermes_agent.routes import read_routes, translate_key
from hermes.store.import_hermes_agent.tables import Tables, plain


class AgentHome:
    """What there is, at one moment."""

    def __init__(self, file: Untouched, notes: ImportNotes) -> None:
        self.path = file.path
        self.notes = notes
        self._tables = Tables(file.path, file.db)
        self.version = self._tables.version
        self.plan = Plan(self._tables, notes)
        self.routes = read_routes(self._routing(), file.path.parent / "sessions", notes)
        self.read = Reader(self._tables, self.routes, self._keys(), notes).read
        self.check = file.check

    def _routing(self) -> list[tuple[str, str, str]]:
        """(folder, key, entry) of the table that newer versions keep beside `sessions.json`."""
        texts = ("scope", "session_key", "entry_json")
        if not self._tables.has("gateway_routing", *texts, "updated_at"):
            return []
        newest = "ORDER BY updated_at DESC, session_key"
        found = self._tables.select("gateway_routing", texts, (), newest)
        return [
            (
                plain(row["scope"]) or "",
                plain(row["session_key"]) or "",
                plain(row["entry_json"]) or "",
            )
            for _, row in found
        ]

    def _keys(self) -> dict[str, str]:
        """Our keys of sessions: their own, that of a route, or that of those they continue."""
        ours = {route.their_key: route.session_key for route in self.routes}
        keys = {route.session_id: route.session_key for route in self.routes}
        for name, theirs, where in self._own_keys():
            found = ours.get(theirs) or translate_key(theirs, where, self.notes)
            if found is not None:
                keys[name] = ours[theirs] = found
        continued = [each for each in self.plan.sessions if each.kind == "compression"]
        for each in reversed(continued):
            if each.id in keys:
                keys.setdefault(each.parent or "", keys[each.id])
        for each in continued:
            if (each.parent or "") in keys:
                keys.setdefault(each.id, keys[each.parent or ""])
        return keys

    def _own_keys(self) -> Iterator[tuple[str, str, dict[str, str | None]]]:
        places = ("chat_id", "thread_id", "user_id")
        if self._tables.has("sessions", "session_key", *places):
            names = ("id", "session_key", *places)
            for _, row in self._tables.select(
                "sessions", names, (), "WHERE session_key IS NOT NULL ORDER BY rowid"
            ):
                where = {name: plain(row[name]) for name in places}
                yield plain(row["id"]) or "", plain(row["session_key"]) or "", where


@contextmanager
def open_home(path: Path, notes: ImportNotes) -> Iterator[AgentHome]:
    """Open a home, or its `state.db`, for reading; refused in one sentence where it is none."""
    file = path / "state.db" if path.is_dir() else path
    if not file.is_file():
        raise StoreRefused(f"{path} is no hermes-agent home: it has no state.db")
    with open_untouched(file) as opened:
        try:
            yield AgentHome(opened, notes)
        except apsw.Error as error:
            raise StoreError(
                f"{file} cannot be read to its end: {error}; what was taken so far is whole"
            ) from error
