"""Turns that fail or end without a reply: what the user sees, and that nothing else breaks."""

from __future__ import annotations

import asyncio
import functools

import pytest
import trio
import trio.testing

from hermes.config import Config
from hermes.errors import ContextOverflow, StoreError
from hermes.events import TextDelta, ToolStarted
from hermes.messages import Message, ToolCall, TurnResult, Usage
from hermes.testing import (
    MemoryAdapter,
    ScriptedAgent,
    forever,
    inline,
    inspect,
    texts_of,
)
from hermes.texts import ENGLISH
from hermes.user_code import leaf
from tests.support.conversations import VIRTUAL_SECONDS, outbox_texts, scripted
from tests.support.runtime import with_threads
from tests.support.store_proxy import Through

# Turns without a reply

NOTHING = ""
OVERFLOW = ("context window", "/compact", "/reset")

# The result of the agent, the number of rows before it, the status and text of the reply.
TABLE = {
    "1 text": (TurnResult(text="Hello!"), 0, "complete", ("Hello!",)),
    "1 text of a failure": (TurnResult(text="Sorry", failed=True), 0, "failed", ("Sorry",)),
    "2 overflow": (
        TurnResult(failed=True, api_calls=0, error="400 Bad Request: context length exceeded"),
        60, "failed", OVERFLOW,
    ),
    "2 bare 400 after a long conversation": (
        TurnResult(failed=True, api_calls=0, error="Error code: 400"), 51, "failed", OVERFLOW,
    ),
    "3 bare 400 after a short one": (
        TurnResult(failed=True, api_calls=0, error="Error code: 400"), 49, "failed",
        ("Error code: 400", "/reset"),
    ),
    "3 another error": (
        TurnResult(failed=True, api_calls=0, error="500 Internal Server Error"), 5, "failed",
        ("500 Internal Server Error", "/reset"),
    ),
    "3 credentials": (
        TurnResult(failed=True, error="401: the access token has expired"), 60, "failed",
        ("access token has expired", "/reset"),
    ),
    "3 no reason": (TurnResult(failed=True), 0, "failed", ("unknown error", "/reset")),
    "4 interrupted at once": (
        TurnResult(interrupted=True, api_calls=0), 0, "interrupted", ("send it again",),
    ),
    "5 interrupted": (TurnResult(interrupted=True, api_calls=3), 10, "interrupted", NOTHING),
    "6 incomplete": (
        TurnResult(partial=True, api_calls=5, error="it remained incomplete after 3 attempts"),
        0, "complete", NOTHING,
    ),
    "7 partial": (
        TurnResult(partial=True, api_calls=5, error="invalid tool call: nonexistent_tool"),
        10, "partial", ("nonexistent_tool",),
    ),
    "8 speechless": (TurnResult(api_calls=2), 0, "complete", ("without a reply",)),
    "8 blanks": (TurnResult(text=" \n\t "), 0, "complete", ("without a reply",)),
    "9 untouched": (TurnResult(api_calls=0), 0, "complete", ("send it again",)),
    "10 partly untouched": (TurnResult(api_calls=0, partial=True), 0, "complete", NOTHING),
}  # fmt: skip


async def with_history(store, runtime, length):
    if length:
        await store.create_session("long", "embedded", session_key="k")
        rows = [Message("user" if n % 2 == 0 else "assistant", f"{n}") for n in range(length)]
        await store.append_messages("long", rows)
        await runtime.conversation("k").switch("long")


@pytest.mark.parametrize("row", TABLE)
async def test_a_turn_without_text_is_reported_as_in_the_table(start_with_store, row):
    result, length, status, expected = TABLE[row]
    agent, build = scripted(result)
    async with start_with_store(build=build) as (store, runtime):
        await with_history(store, runtime, length)
        reply = await runtime.ask("k", "hello")
        assert reply.status == status
        assert reply.error == result.error
        if expected == NOTHING:
            assert reply.text == ""
        for words in expected:
            assert words in reply.text
        if not row.startswith("2"):
            assert "context window" not in reply.text
        # The user is shown it, the model is not.
        assert await outbox_texts(store, reply.turn_id) == ([reply.text] if reply.text else [])
        said = texts_of(await runtime.conversation("k").history())[length:]
        assert said[0] == ("user", "hello")
        assert [text for role, text in said[1:]] == ([result.text] if result.text else [])
        assert await store.open_inbox("k") == []
        assert (await runtime.ask("k", "more")).text == "echo: more"
    assert len(agent.turns) == 2


