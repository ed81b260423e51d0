"""Tools in a real runtime: a call runs once, and an approval is valid for exactly one call."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from hermes import CompressionConfig, Config, ExpiryPolicy, Inbound, Source, ToolCall
from hermes.actors.commands import COMMANDS
from hermes.agents.tools.toolbox import Toolbox, tool
from hermes.errors import ContextOverflow, StoreBusy
from hermes.events import ApprovalAsked, ToolFinished, ToolStarted, TurnEnded
from hermes.messages import TurnResult
from hermes.testing import DeterministicCompressor, MemoryAdapter, ScriptedAgent, inspect
from tests.support.processes import foreign
from tests.support.runtime import SECONDS, with_threads

ROOT = Path(__file__).parents[2]
HOUR = 3600.0
_APPROVED = re.compile(r"one call of (\S+), with exactly these arguments: (.*)\n")
_PLAIN = re.compile(r"(\S+) (.*)")


@pytest.fixture
def start(start):
    """Open a runtime, with a time limit."""

    @asynccontextmanager
    async def opened(**options):
        with trio.fail_after(SECONDS):
            async with start(**options) as runtime:
                yield runtime

    return opened


class Caller:
    """An agent that makes the tool call in a user's message or in an approval."""

    def __init__(self, toolbox):
        self.toolbox = toolbox
        self.turns = []

    async def run(self, turn):
        self.turns.append(turn)
        contents = []
        for number, message in enumerate(turn.input):
            if "has refused" in message.content:
                return TurnResult(text="what a pity")
            found = _APPROVED.search(message.content) or _PLAIN.fullmatch(message.content)
            call = ToolCall(f"c{number}", found[1], found[2])
            turn.emit(ToolStarted(call))
            ran = await self.toolbox.run(call, turn)
            turn.emit(ToolFinished(call.id, ran.content, ran.failed))
            contents.append(ran.content)
        return TurnResult(text="\n".join(contents))


class Post:
    """Tools with a side effect, which is recorded in `sent`."""

    def __init__(self, **options):
        self.sent = []
        self.began = trio.Event()
        self.held = False

        async def send(to: str, text: str = "hi") -> str:
            """Send something."""
            self.sent.append((to, text))
            self.began.set()
            if self.held:
                await trio.sleep_forever()
            return f"sent to {to}"

        self.toolbox = Toolbox(
            [
                tool(name="once", once=True)(send),
                tool(name="ask", approval=True)(send),
                tool(name="send")(send),
            ],
            **options,
        )

    @property
    def build(self):
        return lambda _: Caller(self.toolbox)


async def ended(events):
    """Wait for the end of the next turn that is not a command; returns its reply."""
    async for envelope in events:
        if isinstance(envelope.event, TurnEnded) and envelope.event.reply.status != "command":
            return envelope.event.reply
    raise AssertionError("the runtime has ended")


async def say(runtime, text, key="k"):
    return (await runtime.ask(key, text)).text


async def approve(runtime, command="/approve 1", key="k", then="k"):
    """Approve or deny a call; returns the answer, and the reply of the turn that follows."""
    with runtime.subscribe(then) as events:
        answer = await say(runtime, command, key)
        return answer, (await ended(events)).text


def asked(number):
    return (
        "ask was not run: it needs the user's approval. Ask the user to reply "
        f"/approve {number} (or /deny {number}), and end your turn now; "
        "do not call it again before that."
    )


def decided(word, to):
    return f'{word}: `ask` with\n```\n{{"to":"{to}"}}\n```'


UNKNOWN_OUTCOME = (
    "This call of {} was started before, and then the process ended. It is unknown whether it "
    "took effect; it is not run again."
)


# Once


