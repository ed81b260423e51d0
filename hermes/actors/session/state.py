"""What a session actor knows about its conversation: the route, the head, the cached agent."""

from __future__ import annotations

from hermes.actors.compression.types import PastAttempt
from hermes.actors.context import RuntimeContext
from hermes.actors.session.agent_cache import AgentCache, CachedTranscript
from hermes.errors import StoreError
from hermes.events import SessionMoved
from hermes.messages import Head, InboxRow, Route
from hermes.protocols import Store
from hermes.session_keys import background_origin

PAGE = 1000


class SessionState:
    """Cached route and head of one session_key, and its agent. The higher epoch wins."""

    __slots__ = (
        "cache", "context", "epoch", "head", "in_background", "key", "last_attempt",
        "latest_command", "notice", "settings", "store", "titled",
    )  # fmt: skip

    def __init__(self, key: str, context: RuntimeContext, store: Store | None = None) -> None:
        self.key: str = key
        self.store: Store = store or context.store
        """The verbs of the actor. In a cluster they are refused if another node serves the key."""
        self.in_background: bool = background_origin(key) is not None
        """Whether the conversation was started by /background."""
        self.context: RuntimeContext = context
        self.cache: AgentCache = AgentCache(context)
        self.head: Head | None = None
        self.epoch: int = 0
        self.notice: str | None = None
        self.settings: str | None = None
        """The `ConversationSettings` as JSON; None if there are none."""
        self.titled: str | None = None
        """The session that needs no automatic title any more."""
        self.last_attempt: PastAttempt | None = None
        """The last compression that was paid for."""
        self.latest_command: int = 0
        """The highest inbox id of a command. Unlike times, it orders them if the clock changes."""

    def note_command(self, inbox_id: int) -> None:
        """Note that a command has arrived."""
        self.latest_command = max(self.latest_command, inbox_id)
        self.context.questions.note_command(inbox_id)

    @property
    def session_id(self) -> str | None:
        """The current session, if it is known."""
        return None if self.head is None else self.head.session_id

    async def locate(self, *, refresh: bool = False) -> Head:
        """Return the head of the current session, from the store if it is not known."""
        if refresh or self.head is None:
            await self.refresh()
        if self.head is None:
            raise StoreError(f"there is no route for {self.key}")
        return self.head

    async def refresh(self) -> None:
        """Read the route from the store; it moves if another process compressed its session."""
        found = await self.store.route_head(self.key)
        if found is not None and found[0].session_id != found[1].session_id:
            found = await self._follow(found[0].session_id)
        if found is not None:
            route, head = found
            self.learn(route.epoch, head, route)

    async def _follow(self, old: str) -> tuple[Route, Head] | None:
        found = await self.store.follow_route(self.key)
        if found is not None:
            moved = SessionMoved(old, found[1].session_id, "compression")
            self.context.bus.publish(self.key, None, moved)
        return found

    async def load(self) -> CachedTranscript:
        """Return the transcript of the current session, from the cache if it is up to date."""
        transcript = await self.cache.transcript(await self.locate())
        self.learn(self.epoch, transcript.head)
        return transcript

    async def open_rows(self) -> list[InboxRow]:
        """Return all open messages of this key; `accept` bounds their number."""
        rows: list[InboxRow] = []
        after = 0
        while page := await self.store.open_inbox(self.key, after=after, limit=PAGE):
            rows += page
            if len(page) < PAGE:
                break
            after = page[-1].inbox_id
        return rows

    def moved(self, epoch: int, head: Head) -> None:
        """Take over what our own commit or rotation returned."""
        self.epoch, self.head = epoch, head

    def forget(self) -> None:
        """Drop the route, so that the store is asked next time."""
        self.head = None
        self.epoch = 0

    def learn(self, epoch: int, head: Head, route: Route | None = None) -> None:
        """Take over what the store returned, unless our own last commit is newer."""
        if self.head is None or epoch > self.epoch:
            self.epoch, self.head = epoch, head
        elif (epoch, head.session_id) == (self.epoch, self.head.session_id):
            self.head = head if head.revision > self.head.revision else self.head
        if route is not None and route.epoch == self.epoch:
            self.notice = route.notice
            self.settings = route.settings
