"""A listener, the owners of its conversation one after the other, and a channel between them.

The channel loses, repeats and reorders frames; owners crash, and go on publishing without knowing
that they have lost the conversation. Whatever happens, the listener sees the beginning of what an
attempt has published, and each turn ends once, with the reply that is committed.
"""

from __future__ import annotations

import itertools

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hermes.actors.remote.conversation import RemoteConversation
from hermes.actors.remote.feed import Feed
from hermes.actors.remote.frames import Ended, FeedId, Item, Missing, Published, decode, encode
from hermes.actors.remote.items import Items, missing
from hermes.events import (
    MessageAccepted,
    ReasoningDelta,
    Retrying,
    RuntimeEvent,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import MessageOutcome, Receipt, Reply

KEY = "conversation"
TEXTS = st.text("abc", min_size=1, max_size=3)
KINDS = st.sampled_from(["text", "text", "text", "restart", "reasoning", "other", "start"])
FATES = st.sampled_from(["arrives", "arrives", "arrives", "lost", "repeated", "delayed", "waits"])


class Owner:
    """A node that owns the conversation, or believes it."""

    def __init__(
        self, node: int, fence: int, channel: list[bytes], opened: itertools.count
    ) -> None:
        self.node, self.fence = node, fence
        self.channel = channel
        self.opened = opened
        self.turn_id: int | None = None
        self.items: list[Item] = []
        """All that was published of the running turn since its start."""
        self.open_feed()

    def open_feed(self) -> None:
        """Forget the numbers and the buffer."""
        self.feed = Feed(KEY, FeedId(self.fence, next(self.opened), self.node), kept_size=700)

    def publish(self, event: RuntimeEvent | Ended, turn_id: int | None) -> None:
        if isinstance(event, TurnStarted):
            self.items = []
        if turn_id is not None and not isinstance(event, Ended):
            self.items.append(Item(turn_id, event))
        self.feed.add(Item(turn_id, event))

    def flush(self) -> None:
        self.send(self.feed.flush())

    def send(self, frame: Published | None) -> None:
        if frame is not None:
            self.channel.append(encode([frame]))

    def answer(self, asked: Missing) -> None:
        self.flush()
        self.send(self.feed.after(asked.feed, asked.after) or self.state())

    def state(self) -> Published:
        items = self.items if self.turn_id is not None else []
        return Published(KEY, self.feed.id, self.feed.last, items, whole=True, started_at=1.0)


class StreamMachine(RuleBasedStateMachine):
    """Rules are what may happen; the end heals the channel and lets the listener catch up."""

    def __init__(self) -> None:
        super().__init__()
        self.channel: list[bytes] = []
        self.nodes = itertools.count(1)
        self.opened = itertools.count(1)
        self.runs = itertools.count(1)
        self.replies: dict[int, Reply | None] = {}
        """The database: accepted messages with their replies."""
        self.attempts: dict[int, int] = {}
        self.truth: dict[str, list[Item]] = {}
        """What was published of each run, by its session id."""
        self.zombies: list[Owner] = []
        self.owner = Owner(next(self.nodes), 1, self.channel, self.opened)
        self.listener = RemoteConversation(KEY, self.seen, lambda: 0.0)
        self.view: list[Item] = []
        """What the listener has seen since the last start."""
        self.run: str | None = None
        self.ended: dict[int, Reply] = {}
        self.started: set[int] = set()
        self.ask(zombie=False, connected=True)
        self.transfer(["arrives"])

    # What the listener sees

    def seen(self, turn_id: int | None, event: RuntimeEvent) -> None:
        if isinstance(event, TurnEnded):
            for inbox_id in event.inbox_ids:
                assert inbox_id not in self.ended, "an end is published once"
                self.ended[inbox_id] = event.reply
                assert event.reply == self.replies[inbox_id], "the reply is the committed one"
            if self.view and self.view[0].turn_id == event.reply.turn_id:
                self.view = []
        elif isinstance(event, TurnStarted):
            assert turn_id not in self.ended
            self.view, self.run = [Item(turn_id, event)], event.session_id
            self.started.add(event.turn_id)
        elif turn_id is not None:
            assert self.view, "an event of a turn comes after its start"
            self.view.append(Item(turn_id, event))

    @invariant()
    def the_listener_has_the_beginning_of_a_run(self) -> None:
        if self.view:
            assert missing([*Items(self.view)], [*Items(self.truth[self.run])]) is not None
            if self.listener.turn is not None:
                assert self.listener.turn.items == [*Items(self.view)]

    # The owner

    def publish(self, owner: Owner, event: RuntimeEvent) -> None:
        if isinstance(event, TurnStarted):
            self.truth[event.session_id] = []
        owner.publish(event, owner.turn_id)
        self.truth[owner.items[0].event.session_id] = [*owner.items]

    @rule(count=st.integers(1, 2))
    def accept(self, count: int) -> None:
        for _ in range(count):
            inbox_id = len(self.replies) + 1
            self.replies[inbox_id] = None
            self.owner.publish(MessageAccepted("hello", inbox_id), None)

    @precondition(lambda self: self.owner.turn_id is None)
    @rule()
    def start(self) -> None:
        if None not in self.replies.values():
            self.accept(1)
        waiting = [each for each, reply in self.replies.items() if reply is None]
        self.owner.turn_id = waiting[0]
        self.attempts[waiting[0]] = self.attempts.get(waiting[0], 0) + 1
        self.begin(tuple(waiting))

    def begin(self, inbox_ids: tuple[int, ...]) -> None:
        turn_id = self.owner.turn_id
        self.publish(
            self.owner,
            TurnStarted(
                turn_id, f"run {next(self.runs)}", None, inbox_ids, attempt=self.attempts[turn_id]
            ),
        )

    @rule(said=st.lists(st.tuples(KINDS, TEXTS, FATES), min_size=1, max_size=10))
    def say(self, said: list[tuple[str, str, str]]) -> None:
        """Publish events; each is flushed and sent, unless it waits for the next one."""
        if self.owner.turn_id is None:
            self.start()
        for kind, text, fate in said:
            if kind == "start":  # the conversation was too long: the same attempt runs again
                self.begin(self.owner.items[0].event.inbox_ids)
            else:
                self.publish(self.owner, _event(kind, text))
            if fate != "waits":
                self.owner.flush()
                self.transfer([fate])

    @precondition(lambda self: self.owner.turn_id is not None)
    @rule(flushed=st.booleans())
    def commit(self, flushed: bool) -> None:
        turn_id = self.owner.turn_id
        ids = self.owner.items[0].event.inbox_ids
        reply = Reply(text=f"reply {turn_id}", session_id="s", turn_id=turn_id, status="complete")
        self.replies |= dict.fromkeys(ids, reply)
        self.owner.publish(Ended(ids), turn_id)
        self.owner.turn_id = None
        if flushed:
            self.owner.flush()

    @rule(how=st.sampled_from(["feed", "feed", "crash", "zombie"]))
    def change(self, how: str) -> None:
        """The owner opens another feed, crashes, or loses the conversation unawares."""
        if how == "feed":
            self.owner.flush()
            self.owner.open_feed()
            self.owner.send(self.owner.state())
            return
        if how == "zombie":
            self.zombies.append(self.owner)
        fence = self.owner.fence + 1
        self.owner = Owner(next(self.nodes), fence, self.channel, self.opened)

    @precondition(lambda self: any(each.turn_id is not None for each in self.zombies))
    @rule(texts=st.lists(TEXTS, min_size=1, max_size=3))
    def a_former_owner_goes_on(self, texts: list[str]) -> None:
        zombie = next(each for each in reversed(self.zombies) if each.turn_id is not None)
        for text in texts:
            self.publish(zombie, TextDelta(text))
            zombie.flush()

    # The channel

    @rule(fates=st.lists(FATES, min_size=1, max_size=8))
    def transfer(self, fates: list[str]) -> None:
        for fate in fates:
            if not self.channel:
                break
            frame = self.channel.pop(0)
            if fate in {"arrives", "repeated"}:
                self.arrive(frame)
            if fate in {"delayed", "repeated", "waits"}:
                self.channel.append(frame)

    def arrive(self, frame: bytes) -> None:
        for each in decode(frame):
            self.listener.receive(each)

    # The listener

    @rule(zombie=st.booleans(), connected=st.booleans())
    def ask(self, zombie: bool, connected: bool) -> None:
        """Ask for what is missing; after a lost connection, also if nothing seems to be."""
        if self.listener.behind or not connected:
            position = self.listener.position
            feed, after = (None, 0) if position is None else (position.feed, position.number)
            owner = self.zombies[-1] if zombie and self.zombies else self.owner
            owner.answer(Missing(9, KEY, feed, after))

    @rule()
    def read_the_database(self) -> None:
        wanted = self.listener.open.union(self.listener.reading)
        self.listener.settle(wanted, [self.outcome(each) for each in wanted])

    def outcome(self, inbox_id: int) -> MessageOutcome:
        reply = self.replies[inbox_id]
        receipt = Receipt(inbox_id, KEY, "s", 1, 0.0)
        state = "open" if reply is None else "done"
        return MessageOutcome(receipt, ("embedded", "", str(inbox_id), ""), state, reply=reply)

    def teardown(self) -> None:
        """From now on nothing is lost: the listener gets everything."""
        if self.owner.turn_id is None and self.owner.items:
            self.owner.items = []
        for _ in range(4):
            self.owner.flush()
            while self.channel:
                self.arrive(self.channel.pop(0))
            self.read_the_database()
            self.ask(zombie=False, connected=False)
        self.the_listener_has_the_beginning_of_a_run()
        assert not self.listener.behind
        assert not self.listener.reading
        for turn_id in self.started:
            assert self.ended.get(turn_id) == self.replies[turn_id], "every committed turn ends"
        if self.owner.turn_id is not None:
            assert [*Items(self.view)] == [*Items(self.owner.items)], "the running turn is complete"
        assert all(self.replies[each] is None for each in self.listener.open)


def _event(kind: str, text: str) -> RuntimeEvent:
    match kind:
        case "reasoning":
            return ReasoningDelta(text)
        case "other":
            return Retrying(1.0, text)
    return TextDelta(text, restart=kind == "restart")


StreamMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
TestStream = StreamMachine.TestCase
