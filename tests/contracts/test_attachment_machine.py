"""After any sequence of operations and a sweep, the blobs are those that something names.

What names a file is read from the stored texts themselves: the rows of sessions, messages that wait
and replies that are not sent. The tables of references, which the sweep uses, must agree.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from hypothesis import HealthCheck, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hermes.errors import UnknownFile
from hermes.messages import Attachment, Committed, Inbound, Message, Outbound, TurnCommit
from hermes.store import Clock, Rotation, SessionStore
from tests.support.attachments import (
    HOUR,
    blob_names,
    digest,
    referenced,
    rows_without_blob,
    staged_names,
)
from tests.support.examples import examples
from tests.support.folders import quick_directory, quick_folder

KEYS = ("a", "b", "c")
CONTENTS = [f"content {n}".encode() for n in range(4)]
FILE_ID = re.compile("file_[0-9a-f]{32}")
DAY = 86400.0
NAMED = (
    "SELECT extra FROM messages WHERE extra IS NOT NULL",
    "SELECT extra FROM arrivals WHERE extra IS NOT NULL",
    "SELECT body FROM inbox WHERE state IN ('open', 'parked')",
    "SELECT body FROM outbox WHERE state <> 'sent'",
)

keys = st.sampled_from(KEYS)
choices = st.integers(0, 9)


class Files(RuleBasedStateMachine):
    """Conversations that share, keep and delete files with few distinct contents."""

    @initialize()
    def begin(self):
        self.folder = quick_directory()
        self.path = Path(self.folder.name) / "state.db"
        self.now = 1_800_000_000.0
        self.number = 0
        self.known = {}  # the id of a file: its key and content
        self.open()

    def open(self):
        clock = Clock(wall=lambda: self.now, steady=lambda: self.now)
        self.store = SessionStore(self.path, clock=clock)

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            self.folder.cleanup()

    # What is there

    def sql(self, statement, *values):
        return _ask(self.store, statement, *values)

    def named(self):
        """The ids of all files that a stored text names."""
        texts = [row[0] for statement in NAMED for row in self.sql(statement)]
        return {each for text in texts for each in FILE_ID.findall(text)}

    def files_of(self, key):
        """Files that were uploaded for a conversation and are there, as parts."""
        found = []
        for file_id in [each for each, (owner, _) in self.known.items() if owner == key]:
            try:
                found.append(self.store.get_file(file_id, session_key=key)[0])
            except UnknownFile:
                del self.known[file_id]
        return found

    def some(self, key, choice):
        files = self.files_of(key)
        return [file for n, file in enumerate(files) if (choice >> (n % 4)) & 1][:5]

    def session(self, choice):
        sessions = [row[0] for row in self.sql("SELECT id FROM sessions ORDER BY no")]
        return sessions[choice % len(sessions)]

    def has_sessions(self):
        return bool(self.sql("SELECT 1 FROM sessions LIMIT 1"))

    def one_of(self, choice, statement):
        rows = [row[0] for row in self.sql(statement)]
        return rows[choice % len(rows)] if rows else None

    # Files and messages

    @rule(key=keys, content=st.sampled_from(CONTENTS))
    def put(self, key, content):
        file = self.store.put_file(Attachment(data=content, name="a.txt"), session_key=key)
        self.known[file.id] = (key, content)

    @rule(key=keys, choice=choices)
    def discard(self, key, choice):
        for file in self.some(key, choice):
            unused = file.id not in self.named()
            assert self.store.discard_file(file.id, session_key=key) == unused

    @rule(key=keys, choice=choices)
    def accept(self, key, choice):
        self.number += 1
        parts = tuple(file.part for file in self.some(key, choice))
        self.store.accept(Inbound(key, f"e{self.number}", "look", parts=parts or None))

    @rule(key=keys, choice=choices, keep=st.booleans())
    def commit(self, key, choice, keep):
        """Commit the turn of the oldest message; it may drop its files, and reply with others."""
        rows = self.store.open_inbox(key, limit=1)
        if not rows:
            return
        [row], (route, head) = rows, self.store.route_head(key)
        replied = [file.part for file in self.some(key, choice)]
        said = Message("user", "look", parts=row.inbound.parts if keep else None)
        body = {"text": "seen", **({"files": replied} if replied else {})}
        turn = TurnCommit(
            session_key=key,
            session_id=route.session_id,
            epoch=route.epoch,
            revision=head.revision,
            inbox_ids=[row.inbox_id],
            rows=(said, Message("assistant", "seen", parts=tuple(replied) or None)),
            outbox=[Outbound("chat", body)],
        )
        assert isinstance(self.store.commit_turn(turn), Committed)

    @rule(key=keys, content=st.sampled_from(CONTENTS), choice=choices, keep=st.booleans())
    def converse(self, key, content, choice, keep):
        """Send a new file and whichever are chosen, and get others back."""
        self.put(key, content)
        self.accept(key, choice | 1)
        self.commit(key, choice | 1, keep)

    @rule(key=keys)
    def withdraw(self, key):
        for row in self.store.open_inbox(key, limit=1):
            self.store.withdraw(key, row.inbox_id)

    @rule(key=keys)
    def park(self, key):
        for row in self.store.open_inbox(key, limit=1):
            self.store.park_inbox([row.inbox_id], "set aside")

    @rule(choice=choices, dead=st.booleans())
    def send(self, choice, dead):
        replies = [row.outbox_id for row in self.store.pending_outbox()][: choice + 1]
        if dead:
            self.store.mark_dead(replies, "rejected")
        else:
            self.store.mark_sent(replies)

    # Sessions

    @precondition(has_sessions)
    @rule(choice=choices, key=st.none() | keys)
    def branch(self, choice, key):
        self.store.branch(self.session(choice), session_key=key)

    @precondition(has_sessions)
    @rule(choice=choices, key=keys)
    def share(self, choice, key):
        self.store.switch(key, self.session(choice), any_key=True)

    @rule(choice=choices, keep=st.booleans())
    def rotate(self, choice, keep):
        session = self.one_of(choice, "SELECT id FROM sessions WHERE end_reason IS NULL")
        if session is None:
            return
        rows = self.store.load(session).messages
        kept = [part for row in rows for part in row.parts or ()] if keep else []
        self.number += 1
        self.store.rotate(
            Rotation(
                session_id=session,
                messages=(Message("user", "summary", parts=tuple(kept) or None),),
                rotation_id=f"r{self.number}",
                rewrites=self.store.head(session).rewrites,
                upto=rows[len(rows) // 2].id if rows else 0,
            )
        )

    @rule(choice=choices, edit=st.booleans())
    def rewind(self, choice, edit):
        session = self.one_of(choice, "SELECT id FROM sessions WHERE end_reason IS NULL")
        rows = self.store.load(session).messages if session else []
        if not rows:
            return
        message_id = rows[choice % len(rows)].id
        if edit:
            self.store.edit_message(session, message_id, "edited")
        else:
            self.store.rewind(session, message_id)

    @rule(key=keys)
    def new_session(self, key):
        self.store.new_session(key)

    @precondition(has_sessions)
    @rule(choice=choices)
    def delete(self, choice):
        self.store.delete_session(self.session(choice))

    @rule(delete=st.booleans(), send=st.booleans())
    def clear(self, delete, send):
        """Delete all sessions, or send all replies, or both."""
        if delete:
            for (session,) in self.sql("SELECT id FROM sessions"):
                self.store.delete_session(session)
        if send:
            self.send(1000, dead=False)
        self.sweep_an_hour_later()

    @rule()
    def prune(self):
        self.now += 2 * DAY
        self.store.prune_sessions(older_than_days=1)
        self.store.forget_closed(1)

    # Time

    @rule(minutes=st.sampled_from([1, 30, 59, 61]))
    def wait(self, minutes):
        self.now += 60 * minutes

    @rule()
    def sweep(self):
        self.store.sweep_files()

    @rule()
    def sweep_an_hour_later(self):
        self.now += HOUR
        named = self.named()
        self.store.sweep_files()
        assert {row[0] for row in self.sql("SELECT id FROM files")} == named
        expected = {digest(self.known[each][1]) for each in named}
        assert blob_names(self.path) == referenced(self.sql) == expected
        assert {row[0] for row in self.sql("SELECT hash FROM blobs")} == expected

    @rule()
    def backup(self):
        """A copy has every row with its blob, whatever happens to the original."""
        with quick_folder() as folder:
            copy = self.store.backup(folder / "copy.db")
            with SessionStore(copy) as store:
                asked = functools.partial(_ask, store)
                assert list(rows_without_blob(copy, asked)) == []
                assert asked("SELECT id FROM files") == self.sql("SELECT id FROM files")

    @rule(delete=st.booleans())
    def export(self, delete):
        """Import an export into another store, or again after everything was deleted."""
        sessions = [row[0] for row in self.sql("SELECT id FROM sessions ORDER BY no")]
        lines = list(self.store.export_lines(*sessions))
        if delete:
            self.clear(delete=True, send=True)
            self.store.import_sessions(lines)
            return
        with quick_folder() as folder, SessionStore(folder / "other.db") as other:
            other.import_sessions(lines)
            asked = functools.partial(_ask, other)
            assert list(rows_without_blob(folder / "other.db", asked)) == []
            files = "SELECT DISTINCT file_id FROM session_files"
            assert set(asked(files)) == set(self.sql(files))
            assert blob_names(folder / "other.db") == referenced(asked)

    @rule()
    def reopen(self):
        self.store.close()
        self.open()

    @invariant()
    def every_row_has_its_blob(self):
        if hasattr(self, "store"):
            assert list(rows_without_blob(self.path, self.sql)) == []
            assert staged_names(self.path) == set()
            there = {row[0] for row in self.sql("SELECT id FROM files")}
            assert self.named() <= there


def _ask(store, statement, *values):
    return store.snapshot(lambda tx: tx.all(statement, *values))


TestFiles = Files.TestCase
TestFiles.settings = examples(
    200, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
