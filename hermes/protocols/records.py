"""Records beside the conversations: tool calls, approvals, API responses, users and tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

from hermes.messages import (
    Approval,
    ExpiryPolicy,
    Inbound,
    InboxReply,
    JsonObject,
    Outbound,
    Pairing,
    PairingRejected,
    Person,
    Principal,
    QuestionDelivery,
    Role,
    Source,
    StoredResponse,
    Token,
    ToolCallRecord,
)


class ToolRecords(Protocol):
    """The log of tool calls and approvals. Arguments are canonical JSON."""

    def begin_once(
        self,
        turn_id: int,
        tool: str,
        arguments: str,
        ordinal: int = 0,
        *,
        approved_for: str | None = None,
    ) -> Awaitable[ToolCallRecord | None]:
        """Record a call before it runs. Returns None if it may run now, else the earlier call.

        With `approved_for`, a session_key, an approval is consumed as well; raises `NotApproved`
        without one. Raises `TurnClosed` if the turn is over.
        """
        ...

    def end_once(self, call: ToolCallRecord) -> Awaitable[None]:
        """Record the result of a call; the first result stays."""
        ...

    def ask_approval(
        self,
        session_key: str,
        tool: str,
        arguments: str,
        *,
        seconds: float = ...,
        say: Callable[[Approval], Sequence[Outbound]] | None = None,
        delivery: QuestionDelivery | None = None,
    ) -> Awaitable[Approval]:
        """Ask a user to approve a call, and store the question as a reply.

        The question counts as shown when that reply is sent, or at once if there is none. With the
        `delivery` "host" or "client" it does when `mark_shown` says so. If the same question is
        already pending, it is returned and nothing is sent again.
        """
        ...

    def mark_shown(
        self, shown: Mapping[int, int | None], at: Mapping[int, float] | None = None
    ) -> Awaitable[None]:
        """Record that the host or client has shown questions that no adapter sends.

        `shown` has their numbers, each with the inbox id of the latest message before; None means
        that it was not shown after all. `at` has the times when they were shown.
        """
        ...

    def take_approval(self, session_key: str, tool: str, arguments: str) -> Awaitable[bool]:
        """Consume an approval of exactly this call. Returns False if there is none."""
        ...

    def get_approval(self, session_key: str, approval_id: int) -> Awaitable[Approval | None]:
        """Return an approval of this conversation."""
        ...

    def get_approved_call(self, session_key: str, approval_id: int) -> Awaitable[Approval | None]:
        """Return a call of this conversation if it was approved, even if it has run since."""
        ...

    def open_approvals(self, session_key: str, before: int) -> Awaitable[list[Approval]]:
        """Return the calls that were shown and open when the message with this id was accepted."""
        ...

    def show_approval(
        self, session_key: str, approval_id: int, *, answer: InboxReply, sent: bool
    ) -> Awaitable[None]:
        """Store a reply that shows a call; `sent` if an adapter sends it."""
        ...

    def list_approvals(
        self, *, prefixes: Sequence[str] | None = None, after: int = 0, limit: int = 100
    ) -> Awaitable[list[Approval]]:
        """Return the approvals that users of keys with these prefixes have to decide."""
        ...

    def pending_approvals(self, session_key: str) -> Awaitable[list[Approval]]:
        """Return the approvals that this conversation's user has to decide, oldest first."""
        ...

    def decide_approval(  # noqa: PLR0913 - the decision, and the messages that belong to it
        self,
        session_key: str,
        approval_id: int,
        *,
        approve: bool,
        always: bool = False,
        before: int | None = None,
        answer: InboxReply | None = None,
        then: Inbound | None = None,
        policy: ExpiryPolicy = ...,
    ) -> Awaitable[Approval | None]:
        """Approve or deny a pending call; with `before`, one shown before that inbox message.

        With `always`, an approval also allows the tool in this conversation from now on.
        `answer` is stored and the message `then` accepted in the same transaction. Returns None,
        and stores nothing, if no such call is pending.
        """
        ...

    def allowed_tools(self, session_key: str) -> Awaitable[list[str]]:
        """Return the tools that the user has allowed in this conversation for good."""
        ...

    def revoke_tool(
        self, session_key: str, tool: str, *, answer: InboxReply | None = None
    ) -> Awaitable[bool]:
        """Ask again for each call of a tool. Returns False if it was not allowed."""
        ...


