"""JSON-RPC conversations: durable names, and prompts that are sent again."""

from __future__ import annotations

import functools

import pytest
import trio
import trio.testing

from hermes import Config
from hermes.messages import ExpiryPolicy, Inbound, Source
from tests.support.jsonrpc_client import Problem, connected
from tests.support.jsonrpc_sessions import Gate, error_code, new_session, scripted, stored_id


@pytest.fixture
def workers():
    """Threads: clients wait for streams in real time."""
    return "threads"


async def say(client, handle, text, **params):
    """Submit a message and wait for its answer; returns the text of the answer."""
    done = await client.call("prompt.submit", session_id=handle, text=text, **params)
    return (await client.answer_to(done["message_id"]))["text"]


async def opened(client, name, **params):
    """Open the conversation with this name; returns its handle."""
    made = await client.call("session.create", conversation=name, **params)
    assert made["conversation"] == name
    return made["session_id"]


def announced(client):
    """The stored ids that were announced to a client, oldest first."""
    return [info["stored_session_id"] for kind, info in client.events() if kind == "session.info"]


# Several users of one conversation


async def test_a_client_is_told_of_the_messages_of_others_and_not_of_its_own(start):
    async with start() as runtime, connected(runtime) as first, connected(runtime) as second:
        mine, yours = await opened(first, "shared"), await opened(second, "shared")
        await say(first, mine, "hello")
        await second.event("message.complete", yours)
        await say(second, yours, "/status")
        await first.wait(lambda frame: "/status" in str(frame))
        await opened(second, "other")
        told = [
            [payload for kind, payload in client.events() if kind == "message.accepted"]
            for client in (first, second)
        ]
    assert told == [
        [{"message_id": 2, "text": "/status", "platform": "rpc"}],
        [{"message_id": 1, "text": "hello", "platform": "rpc"}],
    ]


# Names


async def test_a_conversation_is_opened_again_by_its_name(start):
    async with start() as runtime, connected(runtime) as client:
        first = await client.call("session.create", conversation="~/work/a.txt")
        assert (first["stored_session_id"], first["conversation"]) == (None, "~/work/a.txt")
        assert await client.call("session.create", conversation="~/work/a.txt") == first
        other = await opened(client, "other")
        assert other != first["session_id"]
        await say(client, first["session_id"], "hello")
        again = await client.call("session.create", conversation="~/work/a.txt")
        assert again["stored_session_id"] == announced(client)[-1]
    async with start() as runtime, connected(runtime) as client:
        later = await client.call("session.create", conversation="~/work/a.txt")
        assert later == again
        resumed = await client.call("session.resume", session_id=later["session_id"])
        assert [row["text"] for row in resumed["messages"]] == ["hello", "echo: hello"]
        assert resumed["conversation"] == "~/work/a.txt"


async def test_a_generated_name_is_as_durable_as_a_chosen_one(start):
    async with start() as runtime, connected(runtime) as client:
        made = await client.call("session.create")
        handle = made["session_id"]
        await say(client, handle, "hello")
        branch = await client.call("session.branch", session_id=handle)
        session_id = await stored_id(client, handle)
    async with start() as runtime, connected(runtime) as client:
        for name, stored in (
            (made["conversation"], session_id),
            (branch["conversation"], branch["stored_session_id"]),
        ):
            again = await client.call("session.create", conversation=name)
            assert again["stored_session_id"] == stored


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a%b", "é", "x" * 201, "line\n", 7])
async def test_names_that_are_not_valid_are_refused(start, name):
    async with start() as runtime, connected(runtime) as client:
        assert await error_code(client, "session.create", conversation=name) == -32602
        assert await opened(client, "x" * 200)


async def test_concurrent_requests_open_a_conversation_once(start):
    async with start() as runtime, connected(runtime) as client:
        await say(client, await opened(client, "plans"), "hello")
    async with start() as runtime, connected(runtime) as client:
        asked = [await client.request("session.create", conversation="plans") for _ in range(10)]
        made = [await client.response(number) for number in asked]
        assert all(each == made[0] for each in made)
        assert made[0]["stored_session_id"] is not None


