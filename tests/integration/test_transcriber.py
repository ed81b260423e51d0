"""`ModelTranscriber` and the bot with a transcriber, over real sockets."""

from __future__ import annotations

import os
import random
import sys
import tracemalloc

import httpx2
import pytest
import trio

from hermes import Attachment, Inbound, StoredFile, open_runtime
from hermes.agents import Endpoint, ModelTranscriber, Retries, Secret, chat_agents
from hermes.agents.providers.base import (
    AuthenticationFailed,
    OutOfQuota,
    RequestRejected,
    Unavailable,
)
from hermes.store import SessionStore
from hermes.testing import HangUp, Refuse, open_model, open_transcription

SECONDS = 60
KEY = "not-a-usual-key-9f8e7d6c5b4a"
WAV = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\0\0\0\0"
QUICK = Retries(max_attempts=3, first_delay=0.0)


class Audio:
    """A stored file, which records what is read of it."""

    def __init__(self, content=WAV, media_type="audio/wav", size=None):
        size = len(content) if size is None else size
        self.file = StoredFile(id="file_x", media_type=media_type, size=size, name='a"\r\n.exe')
        self.content = content
        self.reads = []

    async def read(self, offset=0, size=None):
        await trio.lowlevel.checkpoint()
        self.reads.append((offset, size))
        return self.content[offset : offset + size]


class Zeros(Audio):
    """A large file that is not in memory."""

    async def read(self, offset=0, size=None):
        await trio.lowlevel.checkpoint()
        return bytes(min(size, self.file.size - offset))


@pytest.fixture
async def make():
    """Make a transcriber for a service: `make(service)`."""
    async with httpx2.AsyncClient() as client:

        def made(service, **options):
            options = {"base_url": service.url, "model": "whisper-1", **options}
            endpoint = Endpoint(key=Secret(KEY), name="the transcriber", **options)
            return ModelTranscriber(client=client, endpoint=endpoint, retries=QUICK)

        with trio.fail_after(SECONDS):
            yield made


async def test_a_file_is_sent_byte_for_byte_with_the_model(make):
    content = WAV + random.Random(1).randbytes(900_000)
    audio = Audio(content)
    async with open_transcription(["good evening"]) as service:
        transcriber = make(service, parameters=(("language", "de"),))
        assert await transcriber.transcribe(audio) == "good evening"
    [request] = service.requests
    assert request.content == content
    assert request.fields == {"model": "whisper-1", "response_format": "json", "language": "de"}
    assert (request.file_name, request.media_type) == ("audio.wav", "audio/wav")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert "transfer-encoding" not in request.headers
    assert len(audio.reads) == 2, "it is read in pieces"


@pytest.mark.parametrize(
    ("media_type", "name"),
    [("audio/ogg", "audio.ogg"), ("audio/mpeg", "audio.mp3"), ("audio/mp4", "audio.m4a")],
)
async def test_the_name_of_the_file_says_its_format(make, media_type, name):
    async with open_transcription() as service:
        await make(service).transcribe(Audio(media_type=media_type))
    assert service.requests[0].file_name == name


@pytest.mark.parametrize(
    "fault", [Refuse("overloaded"), Refuse("rate_limit", retry_after=0), HangUp()]
)
async def test_a_temporary_failure_is_retried_with_the_whole_file(make, fault):
    async with open_transcription(lambda _: "at last", [fault, fault]) as service:
        assert await make(service).transcribe(Audio()) == "at last"
    assert [request.content for request in service.requests] == [WAV] * 3


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Refuse("bad_key"), AuthenticationFailed),
        (Refuse("no_quota"), OutOfQuota),
        (Refuse("server_error"), Unavailable),
    ],
)
async def test_a_failure_is_one_sentence_without_the_key(make, fault, error):
    async with open_transcription(faults=[fault] * 3) as service:
        with pytest.raises(error) as caught:
            await make(service).transcribe(Audio())
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(service.requests) == (3 if error is Unavailable else 1)


