"""C2a: every call of the disk fails once, or from then on; the store tells the truth about it.

A case is named `face/workload/operation:error:index:once|lasting/ending/after`, and is run alone
with HERMES_IO_CASE=<name>. The driver keeps what it was told:

    ok       it returned: it must be there, once
    fail     a definite error: it must not be there
    unknown  `StoreFailed`: either, but whole; the driver opens the file again and settles it
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import attrs
import pytest
import trio
from trio.testing import MockClock

from hermes.errors import (
    ActorStopped,
    HermesError,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreRefused,
)
from hermes.messages import Inbound, Message, Outbound, TurnCommit, Usage
from hermes.store import Rotation, SessionStore, inline, open_store
from tests.campaigns.faulty_vfs import CAN_FAIL, Fault, FaultyVFS, quick_folder
from tests.conftest import Awaited, World, open_face

SEED = 20261116
SECONDS_PER_CASE = 30.0
FACES = ("blocking", "actor", "inline")


# The workloads


@attrs.frozen
class Text:
    """Counts messages whose text begins so; with `hidden`: is there any, in view or not."""

    begins: str
    session_id: str | None = None
    hidden: bool = False


@attrs.frozen
class Step:
    """A request, and proofs by which any reader of the file sees whether it was stored.

    The proofs count; they must all say 1 or all say 0. A request without a key of its own is not
    sent again blindly after `StoreFailed`: the driver looks first.
    """

    name: str
    do: Callable[[Any, dict[str, Any], str], Awaitable[object]]
    proofs: tuple[str | Text, ...] = ()
    needs: tuple[str, ...] = ()
    keyed: bool = True


REOPEN: tuple[Step, ...] = ()


def create(session_id):
    return Step(
        f"create {session_id}",
        lambda store, seen, key: store.create_session(session_id, "test"),
        (f"SELECT count(*) FROM sessions WHERE id = '{session_id}'",),
    )


def append(session_id, name, *, size=0, needs=None):
    """One message; its text names it, its key is the platform's id."""
    return Step(
        name,
        lambda store, seen, key: store.append_message(
            session_id, "user", f"{name} {'x' * size}", platform_message_id=key
        ),
        (Text(f"{name} ", session_id),),
        (f"create {session_id}",) if needs is None else needs,
    )


def title(session_id, text):
    return Step(
        f"title {session_id}",
        lambda store, seen, key: store.set_session_title(session_id, text),
        (f"SELECT count(*) FROM sessions WHERE id = '{session_id}' AND title = '{text}'",),
        (f"create {session_id}",),
    )


def accept(event, session_key):
    return Step(
        f"accept {event}",
        lambda store, seen, key: store.accept(Inbound(session_key, event, f"text of {event}")),
        (f"SELECT count(*) FROM inbox WHERE event_id = '{event}'",),
    )


def turn(event, session_key):
    """A whole turn for an accepted message: rows, reply, usage and receipt, all or nothing."""

    async def do(store, seen, key):
        receipt = seen[f"accept {event}"].receipt
        head = await store.head(receipt.session_id)
        return await store.commit_turn(
            TurnCommit(
                session_key=session_key,
                session_id=receipt.session_id,
                epoch=receipt.epoch,
                revision=head.revision,
                inbox_ids=[receipt.inbox_id],
                rows=[Message("user", f"{event} asks"), Message("assistant", f"{event} answer")],
                outbox=[Outbound("lane", {"text": f"{event} answer"})],
                usage=[Usage(purpose=f"turn {event}", input_tokens=3)],
            )
        )

    return Step(
        f"turn {event}",
        do,
        (
            f"SELECT count(*) FROM inbox WHERE event_id = '{event}' AND state = 'done'",
            Text(f"{event} asks"),
            Text(f"{event} answer"),
            f"SELECT count(*) FROM outbox WHERE body LIKE '%{event} answer%'",
            f"SELECT count(*) FROM usage WHERE purpose = 'turn {event}'",
        ),
        (f"accept {event}",),
    )


