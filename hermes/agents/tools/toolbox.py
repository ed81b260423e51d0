"""`Toolbox`: runs the tools that a model calls.

If a call fails, the model gets the reason in one line and can try again. Tools with side effects
can record a call before it runs (`once`) or require the approval of the user (`approval`).
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import trio
from msgspec.structs import replace

from hermes import user_code
from hermes.agents.remote_turns import LoopTurn
from hermes.agents.threads import HOST_LOOP
from hermes.agents.tools.definitions import Tool as Tool, tool as tool
from hermes.agents.tools.outputs import (
    ToolOutcome as ToolOutcome,
    ToolOutput as ToolOutput,
    from_host_loop,
    outputs_of,
    recorded,
    replayed,
    store_files,
)
from hermes.agents.tools.schema import NO_RESULT, Arguments, BadArguments, result_text
from hermes.errors import NotApproved, Overloaded, StoreError, TurnClosed
from hermes.events import ApprovalAsked
from hermes.messages import (
    Approval,
    JsonObject,
    Outbound,
    RecordedResult,
    ToolCall,
    ToolCallRecord,
)
from hermes.outbound import question_rows
from hermes.protocols import RepeatsTurn, ToolRecords, Turn
from hermes.redaction import redact_all
from hermes.redaction.slices import prepare
from hermes.sanitize import one_line
from hermes.session_keys import API_PLATFORMS
from hermes.transcript import questions

log: logging.Logger = logging.getLogger(__name__)

MAX_THREADS = 20
APPROVAL_TIMEOUT = 3600.0

UNKNOWN_OUTCOME = (
    "This call of {name} was started before, and then the process ended. It is unknown whether it "
    "took effect; it is not run again."
)
NEEDS_APPROVAL = (
    "{name} was not run: it needs the user's approval. Ask the user to reply /approve {number} "
    "(or /deny {number}), and end your turn now; do not call it again before that."
)
CLIENT_ASKS = (
    "{name} was not run: it needs the user's approval, and the user is asked for it after your "
    "answer. End your turn now; do not call it again before the user has decided."
)
ARGUMENTS_TOO_LONG = (
    "{name} was not run: its arguments are too long to be shown to the user for approval."
)
NO_STORE = "{name} was not run: its calls must be recorded, and there is no store."
NOT_RECORDED = "{name} was not run: the call could not be recorded ({error})."


class Toolbox:
    """The tools of an agent.

    Args:
        tools: Tools, or functions that are made into tools. Raises `ValueError` if two have the
            same name.
        records: Where calls of `once` and `approval` tools are recorded; by default the store of
            the running turn.
        approval_timeout: How long a question for approval stays open, in seconds.
        max_threads: Maximum number of threads for plain functions, or a limiter to share.
        redact: Removes secrets from the schemas of tools, from calls and from their output.
    """

    def __init__(
        self,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        records: ToolRecords | None = None,
        approval_timeout: float = APPROVAL_TIMEOUT,
        max_threads: int | trio.CapacityLimiter = MAX_THREADS,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        made = [each if isinstance(each, Tool) else tool(each) for each in tools]
        if len({each.name for each in made}) < len(made):
            raise ValueError("two tools of a toolbox have the same name")
        self._records = records
        self._approval_timeout = approval_timeout
        self._redact = redact or str
        self._tools: Mapping[str, Tool] = _without_secret_names(made, self._redact)
        self._limiter = (
            trio.CapacityLimiter(max_threads) if isinstance(max_threads, int) else max_threads
        )
        schemas = [each.schema for _, each in sorted(self._tools.items())]
        self._schemas = tuple(redact_all(schema, self._redact) for schema in schemas)

    @property
    def schemas(self) -> tuple[JsonObject, ...]:
        """Name, description and parameters of each tool, sorted by name."""
        return self._schemas

    def on(self, platform: str) -> Toolbox:
        """Return a toolbox with the tools of one platform; it shares the threads of this one."""
        tools = {name: each for name, each in self._tools.items() if each.is_for(platform)}
        other = copy.copy(self)
        other._tools = tools  # noqa: SLF001 - of the same class
        other._schemas = tuple(each for each in self._schemas if each["name"] in tools)  # noqa: SLF001
        return other

    async def run(self, call: ToolCall, turn: Turn) -> ToolOutcome:
        """Run a tool call of a model.

        A call that is invalid or fails returns a failed outcome. Raises `TurnClosed` if the turn is
        over, and `StoreFailed` if the store has stopped.
        """
        call = redact_all(call, self._redact)
        tool = self._tools.get(call.name)
        if tool is None:
            names = ", ".join(sorted(self._tools)) or "none"
            return ToolOutcome(
                f"There is no tool {call.name[:100]!r}. Available tools: {names}.", failed=True
            )
        platform = turn.source.platform
        if not tool.is_for(platform):
            return ToolOutcome(f"{tool.name} is not available on {platform}.", failed=True)
        try:
            arguments = tool.signature.read(call.arguments)
        except BadArguments as error:
            return await self._outcome(tool, f"{tool.name} was not run: {error}", failed=True)
        ordinal = turn.ordinal(tool.name, arguments.canonical)
        if isinstance(turn, RepeatsTurn) and turn.recorded is not None:
            return await self._repeat(tool, arguments, turn, turn.recorded, ordinal)
        if not tool.once:
            return await self._call(tool, arguments, turn)
        record = ToolCallRecord(turn.turn_id, tool.name, arguments.canonical, ordinal)
        return await self._call_once(tool, arguments, turn, record)

    async def _repeat(
        self,
        tool: Tool,
        arguments: Arguments,
        turn: Turn,
        recorded: Sequence[RecordedResult],
        ordinal: int,
    ) -> ToolOutcome:
        """Return what the same call returned in the turn that this one repeats.

        A call that was not made then needs an approval, and is made in the turn after it. One that
        was made and has no result is not made again if the tool is `once`.
        """
        same = [each for each in recorded if _is_same(tool, arguments, each)]
        if ordinal < len(same):
            row = same[ordinal].result
            if row is not None:
                return ToolOutcome(row.content or "", same[ordinal].failed, row.parts or ())
            if tool.once:
                return ToolOutcome(UNKNOWN_OUTCOME.format(name=tool.name), failed=True)
        records = self._records or turn.records
        if records is None:
            return ToolOutcome(NO_STORE.format(name=tool.name), failed=True)
        return await self._ask_approval(tool, arguments, turn, records)

    async def approved_calls(self, turn: Turn) -> list[ToolCall]:
        """Return the calls that the input approves. Make them with `run` before asking a model."""
        if (records := self._records or turn.records) is None:
            return []
        key, numbers = turn.session_key, turn.decided_calls
        found = [(number, await records.get_approved_call(key, number)) for number in numbers]
        return [ToolCall(f"approved_{n}", x.tool, x.arguments) for n, x in found if x is not None]

    async def _call_once(
        self, tool: Tool, arguments: Arguments, turn: Turn, record: ToolCallRecord
    ) -> ToolOutcome:
        """Record a call and run it, unless an earlier run of the turn has done so."""
        records = self._records or turn.records
        if records is None:
            log.error("tool %s needs a store to record its calls", tool.name, extra=_extra(turn))
            return ToolOutcome(NO_STORE.format(name=tool.name), failed=True)
        try:
            call = (record.turn_id, record.tool, record.arguments, record.ordinal)
            approved_for = turn.session_key if tool.approval else None
            earlier = await records.begin_once(*call, approved_for=approved_for)
        except NotApproved:
            return await self._ask_approval(tool, arguments, turn, records)
        except (StoreError, Overloaded) as error:
            return _not_recorded(tool, error, _extra(turn))
        if earlier is None:
            outcome = await self._call(tool, arguments, turn)
            done = replace(record, result=recorded(outcome), failed=outcome.failed)
            await _save(records, done, _extra(turn))
            return outcome
        if earlier.result is None:
            return ToolOutcome(UNKNOWN_OUTCOME.format(name=tool.name), failed=True)
        return await replayed(earlier.result, turn, self._redact, failed=earlier.failed)

    async def _ask_approval(
        self, tool: Tool, arguments: Arguments, turn: Turn, records: ToolRecords
    ) -> ToolOutcome:
        """Ask the user to approve the call, with the arguments as the model sent them."""
        source, session_id, texts = turn.source, turn.session_id, turn.runtime.texts
        route = turn.runtime.question_route(source)
        if not questions.can_be_asked(tool.name, arguments.canonical, texts, route.limit):
            return ToolOutcome(ARGUMENTS_TOO_LONG.format(name=tool.name), failed=True)

        asked = []

        def question(approval: Approval) -> list[Outbound]:
            asked.append(approval)
            if source.platform in API_PLATFORMS:  # its response has the question
                return []
            text = questions.question(approval, texts, limit=route.limit)
            return question_rows(source, approval, session_id, text)

        try:
            approval = await records.ask_approval(
                turn.session_key,
                tool.name,
                arguments.canonical,
                seconds=self._approval_timeout,
                say=question,
                delivery=route.delivery,
            )
        except (StoreError, Overloaded) as error:
            return _not_recorded(tool, error, _extra(turn))
        turn.emit(ApprovalAsked(approval, again=not asked))
        by_client = source.platform in API_PLATFORMS
        text = CLIENT_ASKS if by_client else NEEDS_APPROVAL
        return ToolOutcome(text.format(name=tool.name, number=approval.approval_id), failed=True)

    async def _call(self, tool: Tool, arguments: Arguments, turn: Turn) -> ToolOutcome:
        """Call the function, within its timeout and the deadline of the turn."""
        with trio.move_on_at(min(trio.current_time() + tool.timeout, turn.deadline)):
            with user_code.contained(TurnClosed) as caught:
                return await self._result(tool, await self._await(tool, arguments, turn), turn)
            assert caught.error is not None
            about, extra = (tool.name, turn.turn_id), _extra(turn)
            log.warning("tool %s failed in turn %d", *about, exc_info=caught.error, extra=extra)
            error = self._redact(user_code.describe(caught.error))
            return await self._outcome(tool, f"{tool.name} failed: {one_line(error)}", failed=True)
        return ToolOutcome(f"{tool.name} timed out after {tool.timeout:g} seconds.", failed=True)

    async def _result(self, tool: Tool, value: object, turn: Turn) -> ToolOutcome:
        """Return what a function has returned as an outcome, with its files stored."""
        outputs = outputs_of(value)
        if outputs is None:
            return await self._outcome(tool, result_text(value))
        stored = await store_files(outputs, turn, self._redact)
        text = "\n".join(filter(None, [output.text for output in outputs]))
        return (await self._outcome(tool, text)).with_files(*stored, NO_RESULT)

    async def _outcome(self, tool: Tool, text: str, *, failed: bool = False) -> ToolOutcome:
        await prepare(text, self._redact)
        # Redact before truncating: a partial secret would not be recognised.
        return ToolOutcome(tool.truncate(self._redact(text)), failed)

    async def _await(self, tool: Tool, arguments: Arguments, turn: Turn) -> Any:
        host = HOST_LOOP.get() if tool.on_host_loop else None
        if host is not None:
            remote = LoopTurn(turn)
            try:
                value = await host.run(_bind(tool, arguments, remote))
                return from_host_loop(value, host)
            finally:
                remote.end()
        call = _bind(tool, arguments, turn)
        if inspect.iscoroutinefunction(tool.function):
            return await call()
        # A decorator may hide that the function is a coroutine function. The tuple is needed
        # because Trio refuses a coroutine as the result of a thread.
        (value,) = await trio.to_thread.run_sync(
            lambda: (call(),), abandon_on_cancel=True, limiter=self._limiter
        )
        return await value if inspect.isawaitable(value) else value


def _is_same(tool: Tool, arguments: Arguments, recorded: RecordedResult) -> bool:
    """Return whether a recorded call is one of this tool with these arguments."""
    if recorded.tool != tool.name:
        return False
    try:
        return tool.signature.read(recorded.arguments).canonical == arguments.canonical
    except BadArguments:
        return False


def _without_secret_names(tools: Sequence[Tool], redact: Callable[[str], str]) -> dict[str, Tool]:
    """Return the tools by name, except for those of which the name contains a secret."""
    usable = {each.name: each for each in tools if redact(each.name) == each.name}
    if len(usable) < len(tools):
        log.warning("tools are left out, because their names contain a secret")
    return usable


def _bind(tool: Tool, arguments: Arguments, turn: Turn) -> Callable[[], Any]:
    """Return the function with its arguments, and the turn if it takes one."""
    values = dict(arguments.values)
    if tool.signature.takes_turn is not None:
        values[tool.signature.takes_turn] = turn
    return functools.partial(tool.function, **values)


def _extra(turn: Turn) -> JsonObject:
    """Return what log records about a turn have besides their text."""
    return {"metadata": turn.metadata}


async def _save(records: ToolRecords, call: ToolCallRecord, extra: JsonObject) -> None:
    """Record the result of a call, even if the turn is being cancelled: the call has happened."""
    with trio.CancelScope(shield=True):
        try:
            await records.end_once(call)
        except (StoreError, Overloaded) as error:
            log.warning("the result of tool %s was not recorded: %s", call.tool, error, extra=extra)


def _not_recorded(tool: Tool, error: Exception, extra: JsonObject) -> ToolOutcome:
    log.warning("a call of tool %s could not be recorded: %s", tool.name, error, extra=extra)
    return ToolOutcome(NOT_RECORDED.format(name=tool.name, error=error), failed=True)
