"""C4: real processes race for one file. One rotates, the others get its result; no row is lost.

Each campaign is a function that returns the violations it saw. It runs on the store and on mutants
of it (see `tests.support.racing`): `rotate` without the comparison (M3), a lease without its token
(M7), a lease on the wall clock (M8), transactions that start deferred (M13).
"""

from __future__ import annotations

import random
import time

import apsw
import pytest

from hermes.messages import Message
from hermes.store import SessionStore
from hermes.store.sqlite import schema
from tests.support.racing import racing

DAY = 86400.0


@pytest.fixture
def store(path, world):
    """A store with the clock of `world`."""
    with SessionStore(path, clock=world.clock) as opened:
        yield opened


def begin(store, session_id):
    """Create a session to be compressed."""
    store.create_session(session_id)
    store.append_messages(session_id, [Message("user", f"{session_id} old {n}") for n in range(3)])


# Rotation


def race(path, processes, rounds, variant="store", seed=4):
    """Let all processes rotate the same session, round after round, while one appends.

    Ends with the first round that shows a violation.
    """
    chance = random.Random(seed)
    violations = []
    names = [f"p{number}" for number in range(processes)]
    # The judge first: it creates the schema, which a test may have altered for a mutant.
    with SessionStore(path) as judge, racing(path, ["appender"]) as (appender,):
        with racing(path, names, variant) as racers:
            for number in range(rounds):
                found = race_once(judge, racers, appender, f"s{number}", chance)
                violations += [f"seed {seed}, round {number}: {text}" for text in found]
                if violations:
                    break
        violations += judge.integrity_check()
    return violations


def race_once(judge, racers, appender, session_id, chance):
    begin(judge, session_id)
    key = f"key {session_id}" if chance.random() < 0.5 else None
    route = judge.switch(key, session_id, any_key=True) if key else None
    appender.send("append", session_id)
    prepared = {}
    for racer in racers:
        lease = chance.random() < 0.5
        racer.send("prepare", session_id, lease=lease, key=key, epoch=route and route.epoch)
    for racer in racers:
        prepared[racer.name] = racer.receive()
    ready = [racer for racer in racers if "upto" in prepared[racer.name]]
    chance.shuffle(ready)
    for racer in ready:
        racer.send("rotate")
    answers = {racer.name: racer.receive() for racer in ready}
    appended = appender.receive()
    return [
        *judge_answers(prepared, answers),
        *judge_leases(prepared),
        *judge_lineage(judge, session_id, key, route, answers),
        *judge_rows(judge, session_id, answers, appended),
    ]


def judge_answers(prepared, answers):
    """There is one winner, the others name it, and nothing failed."""
    for name, answer in (prepared | answers).items():
        if "error" in answer:
            yield f"{name}: {answer['error']}"
    winners = [a["session_id"] for a in answers.values() if a.get("rotated")]
    if len(winners) != 1:
        yield f"{len(winners)} winners"
    for name, answer in answers.items():
        if winners and answer.get("rotated") is False and answer["winner"] != winners[0]:
            yield f"{name} does not know who won: {answer}"


def judge_leases(prepared):
    """There is one holder, and the others name it."""
    holders = [name for name, answer in prepared.items() if answer.get("token")]
    if len(holders) > 1:
        yield f"{len(holders)} holders of one lease"
    for name, answer in prepared.items():
        if "holder" in answer and [answer["holder"]] != holders:
            yield f"{name} does not know who holds the lease: {answer}"


def judge_lineage(judge, session_id, key, route, answers):
    """There is one child, the parent has ended, and the route names the child."""
    parent = judge.get_session(session_id)
    if parent.end_reason != "compression":
        yield f"the parent ended with {parent.end_reason}"
    children = [row[0] for row in judge.snapshot(lambda tx: tx.all(_CHILDREN, session_id))]
    winners = [a["session_id"] for a in answers.values() if a.get("rotated")]
    if len(children) != 1 or children != winners:
        yield f"{len(children)} children, {len(winners)} winners"
    if key and len(children) == 1:
        now = judge.get_route(key)
        if (now.session_id, now.epoch) != (children[0], route.epoch + 1):
            yield f"the route leads to {now.session_id} at epoch {now.epoch}"


_CHILDREN = (
    "SELECT id FROM sessions WHERE kind = 'compression' "
    "AND parent_no = (SELECT no FROM sessions WHERE id = ?) ORDER BY no"
)


