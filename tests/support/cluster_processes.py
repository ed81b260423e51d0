"""Nodes as processes, which a test can stop, continue and kill."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import psycopg
from msgspec.structs import replace

from hermes.store import SessionStore
from tests.support.cluster_nodes import SECONDS, inbound, with_lease
from tests.support.postgres_databases import plain

PROGRAM = "tests.support.cluster_program"


class NodeProcess:
    """One process; see `cluster_program`."""

    def __init__(self, url, name, seconds, wrong_by, *platforms):
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, url, name, str(seconds), str(wrong_by), *platforms],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines = []
        self._said = queue.SimpleQueue()
        self.errors = []
        for target in (self._read, self._read_errors):
            threading.Thread(target=target, daemon=True).start()
        self.node = int(self.wait_for("node").partition(" ")[2])

    def _read(self):
        for line in self._process.stdout:
            self._said.put(line.strip())
        self._said.put(None)

    def _read_errors(self):
        self.errors.extend(self._process.stderr)

    def wait_for(self, start, seconds=SECONDS):
        """Wait for a line that begins like this and was not read yet, and return it."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._said.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{self.name} did not say {start!r}: {self.lines}") from None
            assert line is not None, f"{self.name} has ended: {''.join(self.errors)}"
            self.lines.append(line)
            if line.startswith(start):
                return line

    def send(self, number):
        self._process.send_signal(number)

    def stop(self):
        """Stop the process, and wait until it is stopped."""
        self.send(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self):
        self.send(signal.SIGCONT)

    def kill(self):
        self.send(signal.SIGKILL)
        self._process.wait()

    def drain(self):
        """Let the process end, and wait for it."""
        self._process.stdin.close()
        assert self._process.wait(SECONDS) == 0, "".join(self.errors)

    def close(self):
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            pipe.close()


class Processes:
    """Nodes on one database, and a foreign writer that sends messages."""

    def __init__(self, url, store, lease):
        self.url = url
        self.lease = lease
        self._store = store
        self.nodes = []
        self._sent = {}
        self._number = 0

    def start(self, name, *platforms, seconds=0.05, wrong_by=0.0):
        """Start a node, whose agent takes some seconds and whose clock is wrong by some."""
        url = with_lease(self.url, self.lease)
        self.nodes.append(NodeProcess(url, name, seconds, wrong_by, *platforms))
        return self.nodes[-1]

    def send(self, key, **fields):
        """Accept the next message of a conversation; returns its text."""
        self._number += 1
        message = replace(inbound(key, self._number), **fields)
        self._store.accept(message)
        self._sent.setdefault(key, []).append(message.text)
        return message.text

    def sql(self, statement, *values):
        with psycopg.connect(plain(self.url), autocommit=True) as db:
            cursor = db.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def owner(self, key):
        """Return the id of the node that serves a conversation."""
        found = self.sql("SELECT owner FROM routes WHERE session_key = %s", key)
        return found[0][0] if found else None

    def until(self, condition, seconds=SECONDS):
        """Wait until a condition holds; returns how long that took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() < began + seconds, "this takes too long"
            time.sleep(0.01)
        return time.monotonic() - began

    def spread(self, keys, *nodes, seconds=SECONDS):
        """Send messages until each of the nodes serves some of the keys, and nobody else does."""
        deadline = time.monotonic() + seconds
        while {self.owner(key) for key in keys} != {each.node for each in nodes}:
            assert time.monotonic() < deadline, "the nodes do not share the conversations"
            for key in keys:
                self.send(key)
            self.all_answered()

    def open_messages(self):
        [(count,)] = self.sql("SELECT count(*) FROM inbox WHERE state = 'open'")
        return count

    def all_answered(self, seconds=SECONDS):
        """Wait until all messages are answered; returns how long that took."""
        return self.until(lambda: self.open_messages() == 0, seconds)

    def history(self, key, role):
        found = self.sql(
            "SELECT m.content FROM messages m JOIN sessions s ON s.no = m.id >> 32 "
            "JOIN routes r ON r.session_id = s.id WHERE r.session_key = %s AND m.role = %s "
            "ORDER BY m.id",
            key,
            role,
        )
        return [content for (content,) in found]

    def check(self):
        """Each message is in one committed turn, in the order in which they were sent."""
        for key, sent in self._sent.items():
            assert self.history(key, "user") == sent


@contextmanager
def processes(url, lease=1.0):
    """Processes for the block; those that still run at its end are killed."""
    with SessionStore(url) as store:
        found = Processes(url, store, lease)
        try:
            yield found
        finally:
            for node in found.nodes:
                node.close()
