"""After a rotation everybody agrees on the session id, now and after a restart.

The route on disk, the reply, the status, the running agent with its tasks and threads, and the
hooks name one session, however the conversation came there.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
import trio
from msgspec.structs import replace

from hermes import (
    CompressionConfig,
    Config,
    current_session_id,
    current_session_key,
    open_runtime,
    set_current_session_id,
)
from hermes.errors import AlreadyAnswered, ContextOverflow, TurnClosed
from hermes.events import SessionMoved
from hermes.messages import Inbound, Message, Rotation, TurnResult, Usage
from hermes.store import Clock, SessionStore
from hermes.testing import DeterministicCompressor, MemoryAdapter, RecordingHook, texts_of

LONG = "a sentence that is long enough to be worth a summary, " * 3
SMALL = Config(compression=CompressionConfig(window=1000, max_output=0, share=0.5, protect_first=0))
ROOT = Path(__file__).parents[2]


async def everywhere(turn):
    """What the turn, its task, a task and a thread that it starts take for their session."""
    seen = [turn.session_id, current_session_id()]

    async def task():
        seen.append(current_session_id())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(task)
    seen.append(await trio.to_thread.run_sync(current_session_id))
    return seen


@attrs.define
class Traveller:
    """An agent that does as it is told, and notes where it is before it answers."""

    seen: list = attrs.Factory(list)
    shown: list = attrs.Factory(list)
    overflowed: bool = False
    closed: int = 0

    async def run(self, turn, /):
        verb, _, rest = turn.text.partition(" ")
        self.shown.append(texts_of(turn.history))
        do = getattr(self, f"do_{verb}", None)
        result = None if do is None else await do(rest)
        self.seen.append(await everywhere(turn))
        return result or TurnResult(text=f"echo: {turn.text}")

    async def do_return(self, session_id):
        return TurnResult(text="I went on by myself", session_id=session_id)

    async def do_none(self, _):
        return TurnResult(text="I stay", session_id=None)

    async def do_set(self, session_id):
        set_current_session_id(session_id)

    async def do_thread(self, session_id):
        await trio.to_thread.run_sync(set_current_session_id, session_id)

    async def do_task(self, session_id):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.do_set, session_id)

    async def do_overflow(self, _):
        if not self.overflowed:
            self.overflowed = True
            raise ContextOverflow("too much")

    async def do_count(self, _):
        return TurnResult(text="counted", usage=[Usage(input_tokens=100_000)])

    async def do_die(self, _):
        os._exit(9)

    async def aclose(self):
        self.closed += 1
        await trio.lowlevel.checkpoint()


async def speak(runtime, times, key="k"):
    for _ in range(times):
        reply = await runtime.ask(key, LONG)
    return reply


# Ways to rotate; each returns the id of the child as the last reply or outcome told it


async def by_threshold(runtime):
    first = (await speak(runtime, 5)).session_id
    for _ in range(5):
        if (reply := await speak(runtime, 1)).session_id != first:
            return reply.session_id
    raise AssertionError("it was not compressed")


async def by_command(runtime):
    await speak(runtime, 4)
    reply = await runtime.ask("k", "/compress here 1")
    assert reply.text.startswith("Compressed"), reply.text
    return reply.session_id


async def by_verb(runtime):
    await speak(runtime, 4)
    return (await runtime.compress("k", keep_exchanges=1)).rotated.session_id


async def by_overflow(runtime):
    before = (await speak(runtime, 4)).session_id
    reply = await runtime.ask("k", "overflow")
    assert (reply.status, reply.session_id != before) == ("complete", True)
    return reply.session_id


async def by_provider_count(runtime):
    await speak(runtime, 4)
    before = (await runtime.ask("k", "count")).session_id
    await runtime.set_title("k", "asked for after all that the turn gave rise to")
    child = (await runtime.status("k")).session_id
    assert child != before, "it was not compressed"
    return child


async def by_result(runtime):
    await speak(runtime, 2)
    return (await runtime.ask("k", "return child-1")).session_id


async def by_cell(runtime):
    await speak(runtime, 2)
    return (await runtime.ask("k", "set child-1")).session_id


async def by_cell_in_a_thread(runtime):
    await speak(runtime, 2)
    return (await runtime.ask("k", "thread child-1")).session_id


async def by_cell_in_a_task(runtime):
    await speak(runtime, 2)
    return (await runtime.ask("k", "task child-1")).session_id


async def by_result_in_the_very_first_turn(runtime):
    return (await runtime.ask("k", "return child-1")).session_id


OWN = [
    by_result, by_cell, by_cell_in_a_thread, by_cell_in_a_task, by_result_in_the_very_first_turn,
]  # fmt: skip
OURS = [by_threshold, by_command, by_verb, by_overflow, by_provider_count]
WAYS = {way.__name__: way for way in [*OURS, *OWN]}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


@pytest.fixture
def stored(path):
    """Look into the file beside the runtime: `stored("get_route", "k")`."""

    def read(verb, *arguments, **options):
        with SessionStore(path) as store:
            return getattr(store, verb)(*arguments, **options)

    return read


@pytest.fixture
def travelling(start):
    """A runtime with one `Traveller` per key, by key."""
    agents = {}

    def build(spec):
        agents[spec.session_key] = Traveller()
        return agents[spec.session_key]

    def opened(**options):
        options.setdefault("compressor", DeterministicCompressor())
        options.setdefault("config", SMALL)
        return start(agent=build, **options)

    opened.agents = agents
    return opened


LEADS = re.compile(r"INTO routes\b|UPDATE routes SET .*\bsession_id =")


def test_one_function_alone_writes_where_a_key_leads():
    """Nobody can move a conversation in memory and forget to save it: the move is the save."""
    writers = {
        f"{module.stem}.{function.name}"
        for module in (ROOT / "hermes").rglob("*.py")
        for function in ast.walk(ast.parse(module.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for text in ast.walk(function)
        if isinstance(text, ast.Constant) and LEADS.search(str(text.value))
    }
    assert writers == {"routes.point"}


async def test_after_a_rotation_everybody_names_the_same_session(travelling, stored, way):
    hook = RecordingHook()
    events = ("on_session_finalize", "on_session_reset", "on_session_switch")
    async with travelling(hooks={event: [hook.named(event)] for event in events}) as runtime:
        child = await way(runtime)
        route = stored("get_route", "k")
        root, *_, tip = stored("get_compression_lineage", child)
        assert (route.session_id, tip) == (child, child) != (root, root)
        assert (await runtime.status("k")).session_id == child
        reply = await runtime.ask("k", "hello")
        assert reply.session_id == child
        assert travelling.agents["k"].seen[-1] == [child] * 4
        assert runtime.snapshot("k").session_id == child
        assert stored("get_route", "k").epoch == route.epoch
        await runtime.wait_hooks()
        assert hook.calls == [], "a compression is no boundary"
        fresh = await runtime.ask("k", "/new")
        await runtime.wait_hooks()
        assert hook.calls == [
            ("on_session_finalize", child), ("on_session_reset", fresh.session_id),
        ]  # fmt: skip
        assert hook.contexts == [child, fresh.session_id]
    assert hook.calls[2:] == []


async def test_a_rotation_is_announced_once_with_both_ids(travelling, way):
    async with travelling() as runtime:
        with runtime.events("k") as heard:
            child = await way(runtime)
            await runtime.ask("k", "hello")
        moves = [envelope.event async for envelope in heard]
    moves = [event for event in moves if isinstance(event, SessionMoved)]
    assert [(move.new, move.reason) for move in moves] == [(child, "compression")]
    assert moves[0].old != child


@pytest.mark.parametrize("own", OWN[:4])
async def test_the_parent_stays_as_it_was_and_the_turn_is_in_the_child(travelling, stored, own):
    async with travelling() as runtime:
        child = await own(runtime)
        await runtime.ask("k", "hello")
        parent, _ = stored("get_compression_lineage", child)
        told = stored("get_session", parent), stored("get_session", child)
        assert [(each.kind, each.end_reason) for each in told] == [
            ("new", "compression"), ("compression", None),
        ]  # fmt: skip
        assert len(stored("get_messages", parent)) == 4
        rows = texts_of(stored("get_messages", child))
        assert [role for role, _ in rows] == ["user", "assistant"] * 2
        assert rows[0][1].endswith("child-1")
        assert travelling.agents["k"].shown[-1] == rows[:2]


async def test_during_the_turn_that_rotates_the_agent_is_already_in_the_child(travelling):
    async with travelling() as runtime:
        child = await by_threshold(runtime)
        assert travelling.agents["k"].seen[-1] == [child] * 4
    async with travelling() as runtime:
        child = await by_overflow(runtime)
        assert travelling.agents["k"].seen[-1] == [child] * 4


@pytest.mark.parametrize("verb", ["set", "thread", "task"])
async def test_what_one_task_or_thread_of_a_turn_writes_all_of_them_see(travelling, verb):
    async with travelling() as runtime:
        await runtime.ask("k", f"{verb} child-1")
        assert travelling.agents["k"].seen == [["child-1"] * 4]


async def test_an_agent_may_rotate_in_every_turn(travelling, stored):
    async with travelling() as runtime:
        root = (await runtime.ask("k", "hello")).session_id
        for number in range(1, 6):
            reply = await runtime.ask("k", f"return child-{number}")
            assert (reply.session_id, reply.build_reason) == (f"child-{number}", None)
            known = runtime.snapshot("k")
            assert (known.session_id, known.message_count) == (f"child-{number}", 2)
        names = [f"child-{number}" for number in range(1, 6)]
        assert stored("get_compression_lineage", root) == [root, *names]
        assert stored("get_route", "k").epoch == 6
        assert runtime.statistics().builds == {"cold": 1}


async def test_a_message_that_waited_during_a_rotation_is_answered_in_the_child(travelling):
    receipts = []

    @attrs.define
    class Slow(DeterministicCompressor):
        async def summarize(self, request):
            receipts.append(await runtime.submit(Inbound("k", "waited", "hello")))
            return await super().summarize(request)

    async with travelling(compressor=Slow()) as runtime:
        child = await by_threshold(runtime)
        assert receipts[0].session_id != child
        with suppress(AlreadyAnswered):
            assert (await runtime.ask("k", "hello", event_id="waited")).session_id == child
        assert travelling.agents["k"].seen[-1] == [child] * 4
        assert (await runtime.history("k"))[-1].content == "echo: hello"


async def test_a_message_that_waited_during_an_own_rotation_runs_once_and_in_the_child(start):
    ran = []

    async def reply(turn):
        ran.append((turn.text, turn.session_id))
        if turn.text == "first":
            await runtime.submit(Inbound("k", "waited", "second"))
            return TurnResult(text="moved", session_id="child-1")
        return "fine"

    async with start(agent=reply) as runtime:
        await runtime.ask("k", "first")
        await runtime.ask("k", "third")
    assert [text for text, _ in ran] in (
        ["first", "second", "third"], ["first", "second\n\nthird"],
    )  # fmt: skip
    assert {session_id for _, session_id in ran[1:]} == {"child-1"}


async def test_a_resume_of_the_parent_leads_to_the_child(travelling, way):
    async with travelling() as runtime:
        child = await way(runtime)
        root = (await runtime.sessions("k"))[0].root_session_id
        await runtime.new_session("k")
        await runtime.ask("k", "elsewhere")
        assert (await runtime.switch("k", root)).session_id == child
        assert (await runtime.ask("k", "back")).session_id == child
        assert travelling.agents["k"].seen[-1] == [child] * 4


SAYING = [by_threshold, by_command, by_overflow, *OWN]


@pytest.mark.parametrize("saying", SAYING, ids=lambda way: way.__name__)
async def test_what_an_adapter_sends_for_a_rotation_names_the_child(travelling, saying):
    adapter = MemoryAdapter("embedded")
    async with travelling(adapters=[adapter]) as runtime:
        child = await saying(runtime)
        await runtime.drain()
    assert adapter.sent[-1].body["session_id"] == child


async def test_what_an_adapter_sends_names_the_session_although_the_agent_names_an_ancestor(
    travelling,
):
    adapter = MemoryAdapter("embedded")
    async with travelling(adapters=[adapter]) as runtime:
        root = (await runtime.ask("k", "hello")).session_id
        await runtime.ask("k", "return child-1")
        await runtime.ask("k", f"return {root}")
        await adapter.wait_sent(3)
    assert [row.body["session_id"] for row in adapter.sent] == [root, "child-1", "child-1"]


async def test_what_an_adapter_sends_names_the_child_that_another_process_made_meanwhile(
    start, stored
):
    async def reply(turn):
        if turn.text == "2":
            last = stored("get_messages", turn.session_id)[-1].id
            rotation = Rotation(
                session_id=turn.session_id,
                messages=[Message("user", "summary")],
                rotation_id="theirs",
                rewrites=0,
                upto=last,
            )
            made.append(stored("rotate", rotation).session_id)
        return "fine"

    made = []
    adapter = MemoryAdapter("embedded")
    async with start(agent=reply, adapters=[adapter]) as runtime:
        await runtime.ask("k", "1")
        assert (await runtime.ask("k", "2")).session_id == made[0]
        await adapter.wait_sent(2)
    assert adapter.sent[-1].body["session_id"] == made[0]


async def test_what_another_process_said_during_an_own_rotation_is_in_the_child(start, stored):
    async def reply(turn):
        shown.append(texts_of(turn.history))
        if turn.text == "2":
            stored("append_message", turn.session_id, "user", "theirs")
            return TurnResult(text="two", session_id="child-1")
        return "fine"

    shown = []
    async with start(agent=reply) as runtime:
        for text in ("1", "2", "3"):
            await runtime.ask("k", text)
    assert ("user", "theirs") in shown[-1]


@pytest.mark.parametrize("first", [by_threshold, by_overflow, by_result], ids=lambda f: f.__name__)
async def test_a_retry_is_answered_although_the_conversation_rotates(start, stored, first):
    """Whether room is made before it, because of it, or by the agent itself."""
    answered = []

    async def reply(turn):
        answered.append(turn.session_id)
        if len(answered) == 13 and first is by_overflow:
            raise ContextOverflow("too much")
        wanted = "child-1" if len(answered) == 13 and first is by_result else None
        return TurnResult(text="again" if len(answered) > 12 else "first", session_id=wanted)

    wide = Config(compression=replace(SMALL.compression, window=100_000, tail_share=0.001))
    options = {"agent": reply, "compressor": DeterministicCompressor()}
    async with start(config=wide, **options) as runtime:
        await speak(runtime, 12)
    async with start(config=SMALL if first is by_threshold else wide, **options) as runtime:
        retried = await runtime.retry("k")
    assert (retried.text, retried.status) == ("again", "complete")
    rows = texts_of(stored("get_messages", retried.session_id))
    assert rows[-2:] == [("user", LONG), ("assistant", "again")]


# A restart


async def doomed(path, name):
    """The life of a process that is killed as soon as it has rotated."""
    async with open_runtime(
        path, agent=lambda _: Traveller(), compressor=DeterministicCompressor(), config=SMALL
    ) as runtime:
        print(json.dumps(await WAYS[name](runtime)), flush=True)  # noqa: T201
        await trio.sleep_forever()


async def dies_in_its_turn(path):
    """The life of a process that ends under a turn which was preceded by a compression."""
    async with open_runtime(
        path, agent=lambda _: Traveller(), compressor=DeterministicCompressor(), config=SMALL
    ) as runtime:
        await speak(runtime, 5)
        await runtime.ask("k", f"die {LONG}", event_id="fatal")


def run_and_kill(function, *arguments):
    """Run one of the functions above in a process of its own; returns what it said at its end."""
    program = (
        "import sys, trio\n"
        f"from tests.runtime.test_session_id_persistence import {function.__name__} as life\n"
        "trio.run(life, *sys.argv[1:])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        said = process.stdout.readline()
        if said:
            process.send_signal(signal.SIGKILL)
        assert process.wait(60) == (-9 if said else 9)
    return json.loads(said) if said else None


async def test_a_runtime_killed_after_a_rotation_goes_on_in_the_child_without_another(
    travelling, stored, path, way
):
    child = run_and_kill(doomed, path, way.__name__)
    assert stored("get_route", "k").session_id == child
    compressor = DeterministicCompressor()
    async with travelling(compressor=compressor, clock=Clock()) as runtime:
        rows = texts_of(stored("get_messages", child))
        reply = await runtime.ask("k", "are you there?")
        assert (reply.session_id, reply.build_reason) == (child, "cold")
        agent = travelling.agents["k"]
        assert (agent.seen, agent.shown) == ([[child] * 4], [rows])
        assert compressor.requests == []
        assert stored("get_compression_lineage", child)[-1] == child


async def test_a_runtime_that_dies_under_a_turn_runs_it_again_in_the_child_without_another(
    start, stored, path
):
    run_and_kill(dies_in_its_turn, path)
    child = stored("get_route", "k").session_id
    root, tip = stored("get_compression_lineage", child)
    assert (tip, root != child) == (child, True)
    compressor = DeterministicCompressor()
    seen = []

    async def reply(turn):
        seen.append((turn.text, await everywhere(turn)))
        return "alive"

    async with start(agent=reply, compressor=compressor, config=SMALL, clock=Clock()) as runtime:
        with suppress(AlreadyAnswered):
            assert (await runtime.ask("k", "", event_id="fatal")).session_id == child
        assert seen == [(f"die {LONG}", [child] * 4)]
        assert compressor.requests == []
        assert (await runtime.history("k"))[-1].content == "alive"
        assert stored("get_compression_lineage", child) == [root, child]


# No rotation


@pytest.mark.parametrize(
    "text",
    ["hello", "none", "return ", "return {here}", "set {here}", "overflow", "/status",
     "/compress", "/undo", "/title a title"],
)  # fmt: skip
async def test_a_turn_without_a_rotation_leaves_the_route_as_it_was(travelling, stored, text):
    async with travelling() as runtime:
        await runtime.ask("k", "hello")
        before = stored("get_route", "k")
        with runtime.events("k") as heard:
            reply = await runtime.ask("k", text.format(here=before.session_id))
            await runtime.ask("k", "and again")
        assert reply.session_id == before.session_id
        assert stored("get_route", "k") == before, "the clock stands still, so all of it"
        assert stored("get_compression_lineage", before.session_id) == [before.session_id]
        assert not [e async for e in heard if isinstance(e.event, SessionMoved)]


async def test_a_turn_that_fails_or_is_interrupted_leaves_the_route_as_it_was(start, stored):
    running = trio.Event()

    async def reply(turn):
        if turn.text == "fail":
            raise RuntimeError("no")
        if turn.text == "wait":
            running.set()
            await trio.sleep_forever()
        return "fine"

    async with start(agent=reply) as runtime:
        await runtime.ask("k", "hello")
        before = stored("get_route", "k")
        assert (await runtime.ask("k", "fail")).status == "failed"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.ask, "k", "wait")
            await running.wait()
            await runtime.interrupt("k")
        assert stored("get_route", "k") == before


async def test_an_agent_that_still_names_an_ancestor_stays_where_it_is(travelling, stored):
    async with travelling() as runtime:
        root = (await runtime.ask("k", "hello")).session_id
        await runtime.ask("k", "return child-1")
        before = stored("get_route", "k")
        reply = await runtime.ask("k", f"return {root}")
        assert (reply.session_id, reply.status) == ("child-1", "complete")
        assert stored("get_route", "k") == before


# Ids of other conversations


async def rotated(runtime):
    """Another key's conversation with a past; returns its tip and the parent."""
    parent = (await runtime.ask("victim", "my secret")).session_id
    await runtime.ask("victim", "return victims-child")
    return "victims-child", parent


