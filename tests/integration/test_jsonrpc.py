"""JSON-RPC over the pipes of a real process, which is killed and restarted."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from hermes.adapters.jsonrpc.schema import reference
from hermes.messages import Inbound
from hermes.store import SessionStore
from tests.support.jsonrpc_client import Client

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "jsonrpc.md"
SERVER = """
import os, sys, trio
from pathlib import Path
from hermes import TurnResult, open_runtime
from hermes.adapters.jsonrpc import serve_stdio
from hermes.events import TextDelta

path = Path(sys.argv[1])
begun = path.with_suffix(".begun")

class Agent:
    async def run(self, turn):
        print("a tool prints this")
        os.system("echo so does a child")
        turn.emit(TextDelta("one "))
        if turn.text == "hang" and not begun.exists():
            begun.touch()
            await trio.sleep_forever()
        turn.emit(TextDelta("two"))
        print("a turn ends", flush=True)
        return TurnResult(text="one two" if len(turn.text) < 10 else turn.text * 3)

async def main():
    async with open_runtime(path, build_agent=lambda _: Agent()) as runtime:
        await serve_stdio(runtime)

trio.run(main)
"""


@pytest.fixture
def command(path):
    return [sys.executable, "-W", "error", "-c", SERVER, str(path)]


@asynccontextmanager
async def server(command):
    """A server process, and a client of it."""
    process = await trio.lowlevel.open_process(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        client = Client(process.stdin, process.stdout)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.listen)
            await client.event("gateway.ready")
            yield process, client
            await process.stdin.aclose()
            with trio.fail_after(20):
                await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_conversation_over_pipes(command):
    async with server(command) as (process, client):
        handle = (await client.call("session.create", title="Plans"))["session_id"]
        await client.call("prompt.submit", session_id=handle, text="hello")
        complete = await client.event("message.complete")
        assert complete["text"] == "one two"
        assert (await client.event("session.title"))["title"] == "Plans"
    assert process.returncode == 0
    assert client.numbers == list(range(1, len(client.frames) + 1))
    deltas = [payload["text"] for kind, payload in client.events() if kind == "message.delta"]
    assert "".join(deltas) == "one two"


POINTS = [
    (point, first)
    for point in ("sent", "answered", "running", "complete")
    for first in (False, True)
]


@pytest.mark.parametrize(("point", "first"), POINTS)
async def test_a_client_misses_nothing_when_the_process_is_killed(command, path, point, first):
    text = "hang" if point == "running" else "go"
    ask = {"text": text, "event_id": "e1"}
    async with server(command) as (process, client):
        handle = (await client.call("session.create", conversation="c"))["session_id"]
        done = None
        if not first:
            done = await client.call("prompt.submit", session_id=handle, text="hello")
            await client.event("message.complete")
        request_id = await client.request("prompt.submit", session_id=handle, **ask)
        if point != "sent":
            done = await client.response(request_id)
        if point in {"running", "complete"}:
            await client.event("message.delta" if point == "running" else "message.complete")
        process.send_signal(signal.SIGKILL)
        await process.wait()
        epoch = client.frames[0]["params"]["payload"]["epoch"]
        seen = client.numbers[-1]
    async with server(command) as (_, client):
        replayed = await client.call("events.replay", after=seen, epoch=epoch)
        assert not replayed["complete"]
        if done is None:  # without a stored id there is nothing to resume
            opened = await client.call("session.create", conversation="c")
        else:
            opened = await client.call("session.resume", session_id=done["stored_session_id"])
        assert (opened["session_id"], opened["conversation"]) == (handle, "c")
        again = await client.call("prompt.submit", session_id=handle, **ask)
        if again["status"] != "answered":
            await client.answer_to(again["message_id"])
        shown = await client.call("session.history", session_id=handle)
        before = [] if first else ["hello", "one two"]
        assert [row["text"] for row in shown["messages"]] == [*before, text, "one two"]
        assert done is None or shown["stored_session_id"] == done["stored_session_id"]
        assert (await client.call("session.resume", session_id=handle))["running"] is False
    with SessionStore(path) as store:
        assert store.open_inbox() == []


def run(command, text, **options):
    return subprocess.run(
        command, input=text, capture_output=True, timeout=60, check=False, **options
    )


def frames_of(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


HOSTILE = [
    b"hello",
    b"\xff\xfe\x00",
    b"\0" * 1000,
    b"[" * 200_000,
    b"[" * 200_000 + b"]" * 200_000,
    b'{"id": 1, "method": "session.list", "params": ' + b'{"a":' * 100_000,
    b'[{"id": 1, "method": "session.list"}]',
    b'{"id": null, "method": "session.list"}',
    b'{"id": 1e999, "method": "session.list"}',
    b'{"id": NaN, "method": "session.list"}',
    b'{"id": 1, "method": "' + b"x" * 2_000_000 + b'"}',
    b'{"id": 1, "method": "session.list", "params": {"limit": 1%s}}' % (b"0" * 100_000),
    b'{"id": 1, "method": "session.resume", "params": {"title": "\\ud800"}}',
    b"x" * 6_000_000,
]


def test_hostile_lines_are_each_refused_once_and_do_not_end_the_server(command):
    text = b"\n\r\n  \n".join(HOSTILE) + b'\n{"id": "last", "method": "session.list"}\r\n'
    done = run(command, text)
    assert done.returncode == 0
    ready, *answers = frames_of(done)
    assert ready["params"]["type"] == "gateway.ready"
    assert len(answers) == len(HOSTILE) + 1
    [good] = [answer for answer in answers if "result" in answer]
    assert good["id"] == "last"
    codes = {answer["error"]["code"] for answer in answers if "error" in answer}
    assert codes == {-32700, -32600, -32601, -32602}
    assert all(len(line) < 1000 for line in done.stdout.splitlines())
    assert b"Traceback" not in done.stderr


def test_printed_output_is_not_mixed_with_frames(command):
    create = b'{"id": 1, "method": "session.create"}\n'
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdin.write(create)
        process.stdin.flush()
        process.stdout.readline()
        handle = json.loads(process.stdout.readline())["result"]["session_id"]
        ask = {"session_id": handle, "text": "hello"}
        frame = {"id": 2, "method": "prompt.submit", "params": ask}
        out, err = process.communicate(json.dumps(frame).encode(), timeout=60)  # without a newline
    assert process.returncode == 0
    kinds = [json.loads(line).get("params", {}).get("type") for line in out.splitlines()]
    assert "message.complete" in kinds  # the server waits for it at the end of the input
    assert b"a tool prints this" in err
    assert b"so does a child" in err


def test_the_input_may_be_a_file(command, tmp_path):
    lines = tmp_path / "lines"
    lines.write_bytes(b'{"id": 1, "method": "session.create"}\n{"id": 2, "method": "nothing"}')
    with lines.open("rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, timeout=60, check=True)
    assert {frame["id"] for frame in frames_of(done)[1:]} == {1, 2}


def test_the_process_ends_when_its_reader_closes(command):
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        process.stdin.write(b'{"id": 1, "method": "session.create"}\n')
        process.stdin.flush()
        assert process.wait(30) == 0
        assert b"Traceback" not in process.stderr.read()


def test_a_client_that_does_not_read_delays_no_turn(command):
    """Twenty answers of 60,000 characters are far more than a pipe holds."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:

        def send(frame):
            process.stdin.write(json.dumps(frame).encode() + b"\n")
            process.stdin.flush()

        process.stdout.readline()
        handles = []
        for number in range(20):
            send({"id": number, "method": "session.create"})
            handles.append(json.loads(process.stdout.readline())["result"]["session_id"])
        for number, handle in enumerate(handles):
            ask = {"session_id": handle, "text": "x" * 20_000}
            send({"id": 100 + number, "method": "prompt.submit", "params": ask})
        ended = 0
        while ended < 20:  # every turn ends although nothing is read
            ended += process.stderr.readline() == b"a turn ends\n"
        process.stdin.close()
        frames = [json.loads(line) for line in process.stdout]
        assert process.wait(30) == 0
    complete = [
        frame["params"] for frame in frames
        if frame.get("params", {}).get("type") == "message.complete"
    ]  # fmt: skip
    assert sorted(each["session_id"] for each in complete) == sorted(handles)
    assert {len(each["payload"]["text"]) for each in complete} == {60_000}


