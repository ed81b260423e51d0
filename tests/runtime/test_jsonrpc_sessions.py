"""JSON-RPC sessions: creation, titles, handles, resuming, closing."""

from __future__ import annotations

import functools

import pytest
import trio
import trio.testing

from hermes import Config
from hermes.config import CompressionConfig
from hermes.errors import StoreBusy
from hermes.events import (
    TextDelta,
)
from hermes.messages import ExpiryPolicy, Message, Source
from hermes.store import Rotation, SessionStore
from hermes.testing import DeterministicCompressor, RecordingHook
from tests.support.jsonrpc_client import (
    Problem,
    connected,
)
from tests.support.jsonrpc_sessions import (
    LONG,
    Gate,
    error_code,
    long_session,
    new_session,
    rotating,
    scripted,
    stored_id,
    stored_sessions,
    transcript,
)


@pytest.fixture
def workers():
    """Threads: clients wait for streams in real time."""
    return "threads"


# A session is stored with its first message


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
            assert (await runtime.admin.statistics()).actors <= 3
    assert stored_sessions(path) == {}


def _just(made):
    return {"session_id": made["session_id"]}


async def test_a_session_is_stored_with_the_first_prompt(start, path):
    async with start() as runtime, connected(runtime) as client:
        handle = await new_session(client)
        [info] = [payload for kind, payload in client.events() if kind == "session.info"]
        [row] = (await client.call("session.list"))["sessions"]
        assert (row["session_id"], row["live"], row["source"]) == (
            info["stored_session_id"], handle, "rpc",
        )  # fmt: skip
        assert (info["old_session_id"], info["reason"]) == (None, "created")
        assert set(stored_sessions(path)) == {info["stored_session_id"]}


async def test_a_prompt_is_on_disk_when_its_response_comes_and_before_it_runs(start, path):
    gate = Gate()
    async with start(build_agent=scripted([gate, "done"])) as runtime, connected(runtime) as client:
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


# Pending titles


async def test_a_title_is_pending_until_the_first_turn_and_sent_after_it(start, path):
    async with start() as runtime, connected(runtime) as client:
        made = await client.call("session.create", title="  Plans\n ")
        assert made["pending_title"] == "Plans"
        handle = made["session_id"]
        title = await client.call("session.title", session_id=handle)
        assert (title["title"], title["pending"]) == ("Plans", True)
        assert stored_sessions(path) == {}
        await client.call("prompt.submit", session_id=handle, text="hello")
        told = await client.event("session.title")
        kinds = [kind for kind, _ in client.events(handle)]
        assert kinds.index("message.complete") < kinds.index("session.title")
        title = await client.call("session.title", session_id=handle)
        assert (title["title"], title["pending"]) == ("Plans", False)
        assert told == {"stored_session_id": title["stored_session_id"], "title": "Plans"}


async def test_a_title_can_be_set_while_the_first_answer_runs(start):
    gate = Gate()
    async with start(build_agent=scripted([gate, "done"])) as runtime, connected(runtime) as client:
        handle = (await client.call("session.create"))["session_id"]
        await client.call("prompt.submit", session_id=handle, text="hello")
        await gate.reached.wait()
        title = await client.call("session.title", session_id=handle, title="Plans")
        assert title["pending"]
        gate.open.set()
        assert (await client.event("session.title"))["title"] == "Plans"


async def test_the_title_of_a_stored_session_is_set_at_once_and_sent(start):
    gate = Gate()
    async with (
        start(build_agent=scripted("one", [gate, "two"])) as runtime,
        connected(runtime) as client,
    ):
        handle = await new_session(client)
        await client.call("prompt.submit", session_id=handle, text="more")
        await gate.reached.wait()
        title = await client.call("session.title", session_id=handle, title=" Plans ")
        assert (title["title"], title["pending"]) == ("Plans", False)
        assert (await client.event("session.title"))["title"] == "Plans"
        gate.open.set()


