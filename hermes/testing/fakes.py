"""Fakes of agents, compressors, hooks and adapters; the contract tests also run on them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import ClassVar

import attrs
import trio

from hermes.context import current_session_id
from hermes.events import AgentEvent
from hermes.messages import (
    AgentSpec,
    Message,
    OutboxRow,
    StoredFile,
    StoredMessage,
    TurnResult,
    Usage,
)
from hermes.protocols import (
    Adapter,
    Agent,
    Compressor,
    FileReader,
    HasAccount,
    HasLimit,
    HasLocal,
    RunsOnTrio,
    Summary,
    SummaryRequest,
    SupportsAclose,
    SupportsFiles,
    Turn,
)

Step = str | AgentEvent | TurnResult | BaseException | Callable[[Turn], Awaitable[object]]
"""One step of a `ScriptedAgent`: a text, an event, a result, an error to raise, or a function."""


@attrs.define
class ScriptedAgent(Agent, SupportsAclose, RunsOnTrio):
    """An agent that answers from a script, one entry for each turn, and then echoes its input.

    An entry is a text, a `TurnResult`, an exception to raise, a coroutine function that is called
    with the turn, or a list of these and of events to emit.
    """

    on_trio: ClassVar[bool] = True
    script: Sequence[Step | Sequence[Step]] = ()
    delay: float = 0.0
    """Seconds before each step."""
    turns: list[Turn] = attrs.Factory(list)
    """The turns that were run."""
    closed: int = 0
    """How often `aclose` was called."""

    async def run(self, turn: Turn, /) -> TurnResult:
        """Play the next entry of the script."""
        index = len(self.turns)
        self.turns.append(turn)
        entry: Step | Sequence[Step] = (
            self.script[index] if index < len(self.script) else f"echo: {turn.text}"
        )
        steps = entry if isinstance(entry, Sequence) and not isinstance(entry, str) else [entry]
        result: TurnResult | None = None
        for step in steps:
            await trio.sleep(self.delay)
            result = await self._play(step, turn) or result
        return result or TurnResult()

    async def _play(self, step: Step, turn: Turn) -> TurnResult | None:
        if isinstance(step, BaseException):
            raise step
        if isinstance(step, TurnResult):
            return step
        if isinstance(step, str):
            return TurnResult(text=step)
        if callable(step):
            result = await step(turn)
            return result if isinstance(result, TurnResult) else None
        turn.emit(step)
        return None

    async def aclose(self) -> None:
        """Count the call in `closed`."""
        self.closed += 1
        await trio.lowlevel.checkpoint()


@attrs.define
class CountingBuilder:
    """A builder that keeps the agents it has built; `len` counts them."""

    make: Callable[[AgentSpec], Agent] = attrs.field(default=lambda _: ScriptedAgent())
    """Makes an agent."""
    specs: list[AgentSpec] = attrs.Factory(list)
    """What was asked for, in order."""
    agents: list[Agent] = attrs.Factory(list)
    """What was built, in order."""

    def __call__(self, spec: AgentSpec) -> Agent:
        """Build an agent."""
        agent = self.make(spec)
        self.specs.append(spec)
        self.agents.append(agent)
        return agent

    def __len__(self) -> int:
        return len(self.agents)


@attrs.define
class RecordingHook:
    """Hooks that record their calls."""

    calls: list[tuple[str, str]] = attrs.Factory(list)
    """The name of the hook and the session id of each call."""
    platforms: list[str] = attrs.Factory(list)
    contexts: list[str | None] = attrs.Factory(list)
    """The value of `current_session_id()` in each call."""
    then: Callable[[], Awaitable[object]] | None = None
    """Awaited at the end of each call."""

    def named(self, event: str) -> Callable[..., Awaitable[None]]:
        """Return a hook that records its calls under this name."""

        async def hook(session_id: str, platform: str) -> None:
            self.calls.append((event, session_id))
            self.platforms.append(platform)
            self.contexts.append(current_session_id())
            if self.then is not None:
                await self.then()

        return hook


@attrs.define
class DeterministicCompressor(Compressor, RunsOnTrio):
    """A compressor without a model; the same messages always get the same summary."""

    on_trio: ClassVar[bool] = True
    delay: float = 0.0
    """Seconds that a summary takes."""
    error: Exception | None = None
    """Raised instead of returning a summary."""
    requests: list[SummaryRequest] = attrs.Factory(list)
    """What was asked for, in order."""

    async def summarize(self, request: SummaryRequest, /) -> Summary:
        """Return the number of messages, with quotes of the first and of the earlier summary."""
        self.requests.append(request)
        await trio.sleep(self.delay)
        if self.error is not None:
            raise self.error
        first = next((m.content for m in request.messages if m.content), "") or ""
        earlier = "" if request.previous is None else f" after {request.previous[:40]}"
        text = f"{len(request.messages)} messages from {first[:40]!r}{earlier}"
        return Summary(text, [Usage("summary", "deterministic", output_tokens=len(text) // 4)])


@attrs.frozen
class SentFile:
    """A file that a `MemoryAdapter` was given."""

    file: StoredFile
    """What is known of the file."""
    data: bytes = attrs.field(repr=False)
    """Its content."""


@attrs.define
class MemoryAdapter(Adapter, SupportsFiles, HasLimit, HasAccount, HasLocal, RunsOnTrio):
    """An adapter that keeps messages and files in memory."""

    on_trio: ClassVar[bool] = True
    platform: str = "memory"
    sent: list[OutboxRow] = attrs.Factory(list)
    """The messages that were sent, in order."""
    errors: list[Exception] = attrs.Factory(list)
    """Raised by the next calls of `send`, one each, before they take the message."""
    attempts: Counter[int] = attrs.Factory(Counter)
    """Number of `send` calls for each outbox id."""
    limit: int | None = None
    account: str | None = None
    local: bool = True
    late_errors: list[Exception] = attrs.Factory(list)
    """Raised by the next calls of `send`, one each, after they have taken the message."""
    files: list[SentFile] = attrs.Factory(list)
    """The files that were sent, in order. Each also has a row in `sent`, with an empty text."""
    _arrived: trio.Event = attrs.Factory(trio.Event)

    async def send(self, row: OutboxRow, /) -> None:
        """Take the row, or raise the next of the scheduled errors."""
        await self._take(row, [])

    async def send_file(self, row: OutboxRow, file: FileReader, /) -> None:
        """Take a file, or raise the next of the scheduled errors."""
        await self._take(row, [SentFile(file.file, await file.read())])

    async def _take(self, row: OutboxRow, files: Sequence[SentFile]) -> None:
        self.attempts[row.outbox_id] += 1
        await trio.lowlevel.checkpoint()
        if self.errors:
            raise self.errors.pop(0)
        self.sent.append(row)
        self.files += files
        self._arrived.set()
        if self.late_errors:
            raise self.late_errors.pop(0)

    @property
    def texts(self) -> list[str]:
        """The texts of the messages that were sent, in order."""
        return [str(row.body["text"]) for row in self.sent]

    async def wait_sent(self, number: int) -> None:
        """Wait on Trio until at least `number` messages were sent."""
        while len(self.sent) < number:
            self._arrived = trio.Event()
            await self._arrived.wait()


def texts_of(messages: Iterable[Message | StoredMessage]) -> list[tuple[str, str | None]]:
    """Return role and text of each message, for comparisons."""
    return [(message.role, message.content) for message in messages]


def forever() -> Callable[[Turn], Awaitable[None]]:
    """Return a step of a script that runs until it is cancelled."""

    async def step(_: Turn) -> None:
        await trio.sleep(math.inf)

    return step
