"""The races of `test_postgres_races`: what is called at once, and what must hold then."""

from __future__ import annotations

import random
from functools import partial

from msgspec.structs import replace
from outcome import Error

from hermes.errors import Overloaded, SessionEnded, TitleTaken, TurnClosed
from hermes.messages import (
    ApiRequest,
    Committed,
    Discarded,
    Inbound,
    Message,
    Outbound,
    Pairing,
    PairingRejected,
    Person,
    Rotated,
    Rotation,
    Source,
    Token,
    TurnCommit,
)
from hermes.store.group_commit import commit_group
from hermes.store.records.access import MAX_NEW_REQUESTS, MAX_WRONG_CODES
from hermes.store.verbs import StoreVerbs
from tests.support.postgres_races import Finding, Race, errors, exactly, first_of

CROWD = 6
EITHER = frozenset({"the first call won", "another call won"})


def rows(judge, sql, *values):
    """Return rows of the database."""
    return judge.snapshot(lambda tx: tx.all(sql, *values))


def change(judge, sql, *values):
    judge.transact(lambda tx: tx.run(sql, *values))


def converse(judge, key, name="1"):
    """Begin a conversation with one answered message; return what was accepted next."""
    accepted = judge.accept(Inbound(key, f"{key} {name}", "hello"))
    judge.commit_turn(turn_of(accepted))
    return judge.accept(Inbound(key, f"{key} {name} next", "and now?"))


def turn_of(accepted, **fields):
    """Return a turn that answers a message."""
    receipt = accepted.receipt
    return TurnCommit(
        session_key=receipt.session_key,
        session_id=receipt.session_id,
        epoch=receipt.epoch,
        revision=accepted.head.revision,
        inbox_ids=[receipt.inbox_id],
        rows=[Message("user", accepted.inbound.text), Message("assistant", "answer")],
        **fields,
    )


# Conversations


def first_message(judge, number):
    """A key that is new gets one session, and at most so many messages wait."""
    key, limit = f"first {number}", 4
    results = yield [
        partial(_accept, key=key, event=f"{key} {each}", max_queued=limit) for each in range(CROWD)
    ]
    found = errors(results, Overloaded) + exactly(limit, results, "were accepted")
    sessions = {each.value.receipt.session_id for each in results if each.value}
    if len(sessions) != 1:
        found.append(f"{len(sessions)} sessions")
    if sorted(each.value.waiting for each in results if each.value) != list(range(limit)):
        found.append("the messages are counted wrongly")
    ids = [row[0] for row in rows(judge, "SELECT id FROM inbox WHERE session_key = ?", key)]
    waiting = {each.value.receipt.inbox_id: each.value.waiting for each in results if each.value}
    if [waiting[each] for each in sorted(ids)] != list(range(limit)):
        found.append("the ids are not in the order of acceptance")
    return Finding(first_of(results), found)


def _accept(store, key, event, **options):
    return store.accept(Inbound(key, event, event), **options)


def rotation_and_append(judge, number):
    """What was appended before a compression is in the continuation, and nothing after it."""
    session = f"rotated {number}"
    judge.create_session(session)
    judge.append_messages(session, [Message("user", f"old {each}") for each in range(3)])
    transcript = judge.load(session)
    rotation = Rotation(
        session_id=session,
        messages=[Message("user", "summary")],
        rotation_id=session,
        rewrites=transcript.head.rewrites,
        upto=transcript.messages[-1].id,
    )
    rotated, appended = yield [
        lambda store: store.rotate(rotation),
        lambda store: store.append_message(session, "user", "new"),
    ]
    found = errors([rotated, appended], SessionEnded)
    if not isinstance(rotated.value, Rotated):
        return Finding("neither", [*found, f"not rotated: {rotated}"])
    texts = [each.content for each in judge.get_messages(rotated.value.session_id)]
    if texts != (["summary", "new"] if appended.value else ["summary"]):
        found.append(f"the continuation has {texts}")
    return Finding("append first" if appended.value else "rotation first", found)