@with_threads
async def test_an_interrupted_once_tool_is_not_run_again_and_the_model_gets_a_note(start, path):
    post, again = Post(), Post()
    post.held = True
    async with start(build_agent=post.build, config=Config(drain_timeout=0)) as runtime:
        await runtime.submit(Inbound("k", "e", 'once {"to": "a"}'))
        await post.began.wait()
    assert foreign(path, "SELECT turn_id, tool, arguments, ordinal, result FROM once_calls") == [
        [1, "once", '{"to":"a"}', 0, None]
    ]
    caller = Caller(again.toolbox)
    async with start(build_agent=lambda _: caller) as runtime:
        with runtime.subscribe("k") as events:
            assert (await ended(events)).text == UNKNOWN_OUTCOME.format("once")
        assert [turn.turn_id for turn in caller.turns] == [1]
        assert (post.sent, again.sent) == ([("a", "hi")], [])
        # A new request is another call.
        assert await say(runtime, 'once {"to": "a"}') == "sent to a"
    assert foreign(path, "SELECT count(*) FROM once_calls") == [[0]]


@pytest.mark.parametrize("result", ["sent to a", "failed"])
async def test_a_once_tool_that_had_ended_returns_its_recorded_result(start, result):
    done, runs = trio.Event(), []

    async def send(to: str) -> str:
        runs.append(to)
        if result == "failed":
            raise ValueError("no such address")
        return result

    toolbox = Toolbox([tool(once=True)(send)])

    async def call(turn):
        ran = await toolbox.run(ToolCall("c", "send", turn.text), turn)
        if not done.is_set():
            done.set()
            await trio.sleep_forever()
        return TurnResult(text=f"{ran.content} {ran.failed}")

    agent = ScriptedAgent([call, call])
    async with start(build_agent=lambda _: agent, config=Config(drain_timeout=0)) as runtime:
        await runtime.submit(Inbound("k", "e", '{"to": "a"}'))
        await done.wait()
    async with start(build_agent=lambda _: agent) as runtime:
        with runtime.subscribe("k") as events:
            told = (await ended(events)).text
    assert runs == ["a"]
    failed = "send failed: ValueError: no such address True"
    assert told == (failed if result == "failed" else "sent to a False")


async def test_the_same_call_twice_in_a_turn_is_two_calls_each_made_once(start):
    """The second run makes three calls, of which two were made before."""
    stopped, runs = trio.Event(), []

    async def count() -> int:
        runs.append(None)
        return len(runs)

    toolbox = Toolbox([tool(once=True)(count)])

    async def twice(turn):
        async with trio.open_nursery() as nursery:
            for n in range(2):
                nursery.start_soon(toolbox.run, ToolCall(f"c{n}", "count"), turn)
        stopped.set()
        await trio.sleep_forever()

    async def thrice(turn):
        ran = [await toolbox.run(ToolCall(f"c{n}", "count"), turn) for n in range(3)]
        return TurnResult(text=" ".join(each.content for each in ran))

    agent = ScriptedAgent([twice, thrice])
    async with start(build_agent=lambda _: agent, config=Config(drain_timeout=0)) as runtime:
        await runtime.submit(Inbound("k", "e", "count"))
        await stopped.wait()
    async with start(build_agent=lambda _: agent) as runtime:
        with runtime.subscribe("k") as events:
            told = (await ended(events)).text
    assert sorted(told.split()) == ["1", "2", "3"]
    assert told.split()[-1] == "3"
    assert len(runs) == 3


async def test_a_turn_that_overflows_and_runs_again_makes_no_call_twice(start):
    runs = []

    async def send() -> str:
        runs.append(None)
        return f"sent {len(runs)}"

    toolbox = Toolbox([tool(once=True)(send)])

    async def call(turn):
        ran = await toolbox.run(ToolCall("c", "send"), turn)
        if len(agent.turns) == 7:
            raise ContextOverflow("too long")
        return TurnResult(text=ran.content)

    agent = ScriptedAgent([*["x" * 2000] * 6, call, call])
    async with start(
        build_agent=lambda _: agent,
        compressor=DeterministicCompressor(),
        config=Config(compression=CompressionConfig(window=8000, max_output=4000)),
    ) as runtime:
        for n in range(6):
            await runtime.ask("k", f"{n} " + "y" * 2000)
        reply = await runtime.ask("k", "send it")
    assert len(agent.turns) == 8
    assert agent.turns[6].turn_id == agent.turns[7].turn_id
    assert (reply.text, len(runs)) == ("sent 1", 1)


