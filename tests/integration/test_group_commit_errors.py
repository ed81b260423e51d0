"""Errors in a group commit: what each caller gets, and what is on disk.

The errors are SQLite's own if possible: a violated constraint, an interrupt, a lock of
another connection, a disk (of the faulty VFS) that is full or fails.
"""

from __future__ import annotations

import apsw
import pytest
import trio
from outcome import Error

from hermes.errors import StoreBusy, StoreError, StoreFailed, StoreFull
from hermes.store import SessionStore, open_store
from hermes.store.group_commit import commit_group, commit_one
from hermes.store.sqlite.connection import Database
from hermes.testing import inline
from tests.support.faulty_vfs import Fault, FaultyVFS


class Boom(BaseException):
    """An exception that ends programs and is not the answer to a request."""


def put(name):
    """A request that stores a row and returns its name."""

    def work(tx):
        tx.run("INSERT INTO meta (key, value) VALUES (?, 'x')", name)
        return name

    return work


def violate(tx):
    """Writes, then hits a constraint."""
    tx.run("INSERT INTO meta (key, value) VALUES ('half', 'x')")
    tx.run("INSERT INTO meta (key, value) VALUES ('half', 'x')")


def violate_at_commit(tx):
    """Violates a foreign key that only COMMIT checks."""
    tx.run("PRAGMA defer_foreign_keys = ON")
    tx.run("INSERT INTO session_texts (session_no) VALUES (4711)")
    tx.run("INSERT INTO meta (key, value) VALUES ('deferred', 'x')")


def interrupt(tx):
    """A write that is interrupted in its middle: SQLite gives up the whole transaction."""
    tx.db.create_scalar_function("stop", tx.db.interrupt, 0)
    tx.run("INSERT INTO meta (key, value) VALUES ('stopped', 'x')")
    tx.run(
        "INSERT INTO meta (key, value) "
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100) "
        "SELECT 'stopped ' || i, coalesce(stop(), 'x') FROM n"
    )


def fail(error):
    def work(tx):
        tx.run("INSERT INTO meta (key, value) VALUES ('half', 'x')")
        raise error

    return work


def fine():
    """The result of the guard if the file is in place."""


@pytest.fixture
def names(path):
    """The rows on disk, in the order of their names, as a fresh connection sees them."""

    def read():
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return [row[0] for row in db.execute("SELECT key FROM meta ORDER BY key")]
        finally:
            db.close()

    return read


@pytest.fixture
def vfs():
    return FaultyVFS()


@pytest.fixture
def db(path, world, vfs):
    SessionStore(path, clock=world.clock).close()
    database = Database(path, vfs=vfs.name)
    database.execute("SELECT count(*) FROM meta").fetchall()
    database.set_busy_timeout(0)
    yield database
    vfs.disarm()
    database.close()


@pytest.fixture
def commit(db, world):
    """Commit requests as one batch; returns the outcome of each, and of the batch."""

    def run(*batch, check=fine):
        db.check = check
        group = commit_group(db, world.clock, batch)
        return [result_of(outcome) for outcome in group.outcomes], group

    return run


def result_of(outcome):
    return type(outcome.error) if isinstance(outcome, Error) else outcome


# Without savepoints, as long as nothing has to be undone


def refuse(tx):
    """Fails before anything is written."""
    raise KeyError(tx.one("SELECT count(*) FROM meta"))


def index_something(tx):
    """Writes to the index alone, and fails."""
    tx.run("INSERT INTO search (rowid, content, tools) VALUES (1 << 40, 'half', NULL)")
    raise KeyError


@pytest.mark.parametrize(
    ("bad", "runs"),
    [(refuse, 1), (fail(KeyError()), 2), (index_something, 2), (violate, 2)],
    ids=["wrote nothing", "wrote a row", "wrote to the index", "met a constraint"],
)
def test_a_batch_runs_again_only_for_a_request_that_failed_halfway(commit, names, db, bad, runs):
    tries = []

    def counted(tx):
        tries.append(1)
        return put("a")(tx)

    answers, _ = commit(counted, bad, put("b"))
    assert answers[0] == "a"
    assert issubclass(answers[1], KeyError | StoreError)
    assert answers[2] == "b"
    assert len(tries) == runs
    assert names() == ["a", "b"]
    assert db.execute("SELECT count(*) FROM search ('half')").fetchone() == (0,)


# Inside a request, the transaction still open: it alone is undone


@pytest.mark.parametrize(
    ("bad", "answer"),
    [
        (violate, StoreError),
        (fail(ValueError("a title")), ValueError),
        (fail(KeyError("no such thing")), KeyError),
        (fail(StoreError("refused")), StoreError),
    ],
)
def test_a_request_that_fails_is_undone_alone(commit, names, bad, answer):
    answers, group = commit(put("a"), bad, put("b"))
    assert answers == ["a", answer, "b"]
    assert group.stopped is None
    assert names() == ["a", "b"]


