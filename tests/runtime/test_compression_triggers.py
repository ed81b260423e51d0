"""When a conversation is compressed: its size, a count of the provider, an overflow, a command."""

from __future__ import annotations

import pytest

from hermes.errors import ContextOverflow
from hermes.events import (
    SessionMoved,
    TextDelta,
    ToolFinished,
    ToolStarted,
)
from hermes.messages import (
    ToolCall,
    TurnResult,
    Usage,
)
from hermes.testing import CountingBuilder
from hermes.transcript.compaction import is_summary
from tests.support.compression import (
    OVER,
    SUMMARY,
    RecordingAgent,
    ScriptedCompressor,
    contents,
    failing,
    lineage,
    next_event,
    numbers,
    problems,
    question,
    same,
    sent_to_users,
    talk,
)
from tests.support.runtime import with_threads


@with_threads
async def test_a_conversation_is_compressed_before_the_turn_that_would_be_too_long(small, path):
    compressor = ScriptedCompressor()
    agent = RecordingAgent()
    async with small(compressor=compressor, build_agent=lambda _: agent) as runtime:
        parent = (await talk(runtime))[-1].session_id
        assert len(compressor) == 0
        reply = await runtime.ask("k", question(10))
        assert len(compressor) == 1
    assert max(agent.sizes) < OVER
    first, child = lineage(path)
    assert (first, child) == (parent, reply.session_id)
    assert agent.sessions[-1] == (child, child)
    assert len(agent.shown[-1]) == 5
    assert SUMMARY in agent.shown[-1][0][1]
    assert numbers(text for _, text in agent.shown[-1]) == [8, 9]
    assert problems(path) == []


async def test_a_long_message_causes_a_compression_before_its_turn(small, path):
    agent = RecordingAgent()
    async with small(build_agent=lambda _: agent) as runtime:
        await talk(runtime, 6)
        reply = await runtime.ask("k", "y" * 1200)
    assert reply.status == "complete"
    assert len(lineage(path)) == 2
    assert agent.sizes[-1] < OVER


@pytest.mark.parametrize(
    "usage",
    [
        Usage(input_tokens=OVER),
        Usage(input_tokens=1, cache_read_tokens=OVER - 1),
        Usage(input_tokens=1, cache_write_tokens=OVER - 1),
    ],
)
async def test_a_conversation_is_compressed_after_a_turn_that_the_provider_counted(
    small, path, usage
):
    compressor = ScriptedCompressor()
    agent = RecordingAgent()
    async with small(compressor=compressor, build_agent=lambda _: agent) as runtime:
        await talk(runtime, 5)
        agent.script.append(TurnResult(text="long", usage=[Usage(input_tokens=1), usage]))
        with runtime.subscribe("k") as events:
            reply = await runtime.ask("k", question(5))
            event = await next_event(events, SessionMoved)
        assert len(compressor) == 1
        assert event == SessionMoved(reply.session_id, lineage(path)[-1], "compression")
        assert (await runtime.conversation("k").status()).context_tokens < OVER
        last = await runtime.ask("k", question(6))
    assert len(compressor) == 1
    assert last.session_id == lineage(path)[-1]
    assert numbers(contents(path, last.session_id)) == [4, 5, 6]
    assert problems(path) == []


async def test_a_turn_that_the_provider_counted_as_short_is_left_alone(small, path):
    agent = RecordingAgent()
    compressor = ScriptedCompressor()
    async with small(compressor=compressor, build_agent=lambda _: agent) as runtime:
        await talk(runtime, 5)
        agent.script.append(
            TurnResult(text="ok", usage=[Usage(input_tokens=9999), Usage(input_tokens=OVER - 50)])
        )
        await talk(runtime, 2, first=5)
    assert len(compressor) == 0
    assert len(lineage(path)) == 1


async def test_a_conversation_that_stays_too_long_is_not_compressed_at_every_turn(small):
    """If tools alone fill the window, a summary does not help, and none is paid for."""
    compressor = ScriptedCompressor()

    async def counted(turn):
        return TurnResult(text="y" * 80, usage=[Usage(input_tokens=OVER + 100)])

    agent = RecordingAgent()
    async with small(compressor=compressor, build_agent=lambda _: agent) as runtime:
        await talk(runtime, 5)
        agent.script += [counted] * 20
        await talk(runtime, 20, first=5)
    assert len(compressor) < 10


OVERFLOWS = {
    "raised": ContextOverflow("maximum context length is 1000 tokens"),
    "told": TurnResult(failed=True, error="400: this model's maximum context length is 1000"),
    "coded": TurnResult(failed=True, error="context_length_exceeded"),
}


