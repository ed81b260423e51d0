"""What the store promises (issue 2), and how its figures are shown."""

from __future__ import annotations

from bench.board import Goal, Ref
from bench.report import Column, Table
from bench.store_cells import (
    ACTOR,
    ASYNC_DB,
    BARE,
    BLOCKING,
    DISK,
    FEW,
    MANY,
    OPENAI,
    SESSION_DB,
    Plan,
)


def _faster(cell: str, ours: str, theirs: str, least: float, figure: str = "rate") -> Goal:
    """So many times their rate."""
    text = f"{cell}: {ours} / {theirs}"
    return Goal(text, Ref(cell, ours, figure), least, Ref(cell, theirs, figure), at_least=True)


def _quicker(cell: str, least: float) -> Goal:
    """So many times less time than hermes-agent."""
    ours, theirs = Ref(cell, BLOCKING, "ms"), Ref(cell, SESSION_DB, "ms")
    return Goal(f"{cell}: {SESSION_DB} / {BLOCKING}", theirs, least, ours, at_least=True)


def _within(text: str, figure: Ref, beside: Ref, most: float) -> Goal:
    return Goal(text, figure, most, beside)


def _below(cell: str, what: str, figure: str, most: float) -> Goal:
    """At most so many milliseconds."""
    return Goal(f"{cell}: {ACTOR}, {what}", Ref(cell, ACTOR, figure), most, unit="ms")


# "searchable_rate" divides the appends by the time until a search has found the last of them: ours
# are indexed behind the write path, hermes-agent's within the append.
GOALS = (
    _faster("one session", ACTOR, ASYNC_DB, 1.8),
    _faster("one session", BLOCKING, BARE, 0.8),
    _faster("one session", BLOCKING, SESSION_DB, 2.5),
    _faster("100 sessions", ACTOR, ASYNC_DB, 25),
    _faster("100 sessions", ACTOR, OPENAI, 15),
    _faster("100 sessions", ACTOR, DISK, 4),
    _below("100 sessions", "event-loop stall p99", "stall_p99_ms", 5),
    _faster("stored, 100 sessions", ACTOR, ASYNC_DB, 20, "searchable_rate"),
    _faster("stored, one session", ACTOR, ASYNC_DB, 3, "searchable_rate"),
    _below("stored, 100 sessions", "worst append", "worst_ms", 150),
    _below("stored, one session", "worst append", "worst_ms", 150),
    _within(
        "cost of an append: many stored / 1,000 stored",
        Ref("cost", MANY, "median_us"),
        Ref("cost", FEW, "median_us"),
        1.5,
    ),
    _quicker("loading", 6),
    _within(
        f"loading: {BLOCKING} / json.loads",
        Ref("loading", BLOCKING, "ms"),
        Ref("loading", BLOCKING, "json_ms"),
        1.6,
    ),
    _quicker("opening", 5),
    _within(
        f"size: {BLOCKING} / {SESSION_DB}",
        Ref("size", BLOCKING, "mib"),
        Ref("size", SESSION_DB, "mib"),
        0.5,
    ),
)

_RATE = Column("rate", "appends/s", 0)
_LATENCY = (
    Column("p50_ms", "p50 ms", 2),
    Column("p99_ms", "p99 ms"),
    Column("worst_ms", "worst ms"),
)
_STALL = Column("stall_p99_ms", "loop stall p99 ms", 2)
_SEARCHABLE = Column("searchable_rate", "appends/s until found", 0)


def tables(plan: Plan) -> tuple[Table, ...]:
    """What is printed, cell by cell."""
    stored = f"{plan.stored:,} messages stored"
    return (
        Table("one session", "one session, each append awaited", (_RATE, *_LATENCY)),
        Table("100 sessions", "100 sessions at once", (_RATE, *_LATENCY, _STALL)),
        Table("stored, 100 sessions", f"{stored}, 100 sessions", (_RATE, _SEARCHABLE, *_LATENCY)),
        Table("stored, one session", f"{stored}, one session", (_RATE, _SEARCHABLE, *_LATENCY)),
        Table(
            "cost",
            f"one more append (many = {plan.many:,})",
            (
                Column("median_us", "median us", 0),
                Column("cpu_us", "CPU us", 0),
                Column("index_us", "indexing us", 0),
            ),
        ),
        Table(
            "loading",
            f"loading a transcript of {plan.transcript:,}",
            (Column("ms", "ms", 2), Column("json_ms", "json.loads of it, ms", 2)),
        ),
        Table(
            "opening",
            f"opening a file with {plan.sessions:,} sessions",
            (Column("ms", "ms to the first answer", 2), Column("open_ms", "ms to open", 2)),
        ),
        Table("size", f"{plan.sized:,} messages of 400 bytes", (Column("mib", "MiB"),)),
    )