def test_a_failed_request_keeps_its_own_error(commit):
    error = ValueError("mine")
    _, group = commit(put("a"), fail(error), put("b"))
    assert group.outcomes[1] == Error(error)


def test_a_violated_constraint_is_named_and_its_cause_is_kept(commit):
    _, group = commit(put("a"), violate)
    error = group.outcomes[1].error
    assert "nothing was stored" in str(error)
    assert "UNIQUE" in str(error)


def test_requests_run_in_order_and_see_what_came_before(commit, names):
    def count(tx):
        return tx.one("SELECT count(*) FROM meta")[0]

    answers, _ = commit(count, put("a"), count, violate, count, put("b"), count)
    assert answers == [0, "a", 1, StoreError, 1, "b", 2]
    assert names() == ["a", "b"]


# Inside a request, the transaction gone: all are undone, and each is run again alone


def test_an_interrupted_request_fails_no_other(commit, names):
    answers, group = commit(put("a"), interrupt, put("b"))
    assert answers == ["a", StoreError, "b"]
    assert "Interrupt" in str(group.outcomes[1].error)
    assert group.stopped is None
    assert names() == ["a", "b"]


def test_a_read_error_of_the_disk_fails_no_other_request(commit, names, db, vfs):
    db.execute("PRAGMA shrink_memory").fetchall()

    def read(tx):
        vfs.arm(Fault("xRead", "io", 1))
        try:
            return tx.all("SELECT * FROM sessions, usage, boundaries, outbox, leases")
        finally:
            vfs.disarm()

    answers, group = commit(put("a"), read, put("b"))
    assert answers == ["a", StoreError, "b"]
    assert vfs.fired
    assert group.stopped is None
    assert names() == ["a", "b"]


def fill_cache(tx):
    """So much that SQLite writes to the log before COMMIT; returns what could not be done later."""
    tx.run(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400) "
        "INSERT INTO meta (key, value) SELECT 'big ' || i, hex(zeroblob(20000)) FROM n"
    )
    return "big"


@pytest.mark.parametrize(("error", "answer"), [("full", StoreFull), ("io", StoreError)])
def test_a_disk_that_fails_inside_a_request_fails_no_other(commit, names, vfs, error, answer):
    def spill(tx):
        vfs.arm(Fault("xWrite", error, 1, lasting=True))
        try:
            return fill_cache(tx)
        finally:
            vfs.disarm()

    answers, group = commit(put("a"), spill, put("b"))
    assert answers == ["a", answer, "b"]
    assert vfs.fired
    assert group.stopped is None
    assert names() == ["a", "b"]


def test_a_request_lost_with_the_transaction_is_run_again_and_may_succeed(commit, names, vfs):
    tries = []

    def spill_once(tx):
        tries.append(1)
        vfs.arm(Fault("xWrite", "full", 1) if len(tries) == 1 else None)
        fill_cache(tx)
        return len(tries)

    answers, _ = commit(put("a"), spill_once, put("b"))
    assert answers == ["a", 2, "b"]
    assert names()[:2] == ["a", "b"]
    assert len(names()) == 402


# At COMMIT, certainly undone: each is run again alone


def test_a_constraint_that_only_commit_checks_fails_its_own_request(commit, names):
    answers, group = commit(put("a"), violate_at_commit, put("b"))
    assert answers == ["a", StoreError, "b"]
    assert group.stopped is None
    assert names() == ["a", "b"]


def test_a_full_disk_at_commit_refuses_everyone_and_the_next_batch_is_stored(commit, names, vfs):
    vfs.arm(Fault("xWrite", "full", 1, lasting=True))
    answers, group = commit(put("a"), put("b"))
    assert answers == [StoreFull, StoreFull]
    assert group.stopped is None
    vfs.disarm()
    assert names() == []
    assert commit(put("a"), put("b"))[0] == ["a", "b"]
    assert names() == ["a", "b"]


def test_a_disk_that_is_full_once_fails_no_request(commit, names, vfs):
    vfs.arm(Fault("xWrite", "full", 1))
    answers, _ = commit(put("a"), put("b"), put("c"))
    assert answers == ["a", "b", "c"]
    assert vfs.fired == 1
    assert names() == ["a", "b", "c"]


# A lock of another process


def test_a_lock_of_another_process_fails_all_requests_and_stores_nothing(commit, names, path):
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    answers, group = commit(put("a"), put("b"))
    other.execute("ROLLBACK")
    other.close()
    assert answers == [StoreBusy, StoreBusy]
    assert isinstance(group.stopped, StoreBusy)
    assert names() == []
    assert commit(put("a"), put("b"))[0] == ["a", "b"]


