"""Attachments on their way to the loopback models, over real sockets."""

from __future__ import annotations

import base64
import gc
import itertools
import re
import tracemalloc
from contextlib import asynccontextmanager

import httpx2
import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hermes import Attachment
from hermes.agents import Toolbox, ToolOutput, tool
from hermes.agents.chat import ChatAgent
from hermes.agents.compressor import ModelCompressor
from hermes.agents.providers.anthropic_messages import AnthropicMessages
from hermes.agents.providers.base import Endpoint, Unavailable, with_files
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.agents.providers.retries import Retries
from hermes.agents.titler import ModelTitler
from hermes.config import CompressionConfig, Config
from hermes.errors import ContextOverflow
from hermes.messages import Message, ToolCall
from hermes.protocols import SummaryRequest, TitleRequest
from hermes.store import SessionStore
from hermes.testing import (
    CutOff,
    DeterministicCompressor,
    Disconnect,
    HangUp,
    LoopbackModel,
    ModelAnswer,
    Refuse,
    open_model,
)
from hermes.testing.loopback import Response, serve_http
from hermes.testing.seen_files import Base64Filter
from tests.support.model_files import PDF, Files, digest, png

ALL = ("image", "file", "audio", "url")
QUICK = Retries(max_attempts=3, first_delay=0.0)
BREAKPOINT = re.compile(rb',"cache_control":\{"type":"ephemeral"\}')
LARGE = png(padding=bytes(range(256)) * 5_000)
PNG = png()
BAD = png(padding=b"bad")


@pytest.fixture
def workers():
    """Threads: virtual time does not work with real sockets."""
    return "threads"


@pytest.fixture(params=[OpenAIChat, AnthropicMessages])
def kind(request):
    return request.param


@pytest.fixture
async def client():
    async with httpx2.AsyncClient() as opened:
        yield opened


@pytest.fixture
def provider(kind, client):
    def make(model, **options):
        url = model.openai_url if kind is OpenAIChat else model.anthropic_url
        kinds = ALL if kind is OpenAIChat else ALL[:2]
        options = {"base_url": url, "model": "m", "attachments": kinds, **options}
        return kind(client, Endpoint(**options), "Be nice.")

    return make


@pytest.fixture
def chat(start, provider):
    """Open a runtime whose agents use a model: `async with chat(model) as runtime`."""

    def opened(model, **options):
        made = provider(model)
        return start(build_agent=lambda _: ChatAgent(made, retries=QUICK), **options)

    return opened


async def complete(made, messages, files):
    """Send messages with files to a model, and return the text of the answer."""
    body = made.body(b"", made.encode(messages), ())
    completion = await made.complete(with_files(body, files.open_file), lambda _: None)
    return completion.message.content


def prompts(model):
    """The messages of each request as bytes, without breakpoints and the closing brackets."""
    for request in model.requests:
        body = BREAKPOINT.sub(b"", request.body)
        yield body[body.index(b'"messages":[') :].removesuffix(b"]}")


# A conversation


async def test_a_model_sees_the_files_of_a_conversation_in_every_turn(chat):
    async with open_model() as model, chat(model) as runtime:
        image = Attachment(data=LARGE, name="a.png")
        reply = await runtime.ask("k", "what is it?", attachments=[image])
        assert reply.text == f"echo: what is it? [image/png {len(LARGE)}]"
        reply = await runtime.ask("k", "and this?", attachments=[Attachment(data=PDF)])
    files = [[(file.media_type, file.sha256) for file in each.files] for each in model.requests]
    seen = [("image/png", digest(LARGE)), ("application/pdf", digest(PDF))]
    assert files == [seen[:1], seen]
    assert max(len(request.body) for request in model.requests) < 10_000


@pytest.mark.parametrize("content", [LARGE, b"some text"])
async def test_a_file_that_was_cut_on_disk_does_not_end_its_conversation(chat, path, content):
    async with open_model() as model, chat(model) as runtime:
        await runtime.ask("k", "look", attachments=[Attachment(data=content, name="a")])
        [blob] = path.with_name(f"{path.name}.blobs").glob("??/*")
        blob.write_bytes(content[:-1])
        assert (await runtime.ask("k", "well")).status == "complete"
    assert not model.requests[-1].files


