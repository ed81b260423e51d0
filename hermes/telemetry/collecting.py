"""The metrics of a runtime that a host has opened."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import attrs

from hermes.actors.runtime import Runtime
from hermes.telemetry.histograms import TurnHistograms
from hermes.telemetry.metrics import HostStatus, MetricsCollector
from hermes.telemetry.prometheus import prometheus_text

MetricsText: TypeAlias = Callable[[], Awaitable[str]]
"""Returns metrics in Prometheus' text format."""


@attrs.frozen
class Collected:
    """What is known about a runtime and its host."""

    metrics_text: MetricsText
    host_status: Callable[[], HostStatus]


def collecting(runtime: Runtime) -> Collected:
    """Record the turns of a runtime from now on; returns what returns its metrics."""
    collector, histograms, started_at = MetricsCollector(), TurnHistograms(), time.time()
    runtime.subscribe(callback=histograms.receive)

    async def text() -> str:
        return prometheus_text(await collector.collect(runtime)) + histograms.text()

    def host_status() -> HostStatus:
        return HostStatus(started_at=started_at, models=histograms.models.models)

    return Collected(text, host_status)
