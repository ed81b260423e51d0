"""What was shown is noted at that moment, and stored later."""

from __future__ import annotations

import itertools

import pytest
import trio
import trio.testing

from hermes.actors.delivery.dispatcher import Dispatcher
from hermes.actors.delivery.questions import Questions
from hermes.errors import StoreBusy
from hermes.events import ApprovalAsked, Notice, TurnEnded
from hermes.messages import Approval, QuestionRoute, Reply, Source
from hermes.store.cluster.alone import Alone
from hermes.testing import MemoryAdapter


class Records:
    """Collects what is stored; it may be busy, or slow."""

    def __init__(self):
        self.cluster = Alone(self)
        self.stored = []
        self.times = []
        self.errors = []
        self.held = trio.Event()
        self.held.set()

    async def mark_shown(self, shown, at):
        if self.errors:
            raise self.errors.pop()
        self.stored.append(dict(shown))
        self.times.append(dict(at))
        await self.held.wait()


def call(number):
    return Approval(number, "k", "k", "run", "{}", "pending", 0.0, 1.0)


@pytest.fixture
def records():
    return Records()


@pytest.fixture
async def questions(records):
    async with trio.open_nursery() as nursery:
        adapters = [MemoryAdapter("chat", limit=300), MemoryAdapter("console")]
        times = itertools.count(1.0)
        yield Questions(records, Dispatcher(nursery, adapters, records), lambda: next(times))


async def test_a_question_counts_for_commands_after_it_was_first_shown(questions, records):
    questions.note_command(7)
    questions.shown(call(1))
    questions.note_command(8)
    questions.note_command(6)
    questions.shown(call(1))
    questions.shown(call(2))
    await questions.flush()
    await questions.flush()
    assert records.stored == [{1: 7, 2: 8}]
    assert records.times == [{1: 1.0, 2: 2.0}]


async def test_what_changes_while_it_is_stored_is_stored_again(questions, records):
    records.held = trio.Event()
    questions.shown(call(1))
    questions.shown(call(2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(questions.flush)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(questions.flush)  # of a command, which must not be overtaken
        await trio.testing.wait_all_tasks_blocked()
        questions.not_shown(call(1))
        records.held.set()
    await questions.flush()
    assert records.stored == [{1: 0, 2: 0}, {1: 0, 2: 0}, {1: None}]


async def test_what_could_not_be_stored_is_stored_with_the_next_command(questions, records, caplog):
    records.errors = [StoreBusy("busy")]
    questions.shown(call(1))
    await questions.try_flush()
    assert "a question is not stored as shown: busy" in caplog.text
    await questions.flush()
    assert records.stored == [{1: 0}]


async def test_events_and_replies_show_their_questions(questions, records):
    reply = Reply(text="", session_id="s", turn_id=1, approvals=(call(1), call(2)))
    questions.received(Notice("nothing"))
    questions.received(ApprovalAsked(call(3)))
    questions.received(TurnEnded(reply))
    assert questions.returned(reply) is reply
    await questions.flush()
    assert records.stored == [{3: 0, 1: 0, 2: 0}]


async def test_the_route_of_a_question_is_that_of_its_platform(questions):
    routes = {
        name: questions.route(Source(name)) for name in ("chat", "console", "host", "rpc", "web")
    }
    assert routes == {
        "chat": QuestionRoute("outbox", 300),
        "console": QuestionRoute("outbox", None),
        "host": QuestionRoute("host"),
        "rpc": QuestionRoute("client"),
        "web": QuestionRoute("client"),
    }
