"""Messages that an agent sends unasked."""

from __future__ import annotations

import asyncio

import pytest
import trio

from hermes import Config, ExpiryPolicy, Inbound, MessagePosted, Source, embed
from hermes.errors import ActorStopped, HermesError, WaitCircle
from hermes.messages import TurnResult
from hermes.testing import CountingBuilder, MemoryAdapter, inspect, texts_of
from tests.support.held_turns import PendingReply, held_runtime
from tests.support.killed_programs import run_until_killed, table_rows
from tests.support.runtime import SECONDS, with_threads

CHAT = Source("memory", "bot", "chat", user_id="ann", thread_id="7")


async def outbox(runtime):
    """The bodies of all outbox rows."""
    return await inspect(runtime).store.snapshot(
        lambda tx: tx.all(
            "SELECT lane, body ->> 'kind', body ->> 'text', body ->> 'session_id' FROM outbox"
        )
    )


# The transcript and the delivery


@with_threads
async def test_a_post_is_in_the_transcript_and_delivered_where_the_last_reply_was(start):
    adapter = MemoryAdapter()
    async with start(adapters=[adapter]) as runtime:
        first = await runtime.ask("k", "one", source=CHAT)
        with runtime.subscribe("k") as events:
            posted = await runtime.post("k", "Your parcel has arrived.")
            envelope = await anext(events)
        assert envelope.event == MessagePosted(first.session_id, posted)
        assert envelope.turn_id is None
        assert (posted.role, posted.content) == ("assistant", "Your parcel has arrived.")
        history = await runtime.conversation("k").history()
        assert history[-1] == posted
        assert len(history) == 3
        await adapter.wait_sent(2)
        reply, sent = adapter.sent
        assert sent.body == {
            **reply.body, "kind": "post", "text": posted.content, "reply_to": None,
        }  # fmt: skip
        assert sent.lane == reply.lane


