"""A foreign read transaction that does not end: the write-ahead log stays bounded."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from hermes import Config, open_runtime
from hermes.errors import StoreBusy
from hermes.messages import Inbound
from hermes.store import SessionStore, open_store
from hermes.testing import inline
from tests.support.processes import foreign_reader

BOUND = 400_000


def message(number):
    return Inbound(f"k{number}", f"e{number}", "x" * 20_000)


def wal_size(path):
    return Path(f"{path}-wal").stat().st_size


@pytest.mark.parametrize("kind", ["threads", "inline"])
async def test_messages_are_refused_past_the_bound_until_the_reader_ends(path, kind, caplog):
    options = {"open_worker": inline()} if kind == "inline" else {}
    async with open_store(path, max_wal_bytes=BOUND, **options) as store:
        await store.accept(message(0))
        with foreign_reader(path):
            accepted = 0
            with pytest.raises(StoreBusy) as refused:
                for number in range(1, 100):
                    await store.accept(message(number))
                    accepted = number
            assert accepted > 5
            assert "another process reads the database" in str(refused.value)
            assert "\n" not in str(refused.value)
            size = wal_size(path)
            assert size < 2 * BOUND
            for number in range(200, 250):  # refused messages do not let it grow
                with pytest.raises(StoreBusy):
                    await store.accept(message(number))
            assert wal_size(path) == size
            assert (await store.accept(message(1))).duplicate, "it was acknowledged before"
            await store.create_session("what is running goes on")
        await store.sweep_once()
        assert not (await store.accept(message(300))).duplicate
        assert len(await store.waiting_keys()) == accepted + 2
    assert caplog.text.count("no message is accepted until then") == 1


async def test_the_bound_of_a_runtime_is_part_of_its_configuration(path):
    async def echo(turn):
        return turn.text

    config = Config(max_wal_bytes=BOUND)
    async with open_runtime(path, agent=echo, config=config, open_worker=inline()) as runtime:
        await runtime.ask("k", "hello")
        with foreign_reader(path), pytest.raises(StoreBusy, match="write-ahead log"):
            for _ in range(100):
                await runtime.ask("k", "x" * 20_000)
        with suppress(StoreBusy):  # this attempt notices that the reader has ended
            await runtime.ask("k", "again")
        assert (await runtime.ask("k", "once more")).text == "once more"


def test_a_session_store_has_the_same_bound(path):
    with SessionStore(path) as store:
        store._db.limit_log(BOUND)
        store.accept(message(0))
        with foreign_reader(path), pytest.raises(StoreBusy, match="write-ahead log"):
            for number in range(1, 100):
                store.accept(message(number))
        store.create_session("s")
        store.accept(message(200))