def rotate(session_id, child, last):
    """Parent's end, child and summary are one fact."""
    return Step(
        f"rotate {session_id}",
        lambda store, seen, key: store.rotate(
            Rotation(
                session_id=session_id,
                messages=[Message("user", f"summary of {session_id}")],
                rotation_id=f"rotation of {session_id}",
                rewrites=0,
                upto=seen[last].message_id,
                child_session_id=child,
            )
        ),
        (
            f"SELECT count(*) FROM sessions WHERE rotation_id = 'rotation of {session_id}'",
            "SELECT count(*) FROM sessions "
            f"WHERE id = '{session_id}' AND end_reason = 'compression'",
            Text(f"summary of {session_id}", child),
        ),
        (last,),
    )


def edit(session_id, name, others):
    async def do(store, seen, key):
        return await store.edit_message(session_id, seen[name].message_id, f"{name} edited")

    return Step(
        f"edit {name}",
        do,
        (Text(f"{name} edited", session_id),),
        (name, *others),
        keyed=False,
    )


def kept(session_id, name):
    """A message that an edit may take out of view: it stays in the file."""
    return attrs.evolve(
        append(session_id, name), proofs=(Text(f"{name} ", session_id, hidden=True),)
    )


def lease(session_id):
    return Step(
        f"lease {session_id}",
        lambda store, seen, key: store.acquire_lease(session_id, "holder"),
        (f"SELECT count(*) FROM leases WHERE session_id = '{session_id}' AND token = 1",),
    )


def spend(session_id, purpose):
    return Step(
        f"usage {purpose}",
        lambda store, seen, key: store.update_token_counts(session_id, Usage(purpose=purpose)),
        (f"SELECT count(*) FROM usage WHERE purpose = '{purpose}'",),
        (f"create {session_id}",),
        keyed=False,
    )


def end(session_id):
    return Step(
        f"end {session_id}",
        lambda store, seen, key: store.end_session(session_id, "done"),
        (f"SELECT count(*) FROM sessions WHERE id = '{session_id}' AND end_reason = 'done'",),
        (f"create {session_id}",),
    )


def delete(session_id):
    return Step(
        f"delete {session_id}",
        lambda store, seen, key: store.delete_session(session_id),
        (f"SELECT NOT count(*) FROM sessions WHERE id = '{session_id}'",),
        (f"create {session_id}",),
    )


def send(event):
    """Reads the reply and says that it was sent."""

    async def do(store, seen, key):
        waiting = await store.pending_outbox("lane")
        await store.mark_sending([row.outbox_id for row in waiting])
        await store.mark_sent([row.outbox_id for row in waiting])

    sent = f"SELECT count(*) FROM outbox WHERE body LIKE '%{event}%' AND state = 'sent'"
    return Step(f"send {event}", do, (sent,), (f"turn {event}",))


def renew(session_key, reason):
    """Two boundaries and a new route, together."""
    return Step(
        f"new {reason}",
        lambda store, seen, key: store.new_session(session_key, reason=reason),
        tuple(
            f"SELECT count(*) FROM boundaries WHERE event = '{event}' AND reason = '{reason}'"
            for event in ("on_session_finalize", "on_session_reset")
        ),
        ("accept e1",),
        keyed=False,
    )


def plain(name, *arguments, needs=(), **options):
    """A verb whose effect nobody can miss: reads, indexing, upkeep."""
    return Step(
        f"{name} {arguments}",
        lambda store, seen, key: getattr(store, name)(*arguments, **options),
        needs=needs,
    )


def back_up():
    """A copy appears whole or not at all."""

    async def do(store, seen, key):
        target = seen["folder"] / f"copy-{len(list(seen['folder'].iterdir()))}.db"
        await store.backup(target)
        with SessionStore(target) as copy:
            assert copy.integrity_check() == []

    return Step("backup", do)


