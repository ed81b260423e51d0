"""Open a file of the previous release that has unfinished work of every kind, and finish it.

`tests/fixtures/make_previous_release.py` wrote the file with the last commit before the redesign
and killed the process that used it. Names inside stored JSON must not change: a renamed field can
lose a message, send a reply to the wrong chat or run a tool twice. Each test checks one kind of
row.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter

import msgspec
import pytest
import trio

from hermes import Inbound, Source, ToolCall
from hermes.errors import AlreadyAnswered, CompressorFailed, NotAdmitted
from hermes.store import Clock, SessionStore
from tests.support.previous_release import (
    APPROVALS,
    BACKGROUND,
    BEFORE,
    CONFIG,
    ERRAND,
    EVENTS,
    EXPORT,
    INBOX,
    LONG,
    OPEN,
    OPENED,
    PICTURE,
    Runner,
    finish,
    one,
    operators,
    select,
)

SECONDS = 60


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A copy of the file after a runtime has finished everything in it."""
    path = tmp_path_factory.mktemp("previous") / "state.db"
    shutil.copy(BEFORE, path)
    runner = Runner(path)
    trio.run(finish, runner)
    return runner


@pytest.fixture
def again(finished, path):
    """A copy of the finished file, to be opened a second time."""
    shutil.copy(finished.path, path)
    return Runner(path)


def before(sql, *values):
    return select(BEFORE, sql, *values)


def session_before(key):
    return one(BEFORE, "SELECT session_id FROM routes WHERE session_key = ?", key)[0]


# The inbox


def test_the_file_holds_open_work_of_every_kind():
    """The other tests rely on this; with an emptier file they would pass without checking much."""
    bodies = [json.loads(body) for *_, body in OPEN]
    assert {body["busy"] for body in bodies} == {None, "queue", "interrupt", "steer", "reject"}
    assert {body["text"].split()[0] for body in bodies if body["command"]} == {
        "/new", "/reset", "/resume", "/sessions", "/title", "/branch", "/compress", "/compact",
        "/retry", "/undo", "/stop", "/queue", "/steer", "/background", "/approve", "/deny",
        "/status", "/usage", "/help@hermes_bot", "/whoami", "/pair", "/unpair", "/nosuch",
    }  # fmt: skip
    assert any(body["parts"] for body in bodies)
    assert any(body["linger"] for body in bodies)
    assert any(body["sent_at"] for body in bodies)
    states = Counter(before("SELECT state, recovered, parts_sent > 0 FROM outbox"))
    assert set(states) == {
        ("sent", 0, 0), ("pending", 0, 0), ("pending", 1, 0), ("pending", 0, 1), ("sending", 0, 0),
        ("sending", 0, 1), ("dead", 0, 0),
    }  # fmt: skip
    assert {state for (state,) in before("SELECT state FROM approvals")} == {
        "pending", "approved", "denied", "used",
    }  # fmt: skip
    open_events = before("SELECT event FROM boundaries WHERE closed_at IS NULL")
    assert {event for (event,) in open_events} == set(EVENTS)


def test_every_open_message_is_read_and_would_be_written_as_it_is_stored(path):
    """This covers fields that do not affect a turn after a restart, such as `linger`.

    A message has five new fields, whose defaults are what the previous release did.
    """
    shutil.copy(BEFORE, path)
    with SessionStore(path) as store:
        read = [(row.inbox_id, row.inbound) for row in store.open_inbox()]
    written = [
        (inbox_id, msgspec.json.decode(msgspec.json.encode(inbound))) for inbox_id, inbound in read
    ]
    names = ("per_conversation", "metadata", "edits", "request", "repeats")
    new = [tuple(body.pop(name) for name in names) for _, body in written]
    assert new == [(False, {}, None, None, None)] * len(OPEN)
    assert written == [(inbox_id, msgspec.json.decode(body)) for inbox_id, _, _, body in OPEN]


def test_every_open_row_is_finished_except_the_one_started_too_often(finished):
    states = dict(finished.select("SELECT event_id, state FROM inbox"))
    left = {event_id: states[event_id] for event_id in INBOX if states[event_id] != "done"}
    assert left == {"spent/left-1": "parked"}


