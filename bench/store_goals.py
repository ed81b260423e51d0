"""What the store promises (issue 2), and how its figures are shown."""

from __future__ import annotations

from bench.board import Goal, Ref
from bench.report import Axis, Column, Line, Plot, Sheet, Table
from bench.store_cells import (
    ACTOR,
    ASYNC_DB,
    BARE,
    BLOCKING,
    CALLERS,
    DISK,
    FEW,
    MANY,
    OPENAI,
    SESSION_DB,
    Plan,
)


def _faster(
    cell: str, ours: str, theirs: str, least: float, explains: str, figure: str = "rate"
) -> Goal:
    """So many times their rate."""
    mine, other = Ref(cell, ours, figure), Ref(cell, theirs, figure)
    text = f"{cell}: {ours} / {theirs}"
    return Goal(text, mine, least, other, at_least=True, explains=explains)


def _quicker(cell: str, least: float, explains: str) -> Goal:
    """So many times less time than hermes-agent."""
    ours, theirs = Ref(cell, BLOCKING, "ms"), Ref(cell, SESSION_DB, "ms")
    text = f"{cell}: {SESSION_DB} / {BLOCKING}"
    return Goal(text, theirs, least, ours, at_least=True, explains=explains)


def _within(text: str, figure: Ref, beside: Ref, most: float, explains: str) -> Goal:
    return Goal(text, figure, most, beside, explains=explains)


def _below(cell: str, what: str, figure: str, most: float, explains: str) -> Goal:
    """At most so many milliseconds."""
    text = f"{cell}: {ACTOR}, {what}"
    return Goal(text, Ref(cell, ACTOR, figure), most, unit="ms", explains=explains)


# "searchable_rate" divides the appends by the time until a search has found the last of them: ours
# are indexed behind the write path, hermes-agent's within the append.
GOALS = (
    _faster(
        "one session", ACTOR, ASYNC_DB, 1.8,
        "How many times as many messages one conversation stores per second as with "
        "hermes-agent's store, both from an event loop, each message on disk before the next.",
    ),
    _faster(
        "one session", BLOCKING, BARE, 0.8,
        "What is left of SQLite's own speed: 1 would mean that the store around the very same "
        "statements costs nothing.",
    ),
    _faster(
        "one session", BLOCKING, SESSION_DB, 2.5,
        "The same as the first, for programs without an event loop.",
    ),
    _faster(
        "100 sessions", ACTOR, ASYNC_DB, 25,
        "How many times as many messages a hundred conversations together store per second: we "
        "flush to disk once for all that wait, hermes-agent once for each.",
    ),
    _faster(
        "100 sessions", ACTOR, OPENAI, 15,
        "The same beside the store of the OpenAI Agents SDK.",
    ),
    _faster(
        "100 sessions", ACTOR, DISK, 4,
        "How many messages we make durable for each flush that this disk can do: who flushes for "
        "every message cannot exceed 1.",
    ),
    _below(
        "100 sessions", "event-loop stall p99", "stall_p99_ms", 5,
        "How late at most 99 of 100 other tasks of the same event loop run while a hundred "
        "conversations write: a store that blocks the loop would show here.",
    ),
    _faster(
        "stored, 100 sessions", ACTOR, ASYNC_DB, 20,
        "With much stored already and search kept up to date: messages per second until a search "
        "has found the last of them, for a hundred conversations.",
        "searchable_rate",
    ),
    _faster(
        "stored, one session", ACTOR, ASYNC_DB, 3,
        "The same for one conversation that waits for each of its messages.",
        "searchable_rate",
    ),
    _below(
        "stored, 100 sessions", "worst append", "worst_ms", 150,
        "The longest that any message of a hundred conversations had to wait for the disk.",
    ),
    _below(
        "stored, one session", "worst append", "worst_ms", 150,
        "The longest that any message of one conversation had to wait for the disk.",
    ),
    _within(
        "cost of an append: many stored / 1,000 stored",
        Ref("cost", MANY, "median_us"),
        Ref("cost", FEW, "median_us"),
        1.5,
        "How much dearer a message becomes when very much is stored already: 1 means that it does "
        "not matter.",
    ),
    _quicker(
        "loading", 6,
        "How many times as long hermes-agent takes to load a long conversation from its file.",
    ),
    _within(
        f"loading: {BLOCKING} / json.loads",
        Ref("loading", BLOCKING, "ms"),
        Ref("loading", BLOCKING, "json_ms"),
        1.6,
        "Loading a conversation beside parsing it from one JSON document in memory: below 1, the "
        "database is faster than the parser.",
    ),
    _quicker(
        "opening", 5,
        "How many times as long hermes-agent takes from opening a file of many sessions to the "
        "first answer from it.",
    ),
    _within(
        f"size: {BLOCKING} / {SESSION_DB}",
        Ref("size", BLOCKING, "mib"),
        Ref("size", SESSION_DB, "mib"),
        0.5,
        "What share of hermes-agent's disk space the same searchable messages need.",
    ),
)  # fmt: skip

