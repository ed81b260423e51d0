"""A turn as its agent sees it."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
from msgspec.structs import replace

from hermes.actors.budget import InFlightUsage
from hermes.actors.recording.recorder import DELTAS, TurnRecorder
from hermes.actors.session.files import keep_file
from hermes.context import TurnContext
from hermes.errors import HermesError, TurnClosed
from hermes.events import (
    AgentEvent,
    ApprovalAsked,
    RuntimeEvent,
    Steered,
    TurnStarted,
)
from hermes.messages import (
    NO_OPTIONS,
    Approval,
    Attachment,
    CallReport,
    ConversationSettings,
    CostTotals,
    InboxRow,
    JsonObject,
    Message,
    RecordedResult,
    Reply,
    SearchHit,
    Source,
    StoredFile,
    StoredMessage,
    TurnOptions,
    TurnProgress,
    TurnRecord,
    TurnResult,
    Usage,
)
from hermes.outbound import metadata_of
from hermes.protocols import FileReader, FileStore, Store, ToolRecords, TurnRuntime
from hermes.redaction import EventRedactor, Redactor, redact_messages
from hermes.session_keys import payer_of
from hermes.transcript.attachments import as_text
from hermes.transcript.progress import progress_of, said_so_far, text_so_far
from hermes.transcript.render import render
from hermes.transcript.rows import rows_from_events
from hermes.transcript.validate import check_call, check_calls, check_files

Rows: TypeAlias = Sequence[Message | StoredMessage]


@attrs.define(eq=False, slots=False)
class RunningTurn:
    """One run of an agent. After `close`, what the agent still emits is refused."""

    context: TurnContext
    rows: list[InboxRow]
    """The inbox rows that the turn finishes."""
    input: Sequence[Message]
    _publish: Callable[[RuntimeEvent], None]
    _store: Store | None = None
    _in_flight: InFlightUsage | None = None
    _redact: Redactor | None = None
    _runtime_of: Callable[[str], TurnRuntime] | None = None
    _recorder: TurnRecorder | None = None

    unstored: list[Message] = attrs.field(
        init=False, default=attrs.Factory(lambda self: list(self.input), takes_self=True)
    )
    """The input that is not in the transcript yet; none for a retry."""
    history: Rows = attrs.field(init=False, default=())
    deadline: float = attrs.field(init=False, default=math.inf)
    stored_settings: str | None = attrs.field(init=False, default=None)
    """The settings of the conversation as JSON; None if there are none."""
    records: ToolRecords | None = attrs.field(
        init=False, default=attrs.Factory(lambda self: self._store, takes_self=True)
    )
    recorded: Sequence[RecordedResult] | None = attrs.field(init=False, default=None)
    """The tool calls of the turn that this one repeats."""
    events: list[AgentEvent | Steered] = attrs.field(init=False, factory=list)
    charged: list[Usage] = attrs.field(init=False, factory=list)
    unused: list[InboxRow] = attrs.field(init=False, factory=list)
    """Input that arrived during the turn and that the agent never took."""
    discarded: bool = attrs.field(init=False, default=False)
    """Whether the session changed during the turn, so that nothing was committed."""
    started: TurnStarted | None = attrs.field(init=False, default=None)
    """The event that was published when the agent started."""
    reply: Reply | None = attrs.field(init=False, default=None)
    """The reply, when the turn is on disk."""
    _redactor: EventRedactor | None = attrs.field(init=False, default=None)
    _steering: list[InboxRow] = attrs.field(init=False, factory=list)
    _closed: bool = attrs.field(init=False, default=False)
    _calls: Counter[tuple[str, str]] | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        if self._redact is not None:
            self._redactor = EventRedactor(self._redact, self._publish)
            self._publish = self._redactor.publish

    @property
    def session_key(self) -> str:
        return self.context.session_key

    @property
    def session_id(self) -> str:
        return self.context.session_id

    @property
    def turn_id(self) -> int:
        return self.rows[0].inbox_id

    @property
    def source(self) -> Source:
        return self.rows[0].inbound.source

    @functools.cached_property
    def settings(self) -> ConversationSettings:
        """The settings of the conversation when the turn began."""
        return ConversationSettings.from_json(self.stored_settings)

    @property
    def metadata(self) -> JsonObject:
        """The metadata of all messages of the turn; of equal names the last one counts."""
        return metadata_of(self.rows)

    @property
    def options(self) -> TurnOptions:
        """What an API client wants of this turn."""
        inbound = self.rows[0].inbound
        if inbound.repeats is not None:
            return TurnOptions(instructions=inbound.repeats.instructions)
        return NO_OPTIONS if inbound.request is None else inbound.request.options

    @property
    def runtime(self) -> TurnRuntime:
        """The conversation of the turn, and others. Raises `TurnClosed` if the turn is over."""
        self._require_open()
        if self._runtime_of is None:
            raise HermesError("this turn runs without a runtime")
        return self._runtime_of(self.session_key)

    @property
    def text(self) -> str:
        """The input as one text; each attached file has a line that describes it."""
        return "\n\n".join([m.content or "" if m.parts is None else as_text(m) for m in self.input])

    @property
    def decided_calls(self) -> list[int]:
        """The numbers of the tool calls that the input approves or denies."""
        return [number for row in self.rows for number in row.inbound.decided_calls]

    @property
    def published_text(self) -> str:
        """The text of the answer that was published so far."""
        return text_so_far(self._published)

    @property
    def asked(self) -> tuple[Approval, ...]:
        """The calls for which the turn has asked for an approval."""
        asked = [event.approval for event in self._published if isinstance(event, ApprovalAsked)]
        return tuple({approval.approval_id: approval for approval in asked}.values())

    @property
    def said(self) -> list[RuntimeEvent]:
        """What a new listener has to know; nothing before the start and after the end."""
        return said_so_far(self.started, self._published) if self.started and self.runs else []

    @property
    def progress(self) -> TurnProgress | None:
        """What the turn has published so far; None before its start and after its end."""
        if self.started is None or not self.runs:
            return None
        started_at = self.rows[0].accepted_at + self.started.waited
        ids = tuple([row.inbox_id for row in self.rows])
        return progress_of(self.started, started_at, ids, self._published)

    @property
    def runs(self) -> bool:
        """Whether the turn has neither ended nor been discarded."""
        return self.reply is None and not self.discarded

    @property
    def published_events(self) -> list[RuntimeEvent]:
        """All that was published since the start, in order."""
        return [*self._published]

    @property
    def _published(self) -> Sequence[RuntimeEvent]:
        return self.events if self._redactor is None else self._redactor.published

    @property
    def open_rows(self) -> list[InboxRow]:
        """The messages in the hands of this turn that have no answer yet."""
        return [*(self.rows if self.reply is None else ()), *self._steering, *self.unused]

    def messages(self) -> list[Message]:
        """Return history and input as valid input for a model."""
        return render([*self.history, *self.input])

    def charge(self, usage: Usage) -> None:
        """Record a provider call, whatever becomes of the turn."""
        self._require_open()
        check_call(usage)
        self.charged.append(usage)

    @property
    def records_calls(self) -> bool:
        """Whether calls of models are recorded."""
        return self._recorder is not None

    def record(self, call: CallReport) -> None:
        """Record a call of a model. See `RecordsCalls`."""
        self._require_open()
        if self._recorder is not None:
            self._recorder.call(call, self.session_id, self.history)

    def recording(self, reply: Reply) -> TurnRecord | None:
        """Return what was recorded of the turn, which ends with this reply."""
        if self._recorder is None:
            return None
        agent = None if self.stored_settings is None else self.settings.agent
        return self._recorder.finish(reply, agent, self.rows[0].inbound.repeats)

    async def spent(self) -> CostTotals:
        """Return the costs of this conversation and of today, including running turns."""
        source = self.source
        if self._store is None or self._in_flight is None:
            return CostTotals()
        totals = await self._store.spent(self.session_id, source.platform, source.user_id)
        totals = replace(totals, payer=payer_of(source.platform, source.user_id))
        return self._in_flight.add_to(totals, self.turn_id)

    async def search(
        self, words: str, *, role: str | None = None, limit: int = 20
    ) -> Sequence[SearchHit]:
        """Search the messages of this conversation, earlier sessions included; best match first."""
        if self._store is None:
            return ()
        return await self._store.search_messages(
            words, session_key=self.session_key, role=role, limit=limit
        )

    def ordinal(self, tool: str, arguments: str) -> int:
        """Return how often the same call was made before in this run, and count this one."""
        self._require_open()
        self._calls = self._calls or Counter()
        before = self._calls[tool, arguments]
        self._calls[tool, arguments] += 1
        return before

    def emit(self, event: AgentEvent) -> None:
        """Publish an event. Raises `TurnClosed` if the turn is over."""
        self._require_open()
        self.events.append(event)
        if self._recorder is not None and not isinstance(event, DELTAS):
            self._recorder.note(event)
        self._publish(event)

    def steer(self, row: InboxRow) -> bool:
        """Offer input that arrived during the turn; False if the turn is already over."""
        if self._closed:
            return False
        self._steering = sorted([*self._steering, row], key=lambda each: each.inbox_id)
        return True

    def remove(self, inbox_id: int) -> InboxRow | None:
        """Remove input that the agent has not taken yet; None if there is none with this id."""
        found = [row for row in self._steering if row.inbox_id == inbox_id]
        self._steering = [row for row in self._steering if row.inbox_id != inbox_id]
        return found[0] if found else None

    def steered(self) -> list[Message]:
        """Take input that arrived during the turn; from now on this turn answers it."""
        self._require_open()
        taken, self._steering = self._steering, []
        events = [Steered(row.message, (row.inbox_id,)) for row in taken]
        for row, event in zip(taken, events, strict=True):
            self.rows.append(row)
            self.events.append(event)
            if self._recorder is not None:
                self._recorder.note(event)
            self._publish(event)
        # The very message objects of the events: `transcript_rows` finds them by identity.
        return [event.message for event in events]

    def close(self) -> None:
        """End the turn. Input that the agent never took is kept in `unused`."""
        if self._redactor is not None:
            self._redactor.close()
        self._closed = self.context.over = True
        self.unused, self._steering = self._steering, []

    def restart(self) -> None:
        """Run the agent again from the start; input it took is part of the input now."""
        self.unstored += self._steered_messages()
        self.input = [*self.input, *self._steered_messages()]
        self.events = []
        self._calls = None
        if self._recorder is not None:
            self._recorder.restart()
        if self._redactor is not None:
            self._redactor.restart()

    async def open_file(self, file_id: str) -> FileReader:
        """Return a reader of a file of this conversation. Raises `UnknownFile`."""
        return await self._files.open_file(file_id, session_key=self.session_key)

    async def put_file(self, attachment: Attachment) -> StoredFile:
        """Store a file, and keep it while the turn runs. See `Turn.put_file`."""
        self._require_open()
        if self._redact is not None and (name := attachment.file_name) is not None:
            attachment = attrs.evolve(attachment, name=self._redact(name))
        return await self._files.put_file(
            attachment, session_key=self.session_key, turn_id=self.turn_id
        )

    @property
    def _files(self) -> FileStore:
        if self._store is None:
            raise HermesError("this turn has no store for files")
        return self._store

    async def keep_files(self, result: TurnResult) -> TurnResult:
        """Store the files of a result, and return the result with the stored ones.

        Raises `TypeError` if something else is among them, or among its calls.
        """
        check_calls(result.calls)
        check_files(result.files)
        kept = [await keep_file(self, file) for file in result.files]
        missing = [file for file in kept if isinstance(file, str)]
        text = "\n".join([*([result.text] if result.text else []), *missing])
        files = [file for file in kept if isinstance(file, StoredFile)]
        return replace(result, text=text if missing else result.text, files=files)

    async def transcript_rows(self, result: TurnResult) -> list[Message]:
        """Return the rows to store: the input, and what the agent returned or emitted.

        It is a checkpoint if there are long texts to redact.
        """
        rows = result.rows
        missing = [] if rows is None else self._missing(rows)
        if rows is None:
            rows = rows_from_events(self.events, result.text or None)
        if self._redact is not None:
            rows = await redact_messages(rows, self._redact)
        return [*self.input, *missing, *rows]

    def _missing(self, rows: Sequence[Message]) -> list[Message]:
        """Return the input taken during the turn that is not in the agent's rows."""
        kept = {id(row) for row in rows}
        return [message for message in self._steered_messages() if id(message) not in kept]

    def _steered_messages(self) -> list[Message]:
        return [event.message for event in self.events if isinstance(event, Steered)]

    def _require_open(self) -> None:
        if self._closed:
            raise TurnClosed(f"turn {self.turn_id} is over")