TURNS = {
    "accident": [["Still there?"]],
    "almost spent": [["Begun twice"]],
    "busy": [["This one says queue", "This one says interrupt", "This one says steer",
              "This one says reject"]],
    "closed": [["Good morning"]],
    "embedded": [["Nobody sends this answer"]],
    "everything": [["With all fields 🫖"]],
    "expired": [["Hello again"]],
    "later title": [["The first thing said here"]],
    "linger": [["The first half", "and the second half"]],
    "mid-turn": [["Something in mid-turn", "One more thing"]],
    "moved": [["Where are we?"]],
    "new": [["After the command in new"]],
    "once": [["Something in once"]],
    "parts": [[None, "And this"]],
    "plain": [["The kettle is on"]],
    "queue": [["Say this later"]],
    "reset it": [["After the command in reset it"]],
    "retry": [["A question in retry"]],
    "spent": [["Not begun yet"]],
    "steer": [["Say this now"]],
    "stop": [["After the command in stop"]],
    BACKGROUND: [["Water the plants"]],
}  # fmt: skip
"""Every expected turn, except those that follow from a command."""
FOLLOWING = {
    "approved",
    "approving",
    "denying",
    ERRAND,
    f"errands:background:{INBOX['errands/left-1']}",
}


def test_every_message_has_exactly_one_turn_in_inbox_order(finished):
    given = {key: [turn.texts for turn in turns] for key, turns in finished.turns.items()}
    assert {key: texts for key, texts in given.items() if key not in FOLLOWING} == TURNS
    assert {key: len(given.get(key, [])) for key in FOLLOWING} == dict.fromkeys(FOLLOWING, 1)


def test_a_turn_has_the_id_of_its_first_message_as_before_the_crash(finished):
    firsts = {}
    for inbox_id, event_id, key, body in OPEN:
        if key in TURNS and not json.loads(body)["command"] and event_id != "spent/left-1":
            firsts.setdefault(key, inbox_id)
    for key in ("new", "reset it", "stop"):  # what came before the command has no turn
        firsts[key] = INBOX[f"{key}/left-3"]
    for key in ("queue", "steer", "retry"):
        firsts[key] = INBOX[f"{key}/left-1"]
    assert {key: finished.turns[key][0].turn_id for key in TURNS} == firsts


def test_each_turn_is_in_the_transcript_once_and_is_answered_once(finished):
    for key, [texts] in TURNS.items():
        if key == "once":
            continue
        stored = finished.texts(finished.session_of(key))
        # A message without a text says what its parts say.
        spoken = [text or "Look at this" for text in texts]
        said = "\n\n".join(spoken)
        assert stored.count(("assistant", f"echo: {said}")) == 1, key
        for text in spoken:
            assert stored.count(("user", text)) == 1, key
        turn_id = finished.turns[key][0].turn_id
        replies = finished.select(
            "SELECT state FROM outbox WHERE turn_id = ? AND body ->> '$.kind' = 'reply'", turn_id
        )
        assert replies == [("sent",)], key


def test_parts_and_platform_ids_arrive_as_they_were_sent(finished):
    [turn] = finished.turns["parts"]
    look = {"type": "text", "text": "Look at this"}
    assert turn.parts == [(look, PICTURE), (PICTURE,)]
    with SessionStore(finished.path) as store:
        first, second, _ = store.get_messages(finished.session_of("parts"))
    assert (first.parts, first.platform_message_id) == ((look, PICTURE), "p-7")
    assert (second.parts, second.platform_message_id) == ((PICTURE,), None)
    assert (first.timestamp, second.timestamp) == (OPENED - 1800, OPENED - 1800)


def test_every_field_of_the_source_arrives_and_the_reply_goes_back_there(finished):
    [turn] = finished.turns["everything"]
    assert turn.source == Source("memory", "bot-1", "everything", "group", "12", "ann", "Zoë")
    [row] = finished.sent_to("everything")
    assert row.lane == "memory/bot-1/everything/12"
    assert row.body == {
        "kind": "reply", "text": "echo: With all fields 🫖", "platform": "memory",
        "account": "bot-1", "chat_id": "everything", "thread_id": "12", "user_id": "ann",
        "session_id": finished.session_of("everything"), "reply_to": "p-8",
    }  # fmt: skip


