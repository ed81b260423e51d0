"""Hostile models: streams of broken events, huge fields and lying counts, for both protocols.

Everybody gets an answer or one sentence, and everything that was said is in the transcript.
"""

from __future__ import annotations

import json
from copy import deepcopy
from functools import partial

import apsw
import trio

from hermes import Config, open_runtime
from hermes.agents import Endpoint, chat_agents
from hermes.agents.tools.toolbox import tool
from hermes.errors import HermesError
from hermes.store import SessionStore
from hermes.testing.loopback import Response, serve_http
from hermes.testing.script import MALFORMED_EVENTS

DEEP = "[" * 20_000 + "]" * 20_000
ODD = (
    None, -1, 10**30, 1.5, "many", [], {}, True, "\ud83d", "x" * 300_000, DEEP,
    {"a": {"b": [None]}},
)  # fmt: skip
KEYS = ("k0", "k1", "k2", "k3")
MUTANTS = {
    "loses a message": "AFTER INSERT ON arrivals WHEN NEW.role = 'user' AND NEW.id % 3 = 1 "
    "BEGIN DELETE FROM arrivals WHERE id = NEW.id; END",
}
GOOD = {
    "openai": [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "fine"}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
    ],
    "anthropic": [
        {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0,
         "delta": {"type": "text_delta", "text": "fine"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"},
         "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ],
}  # fmt: skip
CALLS = {
    "openai": {"choices": [{"index": 0, "delta": {"tool_calls": [
        {"index": 0, "id": "c", "function": {"name": "look", "arguments": "{}"}}]}}]},
    "anthropic": {"type": "content_block_start", "index": 0, "content_block":
                  {"type": "tool_use", "id": "c", "name": "look", "input": {}}},
}  # fmt: skip


@tool
def look() -> str:
    """Look."""
    return "seen"


def places(value):
    """Yield (container, key) of every value inside of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


def broken(protocol, dice):
    """Return the events of an answer in which much is wrong."""
    choices = [*GOOD[protocol], CALLS[protocol]]
    events = [deepcopy(dice.choice(choices)) for _ in range(dice.randint(1, 8))]
    for _ in range(dice.randint(1, 5)):
        container, key = dice.choice(list(places(events)))
        container[key] = deepcopy(dice.choice(ODD))  # it may be changed, too
    return events


def encoded(protocol, events):
    """Return the events as a stream."""
    lines = []
    for event in events:
        kind = event.get("type") if isinstance(event, dict) else None
        name = f"event: {kind}\n" if protocol == "anthropic" and isinstance(kind, str) else ""
        lines.append(f"{name}data: {json.dumps(event)}\n\n".encode(errors="replace"))
    return lines


def hostile(protocol, dice):
    """Return a response that a broken or hostile server may give."""
    stream = [("content-type", "text/event-stream")]
    match dice.choice(["events", "events", "events", "status", "endless", "noise", "cut"]):
        case "events":
            chunks = encoded(protocol, broken(protocol, dice))
            chunks.insert(dice.randrange(len(chunks) + 1), dice.choice(MALFORMED_EVENTS))
            return Response(headers=stream, chunks=chunks, complete=dice.random() < 0.8)
        case "status":
            body = dice.choice([b"", b"<html>", DEEP.encode(), b"x" * 1_000_000, b'{"error": 5}'])
            return Response(status=dice.choice([200, 301, 400, 404, 418]), chunks=[body])
        case "endless":
            return Response(headers=stream, chunks=[b"data: " + b"more" * 2_000_000])
        case "noise":
            return Response(headers=stream, chunks=[dice.randbytes(100_000)])
        case _:
            whole = b"".join(encoded(protocol, GOOD[protocol]))
            return Response(headers=stream, chunks=[whole[: dice.randrange(len(whole))]])


async def talk(runtime, key, rounds, state, found):
    """Ask while the model is hostile, then while it is not."""
    for number in range(rounds):
        text = f"{key} says {number}."
        try:
            reply = await runtime.ask(key, text)
        except HermesError as error:
            if "\n" in str(error) or len(str(error)) > 1000:
                found.append(f"{text}: {str(error)[:300]!r} is no sentence")
        else:
            if reply.status == "failed" and len(reply.text) > 5000:
                found.append(f"{text}: a failure of {len(reply.text)} characters")
    state["asking"] -= 1
    while state["asking"]:  # noqa: ASYNC110 - the others are about to end
        await trio.sleep(0.01)
    reply = await runtime.ask(key, f"{key} says goodbye.")
    if (reply.text, reply.status) != ("fine", "complete"):
        found.append(f"{key}: {reply.status} {reply.text[:200]!r} from a sound model")


async def converse(path, protocol, dice, rounds):
    found, state = [], {"asking": len(KEYS)}

    async def respond(_):
        if state["asking"]:
            return hostile(protocol, dice)
        chunks = encoded(protocol, GOOD[protocol])
        return Response(headers=[("content-type", "text/event-stream")], chunks=chunks)

    async with serve_http(respond) as port:
        path_part = "/v1" if protocol == "openai" else ""
        endpoint = Endpoint(base_url=f"http://127.0.0.1:{port}{path_part}", model="m")
        async with (
            chat_agents(endpoint, protocol=protocol, tools=[look]) as agents,
            open_runtime(
                path, build_agent=agents.build, agent_spec=agents.agent_spec,
                config=Config(turn_timeout=4.0),
            ) as runtime,
        ):  # fmt: skip
            with trio.move_on_after(300) as scope:
                async with trio.open_nursery() as nursery:
                    for key in KEYS:
                        nursery.start_soon(talk, runtime, key, rounds, state, found)
            if scope.cancelled_caught:
                found.append("somebody was not answered")
    return found


def attack(path, dice, rounds, mutant):
    """Let models answer several users. Returns how many answers there were, and the violations."""
    with SessionStore(path) as store:
        if mutant in MUTANTS:
            store.transact(lambda tx: tx.run(f"CREATE TRIGGER mutant {MUTANTS[mutant]}"))
    protocol = dice.choice(["openai", "anthropic"])
    found = trio.run(partial(converse, path, protocol, dice, rounds))
    db = apsw.Connection(str(path))
    stored = {row[0] for row in db.execute("SELECT content FROM all_messages WHERE role = 'user'")}
    said = [f"{key} says {number}." for key in KEYS for number in range(rounds)]
    found += [f"{text!r} is lost" for text in said if text not in stored]
    wrong = "SELECT id FROM usage WHERE input_tokens < 0 OR output_tokens < 0 OR cost < 0"
    found += [f"usage {row} is negative" for row in db.execute(wrong)]
    db.close()
    return len(said), found