@pytest.mark.parametrize(("name", "verb"), [("once", "begin_once"), ("ask", "ask_approval")])
async def test_a_call_that_cannot_be_recorded_is_not_made(start_proxy, name, verb):
    async def fail(real, *args, **kwargs):
        raise StoreBusy("another process holds the database")

    post = Post()
    async with start_proxy(build_agent=post.build, **{verb: fail}) as runtime:
        told = await say(runtime, name + ' {"to": "a"}')
    assert told == (
        f"{name} was not run: the call could not be recorded (another process holds the database)."
    )
    assert post.sent == []


async def test_a_result_that_cannot_be_recorded_is_still_returned(start_proxy):
    async def fail(real, *args, **kwargs):
        raise StoreBusy("busy")

    post = Post()
    async with start_proxy(build_agent=post.build, end_once=fail) as runtime:
        assert await say(runtime, 'once {"to": "a"}') == "sent to a"
    assert post.sent == [("a", "hi")]


async def test_a_result_is_recorded_although_the_turn_is_being_stopped(start_proxy):
    """The turn is cancelled after the tool has ended."""
    ending, stopped, recorded = trio.Event(), trio.Event(), []

    async def slowly(real, call):
        ending.set()
        await stopped.wait()
        recorded.append(call.result)
        return await real(call)

    post = Post()
    with trio.fail_after(SECONDS):
        async with start_proxy(build_agent=post.build, end_once=slowly) as runtime:
            await runtime.submit(Inbound("k", "e", 'once {"to": "a"}'))
            await ending.wait()
            await runtime.conversation("k").interrupt()
            await trio.testing.wait_all_tasks_blocked()
            stopped.set()
    assert recorded == ["sent to a"]


# Interrupted


async def test_an_interrupt_stops_a_running_tool_and_the_conversation_continues(start, path):
    post = Post()
    post.held = True
    async with start(build_agent=post.build) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(say, runtime, 'once {"to": "a"}')
            await post.began.wait()
            await runtime.conversation("k").interrupt()
        rows = await runtime.conversation("k").history()
        assert [(row.role, row.content) for row in rows] == [
            ("user", 'once {"to": "a"}'),
            ("assistant", None),
            ("tool", "[interrupted before it answered]"),
        ]
        assert foreign(path, "SELECT count(*) FROM once_calls") == [[0]]
        post.held = False
        assert await say(runtime, 'once {"to": "b"}') == "sent to b"


@with_threads
async def test_an_interrupt_does_not_wait_for_a_blocking_tool(start):
    gate, began = threading.Event(), threading.Event()

    def block() -> str:
        began.set()
        gate.wait(SECONDS)
        return "late"

    toolbox = Toolbox([block])
    async with start(build_agent=lambda _: Caller(toolbox)) as runtime:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(say, runtime, "block {}")
                await trio.to_thread.run_sync(began.wait, SECONDS)
                await runtime.conversation("k").interrupt()
            assert (await runtime.conversation("k").history())[
                -1
            ].content == "[interrupted before it answered]"
        finally:
            gate.set()
        assert await say(runtime, "block {}") == "late"


# Approval


@with_threads
async def test_a_call_is_made_once_it_is_approved_and_only_once(start):
    post, adapter = Post(), MemoryAdapter("embedded")
    async with start(build_agent=post.build, adapters=[adapter]) as runtime:
        assert await say(runtime, 'ask {"to": "a"}') == asked(1)
        assert post.sent == []
        answer, told = await approve(runtime)
        assert answer == decided("Approved", "a")
        assert told == "sent to a"
        assert post.sent == [("a", "hi")]
        assert (await say(runtime, 'ask {"to": "a"}')).endswith(asked(2))
        await adapter.wait_sent(6)
    question = (
        'May `ask` run with this?\n```\n{"to":"a"}\n```\n'
        "Reply /approve {0} to allow it once, /approve always {0} for this tool here, or /deny {0}."
    )
    assert adapter.texts == [
        question.replace("{0}", "1"), asked(1), answer, told,
        question.replace("{0}", "2"), asked(2),
    ]  # fmt: skip
    assert post.sent == [("a", "hi")]


