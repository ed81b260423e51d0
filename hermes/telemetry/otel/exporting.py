"""Sends spans in a thread of its own. The runtime never waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)

BATCH = 512
INTERVAL = 2.0
"""Seconds between two batches, unless one is full."""
CLOSE_SECONDS = 5.0


class BoundedProcessor(SpanProcessor):
    """Passes finished spans to an exporter. If too many wait, new ones are dropped and counted."""

    def __init__(self, exporter: SpanExporter, limit: int) -> None:
        self._exporter = exporter
        self._limit = limit
        self._batch = min(BATCH, max(1, limit // 2))
        self._waiting: deque[ReadableSpan] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._failing = False
        self.dropped: int = 0
        """Spans that were not sent, because too many waited or the exporter failed."""
        self._thread = threading.Thread(target=self._run, name="hermes-otel", daemon=True)
        self._thread.start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: a span counts when it has ended."""

    def on_end(self, span: ReadableSpan) -> None:
        """Add a span."""
        with self._wake:
            if self._closed or len(self._waiting) >= self._limit:
                self.dropped += 1
                return
            self._waiting.append(span)
            if len(self._waiting) >= self._batch:
                self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._closed and len(self._waiting) < self._batch:
                    self._wake.wait(INTERVAL)
                batch = [
                    self._waiting.popleft() for _ in range(min(self._batch, len(self._waiting)))
                ]
                if not batch and self._closed:
                    return
            if batch:
                self._export(batch)

    def _export(self, batch: list[ReadableSpan]) -> None:
        result = None
        with contained() as caught:  # an exporter is foreign code
            result = self._exporter.export(batch)
        failed = caught.error is not None or result is not SpanExportResult.SUCCESS
        if failed:
            with self._wake:
                self.dropped += len(batch)
            if not self._failing:
                log.warning("spans could not be sent to the collector of OpenTelemetry")
        self._failing = failed

    def shutdown(self) -> None:
        """Send what waits, for a few seconds at most."""
        deadline = time.monotonic() + CLOSE_SECONDS
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        with self._wake:
            self.dropped += len(self._waiting)
            self._waiting.clear()
        with contained():
            self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Wake the thread. Returns whether nothing waits."""
        with self._wake:
            self._wake.notify()
            return not self._waiting
