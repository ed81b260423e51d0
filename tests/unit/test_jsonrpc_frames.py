"""Lines, frames and numbers of JSON-RPC, without a runtime."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given, settings, strategies as st

from hermes.adapters.jsonrpc import frames, send_buffer
from hermes.adapters.jsonrpc.events import EVENTS
from hermes.adapters.jsonrpc.frames import BadLine, decode, encode
from hermes.adapters.jsonrpc.handles import Handles, is_ours
from hermes.adapters.jsonrpc.methods import METHODS
from hermes.adapters.jsonrpc.schema import schema
from hermes.adapters.jsonrpc.send_buffer import SendBuffer
from hermes.adapters.jsonrpc.stdio import Lines
from hermes.session_keys import session_key

# A line that is no request

DEEP = b"[" * 200_000
NOT_JSON = {
    "words": b"hello",
    "half": b'{"id": 1, "method": "session.list"',
    "nan": b'{"id": NaN, "method": "session.list"}',
    "nul": b'{"id": 1, "method": "session.list"}\0',
    "a raw nul": b'{"id": 1, "method": "session\0list"}',
    "half a character": b'{"id": 1, "method": "session.list", "params": {"a": "\\ud800"}}',
    "two": b'{"id": 1, "method": "a"} {"id": 2, "method": "b"}',
    "latin-1 name": b'{"id": 1, "m\xe4thod": "a"}',
    "byte order": b'\xff\xfe{"id": 1}',
    "single quotes": b"{'id': 1}",
    "comment": b'{"id": 1} // hello',
}
NO_REQUEST = {
    "a number": (b"42", None),
    "a text": (b'"session.list"', None),
    "null": (b"null", None),
    "a batch": (b'[{"id": 1, "method": "session.list"}]', None),
    "an empty batch": (b"[]", None),
    "brackets": (DEEP, None),
    "braces": (b'{"a":' * 200_000, None),
    "a deep id": (b'{"id": %s%s, "method": "a"}' % (DEEP, b"]" * 200_000), None),
    "no method": (b'{"id": 1}', 1),
    "a method that is no text": (b'{"id": 1, "method": 5}', 1),
    "a method in latin-1": (b'{"id": 1, "method": "\xe4"}', 1),
    "another version": (b'{"jsonrpc": "1.0", "id": 1, "method": "a"}', 1),
    "a version that is no text": (b'{"jsonrpc": 2.0, "id": 1, "method": "a"}', 1),
    "id null": (b'{"id": null, "method": "a"}', None),
    "id true": (b'{"id": true, "method": "a"}', None),
    "id 1.5": (b'{"id": 1.5, "method": "a"}', None),
    "id 1e3": (b'{"id": 1e3, "method": "a"}', None),
    "id object": (b'{"id": {}, "method": "a"}', None),
    "id huge": (b'{"id": 9007199254740993, "method": "a"}', None),
    "id of a million digits": (b'{"id": 1%s, "method": "a"}' % (b"0" * 1_000_000), None),
    "id long": (b'{"id": "%s", "method": "a"}' % (b"x" * 201), None),
    "id in latin-1": (b'{"id": "\xe4", "method": "a"}', None),
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_what_is_not_json_is_a_parse_error(name):
    with pytest.raises(BadLine) as bad:
        decode(NOT_JSON[name])
    assert (bad.value.code, bad.value.request_id) == (frames.PARSE, None)
    assert str(bad.value).endswith(".")


@pytest.mark.parametrize("name", NO_REQUEST)
def test_what_is_json_and_no_request_is_invalid_and_says_whose_it_was(name):
    line, request_id = NO_REQUEST[name]
    with pytest.raises(BadLine) as bad:
        decode(line)
    assert (bad.value.code, bad.value.request_id) == (frames.INVALID, request_id)
    assert str(bad.value).endswith(".")


def test_a_batch_is_told_what_to_do_instead():
    with pytest.raises(BadLine, match="one request per line"):
        decode(b' [{"id": 1, "method": "session.list"}]')


IDS = st.one_of(
    st.integers(-(2**53), 2**53),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=10,
)


@given(IDS, NAMES, st.dictionaries(NAMES, VALUES, max_size=4), st.booleans(), st.booleans())
def test_every_request_is_read_as_it_was_meant(request_id, method, params, ascii_only, versioned):
    fields = {"id": request_id, "method": method, "params": params, "more": 1}
    fields |= {"jsonrpc": "2.0"} if versioned else {}
    read = decode(json.dumps(fields, ensure_ascii=ascii_only).encode() + b"\r")
    assert (read.id, read.method) == (request_id, method)
    assert type(read.id) is type(request_id)
    assert msgspec.json.decode(read.params) == params


@given(st.binary(max_size=300) | st.from_regex(rb'\A[\[\]{}":,\\ 0-9eE.\-untrfalsid]*\Z'))
def test_no_bytes_do_anything_but_these_two(line):
    try:
        code = decode(line) and None
    except BadLine as bad:
        code = bad.code
    assert code in {None, frames.PARSE, frames.INVALID}


@given(st.text())
def test_every_text_can_be_written_and_halves_of_characters_are_question_marks(text):
    halves = sum("\ud800" <= letter <= "\udfff" for letter in text)
    line = encode({"text": text, "number": float("inf") if not halves else 1})
    assert b"\n" not in line
    read = json.loads(line)["text"]
    assert len(read) == len(text)
    expected = "".join("?" if "\ud800" <= letter <= "\udfff" else letter for letter in text)
    assert read == expected


# Lines of a bounded length

LIMIT = 10


class Pieces(trio.abc.ReceiveStream):
    """A stream that gives these pieces, one at a time."""

    def __init__(self, pieces):
        self.pieces = pieces

    async def receive_some(self, max_bytes=None):
        await trio.lowlevel.checkpoint()
        return self.pieces.pop(0) if self.pieces else b""

    async def aclose(self):
        await trio.lowlevel.checkpoint()


async def lines_of(stream, limit=LIMIT):
    lines, found = Lines(stream, limit), []
    while True:
        try:
            line = await lines.read()
        except OverflowError:
            found.append(None)
            continue
        if line is None:
            return found
        found.append(line)


@given(
    st.lists(st.binary(max_size=3 * LIMIT).map(lambda line: line.replace(b"\n", b"-"))),
    st.lists(st.integers(1, 2 * LIMIT), max_size=100),
    st.booleans(),
)
@settings(deadline=None)
def test_lines_come_whole_however_they_are_cut_and_long_ones_are_skipped(lines, cuts, ended):
    text = b"".join(line + b"\n" for line in lines)
    text = text if ended else text.removesuffix(b"\n")
    *expected, last = text.split(b"\n")
    expected += [last] if last else []
    pieces, left = [], text
    for cut in [*cuts, len(text) + 1]:
        pieces.append(left[:cut])
        left = left[cut:]
    found = trio.run(lines_of, Pieces([piece for piece in pieces if piece]))
    assert found == [None if len(line) > LIMIT else line for line in expected]


async def test_a_line_without_an_end_costs_no_memory():
    class Endless(trio.abc.ReceiveStream):
        sent = 0

        async def receive_some(self, max_bytes=None):
            await trio.lowlevel.checkpoint()
            self.sent += 1
            assert len(lines._buffer) <= LIMIT
            return b"x" * LIMIT if self.sent < 1000 else b"\nhello\n" if self.sent == 1000 else b""

        async def aclose(self):
            await trio.lowlevel.checkpoint()

    lines = Lines(Endless(), LIMIT)
    with pytest.raises(OverflowError):
        await lines.read()
    assert await lines.read() == b"hello"
    assert await lines.read() is None


# Numbers, shedding and replay

SESSIONS = st.sampled_from(["a", "b"])
WORDS = st.text("xyz", min_size=1, max_size=30)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("piece"), SESSIONS, WORDS),
        st.tuples(st.just("tool"), SESSIONS, WORDS),
        st.tuples(st.just("final"), SESSIONS, WORDS),
        st.tuples(st.just("answer"), st.integers(), WORDS),
        st.tuples(st.just("refuse"), st.integers(), WORDS),
        st.tuples(st.just("take"), st.none(), st.none()),
    ),
    max_size=60,
)


class Final(msgspec.Struct):
    text: str


def drive(steps, room):
    """Play the steps; what was put in, and the frames that came out."""
    taken, given_in = [], []

    async def main():
        out = SendBuffer(room)
        for step, whose, text in steps:
            put(out, step, whose, text, given_in)
            if step == "take" and (out._waiting or out._shed):
                taken.append(await out.take())
            assert out._light <= room
            assert out._size == sum(each.size for each in out._waiting)
            assert out.full == (out._size > 4 * room)
        out.close()
        while (frame := await out.take()) is not None:
            taken.append(frame)
        assert (out._size, out._light) == (0, 0)
        return out

    out = trio.run(main)
    return out, given_in, [json.loads(frame) for frame in taken]


def put(out, step, whose, text, given_in):
    if step != "take":
        given_in.append((step, whose, text))
    match step:
        case "piece":
            out.piece("message.delta", whose, 1, text)
        case "tool":
            out.tell("tool.start", whose, Final(text))
        case "final":
            out.tell("message.complete", whose, Final(text))
        case "answer":
            out.answer(whose, {"text": text})
        case "refuse":
            out.refuse(whose, -32600, text)


def read(frame):
    if "method" not in frame:
        kind = "answer" if "result" in frame else "refuse"
        said = frame.get("result", {}).get("text") or frame.get("error", {}).get("message")
        return frame["seq"], kind, frame["id"], said
    event = frame["params"]
    kinds = {"message.delta": "piece", "tool.start": "tool", "message.complete": "final"}
    kind = kinds.get(event["type"], event["type"])
    return event["seq"], kind, event["session_id"], event["payload"]["text"]


def merged(items):
    """Each session's own events, pieces that follow each other put together."""
    found = {}
    for kind, whose, text in items:
        mine = found.setdefault(whose if kind in {"piece", "tool", "final"} else "answers", [])
        if kind == "piece" and mine and mine[-1][0] == "piece":
            mine[-1] = ("piece", whose, mine[-1][2] + text)
        else:
            mine.append((kind, whose, text))
    return found