def one_winner_rotates(judge, number):
    """Of several compressions of a session one is stored, and the others learn who won."""
    key = f"compressed {number}"
    session = converse(judge, key).receipt.session_id
    transcript, route = judge.load(session), judge.get_route(key)
    results = yield [
        lambda store, name=name: store.rotate(
            Rotation(
                session_id=session,
                messages=[Message("user", f"summary {name}")],
                rotation_id=f"{session} {name}",
                rewrites=transcript.head.rewrites,
                upto=transcript.messages[-1].id,
                session_key=key,
                epoch=route.epoch,
            )
        )
        for name in range(3)
    ]
    won = [each.value.session_id for each in results if isinstance(each.value, Rotated)]
    named = {each.value.winner for each in results if not isinstance(each.value, Rotated)}
    found = errors(results)
    if len(won) != 1 or named - set(won):
        found.append(f"{won} won, and the others know of {named}")
    moved = judge.get_route(key)
    if [moved.session_id] != won or moved.epoch != route.epoch + 1:
        found.append(f"the route leads to {moved.session_id} at epoch {moved.epoch}")
    first = isinstance(results[0].value, Rotated)
    return Finding("the first call won" if first else "another call won", found)


def expiry_and_message(judge, number):
    """An overdue conversation ends once, and the message is in the next one."""
    key = f"expired {number}"
    accepted = converse(judge, key)
    judge.commit_turn(turn_of(accepted))
    change(judge, "UPDATE routes SET expires_at = 1 WHERE session_key = ?", key)
    swept, sent = yield [
        lambda store: store.sweep_expired(),
        partial(_accept, key=key, event=f"{key} late"),
    ]
    found = errors([swept, sent])
    old = accepted.receipt.session_id
    ended = rows(
        judge,
        "SELECT count(*) FROM boundaries WHERE session_key = ? AND event = 'on_session_finalize'",
        key,
    )
    if ended != [(1,)]:
        found.append(f"the conversation ended {ended} times")
    route = judge.get_route(key)
    if sent.value and sent.value.receipt.session_id != route.session_id:
        found.append("the message is in another session than its conversation")
    if route.session_id == old:
        found.append("the conversation did not expire")
    return Finding("sweep first" if swept.value else "message first", found)


def reset_and_commit(judge, number):
    """A turn is stored before the conversation is reset, or it is discarded."""
    key = f"reset {number}"
    accepted = converse(judge, key)
    done, fresh = yield [
        lambda store: store.commit_turn(turn_of(accepted)),
        lambda store: store.new_session(key),
    ]
    found = errors([done, fresh])
    stored = len(judge.get_messages(accepted.receipt.session_id))
    if stored != (4 if isinstance(done.value, Committed) else 2):
        found.append(f"{stored} messages after {type(done.value).__name__}")
    if fresh.value and judge.get_route(key).session_id != fresh.value.session_id:
        found.append("the route was moved back")
    return Finding(_committed(done), found)


def switch_and_commit(judge, number):
    """A turn is stored before the conversation moves to another session, or it is discarded."""
    key = f"switched {number}"
    first = converse(judge, key).receipt.session_id
    judge.new_session(key)
    accepted = converse(judge, key, "2")
    done, switched = yield [
        lambda store: store.commit_turn(turn_of(accepted)),
        lambda store: store.switch(key, first),
    ]
    found = errors([done, switched])
    stored = len(judge.get_messages(accepted.receipt.session_id))
    if stored != (4 if isinstance(done.value, Committed) else 2):
        found.append(f"{stored} messages after {type(done.value).__name__}")
    if judge.get_route(key).session_id != first:
        found.append("the route was moved back")
    return Finding(_committed(done), found)


def _committed(done):
    return "turn first" if isinstance(done.value, Committed) else "move first"


