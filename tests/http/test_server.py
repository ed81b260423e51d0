"""The server: its limits for connections, and its end."""

from __future__ import annotations

import json
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import openai
import pytest
import trio
import trio.testing

from hermes import AccessPolicy, PlatformRules, RateLimit, Source
from hermes.adapters.http import HttpConfig, serve_http
from hermes.adapters.http.server import serve_app
from hermes.adapters.http.socket_connections import ClientGone
from tests.support.http import http_server
from tests.support.raw_http import request_bytes

LONG = 3600.0


@asynccontextmanager
async def served(app, **limits):
    """Serve an ASGI app without a runtime."""
    async with serve_app(app, HttpConfig(port=0, **limits)) as url:
        yield url


async def connect(url, *, buffer=None):
    """Return a connected stream; `buffer` limits what the system receives for it."""
    address = urlsplit(url)
    own = trio.socket.socket()
    if buffer is not None:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    await own.connect((address.hostname, address.port))
    return trio.SocketStream(own)


async def read_all(stream):
    """Return what comes until the other side closes the connection."""
    data = b""
    try:
        while piece := await stream.receive_some():
            data += piece
    except trio.BrokenResourceError:
        pass
    return data


async def answer(scope, receive, send, body=b"ok"):
    """Answer a request."""
    length = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    await send({"type": "http.response.body", "body": body})


class Endless:
    """An app that sends without end; it counts the requests that have failed to."""

    def __init__(self):
        self.gone = 0

    async def __call__(self, scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                piece = {"type": "http.response.body", "body": bytes(65536), "more_body": True}
                await send(piece)
        except ClientGone:
            self.gone += 1
            raise


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_a_request_is_answered_and_the_connection_is_used_again():
    async with served(answer) as url:
        async with await connect(url) as stream:
            for _ in range(2):
                await stream.send_all(GET)
                data = b""
                while not data.endswith(b"\r\n\r\nok"):
                    data += await stream.receive_some()
                assert data.startswith(b"HTTP/1.1 200")
                assert b"server:" not in data


async def test_a_client_that_does_not_read_is_cut():
    app = Endless()
    async with served(app, send_timeout=0.05) as url:
        async with await connect(url, buffer=4096) as stream:
            await stream.send_all(GET)
            with trio.fail_after(30):
                while not app.gone:
                    await trio.lowlevel.checkpoint()
                await read_all(stream)


async def test_the_end_does_not_wait_for_clients_that_do_not_read():
    app = Endless()
    async with AsyncExitStack() as clients:
        with trio.fail_after(60):
            async with served(app, send_timeout=LONG, close_timeout=LONG) as url:
                for _ in range(50):
                    stream = await clients.enter_async_context(await connect(url, buffer=4096))
                    await stream.send_all(GET)
                    assert await stream.receive_some(1)


FOUND = b"HTTP/1.1 200"
SIZE = 8_000_000
"""Bytes of a file: more than the system takes for a client that does not read."""


async def test_a_drain_beside_50_clients_that_do_not_read_waits_for_those_that_do(path):
    """The turn ends during the drain, and its client gets the answer."""
    started, release = trio.Event(), trio.Event()

    async def agent(turn):
        started.set()
        await release.wait()
        return "done"

    answers = []

    async def ask(server):
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=server.secret, max_retries=0
        ) as client:
            answers.append(await client.responses.create(model="hermes", input="wait"))

    limits = {"send_timeout": LONG, "close_timeout": LONG}
    config = HttpConfig(port=0, hosts=("127.0.0.1",), **limits)
    async with AsyncExitStack() as clients, trio.open_nursery() as nursery:
        with trio.fail_after(300):
            async with http_server(path, agent, config=config) as server:
                file = await server.openai().files.create(file=bytes(SIZE), purpose="user_data")
                slow = []
                for _ in range(50):
                    stream = await connect(server.url, buffer=4096)
                    slow.append(await clients.enter_async_context(stream))
                    await stream.send_all(download(server.secret, file.id))
                    assert await stream.receive_some(len(FOUND)) == FOUND
                nursery.start_soon(ask, server)
                await started.wait()
                nursery.start_soon(set_soon, server.runtime, release)
        for stream in slow:
            assert len(await read_all(stream)) < SIZE
    [answered] = answers
    assert answered.output_text == "done"


