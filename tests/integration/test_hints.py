"""Hints between nodes, on a real PostgreSQL server."""

from __future__ import annotations

import functools

import psycopg
import pytest
import trio

from hermes.store.postgres.hints import MAX_SIZE, PostgresHints, channel, open_hints
from tests.support.postgres_databases import plain

LONG = "é'\\ \"{}\n" * 15_000


class Inbox:
    """The hints that a node has received for a topic."""

    def __init__(self, hints: PostgresHints, topic: str = "test") -> None:
        self.received: list[str] = []
        self._changed = trio.Event()
        self.block = hints.listen(topic, self._take)

    def _take(self, payload: str) -> None:
        self.received.append(payload)
        self._changed.set()

    async def wait(self, count: int) -> list[str]:
        with trio.fail_after(30):
            while len(self.received) < count:
                self._changed = trio.Event()
                await self._changed.wait()
        return self.received


async def listening(hints: PostgresHints, times: int = 1) -> None:
    """Wait until a node listens."""
    with trio.fail_after(30):
        await hints.wait_connected(times)


@pytest.fixture
def connect(empty_database):
    return functools.partial(
        psycopg.connect, plain(empty_database), autocommit=True, cursor_factory=psycopg.RawCursor
    )


async def test_hints_arrive_in_order_and_whole_however_long_they_are(connect):
    async with open_hints(connect, 1) as one, open_hints(connect, 2) as two:
        await listening(two)
        with Inbox(two).block, (inbox := Inbox(two, "other")).block:
            sent = ["a", LONG, "", "c \0 d", LONG[::-1]]
            for payload in sent:
                one.send(2, "other", payload)
            one.send(3, "other", "to nobody")
            assert await inbox.wait(5) == [payload.replace("\0", "\ufffd") for payload in sent]


async def test_a_node_hears_what_it_sends_to_itself(connect):
    async with open_hints(connect, 7) as hints:
        await listening(hints)
        with (inbox := Inbox(hints)).block:
            hints.send(7, "test", "hello")
            assert await inbox.wait(1) == ["hello"]


async def test_a_node_that_has_another_number_listens_as_that(connect):
    async with open_hints(connect, 1) as one, open_hints(connect, 2) as two:
        await listening(two)
        with (inbox := Inbox(two)).block:
            two.join(5)
            await listening(two, 2)
            one.send(2, "test", "to the former number")
            one.send(5, "test", "to the present one")
            assert await inbox.wait(1) == ["to the present one"]


async def test_a_lost_connection_is_made_again(connect):
    async with open_hints(connect, 1) as one, open_hints(connect, 2) as two:
        await listening(one)
        await listening(two)
        with connect() as db, (inbox := Inbox(two)).block:
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
            await listening(one, 2)
            await listening(two, 2)
            one.send(2, "test", "again")
            assert await inbox.wait(1) == ["again"]


async def test_hints_wait_while_the_database_is_away(postgres_server):
    url = postgres_server.url
    connect = functools.partial(
        psycopg.connect, url, autocommit=True, cursor_factory=psycopg.RawCursor
    )
    async with open_hints(connect, 1) as one, open_hints(connect, 2) as two:
        await listening(one)
        await listening(two)
        postgres_server.restart("immediate")
        await listening(one, 2)
        await listening(two, 2)
        with (inbox := Inbox(two)).block:
            one.send(2, "test", "back")
            assert await inbox.wait(1) == ["back"]


async def test_memory_is_bounded_while_the_database_is_away():
    def fail():
        raise psycopg.OperationalError("no server")

    async with open_hints(fail, 1) as hints:
        for _ in range(20):
            hints.send(2, "test", "x" * (MAX_SIZE // 10))
        assert hints.lost > 0
        assert hints._unsent_size <= MAX_SIZE


async def test_a_connection_never_holds_a_transaction_open(connect):
    async with open_hints(connect, 1) as one:
        await listening(one)
        with (inbox := Inbox(one)).block:
            one.send(1, "test", "hello")
            await inbox.wait(1)
        with connect() as db:
            states = db.execute(
                "SELECT state, xact_start FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchall()
        assert ("idle", None) in states


async def test_a_listener_that_raises_does_not_disturb_the_others(connect, caplog):
    def fail(_payload):
        raise ZeroDivisionError

    async with open_hints(connect, 1) as hints:
        await listening(hints)
        with hints.listen("broken", fail), (inbox := Inbox(hints)).block:
            hints.send(1, "broken")
            hints.send(1, "test", "hello")
            assert await inbox.wait(1) == ["hello"]
    assert "broken" in caplog.text
    with hints.listen("twice", fail), pytest.raises(ValueError, match="already"):
        with hints.listen("twice", fail):
            pass


def test_each_node_has_a_channel():
    assert channel(3) != channel(4)