@given(STEPS)
@settings(deadline=None)
def test_a_client_that_reads_gets_all_of_it_in_order_and_without_gaps(steps):
    out, given_in, got = drive(steps, room=1_000_000)
    assert [read(frame)[0] for frame in got] == list(range(1, len(got) + 1))
    assert merged(read(frame)[1:] for frame in got) == merged(given_in)
    assert out.seq == len(got)


@given(STEPS, st.integers(0, 600))
@settings(deadline=None)
def test_a_client_that_does_not_read_misses_only_what_is_said_again(steps, room):
    _, given_in, got = drive(steps, room)
    frames_read = [read(frame) for frame in got]
    assert [number for number, *_ in frames_read] == list(range(1, len(got) + 1))
    heavy = {"final", "answer", "refuse"}
    assert [tuple(item) for _, *item in frames_read if item[0] in heavy] == [
        item for item in given_in if item[0] in heavy
    ]
    told = [text for _, kind, _, text in frames_read if kind == "status.update"]
    kept = [item for _, *item in frames_read if item[0] in {"piece", "tool"}]
    light = [item for item in given_in if item[0] in {"piece", "tool"}]
    if merged(map(tuple, kept)) != merged(light):
        assert told
        assert all("left out" in text for text in told)


async def test_pieces_go_before_what_is_told_of_tools():
    out = SendBuffer(room=450)
    out.tell("tool.start", "a", Final("t"))
    for _ in range(20):
        out.piece("message.delta", "a", 1, "x" * 20)
    out.tell("message.complete", "a", Final("done"))
    out.close()
    kinds = []
    while (frame := await out.take()) is not None:
        kinds.append(read(json.loads(frame))[1])
    assert [kind for kind in kinds if kind != "piece"] == ["status.update", "tool", "final"]


