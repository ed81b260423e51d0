"""`ChatAgent`: answers turns with a model that may call tools."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence, Set as AbstractSet
from typing import ClassVar, TypeAlias

import attrs
import trio
from msgspec.structs import replace

from hermes.agents.budgets import BudgetSpent, Spending
from hermes.agents.calls.deltas import DeltaRelay
from hermes.agents.calls.recording import CallRecorder
from hermes.agents.providers.base import (
    Completion,
    FileBody,
    Provider,
    ProviderError,
    RequestRejected,
    Unavailable,
    with_files,
)
from hermes.agents.providers.prompt_cache import PromptCache, TurnMessages
from hermes.agents.providers.retries import Retries
from hermes.agents.tools.client_tools import history_and_input, plan_turn, with_own_ids
from hermes.agents.tools.toolbox import Toolbox, ToolOutcome
from hermes.agents.turn_texts import texts_of
from hermes.background import start_soon
from hermes.errors import ContextOverflow
from hermes.events import AssistantMessage, Retrying, TextDelta, ToolFinished, ToolStarted
from hermes.messages import Message, StoredFile, ToolCall, TurnResult, Usage
from hermes.protocols import Agent, RunsOnTrio, SupportsAclose, Turn
from hermes.sanitize import scrub
from hermes.texts import Texts
from hermes.transcript.overflow import LONG_HISTORY

log: logging.Logger = logging.getLogger(__name__)

TRUNCATED_CALL = (
    "{name} was not run: the answer reached the token limit in the middle of this call."
)

TurnFacts: TypeAlias = Callable[[Turn], str | None]
"""Returns text that is true only now, such as the date. It is sent as the last message of each
request, so that it does not invalidate the prompt cache, and is not stored."""


@attrs.define
class _Progress:
    """The messages and provider calls of a turn so far."""

    messages: TurnMessages
    provider: Provider
    """The model, as the client of the turn wants it."""
    recorder: CallRecorder
    rows: list[Message] = attrs.Factory(list)
    files: dict[str, StoredFile] = attrs.Factory(dict)
    """The files of tools that the user gets, by id."""
    api_calls: int = 0

    def add(self, rows: Sequence[Message]) -> None:
        self.rows += rows
        self.recorder.rows += len(rows)
        self.messages.add(rows)

    def keep(self, files: Sequence[StoredFile]) -> None:
        """Send files to the user with the answer, each once."""
        self.files |= {file.id: file for file in files}

    def result(self, completion: Completion, turn: Turn) -> TurnResult:
        if completion.damaged:
            completion = _with_note(completion, turn)
        text = completion.message.content
        no_answer = completion.truncated and not text
        return TurnResult(
            text=text,
            rows=[*self.rows, completion.message] if text else None,
            partial=completion.truncated or completion.damaged,
            error=texts_of(turn).truncated if no_answer else None,
            api_calls=self.api_calls,
            files=[*self.files.values()],
        )

    def pause(self, text: str | None, calls: Sequence[ToolCall]) -> TurnResult:
        """Return the result of a turn that goes on when the client has made these calls."""
        files = [*self.files.values()]
        return TurnResult(
            text=text, rows=self.rows, api_calls=self.api_calls, files=files, calls=calls
        )

    def failure(self, error: str, kind: str) -> TurnResult:
        return TurnResult(failed=True, error=error, error_kind=kind, api_calls=self.api_calls)

    def refusal(self, error: BudgetSpent, texts: Texts) -> TurnResult:
        """Return the result of a turn that may cost no more: to try again does not help."""
        why = error.text(texts)
        return TurnResult(
            text=texts.not_sent.format(error=why),
            rows=self.rows,
            failed=True,
            error=why,
            error_kind=type(error).__name__,
            api_calls=self.api_calls,
            files=[*self.files.values()],
        )


class ChatAgent(Agent, SupportsAclose, RunsOnTrio):
    """An agent that answers with a model and runs the tools that the model calls.

    Between turns it keeps only encoded histories, which can be rebuilt at any time. Usually built
    by `chat_agents`.

    Args:
        provider: The model, with the system prompt and the tool schemas.
        tools: The tools that the model may call; their schemas must be those of the provider.
        facts: Returns text for the current turn only (see `TurnFacts`).
        retries: How calls are retried that failed.
        spending: Prices and budgets.
        max_steps: Maximum number of model calls in a turn.
    """

    on_trio: ClassVar[bool] = True

    def __init__(
        self,
        provider: Provider,
        tools: Toolbox | None = None,
        *,
        facts: TurnFacts | None = None,
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
        self._prompts = PromptCache(provider)
        self._taken: frozenset[str] = frozenset()
        """Files that the model has taken."""
        self._rejected: frozenset[str] = frozenset()
        """Files that were in a request that the model rejected, and answered without them."""
        self._too_long: str | None = None
        """The session with files that was too long for the model at last."""

    async def run(self, turn: Turn, /) -> TurnResult:
        """Answer a turn: call the model and run tools until it answers without tool calls.

        A call of a tool that the client runs ends the turn, after the other calls of the same
        message. A `ProviderError` becomes a failed result. Raises `ContextOverflow` if the
        conversation is too long for the model.
        """
        rows, new = history_and_input(turn)
        history = self._prompts.history(turn.session_id, rows)
        messages = self._prompts.start_turn(turn.session_id)
        progress = _Progress(messages, self._provider, CallRecorder(turn))
        messages.add(new)
        try:
            plan = plan_turn(turn.options, self._provider, self._tools)
            if turn.decided_calls:
                await self._run_approved(turn, progress)
            suffix = [*plan.suffix, *self._current_facts(turn)]
            for step in range(self._max_steps):
                progress.provider = plan.later if step else plan.first
                last = progress.recorder.injected = messages.suffix(suffix)
                encoded = progress.provider.body(bytes(history), messages.encoded, last)
                body = with_files(encoded, turn.open_file, self._rejected)
                completion = await self._complete(turn, body, progress)
                if not completion.message.tool_calls:
                    return progress.result(completion, turn)
                waiting = await self._run_tools(turn, completion, progress, plan.client_tools)
                if waiting:
                    return progress.pause(completion.message.content, waiting)
        except BudgetSpent as error:
            return progress.refusal(error, texts_of(turn))
        except ProviderError as error:
            _raise_if_overflow(turn, error)
            return progress.failure(error.text(texts_of(turn)), error.kind)
        text = texts_of(turn).too_many_steps.format(steps=self._max_steps)
        return progress.failure(text, "TooManySteps")

    def _current_facts(self, turn: Turn) -> list[Message]:
        facts = self._facts(turn) if self._facts else None
        return [Message("user", facts)] if facts else []

    async def _complete(
        self, turn: Turn, body: bytes | FileBody, progress: _Progress
    ) -> Completion:
        """Get one answer of the model, with retries."""
        relay = DeltaRelay(turn)
        if isinstance(body, bytes):
            return await self._try(turn, body, progress, relay)
        try:
            completion = await self._try(turn, body, progress, relay)
        except (RequestRejected, ContextOverflow) as error:
            return await self._complete_without(error, turn, body, progress, relay)
        self._taken |= body.shown
        return completion

    async def _complete_without(
        self,
        error: RequestRejected | ContextOverflow,
        turn: Turn,
        body: FileBody,
        progress: _Progress,
        relay: DeltaRelay,
    ) -> Completion:
        """Get an answer to a request that was rejected without the files that may be the reason.

        These are the new ones. A damaged image, or one for a model that takes none, would
        otherwise end the conversation, since it is part of each later request. So would a file
        with more pages than the model reads, unless a compression helps, which has another session.
        """
        suspected = body.shown - self._taken or body.shown
        first = isinstance(error, ContextOverflow) and self._too_long != turn.session_id
        if first:
            self._too_long = turn.session_id
        if first or not suspected:
            raise error
        rest = attrs.evolve(body, hidden=body.hidden | suspected)
        try:
            completion = await self._try(turn, rest, progress, relay)
        except (ProviderError, ContextOverflow):
            raise error from None
        # Without the reason, in which the provider may quote the conversation.
        text = "the model rejected a request with new files (%d); they are not shown to it"
        log.warning(text, len(suspected), extra={"metadata": turn.metadata})
        self._rejected |= suspected
        return completion

    async def _try(
        self, turn: Turn, body: bytes | FileBody, progress: _Progress, relay: DeltaRelay
    ) -> Completion:
        """Make a call, with retries."""

        async def attempt() -> Completion:
            relay.start_attempt()
            return await self._call(turn, body, progress, relay)

        def report(seconds: float, error: Unavailable) -> None:
            texts = texts_of(turn)
            reason = texts.rate_limited if error.rate_limited else texts.no_connection
            text = texts.retrying_in.format(seconds=math.ceil(seconds), reason=reason)
            turn.emit(Retrying(seconds, text))

        return await self._retries.run(attempt, turn.deadline, report)

    async def _call(
        self, turn: Turn, body: bytes | FileBody, progress: _Progress, relay: DeltaRelay
    ) -> Completion:
        """Call the provider once, within the budget, and charge the turn for it."""
        endpoint = progress.provider.endpoint
        expected = self._spending.expected(endpoint.model, body, endpoint.max_tokens)
        async with self._spending.allowed(turn.spent, expected):
            progress.api_calls += 1
            usage: Usage | None = None
            with progress.recorder.call(progress.provider, body) as call:
                relay.on_first = call.begins
                try:
                    completion = await progress.provider.complete(body, relay.feed)
                    usage = completion.usage
                except BaseException:
                    if relay.attempt_started:  # the provider bills an answer that was interrupted
                        usage = replace(
                            expected, output_tokens=0, cost=None, provider=endpoint.name
                        )
                    raise
                finally:
                    if usage is not None:
                        call.usage = usage = self._spending.priced(usage)
                        turn.charge(usage)
            return completion

    async def _run_approved(self, turn: Turn, progress: _Progress) -> None:
        """Make the calls that the user has approved, as if the model had asked for them now."""
        if calls := await self._tools.approved_calls(turn):
            message = Message("assistant", tool_calls=tuple(calls))
            await self._run_tools(turn, Completion(message), progress)

    async def _run_tools(
        self,
        turn: Turn,
        completion: Completion,
        progress: _Progress,
        client_tools: AbstractSet[str] = frozenset(),
    ) -> list[ToolCall]:
        """Run the tool calls of a message concurrently; the results keep the order of the calls.

        Returns the calls that the client makes.
        """
        message = with_own_ids(completion.message, client_tools, progress.rows)
        results: dict[int, tuple[Message, Sequence[StoredFile]]] = {}
        # A truncated call may still be valid JSON, with arguments missing.
        truncated = len(message.tool_calls) - 1 if completion.truncated else None
        own: list[tuple[int, ToolCall]] = []
        waiting: list[ToolCall] = []
        for number, each in enumerate(message.tool_calls):
            if each.name in client_tools and number != truncated:
                waiting.append(each)
            else:
                own.append((number, each))

        async def run(index: int, call: ToolCall) -> None:
            if index == truncated:
                outcome = ToolOutcome(TRUNCATED_CALL.format(name=call.name), failed=True)
            else:
                outcome = await self._tools.run(call, turn)
            content = scrub(outcome.content)
            turn.emit(ToolFinished(call.id, content, outcome.failed, outcome.parts))
            row = Message("tool", content, tool_call_id=call.id, tool_name=call.name)
            row = replace(row, parts=outcome.parts) if outcome.parts else row
            results[index] = row, outcome.files

        # If the turn fails or is interrupted, its rows are built from these events, so they are
        # emitted in the order of the message and not in the order in which the tasks start.
        turn.emit(AssistantMessage(message))
        for _, call in own:
            turn.emit(ToolStarted(call))
        async with trio.open_nursery() as nursery:
            for index, call in own:
                start_soon(nursery, run, index, call)
        finished = [results[index] for index in sorted(results)]
        progress.add([message, *(row for row, _ in finished)])
        progress.keep([file for _, files in finished for file in files])
        if not waiting and (steered := turn.steered()):
            progress.add(steered)
        return waiting

    async def aclose(self) -> None:
        """Discard the encoded histories. The HTTP client stays open; its creator closes it."""
        self._prompts = PromptCache(self._provider)
        await trio.lowlevel.checkpoint()


def _with_note(completion: Completion, turn: Turn) -> Completion:
    """Add a note to the end of an answer with a part that could not be read."""
    message, note = completion.message, texts_of(turn).part_missing
    note = f"\n\n{note}" if message.content else note
    turn.emit(TextDelta(note))
    text = (message.content or "") + note
    return attrs.evolve(completion, message=replace(message, content=text))


def _raise_if_overflow(turn: Turn, error: ProviderError) -> None:
    """Raise `ContextOverflow` for an unexplained rejection in a long conversation.

    Some providers reject a prompt that is too long without giving a reason.
    """
    if (
        isinstance(error, RequestRejected)
        and error.unexplained
        and len(turn.history) > LONG_HISTORY
    ):
        raise ContextOverflow(str(error)) from error
