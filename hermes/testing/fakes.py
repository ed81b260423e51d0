"""Fakes: they keep the contracts of the real parts, without a network."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence

import attrs
import trio

from hermes.context import current_session_id
from hermes.events import AgentEvent
from hermes.messages import AgentSpec, Message, OutboxRow, StoredMessage, TurnResult, Usage
from hermes.protocols import Agent, Summary, SummaryRequest, Turn

Step = str | AgentEvent | TurnResult | BaseException | Callable[[Turn], Awaitable[object]]


@attrs.define
class ScriptedAgent:
    """Answers turn after turn from a script, then by repeating what it was told.

    A turn's entry is a text, a result, an error to raise, a coroutine function that is given the
    turn, or a list of such steps and of events to emit; `delay` passes before each step.
    """

    script: Sequence[Step | Sequence[Step]] = ()
    delay: float = 0.0
    turns: list[Turn] = attrs.Factory(list)
    closed: int = 0

    async def run(self, turn: Turn, /) -> TurnResult:
        """Play the next entry."""
        place = len(self.turns)
        self.turns.append(turn)
        entry: Step | Sequence[Step] = (
            self.script[place] if place < len(self.script) else f"echo: {turn.text}"
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
            said = await step(turn)
            return said if isinstance(said, TurnResult) else None
        turn.emit(step)
        return None

    async def aclose(self) -> None:
        """Count how often it is closed: once is right."""
        self.closed += 1
        await trio.lowlevel.checkpoint()


@attrs.define
class CountingBuilder:
    """Builds agents and keeps them, so that a test can count."""

    make: Callable[[AgentSpec], Agent] = attrs.field(default=lambda _: ScriptedAgent())
    specs: list[AgentSpec] = attrs.Factory(list)
    agents: list[Agent] = attrs.Factory(list)

    def __call__(self, spec: AgentSpec) -> Agent:
        """Build one."""
        agent = self.make(spec)
        self.specs.append(spec)
        self.agents.append(agent)
        return agent

    def __len__(self) -> int:
        return len(self.agents)


@attrs.define
class RecordingHook:
    """Writes down what it is told, and does as a test says."""

    calls: list[tuple[str, str]] = attrs.Factory(list)
    platforms: list[str] = attrs.Factory(list)
    contexts: list[str | None] = attrs.Factory(list)
    then: Callable[[], Awaitable[object]] | None = None

    def named(self, event: str) -> Callable[..., Awaitable[None]]:
        """The hook for one event; it takes the two arguments that every hook can take."""

        async def hook(session_id: str, platform: str) -> None:
            self.calls.append((event, session_id))
            self.platforms.append(platform)
            self.contexts.append(current_session_id())
            if self.then is not None:
                await self.then()

        return hook


@attrs.define
class DeterministicCompressor:
    """Sums up by counting and quoting; the same messages always get the same summary."""

    delay: float = 0.0
    error: Exception | None = None
    requests: list[SummaryRequest] = attrs.Factory(list)

    async def summarize(self, request: SummaryRequest, /) -> Summary:
        """The number of messages, what came before, and how the first of them begins."""
        self.requests.append(request)
        await trio.sleep(self.delay)
        if self.error is not None:
            raise self.error
        first = next((m.content for m in request.messages if m.content), "") or ""
        earlier = "" if request.previous is None else f" after {request.previous[:40]}"
        text = f"{len(request.messages)} messages from {first[:40]!r}{earlier}"
        return Summary(text, [Usage("summary", "deterministic", output_tokens=len(text) // 4)])


@attrs.define
class MemoryAdapter:
    """A platform in memory: what was sent is in `sent`, in order.

    Errors can be asked for: `errors` before a message is taken, `late_errors` after it.
    """

    platform: str = "memory"
    sent: list[OutboxRow] = attrs.Factory(list)
    errors: list[Exception] = attrs.Factory(list)
    attempts: Counter[int] = attrs.Factory(Counter)
    limit: int | None = None
    account: str | None = None
    late_errors: list[Exception] = attrs.Factory(list)
    _arrived: trio.Event = attrs.Factory(trio.Event)

    async def send(self, row: OutboxRow, /) -> None:
        """Take the row, or raise the next error that was asked for."""
        self.attempts[row.outbox_id] += 1
        await trio.lowlevel.checkpoint()
        if self.errors:
            raise self.errors.pop(0)
        self.sent.append(row)
        self._arrived.set()
        if self.late_errors:
            raise self.late_errors.pop(0)

    @property
    def texts(self) -> list[str]:
        """What was said, in order."""
        return [str(row.body["text"]) for row in self.sent]

    async def wait_sent(self, number: int) -> None:
        """Wait until so many were sent."""
        while len(self.sent) < number:
            self._arrived = trio.Event()
            await self._arrived.wait()


def texts_of(messages: Iterable[Message | StoredMessage]) -> list[tuple[str, str | None]]:
    """Roles and texts, for comparing."""
    return [(message.role, message.content) for message in messages]


def forever() -> Callable[[Turn], Awaitable[None]]:
    """A step of a script that never ends by itself."""

    async def step(_: Turn) -> None:
        await trio.sleep(math.inf)

    return step
