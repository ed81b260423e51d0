"""Why an MCP server cannot be used, in words for its operator."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from signal import Signals
from urllib.parse import urlsplit

import attrs
import trio
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED

from hermes import user_code
from hermes.sanitize import shorten

MAX_SHOWN = 290
_SIGNALLED = 128
"""A shell reports a program that a signal has ended with this number, plus that of the signal."""


@attrs.frozen
class Cause:
    """What is wrong with a server, as the end of a sentence that begins with its name."""

    shown: str
    logged: str
    """The same without the messages of other code, which may quote the arguments of a call."""

    def with_last_line(self, words: str) -> Cause:
        """Add what the server has written last to its standard error."""
        if not words:
            return self
        return Cause(shorten(f"{self.shown}: {words}", MAX_SHOWN), f"{self.logged}: {words}")


def too_slow(seconds: float) -> Cause:
    """Return that a server did not start in time."""
    return _same(f"did not start within {seconds:g} seconds")


def cause_of(error: BaseException | None, url: str | None, status: int | None) -> Cause:
    """Return why a server was lost.

    Args:
        error: What its connection has raised; None if that was closed.
        url: The address of a server that is reached over HTTP.
        status: The exit status of a command, as a shell reports it; None if it is not known.
    """
    found = None if error is None else user_code.leaf(error)
    if isinstance(found, trio.TooSlowError):
        return _same("does not respond")
    if found is None or (isinstance(found, MCPError) and found.error.code == CONNECTION_CLOSED):
        return _same(f"has ended{_ended(status)}" if url is None else "has closed the connection")
    if isinstance(found, MCPError):
        text = "gives an unexpected answer"
        code = f"{text} (code {found.error.code})"
        return Cause(shorten(f"{text}: {found}", MAX_SHOWN), code)
    if (reason := _reason(found)) is not None:
        what = "cannot be started" if url is None else f"cannot be reached at {_host(url)}"
        return _same(f"{what}: {reason}")
    shown = str(found) or type(found).__name__
    return Cause(shorten(f"has failed: {shown}", MAX_SHOWN), f"has failed: {_kind(found)}")


def _same(text: str) -> Cause:
    return Cause(text, text)


def _kind(error: BaseException) -> str:
    return user_code.loggable(error)


def _ended(status: int | None) -> str:
    if status is None:
        return ""
    if status - _SIGNALLED in set(Signals):
        return f" (signal {Signals(status - _SIGNALLED).name})"
    return f" (exit status {status})"


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def _reason(error: BaseException) -> str | None:
    """Return what the operating system says; None if the error has another cause."""
    for each in _chain(error):
        match each:
            case socket.gaierror():
                return "the name of the host is unknown"
            case ssl.SSLError():
                return "the encrypted connection failed"
            case FileNotFoundError():
                return "the program was not found"
            case OSError(strerror=str(text)) if each.errno:
                return text.rpartition(": ")[2].lower()
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and what has caused it."""
    while error is not None:
        error = user_code.leaf(error)
        yield error
        error = error.__cause__ or error.__context__