@pytest.mark.parametrize("verb", ["return", "set", "thread", "task"])
@pytest.mark.parametrize("place", [0, 1], ids=["tip", "ended parent"])
async def test_the_id_of_another_conversation_is_refused_and_nothing_leaks(
    travelling, stored, verb, place
):
    async with travelling() as runtime:
        others = await rotated(runtime)
        theirs = [stored("get_route", "victim"), *[stored("load", each) for each in others]]
        own = (await runtime.ask("k", "hello")).session_id
        before = stored("get_route", "k")
        reply = await runtime.ask("k", f"{verb} {others[place]}")
        assert (reply.session_id, reply.status) == (own, "failed")
        assert f"session {others[place]} belongs to another conversation" in reply.text
        assert stored("get_route", "k") == before
        assert [stored("get_route", "victim"), *[stored("load", each) for each in others]] == theirs
        told = [
            ("user", "hello"),
            ("assistant", "echo: hello"),
            ("user", f"{verb} {others[place]}"),
        ]
        assert texts_of(await runtime.history("k")) == told, "the refused answer is not kept"
        again = await runtime.ask("k", "go on")
        assert (again.session_id, again.build_reason) == (own, None)
        agent = travelling.agents["k"]
        assert (agent.seen[-1], agent.shown[-1]) == ([own] * 4, told)
        await runtime.ask("victim", "hello?")
        assert travelling.agents["victim"].shown[-1] == texts_of(theirs[1].messages)


