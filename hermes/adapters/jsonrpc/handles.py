"""Handles: the names that one client has for its conversations while it is connected.

A handle stands for a session_key, not for a stored session, so it stays valid when the conversation
moves to another stored session.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from hermes.adapters.jsonrpc.frames import NO_SESSION, TOO_MANY, Refused
from hermes.messages import Source
from hermes.session_keys import session_key

PLATFORM = "rpc"
MAX_HANDLES = 10_000
_OWN_KEY = re.compile(rf"agent:main:{PLATFORM}:dm:([0-9a-f]{{8}})[0-9a-f]{{16}}")


@attrs.define(eq=False)
class Handle:
    """A conversation of one client."""

    id: str
    source: Source
    session_key: str
    stored_id: str | None = None
    """The stored session of the key, as last reported to the client."""
    pending: set[int] = attrs.Factory(set)
    """Inbox ids of messages that were accepted and not answered yet."""
    submitting: int = 0
    """How many submissions are in progress."""
    answered: set[int] = attrs.Factory(set)
    """Inbox ids that were answered during these submissions, perhaps before their receipt."""
    answer_count: int = 0
    closing: bool = False


@contextmanager
def submitting(handle: Handle) -> Iterator[None]:
    """Record what is answered in the meantime: an answer may come before its receipt."""
    handle.submitting += 1
    try:
        yield
    finally:
        handle.submitting -= 1
        if not handle.submitting:
            handle.answered.clear()


class Handles:
    """The handles of one client."""

    def __init__(self, limit: int = MAX_HANDLES) -> None:
        self._limit = limit
        self._by_id: dict[str, Handle] = {}
        self._by_key: dict[str, Handle] = {}

    def __iter__(self) -> Iterator[Handle]:
        return iter(list(self._by_id.values()))

    def new(self, key: str | None = None) -> Handle:
        """Create a handle for a key of this adapter, or for a new key.

        The id is derived from the key, so the same key has the same handle after a restart. Raises
        `Refused` if there are too many handles.
        """
        if len(self._by_id) >= self._limit:
            raise Refused(TOO_MANY)
        chat_id = secrets.token_hex(12) if key is None else key.rsplit(":", 1)[1]
        handle_id = chat_id[:8]
        while handle_id in self._by_id:
            handle_id = secrets.token_hex(4)
        source = Source(platform=PLATFORM, chat_id=chat_id, user_id="operator")
        handle = Handle(handle_id, source, key or session_key(source))
        self._by_id[handle_id] = self._by_key[handle.session_key] = handle
        return handle

    def require(self, handle_id: str) -> Handle:
        """Return an open handle; raises `Refused` if there is none or it is being closed."""
        handle = self._by_id.get(handle_id)
        if handle is None or handle.closing:
            raise Refused(NO_SESSION)
        return handle

    def get(self, handle_id: str) -> Handle | None:
        """Return the handle with this id, if there is one."""
        return self._by_id.get(handle_id)

    def find(self, key: str) -> Handle | None:
        """Return the handle of this session_key, if there is one."""
        return self._by_key.get(key)

    def remove(self, handle: Handle) -> None:
        """Remove a handle."""
        self._by_id.pop(handle.id, None)
        self._by_key.pop(handle.session_key, None)


def is_own_key(key: str) -> bool:
    """Return whether a session_key was created for a handle, by this process or an earlier one."""
    return _OWN_KEY.fullmatch(key) is not None
