"""Copies of stores between databases: exact, resumed after any kill, and never open too early."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from urllib.parse import quote

import apsw
import pytest
import trio

from hermes.config import is_database_url
from hermes.errors import StoreBusy, StoreInUse, StoreRefused
from hermes.messages import Attachment, Inbound, Message, Outbound, Token, TurnCommit
from hermes.store import SessionStore, open_store
from hermes.store.__main__ import main
from hermes.store.choosing import side_of
from hermes.store.copying.copy import move
from hermes.store.copying.snapshots import NOTE
from hermes.store.copying.tables import TABLES
from hermes.store.group_commit import commit_one
from hermes.store.postgres.address import parse
from hermes.store.postgres.driver import connect
from tests.support.copies import (
    CLOCKS,
    ENGINE,
    INDEX,
    OF_POSTGRES,
    content,
    copied,
    snapshotted,
)  # fmt: skip
from tests.support.cutting_proxy import CuttingProxy
from tests.support.store_cli import in_process

PAIRS = [
    ("sqlite", "sqlite"),
    ("sqlite", "postgres"),
    ("postgres", "sqlite"),
    ("postgres", "postgres"),
]
LIVING = (
    "SELECT 1 FROM nodes WHERE dead = 0 AND lease_until > extract(epoch FROM clock_timestamp())"
)
KEYS = ("telegram:1", "telegram:2", "web:é")
DAY = 86_400.0


@pytest.fixture
def new_database(tmp_path, request):
    """Return a new database of an engine, as `SessionStore` takes it."""
    numbers = iter(range(100))

    def new(kind):
        if kind == "postgres":
            return request.getfixturevalue("postgres").create()
        return tmp_path / f"{next(numbers)}.db"

    return new


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request, new_database):
    """Two new databases: the source and the target."""
    return tuple(new_database(kind) for kind in request.param)


def answer(store, accepted, *texts, files=()):
    """Commit the turn of a message."""
    receipt = accepted.receipt
    said = Message("user", accepted.inbound.text, parts=accepted.inbound.parts)
    body = {"text": "seen", **({"files": [file.part for file in files]} if files else {})}
    store.commit_turn(
        TurnCommit(
            session_key=receipt.session_key,
            session_id=receipt.session_id,
            epoch=receipt.epoch,
            revision=accepted.head.revision,
            inbox_ids=[receipt.inbox_id],
            rows=(said, *[Message("assistant", text) for text in texts]),
            outbox=[Outbound("chat", body)],
        )
    )


def fill(database, world, size=40):
    """Store conversations with files, open messages, unsent replies and secrets."""
    dice = random.Random(size)
    with SessionStore(database, clock=world.clock) as store:
        for number in range(size):
            key = KEYS[number % 3]
            parts = ()
            if number % 4 == 0:
                data = f"{number % 8} heron".encode() * dice.choice([1, 1000, 200_000])
                file = store.put_file(Attachment(data=data, name="ä.txt"), session_key=key)
                parts = (file.part,)
            accepted = store.accept(Inbound(key, f"e{number}", f"herons {number}", parts=parts))
            if number % 5:
                answer(store, accepted, f"seen {number}", "日本語 \U0001f600")
            if number % 11 == 0:
                store.new_session(key)
        store.put_file(Attachment(data=b"not named"), session_key=KEYS[0])
        store.set_meta("adapter:telegram", "offset 5")
        store.add_token(
            Token(id="tok_1", name="ci", namespace="n", roles=("user",), created_at=world.now),
            "digest",
        )
        session = store.create_session("gone", "cli")
        store.delete_session("gone")
        store.acquire_lease(store.get_route(KEYS[0]).session_id, "somebody")
        assert session is not None
    return database


def usable(database, world):
    """Check a database that was copied, and use it."""
    if is_database_url(database):
        assert rows_of(database, "SELECT count(*) FROM pg_trigger WHERE tgenabled = 'D'") == [(0,)]
    with SessionStore(database, clock=world.clock) as store:
        assert store.integrity_check(full=True) == []
        assert store.check_search() is None
        assert store.search_messages("heron")
        accepted = store.accept(Inbound(KEYS[0], "after", "hello"))
        answer(store, accepted, "seen after")
        assert store.search_messages("after")


def rows_of(database, sql):
    """Return the rows of a statement on a server."""
    with connect(parse(database)) as db:
        return db.execute(sql).fetchall()


def with_setting(database, setting):
    """Return the URL of a database, with a setting of the server for its connections."""
    return f"{database}&options={quote(f'-c {setting}')}"


def refusal(database, world):
    """Return why neither a store nor a runtime opens a database."""
    with pytest.raises(StoreRefused) as refused:
        SessionStore(database, clock=world.clock)
    assert refusal_of_runtime(database, world) == str(refused.value)
    return str(refused.value)


def refusal_of_runtime(database, world, **options):
    async def opened():
        async with open_store(database, clock=world.clock, **options):
            return

    try:
        return trio.run(opened)
    except StoreRefused as error:
        return str(error)


class Interrupted(Exception):
    """Raised in the middle of a copy."""


def interrupt(source, target, world, rows):
    """Copy until so many pages were written."""
    left = [rows]

    def report(_table, _rows):
        left[0] -= 1
        if left[0] < 0:
            raise Interrupted

    with pytest.raises(Interrupted):
        move(side_of(source), side_of(target), world.clock, report)


# Moves


def test_a_moved_store_is_equal_and_complete(pair, world):
    source, target = pair
    before = content(fill(source, world))
    report = copied(source, target, world.clock)
    assert content(source) == content(target) == before
    assert {table.name: table.rows for table in report.tables} == {
        name: len(rows) for name, rows in before.items()
    }
    assert all(table.source_checksum == table.target_checksum for table in report.tables)
    assert report.files == len(before["blobs"])
    usable(target, world)


def test_ids_continue_above_all_that_were_given(pair, world):
    source, target = pair
    fill(source, world)
    with SessionStore(source, clock=world.clock) as store:
        store.create_session("last", "cli")
        last = store.snapshot(lambda tx: tx.one("SELECT max(no) FROM sessions"))[0]
        store.delete_session("last")
    copied(source, target, world.clock)
    with SessionStore(target, clock=world.clock) as store:
        store.create_session("next", "cli")
        assert store.snapshot(lambda tx: tx.one("SELECT max(no) FROM sessions"))[0] == last + 1


def test_no_runtime_opens_what_was_moved_unless_it_is_forced(pair, new_database, world):
    source, target = pair
    fill(source, world, 5)
    copied(source, target, world.clock)
    said = refusal_of_runtime(source, world)
    assert said == (
        f"{side_of(source).label} was moved to {side_of(target).label} on 2027-01-15; "
        "use that one, or open this one all the same with --force"
    )
    assert refusal_of_runtime(source, world, force=True) is None
    with pytest.raises(StoreRefused, match="was moved to"):
        copied(source, new_database("sqlite"), world.clock)
    assert refusal_of_runtime(target, world) is None


def test_a_completed_move_is_not_repeated(pair, world):
    source, target = pair
    fill(source, world, 5)
    copied(source, target, world.clock)
    usable(target, world)
    after = content(target)
    assert copied(source, target, world.clock).done_before
    assert content(target) == after


def test_a_source_that_a_runtime_uses_is_not_moved(pair, world):
    source, target = pair
    fill(source, world, 5)

    async def live():
        async with open_store(source, clock=world.clock):
            with pytest.raises(StoreInUse):
                copied(source, target, world.clock)

    trio.run(live)
    copied(source, target, world.clock)


@pytest.mark.parametrize("pages", [0, 3, 12])
def test_an_incomplete_copy_opens_nowhere_and_is_completed(pair, pages, world):
    source, target = pair
    before = content(fill(source, world))
    interrupt(source, target, world, pages)
    assert "is an incomplete copy" in refusal(target, world)
    listed = in_process("list", "--db", target)
    assert (listed.returncode, listed.stdout, listed.stderr.count("\n")) == (3, "", 1)
    assert content(source) == before
    usable_before = refusal_of_runtime(source, world)
    assert usable_before is None
    copied(source, target, world.clock)
    assert content(target) == before
    usable(target, world)


def test_a_source_that_has_changed_meanwhile_is_copied_again(pair, world):
    source, target = pair
    fill(source, world)
    interrupt(source, target, world, 12)
    with SessionStore(source, clock=world.clock) as store:
        store.delete_session(store.get_route(KEYS[0]).session_id)
        store.accept(Inbound(KEYS[1], "late", "late"))
    before = content(source)
    copied(source, target, world.clock)
    assert content(target) == before
    usable(target, world)


def test_a_store_comes_back_from_postgresql_as_it_was(new_database, world):
    first, server, last = map(new_database, ("sqlite", "postgres", "sqlite"))
    before = content(fill(first, world))
    reports = [copied(first, server, world.clock), copied(server, last, world.clock)]
    assert reports[0].tables == reports[1].tables
    assert content(first) == content(server) == content(last) == before
    usable(last, world)


def test_a_text_with_u_0000_is_replaced_on_postgresql_and_counted(new_database, world):
    source, target = new_database("sqlite"), new_database("postgres")
    with SessionStore(source, clock=world.clock) as store:
        store.accept(Inbound(KEYS[0], "1", "hello"))
    db = apsw.Connection(str(source))
    body = '{"text": "a\\u0000b", "path": "c:\\\\u0000"}'
    db.execute("UPDATE inbox SET note = ?, body = ?", ("x\0y\\u0000", body))
    db.close()
    assert copied(source, target, world.clock).replaced_texts == 2
    with SessionStore(target, clock=world.clock) as store:
        [row] = store.snapshot(lambda tx: tx.all("SELECT note, body, body ->> '$.text' FROM inbox"))
    assert row[0] == "x\ufffdy\\u0000"
    assert row[1] == '{"text": "a\ufffdb", "path": "c:\\\\u0000"}'
    assert row[2] == "a\ufffdb"


@pytest.mark.parametrize("target_kind", ["sqlite", "postgres"])
def test_one_command_at_a_time_copies_to_a_target(new_database, world, target_kind):
    source, target = fill(new_database("postgres"), world, 5), new_database(target_kind)
    side = side_of(source)
    with side.claim(), pytest.raises(StoreInUse, match="a runtime or another copy"):
        copied(source, target, world.clock)
    with side_of(target).claim(), pytest.raises(StoreInUse):
        copied(source, target, world.clock)
    copied(source, target, world.clock)


def test_no_runtime_starts_on_a_server_during_a_copy(new_database, world):
    source, target = fill(new_database("postgres"), world, 5), new_database("sqlite")
    during = []

    def report(_table, _rows):
        if not during:
            during.append(refusal_of_runtime(source, world))

    move(side_of(source), side_of(target), world.clock, report)
    assert during == [
        f"{side_of(source).label} is being copied; start again when the copy is complete"
    ]


def test_a_node_that_could_come_back_is_in_use(new_database, world):
    source, target = fill(new_database("postgres"), world, 5), new_database("sqlite")
    with connect(parse(source)) as db:
        [(killed,)] = db.execute(
            "INSERT INTO nodes (name, lease_until, facts) "
            "VALUES ('killed', extract(epoch FROM clock_timestamp()) + 100, '{}') RETURNING id"
        ).fetchall()
        with pytest.raises(StoreInUse) as refused:
            copied(source, target, world.clock)
        assert str(refused.value) == (
            f"{side_of(source).label} is in use by the node killed; stop it, or, if it has ended "
            "without a word, try again in 100 s"
        )
        db.execute("UPDATE nodes SET lease_until = 0 WHERE id = $1", [killed])
    copied(source, target, world.clock)


def test_a_node_that_was_cut_off_during_a_move_stores_nothing(postgres_server, tmp_path, world):
    target = tmp_path / "b.db"

    async def moved():
        source = postgres_server.database_url("postgres", tcp=True)
        with CuttingProxy(postgres_server.port) as proxy:
            behind = f"{proxy.url('postgres')}?wait=0.5&lease=0.2"
            async with open_store(behind, clock=world.clock) as store:
                await store.accept(Inbound(KEYS[0], "1", "before"))
                await trio.to_thread.run_sync(proxy.refuse, True)
                while rows_of(source, LIVING):  # noqa: ASYNC110 - other connections renew it
                    await trio.sleep(0.01)
                await trio.to_thread.run_sync(copied, source, target, world.clock)
                await trio.to_thread.run_sync(proxy.refuse, False)
                with pytest.raises(StoreBusy, match="it was moved to another database meanwhile"):
                    await store.accept(Inbound(KEYS[0], "2", "after"))
        return source

    source = trio.run(moved)
    assert content(source) == content(target)


def test_nobody_writes_while_a_move_is_verified(new_database, world):
    source = fill(new_database("postgres"), world, 1)
    side = side_of(source)

    def verified(tx):
        side.stop_writers(tx)
        with SessionStore(with_setting(source, "lock_timeout=50ms"), clock=world.clock) as store:
            with pytest.raises(StoreBusy):
                store.accept(Inbound(KEYS[0], "late", "late"))
            assert store.get_route(KEYS[0]) is not None

    with side.source(world.clock) as db:
        commit_one(db, world.clock, verified)


def test_a_move_whose_lock_was_lost_is_not_completed(new_database, world):
    source, target = fill(new_database("postgres"), world, 5), new_database("sqlite")
    ended = (
        "SELECT pg_terminate_backend(pid) FROM pg_locks "
        "WHERE locktype = 'advisory' AND objsubid = 2 AND database = "
        "(SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    side, left = side_of(source), []

    def report(_table, _rows):
        left.extend(rows_of(source, ended))

    with pytest.raises(StoreBusy, match="was lost; run the same command again"):
        move(side, side_of(target), world.clock, report)
    assert left == [(1,)]
    assert "incomplete copy" in refusal(target, world)
    copied(source, target, world.clock)


def test_a_snapshot_may_pause(new_database, world):
    source, target = fill(new_database("postgres"), world), new_database("postgres")
    short = with_setting(source, "idle_in_transaction_session_timeout=5ms")
    snapshotted(short, target, world.clock)


def test_an_empty_database_of_a_server_is_no_source_and_stays_empty(new_database, world):
    source, target = new_database("postgres"), new_database("sqlite")
    with pytest.raises(StoreRefused, match="has no store; name a database that has one"):
        copied(source, target, world.clock)
    assert content(source) == {"meta": []}
    assert not target.exists()


def test_other_databases_are_no_target(pair, new_database, world):
    source, target = pair
    fill(source, world, 5)
    other = fill(new_database("sqlite"), world, 6)
    with pytest.raises(StoreRefused, match="the same database"):
        copied(source, source, world.clock)
    interrupt(source, target, world, 1)
    with pytest.raises(StoreRefused, match="incomplete copy of another database"):
        copied(other, target, world.clock)
    copied(source, target, world.clock)
    with pytest.raises(StoreRefused, match="has a store already"):
        copied(other, target, world.clock)


def test_missing_content_is_counted_and_everything_else_is_copied(tmp_path, world):
    source, target = fill(tmp_path / "a.db", world), tmp_path / "b.db"
    blobs = sorted((tmp_path / "a.db.blobs").glob("??/*"))
    blobs[0].unlink()
    blobs[1].write_bytes(b"damaged")
    before = content(source)
    assert copied(source, target, world.clock).missing_files == 2
    assert content(target) == before


def test_a_source_that_does_not_exist_is_refused(tmp_path, world):
    with pytest.raises(StoreRefused, match="does not exist"):
        copied(tmp_path / "none.db", tmp_path / "b.db", world.clock)
    assert [each.name for each in tmp_path.iterdir()] == []


def _kind(database):
    return "postgres" if is_database_url(database) else "sqlite"


def run_program(calls, *arguments):
    program = [sys.executable, "-m", "tests.support.copy_program", str(calls), *map(str, arguments)]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def test_a_copy_that_is_killed_at_any_moment_completes(pair, new_database, world, prove):
    dice = random.Random(1)
    for _ in range(20 if prove else 1):
        source, target = (new_database(_kind(each)) for each in pair)
        before = content(fill(source, world, 20))
        kills = 0
        for _ in range(8 if prove else 3):
            result = run_program(dice.randrange(1, 9_000), source, target)
            kills += result.returncode < 0
            if result.returncode >= 0:
                assert result.returncode == 0, result.stderr
                break
            assert content(source) == before
        result = run_program(0, source, target, "--json")
        assert result.returncode == 0, result.stderr
        assert kills
        assert content(target) == content(source) == before
        assert "was moved" in refusal_of_runtime(source, world)
        usable(target, world)


# Snapshots


def test_a_snapshot_of_a_live_store_has_no_secrets_and_nothing_to_do(pair, world):
    source, target = pair
    fill(source, world)

    async def live():
        async with open_store(source, clock=world.clock) as store:
            await store.wait_hooks()
            before = content(source)
            await trio.to_thread.run_sync(snapshotted, source, target, world.clock)
            assert content(source) == before
            await store.accept(Inbound(KEYS[0], "live", "goes on"))

    trio.run(live)
    found, live_now = content(target), content(source)
    assert found["messages"] == [row for row in live_now["messages"] if "goes on" not in row]
    for table in ("tokens", "sign_ins", "pairings", "wrong_codes", "leases", "api_processes"):
        assert found[table] == []
    with SessionStore(target, clock=world.clock) as store:
        assert store.open_inbox() == store.pending_outbox() == []
        assert store.get_meta("adapter:telegram") is None
        notes = store.snapshot(lambda tx: tx.all("SELECT DISTINCT note FROM inbox ORDER BY 1"))
        assert (NOTE,) in notes
    usable(target, world)
    assert refusal_of_runtime(source, world) is None


def test_an_interrupted_snapshot_starts_again(pair, world):
    source, target = pair
    fill(source, world)
    results = [run_program(calls, source, target, "--snapshot") for calls in (3000, 6000, 0)]
    assert [result.returncode for result in results] == [-9, -9, 0], results[-1].stderr
    usable(target, world)


# The command


def test_the_command_reports_what_it_has_copied(pair, new_database, world, capsys):
    source, target = pair
    before = content(fill(source, world))
    assert main(["copy", str(source), str(target)]) == 0
    said = capsys.readouterr().out
    assert f"Moved {side_of(source).label} to {side_of(target).label}:" in said
    assert "opens it with --force only" in said
    assert main(["copy", str(source), str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["done_before"]
    other = str(new_database("sqlite"))
    assert main(["copy", str(target), other, "--snapshot", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = {table["name"]: table["rows"] for table in report["tables"]}
    assert (report["snapshot"], rows["messages"]) == (True, len(before["messages"]))


def columns_of_sqlite(database):
    db = apsw.Connection(str(database))
    names = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    found = {
        name: {row[1] for row in db.execute(f"PRAGMA table_info({name})")} for (name,) in names
    }
    db.close()
    return {name: each for name, each in found.items() if not name.startswith(INDEX)}


def columns_of_postgres(database):
    sql = (
        "SELECT table_name, array_agg(column_name::text) FROM information_schema.columns c "
        "JOIN information_schema.tables t USING (table_schema, table_name) "
        "WHERE table_schema = 'public' AND table_type = 'BASE TABLE' GROUP BY 1"
    )
    return {name: set(columns) for name, columns in rows_of(database, sql)}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_every_column_is_copied(new_database, world, kind):
    database = fill(new_database(kind), world, 1)
    found = (columns_of_postgres if kind == "postgres" else columns_of_sqlite)(database)
    found = {name: each for name, each in found.items() if name not in OF_POSTGRES | {"arrivals"}}
    known = {table.name: set(table.columns) for table in TABLES}
    assert {name: each - ENGINE.get(name, set()) for name, each in found.items()} == known
    changed = {table.name: set(table.changed) for table in TABLES if table.changed}
    assert changed == CLOCKS
