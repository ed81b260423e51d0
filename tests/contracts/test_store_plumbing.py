"""How each kind of store runs its verbs: synchronous, asynchronous in threads, and inline.

What the verbs mean is tested once, on the synchronous store, in the other files of this folder.
"""

from __future__ import annotations

import inspect
import threading

import apsw
import pytest
import trio

from hermes.errors import (
    ActorStopped,
    Overloaded,
    SessionEnded,
    StoreError,
    StoreFull,
    UnknownSession,
)
from hermes.messages import Inbound, Message, Outbound, TurnCommit
from hermes.store import SessionStore, Store, open_store
from hermes.store.conversations import outbox, search, turns
from hermes.store.verbs import StoreVerbs
from tests.support.stores import KINDS, open_kind

VERBS = sorted(name for name in vars(StoreVerbs) if not name.startswith("_"))


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
async def any_store(kind, path, world):
    """A store of each kind in turn; its verbs are awaited."""
    async with open_kind(kind, path, clock=world.clock) as opened:
        yield opened


@pytest.fixture(params=["threads", "inline"])
def async_kind(request):
    return request.param


@pytest.fixture
async def async_store(async_kind, path, world):
    """An asynchronous store, in threads and inline."""
    async with open_kind(async_kind, path, clock=world.clock) as opened:
        yield opened


def put(name):
    """Work that stores one row and returns its name."""

    def work(tx):
        tx.run("INSERT INTO meta (key, value) VALUES (?, 'x')", name)
        return name

    return work


def turn_of(accepted, *replies):
    receipt = accepted.receipt
    return TurnCommit(
        session_key=receipt.session_key,
        session_id=receipt.session_id,
        epoch=receipt.epoch,
        revision=accepted.head.revision,
        inbox_ids=[receipt.inbox_id],
        rows=[Message("user", "hi"), Message("assistant", "hello")],
        outbox=[Outbound("lane", {"text": reply}) for reply in replies],
    )


# The list of verbs


def test_every_kind_of_store_has_exactly_the_same_verbs():
    for store in (SessionStore, Store):
        own = {name for name, value in vars(store).items() if not name.startswith("_")}
        assert own.isdisjoint(VERBS), "a verb is written once"
        assert set(VERBS) < set(dir(store))
    assert len(VERBS) > 90


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_is_a_method_with_the_name_signature_and_docstring_of_its_function(store, name):
    method, descriptor = getattr(store, name), vars(StoreVerbs)[name]
    assert method.__name__ == name
    assert method.__doc__ == descriptor.__doc__ == descriptor._function.__doc__ != ""
    expected = list(inspect.signature(descriptor._function).parameters.values())
    if expected and expected[0].name == "tx":
        expected = expected[1:]
    assert list(inspect.signature(method).parameters.values()) == expected


async def test_the_methods_of_two_stores_are_their_own(path, other_path, world):
    with SessionStore(path, clock=world.clock) as one:
        with SessionStore(other_path, clock=world.clock) as two:
            assert one.head is one.head, "made once"
            one.create_session("a", "x")
            two.create_session("b", "x")
            assert (one.head("a").session_id, two.get_session("a")) == ("a", None)
    assert SessionStore.head is Store.head is vars(StoreVerbs)["head"]


def test_a_store_that_overrides_how_work_runs_also_runs_its_verbs_that_way(path, world):
    ran = []

    class Noting(SessionStore):
        def transact(self, work):
            ran.append("transact")
            return super().transact(work)

        def snapshot(self, work):
            ran.append("snapshot")
            return super().snapshot(work)

    with Noting(path, clock=world.clock) as store:
        store.create_session("a", "x")
        store.get_session("a")
    assert ran == ["transact", "snapshot"]


# One verb of each kind of descriptor


async def test_a_write_is_on_disk_when_it_returns(any_store, sql):
    session_id = await any_store.create_session(source="tui", model="m", cwd="/tmp")
    assert sql("SELECT id, source, model, cwd FROM sessions") == [[session_id, "tui", "m", "/tmp"]]


