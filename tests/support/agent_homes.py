"""Write hermes-agent homes of any schema version."""

from __future__ import annotations

import json

import apsw

NOW = 1_800_000_000.0

# The columns by the schema version that added them; a reader must cope without any of them.
SESSIONS = {
    1: "id TEXT PRIMARY KEY, source TEXT NOT NULL, user_id, model, model_config, system_prompt, "
    "parent_session_id, started_at REAL, ended_at REAL, end_reason, input_tokens INTEGER, "
    "output_tokens INTEGER",
    4: "title",
    6: "cache_read_tokens INTEGER, cache_write_tokens INTEGER, reasoning_tokens INTEGER, "
    "billing_provider, estimated_cost_usd REAL, actual_cost_usd REAL, api_call_count INTEGER",
    12: "cwd, git_branch, archived INTEGER",
    17: "session_key, chat_id, chat_type, thread_id",
    18: "display_name, origin_json, expiry_finalized INTEGER, profile_name",
}
MESSAGES = {
    1: "id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT, role TEXT, content TEXT, "
    "tool_call_id, tool_calls, tool_name, timestamp REAL, token_count INTEGER",
    2: "finish_reason",
    6: "reasoning, reasoning_details, codex_reasoning_items",
    9: "reasoning_content, codex_message_items, platform_message_id",
    12: "observed INTEGER, active INTEGER, compacted INTEGER",
    21: "effect_disposition, api_content",
}


def columns(since, version):
    return ", ".join(text for first, text in since.items() if first <= version)


class Home:
    """A home that is open for writing."""

    def __init__(self, folder, version=22):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder
        self.version = version
        self.db = apsw.Connection(str(folder / "state.db"))
        self.db.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF").fetchall()
        self.db.execute(
            f"CREATE TABLE schema_version (version); INSERT INTO schema_version VALUES ({version});"
            f"CREATE TABLE sessions ({columns(SESSIONS, version)});"
            f"CREATE TABLE messages ({columns(MESSAGES, version)})"
        ).fetchall()
        if version >= 19:
            self.db.execute(
                "CREATE TABLE gateway_routing (scope, session_key, entry_json, updated_at)"
            )
        if version >= 20:
            task = ", task" if version >= 22 else ""
            self.db.execute(
                "CREATE TABLE session_model_usage (session_id, model, billing_provider, "
                "api_call_count, input_tokens, output_tokens, cache_read_tokens, "
                f"cache_write_tokens, reasoning_tokens, estimated_cost_usd, actual_cost_usd{task})"
            )

    def close(self):
        self.db.close()

    def insert(self, table, **values):
        names = ", ".join(values)
        marks = ", ".join("?" * len(values))
        self.db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))

    def session(self, name, *texts, source="cli", started_at=NOW - 1000, **fields):
        """Write a session whose messages alternate between user and assistant. Return its id."""
        if isinstance(fields.get("model_config"), dict):
            fields["model_config"] = json.dumps(fields["model_config"])
        self.insert("sessions", id=name, source=source, started_at=started_at, **fields)
        for number, text in enumerate(texts):
            self.say(name, text, ("user", "assistant")[number % 2], NOW - 900 + number)
        return name

    def say(self, session_id, content, role="user", timestamp=NOW - 500, **fields):
        """Write a message."""
        self.insert(
            "messages", session_id=session_id, role=role, content=content, timestamp=timestamp,
            **fields,
        )  # fmt: skip

    def run(self, sql, *values):
        return self.db.execute(sql, values).fetchall()

    def entry(self, chat, session_id, **fields):
        """Return the route of a chat to a session, as hermes-agent stores it."""
        origin = {
            "platform": "telegram",
            "chat_id": str(chat),
            "chat_type": fields.pop("chat_type", "dm"),
            "user_id": "ann",
            "thread_id": fields.pop("thread_id", None),
        }
        times = {"created_at": "2026-01-02T03:04:05", "updated_at": "2026-01-02T03:04:06"}
        return {
            "session_id": session_id,
            "platform": "telegram",
            "origin": origin,
            **times,
            **fields,
        }

    def routes(self, entries):
        """Write `sessions.json`, where older versions keep routes."""
        (self.path / "sessions").mkdir(exist_ok=True)
        text = json.dumps({"_README": "no entry", **entries})
        (self.path / "sessions" / "sessions.json").write_text(text)

    def routing(self, entries, scope=None, updated_at=NOW):
        """Write the table where newer versions keep routes."""
        scope = str((self.path / "sessions").resolve()) if scope is None else scope
        for key, entry in entries.items():
            text = json.dumps(entry) if isinstance(entry, dict) else entry
            self.insert(
                "gateway_routing", scope=scope, session_key=key, entry_json=text,
                updated_at=updated_at,
            )  # fmt: skip
