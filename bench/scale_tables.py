"""The tables of docs/scale.md, each by the name of its place in the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from bench import capacity
from bench.report import aligned
from bench.scale_cases import (
    BOUNDS,
    CASES,
    CHAT,
    DAY,
    GB,
    GIB,
    MINUTES,
    SHAPES,
    TARGET,
    TOOLS,
    Database,
    Machine,
    Shape,
    memory,
    nodes_on,
    shares,
    through,
)
from bench.scale_checks import (
    MEANS,
    MEASURED,
    TAILS,
    Answer,
    Crowded,
    Loaded,
    Pair,
    answers,
    crowded,
    fullest,
    loaded,
)
from bench.unit_costs import MIB, Results, Units

NODES = (2, 4, 16)
ACTIVE = (1_000, 10_000)
INDEX_SHARE = 0.1
"""Of the writer's time that indexing takes at most (`hermes/store/actor.py`)."""
ROOM = 0.7
"""Of the most that a node can do, when something is said of a node that is well used."""


@attrs.frozen
class Block:
    """One table; `agrees` where all that is compared in it does."""

    name: str
    text: str
    agrees: bool = True


def blocks(results: Results, units: Units, seed: int) -> list[Block]:
    """All tables, in the page's order."""
    return [
        Block("costs", costs(units)),
        measured(crowded(results, units, seed)),
        Block("node", node(units)),
        load(loaded(units, seed)),
        limits(answers(units, seed)),
        Block("memory", held(units)),
        Block("disk", disk(units)),
        Block("model", model(units)),
        Block("cases", cases(units, Machine())),
        nodes(units, seed),
        Block("database", database(units, Database())),
    ]


def _verdict(pairs: Sequence[Pair]) -> str:
    return "ok" if all(pair.agrees for pair in pairs) else "OFF"


def _agree(pairs: Iterable[Pair]) -> bool:
    return all(pair.agrees for pair in pairs)


