"""What the runtime promises (issues 3 and 6), and how its figures are shown and explained."""

from __future__ import annotations

from collections.abc import Mapping

from bench.board import Goal, Ref
from bench.report import Axis, Column, Line, Plot, Sheet, Table
from bench.runtime_cells import (
    ASK,
    CHANNEL,
    FEW,
    FLOOR,
    GATEWAY,
    IDLE,
    OURS,
    TELL,
    WARM,
    Plan,
    ends,
    over_callers,
    over_history,
    over_known,
    turn_cells,
)

TURN = (
    "A turn is a message accepted, answered by an agent that says a fixed text at once, and "
    "committed to disk with its reply; what is left is the cost of the runtime itself."
)


def sheet(plan: Plan) -> Sheet:
    """All of it."""
    return Sheet(goals(plan), tables(plan), plots(plan))


# Goals


def goals(plan: Plan) -> tuple[Goal, ...]:
    """What issue 3 asks for."""
    long, known, crowd = ends(plan)
    return (
        _asks(CHANNEL, 1.5, "Trio's own channels, which our mailbox replaces"),
        _asks(FLOOR, 0.75, "two tasks that only wake each other, the least that Trio can do"),
        _asks("Pykka", 1.8, "Pykka, actors in threads"),
        _asks("xoscar", 5, "xoscar, actors on asyncio"),
        _asks("autogen-core", 10, "autogen-core, the actors below Microsoft's AutoGen"),
        Goal(
            "tell: ours / trio channel", Ref(TELL, OURS, "rate"), 2, Ref(TELL, CHANNEL, "rate"),
            at_least=True,
            explains="Messages per second to an actor that need no answer, as a multiple of what "
            "Trio's own channel carries.",
        ),
        Goal(
            "an idle actor", Ref(IDLE, OURS, "kib"), 3.4, unit="KiB",
            explains="Memory of a conversation that nobody uses at the moment, so that very many "
            "of them can wait.",
        ),
        _less(FEW, 15, "for a short conversation, alone on the machine"),
        _less(long, 60, "when the conversation is long"),
        _less(known, 300, "when the file knows many other conversations"),
        Goal(
            f"{crowd}: ours / {GATEWAY}", Ref(crowd, OURS, "rate"), 100,
            Ref(crowd, GATEWAY, "rate"), at_least=True,
            explains="Turns per second when many conversations go on at the same time, as a "
            "multiple of hermes-agent's.",
        ),
        Goal(
            "flat: long history / short", Ref(long, OURS, "p50_ms"), 1.5, Ref(FEW, OURS, "p50_ms"),
            explains="How much longer a turn of ours takes in the longest conversation than in one "
            "of ten messages; 1 means that length costs nothing.",
        ),
        Goal(
            "flat: many sessions / one", Ref(known, OURS, "p50_ms"), 1.3, Ref(FEW, OURS, "p50_ms"),
            explains="How much longer a turn of ours takes beside the most stored conversations "
            "than alone; 1 means that they cost nothing.",
        ),
    )  # fmt: skip


def _asks(theirs: str, least: float, what: str) -> Goal:
    return Goal(
        f"ask: ours / {theirs}", Ref(ASK, OURS, "rate"), least, Ref(ASK, theirs, "rate"),
        at_least=True,
        explains=f"Questions per second to an actor, each answered before the next, as a multiple "
        f"of {what}.",
    )  # fmt: skip


def _less(cell: str, least: float, when: str) -> Goal:
    return Goal(
        f"{cell}: overhead of {GATEWAY} / ours", Ref(cell, GATEWAY, "p50_ms"), least,
        Ref(cell, OURS, "p50_ms"), at_least=True,
        explains=f"How many times longer than ours a whole turn takes in hermes-agent's gateway, "
        f"the model's time not counted, {when}.",
    )  # fmt: skip


# Tables

MESSAGES = (
    Column("rate", "per second", 0, "higher", "Messages that one caller gets through in a second."),
    Column("us", "us", 1, explains="Microseconds for one message."),
)
TURNS = (
    Column("p50_ms", "p50 ms", 2, explains="Half of all turns were answered within this time."),
    Column("p99_ms", "p99 ms", 1, explains="99 of 100 turns were answered within this time."),
    Column("rate", "turns/s", 1, "higher", "Turns in a second, of all conversations together."),
    Column(
        "cpu_ms", "CPU ms", 2,
        explains="What a turn takes of one processor core; the rest of its time is waiting, mostly "
        "for the disk.",
    ),
    Column(
        "disk_bytes", "bytes/turn", 0,
        explains="By how much a turn with its two messages of 400 bytes makes the file grow, "
        "search index included.",
    ),
)  # fmt: skip


def tables(plan: Plan) -> list[Table]:
    """Every cell."""
    kib = Column("kib", "KiB", 2, explains="Resident memory of the process for each of them.")
    return [
        Table(
            ASK, "ask: one caller, one actor", MESSAGES,
            "One caller asks one actor, waits for the answer and asks again. The actor adds one to "
            "a number, so only the passing of messages is measured.",
        ),
        Table(
            TELL, "tell: until all are processed", MESSAGES,
            "One caller sends messages without waiting for answers; the time ends when the actor "
            "has worked on the last one.",
        ),
        Table(
            IDLE, "an idle actor", (kib,),
            "Memory that a conversation takes while it only waits, measured in a fresh process.",
        ),
        Table(
            WARM, "a warm session: cached agent, 10 messages", (kib,),
            "Memory that a conversation takes right after an answer, with its chat agent and its "
            "ten messages of 400 bytes kept for the next one; measured in a fresh process.",
        ),
        *(Table(cell, f"a durable turn: {cell}", TURNS, _about(plan, cell))
          for cell in turn_cells(plan)),
    ]  # fmt: skip


def _about(plan: Plan, cell: str) -> str:
    if cell == FEW:
        return f"{TURN} One conversation of ten messages, one turn after the other."
    if cell in over_history(plan).values():
        return "One turn after the other in one conversation that is as long as this already."
    if cell in over_known(plan).values():
        return (
            "One turn after the other in one conversation of ten messages, while so many "
            "conversations are stored."
        )
    return (
        "So many conversations of ten messages each, all at the same time; each waits for its "
        "answer before it says more."
    )


# Plots


def plots(plan: Plan) -> tuple[Plot, ...]:
    """How the cost of a turn grows, for ours and for hermes-agent's gateway."""
    return (
        Plot(
            "A turn, over the length of the conversation", "p50_ms",
            Axis("messages in the conversation", log=True), Axis("p50 ms per turn", log=True),
            _lines(over_history(plan)),
            "The median time of a turn in ever longer conversations. Flat is good: what was said "
            "before then costs nothing.",
        ),
        Plot(
            "A turn, over the number of stored conversations", "p50_ms",
            Axis("known sessions", log=True), Axis("p50 ms per turn", log=True),
            _lines(over_known(plan)),
            "The median time of a turn in one conversation, while ever more others are stored. "
            "Flat is good: a user does not pay for the others.",
        ),
        Plot(
            "Turns per second, over conversations at once", "rate",
            Axis("sessions at once", log=True), Axis("turns per second", log=True),
            _lines(over_callers(plan)),
            "Turns of all conversations together, while ever more of them go on at the same time. "
            "Rising is good: commits are shared, and nobody waits in line.",
        ),
    )  # fmt: skip


def _lines(cells: Mapping[int, str]) -> tuple[Line, ...]:
    points = {float(size): cell for size, cell in cells.items()}
    return Line(OURS, points), Line(GATEWAY, points)
