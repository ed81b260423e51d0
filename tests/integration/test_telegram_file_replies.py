"""Replies with files on Telegram: as what they are sent, and what happens if that fails."""

from __future__ import annotations

import hashlib
import struct
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from hermes import AttachmentLimits, Config, OutcomeUnknown, RetryAfter, StoredFile, Unsendable
from hermes.adapters.telegram import Telegram
from hermes.adapters.telegram.media import MAX_DOWNLOAD
from hermes.adapters.telegram.upload import MAX_UPLOAD
from hermes.messages import OutboxRow
from hermes.redaction.keys import Secret
from hermes.testing.telegram import TOKEN, Fault, open_telegram
from tests.support.telegram_bot import fast_limiter, running_bot, wait_texts
from tests.support.telegram_files import PNG, sender

ROOT = Path(__file__).parents[2]
PDF = b"%PDF-1.7 and so on"


@pytest.fixture
async def server():
    async with open_telegram() as opened:
        yield opened


async def wait_files(server, chat_id, number=1):
    await server.wait_until(
        lambda: chat_id in server.chats and len(server.chats[chat_id].files) >= number
    )
    return server.chats[chat_id].files


async def test_a_text_and_its_files_are_sent_one_after_the_other(server, path):
    files = [{"data": PNG, "name": "a cat.png"}, {"data": PDF, "name": "Über uns.pdf"}]
    server.say(7, "draw")
    async with running_bot(server, path, sender(*files, text="Here it is.")):
        image, document = await wait_files(server, 7, 2)
    assert [message.text for message in server.chats[7].messages] == ["Here it is.", "", ""]
    assert (image.field, image.media_type, image.size) == ("photo", "image/png", len(PNG))
    assert image.sha256 == hashlib.sha256(PNG).hexdigest()
    assert image.name == "a cat.png"
    assert (document.field, document.name) == ("document", "Über uns.pdf")


async def test_in_a_group_a_file_replies_to_its_message_in_its_topic(server, path):
    server.group(-100, is_forum=True, topics={9})
    asked = server.say(-100, "@hermes_bot draw", user_id=7, topic=9)
    async with running_bot(server, path, sender({"data": PNG})):
        (image,) = await wait_files(server, -100)
    (message,) = server.chats[-100].messages
    assert (message.reply_to, message.thread_id) == (asked, 9)
    assert image.name == "photo.png"


async def test_a_picture_that_is_refused_as_a_photo_is_sent_as_a_document(server, path):
    server.refuse_files["sendPhoto"] = "PHOTO_INVALID_DIMENSIONS"
    server.say(7, "draw")
    async with running_bot(server, path, sender({"data": PNG, "name": "a.png"})):
        (image,) = await wait_files(server, 7)
    assert (image.field, image.size) == ("document", len(PNG))
    assert (server.counts["sendPhoto"], server.counts["sendDocument"]) == (1, 1)


async def test_a_very_long_picture_is_a_document_at_once(server, path):
    long = PNG[:16] + struct.pack(">II", 100, 9000) + PNG[24:]
    server.say(7, "draw")
    async with running_bot(server, path, sender({"data": long})):
        (image,) = await wait_files(server, 7)
    assert (image.field, server.counts["sendPhoto"]) == ("document", 0)


async def test_a_file_that_is_too_large_for_telegram_is_named(server, path):
    config = Config(attachments=AttachmentLimits(message_bytes=60_000_000))
    big = {"data": b"x" * 53_000_000, "name": "big.bin"}
    server.say(7, "all of it")
    async with running_bot(server, path, sender(big), config=config):
        (said,) = await wait_texts(server, 7, 1)
    assert said == "[file big.bin, 53 MB: it is too large to be sent here]"
    assert server.counts["sendDocument"] == 0


async def test_a_file_whose_upload_breaks_off_is_sent_again_without_a_mark(server, path):
    server.fail(Fault(method="upload"))
    server.say(7, "draw")
    async with running_bot(server, path, sender({"data": PDF * 1_000_000})):
        await wait_files(server, 7)
    (message,) = server.chats[7].messages
    assert message.text == ""


async def test_a_file_that_may_have_been_sent_is_sent_again_with_a_mark(server, path):
    server.fail(Fault(method="sendDocument", taken=True))
    server.say(7, "draw")
    async with running_bot(server, path, sender({"data": PDF})):
        await wait_files(server, 7, 2)
    assert [message.text for message in server.chats[7].messages] == [
        "", "You may have seen this before:",
    ]  # fmt: skip


