"""What becomes of a reply: parts, pauses, doubts, chats that are gone, and what is on disk."""

from __future__ import annotations

import itertools
import tempfile
from collections import defaultdict
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import attrs
import pytest
import trio
from hypothesis import given, settings, strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from hermes import Config, Inbound, Source, open_runtime
from hermes.actors.delivery import lane as lanes
from hermes.adapters.previews import Previews
from hermes.adapters.rate_limit import Rate, RateLimiter
from hermes.errors import (
    HermesError,
    MessageRefused,
    OutcomeUnknown,
    RetryAfter,
    StoreBusy,
    StoreFailed,
    StoreFull,
    Unsendable,
)
from hermes.events import TextDelta
from hermes.messages import Outbound, TurnCommit, TurnResult
from hermes.store import SessionStore, inline
from hermes.testing import MemoryAdapter, ScriptedAgent
from tests.runtime.test_recovery import SECONDS, inline_only, killed, rows

CHAT = Source("memory", chat_id="c")
LONG = "first line\nsecond line\nthird line\nfourth line"
PARTS = ["first line", "second line", "third line", "fourth line"]


class Timed(MemoryAdapter):
    """A platform that writes down when it was called."""

    def __init__(self, **options):
        super().__init__(**options)
        self.times = []

    async def send(self, row):
        self.times.append(trio.current_time())
        await super().send(row)

    @property
    def pauses(self):
        return [later - earlier for earlier, later in itertools.pairwise(self.times)]


def saying(*texts):
    """Agents that say this, one after the other."""
    agent = ScriptedAgent(texts)
    return lambda _: agent


def facts(path):
    with SessionStore(path) as store:
        return store.outbox_facts()


def outbox(path, columns="state"):
    found = rows(path, columns, "outbox")
    return [row[0] for row in found] if "," not in columns else found


# Parts


async def test_a_long_reply_goes_out_in_parts_in_their_order(start, path):
    adapter = MemoryAdapter(limit=15)
    with trio.fail_after(SECONDS):
        async with start(agent=saying(LONG, "short"), adapters=[adapter]) as runtime:
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
        async with start(agent=saying("x" * 100_000), adapters=[adapter]) as runtime:
            await runtime.ask("k", "one", source=CHAT)
            await adapter.wait_sent(1)
    assert adapter.texts == ["x" * 100_000]


class AtPart(MemoryAdapter):
    """A platform that has trouble with one part of a reply."""

    def __init__(self, part, errors, late=()):
        super().__init__(limit=15)
        self.part, self.trouble, self.late = part, list(errors), list(late)

    async def send(self, row):
        if row.part == self.part and self.trouble:
            raise self.trouble.pop(0)
        await super().send(row)
        if row.part == self.part and self.late:
            raise self.late.pop(0)


