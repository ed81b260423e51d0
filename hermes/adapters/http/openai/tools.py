"""Tools, sampling and approvals in OpenAI's formats, and as Hermes stores them. Pure functions.

`responses_options` and `chat_options` read what a request asks for. The other functions read what
a client returns (outputs of its tools, decisions), and write calls and questions as items.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hermes.adapters.http.errors import ApiError, unsupported
from hermes.messages import Approval, ApprovalDecision, JsonObject, ToolCall, TurnOptions

MAX_TOOLS = 128
MAX_STOPS = 4
SERVER_LABEL = "hermes"
"""The `server_label` of approval requests: the tools of the agent."""
CHOICES = frozenset({"auto", "none", "required"})
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_APPROVAL = re.compile(r"mcpr_([0-9a-f]{32})_([1-9][0-9]{0,17})")
_RESPONSE = "resp_"


# What a request asks for


def responses_options(body: Mapping[str, Any], instructions: str | None = None) -> TurnOptions:
    """Return what a request of the Responses API asks of its turn.

    `body` is the decoded request; names that are missing or null are not set. `instructions` are
    those of the body, with the system messages of its input. Raises `ApiError`.
    """
    tools = responses_tools(body.get("tools"))
    text, reasoning = _object(body, "text"), _object(body, "reasoning")
    sampling = {
        **_sampling(body, ("temperature", "top_p", "presence_penalty", "frequency_penalty")),
        **_sampling({"reasoning_effort": reasoning.get("effort")}, ("reasoning_effort",)),
        **_sampling(text, ("verbosity",)),
        **_format(text.get("format"), "text.format", nested=False),
    }
    return TurnOptions(
        instructions=instructions or None,
        tools=tools,
        tool_choice=read_choice(body.get("tool_choice")),
        parallel_tool_calls=_boolean(body, "parallel_tool_calls"),
        sampling=sampling,
        max_output_tokens=_limit(body, "max_output_tokens"),
    )


def chat_options(body: Mapping[str, Any], instructions: str | None = None) -> TurnOptions:
    """Return what a chat completion asks of its turn; `instructions` are its system messages.

    Raises `ApiError`.
    """
    if body.get("functions") or body.get("function_call"):
        raise unsupported("functions", "is not supported; use tools")
    limit = _limit(body, "max_completion_tokens")
    return TurnOptions(
        instructions=instructions or None,
        tools=chat_tools(body.get("tools")),
        tool_choice=read_choice(body.get("tool_choice")),
        parallel_tool_calls=_boolean(body, "parallel_tool_calls"),
        sampling={
            **_sampling(body, tuple(_CHECKS)),
            **_format(body.get("response_format"), "response_format", nested=True),
        },
        max_output_tokens=_limit(body, "max_tokens") if limit is None else limit,
    )


def responses_tools(tools: object) -> tuple[JsonObject, ...]:
    """Return the tools of a request of the Responses API. Raises `ApiError`.

    An MCP server with our label stands for the tools of the agent: openai-agents answers approval
    requests only of servers that it knows. The agent has them in any case.
    """
    if isinstance(tools, list):
        tools = [tool for tool in tools if not _is_own_server(tool)]
    return _tools(tools, lambda tool: tool)


def _is_own_server(tool: object) -> bool:
    if not isinstance(tool, dict):
        return False
    return (tool.get("type"), tool.get("server_label")) == ("mcp", SERVER_LABEL)


def chat_tools(tools: object) -> tuple[JsonObject, ...]:
    """Return the tools of a chat completion, which are nested. Raises `ApiError`."""
    return _tools(tools, lambda tool: tool.get("function"))


def _tools(tools: object, definition: Callable[[JsonObject], object]) -> tuple[JsonObject, ...]:
    if tools is None:
        return ()
    if not isinstance(tools, list | tuple) or len(tools) > MAX_TOOLS:
        raise _invalid("tools", f"must be a list of at most {MAX_TOOLS} tools")
    read = []
    for index, tool in enumerate(tools):
        param = f"tools[{index}]"
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind != "function":
            shown = str(kind)[:50]
            raise unsupported(param, f"has the type {shown!r}; only functions are supported")
        read.append(_tool(definition(tool), param))
    names = [tool["name"] for tool in read]
    if len(set(names)) < len(names):
        raise _invalid("tools", "must have different names")
    return tuple(read)


def _tool(definition: object, param: str) -> JsonObject:
    """Return a function as `TurnOptions.tools` has it."""
    if not isinstance(definition, dict):
        raise _invalid(param, "must be the definition of a function")
    name, schema = definition.get("name"), definition.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _invalid(f"{param}.name", "must have 1 to 64 letters, digits, '_' or '-'")
    if schema is not None and not isinstance(schema, dict):
        raise _invalid(f"{param}.parameters", "must be a JSON schema")
    description, strict = definition.get("description"), definition.get("strict")
    tool: JsonObject = {
        "name": name,
        "description": description if isinstance(description, str) else "",
        "parameters": schema or {"type": "object", "properties": {}},
    }
    return {**tool, "strict": strict} if isinstance(strict, bool) else tool


def read_choice(choice: object) -> str | JsonObject | None:
    """Return a `tool_choice`: "auto", "none", "required", `{"name": …}`, or None.

    Both APIs name a function in their own way. Raises `ApiError`.
    """
    if choice is None or (isinstance(choice, str) and choice in CHOICES):
        return choice
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function")
        named = function if isinstance(function, dict) else choice
        if isinstance(named.get("name"), str):
            return {"name": named["name"]}
    kind = choice.get("type") if isinstance(choice, dict) else choice
    raise unsupported("tool_choice", f"{str(kind)[:50]!r} is not supported")


def _format(value: object, param: str, *, nested: bool) -> JsonObject:
    """Return a format of the answer by its name in chat completions; nothing for plain text."""
    if value is None:
        return {}
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if kind != "json_schema" or not isinstance(value, dict):
        raise unsupported(param, f"{str(kind)[:50]!r} is not supported")
    given = value.get("json_schema") if nested else value
    given = given if isinstance(given, dict) else {}
    if not isinstance(given.get("name"), str) or not isinstance(given.get("schema"), dict):
        raise _invalid(param, "needs a name and a schema")
    names = ("name", "description", "schema", "strict")
    schema = {name: given[name] for name in names if given.get(name) is not None}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _number(low: float, high: float) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and low <= value <= high  # type: ignore[operator]

    return check


def _are_stops(value: object) -> bool:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list | tuple) or len(stops) > MAX_STOPS:
        return False
    return all(isinstance(stop, str) and stop for stop in stops)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isalpha()


_CHECKS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "temperature": (_number(0, 2), "must be a number from 0 to 2"),
    "top_p": (_number(0, 1), "must be a number from 0 to 1"),
    "presence_penalty": (_number(-2, 2), "must be a number from -2 to 2"),
    "frequency_penalty": (_number(-2, 2), "must be a number from -2 to 2"),
    "stop": (_are_stops, f"must be a string, or a list of at most {MAX_STOPS} strings"),
    "seed": (_is_integer, "must be an integer"),
    "reasoning_effort": (_is_word, 'must be a word, such as "low"'),
    "verbosity": (_is_word, 'must be a word, such as "low"'),
}
"""How each sampling setting is checked, and what it must be."""


def _sampling(given: Mapping[str, Any], names: Sequence[str]) -> JsonObject:
    """Return the sampling settings that are set, by their names in chat completions."""
    settings = {name: given[name] for name in names if given.get(name) is not None}
    for name, value in settings.items():
        check, rule = _CHECKS[name]
        if not check(value):
            raise _invalid(name, rule)
    return settings


def _object(body: Mapping[str, Any], name: str) -> JsonObject:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _invalid(name, "must be an object")
    return value


def _boolean(body: Mapping[str, Any], name: str) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise _invalid(name, "must be true or false")
    return value


def _limit(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not _is_integer(value) or value < 1:
        raise _invalid(name, "must be a positive integer")
    return int(value)


def _invalid(param: str, rule: str) -> ApiError:
    return ApiError(400, f"{param} {rule}.", code="invalid_value", param=param)


# What a client returns


def call_of_item(item: Mapping[str, Any], param: str = "input") -> ToolCall:
    """Return a `function_call` item of the input, for a history. Raises `ApiError`."""
    return _call(item.get("call_id"), item.get("name"), item.get("arguments"), param)


def calls_of_message(message: Mapping[str, Any], param: str = "messages") -> tuple[ToolCall, ...]:
    """Return the `tool_calls` of an assistant message, for a history. Raises `ApiError`."""
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, list | tuple):
        raise _invalid(f"{param}.tool_calls", "must be a list")
    read = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise _invalid(f"{param}.tool_calls", "must be calls of functions")
        read.append(_call(call.get("id"), function.get("name"), function.get("arguments"), param))
    return tuple(read)


def _call(call_id: object, name: object, arguments: object, param: str) -> ToolCall:
    if not (isinstance(call_id, str) and isinstance(name, str) and isinstance(arguments, str)):
        raise _invalid(param, "has a call without an id, a name or arguments")
    return ToolCall(call_id, name, arguments)


def call_id_of(item: Mapping[str, Any], name: str = "call_id", param: str = "input") -> str:
    """Return the id of the call that an output belongs to.

    `name` is "call_id" for a `function_call_output` item and "tool_call_id" for a message with the
    role "tool". Raises `ApiError`.
    """
    call_id = item.get(name)
    if not isinstance(call_id, str) or not call_id:
        raise _invalid(f"{param}.{name}", "must be the id of a call")
    return call_id


def decision_of_item(item: Mapping[str, Any], param: str = "input") -> ApprovalDecision:
    """Return an `mcp_approval_response` item as a decision. Raises `ApiError`."""
    found = _APPROVAL.fullmatch(str(item.get("approval_request_id")))
    approve, reason = item.get("approve"), item.get("reason")
    if found is None:
        text = "There is no approval request with this id."
        raise ApiError(400, text, code="approval_not_found", param=f"{param}.approval_request_id")
    if not isinstance(approve, bool):
        raise _invalid(f"{param}.approve", "must be true or false")
    return ApprovalDecision(int(found[2]), approve, reason if isinstance(reason, str) else None)


# Calls and questions as items


def function_call_item(item_id: str, call: ToolCall, status: str = "completed") -> JsonObject:
    """Return a call as an output item of a response."""
    return {
        "type": "function_call", "id": item_id, "call_id": call.id, "name": call.name,
        "arguments": call.arguments, "status": status,
    }  # fmt: skip


def chat_tool_calls(calls: Sequence[ToolCall]) -> list[JsonObject]:
    """Return calls as the `tool_calls` of a message; a streamed delta also has their `index`."""
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]


def approval_item(response_id: str, approval: Approval) -> JsonObject:
    """Return the question whether a tool may be called, as an output item of a response."""
    return {
        "type": "mcp_approval_request",
        "id": f"mcpr_{response_id.removeprefix(_RESPONSE)}_{approval.approval_id}",
        "server_label": SERVER_LABEL,
        "name": approval.tool,
        "arguments": approval.arguments,
    }


def tool_items(tools: Sequence[JsonObject]) -> list[JsonObject]:
    """Return tools as a response of the Responses API repeats them."""
    return [{"type": "function", "strict": None, **tool} for tool in tools]
