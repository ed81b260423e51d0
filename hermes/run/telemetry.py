"""Telemetry of a running bot: a log line for each turn, and its metrics in files."""

from __future__ import annotations

import logging
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import attrs
import trio
from msgspec.structs import replace

from hermes.actors.event_bus import Subscription
from hermes.actors.runtime import Runtime
from hermes.background import open_background, set_event, start_soon
from hermes.config import Budgets
from hermes.errors import StoreFailed
from hermes.events import (
    Envelope,
    MessagePosted,
    Notice,
    SessionMoved,
    Steered,
    TitleChanged,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import Reply
from hermes.redaction import Redact
from hermes.run import status
from hermes.settings import Settings
from hermes.settings.otel import OtelConfig
from hermes.telemetry.collecting import Collected
from hermes.telemetry.histograms import TurnHistograms
from hermes.telemetry.metrics import HostStatus, Metrics, MetricsCollector
from hermes.telemetry.prometheus import prometheus_text
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)

WRITE_INTERVAL = 5.0
MAX_TURNS = 10_000
MAX_TOOLS = 50
_TOOL_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)

LogEvent = Callable[..., None]
"""Logs an event and its named values; see `hermes.run.logs.event_logger`."""


@attrs.define
class _Turn:
    """What is known of a running turn."""

    started: float
    waited: float
    tools: list[str] = attrs.Factory(list)
    steered: int = 0


class TurnLog:
    """Logs one line at the end of each turn, and lines for other events; never any content."""

    def __init__(self, events: Subscription, log_event: LogEvent) -> None:
        self._events = events
        self._log_event = log_event
        self._turns: OrderedDict[tuple[str, int | None], _Turn] = OrderedDict()
        self._lost = 0
        self._finished = trio.Event()

    async def run(self) -> None:
        """Log events until the subscription is closed."""
        with suppress(StoreFailed):  # the runtime itself raises it
            async for envelope in self._events:
                with contained() as caught:  # a failing log must not end the bot
                    self.handle(envelope)
                if caught.error is not None:
                    log.error("could not log an event", exc_info=caught.error)
        set_event(self._finished)

    async def wait_finished(self) -> None:
        """Wait until every event has been logged, once the subscription is closed."""
        await self._finished.wait()

    def handle(self, envelope: Envelope) -> None:
        """Log an event, or remember it until its turn ends."""
        if self._events.lost > self._lost:
            self._log_event("events lost", count=self._events.lost - self._lost)
            self._lost = self._events.lost
        key, turn_id, event = envelope.session_key, envelope.turn_id, envelope.event
        match event:
            case TurnStarted():
                self._start(key, event)
            case ToolStarted(call):
                turn = self._turns.get((key, turn_id))
                if turn is not None and len(turn.tools) < MAX_TOOLS:
                    turn.tools.append(call.name if _TOOL_NAME.fullmatch(call.name) else "?")
            case Steered():
                turn = self._turns.get((key, turn_id))
                if turn is not None:
                    turn.steered += 1
            case TurnEnded():
                self._end(key, event)
            case _:
                self._log_other(envelope)

    def _log_other(self, envelope: Envelope) -> None:
        ids = {"session_key": envelope.session_key, "turn_id": envelope.turn_id}
        match envelope.event:
            case Notice():
                self._log_event("notice", **ids)
            case SessionMoved(old, new, reason):
                self._log_event("session moved", **ids, old=old, new=new, reason=reason)
            case MessagePosted(session_id, _):
                self._log_event("message posted", **ids, session_id=session_id)
            case TitleChanged(session_id, _):
                self._log_event("title changed", **ids, session_id=session_id)

    def _start(self, key: str, event: TurnStarted) -> None:
        # A turn that is restarted, after a compression, keeps its first start.
        self._turns.setdefault((key, event.turn_id), _Turn(trio.current_time(), event.waited))
        if len(self._turns) > MAX_TURNS:  # turns whose end was lost
            self._turns.popitem(last=False)

    def _end(self, key: str, event: TurnEnded) -> None:
        reply = event.reply
        turn = self._turns.pop((key, reply.turn_id), None)
        self._log_event(
            "turn",
            session_key=key,
            session_id=reply.session_id,
            turn_id=reply.turn_id,
            platform=event.platform,
            status=reply.status,
            **({} if turn is None else _turn_values(turn, reply)),
            **({} if reply.error_kind is None else {"error": reply.error_kind}),
            **({"metadata": reply.metadata} if reply.metadata else {}),
        )


def _turn_values(turn: _Turn, reply: Reply) -> dict[str, object]:
    """Return the times, the agent and the cost of a turn."""
    ran = trio.current_time() - turn.started
    usage = reply.usage
    costs = [call.cost for call in usage if call.cost is not None]
    return {
        "queued": round(turn.waited, 3),
        "ran": round(ran, 3),
        "total": round(turn.waited + ran, 3),
        "agent": reply.build_reason or "reused",
        "calls": len(usage),
        "input_tokens": sum(call.input_tokens for call in usage),
        "output_tokens": sum(call.output_tokens for call in usage),
        "cached_tokens": sum(call.cache_read_tokens for call in usage),
        "cost": round(sum(costs), 6) if costs else None,
        "tools": turn.tools,
        "steered": turn.steered,
    }


