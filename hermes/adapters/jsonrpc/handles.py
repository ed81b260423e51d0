"""Handles: the names that one client has for its conversations while it is connected.

A handle stands for a session_key, not for a stored session, so it stays valid when the conversation
moves to another stored session. The key contains the name of the conversation, which the client may
choose; with the name, the client finds the conversation again after a restart.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from hermes.actors.event_bus import Subscription
from hermes.adapters.jsonrpc.frames import NO_SESSION, TOO_MANY, Refused
from hermes.adapters.jsonrpc.types import NAME_PATTERN
from hermes.messages import Source
from hermes.session_keys import CLIENT_PLATFORM, session_key

PLATFORM = CLIENT_PLATFORM
MAX_HANDLES = 10_000
MAX_SENT = 1000
_OWN_KEY = re.compile(rf"agent:main:{PLATFORM}:dm:({NAME_PATTERN})")


@attrs.define(eq=False)
class Handle:
    """A conversation of one client."""

    id: str
    conversation: str
    """The name of the conversation, which is the same in every process."""
    source: Source
    session_key: str
    stored_id: str | None = None
    """The stored session of the key, as last reported to the client."""
    others: tuple[str, ...] = ()
    """Other conversations that have had its session; messages may have been sent there before."""
    pending: set[int] = attrs.Factory(set)
    """Inbox ids of messages that were accepted and not answered yet."""
    submitting: int = 0
    """How many submissions are in progress."""
    answered: set[int] = attrs.Factory(set)
    """Inbox ids that were answered during these submissions, perhaps before their receipt."""
    answer_count: int = 0
    closing: bool = False
    sent: deque[str] = attrs.Factory(lambda: deque(maxlen=MAX_SENT))
    """The event ids of the latest messages that the client has sent here."""

    def origin(self, name: str) -> tuple[Source, str]:
        """Return the source and the session_key of messages to this conversation or another."""
        if name == self.conversation:
            return self.source, self.session_key
        return (source := source_of(name)), session_key(source)


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
        self.events: Subscription | None = None
        """Receives the events of their conversations, also if other nodes serve these."""

    def __iter__(self) -> Iterator[Handle]:
        return iter(list(self._by_id.values()))

    def new(self, conversation: str | None = None) -> Handle:
        """Create a handle for the conversation with this name, or for a new conversation.

        The id is derived from the name, so a conversation usually has the same handle after a
        restart. Raises `Refused` if there are too many handles.
        """
        name = secrets.token_hex(12) if conversation is None else conversation
        source = source_of(name)
        return self._add(name, source, session_key(source))

    def attach(self, key: str) -> Handle:
        """Create a handle for the conversation with this session_key, of any platform.

        Raises `Refused` if there are too many handles.
        """
        name = name_in(key)
        return self._add(key, source_of(key), key) if name is None else self.new(name)

    def _add(self, name: str, source: Source, key: str) -> Handle:
        if len(self._by_id) >= self._limit:
            raise Refused(TOO_MANY)
        handle_id = _digest(name, 4)
        while handle_id in self._by_id:
            handle_id = secrets.token_hex(4)
        handle = Handle(handle_id, name, source, key)
        self._by_id[handle_id] = self._by_key[key] = handle
        if self.events is not None:
            self.events.include(key)
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

    def named(self, conversation: str) -> Handle | None:
        """Return the handle of the conversation with this name, if there is one."""
        return self._by_key.get(session_key(source_of(conversation)))

    def remove(self, handle: Handle) -> None:
        """Remove a handle."""
        self._by_id.pop(handle.id, None)
        self._by_key.pop(handle.session_key, None)
        if self.events is not None:
            self.events.exclude(handle.session_key)


def name_in(key: str | None) -> str | None:
    """Return the name of the conversation that a session_key of this adapter contains.

    Returns None for keys of other platforms.
    """
    found = _OWN_KEY.fullmatch(key or "")
    return None if found is None else found[1]


def name_for(session_id: str) -> str:
    """Return the name of the conversation that continues a session of another platform."""
    return _digest(session_id, 12)


def source_of(conversation: str) -> Source:
    """Return the source of messages in the conversation with this name."""
    return Source(platform=PLATFORM, chat_id=conversation, user_id="operator")


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()