def append_and_commit(judge, number):
    """A turn reports what another process has appended before it: its agent does not know that."""
    key = f"foreign {number}"
    accepted = converse(judge, key)
    session = accepted.receipt.session_id
    part = {"type": "text", "text": "answer"}
    rows = [Message("assistant", "answer", parts=(part,) if number % 2 else None)]  # both paths
    done, appended = yield [
        lambda store: store.commit_turn(replace(turn_of(accepted), rows=rows)),
        lambda store: store.append_message(session, "user", "foreign"),
    ]
    found = errors([done, appended])
    is_first = appended.value.message_id < done.value.rows[0].id
    if done.value.foreign != is_first:
        found.append(f"foreign is {done.value.foreign}")
    return Finding("append first" if is_first else "turn first", found)


def same_turn(judge, number):
    """A turn is committed once."""
    accepted = converse(judge, f"repeated {number}")
    replies = [Outbound("lane", {"text": "answer"})]
    results = yield [
        lambda store: store.commit_turn(turn_of(accepted, outbox=replies)) for _ in range(2)
    ]
    found = errors(results)
    kinds = {type(each.value) for each in results}
    stored = len(judge.get_messages(accepted.receipt.session_id))
    if kinds != {Committed, Discarded} or stored != 4:
        found.append(f"{kinds} with {stored} messages")
    first = isinstance(results[0].value, Committed)
    return Finding("the first call won" if first else "another call won", found)


# Tools and approvals


def approval(judge, number, name):
    """Ask for an approval; return its conversation and its number."""
    key = f"{name} {number}"
    converse(judge, key)
    return key, judge.ask_approval(key, "tool", "{}").approval_id


def approval_taken_twice(judge, number):
    """An approval is used once."""
    key, asked = approval(judge, number, "taken")
    judge.decide_approval(key, asked, approve=True)
    results = yield [lambda store: store.take_approval(key, "tool", "{}") for _ in range(3)]
    return Finding(first_of(results), errors(results) + exactly(1, results, "used an approval"))


def approved_and_denied(judge, number):
    """A call is approved or denied, and stays that."""
    key, asked = approval(judge, number, "decided")
    results = yield [
        partial(_decide, key=key, number=asked, approve=True),
        partial(_decide, key=key, number=asked, approve=False),
    ]
    found = errors(results) + exactly(1, results, "decided")
    state = judge.get_approval(key, asked).state
    if state != ("approved" if results[0].value else "denied"):
        found.append(f"the approval is {state}")
    return Finding("approved" if results[0].value else "denied", found)


def _decide(store, key, number, *, approve):
    return store.decide_approval(key, number, approve=approve)


def call_and_commit(judge, number):
    """A call is made before its turn is committed, or not at all; two callers do not make it."""
    accepted = converse(judge, f"once {number}")
    turn_id = accepted.receipt.inbox_id
    begun, again, done = yield [
        lambda store: store.begin_once(turn_id, "tool", "{}") or "made",
        lambda store: store.begin_once(turn_id, "tool", "{}") or "made",
        lambda store: store.commit_turn(turn_of(accepted)),
    ]
    found = errors([begun, again, done], TurnClosed)
    made = [each.value for each in (begun, again)].count("made")
    if made > 1 or (made == 0 and None in {begun.error, again.error}):
        found.append(f"{made} calls were made: {begun}, {again}")
    if not isinstance(done.value, Committed):
        found.append(f"the turn was not committed: {done}")
    if rows(judge, "SELECT 1 FROM once_calls WHERE turn_id = ?", turn_id):
        found.append("a call was recorded after its turn")
    return Finding("call first" if made else "turn first", found)


# Leases, codes, tokens


def lease(judge, number):
    """One of several gets the lease of a session."""
    session = f"leased {number}"
    judge.create_session(session)
    results = yield [
        lambda store, holder=f"holder {each}": store.acquire_lease(session, holder)
        for each in range(CROWD)
    ]
    found = errors(results) + exactly(1, results, "have the lease")
    holder = judge.get_compression_lock_holder(session)
    if [each.value.holder for each in results if each.value] != [holder]:
        found.append(f"the lease belongs to {holder}")
    return Finding(first_of(results), found)