def test_work_started_too_often_is_parked_and_the_user_is_notified(finished):
    parked = one(finished.path, "SELECT state, attempts, body IS NOT NULL FROM inbox WHERE id = ?",
                 INBOX["spent/left-1"])  # fmt: skip
    assert parked == ("parked", 3, 1)
    assert finished.kinds("spent") == ["notice", "reply"]


def test_a_parked_row_stays_as_it_is_and_its_notice_is_sent(finished):
    row = (
        "SELECT id, platform, account, session_key, session_id, epoch, body, accepted_at, state, "
        "attempts, closed_at, note FROM inbox WHERE event_id = 'parked/left-1'"
    )
    assert finished.select(row) == before(row)
    assert finished.kinds("parked") == ["notice"]
    assert finished.turns["parked"] == []


def test_a_message_of_an_expired_conversation_gets_the_notice_first(finished):
    assert finished.kinds("expired", finished.brief) == ["notice", "reply"]
    assert finished.session_of("expired") == session_before("expired")
    [notice] = one(finished.path, "SELECT notice FROM routes WHERE session_key = 'expired'")
    assert notice is None


def test_a_pending_title_is_given_to_the_session(finished):
    title = "SELECT title, session_key FROM sessions WHERE id = ?"
    assert one(finished.path, title, finished.session_of("later title")) == (
        "Kept for later", "later title",
    )  # fmt: skip


def test_a_session_that_ended_by_accident_continues(finished):
    assert finished.session_of("accident") == session_before("accident")
    [turn] = finished.turns["accident"]
    assert ("user", "A question in accident") in turn.history
    ended = "SELECT ended_at, end_reason FROM sessions WHERE id = ?"
    assert one(finished.path, ended, finished.session_of("accident")) == (None, None)


def test_a_session_that_another_process_compressed_continues_in_its_child(finished):
    parent, child = session_before("moved"), finished.session_of("moved")
    [(tip,)] = before("SELECT id FROM sessions WHERE rotation_id = 'elsewhere'")
    assert child == tip != parent
    assert finished.texts(child) == [
        ("user", "A summary"), ("user", "Where are we?"), ("assistant", "echo: Where are we?"),
    ]  # fmt: skip


# Commands


ANSWERED = (
    "branching", "compress", "empty queue", "errand", "errands", "foreign lease", "help",
    "late approval", "leased", "new", "nothing to deny", "operator", "reset it", "resume",
    "sessions", "status", "stop", "title", "undo", "unknown", "unpair", "usage", "whoami",
)  # fmt: skip


@pytest.mark.parametrize("key", ANSWERED)
def test_every_command_is_answered_once(finished, key):
    [answer] = [row for row in finished.sent_to(key) if row.body["kind"] == "command"]
    name = "left-2" if key in {"new", "reset it", "stop"} else "left-1"
    assert answer.turn_id == INBOX[f"{key}/{name}"]
    assert answer.body["text"]


@pytest.mark.parametrize("key", ["new", "reset it"])
def test_a_reset_ends_earlier_messages_and_later_ones_start_a_new_session(finished, key):
    assert finished.session_of(key) != session_before(key)
    assert finished.texts(finished.session_of(key)) == [
        ("user", f"After the command in {key}"), ("assistant", f"echo: After the command in {key}"),
    ]  # fmt: skip
    title = one(finished.path, "SELECT title FROM sessions WHERE id = ?", finished.session_of(key))
    assert title == ("A fresh start" if key == "new" else None,)
    told = [(event, session) for _, event, about, session, *_ in finished.hooks if about == key]
    assert told[:2] == [
        ("on_session_finalize", session_before(key)),
        ("on_session_reset", finished.session_of(key)),
    ]


def test_a_stop_drops_earlier_messages(finished):
    assert finished.session_of("stop") == session_before("stop")
    assert finished.kinds("stop") == ["command", "reply"]


