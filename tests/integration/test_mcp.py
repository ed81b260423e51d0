"""Real MCP servers in other processes, over stdio and over HTTP."""

from __future__ import annotations

import functools
import socket
import sys
from itertools import pairwise
from subprocess import DEVNULL

import pytest
import trio

from hermes.agents.tools.mcp_servers import McpServer, ServerDown, open_servers, tools_of
from hermes.agents.tools.toolbox import Toolbox
from hermes.messages import ToolCall

SECONDS = 60
SERVER = """
import os, sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("test", log_level="ERROR")

@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

@server.tool()
def fail() -> str:
    raise ValueError("no luck")

@server.tool()
def die() -> str:
    os._exit(3)

if len(sys.argv) > 1:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    server.run()
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    return [sys.executable, str(path)]


async def test_a_server_over_stdio_offers_tools_and_answers(program):
    with trio.fail_after(SECONDS):
        async with open_servers([McpServer(name="test", command=program)]) as [server]:
            assert sorted(server.offered) == ["add", "die", "fail"]
            assert server.offered["add"].description == "Add two numbers."
            assert await server.call("add", {"a": 1, "b": 2}) == ("3", False)


async def test_an_error_of_a_tool_is_returned_and_the_server_continues(program):
    with trio.fail_after(SECONDS):
        async with open_servers([McpServer(name="test", command=program)]) as [server]:
            text, failed = await server.call("fail", {})
            assert (failed, "fail" in text) == (True, True)
            text, failed = await server.call("add", {"a": "x"})
            assert failed
            text, failed = await server.call("nobody", {})
            assert failed
            assert await server.call("add", {"a": 1, "b": 2}) == ("3", False)
            assert server.starts == 1


async def test_a_server_that_dies_is_reported_and_started_again(program, caplog):
    with trio.fail_after(SECONDS):
        async with open_servers([McpServer(name="test", command=program)]) as [server]:
            with pytest.raises(ServerDown, match="MCP server test is not running: it has ended"):
                await server.call("die", {})
            with pytest.raises(ServerDown, match="being restarted"):
                await server.call("add", {"a": 1, "b": 2})
            await server.wait_up()
            assert await server.call("add", {"a": 1, "b": 2}) == ("3", False)
            assert server.starts == 2
    assert any("MCP server test" in record.message for record in caplog.records)


async def test_a_server_that_cannot_be_started_does_not_affect_others(program):
    absent = McpServer(name="absent", command=["/nonexistent/program"])
    with trio.fail_after(SECONDS):
        async with open_servers([absent, McpServer(name="test", command=program)]) as servers:
            assert servers[0].problem == "it cannot be started: the program was not found"
            with pytest.raises(ServerDown, match="absent"):
                await servers[0].call("add", {})
            assert await servers[1].call("add", {"a": 1, "b": 2}) == ("3", False)


async def test_the_problem_of_a_server_is_one_line():
    class Wordy(McpServer):
        def client(self, errors):
            raise ValueError("2 errors\ntools.0: wrong\n" + "x" * 1000)

    async with open_servers([Wordy(name="wordy", command=["wordy"])]) as [server]:
        assert "\n" not in server.problem
        assert len(server.problem) <= 300
        with pytest.raises(ServerDown, match=r"2 errors tools\.0: wrong"):
            await server.call("add", {})


async def test_a_server_that_never_starts_is_tried_with_growing_delays(autojump_clock):
    starts = []

    class Absent(McpServer):
        def client(self, errors):
            starts.append(trio.current_time())
            raise OSError("not there")

    async with open_servers([Absent(name="absent", command=["absent"])]) as [server]:
        await trio.sleep(100)
        assert "not there" in server.problem
    delays = [after - before for before, after in pairwise(starts)]
    assert delays == pytest.approx([0.5, 1, 2, 4, 8, 16, 30, 30])


async def test_a_server_that_was_stable_is_restarted_without_the_delay_of_earlier_failures(
    autojump_clock,
):
    starts = []

    class Page:
        tools = ()
        next_cursor = None

    class Client:
        """Connects from the fourth start on, and then responds for two minutes."""

        async def __aenter__(self):
            starts.append(trio.current_time())
            if len(starts) <= 3:
                raise OSError("not there")
            return self

        async def __aexit__(self, *error):
            return False

        async def list_tools(self, **options):
            await trio.lowlevel.checkpoint()
            if trio.current_time() - starts[-1] > 120:
                raise OSError("gone")
            return Page

    class Flaky(McpServer):
        def client(self, errors):
            return Client()

    async with open_servers([Flaky(name="flaky", command=["flaky"])]):
        await trio.sleep(140)
    delays = [after - before for before, after in pairwise(starts)]
    assert delays == pytest.approx([0.5, 1, 2, 130.5])


async def test_a_server_over_http_answers(program):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}/mcp"
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            serve = functools.partial(trio.run_process, stdout=DEVNULL, stderr=DEVNULL)
            nursery.start_soon(serve, [*program, str(port)])
            async with open_servers([McpServer(name="test", url=url)]) as [server]:
                await server.wait_up()
                assert await server.call("add", {"a": 1, "b": 2}) == ("3", False)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("workers", ["threads"], indirect=True)
async def test_an_agent_uses_the_tools_of_a_server_and_outlives_it(program, start):
    """The agent runs the tool call in the message, and replies with the outcome."""

    async def reply(turn):
        name, arguments = turn.text.split(" ", 1)
        ran = await toolbox.run(ToolCall("1", name, arguments), turn)
        return f"{ran.failed}: {ran.content}"

    with trio.fail_after(SECONDS):
        async with open_servers([McpServer(name="my server", command=program)]) as servers:
            toolbox = Toolbox(tools_of(servers))
            names = [schema["name"] for schema in toolbox.schemas]
            assert names == ["my_server_add", "my_server_die", "my_server_fail"]
            assert toolbox.schemas[0]["parameters"]["required"] == ["a", "b"]
            async with start(agent=reply) as runtime:
                said = [
                    (await runtime.ask("k", text)).text
                    for text in (
                        'my_server_add {"a": 1, "b": 2}',
                        "my_server_fail {}",
                        "my_server_add no JSON",
                        "my_server_die {}",
                        'my_server_add {"a": 1, "b": 2}',
                    )
                ]
                await servers[0].wait_up()
                again = await runtime.ask("k", 'my_server_add {"a": 3, "b": 4}')
    assert said[0] == "False: 3"
    assert [text.startswith("True: ") for text in said[1:]] == [True] * 4
    assert "being restarted" in said[4]
    assert again.text == "False: 7"


PAGES = """
import json, sys