def test_a_lock_of_another_process_fails_a_single_request(db, world, path):
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        commit_one(db, world.clock, put("a"))
    other.execute("ROLLBACK")
    other.close()
    assert commit_one(db, world.clock, put("a")) == "a"


# At COMMIT, any other error: the outcome is unknown


@pytest.mark.parametrize("operation", ["xWrite", "xSync"])
@pytest.mark.parametrize("error", ["io", "readonly", "nomem"])
def test_an_unknown_outcome_of_commit_is_fatal_for_the_whole_batch(
    commit, names, vfs, operation, error
):
    vfs.arm(Fault(operation, error, 1))
    answers, group = commit(put("a"), violate, put("b"))
    assert answers == [StoreFailed] * 3
    assert isinstance(group.stopped, StoreFailed)
    assert names() in ([], ["a", "b"])


def test_an_unknown_outcome_of_one_commit_is_fatal_for_it_and_later_requests(commit, names, vfs):
    """The batch is lost to an interrupt; run one by one, the second cannot be settled."""
    tries = []

    def interrupted_once(tx):
        tries.append(1)
        if len(tries) == 1:
            return interrupt(tx)
        vfs.arm(Fault("xSync", "io", 1))
        return put("b")(tx)

    answers, group = commit(put("a"), interrupted_once, put("c"))
    assert answers == ["a", StoreFailed, StoreFailed]
    assert isinstance(group.stopped, StoreFailed)
    assert names() in (["a"], ["a", "b"])


def test_a_damaged_file_stops_the_batch(commit, names):
    answers, group = commit(put("a"), fail(apsw.CorruptError("injected")), put("b"))
    assert answers == [StoreFailed] * 3
    assert isinstance(group.stopped, StoreFailed)
    assert names() == []


def test_a_removed_file_stops_the_batch(commit, names):
    def gone():
        raise StoreFailed("the file is gone")

    answers, group = commit(put("a"), put("b"), check=gone)
    assert answers == [StoreFailed, StoreFailed]
    assert isinstance(group.stopped, StoreFailed)
    assert names() == []


# Exceptions that end programs


@pytest.mark.parametrize("others", [0, 2])
def test_exceptions_that_end_programs_roll_back_and_propagate(commit, names, db, others):
    with pytest.raises(Boom):
        commit(*(put(f"a{n}") for n in range(others)), fail(Boom()))
    assert not db.in_transaction
    assert names() == []
    assert commit(put("a"), put("b"))[0] == ["a", "b"]


# Through the actor


class Callers:
    """Tasks outside the store's block, each with one request, and the outcomes."""

    def __init__(self):
        self.outcomes = {}

    async def ask(self, store, name, work):
        try:
            self.outcomes[name] = await store.transact(work)
        except Exception as error:  # noqa: BLE001 - the answer itself
            self.outcomes[name] = type(error)


def faults_at(*plan):
    """Faults of the next COMMITs, in order, after it is armed."""
    waiting = iter(())

    def next_fault():
        return next(waiting, None)

    def arm():
        nonlocal waiting
        waiting = iter(plan)

    return next_fault, arm


async def together(path, world, *plan, requests):
    """Send requests in one batch with these faults; returns their outcomes and what was raised."""
    next_fault, arm = faults_at(*plan)
    callers, raised = Callers(), None
    async with trio.open_nursery() as outside:
        try:
            async with open_store(path, clock=world.clock, open_worker=inline(next_fault)) as store:
                await store.transact(put("first"))
                arm()
                for name, work in requests.items():
                    outside.start_soon(callers.ask, store, name, work)
                await trio.testing.wait_all_tasks_blocked()
        except StoreFailed as error:
            raised = error
    return callers, raised


def three():
    return {name: put(name) for name in "abc"}


async def test_after_a_full_disk_at_the_common_commit_each_request_is_committed_alone(
    path, world, names
):
    callers, raised = await together(path, world, "full", requests=three())
    assert callers.outcomes == {"a": "a", "b": "b", "c": "c"}
    assert raised is None
    assert names() == ["a", "b", "c", "first"]


async def test_after_a_busy_commit_each_request_is_committed_alone(path, world, names):
    callers, raised = await together(path, world, "busy", requests=three())
    assert callers.outcomes == {"a": "a", "b": "b", "c": "c"}
    assert raised is None
    assert names() == ["a", "b", "c", "first"]


async def test_requests_whose_own_commit_fails_too_get_the_error(path, world, names):
    """The common COMMIT fails, then the one of the second half, then its first request's own."""
    plan = ("full", None, "full", "full")
    callers, raised = await together(path, world, *plan, requests=three())
    refused = [name for name, answer in callers.outcomes.items() if answer is StoreFull]
    assert len(refused) == 1
    assert raised is None
    assert names() == sorted(["first", *({"a", "b", "c"} - set(refused))])


