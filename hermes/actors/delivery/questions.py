"""Questions for approval that no adapter sends: what their users have been shown.

A command decides only about calls that its user had been shown when it was accepted. An outbox row
shows its question when it is sent. Every other question is shown by whoever delivers it: the call
of a host that returns it, a stream or a subscription that yields it, the connection of a client
that writes it. They call `shown` at that moment, without a checkpoint. It notes the number of the
latest command that was accepted before, and a command decides only about calls with a lower one. So
an answer counts however fast it is, and a command that crossed with the question does not. Commands
that other processes accepted may not be known yet; for these, the time is noted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import trio

from hermes.actors.delivery.dispatcher import Dispatcher
from hermes.background import set_event
from hermes.errors import StoreFailed
from hermes.events import ApprovalAsked, RuntimeEvent, TurnEnded
from hermes.messages import Approval, QuestionRoute, Reply, Source
from hermes.protocols import ToolRecords
from hermes.session_keys import API_PLATFORMS, CLIENT_PLATFORM, is_client_key
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)

_NOT_SHOWN = (None, 0.0)


class Questions:
    """Knows how questions are delivered, and which of them were."""

    def __init__(
        self, records: ToolRecords, dispatcher: Dispatcher, wall: Callable[[], float] = time.time
    ) -> None:
        self._records = records
        self._dispatcher = dispatcher
        self._wall = wall
        self._latest_command = 0
        self._unstored: dict[int, tuple[int | None, float]] = {}
        """The command before each question that was shown, and when it was shown.

        The command is None for a question that was not shown after all.
        """
        self._some_unstored = trio.Event()

    def route(self, source: Source) -> QuestionRoute:
        """Return how a question reaches the user of a conversation."""
        if self._dispatcher.serves(source.platform):
            return QuestionRoute("outbox", self._dispatcher.limit_of(source))
        by_client = source.platform in {CLIENT_PLATFORM, *API_PLATFORMS}
        return QuestionRoute("client" if by_client else "host")

    def note_command(self, inbox_id: int) -> None:
        """Note that a command was accepted."""
        self._latest_command = max(self._latest_command, inbox_id)

    def shown(self, approval: Approval) -> None:
        """Note that the user is shown a question now. Has no effect if an adapter sends it."""
        self._note(approval, self._latest_command)

    def not_shown(self, approval: Approval) -> None:
        """Note that a question could not be delivered after all."""
        self._note(approval, None)

    def returned(self, reply: Reply) -> Reply:
        """Note that a host receives a reply, with the questions in it; returns the reply."""
        for approval in reply.approvals:
            self._show_host(approval)
        return reply

    def received(self, event: RuntimeEvent) -> None:
        """Note that a host receives an event of a conversation, perhaps with questions."""
        match event:
            case ApprovalAsked(approval):
                self._show_host(approval)
            case TurnEnded(reply):
                self.returned(reply)

    def _show_host(self, approval: Approval) -> None:
        """Note that a host is shown a question, unless it is one to a JSON-RPC client.

        The text of a reply does not show these, and the host is not their user.
        """
        if not is_client_key(approval.asked_of):
            self.shown(approval)

    def _note(self, approval: Approval, after: int | None) -> None:
        number = approval.approval_id
        if after is None or self._unstored.get(number, _NOT_SHOWN)[0] is None:
            self._unstored[number] = (after, self._wall())
        set_event(self._some_unstored)

    async def run(self) -> None:
        """Background loop: store what was shown, for the commands of a later process."""
        while True:
            await self._some_unstored.wait()
            self._some_unstored = trio.Event()
            await self.try_flush()

    async def try_flush(self) -> None:
        """Same as `flush`; if that fails, the next command stores what was shown."""
        with contained(StoreFailed) as caught:
            await self.flush()
        if caught.error is not None:
            log.warning("a question is not stored as shown: %s", caught.error)

    async def flush(self) -> None:
        """Store what was shown. Call it before reading which calls a command may decide about."""
        if shown := dict(self._unstored):
            after = {number: each[0] for number, each in shown.items()}
            times = {number: each[1] for number, each in shown.items()}
            await self._records.mark_shown(after, times)
            for entry in shown.items() & self._unstored.items():
                del self._unstored[entry[0]]