async def test_a_title_in_use_is_refused_at_once_and_another_can_be_set(start, path):
    async with start() as runtime, connected(runtime) as client:
        handle = await new_session(client, title="Plans")
        await client.call("prompt.submit", session_id=handle, text="/new")
        await client.event("message.complete", handle)
        assert await error_code(client, "session.title", session_id=handle, title="Plans") == 4022
        title = await client.call("session.title", session_id=handle)
        assert (title["title"], title["pending"]) == (None, False)
        await client.call("session.title", session_id=handle, title="Other plans")
        await client.call("prompt.submit", session_id=handle, text="hello")
        await client.event("message.complete", handle)
        assert sorted(row.title for row in stored_sessions(path).values()) == [
            "Other plans", "Plans",
        ]  # fmt: skip


async def test_conversations_may_have_the_same_title_and_are_resumed_by_id_then(start):
    async with start() as runtime, connected(runtime) as client:
        handles = [await new_session(client, title="Plans") for _ in range(2)]
        ids = [await stored_id(client, handle) for handle in handles]
        with pytest.raises(Problem, match="several sessions have the title 'Plans'") as problem:
            await client.call("session.resume", title="Plans")
        assert problem.value.code == 4007
        assert all(session_id in str(problem.value) for session_id in ids)
        for handle, session_id in zip(handles, ids, strict=True):
            resumed = await client.call("session.resume", session_id=session_id)
            assert resumed["session_id"] == handle


async def test_a_title_is_no_id_for_history_and_delete(start):
    async with start() as runtime, connected(runtime) as client:
        await new_session(client, title="Plans")
        for method, name in (("session.delete", "session_id"),
                             ("session.history", "stored_session_id")):  # fmt: skip
            with pytest.raises(Problem, match="No stored session has this id") as problem:
                await client.call(method, **{name: "Plans"})
            assert problem.value.code == 4007
        with pytest.raises(Problem, match="No stored session, or more than one, has this id"):
            await client.call("session.resume", title="Nothing")


async def test_a_title_must_be_unused_in_the_chat_of_a_resumed_session(start):
    async with start() as runtime, connected(runtime) as client:
        chat = runtime.conversation("chat")
        await chat.new("Plans")
        plans = (await chat.ask("one")).session_id
        await chat.new()
        current = (await chat.ask("two")).session_id
        handle = (await client.call("session.resume", session_id=current))["session_id"]
        with pytest.raises(Problem, match=f"already in use by session {plans}") as problem:
            await client.call("session.title", session_id=handle, title="Plans")
        assert problem.value.code == 4022
        await new_session(client, title="Plans")


async def test_an_invalid_title_is_refused_at_once_and_creates_no_handle(start, path):
    async with start() as runtime, connected(runtime) as client:
        assert await error_code(client, "session.create", title="x" * 200) == 4022
        assert await error_code(client, "session.create", title="   ") == 4021
        handle = (await client.call("session.create"))["session_id"]
        assert await error_code(client, "session.title", session_id=handle, title="") == 4021
        assert await error_code(client, "session.title", session_id=handle, title="x" * 200) == 4022
        title = await client.call("session.title", session_id=handle)
        assert (title["title"], title["pending"]) == (None, False)


# A handle follows its conversation


async def test_a_rotation_by_the_agent_is_sent_before_the_answer_and_the_title(start):
    async with start(build_agent=scripted("one", rotating("child"), "three")) as runtime:
        async with connected(runtime) as client:
            handle = await new_session(client)
            parent = await stored_id(client, handle)
            await client.call("session.title", session_id=handle, title="Plans")
            client.forget()
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


async def test_a_pending_title_goes_to_the_child_and_the_id_is_sent_first(start, path):
    async with (
        start(build_agent=scripted(rotating("child"))) as runtime,
        connected(runtime) as client,
    ):
        handle = await new_session(client, title="Plans")
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
        assert stored_sessions(path)["child"].title == "Plans"


@pytest.fixture
def compressing(start):
    config = Config(compression=CompressionConfig(window=4000, max_output=500, protect_first=0))
    return functools.partial(start, config=config, compressor=DeterministicCompressor())


