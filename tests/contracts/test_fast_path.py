"""`accept` and `commit_turn` on PostgreSQL: functions do what the verbs do, or leave it to them."""

from __future__ import annotations

import math

import pytest
from hypothesis import event, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from msgspec.structs import replace

from hermes.errors import EventConflict, NotOwner, Overloaded
from hermes.messages import (
    Accepted,
    ApiRequest,
    Committed,
    Content,
    Discarded,
    ExpiryPolicy,
    Inbound,
    Message,
    Outbound,
    RecordedCall,
    Reply,
    Source,
    ToolCall,
    TurnCommit,
    TurnRecord,
    Usage,
)
from hermes.store import Rotation
from hermes.store.cluster import claims, nodes
from tests.support.examples import examples
from tests.support.two_paths import Asked, opened

PAIR = (Message("user", "hi"), Message("assistant", "yo"))
IDLE = ExpiryPolicy(mode="idle", idle_minutes=10)
DAILY = ExpiryPolicy(mode="both", idle_minutes=100, at_hour=3)
SOURCE = Source("telegram", "bot", "c1", "group", "t", "u1", "Ann")
asked = Asked()


@pytest.fixture(scope="module")
def urls(postgres):
    return postgres.create(), postgres.create()


@pytest.fixture
def both(urls):
    with opened(urls) as found:
        yield found
        found.check()


def inbound(name="e", key="k", **fields):
    return Inbound(key, name, f"text of {name}", **fields)


def turn(accepted, *more, **changes):
    receipt = accepted.receipt
    ids = [each.receipt.inbox_id for each in (accepted, *more)]
    finished = TurnCommit(
        session_key=receipt.session_key,
        session_id=receipt.session_id,
        epoch=receipt.epoch,
        revision=accepted.head.revision,
        inbox_ids=ids,
        rows=PAIR,
        outbox=[Outbound("chat", {"text": "yo", "session_id": receipt.session_id})],
        usage=[Usage(model="m", provider="p", input_tokens=3, output_tokens=4, cost=0.1)],
        reply=Reply(text="yo", session_id=receipt.session_id, turn_id=ids[0]),
        record=TurnRecord(started_at=7.5, status="complete"),
    )
    return replace(finished, **changes)


def begin(both, key="k"):
    """A conversation that has had a turn."""
    accepted = both.slow_do("accept", inbound(f"first of {key}", key, source=SOURCE))
    done = both.slow_do("commit_turn", turn(accepted))
    both.pass_time(1.5)
    return done


def ask(both, name="e", key="k", **fields):
    return both.fast_do("accept", inbound(name, key, source=SOURCE, **fields))


def test_the_usual_turn_is_done_by_functions(both):
    begin(both)
    accepted = ask(both, metadata={"a": [1, 2.5, None]}, when_busy="queue", platform_message_id="7")
    assert (accepted.waiting, accepted.receipt.accepted_at) == (0, both.worlds[0].now)
    both.pass_time(0.25)
    done = both.fast_do("commit_turn", turn(accepted, policy=IDLE))
    assert isinstance(done, Committed)
    assert [row.content for row in done.rows] == ["hi", "yo"]
    assert both.do("load", done.head.session_id).head == done.head
    assert both.do("get_outcome", accepted.receipt.inbox_id).reply == done.reply
    assert len(both.do("pending_outbox")) == 2


TEXTS = ('it\'s \\ "quoted" \\u0000 {}[],\n', "\N{GRINNING FACE}\u2028", "", "x" * 10_000)