async def test_subscribers_are_notified_of_a_call_that_needs_approval(start):
    async with start(build_agent=Post().build) as runtime:
        async with runtime.stream("k", 'ask {"to": "a"}') as stream:
            events = [event async for event in stream]
        [approval] = [event.approval for event in events if isinstance(event, ApprovalAsked)]
        assert (approval.tool, approval.arguments) == ("ask", '{"to":"a"}')
        assert approval.state == "pending"


async def test_an_approval_is_for_exactly_its_arguments_however_they_are_written(start):
    post = Post()
    async with start(build_agent=post.build) as runtime:
        await say(runtime, 'ask {"to": "a", "text": "one"}')

        async def tempted(turn):
            other = await post.toolbox.run(ToolCall("x", "ask", '{"to":"a","text":"two"}'), turn)
            right = await post.toolbox.run(ToolCall("y", "ask", '{ "text":"one", "to":"a"}'), turn)
            third = await post.toolbox.run(ToolCall("z", "ask", '{"to":"a","text":"one"}'), turn)
            return TurnResult(text=f"{other.content}|{right.content}|{third.content}")

        runtime.conversation("k").snapshot().agent.run = tempted
        _, told = await approve(runtime)
        assert told.startswith("May `ask` run with this?")
        assert told.endswith(f"\n\n{asked(2)}|sent to a|{asked(3)}")
    assert post.sent == [("a", "one")]


@with_threads
async def test_an_approval_survives_a_restart_before_and_after_it_is_given(start):
    first, second, third = Post(), Post(), Post()
    async with start(build_agent=first.build) as runtime:
        await say(runtime, 'ask {"to": "a"}')
    second.held = True
    async with start(build_agent=second.build, config=Config(drain_timeout=0)) as runtime:
        assert await say(runtime, "/approve") == decided("Approved", "a")
        await second.began.wait()
    caller = Caller(third.toolbox)
    async with start(build_agent=lambda _: caller) as runtime:
        with runtime.subscribe("k") as events:
            # It was started, so it is not run again, and the user is not asked again.
            assert (await ended(events)).text == UNKNOWN_OUTCOME.format("ask")
        assert await say(runtime, "/approve 1") == "Call 1 was approved and has run."
        assert await say(runtime, "/approve") == "There is no tool call to decide about."
    assert (first.sent, second.sent, third.sent) == ([], [("a", "hi")], [])


@pytest.mark.parametrize("point", ["before", "after"])
async def test_a_process_that_is_killed_around_a_decision_loses_nothing(
    start, start_proxy, path, point
):
    reached = trio.Event()

    async def die(real, *args, **kwargs):
        if point == "after":
            await real(*args, **kwargs)
        reached.set()
        await trio.sleep_forever()

    post, again = Post(), Post()
    async with start_proxy(
        build_agent=post.build, config=Config(drain_timeout=0), decide_approval=die
    ) as runtime:
        await say(runtime, 'ask {"to": "a"}')
        await runtime.submit(Inbound("k", "the command", "/approve 1", command=True))
        await reached.wait()
    states = "SELECT (SELECT state FROM approvals), (SELECT state FROM inbox WHERE id = 2)"
    before = [["pending", "open"]] if point == "before" else [["approved", "done"]]
    assert foreign(path, states) == before
    async with start(build_agent=again.build) as runtime:
        with runtime.subscribe("k") as events:
            assert (await ended(events)).text == "sent to a"
    assert (post.sent, again.sent) == ([], [("a", "hi")])
    assert foreign(path, states) == [["used", "done"]]
    said = "SELECT count(*) FROM outbox WHERE body LIKE '%Approved: `ask`%'"
    assert foreign(path, said) == [[1]]
    events = "SELECT count(*) FROM inbox WHERE event_id = 'approval:1'"
    assert foreign(path, events) == [[1]]


