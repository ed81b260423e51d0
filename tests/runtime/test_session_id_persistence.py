"""After a rotation, everything names the same session, also after a restart.

The route on disk, the reply, the status, the running agent with its tasks and threads, and the
hooks agree, however the conversation was rotated.
"""

from __future__ import annotations

import ast
import re
from contextlib import suppress

import attrs
import pytest
import trio
from msgspec.structs import replace

from hermes import (
    Config,
    current_session_id,
    current_session_key,
    set_current_session_id,
)
from hermes.errors import AlreadyAnswered, ContextOverflow, TurnClosed
from hermes.events import SessionMoved
from hermes.messages import Inbound, Message, Rotation, TurnResult
from hermes.store import Clock, SessionStore
from hermes.testing import (
    DeterministicCompressor,
    MemoryAdapter,
    RecordingHook,
    texts_of,
)
from tests.support.rotations import (
    BY_AGENT,
    LONG,
    ROOT,
    SMALL,
    WAYS,
    RotatingAgent,
    by_command,
    by_overflow,
    by_result,
    by_threshold,
    die_in_a_turn_after_a_rotation,
    rotate_and_get_killed,
    speak,
    visible_ids,
)
from tests.support.runtime import with_threads


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


@pytest.fixture
def stored(path):
    """Call a verb of the store from outside the runtime: `stored("get_route", "k")`."""

    def read(verb, *arguments, **options):
        with SessionStore(path) as store:
            return getattr(store, verb)(*arguments, **options)

    return read


@pytest.fixture
def rotating(start):
    """A runtime with a `RotatingAgent` for each key; `rotating.agents` has them by key."""
    agents = {}

    def build(spec):
        agents[spec.session_key] = RotatingAgent()
        return agents[spec.session_key]

    def opened(**options):
        options.setdefault("compressor", DeterministicCompressor())
        options.setdefault("config", SMALL)
        return start(build_agent=build, **options)

    opened.agents = agents
    return opened


LEADS = re.compile(r"INTO routes\b|UPDATE routes SET .*\bsession_id =")


