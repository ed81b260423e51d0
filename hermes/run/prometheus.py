"""Facts in the text format of Prometheus, for its textfile collector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias, get_args

import attrs

from hermes.messages import BuildReason, ReplyStatus
from hermes.run.metrics import Metrics

Labels: TypeAlias = tuple[tuple[str, str], ...]
Sample: TypeAlias = tuple[str, Labels, float]
"""What follows the name (nothing, `_sum`, `_count`), the labels, and the value."""


@attrs.frozen
class Metric:
    """One name, and how its samples come out of the facts."""

    name: str
    kind: Literal["counter", "gauge", "summary"]
    help: str
    samples: Callable[[Metrics], Iterable[Sample]]
    labels: tuple[str, ...] = ()


def _one(field: str) -> Callable[[Metrics], Iterable[Sample]]:
    return lambda facts: [("", (), float(getattr(facts, field)))]


def _by(
    label: str, field: str, always: tuple[str, ...] = ()
) -> Callable[[Metrics], Iterable[Sample]]:
    """One sample for each name; those that are known are there from the beginning, as 0."""

    def samples(facts: Metrics) -> Iterable[Sample]:
        counts: dict[str, int] = {**dict.fromkeys(always, 0), **getattr(facts, field)}
        return [("", ((label, name),), float(count)) for name, count in counts.items()]

    return samples


def _info(facts: Metrics) -> Iterable[Sample]:
    yield "", (("version", facts.version),), 1.0


def _tokens(facts: Metrics) -> Iterable[Sample]:
    for kind in ("input", "output", "cached"):
        yield "", (("kind", kind),), float(getattr(facts, f"{kind}_tokens"))


def _outbox(facts: Metrics) -> Iterable[Sample]:
    for each in facts.outbox:
        for state in ("pending", "sending", "recovered", "dead"):
            yield "", (("platform", each.platform), ("state", state)), float(getattr(each, state))


def _outbox_oldest(facts: Metrics) -> Iterable[Sample]:
    for each in facts.outbox:
        yield "", (("platform", each.platform),), each.oldest_seconds


def _commits(facts: Metrics) -> Iterable[Sample]:
    yield "", (("quantile", "0.5"),), facts.commit_p50
    yield "", (("quantile", "0.99"),), facts.commit_p99
    yield "_sum", (), facts.commit_timeout
    yield "_count", (), float(facts.commits)


def _adapters(facts: Metrics) -> Iterable[Sample]:
    for name, state in facts.adapters.items():
        yield "", (("adapter", name), ("state", state)), 1.0


METRICS: tuple[Metric, ...] = (
    Metric("hermes_info", "gauge", "1; the version is a label", _info, ("version",)),
    Metric(
        "hermes_start_time_seconds", "gauge", "when it was started, since 1970", _one("started_at")
    ),
    Metric(
        "hermes_written_time_seconds", "gauge", "when this was written: an old one means trouble",
        _one("written_at"),
    ),
    Metric("hermes_draining", "gauge", "1 while it ends and takes no new work", _one("draining")),
    Metric("hermes_actors", "gauge", "conversations that are awake", _one("actors")),
    Metric("hermes_agents_cached", "gauge", "agents in the cache", _one("agents")),
    Metric(
        "hermes_transcript_bytes", "gauge", "transcripts held in memory", _one("transcript_bytes")
    ),
    Metric("hermes_turns_running", "gauge", "turns that run now", _one("running")),
    Metric(
        "hermes_turns_total", "counter", "messages that had their end, by how",
        _by("status", "turns", get_args(ReplyStatus)), ("status",),
    ),
    Metric(
        "hermes_agent_builds_total", "counter", "agents that were built, by why",
        _by("reason", "builds", get_args(BuildReason)), ("reason",),
    ),
    Metric(
        "hermes_agent_reuses_total", "counter", "turns that found their agent in the cache",
        _one("reuses"),
    ),
    Metric(
        "hermes_errors_total", "counter", "turns that failed, by the class of the error",
        _by("kind", "errors"), ("kind",),
    ),
    Metric(
        "hermes_provider_calls_total", "counter", "calls that turns made of models",
        _one("provider_calls"),
    ),
    Metric(
        "hermes_tokens_total", "counter", "tokens of these calls; cached ones are not input",
        _tokens, ("kind",),
    ),
    Metric("hermes_cost_total", "counter", "what these calls have cost", _one("cost")),
    Metric("hermes_cost_today", "gauge", "what this day has cost in all", _one("cost_today")),
    Metric(
        "hermes_inbox_open", "gauge", "accepted messages that no turn has finished",
        _one("inbox_open"),
    ),
    Metric(
        "hermes_inbox_oldest_seconds", "gauge", "how long the first of them has waited",
        _one("inbox_oldest_seconds"),
    ),
    Metric(
        "hermes_outbox", "gauge", "replies that wait, or were given up within a day",
        _outbox, ("platform", "state"),
    ),
    Metric(
        "hermes_outbox_oldest_seconds", "gauge", "how long the first waiting reply has waited",
        _outbox_oldest, ("platform",),
    ),
    Metric(
        "hermes_hooks_open", "gauge", "boundaries that hooks have not heard of", _one("hooks_open")
    ),
    Metric(
        "hermes_commit_seconds", "summary",
        "how long a turn took to be on disk; quantiles of the last minute", _commits, ("quantile",),
    ),
    Metric(
        "hermes_commit_max_seconds", "gauge", "the longest of the last minute", _one("commit_max")
    ),
    Metric("hermes_wal_bytes", "gauge", "the log of the database", _one("wal_bytes")),
    Metric("hermes_database_bytes", "gauge", "the database without it", _one("database_bytes")),
    Metric(
        "hermes_adapter", "gauge", "1 for the state that an adapter is in",
        _adapters, ("adapter", "state"),
    ),
    Metric(
        "hermes_log_lines_dropped_total", "counter", "lines that a slow log had no room for",
        _one("log_lines_dropped"),
    ),
)  # fmt: skip


def prometheus(facts: Metrics) -> str:
    """The facts, as Prometheus reads them."""
    lines: list[str] = []
    for metric in METRICS:
        help_text = metric.help.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"# HELP {metric.name} {help_text}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for suffix, labels, value in metric.samples(facts):
            lines.append(f"{metric.name}{suffix}{_labels(labels)} {_number(value)}")
    return "\n".join([*lines, ""])


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    whole = value.encode(errors="replace").decode()
    return whole.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isfinite(value):
        return str(int(value)) if value == int(value) else repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def table() -> str:
    """The names, for the documentation."""
    rows = [
        f"| `{each.name}` | {each.kind} | {', '.join(each.labels)} | {each.help} |"
        for each in METRICS
    ]
    return "\n".join(["| name | kind | labels | what |", "|---|---|---|---|", *rows])