async def test_a_read_sees_what_was_written_before_it(any_store):
    await any_store.create_session("a", "x")
    for n in range(5):
        await any_store.append_message("a", "user", str(n))
        transcript = await any_store.load("a")
        assert [message.content for message in transcript.messages] == [
            str(m) for m in range(n + 1)
        ]
        assert transcript.head == await any_store.head("a")


async def test_a_browsing_read_sees_what_was_written_before_it(any_store):
    await any_store.create_session("a", "x")
    await any_store.append_message("a", "user", "the first words")
    [listed] = await any_store.list_sessions(source="x", limit=5)
    assert (listed.session.id, listed.preview) == ("a", "the first words")
    assert await any_store.integrity_check() == []


async def test_a_search_finds_what_is_not_yet_indexed(any_store):
    await any_store.create_session("a", "x")
    await any_store.append_messages("a", [Message("user", f"plum{n}") for n in range(3)])
    assert await any_store.snapshot(search.unindexed)
    [hit] = await any_store.search_messages("plum1", limit=5)
    assert hit.snippet == ">>>plum1<<<"
    assert not await any_store.snapshot(search.unindexed)


LOCKING = {
    "sqlite": ["BEGIN IMMEDIATE"],
    "postgres": ["BEGIN", "LOCK TABLE messages IN EXCLUSIVE MODE"],
}
"""Statements after which every write waits."""
EMPTYING = {
    "sqlite": "DELETE FROM search WHERE rowid > 0",
    "postgres": "UPDATE messages SET words = ''",
}


async def test_a_search_writes_nothing_if_all_is_indexed(any_store, sql, engine):
    await any_store.create_session("a", "x")
    await any_store.append_message("a", "user", "plum")
    await any_store.index_pending()
    for statement in LOCKING[engine]:
        sql(statement)
    with trio.fail_after(2):
        assert len(await any_store.search_messages("plum")) == 1
    sql("ROLLBACK")


async def test_long_work_runs_in_a_separate_transaction(any_store, engine):
    await any_store.create_session("a", "x")
    await any_store.append_message("a", "user", "plum")
    await any_store.index_pending()
    assert await any_store.check_search() is None
    await any_store.transact(lambda tx: tx.run(EMPTYING[engine]))
    assert await any_store.check_search() is not None
    await any_store.rebuild_search()
    assert await any_store.check_search() is None
    assert len(await any_store.search_messages("plum")) == 1


async def test_a_chunked_verb_commits_piece_by_piece_and_returns_the_whole(any_store, world, sql):
    for n in range(45):  # three pieces
        await any_store.create_session(f"s{n:02}", "x")
        await any_store.append_message(f"s{n:02}", "user", "hi")
        await any_store.end_session(f"s{n:02}", "done")
    world.pass_time(100 * 86400)
    pruned = await any_store.prune_sessions(older_than_days=90)
    assert (len(pruned.session_ids), pruned.messages, pruned.dry_run) == (45, 45, False)
    assert sql("SELECT count(*) FROM sessions") == [[0]]


async def test_a_chunked_operation_gets_the_result_of_each_piece(any_store, sql):
    got = []

    def pieces():
        got.append((yield put("a")))
        got.append((yield put("b")))
        return "whole"

    assert await any_store.run_chunked(pieces()) == "whole"
    assert got == ["a", "b"]
    assert sql("SELECT key FROM meta ORDER BY key") == [["a"], ["b"]]


async def test_a_chunked_operation_that_fails_says_what_stays(any_store, sql):
    def full(tx):
        raise StoreFull("the disk is full")

    def pieces():
        yield put("a")
        yield put("b")
        yield full

    with pytest.raises(StoreFull, match=r"stopped after 2 steps, which stay.*the disk is full"):
        await any_store.run_chunked(pieces())
    assert sql("SELECT count(*) FROM meta") == [[2]]

    def fails_at_once():
        yield full

    with pytest.raises(StoreFull, match=r"^the disk is full$"):
        await any_store.run_chunked(fails_at_once())


