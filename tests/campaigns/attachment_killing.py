"""The program of test_attachment_kills: a process that stores files and is killed over and over.

It stores files, accepts messages that name them, commits turns that reply with files, deletes
sessions and sweeps. A switch kills it with SIGKILL at the n-th call of a function, in Python or in
C, inside of the store: between any two steps. The next process finds what it left.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import attrs
import trio

from hermes.messages import Attachment, Inbound, Message, Outbound, TurnCommit
from hermes.store import Clock, SessionStore
from hermes.store.attachments import rows as attachments
from hermes.store.files.contents import CHUNK, SPARED
from hermes.store.files.staging import stage
from tests.support.attachments import (
    HOUR,
    blob_names,
    digest,
    referenced,
    rows_without_blob,
    staged_names,
)
from tests.support.folders import quick_folder
from tests.support.stores import open_kind

KEYS = ("a", "b", "c")
SIZES = (1, 100, 5000, 70_000, CHUNK + 1)
CONTENTS = [f"{n} ".encode() * (size // 2 + 1) for n, size in enumerate(SIZES)]
COUNTED = ("/hermes/store/", "/hermes/media.py", "/attachment_killing.py")
MOST_CALLS = 6000
"""How many calls a process may make before it is killed; one operation makes 100 to 1000."""
NAMING = (
    "SELECT extra FROM all_messages WHERE extra LIKE '%' || ?1 || '%' "
    "UNION ALL SELECT body FROM inbox WHERE state = 'open' AND body LIKE '%' || ?1 || '%'"
)


# The process


class Switch:
    """Kills the process at a call."""

    def __init__(self, calls):
        self.left = calls

    def __call__(self, frame, event, argument):
        if event in {"call", "c_call"} and any(x in frame.f_code.co_filename for x in COUNTED):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def arm(self):
        threading.setprofile(self)  # for the threads of the store
        sys.setprofile(self)


@attrs.define
class Bot:
    """One process: it tells its parent what is stored, and before it deletes something."""

    store: object
    killer: Killer
    dice: random.Random
    told: int
    number: int = 0

    def tell(self, what, **facts):
        os.write(self.told, json.dumps({"what": what, **facts}).encode() + b"\n")

    async def put(self, key):
        """Store a file with one of the contents. Returns it and the number of its content."""
        which = self.dice.randrange(len(CONTENTS))
        data = CONTENTS[which]
        sources = [{"data": data}, {"file": io.BytesIO(data)}]
        attachment = Attachment(**self.dice.choice(sources), name="a.txt", size=len(data))
        return await self.store.put_file(attachment, session_key=key), which

    async def say(self, key):
        """Accept a message with files."""
        stored = [await self.put(key) for _ in range(self.dice.randint(1, 2))]
        self.number += 1
        parts = tuple(file.part for file, _ in stored)
        await self.store.accept(
            Inbound(key, f"e{self.killer.lives}-{self.number}", "look", parts=parts)
        )
        self.tell("stored", key=key, files={file.id: which for file, which in stored})

    async def commit(self, key):
        """Commit the turn of the oldest message, which replies with a file."""
        rows = await self.store.open_inbox(key, limit=1)
        if not rows:
            return
        file, which = await self.put(key)
        [row], (route, head) = rows, await self.store.route_head(key)
        said = Message("user", "look", parts=row.inbound.parts)
        turn = TurnCommit(
            session_key=key,
            session_id=route.session_id,
            epoch=route.epoch,
            revision=head.revision,
            inbox_ids=[row.inbox_id],
            rows=(said, Message("assistant", "seen", parts=(file.part,))),
            outbox=[Outbound("chat", {"text": "seen", "files": [file.part]})],
        )
        await self.store.commit_turn(turn)
        self.tell("stored", key=key, files={file.id: which})

    async def delete(self, key):
        """Delete the current session of a conversation."""
        route = await self.store.get_route(key)
        if route is None or await self.store.get_session(route.session_id) is None:
            return
        found = [row.parts or () for row in (await self.store.load(route.session_id)).messages]
        self.tell("deleting", files=[part["file"] for parts in found for part in parts])
        await self.store.delete_session(route.session_id)

    async def discard(self, key):
        file, _ = await self.put(key)
        await self.store.discard_file(file.id, session_key=key)

    async def send(self, key):
        replies = await self.store.pending_outbox()
        await self.store.mark_sent([row.outbox_id for row in replies])

    async def sweep(self, key):
        await self.store.sweep_files()

    async def wait(self, key):
        """Let an hour pass."""
        self.killer.now += HOUR
        self.tell("waited")

    async def work(self):
        """Do random things until the process is killed."""
        verbs = [self.say, self.say, self.commit, self.commit, self.delete, self.send]
        verbs += [self.discard, self.sweep, self.wait]
        while True:
            await self.dice.choice(verbs)(self.dice.choice(KEYS))

    async def turn(self):
        """The way of one file from its first byte to the committed turn, and its end."""
        for verb in (self.say, self.commit, self.send, self.delete, self.wait, self.sweep):
            await verb("a")


# Mutants, which the campaign must find


class PlacesLate(SessionStore):
    """Mutant: the content of a file is moved to its place after its row is committed."""

    def put_file(self, attachment, *, session_key, principal=None):
        staged = stage(self._db.blobs, attachment, self._db.limits.message_bytes)
        file = attachments.StoredFile(id=staged.id, media_type="text/plain", size=staged.size)

        def insert(tx):
            blob = "INSERT INTO blobs VALUES (?, ?, ?) ON CONFLICT (hash) DO NOTHING"
            tx.run(blob, staged.hash, staged.size, tx.now)
            attachments.insert_file(tx, file, staged.hash, session_key)

        self.transact(insert)
        self.transact(lambda tx: tx.db.blobs.place(tx, staged))
        return file


class SweepsEarly(SessionStore):
    """Mutant: a sweep removes content before the deletion of its row is committed."""

    def sweep_files(self):
        def sweep(tx):
            unused = "SELECT id, hash FROM files f WHERE f.created_at < ? AND "
            for file_id, hash_ in tx.all(unused + attachments.UNUSED, tx.now - SPARED):
                tx.run("DELETE FROM files WHERE id = ?", file_id)
                if tx.one("SELECT 1 FROM files WHERE hash = ?", hash_) is None:
                    tx.run("DELETE FROM blobs WHERE hash = ?", hash_)
                    tx.db.blobs.path_of(hash_).unlink()

        self.transact(sweep)


class Forgets(SessionStore):
    """Mutant: an accepted message does not keep its files."""

    def accept(self, inbound, **options):
        accepted = super().accept(inbound, **options)
        self.transact(lambda tx: tx.run("DELETE FROM inbox_files"))
        return accepted


MUTANTS = {"places late": PlacesLate, "sweeps early": SweepsEarly, "forgets": Forgets}


# The parent


@attrs.define
class Killer:
    """Starts processes and kills them, and knows what they have stored."""

    path: Path
    kind: str
    dice: random.Random
    mutant: str | None
    now: float = attrs.Factory(time.time)
    lives: int = 0
    kept: dict = attrs.Factory(dict)
    """The files that must be there: their key, and the number of their content."""
    size: Counter = attrs.Factory(Counter)

    @property
    def clock(self):
        return Clock(wall=lambda: self.now, steady=lambda: self.now)

    def run(self, calls, verb):
        """Run one process, and kill it at this call. Returns whether it ended by itself."""
        self.lives += 1
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(reading)
            trio.run(self.child, writing, calls, verb)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as told:
            for line in told:
                self.heard(**json.loads(line))
        status = os.waitpid(pid, 0)[1]
        if status not in {0, signal.SIGKILL}:
            raise RuntimeError(f"a process ended with the status {status}")
        self.size["kills"] += status != 0
        return status == 0

    async def child(self, writing, calls, verb):
        options = {"clock": self.clock}
        if self.mutant:
            opened = open_kind("sync", self.path, opened=MUTANTS[self.mutant], **options)
        else:
            opened = open_kind(self.kind, self.path, **options)
        async with opened as store:
            bot = Bot(store, self, random.Random(self.dice.random()), writing)
            Switch(calls).arm()
            await getattr(bot, verb)()
            sys.setprofile(None)

    def heard(self, what, files=(), key=None):
        if what == "waited":
            self.now += HOUR
        elif what == "stored":
            self.kept.update({file_id: (key, which) for file_id, which in files.items()})
            self.size["files"] += len(files)
        else:
            for file_id in files:
                self.kept.pop(file_id, None)

    def violations(self):
        """Yield what is wrong in the files, now and after a sweep an hour later."""
        with SessionStore(self.path, clock=self.clock) as store:
            yield from self.missing(store)
            self.now += HOUR
            store.sweep_files()
            yield from self.missing(store)
            there, wanted = blob_names(self.path), referenced(_sql(store))
            yield from (f"the blob {each} was not swept" for each in there - wanted)
            yield from (f"{each} was staged and not swept" for each in staged_names(self.path))
            yield from store.integrity_check()

    def missing(self, store):
        """Yield rows without a blob, and stored files that cannot be read as they were."""
        yield from rows_without_blob(self.path, _sql(store))
        for file_id, (key, which) in self.kept.items():
            try:
                data = store.read_file(file_id, session_key=key)
            except LookupError as error:
                yield f"{file_id} was lost: {error}"
                continue
            if digest(data) != digest(CONTENTS[which]):
                yield f"{file_id} has another content"
            if not _sql(store)(NAMING, file_id):
                yield f"no message names {file_id}"


def _sql(store):
    return lambda statement, *values: store.snapshot(lambda tx: tx.all(statement, *values))


def storm(killer, kills):
    """Kill processes that do random things."""
    for _ in range(kills):
        killer.run(killer.dice.randint(1, MOST_CALLS), "work")
        if found := list(killer.violations()):
            return found
    return []


def scan(killer, stride):
    """Kill a process at every call, or every few, between the first byte and the last step.

    Each gets a new file.
    """
    empty = killer.path
    SessionStore(empty).close()
    calls, ended = killer.dice.randint(1, stride), False
    while not ended:
        with quick_folder() as folder:
            killer.path, killer.kept = folder / "state.db", {}
            shutil.copyfile(empty, killer.path)
            ended = killer.run(calls, "turn")
            if found := list(killer.violations()):
                return found
        calls += stride
    return []


def main(path, kind, mode, number, seed, mutant=None):
    """Run one form of the campaign, and print the results as JSON."""
    killer = Killer(Path(path), kind, random.Random(int(seed)), mutant)
    found = {"storm": storm, "scan": scan}[mode](killer, int(number))
    sys.stdout.write(json.dumps({"size": killer.size, "violations": found[:20]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