async def test_a_title_is_set_once_and_opens_the_conversation_in_any_case(start):
    async with start() as runtime, connected(runtime) as client:
        made = await client.call("session.create", conversation="c", title="Plans")
        assert made["pending_title"] == "Plans"
    async with start() as runtime, connected(runtime) as client:
        made = await client.call("session.create", conversation="c", title="Plans")
        assert made["pending_title"] == "Plans"
        handle = made["session_id"]
        await say(client, handle, "hello")
        await say(client, handle, "/new")
        again = await client.call("session.create", conversation="c", title="Plans")
        assert (again["session_id"], again["pending_title"]) == (handle, None)
        title = await client.call("session.title", session_id=handle)
        assert title["title"] is None


async def test_a_title_that_is_refused_leaves_an_open_conversation_open(start):
    async with start() as runtime, connected(runtime) as client:
        code = await error_code(client, "session.create", conversation="c", title="x" * 200)
        assert code == 4022
        handle = await opened(client, "c")
        code = await error_code(client, "session.create", conversation="c", title="x" * 200)
        assert code == 4022
        assert await say(client, handle, "hello") == "echo: hello"


async def test_a_conversation_that_is_being_closed_is_not_opened(start):
    gate = Gate()
    async with start(build_agent=scripted([gate, "done"])) as runtime, connected(runtime) as client:
        handle = await opened(client, "c")
        await client.call("prompt.submit", session_id=handle, text="hello")
        await gate.reached.wait()
        closing = await client.request("session.close", session_id=handle)
        while await error_code(client, "session.undo", session_id=handle) != 4001:
            pass
        assert await error_code(client, "session.create", conversation="c") == -32000
        gate.open.set()
        await client.response(closing)
        assert await opened(client, "c") == handle


# Prompts that are sent again


async def by_name(client, _):
    return await client.call("session.create", conversation="c")


async def by_id(client, session_id):
    return await client.call("session.resume", session_id=session_id)


@pytest.mark.parametrize("reopen", [by_name, by_id])
@pytest.mark.parametrize("change", ["nothing", "new", "new and more", "expiry", "close"])
async def test_a_prompt_that_is_sent_again_after_a_restart_runs_once(start, world, change, reopen):
    config = Config(expiry=ExpiryPolicy(mode="idle", idle_minutes=1))
    start = functools.partial(start, config=config)
    ask = {"text": "go", "event_id": "e1"}
    async with start() as runtime, connected(runtime) as client:
        handle = await opened(client, "c")
        done = await client.call("prompt.submit", session_id=handle, **ask)
        complete = await client.answer_to(done["message_id"])
        if change.startswith("new"):
            await say(client, handle, "/new")
        if change == "new and more":
            await say(client, handle, "more")
        if change == "close":
            await client.call("session.close", session_id=handle)
    if change == "expiry":
        world.pass_time(3600)
    ran = []

    async def agent(turn):
        ran.append(turn.text)
        return f"echo: {turn.text}"

    async with start(agent=agent) as runtime, connected(runtime) as client:
        if change == "expiry":
            await say(client, await opened(client, "c"), "after a long time")
            await client.call("session.close", session_id=handle)
        made = await reopen(client, done["stored_session_id"])
        assert (made["session_id"], made["conversation"]) == (handle, "c")
        ran.clear()
        again = await client.call("prompt.submit", session_id=handle, **ask)
        assert (again["status"], again["message_id"]) == ("answered", done["message_id"])
        assert again["reply"] == complete
        assert await say(client, handle, "on", event_id="e2") == "echo: on"
        assert ran == ["on"]


async def test_a_prompt_that_is_still_running_is_answered_to_the_client_that_sends_it_again(start):
    gate = Gate()
    ask = {"text": "go", "event_id": "e1"}
    async with start(build_agent=scripted([gate, "done"])) as runtime:
        async with connected(runtime, linger=0) as client:
            handle = await opened(client, "c")
            first = await client.call("prompt.submit", session_id=handle, **ask)
        async with connected(runtime) as client:
            again = await client.call("prompt.submit", session_id=await opened(client, "c"), **ask)
            assert (again["status"], again["message_id"]) == ("queued", first["message_id"])
            assert "reply" not in again
            gate.open.set()
            assert (await client.answer_to(first["message_id"]))["text"] == "done"


