"""What can be done to a conversation besides a turn; all of it in its actor's own task."""

from __future__ import annotations

from hermes.actors.session.part import Part
from hermes.events import SessionMoved, TitleChanged
from hermes.messages import Head, InboxReply, Route, Snapshot, Title
from hermes.transcript import compaction


class SessionOperations(Part):
    """Resets, switches, branches, closes and names the conversation of one actor.

    An `answer` is written in the transaction of the change.
    """

    __slots__ = ()

    async def new_session(
        self,
        title: str | None = None,
        *,
        platform: str | None = None,
        answer: InboxReply | None = None,
    ) -> Route:
        """End the conversation and begin another."""
        route = await self._context.store.new_session(
            self._key, title=title, platform=platform, answer=answer
        )
        return self._led_to(route, Head(route.session_id), "session_reset")

    async def switch(self, target: str, *, answer: InboxReply | None = None) -> Route:
        """Go on with another session."""
        route = await self._context.store.switch(self._key, target, answer=answer)
        return self._led_to(
            route, await self._context.store.head(route.session_id), "session_switch"
        )

    async def branch(self, title: str | None = None, *, answer: InboxReply | None = None) -> str:
        """Go on in a copy of the conversation."""
        head = await self._place.locate(look=True)
        child = await self._context.store.branch(
            head.session_id, title=title, session_key=self._key, answer=answer
        )
        self._place.forget()
        await self._place.locate()
        self._context.publish(self._key, None, SessionMoved(head.session_id, child, "branch"))
        return child

    async def branch_off(self, other_key: str, title: str | None = None) -> str:
        """Lead another key to a copy of the conversation; this one stays where it is."""
        head = await self._place.locate(look=True)
        return await self._context.store.branch(head.session_id, title=title, session_key=other_key)

    async def close(self, reason: str) -> str | None:
        """Finalize and end the session; the next message begins a new one."""
        ended = await self._context.store.close_session(self._key, reason=reason)
        self._place.forget()
        return ended

    async def take_back(self, exchanges: int) -> int:
        """Take back the last messages and their answers; returns how many rows that were."""
        head = await self._place.locate(look=True)
        transcript = await self._context.store.load(head.session_id)
        asked = [row.id for row in transcript.messages if compaction.is_question(row)]
        if not asked or exchanges < 1:
            return 0
        return await self.rewind(transcript.head, asked[-exchanges:][0])

    async def rewind(self, head: Head, message_id: int, *, answer: InboxReply | None = None) -> int:
        """Take back a message and all after it; returns how many."""
        hidden = await self._context.store.rewind(head.session_id, message_id, answer=answer)
        now = await self._context.store.head(head.session_id)
        self._cache.release(head.session_id)
        if now.revision == head.revision + 1:
            self._cache.changed(head, now)
        self._place.seen(now)
        return len(hidden)

    def _led_to(self, route: Route, head: Head, reason: str) -> Route:
        old = self._place.session_id
        self._place.adopt(route, head)
        if old != route.session_id:
            self._context.publish(self._key, None, SessionMoved(old, route.session_id, reason))
        return route

    async def title(self) -> str | None:
        """The title of the current session, or the one that waits for its row."""
        route = await self._context.store.get_route(self._key)
        if route is None:
            return None
        session = await self._context.store.get_session(route.session_id)
        return route.pending_title if session is None else session.title

    async def settle_title(self) -> Title:
        """The title, after one that waits was given to a session that has its row by now."""
        route = await self._context.store.get_route(self._key)
        if route is None:
            return Title(None)
        session = await self._context.store.get_session(route.session_id)
        if session is None:
            return Title(route.pending_title, pending=route.pending_title is not None)
        if route.pending_title is None:
            return Title(session.title)
        return Title(await self.apply_title() or session.title)

    async def apply_title(self) -> str | None:
        """Give the session the title that waits for it; one that is refused is dropped."""
        applied = await self._context.store.apply_pending_title(self._key)
        self._place.pending_title = False
        if applied is not None:
            self._context.publish(
                self._key, None, TitleChanged(self._place.session_id or "", applied)
            )
        return applied

    async def set_title(self, title: str) -> None:
        """Give the current session a title; it waits where there is no row yet."""
        route = await self._context.store.get_route(self._key)
        if route is None or not await self._context.store.set_session_title(
            route.session_id, title
        ):
            await self._context.store.set_pending_title(self._key, title)
            self._place.pending_title = True
            return
        if route.pending_title is not None:
            await self._context.store.set_pending_title(self._key, None)
            self._place.pending_title = False
        named = await self._context.store.get_session(route.session_id)
        if named is not None and named.title is not None:
            self._context.publish(self._key, None, TitleChanged(named.id, named.title))

    async def adopt(self, snapshot: Snapshot) -> None:
        """Take an agent that the host has built."""
        self._cache.adopt(snapshot)
