"""Hostile MCP servers: endless lists, huge and malformed frames, deep JSON, lies and deaths.

Each call is answered or reported in one sentence, and a sound server beside them is not affected.
"""

from __future__ import annotations

import json
import sys
from functools import partial

import trio

from hermes.agents.tools.mcp_servers import MAX_TOOLS, McpServer, ServerDown, open_servers

SERVER = r"""
import json, os, sys
habits = json.loads(sys.argv[1])
DEEP = "[" * 50000 + "]" * 50000

def raw(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()

def send(request, result):
    raw(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}))

def tools(number, prefix):
    schema = {"type": "object", "properties": {}}
    return [{"name": f"{prefix}{n}", "inputSchema": schema} for n in range(number)]

def disturb(habit, request):
    if habit == "noise":
        raw("\x00\xff not JSON")
    elif habit == "deep":
        raw('{"jsonrpc": "2.0", "method": "x", "params": ' + DEEP + "}")
    elif habit == "wrong id":
        raw(json.dumps({"jsonrpc": "2.0", "id": 10**9, "result": {}}))
    elif habit == "wrong type":
        raw(json.dumps({"jsonrpc": 2, "id": [], "result": 5}))
    elif habit == "empty lines":
        raw("\n" * 1000)
    elif habit == "flood":
        for n in range(2000):
            raw(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress",
                            "params": {"progressToken": n, "progress": -1}}))
    elif habit == "exit":
        os._exit(3)
    elif habit == "silent":
        return True
    elif habit == "bad answer":
        raw('{"jsonrpc": "2.0", "id": %s, "result": %s}' % (json.dumps(request["id"]), DEEP))
        return True

page = 0
for line in sys.stdin:
    request = json.loads(line)
    method = request.get("method")
    if "id" not in request:
        continue
    if disturb(habits.get(method), request):
        continue
    if method == "initialize":
        send(request, {"protocolVersion": request["params"]["protocolVersion"],
                       "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}})
    elif method == "tools/list":
        page += 1
        listing = habits.get("listing")
        if listing == "endless":
            send(request, {"tools": tools(50, f"p{page}_"), "nextCursor": str(page)})
        elif listing == "huge":
            send(request, {"tools": tools(20000, "t"), "nextCursor": None})
        elif listing == "twice":
            send(request, {"tools": tools(5, "t") * 3})
        elif listing == "long":
            send(request, {"tools": [{"name": "n" * 100000, "description": "d" * 1000000,
                                      "inputSchema": {"type": "object"}}]})
        elif listing == "wrong":
            send(request, {"tools": [{"name": 5, "inputSchema": None}]})
        else:
            send(request, {"tools": tools(3, "t")})
    elif method == "tools/call":
        answer = habits.get("answer")
        if answer == "huge":
            send(request, {"content": [{"type": "text", "text": "x" * 5000000}]})
        elif answer == "many":
            send(request, {"content": [{"type": "text", "text": "x"}] * 20000})
        elif answer == "wrong":
            send(request, {"content": [{"type": "magic", "text": 5}]})
        elif answer == "error":
            raw(json.dumps({"jsonrpc": "2.0", "id": request["id"],
                            "error": {"code": "x", "message": None}}))
        else:
            send(request, {"content": [{"type": "text", "text": "sound"}]})
    else:
        send(request, {})
"""
DISTURBANCES = (
    "noise", "deep", "wrong id", "wrong type", "empty lines", "flood", "exit", "silent",
    "bad answer", None, None,
)  # fmt: skip
LISTINGS = ("endless", "huge", "twice", "long", "wrong", None, None, None)
ANSWERS = ("huge", "many", "wrong", "error", None)
HOSTILE = 3
MAX_TEXT = 10_000_000


def habits(dice):
    return {
        "initialize": dice.choice([*DISTURBANCES, None, None, None, None]),
        "tools/list": dice.choice([*DISTURBANCES, None, None, None, None]),
        "tools/call": dice.choice(DISTURBANCES),
        "ping": dice.choice(DISTURBANCES),
        "listing": dice.choice(LISTINGS),
        "answer": dice.choice(ANSWERS),
    }


def server(name, how, seconds):
    return McpServer(
        name=name, command=[sys.executable, "-c", SERVER, json.dumps(how)],
        start_timeout=seconds, call_timeout=seconds, ping_interval=0.3,
    )  # fmt: skip


async def call(connection, found):
    """Call a tool of a server. Returns whether the answer is that of a sound one."""
    name = next(iter(connection.offered), "t0")
    try:
        text, _ = await connection.call(name, {})
    except ServerDown as error:
        if "\n" in str(error) or len(str(error)) > 1000:
            found.append(f"{str(error)[:300]!r} is no sentence")
        return False
    if len(text) > MAX_TEXT:
        found.append(f"an answer of {len(text)} characters")
    return text == "sound"


async def one_round(dice, mutant, found):
    number = 0 if mutant else HOSTILE
    hostile = [server(f"bad{each}", habits(dice), 3.0) for each in range(number)]
    answered = 0
    sound = {"tools/call": "exit"} if mutant == "stops the others" else {}
    with trio.move_on_after(60) as scope:
        async with open_servers([*hostile, server("good", sound, 30.0)]) as servers:
            good = servers[-1]
            async with trio.open_nursery() as nursery:
                for connection in servers[:-1]:
                    nursery.start_soon(call, connection, found)
                for _ in range(5):
                    answered += await call(good, found)
            found += [
                f"{each.server.name} offers {len(each.offered)} tools"
                for each in servers
                if len(each.offered) > MAX_TOOLS
            ]
            if answered != 5 or good.starts != 1:
                found.append(f"{answered} answers and {good.starts} starts of a sound server")
    if scope.cancelled_caught:
        found.append(f"a round has no end: {[each.command[-1] for each in hostile]}")


def attack(path, dice, rounds, mutant):
    """Use hostile servers beside a sound one. Returns how many there were, and the violations."""
    found = []
    for _ in range(rounds):
        trio.run(partial(one_round, dice, mutant, found))
    return rounds * HOSTILE, found