def download(secret, file_id):
    """Return the bytes of a request for the content of a file."""
    lines = [
        f"GET /v1/files/{file_id}/content HTTP/1.1", "Host: 127.0.0.1",
        f"Authorization: Bearer {secret}", "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode()


def request(secret, body, path="/v1/responses"):
    """Return the bytes of a request."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def set_soon(runtime, event):
    """Set an event once the runtime drains."""
    while not (await runtime.admin.statistics()).draining:
        await trio.lowlevel.checkpoint()
    event.set()


async def test_a_drain_does_not_wait_for_requests_that_do_not_arrive(path):
    async with AsyncExitStack() as streams:
        with trio.fail_after(30):
            config = HttpConfig(port=0, hosts=("127.0.0.1",), close_timeout=LONG)
            async with http_server(path, config=config) as server:
                slow = [await streams.enter_async_context(await connect(server.url)) for _ in "ab"]
                whole = request(server.secret, b'{"input": "hi"}')
                form = request(server.secret, FORM, path="/v1/files")
                form = form.replace(b"application/json", b"multipart/form-data; boundary=B")
                for stream, data in zip(slow, (whole, form), strict=True):
                    await stream.send_all(data[:-3])
                await trio.testing.wait_all_tasks_blocked(0.01)
            for stream in slow:
                assert (await read_all(stream)).startswith(b"HTTP/1.1 503")


FORM = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc\r\n--B--\r\n'


async def test_running_requests_are_cut_after_the_close_timeout():
    async def never(scope, receive, send):
        await trio.sleep_forever()

    with trio.fail_after(60):
        async with served(never, close_timeout=0.05) as url:
            stream = await connect(url)
            await stream.send_all(GET)
            await trio.testing.wait_all_tasks_blocked()
        assert await read_all(stream) == b""
        await stream.aclose()


async def test_a_server_with_a_running_request_can_be_cancelled(path):
    begun, waited = trio.Event(), []

    async def never(turn):
        begun.set()
        await trio.sleep_forever()

    async def rescue(runtime):
        await trio.sleep(10)
        waited.append(True)
        await runtime.adapter_state.set("name", "any commit")

    async with trio.open_nursery() as outside:
        with trio.CancelScope() as scope:
            async with http_server(path, never) as server:
                stream = await connect(server.url)
                await stream.send_all(request_bytes(server, {"input": "hi"}))
                await begun.wait()
                await trio.testing.wait_all_tasks_blocked(0.3)  # nothing else is being stored
                outside.start_soon(rescue, server.runtime)
                scope.cancel()
                await trio.lowlevel.checkpoint()
        await stream.aclose()
        outside.cancel_scope.cancel()
    assert waited == []


async def test_the_end_closes_idle_connections_at_once():
    async with served(answer, close_timeout=LONG, keep_alive=LONG) as url:
        stream = await connect(url)
        await stream.send_all(GET)
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
    with trio.fail_after(30):
        await read_all(stream)
    await stream.aclose()


async def test_a_head_that_does_not_arrive_in_time_is_refused():
    async with served(answer, header_timeout=0.05, keep_alive=LONG) as url:
        async with await connect(url) as stream:
            await stream.send_all(GET[:20])
            with trio.fail_after(30):
                refusal = await read_all(stream)
            assert refusal.startswith(b"HTTP/1.1 408")
            error = json.loads(refusal.partition(b"\r\n\r\n")[2])["error"]
            assert error["code"] == "request_timeout"
        async with await connect(url) as stream:
            with trio.fail_after(30):
                assert await read_all(stream) == b""


async def test_an_idle_connection_is_closed():
    async with served(answer, header_timeout=LONG, keep_alive=0.05) as url:
        async with await connect(url) as stream:
            await stream.send_all(GET)
            with trio.fail_after(30):
                assert (await read_all(stream)).endswith(b"ok")


async def test_more_connections_than_allowed_wait_unless_one_is_idle():
    release, running = trio.Event(), trio.Semaphore(0)

    async def wait(scope, receive, send):
        running.release()
        await release.wait()
        await answer(scope, receive, send)

    async with served(wait, max_connections=2, keep_alive=LONG, header_timeout=LONG) as url:
        busy = await connect(url)
        await busy.send_all(GET)
        await running.acquire()
        idle = await connect(url)
        third = await connect(url)
        await third.send_all(GET)
        with trio.fail_after(30):
            assert await read_all(idle) == b""  # it made room for the third
            await running.acquire()
        fourth = await connect(url)
        await fourth.send_all(GET)
        with trio.move_on_after(0.05):
            raise AssertionError(await fourth.receive_some())
        release.set()
        with trio.fail_after(30):
            assert (await fourth.receive_some()).startswith(b"HTTP/1.1 200")
        for stream in (busy, idle, third, fourth):
            await stream.aclose()


async def test_a_request_on_a_connection_that_is_being_closed_is_refused(caplog):
    limits = {"max_connections": 1, "keep_alive": LONG, "header_timeout": LONG}
    async with served(answer, **limits) as url:
        address = (urlsplit(url).hostname, urlsplit(url).port)
        received = b""
        while b"408" not in received:  # it is random which of the two is seen first
            assert (received[:12], caplog.records) in [(b"", []), (b"HTTP/1.1 200", [])]
            idle = socket.create_connection(address)
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(idle))
            await trio.testing.wait_all_tasks_blocked(0.01)
            with socket.create_connection(address):
                idle.send(GET)  # there is no checkpoint before, so both arrive at once
                with trio.fail_after(30):
                    received = await read_all(stream)
            await stream.aclose()
    assert caplog.records == []


async def test_the_address_must_be_this_machine():
    with pytest.raises(ValueError, match=r"can be reached from other machines.*public = true"):
        HttpConfig(host="0.0.0.0")
    assert HttpConfig(host="0.0.0.0", public=True).host == "0.0.0.0"
    assert HttpConfig(host="127.1.2.3").host == "127.1.2.3"
    with pytest.raises(ValueError, match=r"HttpConfig\.port is 70000"):
        HttpConfig(port=70000)


async def test_a_port_in_use_is_an_error(path):
    async with http_server(path) as server:
        port = urlsplit(server.url).port
        with pytest.raises(OSError, match="in use"):
            async with serve_http(server.runtime, HttpConfig(port=port)):
                pass


async def test_ipv6(path):
    async with http_server(path, config=HttpConfig(host="::1", port=0)) as server:
        assert server.url.startswith("http://[::1]:")
        models = await server.openai().models.list()
        assert models.data


async def test_what_a_conversation_of_a_client_is_told_does_not_wait_for_an_adapter(path):
    """A reply to a message that is no request, such as a posted one, is for the host."""
    access = AccessPolicy(rules={"http": PlatformRules(pairing=False)})
    async with http_server(path, access=access) as server:
        source = Source(platform="http", account="tok", chat_id="ann", user_id="tok")
        await server.runtime.post("agent:main:http:dm:ann:name:a", "note", source=source)
        await server.openai().responses.create(model="hermes", input="hello")
        with trio.fail_after(30):
            while (await server.runtime.admin.statistics()).store.outbox:
                await trio.lowlevel.checkpoint()


async def test_an_access_policy_admits_tokens_by_a_rule_without_pairing(path):
    access = AccessPolicy(rules={"http": PlatformRules(pairing=False)})
    async with http_server(path, access=access) as server:
        answer = await server.openai().responses.create(model="hermes", input="hello")
        assert answer.output_text == "echo: hello"


async def test_too_many_messages_of_a_token_are_refused_with_the_name_of_the_setting(path):
    rules = {"http": PlatformRules(pairing=False)}
    access = AccessPolicy(rules=rules, rates=RateLimit(per_minute=0.001, burst=1))
    async with http_server(path, access=access) as server:
        client = server.openai()
        await client.responses.create(model="hermes", input="hello")
        with pytest.raises(openai.RateLimitError, match=r"\[rates\]") as refused:
            await client.responses.create(model="hermes", input="hello")
        assert refused.value.response.headers["retry-after"] == "1"