def test_a_retry_replaces_the_last_answer(finished):
    [turn] = finished.turns["retry"]
    assert turn.history == []
    assert finished.texts(finished.session_of("retry")) == [
        ("user", "A question in retry"), ("assistant", "echo: A question in retry"),
    ]  # fmt: skip
    assert finished.kinds("retry") == ["reply"]
    rows = (
        "SELECT count(*) FROM all_messages WHERE id >> 32 = (SELECT no FROM sessions WHERE id = ?)"
    )
    assert one(finished.path, rows, finished.session_of("retry")) == (4,)


def test_an_undo_takes_the_last_exchange_back(finished):
    assert finished.texts(finished.session_of("undo")) == [
        ("user", "A question in undo"), ("assistant", "echo: A question in undo"),
    ]  # fmt: skip


def test_a_branch_continues_in_a_copy(finished):
    copy, original = finished.session_of("branching"), session_before("branching")
    assert finished.texts(copy) == finished.texts(original) != []
    row = (
        "SELECT s.kind, s.title, p.id FROM sessions s JOIN sessions p ON p.no = s.parent_no "
        "WHERE s.id = ?"
    )
    assert one(finished.path, row, copy) == ("branch", "A copy", original)


def test_a_resume_goes_back_to_an_ended_session(finished):
    [(ended,)] = before("SELECT id FROM sessions WHERE session_key = 'resume'")
    assert session_before("resume") != ended == finished.session_of("resume")
    assert one(finished.path, "SELECT ended_at FROM sessions WHERE id = ?", ended) == (None,)


@pytest.mark.parametrize("key", ["compress", "leased"])
def test_a_compression_runs_although_the_last_runtime_was_killed_in_one(finished, key):
    child, parent = finished.session_of(key), session_before(key)
    assert child != parent
    ended = "SELECT end_reason FROM sessions WHERE id = ?"
    assert one(finished.path, ended, parent) == ("compression",)
    with SessionStore(finished.path) as store:
        rows = store.get_messages(child)
    assert [row.provider_data for row in rows if row.provider_data] == [{"hermes": "summary"}]
    holder = "SELECT holder FROM leases WHERE session_id = ?"
    assert one(finished.path, holder, parent) == (None,)


def test_a_compression_waits_for_another_process_that_holds_the_lease(finished):
    assert finished.session_of("foreign lease") == session_before("foreign lease")
    summarized = {request.session_id for request in finished.compressor.requests}
    assert summarized == {session_before("compress"), session_before("leased")}
    holder = "SELECT holder FROM leases WHERE session_id = ?"
    assert one(finished.path, holder, session_before("foreign lease")) == ("command-line:4711",)


def test_a_title_waits_on_the_route_for_the_first_message(finished):
    pending = "SELECT pending_title FROM routes WHERE session_key = 'title'"
    assert one(finished.path, pending) == ("A name of its own",)


def test_a_background_command_starts_its_own_conversation(finished):
    key = f"errands:background:{INBOX['errands/left-1']}"
    [turn] = finished.turns[key]
    assert turn.texts == ["Feed the cat"]
    event = "SELECT event_id, state FROM inbox WHERE session_key = ?"
    assert one(finished.path, event, key) == (f"background:{INBOX['errands/left-1']}", "done")
    assert sorted(finished.kinds("errands")) == ["command", "reply"]


def test_an_operator_pairs_a_pending_user_and_removes_another(finished):
    people = finished.select("SELECT user_id, role, name FROM principals ORDER BY 1")
    assert people == [("olga", "operator", "Olga"), ("paul", "operator", "Paul")]
    assert finished.select("SELECT * FROM pairings") == []
    assert finished.select("SELECT * FROM wrong_codes") == []
    [welcome] = finished.sent_to("paul")
    assert (welcome.body["kind"], welcome.body["user_id"]) == ("notice", "paul")


# The outbox


def shown(rows):
    return [(row.body["text"], row.recovered, row.part) for row in rows]


def test_replies_in_flight_are_sent_in_order_and_marked(finished):
    assert shown(finished.sent_to("flight")) == [
        ("reply 1 in flight", True, 0), ("reply 2 in flight", False, 0),
        ("reply 3 in flight", True, 0),
    ]  # fmt: skip