_RATE = Column(
    "rate",
    "appends/s",
    0,
    "higher",
    "Messages that became durable per second, all callers together.",
)
_LATENCY = (
    Column("p50_ms", "p50 ms", 2, explains="Half of the appends took at most this long."),
    Column("p99_ms", "p99 ms", explains="99 of 100 appends took at most this long."),
    Column("worst_ms", "worst ms", explains="The slowest append of a repetition."),
)
_STALL = Column(
    "stall_p99_ms", "loop stall p99 ms", 2,
    explains="A task in the same event loop sleeps 1 ms again and again: what 99 of 100 such naps "
    "last too long at most.",
)  # fmt: skip
_SEARCHABLE = Column(
    "searchable_rate", "appends/s until found", 0, "higher",
    "The appends divided by the time until a search has found the last of them: ours are indexed "
    "behind the write path, hermes-agent's within the append.",
)  # fmt: skip


def sheet(plan: Plan) -> Sheet:
    return Sheet(GOALS, tables(plan), PLOTS)


def tables(plan: Plan) -> tuple[Table, ...]:
    """What is printed, cell by cell."""
    return (*_appends(plan), *_files(plan))


def _appends(plan: Plan) -> tuple[Table, ...]:
    stored = f"{plan.stored:,} messages stored"
    searchable = (_RATE, _SEARCHABLE, *_LATENCY)
    return (
        Table(
            "one session", "one session, each append awaited", (_RATE, *_LATENCY),
            "How many messages per second one conversation can store when each must be on disk "
            "before the next begins. The actor is `open_store`, called from a Trio task; blocking "
            "is `SessionStore`. The bare APSW loop replays the very statements of our append on a "
            "plain connection. langgraph has no append: it writes a state of ten messages each "
            "time, and is here for information.",
        ),
        Table(
            "100 sessions", "100 sessions at once", (_RATE, *_LATENCY, _STALL),
            "A hundred tasks, each awaiting its append before its next. fdatasync is how often per "
            "second this disk flushes one overwritten block of 4 KiB: who flushes once per message "
            "cannot be faster.",
        ),
        Table(
            "stored, 100 sessions", f"{stored}, 100 sessions", searchable,
            "A hundred tasks again, on a file that holds much already and must stay searchable: "
            "each run ends with a search for a word that only its last message has.",
        ),
        Table(
            "stored, one session", f"{stored}, one session", searchable,
            "One conversation on the same file that holds much already.",
        ),
        Table(
            "cost",
            f"one more append (many = {plan.many:,})",
            (
                Column("median_us", "median us", 0, explains="Half of the appends took less."),
                Column("cpu_us", "CPU us", 0, explains="Processor time of an append."),
                Column("index_us", "indexing us", 0,
                       explains="What indexing it for search takes afterwards."),
            ),
            "One append through `SessionStore` to a file with 1,000 messages and to one with very "
            "many: a store whose cost grows with what is stored would show here.",
        ),
    )  # fmt: skip


def _files(plan: Plan) -> tuple[Table, ...]:
    return (
        Table(
            "loading",
            f"loading a transcript of {plan.transcript:,}",
            (
                Column("ms", "ms", 2, explains="Until the whole conversation is in memory."),
                Column("json_ms", "json.loads of it, ms", 2, "neither",
                       explains="Parsing one JSON document with the same content."),
            ),
            "One of 20 conversations whose rows were stored in turn, as they are when people talk "
            "at the same time; hermes-agent loads by the way of its gateway.",
        ),
        Table(
            "opening",
            f"opening a file with {plan.sessions:,} sessions",
            (
                Column("ms", "ms to the first answer", 2,
                       explains="From the constructor to the answer of a first `get_session`."),
                Column("open_ms", "ms to open", 2, explains="The constructor alone."),
            ),
            "What a process waits for before it can use an existing file; imports are not counted. "
            "The bare APSW connection opens the same file and asks the same, unguarded.",
        ),
        Table(
            "size",
            f"{plan.sized:,} messages of 400 bytes",
            (Column("mib", "MiB", explains="The file and everything beside it, after closing."),),
            "Disk space for the same messages, with the search index up to date.",
        ),
    )  # fmt: skip


def _at_once(who: str) -> Line:
    return Line(who, {1: "one session", CALLERS: "100 sessions"})


PLOTS = (
    Plot(
        "Messages stored per second, by conversations at once",
        "rate",
        Axis("conversations that write at the same time", log=True),
        Axis("appends per second", log=True),
        tuple(_at_once(who) for who in (ACTOR, ASYNC_DB, OPENAI)),
        "How throughput grows with concurrency: a store that flushes once for all who wait rises, "
        "one that flushes for each of them stays where it was.",
    ),
    Plot(
        "Until a message is durable, by conversations at once",
        "p50_ms",
        Axis("conversations that write at the same time", log=True),
        Axis("median append, ms", log=True),
        tuple(_at_once(who) for who in (ACTOR, ASYNC_DB, OPENAI)),
        "How long a message waits for the disk when others write, too: where writes queue up, a "
        "hundred times as many conversations make it a hundred times as long.",
    ),
)
