"""The agents benchmark: turns with a model over HTTP, streaming, and imports."""

from __future__ import annotations

import attrs

from bench.harness.benchmark import Benchmark, Cell, Contender, Group, measure_cells
from bench.harness.measurements import Goal, Ref, ratio
from bench.report.results import Column
from bench.runtime.benchmark import TURN

OURS = "ours"
READY = "ours, with open_runtime"
THEIRS = "hermes-agent"
BARE = "bare httpx2 stream"
HISTORY = 10
STREAMING, IMPORTING = "streaming", "importing"
STREAMED = (
    Column("first_ms", "first piece ms", 2, explains="From the request to the first piece."),
    Column("piece_us", "each piece us", 1, explains="Mean time from one piece to the next."),
)
IMPORTED = (
    Column("seconds", "s", 2, explains="Import time in a fresh process."),
    Column("mib", "MiB", explains="Memory of the process afterwards."),
)


@attrs.frozen(kw_only=True)
class Plan:
    """The amount of work; the defaults are a full run."""

    repetitions: int = 3
    turns: int = 200
    peer_turns: int = 6
    many: int = 10_000
    streams: int = 15


FULL = Plan()
QUICK = Plan(repetitions=1, turns=20, peer_turns=2, many=200, streams=3)


def turn_cell(history: int) -> str:
    """The name of the cell with whole turns after this many messages."""
    return f"a turn, {history:,} messages"


def groups(plan: Plan) -> list[Group]:
    stream = {"times": plan.streams}
    streaming = Cell(
        STREAMING, "a streamed answer", STREAMED,
        "A reply of 2,000 pieces, read by our provider, and by httpx2 alone, which decodes the "
        "JSON of each event.",
        (Contender(OURS, "ours", "streaming", stream), Contender(BARE, "ours", "bare", stream)),
        given=("url",),
    )  # fmt: skip
    # `import hermes` loads names on first use, so what a host really waits for is a row, too.
    importing = Cell(
        IMPORTING, "importing", IMPORTED, "What every start of a program waits for.",
        (
            Contender(OURS, "ours", "importing", {"code": "import hermes"}),
            Contender(READY, "ours", "importing", {"code": "import hermes; hermes.open_runtime"}),
            Contender(THEIRS, "hermes-agent", "importing", {"code": "import gateway.run"}),
        ),
        given=(),
    )  # fmt: skip
    few = "From a message to its stored reply in a short conversation. The model replies at once, "
    few += "so everything but the model is measured."
    long = "The same in a long conversation, all of which is sent to the model."
    turns = _turns(plan, HISTORY, few), _turns(plan, plan.many, long)
    return [Group(plan.repetitions, (*turns, streaming, importing))]


def _turns(plan: Plan, history: int, explains: str) -> Cell:
    name, work = turn_cell(history), {"history": history}
    ours = Contender(OURS, "ours", "turns", {**work, "count": plan.turns})
    theirs = Contender(THEIRS, "hermes-agent", "turns", {**work, "count": plan.peer_turns})
    title, given = f"{name} of history, over HTTP", ("path", "url")
    return Cell(name, title, TURN, explains, (ours, theirs), given)


def goals(plan: Plan) -> list[Goal]:
    turn = "Time of a turn in a {} conversation, with a model that replies at once."
    return [
        ratio(turn_cell(HISTORY), "p50_ms", THEIRS, OURS, 15, turn.format("short")),
        ratio(turn_cell(plan.many), "p50_ms", THEIRS, OURS, 60, turn.format("long")),
        Goal("streaming: until the first piece", Ref(STREAMING, OURS, "first_ms"), 1.2,
             Ref(STREAMING, BARE, "first_ms"),
             explains="Time until the first text; 1 means that our provider adds nothing."),
        Goal("streaming: each piece", Ref(STREAMING, OURS, "piece_us"), 1.2,
             Ref(STREAMING, BARE, "piece_us"),
             explains="Time of every further piece, compared with httpx2's event parser."),
        Goal("importing: ours / hermes-agent's gateway.run", Ref(IMPORTING, OURS, "seconds"), 0.6,
             Ref(IMPORTING, THEIRS, "seconds"),
             explains="Time of `import hermes` in a fresh process."),
        Goal("importing, until open_runtime can be called: ours / gateway.run",
             Ref(IMPORTING, READY, "seconds"), 0.6, Ref(IMPORTING, THEIRS, "seconds"),
             explains="The same until a runtime can be opened: names are loaded on first use."),
        Goal("importing: resident", Ref(IMPORTING, READY, "mib"), 60, unit="MiB",
             explains="Memory of a process that can open a runtime."),
    ]  # fmt: skip


AGENTS = Benchmark(
    name="agents",
    about="Agents with a model over HTTP: whole turns, streaming, and imports.",
    modules={
        "ours": "bench.agents.ours",
        "hermes-agent": "bench.peers.hermes_gateway",
        "model": "bench.agents.model",
    },
    measure=measure_cells(FULL, QUICK, groups, goals),
)
