"""The content of messages in OpenAI's formats: what is stored, and what is refused by name."""

from __future__ import annotations

import base64
from contextlib import asynccontextmanager

import pytest
import trio
from starlette.requests import Request

from hermes import AccessPolicy, Attachment, AttachmentLimits, Config, open_runtime
from hermes.adapters.http import HttpConfig
from hermes.adapters.http.credentials import Caller
from hermes.adapters.http.endpoints import Call, Services
from hermes.adapters.http.errors import ApiError
from hermes.adapters.http.openai.content import Content, read_content
from hermes.adapters.http.openai.responses.requests import read_input
from hermes.adapters.http.turns.logs import TurnLogs
from hermes.errors import NotAdmitted
from hermes.messages import Token
from hermes.protocols import AgentChoice
from hermes.telemetry.collecting import collecting
from tests.support.attachments import blob_names, digest, png
from tests.support.http import echo
from tests.support.media_samples import riff

KEY = "conv_1"
SOUND = riff(b"WAVE", bytes(40))


def token(name):
    return Token(id=f"tok_{name}", name=name, namespace=name, roles=("user",), created_at=0.0)


@asynccontextmanager
async def calls(path, config=None, limits=None, **options):
    """Open a runtime; yields a function that returns a request of a client."""
    options["config"] = Config(attachments=limits or AttachmentLimits())
    async with open_runtime(path, agent=echo, **options) as runtime, trio.open_nursery() as nursery:
        config = config or HttpConfig()
        services = Services(
            runtime=runtime, config=config, logs=TurnLogs(), secret=b"s",
            nursery=nursery, draining=trio.Event(), collected=collecting(runtime),
        )  # fmt: skip

        def call(name="ann"):
            request = Request({"type": "http", "method": "POST", "path": "/", "headers": []})
            return Call(request=request, services=services, caller=Caller(token(name)))

        yield call


def data_url(data, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image(data):
    return {"type": "input_image", "image_url": data_url(data), "detail": "auto"}


def text(words):
    return {"type": "input_text", "text": words}


async def read(call, *parts, **options):
    return await read_content(call, call.caller.key(KEY), list(parts), **options)


async def refused(call, *parts, **options):
    with pytest.raises(ApiError) as error:
        await read(call, *parts, **options)
    return error.value.status, error.value.code, error.value.param


async def stored_bytes(call, part, key=KEY):
    return await call.runtime.conversation(call.caller.key(key)).read_file(part["file"])


async def test_texts_are_joined(path):
    async with calls(path) as call:
        assert await read_content(call(), "k", "hello") == Content("hello")
        parts = [text("a"), {"type": "text", "text": "b"}, {"type": "refusal", "refusal": "c"}]
        assert await read(call(), *parts) == Content("a\n\nb\n\nc")


@pytest.mark.parametrize(
    ("part", "data", "kind", "name"),
    [
        (image(png(20, 30)), png(20, 30), "image", None),
        ({"type": "image_url", "image_url": {"url": data_url(png())}}, png(), "image", None),
        ({"type": "image_url", "image_url": {"url": data_url(png(), "text/html")}}, png(), "image",
         None),
        ({"type": "input_file", "file_data": data_url(b"hi", "text/plain"), "filename": "a.txt"},
         b"hi", "file", "a.txt"),
        ({"type": "file", "file": {"file_data": "aGk=", "filename": "../b.txt"}}, b"hi", "file",
         "b.txt"),
        ({"type": "input_audio",
          "input_audio": {"data": base64.b64encode(SOUND).decode(), "format": "wav"}}, SOUND,
         "audio", "audio.wav"),
    ],
    ids=["input_image", "image_url", "bytes count", "input_file", "file", "audio"],
)  # fmt: skip
async def test_files_are_stored_for_the_conversation(path, part, data, kind, name):
    async with calls(path) as call:
        content = await read(call(), text("see"), part, text("well"))
        assert content.text == "see\n\nwell"
        first, file, last = content.parts
        assert (first["text"], last["text"]) == ("see", "well")
        assert (file["type"], file["size"], file.get("name")) == (kind, len(data), name)
        assert await stored_bytes(call(), file) == data


async def test_a_message_with_an_image_is_answered(path):
    async with calls(path) as call:
        content = await read(call(), text("look"), image(png()))
        key = call().caller.key(KEY)
        reply = await call().runtime.ask(key, content.text, parts=content.parts)
        assert reply.text.startswith("echo: look\n[image")
        [said, _] = await call().runtime.conversation(key).history()
        assert said.content == "look"
        assert [part["type"] for part in said.parts] == ["text", "image"]


async def test_twenty_megabytes_are_decoded_in_pieces(path):
    data = png() + bytes(range(256)) * 80_000
    async with calls(path) as call:
        [part] = (await read(call(), image(data))).parts
        assert part["size"] == len(data)
        assert blob_names(path) == {digest(data)}


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "input_image", "image_url": "data:image/png;base64,!!!!"},
         (400, "file_refused", "content[0].image_url")),
        ({"type": "input_image", "image_url": "data:image/png;base64,aGk=aGk="},
         (400, "file_refused", "content[0].image_url")),
        ({"type": "input_image", "image_url": "data:image/png;base64,"},
         (400, "file_refused", "content[0].image_url")),
        ({"type": "input_image", "image_url": "data:image/png,abc"},
         (400, "invalid_value", "content[0].image_url")),
        ({"type": "input_image", "image_url": data_url(b"%PDF-1.7")},
         (400, "wrong_type", "content[0].image_url")),
        ({"type": "input_image"}, (400, "invalid_value", "content[0].image_url")),
        ({"type": "image_url", "image_url": {}},
         (400, "invalid_value", "content[0].image_url.url")),
        ({"type": "input_image", "image_url": "https://x.example/a.png"},
         (400, "unsupported_parameter", "content[0].image_url")),
        ({"type": "input_image", "image_url": "file:///etc/passwd"},
         (400, "file_refused", "content[0].image_url")),
        ({"type": "input_image", "file_id": "file_" + "0" * 32},
         (404, "file_not_found", "content[0].file_id")),
        ({"type": "input_file", "file_url": "https://x.example/a.pdf"},
         (400, "unsupported_parameter", "content[0].file_url")),
        ({"type": "input_file"}, (400, "invalid_value", "content[0].file_data")),
        ({"type": "file"}, (400, "invalid_value", "content[0].file")),
        ({"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
         (400, "wrong_type", "content[0].input_audio.data")),
        ({"type": "input_text", "text": 1}, (400, "invalid_value", "content[0].text")),
        ({"type": "computer_screenshot"}, (400, "unsupported_part", "content[0].type")),
    ],
)  # fmt: skip
async def test_what_cannot_be_used_is_refused_by_name(path, part, expected):
    async with calls(path) as call:
        assert await refused(call(), part) == expected


