"""Fifty secrets enter a bot in every possible way; none of them leaves it in any."""

from __future__ import annotations

import base64
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
import trio

from hermes.agents.tools.mcp_servers import McpServer, open_servers, tools_of
from hermes.agents.tools.toolbox import Toolbox
from hermes.messages import ToolCall
from hermes.redaction import REDACTED, ValueRedactor
from hermes.store import SessionStore
from hermes.testing import ModelAnswer, Refuse, ScriptedAgent, open_model

BOT = Path(__file__).with_name("observed_bot.py")
# As providers make them, with characters that are escaped, and with other letters.
CANARIES = [
    *(f"sk-canary{number:02}-{number * 7919:x}-abcdef" for number in range(20)),
    *(f"Canary{number:02}/+=&?{number * 104729:x}" for number in range(15)),
    *(f"canary {number:02} \"quoted\" & 'Ünï' {number}" for number in range(10)),
    *(f"7{number}12345678:AAcanary{number:02}-{'x' * 26}" for number in range(5)),
]
MODEL_KEY = CANARIES[0]


def encodings(canary):
    """Return the encodings to look for, independently of the redactor."""
    return {
        canary,
        quote(canary),
        quote(canary, safe=""),
        json.dumps(canary)[1:-1],
        json.dumps(canary, ensure_ascii=False)[1:-1],
        json.dumps(json.dumps(canary))[3:-3],
        repr(canary)[1:-1],
        base64.b64encode(canary.encode()).decode().rstrip("=")[:-1],
        canary.encode().hex(),
    }


def found_in(content):
    """Return the numbers of the canaries in this content."""
    text = content if isinstance(content, str) else content.decode(errors="replace")
    return [
        number
        for number, canary in enumerate(CANARIES)
        if any(each in text for each in encodings(canary))
    ]


def test_the_search_for_canaries_finds_them():
    assert len(set(CANARIES)) == 50
    assert found_in(f"x{CANARIES[7]}y".encode()) == [7]
    assert found_in(json.dumps({"a": CANARIES[40]})) == [40]
    assert found_in(quote(CANARIES[25])) == [25]


def call(name):
    return ModelAnswer(calls=[ToolCall(f"call-{name}", name)])


@pytest.mark.parametrize("form", ["text", "json"])
async def test_no_canary_leaves_a_bot(tmp_path, form):
    data, metrics = tmp_path / "chat.db", tmp_path / "hermes.prom"
    tools = ["environment", "urls", "spelled", "broken", "recorded"]
    script = [
        *(each for name in tools for each in (call(name), f"{name} was called")),
        "good bye",
    ]
    faults = [*[None] * (len(script) - 1), Refuse("bad_key")]
    said = [*tools, "a question", "fail", "report", "talk", "/new", "bye"]
    async with open_model(script, faults) as model:
        process = await trio.run_process(
            [sys.executable, str(BOT), str(data), form, str(metrics)],
            stdin="".join(f"{each}\n" for each in said).encode(),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env={
                **os.environ,
                **{f"CANARY_{number}": canary for number, canary in enumerate(CANARIES)},
                "MODEL_URL": model.openai_url,
                "MODEL_KEY": MODEL_KEY,
                "CANARIES": json.dumps(CANARIES),
            },
        )
        prompts = [request.body for request in model.requests]
    log, replies = process.stderr.decode(), process.stdout.decode()
    assert process.returncode == 0, log
    answers = [json.loads(each) for each in replies.splitlines()]
    assert len(answers) == len(said)
    # Everything happened and is reported ...
    assert "(reference" in answers[said.index("fail")]["text"]
    assert f"{REDACTED}" in answers[said.index("report")]["text"]
    talk = answers[said.index("talk")]
    assert f"{REDACTED}" in talk["text"]
    assert talk["streamed"] == talk["text"]
    assert "key" in answers[said.index("a question")]["text"]
    assert log.count("broken") >= 1
    assert log.count("observed_bot.py") >= 3  # tracebacks: of a tool, of an agent, of a hook
    with SessionStore(data) as store:
        store.backup(tmp_path / "copy.db")
        exported = [
            json.dumps(store.export_session(listed.session.id)) for listed in store.list_sessions()
        ]
        assert len(exported) >= 1
    assert "was called" in "".join(exported)
    # ... and no canary is anywhere.
    assert found_in(log) == []
    assert found_in(replies) == []
    assert found_in("".join(exported)) == []
    assert found_in(json.dumps([each.decode() for each in prompts])) == []
    for file in sorted(tmp_path.iterdir()):
        assert (file.name, found_in(file.read_bytes())) == (file.name, [])


async def test_no_canary_is_in_the_files_of_a_bot_that_was_killed(tmp_path):
    data, metrics = tmp_path / "chat.db", tmp_path / "hermes.prom"
    async with open_model([call("environment"), "done"]) as model, trio.open_nursery() as nursery:
        given = {"MODEL_URL": model.openai_url, "MODEL_KEY": MODEL_KEY}
        run = functools.partial(
            trio.run_process,
            [sys.executable, str(BOT), str(data), "json", str(metrics)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            check=False,
            env={**os.environ, **given, "CANARIES": json.dumps(CANARIES)},
        )
        process = await nursery.start(run)
        await process.stdin.send_all(b"environment\n")
        answer = b""
        with trio.fail_after(60):
            while b"\n" not in answer:
                answer += await process.stdout.receive_some()
        process.kill()
    names = {file.name for file in tmp_path.iterdir()}
    assert {"chat.db", "chat.db.status", "hermes.prom"} <= names
    assert b"https://api.example" in (tmp_path / "chat.db.status").read_bytes()
    for file in sorted(tmp_path.iterdir()):
        assert (file.name, found_in(file.read_bytes())) == (file.name, [])


SERVER = """
import os
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("test")

@server.tool()
def echo() -> str:
    return os.environ["KEY"]

@server.tool()
def fail() -> str:
    raise ToolError(os.environ["KEY"])

server.run()
"""


async def test_secrets_in_results_of_an_mcp_server_are_redacted(start, tmp_path):
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    secret = CANARIES[30]
    server = McpServer(
        name="test", command=(sys.executable, str(program)), environment={"KEY": secret}
    )
    results = []
    async with open_servers([server]) as connections:
        with trio.fail_after(60):
            await connections[0].wait_up()
        toolbox = Toolbox(tools_of(connections), redact=ValueRedactor(CANARIES))

        async def use(turn):
            results.append(await toolbox.run(ToolCall("1", "test_echo"), turn))
            results.append(await toolbox.run(ToolCall("2", "test_fail"), turn))

        async with start(build_agent=lambda _: ScriptedAgent([use])) as runtime:
            await runtime.ask("k", "hello")
    echo, failed = results
    assert (echo.content, echo.failed) == (REDACTED, False)
    assert failed.failed
    assert REDACTED in failed.content
    assert found_in(failed.content) == []
