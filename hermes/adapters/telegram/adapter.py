"""A Telegram bot as an adapter of a runtime."""

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
from hermes.adapters.telegram.media import MAX_DOWNLOAD
from hermes.adapters.telegram.menu import set_menu
from hermes.adapters.telegram.poller import POLL_TIMEOUT, Poller
from hermes.adapters.telegram.sender import MAX_LENGTH, MAX_MARK, ChatTarget, Sender
from hermes.background import open_background, start_soon
from hermes.events import MessageAccepted, TurnEnded
from hermes.messages import Inbound, OutboxRow
from hermes.protocols import FileReader
from hermes.redaction import Secret
from hermes.texts import ENGLISH, Texts

MAX_TARGETS = 10_000
PREVIEW_INTERVAL = 1.5


def default_rate_limiter() -> RateLimiter:
    """Return a limiter with the limits of Telegram.

    They are 30 calls a second, one a second per chat, and 20 a minute per group.
    """
    return RateLimiter(per_token=Rate(30, 1.0), per_chat=Rate(1, 1.0), per_group=Rate(20, 60.0))


class Telegram:
    """A Telegram bot. Use it in an `async with` around the runtime that it is an adapter of.

    - `group_policy`: whom the bot answers in groups, and how it separates conversations.
    - `rate_limiter`: the limits for calls to Telegram; by default those of Telegram itself.
    - `base_url`: the address of the Bot API server.
    - `poll_timeout`: how many seconds a long poll waits for updates.
    - `preview_interval`: seconds between two previews of a running answer; None shows none.
    - `retry_delay`: seconds before the first retry after a failed poll or download; doubled each
      time.
    - `max_file_size`: the largest file to download, in bytes; at most what Telegram allows.
    - `texts`: the texts of the runtime. The adapter uses `recovered`, at most 90 characters of it.
    """

    platform = "telegram"
    on_trio: bool = True
    limit: int = MAX_LENGTH - MAX_MARK - len("__\n")
    """The longest text of one message, in UTF-16 code units."""

    def __init__(  # noqa: PLR0913 - settings
        self,
        token: Secret,
        *,
        group_policy: GroupPolicy | None = None,
        rate_limiter: RateLimiter | None = None,
        base_url: str = BASE,
        poll_timeout: int = POLL_TIMEOUT,
        preview_interval: float | None = PREVIEW_INTERVAL,
        retry_delay: float = 1.0,
        max_file_size: int = MAX_DOWNLOAD,
        texts: Texts = ENGLISH,
    ) -> None:
        self.group_policy: GroupPolicy = group_policy or GroupPolicy()
        self.problem: str | None = None
        """Why no messages are received at present, in one sentence; None if all is well."""
        self._api = BotApi(token, base_url)
        self._sender = Sender(self._api, rate_limiter or default_rate_limiter(), texts)
        self._poll_timeout = poll_timeout
        self._retry_delay = retry_delay
        self._max_file_size = min(max_file_size, MAX_DOWNLOAD)
        self._shows_text = preview_interval is not None
        self._previews = Previews(
            self._show, typing=self._show_typing, interval=preview_interval or PREVIEW_INTERVAL
        )
        self._targets: dict[str, ChatTarget] = {}

    @property
    def account(self) -> str:
        """The id of the bot."""
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
        """Wait until the rate limits allow this reply; see `Adapter`."""
        await self._previews.stop(row.session_key, row.turn_id)
        await self._sender.ready(row)

    async def send(self, row: OutboxRow, /) -> None:
        """Send a reply; see `Adapter`."""
        await self._previews.stop(row.session_key, row.turn_id)
        await self._sender.send(row)

    async def send_file(self, row: OutboxRow, file: FileReader, /) -> None:
        """Send a file of a reply; see `SupportsFiles`."""
        await self._previews.stop(row.session_key, row.turn_id)
        await self._sender.send_file(row, file)

    async def _show(self, session_key: str, turn_id: int, text: str) -> None:
        if self._shows_text and (target := self._targets.get(session_key)):
            await self._sender.preview(target, turn_id, text)

    async def _show_typing(self, session_key: str, _: int) -> None:
        if target := self._targets.get(session_key):
            await self._sender.typing(target)

    async def _remove_buttons(self, events: Subscription, nursery: trio.Nursery) -> None:
        """Remove the buttons of questions when their calls are decided, also by text."""
        with events:
            async for envelope in events:
                event = envelope.event
                if isinstance(event, MessageAccepted) and event.decided_call is not None:
                    start_soon(nursery, self._sender.decided, event.decided_call)

    async def _finish_previews(self, events: Subscription, nursery: trio.Nursery) -> None:
        """Finish the previews of turns that end without a reply to edit them into."""
        with events:
            async for envelope in events:
                event, target = envelope.event, self._targets.get(envelope.session_key)
                if target is not None and isinstance(event, TurnEnded) and not event.reply.text:
                    turn_id = event.reply.turn_id
                    start_soon(nursery, self._finish_preview, envelope.session_key, turn_id)

    async def _finish_preview(self, session_key: str, turn_id: int) -> None:
        await self._previews.stop(session_key, turn_id)
        await self._sender.finish_preview(turn_id)

    # Messages

    async def run(self, runtime: Runtime) -> None:
        """Receive messages until the runtime drains, or until Telegram rejects the token.

        Of several nodes that share a database, one does so at a time: Telegram gives each update to
        one of them only.
        """
        await runtime.adapter_state.receive(self, lambda: self._receive(runtime))

    async def _receive(self, runtime: Runtime) -> None:
        async with open_background() as background:
            poller = Poller(
                api=self._api,
                runtime=runtime,
                sender=self._sender,
                group_policy=self.group_policy,
                nursery=background,
                on_message=self._prepare_preview,
                on_problem=self._set_problem,
                poll_timeout=self._poll_timeout,
                retry_delay=self._retry_delay,
                max_file_size=self._max_file_size,
            )
            start_soon(background, set_menu, self._api, runtime.texts)
            start_soon(background, self._previews.run, runtime.subscribe())
            start_soon(background, self._finish_previews, runtime.subscribe(), background)
            decisions = runtime.subscribe(deltas=False, messages=True)
            start_soon(background, self._remove_buttons, decisions, background)
            await poller.run()

    def _prepare_preview(self, inbound: Inbound) -> None:
        """Remember where to show the turn of a message that is about to be submitted."""
        source, key = inbound.source, inbound.session_key
        self._previews.watch(key)
        self._targets.pop(key, None)
        self._targets[key] = ChatTarget(str(source.chat_id), source.thread_id)
        if len(self._targets) > MAX_TARGETS:
            del self._targets[next(iter(self._targets))]

    def _set_problem(self, problem: str | None) -> None:
        self.problem = problem
