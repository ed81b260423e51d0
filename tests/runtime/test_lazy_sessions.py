"""A session begins with its first message: its row, its title, its end, and what is said for it."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from hermes.actors.compression.compressor import Compressed
from hermes.actors.runtime import running
from hermes.config import Config
from hermes.context import set_current_session_id
from hermes.errors import ContextOverflow, StoreBusy, StoreError
from hermes.events import TextDelta, ToolStarted, TurnEnded
from hermes.messages import AgentSpec, Inbound, Message, ToolCall, TurnResult, Usage
from hermes.store import inline, open_store
from hermes.testing import (
    CountingBuilder,
    DeterministicCompressor,
    MemoryAdapter,
    RecordingHook,
    ScriptedAgent,
    forever,
    texts_of,
)
from tests.runtime.conftest import Through

ROOT = Path(__file__).parents[2]
LONG = 2_000.0
"""Virtual seconds after which an answer is called missing."""

virtual_time = pytest.mark.parametrize("workers", ["inline"])
one_kind = virtual_time
"""For tables of inputs, where it does not matter how the store runs."""


@pytest.fixture
def heard():
    """All that the finalize hook was told, in order."""
    return RecordingHook()


@pytest.fixture
def both(path, world, workers):
    """Open a store and a runtime on it: `async with both(build=…) as (store, runtime)`.

    `behind` may put something between the two.
    """

    @asynccontextmanager
    async def opened(
        *,
        build=None,
        config=None,
        compressor=None,
        adapters=(),
        behind=lambda store: store,
        heard=None,
        **options,
    ):
        if workers == "inline":
            options.setdefault("open_worker", inline())
        if heard is not None:
            options["hooks"] = {"on_session_finalize": [heard.named("finalize")]}
        async with (
            open_store(path, clock=world.clock, **options) as store,
            running(
                behind(store),
                build=build or CountingBuilder(),
                describe=lambda key, source: AgentSpec(session_key=key),
                config=config or Config(),
                compressor=compressor,
                adapters=adapters,
                wall=world.clock.wall,
            ) as runtime,
        ):
            yield store, runtime

    return opened


def playing(*entries):
    agent = ScriptedAgent(script=entries)
    return agent, lambda _: agent


async def settled(runtime, key="k"):
    """Wait until an actor has done all that its last turn gave rise to."""
    await runtime.ask(key, "/resume")


async def titles_in(store):
    """Every session row there is, with its title, in the order of their beginnings."""
    return dict(await store.snapshot(lambda tx: tx.all("SELECT id, title FROM sessions")))


async def said_to(store, turn_id):
    """What the outbox has for a turn."""
    sql = "SELECT json_extract(body, '$.text') FROM outbox WHERE turn_id = ? ORDER BY id"
    return [row[0] for row in await store.snapshot(lambda tx: tx.all(sql, turn_id))]


# No row before the first message

COMMANDS = [
    "/status", "/title", "/title Plans", "/new", "/new Plans", "/reset", "/help", "/whoami",
    "/usage", "/sessions", "/resume", "/resume 1", "/resume Plans", "/undo", "/undo 3", "/retry",
    "/stop", "/branch", "/compress", "/compress here 2", "/queue", "/steer", "/background",
    "/approve", "/approve 1", "/deny", "/deny 1",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@one_kind
async def test_a_command_is_answered_and_makes_no_session(both, command):
    async with both(compressor=DeterministicCompressor()) as (store, runtime):
        reply = await runtime.ask("k", command)
        assert reply.status == "command"
        assert reply.text
        assert "did not work" not in reply.text
        assert await said_to(store, reply.turn_id) == [reply.text]
        assert await titles_in(store) == {}
        assert await store.open_inbox("k") == []


async def test_a_command_that_there_is_not_makes_no_session(both):
    async with both() as (store, runtime):
        with runtime.events("k") as events:
            await runtime.submit(Inbound("k", "e", "/nonsense", command=True))
            told = await anext(events)
        assert told.event.reply.status == "command"
        assert "/nonsense" in told.event.reply.text
        assert await titles_in(store) == {}


async def test_verbs_of_the_host_make_no_session(both):
    async with both() as (store, runtime):
        assert await runtime.close("k") is None
        assert await runtime.history("k") == []
        assert await runtime.sessions("k") == []
        assert await runtime.interrupt("k") is False
        await runtime.new_session("k", "Plans")
        assert await runtime.history("k") == []
        await runtime.status("k")
        await runtime.close("k")
        assert await titles_in(store) == {}


async def test_the_row_comes_with_the_first_turn_and_has_the_id_that_was_known_before(both):
    seen = {}

    async def look(turn):
        seen["during"] = await titles_in(store)
        seen["id"] = turn.session_id

    _, build = playing([look, "hello"])
    async with both(build=build) as (store, runtime):
        await runtime.ask("k", "/help")
        before = (await runtime.status("k")).session_id
        reply = await runtime.ask("k", "hi")
        assert seen == {"during": {}, "id": before}
        assert reply.session_id == before
        assert await titles_in(store) == {before: None}
        assert (await store.get_session(before)).message_count == 2


async def test_after_new_there_is_no_row_until_somebody_speaks(both):
    async with both() as (store, runtime):
        first = (await runtime.ask("k", "hello")).session_id
        new = (await runtime.ask("k", "/new")).session_id
        await runtime.ask("k", "/status")
        assert set(await titles_in(store)) == {first}
        assert (await runtime.ask("k", "more")).session_id == new
        assert set(await titles_in(store)) == {first, new}


async def test_a_first_turn_that_leaving_cut_off_made_no_row_and_is_made_up_for(both):
    _, hanging = playing(forever())
    async with both(build=hanging, config=Config(drain_timeout=0)) as (store, runtime):
        receipt = await runtime.submit(Inbound("k", "e", "hello"))
        await trio.testing.wait_all_tasks_blocked()
    async with both() as (store, runtime):
        await made_up_for(runtime)
        assert set(await titles_in(store)) == {receipt.session_id}
        said = texts_of(await runtime.history("k"))
        assert said == [("user", "hello"), ("assistant", "echo: hello")]


async def made_up_for(runtime):
    """Wait until a turn that an earlier runtime had begun is over."""
    with runtime.events("k") as events:
        if await runtime.history("k"):
            return
        async for each in events:
            if isinstance(each.event, TurnEnded):
                break
    await settled(runtime)


class SlowToRecover(Through):
    """It takes long to find out what an earlier process left, as it does where that is much."""

    async def open_inbox(self, session_key=None, **options):
        if session_key is None:
            await self.gate.wait()
        return await self.store.open_inbox(session_key, **options)


async def test_a_message_after_a_restart_waits_for_the_one_that_was_cut_off(both):
    _, hanging = playing(forever())
    async with both(build=hanging, config=Config(drain_timeout=0)) as (_, runtime):
        await runtime.submit(Inbound("k", "e", "first"))
        await trio.testing.wait_all_tasks_blocked()
    gate = trio.Event()
    async with both(behind=functools.partial(SlowToRecover, gate=gate)) as (_, runtime):
        await runtime.ask("k", "second")
        gate.set()
        await settled(runtime)
        asked = [row.content for row in await runtime.history("k") if row.role == "user"]
        assert asked == ["first", "second"]


async def test_a_host_may_give_a_title_before_anything_was_said(both):
    async with both() as (store, runtime):
        await runtime.set_title("k", "Plans")
        assert await titles_in(store) == {}
        reply = await runtime.ask("k", "hello")
        await settled(runtime)
        assert await titles_in(store) == {reply.session_id: "Plans"}


async def test_a_conversation_that_never_was_has_a_status(both):
    async with both() as (store, runtime):
        status = await runtime.status("k")
        assert (status.message_count, status.busy, status.waiting) == (0, False, 0)
        assert await titles_in(store) == {}


# The title that waits


@pytest.mark.parametrize("how", ["/title", "/new", "verb", "twice"])
async def test_a_title_waits_for_the_first_turn(both, how):
    async with both() as (store, runtime):
        if how == "verb":
            await runtime.ask("k", "/help")
            await runtime.set_title("k", "Plans")
        elif how == "twice":
            await runtime.ask("k", "/title Something else")
            await runtime.ask("k", "/title Plans")
        else:
            await runtime.ask("k", f"{how} Plans")
        assert "Plans" in (await runtime.ask("k", "/title")).text
        assert (await runtime.status("k")).title == "Plans"
        assert (await store.get_route("k")).pending_title == "Plans"
        reply = await runtime.ask("k", "hello")
        await settled(runtime)
        assert await titles_in(store) == {reply.session_id: "Plans"}
        assert (await store.get_route("k")).pending_title is None
        assert (await runtime.status("k")).title == "Plans"


async def test_a_title_that_is_given_during_the_first_turn_is_applied_after_it(both):
    begun, release = trio.Event(), trio.Event()

    async def wait(_):
        begun.set()
        await release.wait()

    _, build = playing([wait, "done"])
    async with both(build=build) as (store, runtime):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.ask, "k", "hello")
            await begun.wait()
            await runtime.ask("k", "/title Plans")
            assert await titles_in(store) == {}
            release.set()
        await settled(runtime)
        assert list((await titles_in(store)).values()) == ["Plans"]


async def test_a_title_in_use_is_dropped_and_does_not_stand_in_the_way_of_another(both):
    async with both() as (store, runtime):
        await store.create_session("other", "x")
        await store.set_session_title("other", "Plans")
        await runtime.ask("k", "/title Plans")
        reply = await runtime.ask("k", "hello")
        assert reply.status == "complete"
        await settled(runtime)
        assert await titles_in(store) == {"other": "Plans", reply.session_id: None}
        assert (await store.get_route("k")).pending_title is None
        assert await store.set_auto_title_if_empty(reply.session_id, "By itself")
        await runtime.ask("k", "more")
        await settled(runtime)
        assert (await store.get_session(reply.session_id)).title == "By itself"


async def test_a_title_that_cannot_be_one_is_refused_at_once(both):
    async with both() as (store, runtime):
        assert "too long" in (await runtime.ask("k", "/title " + "x" * 200)).text
        assert (await store.get_route("k")).pending_title is None
        reply = await runtime.ask("k", "hello")
        await settled(runtime)
        assert await titles_in(store) == {reply.session_id: None}


class Forgetful(Through):
    """A store that cannot give a title, as often as there are errors."""

    async def apply_pending_title(self, session_key):
        if self.errors:
            raise self.errors.pop()
        return await self.store.apply_pending_title(session_key)


PASSING = [StoreError("a damaged page"), StoreBusy("a lock"), RuntimeError("who knows")]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("restarted", [False, True])
async def test_any_other_error_keeps_the_title_for_the_next_turn(both, error, restarted):
    behind = functools.partial(Forgetful, errors=[error])
    async with both(behind=behind) as (store, runtime):
        await runtime.ask("k", "/title Plans")
        reply = await runtime.ask("k", "hello")
        assert reply.text == "echo: hello"
        await settled(runtime)
        assert await titles_in(store) == {reply.session_id: None}
        assert (await store.get_route("k")).pending_title == "Plans"
        if not restarted:
            assert (await runtime.ask("k", "more")).build_reason is None
            await settled(runtime)
            assert await titles_in(store) == {reply.session_id: "Plans"}
    if restarted:
        async with both() as (store, runtime):
            await runtime.ask("k", "more")
            await settled(runtime)
            assert await titles_in(store) == {reply.session_id: "Plans"}


@pytest.mark.parametrize("how", ["command", "verb"])
async def test_a_later_title_is_not_undone_by_one_that_still_waits(both, how):
    behind = functools.partial(Forgetful, errors=[StoreBusy("a lock")])
    async with both(behind=behind) as (store, runtime):
        await runtime.ask("k", "/title Plans")
        reply = await runtime.ask("k", "hello")
        await settled(runtime)
        if how == "command":
            await runtime.ask("k", "/title Better plans")
        else:
            await runtime.set_title("k", "Better plans")
        await runtime.ask("k", "more")
        await settled(runtime)
        assert await titles_in(store) == {reply.session_id: "Better plans"}


@pytest.mark.parametrize("fault", ["full", "busy"])
@virtual_time
async def test_a_disk_that_is_full_after_the_first_turn_keeps_the_title(
    both, autojump_clock, fault
):
    faults = []

    async def arm(_):
        faults.extend([None, fault])  # the turn's own COMMIT is good, that of the title is not

    _, build = playing([arm, "done"], "again")
    worker = inline(lambda: faults.pop(0) if faults else None)
    async with both(build=build, open_worker=worker) as (store, runtime):
        await runtime.ask("k", "/title Plans")
        await trio.sleep(10)  # nothing else is written any more
        reply = await runtime.ask("k", "hello")
        assert reply.text == "done"
        await trio.testing.wait_all_tasks_blocked()
        assert faults == []
        assert (await store.get_route("k")).pending_title == "Plans"
        await runtime.ask("k", "more")
        await settled(runtime)
        assert await titles_in(store) == {reply.session_id: "Plans"}


@pytest.mark.parametrize("how", ["restart", "passivation", "cut off"])
async def test_a_title_survives_what_happens_before_the_first_turn_ends(both, how):
    _, hanging = playing(forever())
    config = Config(idle_timeout=0, drain_timeout=0)
    async with both(build=hanging, config=config) as (store, runtime):
        await runtime.ask("k", "/title Plans")
        if how == "cut off":
            await runtime.submit(Inbound("k", "e", "hello"))
            await trio.testing.wait_all_tasks_blocked()
        if how == "passivation":
            runtime.passivate()
            assert runtime.statistics().actors == 0
            await runtime.new_session("other")  # something else
            assert (await runtime.status("k")).title == "Plans"
    async with both() as (store, runtime):
        if how == "cut off":
            await made_up_for(runtime)
        else:
            await runtime.ask("k", "hello")
        await settled(runtime)
        assert list((await titles_in(store)).values()) == ["Plans"]


@pytest.mark.parametrize("how", ["result", "context"])
async def test_a_title_goes_to_the_tip_where_the_first_turn_rotated(both, how):
    async def rotate(_):
        set_current_session_id("child")

    last = TurnResult(text="done", session_id="child") if how == "result" else [rotate, "done"]
    _, build = playing(last)
    async with both(build=build) as (store, runtime):
        await runtime.ask("k", "/title Plans")
        assert (await runtime.ask("k", "hello")).session_id == "child"
        await settled(runtime)
        [parent] = set(await titles_in(store)) - {"child"}
        assert await titles_in(store) == {parent: None, "child": "Plans"}
        assert (await store.get_session(parent)).end_reason == "compression"
        assert (await runtime.status("k")).session_id == "child"
        assert texts_of(await runtime.history("k")) == [("user", "hello"), ("assistant", "done")]


async def test_a_title_that_waits_is_not_given_to_a_session_one_goes_back_to(both):
    async with both() as (store, runtime):
        first = (await runtime.ask("k", "hello")).session_id
        await runtime.ask("k", "/new Plans")
        await runtime.switch("k", first)
        await runtime.ask("k", "more")
        await settled(runtime)
        assert await titles_in(store) == {first: None}


async def test_new_forgets_the_title_that_waited(both):
    async with both() as (store, runtime):
        await runtime.ask("k", "/title Plans")
        await runtime.ask("k", "/new")
        reply = await runtime.ask("k", "hello")
        await settled(runtime)
        assert await titles_in(store) == {reply.session_id: None}


# Closing


async def talk_at_length(runtime):
    for n in range(4):
        reply = await runtime.ask("k", f"{n} " + "many words " * 300)
    return reply.session_id


ROTATE = """
import sys
from hermes.store import SessionStore
with SessionStore(sys.argv[1]) as store:
    store.end_session(sys.argv[2], "compression")
    store.create_session("child", "elsewhere", parent_session_id=sys.argv[2])
    store.append_message("child", "user", "a summary")