def test_a_reply_is_delivered_as_the_previous_release_wrote_it(finished):
    written = {i: json.loads(body) for i, body in before("SELECT id, body FROM outbox")}
    sent = {row.outbox_id: row.body for row in finished.memory.sent if row.outbox_id in written}
    assert len(sent) == 4
    assert sent == {outbox_id: written[outbox_id] for outbox_id in sent}


def test_a_partly_sent_reply_continues_with_the_missing_part(finished):
    long, slow = (finished.sent_to(chat, finished.split) for chat in ("long", "slow"))
    assert [(row.recovered, row.part, row.parts) for row in long] == [(True, 1, 3), (False, 2, 3)]
    assert [(row.recovered, row.part, row.parts) for row in slow] == [(False, 1, 3), (False, 2, 3)]
    assert [row.body["text"][:6] for row in long] == ["part 1", "part 2"]
    assert [row.body["text"][:7] for row in slow] == ["piece 1", "piece 2"]


def test_replies_to_a_platform_without_an_adapter_wait_if_it_had_one(finished):
    rows = "SELECT state, recovered FROM outbox WHERE lane = 'absent//absent/' ORDER BY id"
    assert finished.select(rows) == [("pending", 1), ("pending", 0)]


def test_replies_to_a_platform_that_never_had_an_adapter_are_done(finished):
    state = "SELECT state FROM outbox WHERE session_key = 'embedded'"
    assert one(finished.path, state) == ("sent",)


def test_replies_that_were_sent_or_given_up_are_not_sent_again(finished):
    closed = {i for (i,) in before("SELECT id FROM outbox WHERE state IN ('sent', 'dead')")}
    adapters = (finished.memory, finished.split, finished.brief)
    assert closed & {row.outbox_id for adapter in adapters for row in adapter.sent} == set()
    dead = "SELECT state, note FROM outbox WHERE lane = 'memory//dead/'"
    assert finished.select(dead) == [("dead", "the chat was deleted")]


def test_everything_else_was_sent_once(finished):
    waiting = "SELECT id FROM outbox WHERE state <> 'sent' AND lane NOT LIKE 'absent/%'"
    assert finished.select(f"{waiting} AND state <> 'dead'") == []
    for adapter in (finished.memory, finished.split, finished.brief):
        assert max(Counter((row.outbox_id, row.part) for row in adapter.sent).values()) == 1


# Tools


def test_calls_recorded_before_the_crash_are_not_made_again(finished):
    results = [(text, failed) for key, text, failed in finished.results if key == "once"]
    assert results[:2] == [("charged 5", False)] * 2
    assert results[2] == ("charged 5 now", False)  # the third call is new
    assert results[3] == ("refuse failed: ValueError: no", True)
    assert results[4][1]  # started before the crash, so its outcome is unknown
    ran = [name for name, *_ in finished.tools if name != "send_mail"]
    assert ran == ["charge"]
    assert finished.select("SELECT * FROM once_calls") == []


def test_approvals_are_used_by_exactly_the_call_they_are_for(finished):
    assert sorted(call for call in finished.tools if call[0] == "send_mail") == [
        ("send_mail", "ann", "approved"), ("send_mail", "ann", "approving"),
        ("send_mail", "bob", "background"),
    ]  # fmt: skip
    states = dict(finished.select("SELECT asked_of, state FROM approvals"))
    assert states == {
        "late approval": "pending",  # it has expired, so `/approve` had no effect
        "pending": "pending",
        "approving": "used",
        "denying": "denied",
        "denied": "denied",
        "used": "used",
        "approved": "used",
        "errand": "used",
    }


@pytest.mark.parametrize("key", ["approved", "approving", "denying", ERRAND])
def test_the_agent_is_notified_once_of_a_decided_call(finished, key):
    [turn] = finished.turns[key]
    asked_of = "errand" if key == ERRAND else key
    event = f"approval:{APPROVALS[asked_of]}"
    row = "SELECT id, session_key, state FROM inbox WHERE event_id = ?"
    assert one(finished.path, row, event) == (turn.turn_id, key, "done")
    [text] = turn.texts
    assert "send_mail" in text
    assert json.dumps("background" if key == ERRAND else key) in text


