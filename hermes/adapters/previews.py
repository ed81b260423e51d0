"""Previews: the text that a running turn has produced so far, shown at intervals.

An adapter that can edit messages or show a typing indicator provides two functions::

    previews = Previews(show, typing=show_typing)
    nursery.start_soon(previews.run, runtime.subscribe())

    previews.watch(session_key)  # before it submits a message of this conversation
    await previews.stop(row.session_key, row.turn_id)  # in `ready` or `send`, before the reply

`show(session_key, turn_id, text)` receives the latest text. `typing(session_key, turn_id)` is
called when a turn starts and every few seconds while it has no new text. For one turn the calls
never overlap; each is given up after `CALL_TIMEOUT` seconds, and its errors are logged. Both should
skip the call if the platform is busy (`RateLimiter.try_acquire`). A turn that ends before the first
interval has no preview. No preview starts after `stop` or after the end of the turn.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs
import trio

from hermes.actors.event_bus import Subscription
from hermes.background import set_event, start_soon
from hermes.events import Envelope, TextDelta, ToolStarted, TurnEnded, TurnStarted
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")
Show = Callable[[str, int, str], Awaitable[object]]
Typing = Callable[[str, int], Awaitable[object]]

CALL_TIMEOUT = 10.0
MAX_WATCHED = 10_000
MAX_STOPPED = 1_000


@attrs.define(eq=False)
class _RunningTurn:
    session_key: str
    turn_id: int
    pieces: list[str] = attrs.Factory(list)
    tool_called: bool = False
    """Whether a tool was called since the last text: the next text starts a new message."""
    changed: trio.Event = attrs.Factory(trio.Event)
    ended: trio.Event = attrs.Factory(trio.Event)
    done: trio.Event = attrs.Factory(trio.Event)

    def append(self, text: str) -> None:
        if self.tool_called:
            self.pieces.clear()
        self.pieces.append(text)
        self.tool_called = False
        set_event(self.changed)

    def end(self) -> None:
        set_event(self.ended)
        set_event(self.changed)


class Previews:
    """Shows the running turns of watched conversations through an adapter's functions.

    `interval` is the time between two previews of a turn, `typing_interval` the time between two
    typing indicators, both in seconds.
    """

    def __init__(
        self,
        show: Show,
        *,
        typing: Typing | None = None,
        interval: float = 1.5,
        typing_interval: float = 4.0,
    ) -> None:
        self._show = show
        self._typing = typing
        self._interval = interval
        self._typing_interval = typing_interval
        self._watched: dict[str, None] = {}
        self._running: dict[str, _RunningTurn] = {}
        self._followed: set[_RunningTurn] = set()
        """The running turns, and those that ended while a preview was in flight."""
        self._stopped: dict[int, None] = {}

    def watch(self, session_key: str) -> None:
        """Show the turns of this conversation; the latest `MAX_WATCHED` ones are remembered."""
        _remember(self._watched, session_key, MAX_WATCHED)

    async def stop(self, session_key: str, turn_id: int) -> None:
        """Show no more previews of this turn, and wait for the one in flight."""
        _remember(self._stopped, turn_id, MAX_STOPPED)  # its start may not have been seen yet
        wanted = (session_key, turn_id)
        for turn in [each for each in self._followed if (each.session_key, each.turn_id) == wanted]:
            turn.end()
            await turn.done.wait()

    async def run(self, events: Subscription) -> None:
        """Follow the events until the subscription ends."""
        with events:
            async with trio.open_nursery() as nursery:
                async for envelope in events:
                    self._handle(nursery, envelope)
                for turn in self._running.values():
                    turn.end()

    def _handle(self, nursery: trio.Nursery, envelope: Envelope) -> None:
        event, key = envelope.event, envelope.session_key
        if isinstance(event, TurnStarted):
            self._start(nursery, key, event.turn_id)
            return
        turn = self._running.get(key)
        if turn is None or turn.turn_id != envelope.turn_id:
            return
        if isinstance(event, TextDelta):
            turn.append(event.text)
        elif isinstance(event, ToolStarted):
            turn.tool_called = True
        elif isinstance(event, TurnEnded):
            self._end(key)

    def _start(self, nursery: trio.Nursery, session_key: str, turn_id: int) -> None:
        self._end(session_key)  # a turn that was discarded, or whose end event was dropped
        if session_key in self._watched and turn_id not in self._stopped:
            turn = self._running[session_key] = _RunningTurn(session_key, turn_id)
            self._followed.add(turn)
            start_soon(nursery, self._follow, turn)

    def _end(self, session_key: str) -> None:
        turn = self._running.pop(session_key, None)
        if turn is not None:
            turn.end()

    async def _follow(self, turn: _RunningTurn) -> None:
        try:
            await self._show_typing(turn)
            while not turn.ended.is_set():
                with trio.move_on_after(self._typing_interval):
                    await turn.changed.wait()
                if turn.changed.is_set():
                    await self._show_text(turn)
                else:
                    await self._show_typing(turn)
        finally:
            self._followed.discard(turn)
            set_event(turn.done)

    async def _show_text(self, turn: _RunningTurn) -> None:
        with trio.move_on_after(self._interval):
            await turn.ended.wait()
            return
        turn.changed = trio.Event()
        text = "".join(turn.pieces)
        turn.pieces = [text]
        await _call(self._show, turn.session_key, turn.turn_id, text)

    async def _show_typing(self, turn: _RunningTurn) -> None:
        if self._typing is not None and not turn.ended.is_set():
            await _call(self._typing, turn.session_key, turn.turn_id)


async def _call(function: Callable[..., Awaitable[object]], *args: object) -> None:
    """Call a function of the adapter with a timeout, and log its errors."""
    with contained() as caught, trio.move_on_after(CALL_TIMEOUT):
        await function(*args)
    if caught.error is not None:
        log.warning("a preview was not shown: %r", caught.error)


def _remember(items: dict[T, None], item: T, limit: int) -> None:
    """Add an item to a bounded set, as the newest; drop the oldest one beyond the limit."""
    items.pop(item, None)
    items[item] = None
    if len(items) > limit:
        del items[next(iter(items))]
