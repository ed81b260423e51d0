"""`/v1/files`: uploads are stored while they arrive, and no browser runs a download."""

from __future__ import annotations

import openai
import pytest
import trio
import trio.lowlevel

from hermes import Attachment, AttachmentLimits, Config, TurnResult, open_runtime
from hermes.adapters.http import HttpConfig, serve_http
from hermes.adapters.http.downloads import content_disposition
from hermes.adapters.http.openai.uploads import UPLOADS
from hermes.messages import StoredFile
from tests.support.attachments import blob_names, png, staged_names
from tests.support.http import Server, echo, http_server, new_token

HTML = b"<script>alert(1)</script>"
LIMITS = Config(attachments=AttachmentLimits(message_bytes=5000, message_files=2))


def form(*parts, end=True, boundary=b"XyZ"):
    """A body: each part is the value of Content-Disposition, and its content."""
    body = b"".join(
        b"--%s\r\nContent-Disposition: %s\r\n\r\n%s\r\n" % (boundary, disposition, content)
        for disposition, content in parts
    )
    return body + (b"--%s--\r\n" % boundary if end else b"")


FILE = (b'form-data; name="file"; filename="a.txt"', b"hello")
PURPOSE = (b'form-data; name="purpose"', b"user_data")
FORM = {"Content-Type": "multipart/form-data; boundary=XyZ"}


async def post(server, body, headers=FORM):
    return await server.http().post("/v1/files", content=body, headers=headers)