# Boundaries


def test_the_hooks_are_called_for_each_open_boundary_exactly_once(finished):
    open_before = before(
        "SELECT id, event, session_key, session_id, platform, reason, old_session_id, "
        "new_session_id FROM boundaries WHERE closed_at IS NULL ORDER BY id"
    )
    told = sorted(call for call in finished.hooks if call[0] in {row[0] for row in open_before})
    assert told == open_before
    assert max(Counter(call[0] for call in finished.hooks).values()) == 1
    assert finished.select("SELECT id FROM boundaries WHERE closed_at IS NULL") == []


def test_the_hooks_are_not_called_for_a_closed_boundary(finished):
    closed = {i for (i,) in before("SELECT id FROM boundaries WHERE closed_at IS NOT NULL")}
    assert closed
    assert closed & {call[0] for call in finished.hooks} == set()


def test_a_session_is_finalized_before_the_next_one_begins(finished):
    for key in ("begun", "expired"):
        events = [event for _, event, about, *_ in finished.hooks if about == key]
        assert events[:2] == ["on_session_finalize", "on_session_reset"]


# What is left for later


def memory(chat, user_id="ann"):
    return Source("memory", chat_id=chat, user_id=user_id)


def test_the_file_is_sound_afterwards(finished):
    with SessionStore(finished.path) as store:
        assert store.integrity_check() == []


async def test_an_event_of_the_previous_release_is_a_duplicate(again):
    [(flight,)] = before("SELECT id FROM inbox WHERE event_id = 'flight/second-1'")
    with trio.fail_after(SECONDS):
        async with again.open() as runtime:
            for key, name, inbox_id in (
                ("flight", "second-1", flight), ("plain", "left-1", INBOX["plain/left-1"]),
            ):  # fmt: skip
                repeated = Inbound(key, f"{key}/{name}", "again", memory(key))
                assert (await runtime.submit(repeated)).inbox_id == inbox_id
                with pytest.raises(AlreadyAnswered):
                    await runtime.ask(key, "again", source=memory(key), event_id=f"{key}/{name}")
    assert again.turns == {}


async def test_a_pending_approval_can_still_be_given_and_an_expired_one_cannot(again):
    with trio.fail_after(SECONDS):
        async with again.open() as runtime:
            for key in ("pending", "late approval", "used", "denied"):
                reply = await runtime.ask(
                    key, f"/approve {APPROVALS[key]}", source=memory(key), event_id=f"{key}/now"
                )
                assert reply.status == "command"
    assert again.tools == [("send_mail", "ann", "pending")]
    states = dict(again.select("SELECT asked_of, state FROM approvals"))
    assert (states["pending"], states["late approval"]) == ("used", "pending")


async def test_an_overdue_conversation_expires_with_a_notice(again):
    overdue, source = session_before("overdue"), Source("brief", chat_id="overdue", user_id="ann")
    with trio.fail_after(SECONDS):
        async with again.open() as runtime:
            reply = await runtime.ask("overdue", "Still there?", source=source)
            await again.brief.wait_sent(2)
            await runtime.wait_hooks()
    assert reply.session_id != overdue
    assert again.kinds("overdue", again.brief) == ["notice", "reply"]
    assert [call[1:4] for call in again.hooks if call[5] == "session_expired"] == [
        ("on_session_finalize", "overdue", overdue),
        ("on_session_reset", "overdue", reply.session_id),
    ]


async def test_a_conversation_continues_with_its_history_and_its_pending_title(again):
    with trio.fail_after(SECONDS):
        async with again.open() as runtime:
            await runtime.ask("history", "Which ferry was it?", source=memory("history"))
            reply = await runtime.ask("begun", "Here we go", source=memory("begun"))
            found = await runtime.conversation("history").search("weather")
    [turn] = again.turns["history"]
    exported = json.loads(EXPORT[1])
    assert turn.session_id == exported["id"]
    assert turn.history == [(row["role"], row["content"]) for row in exported["messages"]]
    assert {hit.session_id for hit in found} == {json.loads(EXPORT[0])["id"]}
    title = "SELECT title FROM sessions WHERE id = ?"
    assert one(again.path, title, reply.session_id) == ("A new beginning",)


