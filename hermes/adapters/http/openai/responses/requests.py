"""Requests of the Responses API: their parameters and input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs
from msgspec.structs import replace

from hermes.adapters.http.endpoints import Call
from hermes.adapters.http.errors import ApiError, unsupported
from hermes.adapters.http.openai.content import Content, read_content
from hermes.adapters.http.openai.models import DEFAULT
from hermes.adapters.http.openai.tools import (
    call_id_of,
    call_of_item,
    decision_of_item,
    responses_options,
    tool_items,
)
from hermes.messages import ApprovalDecision, JsonObject, Message, ToolOutput, TurnOptions

Handling: TypeAlias = Literal["used", "passed", "ignored", "refused"]
PARAMETERS: Mapping[str, Handling] = {
    "model": "used",
    "input": "used",
    "instructions": "used",
    "stream": "used",
    "background": "used",
    "store": "used",
    "conversation": "used",
    "previous_response_id": "used",
    "metadata": "used",
    "tools": "used",
    "tool_choice": "used",
    "temperature": "passed",
    "top_p": "passed",
    "presence_penalty": "passed",
    "frequency_penalty": "passed",
    "max_output_tokens": "passed",
    "parallel_tool_calls": "passed",
    "reasoning": "passed",
    "text": "passed",
    "include": "ignored",
    "prompt_cache_key": "ignored",
    "prompt_cache_options": "ignored",
    "prompt_cache_retention": "ignored",
    "safety_identifier": "ignored",
    "service_tier": "ignored",
    "stream_options": "ignored",
    "truncation": "ignored",
    "user": "ignored",
    "context_management": "refused",
    "max_tool_calls": "refused",
    "moderation": "refused",
    "prompt": "refused",
    "top_logprobs": "refused",
}
"""What becomes of each parameter: used by Hermes, passed to the model, ignored, or refused."""
HARMLESS: Mapping[str, Sequence[object]] = {"top_logprobs": (0,), "max_tool_calls": ()}
"""Values of refused parameters that are accepted: they ask for nothing."""
ECHOED = (
    "instructions", "metadata", "tool_choice", "temperature", "top_p", "presence_penalty",
    "frequency_penalty", "max_output_tokens", "parallel_tool_calls", "reasoning", "text",
    "truncation", "background", "previous_response_id", "service_tier", "user",
    "safety_identifier", "prompt_cache_key",
)  # fmt: skip
SYSTEM = frozenset({"system", "developer"})
MAX_METADATA = 16
MAX_NAME = 64
MAX_VALUE = 512
MAX_ITEMS = 1000


@attrs.frozen(kw_only=True)
class Parameters:
    """A request, without its input."""

    model: str
    stream: bool
    background: bool
    store: bool
    conversation: str | None
    previous: str | None
    """The id of the response before it."""
    body: JsonObject


@attrs.frozen(kw_only=True)
class Input:
    """The input of a request."""

    content: Content | None
    """The message of the user; None if there are only outputs or decisions."""
    history: tuple[Message, ...] = ()
    """The messages before it."""
    instructions: str | None = None
    outputs: tuple[ToolOutput, ...] = ()
    decisions: tuple[ApprovalDecision, ...] = ()


def read_parameters(body: JsonObject) -> Parameters:
    """Check the parameters of a request. Raises `ApiError` for those that are not supported."""
    for name, value in body.items():
        handling = PARAMETERS.get(name)
        if value is None or (handling == "refused" and value in HARMLESS.get(name, ())):
            continue
        if handling is None:
            text = f"Unknown parameter: {name[:100]!r}."
            raise ApiError(400, text, code="unknown_parameter", param=name[:100])
        if handling == "refused":
            raise unsupported(name)
    previous, conversation = body.get("previous_response_id"), body.get("conversation")
    if previous is not None and conversation is not None:
        text = "Pass only one of conversation and previous_response_id."
        raise ApiError(400, text, code="invalid_value", param="conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id", conversation)
    check_metadata(body.get("metadata"))
    if body.get("background") is True and body.get("store") is False:
        raise unsupported(
            "background", "needs store: the result of the turn could not be retrieved"
        )
    return Parameters(
        model=_string(body, "model") or DEFAULT,
        stream=_flag(body, "stream"),
        background=_flag(body, "background"),
        store=_flag(body, "store", default=True),
        conversation=_string({"conversation": conversation}, "conversation"),
        previous=_string(body, "previous_response_id"),
        body=body,
    )


def check_metadata(metadata: object) -> JsonObject:
    """Return metadata: at most 16 strings with names. Raises `ApiError`."""
    if metadata is None:
        return {}
    if isinstance(metadata, dict) and len(metadata) <= MAX_METADATA:
        lengths = [
            (len(name), len(value)) for name, value in metadata.items() if isinstance(value, str)
        ]
        short = all(name <= MAX_NAME and value <= MAX_VALUE for name, value in lengths)
        if short and len(lengths) == len(metadata):
            return metadata
    text = f"metadata must have at most {MAX_METADATA} strings of at most {MAX_VALUE} characters."
    raise ApiError(400, text, code="invalid_value", param="metadata")


def options_of(parameters: Parameters, given: Input) -> TurnOptions:
    """Return what the request asks of its turn. Raises `ApiError`."""
    return responses_options(parameters.body, given.instructions)


def echo_of(parameters: Parameters, options: TurnOptions, conversation: str | None) -> JsonObject:
    """Return the parameters that the response repeats."""
    body = parameters.body
    echo = {name: body[name] for name in ECHOED if body.get(name) is not None}
    echo["model"] = parameters.model
    if body.get("tools") is not None:
        echo["tools"] = tool_items(options.tools)
    if conversation is not None:
        echo["conversation"] = conversation
    return echo


# Input


async def read_input(call: Call, key: str, body: JsonObject, agent: str | None = None) -> Input:
    """Return the input of a request; its files are stored for the conversation `key`.

    Messages of the system are instructions for this turn. `agent` is the one that the request
    names. Raises `ApiError`.
    """
    given, instructions = body.get("input"), _string(body, "instructions")
    if isinstance(given, str):
        return Input(content=Content(given), instructions=instructions)
    if not isinstance(given, list) or not given or len(given) > MAX_ITEMS:
        text = f"input must be a text, or a list of 1 to {MAX_ITEMS} items."
        raise ApiError(400, text, code="invalid_value", param="input")
    reader = _Reader(call, key, [instructions] if instructions else [], agent)
    for index, item in enumerate(given):
        if not isinstance(item, dict):
            raise _invalid(f"input[{index}]", "must be an object")
        await reader.add(item, f"input[{index}]")
    return reader.result()


async def read_messages(call: Call, key: str, items: Sequence[JsonObject]) -> list[Message]:
    """Return items of a history as messages. Raises `ApiError`."""
    reader = _Reader(call, key, [])
    for index, item in enumerate(items):
        await reader.add(item, f"items[{index}]")
    return reader.history()


class _Reader:
    """Reads the items of an input."""

    def __init__(
        self, call: Call, key: str, instructions: list[str], agent: str | None = None
    ) -> None:
        self._call = call
        self._key = key
        self._agent = agent
        self._instructions = instructions
        self._messages: list[tuple[Message, Content | None]] = []
        self._decisions: list[ApprovalDecision] = []

    async def add(self, item: JsonObject, param: str) -> None:
        """Add an item. Raises `ApiError`."""
        kind = item.get("type", "message")
        match kind:
            case "message":
                await self._message(item, param)
            case "function_call":
                call = call_of_item(item, param)
                self._append(Message("assistant", None, tool_calls=(call,)))
            case "function_call_output":
                output = await self._content(item.get("output"), f"{param}.output")
                call_id = call_id_of(item, param=param)
                parts = output.parts or None
                self._append(Message("tool", output.text, tool_call_id=call_id, parts=parts))
            case "mcp_call":  # of the agent's tools, in an earlier response
                call = call_of_item({**item, "call_id": item.get("id")}, param)
                self._append(Message("assistant", None, tool_calls=(call,)))
                text = str(item.get("output") or item.get("error") or "")
                self._append(Message("tool", text, tool_call_id=call.id))
            case "mcp_approval_response":
                self._decisions.append(decision_of_item(item, param))
            case "reasoning" | "mcp_approval_request":
                pass  # of earlier responses: Hermes keeps its own
            case _:
                raise unsupported(param, f"has the type {str(kind)[:50]!r}, which is not supported")

    async def _message(self, item: JsonObject, param: str) -> None:
        role = str(item.get("role"))
        content = await self._content(item.get("content"), f"{param}.content")
        if role in SYSTEM:
            if content.parts:
                raise unsupported(f"{param}.content", "must be a text")
            self._instructions.append(content.text)
        elif role == "user":
            self._append(Message("user", content.text, parts=content.parts or None), content)
        elif role == "assistant":
            if content.text:  # else it was lost, and another one follows
                self._append(Message("assistant", content.text))
        else:
            raise _invalid(f"{param}.role", "must be user, assistant, system or developer")

    async def _content(self, content: object, param: str) -> Content:
        if not isinstance(content, str | list):
            raise _invalid(param, "must be a text or a list of parts")
        if isinstance(content, list) and not all(isinstance(part, dict) for part in content):
            raise _invalid(param, "must be a text or a list of parts")
        return await read_content(self._call, self._key, content, param=param, agent=self._agent)

    def _append(self, message: Message, content: Content | None = None) -> None:
        last = self._messages[-1][0] if self._messages else None
        if message.tool_calls and last is not None and last.role == "assistant":
            calls = (*last.tool_calls, *message.tool_calls)  # they belong to the same answer
            self._messages[-1] = (replace(last, tool_calls=calls), None)
        else:
            self._messages.append((message, content))

    def history(self) -> list[Message]:
        """Return all messages; those of the system as they are."""
        if self._instructions:
            why = "must not have system messages; send them as instructions with each request"
            raise unsupported("items", why)
        if self._decisions:
            raise unsupported("items", "must be messages, calls and outputs")
        messages = [message for message, _ in self._messages]
        names = {call.id: call.name for message in messages for call in message.tool_calls}
        return [_with_name(message, names) for message in messages]

    def result(self) -> Input:
        """Return what was read. Raises `ApiError` if there is nothing to answer."""
        messages = self._messages
        content = messages.pop()[1] if messages and messages[-1][1] is not None else None
        outputs: list[ToolOutput] = []
        while messages and messages[-1][0].role == "tool":
            outputs.append(_output(messages.pop()[0]))
        if content is None and not outputs and not self._decisions:
            raise _invalid("input", "must end with a message of the user, an output or a decision")
        names = {call.id: call.name for message, _ in messages for call in message.tool_calls}
        return Input(
            content=content,
            history=tuple([_with_name(message, names) for message, _ in messages]),
            instructions="\n\n".join(self._instructions) or None,
            outputs=tuple(reversed(outputs)),
            decisions=tuple(self._decisions),
        )


def _with_name(message: Message, names: Mapping[str, str]) -> Message:
    """Return a message; the result of a tool gets its name."""
    if message.role != "tool":
        return message
    return replace(message, tool_name=names.get(message.tool_call_id or ""))


def _output(message: Message) -> ToolOutput:
    return ToolOutput(message.tool_call_id or "", message.content or "", message.parts or ())


def _flag(body: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _invalid(name, "must be true or false")
    return value


def _string(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise _invalid(name, "must be a string")
    return value


def _invalid(param: str, rule: str) -> ApiError:
    return ApiError(400, f"{param} {rule}.", code="invalid_value", param=param)
