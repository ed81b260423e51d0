"""The response object of the Responses API."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.adapters.http.openai.turn_errors import code_of, message_of
from hermes.messages import JsonObject, Reply, ReplyStatus, StoredResponse, Usage

STATUSES: dict[ReplyStatus, str] = {
    "complete": "completed",
    "command": "completed",
    "partial": "incomplete",
    "failed": "failed",
    "refused": "failed",
    "interrupted": "cancelled",
    "withdrawn": "cancelled",
}
FINAL_EVENTS = {
    "completed": "response.completed",
    "failed": "response.failed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
}
"""The last event of a stream. There is none for cancelled responses in the API."""
DEFAULTS: JsonObject = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "text": {"format": {"type": "text"}},
    "reasoning": None,
    "truncation": "auto",
    "previous_response_id": None,
    "background": False,
    "service_tier": "default",
    "metadata": {},
    "user": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
}
"""What a response says about parameters that its request did not have."""


def status_of(reply: Reply | None, *, running: bool) -> str:
    """Return the status of a response."""
    if reply is None:
        return "in_progress" if running else "queued"
    return STATUSES[reply.status]


def response_object(
    response: StoredResponse,
    output: Sequence[JsonObject],
    reply: Reply | None = None,
    *,
    running: bool = False,
    ended: float | None = None,
) -> JsonObject:
    """Return a response as a client sees it; `ended` is when its turn was stored."""
    status = status_of(reply, running=running)
    reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
    conversation = response.echo.get("conversation")
    return {
        "id": response.id,
        "object": "response",
        "created_at": int(response.created_at),
        "completed_at": int(ended) if ended is not None and status == "completed" else None,
        "status": status,
        "error": _error(reply) if status == "failed" else None,
        "incomplete_details": reason,
        "output": list(output),
        "usage": None if reply is None else usage_of(reply.usage),
        **DEFAULTS,
        **response.echo,
        "store": response.stored,
        "conversation": None if conversation is None else {"id": conversation},
    }


def _error(reply: Reply | None) -> JsonObject | None:
    if reply is None:
        return None
    _, code = code_of(reply)
    return {"code": code, "message": message_of(reply)}


def usage_of(calls: Sequence[Usage]) -> JsonObject:
    """Return the tokens of all calls of a turn. Cached ones are part of the input, as in OpenAI."""
    read, written = (
        sum(c.cache_read_tokens for c in calls),
        sum(c.cache_write_tokens for c in calls),
    )
    taken = sum(call.input_tokens for call in calls) + read + written
    made = sum(call.output_tokens for call in calls)
    return {
        "input_tokens": taken,
        "input_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": sum(call.reasoning_tokens for call in calls)},
        "total_tokens": taken + made,
    }
