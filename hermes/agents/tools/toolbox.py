"""Tools: typed Python functions that a model may call.

Whatever goes wrong with a call is told to the model in one line, so that it can do better. What has
effects is recorded before it happens (`once`), or waits for a user who allows it (`approval`).
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import attrs
import msgspec
import trio
from msgspec.structs import replace

from hermes import user_code
from hermes.actors.context import said_to
from hermes.agents.tools.schema import Arguments, BadArguments, Signature
from hermes.errors import NotApproved, Overloaded, StoreError, TurnClosed
from hermes.events import ApprovalAsked
from hermes.messages import Approval, JsonObject, Outbound, ToolCall, ToolCallRecord
from hermes.protocols import ToolRecords, Turn

log = logging.getLogger(__name__)

SECONDS = 300.0
MAX_OUTPUT = 50_000
LEAST_OUTPUT = 200
THREADS = 20
APPROVAL_SECONDS = 3600.0
MAX_APPROVED = 10_000
"""Characters of arguments that a user can be asked to allow."""
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

DONE = "(done)"
LEFT_OUT = "\n[{left} of {all} characters were left out here]"
UNKNOWN_END = (
    "This call of {name} was begun before, and then the process ended. Whether it took effect is "
    "unknown; it is not made again."
)
ASK = (
    "{name} was not run: it needs the user's approval. Ask the user to answer /approve {number} "
    "(or /deny {number}), and end your turn now; do not call it again before that."
)
WANTED = (
    "{name} wants to run with {arguments}\n/approve {number} allows it once, /deny {number} not."
)
TOO_LONG = "{name} was not run: its arguments are too long to be shown to a user for approval."
NO_RECORDS = "{name} was not run: it has to be recorded first, and there is no store to do so."


@attrs.frozen
class ToolOutcome:
    """What came of a call: the text for the model, and whether the call failed."""

    content: str
    failed: bool = False


@attrs.frozen(kw_only=True)
class Tool:
    """A function that a model may call; it can still be called as the function it is."""

    name: str
    function: Callable[..., Any]
    signature: Signature
    once: bool = False
    """Recorded before it runs, and not run again by a turn that runs again."""
    approval: bool = False
    """Run only with a user's approval of exactly its arguments; such a tool is also a once tool."""
    platforms: frozenset[str] | None = None
    seconds: float = SECONDS
    max_output: int = MAX_OUTPUT

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def schema(self) -> JsonObject:
        """What a model is told of it."""
        return {
            "name": self.name,
            "description": self.signature.description,
            "parameters": self.signature.parameters,
        }

    def is_for(self, platform: str) -> bool:
        """Whether it may be used there."""
        return self.platforms is None or platform in self.platforms

    def bounded(self, text: str) -> str:
        """The text, cut where it is too long, with a note of how much is missing."""
        if len(text) <= self.max_output:
            return text
        room = self.max_output - len(LEFT_OUT.format(left=len(text), all=len(text)))
        return text[:room] + LEFT_OUT.format(left=len(text) - room, all=len(text))


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    once: bool = False,
    approval: bool = False,
    platforms: Iterable[str] | None = None,
    seconds: float = SECONDS,
    max_output: int = MAX_OUTPUT,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None, /, **options: Any
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function, bare or with options; TypeError where a model cannot call it."""
    if function is not None:
        return _made(function)
    return lambda function: _made(function, **options)


def _made(  # noqa: PLR0913 - the options of a tool
    function: Callable[..., Any],
    *,
    name: str | None = None,
    once: bool = False,
    approval: bool = False,
    platforms: Iterable[str] | None = None,
    seconds: float = SECONDS,
    max_output: int = MAX_OUTPUT,
) -> Tool:  # fmt: skip
    name = str(name or getattr(function, "__name__", ""))  # a partial has none
    if not _NAME.fullmatch(name):
        raise ValueError(f"a tool needs a name of up to 64 letters, digits, _ and -, not {name!r}")
    if isinstance(platforms, str):
        raise TypeError(f"tool {name}: platforms are several names, such as ({platforms!r},)")
    if not seconds > 0:
        raise ValueError(f"tool {name}: seconds must be positive, not {seconds!r}")
    if max_output < LEAST_OUTPUT:
        raise ValueError(f"tool {name}: max_output must be at least {LEAST_OUTPUT}")
    return Tool(
        name=name,
        function=function,
        signature=Signature.of(function, name),
        once=once or approval,
        approval=approval,
        platforms=None if platforms is None else frozenset(platforms),
        seconds=seconds,
        max_output=max_output,
    )


class Toolbox:
    """The tools of an agent. Without `records`, those of the running turn's store are used.

    `redact` takes secrets out of what tools answer, before the model or the store see it.
    """

    def __init__(
        self,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        records: ToolRecords | None = None,
        approval_seconds: float = APPROVAL_SECONDS,
        threads: int = THREADS,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        made = [each if isinstance(each, Tool) else tool(each) for each in tools]
        self._tools: Mapping[str, Tool] = {each.name: each for each in made}
        if len(self._tools) < len(made):
            raise ValueError("two tools of a toolbox have the same name")
        self._records = records
        self._approval_seconds = approval_seconds
        self._redact = redact
        self._limiter = trio.CapacityLimiter(threads)
        self._schemas = tuple(each.schema for _, each in sorted(self._tools.items()))

    @property
    def schemas(self) -> tuple[JsonObject, ...]:
        """What a model is told of the tools: name, description, parameters; sorted by name."""
        return self._schemas

    def on(self, platform: str) -> Toolbox:
        """The tools that may be used on a platform; it shares the threads of this one."""
        left = [each for each in self._tools.values() if each.is_for(platform)]
        toolbox = Toolbox(
            left,
            records=self._records,
            approval_seconds=self._approval_seconds,
            redact=self._redact,
        )
        toolbox._limiter = self._limiter
        return toolbox

    async def run(self, call: ToolCall, turn: Turn) -> ToolOutcome:
        """Run a call. Never raises, but for a cancellation, the end of the turn or of the store."""
        found = self._tools.get(call.name)
        if found is None:
            known = ", ".join(sorted(self._tools)) or "none"
            return ToolOutcome(
                f"There is no tool {call.name[:100]!r}; the tools are: {known}.", failed=True
            )
        if not found.is_for(turn.source.platform):
            return ToolOutcome(
                f"{found.name} may not be used on {turn.source.platform}.", failed=True
            )
        try:
            arguments = found.signature.read(call.arguments)
        except BadArguments as error:
            return self._ran(found, f"{found.name} was not run: {error}", failed=True)
        ordinal = turn.ordinal(found.name, arguments.canonical)
        if not found.once:
            return await self._call(found, arguments, turn)
        once = ToolCallRecord(turn.turn_id, found.name, arguments.canonical, ordinal)
        return await self._call_once(found, arguments, turn, once)

    # Recorded

    async def _call_once(
        self, found: Tool, arguments: Arguments, turn: Turn, once: ToolCallRecord
    ) -> ToolOutcome:
        records = self._records or turn.records
        if records is None:
            log.error("tool %s needs a store, and there is none", found.name)
            return ToolOutcome(NO_RECORDS.format(name=found.name), failed=True)
        key = turn.session_key if found.approval else None
        try:
            earlier = await records.begin_once(
                once.turn_id, once.tool, once.arguments, once.ordinal, approved_for=key
            )
        except NotApproved:
            return await self._ask(found, arguments, turn, records)
        except (StoreError, Overloaded) as error:
            return _unrecorded(found, error)
        if earlier is None:
            ran = await self._call(found, arguments, turn)
            await _end(records, replace(once, result=ran.content, failed=ran.failed))
            return ran
        if earlier.result is None:
            return ToolOutcome(UNKNOWN_END.format(name=found.name), failed=True)
        return ToolOutcome(earlier.result, earlier.failed)

    async def _ask(
        self, found: Tool, arguments: Arguments, turn: Turn, records: ToolRecords
    ) -> ToolOutcome:
        """Ask the user to allow the call; the user is shown what the model has really asked for."""
        if len(arguments.canonical) > MAX_APPROVED:
            return ToolOutcome(TOO_LONG.format(name=found.name), failed=True)
        source, session_id = turn.source, turn.session_id

        def say(asked: Approval) -> list[Outbound]:
            return said_to(source, asked.session_key, session_id, wanted(asked), "notice")

        try:
            asked = await records.ask_approval(
                turn.session_key,
                found.name,
                arguments.canonical,
                seconds=self._approval_seconds,
                say=say,
            )
        except (StoreError, Overloaded) as error:
            return _unrecorded(found, error)
        turn.emit(ApprovalAsked(asked))
        return ToolOutcome(ASK.format(name=found.name, number=asked.approval_id), failed=True)

    # Run

    async def _call(self, found: Tool, arguments: Arguments, turn: Turn) -> ToolOutcome:
        """Call the function, within its time."""
        values = dict(arguments.values)
        if found.signature.takes_turn is not None:
            values[found.signature.takes_turn] = turn
        work = functools.partial(found.function, **values)
        with trio.move_on_at(min(trio.current_time() + found.seconds, turn.deadline)):
            try:
                return self._ran(found, text_of(await self._await(found.function, work)))
            except TurnClosed:
                raise
            except BaseException as error:  # foreign code: its failure is told to the model
                if (through := user_code.passing(error)) is not None:
                    raise through from None
                log.warning("tool %s failed in turn %d", found.name, turn.turn_id, exc_info=error)
                told = " ".join(user_code.describe(error).split())
                return self._ran(found, f"{found.name} failed: {told}", failed=True)
        late = f"{found.name} took longer than {found.seconds:g} seconds and was given up."
        return ToolOutcome(late, failed=True)

    def _ran(self, found: Tool, text: str, *, failed: bool = False) -> ToolOutcome:
        """What is told of a call: without secrets, and only then cut, or half of one might stay."""
        return ToolOutcome(
            found.bounded(text if self._redact is None else self._redact(text)), failed
        )

    async def _await(self, function: Callable[..., Any], work: Callable[[], Any]) -> Any:
        if inspect.iscoroutinefunction(function):
            return await work()
        # In a tuple, since Trio takes no coroutine from a thread: a decorator may have hidden that
        # the function is one.
        (value,) = await trio.to_thread.run_sync(
            lambda: (work(),), abandon_on_cancel=True, limiter=self._limiter
        )
        return await value if inspect.isawaitable(value) else value


async def _end(records: ToolRecords, call: ToolCallRecord) -> None:
    """Record a result, also of a turn that is being stopped: it has happened."""
    with trio.CancelScope(shield=True):
        try:
            await records.end_once(call)
        except (StoreError, Overloaded) as error:
            log.warning("the result of %s was not recorded: %s", call.tool, error)


def _unrecorded(found: Tool, error: Exception) -> ToolOutcome:
    log.warning("a call of %s could not be recorded: %s", found.name, error)
    return ToolOutcome(
        f"{found.name} was not run: it could not be recorded first ({error}).", failed=True
    )


def wanted(asked: Approval) -> str:
    """What a user is told of a call that waits for approval."""
    # All of it: nobody should allow what was not shown.
    return WANTED.format(name=asked.tool, arguments=asked.arguments, number=asked.approval_id)


def text_of(value: object) -> str:
    """What a function has returned, as a model reads it."""
    if isinstance(value, str):
        return value
    if value is None:
        return DONE
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (TypeError, ValueError, RecursionError):
        return str(value)
