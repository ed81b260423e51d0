"""`ChatAgent`: a model that speaks and calls tools, until it has answered."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import ClassVar

import attrs
import trio
from msgspec.structs import replace

from hermes.agents.budgets import Spending
from hermes.agents.providers.base import (
    Piece,
    Provider,
    ProviderError,
    RequestRefused,
    Said,
    Text,
    Unavailable,
)
from hermes.agents.providers.prompt_cache import Fresh, Prompts
from hermes.agents.tools.toolbox import Toolbox, ToolOutcome
from hermes.errors import ContextOverflow
from hermes.events import AssistantMessage, ReasoningDelta, TextDelta, ToolFinished, ToolStarted
from hermes.messages import Message, ToolCall, TurnResult
from hermes.protocols import Turn
from hermes.transcript.overflow import LONG_HISTORY

ONCE_MORE = "\n\n[The connection broke off; once more.]\n\n"
OUT_OF_STEPS = "the model called tools {steps} times without coming to an answer"
CUT = "the answer reached the limit of its length before it said anything"
CUT_CALL = "{name} was not run: the answer reached the limit of its length within this call."
LATE = "the turn has no time left for another try"

Facts = Callable[[Turn], str | None]
"""What is true only now, such as the date: it is said last, and not kept."""


@attrs.frozen(kw_only=True)
class Retries:
    """How often a call is tried, and how long is waited between two tries."""

    tries: int = 5
    first_pause: float = 0.5
    longest_pause: float = 30.0
    longest_wait: float = 60.0
    """Where a provider asks us to wait longer than this, the user is told instead."""

    def pause(self, failures: int, asked: float | None) -> float | None:
        """Seconds until the next try; None where there is none."""
        if failures >= self.tries or (asked is not None and asked > self.longest_wait):
            return None
        pause = min(self.first_pause * 2.0 ** (failures - 1), self.longest_pause)
        # Not all at once, when a provider comes back to life.
        return max(asked or 0.0, pause * random.uniform(0.5, 1.0))


@attrs.define
class _Hearing:
    """Hands the pieces of an answer on; a second try repeats nothing that was heard before."""

    turn: Turn
    heard: list[str] = attrs.Factory(list)
    thought: bool = False
    began: bool = False
    """Whether the running try was heard of."""
    _mute: bool = False
    _before: str = ""
    _agreed: int = 0

    def start(self) -> None:
        """A try begins."""
        self.began = False
        self._mute = self.thought or bool(self.heard)
        self._before, self._agreed = "".join(self.heard), 0

    def hear(self, piece: Piece) -> None:
        self.began = True
        if isinstance(piece, Text):
            self._hear_text(piece.text)
        elif not self._mute:
            self.thought = True
            self.turn.emit(ReasoningDelta(piece.text))

    def _hear_text(self, text: str) -> None:
        known = self._before[self._agreed : self._agreed + len(text)]
        if not text.startswith(known):
            text = self._before[: self._agreed] + text
            self._before, self.heard = "", [text]
            self.turn.emit(TextDelta(ONCE_MORE, restart=True))
            self.turn.emit(TextDelta(text))
            return
        self._agreed += len(known)
        if new := text[len(known) :]:
            self.heard.append(new)
            self.turn.emit(TextDelta(new))


@attrs.define
class _Work:
    """A turn on its way: what was said and done in it so far."""

    fresh: Fresh
    rows: list[Message] = attrs.Factory(list)
    calls: int = 0

    def add(self, rows: Sequence[Message]) -> None:
        self.rows += rows
        self.fresh.add(rows)

    def result(self, **fields: object) -> TurnResult:
        return TurnResult(api_calls=self.calls, **fields)  # type: ignore[arg-type]


def _suspect(turn: Turn, refusal: RequestRefused) -> None:
    """Some providers refuse what is too long without a word: in a long conversation it is that."""
    if len(turn.history) > LONG_HISTORY:
        raise ContextOverflow(str(refusal)) from refusal


class ChatAgent:
    """Answers turns with a model; what it keeps between them are bytes that can be made again."""

    on_trio: ClassVar[bool] = True

    def __init__(
        self,
        provider: Provider,
        tools: Toolbox | None = None,
        *,
        facts: Facts | None = None,
        retries: Retries | None = None,
        spending: Spending | None = None,
        max_steps: int = 50,
    ) -> None:
        self._provider = provider
        self._tools = tools or Toolbox()
        self._facts = facts
        self._retries = retries or Retries()
        self._spending = spending or Spending()
        self._max_steps = max_steps
        self._prompts = Prompts(provider)

    async def run(self, turn: Turn, /) -> TurnResult:
        """Ask the model, do what it asks for, and ask again, until it has answered."""
        history = self._prompts.history(turn.session_id, turn.history)
        work = _Work(self._prompts.fresh(turn.session_id))
        work.fresh.add(turn.input)
        said = self._facts(turn) if self._facts else None
        tail = [Message("user", said)] if said else []
        try:
            for _ in range(self._max_steps):
                body = self._provider.body(
                    bytes(history), work.fresh.encoded, work.fresh.behind(tail)
                )
                answer = await self._ask(turn, body, work)
                if not answer.message.tool_calls:
                    work.rows.append(answer.message)
                    text = answer.message.content
                    return work.result(
                        text=text,
                        rows=work.rows if text else None,
                        partial=answer.cut,
                        error=CUT if answer.cut and not text else None,
                    )
                await self._do(turn, answer, work)
        except ProviderError as error:
            if isinstance(error, RequestRefused) and error.bare:
                _suspect(turn, error)
            return work.result(failed=True, error=str(error))
        return work.result(failed=True, error=OUT_OF_STEPS.format(steps=self._max_steps))

    async def _ask(self, turn: Turn, body: bytes, work: _Work) -> Said:
        """One answer of the model, by as many tries as it takes."""
        hearing = _Hearing(turn)
        failures = 0
        while True:
            hearing.start()
            try:
                return await self._call(turn, body, work, hearing)
            except Unavailable as error:
                failures += 1
                pause = self._retries.pause(failures, error.retry_after)
                if pause is None:
                    raise
                if trio.current_time() + pause >= turn.deadline:
                    raise Unavailable(f"{error}; {LATE}") from error
                await trio.sleep(pause)

    async def _call(self, turn: Turn, body: bytes, work: _Work, hearing: _Hearing) -> Said:
        """One call, which is on the bill: by the provider's count, or by what was asked of it."""
        endpoint = self._provider.endpoint
        expected = self._spending.expected(endpoint.model, body, endpoint.max_tokens)
        async with self._spending.allowed(turn.spent, expected):
            work.calls += 1
            try:
                said = await self._provider.ask(body, hearing.hear)
            except BaseException:
                if hearing.began:  # it was answering, and so it counts
                    guess = replace(expected, output_tokens=0, cost=None, provider=endpoint.name)
                    turn.charge(self._spending.priced(guess))
                raise
            if said.usage is not None:
                turn.charge(self._spending.priced(said.usage))
            return said

    async def _do(self, turn: Turn, answer: Said, work: _Work) -> None:
        """Run the tools that a message asks for, all at once; their results keep its order."""
        message = answer.message
        results: dict[int, Message] = {}
        # What is left of a call that was cut may be read as one with fewer arguments.
        cut = len(message.tool_calls) - 1 if answer.cut else None

        async def run(place: int, call: ToolCall) -> None:
            if place == cut:
                ran = ToolOutcome(CUT_CALL.format(name=call.name), failed=True)
            else:
                ran = await self._tools.run(call, turn)
            # Halves of characters, as in names of files, can be neither sent nor stored.
            content = ran.content.encode(errors="replace").decode()
            turn.emit(ToolFinished(call.id, content, ran.failed))
            results[place] = Message("tool", content, tool_call_id=call.id, tool_name=call.name)

        # If the turn fails or is interrupted, its rows are made of these events: as they were sent,
        # and in their order, not as the tasks begin.
        turn.emit(AssistantMessage(message))
        for call in message.tool_calls:
            turn.emit(ToolStarted(call))
        async with trio.open_nursery() as nursery:
            for place, call in enumerate(message.tool_calls):
                nursery.start_soon(run, place, call)
        work.add([message, *(results[place] for place in sorted(results))])
        if steered := turn.steered():
            work.add(steered)

    async def aclose(self) -> None:
        """Forget what was shown; the client belongs to whoever made it."""
        self._prompts = Prompts(self._provider)
        await trio.lowlevel.checkpoint()
