"""A client's conversations over JSON-RPC: handles, rotations, titles, ends, and what is heard."""

from __future__ import annotations

import functools
import json
import random
from collections import Counter

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings, strategies as st

from hermes import Config
from hermes.adapters.jsonrpc import open_peer, serve
from hermes.config import CompressionConfig
from hermes.context import set_current_session_id
from hermes.errors import StoreBusy, StoreError, StoreFull
from hermes.events import (
    ApprovalAsked,
    Notice,
    ReasoningDelta,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
)
from hermes.messages import Approval, ExpiryPolicy, Inbound, Source, ToolCall, TurnResult, Usage
from hermes.store import SessionStore, inline
from hermes.testing import DeterministicCompressor, RecordingHook, ScriptedAgent, forever
from tests.jsonrpc_client import Client, Problem, connected

LONG = " ".join(["a long message that makes the conversation grow"] * 40)


@pytest.fixture
def workers():
    """In threads: clients wait for streams, and time is real."""
    return "threads"


def playing(*entries):
    agent = ScriptedAgent(script=entries)
    return lambda _: agent


class Gate:
    """A step of a script that waits to be let go on."""

    def __init__(self):
        self.reached, self.open = trio.Event(), trio.Event()

    async def __call__(self, turn):
        self.reached.set()
        await self.open.wait()


async def begun(client, text="hello", **params):
    """A conversation with one answer in it."""
    handle = (await client.call("session.create", **params))["session_id"]
    await client.call("prompt.submit", session_id=handle, text=text)
    await client.event("message.complete", handle)
    return handle


async def stored(client, handle):
    return (await client.call("session.resume", session_id=handle))["stored_session_id"]


async def refused(client, method, /, **params):
    with pytest.raises(Problem) as problem:
        await client.call(method, **params)
    return problem.value.code


async def texts(client, handle):
    rows = (await client.call("session.history", session_id=handle))["messages"]
    return [row["text"] for row in rows]


def rows_in(path):
    with SessionStore(path) as store:
        return {each.session.id: each.session for each in store.list_sessions(limit=1000)}


# A session begins with its first message


async def test_creating_sessions_stores_nothing(start, path):
    async with start() as runtime:
        async with connected(runtime) as client:
            made = [await client.call("session.create") for _ in range(3)]
            assert len({each["session_id"] for each in made}) == 3
            assert {each["stored_session_id"] for each in made} == {None}
            for each in made:
                shown = await client.call("session.history", session_id=each["session_id"])
                assert shown["messages"] == []
                assert (await client.call("session.resume", **_just(each)))["messages"] == []
            assert (await client.call("session.list"))["sessions"] == []
            assert runtime.statistics().actors <= 3
    assert rows_in(path) == {}


def _just(made):
    return {"session_id": made["session_id"]}


async def test_the_row_comes_with_the_first_prompt(start, path):
    async with start() as runtime, connected(runtime) as client:
        handle = await begun(client)
        [info] = [payload for kind, payload in client.events() if kind == "session.info"]
        [row] = (await client.call("session.list"))["sessions"]
        assert (row["session_id"], row["live"], row["source"]) == (
            info["stored_session_id"], handle, "rpc",
        )  # fmt: skip
        assert (info["old_session_id"], info["reason"]) == (None, "created")
        assert set(rows_in(path)) == {info["stored_session_id"]}


async def test_a_prompt_is_on_disk_when_it_is_answered_and_before_it_runs(start, path):
    gate = Gate()
    async with start(agent=playing([gate, "done"])) as runtime, connected(runtime) as client:
        handle = (await client.call("session.create"))["session_id"]
        done = await client.call("prompt.submit", session_id=handle, text="hello")
        assert done["status"] == "streaming"
        with SessionStore(path) as store:
            [row] = store.open_inbox()
        assert (row.inbox_id, row.inbound.text) == (done["message_id"], "hello")
        await gate.reached.wait()
        gate.open.set()
        complete = await client.event("message.complete")
        assert complete["message_ids"] == [done["message_id"]]


# The title that waits


async def test_a_title_waits_for_the_first_turn_and_is_told_after_it(start, path):
    async with start() as runtime, connected(runtime) as client:
        made = await client.call("session.create", title="  Plans\n ")
        assert made["pending_title"] == "Plans"
        handle = made["session_id"]
        title = await client.call("session.title", session_id=handle)
        assert (title["title"], title["pending"]) == ("Plans", True)
        assert rows_in(path) == {}
        await client.call("prompt.submit", session_id=handle, text="hello")
        told = await client.event("session.title")
        kinds = [kind for kind, _ in client.events(handle)]
        assert kinds.index("message.complete") < kinds.index("session.title")
        title = await client.call("session.title", session_id=handle)
        assert (title["title"], title["pending"]) == ("Plans", False)
        assert told == {"stored_session_id": title["stored_session_id"], "title": "Plans"}


async def test_a_title_can_be_given_while_the_first_answer_runs(start):
    gate = Gate()
    async with start(agent=playing([gate, "done"])) as runtime, connected(runtime) as client:
        handle = (await client.call("session.create"))["session_id"]
        await client.call("prompt.submit", session_id=handle, text="hello")
        await gate.reached.wait()
        title = await client.call("session.title", session_id=handle, title="Plans")
        assert title["pending"]
        gate.open.set()
        assert (await client.event("session.title"))["title"] == "Plans"


async def test_a_title_of_a_stored_session_is_set_at_once_and_told(start):
    gate = Gate()
    async with (
        start(agent=playing("one", [gate, "two"])) as runtime,
        connected(runtime) as client,
    ):
        handle = await begun(client)
        await client.call("prompt.submit", session_id=handle, text="more")
        await gate.reached.wait()
        title = await client.call("session.title", session_id=handle, title=" Plans ")
        assert (title["title"], title["pending"]) == ("Plans", False)
        assert (await client.event("session.title"))["title"] == "Plans"
        gate.open.set()


async def test_a_title_in_use_is_dropped_after_the_turn_and_another_can_be_given(start, path):
    async with start() as runtime, connected(runtime) as client:
        other = await begun(client, title="Plans")
        await client.event("session.title")
        handle = await begun(client, title="Plans")
        title = await client.call("session.title", session_id=handle)
        assert (title["title"], title["pending"]) == (None, False)
        assert await refused(client, "session.title", session_id=handle, title="Plans") == 4022
        await client.call("session.title", session_id=handle, title="Other plans")
        assert (await client.event("session.title"))["title"] == "Other plans"
        assert sorted(row.title for row in rows_in(path).values()) == ["Other plans", "Plans"]
        assert other != handle


async def test_a_title_that_cannot_be_one_is_refused_at_once_and_makes_no_handle(start, path):
    async with start() as runtime, connected(runtime) as client:
        assert await refused(client, "session.create", title="x" * 200) == 4022
        assert await refused(client, "session.create", title="   ") == 4021
        handle = (await client.call("session.create"))["session_id"]
        assert await refused(client, "session.title", session_id=handle, title="") == 4021
        assert await refused(client, "session.title", session_id=handle, title="x" * 200) == 4022
        title = await client.call("session.title", session_id=handle)
        assert (title["title"], title["pending"]) == (None, False)


async def test_any_other_error_keeps_the_title_for_the_next_turn(start_proxy):
    errors = [RuntimeError("who knows"), StoreBusy("a lock")]

    async def apply(real, session_key):
        if errors:
            raise errors.pop()
        return await real(session_key)

    async with start_proxy(apply_pending_title=apply) as runtime, connected(runtime) as client:
        handle = await begun(client, title="Plans")
        await client.call("prompt.submit", session_id=handle, text="more")
        await client.event("message.complete")
        assert [kind for kind, _ in client.events() if kind == "session.title"] == []
        await client.call("prompt.submit", session_id=handle, text="and more")
        assert (await client.event("session.title"))["title"] == "Plans"


