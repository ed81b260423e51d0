"""Compressors that fail or do not help: notices for users, cool-downs, and the breaker."""

from __future__ import annotations

import re

import pytest
import trio

from hermes.errors import CompressorFailed, ContextOverflow
from hermes.events import (
    Notice,
)
from hermes.messages import (
    Source,
    TurnResult,
    Usage,
)
from hermes.protocols import Summary
from hermes.testing import CountingBuilder, MemoryAdapter
from hermes.user_code import leaf
from tests.support.compression import (
    OVER,
    RecordingAgent,
    ScriptedCompressor,
    at_length,
    contents,
    failing,
    lineage,
    never,
    next_event,
    numbers,
    problems,
    question,
    sent_to_users,
    talk,
)

REFERENCE = re.compile(r"reference ([0-9a-f]{6})")


async def test_a_summary_that_fails_changes_nothing_and_notifies_the_user(small, path):
    compressor = ScriptedCompressor(failing(CompressorFailed("the model is out")))
    agent = RecordingAgent()
    async with small(compressor=compressor, build_agent=lambda _: agent) as runtime:
        parent = (await talk(runtime))[-1].session_id
        reply = await runtime.ask("k", question(10))
        assert (reply.text, reply.session_id) == (f"echo: {question(10)}", parent)
        assert len(agent.shown[-1]) == 20
    (kind, notice), answer = sent_to_users(path)[-2:]
    assert kind == "notice"
    assert "the model is out" in notice
    assert "/compress" in notice
    assert answer == ("reply", reply.text)
    assert lineage(path) == [parent]
    assert numbers(contents(path, parent)) == list(range(11))
    assert problems(path) == []


async def test_a_summary_that_hangs_is_given_up(small, path, autojump_clock):
    compressor = ScriptedCompressor(never)
    async with small(compressor=compressor, compression={"summary_timeout": 45.0}) as runtime:
        parent = (await talk(runtime))[-1].session_id
        begin = trio.current_time()
        with trio.fail_after(1000):
            reply = await runtime.ask("k", question(10))
        assert trio.current_time() - begin == pytest.approx(45, abs=1)
        assert reply.session_id == parent
    assert "too long" in sent_to_users(path)[-2][1]
    assert lineage(path) == [parent]
    assert problems(path) == []


@pytest.mark.parametrize("error", [ValueError("no"), ExceptionGroup("…", [ValueError("no")])])
async def test_users_get_a_reference_to_an_exception_of_a_compressor(small, path, caplog, error):
    async with small(compressor=ScriptedCompressor(failing(error))) as runtime:
        await talk(runtime)
        texts = [(await runtime.conversation("k").compress()).detail]
        texts.append((await runtime.ask("k", "/compress")).text)
        texts.append((await runtime.ask("k", question(10))).text)
    texts += [text for _, text in sent_to_users(path)]
    assert not [text for text in texts if "no." in text or "ValueError" in text]
    references = [REFERENCE.search(text)[1] for text in texts if REFERENCE.search(text)]
    assert len(set(references)) == 2  # the answer to /compress is in the outbox, too
    for reference in references:
        [record] = [each for each in caplog.records if reference in each.getMessage()]
        assert leaf(record.exc_info[1]) is leaf(error)


async def test_a_redaction_that_fails_shows_nothing(small, path):
    def redact(text):
        if "model" in text:
            raise ValueError(f"secret in {text}")
        return text

    compressor = ScriptedCompressor(failing(CompressorFailed("the model is out")))
    async with small(compressor=compressor, redact=redact) as runtime:
        await talk(runtime)
        reply = await runtime.ask("k", "/compress")
    assert REFERENCE.search(reply.text)
    assert "the model" not in reply.text


async def test_what_a_compressor_reports_is_redacted_and_cut(small, path):
    error = CompressorFailed("x" * 290 + "sk-secret" + "y" * 100)
    compressor = ScriptedCompressor(failing(error))
    redact = lambda text: text.replace("sk-secret", "[hidden]")  # noqa: E731
    async with small(compressor=compressor, redact=redact) as runtime:
        await talk(runtime)
        text = (await runtime.ask("k", "/compress")).text
    assert "x" * 290 + "[hidden]yy." in text


async def test_a_request_whose_summary_fails_reports_it(small, path):
    compressor = ScriptedCompressor(failing(CompressorFailed("the budget is used up")))
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        before = await runtime.conversation("k").history()
        change = await runtime.conversation("k").compress()
        assert (change.changed, change.failed) == (False, True)
        assert "the budget is used up" in change.detail
        assert (await runtime.ask("k", "/compress")).text == change.detail
        assert await runtime.conversation("k").history() == before
    assert problems(path) == []