@inline_only
@pytest.mark.parametrize(
    ("trouble", "recovered"),
    [
        (RetryAfter("slow down", 3), False),
        (MessageRefused("no"), False),
        (OutcomeUnknown("cut off"), True),
        (OSError("cut off"), True),
    ],
)
async def test_an_error_in_the_middle_sends_no_earlier_part_again(
    start, path, autojump_clock, trouble, recovered
):
    adapter = AtPart(2, [trouble])
    async with start(agent=saying(LONG), adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await adapter.wait_sent(4)
    assert adapter.texts == PARTS
    assert [row.recovered for row in adapter.sent] == [False, False, recovered, False]
    assert outbox(path, "state, attempts, recovered") == [("sent", 2, 0)], "nor is the last marked"


@inline_only
async def test_only_the_part_that_is_in_doubt_is_sent_twice(start, autojump_clock):
    adapter = AtPart(1, [], late=[OutcomeUnknown("no answer")])
    async with start(agent=saying(LONG), adapters=[adapter]) as runtime:
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


async def test_after_a_kill_between_two_parts_the_rest_is_sent(start, path):
    said = killed(path, f"LONG = {LONG!r}" + IN_PART, "sending 1 third line")
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


async def test_a_reply_whose_parts_were_all_taken_is_not_sent_again(start, path, sql):
    """Killed after the last part, with a longer limit since: there is nothing left of it."""
    seed(path, Outbound("memory//c/", {"platform": "memory", "text": LONG}))
    sql("UPDATE outbox SET parts_sent = 3")
    adapter = MemoryAdapter(limit=30)
    with trio.fail_after(SECONDS):
        async with start(adapters=[adapter]) as runtime:
            await runtime.ask("k", "more", source=CHAT)
            await adapter.wait_sent(1)
    assert adapter.texts == ["echo: more"]
    assert outbox(path) == ["sent", "sent"]


def seed(path, *outbound):
    """Replies that an earlier process has left."""
    with SessionStore(path) as store:
        accepted = store.accept(Inbound("seed", "e", "one")).receipt
        store.commit_turn(
            TurnCommit(
                session_key="seed",
                session_id=accepted.session_id,
                epoch=accepted.epoch,
                revision=0,
                inbox_ids=[accepted.inbox_id],
                outbox=outbound,
            )
        )


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


@pytest.mark.parametrize("part", [0, 2])
async def test_what_still_waited_when_the_process_was_killed_is_not_marked(start, path, part):
    """The platform surely does not have it."""
    said = killed(path, f"LONG, PART = {LONG!r}, {part}" + WAITING, f"waits 1 {part}")
    assert said[-2:] == ([f"sending 1 {PARTS[1]}"] if part else []) + [f"waits 1 {part}"]
    assert outbox(path, "state, parts_sent, recovered") == [("pending", part, 0)]
    adapter = MemoryAdapter(limit=15)
    with trio.fail_after(SECONDS):
        async with start(adapters=[adapter]):
            await adapter.wait_sent(4 - part)
    assert adapter.texts == PARTS[part:]
    assert not any(row.recovered for row in adapter.sent)


class Patient(MemoryAdapter):
    """A platform that writes down what it was asked, in order, and may refuse before a send."""

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


@inline_only
async def test_each_part_and_each_try_waits_before_it_counts_as_begun(start, path, autojump_clock):
    adapter = Patient(path, [OSError("cut off")], limit=15)
    async with start(agent=saying(LONG), adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await adapter.wait_sent(4)
    tries = [PARTS[0], *PARTS]
    steps = [("ready", "pending"), ("send", "sending")]
    assert adapter.asked == [(verb, text, state) for text in tries for verb, state in steps]
    assert adapter.texts == PARTS
    assert [row.recovered for row in adapter.sent] == [True, False, False, False]


@inline_only
@pytest.mark.parametrize(
    ("early", "waited"), [(RetryAfter("flood", 7), 7), (MessageRefused("no"), 1), (OSError("x"), 1)]
)
async def test_what_fails_before_it_is_sent_is_tried_again_and_never_in_doubt(
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


async def test_a_chat_may_be_found_gone_before_anything_is_sent(start_proxy, path):
    adapter = Patient(path, early=[Unsendable("they left")])
    async with closing(start_proxy, adapter) as (runtime, closed):
        await runtime.ask("k", "one", source=CHAT)
        await closed.wait()
    assert adapter.texts == []
    assert outbox(path, "state, note, attempts") == [("dead", "they left", 0)]


# Chats that are gone


class Gated(MemoryAdapter):
    """A platform that waits before it answers."""

    def __init__(self, **options):
        super().__init__(**options)
        self.gate = trio.Event()
        self.asked = trio.Event()

    async def send(self, row):
        self.asked.set()
        await self.gate.wait()
        await super().send(row)


@asynccontextmanager
async def closing(start_proxy, adapter, **verbs):
    """A runtime, and an event that is set once a lane was closed."""
    closed = trio.Event()

    async def close(real, *args, **kwargs):
        dead = await real(*args, **kwargs)
        closed.set()
        return dead

    verbs.setdefault("mark_lane_dead", close)
    with trio.fail_after(SECONDS):
        async with start_proxy(adapters=[adapter], **verbs) as runtime:
            yield runtime, closed


async def test_a_chat_that_is_gone_is_left_alone_until_there_is_something_new(start_proxy, path):
    adapter = Gated(errors=[Unsendable("the bot was blocked")])
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


async def test_what_was_sent_before_a_chat_was_gone_is_not_called_dead(start_proxy, path):
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


async def test_a_part_that_finds_nobody_is_named(start_proxy, path):
    adapter = AtPart(2, [Unsendable("they left")])

    async with closing(start_proxy, adapter, agent=saying(LONG)) as (runtime, closed):
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


async def test_a_reply_that_came_while_the_chat_was_given_up_is_not_forgotten(start_proxy, path):
    """It is on disk after the others were given up, and in memory before that is heard."""
    adapter = Gated(errors=[Unsendable("gone")])
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


# Pauses


@inline_only
@pytest.mark.parametrize(
    ("asked", "waited"), [(7, 7), (0, 1), (-5, 1), (1e9, 3600), (float("nan"), 1)]
)
async def test_a_platform_is_left_alone_for_as_long_as_it_asks(
    start, path, autojump_clock, asked, waited
):
    adapter = Timed(errors=[RetryAfter("slow down", asked) for _ in range(3)])
    async with start(adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await wait_all_tasks_blocked()
        assert [(f.pending, f.sending, f.recovered) for f in facts(path)] == [(1, 0, 0)]
        await adapter.wait_sent(1)
    assert adapter.pauses == [waited] * 3
    assert not adapter.sent[0].recovered
    assert outbox(path, "state, attempts, recovered") == [("sent", 4, 0)]


@inline_only
async def test_being_asked_to_wait_is_no_refusal_however_often(start, path, autojump_clock):
    adapter = MemoryAdapter(errors=[RetryAfter("slow down", 1) for _ in range(50)])
    async with start(adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await adapter.wait_sent(1)
    assert outbox(path) == ["sent"]


UNNAMED = [
    OutcomeUnknown("no answer"),
    OSError("down"),
    TypeError("a mistake of the adapter"),
    SystemExit(3),
    ExceptionGroup("group", [OSError("down")]),
]


@inline_only
@pytest.mark.parametrize("error", UNNAMED, ids=lambda error: type(error).__name__)
async def test_what_may_have_been_taken_is_sent_again_as_recovered_for_as_long_as_it_takes(
    start, path, autojump_clock, caplog, error
):
    adapter = Timed(errors=[error] * 20)
    async with start(adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await wait_all_tasks_blocked()
        assert [(f.pending, f.sending, f.recovered) for f in facts(path)] == [(1, 0, 1)]
        await adapter.wait_sent(1)
    assert adapter.pauses == [1, 2, 4, 8, 16, 32, *[60] * 14]
    assert adapter.sent[0].recovered
    assert outbox(path, "state, attempts, recovered") == [("sent", 21, 1)]
    assert "reply 1 is tried again after 1 s" in caplog.text


@inline_only
async def test_errors_are_known_by_name_inside_of_groups_too(start, path, autojump_clock):
    late = ExceptionGroup("of a nursery", [RetryAfter("slow down", 5)])
    adapter = Timed(errors=[late])
    async with start(adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await adapter.wait_sent(1)
    assert adapter.pauses == [5]
    assert not adapter.sent[0].recovered


@inline_only
async def test_a_message_that_is_refused_for_ever_is_given_up_and_the_lane_goes_on(
    start, path, autojump_clock, caplog
):
    adapter = Timed(errors=[MessageRefused("can't parse it") for _ in range(lanes.REFUSALS)])
    async with start(adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await runtime.ask("k", "two", source=CHAT)
        await adapter.wait_sent(1)
    assert adapter.texts == ["echo: two"]
    assert adapter.attempts == {1: 10, 2: 1}
    assert sum(adapter.pauses) >= 200, "not within seconds: it might have been a mistake"
    assert outbox(path, "state, note") == [("dead", "can't parse it"), ("sent", None)]
    assert "reply 1 is given up: hermes.errors.MessageRefused" in caplog.text


@inline_only
async def test_refusals_are_counted_for_each_part_alone(start, path, autojump_clock):
    class Fussy(MemoryAdapter):
        async def send(self, row):
            self.attempts[row.part] += 1
            if self.attempts[row.part] < lanes.REFUSALS:
                raise MessageRefused("not yet")
            self.sent.append(row)
            self._arrived.set()

    adapter = Fussy(limit=15)
    async with start(agent=saying(LONG), adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await adapter.wait_sent(4)
    assert adapter.texts == PARTS


# The store is ill


MARKS = {
    "mark_sending": [],
    "mark_part": [],
    "mark_sent": [],
    "mark_unsent": [RetryAfter("slow down", 1)],
    "mark_unknown": [OutcomeUnknown("no answer")],
    "mark_dead": [MessageRefused("no") for _ in range(lanes.REFUSALS)],
    "mark_lane_dead": [Unsendable("gone")],
    "pending_outbox": [],
}


@pytest.mark.parametrize("ill", [StoreBusy("another process"), StoreFull("the disk is full")])
@pytest.mark.parametrize("verb", MARKS)
async def test_a_store_that_is_busy_or_full_delays_and_loses_nothing(
    start_proxy, path, autojump_clock, verb, ill
):
    tries = itertools.count()

    async def fail_twice(real, *args, **kwargs):
        own = verb != "pending_outbox" or args  # that of a lane, not that of the start
        if own and next(tries) < 2:
            raise ill
        return await real(*args, **kwargs)

    adapter = Gated(errors=list(MARKS[verb]), limit=15)
    agent = saying(LONG, *["more"] * 120)
    async with start_proxy(agent, adapters=[adapter], **{verb: fail_twice}) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        if verb == "pending_outbox":
            for n in range(110):
                await runtime.ask("k", str(n), source=CHAT)
        adapter.gate.set()
        await trio.sleep(1000)
    assert next(tries) > 2
    dead = verb in {"mark_dead", "mark_lane_dead"}
    assert outbox(path)[0] == ("dead" if dead else "sent")
    assert adapter.texts[:4] == ([] if dead else PARTS)
    assert [row.recovered for row in adapter.sent[:1]] == ([] if dead else [verb == "mark_unknown"])
    if verb == "pending_outbox":
        assert adapter.texts[4:] == ["more"] * 110


async def test_a_store_that_fails_ends_the_runtime(start_proxy):
    async def fail(real, *args, **kwargs):
        raise StoreFailed("it cannot go on")

    adapter = MemoryAdapter(limit=15)
    with trio.fail_after(SECONDS), pytest.raises(StoreFailed):
        async with start_proxy(saying(LONG), adapters=[adapter], mark_part=fail) as runtime:
            await runtime.ask("k", "one", source=CHAT)
            await trio.sleep_forever()


# Many chats


async def test_a_thousand_chats_at_once_of_which_one_is_stuck_and_some_are_slow(start_proxy, path):
    """Nobody waits for another's lane."""

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


async def test_a_reply_for_an_account_that_is_not_there_today_waits_for_it(start, path, caplog):
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


async def test_a_reply_to_a_platform_that_is_not_there_today_waits_for_it(start, path):
    """A start without a token must not lose what waits for it."""
    seed(path, *[Outbound("memory//c/", {"platform": "memory", "text": str(n)}) for n in range(3)])
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


# The end


@inline_only
async def test_a_drain_does_not_wait_for_a_chat_that_rests_for_longer(start, path, autojump_clock):
    adapter = Timed(errors=[RetryAfter("flood", 1000)])
    async with start(adapters=[adapter], config=Config(drain_timeout=30)) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await wait_all_tasks_blocked()
        left = trio.current_time()
    assert trio.current_time() - left < 1
    assert outbox(path) == ["pending"]
    again = MemoryAdapter()
    async with start(adapters=[again]) as runtime:
        await again.wait_sent(1)
    assert not again.sent[0].recovered, "it surely was not taken"


@inline_only
async def test_a_drain_waits_for_a_chat_that_rests_for_less(start, path, autojump_clock):
    adapter = Timed(errors=[RetryAfter("flood", 20)])
    async with start(adapters=[adapter], config=Config(drain_timeout=30)) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await wait_all_tasks_blocked()
    assert adapter.texts == ["echo: one"]
    assert outbox(path) == ["sent"]


@inline_only
async def test_a_drain_waits_for_those_who_work_while_another_begins_to_rest(
    start, path, autojump_clock
):
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
    """A platform with slow edits; what people see of a turn is in `seen`."""

    def __init__(self):
        super().__init__("embedded")
        self.seen = []
        self.governor = RateLimiter(per_token=Rate(30, 1), per_chat=Rate(10, 1))
        self.previews = Previews(self.show, busy=self.typing, every=0.7)

    async def show(self, key, turn_id, text):
        if self.governor.try_now(key):
            await trio.sleep(0.9)
            self.seen.append((turn_id, "preview", text))

    async def typing(self, key, turn_id):
        if self.governor.try_now(key):
            self.seen.append((turn_id, "typing", None))

    async def send(self, row):
        await self.previews.settle(row.session_key, row.turn_id)
        await self.governor.wait(row.session_key)
        self.seen.append((row.turn_id, "final", row.body["text"]))
        await super().send(row)


@inline_only
async def test_no_preview_comes_after_the_final_of_its_turn(start, autojump_clock):
    async def speak(turn):
        for n in range(40):
            turn.emit(TextDelta(f"{n} "))
            await trio.sleep(0.05 * int(turn.text))
        return TurnResult(text="done")

    adapter = Live()
    agent = ScriptedAgent([[speak]] * 20)
    async with start(agent=lambda _: agent, adapters=[adapter]) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(adapter.previews.run, runtime.events())
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


# Whatever happens


@attrs.define
class Moody:
    """A platform that does as a story says, chat by chat, and then takes everything."""

    moods: dict
    platform: str = "memory"
    limit: int = 15
    taken: list = attrs.Factory(list)
    begun: list = attrs.Factory(list)

    async def send(self, row):
        message = (row.outbox_id, row.part)
        assert message in self.begun or not row.recovered, "what was never tried is not marked"
        self.begun.append(message)
        moods = self.moods.get(row.body["chat_id"], [])
        mood = moods.pop(0) if moods else "takes"
        await trio.sleep(0.5)
        if mood in {"takes", "takes, no answer", "takes, breaks"}:
            self.taken.append(row)
        if mood in ERRORS:
            raise ERRORS[mood]

    def messages(self, chat):
        """What people see there, and whether it is marked as perhaps there before."""
        return [
            ((row.outbox_id, row.part), row.recovered)
            for row in self.taken
            if row.body["chat_id"] == chat
        ]


class MoodyAndPatient(Moody):
    """It waits before each send too, and sometimes fails then."""

    async def ready(self, row):
        await trio.sleep(0.5)
        if len(self.begun) % 4 == 3 and row.attempts % 2:
            self.begun.append(None)
            raise OSError("not now")


ERRORS = {
    "wait": RetryAfter("slow down", 2),
    "refuses": MessageRefused("no"),
    "gone": Unsendable("gone"),
    "takes, no answer": OutcomeUnknown("no answer"),
    "lost, no answer": OutcomeUnknown("no answer"),
    "takes, breaks": OSError("broken"),
    "lost, breaks": OSError("broken"),
}
CHATS = ["a", "b"]
moods = st.lists(st.sampled_from(["takes", *ERRORS]) | st.just("refuses"), max_size=14)
stories = st.tuples(
    st.fixed_dictionaries(dict.fromkeys(CHATS, moods)),
    st.integers(1, 4),
    st.lists(st.integers(0, 60).map(lambda half: half / 2), max_size=2),
    st.sampled_from([Moody, MoodyAndPatient]),
)


@given(stories)
@settings(max_examples=40)
def test_people_see_each_reply_once_and_in_order_but_for_what_is_marked(story):
    """With the process ending at any moment: what was in flight then is marked as well."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.db"
        platform = trio.run(live, path, story, clock=MockClock(autojump_threshold=0))
        db = apsw.Connection(str(path))
        states = db.execute("SELECT id, body ->> '$.chat_id', state FROM outbox").fetchall()
        turns = db.execute("SELECT turn_id FROM outbox").fetchall()
        db.close()
    assert len(turns) == len(set(turns)), "one final per turn"
    for chat in CHATS:
        messages = once(platform.messages(chat))
        assert messages == sorted(messages), "in order"
        for outbox_id, where, state in states:
            parts = [part for id_, part in messages if id_ == outbox_id]
            if where == chat and state == "sent":
                assert parts == [0, 1, 2, 3], "whole"
            elif where == chat:
                assert state == "dead"
                assert parts == list(range(len(parts))), "from its beginning"


def once(messages):
    """What was seen, without what was seen again."""
    kept = []
    for message, recovered in messages:
        if message in kept:
            assert recovered, "nothing is there twice without a mark"
            assert kept[-1] == message, "and nothing else came between"
        else:
            kept.append(message)
    return kept


async def live(path, story):
    """Several lives of a process on one file; the last one is long enough to send everything."""
    moods, replies, ends, kind = story
    platform = kind({chat: list(some) for chat, some in moods.items()})

    def start():
        options = {"agent": saying(*[LONG] * 100), "open_worker": inline()}
        return open_runtime(path, adapters=[platform], **options)

    async def speak(runtime, chat):
        for n in range(replies):
            await runtime.ask(chat, str(n), source=Source("memory", chat_id=chat))

    for life, seconds in enumerate([*ends, 2000]):
        with trio.move_on_after(seconds):
            async with start() as runtime, trio.open_nursery() as nursery:
                for chat in CHATS if life == 0 else ():
                    nursery.start_soon(speak, runtime, chat)
                await trio.sleep_forever()
    return platform