@pytest.mark.sqlite_only("PostgreSQL has commands for both, which the errors name")
async def test_a_vacuum_and_a_backup(any_store, path, sql):
    await any_store.create_session("a", "x")
    await any_store.vacuum()
    copy = path.with_name("copy.db")
    assert await any_store.backup(str(copy)) == copy
    with pytest.raises(StoreError, match="already exists"):
        await any_store.backup(copy)
    with SessionStore(copy) as backup:
        assert backup.get_session("a") is not None


# Errors


async def test_an_error_of_a_verb_is_raised_unchanged_and_nothing_is_stored(any_store, sql):
    with pytest.raises(UnknownSession, match="nobody"):
        await any_store.append_message("nobody", "user", "hi")
    with pytest.raises(ValueError, match="session id"):
        await any_store.create_session("\n")
    await any_store.create_session("a", "x")
    await any_store.end_session("a", "done")
    with pytest.raises(SessionEnded):
        await any_store.append_messages("a", [Message("user", "late")])
    with pytest.raises(TypeError):
        await any_store.head("a", "b")
    assert sql("SELECT count(*) FROM all_messages") == [[0]]


async def test_work_that_fails_halfway_stores_nothing(any_store, sql):
    def half(tx):
        put("half")(tx)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await any_store.transact(half)
    assert await any_store.transact(put("whole")) == "whole"
    assert sql("SELECT key FROM meta") == [["whole"]]


TRANSLATED = {
    "sqlite": ("SELECT json('{')", "nothing was stored: ConstraintError", "nothing was read: SQL"),
    "postgres": ("SELECT '{'::json", "unique.*; nothing was stored", "json; nothing was read"),
}
"""A statement that fails, and the sentences for that and for a row that exists."""


async def test_errors_of_the_database_are_translated(any_store, engine):
    wrong, not_stored, not_read = TRANSLATED[engine]
    await any_store.transact(put("a"))
    with pytest.raises(StoreError, match=not_stored):
        await any_store.transact(put("a"))
    with pytest.raises(StoreError, match=not_stored):
        await any_store.transact_alone(put("a"))
    for read in (any_store.snapshot, any_store.browse, any_store.run_search):
        with pytest.raises(StoreError, match=not_read):
            await read(lambda tx: tx.all(wrong))
    assert await any_store.transact(put("b")) == "b"


async def test_a_read_stores_nothing(any_store, sql):
    for read in (any_store.snapshot, any_store.browse, any_store.run_search):
        try:
            await read(put("read"))
        except StoreError as error:
            assert "readonly" in str(error).replace("-", "").lower()  # noqa: PT017 - the synchronous one rolls back
    assert sql("SELECT count(*) FROM meta") == [[0]]


async def test_a_closed_store_refuses_every_verb(kind, path, tmp_path, world):
    async with open_kind(kind, path, clock=world.clock) as store:
        await store.create_session("a", "x")
    attempts = {
        "writes": lambda: store.append_message("a", "user", "late"),
        "reads": lambda: store.head("a"),
        "browses": store.list_sessions,
        "searches": lambda: store.search_messages("x"),
        "alone": store.check_search,
        "chunked": store.prune_sessions,
        "vacuum": store.vacuum,
        "backup": lambda: store.backup(tmp_path / "copy.db"),
    }
    for name, attempt in attempts.items():
        with trio.fail_after(10), pytest.raises(ActorStopped, match="closed"):
            await attempt()
            raise AssertionError(name)


async def test_a_store_that_was_closed_can_be_opened_again(kind, path, engine, world):
    for n in range(3):
        async with open_kind(kind, path, clock=world.clock) as store:
            assert await store.set_meta("n", str(n)) is None
    assert engine == "postgres" or not path.with_name("state.db-wal").exists()
    with SessionStore(path) as store:
        assert store.get_meta("n") == "2"


# What is handed over after COMMIT


def subscriber(store, sql):
    """Records what is handed over, and checks that it is on disk by then."""
    heard = []

    def on_accepted(accepted):
        [[state]] = sql("SELECT state FROM inbox WHERE id = ?", accepted.receipt.inbox_id)
        heard.append(("accepted", accepted.inbound.event_id, state))

    def on_outbox(rows):
        for row in rows:
            [[state]] = sql("SELECT state FROM outbox WHERE id = ?", row.outbox_id)
            heard.append(("outbox", row.body["text"], state))

    return heard, store.subscribe(on_accepted=on_accepted, on_outbox=on_outbox)


