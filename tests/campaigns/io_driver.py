"""Runs a workload on a disk that fails, and checks the file afterwards.

The driver records the outcome of each request:

    ok       it returned: it must be stored, once
    fail     a definite error: it must not be stored
    unknown  `StoreFailed`: either, but completely; the driver opens the file again and finds out
"""

from __future__ import annotations

import shutil
from collections import Counter, deque
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import attrs
import trio
from trio.testing import MockClock

from hermes.errors import (
    ActorStopped,
    HermesError,
    StoreError,
    StoreFailed,
)
from hermes.store import SessionStore, open_store
from hermes.store.sqlite.connection import BUSY_TRIES
from hermes.testing import inline
from tests.campaigns.io_workloads import REOPEN, WORKLOADS, Step, Text
from tests.support.faulty_vfs import Fault, FaultyVFS
from tests.support.stores import AwaitedStore, World

WATCHDOG_SECONDS = 300.0
MAX_LOCK_CALLS = 6 * BUSY_TRIES


@attrs.frozen
class Case:
    """One fault in a run of a workload.

    `ending` says when the store is closed: after the disk has recovered ("clean"), while it still
    fails ("failing"), or never, as if the process was killed ("killed"). `after` says whether the
    driver retries a request that failed definitely.
    """

    kind: str
    workload: str
    fault: Fault | None
    ending: str = "clean"
    after: str = "leave"

    def __str__(self) -> str:
        return f"{self.kind}/{self.workload}/{self.fault}/{self.ending}/{self.after}"

    @classmethod
    def parse(cls, name: str) -> Case:
        kind, workload, fault, ending, after = name.split("/")
        operation, error, at, lasting = fault.split(":")
        made = Fault(operation, error, int(at), lasting == "lasting")
        return cls(kind, workload, made, ending, after)


class Driver:
    """A client of the store that records the outcome of its requests."""

    retry_key = "{}"  # a mutant uses another key

    def __init__(self, case: Case, folder: Path, store_class: type[SessionStore]) -> None:
        self.case = case
        self.vfs = FaultyVFS()
        self.world = World()
        self.store_class = store_class
        self.folder = folder
        self.path = folder / "state.db"
        self.runs = 0
        self.stops = 0
        self.waves = deque(WORKLOADS[case.workload])
        self.outcomes: dict[str, str] = {}
        self.seen: dict[str, Any] = {"folder": folder}
        self.problems: list[str] = []

    async def run(self) -> None:
        """Run the workload, and open the store again whenever it stops."""
        self.vfs.arm(self.case.fault)
        while self.waves and not self.problems:
            await self._run_once()
        self.vfs.disarm()

    async def _run_once(self) -> None:
        self.runs += 1
        entered = False
        try:
            async with self._opened() as store:
                entered = True
                await self._work(store)
        except StoreFailed as error:
            if not entered:
                self._refused(error)
        except HermesError as error:
            if entered:
                self.problems.append(f"the store ended with {error!r}")
            self._refused(error)
        except Exception as error:  # noqa: BLE001 - not one of our errors: a violation
            self.problems.append(f"{'use' if entered else 'opening'} raised {error!r}")

    def _refused(self, error: Exception) -> None:
        """The file could not be opened; that is a violation if the disk works."""
        if self.vfs.fault is None:
            self.problems.append(f"it does not open although the disk works: {error!r}")
        elif self.runs % 2 == 0:
            self.vfs.disarm()

    @asynccontextmanager
    async def _opened(self):
        options = {"clock": self.world.clock, "vfs": self.vfs.name}
        if self.case.kind == "sync":
            store = self.store_class(self.path, **options)
            try:
                yield AwaitedStore(store)
            finally:
                self._close(store)
            return
        if self.case.kind == "inline":
            options["open_worker"] = inline()
        async with open_store(self.path, **options) as store:
            try:
                yield store
            finally:
                self._before_closing()
                if self.vfs.fault is not None and not self.waves:
                    self.vfs.disarm()
                # APSW raises errors of closing that SQLite ignores; so none are injected there.
                fault, self.vfs.fault = self.vfs.fault, None
        self.vfs.fault = fault

    def _before_closing(self) -> None:
        """Copy the files and continue with the copy, as if the process had been killed."""
        if self.case.ending != "killed":
            return
        copy = self.folder / f"run{self.runs}"
        copy.mkdir()
        for suffix in ("", "-wal"):
            if Path(f"{self.path}{suffix}").exists():
                shutil.copyfile(f"{self.path}{suffix}", copy / f"state.db{suffix}")
        self.path = copy / "state.db"

    def _close(self, store: SessionStore) -> None:
        self._before_closing()
        if self.case.ending == "failing":
            try:
                store.close()
            except apsw.Error as error:  # APSW raises errors that SQLite ignores
                if "injected" not in str(error):
                    raise
            return
        with self.vfs.suspended():
            store.close()

    async def _work(self, store) -> None:
        while self.waves:
            wave = self.waves.popleft()
            if wave is REOPEN:
                return
            again = await self._wave(store, wave)
            if again:
                self.waves.appendleft(tuple(again))
                self.stops += 1
                if self.stops >= 2:
                    self.vfs.disarm()
                return

    async def _wave(self, store, wave) -> list[Step]:
        """Send requests, concurrently if possible. Returns those whose outcome is unknown."""
        again: list[Step] = []
        if self.case.kind == "sync":
            for step in wave:
                if again or await self._step(store, step):
                    again.append(step)
            return again

        async def send_one(step):
            if await self._step(store, step):
                again.append(step)

        async with trio.open_nursery() as nursery:
            for step in wave:
                nursery.start_soon(send_one, step)
        if self.case.kind == "inline":
            await trio.sleep(1)  # virtual time, for the indexing after the writes
        return again

    async def _step(self, store, step) -> bool:
        """Send one request. Returns whether its outcome is unknown."""
        if any(self.outcomes.get(name) != "ok" for name in step.needs):
            return False
        unknown = self.outcomes.get(step.name) == "unknown"
        try:
            if unknown and not step.keyed and await self._there(store, step):
                self.outcomes[step.name] = "ok"
                return False
            await self._send(store, step, unknown)
        except (StoreFailed, ActorStopped):
            self.outcomes[step.name] = "unknown"
            return True
        except StoreError as error:
            # A verb of several transactions says if some of them are committed.
            partly = "which stay" in str(error)
            self.outcomes[step.name] = "unknown" if unknown or partly else "fail"
        except Exception as error:  # noqa: BLE001 - not one of our errors: a violation
            self.problems.append(f"{step.name} raised {error!r}")
        return False

    async def _send(self, store, step, unknown) -> None:
        key = self.retry_key.format(step.name) if unknown else step.name
        try:
            value = await step.do(store, self.seen, key)
        except StoreFailed:
            raise
        except StoreError:
            if self.case.after == "leave" or unknown:
                raise
            value = await step.do(store, self.seen, key)
        self.seen[step.name] = value
        self.outcomes[step.name] = "ok"

    async def _there(self, store, step) -> bool:
        return bool(step.proofs) and await count(store, step.proofs[0]) > 0

    # Verification

    async def verify(self) -> None:
        """Open the file without faults, and compare it with the recorded outcomes."""
        try:
            with SessionStore(self.path, clock=self.world.clock) as store:
                for wave in WORKLOADS[self.case.workload]:
                    for step in wave:
                        await self._compare(AwaitedStore(store), step)
                if damage := store.integrity_check():
                    self.problems.append(f"damaged: {damage}")
                if wrong := store.check_search():
                    self.problems.append(wrong)
                store.ensure_session("afterwards")
                store.append_message("afterwards", "user", "service resumes")
        except Exception as error:  # noqa: BLE001 - reported as a violation
            self.problems.append(f"afterwards: {error!r}")

    async def _compare(self, store, step) -> None:
        told = self.outcomes.get(step.name)
        if told is None or not step.proofs:
            return
        if step.name in {"create s4", "d1"} and "delete s4" in self.outcomes:
            return
        counts = [await count(store, proof) for proof in step.proofs]
        allowed = {"ok": [1], "fail": [0], "unknown": [0, 1]}[told]
        if len(set(counts)) > 1:
            self.problems.append(f"{step.name} was told {told} and is half there: {counts}")
        elif counts[0] not in allowed:
            self.problems.append(f"{step.name} was told {told} and is there {counts[0]} times")


