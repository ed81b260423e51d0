"""Attachments in the formats of the providers, and the notes for what a model cannot take."""

from __future__ import annotations

import base64
import contextlib
import functools

import httpx2
import msgspec
import pytest
import trio

from hermes.agents.budgets import Spending
from hermes.agents.providers.anthropic_messages import AnthropicMessages
from hermes.agents.providers.base import Endpoint, FileBody, Unavailable, with_files
from hermes.agents.providers.file_body import CHUNK, open_body
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.agents.providers.sse_transport import response_error
from hermes.errors import StoreFailed
from hermes.messages import Message, ToolCall
from hermes.transcript.attachments import MAX_TEXT
from hermes.transcript.render import NO_ANSWER
from tests.support.model_files import PDF, Files, file_id, png

ALL = ("image", "file", "audio", "url")
PNG = png()
WAV = b"RIFF\0\0\0\0WAVEfmt "
TEXT = '\ufeffline "one"\nline two\\ \x01 é\n'.encode()
REMOTE = {"type": "image", "url": "https://example.org/a.png"}


def encoded(content):
    return base64.b64encode(content).decode()


def provider(kind, **options):
    options = {"base_url": "http://a/v1", "model": "m", "attachments": ALL, **options}
    return kind(httpx2.AsyncClient(), Endpoint(**options))


async def sent_bytes(made, messages, files=None):
    """The body of a request, with its files."""
    encoded_messages = made.encode(messages)
    body = with_files(made.body(b"", encoded_messages, ()), (files or Files()).open_file)
    if isinstance(body, bytes):
        return body
    stream = await open_body(body)
    content = b"".join([chunk async for chunk in stream])
    assert len(content) == stream.size
    return content


async def sent(made, messages, files=None):
    """The messages of a request, decoded."""
    return msgspec.json.decode(await sent_bytes(made, messages, files))["messages"]


@pytest.fixture
def files():
    return Files()


@pytest.fixture
def openai(files):
    made = provider(OpenAIChat)
    return functools.partial(sent, made, files=files)


@pytest.fixture
def anthropic(files):
    made = provider(AnthropicMessages)

    async def without_breakpoints(messages):
        shown = await sent(made, messages, files)
        for message in shown:
            for block in message["content"]:
                block.pop("cache_control", None)
        return shown

    return without_breakpoints


def user(*parts, text=None):
    return Message("user", text, parts=parts)


# Formats


async def test_openai_is_sent_each_kind_in_its_format(openai, files):
    parts = [
        files.add(PNG, "image/png", "a.png"),
        files.add(PDF, "application/pdf", 'b".pdf'),
        files.add(WAV, "audio/wav", "c.wav"),
        files.add(b"ID3", "audio/mpeg", "d.mp3"),
        files.add(TEXT, "text/plain", "e.txt"),
        REMOTE,
    ]
    [message] = await openai([user(*parts, text="look")])
    wav = {"data": encoded(WAV), "format": "wav"}
    mp3 = {"data": encoded(b"ID3"), "format": "mp3"}
    pdf = {"filename": 'b".pdf', "file_data": f"data:application/pdf;base64,{encoded(PDF)}"}
    text = TEXT.decode("utf-8-sig")
    assert message == {
        "role": "user",
        "content": [
            {"type": "text", "text": "look"},
            {
                "type": "image_url",
                "image_url": {"url": f"data:image/png;base64,{encoded(PNG)}"},
            },
            {"type": "file", "file": pdf},
            {"type": "input_audio", "input_audio": wav},
            {"type": "input_audio", "input_audio": mp3},
            {"type": "text", "text": f"[file e.txt, {len(TEXT)} bytes]\n{text}"},
            {"type": "image_url", "image_url": {"url": REMOTE["url"]}},
        ],
    }


