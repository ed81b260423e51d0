"""Delivery of replies: parts, chats that no longer exist, accounts, previews and shutdown."""

from __future__ import annotations

from collections import defaultdict
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hermes import Config, Inbound, Source
from hermes.adapters.previews import Previews
from hermes.adapters.rate_limit import Rate, RateLimiter
from hermes.errors import (
    HermesError,
    MessageRefused,
    OutcomeUnknown,
    RetryAfter,
    Unsendable,
)
from hermes.events import TextDelta
from hermes.messages import Outbound, TurnResult
from hermes.testing import MemoryAdapter, ScriptedAgent
from tests.support.killed_programs import run_until_killed
from tests.support.outbox import (
    CHAT,
    LONG,
    PARTS,
    GatedAdapter,
    TimedAdapter,
    leave_replies,
    outbox,
    saying,
)
from tests.support.runtime import SECONDS, with_threads

# Parts


@with_threads
async def test_a_long_reply_is_sent_in_parts_in_order(start, path):
    adapter = MemoryAdapter(limit=15)
    with trio.fail_after(SECONDS):
        async with start(build_agent=saying(LONG, "short"), adapters=[adapter]) as runtime:
            reply = await runtime.ask("k", "one", source=CHAT)
            await runtime.ask("k", "two", source=CHAT)
            await adapter.wait_sent(5)
    assert reply.text == LONG, "whoever asked hears it whole"
    assert adapter.texts == [*PARTS, "short"]
    assert [(row.part, row.parts) for row in adapter.sent] == [(n, 4) for n in range(4)] + [(0, 1)]
    assert {row.outbox_id for row in adapter.sent[:4]} == {1}
    assert {row.body["chat_id"] for row in adapter.sent} == {"c"}
    assert not any(row.recovered for row in adapter.sent)
    assert outbox(path, "state, attempts") == [("sent", 1), ("sent", 1)]


async def test_without_a_limit_a_reply_is_one_message(start):
    adapter = MemoryAdapter()
    with trio.fail_after(SECONDS):
        async with start(build_agent=saying("x" * 100_000), adapters=[adapter]) as runtime:
            await runtime.ask("k", "one", source=CHAT)
            await adapter.wait_sent(1)
    assert adapter.texts == ["x" * 100_000]


class AtPart(MemoryAdapter):
    """A platform that fails at one part of a reply."""

    def __init__(self, part, errors, late=()):
        super().__init__(limit=15)
        self.part, self.trouble, self.late = part, list(errors), list(late)

    async def send(self, row):
        if row.part == self.part and self.trouble:
            raise self.trouble.pop(0)
        await super().send(row)
        if row.part == self.part and self.late:
            raise self.late.pop(0)


