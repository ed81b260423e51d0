"""Files over JSON-RPC: uploads, prompts with files, replies with files, downloads."""

from __future__ import annotations

import base64
import io
import json
import os
import tracemalloc
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from hermes import Attachment, AttachmentRefused, TurnResult
from hermes.actors.admission.access import AccessPolicy
from hermes.adapters.jsonrpc import open_connection, types as t
from hermes.adapters.jsonrpc.client import RequestFailed, open_client
from hermes.adapters.jsonrpc.connection import MAX_RUNNING_BYTES
from hermes.adapters.jsonrpc.files.handlers import MAX_UPLOADS
from hermes.config import AttachmentLimits
from hermes.store import SessionStore
from tests.support.files import blobs_of
from tests.support.jsonrpc_client import Problem, connected, serve_and_close
from tests.support.jsonrpc_sessions import Gate, error_code, new_session, scripted
from tests.support.runtime import inline_only

PNG = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (3).to_bytes(4, "big") + (2).to_bytes(4, "big")
    + b"\x08\x02\0\0\0" + b"\0" * 20
)  # fmt: skip
FIELDS = {
    "type": "image", "media_type": "image/png", "size": len(PNG), "name": "cat.png",
    "width": 3, "height": 2,
}  # fmt: skip
KEY = "agent:main:rpc:dm:{}"


@pytest.fixture
def workers():
    """Threads: clients wait for streams in real time."""
    return "threads"


def encoded(content):
    return base64.b64encode(content).decode()


def files_in(path):
    """What is stored: files that are complete, and files that are not."""
    return blobs_of(path)


async def session(client, name="c"):
    return (await client.call("session.create", conversation=name))["session_id"]


async def begin(client, handle, **params):
    return (await client.call("file.begin", session_id=handle, **params))["upload"]


async def chunk(client, upload, offset, content):
    data = encoded(content)
    return await client.call("file.chunk", upload=upload, offset=offset, data=data)


async def upload(client, handle, content=PNG, name="cat.png"):
    """Upload a file in two chunks; returns its fields."""
    number = await begin(client, handle, name=name, size=len(content))
    half = len(content) // 2
    assert await chunk(client, number, 0, content[:half]) == {"received": half}
    assert await chunk(client, number, half, content[half:]) == {"received": len(content)}
    return await client.call("file.end", upload=number)


async def problem(client, method, /, **params):
    """Call a method that fails; returns the code and the sentence of its error."""
    with pytest.raises(Problem) as raised:
        await client.call(method, **params)
    return raised.value.code, str(raised.value).partition(": ")[2]