async def test_a_piece_that_follows_an_answer_stands_behind_it():
    out = SendBuffer()
    out.piece("message.delta", "a", 1, "before")
    out.answer(1, {"text": "so far: before"})
    out.piece("message.delta", "a", 1, "after")
    out.close()
    got = [read(json.loads(await out.take()))[3] for _ in range(3)]
    assert got == ["before", "so far: before", "after"]


async def test_pieces_of_two_turns_or_kinds_are_not_mixed():
    out = SendBuffer()
    for kind, turn in (("message.delta", 1), ("message.delta", 2), ("reasoning.delta", 2)):
        out.piece(kind, "a", turn, "x")
        out.piece(kind, "a", turn, "y")
    out.close()
    got = [json.loads(await out.take())["params"]["payload"] for _ in range(3)]
    assert got == [{"turn_id": 1, "text": "xy"}, {"turn_id": 2, "text": "xy"},
                   {"turn_id": 2, "text": "xy"}]  # fmt: skip
    assert await out.take() is None


@given(st.integers(0, 20), st.integers(0, 25))
@settings(deadline=None)
def test_a_replay_is_what_had_left_after_that_number(sent, after):
    out, _, got = drive([("final", "a", str(n)) for n in range(sent)], room=1000)
    found = out.replay(after)
    assert [json.loads(bytes(frame)) for frame in found.frames] == got[after:]
    assert (found.complete, found.last) == (after <= sent, sent)