"""


def rotate_elsewhere(path, session_id):
    command = [sys.executable, "-c", ROTATE, str(path), session_id]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("who", ["runtime", "agent", "another process", "nobody"])
async def test_close_finalizes_and_ends_the_session_of_now_and_not_the_one_of_before(
    both, path, heard, who
):
    second = TurnResult(text="done", session_id="child") if who == "agent" else "done"
    _, build = playing("first", second)
    options = {"build": build, "compressor": DeterministicCompressor(), "heard": heard}
    async with both(**options) as (store, runtime):
        parent = child = (await runtime.ask("k", "hello")).session_id
        if who == "runtime":
            await talk_at_length(runtime)
            outcome = await runtime.compress("k", keep_exchanges=1)
            assert isinstance(outcome, Compressed)
            child = outcome.rotated.session_id
        elif who == "agent":
            child = (await runtime.ask("k", "more")).session_id
        elif who == "another process":
            await trio.to_thread.run_sync(rotate_elsewhere, path, parent)
            child = "child"
        assert (child == parent) == (who == "nobody")
        assert await runtime.close("k", reason="tui_close") == child
        await runtime.wait_hooks()
        assert heard.calls == [("finalize", child)]
        assert (await store.get_session(child)).end_reason == "tui_close"
        if who != "nobody":
            assert (await store.get_session(parent)).end_reason == "compression"


async def test_close_ends_the_session_of_the_route_where_no_agent_was_ever_built(both, heard):
    async with both() as (store, runtime):
        reply = await runtime.ask("k", "hello")
    builder = CountingBuilder()
    async with both(build=builder, heard=heard) as (store, runtime):
        assert await runtime.close("k") == reply.session_id
        await runtime.wait_hooks()
        assert heard.calls == [("finalize", reply.session_id)]
        session = await store.get_session(reply.session_id)
        assert (session.end_reason, session.ended_at) == ("closed", store._clock.wall())
    assert len(builder) == 0


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_message_after_close_begins_a_new_session(both, restarted):
    agent, build = playing()
    async with both(build=build) as (store, runtime):
        old = (await runtime.ask("k", "hello")).session_id
        await runtime.close("k")
        if not restarted:
            new = await runtime.ask("k", "again")
    if restarted:
        agent, build = playing()
    async with both(build=build) as (store, runtime):
        if restarted:
            new = await runtime.ask("k", "again")
        assert new.session_id != old
        assert (await store.get_session(old)).end_reason == "closed"
        assert (await store.get_session(new.session_id)).ended_at is None
        said = texts_of(await runtime.history("k"))
        assert said == [("user", "again"), ("assistant", "echo: again")]
        assert texts_of(agent.turns[-1].history) == said  # and nothing of the old one


async def test_close_lets_a_running_turn_end_and_what_waits_behind_it_begins_anew(both, heard):
    begun, release = trio.Event(), trio.Event()

    async def wait(_):
        begun.set()
        await release.wait()

    _, build = playing([wait, "first"], "second")
    got = {}

    async def ask(text):
        got[text] = await runtime.ask("k", text)

    async def close():
        got["closed"] = await runtime.close("k")

    async with both(build=build, heard=heard) as (store, runtime):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "one")
            await begun.wait()
            nursery.start_soon(close)
            await trio.testing.wait_all_tasks_blocked()
            receipt = await runtime.submit(Inbound("k", "e", "two"))
            assert receipt.session_id == (await store.get_route("k")).session_id
            assert "closed" not in got
            release.set()
        await settled(runtime)
        assert got["one"].text == "first"
        assert got["closed"] == got["one"].session_id
        said = texts_of(await runtime.history("k"))
        assert said == [("user", "two"), ("assistant", "second")]
        assert len(await titles_in(store)) == 2
        await runtime.wait_hooks()
        assert heard.calls == [("finalize", got["closed"])]


# Turns that end without words

NOTHING = ""
OVERFLOW = ("context window", "/compact", "/reset")

# The ten rows of facts 3.9, in their order: the result, the rows before it, what is said.
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
        10, "complete", ("nonexistent_tool",),
    ),
    "8 speechless": (TurnResult(api_calls=2), 0, "complete", ("said nothing",)),
    "8 blanks": (TurnResult(text=" \n\t "), 0, "complete", ("said nothing",)),
    "9 untouched": (TurnResult(api_calls=0), 0, "complete", ("send it again",)),
    "10 partly untouched": (TurnResult(api_calls=0, partial=True), 0, "complete", NOTHING),
}  # fmt: skip


async def with_history(store, runtime, length):
    if length:
        await store.create_session("long", "embedded")
        rows = [Message("user" if n % 2 == 0 else "assistant", f"{n}") for n in range(length)]
        await store.append_messages("long", rows)
        await runtime.switch("k", "long")


@pytest.mark.parametrize("row", TABLE)
@one_kind
async def test_a_turn_without_words_is_told_of_as_the_table_says(both, row):
    result, length, status, expected = TABLE[row]
    agent, build = playing(result)
    async with both(build=build) as (store, runtime):
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
        # The user hears it, the model does not.
        assert await said_to(store, reply.turn_id) == ([reply.text] if reply.text else [])
        said = texts_of(await runtime.history("k"))[length:]
        assert said[0] == ("user", "hello")
        assert [text for role, text in said[1:]] == ([result.text] if result.text else [])
        assert await store.open_inbox("k") == []
        assert (await runtime.ask("k", "more")).text == "echo: more"
    assert len(agent.turns) == 2


@pytest.mark.parametrize(("row", "most"), [("failed", 450), ("partial", 350)])
async def test_a_long_error_is_cut(both, row, most):
    result = TurnResult(failed=row == "failed", partial=row == "partial", error="x" * 10_000)
    _, build = playing(result)
    async with both(build=build) as (store, runtime):
        reply = await runtime.ask("k", "hello")
        assert 100 < len(reply.text) < most
        assert await said_to(store, reply.turn_id) == [reply.text]


async def test_what_was_emitted_before_the_words_failed_is_kept(both):
    call = ToolCall("c1", "look")
    _, build = playing([TextDelta("Let me see"), ToolStarted(call), RuntimeError("boom")])
    async with both(build=build) as (_, runtime):
        reply = await runtime.ask("k", "hello")
        assert "boom" in reply.text
        rows = await runtime.history("k")
        assert [row.role for row in rows] == ["user", "assistant", "tool"]
        assert (rows[1].content, rows[1].tool_calls) == ("Let me see", (call,))
        assert rows[2].tool_call_id == "c1"


# Agents that do not keep their contract


class Returning:
    """An agent that answers with anything."""

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
    """The first turn fails, is told of and kept; the second is as if nothing had been."""
    async with opened as (store, runtime):
        with trio.fail_after(LONG):
            reply = await runtime.ask("k", "hello")
        assert reply.status == "failed"
        for each in ("/reset", *words):
            assert each in reply.text
        assert reply.error
        assert await said_to(store, reply.turn_id) == [reply.text]
        assert texts_of(await runtime.history("k")) == [("user", "hello")]
        assert await store.open_inbox("k") == []
        assert agent.runs == 1
        again = await runtime.ask("k", "more")
        assert (again.text, again.build_reason) == ("back to normal", None)
        assert (again.session_id, again.status) == (reply.session_id, "complete")


RAISED = {
    "an error": (RuntimeError("boom"), ["boom"]),
    "the end of the program": (SystemExit(3), ["SystemExit"]),
    "an assertion": (AssertionError(), ["AssertionError"]),
    "a missing key": (KeyError("model"), ["model"]),
    "no end in sight": (RecursionError("too deep"), ["too deep"]),
    "an error of the store": (StoreError("of its own"), ["of its own"]),
    "a deadline of its own": (trio.TooSlowError(), ["TooSlowError"]),
    "the end of an iteration": (StopAsyncIteration(), ["StopAsyncIteration"]),
}


@pytest.mark.parametrize("name", RAISED)
@one_kind
async def test_an_agent_that_raises_fails_its_turn_and_nothing_else(both, name):
    error, words = RAISED[name]
    agent = Returning(error)
    await fails_alone(both(build=lambda _: agent), agent, words)


async def test_an_overflow_that_is_raised_is_told_of_as_one(both):
    agent = Returning(ContextOverflow("200,000 tokens"))
    await fails_alone(both(build=lambda _: agent), agent, OVERFLOW)


ESCAPING = {
    "asyncio's cancellation": asyncio.CancelledError(),
    "the end of the program in a task": BaseExceptionGroup("a nursery", [SystemExit(3)]),
    "asyncio's cancellation in a task": BaseExceptionGroup("…", [asyncio.CancelledError()]),
}


@pytest.mark.parametrize("name", ESCAPING)
@one_kind
async def test_an_agent_that_raises_what_is_no_exception_fails_its_turn_and_nothing_else(
    both, name
):
    agent = Returning(ESCAPING[name])
    await fails_alone(both(build=lambda _: agent), agent)


@pytest.mark.parametrize(
    ("error", "words"), [(RuntimeError("boom"), ["boom"]), (ContextOverflow("much"), OVERFLOW)]
)
async def test_an_error_of_a_child_task_is_told_of_by_what_it_says(both, error, words):
    async def fail():
        raise error

    async def run(_):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)

    _, build = playing(run)
    async with both(build=build) as (_, runtime):
        reply = await runtime.ask("k", "hello")
        assert reply.status == "failed"
        for each in words:
            assert each in reply.text


RETURNED = {
    "nothing": None,
    "a number": 42,
    "a dict": {"text": "hi"},
    "a list": ["hi"],
    "bytes": b"hi",
    "a function": functools.partial(forever),
}


@pytest.mark.parametrize("name", RETURNED)
@one_kind
async def test_an_agent_that_returns_a_wrong_type_fails_its_turn_and_nothing_else(both, name):
    agent = Returning(RETURNED[name])
    await fails_alone(both(build=lambda _: agent), agent, ["TurnResult"])


async def test_an_agent_may_return_a_text(both):
    async with both(build=lambda _: Returning("just words")) as (_, runtime):
        assert (await runtime.ask("k", "hello")).text == "just words"
        said = texts_of(await runtime.history("k"))
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
@one_kind
async def test_an_answer_that_cannot_be_stored_fails_its_turn_and_nothing_else(both, name):
    agent = Returning(REFUSED[name])
    async with both() as (store, _):
        await store.create_session("foreign", "elsewhere")
    await fails_alone(both(build=lambda _: agent), agent)


async def test_what_an_answer_cost_is_on_the_bill_though_it_cannot_be_stored(both):
    agent = Returning(answer(said(tool_calls=None), usage=[Usage(input_tokens=7)]))
    async with both(build=lambda _: agent) as (store, runtime):
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
@virtual_time
async def test_an_answer_of_another_kind_fails_its_turn_and_nothing_else(
    both, autojump_clock, name
):
    """The agent is asked once: it may have sent letters."""
    agent = Returning(UNFORESEEN[name])
    await fails_alone(both(build=lambda _: agent), agent)


@pytest.mark.parametrize("event", [TextDelta(5), TextDelta(None), ToolStarted(None)], ids=repr)
@virtual_time
async def test_an_event_of_a_wrong_type_fails_its_turn_and_nothing_else(
    both, autojump_clock, event
):
    agent, build = playing([event, "fine"])
    async with both(build=build) as (_, runtime):
        reply = await runtime.ask("k", "hello")
        assert reply.status == "failed"
        assert (await runtime.ask("k", "more")).text == "echo: more"
    assert len(agent.turns) == 2


@virtual_time
async def test_a_tool_call_as_a_dict_does_not_leave_the_asker_without_an_answer(
    both, autojump_clock
):
    call = {"id": "c", "name": "look", "arguments": "{}"}
    _, build = playing(answer(said(tool_calls=(call,))))
    async with both(build=build) as (_, runtime):
        with trio.fail_after(LONG):
            await runtime.ask("k", "hello")
            assert (await runtime.ask("k", "more")).text == "echo: more"


async def test_half_characters_are_stored_as_what_a_file_can_hold(both):
    row = said("a\ud800b", reasoning="\udfff", tool_calls=(ToolCall("c", "look", '"\ud800"'),))
    _, build = playing(TurnResult(text="a\ud800b", rows=[row]))
    async with both(build=build) as (store, runtime):
        reply = await runtime.ask("k", "h\ud800i")
        assert reply.status == "complete"
        [asked, answered] = await runtime.history("k")
        for text in (asked.content, answered.content, answered.reasoning):
            text.encode()
        answered.tool_calls[0].arguments.encode()
        for text in await said_to(store, reply.turn_id):
            text.encode()
        assert (await runtime.ask("k", "more")).text == "echo: more"


async def test_an_agent_is_shown_what_is_stored_also_of_half_characters(both):
    agent, build = playing("a\ud800b")
    async with both(build=build) as (_, runtime):
        await runtime.ask("k", "h\ud800i")
        await runtime.ask("k", "more")
        stored = texts_of(await runtime.history("k"))
        assert texts_of(agent.turns[1].history) == stored
        assert agent.turns[0].text.encode()


class Wire(MemoryAdapter):
    """A platform that is spoken to in UTF-8, as all are."""

    async def send(self, row):
        row.body["text"].encode()
        await super().send(row)


@virtual_time
async def test_half_a_character_does_not_hold_up_a_chat(both, autojump_clock):
    adapter = Wire("embedded")
    _, build = playing("a\ud800b")
    async with both(build=build, adapters=[adapter]) as (_, runtime):
        await runtime.ask("k", "hello")
        await runtime.ask("k", "more")
        with trio.fail_after(LONG):
            await adapter.wait_sent(2)


BUILDERS = {"an error": RuntimeError("no key"), "the end of the program": SystemExit(3)}


@pytest.mark.parametrize("name", BUILDERS)
async def test_a_builder_that_fails_once_fails_one_turn(both, name):
    tries = []

    def build(_):
        tries.append(1)
        if len(tries) == 1:
            raise BUILDERS[name]
        return ScriptedAgent()

    async with both(build=build) as (_, runtime):
        reply = await runtime.ask("k", "hello")
        assert (reply.status, texts_of(await runtime.history("k"))) == (
            "failed",
            [("user", "hello")],
        )
        assert (await runtime.ask("k", "more")).text == "echo: more"


async def test_a_builder_that_returns_nothing_once_fails_one_turn(both):
    built = [None, ScriptedAgent()]
    async with both(build=lambda _: built.pop(0)) as (_, runtime):
        assert (await runtime.ask("k", "hello")).status == "failed"
        assert (await runtime.ask("k", "more")).text == "echo: more"


class Slamming(ScriptedAgent):
    """An agent that wants to end the program when it is closed."""

    async def aclose(self):
        raise SystemExit(3)


async def test_an_agent_that_ends_the_program_when_closed_harms_nobody(both):
    async with both(build=lambda _: Slamming(), config=Config(max_agents=0)) as (_, runtime):
        await runtime.ask("k", "hello")
        await settled(runtime)
        runtime.passivate()
        assert (await runtime.ask("k", "more")).text == "echo: more"


# A disk that was full for a while


@pytest.mark.parametrize("command", ["/new", "/status"])
@virtual_time
async def test_a_command_that_met_a_full_disk_is_answered_once_there_is_room(
    both, autojump_clock, command
):
    full, replies = [], []
    answered = trio.Event()

    async def ask():
        replies.append(await runtime.ask("k", command))
        answered.set()

    class Filling(Through):
        """Once the command is accepted, the disk is full."""

        async def accept(self, inbound, **options):
            accepted = await self.store.accept(inbound, **options)
            if inbound.text == command:
                full.append(True)
            return accepted

    worker = inline(lambda: "full" if full else None)
    async with both(open_worker=worker, behind=Filling) as (_, runtime):
        await runtime.ask("k", "hello")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(5)
            assert full
            assert replies == []
            full.clear()
            with trio.move_on_after(LONG):
                await answered.wait()
            nursery.cancel_scope.cancel()
        assert [reply.status for reply in replies] == ["command"]