@with_threads
@pytest.mark.parametrize("how", OVERFLOWS)
async def test_an_overflow_compresses_and_the_turn_is_run_again(small, path, how):
    async def overflow(turn):
        turn.emit(TextDelta("half a word"))
        turn.emit(ToolStarted(ToolCall("c1", "search")))
        return OVERFLOWS[how]

    compressor = ScriptedCompressor()
    agent = RecordingAgent()
    builder = CountingBuilder(lambda _: agent)
    async with small(compressor=compressor, build_agent=builder) as runtime:
        parent = (await talk(runtime, 6))[-1].session_id
        agent.script.append(overflow)
        reply = await runtime.ask("k", question(6))
    assert (reply.status, reply.text) == ("complete", f"echo: {question(6)}")
    assert len(agent.turn_ids) == 8
    assert agent.turn_ids[6] == agent.turn_ids[7] == reply.turn_id
    assert agent.asked[6] == agent.asked[7] == question(6)
    assert agent.sizes[7] < agent.sizes[6]
    assert len(agent.shown[7]) == 5
    assert SUMMARY in agent.shown[7][0][1]
    assert len(compressor) == 1
    first, child = lineage(path)
    assert (first, child) == (parent, reply.session_id)
    assert agent.sessions[6:] == [(parent, parent), (child, child)]
    assert numbers(contents(path, parent)) == list(range(6))
    assert numbers(contents(path, child)) == [4, 5, 6]
    assert contents(path, child)[-2:] == [question(6), f"echo: {question(6)}"]
    assert len(builder) == 1
    assert [kind for kind, _ in sent_to_users(path)] == ["reply"] * 7
    assert problems(path) == []


async def test_an_overflow_error_is_recognized_whatever_its_text(small):
    """`ContextOverflow` is an overflow, whatever its text is."""
    compressor = ScriptedCompressor()
    agent = RecordingAgent()
    async with small(compressor=compressor, build_agent=lambda _: agent) as runtime:
        await talk(runtime, 6)
        agent.script.append(ContextOverflow("1200 tokens, but the quota of a request is 1000"))
        reply = await runtime.ask("k", question(6))
    assert (reply.status, len(compressor)) == ("complete", 1)


@pytest.mark.parametrize("how", OVERFLOWS)
async def test_a_second_overflow_is_reported_and_the_turn_is_not_run_again(small, path, how):
    """Even if a second compression would make it shorter."""
    compressor = ScriptedCompressor()
    agent = RecordingAgent()
    options = {"compressor": compressor, "compression": {"protect_first": 2}}
    async with small(**options, build_agent=lambda _: agent) as runtime:
        await talk(runtime, 6)
        agent.script += [OVERFLOWS[how]] * 5
        reply = await runtime.ask("k", question(6))
        assert reply.status == "failed"
        assert "context window" in reply.text
        assert "/compact" in reply.text
        assert len(agent.turn_ids) == 8
        assert len(compressor) == 1
        agent.script.clear()
        assert (await runtime.ask("k", "again")).status == "complete"
    assert numbers(contents(path, lineage(path)[-1])) == [0, 4, 5, 6]
    assert sent_to_users(path)[-2][1] == reply.text
    assert problems(path) == []


async def test_an_overflow_of_the_first_message_is_reported(small, path):
    compressor = ScriptedCompressor()
    agent = RecordingAgent(*[ContextOverflow("too long")] * 5)
    async with small(compressor=compressor, build_agent=lambda _: agent) as runtime:
        reply = await runtime.ask("k", "z" * 5000)
    assert "context window" in reply.text
    assert len(agent.turn_ids) == 1
    assert len(compressor) == 0
    assert problems(path) == []


async def test_an_overflow_whose_summary_fails_is_reported(small, path):
    compressor = ScriptedCompressor(failing(RuntimeError("no model")))
    agent = RecordingAgent()
    async with small(compressor=compressor, build_agent=lambda _: agent) as runtime:
        await talk(runtime, 6)
        agent.script += [ContextOverflow("too long")] * 5
        reply = await runtime.ask("k", question(6))
    assert "context window" in reply.text
    assert len(agent.turn_ids) == 7
    assert len(lineage(path)) == 1
    assert problems(path) == []


@pytest.mark.parametrize("error", ["429: rate limit, too many tokens per minute", "401: no key"])
async def test_other_errors_are_no_reason_to_compress(small, error):
    compressor = ScriptedCompressor()
    agent = RecordingAgent()
    async with small(compressor=compressor, build_agent=lambda _: agent) as runtime:
        await talk(runtime, 6)
        agent.script.append(TurnResult(failed=True, error=error))
        reply = await runtime.ask("k", question(6))
    assert reply.status == "failed"
    assert "context window" not in reply.text
    assert (len(compressor), len(agent.turn_ids)) == (0, 7)


async def test_the_command_compresses_and_reports_by_how_much(small, path):
    compressor = ScriptedCompressor()
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        reply = await runtime.ask("k", "/compress")
        assert reply.status == "command"
        assert "Compressed" in reply.text
        assert reply.session_id == lineage(path)[-1]
        status = await runtime.conversation("k").status()
        assert status.context_tokens < OVER / 2
        assert status.session_id == reply.session_id
    assert compressor.requests[0].focus is None
    assert len(lineage(path)) == 2
    assert sent_to_users(path)[-1] == ("command", reply.text)
    assert problems(path) == []


