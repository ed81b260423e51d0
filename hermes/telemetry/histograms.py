"""Histograms of the times of turns, for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

import attrs

from hermes.events import Envelope, TurnEnded
from hermes.telemetry.model_health import ModelCounts
from hermes.telemetry.prometheus import MetricFamily, Sample, bucket_samples, render
from hermes.telemetry.turn_records import TurnRecord, TurnRecorder

TURNS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
TOKENS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
MAX_SERIES = 100
"""Combinations of labels; further ones are counted as `other`."""
OTHER = "other"


@attrs.define
class _Series:
    counts: list[int]
    total: float = 0.0


class Histogram:
    """Counts of seconds by upper bounds, for each combination of labels."""

    def __init__(self, bounds: Sequence[float], *labels: str) -> None:
        self._bounds = tuple(bounds)
        self._labels = labels
        self._series: dict[tuple[str, ...], _Series] = {}

    def observe(self, seconds: float, *values: str) -> None:
        """Count a duration under the values of the labels."""
        series = self._series.get(values) or self._new(values)
        series.counts[bisect_left(self._bounds, seconds)] += 1
        series.total += seconds

    def _new(self, values: tuple[str, ...]) -> _Series:
        if len(self._series) >= MAX_SERIES:
            values = (OTHER,) * len(values)
        return self._series.setdefault(values, _Series([0] * (len(self._bounds) + 1)))

    def samples(self) -> Iterator[Sample]:
        """Yield the samples in Prometheus' form."""
        for values, series in self._series.items():
            labels = dict(zip(self._labels, values, strict=True))
            yield from bucket_samples(self._bounds, series.counts, series.total, labels)


class TurnHistograms:
    """The histograms of a runtime's turns: pass `receive` to `Runtime.subscribe`."""

    def __init__(self) -> None:
        self.turns: Histogram = Histogram(TURNS, "platform", "status")
        self.queue: Histogram = Histogram(TURNS, "platform")
        self.calls: Histogram = Histogram(TURNS, "model")
        self.first_tokens: Histogram = Histogram(TOKENS, "model")
        self.models: ModelCounts = ModelCounts()
        self._recorder = TurnRecorder(self._add)

    def receive(self, envelope: Envelope) -> None:
        """Take an event."""
        self._recorder.receive(envelope)

    def _add(self, record: TurnRecord, event: TurnEnded) -> None:
        reply = event.reply
        self.models.add(record, event)
        self.turns.observe(record.ended - record.started, event.platform, reply.status)
        self.queue.observe(record.event.waited, event.platform)
        models = [call.model or "unknown" for call in reply.usage if call.purpose == "turn"]
        # An agent without a model has no calls, and one call of a model may be charged twice.
        for step, model in zip(record.steps, models, strict=False):
            self.calls.observe((step.ended or record.ended) - step.started, model)
            if step.first_token is not None:
                self.first_tokens.observe(step.first_token - step.started, model)

    def text(self) -> str:
        """Return the histograms in Prometheus' text format."""
        return render(TURN_FAMILIES, self)


def _turns(histograms: TurnHistograms) -> Iterable[Sample]:
    return histograms.turns.samples()


def _queue(histograms: TurnHistograms) -> Iterable[Sample]:
    return histograms.queue.samples()


def _calls(histograms: TurnHistograms) -> Iterable[Sample]:
    return histograms.calls.samples()


def _first_tokens(histograms: TurnHistograms) -> Iterable[Sample]:
    return histograms.first_tokens.samples()


TURN_FAMILIES: tuple[MetricFamily[TurnHistograms], ...] = (
    MetricFamily(
        "hermes_turn_seconds",
        "histogram",
        "Turns, from their start to their commit.",
        _turns,
        ("platform", "status"),
    ),
    MetricFamily(
        "hermes_queue_seconds",
        "histogram",
        "Time from the acceptance of a message to the start of its turn.",
        _queue,
        ("platform",),
    ),
    MetricFamily(
        "hermes_model_call_seconds",
        "histogram",
        "Calls of models in turns, retries included.",
        _calls,
        ("model",),
    ),
    MetricFamily(
        "hermes_first_token_seconds",
        "histogram",
        "Time until a call of a model says something.",
        _first_tokens,
        ("model",),
    ),
)
