"""Agents, and the models that summarize and title conversations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from hermes.events import AgentEvent
from hermes.messages import (
    AgentSpec,
    Attachment,
    CallReport,
    CallRows,
    ConversationSettings,
    CostTotals,
    JsonObject,
    Message,
    QuestionRoute,
    RecordedCall,
    RecordedResult,
    Reply,
    SearchHit,
    SessionSummary,
    Source,
    Status,
    StoredFile,
    StoredMessage,
    Title,
    TurnOptions,
    TurnResult,
    Usage,
)
from hermes.protocols.files import FileReader
from hermes.protocols.records import ToolRecords
from hermes.texts import ENGLISH, Texts

Hook: TypeAlias = Callable[..., Any]
"""Called by keyword with `session_id` and `platform`, and with `reason`, `boundary_id`,
`old_session_id`, `new_session_id`, `metadata` or `transcript` if it has parameters of these
names."""


class OwnConversation(Protocol):
    """The conversation of a turn, for its agent and tools. Nothing here waits for the turn."""

    @property
    def session_key(self) -> str:
        """The key of the conversation."""
        ...

    async def title(self) -> Title:
        """Return the title; `pending` until the session has a row to store it in."""
        ...

    async def set_title(self, title: str) -> None:
        """Set the title. Raises `ValueError` if it is too long or already in use."""
        ...

    async def status(self) -> Status:
        """Return the state of the conversation."""
        ...

    async def history(
        self,
        *,
        limit: int | None = None,
        before: int | None = None,
        include_rewound: bool = False,
    ) -> list[StoredMessage]:
        """Return the stored transcript of the current session, without the running turn.

        With `limit`, the latest messages are returned, or those before the id `before`.
        """
        ...

    async def sessions(self, *, limit: int = 20, offset: int = 0) -> list[SessionSummary]:
        """Return the sessions of this key, latest activity first."""
        ...

    async def search(
        self, query: str, *, role: str | None = None, limit: int = 20
    ) -> list[SearchHit]:
        """Search the messages of this key's sessions, best match first."""
        ...


class TurnRuntime(Protocol):
    """What an agent and its tools may do with the runtime during a turn."""

    @property
    def conversation(self) -> OwnConversation:
        """The conversation of the turn."""
        ...

    @property
    def texts(self) -> Texts:
        """What users are told."""
        ...

    def question_route(self, source: Source) -> QuestionRoute:
        """Return how a question reaches the user, for `ToolRecords.ask_approval`."""
        ...

    async def ask(
        self,
        session_key: str,
        text: str,
        *,
        source: Source | None = None,
        event_id: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - threads cannot cancel it
    ) -> Reply:
        """Send a text to another conversation and wait for the reply. See `Runtime.ask`.

        A text that starts with a command is no command. Without a `source` it is a call inside
        the runtime, which no access policy refuses; with one, the policy must admit that sender.
        Raises `HermesError` unless the host has set `Config.agents_may_ask`, and `WaitCircle` if
        that conversation is this one, or waits for it.
        """
        ...


class Turn(Protocol):
    """One run of an agent over all input that waited."""

    @property
    def session_key(self) -> str:
        """The conversation."""
        ...

    @property
    def session_id(self) -> str:
        """The current session of the conversation."""
        ...

    @property
    def turn_id(self) -> int:
        """Identifies the turn. It stays the same if a crash makes the turn run again, so tools can
        use it as an idempotency key."""
        ...

    @property
    def source(self) -> Source:
        """Where the first message of the turn came from."""
        ...

    @property
    def settings(self) -> ConversationSettings:
        """The settings of the conversation when the turn began, see `Conversation.configure`."""
        ...

    @property
    def metadata(self) -> JsonObject:
        """The metadata of the messages; if several have the same name, that of the last counts."""
        ...

    @property
    def options(self) -> TurnOptions:
        """What an API client wants of this turn: its tools, instructions, sampling settings."""
        ...

    @property
    def input(self) -> Sequence[Message]:
        """The messages to answer, and before them the results of a client's tools."""
        ...

    @property
    def text(self) -> str:
        """The input as one text, with a line such as `[image cat.png, 12 kB]` for each file."""
        ...

    @property
    def decided_calls(self) -> Sequence[int]:
        """The numbers of the tool calls that the input approves or denies.

        See `Toolbox.approved_calls`.
        """
        ...

    @property
    def history(self) -> Sequence[Message | StoredMessage]:
        """The stored rows before this turn. The list is shared: do not keep or change it."""
        ...

    @property
    def deadline(self) -> float:
        """When the turn is cancelled, on Trio's clock."""
        ...

    @property
    def records(self) -> ToolRecords | None:
        """The tool call log, which survives a crash; None if nothing is stored."""
        ...

    @property
    def runtime(self) -> TurnRuntime:
        """The conversation of the turn, and others. Raises `TurnClosed` if the turn is over."""
        ...

    def ordinal(self, tool: str, arguments: str) -> int:
        """Return how often the same call was made before in this run, and count this one.

        Raises `TurnClosed` if the turn is over.
        """
        ...

    def messages(self) -> list[Message]:
        """Return history and input as valid input for a model. Renders everything at each call."""
        ...

    def emit(self, event: AgentEvent) -> None:
        """Publish an event of the turn. Raises `TurnClosed` if the turn is over."""
        ...

    def charge(self, usage: Usage) -> None:
        """Record a provider call, whatever becomes of the turn.

        Do not report the same call again in `TurnResult.usage`. Raises `TurnClosed` if the turn is
        over.
        """
        ...

    async def spent(self) -> CostTotals:
        """Return the costs of this conversation and of today, including running turns."""
        ...

    async def search(
        self, words: str, *, role: str | None = None, limit: int = 20
    ) -> Sequence[SearchHit]:
        """Search the messages of this conversation, earlier sessions included; best match first."""
        ...

    async def open_file(self, file_id: str) -> FileReader:
        """Return a reader of a file of this conversation, such as the `file` of a message's part.

        Raises `UnknownFile`.
        """
        ...

    async def put_file(self, attachment: Attachment) -> StoredFile:
        """Store a file, for `TurnResult.files` or the parts of a row. It is kept if the turn is.

        Raises `AttachmentRefused`, and `TurnClosed` if the turn is over.
        """
        ...

    def steered(self) -> list[Message]:
        """Take the input that arrived during the turn and should be considered now.

        Call it between tool calls. Raises `TurnClosed` if the turn is over.
        """
        ...


