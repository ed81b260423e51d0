"""The ends of answers: recorded, so that a retry attaches to a response only if it was lost.

A process can be killed after it has written an answer and before that is recorded. So answers to
equal requests are written one after the other, and while several are open, it is recorded which
one is being written: a retry gets another one then.
"""

from __future__ import annotations

from functools import partial

import trio

from hermes.actors.admin import ApiRecords
from hermes.adapters.http.access.requests import OpenRequest, OpenRequests
from hermes.background import holding, start_soon
from hermes.user_code import contained

PATIENCE = 3.0
"""Seconds that an answer waits for those to equal requests, whose clients may not read."""


class Endings:
    """Records how connections have ended, later if the store is busy."""

    def __init__(self, api: ApiRecords, requests: OpenRequests) -> None:
        self.api: ApiRecords = api
        self.requests: OpenRequests = requests
        self._missing: dict[str, bool] = {}
        """Responses whose end could not be recorded, and whether they were written in full."""
        self._catching_up = trio.Lock()

    async def record(self, response_id: str, *, complete: bool) -> None:
        """Record the end of a connection, or remember it for `catch_up`."""
        with trio.CancelScope(shield=True), contained() as caught:
            await self.api.end_connection(response_id, self.api.process_id(), complete=complete)
        if caught.error is not None:
            self._missing[response_id] = complete

    async def catch_up(self) -> None:
        """Record the ends that could not be recorded when they came."""
        async with holding(self._catching_up):  # nobody looks for them while another one records
            missing, self._missing = self._missing, {}
            if not missing:
                return
            async with trio.open_nursery() as nursery:
                for response_id, complete in missing.items():
                    start_soon(nursery, partial(self.record, response_id, complete=complete))


class Ending:
    """The end of the answer to one request."""

    def __init__(self, endings: Endings, opened: OpenRequest, response_id: str | None) -> None:
        self._endings = endings
        self._opened = opened
        self._response_id = response_id
        """None if no retry can attach to the response."""

    @property
    def begun(self) -> bool:
        """Whether the last part of the answer is being sent, or was sent."""
        return self._opened.ending_since is not None

    async def begin(self) -> None:
        """Call this when the turn has ended, before the last part of the answer is sent.

        It waits for the answers to equal requests that are being written.
        """
        opened, requests = self._opened, self._endings.requests
        if self._response_id is None or opened.ending_since is not None:
            return
        if opened.equals():
            with trio.move_on_after(PATIENCE):
                while any(each.ending_since is not None for each in opened.equals()):
                    await requests.ended.wait()
        opened.ending_since = trio.current_time()
        if opened.equals():
            api = self._endings.api
            with contained():  # the store may be busy; then it is not known which one was written
                await api.begin_answer(self._response_id, api.process_id())

    async def record(self, *, complete: bool) -> None:
        """Record the end of the connection; `complete` if the answer was written in full."""
        if self._response_id is None:
            return
        # The next answer begins, but its record comes after the one of this end.
        self._opened.ending_since = None
        self._endings.requests.note_end()
        await self._endings.record(self._response_id, complete=complete)