def test_rows_that_were_not_indexed_yet_are_found(again):
    with SessionStore(again.path) as store:
        [hit] = store.search_messages("zanzibar")
    assert hit.session_id == "ended-by-reaper"


async def test_notes_about_compressions_are_understood(again):
    with trio.fail_after(SECONDS):
        async with again.open() as runtime:
            failing = await runtime.conversation("failing").status()
            assert "not available" in failing.compression_note
            assert (await runtime.conversation("useless").status()).compression_note is None
            # The last compression did not help, and neither did the one before.
            await runtime.ask("useless", LONG * 25, source=memory("useless"))
            assert (await runtime.conversation("useless").status()).compression_note is not None
    assert again.compressor.requests == []
    assert again.session_of("useless") == session_before("useless")


async def test_a_compression_that_fails_again_is_counted_with_the_earlier_failure(again):
    again.compressor.error = CompressorFailed("not yet")
    with trio.fail_after(SECONDS):
        async with again.open() as runtime:
            await runtime.ask("failing", "/compress here 1", source=memory("failing"))
    name = f"compression:{session_before('failing')}"
    [note] = one(again.path, "SELECT value FROM meta WHERE key = ?", name)
    assert json.loads(note) == {
        "failures": 2,
        "not_before": OPENED + CONFIG.compression.cooldowns[1],
        "error": "not yet",
    }


async def test_state_that_an_adapter_keeps_is_still_there(again):
    with trio.fail_after(SECONDS):
        async with again.open() as runtime:
            assert await runtime.adapter_state.get("telegram:bot-1:moved:-100") == "-42"


async def test_paired_users_are_admitted_and_others_are_not(again):
    with trio.fail_after(SECONDS):
        async with again.open(access=operators("op")) as runtime:
            for name in ("olga", "paul"):
                reply = await runtime.ask(name, "hello", source=memory(name, name))
                assert reply.text == "echo: hello"
            with pytest.raises(NotAdmitted):
                await runtime.ask("mallory", "hello", source=memory("mallory", "mallory"))


# Exports


def test_an_export_of_the_previous_release_is_imported_and_exported_alike(path):
    with SessionStore(path, clock=Clock(wall=lambda: OPENED)) as store:
        done = store.import_sessions(EXPORT)
        assert (done.sessions, done.skipped, done.forks) == (len(EXPORT), (), ())
        for line in EXPORT:
            assert store.export_session(json.loads(line)["id"]) == line
        [tip] = [each for each in store.list_sessions() if each.session.session_key == "history"]
        assert tip.root_session_id == json.loads(EXPORT[0])["id"]


def test_unchanged_sessions_are_exported_as_by_the_previous_release(finished):
    with SessionStore(finished.path) as store:
        assert [store.export_session(json.loads(line)["id"]) for line in EXPORT] == EXPORT


def test_every_kind_of_extra_of_a_message_is_read(path):
    with SessionStore(path, clock=Clock(wall=lambda: OPENED)) as store:
        store.import_sessions(EXPORT)
        rows = store.get_messages(json.loads(EXPORT[0])["id"], include_rewound=True)
    call, result, answer = rows[1:4]
    assert isinstance(call.tool_calls[0], ToolCall)
    assert call.tool_calls == (ToolCall("call-1", "ferry_times", '{"island":"Naxos"}'),)
    assert (result.tool_call_id, result.tool_name) == ("call-1", "ferry_times")
    assert call.reasoning.startswith("The user wants to travel")
    assert call.reasoning_details == (
        {"type": "reasoning.text", "text": "ferries", "signature": "abc"},
    )
    assert call.provider_data["thinking"] == [{"type": "thinking", "signature": "xyz"}]
    assert (answer.finish_reason, answer.token_count) == ("stop", 8)
    assert answer.parts[1] == {"type": "source", "n": 1}
