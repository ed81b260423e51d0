"""Sequence numbers, shedding and replay."""

from __future__ import annotations

import json

import msgspec
import trio
import trio.testing
from hypothesis import given, settings, strategies as st

from hermes.adapters.jsonrpc.send_buffer import SendBuffer

SESSIONS = st.sampled_from(["a", "b"])
WORDS = st.text("xyz", min_size=1, max_size=30)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("delta"), SESSIONS, WORDS),
        st.tuples(st.just("tool"), SESSIONS, WORDS),
        st.tuples(st.just("final"), SESSIONS, WORDS),
        st.tuples(st.just("result"), st.integers(), WORDS),
        st.tuples(st.just("error"), st.integers(), WORDS),
        st.tuples(st.just("take"), st.none(), st.none()),
    ),
    max_size=60,
)


class Final(msgspec.Struct):
    text: str


def drive(steps, max_sheddable):
    """Run the steps; return the buffer, what was queued, and the frames that were sent."""
    taken, queued = [], []

    async def main():
        out = SendBuffer(max_sheddable)
        for step, whose, text in steps:
            put(out, step, whose, text, queued)
            if step == "take" and (out._waiting or out._shed_count):
                taken.append(await out.next_frame())
            assert out._sheddable_size <= max_sheddable
            assert out._size == sum(each.size for each in out._waiting)
            assert out.full == (out._size > 4 * max_sheddable)
        out.close()
        while (frame := await out.next_frame()) is not None:
            taken.append(frame)
        assert (out._size, out._sheddable_size) == (0, 0)
        return out

    out = trio.run(main)
    return out, queued, [json.loads(frame) for frame in taken]


def put(out, step, whose, text, queued):
    if step != "take":
        queued.append((step, whose, text))
    match step:
        case "delta":
            out.send_delta("message.delta", whose, 1, text)
        case "tool":
            out.send_event("tool.start", whose, Final(text))
        case "final":
            out.send_event("message.complete", whose, Final(text))
        case "result":
            out.send_result(whose, {"text": text})
        case "error":
            out.send_error(whose, -32600, text)


def read(frame):
    if "method" not in frame:
        kind = "result" if "result" in frame else "error"
        said = frame.get("result", {}).get("text") or frame.get("error", {}).get("message")
        return frame["seq"], kind, frame["id"], said
    event = frame["params"]
    kinds = {"message.delta": "delta", "tool.start": "tool", "message.complete": "final"}
    kind = kinds.get(event["type"], event["type"])
    return event["seq"], kind, event["session_id"], event["payload"]["text"]


def merged(items):
    """The events of each session, with adjacent deltas merged."""
    found = {}
    for kind, whose, text in items:
        mine = found.setdefault(whose if kind in {"delta", "tool", "final"} else "responses", [])
        if kind == "delta" and mine and mine[-1][0] == "delta":
            mine[-1] = ("delta", whose, mine[-1][2] + text)
        else:
            mine.append((kind, whose, text))
    return found


@given(STEPS)
@settings(deadline=None)
def test_a_client_that_reads_gets_everything_in_order_and_without_gaps(steps):
    out, queued, got = drive(steps, max_sheddable=1_000_000)
    assert [read(frame)[0] for frame in got] == list(range(1, len(got) + 1))
    assert merged(read(frame)[1:] for frame in got) == merged(queued)
    assert out.seq == len(got)


@given(STEPS, st.integers(0, 600))
@settings(deadline=None)
def test_a_client_that_does_not_read_misses_only_sheddable_events(steps, max_sheddable):
    _, queued, got = drive(steps, max_sheddable)
    frames_read = [read(frame) for frame in got]
    assert [number for number, *_ in frames_read] == list(range(1, len(got) + 1))
    kept_kinds = {"final", "result", "error"}
    assert [tuple(item) for _, *item in frames_read if item[0] in kept_kinds] == [
        item for item in queued if item[0] in kept_kinds
    ]
    notices = [text for _, kind, _, text in frames_read if kind == "status.update"]
    kept = [item for _, *item in frames_read if item[0] in {"delta", "tool"}]
    sheddable = [item for item in queued if item[0] in {"delta", "tool"}]
    if merged(map(tuple, kept)) != merged(sheddable):
        assert notices
        assert all("dropped" in text for text in notices)


