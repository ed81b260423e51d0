"""What a compression keeps: rows, agent, title, route, tail, costs."""

from __future__ import annotations

import itertools
import json
import logging
import random

import pytest
from msgspec.structs import replace

from hermes.events import (
    TurnStarted,
)
from hermes.messages import (
    Inbound,
    Message,
    Source,
    ToolCall,
    TurnResult,
    Usage,
)
from hermes.protocols import Summary
from hermes.store import SessionStore
from hermes.testing import CountingBuilder, inspect
from hermes.transcript.compaction import is_summary, summary_text
from tests.support.compression import (
    FULL,
    OVER,
    SUMMARY,
    RecordingAgent,
    ScriptedCompressor,
    contents,
    elsewhere,
    failing,
    lineage,
    numbers,
    problems,
    question,
    rows_in,
    same,
    sent_to_users,
    talk,
)
from tests.support.runtime import threads_only, with_threads
from tests.support.store_proxy import Through


@with_threads
async def test_the_rows_of_the_parent_stay_and_are_found(small, path):
    async with small() as runtime:
        parent = (await talk(runtime))[-1].session_id
        before = await runtime.conversation("k").history()
        await talk(runtime, 25, first=10)
    line = lineage(path)
    assert len(line) > 2
    assert rows_in(path, parent) == before
    with SessionStore(path) as store:
        for number in range(35):
            hits = store.search_messages(f'"question {number:03}"')
            assert [hit for hit in hits if hit.role == "user"], number
            assert {hit.session_id for hit in hits} <= set(line)
    assert problems(path) == []


async def test_no_agent_is_rebuilt_for_a_rotation(small, path):
    agents = []

    def build(_):
        agents.append(RecordingAgent())
        return agents[-1]

    async with small(build_agent=build) as runtime:
        with runtime.subscribe("k") as events:
            replies = await talk(runtime, 25)
        started = [e.event.build_reason async for e in events if isinstance(e.event, TurnStarted)]
        snapshot = runtime.conversation("k").snapshot()
        assert (await runtime.admin.statistics()).builds == {"cold": 1}
        assert snapshot.agent is agents[0]
        assert snapshot.session_id == lineage(path)[-1]
        assert snapshot.message_count == len(await runtime.conversation("k").history())
        shown = sum(len(row.content) for row in await runtime.conversation("k").history())
        assert (
            await runtime.admin.statistics()
        ).transcript_bytes < shown + 300 * snapshot.message_count
        assert agents[0].closed == 0
    assert started == ["cold"] + [None] * 24
    assert [reply.build_reason for reply in replies] == started
    assert len(agents) == 1
    assert agents[0].closed == 1
    assert len(lineage(path)) > 2


async def test_a_switch_to_the_parent_leads_to_its_tip(small, path):
    async with small() as runtime:
        parent = (await talk(runtime))[-1].session_id
        await talk(runtime, 2, first=10)
        tip = lineage(path)[-1]
        await runtime.conversation("k").new()
        await runtime.ask("k", "hello")
        assert (await runtime.conversation("k").switch(parent)).session_id == tip
        assert (await runtime.ask("k", question(12))).session_id == tip
        assert numbers(contents(path, tip)) == [8, 9, 10, 11, 12]
        assert len(await runtime.conversation("k").sessions()) == 2
    assert problems(path) == []


async def test_a_branch_and_its_origin_are_compressed_independently(small, path):
    builder = CountingBuilder(lambda _: RecordingAgent())
    async with small(build_agent=builder) as runtime:
        origin = (await talk(runtime, 9))[-1].session_id
        branch = (await runtime.conversation("k").branch()).session_id
        await talk(runtime, 4, first=20)
        of_branch = lineage(path)
        await runtime.conversation("k").switch(origin)
        await talk(runtime, 4, first=30)
        of_origin = lineage(path)
    assert (of_branch[0], len(of_branch)) == (branch, 2)
    assert (of_origin[0], len(of_origin)) == (origin, 2)
    assert numbers(contents(path, of_branch[-1]))[-1] == 23
    assert numbers(contents(path, of_origin[-1]))[-1] == 33
    assert len(builder) == 1
    assert problems(path) == []


async def test_a_rotation_by_the_agent_and_a_later_compression_form_one_lineage(small, path):
    agent = RecordingAgent()
    async with small(build_agent=lambda _: agent) as runtime:
        parent = (await talk(runtime, 6))[-1].session_id
        usage = [Usage(input_tokens=OVER)]
        agent.script.append(TurnResult(text="moved", session_id="mine", usage=usage))
        assert (await runtime.ask("k", question(6))).session_id == "mine"
        last = await runtime.ask("k", question(7))
    line = lineage(path)
    assert line[:2] == [parent, "mine"]
    assert last.session_id == line[-1]
    assert numbers(contents(path, line[-1]))[-2:] == [6, 7]
    assert problems(path) == []


