"""One page of results that needs nothing else: ratios first, absolute figures second."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench import plots, written
from bench.axes import Scale, scale
from bench.markup import tag, text
from bench.plots import Aim, Bar, Mark, Point, Series, Side
from bench.report import Json
from bench.written import Column, Goal, Plot, Result, Spread, Table

STYLE = Path(__file__).with_suffix(".css")
TITLE = "Hermes, measured"
INTRODUCTION = (
    "Hermes is a runtime for chat agents that keeps every conversation whole; this page shows what "
    "it costs beside its peers and beside the limits of the machine. Everybody did the same work "
    "on the same machine, in turn, slow ones less of it, so that the p99 of a peer is often its "
    "slowest turn: first come the ratios, then the absolute figures."
)
READING = (
    "A figure is the median of its repetitions, with the lowest and the highest beside it. A goal "
    "that compares takes the ratio within each repetition first, so that noise which hits both "
    "cancels. On a shared machine absolute figures move by 40 %, ratios by 15 to 25 %."
)
STRIPS = (
    "In each strip the shaded part is where the goal is met and the thick line its target; the "
    "dashed line is 1 ×, which means no difference. The diamond is what was measured, hollow and "
    "red where the goal is missed, hollow and grey where a quick run is too small to judge; its "
    "whisker spans all repetitions. Scales are logarithmic, and one for all ratios."
)
QUICK = (
    "fewer repetitions and smaller files than the goals are stated for. It shows that everything "
    "runs, not how fast it is."
)
SUMMARY = ("benchmark", "goals met", "missed", "not judged", "when", "commit", "took")
OUTCOMES = {"pass": "pass", "FAIL": "fail"}
TRACK = (20.0, 280.0)


def html(documents: Iterable[Json]) -> str:
    """The page of these documents, which are files of results; the same page for the same ones."""
    shown = sorted(map(written.parse, documents), key=_place)
    names = _names(shown)
    title, style = tag("title", text(TITLE)), tag("style", STYLE.read_text())
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">{title}{style}'
    )
    sections = [_section(result, name) for result, name in zip(shown, names, strict=True)]
    main = tag("main", _opening(shown, names), *sections)
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{main}</body></html>\n'


def _place(result: Result) -> tuple[int, str, str]:
    known = written.place(result.benchmark)
    return known, result.benchmark, str(result.machine.get("when"))


def _names(shown: Sequence[Result]) -> list[str]:
    """A fragment to link to for each: no two are the same."""
    seen: Counter[str] = Counter()
    names = []
    for result in shown:
        name = re.sub(r"[^a-z0-9]+", "-", result.benchmark.lower()).strip("-")
        seen[name] += 1
        names.append(f"{name}-{seen[name]}" if seen[name] > 1 else f"b-{name}")
    return names


def _opening(shown: Sequence[Result], names: Sequence[str]) -> str:
    quick = [result.benchmark for result in shown if result.quick]
    note = tag("strong", "Quick run: ") + text(f"{', '.join(quick)} had {QUICK}")
    rows = [_summary(result, name) for result, name in zip(shown, names, strict=True)]
    return "\n".join([
        tag("h1", text(TITLE)),
        tag("p", text(INTRODUCTION), class_="lead"),
        tag("p", note, class_="quick", role="note") if quick else "",
        _table(SUMMARY, rows, class_="summary"),
        tag("p", text(READING), class_="quiet"),
        _facts(_machine(shown)),
    ])  # fmt: skip


def _summary(result: Result, name: str) -> str:
    outcomes = Counter(OUTCOMES.get(goal.outcome, "unknown") for goal in result.goals)
    counts = (_count(outcomes[kind], kind) for kind in ("pass", "fail", "unknown"))
    link = tag("a", text(result.benchmark), href=f"#{name}") + (" (quick)" if result.quick else "")
    when = str(result.machine.get("when", "-")).replace("T", " ").replace("+00:00", " UTC")
    commit, took = str(result.machine.get("commit", "-")), f"{result.seconds:.0f} s"
    rest = (tag("td", text(words)) for words in (when, commit, took))
    return tag("tr", tag("th", link, scope="row"), *counts, *rest)


def _count(number: int, kind: str) -> str:
    return tag("td", str(number), class_=f"number {kind}" if number else "number")


def _machine(shown: Sequence[Result]) -> dict[str, str]:
    """What each run says of its machine: once, where they all say the same."""
    facts: dict[str, dict[str, None]] = {}
    for result in shown:
        for key, value in result.machine.items():
            if key not in {"when", "commit", "load_before", "load_after"}:
                facts.setdefault(key, {})[_plain(value)] = None
    return {key: "; ".join(said) for key, said in facts.items()}


def _section(result: Result, name: str) -> str:
    tables = [_shown_table(result, table) for table in result.tables] or _all_figures(result)
    drawn = [chart for plot in result.plots if (chart := _chart(result, plot))]
    parts = [
        tag("h2", text(result.benchmark)),
        tag("p", text(result.about), class_="lead"),
        _goals(result.goals),
        tag("h3", "Figures") if any(tables) else "",
        *tables,
        tag("h3", "How cost grows") if drawn else "",
        *drawn,
        tag("h3", "How it was measured"),
        _facts(_circumstances(result)),
    ]
    return tag("section", "\n".join(parts), id=name)


def _circumstances(result: Result) -> dict[str, str]:
    loads = (f"{_plain(result.machine.get(key, '-'))}" for key in ("load_before", "load_after"))
    facts = {"plan": _plain(result.plan), "load before and after": " and ".join(loads)}
    facts |= {who: _plain(about) for who, about in result.versions.items()}
    return facts


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(each)}" for key, each in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _goals(goals: Sequence[Goal]) -> str:
    if not goals:
        return tag("p", "This file has no goals.", class_="quiet")
    met = sum(goal.outcome == "pass" for goal in goals)
    said = f"{met} of {len(goals)} are met. {STRIPS}"
    across = _ratios(goals)
    rows = [_goal(goal, across if goal.unit() == "x" else _alone(goal)) for goal in goals]
    heading = ("goal", "target", "measured", "", "")
    table = _table(heading, rows, class_="goals")
    return tag("h3", "Goals") + tag("p", text(said), class_="quiet") + table


def _ratios(goals: Sequence[Goal]) -> Scale:
    """One scale for all ratios of a benchmark, so that their strips can be compared."""
    values = [1.0]
    for goal in goals:
        if goal.unit() == "x":
            values += _values(goal)
    return scale(values, *TRACK, log=True)


def _alone(goal: Goal) -> Scale:
    """With room on both sides of the target."""
    limit = goal.limit() or 0.0
    values = [*_values(goal), limit / 2, limit * 2]
    return scale(values, *TRACK, log=min(values) > 0)


def _values(goal: Goal) -> list[float]:
    limit, mark = goal.limit(), _mark(goal.measured, 2)
    ends = [] if mark is None else [mark.low, mark.median, mark.high]
    return ends if limit is None else [limit, *ends]


def _goal(goal: Goal, across: Scale) -> str:
    limit, mark = goal.limit(), _mark(goal.measured, 2)
    target = goal.target.replace(">=", "≥").replace("<=", "≤")
    target = re.sub(r" x$", " ×", target)
    why = tag("span", _said(goal.explains), class_="why") if goal.explains else ""
    kind = OUTCOMES.get(goal.outcome, "unknown")
    met = {"pass": True, "fail": False}.get(kind)
    drawn = ""
    if limit is not None:
        said = f"Target {target}; measured {'nothing' if mark is None else mark.text}."
        aim = Aim(limit, at_least=goal.target.startswith(">="), met=met)
        drawn = plots.strip(f"{goal.goal}: {goal.outcome}", said, mark, aim, across)
    return tag(
        "tr",
        tag("th", text(goal.goal), why, scope="row"),
        tag("td", text(target), class_="number"),
        tag("td", _spread(goal.measured, 2), class_="number"),
        tag("td", text(goal.outcome), class_=f"outcome {kind}"),
        tag("td", drawn),
    )


def _shown_table(result: Result, table: Table) -> str:
    """A cell as a table, the words that explain it, and a chart of its first column."""
    who = result.who(table.cell)
    if not who:
        return ""
    rows = [_row(result, table, each) for each in who]
    heading = ("", *(column.heading for column in table.columns))
    explained = [_explained(column) for column in table.columns if column.explains]
    return tag(
        "figure",
        tag("h4", text(table.title)),
        tag("p", _said(table.explains)) if table.explains else "",
        _table(heading, rows),
        tag("dl", *explained, class_="columns") if explained else "",
        _bars(result, table),
    )


def _explained(column: Column) -> str:
    return tag("div", tag("dt", text(f"{column.heading}: ")), tag("dd", _said(column.explains)))


def _row(result: Result, table: Table, who: str) -> str:
    cells = (
        tag("td", _spread(result.spread(table.cell, who, column.figure), column.digits),
            class_="number")
        for column in table.columns
    )  # fmt: skip
    return tag("tr", tag("th", text(who), scope="row"), *cells, class_="ours" if _ours(who) else "")


def _bars(result: Result, table: Table) -> str:
    if not table.columns:
        return ""
    column = table.columns[0]
    bars = []
    for who in result.who(table.cell):
        spread = result.spread(table.cell, who, column.figure)
        if (mark := _mark(spread, column.digits)) is not None:
            bars.append(Bar(who, f"{mark.median:,.{column.digits}f}", mark, _ours(who)))
    if not bars:
        return ""
    better = f" ({column.better} is better)" if column.better in {"lower", "higher"} else ""
    said = "; ".join(f"{bar.label}: {bar.mark.text}" for bar in bars)
    return plots.bars(f"{table.title}: {column.heading}", said, bars, column.heading + better)


def _all_figures(result: Result) -> list[str]:
    """For a file that does not say how it is shown: every figure, cell by cell."""
    parts = []
    for cell in dict.fromkeys(each.cell for each in result.figures):
        names = dict.fromkeys(each.figure for each in result.figures if each.cell == cell)
        table = Table(cell, cell, tuple(Column(name, name, 2) for name in names))
        rows = [_row(result, table, who) for who in result.who(cell)]
        parts.append(tag("figure", tag("h4", text(cell)), _table(("", *names), rows)))
    return parts


def _chart(result: Result, plot: Plot) -> str:
    series = []
    for line in plot.lines:
        marks = (
            (x, _mark(result.spread(cell, line.who, plot.figure), 2)) for x, cell in line.cells
        )
        points = [Point(x, mark) for x, mark in marks if mark is not None]
        if points:
            series.append(Series(line.who, points, _ours(line.who)))
    if not series:
        return ""
    said = "; ".join(
        f"{each.label}: " + ", ".join(f"{point.x:g} {point.mark.text}" for point in each.points)
        for each in series
    )
    x, y = (Side(axis.label, axis.log) for axis in (plot.x, plot.y))
    return tag(
        "figure",
        tag("h4", text(plot.title)),
        tag("p", _said(plot.explains)) if plot.explains else "",
        plots.lines(plot.title, said, series, x, y),
    )


def _said(words: str) -> str:
    """A sentence; what stands in `backticks` is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text(words))


