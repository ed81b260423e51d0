"""The loopback Bot API has files with the formats, limits and errors of the real one."""

from __future__ import annotations

import hashlib
import json

import httpx2
import pytest

from hermes.testing.telegram import TOKEN, Fault, open_telegram

PHOTO = b"\xff\xd8\xff and the rest"


@pytest.fixture
async def server():
    async with open_telegram() as opened:
        opened.private(7)
        yield opened


@pytest.fixture
async def client(server):
    async with httpx2.AsyncClient(base_url=server.url) as opened:
        yield opened


async def get_file(client, file_id):
    response = await client.post(f"/bot{TOKEN}/getFile", json={"file_id": file_id})
    return response.json()


async def test_get_file_names_the_path_and_the_size(server, client):
    file = server.files.add(b"content", file_name="a.txt")
    assert file["file_size"] == 7
    found = await get_file(client, file["file_id"])
    assert found["ok"]
    assert found["result"].keys() == {"file_id", "file_path", "file_size"}
    response = await client.get(f"/file/bot{TOKEN}/{found['result']['file_path']}")
    assert (response.status_code, response.content) == (200, b"content")


async def test_unknown_and_large_files_are_refused(server, client):
    assert (await get_file(client, "x"))["error_code"] == 400
    big = server.files.add(20 * 1024 * 1024 + 1)
    assert (await get_file(client, big["file_id"]))["description"] == (
        "Bad Request: file is too big"
    )
    assert (await client.get(f"/file/bot{TOKEN}/photos/none.jpg")).status_code == 404
    assert (await client.get("/file/bot1:x/documents/file_0.bin")).status_code == 401


async def test_a_part_of_a_file_can_be_requested(server, client):
    server.files.add(b"content")
    path = f"/file/bot{TOKEN}/documents/file_0.bin"
    part = await client.get(path, headers={"range": "bytes=3-"})
    assert (part.status_code, part.content) == (206, b"tent")
    assert part.headers["content-range"] == "bytes 3-6/7"
    assert (await client.get(path, headers={"range": "bytes=7-"})).status_code == 416


async def test_a_generated_file_has_the_same_bytes_in_parts_and_as_a_whole(server, client):
    server.files.add(200_000)
    path = f"/file/bot{TOKEN}/documents/file_0.bin"
    whole = (await client.get(path)).content
    part = (await client.get(path, headers={"range": "bytes=70001-"})).content
    assert (len(whole), part) == (200_000, whole[70_001:])


@pytest.mark.parametrize(
    ("method", "field"),
    [
        ("sendPhoto", "photo"),
        ("sendDocument", "document"),
        ("sendAudio", "audio"),
        ("sendVoice", "voice"),
    ],
)
async def test_a_file_is_sent_as_a_form(server, client, method, field):
    reply = {"message_id": 1, "allow_sending_without_reply": True}
    response = await client.post(
        f"/bot{TOKEN}/{method}",
        data={"chat_id": "7", "caption": "12", "reply_parameters": json.dumps(reply)},
        files={field: ("a.jpg", PHOTO, "image/jpeg")},
    )
    assert response.json()["ok"]
    (message,) = server.chats[7].messages
    assert (message.text, message.reply_to) == ("12", 1)
    file = message.file
    assert (file.field, file.name, file.media_type, file.size) == (
        field, "a.jpg", "image/jpeg", len(PHOTO),
    )  # fmt: skip
    assert file.sha256 == hashlib.sha256(PHOTO).hexdigest()


@pytest.mark.parametrize(
    ("method", "files", "code"),
    [
        ("sendPhoto", {"photo": b"no picture"}, 400),
        ("sendPhoto", {"photo": PHOTO + bytes(10 * 1024 * 1024)}, 400),
        ("sendPhoto", {"document": PHOTO}, 400),
        ("sendDocument", {"document": bytes(50 * 1024 * 1024 + 1)}, 413),
    ],
)
async def test_bad_files_are_refused(server, client, method, files, code):
    response = await client.post(f"/bot{TOKEN}/{method}", data={"chat_id": "7"}, files=files)
    assert (response.status_code, server.chats[7].messages) == (code, [])


async def test_a_boundary_may_be_cut_anywhere(server, client):
    """Chunks of every size lead to the same file."""
    content = b"\r\n--" * 10 + b"\r\n--bound\r\n\r\n"
    form = (
        b'--bound1\r\nContent-Disposition: form-data; name="chat_id"\r\n\r\n7\r\n'
        b'--bound1\r\nContent-Disposition: form-data; name="document"; filename="a"\r\n\r\n'
        + content
        + b"\r\n--bound1--\r\n"
    )

    async def chunks(size):
        for start in range(0, len(form), size):
            yield form[start : start + size]

    for size in (2, 3, 7, 50, len(form)):
        response = await client.post(f"/bot{TOKEN}/sendDocument", content=chunks(size))
        assert response.json()["ok"]
    assert {file.sha256 for file in server.chats[7].files} == {hashlib.sha256(content).hexdigest()}


async def test_a_form_can_be_cut(server, client):
    server.fail(Fault(method="upload"))
    with pytest.raises(httpx2.TransportError):
        await client.post(
            f"/bot{TOKEN}/sendDocument", data={"chat_id": "7"}, files={"document": bytes(10**7)}
        )
    assert (server.broken["upload"], server.counts["sendDocument"]) == (1, 0)
