"""Hostile bodies for `/v1`: refused in OpenAI's shape without a trace, or answered; never a 5xx."""

from __future__ import annotations

import copy
import json
from contextlib import closing

import apsw
import httpx2
import pytest
import trio
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from trio.testing import wait_all_tasks_blocked

from hermes.adapters.http import HttpConfig
from hermes.config import RateLimit
from tests.support.http import http_server

CONFIG = HttpConfig(port=0, rates=RateLimit(per_minute=1e6, burst=100_000))
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAACAkQBADs="
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
]
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
TABLES = (
    "sessions", "all_messages", "routes", "inbox", "outbox", "files", "responses", "approvals",
    "session_files",
)  # fmt: skip
BODIES = {
    "/v1/responses": {
        "model": "hermes",
        "input": [
            *SAID,
            CALL,
            {"type": "function_call_output", "call_id": "c", "output": "three"},
            {"type": "reasoning", "summary": []},
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "four"},
                    {"type": "input_image", "image_url": PIXEL, "detail": "low"},
                    {"type": "input_file", "filename": "a.txt", "file_data": "YQ=="},
                ],
            },
        ],
        "instructions": "Be kind.",
        "metadata": {"a": "b"},
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "f"},
        "temperature": 0.5,
        "max_output_tokens": 100,
        "parallel_tool_calls": True,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "s", "schema": {}}, "verbosity": "low"},
        "store": True,
        "background": False,
        "stream": False,
        "truncation": "auto",
        "include": ["reasoning.encrypted_content"],
    },
    "/v1/chat/completions": {
        "model": "hermes",
        "messages": [
            *SAID,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "three"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "four"},
                    {"type": "image_url", "image_url": {"url": PIXEL}},
                ],
            },
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "auto",
        "stream_options": {"include_usage": True},
        "metadata": {"conversation": "fuzz"},
        "user": "ann",
        "stop": ["x"],
        "seed": 1,
        "temperature": 1,
        "max_completion_tokens": 9,
        "response_format": {"type": "json_object"},
        "n": 1,
        "logit_bias": {"1": 2},
    },
    "/v1/conversations": {
        "metadata": {"a": "b"},
        "items": [
            {"type": "message", "role": "user", "content": "one"},
            {"type": "message", "role": "assistant", "content": "two"},
        ],
    },
}
"""A valid body for each path, with as many parameters as possible."""
SCALARS = st.one_of(
    st.none(), st.booleans(), st.just(""), st.just("\0"), st.just("\ud800"), st.just("a" * 70_000),
    st.text(max_size=5), st.integers(), st.just(2**64), st.just(-(2**63) - 1), st.just(1e308),
    st.floats(allow_nan=False, allow_infinity=False),
)  # fmt: skip
HOSTILE = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value, where=()):
    """Yield the paths of everything in a body."""
    yield where
    if isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(each, (*where, name))


@st.composite
def hostile_bodies(draw, valid):
    """A valid body in which one to three places have something else, or nothing."""
    body = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 3))):
        if not body:
            break
        *parents, last = draw(st.sampled_from([each for each in places(body) if each]))
        inner = body
        for name in parents:
            inner = inner[name]
        match draw(st.sampled_from(["replace", "delete", "add", "repeat"])):
            case "replace":
                inner[last] = draw(HOSTILE)
            case "delete":
                del inner[last]
            case "add" if isinstance(inner, dict):
                inner[draw(st.text(max_size=5))] = draw(HOSTILE)
            case "repeat" if isinstance(inner, list):
                inner += [copy.deepcopy(inner[last])] * draw(st.sampled_from([1, 30]))
    return body


def stored(path):
    """What the database has: the rows of the tables that requests write."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        db.set_busy_timeout(10_000)
        return {table: db.execute(f"SELECT count(*) FROM {table}").get for table in TABLES}


async def quiet(runtime):
    """Wait until no turn runs."""
    while runtime.admin.running_turns():
        await wait_all_tasks_blocked(0.005)
    await wait_all_tasks_blocked(0.005)


@pytest.mark.parametrize("route", BODIES)
async def test_a_hostile_body_is_refused_without_a_trace_or_answered(path, route, prove):
    seen, examples = set(), 1000 if prove else 50

    def run(server):
        with httpx2.Client(
            base_url=server.url, headers={"Authorization": f"Bearer {server.secret}"}, timeout=60
        ) as client:

            @given(body=hostile_bodies(BODIES[route]))
            @settings(
                max_examples=examples, deadline=None, database=None, derandomize=not prove,
                phases=[Phase.generate], suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            def check(body):
                trio.from_thread.run(quiet, server.runtime)
                before = stored(path)
                data = json.dumps(body).encode()
                answer = client.post(
                    route, content=data, headers={"Content-Type": "application/json"}
                )
                seen.add(answer.status_code)
                assert answer.status_code < 500, (answer.text, body)
                if answer.status_code >= 400:
                    error = answer.json()["error"]
                    assert error.keys() == {"message", "type", "code", "param"}
                    assert error["message"]
                    assert len(error["message"]) < 1000
                    trio.from_thread.run(quiet, server.runtime)
                    assert stored(path) == before, (answer.text, body)

            check()

    async with http_server(path, config=CONFIG) as server:
        answer = await server.http().post(route, json=BODIES[route])
        assert answer.status_code == 200, answer.text
        await trio.to_thread.run_sync(run, server)
    assert seen >= {200, 400}