@pytest.mark.parametrize("command", ["/compact the tests", "/COMPRESS  the tests"])
async def test_a_focus_is_passed_to_the_compressor(small, command):
    compressor = ScriptedCompressor()
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        await runtime.ask("k", command)
    assert [request.focus for request in compressor.requests] == ["the tests"]


@pytest.mark.parametrize(
    ("argument", "kept"),
    [("here 2", 2), ("here", 2), ("up to here 4", 4), ("--keep 1", 1), ("--keep=3", 3),
     ("-k 5", 5), ("here 0", 1)],
)  # fmt: skip
async def test_the_last_exchanges_are_kept_verbatim(small, path, argument, kept):
    compressor = ScriptedCompressor()
    agent = RecordingAgent()
    async with small(compressor=compressor, build_agent=lambda _: agent) as runtime:
        await talk(runtime)
        before = await runtime.conversation("k").history()
        assert "Compressed" in (await runtime.ask("k", f"/compress {argument}")).text
        first, *after = await runtime.conversation("k").history()
        assert is_summary(first)
        assert same(after, before[-2 * kept :])
        await runtime.ask("k", question(10))
    assert numbers(text for _, text in agent.shown[-1]) == list(range(10 - kept, 10))
    assert [len(request.messages) for request in compressor.requests] == [20 - 2 * kept]
    assert compressor.requests[0].focus is None


async def test_keeping_more_exchanges_than_exist_leaves_nothing_to_summarize(small, path):
    compressor = ScriptedCompressor()
    async with small(compressor=compressor) as runtime:
        await talk(runtime, 3)
        assert "nothing to summarize" in (await runtime.ask("k", "/compress here 50")).text
    assert (len(compressor), len(lineage(path))) == (0, 1)


async def test_a_request_for_an_unknown_conversation_changes_nothing(small, path):
    compressor = ScriptedCompressor()
    async with small(compressor=compressor) as runtime:
        await runtime.ask("k", "/whoami")
        assert not (await runtime.conversation("k").compress()).changed
        assert "Not compressed" in (await runtime.ask("k", "/compress")).text
        assert await runtime.conversation("k").history() == []
    assert len(compressor) == 0
    assert problems(path) == []


# Long first and last turns


def tool_turn(text, size):
    """Return a step of a script: a tool with a long result, and a reply."""

    async def run(turn):
        turn.emit(ToolStarted(ToolCall("1", "read", "{}")))
        turn.emit(ToolFinished("1", "word " * size))
        return TurnResult(text=text)

    return run


async def test_a_last_turn_that_is_too_long_is_compressed_before_the_next_one(small, path):
    """Its reply is kept; the result of its tool is summarized at once."""
    agent = RecordingAgent(None, tool_turn("read", 2000))
    compressor = ScriptedCompressor()
    async with small(build_agent=lambda _: agent, compressor=compressor) as runtime:
        await talk(runtime, 2)
        await runtime.ask("k", question(2))
    assert len(compressor) == 1
    assert agent.sizes[-1] < OVER
    kept = contents(path, lineage(path)[-1])
    assert kept[1:] == ["read", question(2), f"echo: {question(2)}"]
    assert problems(path) == []


async def test_an_overflow_by_the_last_turn_is_compressed_and_tried_again(small, path):
    agent = RecordingAgent(tool_turn("read", 50), ContextOverflow("too long"))
    async with small(build_agent=lambda _: agent) as runtime:
        await runtime.ask("k", question(0))
        reply = await runtime.ask("k", question(1))
    assert (reply.status, reply.text) == ("complete", f"echo: {question(1)}")
    assert len(lineage(path)) == 2


async def test_a_protected_head_that_is_too_long_is_summarized_too(small, path):
    agent = RecordingAgent(tool_turn("read", 2000))
    async with small(build_agent=lambda _: agent, compression={"protect_first": 4}) as runtime:
        await talk(runtime, 3)
    assert len(lineage(path)) == 2
    assert agent.sizes[-1] < OVER


@pytest.mark.parametrize(("later", "calls"), [(0, 1), (7200, 2)])
async def test_an_overflow_does_not_ask_a_compressor_that_has_just_failed(
    small, path, world, later, calls
):
    compressor = ScriptedCompressor(failing(RuntimeError("no")))
    overflow = ContextOverflow("too long")
    agent = RecordingAgent(*[None] * 7, overflow, overflow)
    async with small(build_agent=lambda _: agent, compressor=compressor) as runtime:
        await talk(runtime, 8)
        assert len(compressor) == 1
        world.pass_time(later)
        reply = await runtime.ask("k", question(8))
    assert reply.status == "failed"
    assert len(compressor) == calls
    assert len(lineage(path)) == 1


async def test_an_overflow_that_is_handled_is_not_logged_as_an_error(small, caplog):
    agent = RecordingAgent(*[None] * 7, ContextOverflow("too long"))
    async with small(build_agent=lambda _: agent) as runtime:
        await talk(runtime, 7)
        assert (await runtime.ask("k", question(7))).status == "complete"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
