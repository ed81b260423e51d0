"""Replies are stored: a caller gets the same one later, from another call or after a restart."""

from __future__ import annotations

import pytest
import trio

from hermes import Config, Inbound, Receipt, Source, TurnResult, Usage
from hermes.embed import start_runtime
from hermes.errors import (
    ActorStopped,
    AlreadyAnswered,
    ReplyNotFound,
    ReplyTimeout,
    WaitCircle,
)
from hermes.testing import ScriptedAgent, inspect
from tests.support.held_turns import PendingReply, held_runtime
from tests.support.killed_programs import run_until_killed
from tests.support.runtime import SECONDS, with_threads

DAY = 86400


async def answered_again(runtime, key, text, **options):
    """What a handler does that may be repeated: ask, or wait for the reply of the first time."""
    try:
        return await runtime.ask(key, text, **options)
    except AlreadyAnswered as error:
        return await runtime.wait(error.receipt)


# The same answer again


@with_threads
async def test_a_repeated_call_gets_the_same_reply(start):
    result = TurnResult(
        text="an answer", usage=[Usage(input_tokens=3, cost=0.5)], data={"price": [1, None]}
    )

    async def reply(turn):
        return result

    async with start(agent=reply) as runtime:
        first = await runtime.ask("k", "one", event_id="e", metadata={"trace": "t"})
        assert await answered_again(runtime, "k", "one", event_id="e") == first
        assert await runtime.reply_of("k", "e") == first
    async with start(agent=reply) as runtime:
        assert await answered_again(runtime, "k", "one", event_id="e") == first
        assert await runtime.conversation("k").reply_of("e") == first
    assert (first.data, first.metadata) == ({"price": [1, None]}, {"trace": "t"})


async def test_a_stream_of_an_answered_message_names_its_receipt(start):
    async with start() as runtime:
        async with runtime.stream("k", "one", event_id="e") as stream:
            first = [event async for event in stream][-1].reply
        with pytest.raises(AlreadyAnswered) as refused:
            async with runtime.stream("k", "one", event_id="e"):
                pass
        assert refused.value.receipt == stream.receipt
        assert await runtime.wait(refused.value.receipt) == first


RETRIED = """
import time
from hermes import TurnEnded

def stop_before_the_response(envelope):
    if isinstance(envelope.event, TurnEnded):
        say("committed", envelope.event.reply.text)
        time.sleep(60)

async def main():
    async with open_runtime(path, agent=echo) as runtime:
        with runtime.subscribe(callback=stop_before_the_response):
            await runtime.ask("web:1", "one", event_id="request-1", metadata={"trace": "t"})
            say("responded")

trio.run(main)
"""


def test_a_handler_that_is_killed_before_its_response_returns_the_same_answer_when_retried(path):
    lines = run_until_killed(path, RETRIED, "committed echo: one")
    assert lines == ["committed echo: one"]

    async def never(turn):
        raise AssertionError("the message was answered before")

    with start_runtime(path, agent=never) as runtime:
        with pytest.raises(AlreadyAnswered) as refused:
            runtime.ask("web:1", "one", event_id="request-1")
        reply = runtime.wait(refused.value.receipt)
        assert (reply.text, reply.status) == ("echo: one", "complete")
        assert reply.metadata == {"trace": "t"}
        assert runtime.reply_of("web:1", "request-1") == reply


# Waiting


@with_threads
async def test_wait_returns_a_reply_that_comes_later(start):
    async with held_runtime(start) as here:
        receipt = await here.runtime.submit(Inbound("k", "e", "one"))
        await here.agent.wait_started()
        waiting = [PendingReply() for _ in range(3)]
        for each in waiting:
            here.nursery.start_soon(each.run, lambda: here.runtime.wait(receipt))
        while inspect(here.runtime).waiting_callers == 0:
            await here.settle()
        assert await here.runtime.reply_of("k", "e") is None
        here.agent.release(0)
        replies = [await each.wait() for each in waiting]
        assert {reply.turn_id for reply in replies} == {receipt.inbox_id}
        assert await here.runtime.wait(receipt) == replies[0]
        assert inspect(here.runtime).waiting_callers == 0