async def test_deltas_are_shed_before_tool_events():
    out = SendBuffer(max_sheddable=450)
    out.send_event("tool.start", "a", Final("t"))
    for _ in range(20):
        out.send_delta("message.delta", "a", 1, "x" * 20)
    out.send_event("message.complete", "a", Final("done"))
    out.close()
    kinds = []
    while (frame := await out.next_frame()) is not None:
        kinds.append(read(json.loads(frame))[1])
    assert [kind for kind in kinds if kind != "delta"] == ["status.update", "tool", "final"]


async def test_a_delta_after_a_result_is_sent_after_it():
    out = SendBuffer()
    out.send_delta("message.delta", "a", 1, "before")
    out.send_result(1, {"text": "so far: before"})
    out.send_delta("message.delta", "a", 1, "after")
    out.close()
    got = [read(json.loads(await out.next_frame()))[3] for _ in range(3)]
    assert got == ["before", "so far: before", "after"]


async def test_deltas_of_two_turns_or_kinds_are_not_merged():
    out = SendBuffer()
    for kind, turn in (("message.delta", 1), ("message.delta", 2), ("reasoning.delta", 2)):
        out.send_delta(kind, "a", turn, "x")
        out.send_delta(kind, "a", turn, "y")
    out.close()
    got = [json.loads(await out.next_frame())["params"]["payload"] for _ in range(3)]
    assert got == [{"turn_id": 1, "text": "xy"}, {"turn_id": 2, "text": "xy"},
                   {"turn_id": 2, "text": "xy"}]  # fmt: skip
    assert await out.next_frame() is None


async def test_all_that_wait_for_a_full_buffer_are_resumed():
    out, resumed = SendBuffer(max_sheddable=100), []

    async def wait(name):
        await out.wait_writable()
        resumed.append(name)

    out.send_result(1, "x" * 1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "reader")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(wait, "request")
        await trio.testing.wait_all_tasks_blocked()
        assert resumed == []
        await out.next_frame()
        with trio.fail_after(10):
            while len(resumed) < 2:
                await trio.lowlevel.checkpoint()


@given(st.integers(0, 20), st.integers(0, 25))
@settings(deadline=None)
def test_a_replay_has_the_frames_sent_after_that_number(sent, after):
    out, _, got = drive([("final", "a", str(n)) for n in range(sent)], max_sheddable=1000)
    found = out.replay(after)
    assert [json.loads(bytes(frame)) for frame in found.frames] == got[after:]
    assert (found.complete, found.last) == (after <= sent, sent)


async def test_a_replay_says_whether_the_oldest_frames_are_gone():
    out = SendBuffer(replay_frames=3)
    for number in range(5):
        out.send_event("message.complete", "a", Final(str(number)))
        await out.next_frame()
    assert [len(out.replay(after).frames) for after in range(6)] == [3, 3, 3, 2, 1, 0]
    assert [out.replay(after).complete for after in range(7)] == [
        False, False, True, True, True, True, False
    ]  # fmt: skip


async def test_a_replay_is_bounded_in_bytes_but_always_has_the_last_frame():
    out = SendBuffer(replay_bytes=1000)
    for size in (10, 400, 400, 5000):
        out.send_event("message.complete", "a", Final("x" * size))
        await out.next_frame()
    assert [len(frame) > 5000 for frame in map(bytes, out.replay(0).frames)] == [True]
    assert out._sent_size == len(bytes(out.replay(0).frames[0]))


async def test_requests_are_read_again_once_the_client_reads(autojump_clock):
    out = SendBuffer(max_sheddable=100)
    for number in range(5):
        out.send_result(number, {"text": "x" * 100})
    assert out.full
    with trio.move_on_after(1):
        await out.wait_writable()
        raise AssertionError("the buffer was full")
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(out.wait_writable)
            await trio.testing.wait_all_tasks_blocked()
            while out.full:
                await out.next_frame()
    assert out.seq < 5
