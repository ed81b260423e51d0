"""Requests for chat completions: their parameters, and what of their messages is new."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs

from hermes.adapters.http.errors import ApiError, unsupported
from hermes.adapters.http.openai.tools import chat_options
from hermes.messages import ApprovalDecision, JsonObject, TurnOptions

Handling: TypeAlias = Literal["used", "passed", "ignored", "refused"]
PARAMETERS: Mapping[str, Handling] = {
    "model": "used",
    "messages": "used",
    "stream": "used",
    "stream_options": "used",
    "metadata": "used",
    "user": "used",
    "tools": "used",
    "tool_choice": "used",
    "temperature": "passed",
    "top_p": "passed",
    "presence_penalty": "passed",
    "frequency_penalty": "passed",
    "stop": "passed",
    "seed": "passed",
    "max_tokens": "passed",
    "max_completion_tokens": "passed",
    "parallel_tool_calls": "passed",
    "reasoning_effort": "passed",
    "verbosity": "passed",
    "response_format": "passed",
    "logit_bias": "ignored",
    "prompt_cache_key": "ignored",
    "prompt_cache_options": "ignored",
    "prompt_cache_retention": "ignored",
    "safety_identifier": "ignored",
    "service_tier": "ignored",
    "store": "ignored",
    "audio": "refused",
    "function_call": "refused",
    "functions": "refused",
    "logprobs": "refused",
    "modalities": "refused",
    "moderation": "refused",
    "n": "refused",
    "prediction": "refused",
    "top_logprobs": "refused",
    "web_search_options": "refused",
}
"""What becomes of each parameter: used by Hermes, passed to the model, ignored, or refused.

Parameters that are not listed are ignored: front ends send many of their own.
"""
HARMLESS: Mapping[str, Sequence[object]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "functions": ([],),
}
"""Values of refused parameters that ask for nothing."""
INSTRUCTIONS = frozenset({"system", "developer"})
MAX_MESSAGES = 10_000
_NUMBER = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_ROLES = INSTRUCTIONS | {"user", "assistant", "tool"}


@attrs.frozen
class ChatRequest:
    """What a client asks for."""

    model: str | None
    history: Sequence[JsonObject]
    """The messages before those that are new, without system messages."""
    outputs: Sequence[JsonObject]
    """New results of the client's tools."""
    new: Sequence[JsonObject]
    """New messages of the user."""
    options: TurnOptions
    stream: bool
    include_usage: bool
    conversation: str | None
    """The name in `metadata.conversation`."""
    user: str | None
    decisions: tuple[ApprovalDecision, ...] = ()
    """About calls of the agent's tools, from `metadata.approve` and `metadata.deny`."""


def read_request(body: JsonObject) -> ChatRequest:
    """Return what the body of a request asks for. Raises `ApiError`."""
    _refuse(body)
    messages = _messages(body)
    system = [each for each in messages if each["role"] in INSTRUCTIONS]
    others = [each for each in messages if each["role"] not in INSTRUCTIONS and not _empty(each)]
    history, outputs, new = _split(others)
    instructions = "\n\n".join(filter(None, [text_of(each) for each in system]))
    stream_options = _typed(body, "stream_options", dict) or {}
    metadata = _typed(body, "metadata", dict) or {}
    return ChatRequest(
        model=_typed(body, "model", str),
        history=history,
        outputs=outputs,
        new=new,
        options=chat_options(body, instructions),
        stream=bool(_typed(body, "stream", bool)),
        include_usage=bool(_typed(stream_options, "include_usage", bool)),
        conversation=_typed(metadata, "conversation", str),
        user=_typed(body, "user", str),
        decisions=(*_decisions(metadata, "approve"), *_decisions(metadata, "deny")),
    )


def _decisions(metadata: JsonObject, name: str) -> Iterator[ApprovalDecision]:
    """Yield the decisions of a request: numbers of approvals, separated by commas."""
    for given in (_typed(metadata, name, str) or "").split(","):
        number = given.strip()
        if number and not _NUMBER.fullmatch(number):
            text = f"metadata.{name} must be numbers of approvals, separated by commas."
            raise ApiError(400, text, code="invalid_value", param=f"metadata.{name}")
        if number:
            yield ApprovalDecision(int(number), name == "approve")


def _refuse(body: JsonObject) -> None:
    for name, handling in PARAMETERS.items():
        value = body.get(name)
        if handling == "refused" and value is not None and value not in HARMLESS.get(name, ()):
            raise unsupported(name)


def _typed(fields: JsonObject, name: str, kind: type) -> Any:
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        words = {str: "a string", bool: "true or false", dict: "an object"}
        text = f"{name} must be {words[kind]}."
        raise ApiError(400, text, code="invalid_value", param=name)
    return value


def _messages(body: JsonObject) -> list[JsonObject]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not 0 < len(messages) <= MAX_MESSAGES:
        text = f"messages must be a list of 1 to {MAX_MESSAGES} messages."
        raise ApiError(400, text, code="invalid_value", param="messages")
    for index, message in enumerate(messages):
        param = f"messages[{index}]"
        if not isinstance(message, dict) or str(message.get("role")) not in _ROLES:
            text = f"{param}.role must be one of {', '.join(sorted(_ROLES))}."
            raise ApiError(400, text, code="invalid_value", param=f"{param}.role")
        _check_content(message, param)
    return messages


def _check_content(message: JsonObject, param: str) -> None:
    content, param = message.get("content"), f"{param}.content"
    parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
    if isinstance(content, str) or parts:
        return
    if content is None and message["role"] == "assistant":
        return
    text = f"{param} must be a string or a list of parts."
    raise ApiError(400, text, code="invalid_value", param=param)


def _empty(message: JsonObject) -> bool:
    """Whether an assistant message says nothing: some front ends keep those of failed requests."""
    called = message.get("tool_calls")
    return message["role"] == "assistant" and not called and not text_of(message).strip()


def _split(
    messages: Sequence[JsonObject],
) -> tuple[Sequence[JsonObject], Sequence[JsonObject], Sequence[JsonObject]]:
    """Return the history, the results of tools after it, and the user's messages after those."""
    end = len(messages)
    while end and messages[end - 1]["role"] == "user":
        end -= 1
    first = end
    while first and messages[first - 1]["role"] == "tool":
        first -= 1
    history, outputs, new = messages[:first], messages[first:end], messages[end:]
    if not outputs and not new:
        text = "The last message must be that of a user, or the result of a tool."
        raise ApiError(400, text, code="invalid_value", param="messages")
    return history, outputs, new


def text_of(message: JsonObject) -> str:
    """Return the texts of a message, which may have parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    texts = [part.get("text", part.get("refusal")) for part in content or ()]
    return "\n\n".join(text for text in texts if isinstance(text, str))
