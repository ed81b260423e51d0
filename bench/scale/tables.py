"""The tables of docs/scale.md, by the name of their place in the page."""

from __future__ import annotations

import attrs

from bench.errors import CommandError
from bench.report.tables import align
from bench.scale.capacity import (
    CASES,
    CHAT,
    GB,
    GIB,
    SHAPES,
    TOOLS,
    UTILIZATION,
    Machine,
    rate_at_once,
)
from bench.scale.unit_costs import ALONE, KIB, MIB, Medians, UnitCosts

MINUTES = 5
"""Minutes between two messages of a person who chats."""
TOLERANCE = 0.5
"""Between a derived and a measured rate: absolute figures vary by 40 % on a shared machine."""


def tables(medians: Medians, costs: UnitCosts) -> dict[str, str]:
    """Return all tables. Raises CommandError if the model does not predict what was measured."""
    return {
        "costs": _costs(costs),
        "measured": _measured(medians, costs),
        "node": _node(costs),
        "cases": _cases(costs, Machine()),
    }


def _costs(costs: UnitCosts) -> str:
    lines = [["unit", "cost", "source"]]
    sizes = {"process", "actor", "warm", "stored"}
    values = attrs.asdict(costs)
    for field in attrs.fields(UnitCosts):
        name, value = field.name, values[field.name]
        cost = f"{value / KIB:,.2f} KiB" if name in sizes else f"{value * 1e3:.5f} ms"
        lines.append([name, cost, field.metadata["source"]])
    return align(lines)


def _measured(medians: Medians, costs: UnitCosts) -> str:
    lines = [["sessions at once", "measured turns/s", "derived turns/s"]]
    for sessions in (1, 10, 100):
        cell = ALONE if sessions == 1 else f"{sessions} sessions at once"
        measured = medians.get("runtime", cell, "ours", "rate")
        derived = rate_at_once(sessions, costs)
        if abs(derived / measured - 1) > TOLERANCE:
            rates = f"{derived:,.0f} turns/s are derived, but {measured:,.0f} were measured"
            raise CommandError(f"With {sessions} sessions at once, {rates}.")
        lines.append([f"{sessions}", f"{measured:,.0f}", f"{derived:,.0f}"])
    return align(lines)


def _node(costs: UnitCosts) -> str:
    heading = ["a turn", "CPU ms", "alone ms", "most turns/s", f"at {UTILIZATION:.0%}"]
    heading += [f"people, a message in {MINUTES} min", "open turns", "KiB each", "KiB on disk"]
    lines = [heading]
    for shape in SHAPES:
        rate = shape.planned_rate(costs)
        lines.append(
            [
                shape.name,
                f"{shape.work(costs) * 1e3:.2f}",
                f"{shape.alone(costs) * 1e3:.1f}",
                f"{1 / shape.work(costs):,.0f}",
                f"{rate:,.0f}",
                f"{int(float(f'{rate * MINUTES * 60:.1e}')):,}",
                f"{rate * shape.model_seconds:,.0f}",
                f"{shape.memory(costs) / KIB:,.0f}",
                f"{shape.rows * costs.stored / KIB:.1f}",
            ]
        )
    assumed = [
        f"{shape.name}: {shape.calls} x {shape.seconds:g} s (median), {shape.pieces} pieces each, "
        f"{shape.history} messages of history, {shape.tokens:,} tokens in all"
        for shape in (CHAT, TOOLS)
    ]
    return "\n".join([align(lines), *assumed])


def _cases(costs: UnitCosts, machine: Machine) -> str:
    lines = [["bot", "turns/s", "processor", "memory", "disk, a year", "model", "room to grow"]]
    for case in CASES:
        needs = machine.shares(case, costs)
        first, second = sorted(needs, key=needs.__getitem__, reverse=True)[:2]
        lines.append(
            [
                case.name,
                f"{case.rate:.2f}",
                f"{needs['processor']:.2%}",
                f"{case.memory(costs) / MIB:,.0f} MiB",
                f"{needs['disk'] * machine.disk / GB:,.1f} GB",
                f"{needs['model']:.1%}",
                f"{first} x {1 / needs[first]:,.1f}, {second} x {1 / needs[second]:,.1f}",
            ]
        )
    assumed = [
        f"{case.name}: {case.shape.name}; {case.people:,} people at the peak, a message in "
        f"{case.minutes:g} min each, {case.daily:,} turns a day"
        for case in CASES
    ]
    limits = (
        f"limits: {machine.memory / GIB:.0f} GiB memory, {machine.disk / GB:.0f} GB disk, "
        f"{machine.tokens:,.0f} tokens per minute"
    )
    return "\n".join([align(lines), *assumed, limits])