PROGRAM = """
import os, sys
import trio
from hermes import ToolCall, TurnResult, open_runtime
from hermes.agents.tools import Toolbox, tool

@tool(approval=True)
async def send(to: str) -> str:
    os.write(1, b"sending\\n")
    await trio.sleep_forever()

toolbox = Toolbox([send])

async def agent(turn):
    ran = await toolbox.run(ToolCall("c", "send", '{"to": "a"}'), turn)
    return TurnResult(text=ran.content)

async def main():
    async with open_runtime(sys.argv[1], agent=agent) as runtime:
        await runtime.ask("k", "send it")
        await runtime.ask("k", "/approve 1")
        await trio.sleep_forever()

trio.run(main)
"""


async def test_a_process_that_is_killed_while_an_approved_tool_runs_does_not_run_it_twice(
    path, start
):
    def killed():
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(path)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with child:
            said = child.stdout.readline()
            child.kill()
            assert said == "sending\n", child.stderr.read()
        assert child.returncode == -signal.SIGKILL

    await trio.to_thread.run_sync(killed)
    sent = []

    async def send(to: str) -> None:
        sent.append(to)

    toolbox = Toolbox([tool(approval=True)(send)])
    async with start(build_agent=lambda _: Caller(toolbox), clock=None) as runtime:
        with runtime.subscribe("k") as events:
            assert (await ended(events)).text == UNKNOWN_OUTCOME.format("send")
    assert sent == []


async def test_questions_and_approvals_expire(start, world):
    post = Post()
    async with start(build_agent=post.build) as runtime:
        await say(runtime, 'ask {"to": "a"}')
        world.pass_time(HOUR)
        told = await say(runtime, "/approve 1")
        assert told == "Call 1 has expired; ask for it again."
        assert await say(runtime, "/deny") == "There is no tool call to decide about."
        assert (await say(runtime, 'ask {"to": "a"}')).endswith(asked(2))
    assert post.sent == []


async def test_the_toolbox_decides_how_long_a_question_stays_open(start, world):
    post = Post(approval_timeout=60)
    async with start(build_agent=post.build) as runtime:
        await say(runtime, 'ask {"to": "a"}')
        world.pass_time(60)
        assert "expired" in await say(runtime, "/approve 1")


async def test_users_cannot_decide_for_each_other(start):
    post = Post()
    async with start(build_agent=post.build) as runtime:
        await say(runtime, 'ask {"to": "a"}', key="ann")
        for command in ("/approve 1", "/deny 1"):
            told = await say(runtime, command, key="bob")
            assert told == "There is no pending call 1 here."
        assert await say(runtime, "/approve", key="bob") == "There is no tool call to decide about."
        assert (await say(runtime, 'ask {"to": "a"}', key="bob")).endswith(asked(2))
        assert (await approve(runtime, key="ann", then="ann"))[1] == "sent to a"
        assert (await say(runtime, 'ask {"to": "a"}', key="bob")).endswith(asked(2))
    assert post.sent == [("a", "hi")]


async def test_a_denied_call_is_not_made(start):
    post = Post()
    async with start(build_agent=post.build) as runtime:
        await say(runtime, 'ask {"to": "a"}')
        told = await approve(runtime, "/deny")
        assert told == (decided("Denied", "a"), "what a pity")
        assert await say(runtime, "/deny 1") == "You have already denied call 1."
        assert await say(runtime, "/approve 1") == "You have already denied call 1."
        assert (await say(runtime, 'ask {"to": "a"}')).endswith(asked(2))
        assert [row.content for row in await runtime.conversation("k").history()][4:6] == [
            '[The user has refused one call of ask, with exactly these arguments: {"to":"a"}\n'
            "It was not made. Do not ask for it again unless the user does; "
            "say how you go on without it.]",
            "what a pity",
        ]
    assert post.sent == []


async def test_the_answers_of_approve_and_deny(start):
    post = Post()
    async with start(build_agent=post.build) as runtime:
        for command in ("/approve", "/deny"):
            assert await say(runtime, command) == "There is no tool call to decide about."
            told = await say(runtime, f"{command} 7")
            assert told == "There is no pending call 7 here."
            assert (await say(runtime, f"{command} it")).startswith(f"Usage: {command} [number")
            told = await say(runtime, f"{command} {'9' * 40}")
            assert told.startswith("There is no pending call 9")
        for n in (1, 2):
            await say(runtime, f'ask {{"to": "{n}"}}')
        assert (await approve(runtime, "/approve 2"))[0] == decided("Approved", "2")
        assert await say(runtime, "/approve 2") == "Call 2 was approved and has run."
        assert (await approve(runtime, "/approve"))[0] == decided("Approved", "1")
    assert [to for to, _ in post.sent] == ["2", "1"]