async def test_asking_for_the_title_gives_one_that_could_not_be_given_before(start_proxy):
    errors = [StoreBusy("a lock")]

    async def apply(real, session_key):
        if errors:
            raise errors.pop()
        return await real(session_key)

    async with start_proxy(apply_pending_title=apply) as runtime, connected(runtime) as client:
        handle = await begun(client, title="Plans")
        await runtime.set_title("k", "wait")
        with trio.fail_after(5):
            while errors:
                await trio.lowlevel.checkpoint()
        title = await client.call("session.title", session_id=handle)
        assert (title["title"], title["pending"]) == ("Plans", False)


# A handle follows rotations


def rotating(new):
    """An agent that compresses by itself during the turn."""

    async def rotate(_):
        set_current_session_id(new)

    return [rotate, TextDelta("on"), "on"]


async def test_a_rotation_by_the_agent_is_told_before_the_answer_and_the_title(start):
    async with start(agent=playing("one", rotating("child"), "three")) as runtime:
        async with connected(runtime) as client:
            handle = await begun(client)
            parent = await stored(client, handle)
            await client.call("session.title", session_id=handle, title="Plans")
            client.frames.clear()
            client._read = 0
            await client.call("prompt.submit", session_id=handle, text="more")
            await client.event("message.complete")
            kinds = [kind for kind, _ in client.events(handle)]
            assert kinds.index("session.info") < kinds.index("message.complete")
            [info] = [payload for kind, payload in client.events() if kind == "session.info"]
            assert info == {
                "stored_session_id": "child", "old_session_id": parent, "reason": "compression",
            }  # fmt: skip
            again = await client.call("prompt.submit", session_id=handle, text="and more")
            assert again["stored_session_id"] == "child"
            complete = await client.event("message.complete")
            assert complete["stored_session_id"] == "child"
            shown = await client.call("session.history", session_id=handle)
            assert (shown["stored_session_id"], shown["parent_session_id"]) == ("child", parent)


async def test_a_waiting_title_goes_to_the_child_and_its_id_is_told_first(start, path):
    async with start(agent=playing(rotating("child"))) as runtime, connected(runtime) as client:
        handle = await begun(client, title="Plans")
        told = await client.event("session.title")
        assert told == {"stored_session_id": "child", "title": "Plans"}
        kinds = [
            (kind, payload.get("stored_session_id"))
            for kind, payload in client.events(handle)
            if kind in {"session.info", "message.complete", "session.title"}
        ]
        assert kinds[-3:] == [
            ("session.info", "child"), ("message.complete", "child"), ("session.title", "child"),
        ]  # fmt: skip
        assert rows_in(path)["child"].title == "Plans"


@pytest.fixture
def compressing(start):
    config = Config(compression=CompressionConfig(window=4000, max_output=500, protect_first=0))
    return functools.partial(start, config=config, compressor=DeterministicCompressor())


async def grown(client, exchanges=6):
    handle = await begun(client, LONG)
    for _ in range(exchanges - 1):
        await client.call("prompt.submit", session_id=handle, text=LONG)
        await client.event("message.complete", handle)
    return handle


async def test_a_conversation_that_becomes_too_long_goes_on_under_the_same_handle(compressing):
    async with compressing() as runtime, connected(runtime) as client:
        handle = await grown(client, 10)
        infos = [payload for kind, payload in client.events(handle) if kind == "session.info"]
        assert [info["reason"] for info in infos[1:]] == ["compression"] * (len(infos) - 1)
        assert len(infos) > 1
        assert [info["old_session_id"] for info in infos[1:]] == [
            info["stored_session_id"] for info in infos[:-1]
        ]
        assert await stored(client, handle) == infos[-1]["stored_session_id"]
        old = infos[0]["stored_session_id"]
        resumed = await client.call("session.resume", session_id=old)  # an id from long ago
        assert resumed["session_id"] == handle
        kept = await client.call("session.history", stored_session_id=old)
        assert kept["stored_session_id"] == old
        assert kept["count"] > 0


async def test_compress_moves_the_handle_and_says_how_much_it_saved(start):
    config = Config(compression=CompressionConfig(window=20_000, max_output=500, protect_first=0))
    async with start(config=config, compressor=DeterministicCompressor()) as runtime:
        async with connected(runtime) as client:
            handle = await grown(client, 12)
            before = await stored(client, handle)
            done = await client.call("session.compress", session_id=handle, focus_topic="all")
            assert done["status"] == "compressed"
            assert done["after"] < done["before"]
            assert done["stored_session_id"] != before
            assert await stored(client, handle) == done["stored_session_id"]
            kinds = [payload.get("kind") for kind, payload in client.events(handle)
                     if kind == "status.update"]  # fmt: skip
            assert kinds == ["compressing", "ready"]
            [row] = (await client.call("session.list"))["sessions"]
            assert (row["session_id"], row["live"]) == (done["stored_session_id"], handle)
            shown = await client.call("session.history", session_id=handle)
            assert shown["parent_session_id"] == before
            closed = await client.call("session.close", session_id=handle)
            assert closed["stored_session_id"] == done["stored_session_id"]
            deleted = await client.call("session.delete", session_id=before)
            assert deleted["messages"] > 24
            assert (await client.call("session.list"))["sessions"] == []


async def test_a_compression_that_does_not_work_says_why(start):
    failing = DeterministicCompressor(error=ValueError("no model"))
    async with start() as runtime, connected(runtime) as client:
        empty = (await client.call("session.create"))["session_id"]
        done = await client.call("session.compress", session_id=empty)
        assert (done["status"], "nothing was said" in done["text"]) == ("skipped", True)
        handle = await begun(client)
        done = await client.call("session.compress", session_id=handle)
        assert (done["status"], done["before"]) == ("skipped", None)
        assert "no compressor" in done["text"]
    async with start(compressor=failing) as runtime, connected(runtime) as client:
        found = (await client.call("session.list"))["sessions"][0]["session_id"]
        handle = (await client.call("session.resume", session_id=found))["session_id"]
        for _ in range(4):
            await client.call("prompt.submit", session_id=handle, text=LONG)
            await client.event("message.complete")
        done = await client.call("session.compress", session_id=handle)
        assert done["status"] in {"failed", "skipped"}
        assert done["stored_session_id"] == found


