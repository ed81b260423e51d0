"""The offline agent: the same message gets the same answer, and every feature can be tried."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import trio

from hermes import Attachment, CompressionConfig, Config
from hermes.agents.offline import FALLBACK, HELP, INTRODUCTION, MAX_COUNT, OfflineAgent
from hermes.events import Steered, TextDelta, ToolFinished, ToolStarted, TurnEnded
from hermes.messages import ToolCall
from hermes.testing import DeterministicCompressor, texts_of
from hermes.transcript.compaction import is_summary


def noon():
    return datetime(2026, 11, 16, 12, 0, 5, tzinfo=UTC)


@pytest.fixture
def offline():
    return OfflineAgent(now=noon)


ANSWERS = {
    "what time is it?": "It is Monday, 2026-11-16 12:00:05 UTC.",
    "Can you tell me the time?": "It is Monday, 2026-11-16 12:00:05 UTC.",
    "what's the date": "It is Monday, 2026-11-16 12:00:05 UTC.",
    "count the words in to be or not to be": "Words: 6",
    "how many words are in: one": "Words: 1",
    "count to 5": "1 2 3 4 5",
    "count to 0": f"I can count from 1 to {MAX_COUNT}.",
    "remember that the key is under the mat": (
        "I will remember: the key is under the mat\nAsk me later what you said about it."
    ),
    "what did I say about bees?": "You have not told me anything about bees.",
    "help": f"{INTRODUCTION}\n{HELP}",
    "Who are you?": f"{INTRODUCTION}\n{HELP}",
    "tell me a story": f"You said: tell me a story\n{FALLBACK}",
    "what is love": f"You said: what is love\n{FALLBACK}",
    "x" * 200: f"You said: {'x' * 79}…\n{FALLBACK}",
}


@pytest.mark.parametrize(("asked", "answer"), ANSWERS.items(), ids=lambda text: text[:30])
async def test_a_plain_request_gets_its_answer(start, offline, asked, answer):
    async with start(agent=offline) as runtime:
        for _ in range(2):
            await runtime.conversation("k").new()
            reply = await runtime.ask("k", asked)
            assert (reply.text, reply.status) == (answer, "complete")


async def test_a_message_without_text_is_answered_too(start, offline):
    async with start(agent=offline) as runtime:
        reply = await runtime.ask("k", "", parts=[{"type": "text", "text": " "}])
        assert reply.text.startswith("Your message contains no text.")


async def test_the_answer_is_streamed_after_its_tool_call(start, offline):
    async with start(agent=offline) as runtime:
        async with runtime.stream("k", "count the words in one two") as stream:
            _, *heard, ended = [event async for event in stream]
        call = ToolCall("offline-1-1", "count_words", '{"text":"one two"}')
        assert heard == [
            ToolStarted(call),
            ToolFinished(call.id, "2"),
            TextDelta("Words:"),
            TextDelta(" 2"),
        ]
        assert ended == TurnEnded(ended.reply)
        rows = await runtime.conversation("k").history()
        assert [(row.role, row.content, row.tool_calls) for row in rows] == [
            ("user", "count the words in one two", ()),
            ("assistant", None, (call,)),
            ("tool", "2", ()),
            ("assistant", "Words: 2", ()),
        ]


# Recall


async def test_messages_are_recalled_without_earlier_questions(start, offline):
    async with start(agent=offline) as runtime:
        await runtime.ask("k", "Bees sleep\n at night")
        await runtime.ask("k", "herons do not")
        await runtime.ask("k", "remember that bees dance")
        for _ in range(2):
            reply = await runtime.ask("k", "what did I say about bees?")
            assert reply.text == (
                "You said about bees:\n- Bees sleep at night\n- remember that bees dance"
            )
        reply = await runtime.ask("k", 'do you remember bees "night" OR')
        assert reply.text == 'You have not told me anything about bees "night" OR.'


async def test_recall_searches_earlier_sessions_of_the_same_user_only(start, offline):
    async with start(agent=offline) as runtime:
        await runtime.ask("anna", "the bees are in the garden")
        await runtime.ask("anna", "/new")
        await runtime.ask("berta", "the bees are in the attic")
        reply = await runtime.ask("anna", "what did I say about bees")
        assert reply.text == "You said about bees:\n- the bees are in the garden"
        reply = await runtime.ask("carla", "what did I say about bees")
        assert reply.text == "You have not told me anything about bees."
        found = {
            key: await runtime.conversation(key).search("bees")
            for key in ("anna", "berta", "nobody")
        }
        sessions = {key: {hit.session_id for hit in hits} for key, hits in found.items()}
        assert not sessions["anna"] & sessions["berta"]
        assert (len(sessions["anna"]), len(sessions["berta"]), found["nobody"]) == (2, 1, [])


async def test_a_summary_is_not_recalled_as_a_message_of_the_user(start, offline):
    config = Config(compression=CompressionConfig(protect_first=0))
    parts = {"compressor": DeterministicCompressor(), "config": config}
    async with start(agent=offline, **parts) as runtime:
        for text in ("bees dance " * 300, "herons " * 300, "one", "two", "three"):
            await runtime.ask("k", text)
        assert (await runtime.conversation("k").compress(keep_exchanges=1)).changed
        [summary] = [row for row in await runtime.conversation("k").history() if is_summary(row)]
        assert "bees dance" in summary.content
        reply = await runtime.ask("k", "what did I say about bees")
        hits = await runtime.conversation("k").search("messages from bees")
    assert "CONTEXT SUMMARY" not in reply.text
    assert hits  # a search for anything finds it


async def test_only_the_latest_few_are_recalled(start, offline):
    async with start(agent=offline) as runtime:
        for number in range(8):
            await runtime.ask("k", f"bee number {number}")
        reply = await runtime.ask("k", "recall bee")
    assert reply.text.splitlines()[1:] == [f"- bee number {number}" for number in range(3, 8)]


# Messages during an answer


async def asked_beside(runtime, nursery, text):
    """Ask in the background; returns when the answer begins, with the list for its reply."""
    replies = []

    async def ask():
        replies.append(await runtime.ask("k", text))

    with runtime.subscribe("k") as events:
        nursery.start_soon(ask)
        async for envelope in events:
            if isinstance(envelope.event, TextDelta):
                break
    return replies


async def test_a_slow_count_takes_its_time_and_can_be_stopped(start, offline, autojump_clock):
    async with start(agent=offline) as runtime:
        begun = trio.current_time()
        assert (await runtime.ask("k", "count to 100 slowly")).text.endswith(" 99 100")
        assert trio.current_time() - begun == pytest.approx(99 * 0.2)
        async with trio.open_nursery() as nursery:
            replies = await asked_beside(runtime, nursery, "count to 100 slowly")
            await trio.sleep(0.5)
            assert (await runtime.ask("k", "/stop")).status == "command"
        assert [reply.status for reply in replies] == ["interrupted"]
        assert texts_of(await runtime.conversation("k").history())[-1] == ("assistant", "1 2 3")


async def test_a_steered_message_is_answered_during_a_count(start, offline, autojump_clock):
    async with start(agent=offline) as runtime:
        async with trio.open_nursery() as nursery:
            replies = await asked_beside(runtime, nursery, "count to 4 slowly")
            await trio.sleep(0.3)
            await runtime.conversation("k").steer("count the words in to be")
        assert [reply.text for reply in replies] == ["1 2 3\n\nWords: 2\n\n4"]
        assert texts_of(await runtime.conversation("k").history()) == [
            ("user", "count to 4 slowly"),
            ("assistant", "1 2 3"),
            ("user", "count the words in to be"),
            ("assistant", None),
            ("tool", "2"),
            ("assistant", "Words: 2\n\n4"),
        ]


async def test_a_count_can_be_stopped_by_a_steered_message(start, offline, autojump_clock):
    async with start(agent=offline) as runtime, trio.open_nursery() as nursery:
        replies = await asked_beside(runtime, nursery, "count to 100 slowly")
        await trio.sleep(0.3)
        await runtime.conversation("k").steer("That's enough!")
    assert [reply.text for reply in replies] == ["1 2 3\n\nOK, I stop here."]


async def test_a_message_that_arrives_during_a_tool_call_is_answered_after_it(start_proxy, offline):
    searching, go_on = trio.Event(), trio.Event()

    async def search_messages(real, *args, **kwargs):
        searching.set()
        await go_on.wait()
        return await real(*args, **kwargs)

    events = []
    async with (
        start_proxy(build_agent=lambda _: offline, search_messages=search_messages) as runtime,
        trio.open_nursery() as nursery,
    ):

        async def ask():
            async with runtime.stream("k", "recall bees") as stream:
                events.extend([event async for event in stream])

        nursery.start_soon(ask)
        await searching.wait()
        await runtime.conversation("k").steer("count to 2")
        go_on.set()
    assert [type(event) for event in events[1:4]] == [ToolStarted, ToolFinished, Steered]
    assert events[-1].reply.text == "You have not told me anything about bees.\n\n1 2"


async def test_messages_that_waited_are_answered_one_after_the_other(
    start, offline, autojump_clock
):
    async with start(agent=offline) as runtime, trio.open_nursery() as nursery:
        await asked_beside(runtime, nursery, "count to 2 slowly")
        replies = []

        async def ask(text):
            replies.append(await runtime.ask("k", text))

        for text in ("count to 3", "count to 4"):
            nursery.start_soon(ask, text)
            await trio.testing.wait_all_tasks_blocked()
    assert {reply.text for reply in replies} == {"1 2 3\n\n1 2 3 4"}


async def test_the_answer_names_the_files_of_a_message(start, offline):
    async with start(agent=offline) as runtime:
        file = Attachment(data=b"hello", name="note.txt")
        reply = await runtime.ask("k", "look", attachments=[file])
        assert reply.text.startswith("You said: look [file note.txt, 5 bytes]\n")
        reply = await runtime.ask("k", attachments=[file])
        assert reply.text.startswith("You said: [file note.txt, 5 bytes]\n")
