"""The admin commands that show conversations: `list`, `show` and `search`."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import asdict

from hermes.errors import AmbiguousTitle
from hermes.messages import SearchHit, Session, StoredMessage, file_id_of
from hermes.sanitize import one_line, sanitize
from hermes.session_keys import CLIENT_PLATFORM, is_client_key
from hermes.store.cli.opening import existing_path, open_current
from hermes.store.cli.output import Printer, format_time, print_json
from hermes.store.conversations import lineage, titles
from hermes.store.sync_store import SessionStore
from hermes.transcript.attachments import describe, is_attachment

MAX_MATCHES = 10
CHAT_PLATFORMS: frozenset[str] = frozenset({"console", CLIENT_PLATFORM})
ENDS: dict[str, str] = {
    "agent_close": "closed",
    "compression": "compressed",
    "orphaned_compression": "compressed",
    "session_reset": "reset",
    "session_switch": "left",
    "ws_orphan_reap": "closed",
}
"""What `list` and `show` say for the stored reasons; the others are shown as they are."""


def list_(options: Namespace) -> int:
    """List conversations."""
    ended = True if options.ended else False if options.open else None
    with open_current(existing_path(options)) as store:
        summaries = store.list_sessions(
            session_key=options.key, source=options.platform, ended=ended, limit=options.limit,
            include_subagents=options.subagents, include_archived=options.archived,
        )  # fmt: skip
    if options.json:
        for summary in summaries:
            print_json(
                {
                    **_session_fields(summary.session),
                    "root_session_id": summary.root_session_id,
                    "preview": summary.preview,
                    "conversation_started_at": summary.started_at,
                }
            )
    elif summaries:
        rows = [
            (
                summary.session.id,
                summary.session.title or summary.preview,
                platform(summary.session),
                f"{summary.session.message_count:,}",
                format_time(summary.session.last_active),
                _state(summary.session),
            )
            for summary in summaries
        ]
        columns = ("id", "title", "platform", "#msgs", "last active", "state")
        Printer(sys.stdout).table(columns, rows)
    else:
        Printer(sys.stdout).line("No conversations found.")
    return 0 if summaries else 1


def _state(session: Session) -> str:
    """Return why a session has ended, and whether it is archived or belongs to a subagent."""
    archived = "archived" if session.archived_at is not None else None
    subagent = "subagent" if session.kind == "subagent" else None
    return ", ".join(filter(None, (_end(session), archived, subagent)))


def _end(session: Session) -> str | None:
    """Return why a session has ended, in words of a user."""
    reason = session.end_reason
    return None if reason is None else ENDS.get(reason, reason.replace("_", " "))


def platform(session: Session) -> str:
    """Return the platform of a session, in words of a user.

    `hermes -p` and a chat that is attached to a bot send their messages over JSON-RPC.
    """
    if session.source == CLIENT_PLATFORM and is_client_key(session.session_key or ""):
        return "client"
    return "chat" if session.source in CHAT_PLATFORMS else session.source


def _session_fields(session: Session) -> dict[str, object]:
    """Return the fields of a session, without its long texts."""
    fields = asdict(session)
    for name in ("system_prompt", "model_config"):
        del fields[name]
    return fields


def show(options: Namespace) -> int:
    """Print the transcript of a conversation."""
    with open_current(existing_path(options)) as store:
        resolved = resolve(store, options.session, options.key)
        if resolved is None:
            return report_unknown_session(options.session)
        ids = store.get_compression_lineage(resolved) if options.all else [resolved]
        for session_id in ids:
            session = store.get_session(session_id)
            assert session is not None
            rows = store.get_messages(session_id, include_rewound=options.rewound)
            live = {row.id for row in rows}
            if options.rewound:
                live = {row.id for row in store.get_messages(session_id)}
            (_show_json if options.json else _show)(session, rows, live)
    return 0


def resolve(store: SessionStore, name: str, session_key: str | None) -> str | None:
    """Return the session with this id, title or unique prefix of an id, of one key or of all.

    Raises `AmbiguousTitle`, which lists the sessions or names the option that helps.
    """
    try:
        found = store.snapshot(lambda tx: titles.resolve_session(tx, name, session_key=session_key))
    except AmbiguousTitle as error:
        if session_key is not None:
            raise
        raise AmbiguousTitle(f"{error} or --session-key", error.session_ids) from None
    if found is None:
        _refuse_ambiguous_prefix(store, name, session_key)
    return found


def _refuse_ambiguous_prefix(store: SessionStore, prefix: str, session_key: str | None) -> None:
    """Raise `AmbiguousTitle` if the ids of several sessions begin with the prefix."""
    ids = store.snapshot(
        lambda tx: lineage.ids_with_prefix(tx, prefix, session_key, MAX_MATCHES + 1)
    )
    if not ids:
        return
    lines = [f"several sessions have an id that begins with {prefix}; type more of it:"]
    for session_id in ids[:MAX_MATCHES]:
        session = store.get_session(session_id)
        title = "" if session is None or session.title is None else one_line(session.title)
        lines.append(f"  {session_id}  {title}".rstrip())
    if len(ids) > MAX_MATCHES:
        lines.append("  …")
    raise AmbiguousTitle("\n".join(lines), tuple(ids))


def report_unknown_session(name: str) -> int:
    """Print that there is no such session, and return the exit code."""
    sys.stderr.write(f"There is no session {sanitize(name)}.\n")
    return 1


def _show_json(session: Session, rows: Iterable[StoredMessage], live: set[int]) -> None:
    messages = [{**msgspec.to_builtins(row), "live": row.id in live} for row in rows]
    print_json(
        {
            **_session_fields(session),
            "system_prompt": session.system_prompt,
            "model_config": session.model_config,
            "messages": messages,
        }
    )


def _show(session: Session, rows: Iterable[StoredMessage], live: set[int]) -> None:
    printer = Printer(sys.stdout)
    printer.line(f"{session.id}  {one_line(session.title or '(no title)')}")
    facts = [platform(session), session.model, session.session_key, session.kind]
    printer.line(one_line(" · ".join(fact for fact in facts if fact)))
    if (end := _end(session)) is not None:
        printer.line(f"ended {format_time(session.ended_at)} ({one_line(end)})")
    if session.archived_at is not None:
        printer.line(f"archived {format_time(session.archived_at)}")
    for row in rows:
        printer.line()
        rewound = "" if row.id in live else " (rewound)"
        tool = f" {row.tool_name}" if row.tool_name else ""
        time = format_time(row.timestamp, seconds=True)
        printer.line(one_line(f"{time} {row.role}{tool}{rewound}"))
        for text in _texts(row):
            for line in sanitize(text).split("\n"):
                printer.line(f"  {line}".rstrip())
    printer.line()


def _texts(row: StoredMessage) -> Iterator[str]:
    if row.content:
        yield row.content
    for part in row.parts or ():
        if is_attachment(part) or "text" not in part:
            yield describe(part, file_id_of(part) or "")
    for call in row.tool_calls:
        yield f"→ {call.name} {call.arguments}"


def search(options: Namespace) -> int:
    """Search messages, best match first."""
    with open_current(existing_path(options)) as store:
        hits = store.search_messages(
            " ".join(options.words), session_key=options.key, role=options.role,
            limit=options.limit,
        )  # fmt: skip
    if options.json:
        for hit in hits:
            print_json(asdict(hit))
    elif hits:
        printer = Printer(sys.stdout)
        for hit in hits:
            time = format_time(hit.timestamp)
            printer.cells(hit.session_id, time, _hit_role(hit), hit.title or "")
            printer.excerpt(hit.snippet)
    else:
        Printer(sys.stdout).line("No messages found.")
    return 0 if hits else 1


def _hit_role(hit: SearchHit) -> str:
    return f"{hit.role} (compacted)" if hit.compacted else hit.role