def test_only_one_function_writes_the_session_id_of_a_route():
    """A conversation cannot be moved in memory without being saved: one function does both."""
    writers = {
        f"{module.stem}.{function.name}"
        for module in (ROOT / "hermes").rglob("*.py")
        if "routes" in module.read_text()
        for function in ast.walk(ast.parse(module.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for text in ast.walk(function)
        if isinstance(text, ast.Constant) and LEADS.search(str(text.value))
    }
    assert writers == {"routes.assign_session"}


@with_threads
async def test_after_a_rotation_everything_names_the_same_session(rotating, stored, way):
    hook = RecordingHook()
    events = ("on_session_finalize", "on_session_reset", "on_session_switch")
    async with rotating(hooks={event: [hook.named(event)] for event in events}) as runtime:
        child = await way(runtime)
        route = stored("get_route", "k")
        root, *_, tip = stored("get_compression_lineage", child)
        assert (route.session_id, tip) == (child, child) != (root, root)
        assert (await runtime.conversation("k").status()).session_id == child
        reply = await runtime.ask("k", "hello")
        assert reply.session_id == child
        assert rotating.agents["k"].seen[-1] == [child] * 4
        assert runtime.conversation("k").snapshot().session_id == child
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


async def test_a_rotation_is_announced_once_with_both_ids(rotating, way):
    async with rotating() as runtime:
        with runtime.subscribe("k") as heard:
            child = await way(runtime)
            await runtime.ask("k", "hello")
        moves = [envelope.event async for envelope in heard]
    moves = [event for event in moves if isinstance(event, SessionMoved)]
    assert [(move.new, move.reason) for move in moves] == [(child, "compression")]
    assert moves[0].old != child


@pytest.mark.parametrize("way", BY_AGENT[:4])
async def test_the_parent_stays_as_it_was_and_the_turn_is_in_the_child(rotating, stored, way):
    async with rotating() as runtime:
        child = await way(runtime)
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
        assert rotating.agents["k"].shown[-1] == rows[:2]


async def test_during_the_turn_that_rotates_the_agent_is_already_in_the_child(rotating):
    async with rotating() as runtime:
        child = await by_threshold(runtime)
        assert rotating.agents["k"].seen[-1] == [child] * 4
    async with rotating() as runtime:
        child = await by_overflow(runtime)
        assert rotating.agents["k"].seen[-1] == [child] * 4


@with_threads
@pytest.mark.parametrize("verb", ["set", "thread", "task"])
async def test_all_tasks_and_threads_of_a_turn_see_what_one_of_them_writes(rotating, verb):
    async with rotating() as runtime:
        await runtime.ask("k", f"{verb} child-1")
        assert rotating.agents["k"].seen == [["child-1"] * 4]


async def test_an_agent_may_rotate_in_every_turn(rotating, stored):
    async with rotating() as runtime:
        root = (await runtime.ask("k", "hello")).session_id
        for number in range(1, 6):
            reply = await runtime.ask("k", f"return child-{number}")
            assert (reply.session_id, reply.build_reason) == (f"child-{number}", None)
            known = runtime.conversation("k").snapshot()
            assert (known.session_id, known.message_count) == (f"child-{number}", 2)
        names = [f"child-{number}" for number in range(1, 6)]
        assert stored("get_compression_lineage", root) == [root, *names]
        assert stored("get_route", "k").epoch == 6
        assert (await runtime.admin.statistics()).builds == {"cold": 1}


@with_threads
async def test_a_message_that_waited_during_a_rotation_is_answered_in_the_child(rotating):
    receipts = []

    @attrs.define
    class Slow(DeterministicCompressor):
        async def summarize(self, request):
            receipts.append(await runtime.submit(Inbound("k", "waited", "hello")))
            return await super().summarize(request)

    async with rotating(compressor=Slow()) as runtime:
        child = await by_threshold(runtime)
        assert receipts[0].session_id != child
        with suppress(AlreadyAnswered):
            assert (await runtime.ask("k", "hello", event_id="waited")).session_id == child
        assert rotating.agents["k"].seen[-1] == [child] * 4
        assert (await runtime.conversation("k").history())[-1].content == "echo: hello"


@with_threads
async def test_a_message_that_waited_during_a_rotation_by_the_agent_runs_once_in_the_child(start):
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


async def test_a_resume_of_the_parent_continues_in_the_child(rotating, way):
    async with rotating() as runtime:
        child = await way(runtime)
        root = (await runtime.conversation("k").sessions())[0].root_session_id
        await runtime.conversation("k").new()
        await runtime.ask("k", "elsewhere")
        assert (await runtime.conversation("k").switch(root)).session_id == child
        assert (await runtime.ask("k", "back")).session_id == child
        assert rotating.agents["k"].seen[-1] == [child] * 4


ANSWERING = [by_threshold, by_command, by_overflow, *BY_AGENT]


@pytest.mark.parametrize("way", ANSWERING, ids=lambda way: way.__name__)
async def test_replies_sent_after_a_rotation_name_the_child(rotating, way):
    adapter = MemoryAdapter("embedded")
    async with rotating(adapters=[adapter]) as runtime:
        child = await way(runtime)
        await runtime.drain()
    assert adapter.sent[-1].body["session_id"] == child


async def test_replies_name_the_session_although_the_agent_names_an_ancestor(
    rotating,
):
    adapter = MemoryAdapter("embedded")
    async with rotating(adapters=[adapter]) as runtime:
        root = (await runtime.ask("k", "hello")).session_id
        await runtime.ask("k", "return child-1")
        await runtime.ask("k", f"return {root}")
        await adapter.wait_sent(3)
    assert [row.body["session_id"] for row in adapter.sent] == [root, "child-1", "child-1"]


@with_threads
async def test_replies_name_the_child_that_another_process_created_meanwhile(start, stored):
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


@with_threads
async def test_rows_of_another_process_during_a_rotation_by_the_agent_are_in_the_child(
    start, stored
):
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
    """By a compression before it, by one because of it, or by the agent itself."""
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
        retried = await runtime.conversation("k").retry()
    assert (retried.text, retried.status) == ("again", "complete")
    rows = texts_of(stored("get_messages", retried.session_id))
    assert rows[-2:] == [("user", LONG), ("assistant", "again")]


# A restart


async def test_a_runtime_killed_after_a_rotation_continues_in_the_child_without_another(
    rotating, stored, path, way
):
    child = rotate_and_get_killed(path, way.__name__)
    assert stored("get_route", "k").session_id == child
    compressor = DeterministicCompressor()
    async with rotating(compressor=compressor, clock=Clock()) as runtime:
        rows = texts_of(stored("get_messages", child))
        reply = await runtime.ask("k", "are you there?")
        assert (reply.session_id, reply.build_reason) == (child, "cold")
        agent = rotating.agents["k"]
        assert (agent.seen, agent.shown) == ([[child] * 4], [rows])
        assert compressor.requests == []
        assert stored("get_compression_lineage", child)[-1] == child


@with_threads
async def test_a_runtime_killed_during_a_turn_runs_it_again_in_the_child_without_another(
    start, stored, path
):
    die_in_a_turn_after_a_rotation(path)
    child = stored("get_route", "k").session_id
    root, tip = stored("get_compression_lineage", child)
    assert (tip, root != child) == (child, True)
    compressor = DeterministicCompressor()
    seen = []

    async def reply(turn):
        seen.append((turn.text, await visible_ids(turn)))
        return "alive"

    async with start(agent=reply, compressor=compressor, config=SMALL, clock=Clock()) as runtime:
        with suppress(AlreadyAnswered):
            again = await runtime.ask("k", f"die {LONG}", event_id="fatal")
            assert again.session_id == child
        assert seen == [(f"die {LONG}", [child] * 4)]
        assert compressor.requests == []
        assert (await runtime.conversation("k").history())[-1].content == "alive"
        assert stored("get_compression_lineage", child) == [root, child]


# No rotation


@pytest.mark.parametrize(
    "text",
    ["hello", "none", "return ", "return {here}", "set {here}", "overflow", "/status",
     "/compress", "/undo", "/title a title"],
)  # fmt: skip
async def test_a_turn_without_a_rotation_leaves_the_route_as_it_was(rotating, stored, text):
    async with rotating() as runtime:
        await runtime.ask("k", "hello")
        before = stored("get_route", "k")
        with runtime.subscribe("k") as heard:
            reply = await runtime.ask("k", text.format(here=before.session_id))
            await runtime.ask("k", "and again")
        assert reply.session_id == before.session_id
        assert stored("get_route", "k") == before, "the clock stands still, so all of it"
        assert stored("get_compression_lineage", before.session_id) == [before.session_id]
        assert not [e async for e in heard if isinstance(e.event, SessionMoved)]


@with_threads
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
            await runtime.conversation("k").interrupt()
        assert stored("get_route", "k") == before


async def test_an_agent_that_still_names_an_ancestor_stays_where_it_is(rotating, stored):
    async with rotating() as runtime:
        root = (await runtime.ask("k", "hello")).session_id
        await runtime.ask("k", "return child-1")
        before = stored("get_route", "k")
        reply = await runtime.ask("k", f"return {root}")
        assert (reply.session_id, reply.status) == ("child-1", "complete")
        assert stored("get_route", "k") == before


# Session ids of other conversations


async def rotated(runtime):
    """Another key's conversation with a past; returns its tip and the parent."""
    parent = (await runtime.ask("victim", "my secret")).session_id
    await runtime.ask("victim", "return victims-child")
    return "victims-child", parent


@pytest.mark.parametrize("verb", ["return", "set", "thread", "task"])
@pytest.mark.parametrize("place", [0, 1], ids=["tip", "ended parent"])
async def test_the_id_of_another_conversation_is_refused_and_nothing_leaks(
    rotating, stored, verb, place
):
    async with rotating() as runtime:
        others = await rotated(runtime)
        theirs = [stored("get_route", "victim"), *[stored("load", each) for each in others]]
        own = (await runtime.ask("k", "hello")).session_id
        before = stored("get_route", "k")
        reply = await runtime.ask("k", f"{verb} {others[place]}")
        assert (reply.session_id, reply.status) == (own, "failed")
        assert reply.error_kind == "NotInLineage"
        assert others[place] not in reply.text + reply.error
        assert stored("get_route", "k") == before
        assert [stored("get_route", "victim"), *[stored("load", each) for each in others]] == theirs
        told = [
            ("user", "hello"),
            ("assistant", "echo: hello"),
            ("user", f"{verb} {others[place]}"),
        ]
        assert texts_of(await runtime.conversation("k").history()) == told, (
            "the refused answer is not kept"
        )
        again = await runtime.ask("k", "go on")
        assert (again.session_id, again.build_reason) == (own, None)
        agent = rotating.agents["k"]
        assert (agent.seen[-1], agent.shown[-1]) == ([own] * 4, told)
        await runtime.ask("victim", "hello?")
        assert rotating.agents["victim"].shown[-1] == texts_of(theirs[1].messages)


async def test_another_conversation_of_the_same_key_is_refused_too(rotating, stored):
    async with rotating() as runtime:
        earlier = (await runtime.ask("k", "hello")).session_id
        await runtime.conversation("k").new()
        own = (await runtime.ask("k", "hello again")).session_id
        reply = await runtime.ask("k", f"return {earlier}")
        assert (reply.session_id, reply.status) == (own, "failed")
        assert stored("get_route", "k").session_id == own


@pytest.mark.parametrize("verb", ["return", "set"])
async def test_an_id_in_the_route_of_another_key_is_refused_before_it_has_a_row(rotating, verb):
    async with rotating() as runtime:
        await runtime.ask("victim", "hello")
        waiting = (await runtime.conversation("victim").new()).session_id
        own = (await runtime.ask("k", "hello")).session_id
        reply = await runtime.ask("k", f"{verb} {waiting}")
        await runtime.ask("victim", "what do you know?")
        assert rotating.agents["victim"].shown[-1] == [], "nothing of the other's conversation"
        assert (reply.session_id, reply.status) == (own, "failed")


async def test_a_refused_turn_keeps_the_messages_of_the_user(start):
    async def reply(turn):
        if turn.session_key == "victim":
            return "hello"
        await runtime.conversation("k").steer("and this")
        assert [message.content for message in turn.steered()] == ["and this"]
        return TurnResult(text="secret", session_id=victim)

    async with start(agent=reply) as runtime:
        victim = (await runtime.ask("victim", "hello")).session_id
        assert (await runtime.ask("k", "this")).status == "failed"
        assert texts_of(await runtime.conversation("k").history()) == [
            ("user", "this"),
            ("user", "and this"),
        ]


@pytest.mark.parametrize("session_id", ["two\nlines", "x" * 500, 7])
async def test_an_invalid_id_is_refused_and_the_conversation_continues(start, stored, session_id):
    async def reply(turn):
        wanted = session_id if turn.text == "rotate" else None
        return TurnResult(text="fine", session_id=wanted)

    async with start(agent=reply) as runtime:
        await runtime.ask("k", "hello")
        before = stored("get_route", "k")
        assert (await runtime.ask("k", "rotate")).status == "failed"
        assert (await runtime.ask("k", "hello")).status == "complete"
        assert stored("get_route", "k") == before


# Which turn an id belongs to


async def test_outside_of_a_turn_there_is_no_session_and_none_can_be_set(rotating):
    async with rotating() as runtime:
        await runtime.ask("k", "set child-1")
        assert (current_session_id(), current_session_key()) == (None, None)
        with pytest.raises(LookupError, match="inside a turn"):
            set_current_session_id("child-2")
        with pytest.raises(LookupError, match="inside a turn"):
            await trio.to_thread.run_sync(set_current_session_id, "child-2")
        assert (await runtime.ask("k", "hello")).session_id == "child-1"


async def test_a_hook_is_not_a_turn_and_cannot_set_the_session(rotating):
    errors = []

    async def hook(session_id, platform):
        try:
            set_current_session_id("child-1")
        except LookupError as error:
            errors.append(error)

    async with rotating(hooks={"on_session_reset": [hook]}) as runtime:
        await runtime.ask("k", "/new")
        await runtime.wait_hooks()
    assert len(errors) == 1


@with_threads
async def test_leftover_tasks_of_a_turn_cannot_move_the_conversation_later(start, stored):
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
    """Blocks tasks until all of them have arrived."""

    def __init__(self, parties):
        self.missing = parties
        self.complete = trio.Event()

    async def wait(self):
        self.missing -= 1
        if not self.missing:
            self.complete.set()
        await self.complete.wait()


@with_threads
async def test_concurrent_turns_of_many_keys_never_see_the_id_of_another(start):
    keys = [f"k{number}" for number in range(10)]
    begun, moved, read = Barrier(10), Barrier(10), Barrier(10)
    seen, replies = {}, {}

    async def reply(turn):
        before = await visible_ids(turn)
        await begun.wait()
        child = f"child of {turn.session_key}"
        if turn.session_key in keys[::2]:
            await trio.to_thread.run_sync(set_current_session_id, child)
        await moved.wait()
        seen[turn.session_key] = (before, await visible_ids(turn), current_session_key())
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


@with_threads
@pytest.mark.parametrize("where", ["turn", "hook"])
async def test_a_conversation_started_from_within_another_does_not_inherit_its_id(start, where):
    """A builder that sees the id of another conversation could also move that conversation."""
    seen = {}

    async def begin():
        await runtime.conversation("k2").new("begun from within")

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
    async with start(build_agent=build, hooks={"on_session_reset": [hook]}) as runtime:
        await runtime.ask("k1", "hello")
        if where == "hook":
            await runtime.ask("k1", "/new")
            await runtime.wait_hooks()
        await runtime.ask("k2", "hello")
    assert "k1" not in seen["k2"]
