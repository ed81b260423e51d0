"""The metrics in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Generic, Literal, TypeAlias, TypeVar, get_args

import attrs
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from hermes.actors.metrics import COMMIT_BOUNDS
from hermes.messages import BuildReason, ReplyStatus
from hermes.sanitize import scrub
from hermes.telemetry.metrics import Metrics

Sample: TypeAlias = tuple[str, dict[str, str], float]
"""Suffix of the name (such as `_sum` or empty), labels, and value."""
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


@attrs.frozen
class MetricFamily(Generic[T_contra]):
    """A metric: its name, type and help text, and how its samples follow from what is measured."""

    name: str
    kind: Literal["counter", "gauge", "summary", "histogram"]
    help: str
    samples: Callable[[T_contra], Iterable[Sample]]
    labels: tuple[str, ...] = ()


def _gauge(name: str, help_text: str, value: Callable[[Metrics], float]) -> MetricFamily[Metrics]:
    return MetricFamily(name, "gauge", help_text, lambda m: [("", {}, float(value(m)))])


def _counter(name: str, help_text: str, value: Callable[[Metrics], float]) -> MetricFamily[Metrics]:
    return MetricFamily(name, "counter", help_text, lambda m: [("", {}, float(value(m)))])


def _counters(
    name: str,
    help_text: str,
    label: str,
    counts: Callable[[Metrics], Mapping[str, int]],
    known: tuple[str, ...] = (),
) -> MetricFamily[Metrics]:
    """A counter with a label; the `known` values of the label are there from the start, with 0."""

    def samples(metrics: Metrics) -> Iterable[Sample]:
        values = {**dict.fromkeys(known, 0), **counts(metrics)}
        return [("", {label: value}, float(count)) for value, count in values.items()]

    return MetricFamily(name, "counter", help_text, samples, (label,))


def _info(metrics: Metrics) -> Iterable[Sample]:
    yield "", {"version": metrics.version}, 1.0


def _tokens(metrics: Metrics) -> Mapping[str, int]:
    return {
        "input": metrics.input_tokens,
        "output": metrics.output_tokens,
        "cached": metrics.cached_tokens,
    }


def _outbox(metrics: Metrics) -> Iterable[Sample]:
    for stats in metrics.outbox:
        counts = {
            "pending": stats.pending,
            "sending": stats.sending,
            "recovered": stats.recovered,
            "dead": stats.dead,
        }
        for state, count in counts.items():
            yield "", {"platform": stats.platform, "state": state}, float(count)


def _outbox_oldest(metrics: Metrics) -> Iterable[Sample]:
    for stats in metrics.outbox:
        yield "", {"platform": stats.platform}, stats.oldest_seconds


def _commits(metrics: Metrics) -> Iterable[Sample]:
    yield "", {"quantile": "0.5"}, metrics.commit_p50
    yield "", {"quantile": "0.99"}, metrics.commit_p99
    yield "_sum", {}, metrics.commit_seconds
    yield "_count", {}, float(metrics.commits)


def _commit_buckets(metrics: Metrics) -> Iterable[Sample]:
    counts = metrics.commit_counts or (0,) * (len(COMMIT_BOUNDS) + 1)
    return bucket_samples(COMMIT_BOUNDS, counts, metrics.commit_seconds)


def bucket_samples(
    bounds: Sequence[float],
    counts: Sequence[int],
    total: float,
    labels: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Sample]:
    """Yield the samples of a histogram; `counts` has one more number than there are bounds.

    Each bucket counts what is in the smaller ones, too.
    """
    names = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    for name, count in zip(names, accumulate(counts), strict=True):
        yield "_bucket", {**labels, "le": name}, float(count)
    yield "_sum", dict(labels), total
    yield "_count", dict(labels), float(sum(counts))


def _adapters(metrics: Metrics) -> Iterable[Sample]:
    for name, state in metrics.adapters.items():
        yield "", {"adapter": name, "state": state}, 1.0


FAMILIES: tuple[MetricFamily[Metrics], ...] = (
    MetricFamily("hermes_info", "gauge", "Always 1; the version is a label.", _info, ("version",)),
    _gauge("hermes_start_time_seconds", "Start of the bot, in Unix time.", lambda m: m.started_at),
    _gauge(
        "hermes_written_time_seconds",
        "Last write of this file, in Unix time.",
        lambda m: m.written_at,
    ),
    _gauge(
        "hermes_draining",
        "1 while the bot shuts down and accepts no new messages.",
        lambda m: m.draining,
    ),
    _gauge("hermes_actors", "Conversations in memory.", lambda m: m.actors),
    _gauge("hermes_agents_cached", "Agents in the cache.", lambda m: m.agents),
    _gauge(
        "hermes_transcript_bytes",
        "Size of the transcripts in memory.",
        lambda m: m.transcript_bytes,
    ),
    _gauge("hermes_turns_running", "Running turns.", lambda m: m.running),
    _counters(
        "hermes_turns_total",
        "Finished messages.",
        "status",
        lambda m: m.turns,
        get_args(ReplyStatus),
    ),
    _counters(
        "hermes_agent_builds_total",
        "Built agents.",
        "reason",
        lambda m: m.builds,
        get_args(BuildReason),
    ),
    _counter(
        "hermes_agent_reuses_total", "Turns that used an agent of the cache.", lambda m: m.reuses
    ),
    _counters(
        "hermes_errors_total",
        "Failed turns, by class of the exception.",
        "kind",
        lambda m: m.errors,
    ),
    _counter(
        "hermes_provider_calls_total", "Calls to models made by turns.", lambda m: m.provider_calls
    ),
    _counters(
        "hermes_tokens_total",
        "Tokens of these calls; `input` excludes `cached`.",
        "kind",
        _tokens,
    ),
    _counter("hermes_cost_total", "Cost of these calls.", lambda m: m.cost),
    _gauge("hermes_cost_today", "Total cost since midnight.", lambda m: m.cost_today),
    _gauge("hermes_inbox_open", "Accepted messages without an answer.", lambda m: m.inbox_open),
    _gauge(
        "hermes_inbox_oldest_seconds",
        "Age of the oldest of them.",
        lambda m: m.inbox_oldest_seconds,
    ),
    MetricFamily(
        "hermes_outbox",
        "gauge",
        "Undelivered replies; given up within a day: `dead`.",
        _outbox,
        ("platform", "state"),
    ),
    MetricFamily(
        "hermes_outbox_oldest_seconds",
        "gauge",
        "Age of the oldest undelivered reply.",
        _outbox_oldest,
        ("platform",),
    ),
    _gauge(
        "hermes_hooks_open",
        "Session boundaries whose hooks have not all run.",
        lambda m: m.hooks_open,
    ),
    MetricFamily(
        "hermes_commit_seconds",
        "summary",
        "Commit of a turn; quantiles of the last minute.",
        _commits,
        ("quantile",),
    ),
    MetricFamily(
        "hermes_commit_duration_seconds", "histogram", "Commit of a turn.", _commit_buckets
    ),
    _gauge(
        "hermes_commit_max_seconds", "Longest commit of the last minute.", lambda m: m.commit_max
    ),
    _gauge("hermes_wal_bytes", "Size of the database's write-ahead log.", lambda m: m.wal_bytes),
    _gauge("hermes_database_bytes", "Size of the database without it.", lambda m: m.database_bytes),
    MetricFamily(
        "hermes_adapter",
        "gauge",
        "1 for the current state of an adapter.",
        _adapters,
        ("adapter", "state"),
    ),
    _counter(
        "hermes_spans_dropped_total",
        "Spans that were not sent to the collector of OpenTelemetry.",
        lambda m: m.spans_dropped,
    ),
    _counter(
        "hermes_log_lines_dropped_total",
        "Log lines dropped because the log is too slow.",
        lambda m: m.log_lines_dropped,
    ),
)


class _Collector(Collector, Generic[T]):
    """Presents what is measured to prometheus_client."""

    def __init__(self, families: Iterable[MetricFamily[T]], measured: T) -> None:
        self._families = families
        self._measured = measured

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            metric = Metric(family.name.removesuffix("_total"), family.help, family.kind)
            for suffix, labels, value in family.samples(self._measured):
                scrubbed = {label: scrub(text) for label, text in labels.items()}
                metric.add_sample(f"{family.name}{suffix}", scrubbed, value)
            yield metric


def render(families: Iterable[MetricFamily[T]], measured: T) -> str:
    """Return what is measured in the text format."""
    registry = CollectorRegistry()
    registry.register(_Collector(families, measured))
    return generate_latest(registry).decode()


def prometheus_text(metrics: Metrics) -> str:
    """Return the metrics in the text format."""
    return render(FAMILIES, metrics)


def markdown_table(families: Iterable[MetricFamily[T]]) -> str:
    """Return a table of metrics for the documentation."""
    rows = [
        f"| `{family.name}` | {family.kind} | {', '.join(family.labels)} | {family.help} |"
        for family in families
    ]
    return "\n".join(["| name | type | labels | meaning |", "|---|---|---|---|", *rows])
