"""`SessionInbox`: order, nothing lost or handled twice, and what an urgent command cancels."""

from __future__ import annotations

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hermes.actors.kernel.mailbox import Request
from hermes.actors.session.inbox import CAPACITY, SessionInbox
from hermes.errors import Overloaded
from hermes.messages import Inbound, InboxRow

MESSAGE, COMMAND, STOP = "hello", "/undo", "/stop"


def row(inbox_id, text=MESSAGE):
    return InboxRow(inbox_id, Inbound("k", str(inbox_id), text, command=text[0] == "/"), 0, 0.0)


def ids(rows):
    return [each.inbox_id for each in rows]


class InboxMachine(RuleBasedStateMachine):
    """An actor and a store around one inbox; `open` is what the store has."""

    def __init__(self):
        super().__init__()
        self.inbox = SessionInbox()
        self.open = {}
        self.last_id = 0
        self.running = []
        self.requests = []

    # What arrives

    @rule(text=st.sampled_from([MESSAGE, MESSAGE, COMMAND, STOP]), count=st.integers(1, 3))
    def arrive(self, text, count):
        for _ in range(count):
            self.last_id += 1
            arrived = self.open[self.last_id] = row(self.last_id, text)
            self.inbox.add([arrived.inbox_id])
            if text == STOP:
                self.inbox.put_urgent(arrived)
                self.inbox.wake(behind=False)
            else:
                self.inbox.put(arrived)

    @rule()
    def arrive_in_a_burst(self):
        self.arrive(MESSAGE, CAPACITY + 1)
        assert self.inbox.behind

    @rule(text=st.sampled_from([MESSAGE, COMMAND, STOP]))
    def write_to_the_store_only(self, text):
        """Another process, or a crash, left a message."""
        self.last_id += 1
        self.open[self.last_id] = row(self.last_id, text)
        self.inbox.wake(behind=True)

    @rule()
    def request(self):
        request = Request()
        if len(self.inbox.mailbox) == CAPACITY:
            with pytest.raises(Overloaded):
                self.inbox.put(request)
        else:
            self.inbox.put(request)
            self.requests.append(request)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def withdraw(self, data):
        """The host takes a message back; only those that wait can be removed."""
        inbox_id = data.draw(st.sampled_from(sorted(self.open)))
        waiting = ids(
            each for each in (*self.inbox.queue, *self.inbox.mailbox) if isinstance(each, InboxRow)
        )
        had_messages = len(self.inbox.mailbox) > 0
        removed = self.inbox.remove(inbox_id)
        assert (removed is not None) == (inbox_id in waiting)
        assert (len(self.inbox.mailbox) > 0) == had_messages  # a reader may be on its way
        if removed is not None:
            assert removed == self.open.pop(inbox_id)
            self.inbox.release([inbox_id])

    # What the actor does

    @precondition(lambda self: not self.running)
    @rule()
    def step(self):
        inbox = self.inbox
        inbox.collect()
        if inbox.behind:
            self.refill()
        elif inbox.urgent is not None:
            self.run_urgent()
        elif inbox.queue:
            self.run_first()

    def refill(self):
        self.inbox.behind = False
        for each in self.open.values():
            if not self.inbox.knows(each.inbox_id):
                self.inbox.add([each.inbox_id])
                if each.inbound.text == STOP:
                    self.inbox.put_urgent(each)
                else:
                    self.inbox.put_back([each])

    def run_urgent(self):
        stops = [each for each in self.open.values() if each.inbound.text == STOP]
        command, cancelled = self.inbox.take_urgent()
        assert command == stops[-1]
        assert sorted(ids(cancelled)) == [each for each in self.open if each < command.inbox_id]
        self.finish([*cancelled, command])

    def run_first(self):
        first = self.inbox.queue[0]
        if isinstance(first, InboxRow):
            assert first.inbox_id == min(self.open)
        if isinstance(first, InboxRow) and not first.inbound.command:
            self.running = self.inbox.take_turn()
            assert ids(self.running) == sorted(self.open)[: len(self.running)]
            assert {each.inbound.text for each in self.running} == {MESSAGE}
            after = self.inbox.queue[:1]
            assert not (after and isinstance(after[0], InboxRow) and not after[0].inbound.command)
            return
        self.inbox.queue.pop(0)
        if isinstance(first, InboxRow):
            self.finish([first])
        elif first is not None:
            assert first is self.requests.pop(0)

    def finish(self, rows):
        for each in rows:
            del self.open[each.inbox_id]
        self.inbox.release(ids(rows))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end_turn(self, data):
        """The turn finishes the first messages, and the others wait again."""
        used = data.draw(st.integers(0, len(self.running)))
        self.inbox.put_back(self.running[used:])
        self.finish(self.running[:used])
        self.running = []

    @precondition(lambda self: self.running)
    @rule()
    def look_at_the_next_turn(self):
        found = [row.inbox_id for row in self.inbox.next_turn()]
        assert found == sorted(set(found) - set(ids(self.running)))
        if not self.inbox.behind and self.inbox.urgent is None:
            waiting = [each for each in self.open if each not in ids(self.running)]
            assert found == waiting[: len(found)]

    # What always holds

    @invariant()
    def open_messages_are_known_unless_the_inbox_is_behind(self):
        if not self.inbox.behind:
            assert all(map(self.inbox.knows, self.open))
        assert self.inbox.known or self.inbox.behind or not self.open

    @invariant()
    def messages_are_counted(self):
        items = [*self.inbox.queue, *self.inbox.mailbox]
        assert self.inbox.waiting == len([each for each in items if isinstance(each, InboxRow)])

    def teardown(self):
        self.finish(self.running)
        self.running = []
        items = (self.open, self.requests, self.inbox.mailbox, self.inbox.queue)
        for _ in range(4 * sum(map(len, items)) + 4):
            self.step()
            self.finish(self.running)
            self.running = []
        assert (self.open, self.requests, self.inbox.queue) == ({}, [], [])
        assert not self.inbox.known
        assert not self.inbox.behind


