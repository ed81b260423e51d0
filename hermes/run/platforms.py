"""Adapters for the platforms in the settings, and the HTTP server."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from hermes.actors.runtime import Runtime
from hermes.protocols import Adapter
from hermes.run.configuration import read_database
from hermes.run.local_files import local_path
from hermes.run.references import resolve_secret
from hermes.settings import Problem, Settings, SettingsError
from hermes.settings.http import HttpConfig
from hermes.settings.installation import command
from hermes.settings.schema import TelegramTable
from hermes.store.sqlite.file_lock import resolve
from hermes.telemetry.collecting import Collected
from hermes.texts import Texts

log: logging.Logger = logging.getLogger(__name__)

SERVING = "HTTP: {url}/v1 and {url}/api; to open the page: {web}; to create a token: {create}"


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


@asynccontextmanager
async def serving_http(
    settings: Settings, runtime: Runtime, collected: Collected, *, open_page: bool
) -> AsyncIterator[str | None]:
    """Serve HTTP during the block, if the settings say so; yields the URL, or None.

    With `open_page`, the web page is opened in a browser.

    Raises `SettingsError` if it cannot listen at the address.
    """
    if settings.http is None:
        yield None
        return
    # Imported here because it needs an extra.
    from hermes.adapters.http import serve_http  # noqa: PLC0415
    from hermes.run.page import showing_page  # noqa: PLC0415

    async with AsyncExitStack() as stack:
        try:
            server = serve_http(runtime, settings.http, collected=collected)
            url = await stack.enter_async_context(server)
        except OSError as error:
            raise SettingsError([_listen_problem(settings.http, error)]) from None
        log.info("%s", describe_http(url))
        path = resolve(local_path(read_database(settings.data)))
        await stack.enter_async_context(showing_page(runtime, url, path, show=open_page))
        yield url


def describe_http(url: str) -> str:
    """Return a line about the HTTP server: its URL, its page, and how a client gets a token."""
    return SERVING.format(url=url, web=command("web"), create=command("tokens create NAME"))


def _listen_problem(config: HttpConfig, error: OSError) -> Problem:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return Problem(0, "http.host", f"{config.host} is not an address of this machine")
    if error.errno == errno.EADDRINUSE:
        message = f"port {config.port} of {config.host} is in use; choose another one"
        return Problem(0, "http.port", message)
    reason = f"cannot listen at port {config.port} of {config.host}: {error.strerror}"
    return Problem(0, "http", reason)
