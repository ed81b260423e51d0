"""The rendered stream of a conversation: made once for all listeners from the plain one."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

import attrs
import msgspec
import trio
from msgspec import UNSET

from hermes.adapters.http.api.streams.channels import Channel, Numbers
from hermes.adapters.http.api.streams.rendered.growing_turn import ENDS_TEXT, GrowingTurn
from hermes.adapters.http.api.streams.rendered.renderer import Renderer, own_files
from hermes.adapters.http.api.streams.rendered.types import (
    Progress,
    RenderedChanges,
    RenderedEvent,
    RenderedHistory,
    RenderedSnapshot,
    RenderedTurn,
)
from hermes.adapters.http.api.streams.state import Changes, ConversationEvent, History, Snapshot
from hermes.adapters.http.api.streams.waiting import Waiter
from hermes.background import set_event, start_soon
from hermes.events import (
    AssistantMessage,
    ReasoningDelta,
    RuntimeEvent,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import TurnProgress
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)

REST = 4
"""How many times as long as it took to parse an open text until it is parsed again."""
SAID = (AssistantMessage, ReasoningDelta, TextDelta)
"""Events that listeners get as `progress`."""


@attrs.frozen
class Sent:
    """An event of the plain stream; `published` is what a new running turn has published."""

    kind: str
    data: ConversationEvent
    published: Sequence[RuntimeEvent] = ()


@attrs.frozen
class Joining:
    """Clients that begin with this state, and what its running turn has published."""

    state: Snapshot
    published: Sequence[RuntimeEvent]
    waiters: Sequence[Waiter]


class RenderedChannel(Channel):
    """The events of a conversation as the page gets them."""

    __slots__ = (
        "_arrived", "_due", "_is_own_file", "_nursery", "_queue", "_renderer", "_tick", "_working",
        "closed", "is_primed", "session_key", "turn",
    )  # fmt: skip

    def __init__(
        self, session_key: str, tag: str, numbers: Numbers, nursery: trio.Nursery, render: Renderer
    ) -> None:
        super().__init__(f"{tag}r", numbers)
        self.session_key: str = session_key
        self.turn: GrowingTurn | None = None
        """The running turn."""
        self.is_primed: bool = False
        """Whether it follows the running turn; before, events are of no use."""
        self.closed: bool = False
        self._nursery = nursery
        self._renderer = render
        self._is_own_file = own_files(session_key)
        self._queue: deque[Sent | Joining] = deque()
        self._arrived = trio.Event()
        self._working = False
        self._tick = self._due = -1.0

    @property
    def in_use(self) -> bool:
        """Whether somebody listens, or waits for a snapshot."""
        return bool(self.listeners or self._queue)

    @property
    def is_idle(self) -> bool:
        """Whether everything was sent."""
        return not (self._queue or self._working)

    def put(self, item: Sent | Joining) -> None:
        """Take an event of the plain stream, or clients that wait for a snapshot."""
        if self.closed:
            return
        self._queue.append(item)
        set_event(self._arrived)
        if not self._working:
            self._working = True
            start_soon(self._nursery, self._run)

    def restart(self) -> None:
        """Forget everything: each listener gets a new snapshot."""
        self._queue = deque(item for item in self._queue if isinstance(item, Joining))
        self.turn, self.is_primed = None, False
        self.forget()

    def close(self) -> None:
        """End the stream."""
        self.closed = True
        for item in self._queue:
            if isinstance(item, Joining):
                for waiter in item.waiters:
                    waiter.give(None)
        self._queue.clear()
        set_event(self._arrived)
        self.wake()

    # Work

    async def _run(self) -> None:
        """Send what has arrived, at most ten times a second, until there is nothing more."""
        try:
            while not self.closed and (self._queue or self._is_behind):
                await self._wait()
                with contained() as caught:
                    await self._send_all()
                self._note(caught.error)
        finally:
            self._working = False

    def _note(self, error: BaseException | None) -> None:
        if error is not None:
            log.error("events of %s were lost", self.name, exc_info=error)
            self.restart()

    @property
    def _is_behind(self) -> bool:
        return self.turn is not None and self.turn.is_behind

    async def _wait(self) -> None:
        """Wait until something can be sent."""
        await trio.sleep_until(self._tick)
        if not self._queue:
            self._arrived = trio.Event()
            with trio.move_on_at(self._due):
                await self._arrived.wait()

    async def _send_all(self) -> None:
        self._tick = trio.current_time() + self._renderer.pause
        while self._queue and not self.closed:
            item = self._queue.popleft()
            if isinstance(item, Sent):
                await self._send(item)
            else:
                await self._join(item)
        if trio.current_time() >= self._due:
            await self._advance()

    async def _advance(self, *, ended_only: bool = False) -> None:
        """Tell the listeners what the running turn has said since the last time."""
        turn = self.turn
        if turn is None or not turn.is_behind:
            return
        begun, restart = trio.current_time(), turn.restarted
        updates = await self._renderer.stream(turn.advance, ended_only)
        now = trio.current_time()
        if not ended_only:
            self._due = now + max(self._renderer.pause, REST * (now - begun))
        if updates or restart:
            self.emit(
                "progress",
                self.session_key,
                Progress(
                    session_key=self.session_key,
                    turn_id=turn.turn_id,
                    restart=restart,
                    parts=updates,
                ),
            )

    async def _send(self, item: Sent) -> None:
        if not self.is_primed:  # the first snapshot has it
            return
        data, event = item.data, item.data.event
        self._receive(data)
        if isinstance(event, SAID):
            return
        if isinstance(event, ENDS_TEXT):
            await self._advance(ended_only=True)
        changes = data.changes
        self.emit(
            item.kind,
            self.session_key,
            RenderedEvent(
                session_key=data.session_key,
                turn_id=data.turn_id,
                event=event,
                changes=UNSET if changes is UNSET else await self._changes(changes, item.published),
            ),
        )
        if isinstance(event, TurnEnded) and self._is_of_turn(event.reply.turn_id):
            self.turn = None

    def _receive(self, data: ConversationEvent) -> None:
        event = data.event
        if event is UNSET:
            return
        if isinstance(event, TurnStarted):
            self.begin_attempt(event.attempt)
            self.turn = GrowingTurn(data.turn_id, self._is_own_file)
        elif self.turn is not None and self._is_of_turn(data.turn_id):
            self.turn.receive(event)

    def _is_of_turn(self, turn_id: int | None) -> bool:
        return self.turn is not None and self.turn.turn_id == turn_id

    # State

    async def _join(self, item: Joining) -> None:
        """Let clients begin after the last event, with the state at this point."""
        state: Snapshot | None = None
        with contained() as caught:
            state = await self._state(item)
        self._note(caught.error)
        for waiter in item.waiters:
            waiter.give(state)

    async def _state(self, item: Joining) -> Snapshot:
        if not self.is_primed:
            self._prime(item.state.turn, item.published)
            self.is_primed, self._due = True, -1.0
        if trio.current_time() >= self._due:
            await self._advance()
        turn = item.state.turn
        shown = None if turn is None else self._shown(turn, item.published)
        event_id = self.event_id(self.numbers.last)
        return msgspec.structs.replace(item.state, id=event_id, turn=shown)

    def _prime(self, turn: TurnProgress | None, published: Sequence[RuntimeEvent]) -> None:
        self.turn = None
        if turn is not None:
            self.begin_attempt(turn.attempt)
            self.turn = GrowingTurn(turn.turn_id, self._is_own_file)
            self.turn.receive_all(published)

    def _shown(self, turn: TurnProgress, published: Sequence[RuntimeEvent]) -> RenderedTurn:
        if not self._is_of_turn(turn.turn_id):
            self._prime(turn, published)
        parts = [] if self.turn is None else self.turn.shown()
        return RenderedTurn(**msgspec.structs.asdict(turn), parts=parts)

    async def _changes(
        self, changes: Changes, published: Sequence[RuntimeEvent]
    ) -> RenderedChanges:
        turn, history = changes.turn, changes.history
        if turn is None:
            self.turn = None
        return RenderedChanges(
            **{
                **msgspec.structs.asdict(changes),
                "turn": self._shown(turn, published) if isinstance(turn, TurnProgress) else turn,
                "history": UNSET if history is UNSET else await self._history(history),
            }
        )

    async def _history(self, history: History) -> RenderedHistory:
        """Return messages with their nodes, or with the part of the turn that has them."""
        known = {} if self.turn is None else self.turn.ended_texts()
        for text, part in known.items():
            self._renderer.keep(self.session_key, text, part.finished)
        parts = {
            row.id: known[row.text].number
            for row in history.messages
            if row.role == "assistant" and row.text in known
        }
        rows = await self._renderer.rows(self.session_key, history.messages, parts)
        return RenderedHistory(rows, replace=history.replace, earlier=history.earlier)


async def rendered_snapshot(renderer: Renderer, state: Snapshot) -> RenderedSnapshot:
    """Return a state that a rendered channel has given, with the nodes of its messages."""
    history = await renderer.history(state.session_key, state.history)
    fields = {**msgspec.structs.asdict(state), "history": history}
    return RenderedSnapshot(**fields)
