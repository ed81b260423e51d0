"""What is told of a running bot: a line per turn, and its facts in files, every few seconds."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import attrs
import trio

from hermes.actors.event_bus import Subscription
from hermes.actors.runtime import Runtime
from hermes.errors import plain
from hermes.events import (
    Envelope,
    Notice,
    SessionMoved,
    Steered,
    TitleChanged,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import Reply
from hermes.run import status
from hermes.run.metrics import Collector
from hermes.run.prometheus import prometheus

log = logging.getLogger(__name__)

SECONDS = 5.0
MAX_TURNS = 10_000
MAX_TOOLS = 50
_TOOL = re.compile(r"[\w.-]{1,64}", re.ASCII)

Write = Callable[..., None]
"""Takes what happened and named values: `logs.line(name)`."""


@attrs.define
class _Turn:
    """A turn that runs, as far as it was heard of."""

    begun: float
    waited: float
    tools: list[str] = attrs.Factory(list)
    steered: int = 0


class TurnLog:
    """Writes a line at the end of each turn, and for what else happens; nothing that was said."""

    def __init__(self, events: Subscription, write: Write) -> None:
        self._events = events
        self._write = write
        self._turns: OrderedDict[tuple[str, int | None], _Turn] = OrderedDict()
        self._lost = 0

    async def run(self) -> None:
        """Listen until the runtime has ended."""
        async for envelope in self._events:
            try:
                self.hear(envelope)
            except Exception:  # who watches must not end what is watched
                log.exception("an event could not be told of")

    def hear(self, envelope: Envelope) -> None:
        """Take note of an event."""
        if self._events.lost > self._lost:
            self._write("events were lost", count=self._events.lost - self._lost)
            self._lost = self._events.lost
        key, turn_id, event = envelope.session_key, envelope.turn_id, envelope.event
        match event:
            case TurnStarted():
                self._begin(key, event)
            case ToolStarted(call):
                turn = self._turns.get((key, turn_id))
                if turn is not None and len(turn.tools) < MAX_TOOLS:
                    turn.tools.append(call.name if _TOOL.fullmatch(call.name) else "?")
            case Steered():
                turn = self._turns.get((key, turn_id))
                if turn is not None:
                    turn.steered += 1
            case TurnEnded():
                self._end(key, event)
            case _:
                self._tell(envelope)

    def _tell(self, envelope: Envelope) -> None:
        about = {"session_key": envelope.session_key, "turn_id": envelope.turn_id}
        match envelope.event:
            case Notice():
                self._write("notice", **about)
            case SessionMoved(old, new, reason):
                self._write("session moved", **about, old=old, new=new, reason=reason)
            case TitleChanged(session_id, _):
                self._write("titled", **about, session_id=session_id)

    def _begin(self, key: str, event: TurnStarted) -> None:
        # One that begins again, after a compression, has begun when it first did.
        self._turns.setdefault((key, event.turn_id), _Turn(trio.current_time(), event.waited))
        if len(self._turns) > MAX_TURNS:  # ends that were never heard of
            self._turns.popitem(last=False)

    def _end(self, key: str, event: TurnEnded) -> None:
        reply = event.reply
        turn = self._turns.pop((key, reply.turn_id), None)
        self._write(
            "turn",
            session_key=key,
            session_id=reply.session_id,
            turn_id=reply.turn_id,
            platform=event.platform,
            status=reply.status,
            **({} if turn is None else _course(turn, reply)),
            **({} if reply.error_kind is None else {"error": reply.error_kind}),
        )


def _course(turn: _Turn, reply: Reply) -> dict[str, object]:
    """How a turn went: times, the agent, and what it cost."""
    ran = trio.current_time() - turn.begun
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
    """Watches a runtime from its beginning to the end of the block."""

    path: Path
    write: Write
    prometheus_file: Path | None
    seconds: float
    adapters: Callable[[], Mapping[str, str]]
    dropped: Callable[[], int]
    redact: Callable[[str], str]
    _nursery: trio.Nursery
    _collector: Collector = attrs.field(init=False)
    _events: Subscription | None = attrs.field(init=False, default=None)
    _keeping: trio.CancelScope = attrs.field(init=False, factory=trio.CancelScope)
    _failing: bool = attrs.field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        self._collector = Collector(self.path)

    def begin(self, runtime: Runtime) -> None:
        """The runtime is there."""
        self._events = runtime.events(pieces=False)
        self._nursery.start_soon(TurnLog(self._events, self.write).run)
        self._nursery.start_soon(self._keep, runtime)

    async def _keep(self, runtime: Runtime) -> None:
        with self._keeping:
            while True:
                try:
                    await self.write_files(runtime)
                except Exception:  # who watches must not end what is watched
                    log.exception("the status could not be found out")
                await trio.sleep(self.seconds)

    async def write_files(self, runtime: Runtime) -> None:
        """Write the facts down as they are now; what goes wrong with it stops nobody."""
        facts = await self._collector.collect(
            runtime, adapters=self.adapters(), log_lines_dropped=self.dropped()
        )
        texts = {status.status_path(self.path): status.encoded(facts)}
        if self.prometheus_file is not None:
            texts[self.prometheus_file] = prometheus(facts)
        try:
            for path, text in texts.items():
                await trio.to_thread.run_sync(status.write, path, self.redact(text))
            self._failing = False
        except OSError as error:
            if not self._failing:  # once, and not every few seconds
                log.warning("the status cannot be written: %s", error.strerror)
            self._failing = True

    def stop(self) -> None:
        """Hear no more; what was heard is still written."""
        self._keeping.cancel()
        if self._events is not None:
            self._events.close()

    def remove_files(self) -> None:
        """The runtime has ended in good order: nothing is left that says it runs."""
        for path in (status.status_path(self.path), self.prometheus_file):
            if path is not None:
                with suppress(OSError):
                    path.unlink()


@asynccontextmanager
async def open_telemetry(  # noqa: PLR0913 - what a bot is watched by
    path: Path,
    *,
    write: Write,
    prometheus_file: Path | None = None,
    seconds: float = SECONDS,
    adapters: Callable[[], Mapping[str, str]] = dict,
    dropped: Callable[[], int] = int,
    redact: Callable[[str], str] = str,
) -> AsyncIterator[Telemetry]:
    """Around a runtime, so that its last turns are heard as well; `begin` inside of it.

    Where the block fails, the files stay, and tell how the bot was doing.
    """
    raised: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            watch = Telemetry(
                path=path, write=write, prometheus_file=prometheus_file, seconds=seconds,
                adapters=adapters, dropped=dropped, redact=redact, nursery=nursery,
            )  # fmt: skip
            try:
                yield watch
            except BaseException as error:  # noqa: BLE001 - raised below, not in a group
                raised = error
            watch.stop()
    except BaseExceptionGroup as group:
        raise plain(group) from raised
    if raised is not None:
        raise raised
    watch.remove_files()  # after the last write of it
