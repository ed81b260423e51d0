"""The options of `ask` and `stream`."""

from __future__ import annotations

import functools
import inspect as python_inspect
import json
import logging
import re
import threading

import msgspec
import pytest
import trio

from hermes import (
    Config,
    Conversation,
    ExpiryPolicy,
    Inbound,
    Receipt,
    Runtime,
    Source,
    TextDelta,
    ToolCall,
    TurnResult,
)
from hermes.actors.admission.options import MessageOptions
from hermes.agents import Toolbox, blocking_agent, tool
from hermes.embed import AsyncioRuntime, BlockingRuntime
from hermes.errors import HermesError, ReplyTimeout, StoreFull
from hermes.events import Envelope, TurnStarted
from hermes.testing import inspect
from hermes.transcript.validate import MAX_METADATA
from tests.support.held_turns import HeldAgent, held_runtime
from tests.support.runtime import SECONDS

TENANT = {"tenant": "acme", "trace": {"id": 7, "sampled": True}}


# One signature


def options_of(verb):
    """The keyword-only parameters of a verb with their defaults."""
    return {
        name: parameter.default
        for name, parameter in python_inspect.signature(verb).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def test_ask_and_stream_have_the_same_options():
    expected = dict.fromkeys(MessageOptions.__annotations__) | {"commands": True}
    for owner in (Runtime, Conversation):
        assert options_of(owner.ask) == expected
        assert options_of(owner.stream) == {"interrupt_on_exit": False, **expected}


@pytest.mark.parametrize("host", [AsyncioRuntime, BlockingRuntime])
async def test_help_shows_the_options_in_every_host(start, host):
    async with start() as runtime:
        shown = str(python_inspect.signature(host(None, runtime).ask))
        assert "text: 'str' = ''" in shown
        assert "metadata: 'JsonObject | None' = None" in shown


async def test_a_message_needs_a_text_or_parts(start):
    async with start() as runtime:
        for options in ({}, {"parts": None}, {"parts": []}):
            with pytest.raises(ValueError, match=r"^the message is empty: pass a text, attach"):
                await runtime.ask("k", **options)
            with pytest.raises(ValueError, match="empty"):
                runtime.conversation("k").stream("", **options)
        assert await runtime.conversation("k").history() == []
        parts = [{"type": "text", "text": "look"}]
        await runtime.conversation("k").ask(parts=parts)
        assert list((await runtime.conversation("k").history())[0].parts) == parts


@pytest.mark.parametrize("seconds", ["1", -1, float("nan")])
async def test_a_wrong_timeout_is_refused_before_anything_is_stored(start, seconds):
    async with start() as runtime:
        with pytest.raises(ValueError, match="timeout is a number of seconds"):
            await runtime.ask("k", "hello", timeout=seconds)
        with pytest.raises(ValueError, match="timeout is a number of seconds"):
            runtime.stream("k", "hello", timeout=seconds)
        assert await runtime.conversation("k").history(include_waiting=True) == []


WRONG = [
    ({"text": None}, TypeError, "text must be a string, not None"),
    ({"text": 5}, TypeError, "text must be a string, not 5"),
    ({"text": b"bytes"}, TypeError, "text must be a string, not b'bytes'"),
    ({"session_key": None}, TypeError, "session_key must be a string, not None"),
    ({"session_key": 42}, TypeError, "session_key must be a string, not 42"),
    ({"event_id": 5}, TypeError, "event_id must be a string, not 5"),
    ({"event_id": ""}, ValueError, "event_id must not be empty; None means that there is none"),
    ({"event_id": "approval:1"}, ValueError, "event_id 'approval:1' is reserved: Hermes itself"),
    ({"source": "web"}, TypeError, "source must be a hermes.Source, not 'web'"),
    ({"source": ""}, TypeError, "source must be a hermes.Source, not ''"),
    ({"source": Source(thread_id=7)}, TypeError, "source.thread_id must be a string, not 7"),
    ({"parts": 5}, TypeError, "parts must be a list of dicts, not 5"),
    ({"parts": "text"}, TypeError, "parts must be a list of dicts, not 'text'"),
    ({"parts": [1]}, TypeError, "parts must be a list of dicts, not [1]"),
    ({"when_busy": ["steer"]}, ValueError, "when_busy is one of queue, interrupt"),
    ({"metadata": []}, ValueError, "metadata must be a dict of JSON values"),
    ({"timeout": True}, ValueError, "timeout is a number of seconds"),
]


@pytest.mark.parametrize(("wrong", "kind", "sentence"), WRONG, ids=[str(each[0]) for each in WRONG])
async def test_a_wrong_argument_is_refused_before_anything_is_stored(start, wrong, kind, sentence):
    arguments = {"session_key": "k", "text": "hello", **wrong}
    async with start() as runtime:
        with pytest.raises(kind, match=f"^{re.escape(sentence)}"):
            await runtime.ask(**arguments)
        with pytest.raises(kind, match=f"^{re.escape(sentence)}"):
            runtime.stream(**arguments)
        assert await runtime.admin.sessions() == []


RECEIPT = Receipt(1, "k", "s", 0, 0.0)
CALLS = {
    "submit": lambda r: r.submit("hello"),
    "submit without an id": lambda r: r.submit(Inbound("k", "", "hello")),
    "submit without a text": lambda r: r.submit(Inbound("k", "e", None)),
    "submit a part": lambda r: r.submit(Inbound("k", "e", "", parts=("hello",))),
    "submit metadata": lambda r: r.submit(Inbound("k", "e", "hello", metadata=[])),
    "submit a platform's id": lambda r: r.submit(Inbound("k", "e", "a", platform_message_id=5)),
    "wait": lambda r: r.wait("1"),
    "wait for text": lambda r: r.wait(RECEIPT, timeout="5"),
    "wait a negative time": lambda r: r.wait(RECEIPT, timeout=-5),
    "withdraw": lambda r: r.withdraw(1),
    "is_answered": lambda r: r.is_answered(None),
    "reply_of": lambda r: r.reply_of("k", 5),
    "reply_of nothing": lambda r: r.reply_of("k", ""),
    "reply_of a key": lambda r: r.reply_of(None, "e"),
    "reply_of a source": lambda r: r.reply_of("k", "e", source="web"),
    "post": lambda r: r.post("k", None),
    "post to a key": lambda r: r.post(5, "hello"),
    "post to a source": lambda r: r.post("k", "hello", source="web"),
    "conversation": lambda r: r.conversation(None),
    "conversation and source": lambda r: r.conversation("k", source="web"),
    "steer": lambda r: r.conversation("k").steer(None),
    "subscribe": lambda r: r.subscribe(5),
    "follow": lambda r: r.follow(None),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_verbs_refuse_wrong_arguments_in_one_sentence(start, call):
    async with start() as runtime:
        with pytest.raises((TypeError, ValueError), match=r"must|is a number of seconds"):
            await call(runtime)
        assert await runtime.admin.sessions() == []


async def test_a_wrong_way_to_handle_a_busy_conversation_is_refused_by_name(start):
    async with start() as runtime:
        with pytest.raises(ValueError, match="when_busy is one of queue, interrupt, steer, reject"):
            await runtime.ask("k", "hello", when_busy="later")
        assert (await runtime.ask("k", "hello", when_busy="queue")).status == "complete"


async def test_steering_with_a_text_that_looks_like_a_command_is_no_command(start):
    async with start() as runtime:
        await runtime.wait(await runtime.conversation("k").steer("/new please look"))
        [said, _] = await runtime.conversation("k").history()
        assert said.content == "/new please look"


@pytest.mark.parametrize("command", ["/undo {}", "/resume {}", "/compress here {}"])
async def test_a_number_of_any_length_is_no_error_of_python(start, command):
    async with start() as runtime:
        await runtime.ask("k", "hello")
        assert "digits" not in (await runtime.ask("k", command.format("9" * 5000))).text


async def test_an_unknown_option_is_refused_by_name(start):
    async with start() as runtime:
        with pytest.raises(TypeError, match="'bsuy' is not an option"):
            await runtime.ask("k", "hello", bsuy="steer")


# Commands as texts


async def test_with_commands_false_a_command_is_a_text(start):
    async with start() as runtime:
        reply = await runtime.ask("k", "/new start", commands=False)
        assert (reply.status, reply.text) == ("complete", "echo: /new start")
        async with runtime.conversation("k").stream("/stop", commands=False) as stream:
            assert [event async for event in stream][-1].reply.text == "echo: /stop"
        assert (await runtime.ask("k", "/status")).status == "command"


# Timeouts


async def test_a_caller_can_limit_its_wait_and_the_message_is_answered_anyway(
    start, autojump_clock
):
    async with held_runtime(start) as here:
        with pytest.raises(ReplyTimeout, match="within 5 seconds") as raised:
            await here.runtime.ask("k", "one", timeout=5)
        assert isinstance(raised.value, HermesError)
        assert isinstance(raised.value, TimeoutError)
        receipt = raised.value.receipt
        assert not await here.runtime.is_answered(receipt)
        assert inspect(here.runtime).waiting_callers == 0
        here.agent.release(0)
        await inspect(here.runtime).wait_idle("k")
        assert await here.runtime.is_answered(receipt)
        assert await here.history() == [("user", "one"), ("assistant", "answer 0")]


async def test_a_stream_can_have_a_timeout(start, autojump_clock):
    async def speak(turn):
        turn.emit(TextDelta("a"))
        await trio.sleep_forever()

    async with held_runtime(start, HeldAgent(turn0=speak)) as here:
        texts = []
        async with here.runtime.stream("k", "one", timeout=5, interrupt_on_exit=True) as stream:
            with pytest.raises(ReplyTimeout) as raised:
                async for event in stream:
                    texts += [event.text] if isinstance(event, TextDelta) else []
            assert raised.value.receipt == stream.receipt
        assert texts == ["a"]
        await inspect(here.runtime).wait_idle("k")
        assert await here.history() == [("user", "one"), ("assistant", "a")]


async def test_a_reply_within_the_timeout_is_returned(start):
    async with start() as runtime:
        assert (await runtime.ask("k", "one", timeout=SECONDS)).text == "echo: one"
        async with runtime.stream("k", "two", timeout=SECONDS) as stream:
            assert [event async for event in stream][-1].reply.text == "echo: two"


# Metadata


async def test_metadata_reaches_the_turn_the_events_and_the_reply(start):
    seen = []

    async def reply(turn):
        seen.append(turn.metadata)
        return "done"

    async with start(agent=reply) as runtime:
        async with runtime.stream("k", "one", metadata=TENANT) as stream:
            events = [event async for event in stream]
        [started] = [event for event in events if isinstance(event, TurnStarted)]
        ended = events[-1]
        assert seen == [TENANT]
        assert started.metadata == ended.metadata == ended.reply.metadata == TENANT
        assert (await runtime.ask("k", "two")).metadata == {}
        assert (await runtime.ask("k", "/status", metadata=TENANT)).metadata == TENANT
        again = Envelope(1, "k", 1, ended)
        assert read_back(again) == again


def read_back(envelope):
    return msgspec.json.decode(msgspec.json.encode(envelope), type=Envelope)


async def test_metadata_is_stored_with_the_message_and_survives_a_restart(start):
    async with held_runtime(start) as here:
        await here.runtime.submit(Inbound("k", "e", "one", metadata=TENANT))
        await here.agent.wait_started()
        await here.runtime.drain(0)
    seen = []

    async def reply(turn):
        seen.append(turn.metadata)
        return "done"

    async with start(agent=reply) as runtime:
        await inspect(runtime).wait_idle("k")
    assert seen == [TENANT]


async def test_in_a_merged_turn_the_last_value_of_a_name_counts(start):
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        first = await here.send("two", metadata={"tenant": "a", "trace": 1})
        second = await here.send("three", metadata={"trace": 2})
        here.agent.release(0)
        turn = await here.agent.wait_started(1)
        merged = {"tenant": "a", "trace": 2}
        assert turn.metadata == merged
        here.agent.release(1)
        assert (await first.wait()).metadata == (await second.wait()).metadata == merged


async def test_messages_that_a_command_cancels_keep_their_metadata(start):
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        queued = await here.send("two", metadata={"trace": 2})
        stop = await here.runtime.ask("k", "/stop", metadata={"trace": 3})
        assert stop.metadata == {"trace": 3}
        assert (await queued.wait()).metadata == {"trace": 2}


async def test_metadata_reaches_the_hooks_of_a_command(start):
    found = []

    def recorded(name):
        async def hook(session_id, platform, metadata):
            found.append((name, metadata))

        return [hook]

    events = ("on_session_finalize", "on_session_reset", "on_session_switch")
    hooks = {name: recorded(name) for name in events}
    async with start(hooks=hooks) as runtime:
        old = (await runtime.ask("k", "one")).session_id
        await runtime.ask("k", "/new", metadata=TENANT)
        await runtime.ask("k", f"/resume {old}", metadata={"trace": 2})
        await runtime.conversation("k").new()
        await runtime.conversation("k").switch(old)
        await runtime.ask("k", "/branch", metadata={"trace": 3})
        await runtime.wait_hooks()
    assert ("on_session_switch", {"trace": 3}) in found
    assert found[:3] == [
        ("on_session_finalize", TENANT),
        ("on_session_reset", TENANT),
        ("on_session_switch", {"trace": 2}),
    ]
    assert found[3:5] == [("on_session_finalize", {}), ("on_session_reset", {})]


async def test_metadata_of_the_message_that_finds_a_session_expired_reaches_the_hooks(start, world):
    found = []

    async def finalized(session_id, platform, metadata):
        found.append(metadata)

    hooks = {"on_session_finalize": [finalized]}
    config = Config(expiry=ExpiryPolicy(mode="idle", idle_minutes=1))
    async with start(hooks=hooks, config=config) as runtime:
        await runtime.ask("k", "one")
        world.pass_time(120)
        await runtime.ask("k", "two", metadata=TENANT)
        await runtime.wait_hooks()
        assert found == [TENANT]


async def test_metadata_is_part_of_the_log_line_of_a_failed_turn(start, caplog):
    async def fail(turn):
        raise OSError("broken")

    async with start(agent=fail) as runtime:
        await runtime.ask("k", "one", metadata=TENANT)
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.metadata == TENANT


async def test_metadata_is_part_of_the_log_lines_of_a_failing_tool(start_proxy, caplog):
    def broken():
        raise OSError("broken")

    async def full(*_, **__):
        raise StoreFull("the disk is full")

    toolbox = Toolbox([tool()(broken), tool(once=True, name="once")(broken)])

    class Agent:
        async def run(self, turn):
            for name in ("broken", "once"):
                await toolbox.run(ToolCall("c", name, "{}"), turn)
            turn.records = None
            await toolbox.run(ToolCall("c", "once", "{}"), turn)
            return TurnResult(text="done")

    async with start_proxy(lambda _: Agent(), end_once=full) as runtime:
        await runtime.ask("k", "one", metadata=TENANT)
    async with start_proxy(lambda _: Agent(), begin_once=full) as runtime:
        await runtime.ask("k", "two", metadata=TENANT)
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.metadata for record in said] == [TENANT] * len(said)
    assert {record.msg.partition(" %s ")[2] for record in said} == {
        "failed in turn %d",
        "was not recorded: %s",
        "could not be recorded: %s",
        "needs a store to record its calls",
    }


async def test_metadata_is_part_of_the_log_lines_of_failing_hooks(start, caplog, autojump_clock):
    async def fail(session_id, platform):
        raise OSError("broken")

    async def hang(session_id, platform):
        await trio.sleep_forever()

    async with start(hooks={"on_session_reset": [fail, hang]}) as runtime:
        await runtime.ask("k", "one")
        await runtime.ask("k", "/new", metadata=TENANT)
        await runtime.wait_hooks()
    failed, late = (record for record in caplog.records if record.levelno >= logging.WARNING)
    assert (failed.levelno, late.levelno) == (logging.ERROR, logging.WARNING)
    assert failed.metadata == late.metadata == TENANT


async def test_metadata_is_part_of_the_log_lines_of_an_abandoned_turn(start, caplog):
    caplog.set_level(logging.INFO)
    begun, release, ended = trio.Event(), threading.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    def hang(turn):
        token.run_sync_soon(begun.set)
        release.wait(SECONDS)
        ended.set()
        return "late"

    agents = blocking_agent(hang, grace_period=0)
    async with start(build_agent=agents) as runtime, trio.open_nursery() as nursery:
        nursery.start_soon(functools.partial(runtime.ask, "k", "one", metadata=TENANT))
        await begun.wait()
        await runtime.conversation("k").interrupt()
        await inspect(runtime).wait_idle("k")
        release.set()
        while agents.statistics().abandoned:
            await trio.to_thread.run_sync(ended.wait)
    said = [record for record in caplog.records if "abandoned" in record.msg]
    assert [record.levelno for record in said] == [logging.WARNING, logging.INFO]
    assert [record.metadata for record in said] == [TENANT, TENANT]


@pytest.mark.parametrize(
    "metadata",
    [
        {"large": "x" * MAX_METADATA},
        {"a": object()},
        {1: "a"},
        {"a": float("nan")},
        ["a"],
        "text",
        {"a": (1, 2)},
        json.loads('{"a":' * 200 + "1" + "}" * 200),
    ],
)
async def test_metadata_that_cannot_be_stored_is_refused(start, metadata):
    async with start() as runtime:
        with pytest.raises(ValueError, match="metadata must be a dict of JSON values, of at most"):
            await runtime.ask("k", "one", metadata=metadata)
        with pytest.raises(ValueError, match="metadata must be"):
            await runtime.submit(Inbound("k", "e", "one", metadata=metadata))
        assert await runtime.conversation("k").history() == []


async def test_an_agent_in_a_thread_sees_the_metadata(start):
    seen = []

    def reply(turn):
        seen.append(turn.metadata)
        return TurnResult(text="done")

    async with start(build_agent=blocking_agent(reply)) as runtime:
        await runtime.ask("k", "one", metadata=TENANT)
    assert seen == [TENANT]