async def test_a_turn_hands_over_its_message_and_its_replies(async_store, sql):
    heard, subscribed = subscriber(async_store, sql)
    with subscribed:
        accepted = await async_store.accept(Inbound("k", "e1", "hi"))
        heard.append("accept returned")
        again = await async_store.accept(Inbound("k", "e1", "hi"))
        assert again.duplicate
        await async_store.commit_turn(turn_of(accepted, "one", "two"))
        heard.append("commit_turn returned")
    assert heard == [
        ("accepted", "e1", "open"),
        "accept returned",
        ("outbox", "one", "pending"),
        ("outbox", "two", "pending"),
        "commit_turn returned",
    ]
    assert accepted.inbound == Inbound("k", "e1", "hi")


async def test_a_decision_hands_over_the_message_that_follows_from_it(async_store, sql):
    heard, subscribed = subscriber(async_store, sql)
    with subscribed:
        await async_store.ask_approval("k", "mail", "{}")
        assert (await async_store.decide_approval("k", 1, approve=False)).state == "denied"
        await async_store.ask_approval("k", "mail", "{}")
        then = Inbound("k", "approval:2", "you may")
        decided = await async_store.decide_approval("k", 2, approve=True, then=then)
        assert decided.state == "approved"
        assert await async_store.decide_approval("k", 99, approve=True, then=then) is None
    assert heard == [("accepted", "approval:2", "open")]


async def test_what_is_handed_over_comes_in_commit_order(async_store, sql):
    heard, subscribed = subscriber(async_store, sql)
    with subscribed:
        async with trio.open_nursery() as nursery:
            for n in range(50):
                nursery.start_soon(async_store.accept, Inbound(f"k{n % 3}", f"e{n}", "hi"))
    in_order = sql("SELECT event_id FROM inbox ORDER BY id")
    assert [event for _, event, _ in heard] == [event for (event,) in in_order]
    assert len(heard) == 50


async def test_nothing_is_handed_over_of_a_request_that_failed(async_store, sql):
    """Alone, in a batch in which it fails first, and in a batch that is run with savepoints."""
    heard, subscribed = subscriber(async_store, sql)

    def accept_and_fail(tx):
        turns.accept(tx, Inbound("k", "undone", "hi"))
        outbox.enqueue(tx, "k", 0, [Outbound("lane", {"text": "undone"})])
        raise KeyError("after it was accepted")

    async def fail():
        with pytest.raises(KeyError):
            await async_store.transact(accept_and_fail)

    async def refused():
        with pytest.raises(Overloaded):
            await async_store.accept(Inbound("k", "one too many", "hi"), max_queued=0)

    with subscribed:
        await fail()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(async_store.accept, Inbound("k", "e1", "hi"))
            nursery.start_soon(fail)
            nursery.start_soon(refused)
            nursery.start_soon(async_store.accept, Inbound("k", "e2", "hi"))
    assert sorted(heard) == [("accepted", "e1", "open"), ("accepted", "e2", "open")]
    assert sql("SELECT count(*) FROM inbox") == [[2]]


async def test_only_one_can_subscribe_and_only_for_its_block(async_store, caplog):
    heard = []
    with async_store.subscribe(on_accepted=heard.append):
        with pytest.raises(RuntimeError, match="subscriber"):
            with async_store.subscribe():
                raise AssertionError
        await async_store.accept(Inbound("k", "e1", "hi"))
    accepted = await async_store.accept(Inbound("k", "e2", "hi"))
    await async_store.commit_turn(turn_of(accepted, "nobody hears"))
    with async_store.subscribe(on_outbox=heard.extend):
        await async_store.accept(Inbound("k", "e3", "hi"))
    assert [each.inbound.event_id for each in heard] == ["e1"]
    found = [row.inbound.event_id for row in await async_store.open_inbox()]
    assert found == ["e1", "e3"], "what nobody heard of is in the tables"


