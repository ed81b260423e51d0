"""The cells of the store benchmark: who does what, how often, in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import attrs

from bench.board import Board
from bench.drivers import DriverFailed
from bench.progress import Counter, Steps

ACTOR = "ours, actor"
BLOCKING = "ours, blocking"
BARE = "bare APSW loop"
BARE_OPEN = "bare APSW connection, same file and query"
DISK = "fdatasync"
SESSION_DB = "hermes-agent SessionDB"
ASYNC_DB = "hermes-agent AsyncSessionDB"
OPENAI = "openai-agents SQLiteSession"
LANGGRAPH = "langgraph SqliteSaver.put"
FEW = "ours, 1,000 stored"
MANY = "ours, many stored"

CALLERS = 100
OPENINGS = 5


@attrs.frozen(kw_only=True)
class Plan:
    """How much of everything."""

    seconds: float
    repetitions: int
    stored: int
    stored_repetitions: int
    sustained: int
    """Appends to the file with much stored; two of hermes-agent's index merges fall into 2,100."""
    many: int
    cost_appends: int
    transcript: int
    sessions: int
    sized: int


FULL = Plan(
    seconds=1.0,
    repetitions=5,
    stored=100_000,
    stored_repetitions=5,
    sustained=2_100,
    many=1_000_000,
    cost_appends=1_000,
    transcript=10_000,
    sessions=10_000,
    sized=20_000,
)
QUICK = Plan(
    seconds=0.2,
    repetitions=2,
    stored=1_000,
    stored_repetitions=1,
    sustained=200,
    many=10_000,
    cost_appends=100,
    transcript=100,
    sessions=500,
    sized=1_000,
)


class Asked(Protocol):
    """What does the work: a driver, as a rule."""

    def ask(self, do: str, **arguments: str | float) -> dict[str, float]: ...


class Idle:
    """Does nothing: so the steps can be counted before they are done."""

    def ask(self, do: str, **arguments: str | float) -> dict[str, float]:
        return {}


@attrs.frozen
class Variant:
    """One contender of a cell: which driver is asked what."""

    who: str
    driver: str
    do: str
    arguments: Mapping[str, float] = attrs.Factory(dict)
    path: Path | None = None
    """A file made before; without it, each repetition has a fresh one."""


