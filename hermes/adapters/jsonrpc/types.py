"""What methods take and give. Params with a field that there is not are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from hermes.messages import Busy

Handle: TypeAlias = Annotated[str, Meta(max_length=200)]
Named: TypeAlias = Annotated[str, Meta(max_length=1000)]
Taken: TypeAlias = Literal["streaming", "queued", "steered", "answered"]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=1000)]


class Params(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Nothing."""


class Create(Params):
    """A title may be given before there is anything to name."""

    title: Named | None = None


class Resume(Params):
    """A handle, the id of a stored session, the beginning of one, or a title."""

    session_id: Named = ""
    title: Named | None = None
    limit: Count = 500


class List(Params):
    """How many, after how many."""

    limit: Count = 20
    offset: Annotated[int, Meta(ge=0, le=10**9)] = 0


class Session(Params):
    """A handle."""

    session_id: Handle = ""


class Title(Session):
    """Without a title it is told."""

    title: Named | None = None


class History(Session):
    """Of a live session, or of any stored one, such as the parent that a compression left."""

    stored_session_id: Named | None = None
    limit: Count = 500


class Branch(Session):
    """A copy, and its title."""

    name: Named | None = None


class Undo(Session):
    """So many of the last messages, with their answers."""

    exchanges: Annotated[int, Meta(ge=1, le=10_000)] = 1


class Compress(Session):
    """What the summary is to dwell on."""

    focus_topic: Annotated[str, Meta(max_length=10_000)] | None = None


class Steer(Session):
    """What is said into the running answer."""

    text: str = ""


class Delete(Params):
    """The id of a stored session."""

    session_id: Named = ""


class Prompt(Session):
    """A message or a command. The same `event_id` again is the same message, and runs once.

    `busy` says what to do with it while an answer runs; without it the configuration does.
    """

    text: str = ""
    event_id: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    busy: Busy | None = None


class Replay(Params):
    """The number of the last frame that was seen, and the run it was of."""

    after: Annotated[int, Meta(ge=0, le=2**53)]
    epoch: Handle | None = None


class Row(msgspec.Struct, omit_defaults=True):
    """A message of a transcript."""

    id: int
    role: str
    text: str | None
    timestamp: float
    tool_calls: list[dict[str, str]] = []
    tool_call_id: str | None = None
    tool_name: str | None = None
    reasoning: str | None = None


class Created(msgspec.Struct):
    """Nothing is stored yet: the stored session comes with the first message."""

    session_id: str
    stored_session_id: str | None
    pending_title: str | None


class Inflight(msgspec.Struct):
    """An answer that is running, and its text so far."""

    turn_id: int
    text: str


class Resumed(msgspec.Struct):
    """Where a session stands; deltas that follow go on from the text in flight."""

    session_id: str
    stored_session_id: str | None
    title: str | None
    message_count: int
    messages: list[Row]
    running: bool
    inflight: Inflight | None


class Listed(msgspec.Struct):
    """A stored conversation; `live` is its handle here."""

    session_id: str
    title: str | None
    preview: str
    started_at: float
    last_active: float
    message_count: int
    source: str
    live: str | None


class Sessions(msgspec.Struct):
    """Latest activity first."""

    sessions: list[Listed]


class Titled(msgspec.Struct):
    """The title; `pending` until the session is stored."""

    title: str | None
    pending: bool
    stored_session_id: str | None


class Transcript(msgspec.Struct):
    """The last messages of `count`; `parent_session_id` has what a compression summed up."""

    stored_session_id: str | None
    parent_session_id: str | None
    count: int
    messages: list[Row]


class Branched(msgspec.Struct):
    """The copy has a handle of its own; the original stays as it is."""

    session_id: str
    stored_session_id: str
    title: str | None
    parent: str


class Undone(msgspec.Struct):
    """How many rows were taken back."""

    removed: int


class Compressed(msgspec.Struct):
    """Sizes are in tokens, estimated."""

    status: Literal["compressed", "skipped", "failed"]
    text: str
    stored_session_id: str | None
    before: int | None = None
    after: int | None = None


class Interrupted(msgspec.Struct):
    """`idle` where nothing was running or waiting."""

    status: Literal["interrupted", "idle"]


class Closed(msgspec.Struct):
    """The session that ended; null where nothing was stored, or where it is another's to end."""

    closed: bool
    stored_session_id: str | None


class Deleted(msgspec.Struct):
    """How many messages are gone, with all that compressions had summed up."""

    deleted: bool
    messages: int


class Submitted(msgspec.Struct):
    """The message is on disk, and `message_id` is its name in events.

    `answered`: it came before and has its answer, which `session.history` shows.
    """

    status: Taken
    message_id: int
    stored_session_id: str | None


class Replayed(msgspec.Struct):
    """Frames after the number asked for, as they were.

    Where they are not `complete`, the oldest are gone: `session.resume` tells how things stand.
    """

    frames: list[Any]
    complete: bool
    last: int
    epoch: str