def block(session_id, count):
    """Many messages at once."""
    rows = [
        Message("user", f"{session_id} row {n}.", platform_message_id=f"b{n}") for n in range(count)
    ]
    return Step(
        f"block {session_id}",
        lambda store, seen, key: store.append_messages(session_id, rows),
        tuple(Text(f"{session_id} row {n}.", session_id) for n in (0, count - 1)),
        (f"create {session_id}",),
    )


_LINES = [
    '{"format":"hermes-session-1","id":"imported","source":"x","kind":"new","started_at":1.0,'
    '"last_active":2.0,"messages":[{"seq":1,"role":"user","timestamp":1.5,"content":"from afar"}]}'
]

WORKLOADS: dict[str, tuple[tuple[Step, ...], ...]] = {
    "daily": (
        tuple(create(f"s{n}") for n in (1, 2, 3, 4)),
        (
            append("s1", "m1"),
            append("s1", "m2"),
            append("s4", "d1"),
            *(kept("s3", x) for x in ("x1", "x2", "x3")),
        ),
        (title("s1", "One"), accept("e1", "key"), accept("e2", "key"), lease("s2")),
        (turn("e1", "key"), append("s1", "m3"), spend("s2", "u1"), edit("s3", "x2", ("x1", "x3"))),
        (plain("index_pending"), plain("load", "s1")),
        (rotate("s1", "s1b", "m2"), plain("list_sessions")),
        REOPEN,
        (append("s1b", "n1", needs=("rotate s1",)), send("e1"), plain("search_messages", "m1")),
        (renew("key", "again"), end("s2"), append("s3", "n2")),
        (delete("s4"), plain("check_search"), accept("e3", "key"), plain("open_inbox")),
    ),
    "upkeep": (
        (create("s1"), create("s2")),
        (block("s1", 40), append("s2", "m1")),
        (plain("index_pending"), plain("export_session", "s1", needs=("create s1",))),
        (
            Step(
                "import",
                lambda store, seen, key: store.import_sessions(_LINES),
                (
                    "SELECT count(*) FROM sessions WHERE id = 'imported'",
                    Text("from afar", "imported"),
                ),
            ),
        ),
        (back_up(),),
        (plain("vacuum"),),
        (append("s2", "m2"),),
        (plain("rebuild_search"), plain("forget_closed"), plain("sweep_expired")),
        REOPEN,
        (append("s2", "m3"), plain("vacuum")),
        (append("s2", "m4"),),
    ),
    # Each of the big messages fills the log, so that a checkpoint follows it.
    "large": (
        (create("s1"), create("s2")),
        (append("s1", "m1"), append("s2", "n1")),
        (append("s1", "big1", size=4_200_000), append("s2", "n2")),
        (append("s1", "m2"), append("s2", "n3"), accept("e1", "key")),
        (append("s1", "big2", size=4_200_000),),
        (append("s2", "n4"), turn("e1", "key")),
        REOPEN,
        (append("s1", "m3"), append("s2", "n5")),
    ),
}


# The driver


@attrs.frozen
class Case:
    """One fault in one life of a store.

    `ending`: it is closed after the disk is well ("clean"), closed while it is not ("spoilt"), or
    never ("dead": the files as a killed process leaves them). `after`: whether the driver sends a
    request again that surely failed.
    """

    face: str
    workload: str
    fault: Fault | None
    ending: str = "clean"
    after: str = "leave"

    def __str__(self) -> str:
        return f"{self.face}/{self.workload}/{self.fault}/{self.ending}/{self.after}"

    @classmethod
    def parse(cls, name: str) -> Case:
        face, workload, fault, ending, after = name.split("/")
        operation, error, at, lasting = fault.split(":")
        made = Fault(operation, error, int(at), lasting == "lasting")
        return cls(face, workload, made, ending, after)


