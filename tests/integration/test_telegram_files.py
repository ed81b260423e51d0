"""Files of Telegram messages: downloaded, checked, in order, and never in memory as a whole."""

from __future__ import annotations

import logging

import pytest
import trio

from hermes import AccessPolicy, AttachmentLimits, Config, PlatformRules, RateLimit
from hermes.adapters.telegram import GroupPolicy, download
from hermes.errors import StoreBusy
from hermes.testing.telegram import TOKEN, Fault, open_telegram
from tests.support.telegram_bot import FailingRuntime, running_bot, wait_confirmed, wait_texts
from tests.support.telegram_files import PNG, Reader, blobs

LOST = "Your file could not be downloaded. Please send it again."


@pytest.fixture
async def server():
    async with open_telegram() as opened:
        yield opened


@pytest.fixture
def reader():
    return Reader()


def bot(server, path, agent, **options):
    return running_bot(server, path, agent, **{"retry_delay": 0.002, **options})


def faults(kind, number=download.MAX_TRIES):
    return [Fault(kind, method="file") for _ in range(number)]


async def test_a_photo_is_downloaded_in_its_best_size(server, path, reader):
    server.post(7, photo=server.files.photo(PNG), caption="look")
    async with bot(server, path, reader):
        assert await wait_texts(server, 7, 1) == ["1 files"]
        await wait_confirmed(server)
    assert reader.turns == [(["look"], [("image", "photo.jpg", PNG)])]
    ((_, headers),) = server.files.requests
    assert headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("kind", "fields", "name"),
    [
        ("document", {"file_name": "../../etc/notes.txt"}, "notes.txt"),
        ("voice", {"mime_type": "audio/ogg"}, "voice.ogg"),
        ("audio", {"file_name": "song.mp3"}, "song.mp3"),
        ("video", {"mime_type": "video/mp4"}, "video.mp4"),
        ("video_note", {}, "video.mp4"),
        ("animation", {}, "animation.mp4"),
    ],
)
async def test_every_kind_of_file_is_downloaded(server, path, reader, kind, fields, name):
    server.post(7, **{kind: server.files.add(b"some content", **fields)})
    async with bot(server, path, reader):
        await wait_texts(server, 7, 1)
    ((texts, files),) = reader.turns
    assert (texts, [each[1:] for each in files]) == ([""], [(name, b"some content")])


async def test_a_sticker_is_a_picture_with_its_emoji(server, path, reader):
    server.post(7, sticker=server.files.add(PNG, emoji="😀"))
    async with bot(server, path, reader):
        await wait_texts(server, 7, 1)
    assert reader.turns == [(["[sticker 😀]"], [("image", "sticker.webp", PNG)])]


async def test_nothing_is_downloaded_for_a_stranger_or_beside_the_bot(server, path, reader):
    access = AccessPolicy(rules={"telegram": PlatformRules(users=[7], chats=[-100])})
    server.group(-100)
    server.post(8, document=server.files.add(b"virus"))
    server.post(-100, user_id=7, photo=server.files.photo(PNG), caption="not for you")
    server.say(7, "hello")
    async with bot(server, path, reader, access=access):
        await wait_texts(server, 7, 1)
        await wait_confirmed(server)
    assert (server.counts["getFile"], server.files.requests, blobs(path)) == (0, [], [])


async def test_nothing_is_downloaded_beyond_the_rate_limit(server, path, reader):
    access = AccessPolicy(
        rules={"telegram": PlatformRules(users=[7])}, rates=RateLimit(per_minute=1, burst=2)
    )
    for _ in range(5):
        server.post(7, document=server.files.add(b"again"))
    async with bot(server, path, reader, access=access):
        await wait_texts(server, 7, 1)
        await wait_confirmed(server)
    assert server.counts["file"] == 2