for message in map(json.loads, sys.stdin):
    if "id" not in message:
        continue
    params = message.get("params") or {}
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        version = params["protocolVersion"]
        about = {"name": "pages", "version": "1"}
        capable = {"tools": {}}
        result = {"protocolVersion": version, "capabilities": capable, "serverInfo": about}
        answer["result"] = result
    elif message["method"] == "tools/list":
        page = int(params.get("cursor") or 0)
        names = [["look.at", "look_at"], ["x" * 70, "x" * 80], ["last"]][page]
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
        more = {"nextCursor": str(page + 1)} if page < 2 else {}
        answer["result"] = {"tools": tools, **more}
    elif message["method"] == "tools/call":
        answer["result"] = {"content": [{"type": "text", "text": params["name"]}]}
    else:
        answer["error"] = {"code": -32601, "message": "what?"}
    print(json.dumps(answer), flush=True)
"""


async def test_all_pages_of_a_server_are_offered_and_each_tool_has_its_own_name():
    with trio.fail_after(SECONDS):
        server = McpServer(name="s", command=[sys.executable, "-c", PAGES])
        async with open_servers([server]) as [connection]:
            tools = tools_of([connection])
            called = {each.name: await each.function() for each in tools}
    assert called == {
        "s_last": "last",
        "s_look_at": "look.at",
        "s_look_at_2": "look_at",
        "s_" + "x" * 62: "x" * 70,
        "s_" + "x" * 60 + "_2": "x" * 80,
    }
    assert len(Toolbox(tools).schemas) == len(tools)


@pytest.mark.parametrize(
    ("names", "pages", "used"),
    [
        ('[f"{page}-{n}" for n in range(400)]', 10**9, 1000),
        ('["same"]', 10**9, 1),
        ("[str(n) for n in range(5000)]", 1, 1000),
        ('[f"{page}-{n}" for n in range(500)]', 2, 1000),
    ],
    ids=["endless", "the same page for ever", "one large page", "just within the limit"],
)
async def test_the_tools_and_pages_of_a_server_are_bounded(caplog, names, pages, used):
    program = PAGES.replace(
        '[["look.at", "look_at"], ["x" * 70, "x" * 80], ["last"]][page]', names
    ).replace("page < 2", f"page < {pages - 1}")
    with trio.fail_after(SECONDS):
        server = McpServer(name="s", command=[sys.executable, "-c", program])
        async with open_servers([server]) as [connection]:
            assert len(connection.offered) == used
    assert ("too many tools" in caplog.text) == (pages != 2)


def test_a_server_does_not_show_the_keys_it_is_given():
    by_command = McpServer(name="s", command=["serve"], environment={"TOKEN": "opensesame"})
    by_url = McpServer(name="s", url="https://example.org/mcp?key=opensesame")
    assert "opensesame" not in f"{by_command!r} {by_url!r}"


def test_a_server_needs_a_command_or_a_url():
    with pytest.raises(ValueError, match="either a command or a url"):
        McpServer(name="test")


async def test_the_errors_of_a_server_go_to_the_log_and_explain_why_it_has_ended(caplog, capfd):
    caplog.set_level("INFO", "hermes")
    command = [sys.executable, "-c", "import sys; sys.stderr.write('hello\\n'); import nowhere"]
    with trio.fail_after(60):
        async with open_servers([McpServer(name="broken", command=command)]) as (server,):
            said = "ModuleNotFoundError: No module named 'nowhere'"
            assert server.problem == f"it has ended (exit status 1): {said}"
    logged = [record.getMessage() for record in caplog.records]
    assert "MCP server broken: hello" in logged
    ended = f"MCP server broken has ended (exit status 1): {said}; Hermes tries again in 0.5 s."
    assert ended in logged
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("echo oh no >&2; exit 3", "it has ended (exit status 3): oh no"),
        ("printf 'no newline' >&2; exit 0", "it has ended (exit status 0): no newline"),
        ("kill -9 $$", "it has ended (signal SIGKILL)"),
    ],
)
async def test_the_problem_of_a_command_has_its_exit_status_and_its_last_line(command, problem):
    server = McpServer(name="s", command=["/bin/sh", "-c", command])
    with trio.fail_after(SECONDS):
        async with open_servers([server]) as [connection]:
            assert connection.problem == problem


async def test_the_problem_of_a_url_names_the_host_and_no_secret():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # not listening, and nobody else can take it
        host = f"127.0.0.1:{unused.getsockname()[1]}"
        server = McpServer(name="s", url=f"http://me:opensesame@{host}/mcp?key=opensesame")
        with trio.fail_after(SECONDS):
            async with open_servers([server]) as [connection]:
                assert connection.problem == f"it cannot be reached at {host}: connection refused"


async def test_a_problem_is_one_warning_until_it_changes(autojump_clock, caplog):
    caplog.set_level("INFO", "hermes")
    problems = [*3 * [OSError(111, "Connection refused")], *2 * [OSError(113, "No route to host")]]

    class Absent(McpServer):
        def client(self, errors):
            raise problems.pop(0) if problems else RuntimeError("secret")

    async with open_servers([Absent(name="s", url="http://tools.example/mcp")]):
        await trio.sleep(60)
    logged = [(each.levelname, each.getMessage()) for each in caplog.records]
    start = "MCP server s cannot be reached at tools.example: "
    assert logged[:6] == [
        ("WARNING", f"{start}connection refused; Hermes tries again in 0.5 s."),
        ("INFO", f"{start}connection refused; Hermes tries again in 1 s."),
        ("INFO", f"{start}connection refused; Hermes tries again in 2 s."),
        ("WARNING", f"{start}no route to host; Hermes tries again in 4 s."),
        ("INFO", f"{start}no route to host; Hermes tries again in 8 s."),
        ("WARNING", "MCP server s has failed: RuntimeError; Hermes tries again in 16 s."),
    ]
    assert "secret" not in caplog.text