async def test_a_summary_that_fails_after_a_turn_notifies_the_user(small, path):
    """Also if the user is reached by an adapter and not by events."""
    compressor = ScriptedCompressor(failing(CompressorFailed("the model is out")))
    agent = RecordingAgent()
    adapter = MemoryAdapter()
    source = Source("memory", chat_id="c")
    async with small(
        compressor=compressor, build_agent=lambda _: agent, adapters=[adapter]
    ) as runtime:
        for number in range(5):
            await runtime.ask("k", question(number), source=source)
        agent.script.append(TurnResult(text="long", usage=[Usage(input_tokens=OVER)]))
        await runtime.ask("k", question(5), source=source)
        await runtime.ask("k", question(6), source=source)
    assert len(compressor) == 1
    assert [text for text in adapter.texts if "the model is out" in text]


async def test_subscribers_are_notified_of_a_summary_that_failed_after_a_turn(small):
    compressor = ScriptedCompressor(failing(CompressorFailed("the model is out")))
    agent = RecordingAgent()
    async with small(compressor=compressor, build_agent=lambda _: agent) as runtime:
        await talk(runtime, 5)
        agent.script.append(TurnResult(text="long", usage=[Usage(input_tokens=OVER)]))
        with runtime.subscribe("k") as events:
            await runtime.ask("k", question(5))
            event = await next_event(events, Notice)
    assert "the model is out" in event.text


@pytest.mark.parametrize(
    "answer",
    [
        "a plain text",
        None,
        Summary(None),
        Summary("   "),
    ],
)
async def test_an_invalid_result_of_a_compressor_changes_nothing(
    small, path, answer, autojump_clock
):
    class Nonsense:
        async def summarize(self, request, /):
            await trio.lowlevel.checkpoint()
            return answer

    builder = CountingBuilder(lambda _: RecordingAgent())
    async with small(compressor=Nonsense(), build_agent=builder) as runtime:
        parent = (await talk(runtime))[-1].session_id
        reply = await runtime.ask("k", question(10))
    assert (reply.status, reply.session_id) == ("complete", parent)
    assert len(builder) == 1
    assert lineage(path) == [parent]
    assert problems(path) == []


async def test_a_compressor_that_raises_system_exit_does_not_end_the_runtime(small):
    """A failure of user code does not affect anything else."""
    async with small(compressor=ScriptedCompressor(failing(SystemExit(1)))) as runtime:
        await talk(runtime)
        assert (await runtime.ask("k", question(10))).status == "complete"


async def test_a_compressor_that_waits_for_its_own_conversation_is_given_up(
    small, path, autojump_clock
):
    compressor = ScriptedCompressor(lambda _: runtime.ask("k", question(20)))
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        assert (await runtime.ask("k", question(10))).status == "complete"
        await runtime.ask("k", question(11))
    assert len(compressor) == 1
    assert numbers(contents(path, lineage(path)[-1])) == [*range(11), 20, 11]
    assert problems(path) == []


async def test_a_failure_is_known_to_the_next_process(small, path, world):
    compressor = ScriptedCompressor(failing(RuntimeError("no")))
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        await runtime.ask("k", question(10))
        await runtime.ask("k", question(11))
        assert len(compressor) == 1
    async with small(compressor=compressor) as runtime:
        await runtime.ask("k", question(12))
        assert len(compressor) == 1
        assert REFERENCE.search((await runtime.ask("k", "/status")).text)
        world.pass_time(59)
        await runtime.ask("k", question(13))
        assert len(compressor) == 1
        world.pass_time(2)
        await runtime.ask("k", question(14))
        assert len(compressor) == 2
        world.pass_time(299)  # the second failure suspends it for longer
        await runtime.ask("k", question(15))
        assert len(compressor) == 2
    world.pass_time(2)
    async with small(compressor=compressor) as runtime:
        await runtime.ask("k", question(16))
        assert len(compressor) == 3
    assert [kind for kind, _ in sent_to_users(path)].count("notice") == 3
    assert len(lineage(path)) == 1
    assert numbers(contents(path, lineage(path)[0])) == list(range(17))
    assert problems(path) == []


async def test_a_command_does_not_wait_for_the_end_of_a_cool_down(small, path):
    compressor = ScriptedCompressor(failing(RuntimeError("no")))
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        await runtime.ask("k", question(10))
        compressor.then = None
        assert "Compressed" in (await runtime.ask("k", "/compress")).text
        assert (await runtime.conversation("k").status()).compression_note is None
        await talk(runtime, 8, first=11)
    assert len(compressor) == 3
    assert len(lineage(path)) == 3
    assert problems(path) == []