async def test_an_answer_that_comes_before_the_response_is_in_the_response(start_proxy):
    async def open_inbox(real, *args, **options):
        rows = await real(*args, **options)
        if rows and options.get("limit") == 1:
            with trio.fail_after(10):
                while await real(*args, **options):
                    await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
        return rows

    async with start_proxy(open_inbox=open_inbox) as runtime, connected(runtime) as client:
        handle = await opened(client, "c")
        done = await client.call("prompt.submit", session_id=handle, text="go", event_id="e1")
        assert (done["status"], done["reply"]["text"]) == ("answered", "echo: go")


async def test_an_event_id_belongs_to_its_conversation_and_to_one_text(start):
    async with start() as runtime, connected(runtime) as client:
        for name in ("a", "b"):
            handle = await opened(client, name)
            assert await say(client, handle, f"for {name}", event_id="e1") == f"echo: for {name}"
            code = await error_code(
                client, "prompt.submit", session_id=handle, text="another", event_id="e1"
            )
            assert code == -32602


async def test_an_event_id_that_would_be_taken_for_a_decision_is_refused(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await opened(client, "approval")
        with pytest.raises(Problem, match="event_id 'approval:1' is reserved") as refused:
            await client.call("prompt.submit", session_id=handle, text="hello", event_id="1")
        assert refused.value.code == -32602
        for event_id in ("e1", "9" * 200):
            assert await say(client, handle, event_id, event_id=event_id) == f"echo: {event_id}"


async def test_a_command_that_is_sent_again_runs_once(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await opened(client, "c")
        await say(client, handle, "hello")
        told = await say(client, handle, "/new", event_id="e1")
        await say(client, handle, "more")
        current = await stored_id(client, handle)
    async with start() as runtime, connected(runtime) as client:
        handle = await opened(client, "c")
        again = await client.call("prompt.submit", session_id=handle, text="/new", event_id="e1")
        assert (again["status"], again["reply"]["text"]) == ("answered", told)
        assert await stored_id(client, handle) == current


async def test_a_prompt_of_an_earlier_version_is_recognized(start):
    source = Source(platform="rpc", chat_id="0123456789abcdef01234567", user_id="operator")
    key = "agent:main:rpc:dm:0123456789abcdef01234567"
    async with start() as runtime:
        receipt = await runtime.submit(Inbound(key, f"{source.chat_id}:e1", "go", source))
        reply = await runtime.wait(receipt)
        async with connected(runtime) as client:
            made = await client.call("session.resume", session_id=reply.session_id)
            assert made["conversation"] == source.chat_id
            again = await client.call(
                "prompt.submit", session_id=made["session_id"], text="go", event_id="e1"
            )
            assert (again["status"], again["message_id"]) == ("answered", receipt.inbox_id)


async def test_a_conversation_of_another_platform_is_found_again_after_new(start):
    source = Source(platform="telegram", chat_id="5")
    ask = {"text": "go", "event_id": "e1"}
    async with start() as runtime:
        first = await runtime.ask("agent:main:telegram:dm:5", "hello", source=source)
        async with connected(runtime) as client:
            made = await client.call("session.resume", session_id=first.session_id)
            await say(client, made["session_id"], **ask)
            await say(client, made["session_id"], "/new")
    async with start() as runtime, connected(runtime) as client:
        again = await client.call("session.resume", session_id=first.session_id)
        assert (again["conversation"], again["stored_session_id"]) == (
            made["conversation"], first.session_id,
        )  # fmt: skip
        done = await client.call("prompt.submit", session_id=again["session_id"], **ask)
        assert done["status"] == "answered"


async def two_sessions(start):
    """A conversation with a message in each of two sessions; returns their ids."""
    async with start() as runtime, connected(runtime) as client:
        handle = await opened(client, "c")
        for event_id, text in (("e1", "one"), ("n", "/new"), ("e2", "two")):
            await say(client, handle, text, event_id=event_id)
        return announced(client)


@pytest.mark.parametrize("order", [1, -1], ids=["older first", "newer first"])
async def test_a_prompt_is_recognized_in_each_conversation_that_its_session_was_resumed_in(
    start, order
):
    ids = await two_sessions(start)
    ran = []

    async def agent(turn):
        ran.append(turn.text)
        return f"echo: {turn.text}"

    async with start(agent=agent) as runtime, connected(runtime) as client:
        for session_id in ids[::order]:
            made = await client.call("session.resume", session_id=session_id)
            handle = made["session_id"]
            for event_id, text in (("e1", "one"), ("n", "/new"), ("e2", "two")):
                again = await client.call(
                    "prompt.submit", session_id=handle, text=text, event_id=event_id
                )
                assert again["status"] == "answered"
        assert (made["conversation"] != "c", ran) == (True, [])
        assert await say(client, handle, "three", event_id="e3") == "echo: three"
        await say(client, handle, "/new")
        name = made["conversation"]
    async with start(agent=agent) as runtime, connected(runtime) as client:
        made = await client.call("session.resume", session_id=ids[::order][-1])
        assert made["conversation"] != name
        ask = {"text": "three", "event_id": "e3"}
        again = await client.call("prompt.submit", session_id=made["session_id"], **ask)
        assert (again["status"], again["reply"]["text"]) == ("answered", "echo: three")
    assert ran == ["three"]


async def test_a_prompt_that_runs_in_another_conversation_of_its_session_is_waited_for(start):
    first, _ = await two_sessions(start)
    gate = Gate()
    async with start(build_agent=scripted([gate, "done"])) as runtime:
        async with connected(runtime, linger=0) as client:
            await opened(client, "c")
            made = await client.call("session.resume", session_id=first)
            ask = {"text": "go", "event_id": "e3"}
            done = await client.call("prompt.submit", session_id=made["session_id"], **ask)
        await runtime.admin.switch("agent:main:rpc:dm:d", first)
        async with connected(runtime) as client:
            handle = await opened(client, "d")
            asked = await client.request("prompt.submit", session_id=handle, **ask)
            await gate.reached.wait()
            assert await client.call("session.interrupt", session_id=handle) == {"status": "idle"}
            gate.open.set()
            again = await client.response(asked)
            assert (again["status"], again["message_id"]) == ("answered", done["message_id"])
            assert again["reply"]["text"] == "done"


async def test_a_repeated_prompt_is_not_rejected_while_an_answer_is_running(start):
    gate = Gate()
    async with start(build_agent=scripted([gate, "done"])) as runtime, connected(runtime) as client:
        handle = await opened(client, "c")
        ask = {"session_id": handle, "text": "go", "busy": "reject"}
        first = await client.call("prompt.submit", event_id="e1", **ask)
        await gate.reached.wait()
        again = await client.call("prompt.submit", event_id="e1", **ask)
        assert (again["status"], again["message_id"]) == ("queued", first["message_id"])
        assert await error_code(client, "prompt.submit", event_id="e2", **ask) == 4009
        assert await error_code(client, "prompt.submit", **ask) == 4009
        gate.open.set()
        assert (await client.answer_to(first["message_id"]))["text"] == "done"


# Ids


@pytest.mark.parametrize("restart", [False, True])
async def test_every_id_that_was_announced_can_be_resumed(start, restart):
    async with start() as runtime, connected(runtime) as client:
        handle = await opened(client, "c")
        for text in ("/new", "/new", "hello", "/new", "/new", "/new"):
            await say(client, handle, text)
        ids = announced(client)
        assert len(ids) == len(set(ids)) == 6
        if not restart:
            for session_id in ids:
                assert await client.call("session.resume", session_id=session_id)
            return
    for session_id in ids:
        async with start() as runtime, connected(runtime) as client:
            resumed = await client.call("session.resume", session_id=session_id)
            assert (resumed["conversation"], resumed["session_id"]) == ("c", handle)
            texts = ["hello", "echo: hello"] if resumed["messages"] else []
            assert [row["text"] for row in resumed["messages"]] == texts


async def test_the_id_of_a_session_that_a_platform_left_empty_is_unknown(start):
    async with start() as runtime, connected(runtime) as client:
        chat = runtime.conversation("chat")
        left = (await chat.new()).session_id
        await chat.new()
        assert await error_code(client, "session.resume", session_id=left) == 4007


async def test_an_open_conversation_stays_where_it_is_if_an_earlier_session_is_resumed(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await new_session(client, "one", conversation="c")
        first = await stored_id(client, handle)
        await say(client, handle, "/new")
        await say(client, handle, "two")
        second = await stored_id(client, handle)
        resumed = await client.call("session.resume", session_id=first)
        assert resumed["session_id"] != handle
        assert resumed["conversation"] != "c"
        assert await stored_id(client, handle) == second
        assert await say(client, resumed["session_id"], "three") == "echo: three"
        again = await client.call("session.resume", session_id=first)
        assert again["session_id"] == resumed["session_id"]