@attrs.define(eq=False, kw_only=True)
class Telemetry:
    """Logs the turns of a runtime and writes its metrics to files, every few seconds."""

    path: Path
    """The database; the status file is written beside it."""
    log_event: LogEvent
    prometheus_file: Path | None = None
    interval: float = WRITE_INTERVAL
    adapters: Callable[[], Mapping[str, str]] = dict
    """Returns the state of each platform."""
    http: str | None = None
    """The URL of the HTTP server."""
    model: str | None = None
    """The model that answers."""
    budgets: Budgets | None = None
    """How much may be spent."""
    mcp_servers: Callable[[], Mapping[str, str]] = dict
    """Returns the state of each MCP server."""
    dropped: Callable[[], int] = int
    """Returns the number of dropped log lines."""
    redact: Redact = str
    otel: OtelConfig | None = None
    """Where traces are sent."""
    _attach: Callable[[Runtime], Awaitable[None]] | None = attrs.field(init=False, default=None)
    _spans_dropped: Callable[[], int] = attrs.field(init=False, default=int)
    _collector: MetricsCollector = attrs.field(
        init=False, default=attrs.Factory(lambda self: MetricsCollector(self.path), takes_self=True)
    )
    _histograms: TurnHistograms = attrs.field(init=False, factory=TurnHistograms)
    _failing: bool = attrs.field(init=False, default=False)
    _started_at: float = attrs.field(init=False, factory=time.time)

    @asynccontextmanager
    async def observe(
        self, opening: AbstractAsyncContextManager[Runtime]
    ) -> AsyncIterator[Runtime]:
        """Open a runtime and observe it until it has shut down, its last turns included.

        The files are removed at the end. If the block fails they stay, with the last metrics.
        """
        async with (
            self._open_tracing(),
            open_background() as background,
            AsyncExitStack() as after_shutdown,
            opening as runtime,
        ):
            # The runtime closes the subscription when it has shut down.
            if self._attach is not None:
                await self._attach(runtime)
            turn_log = TurnLog(runtime.subscribe(deltas=False), self.log_event)
            runtime.subscribe(callback=self._histograms.receive)
            start_soon(background, turn_log.run)
            start_soon(background, self._write_periodically, runtime)
            after_shutdown.push_async_callback(turn_log.wait_finished)
            yield runtime
        self._remove_files()

    @asynccontextmanager
    async def _open_tracing(self) -> AsyncIterator[None]:
        await trio.lowlevel.checkpoint()
        if self.otel is None:
            yield
            return
        from hermes.telemetry.otel import open_tracing  # noqa: PLC0415 - it needs an extra

        with open_tracing(self.otel, redact=self.redact) as tracing:
            self._attach, self._spans_dropped = tracing.attach, lambda: tracing.dropped
            yield

    async def _write_periodically(self, runtime: Runtime) -> None:
        while True:
            with contained() as caught:  # failing telemetry must not end the bot
                await self.write_files(runtime)
            if caught.error is not None:
                log.error("could not collect the metrics", exc_info=caught.error)
            await trio.sleep(self.interval)

    def show_settings(self, settings: Settings) -> None:
        """Show what has changed in the settings."""
        self.model, self.budgets = settings.agent.model, settings.agent.budgets

    async def collect(self, runtime: Runtime) -> Metrics:
        """Return the current metrics."""
        metrics = await self._collector.collect(
            runtime,
            adapters=self.adapters(),
            log_lines_dropped=self.dropped(),
            model=self.model,
            mcp_servers=self.mcp_servers(),
        )
        return replace(metrics, http=self.http, spans_dropped=self._spans_dropped())

    def text(self, metrics: Metrics) -> str:
        """Return metrics, and the histograms of turns, in Prometheus' text format."""
        return self.redact(prometheus_text(metrics) + self._histograms.text())

    def collected(self, runtime: Runtime) -> Collected:
        """Return what returns the current metrics, and the state of this process."""

        async def text() -> str:
            return self.text(await self.collect(runtime))

        return Collected(text, self.host_status)

    def host_status(self) -> HostStatus:
        """Return the state of this process."""
        redact = self.redact
        return HostStatus(
            started_at=self._started_at,
            models=self._histograms.models.models,
            model=self.model,
            budgets=self.budgets,
            channels={name: redact(state) for name, state in self.adapters().items()},
            mcp_servers={name: redact(state) for name, state in self.mcp_servers().items()},
            spans_dropped=self._spans_dropped(),
            log_lines_dropped=self.dropped(),
        )

    async def write_files(self, runtime: Runtime) -> None:
        """Write the current metrics; log an `OSError` once, until writing succeeds again."""
        metrics = await self.collect(runtime)
        texts = {status.status_path(self.path): status.encode(metrics)}
        if self.prometheus_file is not None:
            texts[self.prometheus_file] = self.text(metrics)
        try:
            for path, text in texts.items():
                await trio.to_thread.run_sync(status.write, path, self.redact(text))
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.warning("could not write the metrics: %s", error.strerror)
            self._failing = True

    def _remove_files(self) -> None:
        for path in (status.status_path(self.path), self.prometheus_file):
            if path is not None:
                with suppress(OSError):
                    path.unlink()
