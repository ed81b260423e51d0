"""The store actor: grouping, order, cancellation, delivery, closing."""

from __future__ import annotations

import sys
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import pytest
import trio

from hermes.errors import (
    ActorStopped,
    Overloaded,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
)
from hermes.messages import Inbound, Message, TurnCommit
from hermes.store import SessionStore, Store, actor, open_store
from hermes.store.maintenance.cleanup import BELIEVED_TIME, DAY
from hermes.store.sqlite.file_lock import Opening
from hermes.testing import inline
from tests.support.stores import World, open_kind


@pytest.fixture(params=["threads", "inline"])
def kind(request):
    return request.param


def texts(transcript):
    return [message.content for message in transcript.messages]


class Gate:
    """Keeps the writer's thread busy in the middle of a batch until it is opened."""

    def __init__(self):
        self._open = threading.Event()
        self._entered = trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    def hold(self, _):
        self._token.run_sync_soon(self._entered.set)
        assert self._open.wait(30)

    async def wait_held(self):
        await self._entered.wait()

    def open(self):
        self._open.set()


@asynccontextmanager
async def subscribed(store, on_accepted):
    """A block in which accepted messages are handed over."""
    with store.subscribe(on_accepted=on_accepted):
        yield


@asynccontextmanager
async def busy_writer(store):
    """A block in which the writer can take nothing new until the gate is opened."""
    gate = Gate()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.transact, gate.hold)
        await gate.wait_held()
        try:
            yield gate
        finally:
            gate.open()


def test_both_stores_have_the_same_verbs():
    def verbs(cls):
        return {name for name in dir(cls) if not name.startswith("_")}

    only_the_actor = {
        "acting", "cluster", "failure", "forked", "held", "inspect", "open_file", "pulse",
        "run_alone", "run_beside", "start_background", "statistics", "stop_hooks", "subscribe",
        "sweep_once", "wait_hooks", "write",
    }  # fmt: skip
    only_without = {"read_file"}
    assert verbs(Store) - only_the_actor == verbs(SessionStore) - only_without


async def test_waiting_requests_are_committed_together_and_in_order(path, kind):
    async with open_kind(kind, path) as store:
        await store.create_session("a", "x")
        before = store.statistics()
        async with trio.open_nursery() as nursery:
            for n in range(200):
                nursery.start_soon(store.append_message, "a", "user", str(n))
        after = store.statistics()
        # The store may sweep or settle meanwhile, which are additional requests.
        assert after.requests - before.requests in range(200, 203)
        assert after.commits - before.commits <= 4
        assert after.largest_batch > 50
        assert sorted(texts(await store.load("a")), key=int) == [str(n) for n in range(200)]
        await store.create_session("b", "x")
        for n in range(20):
            await store.append_message("b", "user", str(n))
        assert texts(await store.load("b")) == [str(n) for n in range(20)]


async def test_requests_are_committed_in_the_order_they_were_made(path, kind):
    async with open_kind(kind, path) as store:
        await store.create_session("a", "x")
        made = []

        async def append(n):
            made.append(str(n))
            await store.append_message("a", "user", str(n))

        async with trio.open_nursery() as nursery:
            for n in range(100):
                nursery.start_soon(append, n)
        assert texts(await store.load("a")) == made


async def test_one_bad_request_fails_alone(path, kind):
    async with open_kind(kind, path) as store:
        await store.create_session("a", "x")
        outcomes = {}

        async def attempt(name, verb, *args):
            try:
                outcomes[name] = await verb(*args)
            except (StoreError, ValueError) as error:
                outcomes[name] = error

        async with trio.open_nursery() as nursery:
            nursery.start_soon(attempt, "good", store.append_message, "a", "user", "1")
            nursery.start_soon(attempt, "bad", store.append_message, "nobody", "user", "2")
            nursery.start_soon(attempt, "long", store.set_session_title, "a", "x" * 101)
            nursery.start_soon(attempt, "fine", store.append_message, "a", "user", "3")
        assert isinstance(outcomes["bad"], StoreError)
        assert isinstance(outcomes["long"], ValueError)
        assert sorted(texts(await store.load("a"))) == ["1", "3"]


async def test_receipts_are_delivered_in_inbox_order_and_once(path, kind):
    delivered = []
    async with open_kind(kind, path) as store:
        with store.subscribe(on_accepted=delivered.append):
            async with trio.open_nursery() as nursery:
                for n in range(50):
                    nursery.start_soon(store.accept, Inbound(f"k{n % 3}", f"e{n % 40}", f"t{n}"))
        assert len(delivered) == 40
        ids = [delivery.receipt.inbox_id for delivery in delivered]
        assert ids == sorted(ids)
        rows = await store.open_inbox()
        assert [row.inbox_id for row in rows] == ids
        assert [row.inbound for row in rows] == [delivery.inbound for delivery in delivered]