def wrong_codes(judge, number):
    """Each wrong code counts, so that nobody has more attempts by trying several at once."""
    operator = Source("console", user_id=f"operator {number}")
    results = yield [
        lambda store: store.approve_pairing("ZZZZ-9999", "user", operator) for _ in range(CROWD)
    ]
    left = [each.value.left for each in results if isinstance(each.value, PairingRejected)]
    found = errors(results)
    if sorted(left) != sorted([*range(MAX_WRONG_CODES), 0]):
        found.append(f"after each attempt are left: {left}")
    first = left[0] == max(left)
    return Finding("the first call won" if first else "another call won", found)


def code_used_twice(judge, number):
    """A pairing code is used once."""
    change(judge, "DELETE FROM pairings")
    user = Source("telegram", user_id=f"user {number}")
    judge.request_pairing(user, "k", f"AAAA-{number:04}", salt="00")
    results = yield [
        lambda store, name=name: store.approve_pairing(
            f"AAAA-{number:04}", "user", Source("console", user_id=f"{name} {number}")
        )
        for name in "ab"
    ]
    used = [each.value for each in results if isinstance(each.value, Pairing)]
    found = errors(results) + ([] if len(used) == 1 else [f"{len(used)} used the code"])
    first = isinstance(results[0].value, Pairing)
    return Finding("the first call won" if first else "another call won", found)


def pairing_limit(judge, number):
    """An account gives out so many codes, however many strangers ask at once."""
    change(judge, "DELETE FROM pairings")
    results = yield [
        lambda store, name=f"{number} {each}": store.request_pairing(
            Source("telegram", user_id=name), f"stranger {name}", f"AAAA-{name}", salt="00"
        )
        for each in range(CROWD)
    ]
    found = errors(results) + exactly(MAX_NEW_REQUESTS, results, "got a code")
    return Finding(first_of(results), found)


def sign_in(judge, number):
    """A one-time token opens one session."""
    judge.add_sign_in(f"link {number}", Person(namespace="ann", name="Ann", role="operator"))
    results = yield [
        lambda store, name=f"{number} {each}": store.sign_in(
            f"link {number}", _session(name), f"digest {name}"
        )
        for each in range(3)
    ]
    return Finding(first_of(results), errors(results) + exactly(1, results, "signed in"))


def _session(name):
    return Token(
        id=f"session {name}", name="Ann", namespace="ann", roles=("operator",), created_at=0,
        platform="web",
    )  # fmt: skip


def idempotency_key(judge, number):
    """Two requests with one idempotency key have one response, also in two new conversations."""
    results = yield [
        lambda store, name=name: store.accept_request(
            Inbound(
                f"request {number} {name}",
                f"key:{number}",
                "hello",
                Source("http", account="token"),
                request=ApiRequest(
                    id=f"resp_{number}_{name}", credential="token", path="/v1/responses",
                    digest="d", idempotency_key=f"{number}", process="p",
                ),
            )
        )
        for name in "ab"
    ]  # fmt: skip
    found = errors(results)
    if not found:
        fresh = [each.value for each in results if not each.value.duplicate]
        if len(fresh) != 1 or len({each.value.receipt for each in results}) != 1:
            found.append(f"{len(fresh)} requests were new")
    stored = rows(
        judge, "SELECT id FROM responses WHERE credential = 'token' AND idempotency_key = ?",
        f"{number}",
    )  # fmt: skip
    if len(stored) != 1:
        found.append(f"{len(stored)} responses")
    first = stored[:1] == [(f"resp_{number}_a",)]
    return Finding("the first call won" if first else "another call won", found)


# Titles