async def test_what_is_too_old_for_a_replay_is_said_to_be(monkeypatch):
    monkeypatch.setattr(send_buffer, "REPLAY_FRAMES", 3)
    out = SendBuffer()
    for number in range(5):
        out.tell("message.complete", "a", Final(str(number)))
        await out.take()
    assert [len(out.replay(after).frames) for after in range(6)] == [3, 3, 3, 2, 1, 0]
    assert [out.replay(after).complete for after in range(7)] == [
        False, False, True, True, True, True, False
    ]  # fmt: skip


async def test_a_replay_is_bounded_in_bytes_but_always_has_the_last_frame(monkeypatch):
    monkeypatch.setattr(send_buffer, "REPLAY_BYTES", 1000)
    out = SendBuffer()
    for size in (10, 400, 400, 5000):
        out.tell("message.complete", "a", Final("x" * size))
        await out.take()
    assert [len(frame) > 5000 for frame in map(bytes, out.replay(0).frames)] == [True]
    assert out._sent_size == len(bytes(out.replay(0).frames[0]))


async def test_who_reads_again_lets_requests_be_read_again(autojump_clock):
    out = SendBuffer(room=100)
    for number in range(5):
        out.answer(number, {"text": "x" * 100})
    assert out.full
    with trio.move_on_after(1):
        await out.wait_room()
        raise AssertionError("there was no room")
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(out.wait_room)
            await trio.testing.wait_all_tasks_blocked()
            while out.full:
                await out.take()
    assert out.seq < 5


# Handles


def test_a_handle_has_eight_hex_digits_and_its_key_names_it_again():
    handle = Handles().new()
    assert len(handle.id) == 8
    assert int(handle.id, 16) >= 0
    assert is_ours(handle.session_key)
    assert handle.session_key == session_key(handle.source)
    later = Handles().new(handle.session_key)
    assert (later.id, later.session_key, later.source) == (
        handle.id, handle.session_key, handle.source
    )  # fmt: skip
    assert not is_ours("agent:main:telegram:dm:12345678")
    assert not is_ours("agent:main:rpc:dm:12345678")


def test_two_keys_that_begin_alike_have_two_handles():
    handles = Handles()
    first = handles.new("agent:main:rpc:dm:0123456789abcdef01234567")
    other = handles.new("agent:main:rpc:dm:01234567000000000000dddd")
    assert first.id != other.id
    assert (handles.require(first.id), handles.require(other.id)) == (first, other)


# Schema


def test_every_method_and_event_is_in_the_schema_and_every_ref_leads_somewhere():
    whole = schema()
    assert set(whole["methods"]) == set(METHODS)
    assert set(whole["events"]) == set(EVENTS)
    assert set(map(int, whole["errors"])) == set(frames.CODES)
    text = json.dumps(whole)
    refs = {part.split('"')[0] for part in text.split('"#/$defs/')[1:]}
    assert refs
    assert refs <= set(whole["$defs"])
    assert all(method.summary.endswith(".") for method in METHODS.values())


def test_the_schema_says_what_the_decoder_does():
    prompt = schema()["$defs"]["Prompt"]
    assert prompt["additionalProperties"] is False
    assert prompt["properties"]["busy"]["anyOf"][0]["enum"] == [
        "interrupt", "queue", "reject", "steer"
    ]  # fmt: skip


def test_the_module_prints_its_schema():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "hermes.adapters.jsonrpc"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout) == schema()


# Standard input and output are for frames

GUARDED = """
import os, subprocess, sys
from hermes.adapters.jsonrpc.stdio import reserved
print("before", flush=True)
with reserved() as (source, sink):
    print("a library prints")
    os.write(1, b"so does C\\n")
    subprocess.run([sys.executable, "-c", "import sys; print('a child', repr(sys.stdin.read()))"])
    assert sys.stdin.read() == ""
    os.write(sink, b"frame: " + os.read(source, 100))
print("after", sys.stdin.fileno())
"""


def test_what_prints_meanwhile_goes_to_standard_error_and_reads_nothing():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", GUARDED],
        input=b"hello\n", capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == b"before\nframe: hello\nafter 0\n"
    said = done.stderr.decode()
    assert all(text in said for text in ("a library prints", "so does C", "a child ''"))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="there is no /proc")
def test_descriptors_are_given_back():
    code = GUARDED + "\nassert len(os.listdir('/proc/self/fd')) <= 4"
    subprocess.run(
        [sys.executable, "-c", code], input=b"x\n", capture_output=True, check=True, timeout=60
    )


def test_every_code_says_what_it_means_in_a_sentence():
    assert all(text.endswith(".") for text in frames.CODES.values())
