"""A self-contained HTML page of results: goals first, then tables and charts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from bench.report.charts import Series, bar_lengths, line_chart
from bench.report.results import Plot, Result, Spread, Table

STYLE = Path(__file__).with_suffix(".css")
TITLE = "Hermes benchmarks"
INTRODUCTION = (
    "Hermes is a runtime for chat agents. This page compares it with its peers and with the limits "
    "of the machine. All contenders did the same work on the same machine, in turn; slow peers did "
    "less of it, so their p99 is often their slowest turn."
)
READING = (
    "A figure is the median of its repetitions, with the lowest and the highest in brackets. A "
    "goal that compares two figures takes the ratio within each repetition, so that noise which "
    "affects both cancels. On a shared machine absolute figures vary by 40 %, ratios by 15 to "
    "25 %. Bars show the first column of a table, on a logarithmic scale if the values differ "
    "by more than a factor of 20."
)
QUICK = (
    "These results come from quick runs, with fewer repetitions and less data than the goals are "
    "stated for:"
)
OUTCOMES = {"pass": "pass", "FAIL": "fail"}
HIDDEN = {"when", "commit", "load_before", "load_after"}


def render_page(shown: Iterable[Result]) -> str:
    """Return the page; it does not depend on the order of the results."""
    ordered = sorted(shown, key=lambda each: (*each.rank, str(each.machine.get("when"))))
    names = [f"{at}-{result.benchmark}" for at, result in enumerate(ordered, start=1)]
    sections = [_section(result, name) for result, name in zip(ordered, names, strict=True)]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{TITLE}</title><style>{STYLE.read_text()}</style>"
    )
    body = f"<main>{_opening(ordered, names)}{''.join(sections)}</main>"
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def _opening(shown: Sequence[Result], names: Sequence[str]) -> str:
    quick = ", ".join(result.benchmark for result in shown if result.quick)
    rows = []
    for result, name in zip(shown, names, strict=True):
        outcomes = Counter(OUTCOMES.get(goal.outcome, "unknown") for goal in result.goals)
        counts = [f"{outcomes[kind]}" for kind in ("pass", "fail", "unknown")]
        when = str(result.machine.get("when")).replace("T", " ").replace("+00:00", " UTC")
        facts = [when, str(result.machine.get("commit")), f"{result.seconds:.0f} s"]
        link = f'<a href="#{escape(name)}">{escape(result.benchmark)}</a>'
        rows.append([link, *counts, *map(escape, facts)])
    heading = ["benchmark", "goals met", "failed", "not judged", "when", "commit", "took"]
    machine: dict[str, dict[str, None]] = {}
    for result in shown:
        for key, value in result.machine.items():
            if key not in HIDDEN:
                machine.setdefault(key, {})[_plain(value)] = None
    note = f'<p class="quick">{QUICK} {escape(quick)}.</p>' if quick else ""
    return (
        f'<h1>{TITLE}</h1><p class="lead">{INTRODUCTION}</p>{note}{_table(heading, rows)}'
        f'<p class="quiet">{READING}</p>{_facts({k: "; ".join(v) for k, v in machine.items()})}'
    )


def _section(result: Result, name: str) -> str:
    tables = "".join(_figures(result, table) for table in result.tables)
    plots = "".join(_plot(result, plot) for plot in result.plots)
    loads = (_plain(result.machine.get(key)) for key in ("load_before", "load_after"))
    facts = {"plan": _plain(result.plan), "load before and after": " and ".join(loads)}
    facts |= {who: _plain(about) for who, about in result.versions.items()}
    return (
        f'<section id="{escape(name)}"><h2>{escape(result.benchmark)}</h2>'
        f'<p class="lead">{escape(result.about)}</p><h3>Goals</h3>{_goals(result)}'
        f"<h3>Figures</h3>{tables}{'<h3>Growth</h3>' if plots else ''}{plots}"
        f"<h3>Circumstances</h3>{_facts(facts)}</section>\n"
    )


def _goals(result: Result) -> str:
    rows = []
    for goal in result.goals:
        kind = OUTCOMES.get(goal.outcome, "unknown")
        rows.append(
            [
                f'{escape(goal.goal)}<span class="why">{_prose(goal.explains)}</span>',
                escape(goal.target.replace(">=", "≥").replace("<=", "≤")),
                _spread(goal.measured, 2),
                f'<span class="{kind}">{escape(goal.outcome)}</span>',
            ]
        )
    return _table(["goal", "target", "measured", "outcome"], rows)


def _figures(result: Result, table: Table) -> str:
    """A cell as a table with bars in its first column, and the explanations of its columns."""
    names = result.who(table.cell)
    if not names:
        return ""
    spreads = {
        who: [(result.spread(table.cell, who, c.figure), c.digits) for c in table.columns]
        for who in names
    }
    firsts = [spreads[who][0][0] for who in names]
    bars = iter(bar_lengths([spread.median for spread in firsts if spread is not None]))
    rows = []
    for who, first in zip(names, firsts, strict=True):
        cells = [_spread(*each) for each in spreads[who]]
        if first is not None:
            cells[0] += f'<span class="bar" style="width:{next(bars):.1f}%"></span>'
        rows.append([f'<span class="{_kind(who)}">{escape(who)}</span>', *cells])
    explained = "".join(
        f"<dt>{escape(column.heading)}</dt><dd>{_prose(column.explains)}</dd>"
        for column in table.columns
    )
    heading = ["", *(column.heading for column in table.columns)]
    return (
        f"<figure><h4>{escape(table.title)}</h4><p>{_prose(table.explains)}</p>"
        f'{_table(heading, rows)}<dl class="facts">{explained}</dl></figure>'
    )


def _plot(result: Result, plot: Plot) -> str:
    lines = []
    for line in plot.lines:
        found = ((x, result.spread(cell, line.who, plot.figure)) for x, cell in line.cells)
        points = sorted((x, spread) for x, spread in found if spread is not None)
        if points:
            lines.append(Series(line.who, points))
    if not lines:
        return ""
    legend = "".join(
        f'<span class="line c{color}">{escape(each.label)}</span>'
        for color, each in enumerate(lines)
    )
    return (
        f"<figure><h4>{escape(plot.title)}</h4><p>{_prose(plot.explains)}</p>"
        f'<p class="legend">{legend}</p>{line_chart(plot.title, plot.x, plot.y, lines)}</figure>'
    )


def _kind(who: str) -> str:
    return "ours" if re.match(r"ours\b", who) else "peer"


def _spread(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return "-"
    median, _, span = spread.text(digits).partition(" ")
    return f'{median}<span class="span">{span}</span>'


def _prose(words: str) -> str:
    """A sentence; text in `backticks` is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(words))


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(each)}" for key, each in value.items())
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _facts(facts: Mapping[str, str]) -> str:
    pairs = (
        f"<dt>{escape(key.replace('_', ' '))}</dt><dd>{escape(value)}</dd>"
        for key, value in facts.items()
    )
    return f'<dl class="facts">{"".join(pairs)}</dl>'


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the headings are plain text, the cells are HTML."""
    head = "".join(f"<th>{escape(words)}</th>" for words in heading)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'
