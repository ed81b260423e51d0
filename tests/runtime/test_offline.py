"""The agent without a model: the same words get the same answer, and every feature can be tried."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import trio
from hypothesis import given, strategies as st

from hermes import CompressionConfig, Config
from hermes.actors.compression.compressor import Compressed
from hermes.agents.arithmetic import MAX_BITS, calculate
from hermes.agents.offline import ABILITIES, CONNECT, MAX_COUNT, WHO, OfflineAgent
from hermes.events import Steered, TextDelta, ToolFinished, ToolStarted, TurnEnded
from hermes.messages import ToolCall
from hermes.testing import DeterministicCompressor, texts_of
from hermes.transcript.compaction import is_summary


def noon():
    return datetime(2026, 11, 16, 12, 0, 5, tzinfo=UTC)


@pytest.fixture
def offline():
    return OfflineAgent(now=noon)


@pytest.fixture
def workers():
    """Inline: most of these tests run on virtual time."""
    return "inline"


ANSWERS = {
    "what is 2 + 3*4": "2 + 3*4 = 14",
    "What is (2+3)^2 ?": "(2+3)^2 = 25",
    "please calculate 10 / 4.": "10 / 4 = 2.5",
    "0.1+0.2=": "0.1+0.2 = 0.3",
    "7 × 6": "7 × 6 = 42",
    "what is 1/0": "1/0 does not work: nothing can be divided by zero",
    "what is 9**9**9": "9**9**9 does not work: that is too large",
    "what is 2 +* 3": "2 +* 3 does not work: I cannot read that as a sum",
    "what time is it?": "It is Monday, 2026-11-16 12:00:05 UTC.",
    "Can you tell me the time?": "It is Monday, 2026-11-16 12:00:05 UTC.",
    "what's the date": "It is Monday, 2026-11-16 12:00:05 UTC.",
    "count the words in to be or not to be": "Words: 6",
    "how many words are in: one": "Words: 1",
    "count to 5": "1 2 3 4 5",
    "count to 0": f"I count from 1, and to {MAX_COUNT} at most.",
    "remember that the key is under the mat": (
        "That is kept with this conversation: the key is under the mat\n"
        "Ask me what you said about it, by one of its words."
    ),
    "what did I say about bees?": "I find nothing that you said about bees.",
    "help": f"{WHO}\n{ABILITIES}\n{CONNECT}",
    "Who are you?": f"{WHO}\n{ABILITIES}\n{CONNECT}",
    "tell me a story": (
        f"You said: tell me a story\n{WHO} Say help to see what I can do. {CONNECT}"
    ),
    "what is love": f"You said: what is love\n{WHO} Say help to see what I can do. {CONNECT}",
    "42": f"You said: 42\n{WHO} Say help to see what I can do. {CONNECT}",
    "x" * 200: f"You said: {'x' * 79}…\n{WHO} Say help to see what I can do. {CONNECT}",
}


@pytest.mark.parametrize(("asked", "answer"), ANSWERS.items(), ids=lambda text: text[:30])
async def test_a_plain_request_gets_its_answer(start, offline, asked, answer):
    async with start(agent=lambda _: offline) as runtime:
        for _ in range(2):
            await runtime.new_session("k")
            reply = await runtime.ask("k", asked)
            assert (reply.text, reply.status) == (answer, "complete")


async def test_a_message_without_words_is_answered_too(start, offline):
    async with start(agent=lambda _: offline) as runtime:
        reply = await runtime.ask("k", "", parts=[{"type": "image", "url": "x"}])
        assert reply.text.startswith("There were no words in your message.")


async def test_the_answer_comes_in_pieces_after_its_tool(start, offline):
    async with start(agent=lambda _: offline) as runtime:
        async with runtime.stream("k", "what is 6*7") as stream:
            _, *heard, ended = [event async for event in stream]
        call = ToolCall("offline-1-1", "calculate", '{"expression":"6*7"}')
        assert heard == [
            ToolStarted(call),
            ToolFinished(call.id, "42"),
            TextDelta("6*7"),
            TextDelta(" ="),
            TextDelta(" 42"),
        ]
        assert ended == TurnEnded(ended.reply)
        rows = await runtime.history("k")
        assert [(row.role, row.content, row.tool_calls) for row in rows] == [
            ("user", "what is 6*7", ()),
            ("assistant", None, (call,)),
            ("tool", "42", ()),
            ("assistant", "6*7 = 42", ()),
        ]


async def test_a_tool_that_refuses_says_so(start, offline):
    async with start(agent=lambda _: offline) as runtime:
        async with runtime.stream("k", "what is 1/0") as stream:
            heard = [event async for event in stream if isinstance(event, ToolFinished)]
    assert [(event.content, event.failed) for event in heard] == [
        ("nothing can be divided by zero", True)
    ]


# Recall


@pytest.mark.parametrize("searching", [False, True])
async def test_what_was_said_is_recalled_without_the_questions(start, offline, searching):
    async with start(agent=lambda _: offline) as runtime:
        offline.search = runtime.search if searching else None
        await runtime.ask("k", "Bees sleep\n at night")
        await runtime.ask("k", "herons do not")
        await runtime.ask("k", "remember that bees dance")
        for _ in range(2):
            reply = await runtime.ask("k", "what did I say about bees?")
            assert reply.text == (
                "You said about bees:\n- Bees sleep at night\n- remember that bees dance"
            )
        reply = await runtime.ask("k", 'do you remember bees "night" OR')
        assert reply.text == 'I find nothing that you said about bees "night" OR.'


async def test_a_recall_finds_earlier_conversations_of_the_same_person_and_nobody_elses(
    start, offline
):
    async with start(agent=lambda _: offline) as runtime:
        offline.search = runtime.search
        await runtime.ask("anna", "the bees are in the garden")
        await runtime.ask("anna", "/new")
        await runtime.ask("berta", "the bees are in the attic")
        reply = await runtime.ask("anna", "what did I say about bees")
        assert reply.text == "You said about bees:\n- the bees are in the garden"
        reply = await runtime.ask("carla", "what did I say about bees")
        assert reply.text == "I find nothing that you said about bees."
        found = {key: await runtime.search(key, "bees") for key in ("anna", "berta", "nobody")}
        sessions = {key: {hit.session_id for hit in hits} for key, hits in found.items()}
        assert not sessions["anna"] & sessions["berta"]
        assert (len(sessions["anna"]), len(sessions["berta"]), found["nobody"]) == (2, 1, [])


@pytest.mark.parametrize("searching", [False, True])
async def test_what_a_summary_says_is_not_recalled_as_the_users_words(start, offline, searching):
    config = Config(compression=CompressionConfig(protect_first=0))
    parts = {"compressor": DeterministicCompressor(), "config": config}
    async with start(agent=lambda _: offline, **parts) as runtime:
        offline.search = runtime.search if searching else None
        for text in ("bees dance " * 300, "herons " * 300, "one", "two", "three"):
            await runtime.ask("k", text)
        assert isinstance(await runtime.compress("k", keep_exchanges=1), Compressed)
        [summary] = [row for row in await runtime.history("k") if is_summary(row)]
        assert "bees dance" in summary.content
        reply = await runtime.ask("k", "what did I say about bees")
        hits = await runtime.search("k", "messages from bees")
    assert "CONTEXT SUMMARY" not in reply.text
    assert hits  # a search for anything finds it


async def test_only_the_latest_few_are_recalled(start, offline):
    async with start(agent=lambda _: offline) as runtime:
        offline.search = runtime.search
        for number in range(8):
            await runtime.ask("k", f"bee number {number}")
        reply = await runtime.ask("k", "recall bee")
    assert reply.text.splitlines()[1:] == [f"- bee number {number}" for number in range(3, 8)]


# While it answers


async def asked_beside(runtime, nursery, text):
    """Ask in a task of its own; returns when the answer has begun, with where it will be."""
    replies = []

    async def ask():
        replies.append(await runtime.ask("k", text))

    with runtime.events("k") as events:
        nursery.start_soon(ask)
        async for envelope in events:
            if isinstance(envelope.event, TextDelta):
                break
    return replies


async def test_a_slow_count_takes_its_time_and_can_be_stopped(start, offline, autojump_clock):
    async with start(agent=lambda _: offline) as runtime:
        begun = trio.current_time()
        assert (await runtime.ask("k", "count to 100 slowly")).text.endswith(" 99 100")
        assert trio.current_time() - begun == pytest.approx(99 * 0.2)
        async with trio.open_nursery() as nursery:
            replies = await asked_beside(runtime, nursery, "count to 100 slowly")
            await trio.sleep(0.5)
            assert (await runtime.ask("k", "/stop")).status == "command"
        assert [reply.status for reply in replies] == ["interrupted"]
        assert texts_of(await runtime.history("k"))[-1] == ("assistant", "1 2 3")


async def test_what_is_said_into_a_count_is_answered_in_it(start, offline, autojump_clock):
    async with start(agent=lambda _: offline) as runtime:
        async with trio.open_nursery() as nursery:
            replies = await asked_beside(runtime, nursery, "count to 4 slowly")
            await trio.sleep(0.3)
            await runtime.steer("k", "what is 2+2")
        assert [reply.text for reply in replies] == ["1 2 3\n\n2+2 = 4\n\n4"]
        assert texts_of(await runtime.history("k")) == [
            ("user", "count to 4 slowly"),
            ("assistant", "1 2 3"),
            ("user", "what is 2+2"),
            ("assistant", None),
            ("tool", "4"),
            ("assistant", "2+2 = 4\n\n4"),
        ]


async def test_a_count_ends_when_it_is_told_that_it_is_enough(start, offline, autojump_clock):
    async with start(agent=lambda _: offline) as runtime, trio.open_nursery() as nursery:
        replies = await asked_beside(runtime, nursery, "count to 100 slowly")
        await trio.sleep(0.3)
        await runtime.steer("k", "That's enough!")
    assert [reply.text for reply in replies] == ["1 2 3\n\nAs you say: I stop here."]


async def test_what_is_said_while_a_tool_runs_is_answered_after_it(start, offline):
    searching, go_on = trio.Event(), trio.Event()

    async def search(session_key, words, *, role=None, limit=20):
        searching.set()
        await go_on.wait()
        return []

    offline.search = search
    heard = []
    async with start(agent=lambda _: offline) as runtime, trio.open_nursery() as nursery:

        async def ask():
            async with runtime.stream("k", "recall bees") as stream:
                heard.extend([event async for event in stream])

        nursery.start_soon(ask)
        await searching.wait()
        await runtime.steer("k", "count to 2")
        go_on.set()
    assert [type(event) for event in heard[1:4]] == [ToolStarted, ToolFinished, Steered]
    assert heard[-1].reply.text == "I find nothing that you said about bees.\n\n1 2"


async def test_messages_that_waited_are_answered_one_after_the_other(
    start, offline, autojump_clock
):
    async with start(agent=lambda _: offline) as runtime, trio.open_nursery() as nursery:
        await asked_beside(runtime, nursery, "count to 2 slowly")
        replies = []

        async def ask(text):
            replies.append(await runtime.ask("k", text))

        for text in ("what is 1+1", "what is 2+2"):
            nursery.start_soon(ask, text)
            await trio.testing.wait_all_tasks_blocked()
    assert {reply.text for reply in replies} == {"1+1 = 2\n\n2+2 = 4"}


# Sums


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("-2**2", "-4"),
        ("2**-1", "0.5"),
        ("7 // 2 + 7 % 4", "6"),
        ("2**1000 - 2**1000 + 1", "1"),
        ("1e308", "1e+308"),
        ("10**30", "1" + "0" * 30),
    ],
)
def test_a_sum_is_worked_out(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "2 +",
        "True + 1",
        "'a' * 9",
        "__import__('os')",
        "(lambda: 1)()",
        "x",
        "1j",
        "(-8)**0.5",
        "1e999",
        "1e308 * 10",
        "10.0**999",
        f"2**{MAX_BITS + 1}",
        "2**4000 * 2**4000",
        "(" * 120 + "1" + ")" * 120,
        "-" * 199 + "1" * 2,
        "9" * 300,
    ],
)
def test_what_is_no_sum_or_too_large_is_refused(expression):
    with pytest.raises(ValueError, match=r"that|I can"):
        calculate(expression)


@given(st.text("0123456789+-*/%(). ^", max_size=40))
def test_whatever_looks_like_a_sum_ends_in_a_number_or_a_refusal(expression):
    try:
        float(calculate(expression))
    except ValueError as refusal:
        assert str(refusal).startswith(("that", "I can", "nothing"))  # noqa: PT017