def judge_rows(judge, session_id, answers, appended):
    """The parent has every acknowledged row; the child has the summary and all rows after it."""
    if "error" in appended:
        yield f"appender: {appended['error']}"
        return
    if not appended["stopped"]:
        yield "the appender was never stopped"
    old = [f"{session_id} old {n}" for n in range(3)]
    acknowledged = appended["acknowledged"]
    stored = [m.content for m in judge.get_messages(session_id)]
    if stored != old + [text for _, text in acknowledged]:
        yield f"the parent has {len(stored)} rows, acknowledged were {3 + len(acknowledged)}"
    for name, answer in answers.items():
        if answer.get("rotated"):
            summary, *carried = [m.content for m in judge.get_messages(answer["session_id"])]
            upto = int(summary.split()[2])
            if summary != f"summary of {upto} by {name}":
                yield f"the child of {name} begins with {summary}"
            if carried != [text for number, text in acknowledged if number > upto]:
                yield f"the child of {name} has {len(carried)} carried rows, of {acknowledged}"


def test_exactly_one_process_rotates_and_nothing_is_lost(path, prove, campaign):
    processes, rounds = (8, 1000) if prove else (4, 100)
    campaign.count(rotations=rounds)
    campaign.check(race(path, processes, rounds, seed=campaign.seed(4)))


@pytest.mark.mutant
def test_the_mutant_that_does_not_compare_is_caught(path):
    """M3: the index prevents the fork, so the losers see an error instead of the winner."""
    violations = race(path, 4, 5, "blind")
    assert [v for v in violations if "ConstraintError" in v]
    assert not [v for v in violations if "4 children" in v]


@pytest.mark.mutant
def test_the_mutant_that_does_not_compare_forks_without_the_index(path):
    SessionStore(path).close()
    db = apsw.Connection(str(path))
    db.execute("DROP INDEX one_compression_child")
    db.close()
    violations = race(path, 4, 5, "blind")
    assert [v for v in violations if "children" in v]
    assert [v for v in violations if "winners" in v]


@pytest.mark.mutant
def test_the_mutant_that_starts_deferred_is_caught(path):
    """M13: an outdated snapshot cannot be written from, however long it waits."""
    violations = race(path, 4, 30, "deferred")
    assert [v for v in violations if "StoreBusy" in v]


# Leases


def freeze(path, rounds, variant="store", ttl=0.05):
    """Stop a holder until its lease has another holder; continued, it must not rotate."""
    violations = []
    with SessionStore(path) as judge, racing(path, ["holder", "other"], variant) as racers:
        for number in range(rounds):
            session_id = f"s{number}"
            begin(judge, session_id)
            found = freeze_once(*racers, session_id, ttl, first=number % 2 == 1)
            children = judge.snapshot(lambda tx, s=session_id: tx.all(_CHILDREN, s))
            if len(children) != 1:
                found.append(f"{len(children)} children")
            violations += [f"round {number}: {text}" for text in found]
        violations += judge.integrity_check()
    return violations


def freeze_once(holder, other, session_id, ttl, *, first):
    """`first`: the other also rotates before the holder continues."""
    holder.ask("prepare", session_id, lease=True, ttl=ttl)
    holder.stop()
    holder.send("rotate")  # it reads this when it continues
    taken = other.ask("take", session_id, 10)
    prepared = other.ask("prepare", session_id, lease=True)
    winner = other.ask("rotate") if first else None
    holder.wake()
    late = holder.receive()
    winner = winner or other.ask("rotate")
    found = [a["error"] for a in (taken, prepared, late, winner) if "error" in a]
    if late.get("rotated", True):
        found.append("the holder slept through its lease and rotated")
    elif first and late["winner"] != winner["session_id"]:
        found.append(f"the holder does not know who won: {late}")
    elif not first and late["holder"] != "other":
        found.append(f"the holder does not know who took its lease: {late}")
    if not winner.get("rotated"):
        found.append(f"the new holder could not rotate: {winner}")
    return found


def test_a_holder_whose_lease_has_expired_cannot_rotate(path, prove, campaign):
    rounds = 200 if prove else 10
    campaign.count(expired_leases=rounds)
    campaign.check(freeze(path, rounds))


@pytest.mark.mutant
def test_the_mutant_without_a_token_is_caught(path):
    """M7."""
    violations = freeze(path, 4, "tokenless")
    assert [v for v in violations if "slept through its lease and rotated" in v]


def test_the_lease_of_a_killed_holder_is_acquired_by_another_process(path, prove):
    ttl = 0.2
    with SessionStore(path) as judge, racing(path, ["other"]) as (other,):
        for number in range(20 if prove else 3):
            session_id = f"s{number}"
            begin(judge, session_id)
            with racing(path, ["holder"]) as (holder,):
                prepared = holder.ask("prepare", session_id, lease=True, ttl=ttl)
                granted = time.monotonic()
                holder.kill()
            taken = other.ask("take", session_id, 10)["taken"]
            assert prepared["before"] + ttl <= taken <= granted + ttl + 1
            assert other.ask("prepare", session_id, lease=True)["token"] == prepared["token"] + 1
            assert other.ask("rotate")["rotated"]