async def test_another_conversation_of_the_same_key_is_refused_too(travelling, stored):
    async with travelling() as runtime:
        earlier = (await runtime.ask("k", "hello")).session_id
        await runtime.new_session("k")
        own = (await runtime.ask("k", "hello again")).session_id
        reply = await runtime.ask("k", f"return {earlier}")
        assert (reply.session_id, reply.status) == (own, "failed")
        assert stored("get_route", "k").session_id == own


@pytest.mark.parametrize("verb", ["return", "set"])
async def test_an_id_that_another_key_leads_to_is_refused_before_it_has_a_row(travelling, verb):
    async with travelling() as runtime:
        await runtime.ask("victim", "hello")
        waiting = (await runtime.new_session("victim")).session_id
        own = (await runtime.ask("k", "hello")).session_id
        reply = await runtime.ask("k", f"{verb} {waiting}")
        await runtime.ask("victim", "what do you know?")
        assert travelling.agents["victim"].shown[-1] == [], "nothing of the other's conversation"
        assert (reply.session_id, reply.status) == (own, "failed")


async def test_a_refused_turn_keeps_all_that_the_user_said(start):
    async def reply(turn):
        if turn.session_key == "victim":
            return "hello"
        await runtime.steer("k", "and this")
        assert [message.content for message in turn.steered()] == ["and this"]
        return TurnResult(text="secret", session_id=victim)

    async with start(agent=reply) as runtime:
        victim = (await runtime.ask("victim", "hello")).session_id
        assert (await runtime.ask("k", "this")).status == "failed"
        assert texts_of(await runtime.history("k")) == [("user", "this"), ("user", "and this")]


