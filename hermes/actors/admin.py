"""The verbs of an operator, who sees the conversations of all keys."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Sequence

import trio

from hermes.actors.api.conversations import ApiConversations
from hermes.actors.api.files import ApiFiles
from hermes.actors.api.retries import ApiRetries
from hermes.actors.api.sign_ins import ApiSignIns
from hermes.actors.cluster.verbs import AddMessages, Switch
from hermes.actors.context import RuntimeContext
from hermes.actors.delivery.sender import role_of
from hermes.actors.intake import Intake
from hermes.actors.supervisor import Supervisor
from hermes.actors.views.health import (
    RuntimeHealth,
    RuntimeStatistics as RuntimeStatistics,
    health_of,
    statistics_of,
)
from hermes.actors.views.live import LiveViews
from hermes.actors.views.past_turns import PastTurns
from hermes.actors.views.verbs import Views
from hermes.background import set_event
from hermes.errors import HermesError, UnknownSession
from hermes.messages import (
    JsonObject,
    Message,
    Receipt,
    Reply,
    RunningTurnInfo,
    SessionChange,
    SessionMatch,
    SessionSummary,
    Source,
    StoredMessage,
    StoredResponse,
    StoreSnapshot,
    StoreStats,
    Token,
    ToolCall,
)
from hermes.protocols import Adapter
from hermes.sanitize import scrub


class Admin:
    """Operator verbs of a runtime: `runtime.admin`."""

    def __init__(self, context: RuntimeContext, supervisor: Supervisor, intake: Intake) -> None:
        self._context = context
        self._supervisor = supervisor
        self._intake = intake

    async def sessions(
        self,
        *,
        include_subagents: bool = False,
        include_archived: bool = False,
        limit: int = 20,
        offset: int = 0,
    ) -> list[SessionSummary]:
        """Return the sessions of all keys, latest activity first.

        Sessions of subagents and archived ones are left out unless they are asked for.
        """
        return await self._supervisor.store.list_sessions(
            include_subagents=include_subagents, include_archived=include_archived,
            limit=limit, offset=offset,
        )  # fmt: skip

    async def find(self, target: str, *, session_key: str | None = None) -> SessionMatch | None:
        """Find a conversation by session id, unique id prefix or title, of one key or of all.

        Raises `AmbiguousTitle` if several sessions have the title.
        """
        return await self._supervisor.store.find(scrub(target), session_key=session_key)

    async def switch(self, session_key: str, target: str) -> SessionChange:
        """Continue a conversation with any session, given by id, unique id prefix or title.

        The sessions of `session_key` come first. A session of another key belongs to both keys
        from then on; its title gets a number if another session of `session_key` has it. Raises
        `UnknownSession` if there is none, `AmbiguousTitle` if several sessions have the title, and
        what the verbs of `Conversation` raise.
        """
        return await self._intake.request(session_key, Switch(scrub(target), any_key=True))

    async def messages(
        self,
        session_id: str,
        *,
        limit: int | None = None,
        before: int | None = None,
        after: int | None = None,
        lineage: bool = False,
        include_rewound: bool = False,
    ) -> list[StoredMessage]:
        """Return the transcript of any session, or a page of it. See `Conversation.history`.

        Raises `UnknownSession` if there is no such session.
        """
        return await self._supervisor.store.get_page(
            scrub(session_id), limit=limit, before=before, after=after, lineage=lineage,
            include_rewound=include_rewound,
        )  # fmt: skip

    async def archive(self, session_id: str) -> None:
        """Hide a conversation from lists, with all its compressed sessions.

        It is not ended, and can be continued as before. Raises `UnknownSession`.
        """
        await self._supervisor.store.archive_session(scrub(session_id))

    async def unarchive(self, session_id: str) -> None:
        """List an archived conversation again. Raises `UnknownSession`."""
        await self._supervisor.store.unarchive_session(scrub(session_id))

    async def delete(self, session_id: str) -> int:
        """Delete a conversation with all its compressed sessions and those of its subagents.

        Returns how many messages were deleted.

        A key whose current session it was starts a new one; a turn that still runs on it is
        discarded. Raises `UnknownSession` if there is no such session.
        """
        store = self._supervisor.store
        found = await store.find(scrub(session_id))
        if found is None or found.session is None or session_id not in found.lineage:
            raise UnknownSession(f"there is no session {session_id!r}")
        # The newest session last: if this is cut short, the rest can still be found and deleted.
        return sum([await store.delete_session(each) for each in found.lineage])

    def running_turns(self) -> dict[str, RunningTurnInfo]:
        """Return the turns that are running now, by session_key.

        Of the turns of other nodes, only those are known that somebody on this node listens to.
        """
        self._supervisor.require_running()
        turns = {actor.key: actor.runner.turn for actor in self._supervisor.actors}
        running = {
            key: RunningTurnInfo(turn.turn_id, scrub(turn.published_text))
            for key, turn in turns.items()
            if turn is not None
        }
        peers = self._context.peers
        for key, turn in {} if peers is None else peers.turns().items():
            running[key] = RunningTurnInfo(turn.turn_id, turn.published_text)
        return running

    async def statistics(self) -> RuntimeStatistics:
        """Return counters and gauges of the runtime and its store."""
        self._supervisor.require_running()
        stored: StoreStats | None = None
        with contextlib.suppress(HermesError):  # the store is busy, or about to end
            stored = await self._context.store.facts()
        return statistics_of(self._context, self._supervisor, stored)

    def roles(self) -> dict[str, str]:
        """Return the name of the node that has each role; none if there cannot be other nodes.

        Roles are what must exist once, such as the receiver of a platform. They are those of the
        last heartbeat.
        """
        self._supervisor.require_running()
        cluster = self._context.store.cluster
        return {
            role: cluster.nodes[node].name
            for role, node in sorted(cluster.holders.items())
            if node in cluster.nodes
        }

    def commit_seconds(self, turn_id: int) -> float | None:
        """Return how long the commit of a turn took; None if it is not among the latest ones."""
        self._supervisor.require_running()
        return self._context.metrics.commits.seconds_of(turn_id)

    def passivate(self) -> None:
        """End actors that were idle for too long; the runtime also does so by itself."""
        self._supervisor.require_running()
        self._supervisor.passivate()


class AdapterState:
    """What adapters share with other processes: small values in the store, and who receives."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def receive(self, adapter: Adapter, run: Callable[[], Awaitable[None]]) -> None:
        """Await `run()`, on the runtime's own loop; it receives the messages for an adapter.

        If several nodes that share a database have this adapter, one of them receives and sends at
        a time. On the others, `run` is called when they take over. It is cancelled when another
        node does.
        """
        await self._supervisor.store.cluster.run_as(role_of(adapter), run)

    async def get(self, name: str) -> str | None:
        """Return a value; None if there is none."""
        return await self._supervisor.store.get_meta(f"adapter:{scrub(name)}")

    async def set(self, name: str, value: str, *, replace: bool = True) -> None:
        """Store a value; it is on disk when this returns.

        Without `replace`, an earlier value stays.
        """
        name, value = f"adapter:{scrub(name)}", scrub(value)
        await self._supervisor.store.set_meta(name, value, replace=replace)