async def test_a_receipt_is_on_disk_when_it_is_delivered(path):
    seen = []

    def deliver(delivery):
        with SessionStore(path) as other:
            seen.extend(row.inbox_id for row in other.open_inbox())
        assert seen[-1] == delivery.receipt.inbox_id

    async with open_store(path) as store:
        with store.subscribe(on_accepted=deliver):
            await store.accept(Inbound("k", "e1", "hi"))
    assert seen == [1]


async def test_a_submitter_cancelled_before_the_commit_stores_nothing(path):
    delivered = []
    async with open_store(path) as store, subscribed(store, delivered.append):
        async with busy_writer(store) as gate:
            with trio.CancelScope() as scope:
                scope.cancel()
                await store.accept(Inbound("k", "e1", "hi"))
            gate.open()
        await store.create_session("later", "x")
        assert delivered == []
        assert await store.open_inbox() == []


async def test_a_submitter_cancelled_during_the_commit_stores_a_complete_row_that_is_delivered(
    path,
):
    delivered = []
    async with open_store(path) as store, subscribed(store, delivered.append):
        gate = Gate()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                # Both are taken in one batch; the slow one keeps it from ending.
                nursery.start_soon(store.accept, Inbound("k", "e1", "hi"))
                nursery.start_soon(store.transact, gate.hold)
                await gate.wait_held()
                scope.cancel()
        gate.open()
        await store.create_session("later", "x")
        rows = await store.open_inbox()
        assert [delivery.receipt.inbox_id for delivery in delivered] == [
            row.inbox_id for row in rows
        ]
        assert len(rows) <= 1


async def test_reads_do_not_wait_for_writes(path):
    async with open_store(path) as store:
        await store.create_session("a", "x")
        await store.append_message("a", "user", "hi")
        async with busy_writer(store):
            with trio.fail_after(20):
                assert texts(await store.load("a")) == ["hi"]
                assert (await store.list_sessions())[0].preview == "hi"


async def test_too_many_waiting_requests_are_refused_and_the_others_are_not(path):
    async with open_store(path) as store:
        kept, refused = [], []

        async def attempt(session_id):
            try:
                kept.append(await store.ensure_session(session_id))
            except Overloaded as error:
                assert "already waiting" in str(error)  # noqa: PT017
                refused.append(session_id)

        async with trio.open_nursery() as nursery, busy_writer(store) as gate:
            for n in range(actor.MAX_WAITING + 20):
                nursery.start_soon(attempt, f"s{n}")
            await trio.testing.wait_all_tasks_blocked()
            gate.open()
        assert len(refused) >= 20
        found = await store.snapshot(
            lambda tx: {row[0] for row in tx.all("SELECT id FROM sessions")}
        )
        assert found == set(kept)
        assert store.statistics().largest_batch == actor.MAX_BATCH


async def test_leaving_the_block_commits_waiting_requests(path, kind):
    async with trio.open_nursery() as nursery:
        async with open_kind(kind, path) as store:
            await store.create_session("a", "x")
            for n in range(30):
                nursery.start_soon(store.append_message, "a", "user", str(n))
            await trio.testing.wait_all_tasks_blocked()
    with SessionStore(path) as reopened:
        assert len(reopened.load("a").messages) == 30


async def test_a_closed_store_answers_at_once(path, kind):
    async with open_kind(kind, path) as store:
        pass
    with pytest.raises(ActorStopped, match="closed"):
        await store.create_session("a", "x")
    with pytest.raises(ActorStopped, match="closed"):
        await store.load("a")


async def test_the_writer_works_during_an_outer_cancellation(path, kind):
    """A final commit, shielded, in a block that is being cancelled."""
    with trio.CancelScope() as outer:
        async with open_kind(kind, path) as store:
            await store.create_session("a", "x")
            outer.cancel()
            with trio.CancelScope(shield=True):
                await store.append_message("a", "user", "last words")
            await trio.lowlevel.checkpoint()
    assert outer.cancelled_caught
    with SessionStore(path) as reopened:
        assert texts(reopened.load("a")) == ["last words"]


async def test_an_error_in_the_block_propagates_unchanged(path, kind):
    class Boom(Exception):
        pass

    with pytest.raises(Boom):
        async with open_kind(kind, path) as store:
            await store.create_session("a", "x")
            raise Boom
    async with open_kind(kind, path) as store:
        assert await store.get_session("a") is not None


