"""A caller of every verb of `SessionStore`, with arguments that fit what is in the file.

A caller is a function of a `World`. `CALLS` has one for each public name of the class.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import attrs

from hermes.messages import (
    ApiRequest,
    ApprovalDecision,
    Attachment,
    Content,
    ExpiryPolicy,
    Inbound,
    InboxReply,
    Message,
    Outbound,
    Person,
    RecordedCall,
    Reply,
    Rotation,
    Source,
    Token,
    ToolCall,
    ToolCallRecord,
    ToolOutput,
    TurnCommit,
    TurnRecord,
    Usage,
)
from hermes.store import SessionStore

KEYS = [f"k{number}" for number in range(5)]
SALT = "00" * 16
USERS = ["u1", "u2", "u3"]
_numbers = itertools.count()


@attrs.define
class World:
    """A process that calls verbs: its store, its dice, and what it was told."""

    path: Path
    name: str
    dice: random.Random
    store: SessionStore
    accepted: list = attrs.Factory(list)
    """(event_id, inbox_id) of each message that was accepted."""

    def new(self, prefix):
        """Return a name that nobody else uses."""
        return f"{prefix}-{self.name}-{next(_numbers)}"

    @property
    def key(self):
        return self.dice.choice(KEYS)

    def pick(self, sql, default=None):
        """Return one of the rows (or values) that a query finds."""
        rows = self.store.snapshot(lambda tx: tx.all(sql))
        if not rows:
            return default
        row = self.dice.choice(rows)
        return row[0] if len(row) == 1 else row

    @property
    def session(self):
        """The id of a session, open ones mostly."""
        if self.dice.random() < 0.7:
            return self.pick("SELECT id FROM sessions WHERE ended_at IS NULL", "none")
        return self.pick("SELECT id FROM sessions", "none")

    @property
    def waiting(self):
        """The key and the id of an open message."""
        return self.pick("SELECT session_key, id FROM inbox WHERE state = 'open'", ("k0", 0))

    @property
    def reply_ids(self):
        """Some replies that are not sent."""
        found = self.pick("SELECT id FROM outbox WHERE state IN ('pending', 'sending')", 0)
        return [found] if found else []

    def message(self):
        calls = ()
        if self.dice.random() < 0.2:
            calls = (ToolCall("c1", "look", "{}"), ToolCall("c2", "look", "{}"))
        return Message("assistant", f"{self.name} says {self.new('x')}", tool_calls=calls)

    def inbound(self, key=None):
        key = key or self.key
        source = Source("wire", chat_id=key, user_id=self.dice.choice(USERS))
        return Inbound(key, self.new("e"), f"hello {self.new('x')}", source)

    def outbound(self, key):
        return [Outbound(f"wire:{key}", {"platform": "wire", "chat_id": key, "text": "note"})]

    def answer(self, key, inbox_id):
        reply = Reply(text="closed", session_id="s", turn_id=inbox_id)
        return InboxReply(
            session_key=key, inbox_ids=[inbox_id], outbox=self.outbound(key), reply=reply
        )


# Sessions


def create_session(world):
    parent = world.session if world.dice.random() < 0.5 else None
    kind = world.dice.choice([None, None, "branch", "subagent", "compression"])
    if world.dice.random() < 0.2:  # fill in what an existing one lacks
        world.store.create_session(world.session, parent_session_id=parent, model="m")
        return
    world.store.create_session(
        world.new("s"), world.dice.choice(["tui", "wire"]), parent_session_id=parent, kind=kind,
        session_key=world.dice.choice([None, world.key]), model_config={"a": 1},
        started_at=world.dice.choice([None, 1.0]),
    )  # fmt: skip


def ensure_session(world):
    world.store.ensure_session(world.dice.choice([world.session, world.new("s")]))


def end_session(world):
    reasons = ["done", "agent_close", "ws_orphan_reap", "compression"]
    world.store.end_session(world.session, world.dice.choice(reasons))


def append_message(world):
    platform_id = world.dice.choice([None, None, "p1", "p2"])
    world.store.append_message(
        world.session, "user", world.new("text"), platform_message_id=platform_id
    )


def append_messages(world):
    world.store.append_messages(world.session, [world.message() for _ in range(3)])


def replace_messages(world):
    world.store.replace_messages(world.session, [world.message()])


def _live(world):
    return world.pick(
        "SELECT s.id, m.id FROM all_messages m JOIN sessions s ON s.no = m.id >> 32 "
        "WHERE m.live = 1 AND s.ended_at IS NULL",
        ("none", 0),
    )


def rewind(world):
    session_id, message_id = _live(world)
    world.store.rewind(session_id, message_id, upto=world.dice.choice([None, message_id]))


def edit_message(world):
    world.store.edit_message(*_live(world), world.new("edited"))


def get_page(world):
    page = world.store.get_page(world.session, limit=3, lineage=True, include_rewound=True)
    if page:
        world.store.get_page(world.session, limit=3, before=page[-1].id, lineage=True)


# Conversations


def switch(world):
    if world.dice.random() < 0.3:
        world.store.switch(world.key, world.session, any_key=True)
        return
    key, session_id = world.pick(
        "SELECT session_key, id FROM sessions WHERE session_key IS NOT NULL", ("k0", "none")
    )
    world.store.switch(key, session_id)


def accept(world):
    if world.accepted and world.dice.random() < 0.2:
        inbound, inbox_id = world.dice.choice(world.accepted)
        accepted = world.store.accept(inbound)
        assert accepted.duplicate
        assert accepted.receipt.inbox_id == inbox_id
        return
    inbound, policy = world.inbound(), ExpiryPolicy()
    if world.dice.random() < 0.1:
        policy = ExpiryPolicy(mode="idle", idle_minutes=0.001)
    accepted = world.store.accept(inbound, policy=policy)
    assert not accepted.duplicate
    world.accepted.append((inbound, accepted.receipt.inbox_id))


def commit_turn(world):
    key, inbox_id = world.waiting
    found = world.store.route_head(key)
    if found is None:
        return
    route, head = found
    world.store.commit_turn(
        TurnCommit(
            session_key=key, session_id=route.session_id, epoch=route.epoch,
            revision=head.revision, inbox_ids=[inbox_id], rows=[world.message()],
            outbox=world.outbound(key), usage=[usage(world)],
            rotated_to=world.new("s") if world.dice.random() < 0.1 else None,
            reply=Reply(text="theirs", session_id=route.session_id, turn_id=inbox_id),
            record=TurnRecord(started_at=0.0, status="complete", calls=[a_call(world, head)]),
        )
    )  # fmt: skip


def a_call(world, head):
    """A recorded call with a text that others have too, and one of its own."""
    return RecordedCall(
        settings=Content.of("{}"), system=Content.of(world.new("prompt")), rows=1,
        session_id=head.session_id, history=(1, head.message_count),
    )  # fmt: skip


def park_inbox(world):
    key, inbox_id = world.waiting
    world.store.park_inbox([inbox_id], "set aside", answer=world.answer(key, inbox_id))


def find_event(world):
    if world.accepted:
        inbound, inbox_id = world.dice.choice(world.accepted)
        found = world.store.find_event(inbound.session_key, inbound.event_id, "wire")
        assert found is not None
        assert found.receipt.inbox_id == inbox_id


# Tools


def begin_once(world):
    world.store.begin_once(world.waiting[1], "look", "{}", world.dice.randrange(3))


def end_once(world):
    call = world.pick("SELECT turn_id, tool, arguments, ordinal FROM once_calls", (0, "t", "{}", 0))
    world.store.end_once(ToolCallRecord(*call, result="done"))


def ask_approval(world):
    key = world.key
    delivery = world.dice.choice([None, "outbox", "host", "client"])
    say = (lambda _: world.outbound(key)) if delivery in {None, "outbox"} else None
    arguments = f'{{"n": {world.dice.randrange(5)}}}'
    world.store.ask_approval(key, "remove", arguments, say=say, delivery=delivery)


def _approval(world, state="pending"):
    return world.pick(
        f"SELECT asked_of, id FROM approvals WHERE state = '{state}'", ("k0", 10_000_000)
    )


def take_approval(world):
    key, number = _approval(world, "approved")
    found = world.store.get_approval(key, number)
    if found is not None:
        world.store.take_approval(found.session_key, found.tool, found.arguments)


def decide_approval(world):
    key, number = _approval(world)
    then = world.inbound(key) if world.dice.random() < 0.3 else None
    world.store.decide_approval(
        key, number, approve=world.dice.random() < 0.6, always=world.dice.random() < 0.1, then=then
    )


def show_approval(world):
    key, number = _approval(world)
    waiting, inbox_id = world.waiting
    world.store.show_approval(key, number, answer=world.answer(waiting, inbox_id), sent=True)


def mark_shown(world):
    latest = world.dice.choice([None, 0, world.waiting[1]])
    world.store.mark_shown({_approval(world)[1]: latest})


# Access


def request_pairing(world):
    user = world.dice.choice(USERS)
    world.store.request_pairing(
        Source("wire", chat_id="k0", user_id=user), "k0", f"code {user}", salt=SALT,
        say=world.outbound("k0"),
    )  # fmt: skip


def approve_pairing(world):
    code = world.dice.choice([f"code {world.dice.choice(USERS)}", "wrong"])
    world.store.approve_pairing(
        code,
        "user",
        Source("wire", user_id=world.new("op")),
        welcome=lambda _: world.outbound("k0"),
    )


# Compression


def rotate(world):
    session_id = world.session
    transcript = world.store.load(session_id)
    if not transcript.messages:
        return
    key, epoch = world.pick(
        f"SELECT session_key, epoch FROM routes WHERE session_id = '{session_id}'", (None, None)
    )
    lease = world.store.acquire_lease(session_id, world.name, 0.05)
    world.store.rotate(
        Rotation(
            session_id=session_id, messages=[Message("user", "summary")],
            rotation_id=world.new("r"), rewrites=transcript.head.rewrites,
            upto=transcript.messages[-1].id, session_key=key, epoch=epoch, lease=lease,
        )
    )  # fmt: skip


def usage(world):
    purpose = world.dice.choice(["turn", "summary", "title"])
    return Usage(purpose, "m", "p", input_tokens=world.dice.randrange(9), cost=0.25)


# Files


def import_sessions(world):
    *files, line = world.store.export_lines(world.session)
    copy = line.replace('"id":"', '"id":"copy-' + world.new("c"), 1)
    world.store.import_sessions([*files, copy if world.dice.random() < 0.7 else line])


def put_file(world):
    """Store one of a few contents, and name it in a session of its conversation."""
    key, data = world.key, str(world.dice.randrange(5)).encode()
    file = world.store.put_file(Attachment(data=data, name="a.txt"), session_key=key)
    route = world.store.get_route(key)
    if route is not None and world.dice.random() < 0.7:
        world.store.append_message(route.session_id, "user", "look", parts=[file.part])


def any_file(world):
    """Return the id and the key of some file."""
    sql = "SELECT id, session_key FROM files WHERE session_key IS NOT NULL"
    return world.pick(sql, ("file_0", "nobody"))


def read_file(world):
    file_id, key = any_file(world)
    assert world.store.read_file(file_id, session_key=key) in {b"0", b"1", b"2", b"3", b"4"}


def get_file(world):
    file_id, key = any_file(world)
    world.store.get_file(file_id, session_key=key)


def keep_file(world):
    file_id, key = any_file(world)
    world.store.keep_file(file_id, session_key=key, purpose="user_data")


def copy_file(world):
    file_id, key = any_file(world)
    world.store.copy_file(file_id, session_key=key, to=world.key)


def discard_file(world):
    file_id, key = any_file(world)
    world.store.discard_file(file_id, session_key=key)


def request(world):
    """Accept a message with a request of an API client."""
    name = world.new("resp")
    asked = ApiRequest(id=name, credential="tok", path="/v1/responses", digest="d", process="p")
    world.store.accept(Inbound(world.key, name, "asked", Source("http"), request=asked))


def accept_request(world):
    """Accept a message that decides about a call, or returns the results that are waited for."""
    key, number = _approval(world)
    decisions = (ApprovalDecision(number, bool(_half(world))),)
    outputs = tuple(ToolOutput(call.id, "done") for call in world.store.waiting_calls(key))
    name = world.new("resp")
    asked = ApiRequest(
        id=name, credential="tok", path="/v1/responses", digest="d", process="p",
        outputs=outputs, decisions=() if _half(world) else decisions,
    )  # fmt: skip
    world.store.accept_request(Inbound(key, name, "", Source("http"), request=asked))


def a_response(world):
    return world.pick("SELECT id FROM responses", "resp-none")


def a_turn(world):
    return world.pick("SELECT id FROM turns", 1)


def add_token(world):
    name = world.new("token")
    token = Token(id=name, name=name, namespace=name, roles=("user",), created_at=0.0)
    world.store.add_token(token, name)


def add_sign_in(world):
    person = Person(namespace=world.dice.choice(USERS), name="somebody", role="user")
    world.store.add_sign_in(world.new("sign-in"), person)


def a_sign_in(world):
    return world.pick("SELECT digest FROM sign_ins", "sign-in-none")


def a_session(world):
    """A new session of the web page, and the hash of its secret."""
    name = world.new("web")
    token = Token(
        id=name, name=name, namespace=name, roles=("user",), created_at=0.0, platform="web"
    )
    return token, name


def backup(world):
    target = world.path.with_name(world.new("copy"))
    world.store.backup(target)
    with SessionStore(target) as copy:
        assert copy.integrity_check() == []
    target.unlink()


def close(world):
    world.store.close()
    world.store = SessionStore(world.path)


def prune_sessions(world):
    # Sessions of which nobody remembers the end: those that this campaign ended just now.
    world.store.prune_sessions(world.dice.choice([0.0, 0.0, 90.0]), dry_run=bool(_half(world)))


def _half(world):
    return world.dice.random() < 0.5


CALLS = {
    "create_session": create_session,
    "ensure_session": ensure_session,
    "end_session": end_session,
    "promote_to_session_reset": lambda w: w.store.promote_to_session_reset(w.session),
    "reopen_session": lambda w: w.store.reopen_session(w.session),
    "archive_session": lambda w: w.store.archive_session(w.session),
    "unarchive_session": lambda w: w.store.unarchive_session(w.session),
    "set_system_prompt": lambda w: w.store.set_system_prompt(w.session, "be kind"),
    "get_session": lambda w: w.store.get_session(w.session),
    "head": lambda w: w.store.head(w.session),
    "append_message": append_message,
    "append_messages": append_messages,
    "replace_messages": replace_messages,
    "rewind": rewind,
    "edit_message": edit_message,
    "get_messages": lambda w: w.store.get_messages(w.session, include_rewound=True),
    "load": lambda w: w.store.load(w.session),
    "get_page": get_page,
    "get_history": lambda w: w.store.get_history(w.key, lineage=True, include_waiting=True),
    "set_session_title": lambda w: w.store.set_session_title(w.session, f"t{w.dice.randrange(9)}"),
    "set_auto_title_if_empty": lambda w: w.store.set_auto_title_if_empty(w.session, w.new("auto")),
    "get_next_title_in_lineage": lambda w: w.store.get_next_title_in_lineage("t1"),
    "resolve_session_by_title": lambda w: w.store.resolve_session_by_title("t1", session_key=w.key),
    "resolve_session_id": lambda w: w.store.resolve_session_id(w.session[:12]),
    "get_compression_tip": lambda w: w.store.get_compression_tip(w.session),
    "get_compression_lineage": lambda w: w.store.get_compression_lineage(w.session),
    "get_conversation_root": lambda w: w.store.get_conversation_root(w.session),
    "get_route": lambda w: w.store.get_route(w.key),
    "route_head": lambda w: w.store.route_head(w.key),
    "follow_route": lambda w: w.store.follow_route(w.key),
    "find": lambda w: w.store.find(w.session, session_key=w.dice.choice([None, w.key])),
    "new_session": lambda w: w.store.new_session(w.key, title=w.dice.choice([None, w.new("t")])),
    "close_session": lambda w: w.store.close_session(w.key),
    "configure": lambda w: w.store.configure(w.key, metadata={"a": w.dice.randrange(9)}),
    "finalize": lambda w: w.store.finalize(w.key),
    "switch": switch,
    "get_title": lambda w: w.store.get_title(w.key),
    "set_title": lambda w: w.store.set_title(w.key, f"t{w.dice.randrange(9)}"),
    "set_pending_title": lambda w: w.store.set_pending_title(w.key, f"t{w.dice.randrange(9)}"),
    "apply_pending_title": lambda w: w.store.apply_pending_title(w.key),
    "sweep_expired": lambda w: w.store.sweep_expired(),
    "accept": accept,
    "accept_request": accept_request,
    "waiting_calls": lambda w: w.store.waiting_calls(w.key),
    "commit_turn": commit_turn,
    "open_inbox": lambda w: w.store.open_inbox(w.key),
    "waiting_keys": lambda w: w.store.waiting_keys(),
    "start_inbox": lambda w: w.store.start_inbox([w.waiting[1]]),
    "restore_attempts": lambda w: w.store.restore_attempts({w.waiting[1]: 1}),
    "park_inbox": park_inbox,
    "withdraw": lambda w: w.store.withdraw(*w.waiting),
    "store_transcripts": lambda w: w.store.store_transcripts(*w.waiting, {"file_0": w.name}),
    "add_messages": lambda w: w.store.add_messages(
        "k1", [Message("user", w.new("news"))], Source("wire")
    ),
    "post": lambda w: w.store.post("k1", w.new("news"), Source("wire"), w.outbound("k1")),
    "last_source": lambda w: w.store.last_source(w.key),
    "get_outcome": lambda w: w.store.get_outcome(w.waiting[1]),
    "get_outcomes": lambda w: w.store.get_outcomes([w.waiting[1]]),
    "open_ids": lambda w: w.store.open_ids([w.key]),
    "find_event": find_event,
    "answer": lambda w: w.store.answer(w.answer(*w.waiting)),
    "begin_once": begin_once,
    "end_once": end_once,
    "ask_approval": ask_approval,
    "take_approval": take_approval,
    "decide_approval": decide_approval,
    "show_approval": show_approval,
    "mark_shown": mark_shown,
    "get_approval": lambda w: w.store.get_approval(*_approval(w)),
    "get_approved_call": lambda w: w.store.get_approved_call(*_approval(w, "approved")),
    "open_approvals": lambda w: w.store.open_approvals(*w.waiting),
    "allowed_tools": lambda w: w.store.allowed_tools(w.key),
    "revoke_tool": lambda w: w.store.revoke_tool(w.key, "send"),
    "list_approvals": lambda w: w.store.list_approvals(prefixes=[w.key]),
    "pending_approvals": lambda w: w.store.pending_approvals(w.key),
    "find_principal": lambda w: w.store.find_principal("wire", "", "u1"),
    "principals": lambda w: w.store.principals(),
    "pairings": lambda w: w.store.pairings(),
    "request_pairing": request_pairing,
    "approve_pairing": approve_pairing,
    "unpair": lambda w: w.store.unpair("wire", w.dice.choice(USERS)),
    "pending_outbox": lambda w: w.store.pending_outbox(),
    "open_lanes": lambda w: w.store.open_lanes(),
    "served_platforms": lambda w: w.store.served_platforms(),
    "serve_platforms": lambda w: w.store.serve_platforms(["wire"]),
    "mark_sending": lambda w: w.store.mark_sending(w.reply_ids),
    "mark_part": lambda w: w.store.mark_part((w.reply_ids or [0])[0], 1),
    "mark_sent": lambda w: w.store.mark_sent(w.reply_ids),
    "mark_unsent": lambda w: w.store.mark_unsent(w.reply_ids),
    "mark_unknown": lambda w: w.store.mark_unknown(w.reply_ids),
    "mark_dead": lambda w: w.store.mark_dead(w.reply_ids, "given up"),
    "mark_lane_dead": lambda w: w.store.mark_lane_dead("wire:k4", "given up"),
    "recover_outbox": lambda w: w.store.recover_outbox(),
    "outbox_facts": lambda w: w.store.outbox_facts(),
    "facts": lambda w: w.store.facts(),
    "pending_boundaries": lambda w: w.store.pending_boundaries(),
    "close_boundary": lambda w: w.store.close_boundary(w.pick("SELECT id FROM boundaries", 0)),
    "rotate": rotate,
    "branch": lambda w: w.store.branch(w.session, session_key=w.dice.choice([None, w.key])),
    "acquire_lease": lambda w: w.store.acquire_lease(w.session, w.name, 0.05),
    "forget_runtimes": lambda w: w.store.forget_runtimes(),
    "try_acquire_compression_lock": lambda w: w.store.try_acquire_compression_lock(
        w.session, w.name, 0.05
    ),
    "refresh_compression_lock": lambda w: w.store.refresh_compression_lock(w.session, w.name, 0.05),
    "release_compression_lock": lambda w: w.store.release_compression_lock(w.session, w.name),
    "get_compression_lock_holder": lambda w: w.store.get_compression_lock_holder(w.session),
    "update_token_counts": lambda w: w.store.update_token_counts(w.session, usage(w)),
    "book": lambda w: w.store.book(w.session, [usage(w), usage(w)]),
    "get_usage": lambda w: w.store.get_usage(w.session),
    "spent": lambda w: w.store.spent(w.session, "wire", "u1"),
    "get_meta": lambda w: w.store.get_meta("foreign"),
    "set_meta": lambda w: w.store.set_meta("foreign", w.name),
    "list_sessions": lambda w: w.store.list_sessions(include_subagents=True, include_archived=True),
    "search_messages": lambda w: w.store.search_messages("says", newest_first=True),
    "index_pending": lambda w: w.store.index_pending(),
    "index_word_forms": lambda w: w.store.index_word_forms(),
    "check_search": lambda w: _expect(w.store.check_search(), None),
    "rebuild_search": lambda w: w.store.rebuild_search(),
    "put_file": put_file,
    "get_file": get_file,
    "find_file": lambda w: w.store.find_file(any_file(w)[0]),
    "list_files": lambda w: w.store.list_files(w.key, limit=10),
    "keep_file": keep_file,
    "copy_file": copy_file,
    "get_response": lambda w: w.store.get_response(a_response(w)),
    "find_response": lambda w: w.store.find_response("tok", "key"),
    "response_to": lambda w: w.store.response_to(1),
    "attach_response": lambda w: w.store.attach_response("tok", "/v1/responses", "d", "p"),
    "open_processes": lambda w: w.store.open_processes("tok", "/v1/responses", "d"),
    "begin_answer": lambda w: w.store.begin_answer(a_response(w), "p"),
    "end_connection": lambda w: w.store.end_connection(a_response(w), "p", complete=False),
    "record_process": lambda w: (w.store.record_process("p"), request(w)),
    "record_items": lambda w: w.store.record_items(a_response(w), [{"type": "message"}]),
    "delete_response": lambda w: w.store.delete_response(a_response(w)),
    "list_responses": lambda w: w.store.list_responses(w.key, "/v1/responses"),
    "delete_responses": lambda w: w.store.delete_responses(w.key),
    "conversation_stamps": lambda w: w.store.conversation_stamps(KEYS),
    "get_view": lambda w: w.store.get_view(w.key),
    "list_conversations": lambda w: w.store.list_conversations(),
    "usage_by_turn": lambda w: w.store.usage_by_turn(w.key),
    "list_turns": lambda w: w.store.list_turns(w.key),
    "get_past_turn": lambda w: w.store.get_past_turn(w.key, a_turn(w)),
    "get_call_rows": lambda w: w.store.get_call_rows(w.key, a_turn(w), 0),
    "turns_of_rows": lambda w: w.store.turns_of_rows([_live(w)[1]]),
    "outbox_lanes": lambda w: w.store.outbox_lanes(),
    "list_branches": lambda w: w.store.list_branches(w.key),
    "open_branch": lambda w: w.store.open_branch(
        w.new("branch"), Source("http"), [Message("user", "earlier")]
    ),
    "add_token": add_token,
    "find_token": lambda w: w.store.find_token("token-none"),
    "valid_tokens": lambda w: w.store.valid_tokens(),
    "valid_digests": lambda w: w.store.valid_digests(),
    "list_tokens": lambda w: w.store.list_tokens(),
    "revoke_token": lambda w: w.store.revoke_token(
        w.pick("SELECT name FROM tokens WHERE revoked_at IS NULL", "token-none")
    ),
    "add_sign_in": add_sign_in,
    "find_sign_in": lambda w: w.store.find_sign_in(a_sign_in(w)),
    "sign_in": lambda w: w.store.sign_in(a_sign_in(w), *a_session(w)),
    "sign_in_paired": lambda w: w.store.sign_in_paired(w.dice.choice(USERS), *a_session(w)),
    "clear_sign_ins": lambda w: w.store.clear_sign_ins() if w.dice.random() < 0.2 else None,
    "costs_today": lambda w: w.store.costs_today(),
    "lane_rows": lambda w: w.store.lane_rows(w.dice.choice([None, "wire:k4"])),
    "session_family": lambda w: w.store.session_family(w.key),
    "summary_rows": lambda w: w.store.summary_rows(w.session),
    "model_calls": lambda w: w.store.model_calls(w.key),
    "cached_conversations": lambda w: w.store.cached_conversations(),
    "read_file": read_file,
    "discard_file": discard_file,
    "sweep_files": lambda w: w.store.sweep_files(),
    "export_session": lambda w: w.store.export_session(w.session),
    "export_lines": lambda w: list(w.store.export_lines(w.session)),
    "import_sessions": import_sessions,
    "delete_session": lambda w: (
        w.store.delete_session(w.session) if w.dice.random() < 0.3 else None
    ),
    "prune_sessions": prune_sessions,
    "prune_empty_ghost_sessions": lambda w: w.store.prune_empty_ghost_sessions(),
    "finalize_orphaned_compression_sessions": lambda w: (
        w.store.finalize_orphaned_compression_sessions()
    ),
    "forget_closed": lambda w: w.store.forget_closed(),
    "integrity_check": lambda w: _expect(w.store.integrity_check(), []),
    "backup": backup,
    "vacuum": lambda w: w.store.vacuum(),
    "close": close,
    "transact": lambda w: w.store.transact(lambda tx: tx.all("SELECT id FROM sessions")),
    "transact_alone": lambda w: w.store.transact_alone(lambda tx: tx.one("SELECT 1")),
    "transact_unflushed": lambda w: w.store.transact_unflushed(lambda tx: tx.one("SELECT 1")),
    "transact_deferred": lambda w: w.store.transact_deferred(lambda tx: tx.one("SELECT 1")),
    "snapshot": lambda w: w.store.snapshot(lambda tx: tx.all("SELECT id FROM inbox")),
    "browse": lambda w: w.store.browse(lambda tx: tx.all("SELECT id FROM outbox")),
    "run_search": lambda w: w.store.run_search(lambda tx: tx.one("SELECT count(*) FROM search")),
    "run_chunked": lambda w: w.store.run_chunked(_nothing()),
}


def _expect(found, sound):
    assert found == sound, found


def _nothing():
    return (yield lambda tx: tx.one("SELECT 1"))


def public_names():
    """Return everything that the class offers."""
    return {name for name in dir(SessionStore) if not name.startswith("_")}