def test_the_default_lease_ends_after_thirty_seconds(store, world):
    store.create_session("s")
    assert store.acquire_lease("s", "a")
    world.pass_time(29.9)
    assert store.acquire_lease("s", "b") is None
    world.pass_time(0.2)
    assert store.acquire_lease("s", "b")


# Clocks


def jump(path, rounds, *, wall_clock_leases=False, seed=8):
    """Change the wall clock of both processes by a day while one holds the lease."""
    chance = random.Random(seed)
    violations = []
    options = {"wall_clock_leases": wall_clock_leases}
    with SessionStore(path) as judge, racing(path, ["holder", "other"], **options) as racers:
        for number in range(rounds):
            session_id = f"s{number}"
            begin(judge, session_id)
            jumps = [chance.choice((-DAY, 0, DAY)) for _ in range(4)]
            found = jump_once(*racers, session_id, jumps)
            children = judge.snapshot(lambda tx, s=session_id: tx.all(_CHILDREN, s))
            if len(children) != 1:
                found.append(f"{len(children)} children")
            violations += [f"seed {seed}, round {number}, {jumps}: {text}" for text in found]
        violations += judge.integrity_check()
    return violations


def jump_once(holder, other, session_id, jumps):
    found = []
    holder.ask("set_clock", jumps[0])
    other.ask("set_clock", jumps[1])
    holder.ask("prepare", session_id, lease=True)
    holder.ask("set_clock", jumps[2])
    if other.ask("try_lease", session_id)["got"]:
        found.append("two owners of one lease")
    other.ask("set_clock", jumps[3])
    if other.ask("try_lease", session_id)["got"]:
        found.append("two owners of one lease after a jump")
    if not holder.ask("keep", session_id)["kept"]:
        found.append("the holder lost its lease to the date")
    other.ask("prepare", session_id)
    holder.send("rotate")
    other.send("rotate")
    answers = [holder.receive(), other.receive()]
    found += [a["error"] for a in answers if "error" in a]
    if [a.get("rotated") for a in answers].count(True) != 1:
        found.append(f"not one winner: {answers}")
    return found


def test_setting_the_date_does_not_end_a_lease(path, prove, campaign):
    rounds = 200 if prove else 20
    campaign.count(clock_jumps=rounds)
    campaign.check(jump(path, rounds, seed=campaign.seed(8)))


@pytest.mark.mutant
def test_the_mutant_with_leases_on_the_wall_clock_is_caught(path):
    """M8."""
    violations = jump(path, 20, wall_clock_leases=True)
    assert [v for v in violations if "two owners" in v]
    assert [v for v in violations if "lost its lease to the date" in v]


@pytest.mark.parametrize("days", [-1, 1])
def test_a_lease_does_not_depend_on_the_date(store, world, days):
    store.create_session("s")
    assert store.acquire_lease("s", "a")
    world.now += days * DAY
    assert store.get_compression_lock_holder("s") == "a"
    assert store.acquire_lease("s", "b") is None
    assert store.refresh_compression_lock("s", "a")


# Opening


def _missing(path):
    pass


def _empty(path):
    path.touch()


def _first_version(path):
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "wal")
    db.execute(schema.MIGRATIONS[0])
    db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}; PRAGMA user_version = 1")
    db.execute(
        "INSERT INTO sessions (id, source, kind, started_at, last_active) "
        "VALUES ('old', '', 'new', 1, 1)"
    )
    db.close()


def test_many_processes_open_a_file_at_the_same_moment(tmp_path, prove):
    names = [f"p{number}" for number in range(20)]
    SessionStore(tmp_path / "alone.db").close()
    expected = _schema(tmp_path / "alone.db")
    with racing(None, names) as racers:
        for make in (_missing, _empty, _first_version):
            for number in range(20 if prove else 5):
                path = tmp_path / f"{make.__name__}{number}.db"
                make(path)
                for racer in racers:
                    racer.send("open", str(path))
                answers = [racer.receive() for racer in racers]
                assert answers == [{"version": len(schema.MIGRATIONS)}] * len(racers)
                assert _schema(path) == expected
                with SessionStore(path) as store:
                    assert store.integrity_check() == []
                    found = {listed.session.id for listed in store.list_sessions(limit=100)}
                    assert found == {*names} | ({"old"} if make is _first_version else set())


def _schema(path):
    db = apsw.Connection(str(path))
    try:
        return db.execute(
            "SELECT type, name, sql FROM sqlite_schema ORDER BY type, name"
        ).fetchall()
    finally:
        db.close()
