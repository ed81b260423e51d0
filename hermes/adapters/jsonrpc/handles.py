"""Handles: the names that one client has for its conversations, for as long as it is connected.

A handle stands for a session_key, never for a stored session: so it follows wherever the key leads.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

import attrs

from hermes.adapters.jsonrpc.frames import NO_SESSION, TOO_MANY, Refused
from hermes.messages import Source
from hermes.session_keys import session_key

PLATFORM = "rpc"
MAX_HANDLES = 10_000
_OURS = re.compile(rf"agent:main:{PLATFORM}:dm:([0-9a-f]{{8}})[0-9a-f]{{16}}")


@attrs.define(eq=False)
class Handle:
    """A conversation of one client."""

    id: str
    source: Source
    session_key: str
    stored_id: str | None = None
    """The session that the key leads to, as far as the client was told."""
    open: set[int] = attrs.Factory(set)
    """Messages that were taken and have not had their answer."""
    submitting: int = 0
    ended: set[int] = attrs.Factory(set)
    """Messages that were answered while others, perhaps the same, were being submitted."""
    answers: int = 0
    closing: bool = False


class Handles:
    """The handles of one client."""

    def __init__(self, limit: int = MAX_HANDLES) -> None:
        self._limit = limit
        self._by_id: dict[str, Handle] = {}
        self._by_key: dict[str, Handle] = {}

    def __iter__(self) -> Iterator[Handle]:
        return iter(list(self._by_id.values()))

    def new(self, key: str | None = None) -> Handle:
        """A handle for a key of ours, or for a new one; the same key had the same handle before."""
        if len(self._by_id) >= self._limit:
            raise Refused(TOO_MANY)
        chat_id = secrets.token_hex(12) if key is None else key.rsplit(":", 1)[1]
        name = chat_id[:8]
        while name in self._by_id:
            name = secrets.token_hex(4)
        source = Source(platform=PLATFORM, chat_id=chat_id, user_id="operator")
        handle = Handle(name, source, key or session_key(source))
        self._by_id[name] = self._by_key[handle.session_key] = handle
        return handle

    def require(self, name: str) -> Handle:
        """The handle of this name, if it is live."""
        handle = self._by_id.get(name)
        if handle is None or handle.closing:
            raise Refused(NO_SESSION)
        return handle

    def get(self, name: str) -> Handle | None:
        """The handle of this name, if there is one."""
        return self._by_id.get(name)

    def of_key(self, key: str) -> Handle | None:
        """The handle that stands for this key."""
        return self._by_key.get(key)

    def forget(self, handle: Handle) -> None:
        """The handle is gone."""
        self._by_id.pop(handle.id, None)
        self._by_key.pop(handle.session_key, None)


def is_ours(key: str) -> bool:
    """Whether this key was made for a handle, in this run or in an earlier one."""
    return _OURS.fullmatch(key) is not None