async def test_nothing_is_left_of_a_message_that_is_refused(path):
    async with calls(path) as call:
        bad = {"type": "input_image", "image_url": data_url(b"text")}
        request = call()
        status = await refused(request, image(png()), image(png(5, 5)), bad, param="input[0]")
        assert status == (400, "wrong_type", "input[0][2].image_url")
        await request.discard_files()
        assert blob_names(path) == set()


async def test_a_file_that_is_too_large_is_refused(path):
    async with calls(path, limits=AttachmentLimits(message_bytes=100)) as call:
        large = image(png() + bytes(100))
        assert await refused(call(), large) == (413, "file_too_large", "content[0].image_url")
        assert blob_names(path) == set()


async def test_too_many_files_are_refused_before_one_is_stored(path):
    async with calls(path) as call:
        most = call().runtime.api.attachment_limits().message_files
        parts = [image(png())] * (most + 1)
        assert await refused(call(), *parts) == (400, "too_many_files", "content")
        assert blob_names(path) == set()


async def test_addresses_are_passed_on_if_the_model_takes_them(path):
    url = "https://x.example/a.png"
    part = {"type": "input_image", "image_url": url}
    async with calls(path, HttpConfig(image_urls=True)) as call:
        assert (await read(call(), part)).parts == ({"type": "image", "url": url},)
    async with calls(path, catalog=Catalog()) as call:
        assert (await read(call(), part, agent="sees")).parts == ({"type": "image", "url": url},)
        assert (await refused(call(), part, agent="blind"))[1] == "unsupported_parameter"
        body = {"input": [{"role": "user", "content": [part]}]}
        given = await read_input(call(), call().caller.key("c"), body, "sees")
        assert given.content.parts == ({"type": "image", "url": url},)
        key = call().caller.key("chosen")
        await call().runtime.conversation(key).configure(agent="sees")
        given = await read_content(call(), key, [part])
        assert given.parts == ({"type": "image", "url": url},)


class Catalog:
    """Two agents: the model of one takes addresses."""

    def choices(self, source):
        return []

    def servers(self):
        return []

    def current(self, settings, source):
        takes = ("image", "url") if settings.agent == "sees" else ("image",)
        return AgentChoice(name=settings.agent, model="m", takes=takes)


async def test_a_file_of_the_caller_is_used_in_another_conversation(path):
    async with calls(path) as call:
        ann, bob = call("ann"), call("bob")
        uploads = ann.runtime.conversation(ann.caller.key("files"))
        file = await uploads.put_file(Attachment(data=png(), name="a.png"))
        by_id = {"type": "input_image", "file_id": file.id}
        [part] = (await read(ann, by_id)).parts
        assert (part["name"], part["file"] != file.id) == ("a.png", True)
        assert await stored_bytes(ann, part) == png()
        # In its own conversation it is used as it is.
        own = await read_content(ann, ann.caller.key("files"), [by_id])
        assert own.parts[0]["file"] == file.id
        assert await refused(bob, by_id) == (404, "file_not_found", "content[0].file_id")
        assert await refused(bob, {**by_id, "file_id": part["file"]}) == (
            404, "file_not_found", "content[0].file_id",
        )  # fmt: skip
        as_file = {"type": "file", "file": {"file_id": file.id}}
        assert (await read(ann, as_file)).parts == (part,)


async def test_nothing_is_stored_for_a_caller_that_is_not_admitted(path):
    policy = AccessPolicy(rules={})
    async with calls(path, access=policy) as call:
        with pytest.raises(NotAdmitted):
            await read(call(), image(png()))
        assert blob_names(path) == set()
