"""One session of a home as a session of ours.

What cannot be taken as it is, is mended or left out, and noted; nothing is an error.
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
from hermes.store.import_hermes_agent.plan import Planned
from hermes.store.import_hermes_agent.report import ImportNotes
from hermes.store.import_hermes_agent.routes import ForeignRoute
from hermes.store.import_hermes_agent.tables import THE_SESSION, Tables, Values, plain
from hermes.store.maintenance.transfer import (
    FORMAT,
    TOKENS,
    Exported,
    ExportedMessage,
    ExportedUsage,
)

LATEST = 253_402_300_799.0  # the end of the year 9999
_MOST = 2**50
_MAX_DEPTH = codec.MAX_DEPTH - 10  # it is put a few levels deeper
_STRUCTURED = "\x00json:"
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
_KEPT_ASIDE = ("display_name", "git_branch", "git_repo_root", "billing_base_url", "billing_mode")
_MESSAGE_TEXTS = (
    "role", "content", "tool_call_id", "tool_calls", "tool_name", "effect_disposition",
    "finish_reason", "reasoning", "reasoning_content", "reasoning_details",
    "codex_reasoning_items", "codex_message_items", "platform_message_id", "api_content",
)  # fmt: skip
_MESSAGE_NUMBERS = ("timestamp", "token_count", "observed", "active", "compacted")
_USAGE_TEXTS = ("session_id", "model", "billing_provider", "task")
_USAGE_NUMBERS = ("api_call_count", *TOKENS, "estimated_cost_usd", "actual_cost_usd")


_OF_THE_SESSION = f"WHERE session_id = {THE_SESSION}"


@attrs.frozen
class Read:
    """A session as it is to be here, and how many of its messages cannot be."""

    session: Exported
    left_out: int


class Reader:
    """Reads sessions; `keys` are ours, by session."""

    def __init__(
        self,
        tables: Tables,
        found: Sequence[ForeignRoute],
        keys: Mapping[str, str],
        notes: ImportNotes,
    ) -> None:
        self._tables = tables
        self._route_of = {route.session_id: route for route in found}
        self._keys = keys
        self._notes = notes

    def read(self, planned: Planned) -> Read:
        """The session with its rows and its bill."""
        [(_, row)] = self._tables.select(
            "sessions", _SESSION_TEXTS, _SESSION_NUMBERS, "WHERE rowid = ?", planned.rowid
        )
        texts = {n: self._decoded(row[n], planned.id) for n in _SESSION_TEXTS if n in row}
        started = self._time(row.get("started_at"), planned.id)
        messages, left_out = self._messages(planned, started or 0.0)
        started = _first(started, messages)
        active = max([started, *(message.timestamp for message in messages)])
        ended_at, end_reason = self._end(planned.id, row, texts.get("end_reason"), active)
        session = Exported(
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
            revision=len(messages),
            rewrites=int(any(not message.live for message in messages)),
            system_prompt=texts.get("system_prompt"),
            model_config=self._config(planned.id, row, texts),
            messages=messages,
            usage=self._usage(planned, row, texts, messages),
        )
        return Read(session, left_out)

    def _decoded(self, value: bytes | None, session_id: str) -> str | None:
        if value is None:
            return None
        try:
            return value.decode()
        except UnicodeDecodeError:
            self._notes.add("not-utf8", session_id)
            return value.decode(errors="replace")

    def _time(self, value: float | None, session_id: str) -> float | None:
        if value is not None and math.isfinite(value) and 0 <= value <= LATEST:
            return float(value)
        self._notes.add("bad-time", session_id)
        return None

    def _end(
        self, session_id: str, row: Values, reason: str | None, active: float
    ) -> tuple[float | None, str | None]:
        ended = row.get("ended_at")
        if ended is not None or reason is not None:
            when = None if ended is None else self._time(ended, session_id)
            return (active if when is None else when), reason or "unknown"
        route = self._route_of.get(session_id)
        finalized = None if route is None else route.finalized
        if finalized or (finalized is None and row.get("expiry_finalized")):
            self._notes.add("finalized", session_id)
            return active, "session_reset"
        return None, None

    def _title(self, session_id: str, title: str | None) -> str | None:
        try:
            return titles.sanitize_title(title)
        except ValueError:
            self._notes.add("title-cut", session_id)
            return titles.sanitize_title((title or "")[: titles.MAX_LENGTH])

    def _config(self, session_id: str, row: Values, texts: Values) -> JsonObject | None:
        config: JsonObject = {}
        text = texts.get("model_config")
        if text:
            found = self._json(text, session_id)
            config = found if isinstance(found, dict) else {"hermes_agent_text": text}
        aside = {name: texts[name] for name in _KEPT_ASIDE if texts.get(name)}
        if row.get("archived"):
            aside["archived"] = True
            self._notes.add("archived", session_id)
        return {**config, "hermes_agent": aside} if aside else config or None

    def _json(self, text: str, session_id: str) -> Any:
        """What the JSON says, or None, noted."""
        if not codec.is_deep(text, _MAX_DEPTH):
            for decode in (msgspec.json.decode, _lenient):
                try:
                    return decode(text)
                except (ValueError, RecursionError):
                    pass
        self._notes.add("bad-json", session_id)
        return None

    # Its messages

    def _messages(
        self, planned: Planned, started: float
    ) -> tuple[tuple[ExportedMessage, ...], int]:
        taken: list[ExportedMessage] = []
        platform_ids: set[str] = set()
        big = self._tables.too_big("messages", _MESSAGE_TEXTS, _OF_THE_SESSION, planned.rowid)
        if big:
            self._notes.add("too-big", planned.id, count=len(big))
        order = f"{_OF_THE_SESSION} ORDER BY rowid"
        found = self._tables.select(
            "messages", _MESSAGE_TEXTS, _MESSAGE_NUMBERS, order, planned.rowid
        )
        for rowid, row in found:
            if rowid not in big:
                before = taken[-1].timestamp if taken else started
                message = self._message(planned.id, row, len(taken) + 1, before)
                taken.append(self._once(planned.id, message, platform_ids))
        return tuple(taken), len(big)

    def _once(self, session_id: str, message: ExportedMessage, seen: set[str]) -> ExportedMessage:
        """The message, without a platform's id that another one shows already."""
        platform_id = message.platform_message_id
        if platform_id is None or not message.live:
            return message
        if platform_id in seen:
            self._notes.add("platform-id-twice", session_id, platform_id)
            return msgspec.structs.replace(message, platform_message_id=None)
        seen.add(platform_id)
        return message

    def _message(self, session_id: str, row: Values, seq: int, before: float) -> ExportedMessage:
        texts = {n: self._decoded(row[n], session_id) for n in _MESSAGE_TEXTS if n in row}
        aside: JsonObject = {
            name: texts[name] for name in ("effect_disposition", "api_content") if texts.get(name)
        }
        aside.update({name: True for name in ("observed", "compacted") if row.get(name)})
        for name in ("codex_reasoning_items", "codex_message_items"):
            self._set_aside(aside, name, texts.get(name), session_id)
        content, parts = self._content(texts.get("content"), session_id)
        reasoning = texts.get("reasoning") or texts.get("reasoning_content")
        if texts.get("reasoning_content") not in {None, "", reasoning}:
            aside["reasoning_content"] = texts["reasoning_content"]
        active = row.get("active")
        return ExportedMessage(
            seq=seq,
            role=texts["role"] or "unknown",
            timestamp=self._moment(row.get("timestamp"), session_id, before),
            content=content,
            platform_message_id=texts.get("platform_message_id") or None,
            live=active is None or bool(active),
            parts=parts,
            tool_calls=self._calls(texts.get("tool_calls"), aside, session_id),
            tool_call_id=texts.get("tool_call_id"),
            tool_name=texts.get("tool_name"),
            reasoning=reasoning,
            reasoning_details=self._details(texts.get("reasoning_details"), aside, session_id),
            finish_reason=texts.get("finish_reason"),
            token_count=_whole(row.get("token_count")),
            provider_data={"hermes_agent": aside} if aside else None,
        )

    def _moment(self, value: float | None, session_id: str, before: float) -> float:
        found = self._time(value, session_id)
        return before if found is None else found

    def _content(
        self, text: str | None, session_id: str
    ) -> tuple[str | None, tuple[JsonObject, ...] | None]:
        if text is None or not text.startswith(_STRUCTURED):
            return text, None
        found = self._json(text.removeprefix(_STRUCTURED), session_id)
        if not isinstance(found, list | dict):
            return text, None
        parts = tuple(
            part if isinstance(part, dict) else {"type": "text", "text": str(part)}
            for part in (found if isinstance(found, list) else [found])
        )
        return codec.text_of(Message("user", parts=parts)), parts

    def _set_aside(self, aside: JsonObject, name: str, text: str | None, session_id: str) -> None:
        if text:
            found = self._json(text, session_id)
            aside[name] = text if found is None else found

    def _calls(self, text: str | None, aside: JsonObject, session_id: str) -> tuple[ToolCall, ...]:
        if not text:
            return ()
        found = self._json(text, session_id)
        listed = found if isinstance(found, list) else [found]
        calls = [_call(each, place) for place, each in enumerate(listed, start=1)]
        known = [call for call in calls if call is not None]
        if len(known) < len(calls) or any(not _ordinary(each) for each in listed):
            aside["tool_calls"] = text if found is None else found
        return tuple(known)

    def _details(
        self, text: str | None, aside: JsonObject, session_id: str
    ) -> tuple[JsonObject, ...]:
        if not text:
            return ()
        found = self._json(text, session_id)
        if isinstance(found, list) and all(isinstance(each, dict) for each in found):
            return tuple(found)
        aside["reasoning_details"] = text if found is None else found
        return ()

    # Its bill

    def _usage(
        self, planned: Planned, row: Values, texts: Values, messages: Sequence[ExportedMessage]
    ) -> tuple[ExportedUsage, ...]:
        if self._tables.has("session_model_usage", "session_id", "model"):
            order = f"{_OF_THE_SESSION} ORDER BY rowid"
            found = self._tables.select(
                "session_model_usage", _USAGE_TEXTS, _USAGE_NUMBERS, order, planned.rowid
            )
            calls = [self._bill(planned.id, each, _decoded(each)) for _, each in found]
            if calls:
                return tuple(calls)
        whole = self._bill(planned.id, row, texts)
        spent = any(getattr(whole, name) for name in TOKENS) or whole.cost
        # Old versions did not count calls; but a session without any would pass for abandoned.
        calls_made = row.get("api_call_count")
        if calls_made is None:
            calls_made = any(message.role == "assistant" for message in messages)
        return (whole,) if spent or calls_made else ()

    def _bill(self, session_id: str, row: Values, texts: Values) -> ExportedUsage:
        cost = row.get("actual_cost_usd") or row.get("estimated_cost_usd") or None
        if cost is not None and not 0 <= cost < _MOST:
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
        if 0 <= value <= _MOST:
            return int(value)
        self._notes.add("bad-number", session_id)
        return 0


def _lenient(text: str) -> Any:
    """JSON as Python writes it, with halves of characters and with numbers that are none."""
    return msgspec.json.decode(codec.encode_whole(json.loads(text)))


def _decoded(row: Values) -> Values:
    return {name: plain(row.get(name)) for name in _USAGE_TEXTS}


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and abs(value) < _MOST else None


def _first(started: float | None, messages: Sequence[ExportedMessage]) -> float:
    return started if started is not None else messages[0].timestamp if messages else 0.0


def _call(value: object, place: int) -> ToolCall | None:
    """A tool call in the form of the chat completions API."""
    if not isinstance(value, dict):
        return None
    function = value.get("function")
    named = function if isinstance(function, dict) else value
    name, arguments = named.get("name"), named.get("arguments")
    if not isinstance(name, str):
        return None
    if not isinstance(arguments, str):
        arguments = "{}" if arguments is None else msgspec.json.encode(arguments).decode()
    call_id = value.get("id") or value.get("call_id")
    return ToolCall(str(call_id or f"call_{place}"), name, arguments)


def _ordinary(value: object) -> bool:
    """Whether a `ToolCall` says all of it."""
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