async def test_an_album_is_one_turn_even_if_a_file_is_slow(server, path, reader):
    server.fail(Fault("slow", method="file", seconds=1.5))
    for number in range(4):
        caption = {"caption": "my garden"} if not number else {}
        photo = server.files.photo(PNG + bytes([number]))
        server.post(7, photo=photo, media_group_id="g", **caption)
    async with bot(
        server, path, reader, group_policy=GroupPolicy(burst_seconds=0.0, album_seconds=0.5)
    ):
        await wait_texts(server, 7, 1)
        await wait_confirmed(server)
    ((texts, files),) = reader.turns
    assert "".join(texts) == "my garden"
    assert [content[-1] for _, _, content in files] == [0, 1, 2, 3]


async def test_an_album_in_a_group_is_addressed_by_its_caption(server, path, reader):
    server.group(-100)
    mention = {
        "caption": "@hermes_bot look",
        "caption_entities": [{"type": "mention", "offset": 0, "length": 11}],
    }
    for caption in (mention, {}):
        server.post(-100, user_id=7, photo=server.files.photo(PNG), media_group_id="g", **caption)
    async with bot(server, path, reader):
        await wait_texts(server, -100, 1)
    ((texts, files),) = reader.turns
    assert ("".join(texts), len(files)) == ("look", 2)


async def test_the_commands_of_the_console_are_unknown(server, path, reader):
    access = AccessPolicy(rules={"telegram": PlatformRules(open=True)})
    for text in ("/attach /etc/passwd", "/save 1 /etc", "/detach"):
        server.say(7, text)
    async with bot(server, path, reader, access=access):
        shown = await wait_texts(server, 7, 3)
    assert all(text.startswith("Unknown command") for text in shown), shown
    assert (reader.turns, blobs(path)) == ([], [])


# Faults


@pytest.mark.parametrize("kind", ["truncated", "reset", "502", "404", "429", "short", "redirect"])
@pytest.mark.parametrize("ranges", [True, False])
async def test_a_download_that_breaks_off_is_continued_or_repeated(
    server, path, reader, kind, ranges
):
    content = bytes(range(256)) * 4000
    server.files.ranges = ranges
    server.fail(*faults(kind, 2))
    server.post(7, document=server.files.add(content, file_name="a.bin"), caption="look")
    async with bot(server, path, reader):
        await reader.wait()
        await wait_confirmed(server)
    assert reader.turns == [(["look"], [("file", "a.bin", content)])]
    if kind == "truncated" and ranges:
        assert server.files.requests[-1][1]["range"].startswith("bytes=")


@pytest.mark.parametrize("kind", ["truncated", "404", "redirect", "502"])
async def test_after_too_many_tries_the_message_is_accepted_without_its_file(
    server, path, reader, kind
):
    server.fail(*faults(kind, 40))
    server.post(7, photo=server.files.photo(PNG), caption="look")
    async with bot(server, path, reader):
        shown = await wait_texts(server, 7, 2)
        await wait_confirmed(server)
    assert sorted(shown) == ["0 files", LOST]
    assert reader.turns == [(["look [photo, 33 bytes: it could not be downloaded]"], [])]
    assert blobs(path) == []
    if kind != "truncated":  # then each try has a few bytes more
        assert server.counts["file"] == download.MAX_TRIES


@pytest.mark.parametrize("kind", ["long", "endless", "gzip"])
async def test_a_file_that_is_not_what_telegram_has_announced_is_left_out(
    server, path, reader, kind
):
    server.fail(*faults(kind, 1))
    server.post(7, document=server.files.add(b"x" * 1_000_000))
    async with bot(server, path, reader):
        await wait_texts(server, 7, 2)
        await wait_confirmed(server)
    assert reader.turns == [(["[document, 1 MB: it could not be downloaded]"], [])]
    assert (server.counts["file"], blobs(path)) == (1, [])


