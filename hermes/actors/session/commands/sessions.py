"""Runs the commands about stored conversations: `/new`, `/resume`, `/search` and others."""

from __future__ import annotations

from hermes.actors.session import operations
from hermes.actors.session.commands.calls import (
    CommandCall,
    cancelled,
    handles,
    reply,
    reply_to,
    shorten,
    texts_of,
    usage,
)
from hermes.actors.session.commands.listing import (
    MAX_LISTED,
    day,
    find_session,
    own_sessions,
    session_line,
)
from hermes.actors.session.state import SessionState
from hermes.messages import SearchHit, Session
from hermes.transcript.attachments import readable_text
from hermes.transcript.calls import shown_call
from hermes.transcript.compaction import is_question
from hermes.transcript.decisions import decision_in
from hermes.transcript.export import as_markdown

MAX_EXCERPT = 300
"""How many characters of a question or an answer are shown as a reminder."""
MAX_EXPORT = 50_000
MAX_HITS = 5
CONFIRMED = "yes"


@handles("new")
async def _new(state: SessionState, call: CommandCall, title: str) -> str:
    texts = texts_of(state)
    text = texts.new_titled_session.format(title=title) if title else texts.new_session
    text += cancelled(texts, call)
    await operations.new_session(
        state,
        title or None,
        platform=call.row.inbound.source.platform,
        answer=reply_to(state, call, text),
    )
    return text


@handles("sessions")
async def _sessions(state: SessionState, call: CommandCall, _: str) -> str:
    own, texts = await own_sessions(state), texts_of(state)
    if not own:
        return await reply(state, call, texts.no_sessions)
    current = await state.store.get_route(state.key)
    here = None if current is None else current.session_id
    lines = [
        session_line(number, each, texts, current=each.session.id == here)
        for number, each in enumerate(own[:MAX_LISTED], 1)
    ]
    if len(own) > MAX_LISTED:
        lines.append(texts.more_sessions.format(number=len(own) - MAX_LISTED))
    return await reply(state, call, "\n".join([*lines, texts.how_to_resume]))


@handles("resume")
async def _resume(state: SessionState, call: CommandCall, wanted: str) -> str:
    if not wanted:
        return await _sessions(state, call, "")
    found = await find_session(state, wanted)
    if isinstance(found, str):
        return await reply(state, call, found)
    text = await _resumed(state, found)
    await operations.switch(state, found.id, answer=reply_to(state, call, text))
    return text


async def _resumed(state: SessionState, session: Session) -> str:
    """Return the answer to /resume: the name of the conversation, and its last exchange."""
    texts, lines = texts_of(state), []
    rows = (await state.store.load(session.id)).messages
    asked = [n for n, row in enumerate(rows) if is_question(row) and not decision_in(row.content)]
    last = max(asked, default=None)
    lines.append(texts.resumed.format(name=session.title or session.id))
    if last is not None:
        question = shorten(readable_text(rows[last]), MAX_EXCERPT)
        lines.append(texts.last_question.format(text=question))
        replies = [readable_text(row) for row in rows[last:] if row.role == "assistant"]
        said = [text for text in replies if text]
        lines += [texts.last_answer.format(text=shorten(text, MAX_EXCERPT)) for text in said[-1:]]
    return "\n".join(lines)


@handles("branch")
async def _branch(state: SessionState, call: CommandCall, title: str) -> str:
    head = await state.locate(refresh=True)
    if not head.message_count:
        return await reply(state, call, texts_of(state).nothing_to_branch)
    text = texts_of(state).branched
    await operations.branch(state, title or None, answer=reply_to(state, call, text))
    return text


@handles("title")
async def _title(state: SessionState, call: CommandCall, title: str) -> str:
    texts = texts_of(state)
    if not title:
        current = (await state.store.get_title(state.key)).text
        text = texts.title.format(title=current) if current else texts.no_title
        return await reply(state, call, text)
    stored = await operations.set_title(state, title)
    return await reply(state, call, texts.title_set.format(title=stored.text))


@handles("search")
async def _search(state: SessionState, call: CommandCall, query: str) -> str:
    texts = texts_of(state)
    if not query:
        return await usage(state, call, "search")
    hits = await state.store.search_messages(query, session_key=state.key, limit=MAX_HITS)
    if not hits:
        return await reply(state, call, texts.nothing_found.format(query=query))
    lines = [
        texts.search_hit.format(
            date=day(hit.timestamp),
            name=hit.title or hit.session_id,
            text=shorten(await _excerpt(state, hit), MAX_EXCERPT),
        )
        for hit in hits
    ]
    return await reply(state, call, "\n".join([*lines, texts.how_to_resume_hit]))


async def _excerpt(state: SessionState, hit: SearchHit) -> str:
    """Return what a hit shows: its words, or the tool calls that contain them."""
    words = hit.snippet.replace(">>>", "").replace("<<<", "")
    rows = await state.store.get_page(
        hit.session_id, after=hit.message_id - 1, limit=1, include_rewound=True
    )
    if not rows or rows[0].id != hit.message_id:
        return words  # it was deleted meanwhile
    row, texts = rows[0], texts_of(state)
    content = " ".join((row.content or "").split())
    in_content = " ".join(words.strip("…").split()) in content
    if row.tool_calls and not in_content:
        calls = [shown_call(each.name, each.arguments) for each in row.tool_calls]
        return texts.search_call.format(calls=", ".join(calls))
    if row.role == "tool":
        text = words if in_content else content
        return texts.search_result.format(tool=row.tool_name or row.role, text=text)
    return decision_in(row.content) or words


@handles("delete")
async def _delete(state: SessionState, call: CommandCall, argument: str) -> str:
    """Delete a conversation, but only if the command says "yes" at its end."""
    texts, (wanted, confirmed) = texts_of(state), _confirmation(argument)
    current = (await state.locate(refresh=True)).session_id
    found = await find_session(state, wanted or current)
    if isinstance(found, str):
        return await reply(state, call, found if wanted else texts.nothing_to_delete)
    name = found.title or found.id
    if not confirmed:
        text = texts.confirm_delete.format(
            name=name, messages=found.message_count, session_id=found.id
        )
        return await reply(state, call, text)
    await operations.delete(state, found.id)
    return await reply(state, call, texts.deleted.format(name=name))


def _confirmation(argument: str) -> tuple[str, bool]:
    wanted, _, last = argument.rpartition(" ")
    return (wanted.strip(), True) if last.lower() == CONFIRMED else (argument, False)


@handles("export")
async def _export(state: SessionState, call: CommandCall, wanted: str) -> str:
    texts, session_id = texts_of(state), (await state.locate(refresh=True)).session_id
    if wanted:
        found = await find_session(state, wanted)
        if isinstance(found, str):
            return await reply(state, call, found)
        session_id = found.id
    session = await state.store.get_session(session_id)
    if session is None:
        return await reply(state, call, texts.nothing_to_export)
    rows = await state.store.get_page(session_id, lineage=True)
    return await reply(state, call, as_markdown(session.title, rows, texts, MAX_EXPORT))