async def test_the_stock_sdk_uploads_lists_reads_and_deletes(path):
    async with http_server(path) as server:
        client = server.openai()
        first = await client.files.create(file=("a.png", png()), purpose="vision")
        second = await client.files.create(file=("ü.txt", b"hello"), purpose="user_data")
        assert (first.filename, first.bytes, first.purpose) == ("a.png", len(png()), "vision")
        assert [each.id async for each in client.files.list()] == [second.id, first.id]
        pages = client.files.list(limit=1, order="asc")
        assert [each.id async for each in pages] == [first.id, second.id]
        assert (await client.files.retrieve(second.id)) == second
        assert (await client.files.content(second.id)).content == b"hello"
        assert (await client.files.delete(first.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(first.id)
        assert [each.id async for each in client.files.list()] == [second.id]
        assert len(blob_names(path)) == 1


async def test_an_upload_of_megabytes_is_stored_as_it_is(path):
    data = bytes(range(256)) * 20_000 + b"\r\n--XyZ\r\n"
    async with http_server(path) as server:
        stored = await server.openai().files.create(file=("a.bin", data), purpose="user_data")
        assert (await server.openai().files.content(stored.id)).content == data


async def test_the_file_may_come_before_its_purpose(path):
    async with http_server(path) as server:
        answer = await post(server, form(FILE, PURPOSE))
        assert (answer.status_code, answer.json()["filename"]) == (200, "a.txt")


async def test_other_tenants_see_nothing(path):
    async with http_server(path) as server:
        stored = await server.openai().files.create(file=("a", b"hello"), purpose="user_data")
        secret = await new_token(server.runtime, "bob")
        bob = server.http(secret)
        for method, end in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            answer = await bob.request(method, f"/v1/files/{stored.id}{end}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "file_not_found")
        assert (await bob.get("/v1/files")).json()["data"] == []
        assert (await bob.get("/v1/files", params={"after": stored.id})).json()["data"] == []
        same = await new_token(server.runtime, "laptop", namespace="ann")
        assert (await server.openai(same).files.content(stored.id)).content == b"hello"


BAD_FORMS = [
    (form(FILE), 400, "invalid_value"),
    (form(FILE, (PURPOSE[0], b"fine-tune")), 400, "invalid_value"),
    (form(PURPOSE), 400, "missing_file"),
    (form((b'form-data; name="other"; filename="a"', b"x"), PURPOSE), 400, "missing_file"),
    (form(FILE, FILE, PURPOSE), 400, "invalid_form"),
    (form(FILE, PURPOSE, PURPOSE), 400, "invalid_form"),
    (form(FILE, PURPOSE, (b'form-data; name="expires_after[seconds]"', b"3600")), 400,
     "unsupported_parameter"),
    (form((b'form-data; name="file"; filename="a"', b""), PURPOSE), 400, "file_refused"),
    (form(FILE, PURPOSE, end=False), 400, "invalid_form"),
    (form(FILE, end=False)[:-8], 400, "invalid_form"),
    (form(FILE, PURPOSE, boundary=b"other"), 400, "invalid_form"),
    (form((b"form-data", b"x")), 400, "invalid_form"),
    (form((PURPOSE[0], b"\xff")), 400, "invalid_form"),
    (form((b'form-data; name="%s"' % (b"x" * 5000), b"x")), 400, "invalid_form"),
    (form(*[(b'form-data; name="f%d"; filename="f"' % n, b"x") for n in range(101)]), 400,
     "invalid_form"),
    (form((b"form-data; name=n", b"x")), 400, "unsupported_parameter"),
    (form((PURPOSE[0], b"x" * 1_000_001)), 413, "body_too_long"),
    (form((FILE[0], b"x" * 1_200_000), PURPOSE), 413, "body_too_long"),
    (form((FILE[0], b"x" * 5001), PURPOSE), 413, "file_too_large"),
    (b"", 400, "invalid_form"),
]  # fmt: skip


async def test_a_form_that_is_not_valid_leaves_nothing(path):
    async with http_server(path, runtime_config=LIMITS) as server:
        for body, status, code in BAD_FORMS:
            answer = await post(server, body)
            found = (answer.status_code, answer.json()["error"]["code"])
            assert found == (status, code), body[:200]
            assert blob_names(path) == staged_names(path) == set(), body[:200]
        assert (await server.http().get("/v1/files")).json()["data"] == []


async def test_only_forms_are_accepted(path):
    async with http_server(path) as server:
        for kind in ("application/json", "multipart/form-data", "multipart/mixed"):
            answer = await post(server, form(FILE, PURPOSE), {"Content-Type": kind})
            assert answer.status_code == 415


async def test_an_upload_that_is_cut_leaves_nothing(path):
    async with http_server(path) as server:

        async def endless():
            yield form(FILE, end=False)
            raise OSError("the client goes away")

        with pytest.raises(OSError, match="goes away"):
            await post(server, endless())
        await server.close_clients()
        with trio.fail_after(10):
            while staged_names(path) or blob_names(path):
                await trio.lowlevel.checkpoint()
        assert await server.runtime.api.list_files("agent:main:http:dm:ann:files") == []


DOWNLOADS = [
    ("a.png", png(), "image/png", "inline"),
    ("a.html", HTML, "text/plain", "attachment"),
    ("a.svg", b"<svg xmlns='http://www.w3.org/2000/svg' onload='x()'/>", "text/plain",
     "attachment"),
    ("a.png", HTML, "text/plain", "attachment"),
    ("a.pdf", b"%PDF-1.7", "application/pdf", "attachment"),
    ("a.bin", b"\0\1\2", "application/octet-stream", "attachment"),
]  # fmt: skip


async def test_only_images_are_shown_by_a_browser(path):
    async with http_server(path) as server:
        for name, data, kind, shown in DOWNLOADS:
            stored = await server.openai().files.create(file=(name, data), purpose="user_data")
            answer = await server.http().get(f"/v1/files/{stored.id}/content")
            headers = answer.headers
            assert (headers["content-type"].partition(";")[0], answer.content) == (kind, data)
            assert headers["content-disposition"].partition(";")[0] == shown
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["content-security-policy"] == "sandbox"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (None, "attachment"),
        ("a b.txt", "attachment; filename=\"a b.txt\"; filename*=UTF-8''a%20b.txt"),
        ('ü"\\%.txt', "attachment; filename=\"____.txt\"; filename*=UTF-8''%C3%BC%22%5C%25.txt"),
        ("a\r\nX: y", "attachment; filename=\"a__X: y\"; filename*=UTF-8''a%0D%0AX%3A%20y"),
    ],
)
def test_a_name_cannot_break_out_of_its_header(name, expected):
    file = StoredFile(id="file_1", media_type="text/plain", size=1, name=name)
    assert content_disposition(file) == expected


RANGES = [
    ("bytes=0-4", 206, b"01234"),
    ("bytes=5-", 206, b"56789"),
    ("bytes=-3", 206, b"789"),
    ("bytes=-99", 200, b"0123456789"),
    ("bytes=8-99", 206, b"89"),
    ("bytes=10-", 416, None),
    ("bytes=-0", 416, None),
    ("bytes=4-2", 200, b"0123456789"),
    ("bytes=0-1,3-4", 200, b"0123456789"),
    ("bytes=x", 200, b"0123456789"),
    ("bytes=-", 200, b"0123456789"),
]


async def test_ranges(path):
    data = b"0123456789"
    async with http_server(path) as server:
        stored = await server.openai().files.create(file=("a", data), purpose="user_data")
        url, client = f"/v1/files/{stored.id}/content", server.http()
        for asked, status, content in RANGES:
            answer = await client.get(url, headers={"Range": asked})
            assert answer.status_code == status, asked
            assert content is None or answer.content == content, asked
            assert status == 200 or answer.headers["content-range"].endswith("/10")
            other = {"Range": asked, "If-Range": '"other"'}
            assert (await client.get(url, headers=other)).content == data


async def makes_a_file(turn):
    return TurnResult(text="here", files=[Attachment(data=png(), name="made.png")])


async def test_a_file_of_an_answer_is_downloaded_but_not_deleted(path):
    async with http_server(path, makes_a_file) as server:
        answer = await server.openai().responses.create(model="hermes", input="draw")
        [file] = (await server.runtime.api.get_response(answer.id)).reply.files
        client = server.http()
        content = await client.get(f"/v1/files/{file.id}/content")
        assert (content.status_code, content.content) == (200, png())
        assert (await client.get("/v1/files")).json()["data"] == []  # uploads only
        assert (await client.get(f"/v1/files/{file.id}")).json()["filename"] == "made.png"
        refused = await client.delete(f"/v1/files/{file.id}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "file_in_use")
        bob = server.http(await new_token(server.runtime, "bob"))
        assert (await bob.get(f"/v1/files/{file.id}/content")).status_code == 404


async def test_an_upload_survives_a_restart(path):
    async with http_server(path) as server:
        stored = await server.openai().files.create(file=("a", b"hello"), purpose="user_data")
        secret = server.secret
    async with open_runtime(path, agent=echo) as runtime:
        async with serve_http(runtime, HttpConfig(port=0)) as url:
            server = Server(runtime, url, secret)
            assert (await server.openai().files.content(stored.id)).content == b"hello"
            await server.close_clients()


async def test_files_of_a_conversation_are_uploaded_and_downloaded_under_api(path):
    async with http_server(path, runtime_config=LIMITS) as server:
        client = server.http()
        created = await client.post("/api/conversations", json={})
        url = f"/api/conversations/{created.json()['id']}"
        body = form(FILE, (b'form-data; name="other"; filename="b.png"', png()))
        uploaded = await client.post(f"{url}/files", content=body, headers=FORM)
        assert uploaded.status_code == 201
        parts = uploaded.json()["parts"]
        assert [(part["type"], part["name"]) for part in parts] == [
            ("file", "a.txt"), ("image", "b.png"),
        ]  # fmt: skip
        message = {"text": "look", "parts": [{"file": part["file"]} for part in parts]}
        answer = await client.post(f"{url}/messages", json=message)
        assert "b.png" in answer.json()["reply"]["text"]
        found = await client.get(f"{url}/files/{parts[1]['file']}")
        assert (found.content, found.headers["content-type"]) == (png(), "image/png")
        bob = server.http(await new_token(server.runtime, "bob"))
        key = created.json()["session_key"].replace(":", "%3A")
        for start in (url, f"/api/conversations/{key}"):
            assert (await bob.get(f"{start}/files/{parts[1]['file']}")).status_code == 404
        field = form(FILE, PURPOSE)
        refused = await client.post(f"{url}/files", content=field, headers=FORM)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "purpose")
        many = form(*[(b'form-data; name="f"; filename="%d"' % n, b"x") for n in range(3)])
        assert (await client.post(f"{url}/files", content=many, headers=FORM)).status_code == 400


def test_no_conversation_has_the_name_of_the_uploads():
    assert not UPLOADS.startswith(("conv_", "name:"))