@pytest.mark.parametrize("session_id", ["two\nlines", "x" * 500, 7])
async def test_what_cannot_be_an_id_is_refused_and_the_conversation_goes_on(
    start, stored, session_id
):
    async def reply(turn):
        wanted = session_id if turn.text == "rotate" else None
        return TurnResult(text="fine", session_id=wanted)

    async with start(agent=reply) as runtime:
        await runtime.ask("k", "hello")
        before = stored("get_route", "k")
        assert (await runtime.ask("k", "rotate")).status == "failed"
        assert (await runtime.ask("k", "hello")).status == "complete"
        assert stored("get_route", "k") == before


# Whose id it is


async def test_outside_of_a_turn_there_is_no_session_and_none_can_be_set(travelling):
    async with travelling() as runtime:
        await runtime.ask("k", "set child-1")
        assert (current_session_id(), current_session_key()) == (None, None)
        with pytest.raises(LookupError, match="inside a turn"):
            set_current_session_id("child-2")
        with pytest.raises(LookupError, match="inside a turn"):
            await trio.to_thread.run_sync(set_current_session_id, "child-2")
        assert (await runtime.ask("k", "hello")).session_id == "child-1"


async def test_a_hook_is_no_turn_and_cannot_set_the_session(travelling):
    errors = []

    async def hook(session_id, platform):
        try:
            set_current_session_id("child-1")
        except LookupError as error:
            errors.append(error)

    async with travelling(hooks={"on_session_reset": [hook]}) as runtime:
        await runtime.ask("k", "/new")
        await runtime.wait_hooks()
    assert len(errors) == 1


