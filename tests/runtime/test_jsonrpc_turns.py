"""JSON-RPC turns: running answers, and the events of a turn."""

from __future__ import annotations

import json
import re

import pytest
import trio
import trio.testing

from hermes import Config
from hermes.config import CompressionConfig
from hermes.events import (
    ApprovalAsked,
    Notice,
    ReasoningDelta,
    TextDelta,
    ToolFinished,
    ToolStarted,
)
from hermes.messages import Approval, Inbound, ToolCall, TurnResult, Usage
from hermes.testing import DeterministicCompressor, forever, inspect
from tests.support.jsonrpc_client import (
    connected,
)
from tests.support.jsonrpc_sessions import (
    LONG,
    Gate,
    error_code,
    long_session,
    new_session,
    scripted,
    stored_id,
    transcript,
)


@pytest.fixture
def workers():
    """Threads: clients wait for streams in real time."""
    return "threads"


# While an answer is running


async def test_methods_that_need_an_idle_session_are_refused_during_an_answer(start):
    gate = Gate()
    async with (
        start(build_agent=scripted("one", [gate, "two"])) as runtime,
        connected(runtime) as client,
    ):
        handle = await new_session(client)
        await client.call("prompt.submit", session_id=handle, text="more")
        await gate.reached.wait()
        for method in ("session.compress", "session.undo", "session.branch"):
            assert await error_code(client, method, session_id=handle) == 4009
        code = await error_code(
            client, "prompt.submit", session_id=handle, text="no", busy="reject"
        )
        assert code == 4009
        queued = await client.call("prompt.submit", session_id=handle, text="later")
        assert queued["status"] == "queued"
        gate.open.set()
        await client.event("message.complete")
        assert (await client.event("message.complete"))["message_ids"] == [queued["message_id"]]
        assert await transcript(client, handle) == [
            "hello", "one", "more", "two", "later", "echo: later",
        ]  # fmt: skip


async def test_an_interrupt_does_not_wait_for_a_slow_request(start):
    """Compression takes forever; an interrupt of another session still works."""
    compressor = DeterministicCompressor(delay=1000)
    config = Config(
        compression=CompressionConfig(window=20_000, max_output=500, protect_first=0),
        drain_timeout=0,
    )
    gate = Gate()
    script = [f"answer {number} {LONG}" for number in range(8)]
    agent = scripted(*script, [TextDelta("so far"), gate, "never"])
    async with start(build_agent=agent, compressor=compressor, config=config) as runtime:
        async with connected(runtime, linger=0) as client:
            slow = await long_session(client, 8)
            await client.request("session.compress", session_id=slow)
            await client.event("status.update")
            handle = (await client.call("session.create"))["session_id"]
            await client.call("prompt.submit", session_id=handle, text="go")
            await gate.reached.wait()
            done = await client.call("session.interrupt", session_id=handle)
            assert done == {"status": "interrupted"}
            complete = await client.event("message.complete", handle)
            assert (complete["status"], complete["text"]) == ("interrupted", "so far")
            assert await transcript(client, handle) == ["go", "so far"]
            assert await client.call("session.interrupt", session_id=handle) == {"status": "idle"}


async def test_an_interrupt_right_after_its_prompt_stops_it(start):
    async with start(build_agent=scripted(forever(), forever(), forever())) as runtime:
        async with connected(runtime) as client:
            handle = (await client.call("session.create"))["session_id"]
            done = await client.call("prompt.submit", session_id=handle, text="go")
            assert (await client.call("session.interrupt", session_id=handle))["status"] == (
                "interrupted"
            )
            answer = await client.answer_to(done["message_id"])
            assert answer["status"] in {"interrupted", "error"}


async def test_an_interrupt_of_a_waiting_message_keeps_it_from_starting(start):
    gate = Gate()

    class Slow(DeterministicCompressor):
        async def summarize(self, request, /):
            await gate(None)
            return await super().summarize(request)

    config = Config(compression=CompressionConfig(window=20_000, max_output=500, protect_first=0))
    async with start(config=config, compressor=Slow()) as runtime, connected(runtime) as client:
        handle = await long_session(client, 8)
        compressing = await client.request("session.compress", session_id=handle)
        await gate.reached.wait()
        waiting = await client.call("prompt.submit", session_id=handle, text="never mind")
        done = await client.call("session.interrupt", session_id=handle)
        assert done == {"status": "interrupted"}
        gate.open.set()
        await client.response(compressing)
        assert (await client.answer_to(waiting["message_id"]))["status"] == "error"
        assert "never mind" not in await transcript(client, handle)


