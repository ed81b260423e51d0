"""Processes that race for one file, each with the store or a mutant of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import apsw
import msgspec
from msgspec.structs import replace

from hermes.errors import SessionEnded
from hermes.messages import Message, Rotated
from hermes.store import Clock, Rotation, SessionStore
from hermes.store.conversations import messages, routes
from hermes.store.sqlite.errors import translate
from hermes.store.sqlite.transaction import SqliteTransaction

ROOT = Path(__file__).parents[2]
APPENDS = 1000
"""More than a round lasts, so that the appender is always stopped by the rotation."""


# Mutants


class Blind(SessionStore):
    """Mutant M3: `rotate` compares nothing when it stores the summary."""

    def rotate(self, rotation):
        def work(tx):
            (parent,) = tx.one("SELECT no FROM sessions WHERE id = ?", rotation.session_id)
            carried = messages.messages_after(tx, parent, rotation.upto)
            tx.run(
                "UPDATE sessions SET ended_at = ?, end_reason = 'compression' WHERE no = ?",
                tx.now,
                parent,
            )
            child = tx.new_session_id()
            tx.run(
                "INSERT INTO sessions (id, source, kind, parent_no, started_at, last_active) "
                "VALUES (?, '', 'compression', ?, ?, ?)",
                child,
                parent,
                tx.now,
                tx.now,
            )
            texts = [Message(m.role, m.content) for m in carried]
            head = messages.append_messages(tx, child, [*rotation.messages, *texts])
            if rotation.session_key is not None:
                routes.assign_session(tx, rotation.session_key, child)
            return Rotated(child, head, None)

        return self.transact(work)


class Tokenless(SessionStore):
    """Mutant M7: `rotate` does not check that the lease is still held."""

    def rotate(self, rotation):
        return super().rotate(replace(rotation, lease=None))


class Deferred(SessionStore):
    """Mutant M13: transactions start as readers and upgrade to the write lock."""

    def transact(self, work):
        try:
            self._db.execute("BEGIN")
            value = work(SqliteTransaction.begin(self._db, self._clock))
            self._db.execute("COMMIT")
        except apsw.Error as error:
            raise translate(error) from error
        else:
            return value
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")


VARIANTS = {"store": SessionStore, "blind": Blind, "tokenless": Tokenless, "deferred": Deferred}


# The processes


class Racer:
    """The commands that a process executes; `serve` runs it, `Remote` is the other end."""

    def __init__(self, path, variant, name, *, wall_clock_leases=False):
        self.name = name
        self.jump = 0.0
        self.rotation = None
        clock = Clock(
            wall=self.wall, steady=self.wall if wall_clock_leases else time.monotonic
        )  # M8
        self.clock = clock
        self.store = VARIANTS[variant](path, clock=clock) if path else None

    def wall(self):
        return time.time() + self.jump

    def set_clock(self, jump):
        self.jump = jump

    def prepare(self, session_id, *, lease=False, ttl=30.0, key=None, epoch=None):
        """Start a compression: acquire the lease if asked to, load the transcript, summarize."""
        self.rotation = None
        before = time.monotonic()
        taken = self.store.acquire_lease(session_id, self.name, ttl) if lease else None
        if lease and taken is None:
            return {"holder": self.store.get_compression_lock_holder(session_id)}
        transcript = self.store.load(session_id)
        upto = transcript.messages[-1].id
        self.rotation = Rotation(
            session_id=session_id,
            messages=[Message("user", f"summary of {upto} by {self.name}")],
            rotation_id=f"{self.name} {session_id}",
            rewrites=transcript.head.rewrites,
            upto=upto,
            session_key=key,
            epoch=epoch,
            lease=taken,
        )
        return {"upto": upto, "token": taken and taken.token, "before": before}

    def rotate(self):
        answer = self.store.rotate(self.rotation)
        return {"rotated": isinstance(answer, Rotated)} | msgspec.to_builtins(answer)

    def take(self, session_id, seconds):
        """Try to acquire the lease until it succeeds."""
        give_up = time.monotonic() + seconds
        while self.store.acquire_lease(session_id, self.name) is None:
            if time.monotonic() > give_up:
                return {"taken": None}
            time.sleep(0.001)  # a lease ends by time alone; there is no event to wait for
        return {"taken": time.monotonic()}

    def try_lease(self, session_id):
        return {"got": self.store.acquire_lease(session_id, self.name) is not None}

    def keep(self, session_id):
        return {"kept": self.store.refresh_compression_lock(session_id, self.name)}

    def append(self, session_id):
        """Append until the session has ended; return what was acknowledged."""
        acknowledged = []
        for number in range(APPENDS):
            text = f"{session_id} row {number}"
            try:
                appended = self.store.append_message(session_id, "user", text)
            except SessionEnded:
                return {"acknowledged": acknowledged, "stopped": True}
            acknowledged.append([appended.message_id, text])
            time.sleep(
                0.0005
            )  # SQLite's lock is not fair; without a pause no other process gets it
        return {"acknowledged": acknowledged, "stopped": False}

    def open(self, path):
        """Open a file that others open at the same time, and write to it."""
        with SessionStore(path) as store:
            store.create_session(self.name)
        with contextlib.closing(apsw.Connection(path)) as db:
            # Whoever closes the file last, or recovers it, locks everyone else out for a moment.
            db.set_busy_timeout(60_000)
            return {"version": db.pragma("user_version")}


def serve():
    """Run the main program of a process: JSON lines in, JSON lines out."""
    racer = Racer(*json.loads(sys.argv[1]), **json.loads(sys.argv[2]))
    for line in sys.stdin:
        verb, args, options = json.loads(line)
        try:
            answer = getattr(racer, verb)(*args, **options)
        except Exception as error:  # noqa: BLE001 - reported as a violation
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer or {}) + "\n")
        sys.stdout.flush()


class Remote:
    """A racer in another process."""

    def __init__(self, path, variant, name, **options):
        self.name = name
        arguments = json.dumps([path and str(path), variant, name]), json.dumps(options)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.racing", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, verb, *args, **options):
        self.process.stdin.write(json.dumps([verb, args, options]) + "\n")
        self.process.stdin.flush()

    def receive(self):
        return json.loads(self.process.stdout.readline())

    def ask(self, verb, *args, **options):
        self.send(verb, *args, **options)
        return self.receive()

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def wake(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait(30)


@contextlib.contextmanager
def racing(path, names, variant="store", **options):
    """Start processes with these names on one file."""
    remotes = [Remote(path, variant, name, **options) for name in names]
    try:
        yield remotes
    finally:
        for remote in remotes:
            remote.kill()
            remote.process.stdin.close()
            remote.process.stdout.close()


if __name__ == "__main__":
    serve()
