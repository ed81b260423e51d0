"""A self-contained HTML page of results: goals first, then tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from bench.report.results import Result, Spread, Table

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
    "affects both cancels. On a shared machine absolute figures vary by 40 %, ratios by 15 to 25 %."
)
QUICK = (
    "These results come from quick runs, with fewer repetitions and less data than the goals are "
    "stated for:"
)
OUTCOMES = {"pass": "pass", "FAIL": "fail"}


def render_page(shown: Sequence[Result]) -> str:
    """Return the page, with a section for each result."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{TITLE}</title><style>{STYLE.read_text()}</style>"
    )
    body = _opening(shown) + "".join(map(_section, shown))
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def _opening(shown: Sequence[Result]) -> str:
    quick = ", ".join(escape(result.benchmark) for result in shown if result.quick)
    note = f'<p class="quick">{QUICK} {quick}.</p>' if quick else ""
    rows = []
    for result in shown:
        outcomes = Counter(OUTCOMES.get(goal.outcome, "unknown") for goal in result.goals)
        link = f'<a href="#{escape(result.benchmark)}">{escape(result.benchmark)}</a>'
        facts = [result.machine.get("when"), result.machine.get("commit"), f"{result.seconds:g} s"]
        counts = [str(outcomes[kind]) for kind in ("pass", "fail", "unknown")]
        rows.append([link, *counts, *map(_text, facts)])
    heading = ["benchmark", "goals met", "failed", "not judged", "when", "commit", "took"]
    return f"<h1>{TITLE}</h1><p>{INTRODUCTION}</p>{note}{_table(heading, rows)}<p>{READING}</p>"


def _section(result: Result) -> str:
    tables = "".join(_figures(result, table) for table in result.tables)
    return (
        f'<section id="{escape(result.benchmark)}"><h2>{escape(result.benchmark)}</h2>'
        f"<p>{escape(result.about)}</p><h3>Goals</h3>{_goals(result)}"
        f"<h3>Figures</h3>{tables}<h3>Circumstances</h3>"
        f"{_facts({**result.machine, 'plan': result.plan, **result.versions})}</section>\n"
    )


def _goals(result: Result) -> str:
    rows = []
    for goal in result.goals:
        outcome = f'<span class="{OUTCOMES.get(goal.outcome, "")}">{goal.outcome}</span>'
        name = f"{escape(goal.goal)}<small>{_prose(goal.explains)}</small>"
        rows.append([name, escape(goal.target), _spread(goal.measured, 2), outcome])
    return _table(["goal", "target", "measured", "outcome"], rows)


def _figures(result: Result, table: Table) -> str:
    """A cell as a table, with explanations of its columns."""
    rows = []
    for who, spreads in result.rows(table).items():
        name = f'<span class="ours">{escape(who)}</span>' if who.startswith("ours") else escape(who)
        shown = zip(spreads, table.columns, strict=True)
        rows.append([name, *(_spread(spread, column.digits) for spread, column in shown)])
    if not rows:
        return ""
    heading = ["", *(column.heading for column in table.columns)]
    explained = _facts({column.heading: column.explains for column in table.columns})
    title = f"<h4>{escape(table.title)}</h4><p>{_prose(table.explains)}</p>"
    return f"<figure>{title}{_table(heading, rows)}{explained}</figure>"


def _spread(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return "-"
    median, _, span = spread.text(digits).partition(" ")
    return f"{median}<small>{span}</small>"


def _prose(words: str) -> str:
    """A sentence; text in `backticks` is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(words))


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{escape(str(key))} {_text(each)}" for key, each in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, list) else escape(str(value))


def _facts(facts: Mapping[str, object]) -> str:
    pairs = (
        f"<dt>{escape(key.replace('_', ' '))}</dt><dd>{_text(value)}</dd>"
        for key, value in facts.items()
    )
    return f"<dl>{''.join(pairs)}</dl>"


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the headings are plain text, the cells are HTML."""
    head = "".join(f"<th>{escape(words)}</th>" for words in heading)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'
