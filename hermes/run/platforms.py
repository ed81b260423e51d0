"""The platforms that the settings name, each with its adapter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from hermes.actors.runtime import Runtime
from hermes.protocols import Adapter
from hermes.run import references
from hermes.settings import Settings
from hermes.settings.schema import TelegramTable


class Platform(Adapter, Protocol):
    """An adapter that receives: `run` ends where the platform does not want us any more."""

    trouble: str | None
    """Why nothing is received at present, in one sentence."""

    async def run(self, runtime: Runtime) -> None: ...


@asynccontextmanager
async def open_platforms(settings: Settings) -> AsyncIterator[list[Platform]]:
    """The adapters; their connections are closed at the end of the block."""
    async with AsyncExitStack() as stack:
        platforms: list[Platform] = []
        if settings.telegram is not None:
            platforms.append(await _telegram(settings.telegram, stack))
        yield platforms


async def _telegram(table: TelegramTable, stack: AsyncExitStack) -> Platform:
    from hermes.adapters.telegram import BASE, GroupPolicy, Telegram  # noqa: PLC0415 - an HTTP client

    manners = GroupPolicy(groups=table.groups, shared=table.shared_groups, edits=table.edits)
    token = references.secret("telegram.token", table.token)
    telegram = Telegram(token, manners=manners, base_url=table.base_url or BASE)
    return await stack.enter_async_context(telegram)
