"""What a running turn has said so far, shown now and then: previews, never the answer itself.

An adapter that can edit messages, or show that somebody types, gives two functions of its own::

    previews = Previews(show, busy=typing)
    nursery.start_soon(previews.run, runtime.events())

    previews.watch(session_key)  # before it submits a message of this conversation
    await previews.settle(row.session_key, row.turn_id)  # in `ready` or `send`, before the reply

`show(session_key, turn_id, text)` is given the newest text, and `busy(session_key, turn_id)` is
called at once and every few seconds while a turn has no new text. For one turn they are called one
after the other and never for long; their errors are logged. Both should give way where the platform
is busy (`Governor.try_now`). A turn whose text comes all at once has no preview. No preview begins
after `settle`, or after the turn's end.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs
import trio

from hermes import user_code
from hermes.actors.event_bus import Subscription
from hermes.events import Envelope, TextDelta, ToolStarted, TurnEnded, TurnStarted

log = logging.getLogger(__name__)

T = TypeVar("T")
Show = Callable[[str, int, str], Awaitable[object]]
Busy = Callable[[str, int], Awaitable[object]]

SHOW_SECONDS = 10.0
WATCHED = 10_000
SETTLED = 1_000


@attrs.define(eq=False)
class _Running:
    session_key: str
    turn_id: int
    text: str = ""
    whole: bool = False
    """Whether a tool was called since: what is said next is another message."""
    stirred: trio.Event = attrs.Factory(trio.Event)
    over: trio.Event = attrs.Factory(trio.Event)
    done: trio.Event = attrs.Factory(trio.Event)

    def add(self, text: str) -> None:
        self.text = text if self.whole else self.text + text
        self.whole = False
        self.stirred.set()

    def is_called(self, session_key: str, turn_id: int) -> bool:
        return (self.session_key, self.turn_id) == (session_key, turn_id)

    def end(self) -> None:
        self.over.set()
        self.stirred.set()


class Previews:
    """Tells an adapter what the turns of some conversations have said so far."""

    def __init__(
        self,
        show: Show,
        *,
        busy: Busy | None = None,
        every: float = 1.5,
        busy_every: float = 4.0,
    ) -> None:
        self._show = show
        self._busy = busy
        self._every = every
        self._busy_every = busy_every
        self._watched: dict[str, None] = {}
        self._running: dict[str, _Running] = {}
        self._followed: set[_Running] = set()
        """Those that run, and those that have ended while they were shown."""
        self._settled: dict[int, None] = {}

    def watch(self, session_key: str) -> None:
        """Show the turns of this conversation too; of very many, the latest are remembered."""
        _remember(self._watched, session_key, WATCHED)

    async def settle(self, session_key: str, turn_id: int) -> None:
        """Show this turn no more, and wait until the preview that is on its way has ended."""
        _remember(self._settled, turn_id, SETTLED)  # its beginning may still be unheard
        for turn in [turn for turn in self._followed if turn.is_called(session_key, turn_id)]:
            turn.end()
            await turn.done.wait()

    async def run(self, events: Subscription) -> None:
        """Hear what happens until there is nothing more to hear."""
        with events:
            async with trio.open_nursery() as nursery:
                async for envelope in events:
                    self._hear(nursery, envelope)
                for turn in self._running.values():
                    turn.end()

    def _hear(self, nursery: trio.Nursery, envelope: Envelope) -> None:
        event, key = envelope.event, envelope.session_key
        if isinstance(event, TurnStarted):
            self._begin(nursery, key, event.turn_id)
            return
        turn = self._running.get(key)
        if turn is None or turn.turn_id != envelope.turn_id:
            return
        if isinstance(event, TextDelta):
            turn.add(event.text)
        elif isinstance(event, ToolStarted):
            turn.whole = True
        elif isinstance(event, TurnEnded):
            self._end(key)

    def _begin(self, nursery: trio.Nursery, session_key: str, turn_id: int) -> None:
        self._end(session_key)  # a turn that was discarded, or whose end was lost
        if session_key in self._watched and turn_id not in self._settled:
            turn = self._running[session_key] = _Running(session_key, turn_id)
            self._followed.add(turn)
            nursery.start_soon(self._follow, turn)

    def _end(self, session_key: str) -> None:
        turn = self._running.pop(session_key, None)
        if turn is not None:
            turn.end()

    async def _follow(self, turn: _Running) -> None:
        try:
            await self._tell_busy(turn)
            while not turn.over.is_set():
                with trio.move_on_after(self._busy_every):
                    await turn.stirred.wait()
                if turn.stirred.is_set():
                    await self._show_newest(turn)
                else:
                    await self._tell_busy(turn)
        finally:
            self._followed.discard(turn)
            turn.done.set()

    async def _show_newest(self, turn: _Running) -> None:
        with trio.move_on_after(self._every):
            await turn.over.wait()
            return
        turn.stirred = trio.Event()
        await _bounded(self._show, turn.session_key, turn.turn_id, turn.text)

    async def _tell_busy(self, turn: _Running) -> None:
        if self._busy is not None and not turn.over.is_set():
            await _bounded(self._busy, turn.session_key, turn.turn_id)


async def _bounded(call: Callable[..., Awaitable[object]], *args: object) -> None:
    """It is only a preview: its failure is logged, and it does not take long."""
    try:
        with trio.move_on_after(SHOW_SECONDS):
            await call(*args)
    except BaseException as error:  # noqa: BLE001 - foreign code
        if (through := user_code.passing(error)) is not None:
            raise through from None
        log.warning("a preview was not shown: %r", error)


def _remember(kept: dict[T, None], name: T, most: int) -> None:
    kept.pop(name, None)
    kept[name] = None
    if len(kept) > most:
        del kept[next(iter(kept))]
