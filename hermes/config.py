"""Settings of a runtime and of its agents, each with its type, bounds, default and meaning.

This is the only place where they are written. `hermes.settings` reads the same classes from a TOML
file and generates the example configuration from them; `Meta(examples=...)` is what the example
shows for a setting without a default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from hermes.messages import ExpiryPolicy, Usage, WhenBusy
from hermes.validation import Validated

PositiveInt: TypeAlias = Annotated[int, Meta(ge=1)]
NonNegativeInt: TypeAlias = Annotated[int, Meta(ge=0)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
Share: TypeAlias = Annotated[float, Meta(gt=0, lt=1)]
NonNegativeFloat: TypeAlias = Annotated[float, Meta(ge=0)]
Delay: TypeAlias = NonNegativeFloat
"""A time in seconds; 0 means at once."""

MAX_WAL_BYTES = 256 * 1024 * 1024
TOKENS_PER_PRICE = 1_000_000
_KEPT = {"http": ExpiryPolicy(), "web": ExpiryPolicy()}
"""API clients name what they continue, so that it must not have ended."""


def data_path() -> Path:
    """Return the default path of the database, below `$XDG_DATA_HOME`."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "hermes" / "state.db"


def database_of(text: str) -> Path | str:
    """Return what names a database on a command line: the path of a file, or a URL as it is."""
    return text if is_database_url(text) else Path(text)


def is_database_url(database: str | os.PathLike[str]) -> bool:
    """Return whether a database is given by a URL of PostgreSQL, not by the path of a file."""
    return isinstance(database, str) and database.startswith(("postgresql://", "postgres://"))


def shown_database(database: str | os.PathLike[str]) -> str:
    """Return what names a database in texts: the path, or the URL with its hosts and name only."""
    if not is_database_url(database):
        return os.fspath(database)
    address = str(database).partition("://")[2].partition("?")[0]
    return f"postgresql://{address.rpartition('@')[2]}"