async def test_commands_move_the_handle_too(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await begun(client)
        first = await stored(client, handle)
        done = await client.call("prompt.submit", session_id=handle, text="/new Other plans")
        complete = await client.event("message.complete")
        assert (complete["status"], complete["message_ids"]) == ("complete", [done["message_id"]])
        assert "New session" in complete["text"]
        infos = [payload for kind, payload in client.events(handle) if kind == "session.info"]
        assert (infos[-1]["old_session_id"], infos[-1]["reason"]) == (first, "session_reset")
        title = await client.call("session.title", session_id=handle)
        assert (title["title"], title["pending"]) == ("Other plans", True)


async def test_a_conversation_that_was_over_by_itself_begins_anew_under_its_handle(start, world):
    config = Config(expiry=ExpiryPolicy(mode="idle", idle_minutes=1))
    async with start(config=config) as runtime, connected(runtime) as client:
        handle = await begun(client)
        first = await stored(client, handle)
        world.pass_time(3600)
        await client.call("prompt.submit", session_id=handle, text="after a long time")
        complete = await client.event("message.complete")
        assert complete["stored_session_id"] != first
        kinds = [kind for kind, _ in client.events(handle)]
        last = len(kinds) - 1 - kinds[::-1].index("session.info")
        assert "message.start" in kinds[last:]
        assert kinds.count("session.info") == 2
        assert await texts(client, handle) == ["after a long time", "echo: after a long time"]


# Going on with a conversation


async def test_a_live_conversation_is_resumed_under_its_handle_by_any_of_its_names(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await begun(client, title="Plans")
        await client.event("session.title")
        session_id = await stored(client, handle)
        for name in ({"session_id": session_id}, {"session_id": session_id[:-3]},
                     {"title": "Plans"}, {"session_id": handle}):  # fmt: skip
            resumed = await client.call("session.resume", **name)
            assert (resumed["session_id"], resumed["stored_session_id"]) == (handle, session_id)
            assert [row["text"] for row in resumed["messages"]] == ["hello", "echo: hello"]
            assert (resumed["title"], resumed["running"], resumed["inflight"]) == (
                "Plans", False, None,
            )  # fmt: skip


async def test_after_a_restart_a_conversation_is_resumed_by_its_stored_id(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await begun(client)
        session_id = await stored(client, handle)
    async with start() as runtime, connected(runtime) as client:
        assert await refused(client, "prompt.submit", session_id=handle, text="more") == 4001
        resumed = await client.call("session.resume", session_id=session_id)
        assert resumed["session_id"] == handle  # its key leads there, and a handle is its key's
        assert resumed["message_count"] == 2
        await client.call("prompt.submit", session_id=handle, text="more")
        await client.event("message.complete")
        assert await texts(client, handle) == ["hello", "echo: hello", "more", "echo: more"]
        assert await stored(client, handle) == session_id


async def test_a_conversation_of_another_platform_can_be_gone_on_with_and_is_not_ended(start):
    heard = RecordingHook()
    hooks = {"on_session_finalize": [heard.named("finalize")]}
    source = Source(platform="telegram", chat_id="5")
    async with start(hooks=hooks) as runtime:
        reply = await runtime.ask("agent:main:telegram:dm:5", "hello", source=source)
        async with connected(runtime) as client:
            resumed = await client.call("session.resume", session_id=reply.session_id)
            handle = resumed["session_id"]
            assert [row["text"] for row in resumed["messages"]] == ["hello", "echo: hello"]
            await client.call("prompt.submit", session_id=handle, text="from here")
            await client.event("message.complete")
            closed = await client.call("session.close", session_id=handle)
            assert closed == {"closed": True, "stored_session_id": None}
            assert await refused(client, "session.title", session_id=handle) == 4001
            again = await client.call("session.resume", session_id=reply.session_id)
            assert again["session_id"] == handle
        await runtime.wait_hooks()
        assert heard.calls == []
        later = await runtime.ask("agent:main:telegram:dm:5", "and there", source=source)
        assert later.session_id == reply.session_id


async def test_two_who_resume_at_once_get_one_handle(start):
    async with start() as runtime:
        reply = await runtime.ask("k", "hello")
        async with connected(runtime) as client:
            asked = [await client.ask("session.resume", session_id=reply.session_id)
                     for _ in range(10)]  # fmt: skip
            handles = {(await client.answer(number))["session_id"] for number in asked}
            assert len(handles) == 1
        assert len((await runtime.find(reply.session_id)).session_keys) == 2


async def test_a_session_that_another_process_has_ended_is_opened_again(start, path):
    async with start() as runtime:
        async with connected(runtime) as client:
            session_id = await stored(client, await begun(client))
        with SessionStore(path) as store:
            store.end_session(session_id, "user_exit")
        async with connected(runtime) as client:
            resumed = await client.call("session.resume", session_id=session_id)
            await client.call("prompt.submit", session_id=resumed["session_id"], text="more")
            complete = await client.event("message.complete")
            assert complete["stored_session_id"] == session_id


@pytest.mark.parametrize("verb", ["switch", "close_session", "branch"])
async def test_what_failed_can_be_asked_for_again(start_proxy, verb):
    errors = [StoreBusy("a lock")]

    async def fails(real, *args, **options):
        if errors:
            raise errors.pop()
        return await real(*args, **options)

    async with start_proxy(**{verb: fails}) as runtime:
        session_id = (await runtime.ask("k", "hello")).session_id
        async with connected(runtime) as client:
            if verb == "switch":
                asked = ("session.resume", {"session_id": session_id})
            else:
                method = {"close_session": "session.close", "branch": "session.branch"}[verb]
                asked = (method, {"session_id": await begun(client)})
            assert await refused(client, asked[0], **asked[1]) == -32000
            assert await client.call(asked[0], **asked[1])


async def test_a_session_that_was_closed_can_be_opened_again(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await begun(client)
        session_id = await stored(client, handle)
        await client.call("session.close", session_id=handle)
        resumed = await client.call("session.resume", session_id=session_id)
        assert resumed["stored_session_id"] == session_id
        await client.call("prompt.submit", session_id=resumed["session_id"], text="more")
        complete = await client.event("message.complete")
        assert complete["stored_session_id"] == session_id


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("before", [[], ["hello"]], ids=["first", "second"])
async def test_an_answer_in_flight_is_told_to_who_comes_later(start, early, before):
    """Text so far and deltas that follow are the whole answer, without a gap or a repetition."""
    gates = [Gate(), Gate()]
    script = [TextDelta("one "), gates[0], TextDelta("two "), gates[1], TextDelta("three"),
              "one two three"]  # fmt: skip
    async with start(agent=playing(*before, script)) as runtime:
        async with connected(runtime, linger=0) as first:
            if before:
                handle = await begun(first)
            else:
                handle = (await first.call("session.create"))["session_id"]
            done = await first.call("prompt.submit", session_id=handle, text="count")
            session_id = done["stored_session_id"]
            await gates[0].reached.wait()
            if not early:
                gates[0].open.set()
                await gates[1].reached.wait()
        async with connected(runtime) as client:
            gates[0].open.set()
            await gates[1].reached.wait()
            await trio.testing.wait_all_tasks_blocked()
            resumed = await client.call("session.resume", session_id=session_id)
            assert resumed["running"]
            assert resumed["inflight"]["text"] == "one two "
            gates[1].open.set()
            complete = await client.event("message.complete")
            rest = [payload["text"] for kind, payload in client.events() if kind.endswith("delta")]
            assert rest == ["three"]
            assert complete["turn_id"] == resumed["inflight"]["turn_id"]
            again = await client.call("session.resume", session_id=session_id)
            assert (again["running"], again["inflight"]) == (False, None)
            assert again["messages"][-1]["text"] == "one two three"


# Ends


async def test_close_finalizes_and_ends_the_session_of_now_once(start, path):
    heard = RecordingHook()
    hooks = {"on_session_finalize": [heard.named("finalize")]}
    async with start(agent=playing("one", rotating("child")), hooks=hooks) as runtime:
        async with connected(runtime) as client:
            handle = await begun(client)
            parent = await stored(client, handle)
            await client.call("prompt.submit", session_id=handle, text="more")
            await client.event("message.complete")
            asked = [await client.ask("session.close", session_id=handle) for _ in range(3)]
            answers = [await client.wait(lambda f, n=number: f.get("id") == n) for number in asked]
            assert sorted("result" in answer for answer in answers) == [False, False, True]
            assert await refused(client, "session.close", session_id=handle) == 4001
        await runtime.wait_hooks()
        assert heard.calls == [("finalize", "child")]
        assert heard.platforms == ["rpc"]
    assert heard.calls == [("finalize", "child")]  # and not once more at the end
    with SessionStore(path) as store:
        assert store.get_session("child").end_reason == "rpc_close"
        assert store.get_session(parent).end_reason == "compression"


async def test_close_ends_the_session_also_where_no_agent_was_built(start, path):
    heard = RecordingHook()
    async with start() as runtime, connected(runtime) as client:
        session_id = await stored(client, await begun(client))
    hooks = {"on_session_finalize": [heard.named("finalize")]}
    async with start(hooks=hooks) as runtime, connected(runtime) as client:
        resumed = await client.call("session.resume", session_id=session_id)
        done = await client.call("session.close", session_id=resumed["session_id"])
        assert done["stored_session_id"] == session_id
        await runtime.wait_hooks()
        assert heard.calls == [("finalize", session_id)]
        assert dict(runtime.statistics().builds) == {}
    assert rows_in(path)[session_id].end_reason == "rpc_close"


async def test_close_of_a_session_that_nothing_was_said_in_ends_nothing(start, path):
    async with start() as runtime, connected(runtime) as client:
        handle = (await client.call("session.create"))["session_id"]
        done = await client.call("session.close", session_id=handle)
        assert done == {"closed": True, "stored_session_id": None}
        assert await refused(client, "prompt.submit", session_id=handle, text="x") == 4001
    assert rows_in(path) == {}


async def test_close_answers_first_what_was_submitted(start):
    gate = Gate()
    async with start(agent=playing([gate, "done"])) as runtime, connected(runtime) as client:
        handle = (await client.call("session.create"))["session_id"]
        await client.call("prompt.submit", session_id=handle, text="hello")
        await gate.reached.wait()
        closing = await client.ask("session.close", session_id=handle)
        while (await client_code(client, handle)) != 4001:
            await trio.lowlevel.checkpoint()
        gate.open.set()
        done = await client.answer(closing)
        assert (await client.event("message.complete"))["text"] == "done"
        assert done["stored_session_id"] is not None


async def client_code(client, handle):
    try:
        await client.call("session.title", session_id=handle)
    except Problem as problem:
        return problem.code
    return None


async def test_the_end_of_the_input_ends_no_session_and_waits_for_what_runs(start, path):
    heard = RecordingHook()
    hooks = {"on_session_finalize": [heard.named("finalize")]}
    gate = Gate()
    async with start(agent=playing([gate, "done"]), hooks=hooks) as runtime:
        async with trio.open_nursery() as nursery:
            ours, theirs = trio.testing.memory_stream_pair()
            client = Client(ours, ours)
            nursery.start_soon(client.listen)
            nursery.start_soon(serve_and_close, runtime, theirs)
            handle = (await client.call("session.create"))["session_id"]
            await client.call("prompt.submit", session_id=handle, text="hello")
            await ours.send_eof()
            await gate.reached.wait()
            gate.open.set()
            complete = await client.event("message.complete")
        session_id = complete["stored_session_id"]
        assert heard.calls == []
    assert heard.calls == [("finalize", session_id)]  # the runtime's own end
    assert rows_in(path)[session_id].ended_at is None


async def test_a_server_that_is_told_to_stop_answers_what_it_has_taken(start):
    gate, stop = Gate(), trio.Event()
    async with start(agent=playing([gate, "done"])) as runtime:
        async with connected(runtime, stop=stop) as client:
            handle = (await client.call("session.create"))["session_id"]
            await client.call("prompt.submit", session_id=handle, text="hello")
            await gate.reached.wait()
            stop.set()
            gate.open.set()
            assert (await client.event("message.complete"))["text"] == "done"
            with trio.fail_after(10):
                await client.wait_end()


async def test_more_may_happen_at_once_than_a_listener_could_hold(start):
    async def talk(turn):
        for number in range(3000):
            turn.emit(ToolStarted(ToolCall(f"c{number}", "look")))

    async with start(agent=playing([talk, "done"])) as runtime, connected(runtime) as client:
        handle = await begun(client)
        heard = [kind for kind, _ in client.events(handle)]
        assert heard.count("tool.start") == 3000
        assert heard[-1] == "message.complete"


async def serve_and_close(runtime, stream):
    await serve(runtime, stream, stream)
    await stream.aclose()


async def test_a_turn_that_does_not_end_holds_the_end_up_so_long_and_no_longer(start):
    async with start(agent=playing(forever()), config=Config(drain_timeout=0)) as runtime:
        with trio.fail_after(10):
            async with connected(runtime, linger=0.05) as client:
                handle = (await client.call("session.create"))["session_id"]
                await client.call("prompt.submit", session_id=handle, text="hello")
        assert client.ended


async def test_a_client_that_reads_no_more_ends_its_connection_and_nothing_else(start):
    async with start() as runtime:
        async with trio.open_nursery() as nursery:
            ours, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(serve, runtime, theirs, theirs)
            await ours.aclose()
        assert (await runtime.ask("k", "hello")).text == "echo: hello"


async def test_a_client_that_only_writes_ends_its_connection_too(start):
    async with start() as runtime:
        theirs_in, ours_in = trio.testing.memory_stream_one_way_pair()
        ours_out, theirs_out = trio.testing.memory_stream_one_way_pair()
        await theirs_out.aclose()
        await theirs_in.send_all(b'{"id": 1, "method": "session.list"}\n')
        with trio.fail_after(10):
            await serve(runtime, ours_in, ours_out)


async def test_delete_refuses_what_is_live_and_what_is_not_there(start, path):
    async with start() as runtime, connected(runtime) as client:
        handle = await begun(client)
        session_id = await stored(client, handle)
        assert await refused(client, "session.delete", session_id=session_id) == 4023
        assert await refused(client, "session.delete", session_id=session_id[:-1]) == 4007
        assert await refused(client, "session.delete", session_id="nothing") == 4007
        assert await refused(client, "session.delete") == 4006
        await client.call("session.close", session_id=handle)
        done = await client.call("session.delete", session_id=session_id)
        assert done == {"deleted": True, "messages": 2}
        assert await refused(client, "session.resume", session_id=session_id) == 4007
    assert rows_in(path) == {}


# Branch and undo


async def test_a_branch_has_a_handle_of_its_own_and_the_original_stays(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await begun(client, title="Plans")
        await client.event("session.title")
        original = await stored(client, handle)
        branch = await client.call("session.branch", session_id=handle)
        assert branch["parent"] == original
        assert branch["title"] == "Plans #2"
        assert branch["session_id"] != handle
        for each, text in ((branch["session_id"], "there"), (handle, "here")):
            await client.call("prompt.submit", session_id=each, text=text)
            await client.event("message.complete", each)
        assert (await texts(client, handle))[2:] == ["here", "echo: here"]
        assert (await texts(client, branch["session_id"]))[2:] == ["there", "echo: there"]
        named = await client.call("session.branch", session_id=handle, name="Other")
        assert named["title"] == "Other"
        assert await refused(client, "session.branch", session_id=handle, name="x" * 200) == 4022
        empty = (await client.call("session.create"))["session_id"]
        assert await refused(client, "session.branch", session_id=empty) == 4008
    async with start() as runtime, connected(runtime) as client:
        again = await client.call("session.resume", session_id=branch["stored_session_id"])
        assert again["session_id"] == branch["session_id"]


async def test_undo_takes_back_and_says_how_much(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await begun(client)
        for text in ("two", "three"):
            await client.call("prompt.submit", session_id=handle, text=text)
            await client.event("message.complete")
        assert await client.call("session.undo", session_id=handle) == {"removed": 2}
        assert await texts(client, handle) == ["hello", "echo: hello", "two", "echo: two"]
        assert await client.call("session.undo", session_id=handle, exchanges=5) == {"removed": 4}
        assert await refused(client, "session.undo", session_id=handle) == 4018
        assert await refused(client, "session.undo", session_id=handle, exchanges=0) == -32602
        empty = (await client.call("session.create"))["session_id"]
        assert await refused(client, "session.undo", session_id=empty) == 4018
        await client.call("prompt.submit", session_id=handle, text="again")
        await client.event("message.complete")
        assert await texts(client, handle) == ["again", "echo: again"]


# While an answer runs


async def test_what_cannot_be_done_during_an_answer_is_refused_at_once(start):
    gate = Gate()
    async with (
        start(agent=playing("one", [gate, "two"])) as runtime,
        connected(runtime) as client,
    ):
        handle = await begun(client)
        await client.call("prompt.submit", session_id=handle, text="more")
        await gate.reached.wait()
        for method in ("session.compress", "session.undo", "session.branch"):
            assert await refused(client, method, session_id=handle) == 4009
        code = await refused(client, "prompt.submit", session_id=handle, text="no", busy="reject")
        assert code == 4009
        queued = await client.call("prompt.submit", session_id=handle, text="later")
        assert queued["status"] == "queued"
        gate.open.set()
        await client.event("message.complete")
        assert (await client.event("message.complete"))["message_ids"] == [queued["message_id"]]
        assert await texts(client, handle) == [
            "hello", "one", "more", "two", "later", "echo: later",
        ]  # fmt: skip


async def test_an_interrupt_does_not_wait_behind_a_slow_request(start):
    """Compressing takes for ever; an interrupt of another session is heard all the same."""
    compressor = DeterministicCompressor(delay=1000)
    config = Config(
        compression=CompressionConfig(window=20_000, max_output=500, protect_first=0),
        drain_timeout=0,
    )
    gate = Gate()
    script = [f"answer {number} {LONG}" for number in range(8)]
    agent = playing(*script, [TextDelta("so far"), gate, "never"])
    async with start(agent=agent, compressor=compressor, config=config) as runtime:
        async with connected(runtime, linger=0) as client:
            slow = await grown(client, 8)
            await client.ask("session.compress", session_id=slow)
            await client.event("status.update")
            handle = (await client.call("session.create"))["session_id"]
            await client.call("prompt.submit", session_id=handle, text="go")
            await gate.reached.wait()
            done = await client.call("session.interrupt", session_id=handle)
            assert done == {"status": "interrupted"}
            complete = await client.event("message.complete", handle)
            assert complete["status"] == "interrupted"
            assert await texts(client, handle) == ["go", "so far"]
            assert await client.call("session.interrupt", session_id=handle) == {"status": "idle"}


async def test_an_interrupt_right_behind_its_prompt_stops_it(start):
    async with start(agent=playing(forever(), forever(), forever())) as runtime:
        async with connected(runtime) as client:
            handle = (await client.call("session.create"))["session_id"]
            done = await client.call("prompt.submit", session_id=handle, text="go")
            assert (await client.call("session.interrupt", session_id=handle))["status"] == (
                "interrupted"
            )
            ended = await client.wait(
                lambda frame: (
                    frame.get("method") == "event"
                    and frame["params"]["type"] == "message.complete"
                    and done["message_id"] in frame["params"]["payload"]["message_ids"]
                )
            )
            assert ended["params"]["payload"]["status"] in {"interrupted", "error"}


async def test_an_interrupt_of_what_has_not_begun_yet_keeps_it_from_beginning(start):
    gate = Gate()

    class Slow(DeterministicCompressor):
        async def summarize(self, request, /):
            await gate(None)
            return await super().summarize(request)

    config = Config(compression=CompressionConfig(window=20_000, max_output=500, protect_first=0))
    async with start(config=config, compressor=Slow()) as runtime, connected(runtime) as client:
        handle = await grown(client, 8)
        compressing = await client.ask("session.compress", session_id=handle)
        await gate.reached.wait()
        waiting = await client.call("prompt.submit", session_id=handle, text="never mind")
        done = await client.call("session.interrupt", session_id=handle)
        assert done == {"status": "interrupted"}
        gate.open.set()
        await client.answer(compressing)
        ended = await client.wait(
            lambda frame: (
                frame.get("params", {}).get("type") == "message.complete"
                and waiting["message_id"] in frame["params"]["payload"]["message_ids"]
            )
        )
        assert ended["params"]["payload"]["status"] == "error"
        assert "never mind" not in await texts(client, handle)


async def test_an_answer_that_is_quicker_than_its_receipt_leaves_nothing_open(start_proxy):
    async def accept(real, inbound, **options):
        accepted = await real(inbound, **options)
        with trio.fail_after(10):
            while await real.__self__.open_inbox(inbound.session_key):
                await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        return accepted

    async with start_proxy(accept=accept) as runtime, connected(runtime) as client:
        handle = await begun(client)
        assert (await client.call("session.resume", session_id=handle))["running"] is False
        assert await client.call("session.undo", session_id=handle) == {"removed": 2}


async def test_an_answer_that_ends_while_its_session_is_resumed_is_not_missing(start_proxy):
    gate = Gate()

    async def get_messages(real, *args, **options):
        rows = await real(*args, **options)
        if gate.reached.is_set() and not gate.open.is_set():
            gate.open.set()
            with trio.fail_after(10):
                while runtime.running_turns():
                    await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
        return rows

    agent = playing("one", [gate, "two"])
    async with start_proxy(agent=agent, get_messages=get_messages) as runtime:
        async with connected(runtime) as client:
            handle = await begun(client)
            await client.call("prompt.submit", session_id=handle, text="more")
            await gate.reached.wait()
            resumed = await client.call("session.resume", session_id=handle)
            assert [row["text"] for row in resumed["messages"]] == ["hello", "one", "more", "two"]
            assert (resumed["running"], resumed["inflight"]) == (False, None)


async def test_steering_is_heard_by_the_running_answer(start):
    gate = Gate()
    heard = []

    async def listen(turn):
        heard.extend(message.content for message in turn.steered())

    async with start(agent=playing([gate, listen, "done"])) as runtime:
        async with connected(runtime) as client:
            handle = (await client.call("session.create"))["session_id"]
            assert await refused(client, "session.steer", session_id=handle, text="x") == 4010
            assert await refused(client, "session.steer", session_id=handle) == 4002
            await client.call("prompt.submit", session_id=handle, text="go")
            await gate.reached.wait()
            one = await client.call("session.steer", session_id=handle, text="left")
            two = await client.call("prompt.submit", session_id=handle, text="up", busy="steer")
            assert one["status"] == two["status"] == "steered"
            gate.open.set()
            complete = await client.event("message.complete")
            assert heard == ["left", "up"]
            assert {one["message_id"], two["message_id"]} < set(complete["message_ids"])
            kinds = [payload["kind"] for kind, payload in client.events(handle)
                     if kind == "status.update"]  # fmt: skip
            assert kinds == ["steered", "steered"]


async def test_prompts_of_one_session_keep_their_order(start):
    gate = Gate()
    async with start(agent=playing([gate, "one"])) as runtime, connected(runtime) as client:
        handle = (await client.call("session.create"))["session_id"]
        words = [f"word {number}" for number in range(50)]
        requests = [
            {"id": number, "method": "prompt.submit", "params": {"session_id": handle, "text": w}}
            for number, w in enumerate(words, 100)
        ]
        await client.send(b"\n".join(json.dumps(each).encode() for each in requests))
        asked = [each["id"] for each in requests]
        ids = [(await client.answer(number))["message_id"] for number in asked]
        assert ids == sorted(ids)
        gate.open.set()
        while ids[-1] not in (await client.event("message.complete"))["message_ids"]:
            pass
        said = [text for text in await texts(client, handle) if text.startswith("word")]
        assert said == words


# What is heard


async def test_a_turn_is_heard_from_beginning_to_end(start):
    call = ToolCall("c1", "look", '{"at": "sea"}')
    steps = [
        ReasoningDelta("hm"), TextDelta("let me see"), ToolStarted(call),
        ToolFinished("c1", "waves"), TextDelta("wa"), TextDelta("ves"),
        TurnResult(text="waves", usage=[Usage(input_tokens=5, output_tokens=2, cost=0.5),
                                        Usage(input_tokens=7)]),
    ]  # fmt: skip
    async with start(agent=playing(steps)) as runtime, connected(runtime) as client:
        handle = await begun(client)
        said = client.events(handle)
        assert [kind for kind, _ in said] == [
            "session.info", "message.start", "reasoning.delta", "message.delta", "tool.start",
            "tool.complete", "message.delta", "message.complete",
        ]  # fmt: skip
        told = dict(said)
        assert told["tool.start"] == {
            "call_id": "c1", "name": "look", "arguments": '{"at": "sea"}',
        }  # fmt: skip
        assert told["tool.complete"] == {"call_id": "c1", "content": "waves", "failed": False}
        assert told["message.delta"]["text"] == "waves"
        complete = told["message.complete"]
        assert (complete["text"], complete["status"]) == ("waves", "complete")
        assert (complete["usage"]["input_tokens"], complete["usage"]["cost"]) == (12, 0.5)
        rows = (await client.call("session.history", session_id=handle))["messages"]
        assert rows[1]["tool_calls"][0]["name"] == "look"
        assert rows[2]["tool_call_id"] == "c1"


async def test_an_answer_that_fails_is_an_error_with_its_text(start):
    async with start(agent=playing(ValueError("the model is gone"))) as runtime:
        async with connected(runtime) as client:
            await begun(client)
            complete = client.events()[-1][1]
            assert complete["status"] == "error"
            assert "the model is gone" in complete["text"]
            assert "the model is gone" in complete["error"]


WITHOUT_WORDS = {
    "partial": (
        TurnResult(api_calls=5, partial=True, error="it called nonexistent_tool"),
        "complete", ["nonexistent_tool"],
    ),
    "overflow": (
        TurnResult(api_calls=0, failed=True, error="400: context length exceeded"),
        "error", ["context window", "/compact"],
    ),
    "failed": (
        TurnResult(api_calls=0, failed=True, error="500 Internal Server Error"),
        "error", ["500 Internal Server Error", "/reset"],
    ),
    "interrupted": (TurnResult(api_calls=3, interrupted=True), "interrupted", []),
    "words": (TurnResult(text="Hello!"), "complete", ["Hello!"]),
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT_WORDS)
async def test_an_answer_without_words_says_why(start, name):
    result, status, words = WITHOUT_WORDS[name]
    async with start(agent=playing(result)) as runtime, connected(runtime) as client:
        await begun(client)
        complete = client.events()[-1][1]
        assert all(word in complete["text"] for word in words)
        assert bool(complete["text"]) == bool(words)
        assert complete["status"] == status


async def test_an_approval_that_a_tool_needs_is_asked_for(start):
    approval = Approval(7, "k", "k", "send", '{"to": "all"}', "pending", 1.0, 2.0)
    async with start(agent=playing([ApprovalAsked(approval), "wait"])) as runtime:
        async with connected(runtime) as client:
            await begun(client)
            asked = dict(client.events())["approval.request"]
            assert asked == {
                "number": 7, "tool": "send", "arguments": '{"to": "all"}', "expires_at": 2.0,
            }  # fmt: skip


async def test_events_that_make_no_sense_end_no_connection(start, caplog):
    steps = [TextDelta(None), ToolStarted(None), ToolFinished("c1", object()),
             TextDelta("half \ud800 of it"), "done"]  # fmt: skip
    async with start(agent=playing(steps)) as runtime, connected(runtime) as client:
        handle = await begun(client)
        assert "could not be told" in caplog.text
        deltas = "".join(p["text"] for kind, p in client.events(handle) if kind == "message.delta")
        assert deltas.endswith("half ? of it")
        assert client.numbers == list(range(1, len(client.frames) + 1))


async def test_a_client_hears_nothing_of_the_conversations_of_others(start):
    async with start() as runtime, connected(runtime) as one, connected(runtime) as two:
        mine = await begun(one, "for one")
        await begun(two, "for two")
        await runtime.ask("k", "for nobody")
        assert "for two" not in json.dumps(one.frames)
        assert "for one" not in json.dumps(two.frames)
        assert "nobody" not in json.dumps(one.frames + two.frames)
        assert await refused(two, "prompt.submit", session_id=mine, text="x") == 4001


# Numbers


async def test_a_client_that_was_away_asks_for_what_it_missed(start):
    """The same peer, carried by one transport and then by another."""
    gate = Gate()
    steps = [TextDelta("one "), gate, TextDelta("two"), "one two"]
    async with start(agent=playing(steps)) as runtime, open_peer(runtime) as peer:
        first = []
        peer.greet()
        peer.receive(b'{"id": 1, "method": "session.create"}')
        first += [json.loads(await peer.take()) for _ in range(2)]
        handle = first[-1]["result"]["session_id"]
        ask = {"session_id": handle, "text": "count"}
        peer.receive(json.dumps({"id": 2, "method": "prompt.submit", "params": ask}).encode())
        while first[-1].get("params", {}).get("type") != "message.delta":
            first.append(json.loads(await peer.take()))
        seen = 3  # the connection broke: the rest was written and never read
        gate.open.set()
        await runtime.ask("k", "let it end")
        peer.greet()
        ask = {"after": seen, "epoch": first[0]["params"]["payload"]["epoch"]}
        peer.receive(json.dumps({"id": 3, "method": "events.replay", "params": ask}).encode())
        later = []
        while "frames" not in later[-1:][0].get("result", {}) if later else True:
            later.append(json.loads(await peer.take()))
        replayed = later.pop()["result"]
        assert replayed["complete"]
        frames = {number(frame): frame for frame in [*first[:seen], *replayed["frames"], *later]}
        assert sorted(frames) == list(range(1, max(frames) + 1))
        assert [frames[n] for n in range(1, len(first) + 1)] == first
        complete = [f for f in frames.values() if f.get("params", {}).get("type") ==
                    "message.complete"]  # fmt: skip
        assert [frame["params"]["payload"]["text"] for frame in complete] == ["one two"]


def number(frame):
    return frame["seq"] if "seq" in frame else frame["params"]["seq"]


async def test_numbers_of_another_run_are_known_to_be_so(start):
    async with start() as runtime, connected(runtime) as client:
        await begun(client)
        replayed = await client.call("events.replay", after=2, epoch="another")
        assert not replayed["complete"]
        epoch = client.frames[0]["params"]["payload"]["epoch"]
        assert replayed["epoch"] == epoch
        assert (await client.call("events.replay", after=0, epoch=epoch))["complete"]
        assert not (await client.call("events.replay", after=10**6))["complete"]
        assert client.numbers == list(range(1, len(client.frames) + 1))


async def test_the_same_event_again_is_the_same_message_and_runs_once(start):
    gate = Gate()
    async with start(agent=playing([gate, "done"])) as runtime, connected(runtime) as client:
        handle = (await client.call("session.create"))["session_id"]
        other = (await client.call("session.create"))["session_id"]
        ask = {"session_id": handle, "text": "once", "event_id": "e1"}
        first = await client.call("prompt.submit", **ask)
        again = await client.call("prompt.submit", **ask)
        assert again["message_id"] == first["message_id"]
        gate.open.set()
        await client.event("message.complete")
        late = await client.call("prompt.submit", **ask)
        assert (late["status"], late["message_id"]) == ("answered", first["message_id"])
        assert await texts(client, handle) == ["once", "done"]
        new = await client.call("prompt.submit", **ask | {"session_id": other})
        assert new["message_id"] != first["message_id"]
        await client.event("message.complete", other)
        assert (await client.call("session.resume", session_id=handle))["running"] is False


# Refusals


async def test_what_is_missing_or_wrong_has_a_code_of_its_own(start):
    async with start() as runtime, connected(runtime) as client:
        handle = (await client.call("session.create"))["session_id"]
        for method in ("prompt.submit", "session.title", "session.history", "session.branch",
                       "session.undo", "session.compress", "session.interrupt", "session.steer",
                       "session.close"):  # fmt: skip
            assert await refused(client, method, session_id="00000000") == 4001
        assert await refused(client, "prompt.submit", session_id=handle) == 4002
        assert await refused(client, "prompt.submit", session_id=handle, text=" \n") == 4002
        assert await refused(client, "session.resume") == 4006
        assert await refused(client, "session.resume", session_id="nothing") == 4007
        assert await refused(client, "session.resume", title="nothing") == 4007
        assert await refused(client, "session.history", stored_session_id="no") == 4007
        assert await refused(client, "session.nothing") == -32601
        assert await refused(client, "session.list", limit=0) == -32602
        assert await refused(client, "session.list", limit=10**30) == -32602
        assert await refused(client, "session.list", limit=True) == -32602
        assert await refused(client, "session.list", colour="red") == -32602
        assert await refused(client, "prompt.submit", session_id=handle, text=5) == -32602
        assert await refused(client, "events.replay") == -32602
        long = "x" * 1_100_000
        assert await refused(client, "prompt.submit", session_id=handle, text=long) == -32602
        assert (await client.call("session.list"))["sessions"] == []


async def test_as_many_sessions_as_are_allowed_and_no_more(start):
    async with start() as runtime, open_peer(runtime, max_handles=2) as peer:
        for n in range(3):
            peer.receive(b'{"id": %d, "method": "session.create"}' % n)
        answers = [json.loads(await peer.take()) for _ in range(3)]
        assert sorted(a.get("error", {}).get("code", 0) for a in answers) == [0, 0, 4090]
        kept = next(a["result"]["session_id"] for a in answers if "result" in a)
        params = b'{"session_id": "%s"}' % kept.encode()
        peer.receive(b'{"id": 5, "method": "session.close", "params": %s}' % params)
        await peer.take()
        peer.receive(b'{"id": 6, "method": "session.create"}')
        assert "result" in json.loads(await peer.take())


async def test_a_session_that_could_not_be_created_takes_no_place(start):
    async with start() as runtime, open_peer(runtime, max_handles=1) as peer:
        for n, title in enumerate(["", "x" * 200, "Plans"]):
            frame = {"id": n, "method": "session.create", "params": {"title": title}}
            peer.receive(json.dumps(frame).encode())
            answer = json.loads(await peer.take())
            assert answer.get("error", {}).get("code") == [4021, 4022, None][n]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreFull("the disk is full"), -32000),
        (StoreBusy("locked"), -32000),
        (StoreError("a damaged page"), -32603),
        (RuntimeError("secret at /home/me"), -32603),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_failure_inside_is_told_in_a_sentence_and_ends_nothing(
    start_proxy, error, code, caplog
):
    errors = [error]

    async def listed(real, **options):
        if errors:
            raise errors.pop()
        return await real(**options)

    async with start_proxy(list_sessions=listed) as runtime, connected(runtime) as client:
        assert await refused(client, "session.list") == code
        [frame] = [frame for frame in client.frames if "error" in frame]
        assert frame["error"]["message"].endswith(".")
        assert "/home/me" not in frame["error"]["message"]
        assert ("secret" in caplog.text) == isinstance(error, RuntimeError)
        assert (await client.call("session.list"))["sessions"] == []


async def test_a_runtime_that_drains_takes_nothing_new_and_says_so(start):
    async with start() as runtime, connected(runtime) as client:
        handle = (await client.call("session.create"))["session_id"]
        await runtime.drain(0)
        for method in ("prompt.submit", "session.title"):
            params = {"text": "x"} if method == "prompt.submit" else {"title": "x"}
            assert await refused(client, method, session_id=handle, **params) == -32000


async def test_an_id_that_is_still_running_is_not_taken_twice(start):
    compressing = DeterministicCompressor(delay=1000)
    config = Config(
        compression=CompressionConfig(window=20_000, max_output=500, protect_first=0),
        drain_timeout=0,
    )
    async with start(compressor=compressing, config=config) as runtime:
        async with connected(runtime, linger=0) as client:
            handle = await grown(client, 8)
            params = {"session_id": handle}
            await client.send({"id": "same", "method": "session.compress", "params": params})
            await client.event("status.update")
            await client.send({"id": "same", "method": "session.list"})
            frame = await client.wait(lambda frame: "error" in frame)
            assert (frame["id"], frame["error"]["code"]) == (None, -32600)
            assert "same" in frame["error"]["message"]


async def test_a_notification_is_done_and_not_answered(start):
    async with start() as runtime, connected(runtime) as client:
        handle = (await client.call("session.create"))["session_id"]
        ask = {"session_id": handle, "text": "quietly"}
        await client.send({"method": "prompt.submit", "params": ask})
        assert (await client.event("message.complete"))["text"] == "echo: quietly"
        await client.send({"method": "prompt.submit", "params": ask | {"session_id": "none"}})
        assert (await client.event("error"))["code"] == 4001
        await client.send({"method": "session.nothing"})
        assert (await client.event("error"))["code"] == -32601
        assert [frame["id"] for frame in client.frames if "id" in frame] == [1]


# Hostile lines

GARBAGE = st.one_of(
    st.binary(max_size=200),
    st.from_regex(rb'\A\{"(id|method|params)": ?("|\[|\{|null|1e999|-|\\ud8)*'),
    st.sampled_from([b"[" * 5000, b'{"a":' * 5000, b"\0", b"\xff\xfe", b"[]", b"{}", b'{"id":1}',
                     b'"', b"\r", b"  ", b"", b'{"id":"' + b"x" * 5000]),
)  # fmt: skip


def lines_of(pieces):
    """What a reader makes of these bytes."""
    return [line for line in b"\n".join(pieces).split(b"\n") if line.strip()]


@given(st.lists(st.tuples(GARBAGE, st.booleans()), max_size=12))
@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_request_among_garbage_is_answered_and_every_line_at_most_once(tmp_path, steps):
    pieces, valid = [], []
    for garbage, request in steps:
        pieces.append(garbage)
        if request:
            name = f"valid {len(valid)}"
            valid.append(name)
            pieces.append(json.dumps({"id": name, "method": "session.list"}).encode())
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.db"

    async def main():
        from hermes import open_runtime

        async with open_runtime(path, agent=playing(), open_worker=inline()) as runtime:
            ours, theirs = trio.testing.memory_stream_pair()
            client = Client(ours, ours)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.listen)
                nursery.start_soon(serve_and_close, runtime, theirs)
                await ours.send_all(b"\n".join(pieces))
                await ours.send_eof()
            return client

    client = trio.run(main)
    answers = [frame for frame in client.frames if "id" in frame]
    answered = [frame["id"] for frame in answers if "result" in frame]
    assert sorted(map(str, answered)) == sorted(valid)
    silent = sum(frame.get("params", {}).get("type") == "error" for frame in client.frames)
    assert len(answers) + silent == len(lines_of(pieces))
    assert client.numbers == list(range(1, len(client.frames) + 1))


async def test_lines_that_are_too_long_are_skipped_and_refused(start):
    async with start() as runtime, connected(runtime) as client:
        await client.send(b'{"id": 1, "method": "' + b"x" * (5 * 1024 * 1024) + b'"}')
        await client.send(b"[" * 1_000_000)
        await client.send(b'{"id": 7, "method": "session.list", "params": {"a": %s}}' % (
            b"[" * 200_000 + b"]" * 200_000))  # fmt: skip
        await client.send(b'{"id": 9, "method": "session.list"}\r')
        await client.wait(lambda frame: frame.get("id") == 9)
        codes = [frame["error"]["code"] for frame in client.frames if "error" in frame]
        assert codes == [-32600, -32600, -32600]
        assert "skipped" in client.frames[1]["error"]["message"]


# Many, and slow


async def test_a_client_that_does_not_read_holds_no_turn_up(start):
    pieces = [TextDelta("x" * 100) for _ in range(300)]
    async with start(agent=lambda _: ScriptedAgent([[*pieces, "x" * 30_000]])) as runtime:
        async with open_peer(runtime, room=20_000) as peer, trio.open_nursery() as nursery:
            handles = []
            for n in range(10):
                peer.receive(b'{"id": %d, "method": "session.create"}' % n)
                handles.append(json.loads(await peer.take())["result"]["session_id"])
            with runtime.events() as events:
                for n, handle in enumerate(handles):
                    ask = {"session_id": handle, "text": "go"}
                    frame = {"id": 100 + n, "method": "prompt.submit", "params": ask}
                    peer.receive(json.dumps(frame).encode())
                ended = 0
                with trio.fail_after(20):
                    async for each in events:
                        ended += isinstance(each.event, TurnEnded)
                        if ended == 10:
                            break
            await trio.testing.wait_all_tasks_blocked()
            assert peer._outgoing._light <= 20_000
            peer.close()
            frames = []
            while (line := await peer.take()) is not None:
                frames.append(json.loads(line))
            nursery.cancel_scope.cancel()
    said = [frame["params"] for frame in frames if frame.get("method") == "event"]
    complete = [each for each in said if each["type"] == "message.complete"]
    assert sorted(each["session_id"] for each in complete) == sorted(handles)
    assert {len(each["payload"]["text"]) for each in complete} == {30_000}
    assert sum("result" in frame for frame in frames) == 10
    assert any(each["payload"].get("kind") == "shed" for each in said)
    assert [number(frame) for frame in frames] == list(range(11, 11 + len(frames)))


async def test_requests_are_not_read_while_their_answers_are_not(start, autojump_clock):
    async with start(open_worker=inline()) as runtime:
        await runtime.ask("k", "x" * 100_000)
        [listed] = await runtime.sessions("k")
        params = {"stored_session_id": listed.session.id}
        sent = 0
        async with trio.open_nursery() as nursery:
            ours, theirs = trio.testing.lockstep_stream_pair()
            nursery.start_soon(serve, runtime, theirs, theirs)
            with trio.move_on_after(60):
                while sent < 500:
                    ask = {"id": sent, "method": "session.history", "params": params}
                    await ours.send_all(json.dumps(ask).encode() + b"\n")
                    sent += 1
            assert 5 < sent < 500
            nursery.cancel_scope.cancel()


async def test_more_requests_at_once_than_can_be_are_refused(start, monkeypatch):
    from hermes.adapters.jsonrpc import connection as module

    monkeypatch.setattr(module, "MAX_RUNNING", 5)
    async with start() as runtime, open_peer(runtime) as peer:
        for n in range(8):
            peer.receive(b'{"id": %d, "method": "session.list"}' % n)
        answers = [json.loads(await peer.take()) for _ in range(8)]
        assert sorted(a.get("error", {}).get("code", 0) for a in answers) == [-32000] * 3 + [0] * 5


async def test_a_thousand_sessions_are_a_matter_of_course(start):
    async with start() as runtime, connected(runtime) as client:
        asked = [await client.ask("session.create") for _ in range(1000)]
        handles = [(await client.answer(number))["session_id"] for number in asked[-20:]]
        assert len({f["result"]["session_id"] for f in client.frames if "result" in f}) == 1000
        for handle in handles:
            await client.ask("prompt.submit", session_id=handle, text=f"hello {handle}")
        for handle in handles:
            complete = await client.wait(
                lambda f, h=handle: (
                    f.get("params", {}).get("type") == "message.complete"
                    and f["params"]["session_id"] == h
                )
            )
            assert complete["params"]["payload"]["text"] == f"echo: hello {handle}"


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_is_asked_at_once_is_answered_once_and_every_message_ends_once(start, seed):
    choose = random.Random(seed)

    async def talk(turn):
        for word in turn.text.split():
            turn.emit(TextDelta(f"{word} "))
            await trio.sleep(choose.random() / 200)
            turn.steered()

    agents = [ScriptedAgent([[talk, "done"]] * 500) for _ in range(300)]
    compressor = DeterministicCompressor()
    async with start(agent=lambda _: agents.pop(), compressor=compressor) as runtime:
        async with connected(runtime) as client:
            asked = await ask_at_random(client, choose)
        frames = client.frames
    answers = {frame["id"]: frame for frame in frames if "id" in frame}
    assert sorted(answers) == sorted(asked)
    assert sum("id" in frame for frame in frames) == len(asked)
    problems = [answer["error"] for answer in answers.values() if "error" in answer]
    expected = {-32000, 4001, 4002, 4007, 4008, 4009, 4010, 4018, 4022}
    assert [problem for problem in problems if problem["code"] not in expected] == []
    assert client.numbers == list(range(1, len(frames) + 1))
    ended = Counter(
        (frame["params"]["session_id"], number)
        for frame in frames
        if frame.get("params", {}).get("type") == "message.complete"
        for number in frame["params"]["payload"]["message_ids"]
    )
    assert set(ended.values()) == {1}
    closed = {asked[n]["session_id"] for n in asked if "closed" in answers[n].get("result", {})}
    taken = {
        (params["session_id"], answers[n]["result"]["message_id"])
        for n, params in asked.items()
        if "message_id" in answers[n].get("result", {}) and params["session_id"] not in closed
    }
    assert taken
    assert taken <= set(ended)


KINDS = {
    "submit": 12, "steer": 3, "title": 2, "undo": 2, "branch": 1, "interrupt": 3, "compress": 1,
    "history": 2, "resume": 2, "list": 1, "replay": 1, "close": 0.3, "wait": 4,
}  # fmt: skip


def request_at_random(choose, handle):
    """A method and its params."""
    kind = choose.choices([*KINDS], [*KINDS.values()])[0]
    mine = {"session_id": handle}
    if kind == "submit":
        mine["text"] = choose.choice(["one two three", "/help", "/status", ""])
        mine["busy"] = choose.choice([None, "queue", "interrupt", "steer", "reject"])
        mine |= choose.choice([{}, {"event_id": f"e{choose.randrange(20)}"}])
    others = {
        "submit": ("prompt.submit", mine),
        "steer": ("session.steer", mine | {"text": "left"}),
        "title": ("session.title", mine | {"title": f"T{choose.randrange(5)}"}),
        "list": ("session.list", {}),
        "replay": ("events.replay", {"after": choose.randrange(50)}),
        "wait": ("session.history", mine),
    }
    return kind, *others.get(kind, (f"session.{kind}", mine))


async def ask_at_random(client, choose):
    """Two hundred requests, most of them not waited for; the params of each by its id."""
    asked, handles = {}, []
    for step in range(204):
        if step < 4:
            kind, method, params = "branch", "session.create", {}
        else:
            kind, method, params = request_at_random(choose, choose.choice(handles))
        if kind == "close" and params["session_id"] == handles[0]:
            continue  # so that one is left in any case
        number = await client.ask(method, **params)
        asked[number] = params
        if kind in {"branch", "wait"}:
            done = await client.wait(lambda frame, n=number: frame.get("id") == n)
            if kind == "branch" and "result" in done:
                handles.append(done["result"]["session_id"])
    return asked


async def test_notices_are_told(start):
    class Telling:
        async def run(self, turn):
            runtime._context.publish(turn.session_key, turn.turn_id, Notice("mind the step"))
            return TurnResult(text="done")

    async with start(agent=lambda _: Telling()) as runtime, connected(runtime) as client:
        await begun(client)
        told = [payload for kind, payload in client.events() if kind == "status.update"]
        assert told == [{"kind": "notice", "text": "mind the step"}]


async def test_a_message_by_another_way_is_heard_under_the_handle_of_its_key(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await begun(client)
        key = next(iter((await runtime.find(await stored(client, handle))).session_keys))
        await runtime.submit(Inbound(key, "e", "from elsewhere"))
        assert (await client.event("message.complete"))["text"] == "echo: from elsewhere"
