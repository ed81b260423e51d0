"""Requests to a store, each with proofs that show whether it was stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from hermes.messages import Inbound, Message, Outbound, TurnCommit, Usage
from hermes.store import Rotation, SessionStore


@attrs.frozen
class Text:
    """A proof: the number of messages that start so; with `hidden`, 1 if any row does."""

    begins: str
    session_id: str | None = None
    hidden: bool = False


@attrs.frozen
class Step:
    """A request, and proofs that show any reader of the file whether it was stored.

    The proofs are counts; all of them must be 1, or all 0. After `StoreFailed`, a request that is
    not `keyed` is only sent again if its proofs are 0.
    """

    name: str
    do: Callable[[Any, dict[str, Any], str], Awaitable[object]]
    proofs: tuple[str | Text, ...] = ()
    needs: tuple[str, ...] = ()
    keyed: bool = True


REOPEN: tuple[Step, ...] = ()


def create(session_id):
    return Step(
        f"create {session_id}",
        lambda store, seen, key: store.create_session(session_id, "test"),
        (f"SELECT count(*) FROM sessions WHERE id = '{session_id}'",),
    )


def append(session_id, name, *, size=0, needs=None):
    """Append a message; its text contains its name, its key is the id of the platform."""
    return Step(
        name,
        lambda store, seen, key: store.append_message(
            session_id, "user", f"{name} {'x' * size}", platform_message_id=key
        ),
        (Text(f"{name} ", session_id),),
        (f"create {session_id}",) if needs is None else needs,
    )


def title(session_id, text):
    return Step(
        f"title {session_id}",
        lambda store, seen, key: store.set_session_title(session_id, text),
        (f"SELECT count(*) FROM sessions WHERE id = '{session_id}' AND title = '{text}'",),
        (f"create {session_id}",),
    )


def accept(event, session_key):
    return Step(
        f"accept {event}",
        lambda store, seen, key: store.accept(Inbound(session_key, event, f"text of {event}")),
        (f"SELECT count(*) FROM inbox WHERE event_id = '{event}'",),
    )


def turn(event, session_key):
    """Commit a turn for an accepted message: rows, reply, usage and receipt, all or nothing."""

    async def do(store, seen, key):
        receipt = seen[f"accept {event}"].receipt
        head = await store.head(receipt.session_id)
        return await store.commit_turn(
            TurnCommit(
                session_key=session_key,
                session_id=receipt.session_id,
                epoch=receipt.epoch,
                revision=head.revision,
                inbox_ids=[receipt.inbox_id],
                rows=[Message("user", f"{event} asks"), Message("assistant", f"{event} answer")],
                outbox=[Outbound("lane", {"text": f"{event} answer"})],
                usage=[Usage(purpose=f"turn {event}", input_tokens=3)],
            )
        )

    return Step(
        f"turn {event}",
        do,
        (
            f"SELECT count(*) FROM inbox WHERE event_id = '{event}' AND state = 'done'",
            Text(f"{event} asks"),
            Text(f"{event} answer"),
            f"SELECT count(*) FROM outbox WHERE body LIKE '%{event} answer%'",
            f"SELECT count(*) FROM usage WHERE purpose = 'turn {event}'",
        ),
        (f"accept {event}",),
    )


def rotate(session_id, child, last):
    """Rotate: the end of the parent, the child and the summary, all or nothing."""
    return Step(
        f"rotate {session_id}",
        lambda store, seen, key: store.rotate(
            Rotation(
                session_id=session_id,
                messages=[Message("user", f"summary of {session_id}")],
                rotation_id=f"rotation of {session_id}",
                rewrites=0,
                upto=seen[last].message_id,
                child_session_id=child,
            )
        ),
        (
            f"SELECT count(*) FROM sessions WHERE rotation_id = 'rotation of {session_id}'",
            "SELECT count(*) FROM sessions "
            f"WHERE id = '{session_id}' AND end_reason = 'compression'",
            Text(f"summary of {session_id}", child),
        ),
        (last,),
    )


def edit(session_id, name, others):
    async def do(store, seen, key):
        return await store.edit_message(session_id, seen[name].message_id, f"{name} edited")

    return Step(
        f"edit {name}",
        do,
        (Text(f"{name} edited", session_id),),
        (name, *others),
        keyed=False,
    )


def kept(session_id, name):
    """Append a message that an edit may hide, but not remove."""
    return attrs.evolve(
        append(session_id, name), proofs=(Text(f"{name} ", session_id, hidden=True),)
    )


def lease(session_id):
    return Step(
        f"lease {session_id}",
        lambda store, seen, key: store.acquire_lease(session_id, "holder"),
        (f"SELECT count(*) FROM leases WHERE session_id = '{session_id}' AND token = 1",),
    )


def spend(session_id, purpose):
    return Step(
        f"usage {purpose}",
        lambda store, seen, key: store.update_token_counts(session_id, Usage(purpose=purpose)),
        (f"SELECT count(*) FROM usage WHERE purpose = '{purpose}'",),
        (f"create {session_id}",),
        keyed=False,
    )


def end(session_id):
    return Step(
        f"end {session_id}",
        lambda store, seen, key: store.end_session(session_id, "done"),
        (f"SELECT count(*) FROM sessions WHERE id = '{session_id}' AND end_reason = 'done'",),
        (f"create {session_id}",),
    )


def delete(session_id):
    return Step(
        f"delete {session_id}",
        lambda store, seen, key: store.delete_session(session_id),
        (f"SELECT NOT count(*) FROM sessions WHERE id = '{session_id}'",),
        (f"create {session_id}",),
    )


def send(event):
    """Read a reply and mark it as sent."""

    async def do(store, seen, key):
        waiting = await store.pending_outbox("lane")
        await store.mark_sending([row.outbox_id for row in waiting])
        await store.mark_sent([row.outbox_id for row in waiting])

    sent = f"SELECT count(*) FROM outbox WHERE body LIKE '%{event}%' AND state = 'sent'"
    return Step(f"send {event}", do, (sent,), (f"turn {event}",))


def renew(session_key, reason):
    """Start a new session: two boundaries and a route, all or nothing."""
    return Step(
        f"new {reason}",
        lambda store, seen, key: store.new_session(session_key, reason=reason),
        tuple(
            f"SELECT count(*) FROM boundaries WHERE event = '{event}' AND reason = '{reason}'"
            for event in ("on_session_finalize", "on_session_reset")
        ),
        ("accept e1",),
        keyed=False,
    )


def plain(name, *arguments, needs=(), **options):
    """Call a verb without proofs: reads, indexing, maintenance."""
    return Step(
        f"{name} {arguments}",
        lambda store, seen, key: getattr(store, name)(*arguments, **options),
        needs=needs,
    )


def back_up():
    """Make a backup, which is complete or does not exist."""

    async def do(store, seen, key):
        target = seen["folder"] / f"copy-{len(list(seen['folder'].iterdir()))}.db"
        await store.backup(target)
        with SessionStore(target) as copy:
            assert copy.integrity_check() == []

    return Step("backup", do)


def block(session_id, count):
    """Append many messages at once."""
    rows = [
        Message("user", f"{session_id} row {n}.", platform_message_id=f"b{n}") for n in range(count)
    ]
    return Step(
        f"block {session_id}",
        lambda store, seen, key: store.append_messages(session_id, rows),
        tuple(Text(f"{session_id} row {n}.", session_id) for n in (0, count - 1)),
        (f"create {session_id}",),
    )


_LINES = [
    '{"format":"hermes-session-1","id":"imported","source":"x","kind":"new","started_at":1.0,'
    '"last_active":2.0,"messages":[{"seq":1,"role":"user","timestamp":1.5,"content":"from afar"}]}'
]

WORKLOADS: dict[str, tuple[tuple[Step, ...], ...]] = {
    "daily": (
        tuple(create(f"s{n}") for n in (1, 2, 3, 4)),
        (
            append("s1", "m1"),
            append("s1", "m2"),
            append("s4", "d1"),
            *(kept("s3", x) for x in ("x1", "x2", "x3")),
        ),
        (title("s1", "One"), accept("e1", "key"), accept("e2", "key"), lease("s2")),
        (turn("e1", "key"), append("s1", "m3"), spend("s2", "u1"), edit("s3", "x2", ("x1", "x3"))),
        (plain("index_pending"), plain("load", "s1")),
        (rotate("s1", "s1b", "m2"), plain("list_sessions")),
        REOPEN,
        (append("s1b", "n1", needs=("rotate s1",)), send("e1"), plain("search_messages", "m1")),
        (renew("key", "again"), end("s2"), append("s3", "n2")),
        (delete("s4"), plain("check_search"), accept("e3", "key"), plain("open_inbox")),
    ),
    "upkeep": (
        (create("s1"), create("s2")),
        (block("s1", 40), append("s2", "m1")),
        (plain("index_pending"), plain("export_session", "s1", needs=("create s1",))),
        (
            Step(
                "import",
                lambda store, seen, key: store.import_sessions(_LINES),
                (
                    "SELECT count(*) FROM sessions WHERE id = 'imported'",
                    Text("from afar", "imported"),
                ),
            ),
        ),
        (back_up(),),
        (plain("vacuum"),),
        (append("s2", "m2"),),
        (plain("rebuild_search"), plain("forget_closed"), plain("sweep_expired")),
        REOPEN,
        (append("s2", "m3"), plain("vacuum")),
        (append("s2", "m4"),),
    ),
    # Each of the big messages fills the WAL, so that a checkpoint follows it.
    "large": (
        (create("s1"), create("s2")),
        (append("s1", "m1"), append("s2", "n1")),
        (append("s1", "big1", size=4_200_000), append("s2", "n2")),
        (append("s1", "m2"), append("s2", "n3"), accept("e1", "key")),
        (append("s1", "big2", size=4_200_000),),
        (append("s2", "n4"), turn("e1", "key")),
        REOPEN,
        (append("s1", "m3"), append("s2", "n5")),
    ),
}