async def test_an_answer_that_comes_before_its_receipt_leaves_nothing_pending(start_proxy):
    async def accept(real, inbound, **options):
        accepted = await real(inbound, **options)
        with trio.fail_after(10):
            while await inspect(runtime).store.open_inbox(inbound.session_key):
                await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        return accepted

    async with start_proxy(accept=accept) as runtime, connected(runtime) as client:
        handle = await new_session(client)
        assert (await client.call("session.resume", session_id=handle))["running"] is False
        assert await client.call("session.undo", session_id=handle) == {"removed": 2}


async def test_an_answer_that_ends_during_resume_is_not_missing(start_proxy):
    gate = Gate()

    async def get_history(real, *args, **options):
        rows = await real(*args, **options)
        if gate.reached.is_set() and not gate.open.is_set():
            gate.open.set()
            with trio.fail_after(10):
                while runtime.admin.running_turns():
                    await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
        return rows

    agent = scripted("one", [gate, "two"])
    async with start_proxy(build_agent=agent, get_history=get_history) as runtime:
        async with connected(runtime) as client:
            handle = await new_session(client)
            await client.call("prompt.submit", session_id=handle, text="more")
            await gate.reached.wait()
            resumed = await client.call("session.resume", session_id=handle)
            assert [row["text"] for row in resumed["messages"]] == ["hello", "one", "more", "two"]
            assert (resumed["running"], resumed["inflight"]) == (False, None)


async def test_a_prompt_without_an_answer_is_not_among_the_stored_messages(start):
    gate = Gate()
    async with start(build_agent=scripted("one", [gate, "two"])) as runtime:
        async with connected(runtime) as client:
            handle = await new_session(client)
            await client.call("prompt.submit", session_id=handle, text="more")
            await gate.reached.wait()
            page = await client.call("session.history", session_id=handle)
            resumed = await client.call("session.resume", session_id=handle)
            for shown in (page, resumed):
                assert [row["text"] for row in shown["messages"]] == ["hello", "one"]
            assert (page["count"], resumed["message_count"], resumed["running"]) == (2, 2, True)
            gate.open.set()


async def test_steering_reaches_the_running_answer(start):
    gate = Gate()
    heard = []

    async def listen(turn):
        heard.extend(message.content for message in turn.steered())

    async with start(build_agent=scripted([gate, listen, "done"])) as runtime:
        async with connected(runtime) as client:
            handle = (await client.call("session.create"))["session_id"]
            assert await error_code(client, "session.steer", session_id=handle, text="x") == 4010
            assert await error_code(client, "session.steer", session_id=handle) == 4002
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
    async with start(build_agent=scripted([gate, "one"])) as runtime, connected(runtime) as client:
        handle = (await client.call("session.create"))["session_id"]
        words = [f"word {number}" for number in range(50)]
        requests = [
            {"id": number, "method": "prompt.submit", "params": {"session_id": handle, "text": w}}
            for number, w in enumerate(words, 100)
        ]
        await client.send(b"\n".join(json.dumps(each).encode() for each in requests))
        asked = [each["id"] for each in requests]
        ids = [(await client.response(number))["message_id"] for number in asked]
        assert ids == sorted(ids)
        gate.open.set()
        while ids[-1] not in (await client.event("message.complete"))["message_ids"]:
            pass
        said = [text for text in await transcript(client, handle) if text.startswith("word")]
        assert said == words


# Events


async def test_the_events_of_a_turn(start):
    call = ToolCall("c1", "look", '{"at": "sea"}')
    steps = [
        ReasoningDelta("hm"), TextDelta("let me see"), ToolStarted(call),
        ToolFinished("c1", "waves"), TextDelta("wa"), TextDelta("ves"),
        TurnResult(text="waves", usage=[Usage(input_tokens=5, output_tokens=2, cost=0.5),
                                        Usage(input_tokens=7)]),
    ]  # fmt: skip
    async with start(build_agent=scripted(steps)) as runtime, connected(runtime) as client:
        handle = await new_session(client)
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