async def test_a_wrong_size_is_noticed(server, path, reader):
    file = server.files.add(b"x" * 1000)
    server.files.announced[file["file_id"]] = 2000
    server.post(7, document=file)
    async with bot(server, path, reader):
        await wait_texts(server, 7, 2)
    assert reader.turns == [(["[document, 1 kB: it could not be downloaded]"], [])]
    assert blobs(path) == []


async def test_an_endless_file_of_unknown_size_is_read_up_to_the_limit(server, path, reader):
    file = server.files.add(b"x" * 1000)
    server.files.announced[file["file_id"]] = None
    server.fail(*faults("endless", 1))
    server.post(7, document={"file_id": file["file_id"]})
    async with bot(server, path, reader, max_file_size=5_000_000):
        await wait_texts(server, 7, 2)
    assert reader.turns == [(["[document: it is too large]"], [])]
    assert blobs(path) == []


async def test_a_file_that_telegram_calls_too_big_is_named(server, path, reader):
    file = server.files.add(30 * 1024 * 1024)
    server.post(7, document={"file_id": file["file_id"], "file_name": "big.iso"})
    async with bot(server, path, reader):
        await wait_texts(server, 7, 2)
    assert reader.turns == [(["[document big.iso: it is too large]"], [])]
    assert server.counts["file"] == 0


@pytest.mark.parametrize(
    "file_path",
    ["../../secret", "/etc/passwd", "https://127.0.0.1/x", "a\\b", "", "a" * 1000, "a\r\nb: c"],
)
async def test_a_path_that_leads_elsewhere_is_not_requested(server, path, reader, file_path):
    server.files.get_file = lambda params: {"file_id": "x", "file_path": file_path}
    server.post(7, document=server.files.add(b"content"))
    async with bot(server, path, reader):
        await wait_texts(server, 7, 2)
    assert server.counts["file"] == 0


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"message_files": 0}, "a message can have 0 files, not 1"),
        ({"types": ["image/*"]}, "files of the type text/plain are not accepted"),
        ({"message_bytes": 6}, "the file is larger than 6 bytes"),
    ],
)
async def test_a_message_whose_file_is_refused_is_accepted_with_a_note(
    server, path, reader, limits, reason
):
    config = Config(attachments=AttachmentLimits(**limits))
    server.post(7, document=server.files.add(b"content", file_name="a.txt"), caption="look")
    async with bot(server, path, reader, config=config):
        shown = await wait_texts(server, 7, 2)
        await wait_confirmed(server)
    assert sorted(shown) == ["0 files", f"Your file was not accepted: {reason}."]
    assert reader.turns == [([f"look [document a.txt, 7 bytes: {reason}]"], [])]
    assert blobs(path) == []


async def test_the_caption_of_an_album_is_kept_if_its_file_is_refused(server, path, reader):
    config = Config(attachments=AttachmentLimits(types=["image/*"]))
    for number, content in enumerate([b"content", PNG]):
        caption = {} if number else {"caption": "my album"}
        document = server.files.add(content, file_name=f"{number}")
        server.post(7, document=document, media_group_id="g", **caption)
    async with bot(server, path, reader, config=config):
        await wait_texts(server, 7, 2)
    ((texts, files),) = reader.turns
    assert texts[0].startswith("my album [document 0, 7 bytes: files of the type text/plain")
    assert [name for _, name, _ in files] == ["1"]


async def test_the_token_is_in_no_log_line_error_or_row(server, path, reader, caplog):
    caplog.set_level(logging.DEBUG)
    server.fail(*faults("redirect"))
    server.post(7, document=server.files.add(b"content"))
    async with bot(server, path, reader):
        await reader.wait()
        await wait_confirmed(server)
    secret = TOKEN.partition(":")[2]
    assert "downloaded" in caplog.text
    assert secret not in caplog.text
    assert all(secret not in message.text for message in server.chats[7].messages)
    stored = [each for each in path.parent.rglob("*") if each.is_file()]
    assert all(secret.encode() not in each.read_bytes() for each in stored)


# Order, and other chats