async def test_anthropic_is_sent_each_kind_in_its_format(anthropic, files):
    parts = [
        files.add(PNG, "image/png", "a.png"),
        files.add(PDF, "application/pdf", "b.pdf"),
        files.add(TEXT, "text/x-python", "e.py"),
        files.add(PDF, "application/pdf"),
        REMOTE,
    ]
    [message] = await anthropic([user(*parts)])
    image = {"type": "base64", "media_type": "image/png", "data": encoded(PNG)}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": encoded(PDF)}
    text = {"type": "text", "media_type": "text/plain", "data": TEXT.decode("utf-8-sig")}
    assert message["content"] == [
        {"type": "image", "source": image},
        {"type": "document", "source": pdf, "title": "b.pdf"},
        {"type": "document", "source": text, "title": "e.py"},
        {"type": "document", "source": pdf},
        {"type": "image", "source": {"type": "url", "url": REMOTE["url"]}},
    ]


async def test_a_file_at_the_end_of_the_history_gets_a_cache_breakpoint(files):
    made = provider(AnthropicMessages)
    shown = await sent(made, [user(files.add(PNG, "image/png"))], files)
    assert shown[0]["content"][-1]["cache_control"] == {"type": "ephemeral"}
    files.readers.clear()
    shown = await sent(made, [user(files.add(PNG, "image/png") | {"file": file_id(9)})], files)
    assert shown[0]["content"][-1]["type"] == "text"
    assert shown[0]["content"][-1]["cache_control"] == {"type": "ephemeral"}


async def test_a_transcript_is_sent_instead_of_the_audio(openai, anthropic, files):
    part = files.add(WAV, "audio/wav", "voice.wav") | {"text": "hello you"}
    text = {"type": "text", "text": "[audio voice.wav] hello you"}
    for shown in (await openai([user(part)]), await anthropic([user(part)])):
        assert shown[0]["content"] == [text]
    both = await openai([user(part, text="hello you")])
    assert both[0]["content"] == [text]


async def test_parts_in_the_format_of_a_provider_are_sent_unchanged(openai):
    part = {"type": "file", "file": {"file_id": "uploaded"}}
    assert (await openai([user(part)]))[0]["content"] == [part]


# Notes


@pytest.mark.parametrize("kind", [OpenAIChat, AnthropicMessages])
@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"media_type": "image/heic", "name": "a.heic"},
         "[image a.heic, 9 bytes: this model does not take image/heic]"),
        ({"media_type": "image/png", "size": 50_000_001},
         "[image, 50 MB: this model takes at most "),
        ({"media_type": "application/pdf", "size": 50_000_001, "type": "file"},
         "[file, 50 MB: this model takes at most "),
        ({"media_type": "text/plain", "size": MAX_TEXT + 1, "name": "a.txt", "type": "file"},
         "[file a.txt, 200 kB: this model takes at most 200 kB]"),
        ({"media_type": "audio/ogg", "type": "audio"},
         "[audio, 9 bytes: this model does not take audio/ogg]"),
        ({"media_type": None, "type": "file"}, "[file, 9 bytes: this model does not take this"),
    ],
)  # fmt: skip
async def test_what_no_model_takes_is_described(kind, fields, note):
    part = {"type": "image", "file": file_id(1), "size": 9, **fields}
    [message] = await sent(provider(kind), [user(part)])
    assert message["content"][0]["text"].startswith(note)


async def test_anthropic_takes_no_audio_and_no_huge_images(anthropic):
    audio = {"type": "audio", "file": file_id(1), "media_type": "audio/wav"}
    large = {"type": "image", "file": file_id(1), "media_type": "image/png", "size": 3_932_161}
    wide = {"type": "image", "file": file_id(1), "media_type": "image/png", "width": 8001}
    [message] = await anthropic([user(audio, large, wide)])
    assert [block["text"] for block in message["content"]] == [
        "[audio: this model does not take audio/wav]",
        "[image, 3.93 MB: this model takes at most 3.93 MB]",
        "[image: this model takes at most 8000 pixels a side]",
    ]


@pytest.mark.parametrize("kind", [OpenAIChat, AnthropicMessages])
async def test_kinds_that_are_not_configured_are_described(kind, files):
    parts = [
        files.add(PNG, "image/png"), files.add(PDF, "application/pdf"), REMOTE,
        files.add(b"abc", "text/plain", "a.txt"),
    ]  # fmt: skip
    [message] = await sent(provider(kind, attachments=()), [user(*parts)], files)
    assert [block["text"] for block in message["content"]] == [
        f"[image, {len(PNG)} bytes: this model does not take images]",
        f"[file, {len(PDF)} bytes: this model does not take files]",
        "[image https://example.org/a.png: this model does not take images on the web]",
        "[file a.txt, 3 bytes]\nabc",
    ]


