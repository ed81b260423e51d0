"""Opening conversations: handles for new, named and stored ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

import trio

from hermes.actors.runtime import Runtime
from hermes.adapters.jsonrpc.frames import NOT_FOUND, Refused
from hermes.adapters.jsonrpc.handles import Handle, Handles, name_for, name_in
from hermes.background import holding
from hermes.errors import AmbiguousTitle
from hermes.messages import Session, SessionMatch


class Opener:
    """Opens the conversations of one client."""

    def __init__(self, runtime: Runtime, handles: Handles) -> None:
        self._runtime = runtime
        self._handles = handles
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        """Locks of conversations that are being opened, by name or first session."""

    async def create(self, name: str | None) -> tuple[Handle, bool]:
        """Return a handle for the conversation with this name, or for a new conversation.

        Also returns whether the handle is new.
        """
        if name is None:
            await trio.lowlevel.checkpoint()
            return self._handles.new(), True
        async with holding(self._lock(name)):
            known = self._handles.named(name)
            return (known, False) if known is not None else (await self._open(name), True)

    async def _open(self, name: str) -> Handle:
        handle = self._handles.new(name)
        with self.remove_on_failure(handle):
            await self._locate(handle)
        return handle

    async def attach(self, key: str) -> Handle:
        """Return a handle for the conversation with this session_key, of any platform."""
        async with holding(self._lock(key)):
            if (known := self._handles.find(key)) is not None:
                return known
            handle = self._handles.attach(key)
            with self.remove_on_failure(handle):
                await self._locate(handle)
            return handle

    def _lock(self, name: str) -> trio.Lock:
        return self._locks.setdefault(name, trio.Lock())

    async def _locate(self, handle: Handle) -> None:
        """Set the stored session of a new handle, if the conversation has one."""
        status = await self._runtime.conversation(handle.session_key).status()
        if handle.stored_id is None:  # else an event has set it meanwhile
            handle.stored_id = status.session_id
        if status.session_id is not None:
            found = await self._runtime.admin.find(status.session_id)
            if found is not None:
                _note_others(handle, found)

    async def resume(self, target: str) -> Handle:
        """Return the handle for a stored conversation, creating one if necessary."""
        first = (await self.find(target)).lineage[0]
        # Otherwise two calls could open two handles for one conversation.
        async with holding(self._lock(first)):
            found = await self.find(target)
            handle = await self._resume(found, first)
            _note_others(handle, found)
            return handle

    async def _resume(self, found: SessionMatch, first: str) -> Handle:
        name = next(filter(None, map(name_in, found.session_keys)), None)
        handle = None if name is None else self._handles.named(name)
        if handle is not None:
            return handle
        if found.session is None:
            return await self._resume_empty(name)
        handle = self._handles.new(name or self._unused_name(found.session, first))
        handle.stored_id = found.session_id
        if name is None or found.session.ended_at is not None:
            with self.remove_on_failure(handle):
                await self._runtime.admin.switch(handle.session_key, found.session_id)
        return handle

    async def _resume_empty(self, name: str | None) -> Handle:
        """Return a handle for a conversation, given by the id of a session without a row."""
        if name is None:
            raise Refused(NOT_FOUND)
        return await self._open(name)

    def _unused_name(self, session: Session, first: str) -> str | None:
        """Return the name of the conversation that is moved to a session.

        It is the conversation in which the session began, so that its event ids stay known.
        Sessions of other platforms get a name that depends on the first session of their lineage.
        A conversation that is open stays where it is; if both are, None stands for a new name.
        """
        names = (name_in(session.session_key), name_for(first))
        return next((each for each in names if each and not self._handles.named(each)), None)

    async def find(self, target: str, *, by_id: bool = False) -> SessionMatch:
        """Return the stored conversation with this id, or also with this id prefix or title."""
        try:
            found = await self._runtime.admin.find(target)
        except AmbiguousTitle as error:
            raise Refused(NOT_FOUND, f"{error}.") from None
        if by_id and (found is None or target not in found.lineage):
            raise Refused(NOT_FOUND, "No stored session has this id.")
        if found is None:
            raise Refused(NOT_FOUND)
        return found

    @contextmanager
    def remove_on_failure(self, handle: Handle) -> Iterator[None]:
        """Remove a new handle if the block fails."""
        try:
            yield
        except BaseException:  # undone also if cancelled, then raised
            self._handles.remove(handle)
            raise


def _note_others(handle: Handle, found: SessionMatch) -> None:
    names = {name_in(key) for key in found.owners} - {None, handle.conversation}
    handle.others = tuple(sorted(filter(None, names)))
