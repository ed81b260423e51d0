"""Delivery of replies when platforms or the store fail."""

from __future__ import annotations

import itertools

import apsw
import attrs
import pytest
import trio
from hypothesis import given, settings, strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from hermes import Attachment, Source, TurnResult, open_runtime
from hermes.actors.delivery import lane as lanes
from hermes.errors import (
    MessageRefused,
    OutcomeUnknown,
    RetryAfter,
    StoreBusy,
    StoreFailed,
    StoreFull,
    Unsendable,
)
from hermes.store import SessionStore
from hermes.testing import CountingBuilder, MemoryAdapter, ScriptedAgent, inline
from tests.support.folders import quick_folder
from tests.support.outbox import (
    CHAT,
    LONG,
    PARTS,
    GatedAdapter,
    TimedAdapter,
    outbox,
    saying,
)
from tests.support.runtime import SECONDS

# Errors of platforms


def undelivered(path):
    """Return the numbers of pending, sending and recovered replies, for each platform."""
    with SessionStore(path) as store:
        return [(each.pending, each.sending, each.recovered) for each in store.outbox_facts()]


@pytest.mark.parametrize(
    ("asked", "waited"), [(7, 7), (0, 1), (-5, 1), (1e9, 3600), (float("nan"), 1)]
)
async def test_a_platform_is_not_called_for_as_long_as_it_asks(
    start, path, autojump_clock, asked, waited
):
    adapter = TimedAdapter(errors=[RetryAfter("slow down", asked) for _ in range(3)])
    async with start(adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await wait_all_tasks_blocked()
        assert undelivered(path) == [(1, 0, 0)]
        await adapter.wait_sent(1)
    assert adapter.pauses == [waited] * 3
    assert not adapter.sent[0].recovered
    assert outbox(path, "state, attempts, recovered") == [("sent", 4, 0)]


async def test_requests_to_wait_never_count_as_refusals(start, path, autojump_clock):
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


@pytest.mark.parametrize("error", UNNAMED, ids=lambda error: type(error).__name__)
async def test_a_reply_with_an_unknown_outcome_is_resent_as_recovered_until_it_succeeds(
    start, path, autojump_clock, caplog, error
):
    adapter = TimedAdapter(errors=[error] * 20)
    async with start(adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await wait_all_tasks_blocked()
        assert undelivered(path) == [(1, 0, 1)]
        await adapter.wait_sent(1)
    assert adapter.pauses == [1, 2, 4, 8, 16, 32, *[60] * 14]
    assert adapter.sent[0].recovered
    assert outbox(path, "state, attempts, recovered") == [("sent", 21, 1)]
    assert "reply 1 is sent again after 1 s" in caplog.text


async def test_errors_are_recognized_inside_exception_groups_too(start, path, autojump_clock):
    late = ExceptionGroup("of a nursery", [RetryAfter("slow down", 5)])
    adapter = TimedAdapter(errors=[late])
    async with start(adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await adapter.wait_sent(1)
    assert adapter.pauses == [5]
    assert not adapter.sent[0].recovered


async def test_a_message_that_is_always_refused_is_given_up_and_the_lane_continues(
    start, path, autojump_clock, caplog
):
    adapter = TimedAdapter(
        errors=[MessageRefused("can't parse it") for _ in range(lanes.MAX_REFUSALS)]
    )
    async with start(adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await runtime.ask("k", "two", source=CHAT)
        await adapter.wait_sent(1)
    assert adapter.texts == ["echo: two"]
    assert adapter.attempts == {1: 10, 2: 1}
    assert sum(adapter.pauses) >= 200, "not within seconds: it might have been a mistake"
    assert outbox(path, "state, note") == [("dead", "can't parse it"), ("sent", None)]
    assert "reply 1 is given up: hermes.errors.MessageRefused" in caplog.text


async def test_refusals_are_counted_for_each_part_separately(start, path, autojump_clock):
    class Fussy(MemoryAdapter):
        async def send(self, row):
            self.attempts[row.part] += 1
            if self.attempts[row.part] < lanes.MAX_REFUSALS:
                raise MessageRefused("not yet")
            self.sent.append(row)
            self._arrived.set()

    adapter = Fussy(limit=15)
    async with start(build_agent=saying(LONG), adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        await adapter.wait_sent(4)
    assert adapter.texts == PARTS


async def test_a_file_that_is_always_refused_is_described_and_the_rest_follows(
    start, path, autojump_clock, caplog
):
    refused = []

    class Fussy(MemoryAdapter):
        async def send_file(self, row, file, /):
            if file.file.name == "bad.txt":
                refused.append(row.part)
                raise MessageRefused("no such files")
            await super().send_file(row, file)

    files = [Attachment(data=b"1", name="bad.txt"), Attachment(data=b"2", name="good.txt")]
    result, adapter = TurnResult(text="Here.", files=files), Fussy()
    builder = CountingBuilder(lambda _: ScriptedAgent([result]))
    async with start(build_agent=builder, adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=CHAT)
        with trio.fail_after(3600):
            await adapter.wait_sent(3)
    assert adapter.texts == ["Here.", "[file bad.txt, 1 byte: it could not be sent]", ""]
    assert [sent.file.name for sent in adapter.files] == ["good.txt"]
    assert (refused, outbox(path)) == ([1] * lanes.MAX_REFUSALS, ["sent"])
    assert "a file of reply 1 is given up" in caplog.text


# Stores that fail


MARKS = {
    "mark_sending": [],
    "mark_part": [],
    "mark_sent": [],
    "mark_unsent": [RetryAfter("slow down", 1)],
    "mark_unknown": [OutcomeUnknown("no answer")],
    "mark_dead": [MessageRefused("no") for _ in range(lanes.MAX_REFUSALS)],
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

    adapter = GatedAdapter(errors=list(MARKS[verb]), limit=15)
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


# Any sequence of failures


@attrs.define
class ScriptedPlatform:
    """A platform that fails as scripted for each chat, and then takes everything."""

    moods: dict
    platform: str = "memory"
    local: bool = True
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
        """Return the messages in a chat, each with its `recovered` mark."""
        return [
            ((row.outbox_id, row.part), row.recovered)
            for row in self.taken
            if row.body["chat_id"] == chat
        ]


class ScriptedPlatformWithReady(ScriptedPlatform):
    """It also waits before each send, and sometimes fails then."""

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
    st.sampled_from([ScriptedPlatform, ScriptedPlatformWithReady]),
)


@given(stories)
@settings(max_examples=40)
def test_users_see_each_reply_once_and_in_order_except_for_marked_ones(story):
    """Also if the process ends at any moment: what was in flight then is marked."""
    with quick_folder() as folder:
        path = folder / "state.db"
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
    """Return the messages without repetitions, which must be marked."""
    kept = []
    for message, recovered in messages:
        if message in kept:
            assert recovered, "nothing is there twice without a mark"
            assert kept[-1] == message, "and nothing else came between"
        else:
            kept.append(message)
    return kept


async def live(path, story):
    """Run several processes on one file; the last is long enough to send everything."""
    moods, replies, ends, kind = story
    platform = kind({chat: list(some) for chat, some in moods.items()})

    def start():
        options = {"build_agent": saying(*[LONG] * 100), "open_worker": inline()}
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
