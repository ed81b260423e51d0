"""JSON-RPC connections: their end, sequence numbers, errors, hostile input, load."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings, strategies as st

from hermes import Config, open_runtime
from hermes.adapters.jsonrpc import open_connection, serve
from hermes.config import CompressionConfig
from hermes.errors import StoreBusy, StoreError, StoreFull
from hermes.events import (
    TextDelta,
    ToolStarted,
    TurnEnded,
)
from hermes.messages import ToolCall
from hermes.testing import DeterministicCompressor, RecordingHook, ScriptedAgent, forever, inline
from tests.support.jsonrpc_client import (
    Client,
    connected,
    sequence_number,
    serve_and_close,
)
from tests.support.jsonrpc_sessions import (
    Gate,
    error_code,
    long_session,
    new_session,
    scripted,
    stored_sessions,
    transcript,
)


@pytest.fixture
def workers():
    """Threads: clients wait for streams in real time."""
    return "threads"


# The end of a connection


async def test_the_end_of_the_input_ends_no_session_and_waits_for_running_answers(start, path):
    heard = RecordingHook()
    hooks = {"on_session_finalize": [heard.named("finalize")]}
    gate = Gate()
    async with start(build_agent=scripted([gate, "done"]), hooks=hooks) as runtime:
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
    assert stored_sessions(path)[session_id].ended_at is None


async def test_a_server_that_is_stopped_answers_accepted_messages(start):
    gate, stop = Gate(), trio.Event()
    async with start(build_agent=scripted([gate, "done"])) as runtime:
        async with connected(runtime, stop=stop) as client:
            handle = (await client.call("session.create"))["session_id"]
            await client.call("prompt.submit", session_id=handle, text="hello")
            await gate.reached.wait()
            stop.set()
            gate.open.set()
            assert (await client.event("message.complete"))["text"] == "done"
            with trio.fail_after(10):
                await client.wait_end()


async def test_no_event_is_lost_in_a_burst(start):
    async def talk(turn):
        for number in range(3000):
            turn.emit(ToolStarted(ToolCall(f"c{number}", "look")))

    async with start(build_agent=scripted([talk, "done"])) as runtime, connected(runtime) as client:
        handle = await new_session(client)
        heard = [kind for kind, _ in client.events(handle)]
        assert heard.count("tool.start") == 3000
        assert heard[-1] == "message.complete"


async def test_a_turn_that_does_not_end_delays_the_end_by_the_linger_timeout_only(start):
    async with start(build_agent=scripted(forever()), config=Config(drain_timeout=0)) as runtime:
        with trio.fail_after(10):
            async with connected(runtime, linger=0.05) as client:
                handle = (await client.call("session.create"))["session_id"]
                await client.call("prompt.submit", session_id=handle, text="hello")
        assert client.ended


async def test_a_client_that_stops_reading_ends_its_connection_and_nothing_else(start):
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


# Sequence numbers


async def test_a_client_that_was_disconnected_replays_what_it_missed(start):
    """The same connection over one transport and then another."""
    gate = Gate()
    steps = [TextDelta("one "), gate, TextDelta("two"), "one two"]
    async with (
        start(build_agent=scripted(steps)) as runtime,
        open_connection(runtime) as connection,
    ):
        first = []
        connection.greet()
        connection.receive(b'{"id": 1, "method": "session.create"}')
        first += [json.loads(await connection.next_frame()) for _ in range(2)]
        handle = first[-1]["result"]["session_id"]
        ask = {"session_id": handle, "text": "count"}
        connection.receive(json.dumps({"id": 2, "method": "prompt.submit", "params": ask}).encode())
        while first[-1].get("params", {}).get("type") != "message.delta":
            first.append(json.loads(await connection.next_frame()))
        seen = 3  # the transport broke: the rest was written but never read
        gate.open.set()
        await runtime.ask("k", "let it end")
        connection.greet()
        ask = {"after": seen, "epoch": first[0]["params"]["payload"]["epoch"]}
        connection.receive(json.dumps({"id": 3, "method": "events.replay", "params": ask}).encode())
        later = []
        while "frames" not in later[-1:][0].get("result", {}) if later else True:
            later.append(json.loads(await connection.next_frame()))
        replayed = later.pop()["result"]
        assert replayed["complete"]
        frames = {
            sequence_number(frame): frame for frame in [*first[:seen], *replayed["frames"], *later]
        }
        assert sorted(frames) == list(range(1, max(frames) + 1))
        assert [frames[n] for n in range(1, len(first) + 1)] == first
        complete = [f for f in frames.values() if f.get("params", {}).get("type") ==
                    "message.complete"]  # fmt: skip
        assert [frame["params"]["payload"]["text"] for frame in complete] == ["one two"]


async def test_numbers_of_another_epoch_are_recognized(start):
    async with start() as runtime, connected(runtime) as client:
        await new_session(client)
        replayed = await client.call("events.replay", after=2, epoch="another")
        assert not replayed["complete"]
        epoch = client.frames[0]["params"]["payload"]["epoch"]
        assert replayed["epoch"] == epoch
        assert (await client.call("events.replay", after=0, epoch=epoch))["complete"]
        assert not (await client.call("events.replay", after=10**6))["complete"]
        assert client.numbers == list(range(1, len(client.frames) + 1))


async def test_a_message_with_the_same_event_id_runs_once(start):
    gate = Gate()
    async with start(build_agent=scripted([gate, "done"])) as runtime, connected(runtime) as client:
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
        assert await transcript(client, handle) == ["once", "done"]
        new = await client.call("prompt.submit", **ask | {"session_id": other})
        assert new["message_id"] != first["message_id"]
        await client.event("message.complete", other)
        assert (await client.call("session.resume", session_id=handle))["running"] is False


# Errors


async def test_error_codes_of_invalid_requests(start):
    async with start() as runtime, connected(runtime) as client:
        handle = (await client.call("session.create"))["session_id"]
        for method in ("prompt.submit", "session.title", "session.history", "session.branch",
                       "session.undo", "session.compress", "session.interrupt", "session.steer",
                       "session.close"):  # fmt: skip
            assert await error_code(client, method, session_id="00000000") == 4001
        assert await error_code(client, "prompt.submit", session_id=handle) == 4002
        assert await error_code(client, "prompt.submit", session_id=handle, text=" \n") == 4002
        assert await error_code(client, "session.resume") == 4006
        assert await error_code(client, "session.resume", session_id="nothing") == 4007
        assert await error_code(client, "session.resume", title="nothing") == 4007
        assert await error_code(client, "session.history", stored_session_id="no") == 4007
        assert await error_code(client, "session.nothing") == -32601
        assert await error_code(client, "session.list", limit=0) == -32602
        assert await error_code(client, "session.list", limit=10**30) == -32602
        assert await error_code(client, "session.list", limit=True) == -32602
        assert await error_code(client, "session.list", colour="red") == -32602
        assert await error_code(client, "prompt.submit", session_id=handle, text=5) == -32602
        assert await error_code(client, "events.replay") == -32602
        long = "x" * 1_100_000
        assert await error_code(client, "prompt.submit", session_id=handle, text=long) == -32602
        assert (await client.call("session.list"))["sessions"] == []


async def test_the_number_of_open_sessions_is_limited(start):
    async with start() as runtime, open_connection(runtime, max_handles=2) as connection:
        for n in range(3):
            connection.receive(b'{"id": %d, "method": "session.create"}' % n)
        answers = [json.loads(await connection.next_frame()) for _ in range(3)]
        assert sorted(a.get("error", {}).get("code", 0) for a in answers) == [0, 0, 4090]
        kept = next(a["result"]["session_id"] for a in answers if "result" in a)
        params = b'{"session_id": "%s"}' % kept.encode()
        connection.receive(b'{"id": 5, "method": "session.close", "params": %s}' % params)
        await connection.next_frame()
        connection.receive(b'{"id": 6, "method": "session.create"}')
        assert "result" in json.loads(await connection.next_frame())


async def test_a_session_that_could_not_be_created_does_not_count(start):
    async with start() as runtime, open_connection(runtime, max_handles=1) as connection:
        for n, title in enumerate(["", "x" * 200, "Plans"]):
            frame = {"id": n, "method": "session.create", "params": {"title": title}}
            connection.receive(json.dumps(frame).encode())
            answer = json.loads(await connection.next_frame())
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
async def test_an_internal_error_is_one_sentence_and_ends_nothing(start_proxy, error, code, caplog):
    errors = [error]

    async def listed(real, **options):
        if errors:
            raise errors.pop()
        return await real(**options)

    async with start_proxy(list_sessions=listed) as runtime, connected(runtime) as client:
        assert await error_code(client, "session.list") == code
        [frame] = [frame for frame in client.frames if "error" in frame]
        assert frame["error"]["message"].endswith(".")
        assert "/home/me" not in frame["error"]["message"]
        assert ("secret" in caplog.text) == isinstance(error, RuntimeError)
        assert (await client.call("session.list"))["sessions"] == []


async def test_a_draining_runtime_refuses_new_messages(start):
    async with start() as runtime, connected(runtime) as client:
        handle = (await client.call("session.create"))["session_id"]
        await runtime.drain(0)
        for method in ("prompt.submit", "session.title"):
            params = {"text": "x"} if method == "prompt.submit" else {"title": "x"}
            assert await error_code(client, method, session_id=handle, **params) == -32000


async def test_the_id_of_a_running_request_is_refused(start):
    compressing = DeterministicCompressor(delay=1000)
    config = Config(
        compression=CompressionConfig(window=20_000, max_output=500, protect_first=0),
        drain_timeout=0,
    )
    async with start(compressor=compressing, config=config) as runtime:
        async with connected(runtime, linger=0) as client:
            handle = await long_session(client, 8)
            params = {"session_id": handle}
            await client.send({"id": "same", "method": "session.compress", "params": params})
            await client.event("status.update")
            await client.send({"id": "same", "method": "session.list"})
            frame = await client.wait(lambda frame: "error" in frame)
            assert (frame["id"], frame["error"]["code"]) == (None, -32600)
            assert "same" in frame["error"]["message"]


async def test_a_notification_is_executed_and_has_no_response(start):
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
    """The lines in these bytes."""
    return [line for line in b"\n".join(pieces).split(b"\n") if line.strip()]


@given(st.lists(st.tuples(GARBAGE, st.booleans()), max_size=12))
@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_requests_among_garbage_are_answered_and_every_line_once(tmp_path, steps):
    pieces, valid = [], []
    for garbage, request in steps:
        pieces.append(garbage)
        if request:
            name = f"valid {len(valid)}"
            valid.append(name)
            pieces.append(json.dumps({"id": name, "method": "session.list"}).encode())
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.db"

    async def main():
        async with open_runtime(path, build_agent=scripted(), open_worker=inline()) as runtime:
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


async def test_long_lines_are_skipped_and_refused(start):
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


# Load


async def test_a_client_that_does_not_read_delays_no_turn(start):
    pieces = [TextDelta("x" * 100) for _ in range(300)]
    async with start(build_agent=lambda _: ScriptedAgent([[*pieces, "x" * 30_000]])) as runtime:
        async with (
            open_connection(runtime, max_sheddable=20_000) as connection,
            trio.open_nursery() as nursery,
        ):
            handles = []
            for n in range(10):
                connection.receive(b'{"id": %d, "method": "session.create"}' % n)
                handles.append(json.loads(await connection.next_frame())["result"]["session_id"])
            with runtime.subscribe() as events:
                for n, handle in enumerate(handles):
                    ask = {"session_id": handle, "text": "go"}
                    frame = {"id": 100 + n, "method": "prompt.submit", "params": ask}
                    connection.receive(json.dumps(frame).encode())
                ended = 0
                with trio.fail_after(20):
                    async for each in events:
                        ended += isinstance(each.event, TurnEnded)
                        if ended == 10:
                            break
            await trio.testing.wait_all_tasks_blocked()
            assert connection._buffer._sheddable_size <= 20_000
            connection.close()
            frames = []
            while (line := await connection.next_frame()) is not None:
                frames.append(json.loads(line))
            nursery.cancel_scope.cancel()
    said = [frame["params"] for frame in frames if frame.get("method") == "event"]
    complete = [each for each in said if each["type"] == "message.complete"]
    assert sorted(each["session_id"] for each in complete) == sorted(handles)
    assert {len(each["payload"]["text"]) for each in complete} == {30_000}
    assert sum("result" in frame for frame in frames) == 10
    assert any(each["payload"].get("kind") == "shed" for each in said)
    assert [sequence_number(frame) for frame in frames] == list(range(11, 11 + len(frames)))


async def test_requests_are_not_read_while_responses_are_not(start, autojump_clock):
    async with start(open_worker=inline()) as runtime:
        await runtime.ask("k", "x" * 100_000)
        [listed] = await runtime.conversation("k").sessions()
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


async def test_too_many_concurrent_requests_are_refused(start):
    async with start() as runtime, open_connection(runtime, max_running=5) as connection:
        for n in range(8):
            connection.receive(b'{"id": %d, "method": "session.list"}' % n)
        answers = [json.loads(await connection.next_frame()) for _ in range(8)]
        assert sorted(a.get("error", {}).get("code", 0) for a in answers) == [-32000] * 3 + [0] * 5


async def test_a_thousand_sessions_on_one_connection(start):
    async with start() as runtime, connected(runtime) as client:
        asked = [await client.request("session.create") for _ in range(1000)]
        handles = [(await client.response(number))["session_id"] for number in asked[-20:]]
        assert len({f["result"]["session_id"] for f in client.frames if "result" in f}) == 1000
        for handle in handles:
            await client.request("prompt.submit", session_id=handle, text=f"hello {handle}")
        for handle in handles:
            complete = await client.wait(
                lambda f, h=handle: (
                    f.get("params", {}).get("type") == "message.complete"
                    and f["params"]["session_id"] == h
                )
            )
            assert complete["params"]["payload"]["text"] == f"echo: hello {handle}"


@pytest.mark.parametrize("seed", range(6))
async def test_random_concurrent_requests_are_answered_once_and_every_message_ends_once(
    start, seed
):
    choose = random.Random(seed)

    async def talk(turn):
        for word in turn.text.split():
            turn.emit(TextDelta(f"{word} "))
            await trio.sleep(choose.random() / 200)
            turn.steered()

    agents = [ScriptedAgent([[talk, "done"]] * 500) for _ in range(300)]
    compressor = DeterministicCompressor()
    async with start(build_agent=lambda _: agents.pop(), compressor=compressor) as runtime:
        async with connected(runtime) as client:
            asked = await send_random_requests(client, choose)
        frames = client.frames
    answers = {frame["id"]: frame for frame in frames if "id" in frame}
    assert sorted(answers) == sorted(asked)
    assert sum("id" in frame for frame in frames) == len(asked)
    problems = [answer["error"] for answer in answers.values() if "error" in answer]
    # -32602: an event id with another text
    expected = {-32602, -32000, 4001, 4002, 4007, 4008, 4009, 4010, 4018, 4022}
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


def random_request(choose, handle):
    """A kind of request, a method and its params."""
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


async def send_random_requests(client, choose):
    """Send 200 requests, mostly without waiting; returns the params of each by its id."""
    asked, handles = {}, []
    for step in range(204):
        if step < 4:
            kind, method, params = "branch", "session.create", {}
        else:
            kind, method, params = random_request(choose, choose.choice(handles))
        if kind == "close" and params["session_id"] == handles[0]:
            continue  # so that one session stays open
        number = await client.request(method, **params)
        asked[number] = params
        if kind in {"branch", "wait"}:
            done = await client.wait(lambda frame, n=number: frame.get("id") == n)
            if kind == "branch" and "result" in done:
                handles.append(done["result"]["session_id"])
    return asked
