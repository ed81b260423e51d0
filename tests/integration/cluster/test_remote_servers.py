"""HTTP and JSON-RPC servers of nodes that do not serve a conversation."""

from __future__ import annotations

from contextlib import asynccontextmanager

import h11
import pytest
import trio

from hermes.adapters.http import HttpConfig, serve_http
from hermes.events import TextDelta
from tests.support.cluster_nodes import SECONDS, claim, cluster_of, on_cluster
from tests.support.event_clients import open_events
from tests.support.http import Server, new_token
from tests.support.jsonrpc_client import connected

PATH = "/api/conversations/name:a"


def talking(name):
    async def answer(turn):
        for word in ("one ", "two ", "three"):
            turn.emit(TextDelta(word))
            await trio.sleep(0.06)
        return "one two three"

    return answer


@asynccontextmanager
async def two_servers(url):
    """Two nodes with HTTP servers, which accept the same token."""
    async with on_cluster(url) as cluster:
        opened = [cluster.open(name, agent=talking(name)) for name in ("a", "b")]
        nodes = [await cluster.stack.enter_async_context(each) for each in opened]
        await cluster.all_know(*nodes)
        secret, servers = await new_token(nodes[0]), []
        for node in nodes:
            address = await cluster.stack.enter_async_context(serve_http(node, HttpConfig(port=0)))
            server = Server(node, address, secret)
            cluster.stack.push_async_callback(server.close_clients)
            servers.append(server)
        with trio.fail_after(SECONDS):
            yield cluster, *servers


async def owned(cluster, server, key):
    """Let a node serve a conversation."""
    assert (await claim(cluster_of(server.runtime), key)).node == cluster_of(server.runtime).node
    await server.runtime.conversation(key).undo()


async def test_the_page_shows_a_conversation_on_a_node_that_does_not_serve_it(postgres_url):
    async with two_servers(postgres_url) as (cluster, first, second):
        said = await first.http().post(f"{PATH}/messages", json={"text": "hello"})
        assert said.status_code == 200, said.text
        [[key]] = cluster.sql("SELECT session_key FROM routes")
        owner, other = first, second
        if cluster.owner(key) != cluster_of(first.runtime).node:
            owner, other = second, first
        async with open_events(other, f"{PATH}/events") as stream:
            kind, _ = await stream.next()
            assert kind == "reset"
            for client in (owner.http(), other.http()):
                answer = await client.post(f"{PATH}/messages", json={"text": "again"})
                assert answer.status_code == 200
                text, name = "", None
                while name != "turn_ended":
                    name, data = await stream.next()
                    if name == "text_delta":
                        text += data["event"]["text"]
                assert text == "one two three"
                rows = data["changes"]["history"]["messages"]
                assert [row["text"] for row in rows] == ["again", "one two three"]
        assert cluster.owner(key) == cluster_of(owner.runtime).node


@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")  # of the SDK
async def test_requests_of_api_clients_are_answered_wherever_their_turns_run(postgres_url):
    async with two_servers(postgres_url) as (_, *servers):
        for number in range(8):
            client, said = servers[number % 2].openai(), ""
            messages = [{"role": "user", "content": f"hello {number}"}]
            create, respond = client.chat.completions.create, client.responses.create
            if number < 4:
                async with await create(model="hermes", messages=messages, stream=True) as chunks:
                    async for each in chunks:
                        said += (each.choices and each.choices[0].delta.content) or ""
                done = (await respond(model="hermes", input="hello")).output_text
            else:
                async with await respond(model="hermes", input="hello", stream=True) as events:
                    async for each in events:
                        said += each.delta if each.type == "response.output_text.delta" else ""
                answer = await create(model="hermes", messages=messages)
                done = answer.choices[0].message.content
            assert said == done == "one two three"


async def test_a_json_rpc_client_hears_turns_of_another_node(postgres_url):
    async with two_servers(postgres_url) as (cluster, first, second):
        key = "agent:main:client:dm:name"
        async with connected(second.runtime) as client:
            handle = (await client.call("session.create", conversation="name"))["session_id"]
            [[key]] = cluster.sql("SELECT session_key FROM routes") or [[key]]
            await owned(cluster, first, key)
            done = await client.call("prompt.submit", session_id=handle, text="hello")
            assert (await client.answer_to(done["message_id"]))["text"] == "one two three"
            deltas = [body["text"] for kind, body in client.events() if kind == "message.delta"]
            assert "".join(deltas) == "one two three"


@pytest.mark.parametrize("how", ["hint", "poll"])
async def test_a_token_that_is_revoked_on_one_node_is_refused_on_all(postgres_url, how):
    async with two_servers(postgres_url) as (cluster, first, second):
        path = "/api/conversations"
        assert (await second.http().get(path)).status_code == 200
        async with open_events(second, f"{PATH}/events") as stream:
            await stream.next()
            if how == "hint":
                assert await first.runtime.api.revoke_token("ann")
                assert await second.runtime.api.wait_revoked() == 1
            else:
                now = "extract(epoch FROM clock_timestamp())"
                cluster.sql(f"UPDATE tokens SET revoked_at = {now}")
            with trio.fail_after(5), pytest.raises(h11.RemoteProtocolError, match="incomplete"):
                while True:
                    await stream.next()
        assert (await second.http().get(path)).status_code == 401
