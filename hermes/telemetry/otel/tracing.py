"""Traces the turns of a runtime."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter

from hermes.actors.runtime import Runtime
from hermes.events import Envelope, MessageAccepted, TurnEnded
from hermes.settings.otel import OtelConfig
from hermes.telemetry.otel.exporting import BoundedProcessor
from hermes.telemetry.otel.spans import TurnSpans
from hermes.telemetry.turn_records import TurnRecord, TurnRecorder

MAX_MESSAGES = 1000
"""Messages whose text waits for the end of their turn."""


class Tracing:
    """Makes spans of the turns of a runtime. It waits for nothing."""

    def __init__(self, spans: TurnSpans, processor: BoundedProcessor) -> None:
        self._spans = spans
        self._processor = processor
        self._recorder = TurnRecorder(self._end, clock=time.time)
        self._said: OrderedDict[int, str] = OrderedDict()
        self._commit_seconds: Callable[[int], float | None] = lambda _: None

    @property
    def dropped(self) -> int:
        """How many spans were not sent."""
        return self._processor.dropped

    async def attach(self, runtime: Runtime) -> None:
        """Trace the turns of a runtime until it ends.

        Hosts on asyncio or without an event loop call `runtime.run_on_trio(tracing.attach)`.
        """
        await trio.lowlevel.checkpoint()
        self._commit_seconds = runtime.admin.commit_seconds
        runtime.subscribe(callback=self.receive, messages=self._spans.config.content)

    def receive(self, envelope: Envelope) -> None:
        """Take an event."""
        event = envelope.event
        if isinstance(event, MessageAccepted):
            self._said[event.inbox_id] = event.text
            if len(self._said) > MAX_MESSAGES:
                self._said.popitem(last=False)
        else:
            self._recorder.receive(envelope)

    def _end(self, record: TurnRecord, event: TurnEnded) -> None:
        ids = event.inbox_ids or (event.reply.turn_id,)
        said = [text for id_ in ids if (text := self._said.pop(id_, None)) is not None]
        if (seconds := self._commit_seconds(event.reply.turn_id)) is not None:
            record.commit = (record.ended - seconds, record.ended)
        self._spans.add(record, event, "\n\n".join(said) if said else None)


@contextmanager
def open_tracing(
    config: OtelConfig | None = None,
    *,
    redact: Callable[[str], str] = str,
    exporter: SpanExporter | None = None,
) -> Iterator[Tracing]:
    """Trace turns during the block; at its end waiting spans are sent, for five seconds at most.

    `redact` removes secrets from content, which is sent only if `OtelConfig.content` is set. The
    `exporter` is called in a thread; by default it sends OTLP over HTTP to the endpoint.
    """
    config = config or OtelConfig()
    sender = exporter or OTLPSpanExporter(endpoint=config.endpoint)
    processor = BoundedProcessor(sender, config.max_queue)
    provider = TracerProvider(resource=Resource.create({"service.name": config.service_name}))
    provider.add_span_processor(processor)
    try:
        yield Tracing(TurnSpans(provider.get_tracer("hermes"), config, redact), processor)
    finally:
        provider.shutdown()