async def count(store, proof: str | Text) -> int:
    """Return the count of a proof."""
    if isinstance(proof, str):
        return (await store.snapshot(lambda tx: tx.one(proof)))[0]
    ids = await store.snapshot(lambda tx: [row[0] for row in tx.all("SELECT id FROM sessions")])
    found = [
        message
        for session_id in ids
        if proof.session_id in {None, session_id}
        for message in await store.get_messages(session_id, include_rewound=proof.hidden)
        if (message.content or "").startswith(proof.begins)
    ]
    return min(len(found), 1) if proof.hidden else len(found)


def template(folder: Path) -> Path:
    """Create a store and close it."""
    path = folder / "template.db"
    SessionStore(path, clock=World().clock).close()
    return path


@attrs.frozen
class CaseResult:
    """The result of a case."""

    case: Case
    problems: list[str]
    fired: bool
    outcomes: Counter[str]
    calls: Counter[str]


def run_case(
    case: Case, folder: Path, origin: Path, driver=Driver, store_class=SessionStore
) -> CaseResult:
    """Run a case in a new folder."""
    folder.mkdir()
    shutil.copyfile(origin, folder / "state.db")
    client = driver(case, folder, store_class)

    async def bounded():
        with trio.fail_after(WATCHDOG_SECONDS):
            await client.run()
            await client.verify()

    clock = MockClock(autojump_threshold=0) if case.kind == "inline" else None
    trio.run(bounded, clock=clock)
    if client.vfs.calls["xLock"] > MAX_LOCK_CALLS:
        client.problems.append(f"tried to lock {client.vfs.calls['xLock']} times")
    shutil.rmtree(folder)
    outcomes = Counter(client.outcomes.values())
    return CaseResult(case, client.problems, client.vfs.fired > 0, outcomes, client.vfs.calls)
