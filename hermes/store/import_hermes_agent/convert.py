"""Convert a session of hermes-agent to the export format of Hermes.

Invalid values are repaired or left out, with a note; nothing raises an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import msgspec

from hermes.messages import JsonObject, Message, ToolCall
from hermes.store.conversations import codec, titles
from hermes.store.import_hermes_agent.plan import PlannedSession
from hermes.store.import_hermes_agent.report import ImportNotes
from hermes.store.import_hermes_agent.routes import SourceRoute
from hermes.store.import_hermes_agent.tables import SESSION_ID, Tables, Values, decode
from hermes.store.maintenance.transfer import (
    FORMAT,
    TOKENS,
    ExportedMessage,
    ExportedSession,
    ExportedUsage,
    token_counts,
)
from hermes.transcript.validate import MAX_DEPTH

MAX_TIME = 253_402_300_799.0  # the end of the year 9999
_MAX_NUMBER = 2**50
_MAX_DEPTH = MAX_DEPTH - 10  # the JSON is stored a few levels deeper
_JSON_PREFIX = "\x00json:"
_SESSION_TEXTS = (
    "id", "source", "user_id", "session_key", "chat_id", "chat_type", "thread_id", "display_name",
    "origin_json", "model", "model_config", "system_prompt", "parent_session_id", "end_reason",
    "cwd", "git_branch", "git_repo_root", "billing_provider", "billing_base_url", "billing_mode",
    "title", "profile_name",
)  # fmt: skip
_SESSION_NUMBERS = (
    "expiry_finalized", "started_at", "ended_at", *TOKENS, "estimated_cost_usd",
    "actual_cost_usd", "api_call_count", "archived",
)  # fmt: skip
_OTHER_TEXTS = ("display_name", "git_branch", "git_repo_root", "billing_base_url", "billing_mode")
_MESSAGE_TEXTS = (
    "role", "content", "tool_call_id", "tool_calls", "tool_name", "effect_disposition",
    "finish_reason", "reasoning", "reasoning_content", "reasoning_details",
    "codex_reasoning_items", "codex_message_items", "platform_message_id", "api_content",
)  # fmt: skip
_MESSAGE_NUMBERS = ("timestamp", "token_count", "observed", "active", "compacted")
_USAGE_TEXTS = ("session_id", "model", "billing_provider", "task")
_USAGE_NUMBERS = ("api_call_count", *TOKENS, "estimated_cost_usd", "actual_cost_usd")
_IN_SESSION = f"WHERE session_id = {SESSION_ID}"


@attrs.frozen
class Converted:
    """A converted session, and how many of its messages could not be converted."""

    session: ExportedSession
    skipped_messages: int


class SessionConverter:
    """Reads and converts sessions; `keys` are the translated session keys by session id."""

    def __init__(
        self,
        tables: Tables,
        routes: Sequence[SourceRoute],
        keys: Mapping[str, str],
        notes: ImportNotes,
    ) -> None:
        self._tables = tables
        self._routes = {route.session_id: route for route in routes}
        self._keys = keys
        self._notes = notes

    def convert(self, planned: PlannedSession) -> Converted:
        """Return a session with its messages and usage."""
        [(_, row)] = self._tables.select(
            "sessions", _SESSION_TEXTS, _SESSION_NUMBERS, "WHERE rowid = ?", planned.rowid
        )
        texts = {n: self._text(row[n], planned.id) for n in _SESSION_TEXTS if n in row}
        started = self._time(row.get("started_at"), planned.id)
        messages, skipped = self._messages(planned, started or 0.0)
        if started is None:
            started = messages[0].timestamp if messages else 0.0
        active = max([started, *(message.timestamp for message in messages)])
        ended_at, end_reason = self._end(planned.id, row, texts.get("end_reason"), active)
        session = ExportedSession(
            format=FORMAT,
            id=planned.id,
            source=texts.get("source") or "unknown",
            kind=planned.kind,
            parent_session_id=planned.parent,
            started_at=started,
            last_active=active,
            title=self._title(planned.id, texts.get("title")),
            model=texts.get("model"),
            user_id=texts.get("user_id"),
            session_key=self._keys.get(planned.id),
            chat_id=texts.get("chat_id"),
            chat_type=texts.get("chat_type"),
            thread_id=texts.get("thread_id"),
            cwd=texts.get("cwd"),
            profile=texts.get("profile_name"),
            ended_at=ended_at,
            end_reason=end_reason,
            archived_at=self._archived_at(planned.id, row, active),
            revision=len(messages),
            rewrites=int(any(not message.live for message in messages)),
            system_prompt=texts.get("system_prompt"),
            model_config=self._config(planned.id, texts),
            messages=messages,
            usage=self._usage(planned, row, texts, messages),
        )
        return Converted(session, skipped)

    def _text(self, value: bytes | None, session_id: str) -> str | None:
        if value is None:
            return None
        try:
            return value.decode()
        except UnicodeDecodeError:
            self._notes.add("not-utf8", session_id)
            return value.decode(errors="replace")

    def _time(self, value: float | None, session_id: str) -> float | None:
        if value is not None and math.isfinite(value) and 0 <= value <= MAX_TIME:
            return float(value)
        self._notes.add("bad-time", session_id)
        return None

    def _end(
        self, session_id: str, row: Values, reason: str | None, active: float
    ) -> tuple[float | None, str | None]:
        ended = row.get("ended_at")
        if ended is not None or reason is not None:
            ended_at = None if ended is None else self._time(ended, session_id)
            return (active if ended_at is None else ended_at), reason or "unknown"
        route = self._routes.get(session_id)
        finalized = None if route is None else route.finalized
        if finalized or (finalized is None and row.get("expiry_finalized")):
            self._notes.add("finalized", session_id)
            return active, "session_reset"
        return None, None

    def _archived_at(self, session_id: str, row: Values, active: float) -> float | None:
        """Return the time of the last activity; hermes-agent does not store that of archiving."""
        if not row.get("archived"):
            return None
        self._notes.add("archived", session_id)
        return active

    def _title(self, session_id: str, title: str | None) -> str | None:
        try:
            return titles.sanitize_title(title)
        except ValueError:
            self._notes.add("title-cut", session_id)
            return titles.sanitize_title((title or "")[: titles.MAX_LENGTH])

    def _config(self, session_id: str, texts: Values) -> JsonObject | None:
        config: JsonObject = {}
        text = texts.get("model_config")
        if text:
            decoded = self._json(text, session_id)
            config = decoded if isinstance(decoded, dict) else {"hermes_agent_text": text}
        other = {name: texts[name] for name in _OTHER_TEXTS if texts.get(name)}
        return {**config, "hermes_agent": other} if other else config or None

    def _json(self, text: str, session_id: str) -> Any:
        """Return the decoded JSON, or None, with a note, if it is invalid."""
        if not codec.is_too_deep(text, _MAX_DEPTH):
            for decode_json in (msgspec.json.decode, _decode_leniently):
                try:
                    return decode_json(text)
                except (ValueError, RecursionError):
                    pass
        self._notes.add("bad-json", session_id)
        return None

    # Messages

    def _messages(
        self, planned: PlannedSession, started: float
    ) -> tuple[tuple[ExportedMessage, ...], int]:
        """Return the messages of a session, and how many are too big."""
        messages: list[ExportedMessage] = []
        too_big = self._tables.too_big("messages", _MESSAGE_TEXTS, _IN_SESSION, planned.rowid)
        if too_big:
            self._notes.add("too-big", planned.id, count=len(too_big))
        order = f"{_IN_SESSION} ORDER BY rowid"
        rows = self._tables.select(
            "messages", _MESSAGE_TEXTS, _MESSAGE_NUMBERS, order, planned.rowid
        )
        for rowid, row in rows:
            if rowid not in too_big:
                previous = messages[-1].timestamp if messages else started
                messages.append(self._message(planned.id, row, len(messages) + 1, previous))
        return tuple(messages), len(too_big)

    def _message(self, session_id: str, row: Values, seq: int, previous: float) -> ExportedMessage:
        texts = {n: self._text(row[n], session_id) for n in _MESSAGE_TEXTS if n in row}
        other: JsonObject = {
            name: texts[name] for name in ("effect_disposition", "api_content") if texts.get(name)
        }
        other.update({name: True for name in ("observed", "compacted") if row.get(name)})
        for name in ("codex_reasoning_items", "codex_message_items"):
            self._keep_json(other, name, texts.get(name), session_id)
        content, parts = self._content(texts.get("content"), session_id)
        reasoning = texts.get("reasoning") or texts.get("reasoning_content")
        if texts.get("reasoning_content") not in {None, "", reasoning}:
            other["reasoning_content"] = texts["reasoning_content"]
        live = row.get("active") is None or bool(row.get("active"))
        return ExportedMessage(
            seq=seq,
            role=texts["role"] or "unknown",
            timestamp=self._timestamp(row.get("timestamp"), session_id, previous),
            content=content,
            platform_message_id=texts.get("platform_message_id") or None,
            live=live,
            compacted=bool(row.get("compacted")) and not live,
            parts=parts,
            tool_calls=self._tool_calls(texts.get("tool_calls"), other, session_id),
            tool_call_id=texts.get("tool_call_id"),
            tool_name=texts.get("tool_name"),
            reasoning=reasoning,
            reasoning_details=self._details(texts.get("reasoning_details"), other, session_id),
            finish_reason=texts.get("finish_reason"),
            token_count=_integer(row.get("token_count")),
            provider_data={"hermes_agent": other} if other else None,
        )

    def _timestamp(self, value: float | None, session_id: str, default: float) -> float:
        timestamp = self._time(value, session_id)
        return default if timestamp is None else timestamp

    def _content(
        self, text: str | None, session_id: str
    ) -> tuple[str | None, tuple[JsonObject, ...] | None]:
        """Return the text of a message, and its parts if it is structured."""
        if text is None or not text.startswith(_JSON_PREFIX):
            return text, None
        decoded = self._json(text.removeprefix(_JSON_PREFIX), session_id)
        if not isinstance(decoded, list | dict):
            return text, None
        parts = tuple(
            part if isinstance(part, dict) else {"type": "text", "text": str(part)}
            for part in (decoded if isinstance(decoded, list) else [decoded])
        )
        return codec.text_of(Message("user", parts=parts)), parts

    def _keep_json(self, other: JsonObject, name: str, text: str | None, session_id: str) -> None:
        """Keep a JSON column that Hermes has no field for; as text if it is invalid."""
        if text:
            decoded = self._json(text, session_id)
            other[name] = text if decoded is None else decoded

    def _tool_calls(
        self, text: str | None, other: JsonObject, session_id: str
    ) -> tuple[ToolCall, ...]:
        """Return the tool calls; keep the original too if they do not say all of it."""
        if not text:
            return ()
        decoded = self._json(text, session_id)
        values = decoded if isinstance(decoded, list) else [decoded]
        calls = [_tool_call(value, number) for number, value in enumerate(values, start=1)]
        valid = [call for call in calls if call is not None]
        if len(valid) < len(calls) or any(not _is_plain_call(value) for value in values):
            other["tool_calls"] = text if decoded is None else decoded
        return tuple(valid)

    def _details(
        self, text: str | None, other: JsonObject, session_id: str
    ) -> tuple[JsonObject, ...]:
        """Return the reasoning details, or keep the original if it is not a list of objects."""
        if not text:
            return ()
        decoded = self._json(text, session_id)
        if isinstance(decoded, list) and all(isinstance(detail, dict) for detail in decoded):
            return tuple(decoded)
        other["reasoning_details"] = text if decoded is None else decoded
        return ()

    # Usage

    def _usage(
        self,
        planned: PlannedSession,
        row: Values,
        texts: Values,
        messages: Sequence[ExportedMessage],
    ) -> tuple[ExportedUsage, ...]:
        """Return usage per model and task, or one total from versions that had no more."""
        if self._tables.has("session_model_usage", "session_id", "model"):
            order = f"{_IN_SESSION} ORDER BY rowid"
            rows = self._tables.select(
                "session_model_usage", _USAGE_TEXTS, _USAGE_NUMBERS, order, planned.rowid
            )
            usage = [self._usage_row(planned.id, used, _usage_texts(used)) for _, used in rows]
            if usage:
                return tuple(usage)
        total = self._usage_row(planned.id, row, texts)
        is_used = any(token_counts(total)) or total.cost
        # Old versions did not count calls, and a session without calls would count as orphaned.
        calls = row.get("api_call_count")
        if calls is None:
            calls = any(message.role == "assistant" for message in messages)
        return (total,) if is_used or calls else ()

    def _usage_row(self, session_id: str, row: Values, texts: Values) -> ExportedUsage:
        cost = row.get("actual_cost_usd") or row.get("estimated_cost_usd") or None
        if cost is not None and not 0 <= cost < _MAX_NUMBER:
            self._notes.add("bad-number", session_id)
            cost = None
        return ExportedUsage(
            purpose=texts.get("task") or "turn",
            model=texts.get("model"),
            provider=texts.get("billing_provider") or None,
            cost=cost,
            **{name: self._amount(row.get(name), session_id) for name in TOKENS},
        )

    def _amount(self, value: float | None, session_id: str) -> int:
        if value is None:
            return 0
        if 0 <= value <= _MAX_NUMBER:
            return int(value)
        self._notes.add("bad-number", session_id)
        return 0


def _decode_leniently(text: str) -> Any:
    """Decode JSON as Python writes it, with lone surrogates and with NaN and Infinity."""
    return msgspec.json.decode(codec.encode_json(json.loads(text)))


def _usage_texts(row: Values) -> Values:
    return {name: decode(row.get(name)) for name in _USAGE_TEXTS}


def _integer(value: float | None) -> int | None:
    return int(value) if value is not None and abs(value) < _MAX_NUMBER else None


def _tool_call(value: object, number: int) -> ToolCall | None:
    """Convert a tool call of the chat completions API; None if it is invalid."""
    if not isinstance(value, dict):
        return None
    function = value.get("function")
    fields = function if isinstance(function, dict) else value
    name, arguments = fields.get("name"), fields.get("arguments")
    if not isinstance(name, str):
        return None
    if not isinstance(arguments, str):
        arguments = "{}" if arguments is None else msgspec.json.encode(arguments).decode()
    call_id = value.get("id") or value.get("call_id")
    return ToolCall(str(call_id or f"call_{number}"), name, arguments)


def _is_plain_call(value: object) -> bool:
    """Return whether a `ToolCall` can represent all fields of the tool call."""
    if not isinstance(value, dict) or set(value) - {"id", "type", "function"}:
        return False
    function = value.get("function")
    return (
        value.get("type", "function") == "function"
        and isinstance(value.get("id"), str)
        and isinstance(function, dict)
        and set(function) <= {"name", "arguments"}
        and isinstance(function.get("arguments"), str)
    )