async def test_an_approved_call_that_was_not_made_yet_is_reported_as_such(start):
    async def forget(turn):
        return TurnResult(text="what?")

    post = Post()
    caller = Caller(post.toolbox)
    async with start(build_agent=lambda _: caller) as runtime:
        await say(runtime, 'ask {"to": "a"}')
        caller.run = forget
        assert (await approve(runtime))[1] == "what?"
        assert await say(runtime, "/approve 1") == "You have already approved call 1."


async def test_a_decision_waits_for_the_running_turn(start):
    post = Post()
    async with start(build_agent=post.build) as runtime:
        await say(runtime, 'ask {"to": "a"}')
        post.held = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(say, runtime, 'send {"to": "b"}')
            await post.began.wait()
            with runtime.subscribe("k") as events:
                await runtime.submit(Inbound("k", "e", "/approve", command=True))
                post.held = False
                await runtime.conversation("k").interrupt()
                assert (await ended(events)).status == "interrupted"
                assert (await ended(events)).text == "sent to a"


async def test_a_decision_extends_the_conversation_like_any_message(start, world):
    post = Post()
    idle = Config(expiry=ExpiryPolicy(mode="idle", idle_minutes=100), drain_timeout=0)
    async with start(build_agent=post.build, config=idle) as runtime:
        await say(runtime, 'ask {"to": "a"}')
        world.pass_time(60)
        post.held = True
        await say(runtime, "/approve")
        await post.began.wait()
        route = await inspect(runtime).store.get_route("k")
        assert route.expires_at == world.now + 6000


@with_threads
async def test_a_question_of_a_background_task_is_decided_in_the_chat(start):
    post, adapter = Post(), MemoryAdapter("memory")
    async with start(build_agent=post.build, adapters=[adapter]) as runtime:
        source = Source("memory", chat_id="c")

        async def tell(text):
            return (await runtime.ask("k", text, source=source)).text

        with runtime.subscribe() as events:
            await tell('/background ask {"to": "a"}')
            assert (await ended(events)).text == asked(1)
            await adapter.wait_sent(3)
            assert await tell("/approve 1") == decided("Approved", "a")
            assert (await ended(events)).text == "sent to a"
        await adapter.wait_sent(5)
        assert await runtime.conversation("k").history() == []
    assert {row.lane for row in adapter.sent} == {"memory//c/"}
    assert adapter.texts[-1] == "sent to a"
    assert post.sent == [("a", "hi")]


async def test_arguments_that_are_too_long_to_show_cannot_be_approved(start):
    post = Post()
    async with start(build_agent=post.build) as runtime:
        told = await say(runtime, "ask " + json.dumps({"to": "a" * 50_000}))
        assert "too long" in told
        assert await say(runtime, "/approve") == "There is no tool call to decide about."


async def test_a_toolbox_may_be_given_its_records(start):
    def tell() -> str:
        return "told"

    async def call(turn):
        given = Toolbox([tool(once=True)(tell)], records=turn.records)
        turn.records = None
        return TurnResult(text=(await given.run(ToolCall("c", "tell"), turn)).content)

    async with start(build_agent=lambda _: ScriptedAgent([call])) as runtime:
        assert await say(runtime, "go") == "told"


async def test_every_command_that_is_named_exists(start):
    adapter = MemoryAdapter("embedded")
    async with start(build_agent=Post().build, adapters=[adapter]) as runtime:
        await say(runtime, 'ask {"to": "a"}')
        helped = await say(runtime, "/help")
        await adapter.wait_sent(3)
    named = set(re.findall(r"/([a-z]+)", " ".join(adapter.texts[:2])))
    assert named == {"approve", "deny"}
    assert named <= set(COMMANDS)
    assert "/approve [number | always number | show number [page]]: " in helped
    assert "/deny [number | always tool]: " in helped