@attrs.define
class Cells:
    """Runs cells: contenders take turns, and each repetition starts with another one."""

    plan: Plan
    fleet: Mapping[str, Asked]
    board: Board
    folder: Path
    steps: Steps

    def all(self) -> None:
        """Every cell, after the drivers have shown that they store alike."""
        self.durability()
        rehearsal = Counter()
        idle = {name: Idle() for name in self.fleet}
        Cells(self.plan, idle, Board(), self.folder, rehearsal).measure()
        self.steps.expect(rehearsal.steps)
        self.measure()

    def measure(self) -> None:
        for cell in (
            self.one_session,
            self.hundred_sessions,
            self.stored,
            self.cost,
            self.loading,
            self.opening,
            self.size,
        ):
            cell()

    def interleave(self, cell: str, variants: Sequence[Variant], repetitions: int) -> None:
        present = [variant for variant in variants if variant.driver in self.fleet]
        for repetition in range(repetitions):
            self.steps.step(f"{cell}: repetition {repetition + 1} of {repetitions}")
            first = repetition % len(present)
            for variant in present[first:] + present[:first]:
                self._measure(cell, variant)

    def _measure(self, cell: str, variant: Variant) -> None:
        path = variant.path or self.folder / "fresh.db"
        ask = self.fleet[variant.driver].ask
        self.board.add(cell, variant.who, ask(variant.do, path=str(path), **variant.arguments))
        if variant.path is None:
            remove(path)

    def filled(self, driver: str, name: str, sessions: int, turns: int) -> Path:
        """A file with so many sessions of so many messages each, indexed for search."""
        path = self.folder / f"{name}-{driver}.db"
        if driver in self.fleet:
            self.steps.step(f"{name}: {driver} stores {sessions * turns:,} messages")
            self.fleet[driver].ask("fill", path=str(path), sessions=sessions, turns=turns)
        return path

    def durability(self) -> None:
        """Every store that is measured must be in WAL mode with synchronous=FULL."""
        for name, driver in self.fleet.items():
            if name == "floors":
                continue
            path = self.folder / "fresh.db"
            figures = driver.ask("durability", path=str(path))
            remove(path)
            if figures != {"wal": 1, "synchronous": 2}:
                raise DriverFailed(f"{name} is not durable in the same way: {figures}")

    def one_session(self) -> None:
        timed = {"seconds": self.plan.seconds}
        one = {"seconds": self.plan.seconds, "callers": 1}
        variants = [
            Variant(ACTOR, "ours", "append_awaited", one),
            Variant(ASYNC_DB, "hermes-agent", "append_awaited", one),
            Variant(BLOCKING, "ours", "append_blocking", timed),
            Variant(BARE, "floors", "bare", timed),
            Variant(SESSION_DB, "hermes-agent", "append_blocking", timed),
            Variant(OPENAI, "openai-agents", "append_awaited", one),
            Variant(LANGGRAPH, "langgraph", "append_blocking", timed),
        ]
        self.interleave("one session", variants, self.plan.repetitions)

    def hundred_sessions(self) -> None:
        many = {"seconds": self.plan.seconds, "callers": CALLERS}
        variants = [
            Variant(ACTOR, "ours", "append_awaited", many),
            Variant(ASYNC_DB, "hermes-agent", "append_awaited", many),
            Variant(OPENAI, "openai-agents", "append_awaited", many),
            Variant(DISK, "floors", "fdatasync", {"seconds": self.plan.seconds}),
        ]
        self.interleave("100 sessions", variants, self.plan.repetitions)

    def stored(self) -> None:
        """Appends to a file that holds much already and must stay searchable."""
        turns = self.plan.stored // CALLERS
        ours = self.filled("ours", "stored", CALLERS, turns)
        theirs = self.filled("hermes-agent", "stored", CALLERS, turns)
        for cell, callers in (("stored, 100 sessions", CALLERS), ("stored, one session", 1)):
            much = {"callers": callers, "seconds": self.plan.seconds, "count": self.plan.sustained}
            variants = [
                Variant(ACTOR, "ours", "append_awaited", much, ours),
                Variant(ASYNC_DB, "hermes-agent", "append_awaited", much, theirs),
            ]
            self.interleave(cell, variants, self.plan.stored_repetitions)
        remove(ours)
        remove(theirs)

    def cost(self) -> None:
        """One more append to a file with 1,000 messages, and to one with very many."""
        many = self.filled("ours", "many", self.plan.many // 1_000, 1_000)
        arguments = {"sessions": 10, "appends": self.plan.cost_appends}
        for repetition in range(self.plan.repetitions):
            few = self.filled("ours", "few", 10, 100)
            variants = [
                Variant(FEW, "ours", "cost", arguments, few),
                Variant(MANY, "ours", "cost", arguments, many),
            ]
            self.steps.step(f"cost: repetition {repetition + 1} of {self.plan.repetitions}")
            for variant in variants if repetition % 2 else variants[::-1]:
                self._measure("cost", variant)
            remove(few)
        remove(many)

    def loading(self) -> None:
        """One of 20 transcripts whose rows lie interleaved in the file."""
        sessions, turns = 20, self.plan.transcript
        ours = self.filled("ours", "transcripts", sessions, turns)
        theirs = self.filled("hermes-agent", "transcripts", sessions, turns)
        arguments = {"session": 7, "turns": turns, "times": 3}
        variants = [
            Variant(BLOCKING, "ours", "load", arguments, ours),
            Variant(SESSION_DB, "hermes-agent", "load", arguments, theirs),
        ]
        self.interleave("loading", variants, self.plan.repetitions)
        remove(ours)
        remove(theirs)

    def opening(self) -> None:
        ours = self.filled("ours", "opening", self.plan.sessions, 1)
        theirs = self.filled("hermes-agent", "opening", self.plan.sessions, 1)
        times = {"times": OPENINGS}
        variants = [
            Variant(BLOCKING, "ours", "open_file", times, ours),
            Variant(SESSION_DB, "hermes-agent", "open_file", times, theirs),
            Variant(BARE_OPEN, "floors", "open_file", times, ours),
        ]
        self.interleave("opening", variants, self.plan.repetitions)
        remove(ours)
        remove(theirs)

    def size(self) -> None:
        """The same text, indexed, checkpointed and closed; nothing of it is noisy, so once."""
        for who, driver in ((BLOCKING, "ours"), (SESSION_DB, "hermes-agent")):
            path = self.filled(driver, "size", 100, self.plan.sized // 100)
            size = sum(file.stat().st_size for file in with_companions(path))
            if size:
                self.board.add("size", who, {"mib": size / 2**20})
            remove(path)


def with_companions(path: Path) -> list[Path]:
    """The database file and what lies beside it: log, shared memory, lock."""
    return list(path.parent.glob(path.name + "*"))


def remove(path: Path) -> None:
    for file in with_companions(path):
        file.unlink()