def same_title(judge, number):
    """No two conversations of a key have one title."""
    key, sessions = _two_sessions(judge, f"titled {number}")
    results = yield [
        lambda store, session=session: store.set_session_title(session, f"title {number}")
        for session in sessions
    ]
    found = errors(results, TitleTaken) + exactly(1, results, "set the title")
    return Finding(first_of(results), found + _titles(judge, key, [None, f"title {number}"]))


def same_automatic_title(judge, number):
    """A title that Hermes makes gets a number if it is taken, also in that moment."""
    key, sessions = _two_sessions(judge, f"automatic {number}")
    name = f"topic {number}"
    results = yield [
        lambda store, session=session: store.set_auto_title_if_empty(session, name)
        for session in sessions
    ]
    found = errors(results) + exactly(2, results, "set a title")
    found += _titles(judge, key, [name, f"{name} #2"])
    first = judge.get_session(sessions[0]).title == name
    return Finding("the first call won" if first else "another call won", found)


def _two_sessions(judge, key):
    found = []
    for name in "ab":
        judge.create_session(f"{key} {name}", session_key=key)
        found.append(f"{key} {name}")
    return key, found


def _titles(judge, key, expected):
    found = [row[0] for row in rows(judge, "SELECT title FROM sessions WHERE session_key = ?", key)]
    same = sorted(found, key=str) == sorted(expected, key=str)
    return [] if same else [f"the titles are {found}"]


# Batches


class Works(StoreVerbs):
    """Returns the work of a verb, for a batch."""

    def transact(self, work):
        return work


def batches(judge, number):
    """Requests of the same keys in other orders wait for each other, and are all done."""
    works, keys = Works(), [f"batch {number} {each}" for each in range(8)]
    chance = random.Random(number)

    def batch(name):
        shuffled = chance.sample(keys, len(keys))
        return [works.accept(Inbound(key, f"{key} {name}", name)) for key in shuffled]

    def commit(store, batch):
        return commit_group(store._db, store._clock, batch).outcomes

    results = yield [partial(commit, batch=batch(name)) for name in "abc"]
    found = errors(results)
    outcomes = [each for result in results for each in result.value or ()]
    found += [f"refused: {each}" for each in outcomes if isinstance(each, Error)]
    counts = rows(
        judge, "SELECT count(*), count(DISTINCT session_id) FROM inbox WHERE session_key LIKE ? "
        "GROUP BY session_key", f"batch {number} %",
    )  # fmt: skip
    if counts != [(3, 1)] * len(keys):
        found.append(f"messages and sessions of each key: {counts}")
    ids = rows(judge, "SELECT body FROM inbox WHERE session_key = ? ORDER BY id", keys[0])
    first = '"text":"a"' in ids[0][0] if ids else False
    return Finding("the first call won" if first else "another call won", found)


def _pair(start, *orders):
    return Race(start.__name__.replace("_", " "), start, frozenset(orders))


RACES = [
    _pair(first_message, *EITHER),
    _pair(rotation_and_append, "append first", "rotation first"),
    _pair(one_winner_rotates, *EITHER),
    _pair(expiry_and_message, "sweep first", "message first"),
    _pair(reset_and_commit, "turn first", "move first"),
    _pair(switch_and_commit, "turn first", "move first"),
    _pair(append_and_commit, "append first", "turn first"),
    _pair(same_turn, *EITHER),
    _pair(approval_taken_twice, *EITHER),
    _pair(approved_and_denied, "approved", "denied"),
    _pair(call_and_commit, "call first", "turn first"),
    _pair(lease, *EITHER),
    _pair(wrong_codes, *EITHER),
    _pair(code_used_twice, *EITHER),
    _pair(pairing_limit, *EITHER),
    _pair(sign_in, *EITHER),
    _pair(idempotency_key, *EITHER),
    _pair(same_title, *EITHER),
    _pair(same_automatic_title, *EITHER),
    _pair(batches, *EITHER),
]
