"""The standard error of MCP servers: it goes to the log, and its last line explains a failure."""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TextIO

import trio

from hermes.background import open_background, set_event, start_soon
from hermes.sanitize import shorten

log: logging.Logger = logging.getLogger(__name__)

EXIT = f"hermes-exit-{secrets.token_hex(8)}"
"""Begins the line with the exit status of a server, which is not the server's own."""
_RUN = (
    'exec 3>&2 2>/dev/null; (exec "$@" 2>&3 3>&-); status=$?; '
    'printf "\\n%s %s\\n" "$0" "$status" >&3; exit "$status"'
)
"""The shell's own remarks are dropped: it would report a server that a signal has ended."""
_STATUS = re.compile(rf"{EXIT} ([0-9]{{1,3}})")
MAX_LINE = 500
CHUNK = 4096
LAST_WORDS = 0.5
"""Seconds to wait for the end of the output. Its own children may keep it open."""


def reporting(command: str, arguments: Sequence[str]) -> list[str]:
    """Return a command that runs another one, and then writes its exit status for `ErrorOutput`.

    The MCP library does not tell the exit status.
    """
    return ["/bin/sh", "-c", _RUN, EXIT, command, *arguments]


class ErrorOutput:
    """What one MCP server writes to its standard error."""

    def __init__(self, server: str) -> None:
        self.last: str = ""
        """The last line that is not blank, shortened."""
        self.status: int | None = None
        """The exit status of the server, if it has ended and was run by `reporting`."""
        self._server = server
        self._rest = b""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[TextIO]:
        """Yield a file for the server to write to; its lines are logged during the block."""
        self.last, self.status, self._rest = "", None, b""
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
        found = _STATUS.fullmatch(text)
        if found is not None:
            self.status = int(found[1])
        elif text:
            self.last = text
            log.info("MCP server %s: %s", self._server, text)
