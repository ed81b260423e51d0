"""The admin commands that show conversations: `list`, `show`, `search`."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import asdict

from hermes.messages import Session, StoredMessage
from hermes.sanitize import one_line, sanitize
from hermes.store.cli.opening import existing, opened
from hermes.store.cli.output import Page, moment, print_json
from hermes.store.conversations import routes


def list_(options: Namespace) -> int:
    """The conversations, one line each."""
    ended = True if options.ended else False if options.open else None
    with opened(existing(options)) as store:
        found = store.list_sessions(
            session_key=options.key, source=options.platform, ended=ended, limit=options.limit
        )
    if options.json:
        for each in found:
            root = {"root_session_id": each.root_session_id, "preview": each.preview}
            began = {"conversation_started_at": each.started_at}
            print_json({**_facts(each.session), **root, **began})
    elif found:
        rows = [
            (
                each.session.id,
                each.session.title or each.preview,
                each.session.source,
                f"{each.session.message_count:,}",
                moment(each.session.last_active),
                each.session.end_reason or "",
            )
            for each in found
        ]
        columns = ("id", "title or first words", "platform", "#messages", "last active", "ended")
        Page(sys.stdout).table(columns, rows)
    else:
        Page(sys.stdout).line("No conversation was found.")
    return 0 if found else 1


def _facts(session: Session) -> dict[str, object]:
    facts = asdict(session)
    for long in ("system_prompt", "model_config"):
        del facts[long]
    return facts


def show(options: Namespace) -> int:
    """A conversation as people read it."""
    with opened(existing(options)) as store:
        found = store.snapshot(lambda tx: routes.meant(tx, options.session))
        if found is None:
            return unknown(options.session)
        ids = store.get_compression_lineage(found) if options.all else [found]
        for session_id in ids:
            session = store.get_session(session_id)
            assert session is not None
            rows = store.get_messages(session_id, include_rewound=options.rewound)
            live = {row.id for row in rows}
            if options.rewound:
                live = {row.id for row in store.get_messages(session_id)}
            (_show_json if options.json else _show)(session, rows, live)
    return 0


def unknown(name: str) -> int:
    """Say that there is no such session."""
    sys.stderr.write(f"There is no session {sanitize(name)}.\n")
    return 1


def _show_json(session: Session, rows: Iterable[StoredMessage], live: set[int]) -> None:
    facts = _facts(session) | {"system_prompt": session.system_prompt}
    messages = [{**msgspec.to_builtins(row), "live": row.id in live} for row in rows]
    print_json({**facts, "model_config": session.model_config, "messages": messages})


def _show(session: Session, rows: Iterable[StoredMessage], live: set[int]) -> None:
    page = Page(sys.stdout)
    page.line(f"{session.id}  {one_line(session.title or '(no title)')}")
    told = [session.source, session.model, session.session_key, session.kind]
    page.line(one_line(" · ".join(text for text in told if text)))
    if session.end_reason is not None:
        page.line(f"ended {moment(session.ended_at)} ({one_line(session.end_reason)})")
    for row in rows:
        page.line()
        gone = "" if row.id in live else " (taken back)"
        name = f" {row.tool_name}" if row.tool_name else ""
        page.line(one_line(f"{moment(row.timestamp, exact=True)} {row.role}{name}{gone}"))
        for text in _texts(row):
            for line in sanitize(text).split("\n"):
                page.line(f"  {line}".rstrip())
    page.line()


def _texts(row: StoredMessage) -> Iterator[str]:
    if row.content:
        yield row.content
    kinds = [str(part.get("type", "part")) for part in row.parts or () if "text" not in part]
    if kinds:
        yield f"[{', '.join(kinds)}]"
    for call in row.tool_calls:
        yield f"→ {call.name} {call.arguments}"


def search(options: Namespace) -> int:
    """Messages that contain the words, best first."""
    with opened(existing(options)) as store:
        found = store.search_messages(
            " ".join(options.words), session_key=options.key, role=options.role,
            limit=options.limit,
        )  # fmt: skip
    if options.json:
        for hit in found:
            print_json(asdict(hit))
    elif found:
        rows = [
            (hit.session_id, moment(hit.timestamp), hit.role, hit.snippet, hit.title or "")
            for hit in found
        ]
        Page(sys.stdout).table(("id", "when", "role", "found", "title"), rows)
    else:
        Page(sys.stdout).line("Nothing was found.")
    return 0 if found else 1
