"""Which updates can be confirmed, and the order in which messages with files are submitted.

A file takes time to download, and its message must be on disk before its update is confirmed. Other
conversations do not wait for it: their messages are submitted meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

import attrs
import trio

from hermes.background import set_event, start_soon
from hermes.errors import HermesError

Job: TypeAlias = Callable[["Position"], Awaitable[object]]
"""Submits the message of an update, in its position."""


class Postponed(HermesError):
    """An earlier message of the conversation failed, so this one is submitted after it, later."""


class Confirmations:
    """The updates that Telegram has sent and that it does not know to be processed.

    An offset confirms all updates below it, so it is that of the first one that is not processed.
    """

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._done: set[int] = set()

    def receive(self, update_ids: Iterable[int], offset: int | None, *, all_open: bool) -> None:
        """Note the answer to a poll with this offset, which has confirmed all below it.

        `all_open`: updates that are not in the answer are unknown to Telegram, except running ones.
        """
        received = set(update_ids)
        if offset is not None:
            self._done = {each for each in self._done if each >= offset}
        if all_open:
            self._open.intersection_update(received)
        self._open |= received - self._done

    def is_done(self, update_id: int) -> bool:
        """Whether an update is processed."""
        return update_id in self._done

    def done(self, update_id: int) -> None:
        """Note that an update is processed."""
        self._open.discard(update_id)
        self._done.add(update_id)

    def clear(self) -> None:
        """Forget everything: Telegram sends again what was not confirmed."""
        self._open.clear()
        self._done.clear()

    def offset(self, running: Iterable[int] = ()) -> int | None:
        """Return the offset that confirms what can be confirmed; None if there is nothing."""
        first = min({*self._open, *running}, default=None)
        below = [each for each in self._done if first is None or each < first]
        return max(below) + 1 if below else None


@attrs.define(eq=False)
class Position:
    """The position of a message in its conversation."""

    _previous: Position | None
    _album: list[Position]
    """The positions of all files of the same album."""
    ready: trio.Event = attrs.field(init=False, factory=trio.Event)
    """Set when its file is complete."""
    ended: trio.Event = attrs.field(init=False, factory=trio.Event)
    succeeded: bool = attrs.field(init=False, default=False)
    """Whether it is submitted, or needs no answer; known when it has ended."""

    async def reach(self) -> None:
        """Wait until it is the turn of this message; call it when its file is complete.

        All files of an album are complete then, so that its messages are submitted together. Raises
        `Postponed` if an earlier message failed.
        """
        set_event(self.ready)
        for position in self._album:  # it may grow meanwhile
            await position.ready.wait()
        if self._previous is not None:
            await self._previous.ended.wait()
            if not self._previous.succeeded:
                raise Postponed("an earlier message was not accepted")

    def leave(self, *, succeeded: bool) -> None:
        """Let the next message go on."""
        self.succeeded = succeeded
        self._previous = None
        set_event(self.ready)
        set_event(self.ended)


class Lanes:
    """Runs jobs concurrently with the poller, in order within each conversation."""

    def __init__(self, nursery: trio.Nursery, done: Callable[[int], None]) -> None:
        self._nursery = nursery
        self._done = done
        self._last: dict[str, Position] = {}
        self._albums: dict[tuple[str, str], list[Position]] = {}
        self._error: HermesError | None = None
        self._changed = trio.Event()
        self.running: set[int] = set()
        """The updates whose jobs are not finished."""

    def is_busy(self, session_key: str) -> bool:
        """Whether a job of this conversation is running."""
        return session_key in self._last

    def start(self, update_id: int, session_key: str, job: Job, album: str | None = None) -> None:
        """Run a job after those of the same conversation. `album` is the id of an album.

        `done` is called after it. If it fails, and so do those behind it, `wait` raises its error.
        """
        name = (session_key, album or "")
        positions = self._albums.setdefault(name, []) if album else []
        position = Position(self._last.get(session_key), positions)
        positions.append(position)
        self._last[session_key] = position
        self.running.add(update_id)
        start_soon(self._nursery, self._run, update_id, name, position, job)

    async def _run(
        self, update_id: int, name: tuple[str, str], position: Position, job: Job
    ) -> None:
        succeeded = False
        try:
            await job(position)
            await position.reach()  # it may have had nothing to submit
            succeeded = True
        except Postponed:
            pass
        except HermesError as error:
            self._error = self._error or error
        finally:
            position.leave(succeeded=succeeded)
            self.running.discard(update_id)
            if self._last.get(name[0]) is position:
                del self._last[name[0]]
            if (positions := self._albums.get(name)) is not None and positions[-1] is position:
                del self._albums[name]
            if succeeded:
                self._done(update_id)
            set_event(self._changed)

    async def wait(self, seconds: float) -> None:
        """Wait until a job has ended, but not longer than this. Raises the error of a job."""
        if self.running and self._error is None:
            self._changed = trio.Event()
            with trio.move_on_after(seconds):
                await self._changed.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error