async def test_a_store_whose_file_is_removed_stops(path, kind):
    with pytest.raises(StoreFailed, match="removed or replaced"):
        async with open_kind(kind, path) as store:
            await store.create_session("a", "x")
            path.unlink()
            with pytest.raises(StoreFailed, match="removed or replaced"):
                await store.append_message("a", "user", "into nowhere")
            await trio.sleep_forever()


async def test_a_sweep_detects_a_removed_file(path, kind):
    with pytest.raises(StoreFailed, match="removed or replaced"):
        async with open_kind(kind, path, sweep_interval=0.01) as store:
            path.rename(path.with_name("moved"))
            await trio.sleep_forever()
    assert "removed or replaced" in str(store.failure)
    for verb in (store.create_session, store.list_sessions):
        with pytest.raises(StoreFailed, match="has stopped"):
            await verb()


async def test_a_deadline_of_the_caller_does_not_reach_the_commit(path):
    async with open_store(path) as store:
        await store.create_session("a", "x")
        with trio.move_on_after(0):
            await store.append_message("a", "user", "whole or absent")
        for n in range(20):
            with trio.move_on_after(0.0005):
                await store.append_message("a", "user", str(n))
        await store.append_message("a", "user", "last")
        loaded = await store.load("a")
        assert loaded.head.message_count == len(loaded.messages)
        assert loaded.messages[-1].content == "last"
        assert await store.integrity_check() == []


async def test_a_turn_under_load_is_never_partially_visible(path):
    """Readers on another connection see all rows of a turn or none."""
    async with open_store(path) as store:

        async def talk(key):
            for n in range(15):
                accepted = await store.accept(Inbound(key, f"{key}{n}", "hi"))
                receipt = accepted.receipt
                await store.commit_turn(
                    TurnCommit(
                        session_key=key,
                        session_id=receipt.session_id,
                        epoch=receipt.epoch,
                        revision=accepted.head.revision,
                        inbox_ids=[receipt.inbox_id],
                        rows=[
                            Message("user", "a"),
                            Message("tool", "b"),
                            Message("assistant", "c"),
                        ],
                    )
                )

        async def watch():
            while True:
                for listed in await store.list_sessions(limit=50):
                    loaded = await store.load(listed.session.id)
                    assert len(loaded.messages) % 3 == 0
                    assert loaded.head.message_count == len(loaded.messages)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            async with trio.open_nursery() as talkers:
                for n in range(10):
                    talkers.start_soon(talk, f"k{n}")
            nursery.cancel_scope.cancel()


async def test_the_index_is_updated_automatically(path, autojump_clock):
    async with open_store(path, open_worker=inline()) as store:
        await store.create_session("a", "x")
        await trio.sleep(1)  # until rows that an earlier process may have left are indexed
        await store.append_messages("a", [Message("user", f"word{n}") for n in range(600)])
        await trio.sleep(10)  # long before the next sweep
        assert await store.snapshot(lambda tx: tx.all("SELECT * FROM arrivals")) == []


async def test_rows_that_another_process_left_are_indexed_too(path, autojump_clock):
    with SessionStore(path) as other:
        other.create_session("a", "x")
        other.append_message("a", "user", "before")
    async with open_store(path, open_worker=inline()) as store:
        await trio.sleep(60)
        with SessionStore(path) as other:
            other.append_message("a", "user", "beside")
        await trio.sleep(200)
        assert await store.snapshot(lambda tx: tx.all("SELECT * FROM arrivals")) == []


async def test_a_lock_of_another_process_fails_a_batch_once_and_later_requests_succeed(path):
    """One wait for the lock, not one for each request; later requests succeed when it is free."""
    async with open_store(path) as store:
        await store.run_alone(lambda db: db.set_busy_timeout(50))
        outcomes = []

        async def append(n):
            try:
                outcomes.append(await store.ensure_session(f"s{n}"))
            except StoreBusy as error:
                outcomes.append(error)

        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        async with trio.open_nursery() as nursery:
            for n in range(100):
                nursery.start_soon(append, n)
        other.execute("ROLLBACK")
        other.close()
        assert len(outcomes) == 100
        assert all(isinstance(outcome, StoreBusy) for outcome in outcomes)
        assert store.statistics().commits <= 4
        await store.ensure_session("after")
        found = await store.snapshot(lambda tx: tx.all("SELECT id FROM sessions"))
        assert found == [("after",)]