async def test_prompts_only_grow_with_attachments_in_the_history(chat, world, path):
    """Also after a restart, and after another conversation's file was deleted."""
    async with open_model() as model:
        async with chat(model) as runtime:
            await runtime.ask("other", "hi", attachments=[Attachment(data=PNG + b"!")])
            model.requests.clear()
            for number in range(3):
                files = [Attachment(data=LARGE, name=f"{number}.png"), Attachment(data=b"a b c")]
                await runtime.ask("k", f"look {number}", attachments=files)
                await runtime.ask("k", "well")
        async with chat(model) as runtime:
            await runtime.ask("k", "once more", attachments=[Attachment(data=PDF, name="b.pdf")])
            [session] = [each async for each in _sessions(runtime, "other")]
            await runtime.admin.delete(session)
        world.pass_time(7_200)
        with SessionStore(path, clock=world.clock) as store:
            assert store.sweep_files() == 1
        async with chat(model) as runtime:
            await runtime.ask("k", "", attachments=[Attachment(data=PNG)])
            await runtime.ask("k", "end")
    sent = list(prompts(model))
    assert len(sent) == 9
    for earlier, later in itertools.pairwise(sent):
        assert later.startswith(earlier)


async def _sessions(runtime, key):
    yield (await runtime.conversation(key).status()).session_id


@tool
def look() -> ToolOutput:
    """Look out of the window."""
    return ToolOutput("a picture", [Attachment(data=PNG, name="sea.png")])


async def test_files_of_tools_are_seen_by_the_model_in_every_turn(start, provider):
    call = ModelAnswer("let me see", calls=(ToolCall("c1", "look", "{}"),))
    async with open_model([call, "the sea", call, "the sea", "good night"]) as model:
        made = provider(model)
        agent = {"build_agent": lambda _: ChatAgent(made, Toolbox([look]), retries=QUICK)}
        async with start(**agent) as runtime:
            for text in ("look", "look again"):
                reply = await runtime.ask("k", text)
                assert [file.name for file in reply.files] == ["sea.png"]
        async with start(**agent) as runtime:
            await runtime.ask("k", "good night")
        assert [len(request.files) for request in model.requests] == [0, 1, 1, 2, 2]
    for earlier, later in itertools.pairwise(prompts(model)):
        assert later.startswith(earlier)


@pytest.mark.parametrize(
    "fault", [HangUp(), Disconnect(1), CutOff(1), Refuse("server_error")], ids=repr
)
async def test_another_attempt_sends_the_files_again(chat, fault):
    async with open_model(["seen"], [fault, fault]) as model, chat(model) as runtime:
        reply = await runtime.ask("k", "look", attachments=[Attachment(data=LARGE)])
    assert reply.text.endswith("seen")
    assert len(model.requests) == 3
    assert model.requests[2].files[0].sha256 == digest(LARGE)
    assert len({request.headers["content-length"] for request in model.requests}) == 1


async def test_memory_stays_flat_with_a_large_file(chat, kind, tmp_path):
    size = 50_000_000 if kind is OpenAIChat else 23_000_000
    large = tmp_path / "large.pdf"
    with large.open("wb") as file:
        file.write(PDF)
        file.truncate(size)
    async with open_model() as model, chat(model) as runtime:
        await runtime.ask("k", "warm up")
        tracemalloc.start()
        try:
            reply = await runtime.ask("k", "read", attachments=[Attachment(path=large)])
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert reply.text == f"echo: read [application/pdf {size}]"
    assert peak < 10_000_000


@asynccontextmanager
async def deaf_server(received, *, answer=b""):
    """Yield the URL of a server that reads the start of a request, answers and hangs up."""

    async def serve(stream):
        async with stream:
            await stream.receive_some(1000)
            received.set()
            if not answer:
                await trio.sleep_forever()
            await stream.send_all(answer)

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


def upload(files):
    return [Message("user", "a", parts=(files.add(PDF + bytes(20_000_000), "application/pdf"),))]