@pytest.mark.parametrize("fault", ["unknown-absent", "unknown-present"])
async def test_an_unknown_outcome_of_commit_stops_the_store_and_fails_every_request(
    path, world, names, fault
):
    callers, raised = await together(path, world, fault, requests=three())
    assert callers.outcomes == dict.fromkeys("abc", StoreFailed)
    assert "cannot be determined" in str(raised)
    assert names() == (["first"] if fault == "unknown-absent" else ["a", "b", "c", "first"])


async def test_a_stopped_store_refuses_later_requests(path, world):
    next_fault, arm = faults_at("unknown-absent")
    with pytest.raises(StoreFailed, match="cannot be determined"):
        async with open_store(path, clock=world.clock, open_worker=inline(next_fault)) as store:
            arm()
            callers = Callers()
            with trio.CancelScope(shield=True):
                await callers.ask(store, "a", put("a"))
                await callers.ask(store, "b", put("b"))
            assert callers.outcomes == {"a": StoreFailed, "b": StoreFailed}
            assert "cannot be determined" in str(store.failure)


async def test_exceptions_that_end_programs_stop_the_store_and_propagate(path, world, names):
    """A request raised a `BaseException`."""
    callers = Callers()
    with pytest.raises(BaseExceptionGroup) as caught:
        async with trio.open_nursery() as outside:
            async with open_store(path, clock=world.clock, open_worker=inline()) as store:
                await store.transact(put("first"))
                for name, work in {**three(), "bad": fail(Boom())}.items():
                    outside.start_soon(callers.ask, store, name, work)
                await trio.testing.wait_all_tasks_blocked()
    assert caught.group_contains(Boom)
    assert names() == ["first"]


async def test_callers_outside_the_block_get_an_error_when_the_writer_dies(
    path, world, autojump_clock
):
    """They are not children of the block, so nothing cancels them."""
    callers = Callers()
    requests = {**three(), "bad": fail(Boom())}

    async def open_and_die(store_there):
        with pytest.raises(BaseExceptionGroup):
            async with open_store(path, clock=world.clock, open_worker=inline()) as store:
                store_there(store)
                await trio.sleep_forever()

    opened = trio.Event()
    stores = []

    def store_there(store):
        stores.append(store)
        opened.set()

    with trio.fail_after(30):
        async with trio.open_nursery() as outside:
            outside.start_soon(open_and_die, store_there)
            await opened.wait()
            for name, work in requests.items():
                outside.start_soon(callers.ask, stores[0], name, work)
    assert callers.outcomes == dict.fromkeys(requests, StoreFailed)
    assert "ended by Boom" in str(stores[0].failure)


@pytest.mark.parametrize("face", ["thread", "inline"])
async def test_a_failing_disk_under_the_actor(path, world, names, vfs, face):
    """The faulty VFS below real threads: a full disk passes, a failed sync stops the store."""
    options = {"open_worker": inline()} if face == "inline" else {}
    callers = Callers()
    with pytest.raises(StoreFailed, match="cannot be determined"):
        async with open_store(path, clock=world.clock, vfs=vfs.name, **options) as store:
            with trio.CancelScope(shield=True):
                vfs.arm(Fault("xWrite", "full", 1, lasting=True))
                await callers.ask(store, "full", put("full"))
                vfs.disarm()
                await callers.ask(store, "well", put("well"))
                vfs.arm(Fault("xSync", "io", 1))
                await callers.ask(store, "unsynced", put("unsynced"))
                vfs.disarm()
                await callers.ask(store, "late", put("late"))
    assert callers.outcomes == {
        "full": StoreFull,
        "well": "well",
        "unsynced": StoreFailed,
        "late": StoreFailed,
    }
    assert names() in (["well"], ["unsynced", "well"])
    with SessionStore(path) as store:
        assert store.integrity_check() == []


async def test_a_commit_waits_for_the_disk_unless_all_of_it_may_be_lost(path):
    """A record of connections is kept if the process is killed; more is not needed."""
    vfs = FaultyVFS()
    async with open_store(path, vfs=vfs.name) as store:

        async def flushes(*verbs):
            before = vfs.calls["xSync"]
            async with trio.open_nursery() as nursery:
                for verb, *arguments in verbs:
                    nursery.start_soon(verb, *arguments)
            return vfs.calls["xSync"] - before

        await flushes((store.set_meta, "a", "0"))
        assert await flushes((store.record_process, "p")) == 0
        assert await flushes((store.set_meta, "a", "1")) == 1
        assert await flushes((store.record_process, "p"), (store.set_meta, "a", "2")) == 1
        assert await flushes((store.record_process, "p")) == 0