def test_a_reader_that_does_not_end_is_reported_and_the_log_is_truncated_after_it(path, caplog):
    with SessionStore(path) as store:
        store.create_session("a", "x")
        reader = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        reading = reader.execute("SELECT * FROM sessions")
        text = "x" * 1_000_000
        for _ in range(70):
            store.append_message("a", "user", text)
        assert "a long-running reader keeps" in caplog.text
        assert store._db.log_pages > 16_384
        reading.close()
        reader.close()
        for _ in range(12):
            store.append_message("a", "user", text)
        assert store._db.log_pages < 4_000


def test_a_refused_request_leaves_no_old_snapshot_behind(path):
    with SessionStore(path) as store, SessionStore(path) as other:
        store.create_session("ended", "x")
        store.create_session("a", "x")
        store.end_session("ended", "done")
        with pytest.raises(StoreError) as kept:
            store.append_message("ended", "user", "too late")
        other.append_message("a", "user", "theirs")
        assert store.head("a").message_count == 1
        store.append_message("a", "user", "ours")
        assert kept.value.args

        def fail(tx):
            tx.one("SELECT 1 FROM sessions")
            raise ValueError("no")

        with pytest.raises(ValueError, match="no") as kept:
            store.snapshot(fail)
        other.append_message("a", "user", "theirs again")
        assert store.head("a").message_count == 3


async def test_a_refusal_without_a_caller_does_not_block_the_actor(path):
    async with open_store(path) as store:
        await store.create_session("ended", "x")
        await store.end_session("ended", "done")
        for n in range(20):
            with pytest.raises(StoreError):
                await store.append_message("ended", "user", "too late")
            with SessionStore(path) as other:
                other.ensure_session(f"theirs{n}")
            await store.ensure_session(f"ours{n}")


async def test_a_backup_of_a_closed_store_is_answered(path, tmp_path):
    async with open_store(path) as store:
        pass
    with trio.fail_after(10), pytest.raises(ActorStopped, match="closed"):
        await store.backup(tmp_path / "copy.db")


async def test_a_delivery_that_fails_stops_nothing(path, caplog):
    def deliver(delivery):
        raise ValueError("boom")

    async with open_store(path) as store, subscribed(store, deliver):
        accepted = await store.accept(Inbound("k", "e1", "hi"))
        assert [row.inbox_id for row in await store.open_inbox()] == [accepted.receipt.inbox_id]
    assert "could not be handed over" in caplog.text


async def test_a_search_with_nothing_to_index_needs_no_lock(path):
    async with open_store(path) as store:
        await store.create_session("a", "x")
        await store.append_message("a", "user", "plum")
        await store.index_pending()
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        with trio.fail_after(20):
            assert len(await store.search_messages("plum")) == 1
        other.close()


async def test_waiting_for_another_opener_can_be_cancelled_and_blocks_no_other_task(path):
    SessionStore(path).close()
    with Opening(path):
        beats = 0

        async def beat():
            nonlocal beats
            while True:
                beats += 1
                await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(beat)
            with trio.move_on_after(0.2) as scope:
                async with open_store(path):
                    raise AssertionError
            nursery.cancel_scope.cancel()
    assert scope.cancelled_caught
    assert beats > 5
    async with open_store(path):
        pass


def test_an_interrupted_long_verb_reports_what_is_committed(path, tmp_path):
    with SessionStore(tmp_path / "source.db") as source:
        for n in range(3):
            source.create_session(f"s{n}", "x")
        lines = [source.export_session(f"s{n}") for n in range(3)]
    calls = []

    class Full(SessionStore):
        """A store whose disk is full at the second transaction, and has space again after it."""

        def transact(self, work):
            calls.append(work)
            if len(calls) == 2:
                raise StoreFull("the disk is full")
            return super().transact(work)

    with Full(path) as store:
        with pytest.raises(StoreFull, match="stopped after 1 steps, which stay"):
            store.import_sessions(lines)
        done = store.import_sessions(lines)
        assert (done.sessions, done.skipped) == (2, ("s0",))


class InterruptAt:
    """Raises KeyboardInterrupt at the n-th line of the store's code."""

    def __init__(self, number):
        self.left = number

    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(str(Path(actor.__file__).parent)):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def interrupted(number, function):
    before = sys.gettrace()  # coverage's, which must see what comes after
    sys.settrace(InterruptAt(number))
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_ctrl_c_at_any_line_leaves_no_lock_behind(path):
    with SessionStore(path) as store, SessionStore(path) as other:
        store.create_session("a", "x")
        for verb in (lambda: store.append_message("a", "user", "x"), lambda: store.head("a")):
            number = 1
            while interrupted(number, verb):
                other.append_message("a", "user", "theirs")
                store.append_message("a", "user", "ours")
                number += 1
            assert number > 10
        assert store.integrity_check() == []


