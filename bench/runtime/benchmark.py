"""The runtime benchmark: messages between actors, memory, and whole durable turns."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from bench.harness.benchmark import Benchmark, Cell, Contender, Group, measure_cells
from bench.harness.measurements import Goal, Ref, ratio
from bench.report.results import Column

OURS = "ours"
CHANNEL = "trio channel"
FLOOR = "bare reschedule"
GATEWAY = "hermes-agent gateway"
MESSAGE_PEERS = {"Pykka": "pykka", "xoscar": "xoscar", "autogen-core": "autogen-core"}
ASK, TELL, IDLE, WARM = "ask", "tell", "idle", "a warm session"
HISTORY = 10
FEW = "10 messages, one session"
"""The smallest cell of whole turns, with which the larger ones are compared."""

MESSAGES = (
    Column("rate", "per second", 0, "higher", "Messages of one caller per second."),
    Column("us", "us", 1, explains="Microseconds per message."),
)
TURN = (
    Column("p50_ms", "p50 ms", 2, explains="Median time of a turn."),
    Column("p99_ms", "p99 ms", 1, explains="99th percentile of the time of a turn."),
    Column("rate", "turns/s", 1, "higher", "Turns per second, all conversations together."),
    Column("cpu_ms", "CPU ms", 2, explains="Processor time of a turn."),
)
DISK = Column(
    "disk_bytes", "bytes/turn", 0,
    explains="Growth of the file by a turn of two messages of 400 bytes, with the index.",
)  # fmt: skip
KIB = Column("kib", "KiB", 2, explains="Resident memory of the process for each of them.")


@attrs.frozen(kw_only=True)
class Plan:
    """The amount of work; the defaults are a full run."""

    repetitions: int = 15
    asks: int = 20_000
    tells: int = 100_000
    peer_asks: int = 3_000
    idle: int = 10_000
    warm: int = 1_000
    turns: int = 300
    peer_turns: int = 20
    turn_repetitions: int = 3
    histories: tuple[int, ...] = (100, 1_000, 10_000)
    known: tuple[int, ...] = (100, 1_000, 10_000)
    callers: tuple[int, ...] = (10, 100)
    seconds: float = 3.0


FULL = Plan()
# Half a minute: hermes-agent takes three seconds to start, and 15 more for 100 turns at once.
QUICK = Plan(
    repetitions=3, asks=3_000, tells=20_000, peer_asks=300, idle=3_000, warm=200,
    turns=100, peer_turns=4, turn_repetitions=1, histories=(300,), known=(300,), callers=(20,),
    seconds=0.5,
)  # fmt: skip


def growing(plan: Plan) -> dict[str, dict[int, str]]:
    """The cells in which only the transcript, the stored or the concurrent sessions grow."""
    return {
        "history": {HISTORY: FEW, **{n: f"{n:,} messages of history" for n in plan.histories}},
        "sessions": {1: FEW, **{n: f"{n:,} known sessions" for n in plan.known}},
        "callers": {1: FEW, **{n: f"{n:,} sessions at once" for n in plan.callers}},
    }


def largest(plan: Plan) -> list[str]:
    """The cells with the longest history, the most known and the most concurrent sessions."""
    return [list(cells.values())[-1] for cells in growing(plan).values()]


def groups(plan: Plan) -> list[Group]:
    """Messages between actors, then everything that needs a database."""
    return [
        Group(plan.repetitions, _message_cells(plan)),
        Group(plan.turn_repetitions, (*_memory_cells(plan), *turn_cells(plan))),
    ]


def _message_cells(plan: Plan) -> tuple[Cell, ...]:
    asks, tells, fewer = ({"count": n} for n in (plan.asks, plan.tells, plan.peer_asks))
    ask = (
        Contender(OURS, "messages", "ask_mailbox", asks),
        Contender(CHANNEL, "messages", "ask_channel", asks),
        Contender(FLOOR, "messages", "ask_scheduler", asks),
        *(Contender(who, name, "ask", fewer) for who, name in MESSAGE_PEERS.items()),
    )
    tell = (
        Contender(OURS, "messages", "tell_mailbox", tells),
        Contender(CHANNEL, "messages", "tell_channel", tells),
    )
    return (
        Cell(ASK, "ask: one caller, one actor", MESSAGES,
             "One caller sends a request to one actor, waits for the reply and repeats. The actor "
             "adds one to a number, so only the message passing is measured.", ask, given=()),
        Cell(TELL, "tell: until all are processed", MESSAGES,
             "One caller sends messages without waiting, until the last one is processed.", tell,
             given=()),
    )  # fmt: skip


def _memory_cells(plan: Plan) -> tuple[Cell, ...]:
    idle = Contender(OURS, "ours", "memory", {"what": IDLE, "count": plan.idle})
    warm = Contender(OURS, "ours", "memory", {"what": "warm", "count": plan.warm})
    return (
        Cell(IDLE, "an idle actor", (KIB,), "Memory per idle conversation, in a fresh process.",
             (idle,)),
        Cell(WARM, "a warm session: cached agent, 10 messages", (KIB,),
             "Memory per conversation after a reply, with its cached chat agent and its ten "
             "messages of 400 bytes, in a fresh process.", (warm,)),
    )  # fmt: skip


def turn_cells(plan: Plan) -> list[Cell]:
    """A short conversation, then more messages, more sessions, and more of them at once."""
    short = (
        "A turn accepts a message, runs an agent that replies with a fixed text, and commits the "
        "reply; what remains is the cost of the runtime. One conversation of ten messages."
    )
    explained = {
        "history": "Sequential turns in one conversation of this length.",
        "sessions": "Sequential turns in one conversation, with this many stored conversations.",
        "callers": "This many concurrent conversations, each waiting for its reply.",
    }
    return [
        _turns(plan, FEW, short, {}),
        *(
            _turns(plan, name, explained[what], {what: size})
            for what, cells in growing(plan).items()
            for size, name in cells.items()
            if name != FEW
        ),
    ]


def _turns(plan: Plan, name: str, explains: str, grown: Mapping[str, int]) -> Cell:
    # Points between the smallest and the largest only show the shape: half as many turns suffice.
    share = 1 if name in {FEW, *largest(plan)} else 2
    amounts: list[dict[str, float]] = [{"count": n // share} for n in (plan.turns, plan.peer_turns)]
    size = {"history": HISTORY, "sessions": 1, "callers": 1, **grown}
    if size["callers"] > 1:
        size["sessions"] = size["callers"]
        amounts = [{"seconds": plan.seconds}] * 2
    ours = Contender(OURS, "ours", "turns", {**size, **amounts[0]})
    theirs = Contender(GATEWAY, "hermes-agent", "turns", {**size, **amounts[1]})
    return Cell(name, f"a durable turn: {name}", (*TURN, DISK), explains, (ours, theirs))


def goals(plan: Plan) -> list[Goal]:
    long, known, crowd = largest(plan)
    asks = {
        CHANNEL: (1.5, "Trio's channels, which our mailbox replaces"),
        FLOOR: (0.75, "two tasks that only wake each other, the least that Trio can do"),
        "Pykka": (1.8, "Pykka, whose actors are threads"),
        "xoscar": (5, "xoscar, whose actors run on asyncio"),
        "autogen-core": (10, "autogen-core, the actor layer of Microsoft's AutoGen"),
    }
    turns = {
        FEW: (15, "in a short conversation"),
        long: (60, "in a long conversation"),
        known: (300, "with many other conversations in the file"),
    }
    return [
        *(ratio(ASK, "rate", OURS, who, least,
                f"Request-reply round trips per second compared with {what}.")
          for who, (least, what) in asks.items()),
        ratio(TELL, "rate", OURS, CHANNEL, 2, "Messages per second without a reply."),
        Goal("an idle actor", Ref(IDLE, OURS, "kib"), 3.4, unit="KiB",
             explains="Memory of a conversation that is not in use."),
        *(ratio(cell, "p50_ms", GATEWAY, OURS, least,
                f"Time of a turn in hermes-agent's gateway compared with ours {when}, without "
                "model.", text=f"{cell}: overhead of {GATEWAY} / ours")
          for cell, (least, when) in turns.items()),
        ratio(crowd, "rate", OURS, GATEWAY, 100,
              "Turns per second of many concurrent conversations."),
        Goal("flat: long history / short", Ref(long, OURS, "p50_ms"), 1.5,
             Ref(FEW, OURS, "p50_ms"),
             explains="Our turn in the longest conversation; 1 means that length costs nothing."),
        Goal("flat: many sessions / one", Ref(known, OURS, "p50_ms"), 1.3,
             Ref(FEW, OURS, "p50_ms"),
             explains="Our turn with many stored sessions; 1 means that they cost nothing."),
    ]  # fmt: skip


RUNTIME = Benchmark(
    name="runtime",
    about="Messages between actors, and whole durable turns, compared with peers in one run.",
    modules={
        "ours": "bench.runtime.ours",
        "messages": "bench.runtime.messages",
        "pykka": "bench.peers.pykka_actors",
        "xoscar": "bench.peers.xoscar_actors",
        "autogen-core": "bench.peers.autogen_agents",
        "hermes-agent": "bench.peers.hermes_gateway",
    },
    measure=measure_cells(FULL, QUICK, groups, goals),
)