class Driver:
    """A client of the store that keeps account of what it was told."""

    retry_key = "{}"  # a mutant asks for another key

    def __init__(self, case: Case, folder: Path, store_class: type[SessionStore]) -> None:
        self.case = case
        self.vfs = FaultyVFS()
        self.world = World()
        self.store_class = store_class
        self.folder = folder
        self.path = folder / "state.db"
        self.lives = 0
        self.stops = 0
        self.waves = deque(WORKLOADS[case.workload])
        self.told: dict[str, str] = {}
        self.seen: dict[str, Any] = {"folder": folder}
        self.problems: list[str] = []

    async def run(self) -> None:
        """Live through the workload, opening the store again whenever it stopped."""
        self.vfs.arm(self.case.fault)
        while self.waves and not self.problems:
            await self._live()
        self.vfs.disarm()

    async def _live(self) -> None:
        self.lives += 1
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
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not ours
            self.problems.append(f"{'use' if entered else 'opening'} raised {error!r}")

    def _refused(self, error: Exception) -> None:
        """The file did not open: it must, once the disk is well."""
        if self.vfs.fault is None:
            self.problems.append(f"a well disk, and it does not open: {error!r}")
        elif self.lives % 2 == 0:
            self.vfs.disarm()

    @asynccontextmanager
    async def _opened(self):
        options = {"clock": self.world.clock, "vfs": self.vfs.name}
        if self.case.face == "blocking":
            store = self.store_class(self.path, **options)
            try:
                yield Awaited(store)
            finally:
                self._close(store)
            return
        if self.case.face == "inline":
            options["open_worker"] = inline()
        async with open_store(self.path, **options) as store:
            try:
                yield store
            finally:
                self._before_closing()
                if self.vfs.fault is not None and not self.waves:
                    self.vfs.disarm()
                # APSW raises what SQLite ignores when it closes; so nothing fails there.
                fault, self.vfs.fault = self.vfs.fault, None
        self.vfs.fault = fault

    def _before_closing(self) -> None:
        """A killed process closes nothing: what it left is copied, and used from here on."""
        if self.case.ending != "dead":
            return
        grave = self.folder / f"life{self.lives}"
        grave.mkdir()
        for suffix in ("", "-wal"):
            if Path(f"{self.path}{suffix}").exists():
                shutil.copyfile(f"{self.path}{suffix}", grave / f"state.db{suffix}")
        self.path = grave / "state.db"

    def _close(self, store: SessionStore) -> None:
        self._before_closing()
        if self.case.ending == "spoilt":
            try:
                store.close()
            except apsw.Error as error:  # APSW raises what SQLite ignores when it closes
                if "injected" not in str(error):
                    raise
            return
        with self.vfs.well():
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
        """Send requests, all at once where that is possible; returns those to settle."""
        again: list[Step] = []
        if self.case.face == "blocking":
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
        if self.case.face == "inline":
            await trio.sleep(1)  # of the mock clock: time for the indexing behind the writes
        return again

    async def _step(self, store, step) -> bool:
        """Send one request; True where nobody knows what became of it."""
        if any(self.told.get(name) != "ok" for name in step.needs):
            return False
        unknown = self.told.get(step.name) == "unknown"
        try:
            if unknown and not step.keyed and await self._there(store, step):
                self.told[step.name] = "ok"
                return False
            await self._send(store, step, unknown)
        except (StoreFailed, ActorStopped):
            self.told[step.name] = "unknown"
            return True
        except StoreError as error:
            # A verb of several transactions says so when some of them stay.
            partly = "which stay" in str(error)
            self.told[step.name] = "unknown" if unknown or partly else "fail"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not ours
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
        self.told[step.name] = "ok"

    async def _there(self, store, step) -> bool:
        return bool(step.proofs) and await count(store, step.proofs[0]) > 0

    # Afterwards

    async def verify(self) -> None:
        """Open the file without faults, and compare it with what the driver was told."""
        try:
            with SessionStore(self.path, clock=self.world.clock) as store:
                for wave in WORKLOADS[self.case.workload]:
                    for step in wave:
                        await self._compare(Awaited(store), step)
                if damage := store.integrity_check():
                    self.problems.append(f"damaged: {damage}")
                if wrong := store.check_search():
                    self.problems.append(wrong)
                store.ensure_session("afterwards")
                store.append_message("afterwards", "user", "service resumes")
        except Exception as error:  # noqa: BLE001 - the finding itself
            self.problems.append(f"afterwards: {error!r}")

    async def _compare(self, store, step) -> None:
        told = self.told.get(step.name)
        if told is None or not step.proofs:
            return
        if step.name in {"create s4", "d1"} and "delete s4" in self.told:
            return
        counts = [await count(store, proof) for proof in step.proofs]
        allowed = {"ok": [1], "fail": [0], "unknown": [0, 1]}[told]
        if len(set(counts)) > 1:
            self.problems.append(f"{step.name} was told {told} and is half there: {counts}")
        elif counts[0] not in allowed:
            self.problems.append(f"{step.name} was told {told} and is there {counts[0]} times")