TestInbox = InboxMachine.TestCase
TestInbox.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_message_for_a_full_mailbox_is_left_in_the_store():
    inbox = SessionInbox()
    inbox.add(range(CAPACITY + 1))
    for inbox_id in range(CAPACITY):
        inbox.put(row(inbox_id))
    assert not inbox.behind
    inbox.put(row(CAPACITY))
    assert inbox.behind
    assert not inbox.knows(CAPACITY)
    assert inbox.knows(CAPACITY - 1)
    with pytest.raises(Overloaded):
        inbox.put(Request())


def test_a_wake_up_reaches_a_full_and_a_closed_mailbox():
    inbox = SessionInbox()
    for inbox_id in range(CAPACITY):
        inbox.put(row(inbox_id))
    inbox.wake(behind=True)
    assert inbox.behind
    inbox.mailbox.close()
    inbox.wake(behind=False)
    assert inbox.behind


def test_messages_are_put_back_before_requests_and_later_messages():
    inbox = SessionInbox()
    request = Request()
    inbox.queue = [row(1), row(4), request, row(6)]
    inbox.put_back([row(2), row(5)])
    assert inbox.queue == [row(1), row(2), row(4), row(5), request, row(6)]


@pytest.mark.parametrize("order", [[2, 5], [5, 2]])
def test_the_later_of_two_urgent_commands_cancels_the_earlier(order):
    inbox = SessionInbox()
    inbox.queue = [row(1), row(3), row(6)]
    for inbox_id in order:
        inbox.put_urgent(row(inbox_id, STOP))
    command, cancelled = inbox.take_urgent()
    assert command.inbox_id == 5
    assert sorted(ids(cancelled)) == [1, 2, 3]
    assert ids(inbox.queue) == [6]
    assert inbox.urgent is None


def test_the_same_urgent_command_twice_is_one():
    inbox = SessionInbox()
    stop = row(1, STOP)
    inbox.put_urgent(stop)
    inbox.put_urgent(stop)
    assert inbox.take_urgent() == (stop, [])


def test_an_empty_inbox_allocates_nothing():
    inbox = SessionInbox()
    inbox.add([1])
    inbox.release([1])
    assert inbox._known is None


def test_a_wake_up_does_not_hide_the_next_turn():
    inbox = SessionInbox()
    inbox.wake(behind=False)
    inbox.put(row(1))
    assert ids(inbox.next_turn()) == [1]
