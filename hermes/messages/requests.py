"""Requests of API clients: one request, one turn, one response."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from hermes.messages.replies import Reply
from hermes.messages.sessions import ConversationSettings
from hermes.messages.transcript import JsonObject, Message

ConnectionState: TypeAlias = Literal["open", "cut", "complete"]
"""Whether the client waits, its connection ended too early, or its response was written in full."""


class TurnOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client wants of one turn. An agent considers what it supports."""

    instructions: str | None = None
    """A system message for this turn only."""
    tools: tuple[JsonObject, ...] = ()
    """Tools that the client runs: `{"name", "description", "parameters", "strict"}`. A call of one
    ends the turn."""
    tool_choice: str | JsonObject | None = None
    """"auto", "none", "required", or `{"name": …}` for the tool that must be called."""
    parallel_tool_calls: bool | None = None
    """Whether one answer of the model may call several tools."""
    sampling: JsonObject = msgspec.field(default_factory=dict)
    """Settings of the model by the names of Chat Completions, such as `temperature`."""
    max_output_tokens: int | None = None
    """The most tokens that one answer of the model may have."""


NO_OPTIONS = TurnOptions()
"""The options of a turn whose client wants nothing, and of all other turns."""


class ToolOutput(msgspec.Struct, frozen=True):
    """The result of a tool that the client has run."""

    call_id: str
    output: str
    parts: tuple[JsonObject, ...] = ()
    name: str = ""
    """The tool; the store adds it."""

    @property
    def message(self) -> Message:
        """The result as a transcript row."""
        parts = self.parts or None
        return Message(
            "tool", self.output, tool_call_id=self.call_id, tool_name=self.name, parts=parts
        )


class ApprovalDecision(msgspec.Struct, frozen=True):
    """What the user of a client has decided about a tool call."""

    approval_id: int
    approve: bool
    reason: str | None = None
    """What the user says about it; the agent is told."""
    told: str = ""
    """The sentence by which the agent learns of the decision; the store adds it."""

    @property
    def messages(self) -> list[Message]:
        """What the agent is told, as transcript rows."""
        return [Message("user", text) for text in (self.told, self.reason) if text]


class Source(msgspec.Struct, frozen=True):
    """Where an inbound message comes from, in the platform's own ids."""

    platform: str = "embedded"
    account: str = ""
    chat_id: str | None = None
    chat_type: str = "dm"
    thread_id: str | None = None
    user_id: str | None = None
    user_name: str | None = None


class Opening(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What becomes of a conversation in one transaction with the message of a request.

    So a request that is refused, or lost with its process, leaves nothing.
    """

    is_new: bool = False
    """Whether the conversation is a new one: a branch if `of` or `upto` are given."""
    of: str | None = None
    """The session key of the conversation that it is a branch of."""
    upto: int = 0
    """The id of the last message that is copied, or 0."""
    settings: ConversationSettings | None = None
    """The settings of the conversation, unless they stay as they are."""


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request of an API client. It is stored with its message, and never shares a turn."""

    id: str
    """The id of the response: random, and unique everywhere."""
    credential: str
    """The id of the token."""
    path: str
    """The route, such as "/v1/responses"."""
    digest: str
    """A keyed hash of the body."""
    idempotency_key: str | None = None
    process: str = ""
    """The process that serves the connection."""
    echo: JsonObject = msgspec.field(default_factory=dict)
    """The parameters that the response repeats."""
    stored: bool = True
    """Whether it belongs to a conversation. If not, nothing is added to a transcript, and the
    message and its reply are erased after an hour."""
    history: tuple[Message, ...] = ()
    """The messages before this one that the client brings. They are added to the conversation of
    the request, if it has one."""
    agent: str | None = None
    """The agent that answers a request without a conversation. A conversation has settings."""
    follows: int | None = None
    """The id of the last message of the transcript that the client knows, 0 for an empty one. The
    message is accepted only if that is still the last one, and no other message waits."""
    opening: Opening | None = None
    """How the conversation is opened or changed; None once that was done."""
    options: TurnOptions = NO_OPTIONS
    outputs: tuple[ToolOutput, ...] = ()
    """Results of the client's tools, for calls with which the last turn has ended."""
    decisions: tuple[ApprovalDecision, ...] = ()
    """Decisions about approvals that turns of this conversation have asked for."""
    deliver: Source | None = None
    """The chat to which an adapter sends the reply; None if the response is the only place."""

    def rows(self, message: Message) -> list[Message]:
        """Return what the client sends as transcript rows; `message` has its text.

        A message without content is left out if the client returns something.
        """
        returned = [output.message for output in self.outputs]
        returned += [each for decision in self.decisions for each in decision.messages]
        blank = not (message.content and message.content.strip()) and not message.parts
        stamped = [replace(each, timestamp=message.timestamp) for each in returned]
        return stamped if stamped and blank else [*stamped, message]


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request, as the store keeps it."""

    id: str
    credential: str
    session_key: str
    session_id: str
    inbox_id: int
    path: str
    digest: str
    idempotency_key: str | None
    echo: JsonObject
    stored: bool
    created_at: float
    connection: ConnectionState
    items: tuple[JsonObject, ...] = ()
    """The output items that clients have seen of attempts that were lost."""
    closed_at: float | None = None
    reply: Reply | None = None
    """The reply, once the turn has ended. `Reply.messages` says which rows belong to it."""


TOKEN_ROLES: tuple[str, ...] = ("user", "operator", "metrics")
"""What a token may do: use conversations, do everything an operator may, or read the metrics."""


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A bearer token of the HTTP API or a session of the web page, without its secret."""

    id: str
    name: str
    namespace: str
    """The conversations that the token names belong to it; several tokens may share one."""
    roles: tuple[str, ...]
    """What it may do; see `TOKEN_ROLES`."""
    keys: tuple[str, ...] = ()
    """Patterns of session keys, such as "agent:main:telegram:*", that it may use as well."""
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    platform: str = "http"
    """ "http" for a bearer token; "web" for a session of the web page, whose secret is in a cookie.

    The namespace of a session is the id of the person who is signed in.
    """
    client: str | None = None
    """The browser of a session, as it describes itself."""