@pytest.mark.parametrize("text", TEXTS)
def test_texts_arrive_as_they_are(both, text):
    begin(both)
    source = replace(SOURCE, user_id=text[:50], chat_id=text[:50])
    accepted = both.do("accept", Inbound("k", f"e{text[:50]}", text, source))
    rows = [Message("user", text), Message("assistant", text, reasoning=text, tool_name=text[:9])]
    replies = [Outbound(f"lane {text[:50]}", {"text": text})]
    reply = Reply(text=text, session_id="-", turn_id=accepted.receipt.inbox_id, data={text: [text]})
    both.do("commit_turn", turn(accepted, rows=rows, outbox=replies, reply=reply))


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b", "\\\0"])
def test_texts_that_cannot_be_stored_as_they_are(both, text):
    begin(both)
    accepted = both.do("accept", Inbound("k", "e2", text, SOURCE, metadata={"x": text}))
    rows = [Message("user", text, platform_message_id=text), Message("assistant", tool_name=text)]
    both.do("commit_turn", turn(accepted, rows=rows, outbox=[Outbound(text, {"text": text})]))
    both.do("commit_turn", turn(accepted, rows=rows, outbox=[Outbound("chat", {"text": text})]))


CHANGES = {
    "no rows": {"rows": ()},
    "no usage": {"usage": ()},
    "neither": {"rows": (), "usage": ()},
    "no replies": {"outbox": ()},
    "several replies": {"outbox": [Outbound("a", {"n": n}) for n in range(3)]},
    "no reply": {"reply": None},
    "no record": {"record": None},
    "idle": {"policy": IDLE},
    "never": {"policy": ExpiryPolicy()},
    "tool calls": {
        "rows": [
            Message("assistant", None, tool_calls=(ToolCall("1", "t", "{}"), ToolCall("2", "u"))),
            Message("tool", "result", tool_call_id="1", provider_data={"a": {"b": 1}}),
        ]
    },
    "timestamps and platform ids": {
        "rows": [Message("user", "x", 12.345678901, "p1"), Message("user", "y", 0.1 + 0.2, "p1")]
    },
    "costs": {"usage": [Usage(cost=0.1), Usage(cost=0.2, model="n"), Usage(cost=None)]},
    "auxiliary": {"usage": [Usage("summary", "s", cost=0.3), Usage(model="m", reasoning_tokens=9)]},
    "failed": {"record": TurnRecord(started_at=1.0, status="failed", error="no", agent="a")},
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_turns_that_functions_do(both, name):
    begin(both)
    both.fast_do("commit_turn", turn(ask(both), **CHANGES[name]))
    both.fast_do("commit_turn", turn(ask(both, "e2"), **CHANGES[name], revision=revision(both)))


def revision(both):
    return both.do("route_head", "k")[1].revision


def test_a_turn_for_several_messages_that_starts_the_next(both):
    begin(both)
    first, second, third = (ask(both, name) for name in ("a", "b", "c"))
    assert (third.waiting, third.previous) == (2, second.receipt.inbox_id)
    ids = [third.receipt.inbox_id]
    done = both.fast_do("commit_turn", turn(second, first, next_inbox_ids=ids, reply=None))
    reply = Reply(text="x", session_id="-", turn_id=ids[0], calls=(ToolCall("1", "t"),))
    changes = {"revision": done.head.revision, "reply": reply}
    both.fast_do("commit_turn", turn(third, **changes))


def test_a_reply_is_given_to_each_message_of_its_turn(both):
    begin(both)
    first, second = ask(both, "a"), ask(both, "b")
    number = second.receipt.inbox_id
    reply = Reply(text="x", session_id="-", turn_id=number)
    both.fast_do("commit_turn", turn(first, second, reply=reply))
    assert both.do("get_outcome", first.receipt.inbox_id).reply.turn_id == number


def recorded(*contents, session="", history=()):
    call = RecordedCall(
        settings=contents[0], tools=contents[1], system=contents[0], session_id=session,
        history=history, rows=0, usage=Usage(cost=0.1),
    )  # fmt: skip
    return TurnRecord(started_at=1.0, status="complete", calls=[call, call])


def test_recorded_calls(both):
    session = begin(both).head.session_id
    old = recorded(Content.of("settings"), Content.of("tools"), session=session, history=(1, 2))
    done = both.slow_do("commit_turn", turn(ask(both), record=old))
    done = both.fast_do(
        "commit_turn", turn(ask(both, "2"), record=old, revision=done.head.revision)
    )
    other = recorded(Content.of("settings"), Content.of("tools"), session="other", history=(1, 2))
    done = both.slow_do(
        "commit_turn", turn(ask(both, "3"), record=other, revision=done.head.revision)
    )
    new = recorded(Content.of("settings"), Content.of("new"), session=session)
    both.slow_do("commit_turn", turn(ask(both, "4"), record=new, revision=done.head.revision))


def test_a_second_conversation_uses_the_contents_of_the_first(both):
    session = begin(both).head.session_id
    contents = Content.of("settings"), Content.of("tools")
    both.do("commit_turn", turn(ask(both), record=recorded(*contents, session=session)))
    second = begin(both, "k2").head.session_id
    record = recorded(*contents, session=second)
    both.fast_do("commit_turn", turn(ask(both, "e2", "k2"), record=record))


def test_messages_that_only_the_verb_accepts(both):
    both.slow_do("accept", inbound())  # the first one
    assert both.slow_do("accept", inbound()).duplicate
    both.fast_do("accept", inbound("other"))
    per_conversation = replace(inbound("mine"), per_conversation=True)
    both.fast_do("accept", per_conversation)
    assert both.slow_do("accept", per_conversation).duplicate
    both.slow_do("accept", replace(inbound("mine", "k2"), per_conversation=True))
    conflict = both.slow_do("accept", replace(per_conversation, text="another"))
    assert isinstance(conflict, EventConflict)
    assert isinstance(both.slow_do("accept", inbound("many"), max_queued=3), Overloaded)
    assert isinstance(both.slow_do("accept", inbound("")), ValueError)
    assert isinstance(both.slow_do("accept", inbound("n", source=Source(user_id=3))), ValueError)
    assert isinstance(both.slow_do("accept", replace(inbound("l"), text="x" * 10**6)), ValueError)
    part = {"type": "text", "text": "x"}
    both.slow_do("accept", replace(inbound("parts"), parts=(part,)))


def test_a_request_of_the_api_is_for_the_verb(both):
    begin(both)
    request = ApiRequest(id="resp_1", credential="c", path="/v1/responses", digest="d")
    both.slow_do("accept", inbound("api", request=request))


def test_an_event_may_be_submitted_again_with_a_scope(both):
    begin(both)
    ask(both, "x")
    assert both.slow_do("accept", inbound("x", source=SOURCE, per_conversation=True)).duplicate


def test_a_message_after_the_end_of_a_session(both):
    for number, reason in enumerate(["closed", "agent_close"]):
        session = begin(both, f"k{number}").head.session_id
        both.do("end_session", session, reason)
        both.slow_do("accept", inbound(f"after {reason}", f"k{number}"))


def test_a_message_after_the_expiry(both):
    accepted = both.do("accept", inbound(), policy=IDLE)
    both.do("commit_turn", turn(accepted, policy=IDLE))
    both.pass_time(599)
    accepted = both.fast_do("accept", inbound("in time"), policy=IDLE)
    both.fast_do("commit_turn", turn(accepted, policy=DAILY))
    both.fast_do("accept", inbound("daily"), policy=DAILY)
    both.do("withdraw", "k", 3)
    both.pass_time(86_400)
    assert both.slow_do("accept", inbound("late"), policy=IDLE).expired
    both.fast_do("accept", inbound("never", per_conversation=True))


def test_turns_that_only_the_verb_commits(both):
    done = begin(both)
    session = done.head.session_id
    first = ask(both)
    for changes in [{"inbox_ids": ()}, {"rows": [Message("user", timestamp=math.nan)]},
                    {"stored": False}]:  # fmt: skip
        both.slow_do("commit_turn", turn(first, **changes))
    both.do("append_message", session, "user", "foreign")
    second = ask(both, "2")
    assert both.slow_do("commit_turn", turn(second, revision=done.head.revision)).foreign
    third = ask(both, "3")
    both.slow_do("commit_turn", turn(third, rewind_to=done.rows[0].id, upto=done.rows[1].id))
    both.slow_do("commit_turn", turn(ask(both, "4"), rotated_to="another", revision=revision(both)))
    file = {"type": "text", "text": "x"}
    rows = [Message("user", "x", parts=(file,))]
    fifth = ask(both, "5")
    both.slow_do("commit_turn", turn(fifth, rows=rows))
    assert isinstance(both.slow_do("commit_turn", turn(fifth)), Discarded)
    both.do("set_pending_title", "k", "A title")
    assert both.slow_do("commit_turn", turn(ask(both, "6"), revision=revision(both))).title


def test_a_turn_of_a_conversation_that_was_moved(both):
    begin(both)
    accepted = ask(both)
    both.do("new_session", "k")
    assert isinstance(both.slow_do("commit_turn", turn(accepted)), Discarded)
    again = both.do("accept", inbound("again"))
    both.slow_do("commit_turn", turn(again))  # the first of its session
    other = turn(both.do("accept", inbound("third")), session_key="unknown")
    both.slow_do("commit_turn", other)


def test_a_turn_of_a_compressed_session(both):
    done = begin(both)
    accepted = ask(both)
    rotation = Rotation(
        session_id=done.head.session_id, messages=[Message("user", "summary")], rotation_id="r",
        rewrites=0, upto=done.rows[-1].id,
    )  # fmt: skip
    both.do("rotate", rotation)
    assert both.slow_do("commit_turn", turn(accepted)).moved


def test_the_first_attempt_is_counted_if_a_turn_starts_at_once(both):
    begin(both)
    for store in both.stores:
        store._db.delivers = True
    ask(both, "a")
    ask(both, "b")
    assert [row.attempts for row in both.do("open_inbox", "k")] == [1, 0]


def test_a_turn_from_before_the_conversation_was_away_and_came_back(both):
    session = begin(both).head.session_id
    accepted = ask(both)
    both.do("new_session", "k")
    both.do("switch", "k", session)
    assert isinstance(both.slow_do("commit_turn", turn(accepted)), Discarded)


def test_a_turn_for_messages_that_are_closed_or_of_another_key(both):
    begin(both)
    closed = ask(both)
    both.do("withdraw", "k", closed.receipt.inbox_id)
    assert isinstance(both.slow_do("commit_turn", turn(closed)), Discarded)
    begin(both, "k2")
    mine, other = ask(both, "mine"), ask(both, "other", "k2")
    assert isinstance(both.slow_do("commit_turn", turn(mine, other)), Discarded)


def test_a_clock_that_is_set_back(both):
    begin(both)
    accepted = ask(both)
    both.pass_time(-100)
    both.fast_do("commit_turn", turn(accepted))


def test_a_turn_clears_the_notice(both):
    accepted = both.do("accept", inbound("early"), policy=IDLE)
    both.do("commit_turn", turn(accepted, policy=IDLE))
    both.pass_time(601)
    accepted = both.do("accept", inbound("late"), policy=IDLE)
    both.do("commit_turn", turn(accepted, rows=PAIR[:1], record=None))
    both.pass_time(601)
    both.do("sweep_expired")
    assert both.do("get_route", "k").notice == "expired"
    [store.create_session(store.get_route("k").session_id, "t") for store in both.stores]
    accepted = both.fast_do("accept", inbound("last"), policy=IDLE)
    assert accepted.route.notice == "expired"
    both.fast_do("commit_turn", turn(accepted))
    assert both.do("get_route", "k").notice is None


def start_node(both, name):
    node = both.transact(lambda tx: nodes.register(tx, name, 1000.0))
    both.transact(lambda tx: tx.run("UPDATE nodes SET lease_until = 9e9"))  # by no clock
    return node


def fenced(both, claim, work):
    """Run work under a claim. Return its result, and how many requests a verb has done."""
    before = both.fast.by_verb
    result = both.transact(claims.Fenced(work, claim.session_key, claim=claim))
    return result, both.fast.by_verb - before


def test_a_claim_that_holds(both):
    begin(both)
    node = start_node(both, "one")
    [claim] = both.transact(lambda tx: claims.claim(tx, node, ["k"]))
    accepted, by_verb = fenced(both, claim, asked.accept(inbound()))
    assert by_verb == 0
    done, by_verb = fenced(both, claim, asked.commit_turn(turn(accepted)))
    assert isinstance(done, Committed)
    assert by_verb == 0


def test_a_claim_that_was_taken(both):
    begin(both)
    accepted = ask(both)
    one, two = start_node(both, "one"), start_node(both, "two")
    [old] = both.transact(lambda tx: claims.claim(tx, one, ["k"]))
    both.transact(lambda tx: nodes.leave(tx, one))
    [new] = both.transact(lambda tx: claims.claim(tx, two, ["k"]))
    work = asked.commit_turn(turn(accepted))
    for claim in (old, replace(new, fence=old.fence), replace(new, node=one)):
        for request in (work, asked.accept(inbound("another"))):
            assert isinstance(fenced(both, claim, request)[0], NotOwner)
    assert isinstance(fenced(both, new, work)[0], Committed)


def test_a_claim_of_another_key_is_for_the_verb(both):
    begin(both)
    begin(both, "k2")
    node = start_node(both, "one")
    [claim] = both.transact(lambda tx: claims.claim(tx, node, ["k2"]))
    accepted, by_verb = fenced(both, claim, asked.accept(inbound()))
    assert (type(accepted), by_verb) == (Accepted, 1)


def test_a_message_is_for_the_node_that_serves_its_conversation(both):
    begin(both)
    one, two = start_node(both, "one"), start_node(both, "two")
    for store in both.stores:
        store._db.node, store._db.living, store._db.delivers = one, [two], True
    assert both.slow_do("accept", inbound("placed")).claim.node == two
    both.do("withdraw", "k", 2)
    for node, attempts in ((one, 0), (two, 1)):
        for store in both.stores:
            store._db.node = node
        accepted = both.fast_do("accept", inbound(f"for {node}"))
        assert accepted.claim.node == two
        assert [row.attempts for row in both.do("open_inbox", "k")] == [attempts]
        both.do("withdraw", "k", accepted.receipt.inbox_id)
    both.transact(lambda tx: nodes.leave(tx, two))
    for store in both.stores:
        store._db.living = [one]
    assert both.slow_do("accept", inbound("placed again")).claim.node == one
    for store in both.stores:
        store._db.living = None
    assert both.fast_do("accept", inbound("without nodes")).claim is None


def test_two_keys_of_one_session(both):
    session = begin(both).head.session_id
    both.do("switch", "k2", session, any_key=True)
    mine, other = ask(both), ask(both, "2", "k2")
    turns = [turn(mine), turn(other)]
    results = [store.group([asked.commit_turn(each) for each in turns]) for store in both.stores]
    assert results[0] == results[1]
    assert results[0][1].foreign


def test_a_batch_keeps_the_order_of_each_key(both):
    """A message that only the verb can accept is not overtaken by the next one of its key."""
    begin(both)
    batch = [
        inbound("1"),
        inbound("2", parts=({"type": "text", "text": "x"},)),
        inbound("3"),
        inbound("4", "new"),
        inbound("5", "new"),
        inbound("6"),
    ]
    before = both.fast.by_verb
    results = [store.group([asked.accept(each) for each in batch]) for store in both.stores]
    assert results[0] == results[1]
    assert both.fast.by_verb == before + 2


def test_a_request_that_is_refused_does_not_affect_the_others(both):
    begin(both)
    begin(both, "k2")
    batch = [inbound("1"), inbound("first of k2", "k2", source=SOURCE), inbound("")]
    results = [
        [str(each) for each in store.group([asked.accept(each) for each in batch])]
        for store in both.stores
    ]
    assert results[0] == results[1]


KEYS = ("a", "b", "c")
POLICIES = st.sampled_from([ExpiryPolicy(), IDLE, DAILY])
ACCEPT = st.builds(
    dict, key=st.sampled_from(KEYS), name=st.integers(0, 30), policy=POLICIES,
    own=st.booleans(), most=st.sampled_from([2, 100]), part=st.integers(0, 9).map(lambda n: not n),
)  # fmt: skip
COMMIT = st.builds(
    dict, key=st.sampled_from(KEYS), count=st.integers(1, 2), change=st.sampled_from([*CHANGES]),
    stale=st.integers(0, 9).map(lambda n: not n), starts=st.booleans(),
)  # fmt: skip


class Sequences(RuleBasedStateMachine):
    """Random requests, in batches, for both stores. Their ids differ, so names replace them."""

    urls = None

    def __init__(self):
        super().__init__()
        self._closing = opened(self.urls)
        self.both = self._closing.__enter__()
        self.both.use_distinct_ids()
        self.now = 0

    def teardown(self):
        before, total = self.both.fast.by_verb, self.both.verbs.by_verb
        event(f"{10 * (total - before) // max(1, total)} of ten by functions")
        try:
            self.both.check()
        finally:
            self._closing.__exit__(None, None, None)

    def requests(self, store, batch):
        for given in batch:
            if "policy" in given:
                parts = ({"type": "text", "text": "x"},) if given["part"] else None
                name, options = str(given["name"]), {"per_conversation": given["own"]}
                message = inbound(name, given["key"], source=SOURCE, parts=parts, **options)
                yield asked.accept(message, policy=given["policy"], max_queued=given["most"])
            else:
                found = self.turn(store, **given)
                if found is not None:
                    yield asked.commit_turn(found)

    def turn(self, store, key, count, change, *, stale, starts):
        rows = store.open_inbox(key)
        route_head = store.route_head(key)
        if not rows or route_head is None:
            return None
        route, head = route_head
        ids = [row.inbox_id for row in rows]
        finished = TurnCommit(
            session_key=key,
            session_id=route.session_id,
            epoch=route.epoch,
            revision=head.revision - stale,
            inbox_ids=ids[:count],
            rows=PAIR,
            outbox=[Outbound(key, {"text": "yo"})],
            usage=[Usage(model=key, cost=0.1)],
            next_inbox_ids=ids[count : count + 1] if starts else (),
            reply=Reply(text="yo", session_id=route.session_id, turn_id=ids[0]),
            record=TurnRecord(started_at=0.5, status="complete"),
        )
        return replace(finished, **CHANGES[change])

    @rule(batch=st.lists(ACCEPT | COMMIT, min_size=1, max_size=6))
    def group(self, batch):
        first, second = (
            self.both.named(store, store.group([*self.requests(store, batch)]))
            for store in self.both.stores
        )
        assert first == second
        self.both.pass_time(1)

    @rule(seconds=st.sampled_from([1, 400, 90_000]))
    def wait(self, seconds):
        self.both.pass_time(seconds)

    @rule(verb=st.sampled_from(["new_session", "close_session"]), key=st.sampled_from(KEYS))
    def leave(self, verb, key):
        self.both.do(verb, key)

    @rule(key=st.sampled_from(KEYS), what=st.sampled_from(["append", "end", "crash", "compress"]))
    def from_elsewhere(self, key, what):
        route = self.both.do("get_route", key)
        if route is None or self.both.do("get_session", route.session_id) is None:
            return
        session = route.session_id
        if what == "append":
            self.both.do("append_message", session, "user", "foreign")
        elif what == "compress":
            upto = self.both.do("load", session).messages[-1:]
            head = self.both.do("head", session)
            rotation = Rotation(
                session_id=session, messages=[Message("user", "summary")], rotation_id="r",
                rewrites=head.rewrites, upto=upto[0].id if upto else 0,
            )  # fmt: skip
            self.both.do("rotate", rotation)
        else:
            self.both.do("end_session", session, {"end": "done", "crash": "agent_close"}[what])

    @rule(key=st.sampled_from(KEYS), title=st.sampled_from(["One", "Two", None]))
    def name(self, key, title):
        self.both.do("set_title", key, title)

    @rule(key=st.sampled_from(KEYS), other=st.sampled_from(KEYS))
    def share(self, key, other):
        route = self.both.do("get_route", other)
        if route is not None:
            self.both.do("switch", key, route.session_id, any_key=True)


def test_random_sequences(urls):
    class Here(Sequences):
        pass

    Here.urls = urls
    run_state_machine_as_test(Here, settings=examples(100, stateful_step_count=15))
