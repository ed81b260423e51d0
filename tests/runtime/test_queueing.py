"""Messages that arrive during a turn: they are queued or rejected."""

from __future__ import annotations

import pytest

from hermes import Config, Inbound, Source
from hermes.errors import Overloaded
from hermes.messages import Accepted, Receipt
from hermes.testing import MemoryAdapter, inspect, texts_of
from tests.support.held_turns import held_runtime
from tests.support.runtime import with_threads


@with_threads
async def test_queued_messages_become_one_turn_in_inbox_order(start):
    replies = []
    async with held_runtime(start) as here:

        async def tell(n):
            replies.append(await here.runtime.ask("k", f"text {n}", event_id=f"text {n}"))

        first = await here.send("first")
        await here.agent.wait_started()
        for n in range(40):
            here.nursery.start_soon(tell, n)
        while len(await here.inbox()) < 41:
            pass
        await here.settle()
        order = await here.store.snapshot(
            lambda tx: tx.all("SELECT event_id FROM inbox WHERE id > 1 ORDER BY id")
        )
        here.agent.release(0)
        second = await here.agent.wait_started(1)
        assert here.agent.inputs() == [["first"], [text for (text,) in order]]
        assert second.turn_id == 2
        here.agent.release(1)
        assert (await first.wait()).text == "answer 0"
    assert len(replies) == 40
    assert {(reply.text, reply.turn_id) for reply in replies} == {("answer 1", 2)}


async def test_a_message_that_is_delivered_twice_is_answered_once(start):
    """An actor may read a message from the store before the store hands it over."""
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        await here.send("two")
        [row] = (await here.store.open_inbox("k"))[1:]
        route, head = await here.store.route_head("k")
        receipt = Receipt(row.inbox_id, "k", route.session_id, route.epoch, row.accepted_at)
        inspect(here.runtime).deliver(Accepted(receipt, head, row.inbound, route=route))
        here.agent.release(0, 1)
        await here.agent.wait_started(1)
        assert here.agent.inputs() == [["one"], ["two"]]


async def test_the_next_turn_has_the_first_in_its_history(start):
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        await here.send("two")
        await here.send("three")
        here.agent.release(0, 1)
        second = await here.agent.wait_started(1)
        assert texts_of(second.history) == [("user", "one"), ("assistant", "answer 0")]
        assert second.text == "two\n\nthree"
    with_second = [*texts_of(second.history)]
    assert with_second[-3:] == [("user", "two"), ("user", "three"), ("assistant", "answer 1")]


async def test_messages_beyond_the_mailbox_capacity_are_answered_in_order(start):
    async with held_runtime(start) as here:
        agent = here.agent
        await here.send("0")
        await agent.wait_started()
        for n in range(1, 81):  # the mailbox holds 64
            await here.runtime.submit(Inbound("k", f"e{n}", str(n)))
        agent.release(0)
        await agent.wait_started(1)
        await here.runtime.submit(Inbound("k", "e81", "81"))
        agent.release(1, 2, 3, 4)
        await here.runtime.ask("k", "82")
    said = [int(text) for texts in agent.inputs() for text in texts]
    assert said == list(range(83))


async def test_an_attempt_of_a_queued_message_is_counted_when_its_turn_starts(start):
    """Otherwise a message that kills the process would be tried once too often."""
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        await here.send("two")
        here.agent.release(0)
        await here.agent.wait_started(1)
        assert await here.inbox() == [(1, "done", 1), (2, "open", 1)]
        here.agent.release(1)


async def test_messages_over_the_limit_are_refused_and_not_stored(start):
    async with held_runtime(start, config=Config(max_queued=3)) as here:
        await here.send("one")
        await here.agent.wait_started()
        await here.send("two")
        await here.send("three")
        with pytest.raises(Overloaded, match="3 messages already wait"):
            await here.runtime.ask("k", "four")
        assert len(await here.inbox()) == 3
        await here.send("elsewhere", key="other")
        here.agent.release(0, 1, 2)


async def test_changing_the_parts_after_sending_does_not_change_the_message(start):
    """The turn gets what was stored, as it would after a crash."""
    part = {"type": "text", "text": "before"}
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        await here.send("two", parts=[part])
        part["text"] = "after"
        here.agent.release(0, 1)
        second = await here.agent.wait_started(1)
        assert second.input[0].parts == ({"type": "text", "text": "before"},)


# Rejected messages


@with_threads
@pytest.mark.parametrize("way", ["config", "message"])
async def test_a_rejected_message_gets_a_notice_and_leaves_no_rows(start, way):
    adapter = MemoryAdapter()
    source = Source("memory", chat_id="c")
    config = Config(when_busy="reject") if way == "config" else Config()
    busy = None if way == "config" else "reject"
    async with held_runtime(start, config=config, adapters=[adapter]) as here:
        first = await here.send("one", source=source)
        await here.agent.wait_started()
        reply = await (await here.send("two", source=source, when_busy=busy)).wait()
        assert reply.status == "refused"
        assert "send this again" in reply.text
        assert not first.done
        assert [state for _, state, _ in await here.inbox()] == ["open", "done"]
        await adapter.wait_sent(1)
        here.agent.release(0)
        await first.wait()
        await adapter.wait_sent(2)
        assert [row.body["kind"] for row in adapter.sent] == ["notice", "reply"]
        assert adapter.texts == [reply.text, "answer 0"]
        assert await here.history() == [("user", "one"), ("assistant", "answer 0")]
    assert len(here.agent.turns) == 1


async def test_nothing_is_rejected_while_no_turn_runs(start):
    async with held_runtime(start, config=Config(when_busy="reject")) as here:
        for n in range(3):
            asked = await here.send(str(n))
            await here.agent.wait_started(n)
            here.agent.release(n)
            assert (await asked.wait()).text == f"answer {n}"


# The policy of a platform or a message


async def test_each_platform_has_its_own_policy(start):
    config = Config(
        when_busy="queue", when_busy_by_platform={"chat": "interrupt", "mail": "reject"}
    )
    async with held_runtime(start, config=config) as here:
        first = await here.send("one")
        await here.agent.wait_started()
        plain = await here.send("plain")
        mail = await here.send("mail", source=Source("mail"))
        assert (await mail.wait()).status == "refused"
        assert not first.done
        chat = await here.send("chat", source=Source("chat"))
        assert (await first.wait()).status == "interrupted"
        await here.agent.wait_started(1)
        here.agent.release(1)
        assert await plain.wait() == await chat.wait()
        assert here.agent.inputs() == [["one"], ["plain", "chat"]]


async def test_the_policy_of_a_message_overrides_the_configuration(start):
    async with held_runtime(start, config=Config(when_busy="interrupt")) as here:
        first = await here.send("one")
        await here.agent.wait_started()
        second = await here.send("two", when_busy="queue")
        third = await here.send("/queue three")
        assert not first.done
        here.agent.release(0)
        assert (await first.wait()).status == "complete"
        await here.agent.wait_started(1)
        here.agent.release(1)
        assert await second.wait() == await third.wait()
        assert here.agent.inputs() == [["one"], ["two", "three"]]