def _ours(who: str) -> bool:
    """Our rows are called `ours`, or `ours` and then what of ours it is."""
    return re.match(r"ours\b", who) is not None


def _mark(spread: Spread | None, digits: int) -> Mark | None:
    """None where it is not three numbers: nothing could be drawn."""
    if spread is None:
        return None
    median, low, high = map(written.finite, (spread.median, spread.low, spread.high))
    if median is None or low is None or high is None:
        return None
    span = "" if low == high else f" [{low:,.{digits}f}..{high:,.{digits}f}]"
    return Mark(median, low, high, f"{median:,.{digits}f}{span}")


def _spread(spread: Spread | None, digits: int) -> str:
    mark = _mark(spread, digits)
    if mark is None:
        return "-"
    median, _, span = mark.text.partition(" ")
    return text(median) + (tag("span", text(span), class_="span") if span else "")


def _facts(facts: dict[str, str]) -> str:
    pairs = (tag("dt", text(key.replace("_", " "))) + tag("dd", text(said))
             for key, said in facts.items())  # fmt: skip
    return tag("dl", *pairs, class_="facts") if facts else ""


def _table(heading: Sequence[str], rows: Sequence[str], class_: str = "") -> str:
    head = tag("thead", tag("tr", *(tag("th", text(words), scope="col") for words in heading)))
    whole = tag("table", head, tag("tbody", "\n".join(rows)), class_=class_)
    return tag("div", whole, class_="wide")