@pytest.mark.parametrize("row", ["failed", "partial"])
async def test_300_characters_of_an_error_are_shown(start_with_store, row):
    result = TurnResult(failed=row == "failed", partial=row == "partial", error="x" * 10_000)
    _, build = scripted(result)
    async with start_with_store(build=build) as (store, runtime):
        reply = await runtime.ask("k", "hello")
        assert reply.text.count("x") == 300
        assert await outbox_texts(store, reply.turn_id) == [reply.text]


@with_threads
async def test_text_emitted_before_the_failure_is_kept(start_with_store):
    call = ToolCall("c1", "look")
    _, build = scripted([TextDelta("Let me see"), ToolStarted(call), RuntimeError("boom")])
    async with start_with_store(build=build) as (_, runtime):
        reply = await runtime.ask("k", "hello")
        assert reply.status == "failed"
        rows = await runtime.conversation("k").history()
        assert [row.role for row in rows] == ["user", "assistant", "tool"]
        assert (rows[1].content, rows[1].tool_calls) == ("Let me see", (call,))
        assert rows[2].tool_call_id == "c1"


# Agents that violate their protocol


class Returning:
    """An agent that returns or raises a value in its first turn."""

    def __init__(self, value):
        self.value = value
        self.runs = 0

    async def run(self, turn):
        await trio.lowlevel.checkpoint()
        self.runs += 1
        if self.runs > 1:
            return TurnResult(text="back to normal")
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value() if callable(self.value) else self.value


async def fails_alone(opened, agent, words=()):
    """Check that the first turn fails visibly and is kept, and that the second is normal.

    Returns the reply to the first.
    """
    async with opened as (store, runtime):
        with trio.fail_after(VIRTUAL_SECONDS):
            reply = await runtime.ask("k", "hello")
        assert reply.status == "failed"
        for each in ("/reset", *words):
            assert each in reply.text
        assert reply.error
        assert await outbox_texts(store, reply.turn_id) == [reply.text]
        assert texts_of(await runtime.conversation("k").history()) == [("user", "hello")]
        assert await store.open_inbox("k") == []
        assert agent.runs == 1
        again = await runtime.ask("k", "more")
        assert (again.text, again.build_reason) == ("back to normal", None)
        assert (again.session_id, again.status) == (reply.session_id, "complete")
    return reply


def check_reference(reply, error, caplog):
    """Check that the user gets a reference to an exception in the log, and nothing else of it."""
    assert reply.error_kind == type(error).__name__
    assert reply.error == f"{reply.error_kind} (reference {reply.reference})"
    assert reply.text == ENGLISH.unexpected.format(reference=reply.reference)
    [record] = [each for each in caplog.records if reply.reference in each.getMessage()]
    assert leaf(record.exc_info[1]) is error


class Speechless(Exception):
    """An exception that fails when it is printed."""

    def __str__(self):
        raise RuntimeError("no words")


RAISED = {
    "an error": RuntimeError("boom"),
    "the end of the program": SystemExit(3),
    "an assertion": AssertionError(),
    "a missing key": KeyError("model"),
    "no end in sight": RecursionError("too deep"),
    "an error of the store": StoreError("of its own"),
    "a deadline of its own": trio.TooSlowError(),
    "the end of an iteration": StopAsyncIteration(),
    "an error without a message": Speechless(),
}