async def test_a_wait_continues_after_a_restart(start):
    async with held_runtime(start) as here:
        receipt = await here.runtime.submit(Inbound("k", "e", "one"))
        await here.agent.wait_started()
        waiting = PendingReply()
        here.nursery.start_soon(waiting.run, lambda: here.runtime.wait(receipt))
        while inspect(here.runtime).waiting_callers == 0:
            await here.settle()
        await here.runtime.drain(0)
        with pytest.raises(ActorStopped):
            await waiting.wait()
        with pytest.raises(ActorStopped, match="the runtime has ended"):
            await here.runtime.wait(receipt)
    with trio.fail_after(SECONDS):
        async with start() as runtime:
            assert (await runtime.wait(receipt)).text == "echo: one"


async def test_a_reply_that_arrives_while_wait_looks_for_it_is_found(start_proxy):
    looked, gate = trio.Event(), trio.Event()

    async def late(real, inbox_id):
        found = await real(inbox_id)
        if not looked.is_set():
            looked.set()
            await gate.wait()
        return found

    with trio.fail_after(SECONDS):
        async with (
            start_proxy(get_outcome=late) as runtime,
            trio.open_nursery() as nursery,
        ):
            waiting = PendingReply()
            receipt = await runtime.submit(Inbound("k", "e", "one", linger=0.2))
            nursery.start_soon(waiting.run, lambda: runtime.wait(receipt))
            await looked.wait()
            await inspect(runtime).wait_idle("k")
            gate.set()
            assert (await waiting.wait()).text == "echo: one"
            assert inspect(runtime).waiting_callers == 0


async def test_wait_can_have_a_timeout(start, autojump_clock):
    async with held_runtime(start) as here:
        receipt = await here.runtime.submit(Inbound("k", "e", "one"))
        with pytest.raises(ReplyTimeout) as raised:
            await here.runtime.wait(receipt, timeout=5)
        assert raised.value.receipt == receipt
        assert inspect(here.runtime).waiting_callers == 0
        here.agent.release(0)
        assert (await here.runtime.wait(receipt, timeout=5)).text == "answer 0"


async def test_a_turn_cannot_wait_for_its_own_message(start):
    errors = []

    async def wait_for_itself(turn):
        receipt = Receipt(turn.turn_id, "k", turn.session_id, 1, 0.0)
        try:
            await runtime.wait(receipt)
        except WaitCircle as error:
            errors.append(error)
        return "done"

    with trio.fail_after(SECONDS):
        async with start(agent=wait_for_itself) as runtime:
            assert (await runtime.ask("k", "one")).text == "done"
    assert len(errors) == 1


# Other outcomes


async def test_messages_of_one_turn_have_the_same_reply(start):
    async with held_runtime(start) as here:
        receipts = [await here.runtime.submit(Inbound("k", f"e{n}", f"{n}")) for n in range(3)]
        await here.agent.wait_started()
        here.agent.release(0, 1)
        replies = [await here.runtime.wait(receipt) for receipt in receipts]
        assert replies[1] == replies[2] != replies[0]
        assert [reply.text for reply in replies] == ["answer 0", "answer 1", "answer 1"]


async def test_the_reply_to_a_command_is_stored_with_its_session(start):
    async with start() as runtime:
        await runtime.ask("k", "one")
        new = await runtime.ask("k", "/new birds", event_id="n")
        status = await runtime.ask("k", "/status", event_id="s")
        assert new.session_id == status.session_id
        assert await runtime.reply_of("k", "n") == new
        assert await runtime.reply_of("k", "s") == status