async def test_a_summary_that_does_not_shrink_is_refused(small, path):
    compressor = ScriptedCompressor(at_length)
    async with small(compressor=compressor) as runtime:
        parent = (await talk(runtime))[-1].session_id
        before = await runtime.conversation("k").history()
        change = await runtime.conversation("k").compress()
        assert (change.changed, change.failed) == (False, False)
        assert "smaller" in change.detail
        assert await runtime.conversation("k").history() == before
    assert lineage(path) == [parent]
    assert problems(path) == []


async def test_a_summary_that_shrinks_by_too_little_is_refused(small, path):
    async def nearly(_):
        return "n" * 4 * 290

    async with small(compressor=ScriptedCompressor(nearly)) as runtime:
        await talk(runtime)
        change = await runtime.conversation("k").compress()
        assert (change.changed, change.failed) == (False, False), change
    assert len(lineage(path)) == 1


async def test_two_useless_compressions_open_the_breaker_until_a_command_succeeds(small, path):
    compressor = ScriptedCompressor(at_length)
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        await talk(runtime, 4, first=10)
        assert len(compressor) == 2
        assert (await runtime.conversation("k").status()).compression_note is not None
    async with small(compressor=compressor) as runtime:
        await talk(runtime, 2, first=14)
        assert len(compressor) == 2
        assert "did not make it smaller" in (await runtime.ask("k", "/status")).text
        compressor.then = None
        await runtime.ask("k", question(16))
        assert len(compressor) == 2
        assert "Compressed" in (await runtime.ask("k", "/compress")).text
        assert (await runtime.conversation("k").status()).compression_note is None
        assert "smaller" not in (await runtime.ask("k", "/status")).text
        assert len(compressor) == 3
        await talk(runtime, 9, first=17)
        assert len(compressor) == 4
    assert len(lineage(path)) == 3
    assert problems(path) == []


async def test_a_long_first_message_does_not_end_automatic_compression(small, path):
    """It cannot be summarized while it is the last message, but two messages later."""
    compressor = ScriptedCompressor()
    agent = RecordingAgent(TurnResult(text="I see"))
    async with small(compressor=compressor, build_agent=lambda _: agent) as runtime:
        await runtime.ask("k", "z" * 4 * OVER)
        await talk(runtime, 4)
        assert len(compressor) == 1
        assert (await runtime.conversation("k").status()).context_tokens < OVER
    assert len(lineage(path)) == 2


async def test_compressions_before_a_restart_do_not_count_as_useless(small, path):
    """Each is made after a turn, and the conversation continues in another process."""
    compressor = ScriptedCompressor()

    async def short(turn):
        return TurnResult(text="y" * 80, usage=[Usage(input_tokens=100)])

    for number in range(4):
        agent = RecordingAgent(*[short] * 5)
        agent.script.append(TurnResult(text="long", usage=[Usage(input_tokens=OVER)]))
        async with small(
            compressor=compressor, build_agent=lambda _, agent=agent: agent
        ) as runtime:
            await talk(runtime, 6, first=6 * number)
            assert (await runtime.conversation("k").status()).compression_note is None
    assert len(compressor) == 4
    assert len(lineage(path)) == 5


async def test_alternating_compressions_of_two_conversations_do_not_count_as_useless(small, path):
    """Each is made after a turn, before the other conversation continues."""
    compressor = ScriptedCompressor()

    async def short(turn):
        return TurnResult(text="y" * 80, usage=[Usage(input_tokens=100)])

    agent = RecordingAgent()
    visited = []
    async with small(compressor=compressor, build_agent=lambda _: agent) as runtime:
        for number in range(8):
            if number >= 2:
                await runtime.conversation("k").switch(visited[number % 2])
            else:
                await runtime.conversation("k").new()
            agent.script += [short] * 5
            agent.script.append(TurnResult(text="long", usage=[Usage(input_tokens=OVER)]))
            visited.append((await talk(runtime, 6, first=6 * number))[0].session_id)
            assert (await runtime.conversation("k").status()).compression_note is None
    assert len(compressor) == 8
    assert len(lineage(path)) == 5


async def test_compression_can_be_switched_off_and_requested(small, path):
    compressor = ScriptedCompressor()
    agent = RecordingAgent()
    async with small(
        compressor=compressor, compression={"enabled": False}, build_agent=lambda _: agent
    ) as runtime:
        await talk(runtime, 12)
        agent.script.append(ContextOverflow("too long"))
        assert "context window" in (await runtime.ask("k", question(12))).text
        assert len(compressor) == 0
        assert (await runtime.conversation("k").compress()).changed
    assert len(lineage(path)) == 2


async def test_without_a_compressor_the_conversation_continues(small, path):
    async with small(compressor=None) as runtime:
        replies = await talk(runtime, 12)
        assert not (await runtime.conversation("k").compress()).changed
        assert "no compressor" in (await runtime.ask("k", "/compress")).text
    assert {reply.status for reply in replies} == {"complete"}
    assert len(lineage(path)) == 1