class CompressionConfig(Validated, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a conversation is compressed, and how far.

    Raises `ValueError` for values that are not allowed.
    """

    enabled: bool = True
    """Whether conversations are compressed at all."""
    window: Annotated[int, Meta(ge=2)] = 128_000
    """Context window of the model, in tokens."""
    max_output: NonNegativeInt = 8_000
    """Tokens of the window that are reserved for the model's answer."""
    share: Share = 0.75
    """Compress when this share of the window, without the reserved output, is in use."""
    tail_share: Annotated[float, Meta(ge=0, lt=1)] = 0.2
    """Share of the compression threshold that is kept verbatim: the most recent messages."""
    protect_first: NonNegativeInt = 3
    """Number of messages at the beginning that are kept verbatim."""
    margin: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """Discard a compression that makes the conversation smaller by less than this share."""
    lease_timeout: Seconds = 30.0
    """Seconds after which another process may take over an unfinished compression.

    The lease is renewed three times within this time while the compression runs.
    """
    summary_timeout: Seconds = 120.0
    """Seconds that the model may take to write the summary."""
    cooldowns: tuple[NonNegativeFloat, ...] = (60.0, 300.0, 900.0)
    """Seconds to wait after one, two, and more failed compressions in a row."""
    max_useless: PositiveInt = 2
    """Stop compressing a session automatically after this many attempts that did not help."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_output >= self.window:
            raise ValueError(
                f"max_output is {self.max_output}: it must be smaller than window, which is "
                f"{self.window} and includes it"
            )


class AttachmentLimits(Validated, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be attached to messages. Sizes are in bytes."""

    message_files: NonNegativeInt = 10
    """Files of one message."""
    message_bytes: PositiveInt = 100 * 1024 * 1024
    """Size of the files of one message together, so also of one file."""
    conversation_files: NonNegativeInt = 1000
    """Files of one conversation."""
    conversation_bytes: PositiveInt = 1024 * 1024 * 1024
    """Size of the files of one conversation together."""
    principal_files: NonNegativeInt = 5000
    """Files of one user, in all conversations."""
    principal_bytes: PositiveInt = 5 * 1024 * 1024 * 1024
    """Size of the files of one user together."""
    max_pixels: PositiveInt = 100_000_000
    """Pixels of an image: a small file can be a very large picture."""
    types: tuple[str, ...] = ("*/*",)
    """Media types that are accepted, such as "image/*" or "application/pdf"."""


class Config(Validated, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a runtime behaves. Times are in seconds.

    Raises `ValueError` for values that are not allowed.
    """

    when_busy: WhenBusy = "queue"
    """What to do with a message that arrives while a turn is running.

    "queue": answer it in the next turn. "interrupt": stop the running turn. "steer": pass it to the
    running turn. "reject": refuse it.
    """
    when_busy_by_platform: Annotated[
        Mapping[str, WhenBusy], Meta(examples=[{"telegram": "steer"}])
    ] = msgspec.field(default_factory=dict)
    """Replaces `when_busy` for messages of a platform."""
    merge_messages: bool = True
    """Whether all messages that wait become one turn; else each gets its own, in order.

    Parts of one message, which an adapter marks with `linger`, are always one turn.
    """
    expiry: ExpiryPolicy = msgspec.field(default_factory=ExpiryPolicy)
    """When a conversation ends by itself, so that the next message starts a new session."""
    expiry_by: Mapping[str, ExpiryPolicy] = msgspec.field(default_factory=dict)
    """Replaces `expiry` for a platform, a chat type, or both as "platform/chat_type".

    The most specific entry applies. Conversations of API clients end only by an entry for "http",
    those of the web page by one for "web".
    """
    max_queued: PositiveInt = 100
    """Unanswered messages that a conversation may have; further ones are refused."""
    turn_timeout: Seconds = 1800.0
    """Seconds after which a turn is stopped and counts as failed."""
    transcription_timeout: Seconds = 120.0
    """Seconds after which the transcription of an audio file is given up; the turn continues."""
    commit_timeout: Delay = 30.0
    """Seconds to retry the commit of a turn while the disk is full or the database is locked."""
    close_timeout: Delay = 10.0
    """Seconds to wait for an agent to close, and for the last writes of a shutdown."""
    grace_period: Delay = 10.0
    """Seconds that a cancelled coroutine on the loop of an asyncio host gets to end.

    An agent that still runs then is abandoned: its conversation gets another one. If all
    conversations share one agent (`agent=`), the next turn of this one waits for the abandoned one
    for as long, in every host, and then fails.
    """
    drain_timeout: Delay = 30.0
    """Seconds that running turns get to finish at shutdown.

    Accepted messages without an answer are answered after the next start.
    """
    hook_drain_timeout: Delay = 10.0
    """Seconds that hooks get to finish at shutdown, after the turns have ended.

    Hooks that are not finished are called again after the next start.
    """
    idle_timeout: Delay = 900.0
    """Seconds after which an idle conversation is removed from memory. Its data is kept."""
    max_agents: NonNegativeInt = 128
    """Agents to keep in the cache; the least recently used ones are closed first.

    Agents of running turns are kept in any case.
    """
    transcript_bytes: NonNegativeInt = 64 * 1024 * 1024
    """Bytes of transcripts to keep in memory; the least recently used ones are dropped first.

    Transcripts of running turns are kept in any case.
    """
    max_wal_bytes: PositiveInt = MAX_WAL_BYTES
    """Size of the database's write-ahead log at which messages are refused.

    It grows while another process reads the database in a transaction that does not end.
    """
    max_attempts: PositiveInt = 3
    """Starts of a turn, interrupted by crashes, after which its message is set aside."""
    quarantine_time: Delay = 60.0
    """Seconds to pause a conversation that has failed three times within a minute."""
    record_turns: bool = True
    """Whether turns are recorded, so that they can be shown and repeated later.

    A recording has the texts of each request to a model that are no messages, such as the system
    prompt and the tools, without secrets. It is deleted with its session.
    """
    agents_may_ask: bool = False
    """Whether an agent may send messages to other conversations, with `turn.runtime.ask`."""
    compression: CompressionConfig = msgspec.field(default_factory=CompressionConfig)
    """When and how conversations are compressed."""
    attachments: AttachmentLimits = msgspec.field(default_factory=AttachmentLimits)
    """What may be attached to messages."""

    def busy_on(self, platform: str) -> WhenBusy:
        """Return what to do with a message of this platform while a turn is running."""
        return self.when_busy_by_platform.get(platform, self.when_busy)

    def expiry_of(self, platform: str, chat_type: str) -> ExpiryPolicy:
        """Return when a conversation of this platform and chat type ends by itself.

        That of an API client does not, unless `expiry_by` says so for its platform: the client
        names the conversation, or the response, that it continues.
        """
        names, named = (f"{platform}/{chat_type}", platform, chat_type), {**_KEPT, **self.expiry_by}
        return next((named[name] for name in names if name in named), self.expiry)


class RateLimit(Validated, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many messages one user may send. Raises `ValueError` if that would be none."""

    per_minute: Annotated[float, Meta(gt=0)] = 30.0
    """Messages per minute in the long run."""
    burst: PositiveInt = 30
    """Messages that may be sent at once."""


class Price(Validated, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of a model for a million tokens, in any currency."""

    input: NonNegativeFloat = 0.0
    """Price of input tokens."""
    output: NonNegativeFloat = 0.0
    """Price of output tokens."""
    cache_read: NonNegativeFloat | None = None
    """Price of input tokens read from the provider's cache. Default: as `input`."""
    cache_write: NonNegativeFloat | None = None
    """Price of input tokens written to the provider's cache. Default: as `input`."""

    def of(self, usage: Usage) -> float:
        """Return the cost of a call."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        return (
            usage.input_tokens * self.input
            + usage.output_tokens * self.output
            + usage.cache_read_tokens * read
            + usage.cache_write_tokens * write
        ) / TOKENS_PER_PRICE


class Budgets(Validated, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much may be spent, in the currency of the prices. Without a value there is no limit."""

    session: Annotated[NonNegativeFloat | None, Meta(examples=[2.0])] = None
    """Limit for one session."""
    principal: Annotated[NonNegativeFloat | None, Meta(examples=[5.0])] = None
    """Limit for one user per day."""
    day: Annotated[NonNegativeFloat | None, Meta(examples=[50.0])] = None
    """Limit for all users together per day."""
