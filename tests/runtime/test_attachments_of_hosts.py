"""Attachments in asyncio and synchronous programs, and in agents outside of Trio."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import textwrap
import threading

import pytest
import trio

from hermes import Attachment, Inbound, Source, open_runtime
from hermes.agents import blocking_agent
from hermes.embed import open_runtime_asyncio, start_runtime
from hermes.errors import AttachmentRefused, UnknownFile
from hermes.messages import TurnResult
from hermes.testing import MemoryAdapter
from tests.support.files import blobs_of, png
from tests.support.runtime import SECONDS

CAT = png()
CAT_LINE = f"[image cat.png, {len(CAT)} bytes]"


async def echo(turn):
    return f"echo: {turn.text}"


def cat():
    return Attachment(data=CAT, name="cat.png")


def read(path):
    """The bytes of all files that the messages of a conversation name, in order."""

    async def main():
        async with open_runtime(path, agent=echo) as runtime:
            conversation = runtime.conversation("k")
            history = await conversation.history()
            parts = [part for row in history for part in row.parts or ()]
            return [await conversation.read_file(part["file"]) for part in parts]

    return trio.run(main)


# The verbs


def test_a_synchronous_program_sends_reads_and_saves_files(path, tmp_path):
    (tmp_path / "cat.png").write_bytes(CAT)
    with start_runtime(path, agent=echo) as runtime:
        conversation = runtime.conversation("k")
        attachments = [cat(), Attachment(path=tmp_path / "cat.png")]
        assert conversation.ask("look", attachments=attachments).text.count(CAT_LINE) == 2
        with (tmp_path / "cat.png").open("rb") as file:
            stored = conversation.put_file(Attachment(file=file, name="cat.png"))
            assert not file.closed
        with runtime.stream("k", parts=[stored.part]) as stream:
            assert list(stream)
        assert stream.reply.text == f"echo: {CAT_LINE}"
        receipt = runtime.submit(Inbound("k", "e", "submitted"), attachments=[cat()])
        assert runtime.wait(receipt).text == f"echo: submitted\n{CAT_LINE}"
        assert conversation.post(attachments=[cat()]).parts[0]["name"] == "cat.png"
        reader = conversation.open_file(stored.id)
        assert (reader.file, reader.read(3, 4), reader.read()) == (stored, CAT[3:7], CAT)
        assert conversation.read_file(stored.id) == CAT
        assert conversation.save_file(stored.id, tmp_path / "copy").read_bytes() == CAT
        with pytest.raises(FileExistsError):
            conversation.save_file(stored.id, tmp_path / "copy")
        with pytest.raises(UnknownFile):
            runtime.conversation("other").open_file(stored.id)
        with pytest.raises(AttachmentRefused):
            conversation.ask("x", attachments=[Attachment(data=b"")])


async def in_chunks(*chunks):
    async with asyncio.timeout(SECONDS):  # needs to be entered and left in one task
        for chunk in chunks:
            await asyncio.sleep(0)
            yield chunk


def test_an_asyncio_program_sends_reads_and_saves_files(path, tmp_path):
    async def main():
        async with open_runtime_asyncio(path, agent=echo) as runtime:
            conversation = runtime.conversation("k")
            chunks = Attachment(chunks=in_chunks(CAT[:9], CAT[9:]), name="cat.png")
            reply = await conversation.ask("look", attachments=[chunks, cat()])
            assert reply.text == f"echo: look\n{CAT_LINE}\n{CAT_LINE}"
            chunks = Attachment(chunks=in_chunks(CAT), name="cat.png")
            stored = await conversation.put_file(chunks)
            chunks = Attachment(chunks=in_chunks(CAT), name="cat.png")
            async with conversation.stream(attachments=[chunks]) as stream:
                assert [event async for event in stream]
            assert stream.reply.text == f"echo: {CAT_LINE}"
            file = Attachment(file=io.BytesIO(CAT), name="cat.png")
            receipt = await runtime.submit(Inbound("k", "e", "x"), attachments=[file])
            await runtime.wait(receipt)
            await runtime.post("k", attachments=[cat()])
            reader = await conversation.open_file(stored.id)
            assert (reader.file, await reader.read(3, 4)) == (stored, CAT[3:7])
            assert await conversation.read_file(stored.id) == CAT
            saved = await conversation.save_file(stored.id, tmp_path / "copy")
            assert saved.read_bytes() == CAT

    asyncio.run(main())
    assert read(path) == [CAT] * 5


def test_a_synchronous_program_cannot_pass_chunks(path):
    with start_runtime(path, agent=echo) as runtime:
        conversation = runtime.conversation("k")
        for call in (
            lambda file: conversation.ask("x", attachments=[file]),
            conversation.put_file,
            lambda file: runtime.submit(Inbound("k", "e", "x"), attachments=[file]),
        ):
            with pytest.raises(TypeError, match="chunks are read on an event loop"):
                call(Attachment(chunks=in_chunks(CAT)))
        assert conversation.history() == []


# Chunks of an asyncio program


class Failed(Exception):
    pass


def test_chunks_that_fail_leave_nothing_behind(path):
    async def failing():
        yield CAT
        raise Failed("the line is cut")

    async def main():
        async with open_runtime_asyncio(path, agent=echo) as runtime:
            with pytest.raises(AttachmentRefused, match="the line is cut"):
                await runtime.ask("k", "x", attachments=[cat(), Attachment(chunks=failing())])
            assert await runtime.conversation("k").history() == []

    asyncio.run(main())


@pytest.mark.parametrize("way", ["refused", "cancelled"])
def test_a_generator_is_closed_in_its_own_task_when_the_call_ends_early(path, way):
    async def main():
        tasks, waiting = [], asyncio.Event()

        async def endless():
            tasks.append(asyncio.current_task())
            try:
                while True:
                    yield b"x" * 2**20
                    if way == "cancelled":
                        waiting.set()
                        await asyncio.sleep(SECONDS)
            finally:
                tasks.append(asyncio.current_task())

        async with open_runtime_asyncio(path, agent=echo) as runtime:
            asking = asyncio.ensure_future(
                runtime.ask("k", "x", attachments=[Attachment(chunks=endless())])
            )
            if way == "cancelled":
                await waiting.wait()
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
            else:
                with pytest.raises(AttachmentRefused, match="larger than"):
                    await asking
            assert len(tasks) == 2
            assert tasks[0] is tasks[1]
            assert await runtime.conversation("k").history() == []

    asyncio.run(main())
    assert blobs_of(path) == []


# Cancelled calls


class HeldFile(io.BytesIO):
    """A file whose reads wait until they are released."""

    def __init__(self, data):
        super().__init__(data)
        self.begun, self.released = threading.Event(), threading.Event()
        self.reads = 0

    def read(self, size=-1):
        self.begun.set()
        assert self.released.wait(SECONDS)
        self.reads += 1
        return super().read(size)


@pytest.mark.parametrize("verb", ["ask", "stream", "put_file"])
def test_a_cancelled_call_returns_when_it_no_longer_reads_the_file(path, verb):
    async def main():
        async with open_runtime_asyncio(path, agent=echo) as runtime:
            conversation, file = runtime.conversation("k"), HeldFile(CAT)

            async def call():
                if verb == "stream":
                    async with conversation.stream(attachments=[Attachment(file=file)]):
                        pass
                elif verb == "ask":
                    await conversation.ask(attachments=[Attachment(file=file)])
                else:
                    await conversation.put_file(Attachment(file=file))

            calling = asyncio.ensure_future(call())
            await asyncio.to_thread(file.begun.wait, SECONDS)
            for _ in range(3):  # a second cancellation changes nothing
                calling.cancel()
                for _ in range(20):
                    await asyncio.sleep(0)
                assert not calling.done()
            file.released.set()
            with pytest.raises(asyncio.CancelledError):
                await calling
            reads = file.reads
            assert await conversation.history() == []
            assert file.reads == reads

    asyncio.run(main())
    assert blobs_of(path) == []


def test_ctrl_c_ends_a_call_when_it_no_longer_reads_the_file(path):
    code = """
        import io, os, signal, sys, threading
        from hermes import Attachment
        from hermes.embed import start_runtime

        class File(io.BytesIO):
            reading = False

            def read(self, size=-1):
                self.reading = True
                os.kill(os.getpid(), signal.SIGINT)
                left.wait(0.5)  # the call has ended too early if this returns True
                self.reading = False
                return super().read(size)

        async def echo(turn):
            return turn.text

        left, file = threading.Event(), File(b"some bytes")
        with start_runtime(sys.argv[1], agent=echo) as runtime:
            try:
                runtime.ask("k", attachments=[Attachment(file=file)])
            except KeyboardInterrupt:
                print(file.reading)
                left.set()
            print(runtime.conversation("k").history())
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("False\n[]\n", "")
    assert blobs_of(path) == []


