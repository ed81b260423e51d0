"""Files over JSON-RPC, to real processes: over pipes and sockets, killed, stopped and measured."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from hermes import Attachment
from hermes.adapters.jsonrpc import types as t
from hermes.adapters.jsonrpc.client import connect, open_client
from hermes.adapters.jsonrpc.socket_server import socket_path
from hermes.store import SessionStore
from tests.support.jsonrpc_client import Client

SERVER = """
import hashlib, signal, sys, trio
from pathlib import Path
from hermes import Attachment, TurnResult, open_runtime
from hermes.adapters.jsonrpc import serve_socket, serve_stdio

class Agent:
    async def run(self, turn):
        parts = [part for message in turn.input for part in message.parts or ()]
        readers = [await turn.open_file(part["file"]) for part in parts]
        sums = [hashlib.sha256(await reader.read()).hexdigest() for reader in readers]
        files = [Attachment(data=" ".join(sums).encode(), name="sums.txt")] if sums else []
        return TurnResult(text=" ".join([turn.text.partition(chr(10))[0], *sums]), files=files)

async def main():
    path = Path(sys.argv[1])
    async with open_runtime(path, build_agent=lambda _: Agent()) as runtime:
        if sys.argv[2] == "stdio":
            await serve_stdio(runtime)
        else:
            with trio.open_signal_receiver(signal.SIGTERM) as signals:
                async with serve_socket(runtime, path):
                    print("ready", flush=True)
                    async for _ in signals:
                        break

