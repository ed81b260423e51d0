"""Compression (`rotate`), its leases, and `branch`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hermes.errors import UnknownSession
from hermes.messages import Head, Lease, Message, Rotated, Skipped, ToolCall
from hermes.store import Rotation

DAY = 86400.0
SUMMARY = [Message("user", "summary"), Message("user", "tail")]


@pytest.fixture
def talk(store):
    """A titled session of twenty messages, and a finished compression of it."""
    store.create_session(
        "p", "discord", model="m", user_id="u", session_key="k", system_prompt="be kind"
    )
    store.set_session_title("p", "Chat")
    head = store.append_messages("p", [Message("user", f"m{n}") for n in range(20)])
    last = store.load("p").messages[-1].id
    return Rotation(
        session_id="p",
        messages=SUMMARY,
        rotation_id="r1",
        rewrites=head.rewrites,
        upto=last,
        child_session_id="c1",
    )


def other(rotation, **changes):
    return replace(rotation, **{"rotation_id": "r2", "child_session_id": "c2", **changes})


def texts(transcript):
    return [message.content for message in transcript.messages]


def children(store, sql):
    return sql("SELECT id FROM sessions WHERE kind = 'compression' ORDER BY no")


def test_a_rotation_ends_the_parent_and_continues_in_one_child(store, talk, world):
    world.pass_time(60)
    done = store.rotate(talk)
    assert done == Rotated("c1", Head("c1", 2, 1, 0), None)
    parent, child = store.get_session("p"), store.get_session("c1")
    assert (parent.end_reason, parent.ended_at, parent.title) == ("compression", world.now, "Chat")
    assert (child.kind, child.parent_session_id, child.title) == ("compression", "p", "Chat #2")
    described = (child.source, child.model, child.user_id, child.session_key, child.system_prompt)
    assert described == ("discord", "m", "u", "k", "be kind")
    assert texts(store.load("c1")) == ["summary", "tail"]
    assert len(store.load("p").messages) == 20


def test_a_new_prompt_may_come_with_the_rotation(store, talk):
    store.rotate(replace(talk, system_prompt="be brief"))
    assert store.get_session("c1").system_prompt == "be brief"
    assert store.get_session("p").system_prompt == "be kind"


def test_the_loser_of_a_race_is_given_the_winner_and_changes_nothing(store, talk, sql):
    store.rotate(talk)
    lost = Skipped("already compressed", winner="c1", compressed=True)
    assert store.rotate(other(talk)) == lost
    store.rotate(
        replace(talk, session_id="c1", rotation_id="r3", child_session_id="c3", rewrites=0, upto=0)
    )
    assert store.rotate(other(talk)) == replace(lost, winner="c3")
    assert children(store, sql) == [["c1"], ["c3"]]


def test_a_retry_finds_its_own_child(store, talk, sql):
    first = store.rotate(talk)
    again = store.rotate(talk)
    assert again == replace(first, repeated=True)
    assert children(store, sql) == [["c1"]]


def test_messages_appended_meanwhile_are_carried_over(store, talk):
    call = ToolCall("1", "clock")
    store.append_message("p", "assistant", "late", tool_calls=[call], timestamp=5.0)
    store.append_message("p", "tool", "noon", tool_call_id="1")
    done = store.rotate(talk)
    assert done.carried == 2
    messages = store.load("c1").messages
    assert [m.content for m in messages] == ["summary", "tail", "late", "noon"]
    assert (messages[2].tool_calls, messages[2].timestamp) == ((call,), 5.0)
    assert store.get_session("c1").tool_call_count == 1


def test_a_rewritten_transcript_stops_the_rotation(store, talk):
    store.rewind("p", talk.upto)
    assert store.rotate(talk) == Skipped("the transcript was rewritten meanwhile")
    assert store.get_session("p").ended_at is None


def test_an_ended_or_unknown_session_is_not_rotated(store, talk):
    store.end_session("p", "user_exit")
    assert store.rotate(talk) == Skipped("the session has ended (user_exit)")
    gone = replace(talk, session_id="nobody")
    assert store.rotate(gone) == Skipped("unknown session")


def test_the_route_moves_with_the_rotation_and_guards_it(store, talk):
    before = store.switch("k", "p")
    routed = replace(talk, session_key="k", epoch=before.epoch)
    stale = replace(routed, epoch=before.epoch - 1)
    assert store.rotate(stale) == Skipped("the route has moved", winner="p")
    done = store.rotate(routed)
    after = store.get_route("k")
    assert (
        (after.session_id, after.epoch) == ("c1", before.epoch + 1) == (done.session_id, done.epoch)
    )
    assert store.rotate(routed) == replace(done, repeated=True)
    unrouted = replace(routed, session_id="c1", session_key="nobody")
    assert store.rotate(unrouted) == Skipped("the route has moved")


def test_a_lease_belongs_to_one_holder_until_released(store):
    assert store.try_acquire_compression_lock("s", "a") is True
    assert store.try_acquire_compression_lock("s", "a") is True
    assert store.try_acquire_compression_lock("s", "b") is False
    assert store.get_compression_lock_holder("s") == "a"
    assert store.release_compression_lock("s", "b") is False
    assert store.get_compression_lock_holder("s") == "a"
    assert store.release_compression_lock("s", "a") is True
    assert store.get_compression_lock_holder("s") is None
    assert store.try_acquire_compression_lock("s", "b") is True


def test_a_lease_has_a_token_that_grows_with_every_holder(store, world):
    tokens = []
    for holder in ("a", "a", "b", "c"):
        tokens.append(store.acquire_lease("s", holder).token)
        if holder != "a" or len(tokens) == 2:
            store.release_compression_lock("s", holder)
    world.pass_time(31)
    tokens.append(store.acquire_lease("s", "a").token)
    assert tokens == [1, 1, 2, 3, 4]


def test_the_lease_of_a_dead_holder_can_be_acquired_after_thirty_seconds(store, world):
    store.try_acquire_compression_lock("s", "dead")
    world.pass_time(29.9)
    assert store.try_acquire_compression_lock("s", "b") is False
    world.pass_time(0.2)
    assert store.get_compression_lock_holder("s") is None
    assert store.refresh_compression_lock("s", "dead") is False
    assert store.try_acquire_compression_lock("s", "b") is True
    assert store.release_compression_lock("s", "dead") is False


def test_a_refreshed_lease_stays_valid(store, world):
    store.try_acquire_compression_lock("s", "a", 10)
    for _ in range(5):
        world.pass_time(8)
        assert store.refresh_compression_lock("s", "a", 10) is True
    assert store.refresh_compression_lock("s", "b", 10) is False
    assert store.get_compression_lock_holder("s") == "a"


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_setting_the_date_neither_ends_nor_extends_a_lease(store, world, jump):
    store.try_acquire_compression_lock("s", "a")
    world.now += jump
    assert store.try_acquire_compression_lock("s", "b") is False
    world.pass_time(30.1)
    assert store.try_acquire_compression_lock("s", "b") is True


def test_a_lease_from_before_a_reboot_is_invalid(store, world):
    store.try_acquire_compression_lock("s", "a")
    world.steady = 3.0  # the monotonic clock was reset
    assert store.try_acquire_compression_lock("s", "b") is True


def test_a_holder_whose_lease_has_expired_cannot_rotate_once_another_has_acquired_it(
    store, talk, world
):
    lease = store.acquire_lease("p", "sleeper")
    world.pass_time(40)
    taken = store.acquire_lease("p", "other")
    mine = replace(talk, lease=lease)
    assert store.rotate(mine) == Skipped("the lease was lost", holder="other")
    store.release_compression_lock("p", "other")
    assert store.rotate(mine) == Skipped("the lease was lost", holder="a later holder")
    assert isinstance(store.rotate(other(talk, lease=taken)), Rotated)


def test_a_holder_whose_lease_was_not_acquired_by_another_may_rotate_late(store, talk, world):
    lease = store.acquire_lease("p", "sleeper")
    world.pass_time(40)
    assert isinstance(store.rotate(replace(talk, lease=lease)), Rotated)
    assert store.get_compression_lock_holder("p") is None


@pytest.mark.changes_tables
def test_without_a_lease_table_compression_still_works(store, talk, sql):
    lease = store.acquire_lease("p", "me")
    sql("DROP TABLE leases")
    from hermes.errors import StoreError

    with pytest.raises(StoreError, match="no such table"):
        store.try_acquire_compression_lock("p", "me")
    assert isinstance(store.rotate(replace(talk, lease=lease)), Rotated)
    assert lease == Lease("p", "me", 1)


@pytest.mark.parametrize(
    "columns",
    [
        "session_id TEXT PRIMARY KEY, holder TEXT, token TEXT, expires TEXT, ttl TEXT",
        "session_id TEXT PRIMARY KEY, expires REAL, ttl REAL",
        "name TEXT",
    ],
)
@pytest.mark.changes_tables
def test_with_a_lease_table_of_another_shape_compression_still_works(
    store, talk, sql, engine, columns
):
    lease = store.acquire_lease("p", "me")
    sql("DROP TABLE leases")
    sql(f"CREATE TABLE leases ({columns})")
    if "token TEXT" in columns and engine == "sqlite":  # whose columns take any type
        lease = store.acquire_lease("p", "me")
    assert isinstance(store.rotate(replace(talk, lease=lease)), Rotated)


def test_a_branch_is_a_complete_copy(store, talk):
    call = ToolCall("1", "clock")
    store.append_message(
        "p", "assistant", "x", tool_calls=[call], reasoning="hm", platform_message_id="pm"
    )
    taken_back = store.append_message("p", "user", "oops")
    store.rewind("p", taken_back.message_id)
    branch = store.branch("p")
    copy, original = store.load(branch), store.load("p")
    fields = [f for f in Message.__struct_fields__]  # noqa: C416
    assert [[getattr(m, f) for f in fields] for m in copy.messages] == [
        [getattr(m, f) for f in fields] for m in original.messages
    ]
    session = store.get_session(branch)
    assert (session.kind, session.parent_session_id, session.title) == ("branch", "p", "Chat #2")
    assert (session.message_count, session.tool_call_count) == (21, 1)
    assert store.get_session("p").ended_at is None


def test_branches_do_not_prevent_a_compression(store, talk):
    store.branch("p")
    second = store.branch("p", title="Other way")
    assert store.get_session(second).title == "Other way"
    assert isinstance(store.rotate(talk), Rotated)


def test_a_branch_can_move_the_route(store, talk):
    store.switch("k", "p")
    branch = store.branch("p", session_key="k")
    assert store.get_route("k").session_id == branch
    with pytest.raises(UnknownSession):
        store.branch("nobody")


def test_a_continuation_needs_a_new_id_and_a_message_of_its_session(store, talk):
    from hermes.errors import StoreError

    store.create_session("taken", "x")
    mine = store.append_message("taken", "user", "mine")
    with pytest.raises(StoreError, match="taken already exists"):
        store.rotate(replace(talk, child_session_id="taken"))
    with pytest.raises(StoreError, match="does not belong to p"):
        store.rotate(replace(talk, upto=mine.message_id))
    assert store.get_session("p").ended_at is None
    assert texts(store.load("taken")) == ["mine"]
    assert isinstance(store.rotate(talk), Rotated)


def test_a_starting_runtime_releases_the_leases_of_earlier_ones(store):
    for session_id, holder in (("a", "runtime:1:2"), ("b", "a script")):
        store.create_session(session_id, "cli")
        assert store.try_acquire_compression_lock(session_id, holder)
    assert store.forget_runtimes() == 1
    assert store.get_compression_lock_holder("a") is None
    assert store.get_compression_lock_holder("b") == "a script"
