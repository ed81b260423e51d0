"""A model server and an MCP server echo their credentials into every field; none is kept or shown.

The files, the events, the log, the replies and the prompts are searched byte by byte.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from urllib.parse import quote

import msgspec
import pytest
import trio

from hermes import Source
from hermes.agents import Endpoint, Secret, chat_agents, tool
from hermes.agents.tools.mcp_servers import McpServer, open_servers, tools_of
from hermes.redaction import REDACTED, ValueRedactor
from hermes.testing import MemoryAdapter
from hermes.testing.loopback import Response, serve_http
from tests.support.secrets import TOKEN, wrapped

MCP_TOKEN = "mcp_Z9-y8.X7*w6+v5/u4=t3~s2"
PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
FORMS = {
    "plain": str,
    "percent": lambda text: quote(text, safe=""),
    "every octet": lambda text: "".join(f"%{octet:02X}" for octet in text.encode()),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "json": lambda text: "".join(f"\\u{ord(one):04x}" for one in text),
    "markdown": lambda text: PUNCTUATION.sub(r"\\\1", text),
    "wrapped": lambda text: wrapped(text, 9, "\n   "),
    "carriage returns": lambda text: wrapped(text, 9, "\r"),
    "invisible": lambda text: wrapped(text, 9, "\u200e"),
    "table": lambda text: wrapped(text, 9, " |\n| "),
}
SERVER = """
import json, os
from typing import Annotated
from mcp.server import MCPServer
from pydantic import Field

server = MCPServer("test")
forms = json.loads(os.environ["FORMS"])

def echo(number: Annotated[int, Field(description=forms[1])]) -> str:
    return forms[number]

server.add_tool(echo, name="echo", description="Authorized with " + " ".join(forms))
server.add_tool(echo, name=f"get_{forms[0][2:-2]}")
server.run()
"""


def found_in(content):
    """Return the forms of a token in this content, independently of the redactor."""
    text = content if isinstance(content, str) else content.decode(errors="replace")
    # JSON inside of JSON doubles backslashes; a line break is "\n" in it.
    bare = re.sub(r"\\+(?:[nr]|u200e)|[\\\s\u200e]", "", text)
    units = re.sub(r"\\+u00", r"\\u00", text)
    return [
        name
        for token in (TOKEN, MCP_TOKEN)
        for name, form in FORMS.items()
        if form(token) in text
        or json.dumps(form(token))[1:-1] in text
        or re.sub(r"[\\\s\u200e]", "", form(token)) in bare
        or form(token) in units
    ]


@pytest.mark.parametrize("form", FORMS)
def test_the_search_finds_every_form(form):
    text = FORMS[form](TOKEN)
    assert form in found_in(f"x {text} y".encode())
    assert form in found_in(json.dumps({"a": text}))
    assert form in found_in(json.dumps({"a": json.dumps({text: 1})}))


def calls(secret, number):
    """Return the tool calls of an answer: of an MCP server, of nothing, with an approval."""
    return [
        (f"call-{secret}", "test_echo", {"number": number}),
        ("call-2", f"no-{secret}", {secret: [secret]}),
        ("call-3", "pay", {"to": secret}),
        ("call-4", "show_key", {}),
    ]


def openai_events(secret, number, last):
    middle = len(secret) // 2
    for index in ({"index": 0}, {}):  # in two pieces, from a server that numbers and from another
        for half in (secret[:middle], secret[middle:]):
            detail = {"type": "reasoning.text", "text": half, **index}
            yield {"choices": [{"delta": {"reasoning_details": [detail]}}]}
    delta = {
        "content": f"It is {secret} .",
        "reasoning_content": f"so {secret} .",
        "reasoning_details": [{"type": "reasoning.more", "text": secret, secret: [secret]}],
    }
    if not last:
        delta["tool_calls"] = [
            {"index": index, "id": id_, "function": {"name": name, "arguments": json.dumps(given)}}
            for index, (id_, name, given) in enumerate(calls(secret, number))
        ]
    yield {"id": secret, "model": secret, "choices": [{"delta": delta, secret: secret}]}
    yield {"choices": [{"delta": {}, "finish_reason": f"stop {secret} ."}]}


def anthropic_events(secret, number, last):
    blocks = [
        {"type": "thinking", "thinking": f"so {secret} .", "signature": secret},
        {"type": "redacted_thinking", "data": secret, secret: secret},
        {"type": "text", "text": f"It is {secret} ."},
    ]
    if not last:
        blocks += [
            {"type": "tool_use", "id": id_, "name": name, "input": given}
            for id_, name, given in calls(secret, number)
        ]
    yield {"type": "message_start", "message": {"id": secret, "model": secret}}
    for index, block in enumerate(blocks):
        yield {"type": "content_block_start", "index": index, "content_block": block}
    yield {"type": "message_delta", "delta": {"stop_reason": f"end {secret} ."}}


DIALECTS = {"openai": openai_events, "anthropic": anthropic_events}


class EchoingModel:
    """Answers with the token of the request, in the form that the user's message names."""

    def __init__(self, dialect):
        self.dialect = dialect
        self.bodies = []

    async def respond(self, request):
        await trio.lowlevel.checkpoint()
        self.bodies.append(request.body)
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        token = request.headers.get("x-api-key", token)
        assert token == TOKEN
        last = json.loads(request.body)["messages"][-1]
        asked = re.findall(r"(form|fail) (\d+)", request.body.decode())[-1]
        secret = list(FORMS.values())[int(asked[1])](token)
        if asked[0] == "fail":
            # One that is not tried again.
            error = {"type": "authentication_error", "code": "invalid_api_key", secret: secret}
            return self.events(
                [{"type": "error", "error": {**error, "message": f"no: {secret} ."}}]
            )
        done = last["role"] == "tool" or "tool_result" in json.dumps(last)
        return self.events(DIALECTS[self.dialect](secret, int(asked[1]), done))

    def events(self, events):
        data = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events)
        # In small chunks, so that tokens arrive in parts.
        chunks = [data[start : start + 100] for start in range(0, len(data), 100)]
        return Response(headers=[("content-type", "text/event-stream")], chunks=chunks)