@asynccontextmanager
async def hermes_client(runtime):
    """The client of the attached console."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_and_close, runtime, theirs)
        async with open_client(ours) as client:
            yield client


# Uploads


async def test_a_file_is_uploaded_in_chunks_and_named_by_a_message(start, path):
    seen = []

    async def look(turn):
        [message] = turn.input
        reader = await turn.open_file(message.parts[0]["file"])
        seen.append((message.content, message.parts, await reader.read()))

    agent = scripted([look, "a cat"])
    async with start(build_agent=agent) as runtime, connected(runtime) as client:
        handle = await session(client)
        stored = await upload(client, handle)
        assert stored == {"file": stored["file"], **FIELDS}
        parts = [{"file": stored["file"]}]
        done = await client.call("prompt.submit", session_id=handle, text="what?", parts=parts)
        assert (await client.answer_to(done["message_id"]))["text"] == "a cat"
        assert seen == [("what?", (stored,), PNG)]
        shown = await client.call("session.history", session_id=handle)
        assert [row.get("parts") for row in shown["messages"]] == [[stored], None]
        assert (await client.call("session.resume", session_id=handle))["messages"][0]["parts"]


async def test_what_the_client_says_about_a_file_is_ignored(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await session(client)
        stored = await upload(client, handle)
        false = {**stored, "size": 1, "media_type": "text/html", "type": "audio", "name": "x"}
        await client.call("prompt.submit", session_id=handle, text="this", parts=[false])
        await client.event("message.complete")
        [row, _] = (await client.call("session.history", session_id=handle))["messages"]
        assert row["parts"] == [stored]


async def test_chunks_that_are_sent_at_once_are_written_in_order(start):
    content = os.urandom(200_000)
    async with start() as runtime, connected(runtime) as client:
        handle = await session(client)
        number = await begin(client, handle, size=len(content))
        pieces = [(first, content[first : first + 10**4]) for first in range(0, 200_000, 10**4)]
        requests = [
            await client.request("file.chunk", upload=number, offset=first, data=encoded(piece))
            for first, piece in pieces
        ]  # fmt: skip
        end = await client.request("file.end", upload=number)
        received = [(await client.response(each))["received"] for each in requests]
        assert received == list(range(10**4, len(content) + 1, 10**4))
        stored = await client.response(end)
        read = await client.call("file.read", session_id=handle, file=stored["file"])
        assert base64.b64decode(read["data"]) == content


@pytest.mark.parametrize(
    ("offset", "data", "said"),
    [
        (1, encoded(b"x"), "The next chunk has the offset 3, not 1."),
        (4, encoded(b"x"), "The next chunk has the offset 3, not 4."),
        (3, "not base64", "`data` is not valid base64."),
        (3, "YQ", "`data` is not valid base64."),
        (3, "é", "`data` is not valid base64."),
        (3, encoded(b"x" * 98), "The file has more than the announced 100 bytes."),
        (3, "A" * 700_000, "A chunk has at most 524,288 bytes."),
    ],
)
async def test_a_chunk_that_is_refused_discards_the_upload(start, path, offset, data, said):
    async with start() as runtime, connected(runtime) as client:
        number = await begin(client, await session(client), size=100)
        await chunk(client, number, 0, b"abc")
        assert len(files_in(path)) == 1
        refused = await problem(client, "file.chunk", upload=number, offset=offset, data=data)
        assert refused == (4024, said)
        assert files_in(path) == []
        assert await error_code(client, "file.chunk", upload=number, offset=3, data="") == 4025
        assert await error_code(client, "file.end", upload=number) == 4025
        assert await error_code(client, "file.cancel", upload=number) == 4025


@pytest.mark.parametrize(
    ("content", "size", "said"),
    [
        (b"abc", 4, "the file has 3 bytes instead of 4; send it again."),
        (b"", None, "the file is empty."),
    ],
)
async def test_a_file_of_the_wrong_size_is_refused_at_its_end(start, path, content, size, said):
    async with start() as runtime, connected(runtime) as client:
        params = {} if size is None else {"size": size}
        number = await begin(client, await session(client), **params)
        await chunk(client, number, 0, content)
        assert await problem(client, "file.end", upload=number) == (4024, said)
        assert files_in(path) == []


async def test_a_file_that_is_too_large_is_refused_as_soon_as_that_is_known(start_with_store, path):
    limits = AttachmentLimits(message_bytes=1000)
    async with start_with_store(limits=limits) as (_, runtime), connected(runtime) as client:
        handle = await session(client)
        too_large = (4024, "the file is larger than 1,000 bytes.")
        announced = await problem(client, "file.begin", session_id=handle, size=1001)
        assert announced == too_large
        number = await begin(client, handle)
        await chunk(client, number, 0, b"x" * 1001)
        assert await problem(client, "file.end", upload=number) == too_large
        number = await begin(client, handle)
        await chunk(client, number, 0, b"x" * t.MAX_CHUNK)
        more = {"upload": number, "offset": t.MAX_CHUNK, "data": encoded(b"x" * t.MAX_CHUNK)}
        assert await problem(client, "file.chunk", **more) == too_large  # before the end
        assert files_in(path) == []


async def test_an_upload_can_be_cancelled(start, path):
    async with start() as runtime, connected(runtime) as client:
        number = await begin(client, await session(client))
        await chunk(client, number, 0, b"abc")
        assert await client.call("file.cancel", upload=number) == {"cancelled": True}
        assert files_in(path) == []
        assert await error_code(client, "file.end", upload=number) == 4025


async def test_the_end_of_a_connection_discards_its_uploads(start, path):
    async with start() as runtime:
        async with connected(runtime) as client:
            number = await begin(client, await session(client))
            await chunk(client, number, 0, b"abc")
            async with connected(runtime) as other:
                assert await error_code(other, "file.end", upload=number) == 4025
            assert len(files_in(path)) == 1
        assert files_in(path) == []


async def test_closing_a_session_discards_its_uploads_only(start, path):
    async with start() as runtime, connected(runtime) as client:
        handle, other = await session(client), await session(client, "other")
        number, kept = await begin(client, handle), await begin(client, other)
        await client.call("session.close", session_id=handle)
        assert await error_code(client, "file.end", upload=number) == 4025
        assert await chunk(client, kept, 0, b"abc") == {"received": 3}
        assert len(files_in(path)) == 1


async def test_the_number_of_open_uploads_is_limited(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await session(client)
        numbers = [await begin(client, handle) for _ in range(MAX_UPLOADS)]
        assert await error_code(client, "file.begin", session_id=handle) == 4091
        await client.call("file.cancel", upload=numbers[0])
        assert await begin(client, handle)


@inline_only
async def test_an_upload_is_discarded_if_nothing_arrives_for_a_while(start, path, autojump_clock):
    # The time of files is that of the system.
    async with start(clock=None) as runtime, connected(runtime) as client:
        number = await begin(client, await session(client))
        await trio.sleep(59)
        await chunk(client, number, 0, b"abc")
        await trio.sleep(59)
        assert await chunk(client, number, 3, b"def") == {"received": 6}
        assert len(files_in(path)) == 1
        await trio.sleep(61)
        assert files_in(path) == []
        assert await error_code(client, "file.end", upload=number) == 4025


async def test_requests_of_too_many_bytes_are_refused(start):
    """A client that does not wait for responses must not use up the memory of the bot."""
    size, runs = 3_000_000, MAX_RUNNING_BYTES // 3_000_000
    async with start() as runtime, open_connection(runtime) as connection:
        line = b'{"id": %d, "method": "session.list", "params": {"x": "%s"}}'
        big = b'{"id": %d, "method": "prompt.submit", "params": {"session_id": "s", "text": "%s"}}'
        for number in range(runs + 2):
            connection.receive(big % (number, b"x" * size))
        connection.receive(line % (1000, b""))
        frames = [json.loads(await connection.next_frame()) for _ in range(runs + 3)]
        codes = {frame["id"]: frame["error"]["code"] for frame in frames}
        assert list(codes.values()).count(-32000) == 2
        connection.receive(big % (2000, b"x" * size))
        assert json.loads(await connection.next_frame())["error"]["code"] == 4001


async def test_a_client_without_access_cannot_upload(start, path):
    async with start(access=AccessPolicy()) as runtime, connected(runtime) as client:
        handle = await session(client)
        assert await error_code(client, "file.begin", session_id=handle) == 4003
        data = [{"data": encoded(PNG)}]
        params = {"session_id": handle, "text": "hello", "parts": data}
        assert await error_code(client, "prompt.submit", **params) == 4003
        assert files_in(path) == []


async def test_an_upload_does_not_delay_other_requests_or_a_drain(start, path):
    async with start() as runtime, connected(runtime) as client:
        handle = await session(client)
        number = await begin(client, handle)
        await chunk(client, number, 0, b"abc")
        await new_session(client, "hello")
        with trio.fail_after(10):
            await runtime.drain()
        assert await error_code(client, "file.begin", session_id=handle) == -32000
    assert files_in(path) == []


# Prompts


async def test_a_small_file_is_sent_inside_the_prompt(start, path):
    async with start() as runtime, connected(runtime) as client:
        handle = await session(client)
        parts = [{"type": "file", "data": encoded(PNG), "name": "cat.png"}]
        await client.call("prompt.submit", session_id=handle, parts=parts)
        await client.event("message.complete")
        [row, _] = (await client.call("session.history", session_id=handle))["messages"]
        assert row["parts"] == [{"file": row["parts"][0]["file"], **FIELDS}]


async def test_the_same_content_is_the_same_message(start, path):
    async with start() as runtime, connected(runtime) as client:
        handle = await session(client)
        params = {"session_id": handle, "text": "look", "event_id": "e1"}
        parts = [{"data": encoded(PNG), "name": "cat.png"}]
        done = await client.call("prompt.submit", **params, parts=parts)
        await client.answer_to(done["message_id"])
        again = await client.call("prompt.submit", **params, parts=parts)
        assert (again["status"], again["message_id"]) == ("answered", done["message_id"])
        uploaded = await upload(client, handle)
        again = await client.call("prompt.submit", **params, parts=[{"file": uploaded["file"]}])
        assert (again["status"], again["message_id"]) == ("answered", done["message_id"])
        other = [{"data": encoded(b"another content"), "name": "cat.png"}]
        assert await error_code(client, "prompt.submit", **params, parts=other) == -32602
    with SessionStore(path) as store:
        names = "SELECT count(*) FROM files WHERE id <> ?"
        assert store.snapshot(lambda tx: tx.one(names, uploaded["file"])) == (1,)


async def test_a_repeated_message_is_known_although_its_file_is_gone(start, sql):
    async with start() as runtime, connected(runtime) as client:
        handle = await session(client)
        file = (await upload(client, handle))["file"]
        params = {"text": "look", "event_id": "e1", "parts": [{"file": file}]}
        done = await client.call("prompt.submit", session_id=handle, **params)
        await client.answer_to(done["message_id"])
        await client.call("session.close", session_id=handle)
        await client.call("session.delete", session_id=done["stored_session_id"])
        sql("DELETE FROM files WHERE id = ?", file)
        handle = await session(client)
        again = await client.call("prompt.submit", session_id=handle, **params)
        assert (again["status"], again["message_id"]) == ("answered", done["message_id"])
        other = {**params, "session_id": handle, "event_id": "e2"}
        assert await error_code(client, "prompt.submit", **other) == 4026


@pytest.mark.parametrize(
    ("part", "code", "said"),
    [
        (
            {"path": "/etc/passwd"},
            -32602,
            "Hermes reads no path that a client names; send the content as `data`, or upload it "
            "with `file.begin`.",
        ),
        ({"type": "image"}, -32602, "A part has exactly one of `file`, `data` and `url`."),
        (
            {"data": "YQ==", "url": "https://x.example/a.png"},
            -32602,
            "A part has exactly one of `file`, `data` and `url`.",
        ),
        ({"data": "?"}, 4024, "`data` is not valid base64."),
        ({"data": ""}, 4024, "the file is empty."),
        ({"file": "file_x"}, 4026, "there is no file 'file_x' in this conversation."),
    ],
)
async def test_a_prompt_with_a_part_that_is_refused_is_not_accepted(start, path, part, code, said):
    async with start() as runtime, connected(runtime) as client:
        handle = await session(client)
        good = {"data": encoded(PNG)}
        params = {"session_id": handle, "text": "look", "parts": [good, part]}
        assert await problem(client, "prompt.submit", **params) == (code, said)
        assert await error_code(client, "session.steer", session_id=handle, parts=[part]) == 4010
        assert (await client.call("session.status", session_id=handle))["message_count"] == 0
    with SessionStore(path) as store:
        assert store.snapshot(lambda tx: tx.all("SELECT id FROM files")) == []


async def test_a_prompt_needs_a_text_or_a_part(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await session(client)
        params = {"session_id": handle, "text": " ", "parts": []}
        assert await error_code(client, "prompt.submit", **params) == 4002


async def test_an_image_on_the_web_is_named_by_its_url(start):
    agent = scripted("seen")
    async with start(build_agent=agent) as runtime, connected(runtime) as client:
        handle = await session(client)
        part = {"type": "image", "url": "https://images.example/cat.png"}
        await client.call("prompt.submit", session_id=handle, text="look", parts=[part])
        await client.event("message.complete")
        [row, _] = (await client.call("session.history", session_id=handle))["messages"]
        assert row["parts"] == [part]


async def test_a_file_is_sent_to_the_running_answer(start):
    gate, steered = Gate(), []

    async def take(turn):
        steered.extend([part for message in turn.steered() for part in message.parts or ()])

    async with (
        start(build_agent=scripted([gate, take, "done"])) as runtime,
        connected(runtime) as client,
    ):
        handle = await session(client)
        done = await client.call("prompt.submit", session_id=handle, text="go")
        await gate.reached.wait()
        parts = [{"data": encoded(PNG), "name": "cat.png"}]
        await client.call("session.steer", session_id=handle, parts=parts)
        gate.open.set()
        await client.answer_to(done["message_id"])
        assert steered == [{"file": steered[0]["file"], **FIELDS}]


async def test_files_belong_to_one_conversation(start):
    async with start() as runtime, connected(runtime) as client:
        handle, other = await session(client), await session(client, "other")
        file = (await upload(client, handle))["file"]
        named = {"session_id": other, "text": "look", "parts": [{"file": file}]}
        assert await error_code(client, "prompt.submit", **named) == 4026
        assert await error_code(client, "file.read", session_id=other, file=file) == 4026
        copy = (await client.call("file.read", session_id=handle, file=file))["data"]
        assert base64.b64decode(copy) == PNG


# Replies and downloads


async def test_a_reply_has_files_that_the_client_reads(start):
    content = os.urandom(t.MAX_CHUNK + 1000)
    result = TurnResult(text="here", files=[Attachment(data=content, name="noise.bin")])
    async with start(build_agent=scripted(result)) as runtime, connected(runtime) as client:
        handle = await session(client)
        params = {"session_id": handle, "text": "noise", "event_id": "e1"}
        done = await client.call("prompt.submit", **params)
        answer = await client.answer_to(done["message_id"])
        [file] = answer["files"]
        fields = {
            "type": "file", "media_type": "application/octet-stream", "size": len(content),
            "name": "noise.bin",
        }  # fmt: skip
        assert file == {"file": file["file"], **fields}
        again = await client.call("prompt.submit", **params)
        assert again["reply"]["files"] == [file]
        shown = await client.call("session.history", session_id=handle)
        assert shown["messages"][-1]["parts"] == [file]
        read = {"session_id": handle, "file": file["file"]}
        first = await client.call("file.read", **read)
        data = base64.b64decode(first.pop("data"))
        assert (first, len(data)) == (file, t.MAX_CHUNK)
        rest = await client.call("file.read", **read, offset=len(data), size=t.MAX_CHUNK)
        assert data + base64.b64decode(rest["data"]) == content
        some = await client.call("file.read", **read, offset=10, size=5)
        assert base64.b64decode(some["data"]) == content[10:15]
        beyond = await client.call("file.read", **read, offset=len(content))
        assert beyond["data"] == ""
        too_much = {**read, "size": t.MAX_CHUNK + 1}
        assert await error_code(client, "file.read", **too_much) == -32602


async def test_a_reply_without_files_has_no_new_fields(start):
    async with start() as runtime, connected(runtime) as client:
        handle = await session(client)
        done = await client.call("prompt.submit", session_id=handle, text="hello")
        assert "files" not in await client.answer_to(done["message_id"])
        shown = await client.call("session.history", session_id=handle)
        assert not any("parts" in row for row in shown["messages"])


async def test_others_are_told_of_the_files_of_a_message(start):
    async with (
        start() as runtime,
        connected(runtime) as client,
        connected(runtime) as other,
    ):
        handle = await session(client)
        await other.call("session.attach", session_key=KEY.format("c"))
        parts = [{"data": encoded(PNG), "name": "cat.png"}]
        await client.call("prompt.submit", session_id=handle, parts=parts)
        accepted = await other.event("message.accepted")
        assert accepted["text"] == ""
        assert accepted["parts"] == [{"file": accepted["parts"][0]["file"], **FIELDS}]
        assert not [kind for kind, _ in client.events() if kind == "message.accepted"]


async def test_parts_of_a_host_are_not_shown(start):
    """They may be in any form and contain anything."""
    host = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "picture", "url": "data:image/png;base64,AAAA"},
        {"type": 3, "url": "https://images.example/a.png"},
    ]
    async with start() as runtime, connected(runtime) as client:
        await runtime.ask(KEY.format("c"), "look", parts=host)
        handle = await session(client)
        shown = await client.call("session.history", session_id=handle)
        assert not any("parts" in row for row in shown["messages"])


@inline_only
async def test_the_content_of_files_does_not_pile_up_for_a_client_that_does_not_read(start):
    result = TurnResult(text="here", files=[Attachment(data=os.urandom(t.MAX_CHUNK))])
    async with (
        start(build_agent=scripted(result)) as runtime,
        open_connection(runtime) as connection,
    ):
        [file] = (await runtime.ask(KEY.format("c"), "noise")).files

        def send(number, method, **params):
            frame = {"id": number, "method": method, "params": params}
            connection.receive(json.dumps(frame).encode())

        async def response():
            return json.loads(await connection.next_frame())["result"]

        send(1, "session.create", conversation="c")
        handle = (await response())["session_id"]
        tracemalloc.start()
        try:
            for number in range(2, 102):
                send(number, "file.read", session_id=handle, file=file.id)
            await trio.testing.wait_all_tasks_blocked()
            assert tracemalloc.get_traced_memory()[0] < 20 * t.MAX_CHUNK
        finally:
            tracemalloc.stop()
        for _ in range(100):
            assert len((await response())["data"]) > t.MAX_CHUNK


async def test_the_content_of_files_is_not_replayed(start):
    """It would displace the events that a client has missed."""
    async with start() as runtime, connected(runtime) as client:
        handle = await session(client)
        stored = await upload(client, handle)
        await client.call("file.read", session_id=handle, file=stored["file"])
        replayed = await client.call("events.replay", after=0)
        assert replayed["complete"]
        assert encoded(PNG) not in json.dumps(replayed["frames"])


# The client of the attached console


async def attached(client, name="c"):
    params = t.CreateParams(conversation=name)
    return (await client.call("session.create", params, t.CreateResult)).session_id


async def in_pieces(*pieces):
    for piece in pieces:
        await trio.lowlevel.checkpoint()
        yield piece


@pytest.mark.parametrize("kind", ["path", "data", "file", "chunks"])
async def test_the_client_uploads_and_downloads(start, tmp_path, kind):
    content = os.urandom(2 * t.MAX_CHUNK + 1000)
    path = tmp_path / "noise.bin"
    path.write_bytes(content)
    attachment = {
        "path": Attachment(path=path),
        "data": Attachment(data=content, name="noise.bin"),
        "file": Attachment(file=io.BytesIO(content), name="noise.bin"),
        "chunks": Attachment(chunks=in_pieces(content[:10], content[10:]), name="noise.bin"),
    }[kind]
    async with start() as runtime, hermes_client(runtime) as client:
        handle = await attached(client)
        stored = await client.upload(handle, attachment)
        assert (stored.name, stored.size) == ("noise.bin", len(content))
        prompt = t.SubmitParams(session_id=handle, parts=[t.Part(file=stored.id)])
        await client.call("prompt.submit", prompt, t.SubmitResult)
        target = io.BytesIO()
        assert await client.download(handle, stored.id, target) == stored
        assert target.getvalue() == content


async def test_the_client_refuses_what_is_no_regular_file(start, path, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    async with start() as runtime, hermes_client(runtime) as client:
        handle = await attached(client)
        for name, said in (
            ("pipe", "is not a regular file"),
            ("", "is not a regular file|Is a directory"),
            ("missing", "cannot be read: No such file or directory"),
        ):
            with pytest.raises(AttachmentRefused, match=said):
                await client.upload(handle, Attachment(path=tmp_path / name))
        with pytest.raises(AttachmentRefused, match="content"):
            await client.upload(handle, Attachment(url="https://images.example/cat.png"))
        with pytest.raises(RequestFailed, match="the file is empty"):
            await client.upload(handle, Attachment(data=b""))
        assert files_in(path) == []


async def test_an_upload_that_is_cancelled_leaves_nothing_and_the_connection_goes_on(start, path):
    async with start() as runtime, hermes_client(runtime) as client:
        handle = await attached(client)
        sent = trio.Event()

        async def endless():
            yield b"x" * t.MAX_CHUNK
            yield b"y" * t.MAX_CHUNK
            sent.set()
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.upload, handle, Attachment(chunks=endless()))
            await sent.wait()
            assert len(files_in(path)) == 1
            nursery.cancel_scope.cancel()
        assert files_in(path) == []
        assert (await client.upload(handle, Attachment(data=b"another"))).size == 7


async def test_a_request_is_sent_entirely_although_its_call_is_cancelled():
    """Otherwise the rest of its line would be missing, and the next one not understood."""
    ours, theirs = trio.testing.lockstep_stream_pair()
    async with theirs, open_client(ours) as client:
        text = "x" * 100_000
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                params = t.SubmitParams(session_id="a", text=text)
                nursery.start_soon(client.call, "prompt.submit", params, t.SubmitResult)
                received = bytes(await theirs.receive_some(10))
                scope.cancel()
        while not received.endswith(b"\n"):
            received += await theirs.receive_some(65536)
        assert received.count(b"x") > 100_000 - 1