async def test_what_is_left_of_a_turn_cannot_move_the_conversation_later(start, stored):
    go_on, wrote = trio.Event(), trio.Event()

    async def late():
        await go_on.wait()
        with pytest.raises(TurnClosed):
            set_current_session_id("late")
        wrote.set()

    async def reply(turn):
        if turn.text == "leave something":
            nursery.start_soon(late)
        if turn.text == "hello":
            go_on.set()
            await wrote.wait()
        return str(current_session_id())

    async with trio.open_nursery() as nursery, start(agent=reply) as runtime:
        session_id = (await runtime.ask("k", "leave something")).session_id
        assert (await runtime.ask("k", "hello")).text == session_id
        assert stored("get_route", "k").session_id == session_id
        assert (await runtime.ask("k", "bye")).session_id == session_id


class Barrier:
    """Lets nobody go on before all are there."""

    def __init__(self, parties):
        self.missing = parties
        self.complete = trio.Event()

    async def wait(self):
        self.missing -= 1
        if not self.missing:
            self.complete.set()
        await self.complete.wait()


async def test_turns_of_many_keys_at_once_never_see_each_others_id(start):
    keys = [f"k{number}" for number in range(10)]
    begun, moved, read = Barrier(10), Barrier(10), Barrier(10)
    seen, replies = {}, {}

    async def reply(turn):
        before = await everywhere(turn)
        await begun.wait()
        child = f"child of {turn.session_key}"
        if turn.session_key in keys[::2]:
            await trio.to_thread.run_sync(set_current_session_id, child)
        await moved.wait()
        seen[turn.session_key] = (before, await everywhere(turn), current_session_key())
        await read.wait()
        return "fine"

    async def ask(key):
        replies[key] = await runtime.ask(key, "hello")

    async with start(agent=reply) as runtime:
        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(ask, key)
        for number, key in enumerate(keys):
            before, after, own_key = seen[key]
            assert before == [before[0]] * 4
            expected = before[0] if number % 2 else f"child of {key}"
            assert after == [expected] * 4
            assert (replies[key].session_id, own_key) == (expected, key)
        assert len({before[0] for before, _, _ in seen.values()}) == 10


@pytest.mark.parametrize("where", ["turn", "hook"])
async def test_a_conversation_begun_from_within_another_does_not_inherit_its_id(start, where):
    """A builder of one conversation that sees the id of another could also move it."""
    seen = {}

    async def begin():
        await runtime.new_session("k2", "begun from within")

    async def hook(session_id, platform):
        if current_session_key() == "k1":
            await begin()

    async def build(spec):
        seen[spec.session_key] = (current_session_key(), current_session_id())
        return agent

    @attrs.frozen
    class Inviting:
        async def run(self, turn, /):
            if where == "turn" and turn.session_key == "k1":
                await begin()
            return TurnResult(text="fine")

    agent = Inviting()
    async with start(agent=build, hooks={"on_session_reset": [hook]}) as runtime:
        await runtime.ask("k1", "hello")
        if where == "hook":
            await runtime.ask("k1", "/new")
            await runtime.wait_hooks()
        await runtime.ask("k2", "hello")
    assert "k1" not in seen["k2"]