async def test_a_slow_file_delays_its_own_conversation_only(server, path, reader):
    server.fail(Fault("slow", method="file", seconds=3600.0))
    server.post(7, document=server.files.add(b"content"))
    server.say(7, "after the file")
    server.say(8, "at the same time")
    async with bot(server, path, reader) as telegram:
        await wait_texts(server, 8, 1)
        server.say(8, "and later")
        await wait_texts(server, 8, 2)
        assert [texts for texts, _ in reader.turns] == [["at the same time"], ["and later"]]
        assert server.pending == 4  # none is confirmed before the first
        assert telegram.problem is None
    # After a restart they are sent again, and those of the other chat are known.
    async with bot(server, path, reader):
        await reader.wait(3)
        await wait_confirmed(server)
    later = [text for texts, _ in reader.turns[2:] for text in texts]
    assert later == ["", "after the file"]
    assert [content for _, files in reader.turns for _, _, content in files] == [b"content"]


async def test_the_order_of_a_conversation_is_kept(server, path, reader):
    server.fail(Fault("slow", method="file", seconds=0.3))
    for number in range(3):
        server.post(7, document=server.files.add(b"content"), caption=f"file {number}")
        server.say(7, f"text {number}")
    async with bot(server, path, reader):
        await wait_confirmed(server)
        await server.wait_until(lambda: sum(len(texts) for texts, _ in reader.turns) == 6)
    said = [text for texts, _ in reader.turns for text in texts]
    assert said == ["file 0", "text 0", "file 1", "text 1", "file 2", "text 2"]


async def test_a_message_that_cannot_be_stored_for_now_is_not_lost(server, path, reader):
    errors = [StoreBusy("busy"), StoreBusy("busy")]
    server.post(7, document=server.files.add(b"one"), caption="first")
    server.post(7, document=server.files.add(b"two"), caption="second")
    server.say(8, "hello")
    async with bot(
        server, path, reader, wrap_runtime=lambda runtime: FailingRuntime(runtime, errors)
    ):
        await wait_confirmed(server)
        await wait_texts(server, 7, 1)
        await wait_texts(server, 8, 1)
    said = [text for texts, _ in reader.turns for text in texts if text != "hello"]
    assert said == ["first", "second"]


async def test_a_file_that_was_accepted_before_is_not_downloaded_again(server, path, reader):
    server.fail(Fault("slow", method="file", seconds=3600.0))
    server.post(8, document=server.files.add(b"slow"))
    async with bot(server, path, reader):
        await server.wait_until(lambda: server.counts["file"] == 1)
        server.post(7, document=server.files.add(b"content"))
        await reader.wait()
    assert server.pending == 2
    async with bot(server, path, reader):
        await wait_confirmed(server)
        await reader.wait(2)
    assert [path.rpartition("_")[2] for path, _ in server.files.requests] == ["1.bin", "0.bin"]


async def test_only_a_few_files_are_downloaded_at_the_same_time(server, path, reader):
    number = download.MAX_DOWNLOADS + 4
    slow = [Fault("slow", method="file", seconds=3600.0) for _ in range(number)]
    server.fail(*slow)
    for chat in range(number):
        server.post(100 + chat, document=server.files.add(b"content"))
    async with bot(server, path, reader):
        await server.wait_until(lambda: server.counts["file"] == download.MAX_DOWNLOADS)
        server.say(7, "hello")
        await wait_texts(server, 7, 1)
        assert server.counts["file"] == download.MAX_DOWNLOADS


async def test_a_revoked_token_ends_the_bot_during_a_download(server, path, reader):
    server.fail(*faults("404"))
    server.post(7, document=server.files.add(b"content"))
    async with bot(server, path, reader) as telegram:
        await server.wait_until(lambda: server.counts["file"])
        server.revoke()
        while telegram.problem is None:  # noqa: ASYNC110 - there is no event for it
            await trio.sleep(0.01)
    assert "rejected the bot token" in telegram.problem