async def test_a_server_that_answers_before_the_end_of_the_request(kind, client):
    """Nothing is left open: Trio would warn, and warnings are errors."""
    refusal = b"HTTP/1.1 500 no\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    files = Files()
    async with deaf_server(trio.Event(), answer=refusal) as url:
        made = kind(client, Endpoint(base_url=url, model="m", attachments=ALL))
        with pytest.raises(Unavailable):
            await complete(made, upload(files), files)
    gc.collect()
    await trio.lowlevel.checkpoint()


async def test_a_request_that_is_cancelled_while_a_file_is_sent(kind, client):
    files, received = Files(), trio.Event()
    async with deaf_server(received) as url, trio.open_nursery() as nursery:
        made = kind(client, Endpoint(base_url=url, model="m", attachments=ALL))
        nursery.start_soon(complete, made, upload(files), files)
        await received.wait()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    gc.collect()
    await trio.lowlevel.checkpoint()


# Everything that the providers reject


async def test_all_files_are_accepted_where_they_are_sent(provider, kind):
    files = Files()
    image = files.add(LARGE, "image/png", "a.png")
    parts = (image, files.add(PDF, "application/pdf", "b.pdf"), files.add(b"c", "text/plain", "c"))
    call = Message("assistant", "look", parts=(image,), tool_calls=(ToolCall("c1", "look"),))
    result = Message("tool", "saw", tool_call_id="c1", parts=parts)
    rows = [Message("user", "hi", parts=parts), call, result]
    async with open_model(["good"]) as model:
        assert await complete(provider(model), rows, files) == "good"
        [request] = model.requests
    types = ["image/png", "application/pdf"] + ["text/plain"] * (kind is AnthropicMessages)
    assert [file.media_type for file in request.files] == types * 2
    assert request.files[1].name == "b.pdf"


DATA = base64.b64encode(PNG).decode()


def image(data=DATA, media_type="image/png"):
    return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{data}"}}


def pdf(data, **fields):
    file = {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{data}", **fields}
    return {"type": "file", "file": file}


def block(data=DATA, media_type="image/png", kind="image"):
    source = {"type": "base64", "media_type": media_type, "data": data}
    return {"type": kind, "source": source}


LONG = base64.b64encode(LARGE).decode()
REJECTED = [
    ("openai", "user", image(DATA[:-1] + "*"), "base64"),
    ("openai", "user", image(LONG[:9000] + "*" + LONG[9001:]), "base64"),
    ("openai", "user", image(LONG[:-1]), "base64"),
    ("openai", "user", image(LONG[:8192] + "====" + LONG[8192:]), "base64"),
    ("openai", "user", image(media_type="image/tiff"), "unsupported image"),
    ("openai", "user", image(media_type="image/jpeg"), "another type"),
    ("openai", "user", image(""), "empty"),
    ("openai", "user", {"type": "image_url", "image_url": {"url": "file:///a"}}, "data URL"),
    ("openai", "user", pdf(DATA), "another type"),
    ("openai", "user", pdf(DATA, filename=""), "filename"),
    ("openai", "user", pdf(DATA, file_data=f"data:text/plain;base64,{DATA}"), "application/pdf"),
    ("openai", "user", {"type": "input_audio", "input_audio": {"data": DATA, "format": "ogg"}},
     "format"),
    ("openai", "user", {"type": "image", "file": "file_1"}, "Invalid value"),
    ("openai", "assistant", image(), "Invalid value"),
    ("openai", "tool", image(), "Invalid value"),
    ("openai", "system", image(), "Invalid value"),
    ("anthropic", "user", block(DATA[:-1] + "*"), "base64"),
    ("anthropic", "user", block(LONG[:-1]), "base64"),
    ("anthropic", "user", block(media_type="image/tiff"), "media_type"),
    ("anthropic", "user", block(media_type="image/gif"), "another type"),
    ("anthropic", "user", block(kind="document"), "PDF or plain text"),
    ("anthropic", "user", {"type": "image", "url": "https://a/b"}, "media_type"),
    ("anthropic", "user", image(), "does not match"),
    ("anthropic", "assistant", block(), "does not match"),
    ("anthropic", "tool", block(), "does not match"),
    ("anthropic", "user", block("A" * (5 * 2**20 + 4)), "another type"),
    ("anthropic", "user", block(base64.b64encode(png(padding=bytes(4_000_000))).decode()),
     "exceeds 5 MB"),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "role", "part", "reason"), REJECTED)
