"""Lost connections, a server that restarts or is away, a failover: nothing is lost or doubled."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager

import httpx2
import psycopg
import pytest
import trio

from hermes import open_runtime
from hermes.adapters.http import HttpConfig, open_app
from hermes.errors import StoreBusy
from hermes.messages import Inbound, Source
from hermes.store import SessionStore
from tests.support.cutting_proxy import CuttingProxy
from tests.support.postgres_server import Installation, PostgresServer
from tests.support.runtime import SECONDS

MESSAGES = 8


def inbound(number, key="k"):
    return Inbound(key, f"e{number}", f"text {number}", Source())


def events(store):
    """The ids of the events that are stored, in order."""
    return store.snapshot(lambda tx: [row[0] for row in tx.all("SELECT event_id FROM inbox")])


@pytest.fixture
def proxy(postgres_server):
    with CuttingProxy(postgres_server.port) as opened:
        yield opened


@pytest.mark.parametrize("how", ["before", "during", "after"])
def test_a_connection_that_is_lost_at_commit_costs_and_doubles_nothing(proxy, how):
    with SessionStore(proxy.url("postgres")) as store:
        for number in range(MESSAGES):
            proxy.cut_next(how)
            assert not store.accept(inbound(number)).duplicate
        assert proxy.cuts == MESSAGES
        assert events(store) == [f"e{number}" for number in range(MESSAGES)]


@pytest.mark.parametrize("statements", range(4))
def test_a_connection_that_is_lost_within_a_transaction_costs_and_doubles_nothing(
    proxy, statements
):
    left = [statements]

    def work(tx):
        for number in range(4):
            if left and left[0] == number:
                left.clear()
                proxy.refuse(True)
                proxy.refuse(False)
            tx.run("INSERT INTO meta (key, value) VALUES (?, 'x')", str(number))

    with SessionStore(proxy.url("postgres")) as store:
        store.transact(work)
        found = store.snapshot(lambda tx: tx.all("SELECT key FROM meta ORDER BY key"))
    assert found == [("0",), ("1",), ("2",), ("3",)]
    assert not left


async def answer(turn):
    return f"answer to {turn.text}"


async def ask(runtime, key, number):
    """Ask until there is an answer, with the same event each time."""
    while True:
        try:
            return await runtime.ask(key, f"text {number}", event_id=f"e{number}")
        except StoreBusy:
            await trio.sleep(0.05)


async def test_a_server_that_restarts_under_load_costs_and_doubles_nothing(postgres_server):
    keys = [f"k{number}" for number in range(4)]
    begun = trio.Event()

    async def talk(runtime, key):
        for number in range(MESSAGES):
            reply = await ask(runtime, key, number)
            assert reply.text == f"answer to text {number}"
            begun.set()

    url = postgres_server.database_url("postgres", tcp=True)
    with trio.fail_after(2 * SECONDS):
        async with open_runtime(url, agent=answer) as runtime:
            async with trio.open_nursery() as nursery:
                for key in keys:
                    nursery.start_soon(talk, runtime, key)
                await begun.wait()
                await trio.to_thread.run_sync(postgres_server.restart, "immediate")
            for key in keys:
                said = [row.content for row in await runtime.conversation(key).history()]
                assert said[::2] == [f"text {number}" for number in range(MESSAGES)]
                assert said[1::2] == [f"answer to text {number}" for number in range(MESSAGES)]


async def test_while_the_server_is_away_nothing_is_acknowledged_and_it_goes_on_by_itself(
    postgres_server,
):
    url = postgres_server.database_url("postgres", tcp=True) + "?wait=0.2"
    async with open_runtime(url, agent=answer) as runtime, open_app(runtime, HttpConfig()) as app:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8420"
        ) as client:

            async def becomes(status):
                while (await client.get("/readyz")).status_code != status:  # noqa: ASYNC110 - a server
                    await trio.sleep(0.05)

            with trio.fail_after(2 * SECONDS):
                await becomes(200)
                await runtime.ask("k", "before")
                await trio.to_thread.run_sync(postgres_server.stop, "immediate")
                with pytest.raises(StoreBusy, match="cannot be reached"):
                    await runtime.submit(inbound(1))
                await becomes(503)
                await trio.to_thread.run_sync(postgres_server.start)
                await becomes(200)
                reply = await ask(runtime, "k", 2)
                history = await runtime.conversation("k").history()
    assert reply.text == "answer to text 2"
    assert [row.content for row in history if row.role == "user"] == ["before", "text 2"]


@contextmanager
def replicated():
    """A primary and a synchronous standby."""
    with Installation() as installation:
        primary = PostgresServer(installation, durable=True, tcp=True)
        primary.create()
        primary.start()
        standby = PostgresServer(installation, durable=True, tcp=True)
        standby.copy(primary)
        standby.start()
        with psycopg.connect(primary.url, autocommit=True) as db:
            db.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            db.execute("SELECT pg_reload_conf()")
        yield primary, standby


class Writer(threading.Thread):
    """Stores messages until it is told to end; notes what was acknowledged."""

    def __init__(self, store):
        super().__init__()
        self.store, self.acknowledged = store, []
        self.ending, self.wrote = threading.Event(), threading.Semaphore(0)

    def run(self):
        number = 0
        while not self.ending.is_set():
            try:
                self.store.accept(inbound(number, f"k{number}"))
            except StoreBusy:
                continue
            self.acknowledged.append(f"e{number}")
            self.wrote.release()
            number += 1

    def wait(self, number):
        """Wait until this many more messages are acknowledged."""
        for _ in range(number):
            assert self.wrote.acquire(timeout=SECONDS)


def test_after_a_failover_every_acknowledged_message_is_there_once():
    with ExitStack() as stack:
        primary, standby = stack.enter_context(replicated())
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in (primary, standby))
        # The new primary has no standby, which Hermes refuses otherwise.
        url = f"postgresql://postgres@{hosts}/postgres?accept_data_loss=yes&wait=30"
        store = stack.enter_context(SessionStore(url))
        writer = Writer(store)
        writer.start()
        try:
            writer.wait(20)
            primary.stop("immediate")
            standby.promote()
            writer.wait(20)
        finally:
            writer.ending.set()
            writer.join()
        assert sorted(events(store)) == sorted(writer.acknowledged)