@threads_only
async def test_a_write_to_the_child_by_another_process_is_detected(small, path, world):
    agent = RecordingAgent()
    builder = CountingBuilder(lambda _: agent)
    async with small(build_agent=builder) as runtime:
        await talk(runtime, 11)
        child = lineage(path)[-1]
        code = "store.append_message(session_id, 'user', 'question 050')"
        elsewhere(path, world, code, session_id=child)
        reply = await runtime.ask("k", question(11))
    assert reply.build_reason == "foreign-write"
    assert numbers(text for _, text in agent.shown[-1]) == [8, 9, 10, 50]


async def test_the_title_gets_a_number(small, path):
    async with small() as runtime:
        await runtime.ask("k", question(0))
        await runtime.conversation("k").set_title("Plan")
        await talk(runtime, 20, first=1)
        status = await runtime.conversation("k").status()
    line = lineage(path)
    with SessionStore(path) as store:
        titles = [store.get_session(session_id).title for session_id in line]
    assert len(line) > 2
    assert titles == ["Plan", *[f"Plan #{number}" for number in range(2, len(line) + 1)]]
    assert status.title == titles[-1]


async def test_the_child_is_about_the_same_chat(small, path):
    source = Source("memory", chat_id="c", chat_type="group", thread_id="t", user_id="u")
    async with small() as runtime:
        for number in range(12):
            await runtime.ask("k", question(number), source=source)
        assert [listed.session.id for listed in await runtime.conversation("k").sessions()] == [
            lineage(path)[-1]
        ]
    with SessionStore(path) as store:
        parent, child = (store.get_session(each) for each in lineage(path))
    described = lambda s: (  # noqa: E731
        s.source, s.session_key, s.chat_id, s.chat_type, s.thread_id, s.user_id
    )  # fmt: skip
    assert described(child) == described(parent) == ("memory", "k", "c", "group", "t", "u")
    assert child.parent_session_id == parent.id


async def test_the_cost_of_a_summary_is_recorded(small, path):
    async def paid(_):
        return Summary(SUMMARY, [Usage("turn", "cheap", input_tokens=400, output_tokens=9)])

    async with small(compressor=ScriptedCompressor(paid)) as runtime:
        await talk(runtime, 11)
        child = lineage(path)[-1]
        assert "409" not in (await runtime.ask("k", "/usage")).text
    with SessionStore(path) as store:
        calls = store.get_usage(child)
        session = store.get_session(child)
    assert [(call.purpose, call.model, call.input_tokens) for call in calls] == [
        ("summary", "cheap", 400)
    ]
    assert (session.model, session.api_call_count, session.input_tokens) == (None, 0, 0)


def rich(number):
    """Return a result that sets every field of a row."""
    call = ToolCall(f"call{number}", "search", f'{{"q": "{number}",  "n": 1.0}}')
    return TurnResult(
        rows=[
            Message(
                "assistant",
                None,
                tool_calls=(call, ToolCall(f"second{number}", "read")),
                reasoning=f"I think {number}\n",
                reasoning_details=({"type": "text", "signature": "s" * number},),
                finish_reason="tool_calls",
                provider_data={"id": number, "nested": {"ü": [1, None]}},
            ),
            Message("tool", "found", tool_call_id=f"call{number}", tool_name="search"),
            Message("tool", "", tool_call_id=f"second{number}", tool_name="read"),
            Message(
                "assistant",
                f"answer {number} — \u200b\U0001f600 ",
                1_234_567.125 + number,
                parts=({"type": "text", "text": "a"}, {"type": "x", "y": [0.1]}),
                finish_reason="stop",
                token_count=7,
            ),
        ]
    )


@pytest.mark.parametrize("budget", [0.0, 0.1, 0.3])
async def test_the_tail_is_the_same_row_by_row(small, path, world, budget):
    agent = RecordingAgent(*[rich(number) for number in range(8)])
    parts = ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},)
    compression = {"tail_share": budget, "window": 40_000}
    async with small(build_agent=lambda _: agent, compression=compression) as runtime:
        for number in range(8):
            world.pass_time(1.5)
            await runtime.submit(
                Inbound("k", f"e{number}", question(number), Source("memory", user_id="u"),
                        parts=parts if number % 2 else None, platform_message_id=f"m{number}")
            )  # fmt: skip
            await inspect(runtime).wait_idle("k")
        before = await runtime.conversation("k").history()
        assert len(before) == 40
        world.pass_time(500)
        assert (await runtime.conversation("k").compress()).changed
        after = await runtime.conversation("k").history()
        assert same(await runtime.conversation("k").history(), after)
    assert [is_summary(row) for row in after] == [True] + [False] * (len(after) - 1)
    tail = after[1:]
    assert len(tail) >= 6
    assert same(tail, before[-len(tail) :])
    assert tail[0].role != "tool"
    with SessionStore(path) as store:
        assert store.get_session(lineage(path)[-1]).message_count == len(after)


