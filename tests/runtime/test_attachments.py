"""Files that come with messages and go with replies, in a runtime on Trio."""

from __future__ import annotations

import io

import pytest
import trio
import trio.testing

from hermes import (
    Attachment,
    AttachmentLimits,
    Config,
    Inbound,
    Source,
    StoredFile,
)
from hermes.errors import (
    ActorStopped,
    AttachmentRefused,
    Draining,
    EventConflict,
    NotAdmitted,
    StoreError,
    UnknownFile,
)
from hermes.messages import TurnResult
from hermes.testing import CountingBuilder, inspect
from tests.support.chat import access_for
from tests.support.files import blobs_of, png
from tests.support.runtime import with_threads

CHAT = Source("memory", "bot", "chat", user_id="ann")
CAT = png()
CAT_LINE = f"[image cat.png, {len(CAT)} bytes]"


def cat(**options):
    return Attachment(data=CAT, name="cat.png", **options)


async def in_chunks(*chunks):
    for chunk in chunks:
        yield chunk


async def endless():
    while True:
        yield b"x" * 1000


class FirstFile:
    """An agent that answers with the bytes of the first file of its input."""

    async def run(self, turn):
        [part] = turn.input[0].parts
        reader = await turn.open_file(part["file"])
        return TurnResult(text=f"{turn.text}: {len(await reader.read())}")


# Sending


@with_threads
@pytest.mark.parametrize("kind", ["data", "path", "file", "chunks"])
async def test_an_attached_file_reaches_the_agent_and_the_transcript(start, tmp_path, kind):
    (tmp_path / "cat.png").write_bytes(CAT)
    sources = {
        "data": lambda: {"data": CAT, "name": "cat.png"},
        "path": lambda: {"path": tmp_path / "cat.png"},
        "file": lambda: {"file": io.BytesIO(CAT), "name": "cat.png"},
        "chunks": lambda: {"chunks": in_chunks(CAT[:10], CAT[10:]), "name": "cat.png"},
    }
    async with start(agent=FirstFile()) as runtime:
        conversation = runtime.conversation("k")
        reply = await conversation.ask(attachments=[Attachment(**sources[kind]())])
        assert reply.text == f"{CAT_LINE}: {len(CAT)}"
        question, _ = await conversation.history()
        [part] = question.parts
        assert (question.content, part["type"], part["name"]) == (None, "image", "cat.png")
        assert (part["media_type"], part["width"], part["height"]) == ("image/png", 2, 3)
        assert await conversation.read_file(part["file"]) == CAT


@with_threads
async def test_a_file_can_be_stored_first_and_named_by_several_messages(start):
    async with start() as runtime:
        conversation = runtime.conversation("k")
        stored = await conversation.put_file(cat())
        assert isinstance(stored, StoredFile)
        assert (stored.type, stored.size, stored.name) == ("image", len(CAT), "cat.png")
        for text in ("look", "again"):
            reply = await conversation.ask(text, parts=[stored.part])
            assert reply.text == f"echo: {text}\n{CAT_LINE}"
        assert (await conversation.open_file(stored.id)).file == stored


async def test_every_verb_that_sends_takes_attachments(start, path):
    async with start() as runtime:
        conversation = runtime.conversation("k", source=CHAT)
        replies = [
            await runtime.ask("k", "1", attachments=[cat()]),
            await conversation.ask("2", attachments=[cat()]),
            await runtime.wait(await runtime.submit(Inbound("k", "e", "3"), attachments=[cat()])),
            await runtime.wait(await conversation.steer("4", attachments=[cat()])),
        ]
        for number, handle in ((5, runtime), (6, conversation)):
            key = ("k",) if handle is runtime else ()
            async with handle.stream(*key, str(number), attachments=[cat()]) as stream:
                assert [event async for event in stream]
            replies.append(stream.reply)
        expected = [f"echo: {number}\n{CAT_LINE}" for number in range(1, 7)]
        assert [reply.text for reply in replies] == expected
    assert blobs_of(path) == [CAT]


@with_threads
async def test_a_file_is_saved_to_a_new_file_that_is_never_overwritten(start, tmp_path):
    large = b"\xff" * 2_500_000
    async with start() as runtime:
        conversation = runtime.conversation("k")
        stored = await conversation.put_file(Attachment(data=large))
        target = tmp_path / "copy"
        assert await conversation.save_file(stored.id, str(target)) == target
        assert target.read_bytes() == large
        assert target.stat().st_mode & 0o777 == 0o600
        target.write_bytes(b"mine")
        with pytest.raises(FileExistsError):
            await conversation.save_file(stored.id, target)
        assert target.read_bytes() == b"mine"
        with pytest.raises(UnknownFile):
            await conversation.save_file("file_0", tmp_path / "none")
        with trio.CancelScope() as scope:
            scope.cancel()
            await conversation.save_file(stored.id, tmp_path / "none")
        assert not (tmp_path / "none").exists()