@pytest.mark.parametrize(
    ("kind", "url", "taken"),
    [
        (OpenAIChat, "https://api.openai.com/v1", [True, True, True]),
        (OpenAIChat, "https://api.openai.com.example.org/v1", [True, False, False]),
        (OpenAIChat, "http://127.0.0.1:11434/v1", [True, False, False]),
        (OpenAIChat, "http://[", [True, False, False]),
        (AnthropicMessages, "https://api.anthropic.com", [True, True, True]),
    ],
)
async def test_what_a_model_takes_by_default(kind, url, taken, files):
    parts = [files.add(PNG, "image/png"), files.add(PDF, "application/pdf"), REMOTE]
    [message] = await sent(provider(kind, base_url=url, attachments=None), [user(*parts)], files)
    assert [block["type"] != "text" for block in message["content"]] == taken


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "data:image/png;base64,AA", "http://a b", ""]
)
async def test_only_web_addresses_are_passed_on(openai, anthropic, url):
    part = {"type": "image", "url": url}
    for shown in (await openai([user(part)]), await anthropic([user(part)])):
        assert shown[0]["content"][0]["text"].endswith(": it is not a web address]")


@pytest.mark.parametrize("kind", [OpenAIChat, AnthropicMessages])
@pytest.mark.parametrize("media_type", ["image/png", "text/plain"])
async def test_a_file_that_was_deleted_is_described(kind, media_type):
    part = {"type": "image", "file": file_id(3), "media_type": media_type, "name": "cat", "size": 5}
    [message] = await sent(provider(kind), [user(part)])
    assert message["content"][0]["text"] == "[image cat, 5 bytes: it cannot be shown]"


@pytest.mark.parametrize("media_type", ["image/png", "text/plain"])
async def test_a_file_whose_content_is_lost_is_described(openai, files, media_type):
    part = files.add(PNG, media_type)
    files.readers[part["file"]].content = None
    assert (await openai([user(part)]))[0]["content"][0]["text"].endswith(": it cannot be shown]")


@pytest.mark.parametrize("id_", ["", 'x"\0,'])
async def test_a_malformed_id_is_one_of_a_deleted_file(openai, id_):
    part = {"type": "image", "file": id_, "media_type": "image/png"}
    assert (await openai([user(part)]))[0]["content"][0]["text"] == "[image: it cannot be shown]"


async def test_an_assistant_message_says_what_was_sent(openai, anthropic, files):
    message = Message("assistant", "here", parts=(files.add(PNG, "image/png", "a.png"),))
    note = f"[image a.png, {len(PNG)} bytes: sent to the user]"
    [shown] = await openai([message])
    assert shown == {"role": "assistant", "content": f"here\n\n{note}"}
    [shown] = await anthropic([message])
    assert [block["text"] for block in shown["content"]] == ["here", note]


# Tools

CALLS = Message("assistant", tool_calls=(ToolCall("c1", "look"), ToolCall("c2", "look")))


def results(files):
    image = files.add(PNG, "image/png", "a.png")
    return [
        CALLS,
        Message("tool", "saw", tool_call_id="c1", parts=(image,)),
        Message("tool", None, tool_call_id="c2", parts=(files.add(b"?", "image/tiff"),)),
        Message("assistant", "done"),
    ]


async def test_openai_gets_files_of_tools_in_a_user_message(openai, files):
    shown = await openai(results(files))
    assert [each["role"] for each in shown] == ["assistant", "tool", "tool", "user", "assistant"]
    assert shown[1]["content"] == f"saw\n[image a.png, {len(PNG)} bytes: in the next message]"
    assert shown[2]["content"] == "[image, 1 byte: this model does not take image/tiff]"
    assert [part["type"] for part in shown[3]["content"]] == ["image_url"]


async def test_files_of_tools_keep_roles_alternating_if_they_must(files):
    made = provider(OpenAIChat, alternate_roles=True)
    shown = await sent(made, results(files), files)
    assert [each["role"] for each in shown[3:]] == ["assistant", "user", "assistant"]
    assert shown[3]["content"] == NO_ANSWER