def _or_dash(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _round(value: float) -> str:
    """Two digits: no more are meant."""
    return f"{int(float(f'{value:.1e}')):,}"


def costs(units: Units) -> str:
    """What one of everything costs, and where that was found."""
    named = attrs.asdict(units, recurse=False)
    return aligned(
        [
            ["unit", "cost", "from"],
            *([name, unit.shown, unit.source] for name, unit in named.items()),
        ]
    )


def measured(found: Sequence[Crowded]) -> Block:
    """The simulation beside what was measured."""
    lines = [["sessions at once", "turns/s", "derived", "p50 ms", "p99 ms", "CPU ms", ""]]
    for one in found:
        seen = one.seen
        lines.append(
            [
                f"{one.sessions}",
                f"{_or_dash(one.rate, 0)} / {seen.rate:,.0f}",
                f"{one.derived:,.0f}",
                f"{_or_dash(one.p50_ms, 2)} / {seen.quantile(0.5) * 1e3:.2f}",
                f"{_or_dash(one.p99_ms, 1)} / {seen.quantile(0.99) * 1e3:.1f}",
                f"{_or_dash(one.cpu_ms, 2)} / {seen.busy / seen.rate * 1e3:.2f}",
                _verdict(one.pairs),
            ]
        )
    rule = (
        f"measured / simulated; ok: turns/s and p50 within {MEASURED:.0%} of measured, "
        f"turns/s within {MEANS:.0%} of derived"
    )
    text = f"{aligned(lines)}\n{rule}"
    return Block("measured", text, _agree(pair for one in found for pair in one.pairs))


def node(units: Units) -> str:
    """What one node can do."""
    target, people = f"p99 <= {TARGET * 1e3:.0f} ms", f"people, a message in {MINUTES} min"
    lines = [["a turn is", "CPU ms", "alone ms", "at most", target, people, "open turns"]]
    for shape in SHAPES:
        paid = shape.costs(units)
        rate = capacity.rate_within(TARGET, paid, shape.model)
        lines.append(
            [
                shape.name,
                f"{capacity.work(paid, shape.calls) * 1e3:.2f}",
                f"{capacity.alone(paid, shape.calls) * 1e3:.1f}",
                f"{capacity.most(paid, shape.calls):,.0f} turns/s",
                f"{rate:,.0f} turns/s",
                _round(rate * MINUTES * 60),
                f"{rate * shape.model.mean:,.0f}",
            ]
        )
    assumed = [f"assumed of {shape.name}: {shape.described()}" for shape in SHAPES if shape.calls]
    return "\n".join([aligned(lines), *assumed, _restart(units)])


def _restart(units: Units) -> str:
    """What a crash costs those who wait."""
    paid = CHAT.costs(units)
    most = capacity.most(paid, CHAT.calls)
    rate, down = ROOM * most, units.start.value
    again = rate * CHAT.model.mean
    loading = 1 + CHAT.history * units.load.value * most  # a transcript is read before each
    seconds = capacity.catching_up(again * loading, rate, down, most)
    return (
        f"a restart at {rate:,.0f} turns/s: {down:.2f} s until messages are accepted, "
        f"{seconds:.0f} s until the work of {again:,.0f} interrupted turns is done again"
    )


def load(found: Sequence[Loaded]) -> Block:
    """Formulas beside the simulation, at several loads."""
    shown = ((100, 0), (1, 2), (1e3, 1), (1e3, 1))
    lines = [["a turn is", "turns/s", "busy %", "requests/commit", "mean ms", "p99 ms", ""]]
    for one in found:
        both = [
            f"{pair.expected * factor:,.{digits}f} / {pair.found * factor:,.{digits}f}"
            for pair, (factor, digits) in zip(one.pairs, shown, strict=True)
        ]
        lines.append([one.shape.name, f"{one.rate:,.0f}", *both, _verdict(one.pairs)])
    rule = f"derived / simulated; ok: within {MEANS:.0%}, p99 within {TAILS:.0%}"
    text = f"{aligned(lines)}\n{rule}"
    return Block("load", text, _agree(pair for one in found for pair in one.pairs))


def limits(found: Sequence[Answer]) -> Block:
    """Formulas beside the simulation, for single questions."""
    lines = [["question", "derived", "simulated", ""]]
    for one in found:
        bound = "<= " if one.pair.bound else ""
        derived = f"{bound}{one.pair.expected:,.0f} {one.unit}"
        simulated = f"{one.pair.found:,.0f} {one.unit}"
        lines.append([one.question, derived, simulated, _verdict([one.pair])])
    return Block("limits", aligned(lines), _agree(one.pair for one in found))


def held(units: Units) -> str:
    """What memory holds."""
    sizes = {
        "an idle actor": units.actor.value,
        **{f"an open turn: {shape.name}": shape.held(units) for shape in SHAPES},
    }
    lines = [["what", "each", "in 1 GiB"]]
    for what, size in sizes.items():
        lines.append([what, f"{size / 1024:.1f} KiB", _round(GIB / size)])
    kept = f"{BOUNDS.max_agents} agents and {BOUNDS.transcript_bytes / MIB:.0f} MiB of transcripts"
    return (
        f"{aligned(lines)}\nthe process itself: {units.process.value / MIB:.1f} MiB; "
        f"kept warm between turns: {kept} at most"
    )


def disk(units: Units) -> str:
    """What the disk holds, and what it must do."""
    machine = Machine()
    each = 1 / (units.commit.value + units.flush.value)
    lines = [["chat turns/s, day and night", "GB per day", f"{machine.disk / GB:.0f} GB last"]]
    for rate in (0.1, 1, 10, 100):
        daily = rate * DAY * CHAT.stored(units)
        lines.append([f"{rate:g}", f"{daily / GB:.3f}", _round(machine.disk / daily) + " days"])
    indexed = INDEX_SHARE / units.index.value / CHAT.rows
    return (
        f"{aligned(lines)}\nflushes: at most {each:,.0f} a second at any load, of the "
        f"{1 / units.flush.value:,.0f} this disk can do\n"
        f"the search index keeps up until {_round(indexed)} turns/s, and lags beyond"
    )


def _at_target(shape: Shape, units: Units) -> float:
    return capacity.rate_within(TARGET, shape.costs(units), shape.model)


def model(units: Units) -> str:
    """Where the model's own limit lies, and where the node's."""
    shapes = (CHAT, TOOLS)
    lines = [["tokens per minute", *(f"{one.name} ({one.tokens:,} tokens)" for one in shapes)]]
    for limit in (2e5, 2e6, 2e7, 2e8):
        rates = [f"{limit / 60 / one.tokens:,.2f} turns/s" for one in shapes]
        lines.append([f"{limit:,.0f}", *rates])
    own = [f"{_at_target(one, units):,.2f} turns/s" for one in shapes]
    as_tokens = [f"{_round(_at_target(one, units) * 60 * one.tokens)} tokens" for one in shapes]
    return aligned([*lines, ["the node itself", *own], ["which is, per minute", *as_tokens]])


def cases(units: Units, machine: Machine) -> str:
    """Three bots, what they need of each limit at their peak, and which ends first."""
    lines = [["bot", "turns/s", "processor", "memory", "disk, a year", "model", "grows until"]]
    for case in CASES:
        needs = shares(case, units, machine)
        first, second = sorted(needs, key=needs.__getitem__, reverse=True)[:2]
        lines.append(
            [
                case.name,
                f"{case.rate:.2f}",
                f"{needs['processor']:.2%}",
                f"{memory(case, units) / MIB:,.0f} MiB",
                f"{needs['disk'] * machine.disk / GB:,.1f} GB",
                f"{needs['model']:.1%}",
                f"{first} x {1 / needs[first]:,.1f}, {second} x {1 / needs[second]:,.1f}",
            ]
        )
    has = (
        f"{machine.memory / GIB:.0f} GiB memory, {machine.disk / GB:.0f} GB disk, "
        f"{machine.tokens:,.0f} tokens per minute"
    )
    assumed = [f"assumed of {case.name}: {case.described()}" for case in CASES]
    return "\n".join([aligned(lines), *assumed, f"assumed of all: {has}"])


def nodes(units: Units, seed: int) -> Block:
    """What several nodes can do together."""
    one = _at_target(CHAT, units)
    lines = [["nodes", "active people", "fullest has, bound", "simulated", "turns/s together", ""]]
    pairs = []
    for count in NODES:
        for keys in ACTIVE:
            pair = fullest(keys, count, seed)
            pairs.append(pair)
            together = f"{count * one / pair.expected:,.0f}"
            numbers = [f"{count}", f"{keys:,}", f"{pair.expected:.3f} x", f"{pair.found:.3f} x"]
            lines.append([*numbers, together, _verdict([pair])])
    return Block("nodes", aligned(lines), _agree(pairs))


def database(units: Units, shared: Database) -> str:
    """Nodes on one PostgreSQL, which is planned: nothing here was measured."""
    lines = [["a turn is", "alone ms", "turns/s of a node", "its commits/s", "nodes", "turns/s"]]
    for shape in SHAPES:
        paid = through(shared, shape.costs(units))
        rate = ROOM * capacity.most(paid, shape.calls)
        commits = 2 * rate / capacity.under(rate, paid, shape.model).batch
        count = nodes_on(shared, rate, paid, shape.model)
        lines.append(
            [
                shape.name,
                f"{capacity.alone(paid, shape.calls) * 1e3:.1f}",
                f"{rate:,.0f}",
                f"{commits:,.0f}",
                f"{count}",
                _round(count * rate),
            ]
        )
    return (
        f"{aligned(lines)}\nassumed: {shared.trip * 1e3:.1f} ms a trip, "
        f"{shared.flush * 1e3:.1f} ms a flush, {shared.commits:,.0f} commits/s for all nodes; "
        f"each node at {ROOM:.0%}"
    )