@pytest.mark.sqlite_only("changes the folder of attached files")
async def test_a_damaged_file_is_not_saved(start, tmp_path, path):
    async with start() as runtime:
        conversation = runtime.conversation("k")
        stored = await conversation.put_file(cat())
        [blob] = tmp_path.rglob("*.blobs/??/*")
        blob.write_bytes(CAT[:10])
        with pytest.raises(StoreError, match="damaged"):
            await conversation.save_file(stored.id, tmp_path / "none")
        assert not (tmp_path / "none").exists()
        blob.unlink()
        with pytest.raises(UnknownFile, match="deleted"):
            await conversation.read_file(stored.id)


async def test_a_reader_reads_pieces_and_nothing_behind_the_end(start):
    async with start() as runtime:
        conversation = runtime.conversation("k")
        reader = await conversation.open_file((await conversation.put_file(cat())).id)
        assert await reader.read(4, 6) == CAT[4:10]
        assert await reader.read(10) == CAT[10:]
        assert await reader.read(len(CAT)) == await reader.read(len(CAT) + 10) == b""


async def test_files_belong_to_their_conversation(start):
    async with start() as runtime:
        mine, other = runtime.conversation("k"), runtime.conversation("other")
        stored = await mine.put_file(cat())
        await mine.ask("look", parts=[stored.part])
        for verb in (other.open_file, other.read_file):
            with pytest.raises(UnknownFile):
                await verb(stored.id)
        with pytest.raises(UnknownFile):
            await other.ask("look", parts=[stored.part])
        assert await other.history() == []


async def test_file_verbs_refuse_wrong_types_and_the_end_of_the_runtime(start):
    async with start() as runtime:
        conversation = runtime.conversation("k")
        stored = await conversation.put_file(cat())
        await conversation.ask("look", parts=[stored.part])
        with pytest.raises(TypeError, match=r"attachment must be a hermes\.Attachment"):
            await conversation.put_file(CAT)
        with pytest.raises(TypeError, match="file_id must be a string"):
            await conversation.open_file(stored)
        await runtime.drain()
        with pytest.raises((ActorStopped, Draining)):
            await conversation.put_file(cat())
        assert await conversation.read_file(stored.id) == CAT
    with pytest.raises(ActorStopped):
        await conversation.open_file(stored.id)


# Refusals


@pytest.mark.parametrize(
    ("attachments", "error"),
    [
        (cat(), r"attachments must be a list of hermes\.Attachment"),
        ([CAT], r"an attachment must be a hermes\.Attachment"),
        ((each for each in [cat()]), r"attachments must be a list of hermes\.Attachment"),
    ],
)
async def test_wrong_attachments_get_one_sentence(start, attachments, error):
    async with start() as runtime:
        for call in (
            lambda: runtime.ask("k", "x", attachments=attachments),
            lambda: runtime.submit(Inbound("k", "e", "x"), attachments=attachments),
            lambda: runtime.post("k", "x", attachments=attachments),
            lambda: runtime.conversation("k").steer("x", attachments=attachments),
        ):
            with pytest.raises(TypeError, match=error):
                await call()
        assert await runtime.conversation("k").history() == []


def test_chunks_are_asynchronous():
    with pytest.raises(TypeError, match="asynchronous"):
        Attachment(chunks=[b"x"])


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"path": 5}, "path must be a string or a path, not 5"),
        ({"data": b"x", "name": b"a"}, "name must be a string, not b'a'"),
        ({"data": b"x", "size": "1"}, "size must be a whole number, not '1'"),
    ],
)
def test_fields_of_an_attachment_have_their_types(wrong, error):
    with pytest.raises(TypeError, match=error):
        Attachment(**wrong)


@with_threads
@pytest.mark.parametrize(
    "refused",
    [
        lambda: Attachment(data=b""),
        lambda: Attachment(path="/does/not/exist"),
        lambda: Attachment(data=b"x" * 3000),
        lambda: Attachment(data=CAT, size=3),
        lambda: Attachment(chunks=endless()),
        lambda: Attachment(url="ftp://example.com/cat.png"),
    ],
)
async def test_a_message_whose_file_is_refused_is_not_accepted_without_it(start, path, refused):
    config = Config(attachments=AttachmentLimits(message_bytes=2000))
    async with start(config=config) as runtime:
        conversation = runtime.conversation("k")
        for call in (
            lambda: conversation.ask("x", attachments=[cat(), refused()]),
            lambda: runtime.submit(Inbound("k", "e", "x"), attachments=[cat(), refused()]),
            lambda: conversation.post("x", attachments=[cat(), refused()]),
        ):
            with pytest.raises(AttachmentRefused):
                await call()
        await trio.testing.wait_all_tasks_blocked()
        assert await conversation.history() == []
        left = await inspect(runtime).store.snapshot(lambda tx: tx.all("SELECT id FROM files"))
        assert left == []


@with_threads
async def test_the_files_of_refused_messages_leave_no_content(start, tmp_path):
    async with start() as runtime:
        refused = [Attachment(data=b"first"), Attachment(data=b"")]
        with pytest.raises(AttachmentRefused):
            await runtime.ask("k", attachments=refused)
        assert not list(tmp_path.rglob("*.blobs/*/*"))


