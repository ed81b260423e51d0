"""Why a turn has failed, in the codes of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping

from hermes.messages import Reply

FAILED = (500, "server_error")
CODES: Mapping[str, tuple[int, str]] = {
    "OptionRefused": (400, "unsupported_parameter"),
    "RequestRejected": (400, "invalid_prompt"),
    "ContextOverflow": (400, "context_length_exceeded"),
    "BudgetSpent": (429, "budget_exceeded"),
    "RateLimited": (429, "rate_limit_exceeded"),
    "AuthenticationFailed": (502, "server_error"),
    "OutOfQuota": (503, "insufficient_quota"),
    "Unavailable": (503, "server_error"),
    "TimeoutError": (504, "timeout"),
}
"""The status and the code for errors of the model, by `Reply.error_kind`.

No error of a turn is worth a retry: the turn has retried itself, and its message is stored.
"""


MESSAGES: Mapping[str, str] = {
    "ContextOverflow": "The conversation does not fit into the context window of the model.",
    "AuthenticationFailed": "The provider of the model rejected the credentials of this server.",
}
"""What clients are told instead of the error, which is for the operator."""


def code_of(reply: Reply) -> tuple[int, str]:
    """Return the HTTP status and the code for the error of a failed turn."""
    return CODES.get(reply.error_kind or "", FAILED)


def message_of(reply: Reply) -> str:
    """Return why a turn has failed, for a program.

    The text of the reply is for chats: it names commands, which `/v1` does not have.
    """
    told = MESSAGES.get(reply.error_kind or "")
    if told is not None:
        return told
    if reply.reference is not None:
        return f"The turn failed (reference {reply.reference}); the log has the details."
    if reply.error:
        return f"The turn failed: {reply.error.rstrip('.')}."
    return reply.text or "The turn failed."
