"""Voice becomes text before the turn."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
import trio
import trio.testing

from hermes import Attachment, Config, Inbound, TurnResult
from hermes.agents.providers.base import Unavailable
from hermes.embed import open_runtime_asyncio, start_runtime
from hermes.errors import StoreBusy
from hermes.events import TurnEnded
from hermes.testing import DeterministicCompressor, ScriptedAgent
from hermes.transcript.render import parts_of
from tests.support.files import png
from tests.support.processes import foreign
from tests.support.runtime import SECONDS, with_threads

WAV = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\0\0\0\0"
FAILED = "it could not be transcribed"


def voice(words="hello", name="voice.wav"):
    """A voice message; `Listener` finds these words in it."""
    return Attachment(data=WAV + words.encode(), name=name)


class Listener:
    """A transcriber that reads the words behind the header, and records what it has read."""

    def __init__(self):
        self.heard = []

    async def transcribe(self, audio):
        content = await audio.read()
        self.heard.append(content.removeprefix(WAV).decode())
        return f" {self.heard[-1]} "


class Agent:
    """An agent that records its turns, and answers with its input."""

    def __init__(self):
        self.inputs = []
        self.texts = []

    async def run(self, turn):
        self.inputs.append(list(turn.input))
        self.texts.append(turn.text)
        return TurnResult(text="understood")


@pytest.fixture
def listener():
    return Listener()


@pytest.fixture
def agent():
    return Agent()


async def test_an_audio_file_is_text_for_the_agent_the_transcript_and_the_search(
    start, agent, listener
):
    async with start(agent=agent, transcriber=listener) as runtime:
        await runtime.ask("k", attachments=[voice("about herons")])
        [row, _] = await runtime.conversation("k").history()
        hits = await runtime.conversation("k").search("herons")
    [[message]] = agent.inputs
    assert message.content == row.content == "about herons"
    [part] = row.parts
    assert (part["type"], part["name"], part["text"]) == ("audio", "voice.wav", "about herons")
    assert agent.texts[0].startswith("about herons")
    assert len(hits) == 1
    assert listener.heard == ["about herons"]


async def test_a_text_and_several_files_are_in_order_and_a_model_gets_each_once(
    start, agent, listener
):
    files = [voice("one"), Attachment(data=png(), name="a.png"), voice("two")]
    async with start(agent=agent, transcriber=listener) as runtime:
        await runtime.ask("k", "listen:", attachments=files)
    [[message]] = agent.inputs
    assert message.content == "listen:\n\none\n\ntwo"
    kinds = [(part["type"], part.get("text")) for part in parts_of(message)]
    assert kinds == [("text", "listen:"), ("audio", "one"), ("image", None), ("audio", "two")]


async def test_without_audio_or_transcriber_nothing_changes(start, agent, listener):
    async with start(agent=agent, transcriber=listener) as runtime:
        await runtime.ask("k", "hello")
        await runtime.ask("k", "look", attachments=[Attachment(data=png())])
    async with start(agent=agent) as runtime:
        await runtime.ask("k", "listen", attachments=[voice()])
    contents = [[message.content for message in each] for each in agent.inputs]
    assert contents == [["hello"], ["look"], ["listen"]]
    assert listener.heard == []


async def test_a_file_that_two_messages_have_is_transcribed_once(start, agent, listener):
    async with start(agent=agent, transcriber=listener) as runtime:
        conversation = runtime.conversation("k")
        stored = await conversation.put_file(voice("same"))
        parts = (stored.part, stored.part)
        await conversation.ask(parts=[stored.part, stored.part])
    [[message]] = agent.inputs
    assert message.content == "same\n\nsame"
    assert (len(parts), listener.heard) == (len(message.parts), ["same"])


# Failures


@pytest.mark.parametrize("failure", ["raises", "no text", "slow"])
async def test_a_failure_is_a_note_and_the_turn_runs(start, agent, caplog, failure, autojump_clock):
    async def transcribe(audio):
        if failure == "raises":
            raise ValueError("no ear")
        if failure == "slow":
            await trio.sleep_forever()

    config = Config(transcription_timeout=5)
    async with start(agent=agent, transcriber=transcribe, config=config) as runtime:
        reply = await runtime.ask("k", "listen", attachments=[voice()])
        [row, _] = await runtime.conversation("k").history()
    note = f"[audio voice.wav, 49 bytes: {FAILED}]"
    assert reply.text == "understood"
    assert row.content == f"listen\n\n{note}"
    assert agent.inputs[0][0].content == row.content
    assert "text" not in row.parts[1]
    reasons = {"raises": "no ear", "no text": "must return a string", "slow": "timed out after 5 s"}
    assert reasons[failure] in caplog.text


async def test_a_service_that_is_down_is_one_line_in_the_log(start, agent, caplog):
    async def transcribe(audio):
        raise Unavailable("the connection failed")

    async with start(agent=agent, transcriber=transcribe) as runtime:
        await runtime.ask("k", attachments=[voice()])
    [record] = caplog.records
    assert record.exc_info is None
    assert record.getMessage().endswith("failed: hermes.agents.providers.base.Unavailable")


async def test_silence_is_a_note(start, agent, caplog):
    async def transcribe(audio):
        return " \n"

    async with start(agent=agent, transcriber=transcribe) as runtime:
        await runtime.ask("k", attachments=[voice()])
    [[message]] = agent.inputs
    assert message.content == "[audio voice.wav, 49 bytes: no speech was recognized in it]"
    assert not caplog.records


async def test_one_failure_does_not_affect_the_others_and_a_retry_tries_again(start, agent):
    deaf = {"two"}

    async def transcribe(audio):
        words = (await audio.read()).removeprefix(WAV).decode()
        if words in deaf:
            raise ValueError(words)
        return words

    async with start(agent=agent, transcriber=transcribe) as runtime:
        await runtime.ask("k", "so:", attachments=[voice("one"), voice("two")])
        deaf.clear()
        await runtime.conversation("k").retry()
        rows = await runtime.conversation("k").history()
    note = f"[audio voice.wav, 47 bytes: {FAILED}]"
    first, second = [messages[0] for messages in agent.inputs]
    assert first.content == f"so:\n\none\n\n{note}"
    assert second.content == rows[0].content == "so:\n\none\n\ntwo"
    assert [part.get("text") for part in parts_of(second)] == ["so:", "one", "two"]


async def test_an_interrupt_stops_a_transcription(start, agent):
    began = trio.Event()

    async def transcribe(audio):
        began.set()
        await trio.sleep_forever()

    with trio.fail_after(SECONDS):
        async with start(agent=agent, transcriber=transcribe) as runtime:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: runtime.ask("k", attachments=[voice()]))
                await began.wait()
                assert await runtime.conversation("k").interrupt()
            rows = await runtime.conversation("k").history()
    assert agent.inputs == []
    assert [row.role for row in rows] == ["user"]


async def test_a_transcript_that_cannot_be_stored_is_still_used(
    start_proxy, agent, listener, caplog
):
    async def fail(real, *args, **kwargs):
        raise StoreBusy("another process holds the database")

    options = {"build_agent": lambda _: agent, "transcriber": listener, "store_transcripts": fail}
    async with start_proxy(**options) as runtime:
        await runtime.ask("k", attachments=[voice("words")])
    assert agent.texts[0].startswith("words")
    assert "a transcript was not stored" in caplog.text


# Crashes, steering, the rest of the runtime


@with_threads
async def test_a_turn_that_runs_again_after_a_crash_does_not_transcribe_again(start, path):
    began, again, listener = trio.Event(), Agent(), Listener()

    async def hang(turn):
        began.set()
        await trio.sleep_forever()

    with trio.fail_after(SECONDS):
        options = {"transcriber": listener, "config": Config(drain_timeout=0)}
        async with start(agent=hang, **options) as runtime:
            inbound = Inbound("k", "e", "listen:")
            await runtime.submit(inbound, attachments=[voice("words")])
            await began.wait()
        [[body]] = foreign(path, "SELECT body FROM inbox")
        assert json.loads(body)["parts"][0]["text"] == "words"
        async with start(agent=again, transcriber=listener) as runtime:
            with runtime.subscribe("k") as events:
                async for envelope in events:
                    if isinstance(envelope.event, TurnEnded):
                        break
            duplicate = await runtime.submit(inbound, attachments=[voice("words")])
            [row, _] = await runtime.conversation("k").history()
    assert listener.heard == ["words"]
    assert [message.content for message in again.inputs[0]] == ["listen:\n\nwords"]
    assert (row.content, duplicate.inbox_id) == ("listen:\n\nwords", 1)


async def test_a_voice_message_during_a_turn_waits_for_the_next_one(start, listener):
    began, go, steered = trio.Event(), trio.Event(), []

    async def first(turn):
        began.set()
        await go.wait()
        steered.extend(message.content for message in turn.steered())
        return TurnResult(text="first")

    agent = ScriptedAgent([first, "second"])
    with trio.fail_after(SECONDS):
        async with start(agent=agent, transcriber=listener) as runtime:
            conversation = runtime.conversation("k")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(conversation.ask, "start")
                await began.wait()
                await conversation.steer("by the way")
                await conversation.steer("listen:", attachments=[voice("later")])
                go.set()
            await conversation.ask("end")
    assert steered == ["by the way"]
    assert agent.turns[1].input[0].content == "listen:\n\nlater"


async def test_titles_and_summaries_see_the_transcript(start, agent, listener):
    seen, titled = [], trio.Event()

    class Titler:
        async def title(self, request):
            seen.extend(message.content for message in request.messages)
            titled.set()
            raise ValueError("no title")

    with trio.fail_after(SECONDS):
        options = {"titler": Titler(), "compressor": DeterministicCompressor()}
        async with start(agent=agent, transcriber=listener, **options) as runtime:
            await runtime.ask("k", attachments=[voice("of the sea")])
            await titled.wait()
    assert seen[0] == "of the sea"


# What a transcriber may be


@pytest.mark.parametrize("kind", ["function", "object"])
async def test_a_plain_transcriber_runs_in_a_thread(start, agent, kind):
    threads = []

    def transcribe(audio):
        threads.append(threading.current_thread())
        assert (audio.file.media_type, audio.read(0, 4)) == ("audio/wav", b"RIFF")
        return audio.read(len(WAV)).decode()

    class Plain:
        def transcribe(self, audio):
            return transcribe(audio)

    given = transcribe if kind == "function" else Plain()
    async with start(agent=agent, transcriber=given) as runtime:
        await runtime.ask("k", attachments=[voice("plain")])
    assert agent.texts[0].startswith("plain")
    assert threads[0] is not threading.current_thread()


@pytest.mark.parametrize("wrong", [3, Listener, "whisper"])
@pytest.mark.sqlite_only("no file is created")
async def test_another_transcriber_is_refused_before_anything_is_opened(start, wrong, path):
    with pytest.raises(TypeError, match="transcriber must be an object with transcribe"):
        async with start(transcriber=wrong):
            pass
    assert not path.exists()


@pytest.mark.parametrize("kind", ["coroutine", "object", "plain"])
def test_an_asyncio_host_transcribes_on_its_own_loop(path, kind):
    seen = []

    async def transcribe(audio):
        seen.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return (await audio.read(len(WAV))).decode()

    class Async:
        async def transcribe(self, audio):
            return await transcribe(audio)

    def plain(audio):
        return audio.read(len(WAV)).decode()

    given = {"coroutine": transcribe, "object": Async(), "plain": plain}[kind]

    async def reply(turn):
        return turn.text.splitlines()[0]

    async def main():
        async with open_runtime_asyncio(path, agent=reply, transcriber=given) as runtime:
            answer = await runtime.ask("k", attachments=[voice("spoken")])
        return answer.text, asyncio.get_running_loop()

    text, loop = asyncio.run(asyncio.wait_for(main(), SECONDS))
    assert text == "spoken"
    assert seen == ([] if kind == "plain" else [loop])


def test_a_blocking_host_may_have_a_plain_transcriber(path):
    async def reply(turn):
        return turn.text.splitlines()[0]

    def transcribe(audio):
        return audio.read(len(WAV)).decode()

    with start_runtime(path, agent=reply, transcriber=transcribe) as runtime:
        assert runtime.ask("k", attachments=[voice("spoken")]).text == "spoken"
