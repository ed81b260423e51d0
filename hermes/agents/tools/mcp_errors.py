"""The standard error of MCP servers: it goes to the log, and its last line explains a failure."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TextIO

import trio

from hermes.background import open_background, set_event, start_soon
from hermes.sanitize import shorten

log: logging.Logger = logging.getLogger(__name__)

MAX_LINE = 500
CHUNK = 4096
LAST_WORDS = 0.5
"""Seconds to wait for the end of the output. Its own children may keep it open."""


class ErrorOutput:
    """What one MCP server writes to its standard error."""

    def __init__(self, server: str) -> None:
        self.last: str = ""
        """The last line that is not blank, shortened."""
        self._server = server
        self._rest = b""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[TextIO]:
        """Yield a file for the server to write to; its lines are logged during the block."""
        self.last, self._rest = "", b""
        reading, writing = os.pipe()
        async with (
            trio.lowlevel.FdStream(reading) as stream,
            open_background() as background,
        ):
            ended = trio.Event()
            start_soon(background, self._log_lines, stream, ended)
            try:
                with os.fdopen(writing, "w", encoding="utf-8") as file:
                    yield file
            finally:  # what a server says last is why it has ended
                with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_WORDS):
                    await ended.wait()

    async def _log_lines(self, stream: trio.lowlevel.FdStream, ended: trio.Event) -> None:
        async for chunk in stream:
            *lines, rest = (self._rest + bytes(chunk)).split(b"\n")
            self._rest = rest[-CHUNK:]
            for line in lines:
                self._log(line)
        self._log(self._rest)
        set_event(ended)

    def _log(self, line: bytes) -> None:
        text = shorten(line.decode(errors="replace").strip(), MAX_LINE)
        if text:
            self.last = text
            log.info("MCP server %s: %s", self._server, text)
