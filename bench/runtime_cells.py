"""What `runtime` measures: how much of everything, in which cells, and who takes part in each."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

OURS = "ours"
CHANNEL = "trio channel"
FLOOR = "bare reschedule"
GATEWAY = "hermes-agent gateway"
MESSAGE_PEERS = {"Pykka": "pykka", "xoscar": "xoscar", "autogen-core": "autogen-core"}

HISTORY = 10
ASK, TELL, IDLE, WARM = "ask", "tell", "idle", "a warm session"
FEW = "10 messages, one session"
"""Where everything that grows begins."""


@attrs.frozen(kw_only=True)
class Plan:
    """How much of everything."""

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


FULL = Plan(
    repetitions=15, asks=20_000, tells=100_000, peer_asks=3_000, idle=10_000, warm=1_000,
    turns=300, peer_turns=20, turn_repetitions=3, histories=(100, 1_000, 10_000),
    known=(100, 1_000, 10_000), callers=(10, 100), seconds=3.0,
)  # fmt: skip
# Half a minute: hermes-agent takes three seconds to start, and 15 more to answer a hundred at once.
QUICK = Plan(
    repetitions=3, asks=3_000, tells=20_000, peer_asks=300, idle=3_000, warm=200,
    turns=100, peer_turns=4, turn_repetitions=1, histories=(300,), known=(300,), callers=(20,),
    seconds=0.5,
)  # fmt: skip


@attrs.frozen
class Contender:
    """Somebody in a cell: which driver is asked to do what."""

    who: str
    driver: str
    do: str
    arguments: Mapping[str, float]


@attrs.frozen
class Cell:
    """One thing that is measured, for everybody in turn."""

    name: str
    contenders: tuple[Contender, ...]


def over_history(plan: Plan) -> dict[int, str]:
    """The cells in which only the transcript grows."""
    return {HISTORY: FEW, **{size: f"{size:,} messages of history" for size in plan.histories}}


def over_known(plan: Plan) -> dict[int, str]:
    """The cells in which only the number of stored sessions grows."""
    return {1: FEW, **{size: f"{size:,} known sessions" for size in plan.known}}


def over_callers(plan: Plan) -> dict[int, str]:
    """The cells in which more and more sessions talk at once."""
    return {1: FEW, **{size: f"{size:,} sessions at once" for size in plan.callers}}


def turn_cells(plan: Plan) -> tuple[str, ...]:
    """The names of all cells of whole turns."""
    growing = (over_history(plan), over_known(plan), over_callers(plan))
    return tuple(dict.fromkeys(name for cells in growing for name in cells.values()))


def ends(plan: Plan) -> tuple[str, str, str]:
    """The largest of each: the longest history, the most known sessions, the most at once."""
    growing = (over_history(plan), over_known(plan), over_callers(plan))
    history, known, callers = (list(cells.values())[-1] for cells in growing)
    return history, known, callers


def of_messages(plan: Plan) -> tuple[Cell, ...]:
    """Messages between actors: nothing is stored."""
    asks, tells = {"count": plan.asks}, {"count": plan.tells}
    ask = (
        Contender(OURS, "ours", "ask", asks),
        Contender(CHANNEL, "floors", "ask", asks),
        Contender(FLOOR, "floors", "ping_pong", asks),
        *(
            Contender(who, name, "ask", {"count": plan.peer_asks})
            for who, name in MESSAGE_PEERS.items()
        ),
    )
    tell = (
        Contender(OURS, "ours", "tell", tells),
        Contender(CHANNEL, "floors", "tell", tells),
    )
    return Cell(ASK, ask), Cell(TELL, tell)


def of_files(plan: Plan) -> tuple[Cell, ...]:
    """Whatever needs a file, or a home, of its own."""
    return (
        Cell(IDLE, (Contender(OURS, "ours", "idle", {"count": plan.idle}),)),
        Cell(WARM, (Contender(OURS, "ours", "warm", {"count": plan.warm}),)),
        _turns(plan, FEW, HISTORY, 1),
        *(_turns(plan, over_history(plan)[size], size, 1) for size in plan.histories),
        *(_turns(plan, over_known(plan)[size], HISTORY, size) for size in plan.known),
        *(_at_once(plan, over_callers(plan)[size], size) for size in plan.callers),
    )


def _turns(plan: Plan, name: str, history: int, sessions: int) -> Cell:
    # A point between two ends shows the shape of the growth alone: half of the turns will do.
    share = 1 if name in {FEW, *ends(plan)} else 2
    size = {"history": history, "sessions": sessions}
    return _both(
        name, "turns", {**size, "count": plan.turns // share},
        {**size, "count": plan.peer_turns // share},
    )  # fmt: skip


def _at_once(plan: Plan, name: str, callers: int) -> Cell:
    size = {"callers": callers, "seconds": plan.seconds}
    return _both(name, "turns_at_once", size, size)


def _both(name: str, do: str, ours: Mapping[str, float], theirs: Mapping[str, float]) -> Cell:
    return Cell(
        name, (Contender(OURS, "ours", do, ours), Contender(GATEWAY, "hermes-agent", do, theirs))
    )