async def test_the_head_is_the_same_row_by_row(small, path):
    async with small(compression={"protect_first": 3}) as runtime:
        await talk(runtime)
        before = await runtime.conversation("k").history()
        await runtime.conversation("k").compress()
        after = await runtime.conversation("k").history()
    assert same(after[:3], before[:3])
    assert is_summary(after[3])
    assert same(after[4:], before[-len(after[4:]) :])


async def test_the_next_summary_gets_the_text_of_the_last_one(small, path):
    compressor = ScriptedCompressor()
    async with small(compressor=compressor) as runtime:
        await talk(runtime, 25)
        summaries = [row for row in await runtime.conversation("k").history() if is_summary(row)]
    assert [request.previous for request in compressor.requests[:2]] == [None, SUMMARY]
    assert [summary_text(row) for row in summaries] == [SUMMARY]


async def test_the_answer_to_the_command_is_written_with_the_rotation(small_behind, path):
    """A process that is killed right after it leaves no open message."""
    seen = []

    class Watching(Through):
        async def rotate(self, rotation):
            done = await self.store.rotate(rotation)
            seen.append(await self.store.open_inbox())
            return done

    async with small_behind(Watching, compressor=ScriptedCompressor()) as runtime:
        await talk(runtime)
        reply = await runtime.ask("k", "/compress")
    assert seen == [[]]
    assert sent_to_users(path)[-1] == ("command", reply.text)
    assert [kind for kind, _ in sent_to_users(path)].count("command") == 1
    with SessionStore(path) as store:
        body = store.snapshot(lambda tx: tx.one("SELECT body FROM outbox ORDER BY id DESC"))[0]
    assert json.loads(body)["session_id"] == lineage(path)[-1]


async def test_notes_about_a_session_are_deleted_with_it(small, path):
    async with small(compressor=ScriptedCompressor(failing(RuntimeError("no")))) as runtime:
        session_id = (await talk(runtime, FULL + 1))[-1].session_id
    with SessionStore(path) as store:
        noted = "SELECT count(*) FROM meta WHERE key LIKE 'compression:%'"
        assert store.snapshot(lambda tx: tx.one(noted))[0] == 1
        store.delete_session(session_id)
        assert store.snapshot(lambda tx: tx.one(noted))[0] == 0


# Long conversations


class Chatty(RecordingAgent):
    """An agent with short and long replies and tools; with `counts` it reports its usage."""

    def __init__(self, seed, *, counts):
        super().__init__()
        self.chance = random.Random(seed)
        self.counts = counts

    async def run(self, turn, /):
        await super().run(turn)
        prompt = 40
        usage = [Usage(input_tokens=self.sizes[-1] + prompt)] if self.counts else []
        if self.chance.random() < 0.2:
            return replace(rich(len(self.turn_ids) % 50), usage=usage)
        return TurnResult(text="y" * self.chance.choice((1, 50, 300)), usage=usage)


async def at_full_length(request):
    """Return a summary of the maximal length."""
    return " ".join(["word"] * (request.max_tokens * 4 // 5))


@pytest.mark.parametrize(
    "counts",
    [
        True,
        False,
    ],
)
async def test_four_hundred_turns_stay_within_the_window_and_lose_nothing(
    small, path, counts, caplog
):
    turns, window = 400, 4000
    chance = random.Random(4)
    agent, compressor = Chatty(4, counts=counts), ScriptedCompressor(at_full_length)
    builder = CountingBuilder(lambda _: agent)
    options = {"compressor": compressor, "build_agent": builder, "compression": {"window": window}}
    with caplog.at_level(logging.WARNING):
        async with small(**options) as runtime:
            for number in range(turns):
                text = f"question {number:03} ".ljust(chance.choice((13, 80, 400)), "x")
                assert (await runtime.ask("k", text)).status == "complete"
            status = await runtime.conversation("k").status()
    assert caplog.records == []
    assert len(agent.turn_ids) == turns
    assert max(agent.sizes) < status.compress_at + 200 < window
    assert status.context_tokens < status.compress_at + 200
    assert status.compression_note is None
    assert turns / 20 < len(compressor) < turns / 4
    assert len(builder) == 1
    assert_nothing_is_lost(path, range(turns), rotations=len(compressor))
    assert problems(path) == []


def assert_nothing_is_lost(path, expected, *, rotations):
    """Every message is in the lineage, and each session continues the one before it."""
    line = lineage(path)
    assert len(line) == rotations + 1
    said = [numbers(contents(path, each)) for each in line]
    assert {number for each in said for number in each} == set(expected)
    for older, newer in itertools.pairwise(said):
        assert newer == list(range(newer[0], newer[-1] + 1))
        assert newer[0] <= older[-1] <= newer[-1]
    assert said[-1][-1] == expected[-1]
