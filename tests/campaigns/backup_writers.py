"""Processes that commit turns to one file as fast as they can."""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import struct
import subprocess
import sys
import time
from pathlib import Path

from hermes.errors import StoreBusy
from hermes.messages import Committed, Inbound, Message, TurnCommit
from hermes.store import SessionStore

ROOT = Path(__file__).parents[2]
ROWS = 4
"""Rows of a turn; a backup has all of them or none."""
WRITERS = 3


def one_turn(writer, number, head, epoch):
    """Return a message of a writer, and a function that makes its turn."""
    key = f"writer {writer}"
    rows = [Message("user", f"{number} {part} " + "x" * 200) for part in range(ROWS)]
    return Inbound(key, f"{writer} {number}", "go"), lambda receipt: TurnCommit(
        session_key=key,
        session_id=receipt.session_id,
        epoch=receipt.epoch if epoch is None else epoch,
        revision=0 if head is None else head.revision,
        inbox_ids=[receipt.inbox_id],
        rows=rows,
    )


def until_stored(verb, request):
    """Retry a request while the store is busy. Returns the number of retries and the result."""
    for busy in itertools.count():
        with contextlib.suppress(StoreBusy):
            return busy, verb(request)
    raise AssertionError


def write():
    """Run the main program of a writer: commit turns and count them in shared memory."""
    path, counter, writer = sys.argv[1:]
    with SessionStore(path) as store, Path(counter).open("r+b") as file:
        acknowledged = mmap.mmap(file.fileno(), 0)
        go_on = bytes(8)  # not what is read first: a late writer would miss the end
        number, worst, busy, head, epoch = 0, 0.0, 0, None, None
        while acknowledged[:8] == go_on:
            began = time.monotonic()
            inbound, turn = one_turn(writer, number, head, epoch)
            once, accepted = until_stored(store.accept, inbound)
            twice, done = until_stored(store.commit_turn, turn(accepted.receipt))
            assert isinstance(done, Committed)
            busy += once + twice
            head, epoch = done.head, done.epoch
            number += 1
            struct.pack_into("q", acknowledged, 8 + 8 * int(writer), number)
            worst = max(worst, time.monotonic() - began)
    sys.stdout.write(json.dumps({"turns": number, "worst": worst, "busy": busy}))


class Writers:
    """Processes that write as fast as they can, with counters in shared memory."""

    def __init__(self, path, folder, number=WRITERS):
        SessionStore(path).close()
        counter = folder / "acknowledged"
        counter.write_bytes(bytes(8 + 8 * number))
        with counter.open("r+b") as file:
            self.page = mmap.mmap(file.fileno(), 0)
        self.number = number
        self.processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.campaigns.backup_writers",
                    str(path),
                    str(counter),
                    str(writer),
                ],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            for writer in range(number)
        ]

    def acknowledged(self):
        """Return how many turns of each writer are on disk, at least."""
        return struct.unpack_from(f"{self.number}q", self.page, 8)

    def wait_for(self, turns):
        """Wait for more turns, of any writer: SQLite's lock is not fair."""
        goal = sum(self.acknowledged()) + turns
        give_up = time.monotonic() + 60
        while sum(self.acknowledged()) < goal:
            assert time.monotonic() < give_up
            assert all(process.poll() is None for process in self.processes)
            time.sleep(0.002)  # the counters are plain memory, without an event to wait for

    def stop(self):
        """End the writers. Returns the report of each."""
        self.page[:8] = b"\xff" * 8
        said = [json.loads(process.communicate(timeout=60)[0]) for process in self.processes]
        assert [process.returncode for process in self.processes] == [0] * self.number
        return said


@contextlib.contextmanager
def writing(path, folder, number=WRITERS):
    """Start writers during a block."""
    writers = Writers(path, folder, number)
    try:
        yield writers
    finally:
        for process in writers.processes:
            process.kill()
            process.wait(30)
            process.stdout.close()


if __name__ == "__main__":
    write()