async def test_the_limits_of_the_configuration_apply(start):
    limits = AttachmentLimits(message_files=1, message_bytes=100, types=("image/*",))
    async with start(config=Config(attachments=limits)) as runtime:
        for attachments, error in (
            ([cat(), cat()], "a message can have 1 files, not 2"),
            ([Attachment(data=b"a text")], "files of the type text/plain are not accepted"),
            ([Attachment(data=b"x" * 101)], "the file is larger than 100 bytes"),
        ):
            with pytest.raises(AttachmentRefused, match=error):
                await runtime.ask("k", attachments=attachments)
            with pytest.raises(AttachmentRefused, match=error):
                await runtime.post("k", attachments=attachments)


async def test_the_files_of_one_message_have_a_limit_together(start):
    config = Config(attachments=AttachmentLimits(message_bytes=100))
    async with start(config=config) as runtime:
        for call in (runtime.ask, runtime.post):
            with pytest.raises(AttachmentRefused, match="120 bytes together"):
                await call(
                    "k", attachments=[Attachment(data=b"x" * 60), Attachment(data=b"y" * 60)]
                )
        assert await runtime.conversation("k").history() == []


async def test_a_stranger_cannot_store_a_file(start, path):
    stranger = Source("telegram", chat_id="9", user_id="9")
    async with start(access=access_for(users=["1"])) as runtime:
        with pytest.raises(NotAdmitted):
            await runtime.submit(
                Inbound("k", "e", "x", stranger), attachments=[Attachment(chunks=endless())]
            )
    assert blobs_of(path) == []


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "data:image/png;base64,AAAA",
        "/etc/passwd",
        "http://",
        "https://user:secret@example.com/cat.png",
        "https://user@example.com/cat.png",
        "https://example.com/" + "x" * 3000,
        "https://example.com/a\nb",
        "http://[1/",
        7,
    ],
)
async def test_a_remote_image_has_a_plain_address(start, url):
    async with start() as runtime:
        with pytest.raises(AttachmentRefused) as refused:
            await runtime.ask("k", "x", parts=[{"type": "image", "url": url}])
        assert "secret" not in str(refused.value)
        with pytest.raises(AttachmentRefused):
            await runtime.ask("k", "x", attachments=[Attachment(url=url)])


@pytest.mark.parametrize(
    "part",
    [
        {"type": "audio", "url": "https://example.com/a.ogg"},
        {"type": "image", "path": "/etc/passwd"},
        {"type": "file", "file": "file_0", "path": "/etc/passwd"},
    ],
)
async def test_a_part_cannot_name_a_path_or_other_remote_files(start, part):
    async with start() as runtime:
        with pytest.raises(AttachmentRefused):
            await runtime.ask("k", "x", parts=[part])


async def test_a_remote_image_is_passed_on_and_parts_of_a_provider_are_not_touched(start):
    builder = CountingBuilder()
    foreign = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    async with start(build_agent=builder) as runtime:
        image = Attachment(url="https://example.com/cat.png")
        reply = await runtime.ask("k", "look", parts=[foreign], attachments=[image])
        assert reply.text == "echo: look\n[image https://example.com/cat.png]"
        [turn] = builder.agents[0].turns
        assert turn.input[0].parts == (foreign, {"type": "image", "url": image.url})


# Cancelled calls and repeated ones


class CountedFile(io.BytesIO):
    """A file that counts its reads."""

    def __init__(self, data):
        super().__init__(data)
        self.reads = 0

    def read(self, size=-1):
        self.reads += 1
        return super().read(size)


@with_threads
async def test_a_cancelled_call_leaves_nothing_or_an_accepted_message(start):
    """Cancel an ask at each of its steps."""
    config = Config(drain_timeout=1)
    async with start(config=config) as runtime:
        for steps in range(60):
            key, file = f"k{steps}", CountedFile(CAT)
            async with trio.open_nursery() as nursery:

                async def ask(key=key, file=file):
                    await runtime.ask(key, "look", attachments=[Attachment(file=file)])

                nursery.start_soon(ask)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            reads = file.reads
            history = await runtime.conversation(key).history()
            named = [part["file"] for row in history for part in row.parts or ()]
            stored = await inspect(runtime).store.snapshot(
                lambda tx, key=key: [
                    row[0] for row in tx.all("SELECT id FROM files WHERE session_key = ?", key)
                ]
            )
            assert stored == named
            assert file.reads == reads


async def test_a_repeated_event_with_the_same_file_is_one_message(start, path):
    inbound = Inbound("k", "e", "look", CHAT, per_conversation=True)
    async with start() as runtime:
        first = await runtime.submit(inbound, attachments=[cat()])
        await runtime.wait(first)
        assert await runtime.submit(inbound, attachments=[cat()]) == first
        with pytest.raises(EventConflict):
            await runtime.submit(inbound, attachments=[Attachment(data=b"another")])
        assert len(await runtime.conversation("k").history()) == 2
        stored = await inspect(runtime).store.snapshot(lambda tx: tx.all("SELECT id FROM files"))
        assert len(stored) == 1