@pytest.mark.parametrize("name", RAISED)
async def test_an_agent_that_raises_fails_its_turn_and_nothing_else(start_with_store, name, caplog):
    agent = Returning(RAISED[name])
    reply = await fails_alone(start_with_store(build=lambda _: agent), agent)
    check_reference(reply, RAISED[name], caplog)


async def test_a_raised_overflow_is_reported_as_an_overflow(start_with_store):
    agent = Returning(ContextOverflow("200,000 tokens"))
    await fails_alone(start_with_store(build=lambda _: agent), agent, OVERFLOW)


ESCAPING = {
    "asyncio's cancellation": asyncio.CancelledError(),
    "the end of the program in a task": BaseExceptionGroup("a nursery", [SystemExit(3)]),
    "asyncio's cancellation in a task": BaseExceptionGroup("…", [asyncio.CancelledError()]),
}


@pytest.mark.parametrize("name", ESCAPING)
async def test_an_agent_that_raises_a_base_exception_fails_its_turn_and_nothing_else(
    start_with_store, name
):
    agent = Returning(ESCAPING[name])
    await fails_alone(start_with_store(build=lambda _: agent), agent)


OVERFLOWS = {
    "of Hermes": ContextOverflow("much"),
    "of a provider": ValueError("400: maximum context length is 8192 tokens"),
}


@pytest.mark.parametrize("name", OVERFLOWS)
async def test_an_exception_that_says_that_it_is_an_overflow_is_one(start_with_store, name):
    agent = Returning(OVERFLOWS[name])
    reply = await fails_alone(start_with_store(build=lambda _: agent), agent, OVERFLOW)
    assert reply.error == f"{reply.error_kind} (reference {reply.reference})"


@with_threads
@pytest.mark.parametrize("error", [RuntimeError("boom"), ContextOverflow("much")])
async def test_an_error_of_a_child_task_is_reported_like_one_of_the_agent(
    start_with_store, error, caplog
):
    async def fail():
        raise error

    async def run(_):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)

    _, build = scripted(run)
    async with start_with_store(build=build) as (_, runtime):
        reply = await runtime.ask("k", "hello")
        assert (reply.status, reply.error_kind) == ("failed", type(error).__name__)
    if isinstance(error, ContextOverflow):
        assert reply.text == ENGLISH.overflow
    else:
        check_reference(reply, error, caplog)


RETURNED = {
    "nothing": None,
    "a number": 42,
    "a dict": {"text": "hi"},
    "a list": ["hi"],
    "bytes": b"hi",
    "a function": functools.partial(forever),
}


@pytest.mark.parametrize("name", RETURNED)
async def test_an_agent_that_returns_a_wrong_type_fails_its_turn_and_nothing_else(
    start_with_store, name
):
    agent = Returning(RETURNED[name])
    reply = await fails_alone(start_with_store(build=lambda _: agent), agent, ["reference"])
    assert reply.error_kind == "TypeError"


async def test_an_agent_may_return_a_text(start_with_store):
    async with start_with_store(build=lambda _: Returning("just words")) as (_, runtime):
        assert (await runtime.ask("k", "hello")).text == "just words"
        said = texts_of(await runtime.conversation("k").history())
        assert said == [("user", "hello"), ("assistant", "just words")]


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def answer(*rows, **fields):
    return TurnResult(text="ok", rows=list(rows), **fields)


def said(content="ok", timestamp=None, **fields):
    return Message("assistant", content, timestamp, **fields)