async def test_a_clock_that_jumps_ahead_during_a_sweep_forgets_no_receipts(path):
    world, event = World(), Inbound("k", "e", "hello")
    async with open_kind("inline", path, clock=world.clock) as store:
        accepted = await store.accept(event)
        await store.park_inbox([accepted.receipt.inbox_id], "closed")
        world.now += 31 * DAY
        await store.sweep_once()
        world.now -= 31 * DAY
        await store.sweep_once()
        assert (await store.accept(event)).duplicate


async def test_after_a_jump_of_the_clock_receipts_are_forgotten_once_it_was_right_for_a_day(path):
    world, event = World(), Inbound("k", "e", "hello")
    async with open_kind("inline", path, clock=world.clock) as store:
        accepted = await store.accept(event)
        await store.park_inbox([accepted.receipt.inbox_id], "closed")
        world.now += 31 * DAY
        await store.sweep_once()
        world.pass_time(DAY - 1)
        await store.sweep_once()
        assert (await store.accept(event)).duplicate
        world.pass_time(1)
        await store.sweep_once()
        assert not (await store.accept(event)).duplicate


async def closed_message(path, world, event):
    """Accept and close a message in one process."""
    async with open_kind("inline", path, clock=world.clock) as store:
        accepted = await store.accept(event)
        await store.park_inbox([accepted.receipt.inbox_id], "closed")
        await store.sweep_once()


async def test_a_clock_that_is_ahead_when_processes_start_forgets_no_receipts(path):
    world, event = World(), Inbound("k", "e", "hello")
    await closed_message(path, world, event)
    world.now += 31 * DAY
    for number in range(3):  # what the first stores is dated ahead as well
        async with open_kind("inline", path, clock=world.clock) as store:
            await store.accept(Inbound("k", f"ahead {number}", "hello"))
            await store.sweep_once()
            world.pass_time(3600)
            await store.sweep_once()
    world.now -= 31 * DAY
    async with open_kind("inline", path, clock=world.clock) as store:
        await store.sweep_once()
        assert (await store.accept(event)).duplicate


async def test_a_file_of_an_earlier_version_believes_its_last_message(path):
    world, event = World(), Inbound("k", "e", "hello")
    await closed_message(path, world, event)
    async with open_kind("inline", path, clock=world.clock) as store:
        await store.set_meta(BELIEVED_TIME, None)
    world.now += 31 * DAY
    async with open_kind("inline", path, clock=world.clock) as store:
        await store.sweep_once()
        assert (await store.accept(event)).duplicate


@pytest.mark.parametrize("sweeps", [(), ("behind",), ("before", "behind")])
async def test_receipts_written_while_the_clock_is_behind_are_kept(path, sweeps):
    world = World()
    async with open_kind("inline", path, clock=world.clock) as store:
        await store.accept(Inbound("k", "before", "hello"))
        if "before" in sweeps:
            await store.sweep_once()
        world.now -= 3650 * DAY
        event = Inbound("k", "e", "hello")
        accepted = await store.accept(event)
        await store.park_inbox([accepted.receipt.inbox_id], "closed")
        if "behind" in sweeps:
            await store.sweep_once()
        world.now += 3650 * DAY
        for _ in range(29 * 24):
            await store.sweep_once()
            world.pass_time(3600)
        assert (await store.accept(event)).duplicate
        world.pass_time(3 * DAY)
        await store.sweep_once()
        assert not (await store.accept(event)).duplicate


async def test_after_a_long_downtime_receipts_are_forgotten_within_a_day_of_work(path, caplog):
    world, event = World(), Inbound("k", "e", "hello")
    await closed_message(path, world, event)
    world.pass_time(40 * DAY)
    async with open_kind("inline", path, clock=world.clock) as store:
        for _ in range(23):
            await store.sweep_once()
            world.pass_time(3600)
        assert (await store.accept(event)).duplicate
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        world.pass_time(3600)
        await store.sweep_once()
        assert not (await store.accept(event)).duplicate


async def test_receipts_are_forgotten_although_no_process_lives_for_a_day(path):
    """The time that passes while a process works counts, even if its clock is in doubt."""
    world, event = World(), Inbound("k", "e", "hello")
    await closed_message(path, world, event)
    world.pass_time(2 * DAY)
    for _ in range(31):
        for _ in range(2):
            async with open_kind("inline", path, clock=world.clock) as store:
                world.pass_time(DAY / 2)
                await store.sweep_once()
    async with open_kind("inline", path, clock=world.clock) as store:
        assert not (await store.accept(event)).duplicate
