"""Write a home with hermes-agent 0.19.0, with sessions and routes of every kind.

    python peer_writes_home.py HOME [more]

Runs in the interpreter that hermes-agent is installed in. Prints the session ids as JSON. With
`more`, it adds to a home that it wrote before.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from unittest.mock import MagicMock

HOME = Path(sys.argv[1])
os.environ["HERMES_HOME"] = str(HOME)
os.environ["OPENROUTER_API_KEY"] = "no-key"


def main():
    from gateway.config import GatewayConfig
    from gateway.session import SessionStore

    HOME.mkdir(parents=True, exist_ok=True)
    store = SessionStore(HOME / "sessions", GatewayConfig())
    if sys.argv[2:] == ["more"]:
        wrote = add_more(store)
    else:
        wrote = {
            **chats(store),
            **lineages(store._db),
            **rows(store._db),
            **finalized(store),
        }
    store._save()
    store._db.close()
    sys.stdout.write(json.dumps(wrote) + "\n")


def source(chat, **fields):
    from gateway.config import Platform
    from gateway.session import SessionSource

    fields = {"chat_type": "dm", "user_id": f"u{chat}", "user_name": "Ann", **fields}
    return SessionSource(platform=Platform.TELEGRAM, chat_id=str(chat), **fields)


def say(db, session_id, *texts):
    for number, text in enumerate(texts):
        role = "assistant" if number % 2 else "user"
        db.append_message(session_id, role=role, content=text)


def chats(store):
    """Write gateway conversations: direct messages, a group and a thread, in every state."""
    dm = store.get_or_create_session(source(1))
    say(store._db, dm.session_id, "hello from a dm", "hello to you", "and again", "yes?")
    store.rewind_session(dm.session_id, 1)
    say(store._db, dm.session_id, "instead of that", "fine")
    store._db.set_session_title(dm.session_id, "A talk in private")
    group = store.get_or_create_session(source(2, chat_type="group", user_id="ann"))
    say(store._db, group.session_id, "hello from a group", "hello, group")
    store.set_model_override(group.session_key, {"model": "other", "provider": "p"})
    thread = store.get_or_create_session(source(3, chat_type="group", thread_id="7"))
    say(store._db, thread.session_id, "hello from a thread", "hello, thread")
    store.mark_resume_pending(thread.session_key)
    stuck = store.get_or_create_session(source(4))
    say(store._db, stuck.session_id, "stuck", "stuck too")
    store.suspend_session(stuck.session_key)
    reset = store.get_or_create_session(source(5))
    say(store._db, reset.session_id, "before the reset", "yes")
    again = store.reset_session(reset.session_key)
    say(store._db, again.session_id, "after the reset", "yes")
    names = ("dm", "group", "thread", "stuck", "reset", "again")
    found = (dm, group, thread, stuck, reset, again)
    return {name: entry.session_id for name, entry in zip(names, found, strict=True)}


def agent_on(db, session_id, *, in_place):
    from run_agent import AIAgent

    agent = AIAgent(
        api_key="no-key",
        base_url="https://127.0.0.1:9/v1",
        model="test/model",
        quiet_mode=True,
        session_db=db,
        session_id=session_id,
        skip_context_files=True,
        skip_memory=True,
    )
    agent.compression_in_place = in_place
    compressor = MagicMock()
    compressor.compress.side_effect = lambda *_, **__: [
        {"role": "user", "content": "[CONTEXT COMPACTION] summary"},
        {"role": "assistant", "content": "the tail"},
    ]
    compressor.compression_count = 1
    compressor.last_prompt_tokens = compressor.last_completion_tokens = 0
    compressor._last_summary_error = compressor._last_aux_model_failure_model = None
    compressor._last_compress_aborted = False
    compressor._last_aux_model_failure_error = None
    agent.context_compressor = compressor
    return agent


def compress(db, session_id, *, in_place):
    """Compress a session, into a child or in place, and return the id it continues with."""
    agent = agent_on(db, session_id, in_place=in_place)
    messages = [{"role": "user", "content": f"thought {n}"} for n in range(20)]
    agent._compress_context(messages, "sys", approx_tokens=120_000)
    return agent.session_id


def lineages(db):
    """Write a chain of compressions, a branch, a delegate, and a fork as in older versions."""
    db.create_session("root", source="cli", model="big", system_prompt="Be kind.", cwd="/work")
    say(db, "root", "thought 0", "indeed", "thought 1", "indeed")
    db.set_session_title("root", "Thoughts")
    child = compress(db, "root", in_place=False)
    say(db, child, "thought 2", "indeed")
    tip = compress(db, child, in_place=False)
    say(db, tip, "thought 3", "indeed")
    marked = {"_branched_from": tip, "temperature": 0.5}
    db.create_session("branch", source="cli", model_config=marked, parent_session_id=tip)
    say(db, "branch", "another way", "why not")
    db.create_session(
        "delegate", source="cli", model_config={"_delegate_from": tip}, parent_session_id=tip
    )
    say(db, "delegate", "look it up", "found")
    db.create_session("forked", source="discord")
    say(db, "forked", "one", "two")
    db.end_session("forked", "compression")
    for name in ("lost child", "child that goes on"):
        db.create_session(name, source="discord", parent_session_id="forked")
        say(db, name, f"the {name}", "yes")
    db.end_session("lost child", "ws_orphan_reap")
    return {"child": child, "tip": tip}


def rows(db):
    """Write messages of every kind, and usage."""
    db.create_session("rows", source="tui")
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"a": 1}'}}
    db.append_message("rows", role="user", content="read it", platform_message_id="tg:1")
    db.append_message(
        "rows", role="assistant", content=None, tool_calls=[call], reasoning="think",
        reasoning_details=[{"type": "text", "text": "hm"}], finish_reason="tool_calls",
        token_count=7, codex_reasoning_items=[{"id": "rs_1"}],
    )  # fmt: skip
    db.append_message("rows", role="tool", content="done", tool_call_id="c1", tool_name="read")
    db.append_message(
        "rows",
        role="user",
        content=[
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": "x"}},
        ],
        api_content="look, as it was sent",
    )
    db.append_message("rows", role="user", content="overheard", observed=True)
    db.update_token_counts(
        "rows", input_tokens=10, output_tokens=5, cache_read_tokens=2, model="big",
        estimated_cost_usd=0.25, billing_provider="acme", api_call_count=3,
    )  # fmt: skip
    db.create_session("compacted", source="cli")
    say(db, "compacted", *(f"old {n}" for n in range(6)))
    compress(db, "compacted", in_place=True)
    say(db, "compacted", "new", "indeed")
    db.create_session("archived", source="cli")
    say(db, "archived", "put away", "yes")
    db.set_session_archived("archived", True)
    return {}


def finalized(store):
    """Write a conversation that the expiry watcher has finalized."""
    entry = store.get_or_create_session(source(6))
    say(store._db, entry.session_id, "over", "yes")
    store.set_expiry_finalized(entry)
    return {"finalized": entry.session_id}


def add_more(store):
    """Write what happens a day later."""
    dm = store.get_or_create_session(source(1))
    say(store._db, dm.session_id, "a day later", "welcome back")
    say(store._db, "compacted", "before the second", "indeed")
    compress(store._db, "compacted", in_place=True)
    store._db.create_session("new", source="cli")
    say(store._db, "new", "something new", "yes")
    return {"dm": dm.session_id}


main()