@runtime_checkable
class RecordsCalls(Protocol):
    """A turn that records the calls of models, to show and repeat them later."""

    @property
    def records_calls(self) -> bool:
        """Whether calls are recorded now."""
        ...

    def record(self, call: CallReport) -> None:
        """Record a call of a model. Raises `TurnClosed` if the turn is over."""
        ...


@runtime_checkable
class RepeatsTurn(Protocol):
    """A turn that may repeat a recorded one."""

    @property
    def recorded(self) -> Sequence[RecordedResult] | None:
        """The tool calls of the repeated turn, in order; None if this turn repeats none."""
        ...


class Agent(Protocol):
    """Answers turns. See `SupportsAclose`, `SupportsAbandon` and `RunsOnTrio` for more."""

    async def run(self, turn: Turn, /) -> TurnResult:
        """Answer one turn."""
        ...


@runtime_checkable
class SupportsAclose(Protocol):
    """An agent that releases resources.

    `aclose` is called exactly once, never during a turn, with a time limit.
    """

    async def aclose(self) -> None:
        """Release what the agent holds."""
        ...


@runtime_checkable
class SupportsAbandon(Protocol):
    """An agent that may leave work behind when it is cancelled, such as a thread.

    If `abandoned` is true after a turn, the agent is not used again; one that all conversations
    share is not used for another turn of this one until `abandoned` is false.
    """

    @property
    def abandoned(self) -> bool:
        """Whether work of an earlier turn is still running."""
        ...


@runtime_checkable
class RunsOnTrio(Protocol):
    """A part that runs on Trio, the runtime's own loop, even if the host is on asyncio.

    Agents, compressors, titlers, transcribers and adapters may set it.
    """

    @property
    def on_trio(self) -> bool:
        """Whether it runs on Trio."""
        ...


Build: TypeAlias = Callable[[AgentSpec], Agent | Awaitable[Agent]]
"""Builds an agent for a conversation; plain or async."""
Describe: TypeAlias = Callable[[str, Source], AgentSpec]
"""Returns the specification of the agent for a session_key and the source of its message."""
RebuildRequest: TypeAlias = Callable[
    [RecordedCall, CallRows, Callable[[str], Awaitable[FileReader]]], Awaitable[bytes]
]
"""Puts the body of a recorded request together again. Raises `CannotRebuild`."""
SpentSoFar: TypeAlias = Callable[[], Awaitable[CostTotals]]
"""Returns what a conversation, its principal and the day have cost; for budgets."""


async def _no_costs() -> CostTotals:
    return CostTotals()


def _ignore(_: Usage) -> None:
    pass


class SummaryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Input of a compressor: the messages to summarize, and an earlier summary to update."""

    session_id: str
    messages: Sequence[Message | StoredMessage]
    previous: str | None
    focus: str | None
    max_tokens: int
    spent: SpentSoFar = _no_costs
    charge: Callable[[Usage], object] = _ignore
    """Records a provider call, whatever becomes of the summary. Do not report it in the result."""
    texts: Texts = ENGLISH
    """What users are told; they see the message of `CompressorFailed`."""


class Summary(msgspec.Struct, frozen=True):
    """Text written about a conversation, and the provider calls it took."""

    text: str
    usage: Sequence[Usage] = ()


class Compressor(Protocol):
    """Summarizes messages. It does not decide which messages are kept."""

    async def summarize(self, request: SummaryRequest, /) -> Summary:
        """Return a summary of the messages. Raises `CompressorFailed` if there is none."""
        ...


class Transcriber(Protocol):
    """Turns voice into text. It does not decide which files are transcribed."""

    async def transcribe(self, audio: FileReader, /) -> str:
        """Return what is said in an audio file; an empty text if nothing is."""
        ...


class TitleRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Input of a titler: one of the first exchanges of a conversation."""

    session_id: str
    messages: Sequence[Message | StoredMessage]
    spent: SpentSoFar


class Titler(Protocol):
    """Suggests titles. It does not decide whether a title is used."""

    async def title(self, request: TitleRequest, /) -> Summary:
        """Return a title as the text of a `Summary`."""
        ...