async def test_a_group_with_a_new_id_gets_the_file_there(server, path):
    server.group(-5, "group", title="us")
    server.say(-5, "@hermes_bot draw", user_id=7)

    async def answer(turn):
        server.migrate(-5, -1005)
        return await sender({"data": PDF})(turn)

    async with running_bot(server, path, answer):
        await wait_files(server, -1005)
    assert server.chats[-5].files == []


# The errors of `send_file`


class Bytes:
    """A file in memory."""

    def __init__(self, content, **fields):
        fields = {"media_type": "application/pdf", "size": len(content), **fields}
        self.file = StoredFile(id="file_1", **fields)
        self.content = content

    async def read(self, offset=0, size=None):
        await trio.lowlevel.checkpoint()
        return self.content[offset:][:size]


@pytest.fixture
async def telegram(server):
    server.private(7)
    async with Telegram(
        Secret(TOKEN), base_url=server.url, rate_limiter=fast_limiter()
    ) as telegram:
        yield telegram


def row(chat_id="7"):
    body = {"kind": "reply", "text": "", "chat_id": chat_id, "file": {}}
    return OutboxRow(1, "k", 1, "telegram", body, "sending", 1, recovered=False)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("429", method="sendDocument"), RetryAfter),
        (Fault("reset", method="sendDocument"), OutcomeUnknown),
        (Fault("502", method="sendDocument"), OutcomeUnknown),
        (Fault("garbage", method="sendDocument", taken=True), OutcomeUnknown),
    ],
)
async def test_a_failed_call_has_the_same_meaning_as_that_of_a_text(server, telegram, fault, error):
    server.fail(fault)
    with pytest.raises(error):
        await telegram.send_file(row(), Bytes(PDF))
    await telegram.send_file(row(), Bytes(PDF))


async def test_a_file_that_is_not_sent_completely_is_certainly_not_there(server, telegram):
    server.fail(Fault(method="upload"))
    with pytest.raises(RetryAfter, match="not sent completely"):
        await telegram.send_file(row(), Bytes(PDF * 1_000_000))


@pytest.mark.parametrize("gone", ["bot was blocked by the user", None])
async def test_a_chat_that_is_gone_gets_nothing_else(server, telegram, gone):
    server.private(7).gone = gone
    with pytest.raises(Unsendable):
        await telegram.send_file(row("7" if gone else "99"), Bytes(PNG, media_type="image/png"))
    assert server.counts["sendDocument"] == 0


async def test_nothing_reaches_a_server_that_is_down(server, telegram):
    await server.go_down()
    with pytest.raises(RetryAfter):
        await telegram.send_file(row(), Bytes(PDF))


async def test_a_name_cannot_change_the_form(server, telegram):
    name = 'a"\r\nContent-Type: x\r\n\r\n.pdf'
    await telegram.send_file(row(), Bytes(PDF, name=name))
    (file,) = server.chats[7].files
    assert (file.name, file.media_type) == (
        "a%22%0D%0AContent-Type: x%0D%0A%0D%0A.pdf",
        "application/pdf",
    )


async def test_a_file_that_is_deleted_meanwhile_is_not_sent(server, telegram):
    with pytest.raises(RetryAfter, match="not complete"):
        await telegram.send_file(row(), Bytes(PDF, size=len(PDF) + 1))
    assert server.chats[7].files == []


# Memory


async def test_a_large_file_is_never_in_memory_as_a_whole(server, path, tmp_path):
    """The bot is another process, whose peak is measured."""
    big, small = tmp_path / "big", tmp_path / "small"
    big.write_bytes(bytes(MAX_UPLOAD))
    small.write_bytes(b"small")

    async def exchange(received, sent, number):
        """Send a file to the bot and get one; returns the peak of its memory."""
        server.post(7, document=server.files.add(received))
        await wait_texts(server, 7, 2 * number - 1)
        server.say(7, f"send {sent}")
        files = await wait_files(server, 7, number)
        assert files[-1].size == sent.stat().st_size
        server.say(7, "how much?")
        return int((await wait_texts(server, 7, 2 * number))[-1])

    command = [sys.executable, "-m", "tests.support.telegram_memory", server.url, str(path)]
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            process = await nursery.start(partial(trio.run_process, command, cwd=ROOT, check=False))
            before = await exchange(100_000, small, 1)
            after = await exchange(MAX_DOWNLOAD, big, 2)
            process.terminate()
    assert after - before < 8_000, f"{before} kB, then {after} kB"
