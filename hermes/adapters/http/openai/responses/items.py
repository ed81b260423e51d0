"""The output items of a response, from stored rows and from the events of a running turn.

Both ways lead to the same items: a stream ends with what the store has. What a client saw and the
store does not have (a text that was started again, an attempt that a crash ended) stays in the
output at its index, with the status "incomplete". These lost items are recorded with the response.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from hermes.adapters.http.openai.tools import SERVER_LABEL, approval_item
from hermes.messages import (
    JsonObject,
    Reply,
    StoredFile,
    StoredMessage,
    StoredResponse,
    ToolCall,
)

Lost: TypeAlias = Mapping[int, JsonObject]
"""Items that are incomplete for good, by their index in the output."""
PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "mcp_call": "mcp",
}
ANSWERED = frozenset({"complete", "partial", "command"})
CUT = frozenset({"partial", "interrupted", "failed"})


def message_body(text: str, files: Iterable[StoredFile] = ()) -> JsonObject:
    """Return a message of the agent. The files of an answer are annotations of its text."""
    annotations = [
        {
            "type": "file_citation",
            "file_id": file.id,
            "filename": file.name or file.id,
            "index": index,
        }
        for index, file in enumerate(files)
    ]
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": annotations,
                     "logprobs": []}],
    }  # fmt: skip


def reasoning_body(text: str) -> JsonObject:
    """Return the reasoning of the model."""
    return {"type": "reasoning", "summary": [], "content": [_reasoning_part(text)]}


def _reasoning_part(text: str) -> JsonObject:
    return {"type": "reasoning_text", "text": text}


def has_tools(response: StoredResponse) -> bool:
    """Whether the client has said which tools it has, if only none: then it runs function calls."""
    return "tools" in response.echo


def call_bodies(call: ToolCall, output: str, *, mcp: bool = False) -> list[JsonObject]:
    """Return a call of one of the agent's tools, and its output.

    They are a pair of items, or one item of the type "mcp_call" for a client that would run each
    function call that it is shown.
    """
    if mcp:
        fields = {"server_label": SERVER_LABEL, "name": call.name, "arguments": call.arguments}
        about = {"output": output, "error": None, "approval_request_id": None}
        return [{"type": "mcp_call", **fields, **about}]
    return [
        call_body(call),
        {"type": "function_call_output", "call_id": call.id, "output": output},
    ]


def call_body(call: ToolCall) -> JsonObject:
    """Return a call of a tool."""
    return {
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def bodies_of(
    response_id: str, rows: Sequence[StoredMessage], reply: Reply, *, mcp: bool = False
) -> list[JsonObject]:
    """Return the items of a turn that has ended, without ids, from its rows and its reply."""
    bodies: list[JsonObject] = []
    calls: dict[str, ToolCall] = {}
    for row in rows:
        if row.role == "assistant":
            bodies += [reasoning_body(row.reasoning)] if row.reasoning else []
            bodies += [message_body(row.content)] if row.content else []
            calls = {call.id: call for call in row.tool_calls}
        elif row.role == "tool" and row.tool_call_id in calls:
            bodies += call_bodies(calls.pop(row.tool_call_id), row.content or "", mcp=mcp)
    return [*with_answer(bodies, reply), *open_bodies(response_id, reply)]


def open_bodies(response_id: str, reply: Reply) -> list[JsonObject]:
    """Return what the client must do: run its tools, and decide about calls of the agent's."""
    return [
        *(call_body(call) for call in reply.calls),
        *(approval_item(response_id, approval) for approval in reply.approvals),
    ]


def with_answer(bodies: list[JsonObject], reply: Reply) -> list[JsonObject]:
    """Return the items with the answer as all other clients are shown it."""
    last = bodies[-1] if bodies and bodies[-1]["type"] == "message" else None
    if reply.status in ANSWERED and not reply.calls:
        if last is not None:
            bodies = bodies[:-1]
        if reply.text or reply.files:
            bodies = [*bodies, message_body(reply.text, reply.files)]
    if bodies and bodies[-1]["type"] == "message" and reply.status in CUT:
        bodies = [*bodies[:-1], {**bodies[-1], "status": "incomplete"}]
    return bodies


def new_item(response_id: str, index: int, body: JsonObject, status: str) -> JsonObject:
    """Return an item with its id, which the response and the index determine."""
    prefix = PREFIXES.get(body["type"])
    if prefix is None:  # an approval has an id of its own, and no status
        return body
    item_id = f"{prefix}_{response_id.removeprefix('resp_')}_{index}"
    return {"id": item_id, **body, "status": body.get("status", status)}


def text_of(item: JsonObject) -> str:
    """Return the text of a message or of reasoning."""
    content = item.get("content")
    return str(content[0]["text"]) if content else ""


def as_lost(item: JsonObject) -> JsonObject:
    """Return an item as incomplete.

    A message has an empty text then: clients join the texts of all messages to the answer.
    """
    text = {"content": message_body("")["content"]} if item["type"] == "message" else {}
    return {**item, "status": "incomplete", **text}


def output_of(response_id: str, lost: Lost, bodies: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the output of a response: lost items at their index, and the others in order."""
    output: list[JsonObject] = []
    names = CallNames(lost)
    for body in bodies:
        while len(output) in lost:
            output.append(lost[len(output)])
        output.append(new_item(response_id, len(output), names.rename(body), "completed"))
    later = sorted(index for index in lost if index >= len(output))
    return output + [lost[index] for index in later]


class CallNames:
    """Gives each call of a response a `call_id` of its own: clients find outputs by it.

    Models may use an id again in a later message, and an attempt that was lost may have used it.
    """

    def __init__(self, lost: Lost) -> None:
        calls = (item for item in lost.values() if item["type"] == "function_call")
        self._used: dict[str, str] = {item["call_id"]: item["call_id"] for item in calls}
        self._taken = set(self._used)

    def rename(self, body: JsonObject) -> JsonObject:
        """Return the item with the id of its call."""
        call_id = body.get("call_id")
        if call_id is None:
            return body
        if body["type"] == "function_call":
            name, number = call_id, 1
            while name in self._taken:
                number += 1
                name = f"{call_id}_{number}"
            self._taken.add(name)
            self._used[call_id] = name
        return {**body, "call_id": self._used.get(call_id, call_id)}