async def test_a_post_can_name_another_chat(start):
    adapter = MemoryAdapter()
    async with start(adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await runtime.post("k", "hello", source=Source("memory", chat_id="another"))
        handle = runtime.conversation("k", source=Source("memory", chat_id="third"))
        await handle.post("hello again")
        await adapter.wait_sent(3)
        assert [row.body["chat_id"] for row in adapter.sent] == ["chat", "another", "third"]


async def test_a_post_to_a_new_conversation_creates_its_session(start, sql):
    async with start() as runtime:
        await runtime.post("k", "Welcome!", source=CHAT)
        session_id = (await runtime.conversation("k").status()).session_id
        [session] = sql("SELECT id, source, session_key, chat_id, user_id, thread_id FROM sessions")
        assert session == [session_id, "memory", "k", "chat", "ann", "7"]
        reply = await runtime.ask("k", "Thanks.", source=CHAT)
        assert reply.session_id == session_id
        assert texts_of(await runtime.conversation("k").history()) == [
            ("assistant", "Welcome!"), ("user", "Thanks."), ("assistant", "echo: Thanks."),
        ]  # fmt: skip
        assert [row[3] for row in await outbox(runtime)] == [session_id, session_id]


async def test_without_a_known_chat_a_post_stays_in_the_conversation(start):
    async with start() as runtime:
        await runtime.post("k", "Welcome!")
        assert texts_of(await runtime.conversation("k").history()) == [("assistant", "Welcome!")]


async def test_a_post_after_the_outbox_was_cleared_goes_where_the_session_began(start, world):
    adapter = MemoryAdapter()
    async with start(adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await adapter.wait_sent(1)
        await inspect(runtime).wait_sent()
        world.pass_time(40 * 86400)
        await inspect(runtime).store.forget_closed()
        await runtime.post("k", "hello")
        await adapter.wait_sent(2)
        body = adapter.sent[1].body
        assert (body["chat_id"], body["thread_id"], body["user_id"]) == ("chat", "7", "ann")


async def test_a_pending_title_is_applied_by_a_post(start):
    async with start() as runtime:
        chat = runtime.conversation("k")
        await chat.new(title="Parcels")
        await chat.post("Welcome!")
        assert (await chat.title()).text == "Parcels"
        assert not (await chat.title()).pending


KILLED = """
async def main():
    async with open_runtime(path, agent=echo, adapters=[Stuck()]) as runtime:
        await runtime.post("k", "hello", source=chat("a"))
        await trio.sleep_forever()

trio.run(main)
"""


async def test_a_post_whose_process_is_killed_is_delivered_after_the_restart(path, start):
    run_until_killed(path, KILLED, "sending 1 hello")
    assert table_rows(path, "content", "all_messages") == [("hello",)]
    adapter = MemoryAdapter()
    with trio.fail_after(SECONDS):
        async with start(adapters=[adapter]) as runtime:
            await adapter.wait_sent(1)
            assert texts_of(await runtime.conversation("k").history()) == [("assistant", "hello")]
    assert [row.body["chat_id"] for row in adapter.sent] == ["a"]


# Between turns


@with_threads
async def test_a_post_waits_for_the_running_turn(start):
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        posting = PendingReply()
        here.nursery.start_soon(posting.run, lambda: here.runtime.post("k", "news"))
        await here.settle()
        assert not posting.done
        here.agent.release(0)
        await posting.wait()
        expected = [("user", "one"), ("assistant", "answer 0"), ("assistant", "news")]
        assert await here.history() == expected


class Historian:
    """An agent that records the history of each turn."""

    def __init__(self):
        self.histories = []

    async def run(self, turn):
        self.histories.append([row.content for row in turn.history])
        return TurnResult(text="done")


async def test_a_post_does_not_rebuild_the_agent_which_sees_it(start):
    agent = Historian()
    async with start(build_agent=CountingBuilder(lambda _: agent)) as runtime:
        await runtime.ask("k", "one")
        await runtime.post("k", "news")
        reply = await runtime.ask("k", "two")
        assert reply.build_reason is None
    assert agent.histories == [[], ["one", "done", "news"]]


async def test_a_foreign_write_before_a_post_is_still_noticed(start, path, in_other_process):
    agent = Historian()
    async with start(build_agent=CountingBuilder(lambda _: agent)) as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
        in_other_process(session_id, "store.append_message(sid, 'user', 'foreign')")
        await runtime.post("k", "news")
        reply = await runtime.ask("k", "two")
        assert reply.build_reason == "foreign-write"
    assert agent.histories == [[], ["one", "done", "foreign", "news"]]


async def test_a_post_to_a_compressed_session_goes_to_its_continuation(start, in_other_process):
    async with start() as runtime:
        old = (await runtime.ask("k", "one")).session_id
        rotate = (
            "store.rotate(Rotation(session_id=sid, messages=[Message('user', 'summary')], "
            "rotation_id='r', rewrites=0, upto=rows[-1].id))"
        )
        in_other_process(old, rotate)
        posted = await runtime.post("k", "news")
        status = await runtime.conversation("k").status()
        assert status.session_id != old
        assert (await runtime.conversation("k").history())[-1] == posted
        assert (await runtime.ask("k", "two")).session_id == status.session_id


async def test_a_post_to_an_expired_conversation_starts_a_new_session(start, world):
    config = Config(expiry=ExpiryPolicy(mode="idle", idle_minutes=1))
    async with start(config=config) as runtime:
        old = (await runtime.ask("k", "one")).session_id
        world.pass_time(120)
        await runtime.post("k", "news")
        assert (await runtime.conversation("k").status()).session_id != old
        assert texts_of(await runtime.conversation("k").history()) == [("assistant", "news")]


async def test_an_agent_cannot_post_into_its_own_turn_but_into_other_conversations(start):
    errors = []

    async def reply(turn):
        try:
            await runtime.post(turn.session_key, "news")
        except WaitCircle as error:
            errors.append(error)
        await runtime.post("other", f"news from {turn.session_key}")
        return "done"

    with trio.fail_after(SECONDS):
        async with start(agent=reply) as runtime:
            await runtime.ask("k", "one")
            assert texts_of(await runtime.conversation("other").history()) == [
                ("assistant", "news from k")
            ]
    assert len(errors) == 1


# Refusals


@pytest.mark.parametrize("text", ["", "   ", "\n\t", None, 5, b"bytes"])
async def test_a_post_without_a_text_is_refused(start, text):
    kind = ValueError if isinstance(text, str) else TypeError
    async with start() as runtime:
        with pytest.raises(kind, match=r"or an attachment$|^text must be a string, not "):
            await runtime.post("k", text)
        assert await runtime.conversation("k").history() == []
        with pytest.raises(ValueError, match="session_key"):
            await runtime.post("two\nlines", "hello")
        assert (await runtime.ask("k", "hello")).text == "echo: hello"


async def test_a_post_is_redacted(start):
    def redact(text):
        if "fail" in text:
            raise OSError("broken")
        return text.replace("secret", "***")

    async with start(redact=redact) as runtime:
        assert (await runtime.post("k", "a secret")).content == "a ***"
        with pytest.raises(HermesError, match="nothing was posted"):
            await runtime.post("k", "fail")
        assert [row[2] for row in await outbox(runtime)] == ["a ***"]


async def test_nothing_is_posted_after_a_drain(start):
    async with start() as runtime:
        await runtime.drain()
        with pytest.raises(ActorStopped):
            await runtime.post("k", "too late")


# The other hosts


async def echo(turn):
    return f"echo: {turn.text}"


def test_the_verbs_in_a_program_without_an_event_loop(path):
    with embed.start_runtime(path, agent=echo) as runtime:
        receipt = runtime.submit(Inbound("k", "e", "one"))
        reply = runtime.wait(receipt, timeout=SECONDS)
        assert reply == runtime.conversation("k").reply_of("e")
        assert not runtime.withdraw(receipt)
        assert runtime.conversation("k").post("news").content == "news"
        with runtime.stream("k", "two", metadata={"a": 1}, timeout=SECONDS) as stream:
            list(stream)
        assert (stream.reply.metadata, stream.receipt.session_key) == ({"a": 1}, "k")


def test_the_verbs_in_an_asyncio_program(path):
    async def main():
        async with embed.open_runtime_asyncio(path, agent=echo) as runtime:
            receipt = await runtime.submit(Inbound("k", "e", "one"))
            reply = await runtime.wait(receipt, timeout=SECONDS)
            assert reply == await runtime.conversation("k").reply_of("e")
            assert not await runtime.withdraw(receipt)
            assert (await runtime.conversation("k").post("news")).content == "news"
            async with runtime.stream("k", "two", metadata={"a": 1}, timeout=SECONDS) as stream:
                [event async for event in stream]
            assert (stream.reply.metadata, stream.receipt.session_key) == ({"a": 1}, "k")

    asyncio.run(main())