@pytest.mark.parametrize(
    ("trouble", "recovered"),
    [
        (RetryAfter("slow down", 3), False),
        (MessageRefused("no"), False),
        (OutcomeUnknown("cut off"), True),
        (OSError("cut off"), True),
    ],
)
async def test_an_error_in_the_middle_does_not_resend_earlier_parts(
    start, path, autojump_clock, trouble, recovered
):
    adapter = AtPart(2, [trouble])
    async with start(build_agent=saying(LONG), adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await adapter.wait_sent(4)
    assert adapter.texts == PARTS
    assert [row.recovered for row in adapter.sent] == [False, False, recovered, False]
    assert outbox(path, "state, attempts, recovered") == [("sent", 2, 0)], "nor is the last marked"


async def test_only_the_part_with_an_unknown_outcome_is_sent_twice(start, autojump_clock):
    adapter = AtPart(1, [], late=[OutcomeUnknown("no answer")])
    async with start(build_agent=saying(LONG), adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await adapter.wait_sent(5)
    assert adapter.texts == [PARTS[0], PARTS[1], *PARTS[1:]]
    assert [row.recovered for row in adapter.sent] == [False, False, True, False, False]


IN_PART = """
class Parts(Stuck):
    limit = 15

async def long(turn):
    return LONG

async def main():
    async with open_runtime(path, agent=long, adapters=[Parts(good=2)]) as runtime:
        await runtime.ask("k", "one", source=chat("c"))
        await trio.sleep_forever()

trio.run(main)
"""


@with_threads
async def test_after_a_kill_between_two_parts_the_rest_is_sent(start, path):
    said = run_until_killed(path, f"LONG = {LONG!r}" + IN_PART, "sending 1 third line")
    assert said == [f"sending 1 {part}" for part in PARTS[:3]]
    assert outbox(path, "state, parts_sent") == [("sending", 2)]
    adapter = MemoryAdapter(limit=15)
    with trio.fail_after(SECONDS):
        async with start(adapters=[adapter]) as runtime:
            await runtime.ask("k", "more", source=CHAT)
            await adapter.wait_sent(3)
    assert adapter.texts == [*PARTS[2:], "echo: more"]
    assert [row.recovered for row in adapter.sent] == [True, False, False]
    assert [row.part for row in adapter.sent] == [2, 3, 0]


async def test_a_reply_whose_parts_were_all_sent_is_not_sent_again(start, path, sql):
    """Killed after the last part, with a longer limit since: nothing is left to send."""
    leave_replies(path, Outbound("memory//c/", {"platform": "memory", "text": LONG}))
    sql("UPDATE outbox SET parts_sent = 3")
    adapter = MemoryAdapter(limit=30)
    with trio.fail_after(SECONDS):
        async with start(adapters=[adapter]) as runtime:
            await runtime.ask("k", "more", source=CHAT)
            await adapter.wait_sent(1)
    assert adapter.texts == ["echo: more"]
    assert outbox(path) == ["sent", "sent"]


# Before it is sent


WAITING = """
class Patient(Stuck):
    limit = 15
    async def ready(self, row):
        say("waits", row.outbox_id, row.part)
        if row.part == PART:
            await trio.sleep_forever()

async def long(turn):
    return LONG

async def main():
    async with open_runtime(path, agent=long, adapters=[Patient(good=9)]) as runtime:
        await runtime.ask("k", "one", source=chat("c"))
        await trio.sleep_forever()

trio.run(main)
"""


@with_threads
@pytest.mark.parametrize("part", [0, 2])
async def test_a_reply_that_was_waiting_when_the_process_was_killed_is_not_marked(
    start, path, part
):
    """The platform cannot have it."""
    said = run_until_killed(path, f"LONG, PART = {LONG!r}, {part}" + WAITING, f"waits 1 {part}")
    assert said[-2:] == ([f"sending 1 {PARTS[1]}"] if part else []) + [f"waits 1 {part}"]
    assert outbox(path, "state, parts_sent, recovered") == [("pending", part, 0)]
    adapter = MemoryAdapter(limit=15)
    with trio.fail_after(SECONDS):
        async with start(adapters=[adapter]):
            await adapter.wait_sent(4 - part)
    assert adapter.texts == PARTS[part:]
    assert not any(row.recovered for row in adapter.sent)


class Patient(MemoryAdapter):
    """A platform that records what it was asked, and may refuse before a send."""

    def __init__(self, path, errors=(), early=(), **options):
        super().__init__(errors=list(errors), **options)
        self.path, self.early, self.asked = path, list(early), []

    async def ready(self, row):
        [state] = outbox(self.path)
        self.asked.append(("ready", row.body["text"], state))
        await trio.lowlevel.checkpoint()
        if self.early:
            raise self.early.pop(0)

    async def send(self, row):
        [state] = outbox(self.path)
        self.asked.append(("send", row.body["text"], state))
        await super().send(row)


async def test_each_part_and_each_attempt_waits_before_it_counts_as_started(
    start, path, autojump_clock
):
    adapter = Patient(path, [OSError("cut off")], limit=15)
    async with start(build_agent=saying(LONG), adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await adapter.wait_sent(4)
    tries = [PARTS[0], *PARTS]
    steps = [("ready", "pending"), ("send", "sending")]
    assert adapter.asked == [(verb, text, state) for text in tries for verb, state in steps]
    assert adapter.texts == PARTS
    assert [row.recovered for row in adapter.sent] == [True, False, False, False]


@pytest.mark.parametrize(
    ("early", "waited"), [(RetryAfter("flood", 7), 7), (MessageRefused("no"), 1), (OSError("x"), 1)]
)
async def test_a_failure_before_sending_is_retried_and_its_outcome_is_known(
    start, path, autojump_clock, early, waited
):
    adapter = Patient(path, early=[early])
    async with start(adapters=[adapter]) as runtime:
        begun = trio.current_time()
        await runtime.ask("k", "one", source=CHAT)
        await adapter.wait_sent(1)
    assert trio.current_time() - begun == pytest.approx(waited, abs=0.5)
    assert [(verb, state) for verb, _, state in adapter.asked] == [
        ("ready", "pending"),
        ("ready", "pending"),
        ("send", "sending"),
    ]
    assert outbox(path, "state, attempts, recovered") == [("sent", 1, 0)]


async def test_a_chat_may_be_found_to_be_gone_before_anything_is_sent(start_proxy, path):
    adapter = Patient(path, early=[Unsendable("they left")])
    async with closing(start_proxy, adapter) as (runtime, closed):
        await runtime.ask("k", "one", source=CHAT)
        await closed.wait()
    assert adapter.texts == []
    assert outbox(path, "state, note, attempts") == [("dead", "they left", 0)]


# Chats that no longer exist


@asynccontextmanager
async def closing(start_proxy, adapter, **verbs):
    """Open a runtime, with an event that is set when a lane is closed."""
    closed = trio.Event()

    async def close(real, *args, **kwargs):
        dead = await real(*args, **kwargs)
        closed.set()
        return dead

    verbs.setdefault("mark_lane_dead", close)
    with trio.fail_after(SECONDS):
        async with start_proxy(adapters=[adapter], **verbs) as runtime:
            yield runtime, closed


async def test_a_chat_that_is_gone_is_not_tried_again_until_there_is_a_new_reply(start_proxy, path):
    adapter = GatedAdapter(errors=[Unsendable("the bot was blocked")])
    async with closing(start_proxy, adapter) as (runtime, closed):
        for n in range(130):  # more than a lane holds
            await runtime.ask("k", str(n), source=CHAT)
        await runtime.ask("l", "elsewhere", source=Source("memory", chat_id="d"))
        adapter.gate.set()
        await closed.wait()
        await adapter.wait_sent(1)
        await runtime.ask("k", "later", source=CHAT)
        await adapter.wait_sent(2)
    assert sorted(adapter.texts) == ["echo: elsewhere", "echo: later"]
    assert outbox(path, "state, note") == [
        *([("dead", "the bot was blocked")] * 130),
        ("sent", None),
        ("sent", None),
    ]
    assert set(adapter.attempts.values()) == {1}


async def test_replies_sent_before_a_chat_was_gone_are_not_marked_as_dead(start_proxy, path):
    """That it was sent is written a little later, together with others."""

    class Leaving(MemoryAdapter):
        async def send(self, row):
            if row.outbox_id == 2:
                raise Unsendable("gone")
            await super().send(row)

    adapter = Leaving()
    async with closing(start_proxy, adapter) as (runtime, closed):
        for n in range(2):
            await runtime.ask("k", str(n), source=CHAT)
        await closed.wait()
    assert outbox(path) == ["sent", "dead"]


async def test_a_part_that_cannot_be_delivered_is_named(start_proxy, path):
    adapter = AtPart(2, [Unsendable("they left")])

    async with closing(start_proxy, adapter, build_agent=saying(LONG)) as (runtime, closed):
        await runtime.ask("k", "one", source=CHAT)
        await closed.wait()
    assert adapter.texts == PARTS[:2]
    assert outbox(path, "state, note, parts_sent") == [("dead", "part 3 of 4: they left", 2)]


async def test_a_note_is_bounded_and_can_be_stored(start_proxy, path):
    adapter = MemoryAdapter(errors=[Unsendable("\ud800" + "x" * 10_000)])
    async with closing(start_proxy, adapter) as (runtime, closed):
        await runtime.ask("k", "one", source=CHAT)
        await closed.wait()
    [note] = outbox(path, "note")
    assert note == "?" + "x" * 499


async def test_a_reply_that_arrives_while_the_chat_is_given_up_is_not_lost(start_proxy, path):
    """It is stored after the others were given up, and reaches the lane before that result does."""
    adapter = GatedAdapter(errors=[Unsendable("gone")])
    given_up, written = trio.Event(), trio.Event()

    async def close(real, *args, **kwargs):
        dead = await real(*args, **kwargs)
        given_up.set()
        await written.wait()
        return dead

    with trio.fail_after(SECONDS):
        async with start_proxy(adapters=[adapter], mark_lane_dead=close) as runtime:
            await runtime.ask("k", "one", source=CHAT)
            await runtime.ask("k", "two", source=CHAT)
            adapter.gate.set()
            await given_up.wait()
            await runtime.ask("k", "three", source=CHAT)
            written.set()
            await adapter.wait_sent(1)
    assert adapter.texts == ["echo: three"]
    assert outbox(path) == ["dead", "dead", "sent"]


# Many chats


async def test_a_thousand_concurrent_chats_of_which_one_is_stuck_and_some_are_slow(
    start_proxy, path
):
    """No lane waits for another."""

    class Busy(MemoryAdapter):
        async def send(self, row):
            chat = int(row.body["chat_id"])
            if chat == 0:
                await trio.sleep_forever()
            if chat % 100 == 1 and row.attempts == 1:
                raise RetryAfter("slow down", 1)
            await super().send(row)

    adapter = Busy()
    config = Config(drain_timeout=0.01)

    async def speak(chat):
        for text in ("one", "two"):
            await runtime.ask(f"k{chat}", text, source=Source("memory", chat_id=str(chat)))

    with trio.fail_after(60):
        async with start_proxy(adapters=[adapter], config=config) as runtime:
            async with trio.open_nursery() as nursery:
                for chat in range(1000):
                    nursery.start_soon(speak, chat)
            await adapter.wait_sent(2 * 999)
    by_chat = defaultdict(list)
    for row in adapter.sent:
        by_chat[row.body["chat_id"]].append(row.body["text"])
    assert len(by_chat) == 999
    assert all(texts == ["echo: one", "echo: two"] for texts in by_chat.values())


# Accounts


def at(account, chat="c"):
    return Source("memory", account, chat_id=chat)


@with_threads
async def test_each_account_of_a_platform_has_its_own_adapter(start):
    first = MemoryAdapter(account="first")
    other = MemoryAdapter()  # for all the others
    with trio.fail_after(SECONDS):
        async with start(adapters=[first, other]) as runtime:
            await runtime.ask("k", "1", source=at("first"))
            await runtime.ask("l", "2", source=at("second"))
            await runtime.ask("m", "3", source=at(""))
            await first.wait_sent(1)
            await other.wait_sent(2)
    assert first.texts == ["echo: 1"]
    assert sorted(other.texts) == ["echo: 2", "echo: 3"]


async def test_a_reply_for_an_account_without_an_adapter_waits_for_it(start, path, caplog):
    first, second = MemoryAdapter(account="first"), MemoryAdapter(account="second")
    with trio.fail_after(SECONDS):
        async with start(adapters=[first]) as runtime:
            await runtime.ask("k", "1", source=at("second"))
            await runtime.ask("k", "2", source=at("second"))
            await runtime.ask("l", "3", source=at("first"))
            await first.wait_sent(1)
        assert outbox(path) == ["pending", "pending", "sent"]
        assert caplog.text.count("wait for an adapter: memory, account 'second'") == 1
        async with start(adapters=[first, second]) as runtime:
            await second.wait_sent(2)
    assert second.texts == ["echo: 1", "echo: 2"]
    assert first.texts == ["echo: 3"]


async def test_a_reply_to_a_platform_without_an_adapter_waits_for_it(start, path):
    """A start without a token must not lose what waits for it."""
    leave_replies(
        path, *[Outbound("memory//c/", {"platform": "memory", "text": str(n)}) for n in range(3)]
    )
    down = MemoryAdapter(errors=[OSError("down")])
    with trio.fail_after(SECONDS):
        async with start(adapters=[down], config=Config(drain_timeout=0)):
            pass
        assert "sent" not in outbox(path)
        async with start() as runtime:
            await runtime.ask("k", "3", source=CHAT)
            await runtime.ask("host", "by the way")  # of a platform that never had one
        assert outbox(path) == [*["pending"] * 4, "sent"]
        adapter = MemoryAdapter()
        async with start(adapters=[adapter]):
            await adapter.wait_sent(4)
    assert adapter.texts == ["0", "1", "2", "echo: 3"]


@pytest.mark.parametrize(
    ("adapters", "complaint"),
    [
        ([MemoryAdapter(), MemoryAdapter()], "two adapters for memory, account None"),
        ([MemoryAdapter(account="a"), MemoryAdapter(account="a")], "two adapters for memory"),
        ([MemoryAdapter(limit=1)], "adapter for memory has a limit of 1"),
    ],
)
async def test_adapters_that_cannot_work_are_refused_at_the_start(start, adapters, complaint):
    with trio.fail_after(SECONDS), pytest.raises(HermesError, match=complaint):
        async with start(adapters=adapters):
            pytest.fail("it has started")


# Shutdown


async def test_a_drain_does_not_wait_for_a_chat_that_is_paused_for_longer(
    start, path, autojump_clock
):
    adapter = TimedAdapter(errors=[RetryAfter("flood", 1000)])
    async with start(adapters=[adapter], config=Config(drain_timeout=30)) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await wait_all_tasks_blocked()
        left = trio.current_time()
    assert trio.current_time() - left < 1
    assert outbox(path) == ["pending"]
    again = MemoryAdapter()
    async with start(adapters=[again]) as runtime:
        await again.wait_sent(1)
    assert not again.sent[0].recovered, "it was certainly not sent"


async def test_a_drain_waits_for_a_chat_that_is_paused_for_less(start, path, autojump_clock):
    adapter = TimedAdapter(errors=[RetryAfter("flood", 20)])
    async with start(adapters=[adapter], config=Config(drain_timeout=30)) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await wait_all_tasks_blocked()
    assert adapter.texts == ["echo: one"]
    assert outbox(path) == ["sent"]


async def test_a_drain_waits_for_active_chats_while_another_is_paused(start, path, autojump_clock):
    class Uneven(MemoryAdapter):
        async def send(self, row):
            await trio.sleep(5)
            if row.body["chat_id"] == "rests":
                raise RetryAfter("flood", 1000)
            await trio.sleep(5)
            await super().send(row)

    adapter = Uneven()
    async with start(adapters=[adapter], config=Config(drain_timeout=30)) as runtime:
        for chat in ("rests", "works"):
            await runtime.ask(chat, chat, source=Source("memory", chat_id=chat))
        left = trio.current_time()
    assert trio.current_time() - left == pytest.approx(10, abs=1)
    assert outbox(path) == ["pending", "sent"]


# Previews


class Live(MemoryAdapter):
    """A platform with slow edits; `seen` is what its users see."""

    def __init__(self):
        super().__init__("embedded")
        self.seen = []
        self.rate_limiter = RateLimiter(per_token=Rate(30, 1), per_chat=Rate(10, 1))
        self.previews = Previews(self.show, typing=self.typing, interval=0.7)

    async def show(self, key, turn_id, text):
        if self.rate_limiter.try_acquire(key):
            await trio.sleep(0.9)
            self.seen.append((turn_id, "preview", text))

    async def typing(self, key, turn_id):
        if self.rate_limiter.try_acquire(key):
            self.seen.append((turn_id, "typing", None))

    async def send(self, row):
        await self.previews.stop(row.session_key, row.turn_id)
        await self.rate_limiter.acquire(row.session_key)
        self.seen.append((row.turn_id, "final", row.body["text"]))
        await super().send(row)


async def test_no_preview_is_shown_after_the_final_message_of_its_turn(start, autojump_clock):
    async def speak(turn):
        for n in range(40):
            turn.emit(TextDelta(f"{n} "))
            await trio.sleep(0.05 * int(turn.text))
        return TurnResult(text="done")

    adapter = Live()
    agent = ScriptedAgent([[speak]] * 20)
    async with start(build_agent=lambda _: agent, adapters=[adapter]) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(adapter.previews.run, runtime.subscribe())
            for n in range(12):
                key = f"k{n % 3}"
                adapter.previews.watch(key)
                await runtime.submit(Inbound(key, f"e{n}", str(n % 4)))
                await trio.sleep(n % 5)
            await adapter.wait_sent(12)
            await trio.sleep(100)
            nursery.cancel_scope.cancel()
    turns = {turn_id for turn_id, *_ in adapter.seen}
    assert len(turns) == 12
    for turn_id in turns:
        kinds = [kind for id_, kind, _ in adapter.seen if id_ == turn_id]
        assert kinds.count("final") == 1
        assert kinds[-1] == "final"
    assert [text for _, kind, text in adapter.seen if kind == "preview"]
