"""A bot on Telegram, as an adapter of a runtime."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import trio

from hermes.actors.event_bus import Subscription
from hermes.actors.runtime import Runtime
from hermes.adapters.previews import Previews
from hermes.adapters.rate_limit import Rate, RateLimiter
from hermes.adapters.telegram.api import BASE, BotApi
from hermes.adapters.telegram.inbound import GroupPolicy
from hermes.adapters.telegram.poller import POLL_SECONDS, Receiver
from hermes.adapters.telegram.sender import LONGEST, RECOVERED, ChatTarget, Outgoing
from hermes.events import TurnEnded
from hermes.messages import Inbound, OutboxRow
from hermes.redaction.keys import Secret

REMEMBERED = 10_000


def default_governor() -> RateLimiter:
    """What Telegram allows: 30 calls a second, one a second in a chat, 20 a minute in a group."""
    return RateLimiter(per_token=Rate(30, 1.0), per_chat=Rate(1, 1.0), per_group=Rate(20, 60.0))


class Telegram:
    """A bot on Telegram. Use it in an `async with`, around the runtime that it is an adapter of."""

    platform = "telegram"
    limit = LONGEST - len(RECOVERED)

    def __init__(  # noqa: PLR0913 - what can be set
        self,
        token: Secret,
        *,
        manners: GroupPolicy | None = None,
        governor: RateLimiter | None = None,
        base_url: str = BASE,
        poll_seconds: int = POLL_SECONDS,
        preview_seconds: float | None = 1.5,
        pause_seconds: float = 1.0,
    ) -> None:
        self.manners = manners or GroupPolicy()
        self.trouble: str | None = None
        """Why nothing is received at present, in one sentence; None where all is well."""
        self._api = BotApi(token, base_url)
        self._outgoing = Outgoing(self._api, governor or default_governor())
        self._poll_seconds = poll_seconds
        self._pause_seconds = pause_seconds
        self._shows = preview_seconds is not None
        self._previews = Previews(self._show, busy=self._busy, every=preview_seconds or 1.5)
        self._spots: dict[str, ChatTarget] = {}

    @property
    def account(self) -> str:
        """The bot's id."""
        return self._api.bot_id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with trio.CancelScope(shield=True):
            await self._api.aclose()

    # Replies

    async def ready(self, row: OutboxRow, /) -> None:
        """Wait until Telegram would take a reply; see `Adapter`."""
        await self._previews.settle(row.session_key, row.turn_id)
        await self._outgoing.ready(row)

    async def send(self, row: OutboxRow, /) -> None:
        """Say a reply; see `Adapter`."""
        await self._previews.settle(row.session_key, row.turn_id)
        await self._outgoing.send(row)

    async def _show(self, session_key: str, turn_id: int, text: str) -> None:
        if self._shows and (spot := self._spots.get(session_key)):
            await self._outgoing.preview(spot, turn_id, text)

    async def _busy(self, session_key: str, _: int) -> None:
        if spot := self._spots.get(session_key):
            await self._outgoing.typing(spot)

    async def _leave_stopped(self, events: Subscription, nursery: trio.Nursery) -> None:
        """Turns that end without a reply have no final to edit their preview into."""
        with events:
            async for envelope in events:
                event, spot = envelope.event, self._spots.get(envelope.session_key)
                if spot is not None and isinstance(event, TurnEnded) and not event.reply.text:
                    nursery.start_soon(self._leave, spot, envelope.session_key, event.reply.turn_id)

    async def _leave(self, spot: ChatTarget, session_key: str, turn_id: int) -> None:
        await self._previews.settle(session_key, turn_id)
        await self._outgoing.leave(spot, turn_id)

    # Messages

    async def run(self, runtime: Runtime) -> None:
        """Receive until the runtime ends, or until Telegram does not know the bot any more."""
        async with trio.open_nursery() as nursery:
            receiver = Receiver(
                self._api,
                runtime,
                self._outgoing,
                self.manners,
                nursery,
                self._expect,
                self._tell,
                self._poll_seconds,
                self._pause_seconds,
            )
            nursery.start_soon(self._previews.run, runtime.events())
            nursery.start_soon(self._leave_stopped, runtime.events(), nursery)
            await receiver.run()
            nursery.cancel_scope.cancel()

    def _expect(self, inbound: Inbound) -> None:
        """A message is about to be submitted: its turn will be shown."""
        source, key = inbound.source, inbound.session_key
        self._previews.watch(key)
        self._spots.pop(key, None)
        self._spots[key] = ChatTarget(str(source.chat_id), source.thread_id)
        if len(self._spots) > REMEMBERED:
            del self._spots[next(iter(self._spots))]

    def _tell(self, trouble: str | None) -> None:
        self.trouble = trouble