async def test_the_loopback_models_reject_what_real_ones_do(client, dialect, role, part, reason):
    messages = [{"role": role, "content": [{"type": "text", "text": "a"}, part]}]
    request = {"model": "m", "max_tokens": 5, "messages": messages}
    async with open_model() as model:
        path = "chat/completions" if dialect == "openai" else "messages"
        content = msgspec.json.encode(request)
        response = await client.post(f"{model.openai_url}/{path}", content=content)
    assert response.status_code == 400
    assert reason in response.json()["error"]["message"]


async def test_the_oldest_files_are_described_if_a_request_would_be_too_large(client):
    files = Files()
    parts = [files.add(PDF + bytes(7_000_000), "application/pdf", f"{n}.pdf") for n in range(6)]
    shown = []
    async with open_model() as model:
        made = AnthropicMessages(client, Endpoint(base_url=model.anthropic_url, model="m"))
        for number in range(1, 7):
            messages = [Message("user", "hi", parts=tuple(parts[:number]))]
            await complete(made, messages, files)
            shown.append(len(model.requests[-1].files))
        [message] = model.requests[-1].json["messages"]
    assert shown == [1, 2, 3, 1, 2, 3]  # in steps: the prefix does not change with each file
    notes = [part["text"] for part in message["content"] if part["type"] == "text"]
    assert notes == ["hi", *(f"[file {n}.pdf, 7 MB: it cannot be shown]" for n in range(3))]


async def test_a_request_that_is_too_large_is_an_overflow(client):
    """Then the conversation is compressed, and older files are replaced by references."""
    files = Files()
    part = files.add(PDF + bytes(22_900_000), "application/pdf")
    messages = [Message("user", "x" * 2_000_000, parts=(part,))]
    async with open_model() as model:
        made = AnthropicMessages(client, Endpoint(base_url=model.anthropic_url, model="m"))
        with pytest.raises(ContextOverflow):
            await complete(made, messages, files)


# Files that a model rejects


@asynccontextmanager
async def open_picky_model(is_rejected, reason=b"no such image"):
    """Serve a model that rejects requests with certain files."""
    async with open_model() as model:

        async def respond(request):
            response = await LoopbackModel.respond(model, request)
            if is_rejected(model.requests[-1]):
                body = b'{"error":{"type":"invalid_request_error","message":"%s"}}' % reason
                return Response(status=400, chunks=[body])
            return response

        async with serve_http(respond, new_filter=Base64Filter) as port:
            model.url = f"http://127.0.0.1:{port}"
            yield model


async def test_a_file_that_the_model_rejects_does_not_end_the_conversation(chat, caplog):
    def has_bad(request):
        return any(file.sha256 == digest(BAD) for file in request.files)

    async with open_picky_model(has_bad) as model, chat(model) as runtime:
        await runtime.ask("k", "one", attachments=[Attachment(data=PNG, name="good.png")])
        reply = await runtime.ask("k", "two", attachments=[Attachment(data=BAD, name="bad.png")])
        assert (reply.status, len(model.requests)) == ("complete", 3)
        note = f"[image bad.png, {len(BAD)} bytes: it cannot be shown]"
        assert reply.text == f"echo: two\n{note} [image/png {len(PNG)}]"  # the first is still seen
        await runtime.ask("k", "three")
        assert len(model.requests) == 4  # it is not sent again
        assert [file.sha256 for file in model.requests[-1].files] == [digest(PNG)]
    assert "rejected a request with new files (1); they are not shown to it" in caplog.text
    assert "no such image" not in caplog.text  # a provider may quote the conversation


async def test_an_address_that_the_provider_cannot_fetch_does_not_end_the_conversation(
    start, provider
):
    url = "https://example.org/gone.png"
    async with open_picky_model(lambda request: request.files) as model:
        made = provider(model, attachments=ALL)
        async with start(build_agent=lambda _: ChatAgent(made, retries=QUICK)) as runtime:
            reply = await runtime.ask("k", "look", attachments=[Attachment(url=url)])
    assert (reply.status, len(model.requests)) == ("complete", 2)
    assert reply.text == f"echo: look\n[image {url}: it cannot be shown]"