async def count(store, proof: str | Text) -> int:
    """How often it is there; transcripts are read as everybody reads them."""
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
    """A store that was opened once and closed."""
    path = folder / "template.db"
    SessionStore(path, clock=World().clock).close()
    return path


@attrs.frozen
class Ran:
    """What a case came to."""

    case: Case
    problems: list[str]
    fired: bool
    told: Counter[str]
    calls: Counter[str]


def run_case(
    case: Case, folder: Path, origin: Path, driver=Driver, store_class=SessionStore
) -> Ran:
    """One case in a folder of its own, which is removed where all is well."""
    folder.mkdir()
    shutil.copyfile(origin, folder / "state.db")
    client = driver(case, folder, store_class)
    began = time.monotonic()

    async def bounded():
        with trio.fail_after(SECONDS_PER_CASE * 10):
            await client.run()
            await client.verify()

    clock = MockClock(autojump_threshold=0) if case.face == "inline" else None
    trio.run(bounded, clock=clock)
    if time.monotonic() - began > SECONDS_PER_CASE:
        client.problems.append(f"took {time.monotonic() - began:.0f} s")
    shutil.rmtree(folder)
    told = Counter(client.told.values())
    return Ran(case, client.problems, client.vfs.fired > 0, told, client.vfs.calls)


# The choice of cases


def every_fault(calls: Counter[str]) -> list[Fault]:
    """Each error at each call, once and lasting. A lock that is never free costs its time-out."""
    return [
        Fault(operation, error, at, lasting)
        for operation, errors in CAN_FAIL.items()
        for error in errors
        for at in range(1, calls[operation] + 1)
        for lasting in (False, True)
        if not (error == "busy" and lasting)
    ]


