"""Session-switch cache reuse, a first taste: how often an agent is built, and why.

Each of some users has several sessions under one session_key and switches between them by a seeded
pattern; now and then another writer adds to a session behind the runtime's back. An agent that
counts notes what it was shown. The oracle works from the list of what was done alone: an agent must
be built once per user, and once more whenever somebody else wrote to the session a user is in.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import trio

from bench import report
from hermes import open_runtime
from hermes.actors.runtime import Runtime
from hermes.messages import Rebuilt
from hermes.store import SessionStore
from hermes.testing import CountingBuilder

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "switch.json"
SEED = 20_260_102


@attrs.frozen
class Plan:
    """How much of everything."""

    users: int
    sessions: int
    turns: int
    foreign_share: float = 0.05


FULL = Plan(users=8, sessions=6, turns=400)
QUICK = Plan(users=4, sessions=4, turns=100)


def round_robin(random_: random.Random, sessions: int) -> Iterator[int]:
    """One after the other."""
    place = random_.randrange(sessions)
    while True:
        yield place
        place = (place + 1) % sessions


def zipf(random_: random.Random, sessions: int) -> Iterator[int]:
    """A favourite, and rarer ones."""
    weights = [1 / rank for rank in range(1, sessions + 1)]
    while True:
        yield random_.choices(range(sessions), weights)[0]


def bursts(random_: random.Random, sessions: int) -> Iterator[int]:
    """Some turns in one session, then some in another."""
    while True:
        place = random_.randrange(sessions)
        for _ in range(random_.randint(2, 8)):
            yield place


PATTERNS = {"round robin": round_robin, "zipf": zipf, "bursts": bursts}


@attrs.define
class User:
    """One session_key: where it is, and what the oracle expects of it."""

    key: str
    sessions: list[str] = attrs.Factory(list)
    at: str | None = None
    last: str | None = None
    stale: set[str] = attrs.Factory(set)
    expected: int = 0

    def turn(self, session_id: str) -> None:
        """Count what a turn here must cost."""
        if self.last is None or (self.last == session_id and session_id in self.stale):
            self.expected += 1
        self.stale.discard(session_id)
        self.last = session_id


@attrs.define
class Run:
    """One pattern's figures."""

    switches: int = 0
    turns: int = 0
    written: int = 0
    missed: int = 0
    expected: int = 0
    builds: Counter[Rebuilt] = attrs.Factory(Counter)
    latencies: list[float] = attrs.Factory(list)


def main(arguments: Sequence[str]) -> int:
    """Measure, print the table, write the file; 1 where the oracle disagrees."""
    parser = argparse.ArgumentParser(prog="python -m bench switch", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="seconds")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of results (JSON)")
    parser.add_argument("--dir", type=Path, default=HERE, help="where the databases are made")
    options = parser.parse_args(arguments)
    plan = QUICK if options.quick else FULL
    started = time.monotonic()
    runs: dict[str, Run] = {}
    with tempfile.TemporaryDirectory(prefix=".run-", dir=options.dir) as folder:
        for name in PATTERNS:
            runs[name] = trio.run(_measure, plan, name, Path(folder) / f"{name}.db")
    print(_table(runs))
    met = all(sum(r.builds.values()) == r.expected and not r.missed for r in runs.values())
    print(f"\nbuilds equal to the oracle's, no foreign write missed: {'pass' if met else 'FAIL'}")
    report.write(
        options.out,
        {
            "benchmark": "switch",
            "quick": options.quick,
            "machine": report.machine(options.dir),
            "plan": attrs.asdict(plan),
            "runs": {
                name: {**attrs.asdict(run), "latencies": [], "p50_ms": _p(run, 0.5)}
                for name, run in runs.items()
            },
            "seconds": round(time.monotonic() - started),
        },
    )
    print(f"{time.monotonic() - started:.0f} s; written to {options.out}")
    return 0 if met else 1


async def _measure(plan: Plan, name: str, path: Path) -> Run:
    builder = CountingBuilder()
    run = Run()
    async with open_runtime(path, agent=builder) as runtime:
        with SessionStore(path) as foreign:
            async with trio.open_nursery() as nursery:
                for number in range(plan.users):
                    random_ = random.Random(SEED + number)
                    user = User(f"bench:{number}")
                    nursery.start_soon(_use, plan, name, runtime, foreign, user, random_, run)
        run.builds = Counter(runtime.statistics().builds)
    return run


async def _use(
    plan: Plan,
    name: str,
    runtime: Runtime,
    foreign: SessionStore,
    user: User,
    random_: random.Random,
    run: Run,
) -> None:
    for number in range(plan.sessions):
        if number:
            await runtime.new_session(user.key)
        reply = await runtime.ask(user.key, "the first message")
        user.sessions.append(reply.session_id)
        user.turn(reply.session_id)
    for session_id in user.sessions:  # a session that was left by /new is opened again
        await runtime.switch(user.key, session_id)
        user.at = session_id
    places = PATTERNS[name](random_, plan.sessions)
    for number in range(plan.turns):
        session_id = user.sessions[next(places)]
        await _turn(runtime, user, session_id, f"message {number}", run)
        if random_.random() < plan.foreign_share:
            await _write_elsewhere(foreign, user, random_.choice(user.sessions), run)
    run.expected += user.expected


async def _turn(runtime: Runtime, user: User, session_id: str, text: str, run: Run) -> None:
    if session_id != user.at:
        user.at = session_id
        await runtime.switch(user.key, session_id)
        run.switches += 1
    marks = {text for text in user.stale if text == session_id}
    user.turn(session_id)
    started = time.perf_counter()
    await runtime.ask(user.key, text)
    run.latencies.append(time.perf_counter() - started)
    run.turns += 1
    snapshot = runtime.snapshot(user.key)
    assert snapshot is not None
    shown = snapshot.agent.turns[-1].history
    if marks and not any(row.content == "written elsewhere" for row in shown[-3:]):
        run.missed += 1
    snapshot.agent.turns.clear()


async def _write_elsewhere(foreign: SessionStore, user: User, session_id: str, run: Run) -> None:
    await trio.to_thread.run_sync(foreign.append_message, session_id, "user", "written elsewhere")
    user.stale.add(session_id)
    run.written += 1


def _p(run: Run, share: float) -> float:
    ordered = sorted(run.latencies)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3, 3)


def _table(runs: dict[str, Run]) -> str:
    heading = "pattern,turns,switches,foreign writes,builds,oracle,reused,why,missed,p50 ms,p99 ms"
    lines = [heading.split(",")]
    for name, run in runs.items():
        builds = sum(run.builds.values())
        why = ", ".join(f"{reason} {n}" for reason, n in run.builds.items())
        counts = (run.turns, run.switches, run.written, builds, run.expected)
        reused = f"{1 - builds / run.turns:.1%}"
        lines.append(
            [name, *map(str, counts), reused, why, str(run.missed)]
            + [str(_p(run, share)) for share in (0.5, 0.99)]
        )
    return report.aligned(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