async def test_a_cancelled_message_has_a_reply_that_says_so(start):
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        waiting = [
            await here.send(text, event_id=text, metadata={"n": text}) for text in ("two", "three")
        ]
        stopped = await here.runtime.ask("k", "/stop", event_id="stop")
        for text, each in zip(("two", "three"), waiting, strict=True):
            reply = await each.wait()
            assert reply.status == "refused"
            assert await here.runtime.reply_of("k", text) == reply
        assert await here.runtime.reply_of("k", "stop") == stopped


async def test_a_rejected_message_has_a_stored_reply(start):
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        rejected = await here.runtime.ask("k", "two", event_id="e", when_busy="reject")
        assert rejected.status == "refused"
        assert await here.runtime.reply_of("k", "e") == rejected
        here.agent.release(0)


async def test_a_parked_message_has_a_stored_reply(start, sql):
    async with held_runtime(start) as here:
        receipt = await here.runtime.submit(Inbound("k", "e", "one"))
        await here.agent.wait_started()
        await here.runtime.drain(0)
    sql("UPDATE inbox SET attempts = 5")
    with trio.fail_after(SECONDS):
        async with start(config=Config(max_attempts=3)) as runtime:
            reply = await runtime.wait(receipt)
            assert (reply.status, reply.turn_id) == ("refused", receipt.inbox_id)
            assert "I gave up" in reply.text
            assert await runtime.wait(receipt) == reply


async def test_an_agent_that_moves_to_another_session_is_named_in_the_stored_reply(start):
    agent = ScriptedAgent([[TurnResult(text="moved", session_id="another")]])
    async with start(build_agent=lambda _: agent) as runtime:
        reply = await runtime.ask("k", "one", event_id="e")
        assert reply.session_id == "another"
        assert await runtime.reply_of("k", "e") == reply


# Unknown messages


async def test_an_unknown_event_has_no_reply(start):
    async with start() as runtime:
        await runtime.ask("k", "one", event_id="e", source=Source("web", "a"))
        assert await runtime.reply_of("k", "e") is None
        assert await runtime.reply_of("k", "other", source=Source("web", "a")) is None
        assert await runtime.reply_of("other", "e", source=Source("web", "a")) is None
        found = await runtime.reply_of("k", "e", source=Source("web", "a", chat_id="c"))
        assert found.text == "echo: one"
        assert await runtime.conversation("k", source=Source("web", "a")).reply_of("e") == found


async def test_wait_for_an_unknown_message_is_an_error(start):
    async with start() as runtime:
        with pytest.raises(ReplyNotFound, match="message 7 is unknown"):
            await runtime.wait(Receipt(7, "k", "s", 1, 0.0))


async def test_replies_are_kept_for_thirty_days(start, world):
    async with start() as runtime:
        receipt = await runtime.submit(Inbound("k", "e", "one"))
        reply = await runtime.wait(receipt)
        world.pass_time(29 * DAY)
        await inspect(runtime).store.forget_closed()
        assert await runtime.wait(receipt) == reply
        world.pass_time(2 * DAY)
        await inspect(runtime).store.forget_closed()
        with pytest.raises(ReplyNotFound, match="answered long ago"):
            await runtime.wait(receipt)
        assert await runtime.reply_of("k", "e") is None


async def test_a_message_of_an_earlier_version_has_no_stored_reply(start, sql):
    async with start() as runtime:
        receipt = await runtime.submit(Inbound("k", "e", "one"))
        await runtime.wait(receipt)
        sql("UPDATE inbox SET turn_id = NULL, reply = NULL")
        with pytest.raises(ReplyNotFound, match="closed without a stored reply"):
            await runtime.wait(receipt)
        with pytest.raises(ReplyNotFound):
            await runtime.reply_of("k", "e")
        sql("UPDATE inbox SET state = 'parked', note = 'begun too often'")
        with pytest.raises(ReplyNotFound, match=r"\(begun too often\)"):
            await runtime.wait(receipt)