def spread(faults: list[Fault], share: int, rng: random.Random) -> list[Fault]:
    """Up to `share` faults: each kind of fault alike, the indexes spread over the whole life."""
    kinds: dict[tuple[str, str, bool], list[Fault]] = {}
    for fault in faults:
        kinds.setdefault((fault.operation, fault.error, fault.lasting), []).append(fault)
    chosen: list[Fault] = []
    for n, alike in enumerate(sorted(kinds.values(), key=len)):
        room = min(max(1, (share - len(chosen)) // (len(kinds) - n)), len(alike))
        step = len(alike) / room
        start = rng.random() * step
        chosen += [alike[int(start + step * i)] for i in range(room)]
    return chosen


def choose(face, workload, calls, share, rng) -> list[Case]:
    """Cases of one face and workload; files are deleted only when a store is closed."""
    endings = ("dead", "clean", "spoilt") if face == "blocking" else ("dead", "clean")
    faults = [
        fault
        for fault in every_fault(calls)
        if (fault.operation != "xDelete" or face == "blocking")
        and (fault.operation not in {"xOpen", "xLock", "xDelete"} or workload != "large")
    ]
    return [
        Case(
            face,
            workload,
            fault,
            "spoilt" if fault.operation == "xDelete" else endings[n % len(endings)],
            ("leave", "retry")[n // 3 % 2],
        )
        for n, fault in enumerate(spread(faults, share, rng))
    ]


SHARES = {  # (face, workload): cases in the short form, in the long form
    ("blocking", "daily"): (150, 3300),
    ("blocking", "upkeep"): (60, 700),
    ("blocking", "large"): (18, 160),
    ("actor", "daily"): (50, 300),
    ("actor", "upkeep"): (30, 80),
    ("inline", "daily"): (50, 500),
    ("inline", "upkeep"): (30, 100),
    ("inline", "large"): (8, 40),
}


def all_cases(folder, origin, prove) -> list[Case]:
    if name := os.environ.get("HERMES_IO_CASE"):
        return [Case.parse(name)]
    rng = random.Random(SEED)
    cases: list[Case] = []
    for (face, workload), shares in SHARES.items():
        ending = "spoilt" if face == "blocking" else "clean"
        healthy = run_case(Case(face, workload, None, ending), folder / "healthy", origin)
        assert healthy.problems == []
        assert set(healthy.told) == {"ok"}
        cases += choose(face, workload, healthy.calls, shares[prove], rng)
    return cases


def report(results: list[Ran], began: float) -> str:
    fired = [ran for ran in results if ran.fired]
    told = sum((ran.told for ran in fired), Counter())
    kinds = Counter(f"{ran.case.face} {ran.case.fault.operation}" for ran in fired)
    bad = [f"{ran.case}: {'; '.join(ran.problems)}" for ran in results if ran.problems]
    lines = [
        f"seed {SEED}: {len(results)} cases, {len(fired)} with a fault met, {len(bad)} violations, "
        f"{time.monotonic() - began:.0f} s; told {dict(told)}",
        f"by face and operation: {dict(kinds)}",
        *bad[:40],
    ]
    return "\n".join(lines)


@pytest.fixture
def quick():
    with quick_folder() as folder:
        yield folder


@pytest.fixture
def say(capsys):
    """Figures belong on the screen, passed or not."""

    def print_now(text):
        with capsys.disabled():
            print(f"\n{text}")  # noqa: T201

    return print_now


def test_every_io_error_is_told_truthfully_and_nothing_acknowledged_is_lost(quick, prove, say):
    began = time.monotonic()
    origin = template(quick)
    cases = all_cases(quick, origin, prove)
    results = [run_case(case, quick / f"case{n}", origin) for n, case in enumerate(cases)]
    summary = report(results, began)
    say(summary)
    assert not any(ran.problems for ran in results), summary
    if len(cases) > 1:
        assert sum(ran.fired for ran in results) >= (4000 if prove else 300)


# Mutants: what the campaign is worth


class SwallowsCommitErrors(SessionStore):
    """M6: the work was done, so it says so, whatever COMMIT said."""

    def transact(self, work):
        done = []

        def keep(tx):
            done.append(work(tx))
            return done[0]

        try:
            return super().transact(keep)
        except (StoreError, StoreFailed):
            if not done:
                raise
            return done[0]


class TakesUnknownForFailed(SessionStore):
    """What nobody can know, it claims to know."""

    def transact(self, work):
        try:
            return super().transact(work)
        except StoreFailed as error:
            raise StoreError("nothing was stored") from error


class NewKeyAfterUnknown(Driver):
    """A client that sends again under another name what may be stored already."""

    retry_key = "{} again"


@pytest.mark.parametrize(
    ("driver", "store_class", "lasting", "finding"),
    [
        (Driver, SessionStore, False, None),
        (Driver, SessionStore, True, None),
        (Driver, SwallowsCommitErrors, False, "was told ok and is there 0 times"),
        (Driver, TakesUnknownForFailed, True, "was told fail and is there 1 times"),
        (NewKeyAfterUnknown, SessionStore, False, "was told ok and is there 2 times"),
    ],
)
def test_the_campaign_finds_stores_and_clients_that_lie(
    quick, driver, store_class, lasting, finding
):
    origin = template(quick)
    cases = [
        Case("blocking", "daily", Fault(operation, "io", at, lasting), "dead")
        for operation, step in (("xSync", 4), ("xWrite", 17))
        for at in range(12, 12 + 6 * step, step)
    ]
    found = [
        problem
        for n, case in enumerate(cases)
        for problem in run_case(case, quick / str(n), origin, driver, store_class).problems
    ]
    assert bool(found) is (finding is not None), found
    assert finding is None or any(finding in problem for problem in found), found


# Opening


STARTS = ("fresh", "closed", "left")


def lay_out(start: str, origin: Path, folder: Path) -> Path:
    """No file, a closed store, or what a killed process left with rows in the log."""
    if start != "fresh":
        shutil.copyfile(origin, folder / "state.db")
    if start == "left":
        with SessionStore(folder / "state.db", clock=World().clock) as store:
            store.create_session("s1")
            store.append_message("s1", "user", "before")
            shutil.copyfile(folder / "state.db-wal", folder / "kept")
        # Closing has copied the log into the file; found again, it is read once more.
        (folder / "kept").rename(folder / "state.db-wal")
    return folder / "state.db"


def open_with(fault: Fault | None, start: str, origin: Path, folder: Path) -> tuple[str, Counter]:
    """Open under a fault, then without; returns what is wrong, and the calls that were made."""
    folder.mkdir()
    path = lay_out(start, origin, folder)
    vfs = FaultyVFS()
    vfs.arm(fault)
    problem = ""
    try:
        store = SessionStore(path, clock=World().clock, vfs=vfs.name)
        calls = vfs.calls.copy()
        vfs.disarm()
        store.close()
    except HermesError:
        calls = vfs.calls.copy()
    except Exception as error:  # noqa: BLE001 - the finding itself
        calls, problem = vfs.calls.copy(), f"raised {error!r}"
    vfs.disarm()
    problem = problem or opens_well(path, start)
    shutil.rmtree(folder)
    return problem, calls


def opens_well(path: Path, start: str) -> str:
    try:
        with SessionStore(path, clock=World().clock) as store:
            store.ensure_session("s1")
            store.append_message("s1", "user", "after")
            texts = [message.content for message in store.get_messages("s1")]
            whole = [*(["before"] if start == "left" else []), "after"]
            damage = store.integrity_check()
            return "" if texts == whole and not damage else f"holds {texts}, {damage}"
    except Exception as error:  # noqa: BLE001 - the finding itself
        return f"afterwards: {error!r}"


def test_an_io_error_while_opening_is_one_of_ours_and_spoils_nothing(quick, prove, say):
    began = time.monotonic()
    origin = template(quick)
    rng = random.Random(SEED)
    count, found = 0, []
    for start in STARTS:
        _, calls = open_with(None, start, origin, quick / "healthy")
        faults = every_fault(calls)
        for fault in faults if prove else spread(faults, 60, rng):
            problem, _ = open_with(fault, start, origin, quick / "case")
            count += 1
            if problem:
                found.append(f"{start}/{fault}: {problem}")
    say(f"opening: {count} cases, {len(found)} violations, {time.monotonic() - began:.0f} s")
    assert found == []


def test_a_lock_that_is_never_free_is_answered_in_bounded_time(quick, prove):
    if not prove:
        pytest.skip("waits for two time-outs of SQLite; part of make prove")
    path = template(quick)
    vfs = FaultyVFS()
    vfs.arm(Fault("xLock", "busy", 1, lasting=True))
    began = time.monotonic()
    with pytest.raises(StoreBusy):
        SessionStore(path, vfs=vfs.name)
    assert time.monotonic() - began < SECONDS_PER_CASE


# Real faults


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 800 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=800k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def fill(store) -> tuple[list[str], int]:
    """Append until it has failed ten times; returns the acknowledged texts and the refusals."""
    acknowledged, refused = [], 0
    for n in range(1000):
        text = f"row {n} " + "y" * 3000
        try:
            await store.append_message("s1", "user", text)
            acknowledged.append(text)
        except StoreFull:
            refused += 1
        if refused == 10:
            break
    return acknowledged, refused


@pytest.mark.parametrize("face", FACES)
def test_a_full_disk_is_told_and_service_resumes_when_there_is_room(face, small_disk):
    path = small_disk / "state.db"
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"z" * 150_000)

    async def live():
        async with open_face(face, path, clock=World().clock) as store:
            await store.create_session("s1")
            acknowledged, refused = await fill(store)
            ballast.unlink()
            appended = await store.append_message("s1", "user", "room again")
            texts = [message.content for message in await store.get_messages("s1")]
            return acknowledged, refused, appended.head.message_count, texts

    acknowledged, refused, count, texts = trio.run(live)
    assert refused == 10
    assert texts == [*acknowledged, "room again"]
    assert count == len(texts)
    with SessionStore(path) as store:
        assert [message.content for message in store.get_messages("s1")] == texts
        assert store.integrity_check() == []


_LIMITED = """
import resource, sys
from hermes.errors import HermesError, StoreError, StoreFailed
from hermes.store import SessionStore
store = SessionStore(sys.argv[1])
store.create_session("s1")
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
for n in range(1000):
    try:
        store.append_message("s1", "user", f"row {n} " + "y" * 3000, platform_message_id=str(n))
        print("ok", n, flush=True)
    except StoreFailed:
        print("unknown", n, flush=True)
        break
    except StoreError:
        print("fail", n, flush=True)
        break
"""


def test_a_file_that_may_not_grow_gives_no_false_acknowledgement(path):
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(path)],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.stderr == ""
    assert lines[-1][0] in {"unknown", "fail"}
    told_ok = [n for told, n in lines if told == "ok"]
    assert len(told_ok) > 3
    with SessionStore(path) as store:
        stored = [message.platform_message_id for message in store.get_messages("s1")]
        assert stored in (told_ok, [*told_ok, lines[-1][1]])
        assert stored == told_ok or lines[-1][0] == "unknown"
        assert store.integrity_check() == []
        store.append_message("s1", "user", "resumes")


@pytest.fixture
def read_only(path):
    """A store whose folder cannot be written to."""
    with SessionStore(path) as store:
        store.create_session("s1")
    folder = str(path.parent)
    if os.geteuid() != 0:
        path.chmod(0o400)
        path.parent.chmod(0o500)
        yield path
        path.parent.chmod(0o700)
        return
    commands = (["mount", "--bind", folder, folder], ["mount", "-o", "remount,bind,ro", folder])
    for command in commands:
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("permissions do not bind root, and mounting is not permitted here")
    yield path
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_read_only_folder_is_refused_in_one_sentence(read_only):
    before = read_only.read_bytes()
    with pytest.raises(StoreRefused):
        SessionStore(read_only)
    assert read_only.read_bytes() == before


async def append_until_stopped(store) -> list[str]:
    """What was told for three appends in a row."""
    told = []
    for n in range(3):
        try:
            await store.append_message("s1", "user", f"after {n}")
            told.append("ok")
        except StoreFailed:
            told.append("unknown")
    return told


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("accident", ["log removed", "file replaced", "file removed"])
def test_files_taken_away_stop_the_store_without_a_false_acknowledgement(face, accident, tmp_path):
    path, other = tmp_path / "state.db", tmp_path / "other.db"
    with SessionStore(other) as store:
        store.create_session("s1")
    with SessionStore(path) as store:
        store.create_session("s1")
    accidents = {
        "log removed": Path(f"{path}-wal").unlink,
        "file removed": path.unlink,
        "file replaced": lambda: other.replace(path),
    }
    told = []

    async def live():
        async with open_face(face, path, clock=World().clock) as store:
            await store.append_message("s1", "user", "before")
            accidents[accident]()
            told.extend(await append_until_stopped(store))

    if face == "blocking":
        trio.run(live)
    else:
        with pytest.raises(StoreFailed):
            trio.run(live)
    assert told == ["unknown"] * 3
    with SessionStore(path) as store:  # what is at this path now
        store.ensure_session("s1")
        store.append_message("s1", "user", "service resumes")
        assert "after 0" not in [message.content for message in store.get_messages("s1")]
        assert store.integrity_check() == []
