"""The verbs for an operator and for clients with several conversations, without a client."""

from __future__ import annotations

import pytest
import trio

from hermes.errors import Draining, UnknownSession
from hermes.events import ApprovalAsked, TextDelta, TitleChanged
from hermes.messages import Inbound, RunningTurnInfo, Title
from hermes.testing import DeterministicCompressor, ScriptedAgent, texts_of


def playing(*entries):
    agent = ScriptedAgent(script=entries)
    return lambda _: agent


async def test_find_by_id_prefix_and_title_and_by_the_id_of_a_first_turn_that_runs(start):
    begun, release = trio.Event(), trio.Event()

    async def wait(_):
        begun.set()
        await release.wait()

    async with start(agent=playing("one", [wait, "two"])) as runtime:
        session_id = (await runtime.ask("k", "hello")).session_id
        await runtime.set_title("k", "Plans")
        for name in (session_id, session_id[:-1], "Plans"):
            found = await runtime.find(name)
            assert (found.session_id, found.session.id) == (session_id, session_id)
            assert found.lineage == (session_id,)
            assert found.session_keys == ("k",)
        assert await runtime.find("nothing") is None
        assert await runtime.find("") is None
        receipt = await runtime.submit(Inbound("other", "e", "hello"))
        await begun.wait()
        found = await runtime.find(receipt.session_id)
        assert (found.session, found.session_keys) == (None, ("other",))
        assert (await runtime.find(receipt.session_id[:-1])).session_id == session_id
        release.set()


async def test_an_old_id_finds_the_tip_and_deleting_it_deletes_the_whole_line(start):
    async with start(compressor=DeterministicCompressor()) as runtime:
        first = (await runtime.ask("k", "word " * 300)).session_id
        for _ in range(8):
            await runtime.ask("k", "word " * 300)
        await runtime.compress("k", keep_exchanges=1)
        found = await runtime.find(first)
        assert found.lineage[0] == first
        assert len(found.lineage) == 2
        assert found.session_keys == ("k",)
        rows = sum([len(await runtime.transcript(each)) for each in found.lineage])
        with pytest.raises(UnknownSession):
            await runtime.delete(first[:-1])
        assert await runtime.delete(first) == rows
        assert await runtime.find(found.session_id) is None
        assert await runtime.sessions(None) == []
        with pytest.raises(UnknownSession):
            await runtime.delete(first)
        with pytest.raises(UnknownSession):
            await runtime.transcript(first)
        assert (await runtime.ask("k", "again")).session_id not in found.lineage


async def test_the_sessions_of_all_keys(start):
    async with start() as runtime:
        ids = [(await runtime.ask(key, "hello")).session_id for key in ("a", "b", "c")]
        assert {each.session.id for each in await runtime.sessions(None)} == set(ids)
        assert len(await runtime.sessions(None, limit=2, offset=2)) == 1


async def test_a_branch_for_another_key_leaves_this_one_where_it_is(start):
    async with start() as runtime:
        original = (await runtime.ask("k", "hello")).session_id
        copy = await runtime.branch_off("k", "other", "A copy")
        assert (await runtime.ask("other", "there")).session_id == copy
        assert (await runtime.ask("k", "here")).session_id == original
        assert texts_of(await runtime.history("other"))[2:] == [
            ("user", "there"), ("assistant", "echo: there"),
        ]  # fmt: skip
        assert [each.session.id for each in await runtime.sessions("other")] == [copy]
        assert (await runtime.title("other")).text == "A copy"


async def test_rewind_takes_back_exchanges_and_counts_rows(start):
    async with start() as runtime:
        for text in ("one", "two", "three"):
            await runtime.ask("k", text)
        assert await runtime.rewind("k", 0) == 0
        assert await runtime.rewind("k", 2) == 4
        assert await runtime.rewind("k", 5) == 2
        assert await runtime.rewind("k") == 0
        assert (await runtime.ask("k", "four")).build_reason is None


async def test_a_title_is_set_and_read_beside_a_running_turn_and_listeners_hear_of_it(start):
    begun, release = trio.Event(), trio.Event()

    async def wait(_):
        begun.set()
        await release.wait()

    async with start(agent=playing([wait, "one"])) as runtime, trio.open_nursery() as nursery:
        assert await runtime.title("k") == Title(None)
        with runtime.events("k") as events:
            nursery.start_soon(runtime.ask, "k", "hello")
            await begun.wait()
            with trio.fail_after(10):
                assert await runtime.title("k", " Plans ") == Title("Plans", pending=True)
            release.set()
            told = [each.event async for each in _until_titled(events)]
        assert told[-1].title == "Plans"
        assert await runtime.title("k") == Title("Plans")
        with pytest.raises(ValueError, match="too long"):
            await runtime.title("k", "x" * 200)
        await runtime.drain()
        with pytest.raises(Draining):
            await runtime.title("k", "x")


async def _until_titled(events):
    async for each in events:
        yield each
        if isinstance(each.event, TitleChanged):
            return


async def test_what_runs_and_what_it_has_said_can_be_seen(start):
    begun, release = trio.Event(), trio.Event()

    async def wait(_):
        begun.set()
        await release.wait()

    steps = [TextDelta("one "), TextDelta("two"), wait, "one two"]
    async with start(agent=playing(steps)) as runtime, trio.open_nursery() as nursery:
        assert runtime.running_turns() == {}
        receipt = await runtime.submit(Inbound("k", "e", "hello"))
        await begun.wait()
        assert runtime.running_turns() == {"k": RunningTurnInfo(receipt.inbox_id, "one two")}
        assert not await runtime.answered(receipt)
        with runtime.events("k") as events:
            release.set()
            await anext(events)
        nursery.cancel_scope.cancel()
        assert runtime.running_turns() == {}
        assert await runtime.answered(receipt)


async def test_a_tool_that_needs_an_approval_is_heard_of(start):
    from hermes.agents.tools.toolbox import Toolbox, tool

    @tool(approval=True)
    async def send(to: str) -> str:
        """Send it."""
        return to

    class Agent:
        async def run(self, turn):
            from hermes.messages import ToolCall

            ran = await Toolbox([send]).run(ToolCall("c1", "send", '{"to": "all"}'), turn)
            return ran.content

    async with start(agent=lambda _: Agent()) as runtime:
        heard = [event async for event in runtime.stream("k", "hello")]
        [asked] = [event.approval for event in heard if isinstance(event, ApprovalAsked)]
        assert (asked.tool, asked.arguments, asked.state) == ("send", '{"to":"all"}', "pending")
        assert len(await runtime.history("k")) == 2