trio.run(main)
"""
CONTENT = os.urandom(3_000_000)
SUM = hashlib.sha256(CONTENT).hexdigest()


def command(path, transport):
    return [sys.executable, "-W", "error", "-c", SERVER, str(path), transport]


def files_in(path):
    folder = path.with_name(f"{path.name}.blobs")
    return [file for file in folder.rglob("*") if file.is_file()]


@asynccontextmanager
async def ended(process):
    """End a process with the block."""
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def over_pipes(path):
    """A server process, and a client of it."""
    started = await trio.lowlevel.open_process(
        command(path, "stdio"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    async with ended(started) as process, trio.open_nursery() as nursery:
        client = Client(process.stdin, process.stdout)
        nursery.start_soon(client.listen)
        await client.event("gateway.ready")
        yield process, client
        await process.stdin.aclose()
        with trio.fail_after(20):
            await process.wait()


@asynccontextmanager
async def over_socket(path):
    """A server process, and the client of an attached console."""
    started = await trio.lowlevel.open_process(command(path, "socket"), stdout=subprocess.PIPE)
    async with ended(started) as process:
        assert await process.stdout.receive_some(1) == b"r"
        async with open_client(await connect(socket_path(path))) as client:
            yield process, client
        await process.stdout.aclose()


async def opened(client):
    params = t.CreateParams(conversation="c")
    return (await client.call("session.create", params, t.CreateResult)).session_id


async def upload(client, handle, content):
    """Upload a file, all chunks at once; returns its id."""
    begin = {"session_id": handle, "name": "noise.bin", "size": len(content)}
    number = (await client.call("file.begin", **begin))["upload"]
    for offset in range(0, len(content), t.MAX_CHUNK):
        data = base64.b64encode(content[offset : offset + t.MAX_CHUNK]).decode()
        await client.request("file.chunk", upload=number, offset=offset, data=data)
    return (await client.call("file.end", upload=number))["file"]


async def test_files_go_to_an_agent_and_back_over_pipes(path):
    async with over_pipes(path) as (process, client):
        handle = (await client.call("session.create", conversation="c"))["session_id"]
        parts = [{"file": await upload(client, handle, CONTENT)}]
        done = await client.call("prompt.submit", session_id=handle, text="sum", parts=parts)
        answer = await client.answer_to(done["message_id"])
        assert answer["text"] == f"sum {SUM}"
        [file] = answer["files"]
        read = await client.call("file.read", session_id=handle, file=file["file"])
        assert base64.b64decode(read["data"]).decode() == SUM
    assert process.returncode == 0


async def test_files_go_to_an_agent_and_back_over_a_socket(path, tmp_path):
    (tmp_path / "noise.bin").write_bytes(CONTENT)
    async with over_socket(path) as (_, client):
        answered, answers = trio.Event(), []

        def receive(event):
            if event.type == "message.complete":
                answers.append(event.payload)
                answered.set()

        client.on_event = receive
        handle = await opened(client)
        stored = await client.upload(handle, Attachment(path=tmp_path / "noise.bin"))
        assert (stored.name, stored.size) == ("noise.bin", len(CONTENT))
        prompt = t.SubmitParams(session_id=handle, text="sum", parts=[t.Part(file=stored.id)])
        await client.call("prompt.submit", prompt, t.SubmitResult)
        copy = io.BytesIO()
        assert await client.download(handle, stored.id, copy) == stored
        assert copy.getvalue() == CONTENT
        await answered.wait()
        [answer] = answers
        assert answer["text"] == f"sum {SUM}"
        sums = io.BytesIO()
        await client.download(handle, answer["files"][0]["file"], sums)
        assert sums.getvalue().decode() == SUM


async def test_a_bot_that_is_stopped_does_not_wait_for_an_upload(path):
    async with over_socket(path) as (process, client):
        handle = await opened(client)
        params = t.BeginParams(session_id=handle, size=1000)
        number = (await client.call("file.begin", params, t.BeginResult)).upload
        chunk = t.ChunkParams(upload=number, offset=0, data="YWJj")
        await client.call("file.chunk", chunk, t.ChunkResult)
        assert len(files_in(path)) == 1
        process.send_signal(signal.SIGTERM)
        with trio.fail_after(20):
            assert await process.wait() == 0
        assert files_in(path) == []


async def test_a_kill_during_an_upload_leaves_a_file_that_a_sweep_removes(path):
    async with over_pipes(path) as (process, client):
        handle = (await client.call("session.create", conversation="c"))["session_id"]
        number = (await client.call("file.begin", session_id=handle))["upload"]
        data = base64.b64encode(CONTENT[: t.MAX_CHUNK]).decode()
        for count in range(3):
            offset = count * t.MAX_CHUNK
            await client.call("file.chunk", upload=number, offset=offset, data=data)
        process.send_signal(signal.SIGKILL)
        await process.wait()
    [left] = files_in(path)
    assert left.parent.name == "incoming"
    with SessionStore(path) as store:
        assert store.snapshot(lambda tx: tx.all("SELECT id FROM files")) == []
        assert store.sweep_files() == 0  # a message may be about to name it
        os.utime(left, (0, 0))
        assert store.sweep_files() == 1
    assert files_in(path) == []


@pytest.mark.parametrize("point", ["sent", "accepted", "answered"])
async def test_a_prompt_with_content_that_is_sent_again_to_a_killed_bot_is_one_message(path, point):
    parts = [{"data": base64.b64encode(CONTENT).decode(), "name": "noise.bin"}]
    prompt = {"text": "sum", "event_id": "e1", "parts": parts}
    async with over_pipes(path) as (process, client):
        handle = (await client.call("session.create", conversation="c"))["session_id"]
        request_id = await client.request("prompt.submit", session_id=handle, **prompt)
        if point != "sent":
            done = await client.response(request_id)
        if point == "answered":
            await client.answer_to(done["message_id"])
        process.send_signal(signal.SIGKILL)
        await process.wait()
    async with over_pipes(path) as (process, client):
        await client.call("session.create", conversation="c")
        again = await client.call("prompt.submit", session_id=handle, **prompt)
        if again["status"] != "answered":
            await client.answer_to(again["message_id"])
        shown = await client.call("session.history", session_id=handle)
        assert [row["text"] for row in shown["messages"]] == ["sum", f"sum {SUM}"]
        assert [part["size"] for part in shown["messages"][0]["parts"]] == [len(CONTENT)]
    assert process.returncode == 0
    with SessionStore(path) as store:
        used = "SELECT count(*) FROM files WHERE id IN (SELECT file_id FROM session_files)"
        assert store.snapshot(lambda tx: tx.one(used)) == (2,)


class Summed(io.RawIOBase):
    """A file that keeps nothing but the hash of its content."""

    def __init__(self):
        self.sum = hashlib.sha256()

    def write(self, content):
        self.sum.update(content)
        return len(content)


def peak_memory(process):
    """The most memory that a process has had, in bytes."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    [line] = [each for each in lines if each.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
async def test_the_memory_of_a_bot_stays_flat_during_an_upload_and_a_download(path):
    async def noise(count):
        for _ in range(count):
            yield CONTENT[: t.MAX_CHUNK]

    async with over_socket(path) as (process, client):
        handle = await opened(client)
        warm = await client.upload(handle, Attachment(chunks=noise(4)))
        await client.download(handle, warm.id, io.BytesIO())
        before = peak_memory(process)
        stored = await client.upload(handle, Attachment(chunks=noise(100)))
        assert stored.size == 100 * t.MAX_CHUNK
        checked = Summed()
        await client.download(handle, stored.id, checked)
        assert checked.sum.hexdigest() == hashlib.sha256(CONTENT[: t.MAX_CHUNK] * 100).hexdigest()
        assert peak_memory(process) - before < 10 * t.MAX_CHUNK