class ApiRecords(Views, LiveViews, PastTurns, ApiConversations, ApiFiles, ApiRetries, ApiSignIns):
    """Responses to the requests of API clients, and their tokens. For adapters that serve them."""

    def __init__(self, context: RuntimeContext, supervisor: Supervisor, intake: Intake) -> None:
        super().__init__(supervisor, intake)
        node, name = context.store.cluster.node, secrets.token_hex(8)
        self._process_id = f"{node}.{name}" if node else name
        self._context = context
        self._revocations = 0
        self._revoked = trio.Event()
        if context.peers is not None:
            context.peers.on_revoked = self._note_revocation

    def process_id(self) -> str:
        """Return the random id of this runtime, by which its connections are known."""
        self._supervisor.require_running()
        return self._process_id

    async def health(self) -> RuntimeHealth:
        """Return the state of the runtime and its store: counters, sizes, levels and queues."""
        self._supervisor.require_running()
        stored: StoreSnapshot | None = None
        with contextlib.suppress(HermesError):  # the store is busy, or about to end
            stored = await self._context.store.inspect()
        return health_of(self._context, self._supervisor, stored)

    async def get_response(self, response_id: str) -> StoredResponse | None:
        """Return a response; None if there is none with this id."""
        return await self._supervisor.store.get_response(scrub(response_id))

    async def find_response(self, credential: str, idempotency_key: str) -> StoredResponse | None:
        """Return the response to the request of a credential with this idempotency key."""
        return await self._supervisor.store.find_response(credential, scrub(idempotency_key))

    async def response_to(self, receipt: Receipt) -> StoredResponse | None:
        """Return the response to a message; None if no API client sent it."""
        return await self._supervisor.store.response_to(receipt.inbox_id)

    async def record_process(self, process: str) -> None:
        """Record that a process that serves connections is alive.

        A node of a cluster whose lease has run out waits until it has one again.
        """
        store = self._supervisor.store
        await store.cluster.until_trusted()
        await store.record_process(process)

    async def record_items(
        self,
        response_id: str,
        items: Sequence[JsonObject],
        *,
        before: Sequence[JsonObject] | None = None,
    ) -> bool:
        """Record the output items that clients have seen of a running turn.

        With `before`, only if these are recorded now. Returns whether they were recorded.
        """
        return await self._supervisor.store.record_items(response_id, items, before=before)

    async def delete_response(self, response_id: str) -> bool:
        """Delete a response; its messages stay. Returns whether there was one."""
        return await self._supervisor.store.delete_response(scrub(response_id))

    async def list_responses(self, session_key: str, path: str) -> list[StoredResponse]:
        """Return the responses of a key's current session that have ended, oldest first.

        `path` is that of their requests.
        """
        return await self._supervisor.store.list_responses(session_key, path)

    async def delete_responses(self, session_key: str) -> int:
        """Delete the responses of a key's current session that have ended; returns how many."""
        return await self._supervisor.store.delete_responses(session_key)

    async def add_messages(
        self, session_key: str, messages: Sequence[Message], source: Source
    ) -> list[StoredMessage]:
        """Append messages of a history to a conversation; no turn answers them."""
        return await self._intake.request(session_key, AddMessages(messages, source))

    async def cancel_turn(self, receipt: Receipt) -> bool:
        """Withdraw a message whose turn has not begun, or interrupt its turn.

        Returns False if the turn has ended.
        """
        return await self._intake.cancel_turn(receipt)

    def recent_rows(self, session_key: str, reply: Reply) -> list[StoredMessage] | None:
        """Return the rows of a turn if they are in memory; None if the store must be asked."""
        self._supervisor.require_running()
        actor = self._supervisor.find(session_key)
        if actor is None or reply.messages is None:
            return None
        return actor.state.cache.rows(reply.session_id, *reply.messages)

    async def waiting_calls(self, session_key: str) -> list[ToolCall]:
        """Return the calls of a client's tools that wait for their results in a conversation.

        A request that returns other results is refused.
        """
        return await self._supervisor.store.waiting_calls(session_key)

    async def add_token(self, token: Token, digest: str) -> Token:
        """Store a token with the hash of its secret. Raises `ValueError` if its name is taken."""
        return await self._supervisor.store.add_token(token, digest)

    async def find_token(self, digest: str) -> Token | None:
        """Return the valid token with this hash; None if it is unknown, revoked or has expired."""
        return await self._supervisor.store.find_token(digest)

    async def valid_tokens(self) -> list[str]:
        """Return the ids of the tokens that are neither revoked nor expired."""
        return await self._supervisor.store.valid_tokens()

    async def valid_digests(self) -> list[str]:
        """Return the hashes of the secrets of the tokens that are neither revoked nor expired."""
        return await self._supervisor.store.valid_digests()

    async def list_tokens(self) -> list[Token]:
        """Return all tokens, revoked ones included, oldest first."""
        return await self._supervisor.store.list_tokens()

    async def revoke_token(self, name: str) -> Token | None:
        """Revoke the token with this name or id; None if there is none that is not revoked."""
        token = await self._supervisor.store.revoke_token(scrub(name))
        if token is not None:
            self._tell_revoked()
        return token

    async def unpair(self, platform: str, user_id: str) -> int:
        """Remove a paired user with its sessions and its pending requests; returns how many."""
        removed = await self._supervisor.store.unpair(scrub(platform), scrub(user_id))
        if removed:
            self._tell_revoked()
        return removed

    def _tell_revoked(self) -> None:
        if self._context.peers is not None:
            self._context.peers.tell_revoked()
        self._note_revocation()

    def _note_revocation(self) -> None:
        self._revocations += 1
        set_event(self._revoked)
        self._revoked = trio.Event()

    async def wait_revoked(self, seen: int = 0) -> int:
        """Wait until this runtime has revoked more than `seen` tokens; returns how many it has.

        Those that other nodes of a cluster revoke are counted as soon as this one hears of them,
        and those that another process revokes are not. So look at the tokens now and then, too.
        """
        self._supervisor.require_running()
        while self._revocations <= seen:
            await self._revoked.wait()
        return self._revocations
