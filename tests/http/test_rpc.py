"""JSON-RPC over a WebSocket: for operators, with a token or a ticket."""

from __future__ import annotations

import pytest
import trio

from hermes import open_runtime
from hermes.adapters.http.app import open_app
from hermes.adapters.http.errors import ClientGone
from hermes.adapters.jsonrpc.frames import MAX_LINE
from tests.support.http import echo, http_server, new_token
from tests.support.websockets import Refused, hurried_websocket, open_websocket


async def operator(server, name="op"):
    return await new_token(server.runtime, name, roles=("operator",))


async def test_an_operator_asks_and_gets_the_events_of_the_answer(path):
    async with http_server(path) as server:
        secret = await operator(server)
        async with open_websocket(server.url, secret=secret) as socket:
            assert (await socket.receive())["params"]["type"] == "gateway.ready"
            created = await socket.call("session.create")
            handle = created["result"]["session_id"]
            await socket.call("prompt.submit", session_id=handle, text="hello")
            while (event := await socket.receive())["params"]["type"] != "message.complete":
                pass
            assert event["params"]["payload"]["text"] == "echo: hello"


async def test_a_user_is_refused(path):
    async with http_server(path) as server:
        with pytest.raises(Refused) as refused:
            async with open_websocket(server.url, secret=server.secret):
                pass
        assert refused.value.status == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((), 401),
        (((b"authorization", b"Bearer wrong"),), 401),
        (((b"origin", b"https://evil.example"),), 403),
    ],
)
async def test_a_handshake_without_credentials_or_of_another_site_is_refused(path, headers, status):
    async with http_server(path) as server:
        with pytest.raises(Refused) as refused:
            async with open_websocket(server.url, headers=headers):
                pass
        assert refused.value.status == status


@pytest.mark.parametrize("refused", [{"version": "12"}, {"secret": "none"}, {"frames": [{}] * 3}])
async def test_the_connection_of_a_refused_handshake_is_closed(path, refused):
    """Otherwise anybody could occupy the connections of the server."""
    async with http_server(path) as server:
        secret = await operator(server)
        for _ in range(10):
            answer = await hurried_websocket(server.url, **{"secret": secret, **refused})
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4")


async def test_a_ticket_opens_one_connection(path):
    async with http_server(path) as server:
        client = server.http(await operator(server))
        issued = await client.post("/api/tickets")
        assert issued.status_code == 201
        protocols = ["hermes.v1", f"ticket.{issued.json()['ticket']}"]
        async with open_websocket(server.url, subprotocols=protocols) as socket:
            assert socket.subprotocol == "hermes.v1"
            assert (await socket.receive())["params"]["type"] == "gateway.ready"
        with pytest.raises(Refused) as refused:
            async with open_websocket(server.url, subprotocols=protocols):
                pass
        assert refused.value.status == 401


async def test_a_ticket_of_a_revoked_token_is_not_valid(path):
    async with http_server(path) as server:
        client = server.http(await operator(server, "laptop"))
        ticket = (await client.post("/api/tickets")).json()["ticket"]
        await server.runtime.api.revoke_token("laptop")
        with pytest.raises(Refused) as refused:
            async with open_websocket(server.url, subprotocols=[f"ticket.{ticket}"]):
                pass
        assert refused.value.status == 401


async def test_a_user_gets_no_ticket(path):
    async with http_server(path) as server:
        assert (await server.http().post("/api/tickets")).status_code == 403


async def test_a_revoked_token_ends_the_connection(path):
    async with http_server(path) as server:
        secret = await operator(server, "laptop")
        async with open_websocket(server.url, secret=secret) as socket:
            await socket.receive()
            await server.runtime.api.revoke_token("laptop")
            assert await socket.receive() is None
            assert socket.code == 1008


async def test_a_frame_that_is_too_long_or_no_json_is_answered_with_an_error(path):
    async with http_server(path) as server:
        async with open_websocket(server.url, secret=await operator(server)) as socket:
            await socket.receive()
            await socket.send("x" * (MAX_LINE + 1))
            assert (await socket.receive())["error"]["code"] == -32600
            await socket.send("{")
            assert (await socket.receive())["error"]["code"] == -32700
            assert "result" in await socket.call("session.list")


async def test_the_end_of_the_server_closes_the_connection(path):
    sockets = []
    async with http_server(path) as server:
        manager = open_websocket(server.url, secret=await operator(server))
        sockets.append(await manager.__aenter__())
        await sockets[0].receive()
    assert await sockets[0].receive() is None
    assert sockets[0].code == 1001
    await manager.__aexit__(None, None, None)


async def test_a_client_that_is_cut_is_not_logged_as_an_error(path, caplog):
    async def receive():
        if sent:
            await trio.sleep_forever()
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message["type"])
        if len(sent) == 2:
            raise ClientGone("the client does not read")

    sent = []
    async with open_runtime(path, agent=echo) as runtime, open_app(runtime) as app:
        secret = await new_token(runtime, roles=("operator",))
        headers = [(b"host", b"127.0.0.1:8420"), (b"authorization", f"Bearer {secret}".encode())]
        scope = {"type": "websocket", "path": "/api/rpc", "headers": headers, "query_string": b""}
        with trio.fail_after(30):
            await app(scope, receive, send)
    assert (sent, caplog.records) == (["websocket.accept", "websocket.send"], [])
