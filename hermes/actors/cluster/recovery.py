"""Finds open messages that no actor of this process knows of, and wakes their conversations.

At the start, an earlier process may have left some. Later, other processes accept messages, and in
a cluster another node may have ended: `Ownership.waiting` returns what this process is to answer.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection
from typing import Protocol

import trio

from hermes.actors.context import RuntimeContext
from hermes.actors.session.actor import SessionActor
from hermes.actors.session.retries import TEMPORARY
from hermes.background import set_event
from hermes.errors import NotOwner
from hermes.messages import Claim

log: logging.Logger = logging.getLogger(__name__)

PAGE = 1000


class Registry(Protocol):
    """The actors of a runtime."""

    draining: bool

    @property
    def quarantined(self) -> Collection[str]: ...
    def find(self, session_key: str, /) -> SessionActor | None: ...
    def actor(self, session_key: str, claim: Claim | None, /) -> SessionActor: ...
    def balance(self) -> None: ...
    def end_idle(self) -> None: ...


class Recovery:
    """Wakes conversations whose messages are in the store only."""

    def __init__(self, context: RuntimeContext, registry: Registry) -> None:
        self._context = context
        self._registry = registry
        self.finished: trio.Event = trio.Event()
        """Set when the messages of earlier processes have been handed over."""

    async def run(self) -> None:
        """Wake conversations that are unfinished, then watch for messages of other processes."""
        cluster = self._context.store.cluster
        after = await self._wake_after(0)
        set_event(self.finished)
        while not self._registry.draining:
            await cluster.until_hint()
            if self._is_left:
                break
            try:
                after = await self._wake_after(after if cluster.ids_in_order else 0)
                self._registry.balance()
            except TEMPORARY as error:
                log.debug("the inbox was not read, and will be: %s", error)
        while self._is_left:
            with contextlib.suppress(*TEMPORARY):
                await self._pass_on()
            await cluster.until_hint()

    @property
    def _is_left(self) -> bool:
        """Whether this node drains, and other nodes go on with its conversations."""
        return self._registry.draining and self._context.store.cluster.others

    async def _pass_on(self) -> None:
        """While this node drains, let others go on with the conversations that are idle here."""
        self._registry.end_idle()
        found = await self._context.store.cluster.waiting(0, limit=PAGE)
        unknown = {key for key, _, _ in found if self._registry.find(key) is None}
        if unknown:
            await self._context.store.cluster.hand_over(sorted(unknown))

    async def _wake_after(self, after: int) -> int:
        """Hand over messages after this id that are new; return the id of the last one."""
        last, store = after, self._context.store
        while found := await store.cluster.waiting(last, limit=PAGE):
            before, last = last, found[-1][1]
            if any(self._is_new(key, inbox_id) for key, inbox_id, _ in found):
                with contextlib.suppress(*TEMPORARY):
                    await store.start_inbox(())  # a write: what came before it is delivered then
            new = {key: claim for key, inbox_id, claim in found if self._is_new(key, inbox_id)}
            for key, claim in new.items():
                await self._hand_over(key, claim, before)
        return last

    async def _hand_over(self, session_key: str, claim: Claim | None, after: int) -> None:
        """Wake an idle conversation; one that is busy takes its messages after this id now."""
        actor = self._registry.find(session_key) if self.finished.is_set() else None
        if actor is not None and actor.claim == claim:
            try:
                if await actor.fetch(after):
                    return
            except NotOwner:  # the actor was told
                return
        if session_key not in self._registry.quarantined:
            self._registry.actor(session_key, claim).wake()

    def _is_new(self, session_key: str, inbox_id: int) -> bool:
        """Whether a message must be fetched: its actor has not seen it, and is not paused."""
        actor = self._registry.find(session_key)
        seen = actor is not None and actor.inbox.knows(inbox_id)
        return not seen and session_key not in self._registry.quarantined