@tool(approval=True)
def pay(to: str) -> str:
    """Pay somebody."""
    return to


@tool
def show_key() -> str:
    """Show the environment."""
    return f"KEY={TOKEN}"


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_no_credential_that_a_server_echoes_is_kept_or_shown(
    start, path, tmp_path, caplog, dialect
):
    caplog.set_level("DEBUG", logger="hermes")
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    forms = json.dumps([f"= {form(MCP_TOKEN)} =" for form in FORMS.values()])
    server = McpServer(
        name="test", command=(sys.executable, str(program)), environment={"FORMS": forms}
    )
    redact, adapter = ValueRedactor([TOKEN, MCP_TOKEN]), MemoryAdapter("memory", limit=300)
    model, replies, seen = EchoingModel(dialect), [], []
    with trio.fail_after(120):
        async with serve_http(model.respond) as port, open_servers([server]) as connections:
            await connections[0].wait_up()
            endpoint = Endpoint(
                base_url=f"http://127.0.0.1:{port}", model="m", key=Secret(TOKEN), name="model"
            )
            tools = [*tools_of(connections), pay, show_key]
            async with (
                chat_agents(endpoint, protocol=dialect, tools=tools, redact=redact) as agents,
                start(
                    build_agent=agents.build,
                    agent_spec=agents.agent_spec,
                    adapters=[adapter],
                    redact=redact,
                ) as runtime,
            ):
                with runtime.subscribe() as events:
                    for number, name in enumerate(FORMS):
                        source = Source("memory", chat_id=name)
                        replies += [
                            await runtime.ask(name, f"{said} {number}", source=source)
                            for said in ("form", "fail")
                        ]
                    await runtime.drain()
                    seen = events.take_ready()
    for index, reply in enumerate(replies):
        assert reply.status == ("failed" if index % 2 else "complete"), reply
        assert REDACTED in (reply.text or "")
    kinds = {type(envelope.event).__name__ for envelope in seen}
    assert {"TextDelta", "ReasoningDelta", "AssistantMessage", "ApprovalAsked"} <= kinds
    assert REDACTED in str([row.body for row in adapter.sent])
    shown = {
        "replies": msgspec.json.encode(replies),
        "outbox": msgspec.json.encode([row.body for row in adapter.sent]),
        "log": "".join(f"{record.getMessage()} {record.exc_text}" for record in caplog.records),
        "prompts": b"".join(model.bodies),
        **{f"event {type(each.event).__name__}": msgspec.json.encode(each) for each in seen},
        **{file.name: file.read_bytes() for file in tmp_path.glob(f"{path.name}*")},
    }
    assert REDACTED.encode() in shown[path.name]
    leaks = {name: found for name, content in shown.items() if (found := found_in(content))}
    assert leaks == {}
    deltas = "".join(e.event.text for e in seen if type(e.event).__name__ == "TextDelta")
    assert found_in(deltas) == []


@pytest.mark.parametrize(
    "known", [None, lambda text: text.replace("so", "So")], ids=["no redactor", "another redactor"]
)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_key_of_the_endpoint_is_redacted_in_any_case(start, path, dialect, known):
    """Also if neither the agents nor the runtime get a redactor that knows it."""
    model, replies = EchoingModel(dialect), []
    with trio.fail_after(120):
        async with serve_http(model.respond) as port:
            url, headers = f"http://127.0.0.1:{port}", (("x-other-token", f"Bearer {MCP_TOKEN}"),)
            endpoint = Endpoint(base_url=url, model="m", key=Secret(TOKEN), headers=headers)
            async with (
                chat_agents(
                    endpoint, protocol=dialect, tools=[pay, show_key], redact=known
                ) as agents,
                start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
            ):
                with runtime.subscribe() as events:
                    for number, name in enumerate(FORMS):
                        replies.append(await runtime.ask(name, f"form {number}"))
                    seen = events.take_ready()
    assert f"KEY={REDACTED}" in msgspec.json.encode(seen).decode()
    assert all(REDACTED in (reply.text or "") for reply in replies)
    deltas = "".join(e.event.text for e in seen if type(e.event).__name__ == "TextDelta")
    assert deltas.count(REDACTED) >= len(FORMS)
    shown = [msgspec.json.encode(replies), deltas, *(msgspec.json.encode(each) for each in seen)]
    files = [file.read_bytes() for file in path.parent.glob(f"{path.name}*")]
    assert [found for each in (*shown, *files, *model.bodies) if (found := found_in(each))] == []