async def test_a_file_that_is_too_long_for_the_model_does_not_end_the_conversation(chat):
    """The first turn fails: usually a compression helps. Here there is nothing to summarize."""
    rejecting = open_picky_model(lambda request: request.files, b"prompt is too long")
    async with rejecting as model, chat(model, compressor=DeterministicCompressor()) as runtime:
        reply = await runtime.ask("k", "read it", attachments=[Attachment(data=PDF, name="a.pdf")])
        assert (reply.status, len(model.requests)) == ("failed", 1)
        for number in (3, 4):
            reply = await runtime.ask("k", "and now?")
            assert (reply.status, len(model.requests)) == ("complete", number)


async def test_after_a_restart_a_file_that_the_model_rejects_does_no_harm(chat):
    for text in ("one", "two"):
        async with open_picky_model(lambda request: request.files) as model, chat(model) as runtime:
            image = [Attachment(data=PNG)] if text == "one" else []
            assert (await runtime.ask("k", text, attachments=image)).status == "complete"


async def test_a_request_that_is_rejected_without_its_files_too_fails_with_the_reason(chat):
    async with open_picky_model(lambda request: True) as model, chat(model) as runtime:
        reply = await runtime.ask("k", "hi", attachments=[Attachment(data=PNG)])
        assert (reply.status, len(model.requests)) == ("failed", 2)
        assert "no such image" in reply.text


# Summaries and titles


async def test_summaries_and_titles_get_descriptions(provider):
    files = Files()
    part = files.add(LARGE, "image/png", "cat.png")
    rows = [
        Message("user", "look", parts=(part,)),
        Message("user", None, parts=(part,)),
        Message("tool", "saw", tool_name="eye", tool_call_id="c", parts=(part,)),
    ]
    async with open_model(["a title", "a summary"]) as model:
        made = provider(model)
        asked = TitleRequest(session_id="s", messages=rows, spent=None)
        await ModelTitler(provider=made).title(asked)
        asked = SummaryRequest(
            session_id="s", messages=rows, previous=None, focus=None, max_tokens=500
        )
        await ModelCompressor(provider=made).summarize(asked)
    title, summary = model.requests
    assert title.text.count("[image cat.png, 1.28 MB]") == 3
    assert summary.text.count(f"[image cat.png, 1.28 MB: {part['file']}]") == 3
    for request in (title, summary):
        assert not request.files
        assert '"type"' not in request.text


async def test_a_large_file_does_not_shorten_the_text_beside_it(provider):
    part = {"type": "file", "file": "file_1", "media_type": "application/pdf", "size": 10**9}
    rows = [Message("user", "word " * 1_000, parts=(part,))] * 3
    async with open_model(["a summary"] * 3) as model:
        asked = SummaryRequest(
            session_id="s", messages=rows, previous=None, focus=None, max_tokens=500
        )
        await ModelCompressor(provider=provider(model), window=12_000).summarize(asked)
    [request] = model.requests
    assert request.text.count("word ") == 3_000


async def test_after_a_compression_older_files_are_references(chat, path):
    limits = CompressionConfig(window=60_000, tail_share=0.05, protect_first=0)
    options = {"config": Config(compression=limits), "compressor": DeterministicCompressor()}
    async with open_model() as model, chat(model, **options) as runtime:
        conversation = runtime.conversation("k")
        for number in range(8):
            name = f"{number}.png"
            files = [Attachment(data=png(padding=name.encode()), name=name)]
            await runtime.ask("k", f"look {number} " + "word " * 200, attachments=files)
        assert (await conversation.compress()).changed
        rows = await conversation.history()
        await runtime.ask("k", "and now?")
        kept = [part["name"] for row in rows for part in row.parts or ()]
        references = re.findall(r"\[image (\d\.png), \d+ bytes: (file_\w{32})\]", rows[0].content)
        assert [name for name, _ in references] + kept == [f"{n}.png" for n in range(8)]
        assert len(model.requests[-1].files) == len(kept)
    with SessionStore(path) as store:
        for name, file_id in references:
            content = store.read_file(file_id, session_key="k")
            assert content == png(padding=name.encode())