# The exit code of `--stdio`


@pytest.fixture
def impatient(path):
    """The command of a bot whose drain is short."""
    config = path.with_name("hermes.toml")
    config.write_text(
        f"data = '{path}'\n[agent]\nkind = 'offline'\n"
        "[runtime]\ndrain_timeout = 0.2\nmax_attempts = 100\n"
    )
    return [sys.executable, "-W", "error", "-m", "hermes.run", "--stdio", "--config", str(config)]


def unanswered(number):
    return f"Accepted messages without an answer: {number}; the next start answers them.\n".encode()


@pytest.mark.parametrize("end", ["input", "signal", "output"])
def test_the_bot_does_not_exit_with_0_while_messages_are_unanswered(impatient, path, end):
    with subprocess.Popen(
        impatient, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:

        def call(number, method, **params):
            frame = {"id": number, "method": method, "params": params}
            process.stdin.write(json.dumps(frame).encode() + b"\n")
            process.stdin.flush()
            while (answer := json.loads(process.stdout.readline())).get("id") != number:
                pass
            return answer["result"]

        handle = call(1, "session.create")["session_id"]
        for number in (2, 3):
            call(number, "prompt.submit", session_id=handle, text="count to 1000 slowly")
        if end == "input":
            process.stdin.close()
        elif end == "signal":
            process.send_signal(signal.SIGTERM)
        else:
            process.stdout.close()
        assert process.wait(30) == 6
        assert process.stderr.read().endswith(unanswered(2))
    with SessionStore(path) as store:
        assert len(store.open_inbox()) == 2


def test_messages_of_an_earlier_process_count_as_well(impatient, path):
    with SessionStore(path) as store:
        store.accept(Inbound("k", "e", "count to 1000 slowly"))
    done = run(impatient, b"")
    assert done.returncode == 6
    assert done.stderr.endswith(unanswered(1))
    with SessionStore(path) as store:
        store.withdraw("k", 1)
    assert run(impatient, b"").returncode == 0


# docs/jsonrpc.md


def test_the_page_has_the_current_reference():
    shown = re.search(
        r"<!-- reference -->\n(.*?)\n<!-- /reference -->", PAGE.read_text(), re.DOTALL
    )
    assert shown is not None
    assert shown[1] == reference(), (
        "docs/jsonrpc.md is stale: insert the output of `python -m hermes.adapters.jsonrpc "
        "--markdown` between its markers"
    )


def test_the_session_on_the_page_is_current(tmp_path):
    """The program prints the frames below it, except for ids, times and order."""
    page = PAGE.read_text()
    program = re.search(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1]
    shown = re.search(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert normalized(done.stdout) == normalized(shown)


def normalized(text):
    """Lines without ids, numbers and times, sorted: responses and events may come in any order."""
    text = re.sub(r"\d{8}_\d{6}_[0-9a-f]{8}", "ID", text)
    text = re.sub(r'"[0-9a-f]{8}"', '"HANDLE"', text)
    text = re.sub(r'"[0-9a-f]{16}"', '"EPOCH"', text)
    text = re.sub(r'"seq":\d+', '"seq":N', text)
    return sorted(re.sub(r"\d{10}\.\d+", "TIME", text).splitlines())