class ApiStore(Protocol):
    """Responses to the requests of API clients, and their tokens."""

    def get_response(self, response_id: str) -> Awaitable[StoredResponse | None]:
        """Return a response."""
        ...

    def find_response(
        self, credential: str, idempotency_key: str
    ) -> Awaitable[StoredResponse | None]:
        """Return the response to the request of a credential with this idempotency key."""
        ...

    def response_to(self, inbox_id: int) -> Awaitable[StoredResponse | None]:
        """Return the response to a message."""
        ...

    def attach_response(
        self,
        credential: str,
        path: str,
        digest: str,
        process: str,
        living: Collection[int] = (),
    ) -> Awaitable[StoredResponse | None]:
        """Attach a retry to the response of an equal request whose connection was lost.

        The processes of the nodes that are `living` have not died.
        """
        ...

    def open_processes(self, credential: str, path: str, digest: str) -> Awaitable[list[str]]:
        """Return the processes on which equal requests may be open."""
        ...

    def begin_answer(self, response_id: str, process: str) -> Awaitable[bool]:
        """Record that a response is about to be written while equal requests are open."""
        ...

    def end_connection(self, response_id: str, process: str, *, complete: bool) -> Awaitable[bool]:
        """Record that a connection has ended. Returns False if another one waits now."""
        ...

    def record_process(self, process: str) -> Awaitable[None]:
        """Record that a process that serves connections is alive."""
        ...

    def record_items(
        self,
        response_id: str,
        items: Sequence[JsonObject],
        *,
        before: Sequence[JsonObject] | None = None,
    ) -> Awaitable[bool]:
        """Replace the output items that clients have seen of a running turn.

        With `before`, only if they are these. Returns whether they were replaced.
        """
        ...

    def delete_response(self, response_id: str) -> Awaitable[bool]:
        """Delete a response. Returns whether there was one."""
        ...

    def list_responses(self, session_key: str, path: str) -> Awaitable[list[StoredResponse]]:
        """Return the responses of a key's current session that have ended, oldest first."""
        ...

    def delete_responses(self, session_key: str) -> Awaitable[int]:
        """Delete the responses of a key's current session that have ended; returns how many."""
        ...

    def add_token(self, token: Token, digest: str) -> Awaitable[Token]:
        """Store a token with the hash of its secret."""
        ...

    def find_token(self, digest: str) -> Awaitable[Token | None]:
        """Return the valid token with this hash."""
        ...

    def valid_tokens(self) -> Awaitable[list[str]]:
        """Return the ids of the valid tokens."""
        ...

    def valid_digests(self) -> Awaitable[list[str]]:
        """Return the hashes of the secrets of the valid tokens."""
        ...

    def list_tokens(self) -> Awaitable[list[Token]]:
        """Return all tokens, revoked ones included."""
        ...

    def revoke_token(self, name: str) -> Awaitable[Token | None]:
        """Revoke the valid token with this name or id."""
        ...

    def add_sign_in(self, digest: str, person: Person) -> Awaitable[None]:
        """Store a one-time token with which a person can sign in to the web page."""
        ...

    def find_sign_in(self, digest: str) -> Awaitable[Person | None]:
        """Return who can sign in with a one-time token."""
        ...

    def sign_in(self, digest: str, session: Token, session_digest: str) -> Awaitable[Token | None]:
        """Use a one-time token: store a session of its person."""
        ...

    def sign_in_paired(
        self, user_id: str, session: Token, session_digest: str
    ) -> Awaitable[Token | None]:
        """Store the first session of a person whom an operator has let in with a code."""
        ...

    def clear_sign_ins(self) -> Awaitable[None]:
        """Delete all one-time tokens."""
        ...


class AccessStore(Protocol):
    """Paired users and pairing requests."""

    def find_principal(self, platform: str, account: str, user_id: str) -> Awaitable[Role | None]:
        """Return the role of a paired user."""
        ...

    def principals(self, limit: int = ...) -> Awaitable[list[Principal]]:
        """Return the paired users."""
        ...

    def pairings(self) -> Awaitable[list[Pairing]]:
        """Return the pending pairing requests."""
        ...

    def request_pairing(
        self,
        source: Source,
        session_key: str,
        code: str,
        *,
        salt: str,
        say: Sequence[Outbound] = (),
    ) -> Awaitable[bool]:
        """Store a pairing request and the message with its code.

        Returns False, and stores nothing, if this user may not request another one now.
        """
        ...

    def approve_pairing(
        self,
        code: str,
        role: Role,
        by: Source,
        *,
        answer: Callable[[Pairing | PairingRejected], InboxReply] | None = None,
        welcome: Callable[[Pairing], Sequence[Outbound]] | None = None,
    ) -> Awaitable[Pairing | PairingRejected]:
        """Pair the user who holds this code."""
        ...

    def unpair(
        self, platform: str, user_id: str, *, answer: Callable[[int], InboxReply] | None = None
    ) -> Awaitable[int]:
        """Remove a paired user and its pending requests. Returns how many rows."""
        ...