# Agents


async def describe_first(turn):
    """Read the input's file and answer with two files, on asyncio."""
    reader = await turn.open_file(turn.input[0].parts[0]["file"])
    data = await reader.read()
    stored = await turn.put_file(Attachment(chunks=in_chunks(data), name="copy.png"))
    returned = Attachment(chunks=in_chunks(b"a ", b"text"), name="a.txt")
    return TurnResult(text=f"{reader.file.name}: {len(data)}", files=[stored, returned])


def check(reply):
    assert reply.text == f"cat.png: {len(CAT)}"
    assert [(file.name, file.size) for file in reply.files] == [
        ("copy.png", len(CAT)),
        ("a.txt", 6),
    ]


async def test_an_asyncio_agent_reads_and_returns_files(start, bridge):
    async with start(build_agent=bridge(describe_first)) as runtime:
        check(await runtime.ask("k", attachments=[cat()]))


def test_an_agent_of_an_asyncio_program_reads_and_returns_files(path):
    async def main():
        async with open_runtime_asyncio(path, agent=describe_first) as runtime:
            check(await runtime.ask("k", attachments=[cat()]))

    asyncio.run(main())


async def test_a_blocking_agent_reads_and_returns_files(start):
    def answer(turn):
        reader = turn.open_file(turn.input[0].parts[0]["file"])
        stored = turn.put_file(Attachment(file=io.BytesIO(reader.read()), name="copy.png"))
        text = f"{reader.file.name}: {len(reader.read())}"
        return TurnResult(text=text, files=[stored, Attachment(data=b"a text", name="a.txt")])

    async with start(build_agent=blocking_agent(answer)) as runtime:
        check(await runtime.ask("k", attachments=[cat()]))