REFUSED = {
    "nested parts": answer(said(parts=({"type": "x", "value": nested(1000)},))),
    "nested data": answer(said(provider_data={"value": nested(1000)})),
    "data that is no JSON": answer(said(provider_data={"value": object()})),
    "no role": answer(Message(None, "ok")),
    "a time in words": answer(said(timestamp="yesterday")),
    "no tool calls": answer(said(tool_calls=None)),
    "a tool call in words": answer(said(tool_calls=("look",))),
    "a count in words": answer(said(token_count="many")),
    "no usage": TurnResult(text="ok", usage=None),
    "usage in words": TurnResult(text="ok", usage=[Usage(input_tokens="many")]),
    "a number for a session": TurnResult(text="ok", session_id=5),
    "a long id for a session": TurnResult(text="ok", session_id="x" * 1000),
    "an id that cannot be shown": TurnResult(text="ok", session_id="a\nb"),
    "the id of another conversation": TurnResult(text="ok", session_id="foreign"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_an_answer_that_cannot_be_stored_fails_its_turn_and_nothing_else(
    start_with_store, name
):
    agent = Returning(REFUSED[name])
    async with start_with_store() as (store, _):
        await store.create_session("foreign", "elsewhere")
    await fails_alone(start_with_store(build=lambda _: agent), agent)


async def test_the_cost_of_an_answer_is_recorded_even_if_it_cannot_be_stored(start_with_store):
    agent = Returning(answer(said(tool_calls=None), usage=[Usage(input_tokens=7)]))
    async with start_with_store(build=lambda _: agent) as (store, runtime):
        reply = await runtime.ask("k", "hello")
        calls = await store.get_usage(reply.session_id)
    assert reply.status == "failed"
    assert [call.input_tokens for call in calls] == [7]


UNFORESEEN = {
    "a number for a text": TurnResult(text=5),
    "an error for its text": TurnResult(failed=True, error=ValueError("boom")),
    "no number of calls": TurnResult(api_calls=None),
    "a number for rows": TurnResult(text="ok", rows=5),
    "rows as dicts": answer({"role": "assistant", "content": "ok"}),
    "no row": answer(None),
    "a list for a content": answer(said([{"type": "text", "text": "ok"}])),
    "a number for a content": answer(said(5)),
    "a text for a part": answer(said(None, parts=("ok",))),
    "nested arguments": answer(said(tool_calls=(ToolCall("c", "look", nested(100_000)),))),
    "usage as a dict": TurnResult(text="ok", usage=[{"input_tokens": 1}]),
    "more tokens than there are": TurnResult(text="ok", usage=[Usage(input_tokens=2**70)]),
}


@pytest.mark.parametrize("name", UNFORESEEN)
async def test_an_answer_of_another_kind_fails_its_turn_and_nothing_else(
    start_with_store, autojump_clock, name
):
    """The agent runs once: it may have had side effects."""
    agent = Returning(UNFORESEEN[name])
    await fails_alone(start_with_store(build=lambda _: agent), agent)


@pytest.mark.parametrize("event", [TextDelta(5), TextDelta(None), ToolStarted(None)], ids=repr)
async def test_an_event_of_a_wrong_type_fails_its_turn_and_nothing_else(
    start_with_store, autojump_clock, event
):
    agent, build = scripted([event, "fine"])
    async with start_with_store(build=build) as (_, runtime):
        reply = await runtime.ask("k", "hello")
        assert reply.status == "failed"
        assert (await runtime.ask("k", "more")).text == "echo: more"
    assert len(agent.turns) == 2


async def test_a_tool_call_as_a_dict_does_not_leave_the_caller_without_an_answer(
    start_with_store, autojump_clock
):
    call = {"id": "c", "name": "look", "arguments": "{}"}
    _, build = scripted(answer(said(tool_calls=(call,))))
    async with start_with_store(build=build) as (_, runtime):
        with trio.fail_after(VIRTUAL_SECONDS):
            await runtime.ask("k", "hello")
            assert (await runtime.ask("k", "more")).text == "echo: more"


async def test_lone_surrogates_are_replaced_before_they_are_stored(start_with_store):
    row = said("a\ud800b", reasoning="\udfff", tool_calls=(ToolCall("c", "look", '"\ud800"'),))
    _, build = scripted(TurnResult(text="a\ud800b", rows=[row]))
    async with start_with_store(build=build) as (store, runtime):
        reply = await runtime.ask("k", "h\ud800i")
        assert reply.status == "complete"
        [asked, answered] = await runtime.conversation("k").history()
        for text in (asked.content, answered.content, answered.reasoning):
            text.encode()
        answered.tool_calls[0].arguments.encode()
        for text in await outbox_texts(store, reply.turn_id):
            text.encode()
        assert (await runtime.ask("k", "more")).text == "echo: more"


async def test_an_agent_is_shown_the_stored_text_also_if_it_had_lone_surrogates(start_with_store):
    agent, build = scripted("a\ud800b")
    async with start_with_store(build=build) as (_, runtime):
        await runtime.ask("k", "h\ud800i")
        await runtime.ask("k", "more")
        stored = texts_of(await runtime.conversation("k").history())
        assert texts_of(agent.turns[1].history) == stored
        assert agent.turns[0].text.encode()


class Utf8Adapter(MemoryAdapter):
    """A platform whose messages are UTF-8."""

    async def send(self, row):
        row.body["text"].encode()
        await super().send(row)


async def test_a_lone_surrogate_does_not_block_a_chat(start_with_store, autojump_clock):
    adapter = Utf8Adapter("embedded")
    _, build = scripted("a\ud800b")
    async with start_with_store(build=build, adapters=[adapter]) as (_, runtime):
        await runtime.ask("k", "hello")
        await runtime.ask("k", "more")
        with trio.fail_after(VIRTUAL_SECONDS):
            await adapter.wait_sent(2)


BUILDERS = {"an error": RuntimeError("no key"), "the end of the program": SystemExit(3)}


@with_threads
@pytest.mark.parametrize("name", BUILDERS)
async def test_a_builder_that_fails_once_fails_one_turn(start_with_store, name):
    tries = []

    def build(_):
        tries.append(1)
        if len(tries) == 1:
            raise BUILDERS[name]
        return ScriptedAgent()

    async with start_with_store(build=build) as (_, runtime):
        reply = await runtime.ask("k", "hello")
        assert (reply.status, texts_of(await runtime.conversation("k").history())) == (
            "failed",
            [("user", "hello")],
        )
        assert (await runtime.ask("k", "more")).text == "echo: more"


async def test_a_builder_that_returns_nothing_once_fails_one_turn(start_with_store):
    built = [None, ScriptedAgent()]
    async with start_with_store(build=lambda _: built.pop(0)) as (_, runtime):
        assert (await runtime.ask("k", "hello")).status == "failed"
        assert (await runtime.ask("k", "more")).text == "echo: more"


class ExitsWhenClosed(ScriptedAgent):
    """An agent that raises SystemExit when it is closed."""

    async def aclose(self):
        raise SystemExit(3)


async def test_an_agent_that_raises_system_exit_when_closed_affects_nothing_else(start_with_store):
    async with start_with_store(build=lambda _: ExitsWhenClosed(), config=Config(max_agents=0)) as (
        _,
        runtime,
    ):
        await runtime.ask("k", "hello")
        await inspect(runtime).wait_idle("k")
        assert (await runtime.ask("k", "more")).text == "echo: more"


# A disk that is full for a while


@pytest.mark.parametrize("command", ["/new", "/status"])
@pytest.mark.sqlite_only("makes a COMMIT of SQLite fail")
async def test_a_command_that_failed_on_a_full_disk_is_answered_once_there_is_space(
    start_with_store, autojump_clock, command
):
    full, replies = [], []
    answered = trio.Event()

    async def ask():
        replies.append(await runtime.ask("k", command))
        answered.set()

    class Filling(Through):
        """A store whose disk is full after the command was accepted."""

        async def accept(self, inbound, **options):
            accepted = await self.store.accept(inbound, **options)
            if inbound.text == command:
                full.append(True)
            return accepted

    worker = inline(lambda: "full" if full else None)
    async with start_with_store(open_worker=worker, behind=Filling) as (_, runtime):
        await runtime.ask("k", "hello")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(5)
            assert full
            assert replies == []
            full.clear()
            with trio.move_on_after(VIRTUAL_SECONDS):
                await answered.wait()
            nursery.cancel_scope.cancel()
        assert [reply.status for reply in replies] == ["command"]
