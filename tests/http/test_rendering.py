"""Messages with their text as nodes: what is parsed, where, and how much of it is kept."""

from __future__ import annotations

import threading

import msgspec
import pytest
import trio

from hermes.adapters.http.api.streams.rendered.patches import difference
from hermes.adapters.http.api.streams.rendered.renderer import Renderer, own_files
from hermes.adapters.http.markdown.parsing import parse
from hermes.adapters.jsonrpc.types import Row
from tests.support.event_clients import blocks_of, patched
from tests.support.http import http_server

PATH = "/api/conversations/name:a"


def rows(*texts, role="assistant"):
    return [
        Row(id=number, role=role, text=text, timestamp=0.0) for number, text in enumerate(texts, 1)
    ]


def nodes(found):
    return [row.get("nodes") for row in msgspec.json.decode(msgspec.json.encode(found))]


class Counting:
    """Runs functions in threads, and notes them."""

    def __init__(self):
        self.threads = []

    async def __call__(self, function, *args, limiter):
        def run():
            self.threads.append(threading.current_thread())
            return function(*args)

        return await trio.to_thread.run_sync(run, limiter=limiter)


async def test_texts_are_parsed_in_threads_and_kept():
    run = Counting()
    renderer = Renderer(run)
    for _ in range(2):
        found = await renderer.rows("k", rows("*a*", "b", "*a*", None))
        assert nodes(found) == [blocks_of("*a*"), blocks_of("b"), blocks_of("*a*"), None]
        assert [row.text for row in found] == ["*a*", "b", "*a*", None]
    assert len(run.threads) == 2
    assert threading.current_thread() not in run.threads


async def test_only_messages_of_people_and_models_are_markdown():
    found = await Renderer().rows("k", rows("*a*", role="tool"))
    assert nodes(found) == [None]


async def test_what_is_kept_is_bounded():
    run = Counting()
    renderer = Renderer(run, cache=1000)
    many = rows(*(f"text {number}" for number in range(100)))
    assert nodes(await renderer.rows("k", many)) == [blocks_of(row.text) for row in many]
    await renderer.rows("k", many[-1:])
    assert len(run.threads) == 101  # the latest are parsed first, so the last ones kept are old
    await renderer.rows("k", many[-1:])
    assert len(run.threads) == 101


async def test_messages_that_take_too_long_are_plain_text(autojump_clock):
    async def slow(function, *args, limiter):
        await trio.sleep(2)
        return function(*args)

    found = await Renderer(slow).rows("k", rows("*a*", "*b*", "*c*"))
    plain = [["p", ["*a*"], {"class": "plain"}]]
    assert nodes(found) == [plain, blocks_of("*b*"), blocks_of("*c*")]


def test_only_the_files_of_the_conversation_are_images():
    is_own = own_files("agent:main:http:dm:ann:name%3Aa")
    good = ("name:a", "name%3Aa", "agent:main:http:dm:ann:name%253Aa")
    for name in good:
        assert is_own(f"/api/conversations/{name}/files/file_1"), name
    for name in ("name:b", "agent:main:http:dm:bob:name%253Aa", "..", "%2e%2e"):
        assert not is_own(f"/api/conversations/{name}/files/file_1"), name
    assert not is_own("/api/conversations/name:a/history")
    assert not is_own("https://a.example/api/conversations/name:a/files/x")


async def test_images_of_other_conversations_are_not_shown():
    text = "![cat](/api/conversations/a/files/f1)"
    renderer = Renderer()
    shown = nodes(await renderer.rows("x:a", rows(text)))
    assert shown[0][0][1][0][0] == "img"
    assert nodes(await renderer.rows("x:b", rows(text))) == [[["p", ["cat"], {}]]]


TEXTS = [
    "",
    "a",
    "a *b",
    "a *b*",
    "# a\n\nb",
    "# a\n\nb c",
    "- a",
    "- a\n- b",
    "```\na",
    "```\na\n```",
]


@pytest.mark.parametrize("old", TEXTS)
@pytest.mark.parametrize("new", TEXTS)
def test_a_patch_makes_one_list_of_another(old, new):
    patch = msgspec.to_builtins(difference([*parse(old)], [*parse(new)]))
    assert patched(blocks_of(old), patch) == blocks_of(new)


def test_a_text_that_grows_is_sent_by_its_end():
    patch = difference([*parse("- a\n- *b* c")], [*parse("- a\n- *b* c and more")])
    assert msgspec.to_builtins(patch) == [0, [1, [1, " and more", []], []], []]


async def test_endpoints_have_nodes_if_they_are_asked_for(path):
    async def agent(turn):
        return "**bold**"

    async with http_server(path, agent) as server:
        client = server.http()
        await client.post(f"{PATH}/messages", json={"text": "*hi*"})
        for query, expected in (("", [None, None]), ("?rendered=true", ["*hi*", "**bold**"])):
            blocks = [text and blocks_of(text) for text in expected]
            page = (await client.get(f"{PATH}/history{query}")).json()
            assert [row.get("nodes") for row in page["messages"]] == blocks
            state = (await client.get(f"{PATH}/snapshot{query}")).json()
            assert [row.get("nodes") for row in state["history"]["messages"]] == blocks


async def test_a_long_conversation_costs_what_is_shown(path):
    async with http_server(path) as server:
        client = server.http()
        await client.post(f"{PATH}/messages", json={"text": "hi"})
        key = (await client.get(PATH)).json()["session_key"]
        for number in range(300):
            await server.runtime.conversation(key).post(f"*{number}*")
        page = (await client.get(f"{PATH}/snapshot?rendered=true")).json()["history"]
        assert page["earlier"]
        assert len(page["messages"]) <= 100
        assert page["messages"][-1]["nodes"] == blocks_of("*299*")