@pytest.mark.parametrize("returned", [True, False])
async def test_a_blocking_agent_cannot_pass_chunks(start, caplog, returned):
    def answer(turn):
        file = Attachment(chunks=in_chunks(CAT))
        return TurnResult(files=[file] if returned else [turn.put_file(file)])

    async with start(build_agent=blocking_agent(answer)) as runtime:
        reply = await runtime.ask("k", "x")
        assert (reply.status, reply.error_kind) == ("failed", "TypeError")
    assert "chunks are read on an event loop" in caplog.text


# Adapters


@pytest.mark.parametrize("ready", [True, False])
def test_an_adapter_of_an_asyncio_program_sends_files(path, ready):
    class Platform:
        platform, local = "memory", True

        def __init__(self):
            self.sent, self.loops, self.done = [], set(), asyncio.Event()

        async def send(self, row):
            self.sent.append(row.body["text"])

        async def send_file(self, row, file):
            self.loops.add(asyncio.get_running_loop())
            self.sent.append((file.file.name, await file.read()))
            self.done.set()

    class Ready(Platform):
        async def ready(self, row):
            await asyncio.sleep(0)

    async def draw(turn):
        return TurnResult(text="drawn", files=[cat()])

    async def main():
        adapter = Ready() if ready else Platform()
        async with open_runtime_asyncio(path, agent=draw, adapters=[adapter]) as runtime:
            await runtime.ask("k", "draw", source=Source("memory"))
            await asyncio.wait_for(adapter.done.wait(), SECONDS)
        assert adapter.sent == ["drawn", ("cat.png", CAT)]
        assert adapter.loops == {asyncio.get_running_loop()}

    asyncio.run(main())


def test_the_adapter_for_tests_keeps_files(path):
    async def draw(turn):
        return TurnResult(files=[cat()])

    async def main():
        adapter = MemoryAdapter()
        async with open_runtime_asyncio(path, agent=draw, adapters=[adapter]) as runtime:
            await runtime.ask("k", "draw", source=Source("memory"))
            await runtime.run_on_trio(lambda _: adapter.wait_sent(1))
        assert [(sent.file.name, sent.data) for sent in adapter.files] == [("cat.png", CAT)]

    asyncio.run(main())
