"""Verbs of a conversation on nodes that do not serve it, on one PostgreSQL server."""

from __future__ import annotations

import json
from random import Random

import pytest
import trio

from hermes.agents.tools.toolbox import Toolbox, tool
from hermes.errors import (
    AmbiguousTitle,
    NotOwner,
    TitleTaken,
    TitleTooLong,
    UnknownSession,
)
from hermes.events import ApprovalAsked
from hermes.messages import Message, Snapshot, Source, ToolCall
from tests.support.cluster_nodes import SECONDS, claim, cluster_of, inbound, on_cluster
from tests.support.lossy_hints import LossyHints

KEY = "conversation"


async def two_nodes(cluster, **options):
    """Open two nodes; the first one serves the conversation."""
    owner, other = await cluster.start("a", "b", **options)
    assert (await claim(cluster_of(owner), KEY)).node == cluster_of(owner).node
    await owner.conversation(KEY).undo()
    return owner, other


async def test_each_verb_runs_at_the_owner(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        owner, other = await two_nodes(cluster)
        there = other.conversation(KEY)
        first = (await there.ask("hello")).session_id
        await there.set_title("First")
        assert (await owner.conversation(KEY).title()).text == "First"
        assert (await there.configure(model="large")).model == "large"
        assert owner._supervisor.find(KEY).state.settings is not None
        posted = await there.post("news")
        assert (posted.role, posted.content) == ("assistant", "news")
        assert (await there.undo()).removed == 3
        await there.ask("hello again")
        branch = await there.branch("Second")
        assert branch.old_session_id == first
        copied = await there.branch("Third", to="another key")
        assert (copied.session_key, copied.reason) == ("another key", "branch")
        assert (await there.switch("First")).session_id == first
        assert not (await there.compress()).changed
        [added] = await other.api.add_messages(KEY, [Message("user", "old")], Source())
        assert added.content == "old"
        assert (await there.close()).old_session_id == first
        assert (await there.new("Fourth")).changed
        status = await there.status()
        assert (status.busy, status.title) == (False, "Fourth")
        assert await other.admin.switch(KEY, "First")
        assert not await there.interrupt()
        assert cluster.owner(KEY) == cluster_of(owner).node
        assert await other.api.delete_conversation(KEY)


async def test_errors_arrive_as_they_were_raised(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        _, other = await two_nodes(cluster)
        there = other.conversation(KEY)
        with pytest.raises(UnknownSession, match="nothing"):
            await there.switch("nothing")
        await there.ask("hello")
        await there.set_title("Mine")
        session_id = (await there.status()).session_id
        with pytest.raises(TitleTaken) as taken:
            await there.new("Mine")
        assert (taken.value.title, taken.value.session_id) == ("Mine", session_id)
        with pytest.raises(TitleTooLong) as long:
            await there.set_title("x" * 1000)
        assert long.value.length == 1000
        with pytest.raises(ValueError, match="no message 99"):
            await there.branch(before=99)
        for key in ("one", "two"):
            await other.ask(key, "hello")
            await other.conversation(key).set_title("Twice")
        with pytest.raises(AmbiguousTitle) as ambiguous:
            await other.admin.switch(KEY, "Twice")
        assert len(ambiguous.value.session_ids) == 2
        with pytest.raises(NotOwner, match="cannot go there"):
            await there.set_agent(Snapshot(None, None))


async def test_a_running_turn_is_interrupted_and_steered_from_another_node(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        _, other = await two_nodes(cluster)
        gate = cluster.gates["a"] = trio.Event()
        there = other.conversation(KEY)
        async with trio.open_nursery() as nursery:
            replies = []

            async def ask():
                replies.append(await there.ask("hello", timeout=SECONDS))

            nursery.start_soon(ask)
            await cluster.until(lambda: cluster.turns)
            assert (await there.status()).busy
            waiting = await other.submit(inbound(KEY, 2))
            assert await other.withdraw(waiting)
            assert (await other.wait(waiting, timeout=SECONDS)).status == "withdrawn"
            await there.set_title("While it runs")
            assert await there.interrupt()
        assert [reply.status for reply in replies] == ["interrupted"]
        async with there.stream("again", interrupt_on_exit=True, timeout=SECONDS) as stream:
            pass  # the message is accepted, and its turn may not have begun
        reply = await other.wait(stream.receipt, timeout=SECONDS)
        assert reply.status == "interrupted"
        gate.set()


async def test_a_conversation_that_nobody_serves_is_claimed_by_a_verb(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        _, other = await cluster.start("a", "b")
        there = other.conversation("new key")
        assert not await there.interrupt()
        assert (await there.status()).message_count == 0
        assert cluster.sql("SELECT 1 FROM routes") == []
        assert (await there.new()).session_key == "new key"
        assert cluster.owner("new key") is None  # it did not exist before
        await there.new()
        assert cluster.owner("new key") == cluster_of(other).node


async def test_each_call_runs_once_however_many_hints_are_lost(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        owner, other = await two_nodes(cluster)
        await owner.ask(KEY, "hello")
        for node in (owner, other):
            cluster_of(node).hints = LossyHints(cluster_of(node).hints, 0.3, Random(3))
        for number in range(4):
            await other.post(KEY, f"news {number}")
        assert cluster.history(KEY, "assistant")[1:] == [f"news {number}" for number in range(4)]


async def test_a_verb_waits_for_the_turn_that_runs_at_the_owner(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        owner, other = await two_nodes(cluster)
        gate = cluster.gates["a"] = trio.Event()
        receipt = await owner.submit(inbound(KEY, 1))
        await cluster.until(lambda: cluster.turns)
        changes = []
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _():
                changes.append(await other.conversation(KEY).new())

            await trio.sleep(1.5)  # longer than the pause after which a call is sent again
            assert not changes
            gate.set()
        assert changes[0].changed
        assert (await other.wait(receipt)).text == "a: message 1"


class Shell:
    """Asks for each command of its input, and runs those that were approved."""

    def __init__(self):
        self.ran = []

        @tool(approval=True)
        def run(command: str) -> str:
            """Run a command."""
            self.ran.append(command)
            return f"ran {command}"

        self.toolbox = Toolbox([run])

    async def answer(self, turn):
        for call in await self.toolbox.approved_calls(turn):
            await self.toolbox.run(call, turn)
        if not turn.decided_calls:
            call = ToolCall("c", "run", json.dumps({"command": turn.text}))
            await self.toolbox.run(call, turn)
        return "done"


async def test_a_question_is_shown_and_decided_on_another_node(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        shell = Shell()
        owner, other = await two_nodes(cluster, agent=shell.answer)
        with other.subscribe(KEY) as events:
            await owner.submit(inbound(KEY, 1))
            with trio.fail_after(SECONDS):
                async for envelope in events:
                    if isinstance(envelope.event, ApprovalAsked):
                        break
        number = envelope.event.approval.approval_id
        reply = await other.ask(KEY, f"/approve {number}", timeout=SECONDS)
        assert reply.status == "command"
        await cluster.until(lambda: shell.ran)
        await cluster.all_answered()
        assert shell.ran == ["message 1"]
