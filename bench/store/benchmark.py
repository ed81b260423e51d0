"""The store benchmark: appending, loading, opening, and file size."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from bench.harness.benchmark import Benchmark, Cell, Contender, Database, Group, measure_cells
from bench.harness.measurements import Goal, Ref, ratio
from bench.report.results import Column

ACTOR = "ours, actor"
BLOCKING = "ours, blocking"
BARE = "bare APSW loop"
BARE_OPEN = "bare APSW connection, same file and query"
DISK = "fdatasync"
SESSION_DB = "hermes-agent SessionDB"
ASYNC_DB = "hermes-agent AsyncSessionDB"
OPENAI = "openai-agents SQLiteSession"
LANGGRAPH = "langgraph SqliteSaver.put"
SMALL = "ours, 1,000 stored"
LARGE = "ours, many stored"
ONE_CALL, TEN_CALLS = "ours, one call a turn", "ours, ten calls a turn"
CALLERS = 100
ONE, MANY = "one session", "100 sessions"
STORED_ONE, STORED_MANY = f"stored, {ONE}", f"stored, {MANY}"


@attrs.frozen(kw_only=True)
class Plan:
    """The amount of work; the defaults are a full run."""

    seconds: float = 1.0
    repetitions: int = 5
    stored: int = 100_000
    stored_repetitions: int = 5
    sustained: int = 2_100
    """Appends to the large file; 2,100 of them contain two index merges of hermes-agent."""
    many: int = 1_000_000
    cost_appends: int = 1_000
    transcript: int = 10_000
    sessions: int = 10_000
    sized: int = 20_000


FULL = Plan()
QUICK = Plan(
    seconds=0.2, repetitions=2, stored=1_000, stored_repetitions=1, sustained=200,
    many=10_000, cost_appends=100, transcript=100, sessions=500, sized=1_000,
)  # fmt: skip
OPENINGS = 5

RATE = Column("rate", "appends/s", 0, "higher", "Durable messages per second, all callers.")
LATENCY = (
    Column("p50_ms", "p50 ms", 2, explains="Median time of an append."),
    Column("p99_ms", "p99 ms", explains="99th percentile of an append."),
    Column("worst_ms", "worst ms", explains="The slowest append of a repetition."),
)
STALL = Column(
    "stall_p99_ms", "loop stall p99 ms", 2,
    explains="A task in the same event loop repeatedly sleeps 1 ms: 99th percentile of its delay.",
)  # fmt: skip
SEARCHABLE = Column(
    "searchable_rate", "appends/s until found", 0, "higher",
    "Appends divided by the time until a search finds the last of them: we index in the "
    "background, hermes-agent within the append.",
)  # fmt: skip
COST = (
    Column("median_us", "median us", 0, explains="Median time of an append."),
    Column("cpu_us", "CPU us", 0, explains="Processor time of an append."),
    Column("index_us", "indexing us", 0, explains="Time to index it for search afterwards."),
)
LOADING = (
    Column("ms", "ms", 2, explains="Time until the whole conversation is in memory."),
    Column("json_ms", "json.loads of it, ms", 2, "neither", "Parsing the same from JSON."),
)
OPENING = (
    Column("ms", "ms to the first answer", 2, explains="From the constructor to a query result."),
    Column("open_ms", "ms to open", 2, explains="The constructor alone."),
)
RECORDED = (
    Column("call_bytes", "bytes per call", 0,
           explains="Growth of the file, without the texts that are new."),
)  # fmt: skip
SIZE = (Column("mib", "MiB", explains="The file and all files beside it, after closing."),)


def groups(plan: Plan) -> list[Group]:
    """All cells, grouped by the databases they share."""
    return [
        *(Group(plan.repetitions, (cell,)) for cell in _appends(plan)),
        Group(plan.stored_repetitions, _stored(plan)),
        *(Group(plan.repetitions, (cell,)) for cell in _on_files(plan)),
        Group(1, (_size(plan),)),  # it is the same every time
        Group(1, (_recorded(plan),)),
    ]


def _appends(plan: Plan) -> tuple[Cell, Cell]:
    timed = {"seconds": plan.seconds}
    one, many = {**timed, "callers": 1}, {**timed, "callers": CALLERS}
    alone = (
        Contender(ACTOR, "ours", "append_awaited", one),
        Contender(ASYNC_DB, "hermes-agent", "append_awaited", one),
        Contender(BLOCKING, "ours", "append_blocking", timed),
        Contender(BARE, "baselines", "bare", timed),
        Contender(SESSION_DB, "hermes-agent", "append_blocking", timed),
        Contender(OPENAI, "openai-agents", "append_awaited", one),
        Contender(LANGGRAPH, "langgraph", "append_blocking", timed),
    )
    together = (
        Contender(ACTOR, "ours", "append_awaited", many),
        Contender(ASYNC_DB, "hermes-agent", "append_awaited", many),
        Contender(OPENAI, "openai-agents", "append_awaited", many),
        Contender(DISK, "baselines", "fdatasync", timed),
    )
    return (
        Cell(ONE, "one session, each append awaited", (RATE, *LATENCY),
             "The actor is `open_store`, called from a Trio task; blocking is `SessionStore`. The "
             "bare APSW loop replays the statements of our append on a plain connection. "
             "langgraph has no append: it writes a state of ten messages, for information.", alone),
        Cell(MANY, "100 sessions at once", (RATE, *LATENCY, STALL),
             "100 tasks, each of which awaits its append before the next. fdatasync flushes an "
             "overwritten 4 KiB block: a store that flushes per message cannot be faster.",
             together),
    )  # fmt: skip


def _stored(plan: Plan) -> tuple[Cell, Cell]:
    title, columns = f"{plan.stored:,} messages stored, ", (RATE, SEARCHABLE, *LATENCY)
    size = CALLERS, plan.stored // CALLERS
    work = {"seconds": plan.seconds, "count": plan.sustained}
    one, many = (
        _both(ACTOR, ASYNC_DB, "append_awaited", {**work, "callers": callers}, size)
        for callers in (1, CALLERS)
    )
    return (
        Cell(STORED_MANY, title + MANY, columns,
             "100 tasks on a large file that stays searchable: each run ends with a search for a "
             "word that only the last message contains.", many),
        Cell(STORED_ONE, title + ONE, columns, "One conversation on the same large file.", one),
    )  # fmt: skip


def _on_files(plan: Plan) -> tuple[Cell, Cell, Cell]:
    """The cells with one caller on an existing file."""
    cost = {"sessions": 10, "appends": plan.cost_appends}
    appending = (
        Contender(LARGE, "ours", "cost", cost, Database("ours", plan.many // 1_000, 1_000)),
        Contender(SMALL, "ours", "cost", cost, Database("ours", 10, 100, renew=True)),
    )
    load = {"session": 7, "turns": plan.transcript, "times": 3}
    loading = _both(BLOCKING, SESSION_DB, "load", load, (20, plan.transcript))
    times = {"times": OPENINGS}
    opening = _both(BLOCKING, SESSION_DB, "open_file", times, (plan.sessions, 1))
    bare = Contender(BARE_OPEN, "baselines", "open_file", times, opening[0].database)
    return (
        Cell("cost", f"one more append (many = {plan.many:,})", COST,
             "An append through `SessionStore` to a small and to a very large file.", appending),
        Cell("loading", f"loading a transcript of {plan.transcript:,}", LOADING,
             "One of 20 conversations whose rows are interleaved in the file, as in concurrent "
             "use; hermes-agent loads in the same way as its gateway.", loading),
        Cell("opening", f"opening a file with {plan.sessions:,} sessions", OPENING,
             "The time before a process can use an existing file, without imports. The bare APSW "
             "connection opens the same file and runs the same query without any checks.",
             (*opening, bare)),
    )  # fmt: skip


def _size(plan: Plan) -> Cell:
    work = {"sessions": 100, "turns": plan.sized // 100}
    ours = Contender(BLOCKING, "ours", "size", work)
    theirs = Contender(SESSION_DB, "hermes-agent", "size", work)
    return Cell("size", f"{plan.sized:,} messages of 400 bytes", SIZE,
                "Disk space for the same messages, with an up-to-date search index.",
                (ours, theirs))  # fmt: skip


def _recorded(plan: Plan) -> Cell:
    turns = plan.sized // 20
    one, ten = (
        Contender(name, "ours", "recorded_calls", {"turns": turns, "calls": calls})
        for name, calls in ((ONE_CALL, 1), (TEN_CALLS, 10))
    )
    return Cell("recorded", f"{turns:,} recorded turns", RECORDED,
                "What a recorded call of a model takes in the file, besides the messages and the "
                "texts that are new: prompts and tools are stored once.", (one, ten))  # fmt: skip


def _both(
    ours: str, theirs: str, do: str, work: Mapping[str, object], size: tuple[int, int]
) -> tuple[Contender, Contender]:
    """Return ours and hermes-agent, each with a database of this size."""
    return (
        Contender(ours, "ours", do, work, Database("ours", *size)),
        Contender(theirs, "hermes-agent", do, work, Database("hermes-agent", *size)),
    )


def _at_most(cell: str, what: str, figure: str, most: float, explains: str) -> Goal:
    text = f"{cell}: {ACTOR}, {what}"
    return Goal(text, Ref(cell, ACTOR, figure), most, unit="ms", explains=explains)


GOALS = (
    ratio(ONE, "rate", ACTOR, ASYNC_DB, 1.8,
          "Messages per second of one conversation, each on disk before the next; both stores are "
          "called from an event loop."),
    ratio(ONE, "rate", BLOCKING, BARE, 0.8,
          "Share of the speed of SQLite; 1 means that our code around it costs nothing."),
    ratio(ONE, "rate", BLOCKING, SESSION_DB, 2.5,
          "Like the first goal, for programs without an event loop."),
    ratio(MANY, "rate", ACTOR, ASYNC_DB, 25,
          "Messages per second of 100 concurrent conversations: we flush once for all waiting "
          "messages, hermes-agent once for each."),
    ratio(MANY, "rate", ACTOR, OPENAI, 15,
          "The same compared with the store of the OpenAI Agents SDK."),
    ratio(MANY, "rate", ACTOR, DISK, 4,
          "Durable messages per flush of this disk; one flush per message gives at most 1."),
    _at_most(MANY, "event-loop stall p99", "stall_p99_ms", 5,
             "Delay of other tasks in the event loop; a store that blocks it would show here."),
    ratio(STORED_MANY, "searchable_rate", ACTOR, ASYNC_DB, 20,
          "Messages per second until a search finds the last one, on a large file."),
    ratio(STORED_ONE, "searchable_rate", ACTOR, ASYNC_DB, 3,
          "The same for one conversation that waits for each of its messages."),
    _at_most(STORED_MANY, "worst append", "worst_ms", 150,
             "The longest time until a message of 100 conversations was durable."),
    _at_most(STORED_ONE, "worst append", "worst_ms", 150,
             "The longest time until a message of one conversation was durable."),
    Goal("cost of an append: many stored / 1,000 stored",
         Ref("cost", LARGE, "median_us"), 1.5, Ref("cost", SMALL, "median_us"),
         explains="Cost of an append to a very large file; 1 means that size does not matter."),
    ratio("loading", "ms", SESSION_DB, BLOCKING, 6,
          "The time to load a long conversation, compared with hermes-agent."),
    Goal(f"loading: {BLOCKING} / json.loads",
         Ref("loading", BLOCKING, "ms"), 1.6, Ref("loading", BLOCKING, "json_ms"),
         explains="Loading a conversation compared with parsing it from JSON in memory."),
    ratio("opening", "ms", SESSION_DB, BLOCKING, 5,
          "The time from opening a file with many sessions to a query result."),
    Goal(f"size: {BLOCKING} / {SESSION_DB}",
         Ref("size", BLOCKING, "mib"), 0.5, Ref("size", SESSION_DB, "mib"),
         explains="Disk space for the same searchable messages."),
    *(Goal(f"recorded: {name}", Ref("recorded", name, "call_bytes"), 300, unit="bytes",
           explains="What a recorded call of a model takes, without new texts.")
      for name in (ONE_CALL, TEN_CALLS)),
)  # fmt: skip


def goals(_: Plan) -> tuple[Goal, ...]:
    return GOALS


STORE = Benchmark(
    name="store",
    about="Storing and loading messages: same rows and durability for all, repetitions in turn.",
    modules={
        "ours": "bench.store.ours",
        "baselines": "bench.store.baselines",
        "hermes-agent": "bench.peers.hermes_store",
        "openai-agents": "bench.peers.openai_agents_store",
        "langgraph": "bench.peers.langgraph_store",
    },
    measure=measure_cells(FULL, QUICK, groups, goals),
)