async def test_a_model_without_images_gets_no_message_after_the_tools(files):
    made = provider(OpenAIChat, attachments=())
    shown = await sent(made, results(files)[:3], files)
    assert [each["role"] for each in shown] == ["assistant", "tool", "tool"]
    assert shown[1]["content"].endswith(": this model does not take images]")


async def test_anthropic_gets_files_of_tools_in_their_results(anthropic, files):
    shown = await anthropic(results(files))
    first, second = shown[1]["content"]
    assert [block["type"] for block in first["content"]] == ["text", "image"]
    assert [block["type"] for block in second["content"]] == ["text"]


# Streaming


async def test_a_file_is_read_in_pieces_that_encode_without_padding(files):
    content = PNG + bytes(2 * CHUNK + 1)
    part = files.add(content, "image/png")
    [message] = await sent(provider(OpenAIChat), [user(part)], files)
    url = message["content"][0]["image_url"]["url"]
    assert base64.b64decode(url.partition(",")[2], validate=True) == content
    assert max(files.readers[part["file"]].reads) == CHUNK
    assert CHUNK % 3 == 0


async def test_a_body_without_files_is_sent_as_it_is():
    made = provider(OpenAIChat)
    body = made.body(b"", made.encode([Message("user", "a \0 b")]), ())
    assert with_files(body, Files().open_file) is body


async def test_the_same_rows_have_the_same_bytes_alone_and_together(files):
    for made in (provider(OpenAIChat), provider(AnthropicMessages)):
        rows = [user(files.add(PNG, "image/png")), *results(files)]
        together = b",".join(made.encode(rows))
        apart = b",".join(made.encode(rows[:1]) + made.encode(rows[1:4]) + made.encode(rows[4:]))
        assert together == apart


async def test_a_file_that_is_deleted_while_it_is_sent_is_described_in_the_next_attempt(files):
    part = files.add(PNG + bytes(CHUNK), "image/png", "a")
    made = provider(OpenAIChat)
    body = with_files(made.body(b"", made.encode([user(part)]), ()), files.open_file)
    async with contextlib.aclosing(aiter(await open_body(body))) as stream:
        await anext(stream)
        files.readers.pop(part["file"]).content = None
        with pytest.raises(Unavailable, match="cannot be read"):
            await anext(stream)
    content = b"".join([chunk async for chunk in await open_body(body)])
    assert b"it cannot be shown" in content


@pytest.mark.parametrize("shorter", [0, 3])
async def test_a_file_that_shrinks_is_no_request(files, shorter):
    part = files.add(PNG, "image/png")
    files.readers[part["file"]].content = PNG[:shorter]
    with pytest.raises(Unavailable, match="shorter than it was"):
        await sent(provider(OpenAIChat), [user(part)], files)


async def test_a_store_that_fails_is_tried_again():
    async def fail(_):
        await trio.lowlevel.checkpoint()
        raise StoreFailed("the disk is gone")

    part = {"type": "image", "file": file_id(1), "media_type": "image/png"}
    [encoded_message] = provider(OpenAIChat).encode([user(part)])
    with pytest.raises(Unavailable, match="the disk is gone"):
        await open_body(FileBody(encoded_message, fail))


async def test_an_expected_cost_counts_images_and_no_base64(files):
    made = provider(OpenAIChat)
    plain = made.body(b"", made.encode([Message("user", "hi")]), ())
    part = files.add(PNG, "image/png", width=1000, height=1000)
    body = with_files(made.body(b"", made.encode([user(part, text="hi")]), ()), files.open_file)
    spending = Spending()
    few, many = (spending.expected("m", each, None).input_tokens for each in (plain, body))
    assert 700 < many - few < 2_000
    assert "IHDR" not in repr(body)


@pytest.mark.parametrize("media", ["data:image/png;base64,", '\\"data\\":\\"'])
def test_an_error_does_not_repeat_the_content_of_a_file(media):
    content = encoded(bytes(range(256)))
    text = f'{{"error":{{"message":"input: {media}{content} is wrong"}}}}'
    error = response_error(Endpoint(base_url="http://a", model="m"), 400, text, {})
    assert "is wrong" in str(error)
    assert content[:20] not in str(error)