async def test_a_conversation_that_is_compressed_keeps_its_handle(compressing):
    async with compressing() as runtime, connected(runtime) as client:
        handle = await long_session(client, 10)
        infos = [payload for kind, payload in client.events(handle) if kind == "session.info"]
        assert [info["reason"] for info in infos[1:]] == ["compression"] * (len(infos) - 1)
        assert len(infos) > 1
        assert [info["old_session_id"] for info in infos[1:]] == [
            info["stored_session_id"] for info in infos[:-1]
        ]
        assert await stored_id(client, handle) == infos[-1]["stored_session_id"]
        old = infos[0]["stored_session_id"]
        resumed = await client.call("session.resume", session_id=old)  # an id from long ago
        assert resumed["session_id"] == handle
        kept = await client.call("session.history", stored_session_id=old)
        assert kept["stored_session_id"] == old
        assert kept["count"] > 0


async def test_compress_moves_the_handle_and_returns_the_sizes(start):
    config = Config(compression=CompressionConfig(window=20_000, max_output=500, protect_first=0))
    async with start(config=config, compressor=DeterministicCompressor()) as runtime:
        async with connected(runtime) as client:
            handle = await long_session(client, 12)
            before = await stored_id(client, handle)
            done = await client.call("session.compress", session_id=handle, focus_topic="all")
            assert done["status"] == "compressed"
            assert done["after"] < done["before"]
            assert done["stored_session_id"] != before
            assert await stored_id(client, handle) == done["stored_session_id"]
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


async def test_a_compression_that_fails_returns_the_reason(start):
    failing = DeterministicCompressor(error=ValueError("no model"))
    async with start() as runtime, connected(runtime) as client:
        empty = (await client.call("session.create"))["session_id"]
        done = await client.call("session.compress", session_id=empty)
        assert (done["status"], "is empty" in done["text"]) == ("skipped", True)
        handle = await new_session(client)
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
        handle = await new_session(client)
        first = await stored_id(client, handle)
        done = await client.call("prompt.submit", session_id=handle, text="/new Other plans")
        complete = await client.event("message.complete")
        assert (complete["status"], complete["message_ids"]) == ("complete", [done["message_id"]])
        assert "New session" in complete["text"]
        infos = [payload for kind, payload in client.events(handle) if kind == "session.info"]
        assert (infos[-1]["old_session_id"], infos[-1]["reason"]) == (first, "session_reset")
        title = await client.call("session.title", session_id=handle)
        assert (title["title"], title["pending"]) == ("Other plans", True)


async def test_an_expired_conversation_starts_again_under_its_handle(start, world):
    config = Config(expiry=ExpiryPolicy(mode="idle", idle_minutes=1))
    async with start(config=config) as runtime, connected(runtime) as client:
        handle = await new_session(client)
        first = await stored_id(client, handle)
        world.pass_time(3600)
        await client.call("prompt.submit", session_id=handle, text="after a long time")
        complete = await client.event("message.complete")
        assert complete["stored_session_id"] != first
        kinds = [kind for kind, _ in client.events(handle)]
        last = len(kinds) - 1 - kinds[::-1].index("session.info")
        assert "message.start" in kinds[last:]
        assert kinds.count("session.info") == 2
        assert await transcript(client, handle) == ["after a long time", "echo: after a long time"]


# Resuming


