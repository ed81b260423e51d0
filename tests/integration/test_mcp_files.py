"""Files in the results of a real MCP server, which is another process."""

from __future__ import annotations

import base64
import json
import sys

import pytest
import trio
from mcp_types import CallToolResult

from hermes import ToolCall, TurnResult
from hermes.agents.tools.mcp_results import outputs_of_result
from hermes.agents.tools.mcp_servers import McpServer, open_servers, tools_of
from hermes.agents.tools.toolbox import Toolbox

SECONDS = 60
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000002000000030806000000b9eade810000000049454e44ae426082"
)
SENT = "the user gets it with your answer"
SERVER = """
import json, sys

results = json.loads(sys.argv[1])
for message in map(json.loads, sys.stdin):
    if "id" not in message:
        continue
    params = message.get("params") or {}
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        about = {"name": "files", "version": "1"}
        answer["result"] = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": about,
        }
    elif message["method"] == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in results]
        answer["result"] = {"tools": tools}
    elif message["method"] == "tools/call":
        answer["result"] = results[params["name"]]
    else:
        answer["error"] = {"code": -32601, "message": "what?"}
    print(json.dumps(answer), flush=True)
"""


def encoded(data):
    return base64.b64encode(data).decode()


def image(data=PNG, kind="image/png", **more):
    return {"type": "image", "data": encoded(data), "mimeType": kind, **more}


def resource(**fields):
    return {"type": "resource", "resource": {"uri": "file:///tmp/a%20b/r.bin?x=1", **fields}}


def text(words):
    return {"type": "text", "text": words}


@pytest.fixture
def workers():
    """Threads: virtual time does not work with another process."""
    return "threads"


@pytest.fixture
def call(start):
    """Have an agent call a tool of a server that gives this result.

    Returns the reply, the row of the tool, and the content of the files of both.
    """

    async def run(*contents, **more):
        result = json.dumps({"tool": {"content": contents, **more}})
        server = McpServer(name="s", command=[sys.executable, "-c", SERVER, result])

        async def agent(turn):
            ran = await toolbox.run(ToolCall("c", "s_tool", "{}"), turn)
            outcomes.append(ran)
            for part in (*ran.parts, *(file.part for file in ran.files)):
                reader = await turn.open_file(part["file"])
                read[part["file"]] = await reader.read()
            return TurnResult(text="done", files=ran.files)

        outcomes, read = [], {}
        with trio.fail_after(SECONDS):
            async with open_servers([server]) as connections:
                toolbox = Toolbox(tools_of(connections))
                async with start(agent=agent) as runtime:
                    reply = await runtime.ask("k", "go")
        [outcome] = outcomes
        assert reply.files == outcome.files
        model = [(part["media_type"], read[part["file"]]) for part in outcome.parts]
        user = [(file.media_type, read[file.id]) for file in outcome.files]
        return outcome, model, user

    return run


@pytest.mark.parametrize(
    ("annotations", "for_model", "for_user"),
    [
        ({}, 1, 1),
        ({"audience": ["user"]}, 0, 1),
        ({"audience": ["assistant"]}, 1, 0),
        ({"audience": ["user", "assistant"]}, 1, 1),
        ({"audience": []}, 1, 1),
    ],
)
async def test_an_image_is_a_file_for_its_audience(call, annotations, for_model, for_user):
    outcome, model, user = await call(text("look:"), image(annotations=annotations))
    assert (model, user) == (for_model * [("image/png", PNG)], for_user * [("image/png", PNG)])
    assert outcome.content == "look:" + for_user * f"\n[image, 45 bytes: {SENT}]"
    assert not outcome.failed


async def test_embedded_resources_are_files_or_texts_and_links_are_texts(call):
    link = {"type": "resource_link", "name": "the\nlog", "uri": "http://127.0.0.1:9/never/fetched"}
    outcome, model, user = await call(
        resource(blob=encoded(b"%PDF-1.7")), resource(text="some text"), link
    )
    assert model == user == [("application/pdf", b"%PDF-1.7")]
    assert outcome.files[0].name == "r.bin"
    assert outcome.content.splitlines() == [
        "[resource file:///tmp/a%20b/r.bin?x=1]",
        "some text",
        "[link the log: http://127.0.0.1:9/never/fetched]",
        f"[file r.bin, 8 bytes: {SENT}]",
    ]


async def test_a_file_of_another_type_than_declared_is_stored_as_what_it_is(call):
    sound = {"type": "audio", "data": encoded(b"just words"), "mimeType": "audio/wav"}
    outcome, model, _ = await call(sound, image(kind="text/plain"))
    assert model == [("text/plain", b"just words"), ("image/png", PNG)]
    assert outcome.content.startswith("[a file was declared as audio/wav, but it is text/plain]\n")


async def test_what_cannot_be_decoded_is_one_sentence_beside_the_rest(call):
    broken = {"type": "image", "data": "not base64!", "mimeType": "image/png"}
    outcome, model, _ = await call(broken, image(), text("after"))
    assert model == [("image/png", PNG)]
    assert outcome.content.splitlines()[:2] == ["[image: its data is not valid base64]", "after"]


async def test_a_file_that_the_store_refuses_fails_the_call(call):
    outcome, model, user = await call(text("empty:"), image(b""))
    assert (outcome.failed, model, user) == (True, [], [])
    assert outcome.content.endswith("the file is empty")


async def test_a_failed_call_has_its_text_only(call):
    outcome, model, user = await call(text("no luck"), image(), isError=True)
    assert outcome.content == "s_tool failed: ToolRefused: no luck"
    assert (outcome.failed, model, user) == (True, [], [])


def test_the_files_of_a_result_are_limited_before_they_are_decoded():
    result = CallToolResult.model_validate({"content": [image(), image(), image()]})
    texts = [each.text for each in outputs_of_result(result, max_files=2)]
    assert texts == ["", "", "[image: the result has too many files]"]
    found = outputs_of_result(result, max_bytes=2 * len(PNG))
    assert [each.text for each in found[:2]] == ["", ""]
    assert found[2].text == "[image: the files of the result are too large]"
    assert not found[2].files
    huge = image() | {"data": "!" * 1000}  # not even valid
    result = CallToolResult.model_validate({"content": [huge]})
    [output] = outputs_of_result(result, max_bytes=500)
    assert output.text == "[image: the files of the result are too large]"
