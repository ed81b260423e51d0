"""Driver of our store and our runtime, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from importlib.metadata import version
from itertools import count
from typing import Any

import psycopg

from bench.harness.driver import Figures, serve
from bench.harness.postgres import Database, Timing, new_database
from bench.harness.sample_text import text
from hermes.messages import (
    Accepted,
    Committed,
    Inbound,
    Message,
    Outbound,
    Reply,
    Source,
    TurnCommit,
    TurnRecord,
    Usage,
)
from hermes.store import SessionStore
from hermes.store.choosing import engine_of
from hermes.store.cluster.placement import place
from hermes.store.group_commit import commit_group
from hermes.store.transaction import Clock, KeyedWork, Work
from hermes.store.verbs import StoreVerbs

KEYS = 200
WARM_UP = 3
LEASE = 2.0
SLOW = 0.3
LONGEST = 60.0


# Two transactions for a turn


class Asked(StoreVerbs):
    """Returns the work of a verb, to be run in a group commit."""

    def transact(self, work: Work[Any]) -> Work[Any]:
        return work

    transact_unflushed = transact_deferred = transact_alone = snapshot = transact
    browse = run_search = transact

    def run_chunked(self, chunks: object) -> None:
        raise NotImplementedError


asked: Any = Asked()


def _verb(work: KeyedWork[Any]) -> KeyedWork[Any]:
    """Leave out what a function in the database would be asked for."""
    return KeyedWork(work.work, work.session_key)


def _turn(accepted: Accepted) -> TurnCommit:
    """An ordinary turn: two rows, one call of a model, one reply."""
    receipt, answer = accepted.receipt, text(0, 1)
    return TurnCommit(
        session_key=receipt.session_key,
        session_id=receipt.session_id,
        epoch=receipt.epoch,
        revision=accepted.head.revision,
        inbox_ids=[receipt.inbox_id],
        rows=(Message("user", accepted.inbound.text), Message("assistant", answer)),
        usage=[Usage(model="m", provider="p", input_tokens=100, output_tokens=100, cost=0.001)],
        outbox=[Outbound(receipt.session_key, {"text": answer})],
        reply=Reply(text=answer, session_id=receipt.session_id, turn_id=receipt.inbox_id),
        record=TurnRecord(started_at=time.time(), status="complete"),
    )


def commits(path: str, url: str, size: int, seconds: float, by: str) -> Figures:
    """Accept messages and commit their turns, `size` in one transaction, on one connection."""
    place = nullcontext(None) if by == "sqlite" else new_database(url)
    with place as database, ExitStack() as stack:
        clock = Clock()
        target = path if database is None else database.url
        db = stack.enter_context(engine_of(target).connect(clock))
        kept: Callable[[Any], Any] = _verb if by == "verbs" else lambda work: work
        numbers = count()

        def group(work: Sequence[Work[Any]], kind: type) -> list[Any]:
            outcomes = commit_group(db, clock, [kept(each) for each in work]).outcomes
            for outcome in outcomes:
                assert isinstance(outcome, kind), outcome
            return outcomes

        def turns(keys: Sequence[str]) -> None:
            source = Source("telegram", "bot", "chat", user_id="user")
            messages = [Inbound(key, f"{next(numbers)}", text(0, 0), source) for key in keys]
            accepted = group([asked.accept(each) for each in messages], Accepted)
            group([asked.commit_turn(_turn(each)) for each in accepted], Committed)

        keys = [f"key {number}" for number in range(KEYS)]
        for _ in range(WARM_UP):
            for first in range(0, KEYS, 50):
                turns(keys[first : first + 50])
        done, timing = 0, Timing(database)
        while timing.seconds < seconds:
            turns([keys[(done + each) % KEYS] for each in range(size)])
            done += size
        return timing.figures(done)


# Whole turns


class Node:
    """A node as a process; see `bench.cluster.node`."""

    def __init__(self, target: str, delay: float = 0.0) -> None:
        command = [sys.executable, "-m", "bench.cluster.node", target, str(delay)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.number = 0

    def send(self, **work: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(work) + "\n")
        self.process.stdin.flush()

    def read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError("a node has ended")
        return json.loads(line)


@contextmanager
def _nodes(
    database: Database | None, number: int, target: str, delay: float = 0.0
) -> Iterator[list[Node]]:
    with ExitStack() as stack:
        nodes = []
        for _ in range(number):
            nodes.append(Node(target, delay))
            stack.callback(nodes[-1].process.communicate)
            stack.callback(nodes[-1].process.kill)
            nodes[-1].read()
            if database is not None:
                with psycopg.connect(database.url) as db:
                    [(nodes[-1].number,)] = db.execute("SELECT max(id) FROM nodes").fetchall()
        yield nodes


def turns(
    url: str, callers: int, seconds: float, nodes: int = 1, *, sqlite: bool = False
) -> Figures:
    """Whole turns of an agent that answers at once; each node has its share of the callers."""
    place = nullcontext(None) if sqlite else new_database(url)
    # The driver's folder is on the disk of the benchmark.
    with place as database, tempfile.TemporaryDirectory(dir=".") as folder:
        target = f"{folder}/state.db" if database is None else database.url
        with _nodes(database, nodes, target) as running:
            _converse(running, callers, seconds=0.0, turns=WARM_UP)
            timing = Timing(database)
            found = _converse(running, callers, seconds=seconds, turns=1)
            return timing.figures(
                sum(each["count"] for each in found),
                max(each["seconds"] for each in found),
                sum(each["cpu"] for each in found),
            )


def _converse(nodes: Sequence[Node], callers: int, **work: float) -> list[dict[str, float]]:
    """Let each node ask in its share of the conversations, which are those that it serves."""
    for node, keys in _shares(nodes, callers).items():
        node.send(keys=keys, **work)
    return [node.read() for node in nodes]


def _shares(nodes: Sequence[Node], callers: int) -> dict[Node, list[str]]:
    """Return conversations that are placed on each node, the same number for each."""
    numbers = {node.number: node for node in nodes}
    found: dict[Node, list[str]] = {node: [] for node in nodes}
    for key in (f"key {number}" for number in count()):
        if all(len(keys) == callers // len(nodes) for keys in found.values()):
            break
        node = numbers[place(key, numbers) or 0]
        if len(found[node]) < callers // len(nodes):
            found[node].append(key)
    return found


# A node that is lost


def resume(url: str, conversations: int, *, stop: bool) -> Figures:
    """Kill or stop one of three nodes, and wait until its conversations are answered."""
    with new_database(url) as database, ExitStack() as stack:
        nodes = stack.enter_context(_nodes(database, 3, f"{database.url}?lease={LEASE}", SLOW))
        _converse(nodes, conversations, seconds=0.0, turns=1)
        store = stack.enter_context(SessionStore(database.url))
        db = stack.enter_context(psycopg.connect(database.url, autocommit=True))
        names = [key for keys in _shares(nodes, conversations).values() for key in keys]
        for name in names:
            store.accept(Inbound(name, f"before {name}", text(0, 0)))
        process = nodes[0].process
        if stop:
            process.send_signal(signal.SIGSTOP)
        else:
            process.kill()
        started = time.perf_counter()
        for name in names:
            store.accept(Inbound(name, f"after {name}", text(0, 0)))
        _wait_until_answered(db, started)
        seconds = time.perf_counter() - started
        if stop:  # what it does now must change nothing
            process.send_signal(signal.SIGCONT)
            time.sleep(SLOW)
        wanted = [(3 * conversations,)]
        found = db.execute("SELECT count(*) FROM messages WHERE role = 'user'").fetchall()
        if found != wanted:
            raise AssertionError(f"{found} messages of users instead of {wanted}")
        return {"seconds": seconds, "leases": seconds / LEASE}


def _wait_until_answered(db: psycopg.Connection[Any], started: float) -> None:
    waiting = "SELECT count(*) FROM inbox WHERE state = 'open'"
    while db.execute(waiting).fetchall() != [(0,)]:
        if time.perf_counter() - started > LONGEST:
            raise AssertionError("conversations of a lost node were not answered")
        time.sleep(0.01)


if __name__ == "__main__":
    about = {name: version(name) for name in ("psycopg", "trio")}
    serve({"hermes": version("hermes-runtime"), **about}, commits, turns, resume)