async def test_a_subscriber_that_fails_stops_nothing(async_store, caplog):
    heard = []

    def on_accepted(accepted):
        heard.append(accepted.inbound.event_id)
        raise ValueError("boom")

    with async_store.subscribe(on_accepted=on_accepted):
        for n in range(2):
            await async_store.accept(Inbound("k", f"e{n}", "hi"))
    assert heard == ["e0", "e1"]
    assert caplog.text.count("could not be handed over") == 2


# Callers that stop waiting, and callers in threads


async def test_a_cancelled_call_is_stored_entirely_or_not_at_all(async_store):
    await async_store.create_session("a", "x")
    for n in range(20):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(async_store.append_messages, "a", [Message("user", str(n))] * 3)
                for _ in range(n % 4):
                    await trio.lowlevel.checkpoint()
                scope.cancel()
    transcript = await async_store.load("a")
    assert transcript.head.message_count == len(transcript.messages)
    assert len(transcript.messages) % 3 == 0
    assert await async_store.integrity_check() == []


async def test_a_call_whose_caller_was_cancelled_at_once_is_not_made(async_store, sql):
    with trio.CancelScope() as scope:
        scope.cancel()
        await async_store.transact(put("never"))
    assert scope.cancelled_caught
    ran = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await async_store.run_alone(ran.append)
    for read in (async_store.snapshot, async_store.browse):
        with trio.CancelScope() as scope:
            scope.cancel()
            await read(lambda tx: sql("INSERT INTO meta VALUES ('read', 'x')"))
        assert scope.cancelled_caught
    await async_store.transact(put("later"))
    assert sql("SELECT key FROM meta") == [["later"]]
    assert ran == []


async def test_work_that_runs_alone_keeps_its_place_among_the_others(async_store):
    order = []

    def note(name):
        return lambda _: order.append(name)

    async with trio.open_nursery() as nursery:

        async def ask(run, name):
            sent.append(name)
            await run(note(name))

        sent = []
        for n in range(10):
            nursery.start_soon(ask, async_store.transact, f"write {n}")
            nursery.start_soon(ask, async_store.transact_alone, f"alone {n}")
            nursery.start_soon(ask, async_store.run_alone, f"outside {n}")
    assert order == sent
    assert len(order) == 30


@pytest.mark.sqlite_only("raises errors of APSW")
async def test_a_function_outside_of_transactions_has_its_errors_translated(async_store):
    def locked(db):
        raise apsw.BusyError("locked")

    with pytest.raises(StoreError, match="another process holds the database"):
        await async_store.run_alone(locked)
    with pytest.raises(StoreError, match="another process holds the database"):
        await async_store.run_beside(locked)
    with pytest.raises(KeyError):
        await async_store.run_alone(lambda db: {}["no such"])
    assert await async_store.run_alone(lambda db: db.in_transaction) is False
    assert await async_store.run_beside(lambda db: db.readonly("main")) is True


def test_threads_share_a_synchronous_store_one_call_at_a_time(store):
    store.create_session("a", "x")
    errors = []

    def work(n):
        try:
            for m in range(20):
                store.append_message("a", "user", f"{n} {m}")
                assert store.head("a").message_count > 0
        except Exception as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert store.head("a").message_count == 100


async def test_a_store_in_threads_runs_sql_in_other_threads_and_an_inline_one_does_not(
    async_kind, async_store
):
    own = threading.get_ident()
    runs = (async_store.transact, async_store.transact_alone, async_store.snapshot)
    idents = [await run(lambda tx: threading.get_ident()) for run in (*runs, async_store.browse)]
    writer, alone, reader, browser = idents
    assert writer == alone
    if async_kind == "inline":
        assert set(idents) == {own}
    else:
        assert len({own, writer, reader, browser}) == 4


@pytest.mark.sqlite_only("runtimes can share a PostgreSQL database")
async def test_opening_a_file_that_another_runtime_owns_is_refused(async_store, path):
    with pytest.raises(StoreError, match="already in use"):
        async with open_store(path):
            raise AssertionError
    with SessionStore(path) as beside:
        beside.create_session("a", "x")
    assert await async_store.get_session("a") is not None
