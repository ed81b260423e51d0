"""The runtime benchmark: cells, goals, tables and plots."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from bench.harness.benchmark import Benchmark, Measured, Run
from bench.harness.measurements import Goal, Ref, Sheet
from bench.harness.runner import Cell, Contender, Group, run_cells
from bench.report.results import Axis, Column, Line, Plot, Table

OURS = "ours"
CHANNEL = "trio channel"
FLOOR = "bare reschedule"
GATEWAY = "hermes-agent gateway"
ASK, TELL, IDLE, WARM = "ask", "tell", "idle", "a warm session"
HISTORY = 10
FEW = "10 messages, one session"
"""The smallest cell of whole turns, from which every plot starts."""


@attrs.frozen(kw_only=True)
class Plan:
    """The amount of work."""

    repetitions: int
    asks: int
    tells: int
    peer_asks: int
    idle: int
    warm: int
    turns: int
    peer_turns: int
    turn_repetitions: int
    histories: tuple[int, ...]
    known: tuple[int, ...]
    callers: tuple[int, ...]
    seconds: float


MESSAGE_PEERS = {"Pykka": "pykka", "xoscar": "xoscar", "autogen-core": "autogen-core"}
FULL = Plan(
    repetitions=15, asks=20_000, tells=100_000, peer_asks=3_000, idle=10_000, warm=1_000,
    turns=300, peer_turns=20, turn_repetitions=3, histories=(100, 1_000, 10_000),
    known=(100, 1_000, 10_000), callers=(10, 100), seconds=3.0,
)  # fmt: skip
# Half a minute: hermes-agent takes three seconds to start, and 15 more for 100 turns at once.
QUICK = Plan(
    repetitions=3, asks=3_000, tells=20_000, peer_asks=300, idle=3_000, warm=200,
    turns=100, peer_turns=4, turn_repetitions=1, histories=(300,), known=(300,), callers=(20,),
    seconds=0.5,
)  # fmt: skip


def over_history(plan: Plan) -> dict[int, str]:
    """The cells in which only the transcript grows."""
    return {HISTORY: FEW, **{size: f"{size:,} messages of history" for size in plan.histories}}


def over_known(plan: Plan) -> dict[int, str]:
    """The cells in which only the number of stored sessions grows."""
    return {1: FEW, **{size: f"{size:,} known sessions" for size in plan.known}}


def over_callers(plan: Plan) -> dict[int, str]:
    """The cells in which only the number of concurrent sessions grows."""
    return {1: FEW, **{size: f"{size:,} sessions at once" for size in plan.callers}}


def largest(plan: Plan) -> tuple[str, str, str]:
    """The cells with the longest history, the most known and the most concurrent sessions."""
    growing = (over_history(plan), over_known(plan), over_callers(plan))
    history, known, callers = (list(cells.values())[-1] for cells in growing)
    return history, known, callers


def groups(plan: Plan) -> list[Group]:
    """Messages between actors, then everything that needs a database."""
    return [
        Group(plan.repetitions, message_cells(plan)),
        Group(plan.turn_repetitions, stored_cells(plan)),
    ]


def message_cells(plan: Plan) -> tuple[Cell, Cell]:
    asks, tells = {"count": plan.asks}, {"count": plan.tells}
    ask = (
        Contender(OURS, "ours", "ask", asks),
        Contender(CHANNEL, "baselines", "ask", asks),
        Contender(FLOOR, "baselines", "ping_pong", asks),
        *(
            Contender(who, name, "ask", {"count": plan.peer_asks})
            for who, name in MESSAGE_PEERS.items()
        ),
    )
    tell = (Contender(OURS, "ours", "tell", tells), Contender(CHANNEL, "baselines", "tell", tells))
    return Cell(ASK, ask, on_disk=False), Cell(TELL, tell, on_disk=False)


def stored_cells(plan: Plan) -> tuple[Cell, ...]:
    return (
        Cell(IDLE, (Contender(OURS, "ours", "idle", {"count": plan.idle}),)),
        Cell(WARM, (Contender(OURS, "ours", "warm", {"count": plan.warm}),)),
        _turns(plan, FEW, HISTORY, 1),
        *(_turns(plan, over_history(plan)[size], size, 1) for size in plan.histories),
        *(_turns(plan, over_known(plan)[size], HISTORY, size) for size in plan.known),
        *(_at_once(plan, over_callers(plan)[size], size) for size in plan.callers),
    )


def _turns(plan: Plan, name: str, history: int, sessions: int) -> Cell:
    # Points between the smallest and the largest only show the shape: half as many turns suffice.
    share = 1 if name in {FEW, *largest(plan)} else 2
    size = {"history": history, "sessions": sessions}
    theirs = {**size, "count": plan.peer_turns // share}
    return _both(name, "turns", {**size, "count": plan.turns // share}, theirs)


def _at_once(plan: Plan, name: str, callers: int) -> Cell:
    size = {"callers": callers, "seconds": plan.seconds}
    return _both(name, "turns_at_once", size, size)


def _both(name: str, do: str, ours: Mapping[str, object], theirs: Mapping[str, object]) -> Cell:
    return Cell(
        name, (Contender(OURS, "ours", do, ours), Contender(GATEWAY, "hermes-agent", do, theirs))
    )


def _goals(plan: Plan) -> tuple[Goal, ...]:
    long, known, crowd = largest(plan)
    return (
        _asks(CHANNEL, 1.5, "Trio's own channels, which our mailbox replaces"),
        _asks(FLOOR, 0.75, "two tasks that only wake each other, the least that Trio can do"),
        _asks("Pykka", 1.8, "Pykka, whose actors are threads"),
        _asks("xoscar", 5, "xoscar, whose actors run on asyncio"),
        _asks("autogen-core", 10, "autogen-core, the actor layer of Microsoft's AutoGen"),
        Goal("tell: ours / trio channel", Ref(TELL, OURS, "rate"), 2, Ref(TELL, CHANNEL, "rate"),
             at_least=True, explains="Messages per second without a reply."),
        Goal("an idle actor", Ref(IDLE, OURS, "kib"), 3.4, unit="KiB",
             explains="Memory of a conversation that is not in use."),
        _turn_time(FEW, 15, "in a short conversation"),
        _turn_time(long, 60, "in a long conversation"),
        _turn_time(known, 300, "with many other conversations in the file"),
        Goal(f"{crowd}: ours / {GATEWAY}", Ref(crowd, OURS, "rate"), 100,
             Ref(crowd, GATEWAY, "rate"), at_least=True,
             explains="Turns per second of many concurrent conversations."),
        Goal("flat: long history / short", Ref(long, OURS, "p50_ms"), 1.5,
             Ref(FEW, OURS, "p50_ms"),
             explains="Our turn in the longest conversation; 1 means that length costs nothing."),
        Goal("flat: many sessions / one", Ref(known, OURS, "p50_ms"), 1.3,
             Ref(FEW, OURS, "p50_ms"),
             explains="Our turn with many stored sessions; 1 means that they cost nothing."),
    )  # fmt: skip


def _asks(theirs: str, least: float, what: str) -> Goal:
    ours, beside = Ref(ASK, OURS, "rate"), Ref(ASK, theirs, "rate")
    explains = f"Request-reply round trips per second compared with {what}."
    return Goal(f"ask: ours / {theirs}", ours, least, beside, at_least=True, explains=explains)


def _turn_time(cell: str, least: float, when: str) -> Goal:
    theirs, ours = Ref(cell, GATEWAY, "p50_ms"), Ref(cell, OURS, "p50_ms")
    explains = f"Time of a turn in hermes-agent's gateway compared with ours {when}, without model."
    text = f"{cell}: overhead of {GATEWAY} / ours"
    return Goal(text, theirs, least, ours, at_least=True, explains=explains)


MESSAGES = (
    Column("rate", "per second", 0, "higher", "Messages of one caller per second."),
    Column("us", "us", 1, explains="Microseconds per message."),
)
TURNS = (
    Column("p50_ms", "p50 ms", 2, explains="Median time of a turn."),
    Column("p99_ms", "p99 ms", 1, explains="99th percentile of the time of a turn."),
    Column("rate", "turns/s", 1, "higher", "Turns per second, all conversations together."),
    Column("cpu_ms", "CPU ms", 2, explains="Processor time of a turn."),
    Column("disk_bytes", "bytes/turn", 0,
           explains="Growth of the file by a turn of two messages of 400 bytes, with the index."),
)  # fmt: skip
KIB = Column("kib", "KiB", 2, explains="Resident memory of the process for each of them.")
GROWING = (
    (over_history, "Sequential turns in one conversation of this length."),
    (over_known, "Sequential turns in one conversation, with this many stored conversations."),
    (over_callers, "This many concurrent conversations, each waiting for its reply."),
)


def sheet(plan: Plan) -> Sheet:
    """Return the presentation of the results."""
    turns = {cell: text for cells, text in GROWING for cell in cells(plan).values()}
    turns[FEW] = (
        "A turn accepts a message, runs an agent that replies with a fixed text, and commits the "
        "reply; what remains is the cost of the runtime. One conversation of ten messages."
    )
    tables = (
        Table(ASK, "ask: one caller, one actor", MESSAGES,
              "One caller sends a request to one actor, waits for the reply and repeats. The actor "
              "adds one to a number, so only the message passing is measured."),
        Table(TELL, "tell: until all are processed", MESSAGES,
              "One caller sends messages without waiting, until the last one is processed."),
        Table(IDLE, "an idle actor", (KIB,), "Memory per idle conversation, in a fresh process."),
        Table(WARM, "a warm session: cached agent, 10 messages", (KIB,),
              "Memory per conversation after a reply, with its cached chat agent and its ten "
              "messages of 400 bytes, in a fresh process."),
        *(Table(cell, f"a durable turn: {cell}", TURNS, text) for cell, text in turns.items()),
    )  # fmt: skip
    time, rate = Axis("p50 ms per turn", log=True), Axis("turns per second", log=True)
    plots = (
        Plot("A turn, by length of the conversation", "p50_ms",
             Axis("messages in the conversation", log=True), time, _lines(over_history(plan)),
             "A flat line means that the length of the conversation costs nothing."),
        Plot("A turn, by number of stored conversations", "p50_ms",
             Axis("known sessions", log=True), time, _lines(over_known(plan)),
             "A flat line means that other conversations cost nothing."),
        Plot("Turns per second, by concurrent conversations", "rate",
             Axis("sessions at once", log=True), rate, _lines(over_callers(plan)),
             "A rising line means that concurrent conversations share the cost of a commit."),
    )  # fmt: skip
    return Sheet(_goals(plan), tables, plots)


def _lines(cells: Mapping[int, str]) -> tuple[Line, ...]:
    points = tuple((float(size), cell) for size, cell in cells.items())
    return Line(OURS, points), Line(GATEWAY, points)


def measure(run: Run) -> Measured:
    plan = QUICK if run.quick else FULL
    measurements = run_cells(groups(plan), run.drivers, run.folder, run.steps)
    return Measured(measurements, sheet(plan), attrs.asdict(plan))


RUNTIME = Benchmark(
    name="runtime",
    about="Messages between actors, and whole durable turns, compared with peers in one run.",
    modules={
        "ours": "bench.runtime.ours",
        "baselines": "bench.runtime.baselines",
        "pykka": "bench.peers.pykka_actors",
        "xoscar": "bench.peers.xoscar_actors",
        "autogen-core": "bench.peers.autogen_agents",
        "hermes-agent": "bench.peers.hermes_gateway",
    },
    measure=measure,
)
