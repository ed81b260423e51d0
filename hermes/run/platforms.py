"""Adapters for the platforms in the settings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from hermes.actors.runtime import Runtime
from hermes.protocols import Adapter
from hermes.run.references import resolve_secret
from hermes.settings import Settings
from hermes.settings.schema import TelegramTable
from hermes.texts import Texts


class Platform(Adapter, Protocol):
    """An adapter that also receives messages."""

    problem: str | None
    """Why no messages can be received at present, or None."""

    async def run(self, runtime: Runtime) -> None:
        """Receive messages until the platform refuses the bot for good."""
        ...


@asynccontextmanager
async def open_platforms(settings: Settings) -> AsyncIterator[list[Platform]]:
    """Open the adapters; their connections are closed at the end of the block."""
    async with AsyncExitStack() as stack:
        platforms: list[Platform] = []
        if settings.telegram is not None:
            platforms.append(await _open_telegram(settings, settings.telegram, stack))
        yield platforms


async def _open_telegram(
    settings: Settings, table: TelegramTable, stack: AsyncExitStack
) -> Platform:
    # Imported here because it brings an HTTP client.
    from hermes.adapters.telegram import BASE, GroupPolicy, Telegram  # noqa: PLC0415

    policy = GroupPolicy(groups=table.groups, shared=table.shared_groups, edits=table.edits)
    token = resolve_secret("telegram.token", table.token)
    base_url = table.base_url or BASE
    telegram = Telegram(
        token,
        group_policy=policy,
        base_url=base_url,
        max_file_size=settings.config().attachments.message_bytes,
        texts=Texts(**settings.texts),
    )
    return await stack.enter_async_context(telegram)
