"""Sessions, the routes that lead to them, and the operations that change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias

import msgspec
from msgspec import Meta

from hermes.messages.outbox import InboxReply
from hermes.messages.transcript import Head, JsonObject, Message
from hermes.validation import Validated

SessionKind: TypeAlias = Literal["new", "compression", "branch", "fork", "import", "subagent"]
"""How a session came about. Sessions of subagents are hidden from lists by default."""
HookEvent: TypeAlias = Literal["on_session_finalize", "on_session_reset", "on_session_switch"]
Hooks: TypeAlias = Mapping[HookEvent, Sequence[Any]]
"""The functions to call at each kind of boundary, plain or async."""
ChangeReason: TypeAlias = Literal["new", "switch", "branch", "undo", "compress", "close"]

RUNTIME_HOLDER = "runtime:"
"""Prefix of the holder names of runtimes in leases. A file has one runtime at a time."""


class ExpiryPolicy(Validated, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a conversation ends by itself. Raises `ValueError` for values that are not allowed."""

    mode: Literal["none", "idle", "daily", "both"] = "none"
    """`idle`: after `idle_minutes` without a message. `daily`: at `at_hour`."""
    idle_minutes: Annotated[float, Meta(gt=0)] = 1440
    """Minutes without a message after which the conversation ends."""
    at_hour: Annotated[int, Meta(ge=0, le=23)] = 4
    """Hour of the day, in local time, at which the conversation ends."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session: one transcript, with its origin, its end and its totals.

    `model`, `api_call_count` and the token counts are those of its turns; `cost` includes summaries
    and titles.
    """

    id: str
    source: str
    """The platform the session was started on."""
    kind: SessionKind
    parent_session_id: str | None
    title: str | None
    model: str | None
    user_id: str | None
    session_key: str | None
    chat_id: str | None
    chat_type: str | None
    thread_id: str | None
    cwd: str | None
    profile: str | None
    started_at: float
    ended_at: float | None
    end_reason: str | None
    last_active: float
    message_count: int
    tool_call_count: int
    revision: int
    rewrites: int
    api_call_count: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost: float
    archived_at: float | None = None
    """When the conversation was archived, which hides it from lists; None if it was not."""
    system_prompt: str | None = None
    model_config: JsonObject | None = None

    @property
    def head(self) -> Head:
        """The state of the session's transcript."""
        return Head(self.id, self.message_count, self.revision, self.rewrites)


class SessionSummary(msgspec.Struct, frozen=True):
    """An entry of `list_sessions`: a conversation, represented by its newest session."""

    session: Session
    root_session_id: str
    started_at: float
    preview: str
    """The beginning of the first user message."""


class SessionMatch(msgspec.Struct, frozen=True):
    """A conversation found by id or title.

    `lineage` is the chain of compressions from the first session to the current one, and
    `session_keys` are the keys whose route names it. `session` is None until the first turn of
    the conversation is committed. If its key leaves it before that, `session_keys` is that key.
    `owners` are all keys in which it was ever continued, and the one in which it began.
    """

    session: Session | None
    lineage: tuple[str, ...]
    session_keys: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()

    @property
    def session_id(self) -> str:
        """The current session, at the end of the lineage."""
        return self.lineage[-1]


class Route(msgspec.Struct, frozen=True):
    """The current session of a session_key; the fields are in the order of the columns.

    `epoch` grows each time the route is pointed at another session. `pending_title` is a title that
    waits for the session's first row, and `notice` a text that the user is shown once.
    """

    session_key: str
    session_id: str
    epoch: int
    platform: str
    chat_type: str
    user_id: str | None
    pending_title: str | None
    notice: str | None
    expires_at: float | None
    last_active: float
    settings: str | None = None
    """The `ConversationSettings` as JSON; None if there are none."""


class ConversationSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a host has set for one conversation. It is kept in the store.

    An agent is built for its settings: if they change, the next turn gets a new one.
    """

    agent: str | None = None
    """The name of the agent that answers, for hosts that have several."""
    model: str | None = None
    """The model, instead of the one in the `AgentSpec` of the host."""
    metadata: Mapping[str, Any] = {}
    """Other values, which must be JSON."""

    @classmethod
    def from_json(cls, text: str | None) -> Self:
        """Return settings as they are stored; None stands for the defaults."""
        return cls() if text is None else msgspec.json.decode(text, type=cls)

    def to_json(self) -> str:
        """Return the settings as JSON; equal settings have equal texts."""
        return msgspec.json.encode(self, order="deterministic").decode()


class SessionChange(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a verb that changes the current session of a conversation.

    `changed` is False if nothing was done, for example because there was nothing to compress;
    `detail` then says why.
    """

    session_key: str
    reason: ChangeReason
    old_session_id: str | None
    """The session before the change; None if the key had none."""
    session_id: str | None
    """The current session of the key. It may have no row before its first message."""
    changed: bool = True
    failed: bool = False
    """Whether `compress` was tried and failed; nothing was changed."""
    removed: int = 0
    """Messages taken back by `undo`."""
    tokens_before: int | None = None
    """Estimated size before `compress`."""
    tokens_after: int | None = None
    """Estimated size after `compress`."""
    detail: str | None = None
    """A sentence for the user, if there is more to say."""


class Title(msgspec.Struct, frozen=True):
    """The title of a conversation; `pending` until its session has a row to store it in."""

    text: str | None
    pending: bool = False


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """A session was finalized, reset or switched; `boundary_id` is the hooks' idempotency key."""

    boundary_id: int
    event: HookEvent
    session_key: str
    session_id: str
    platform: str
    reason: str
    old_session_id: str | None
    new_session_id: str | None
    metadata: JsonObject = msgspec.field(default_factory=dict)
    """The metadata of the message that caused it: a command, or the first one after an expiry."""


class Lease(msgspec.Struct, frozen=True):
    """The right to compress a session for a while; `token` grows with every new holder."""

    session_id: str
    holder: str
    token: int


class Rotation(msgspec.Struct, frozen=True, kw_only=True):
    """A finished compression: the rows of the child session.

    They replace the parent's rows up to `upto`. The rotation is refused if the parent's `rewrites`
    have changed since the summary was started; `rotation_id` makes a retry safe.
    """

    session_id: str
    messages: Sequence[Message]
    rotation_id: str
    rewrites: int
    upto: int
    session_key: str | None = None
    epoch: int | None = None
    lease: Lease | None = None
    child_session_id: str | None = None
    system_prompt: str | None = None
    answer: InboxReply | None = None
    """The reply to the command that asked for it, written in the same transaction."""


class Rotated(msgspec.Struct, frozen=True):
    """The conversation continues in the child `session_id`.

    `carried` rows were appended during the summary and copied. `repeated` means that an earlier
    attempt with the same rotation id had already committed.
    """

    session_id: str
    head: Head
    epoch: int | None
    carried: int = 0
    repeated: bool = False


class Skipped(msgspec.Struct, frozen=True):
    """Nothing was rotated, for this `reason`.

    `winner` is the child of a rotation that came first, `holder` the holder of the lease. `paid`
    means that a summary was written in vain, `compressed` that the session has a child already.
    """

    reason: str
    winner: str | None = None
    holder: str | None = None
    paid: bool = False
    compressed: bool = False

    @property
    def text(self) -> str:
        """The reason, and what came first."""
        first = self.holder or self.winner
        return self.reason if first is None else f"{self.reason} ({first})"


class Imported(msgspec.Struct, frozen=True):
    """Result of `import_sessions`."""

    sessions: int
    messages: int
    skipped: tuple[str, ...] = ()
    """Sessions that were already present."""
    forks: tuple[str, ...] = ()
    """Second compression children, imported as forks."""
    finalized_orphans: tuple[str, ...] = ()
    """Compression children without a turn that were ended after the import."""
    pruned_ghosts: tuple[str, ...] = ()
    """Empty sessions that were deleted after the import."""


class Pruned(msgspec.Struct, frozen=True):
    """What `prune_sessions` deleted, or would delete in a dry run."""

    session_ids: tuple[str, ...]
    messages: int
    dry_run: bool