async def test_an_open_conversation_is_resumed_under_its_handle_by_any_of_its_names(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await new_session(client, title="Plans")
        await client.event("session.title")
        session_id = await stored_id(client, handle)
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
        handle = await new_session(client)
        session_id = await stored_id(client, handle)
    async with start() as runtime, connected(runtime) as client:
        assert await error_code(client, "prompt.submit", session_id=handle, text="more") == 4001
        resumed = await client.call("session.resume", session_id=session_id)
        assert (
            resumed["session_id"] == handle
        )  # the route of its key names it, and a handle belongs to a key
        assert resumed["message_count"] == 2
        await client.call("prompt.submit", session_id=handle, text="more")
        await client.event("message.complete")
        assert await transcript(client, handle) == ["hello", "echo: hello", "more", "echo: more"]
        assert await stored_id(client, handle) == session_id


async def test_a_conversation_of_another_platform_can_be_continued_and_is_not_ended(start):
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
            assert await error_code(client, "session.title", session_id=handle) == 4001
            again = await client.call("session.resume", session_id=reply.session_id)
            assert again["session_id"] == handle
        await runtime.wait_hooks()
        assert heard.calls == []
        later = await runtime.ask("agent:main:telegram:dm:5", "and there", source=source)
        assert later.session_id == reply.session_id


async def test_concurrent_resumes_get_one_handle(start):
    async with start() as runtime:
        reply = await runtime.ask("k", "hello")
        async with connected(runtime) as client:
            asked = [await client.request("session.resume", session_id=reply.session_id)
                     for _ in range(10)]  # fmt: skip
            handles = {(await client.response(number))["session_id"] for number in asked}
            assert len(handles) == 1
        assert len((await runtime.admin.find(reply.session_id)).session_keys) == 2


async def test_a_session_that_another_process_has_ended_is_opened_again(start, path):
    async with start() as runtime:
        async with connected(runtime) as client:
            session_id = await stored_id(client, await new_session(client))
        with SessionStore(path) as store:
            store.end_session(session_id, "user_exit")
        async with connected(runtime) as client:
            resumed = await client.call("session.resume", session_id=session_id)
            await client.call("prompt.submit", session_id=resumed["session_id"], text="more")
            complete = await client.event("message.complete")
            assert complete["stored_session_id"] == session_id


@pytest.mark.parametrize("verb", ["switch", "close_session", "branch"])
async def test_a_failed_method_can_be_called_again(start_proxy, verb):
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
                asked = (method, {"session_id": await new_session(client)})
            assert await error_code(client, asked[0], **asked[1]) == -32000
            assert await client.call(asked[0], **asked[1])


async def test_a_session_that_was_closed_can_be_opened_again(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await new_session(client)
        session_id = await stored_id(client, handle)
        await client.call("session.close", session_id=handle)
        resumed = await client.call("session.resume", session_id=session_id)
        assert resumed["stored_session_id"] == session_id
        await client.call("prompt.submit", session_id=resumed["session_id"], text="more")
        complete = await client.event("message.complete")
        assert complete["stored_session_id"] == session_id


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("before", [[], ["hello"]], ids=["first", "second"])
async def test_a_running_answer_is_returned_to_a_client_that_connects_later(start, early, before):
    """The text so far and the deltas that follow add up to the answer."""
    gates = [Gate(), Gate()]
    script = [TextDelta("one "), gates[0], TextDelta("two "), gates[1], TextDelta("three"),
              "one two three"]  # fmt: skip
    async with start(build_agent=scripted(*before, script)) as runtime:
        async with connected(runtime, linger=0) as first:
            if before:
                handle = await new_session(first)
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


# Close, delete, branch and undo


async def test_close_finalizes_and_ends_the_current_session_once(start, path):
    heard = RecordingHook()
    hooks = {"on_session_finalize": [heard.named("finalize")]}
    async with start(build_agent=scripted("one", rotating("child")), hooks=hooks) as runtime:
        async with connected(runtime) as client:
            handle = await new_session(client)
            parent = await stored_id(client, handle)
            await client.call("prompt.submit", session_id=handle, text="more")
            await client.event("message.complete")
            asked = [await client.request("session.close", session_id=handle) for _ in range(3)]
            answers = [await client.wait(lambda f, n=number: f.get("id") == n) for number in asked]
            assert sorted("result" in answer for answer in answers) == [False, False, True]
            assert await error_code(client, "session.close", session_id=handle) == 4001
        await runtime.wait_hooks()
        assert heard.calls == [("finalize", "child")]
        assert heard.platforms == ["rpc"]
    assert heard.calls == [("finalize", "child")]  # and not again when the runtime ends
    with SessionStore(path) as store:
        assert store.get_session("child").end_reason == "rpc_close"
        assert store.get_session(parent).end_reason == "compression"


async def test_close_ends_the_session_even_if_no_agent_was_built(start, path):
    heard = RecordingHook()
    async with start() as runtime, connected(runtime) as client:
        session_id = await stored_id(client, await new_session(client))
    hooks = {"on_session_finalize": [heard.named("finalize")]}
    async with start(hooks=hooks) as runtime, connected(runtime) as client:
        resumed = await client.call("session.resume", session_id=session_id)
        done = await client.call("session.close", session_id=resumed["session_id"])
        assert done["stored_session_id"] == session_id
        await runtime.wait_hooks()
        assert heard.calls == [("finalize", session_id)]
        assert dict((await runtime.admin.statistics()).builds) == {}
    assert stored_sessions(path)[session_id].end_reason == "rpc_close"


async def test_close_of_an_empty_session_ends_nothing(start, path):
    async with start() as runtime, connected(runtime) as client:
        handle = (await client.call("session.create"))["session_id"]
        done = await client.call("session.close", session_id=handle)
        assert done == {"closed": True, "stored_session_id": None}
        assert await error_code(client, "prompt.submit", session_id=handle, text="x") == 4001
    assert stored_sessions(path) == {}


async def test_close_waits_for_the_answers_to_submitted_messages(start):
    gate = Gate()
    async with start(build_agent=scripted([gate, "done"])) as runtime, connected(runtime) as client:
        handle = (await client.call("session.create"))["session_id"]
        await client.call("prompt.submit", session_id=handle, text="hello")
        await gate.reached.wait()
        closing = await client.request("session.close", session_id=handle)
        while await title_error(client, handle) != 4001:
            await trio.lowlevel.checkpoint()
        gate.open.set()
        done = await client.response(closing)
        assert (await client.event("message.complete"))["text"] == "done"
        assert done["stored_session_id"] is not None


async def title_error(client, handle):
    """The error code of `session.title`, or None."""
    try:
        await client.call("session.title", session_id=handle)
    except Problem as problem:
        return problem.code
    return None


async def test_delete_refuses_open_and_unknown_sessions(start, path):
    async with start() as runtime, connected(runtime) as client:
        handle = await new_session(client)
        session_id = await stored_id(client, handle)
        assert await error_code(client, "session.delete", session_id=session_id) == 4023
        assert await error_code(client, "session.delete", session_id=session_id[:-1]) == 4007
        assert await error_code(client, "session.delete", session_id="nothing") == 4007
        assert await error_code(client, "session.delete") == 4006
        await client.call("session.close", session_id=handle)
        done = await client.call("session.delete", session_id=session_id)
        assert done == {"deleted": True, "messages": 2}
        assert await error_code(client, "session.resume", session_id=session_id) == 4007
    assert stored_sessions(path) == {}


async def test_a_branch_has_its_own_handle_and_the_original_does_not_change(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await new_session(client, title="Plans")
        await client.event("session.title")
        original = await stored_id(client, handle)
        branch = await client.call("session.branch", session_id=handle)
        assert branch["parent"] == original
        assert branch["title"] == "Plans #2"
        assert branch["session_id"] != handle
        for each, text in ((branch["session_id"], "there"), (handle, "here")):
            await client.call("prompt.submit", session_id=each, text=text)
            await client.event("message.complete", each)
        assert (await transcript(client, handle))[2:] == ["here", "echo: here"]
        assert (await transcript(client, branch["session_id"]))[2:] == ["there", "echo: there"]
        named = await client.call("session.branch", session_id=handle, name="Other")
        assert named["title"] == "Other"
        assert await error_code(client, "session.branch", session_id=handle, name="x" * 200) == 4022
        empty = (await client.call("session.create"))["session_id"]
        assert await error_code(client, "session.branch", session_id=empty) == 4008
    async with start() as runtime, connected(runtime) as client:
        again = await client.call("session.resume", session_id=branch["stored_session_id"])
        assert again["session_id"] == branch["session_id"]


@pytest.mark.parametrize("method", ["history", "title", "branch", "undo", "resume"])
async def test_a_session_that_another_process_compressed_is_used_at_its_tip(start, path, method):
    async with start() as runtime, connected(runtime) as client:
        handle = await new_session(client)
        parent = await stored_id(client, handle)
        await client.call("session.title", session_id=handle, title="Plans")
        rows = [Message("user", "summary"), Message("assistant", "yes")]
        with SessionStore(path) as store:
            last = store.get_messages(parent)[-1].id
            child = store.rotate(
                Rotation(session_id=parent, messages=rows, rotation_id="r", rewrites=0, upto=last)
            ).session_id
        answer = await client.call(f"session.{method}", session_id=handle)
        match method:
            case "history":
                assert [row["text"] for row in answer["messages"]] == ["summary", "yes"]
                assert (answer["stored_session_id"], answer["parent_session_id"]) == (child, parent)
            case "title":
                assert (answer["title"], answer["stored_session_id"]) == ("Plans #2", child)
                new = await client.call("session.title", session_id=handle, title="Plans")
                assert (new["title"], new["stored_session_id"]) == ("Plans", child)
                assert stored_sessions(path)[child].title == "Plans"
            case "branch":
                assert (answer["parent"], answer["title"]) == (child, "Plans #3")
            case "undo":
                assert answer == {"removed": 2}
                assert await transcript(client, handle) == []
            case "resume":
                assert (answer["session_id"], answer["stored_session_id"]) == (handle, child)
                again = await client.call("session.resume", session_id=child)
                assert again["session_id"] == handle
        info = [payload for kind, payload in client.events(handle) if kind == "session.info"][-1]
        assert info == {
            "stored_session_id": child, "old_session_id": parent, "reason": "compression",
        }  # fmt: skip


async def test_undo_returns_the_number_of_rows(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await new_session(client)
        for text in ("two", "three"):
            await client.call("prompt.submit", session_id=handle, text=text)
            await client.event("message.complete")
        assert await client.call("session.undo", session_id=handle) == {"removed": 2}
        assert await transcript(client, handle) == ["hello", "echo: hello", "two", "echo: two"]
        assert await client.call("session.undo", session_id=handle, exchanges=5) == {"removed": 4}
        assert await error_code(client, "session.undo", session_id=handle) == 4018
        assert await error_code(client, "session.undo", session_id=handle, exchanges=0) == -32602
        empty = (await client.call("session.create"))["session_id"]
        assert await error_code(client, "session.undo", session_id=empty) == 4018
        await client.call("prompt.submit", session_id=handle, text="again")
        await client.event("message.complete")
        assert await transcript(client, handle) == ["again", "echo: again"]


async def test_archived_conversations_and_subagents_are_listed_if_asked_for(start_with_store):
    async with start_with_store() as (store, runtime), connected(runtime) as client:
        for name in ("archived", "plain"):
            await store.create_session(name, "cli")
            await store.append_message(name, "user", name)
        await store.create_session("sub", "cli", parent_session_id="plain", kind="subagent")
        await store.archive_session("archived")

        async def listed(**params):
            rows = (await client.call("session.list", **params))["sessions"]
            return {row["session_id"]: (row["archived"], row["subagent"]) for row in rows}

        assert await listed() == {"plain": (False, False)}
        assert await listed(include_archived=True, include_subagents=True) == {
            "plain": (False, False), "archived": (True, False), "sub": (False, True),
        }  # fmt: skip


async def test_a_history_is_read_page_by_page(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await long_session(client, 3)
        whole = (await client.call("session.history", session_id=handle))["messages"]
        page = await client.call("session.history", session_id=handle, limit=2)
        assert (page["count"], page["messages"]) == (len(whole), whole[-2:])
        before = page["messages"][0]["id"]
        page = await client.call("session.history", session_id=handle, limit=2, before=before)
        assert (page["count"], page["messages"]) == (len(whole), whole[-4:-2])
        stored = page["stored_session_id"]
        page = await client.call(
            "session.history", stored_session_id=stored, limit=2, before=before
        )
        assert page["messages"] == whole[-4:-2]