async def test_what_the_service_rejects_is_not_sent_again(make):
    async with open_transcription() as service:
        with pytest.raises(RequestRejected, match="Invalid file format"):
            await make(service).transcribe(Audio(media_type="audio/x-unknown"))
        with pytest.raises(RequestRejected, match="has no model"):
            await make(service, base_url=f"{service.url}/nowhere").transcribe(Audio())
    assert len(service.requests) == 1


async def test_nothing_that_answers_is_a_temporary_failure(make):
    async with open_transcription() as service:
        pass
    with pytest.raises(Unavailable, match="the connection to the transcriber failed"):
        await make(service).transcribe(Audio())


async def test_the_key_is_redacted_in_a_transcript(make):
    async with open_transcription([f"my key is {KEY}"]) as service:
        assert await make(service).transcribe(Audio()) == "my key is [redacted]"


async def test_a_file_that_became_shorter_is_reported(make):
    async with open_transcription() as service:
        with pytest.raises(Unavailable, match="shorter"):
            await make(service).transcribe(Audio(size=len(WAV) + 1))


async def test_a_large_file_is_never_in_memory_as_a_whole(make):
    """The service closes the connection before it has read much."""
    received = 0

    async def swallow(stream):
        nonlocal received
        async for chunk in stream:
            received += len(chunk)
            if received > 30_000_000:
                break
        await stream.aclose()

    class Service:
        url = ""

    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, swallow, [listener])
            Service.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/v1"
            tracemalloc.start()
            with pytest.raises(Unavailable):
                await make(Service).transcribe(Zeros(b"", size=50_000_000))
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            nursery.cancel_scope.cancel()
    assert received > 30_000_000
    assert peak < 5_000_000


# The bot


async def test_a_model_gets_each_transcript_once_and_no_audio(tmp_path):
    """Both messages are in the second request; the prefix stays the same."""
    words = lambda audio: f"words {audio.read(len(WAV)).decode()}"  # noqa: E731
    with trio.fail_after(SECONDS):
        async with open_model(lambda _: "yes") as model:
            endpoint = Endpoint(base_url=model.openai_url, model="m", attachments=("audio",))
            async with (
                chat_agents(endpoint) as agents,
                open_runtime(
                    tmp_path / "a.db", build_agent=agents.build, transcriber=words
                ) as runtime,
            ):
                for number in range(2):
                    voice = Attachment(data=WAV + b"%d" % number, name="v.wav")
                    text = "listen:" if number else ""
                    await runtime.ask("k", text, attachments=[voice])
    first, second = [request.json["messages"] for request in model.requests]
    assert second[: len(first)] == first
    spoken = [message["content"] for message in second if message["role"] == "user"]
    assert spoken == [
        [{"type": "text", "text": "[audio v.wav] words 0"}],
        [{"type": "text", "text": "listen:"}, {"type": "text", "text": "[audio v.wav] words 1"}],
    ]


async def test_the_bot_transcribes_what_waits_with_the_service_of_its_settings(tmp_path):
    """An audio message waits in the store when the bot starts."""
    path = tmp_path / "chat.db"
    with SessionStore(path) as store:
        voice = store.put_file(Attachment(data=WAV, name="voice.wav"), session_key="k")
        store.accept(Inbound("k", "e", "listen:", parts=(voice.part,)))
    async with open_transcription(["good evening"]) as service:
        (tmp_path / "hermes.toml").write_text(
            f"data = '{path}'\n[transcriber]\nbase_url = '{service.url}'\nmodel = 'whisper-1'\n"
            "key = 'env:VOICE_KEY'\n[transcriber.parameters]\nlanguage = 'en'\n"
        )
        command = [sys.executable, "-W", "error", "-m", "hermes.run"]
        with trio.fail_after(SECONDS):
            await trio.run_process(
                [*command, "--config", str(tmp_path / "hermes.toml")],
                stdin=b"hello\n", capture_stdout=True, env={**os.environ, "VOICE_KEY": KEY},
            )  # fmt: skip
    [request] = service.requests
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.fields["language"] == "en"
    with SessionStore(path) as store:
        [listed] = [each for each in store.list_sessions() if each.session.session_key == "k"]
        row, answer = store.load(listed.session.id).messages
    assert row.content == "listen:\n\ngood evening"
    assert "good evening" in answer.content, "the offline agent repeats it"