async def test_a_failed_answer_has_the_text_of_its_error(start):
    failed = TurnResult(failed=True, error="the model is gone")
    async with start(build_agent=scripted(failed)) as runtime, connected(runtime) as client:
        await new_session(client)
        complete = client.events()[-1][1]
        assert complete["status"] == "error"
        assert "the model is gone" in complete["text"]
        assert complete["error"] == "the model is gone"


async def test_a_client_gets_only_a_reference_to_an_exception(start):
    async with start(build_agent=scripted(ValueError("the model is gone"))) as runtime:
        async with connected(runtime) as client:
            await new_session(client)
            complete = client.events()[-1][1]
            assert complete["status"] == "error"
            assert "the model is gone" not in complete["text"] + complete["error"]
            reference = re.search(r"reference (\w{6})", complete["text"])[1]
            assert complete["error"] == f"ValueError (reference {reference})"


WITHOUT_TEXT = {
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


@pytest.mark.parametrize("name", WITHOUT_TEXT)
async def test_an_answer_without_text_says_why(start, name):
    result, status, words = WITHOUT_TEXT[name]
    async with start(build_agent=scripted(result)) as runtime, connected(runtime) as client:
        await new_session(client)
        complete = client.events()[-1][1]
        assert all(word in complete["text"] for word in words)
        assert bool(complete["text"]) == bool(words)
        assert complete["status"] == status


async def test_a_request_for_approval_is_sent(start):
    approval = Approval(7, "k", "k", "send", '{"to": "all"}', "pending", 1.0, 2.0)
    async with start(build_agent=scripted([ApprovalAsked(approval), "wait"])) as runtime:
        async with connected(runtime) as client:
            await new_session(client)
            asked = dict(client.events())["approval.request"]
            assert asked == {
                "number": 7, "tool": "send", "arguments": '{"to": "all"}', "expires_at": 2.0,
            }  # fmt: skip


async def test_invalid_events_of_an_agent_do_not_end_the_connection(start, caplog):
    steps = [TextDelta(None), ToolStarted(None), ToolFinished("c1", object()),
             TextDelta("half \ud800 of it"), "done"]  # fmt: skip
    async with start(build_agent=scripted(steps)) as runtime, connected(runtime) as client:
        handle = await new_session(client)
        assert "could not be sent" in caplog.text
        deltas = "".join(p["text"] for kind, p in client.events(handle) if kind == "message.delta")
        assert deltas.endswith("half ? of it")
        assert client.numbers == list(range(1, len(client.frames) + 1))


async def test_a_client_gets_no_events_of_other_conversations(start):
    async with start() as runtime, connected(runtime) as one, connected(runtime) as two:
        mine = await new_session(one, "for one")
        await new_session(two, "for two")
        await runtime.ask("k", "for nobody")
        assert "for two" not in json.dumps(one.frames)
        assert "for one" not in json.dumps(two.frames)
        assert "nobody" not in json.dumps(one.frames + two.frames)
        assert await error_code(two, "prompt.submit", session_id=mine, text="x") == 4001


async def test_notices_are_sent(start):
    class Telling:
        async def run(self, turn):
            inspect(runtime).publish(turn.session_key, turn.turn_id, Notice("mind the step"))
            return TurnResult(text="done")

    async with start(build_agent=lambda _: Telling()) as runtime, connected(runtime) as client:
        await new_session(client)
        told = [payload for kind, payload in client.events() if kind == "status.update"]
        assert told == [{"kind": "notice", "text": "mind the step"}]


async def test_a_message_submitted_elsewhere_has_events_under_its_handle(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await new_session(client)
        key = next(iter((await runtime.admin.find(await stored_id(client, handle))).session_keys))
        await runtime.submit(Inbound(key, "e", "from elsewhere"))
        assert (await client.event("message.complete"))["text"] == "echo: from elsewhere"
