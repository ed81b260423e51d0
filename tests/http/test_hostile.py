"""Hostile HTTP: it is refused or bounded, and other clients do not notice."""

from __future__ import annotations

import gzip
import json
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
import trio

from hermes.adapters.http import HttpConfig
from hermes.settings.http import HookTable
from hermes.settings.references import Reference
from tests.support.http import http_server, new_token

SECONDS = 30


class Raw:
    """A server with a client that sends bytes as they are."""

    def __init__(self, server):
        self.server = server
        self.host = urlsplit(server.url).netloc
        self.client = server.openai()

    async def connect(self):
        address = urlsplit(self.server.url)
        return await trio.open_tcp_stream(address.hostname, address.port)

    def head(self, line="POST /v1/responses HTTP/1.1", *more):
        """Return the beginning of a valid request, with further headers."""
        headers = (
            f"Host: {self.host}",
            f"Authorization: Bearer {self.server.secret}",
            "Content-Type: application/json",
            *more,
        )
        return "\r\n".join([line, *headers, "", ""]).encode()

    def request(self, body=b'{"input": "hi"}', *more):
        return (
            self.head("POST /v1/responses HTTP/1.1", f"Content-Length: {len(body)}", *more) + body
        )

    async def send(self, data):
        """Send bytes on a new connection; returns all that comes until the server closes it."""
        async with await self.connect() as stream:
            with trio.fail_after(SECONDS):
                try:
                    await stream.send_all(data)
                    await stream.send_eof()
                except trio.BrokenResourceError:
                    pass  # it was refused before its end
                return await everything(stream)

    async def check(self):
        """Check that another client is served as always."""
        with trio.fail_after(SECONDS):
            answer = await self.client.responses.create(model="hermes", input="hello")
        assert answer.output_text == "echo: hello"

    async def turns(self):
        """Return how many turns there were."""
        return (await self.server.runtime.admin.statistics()).turns.total()


async def everything(stream):
    data = b""
    try:
        while piece := await stream.receive_some():
            data += piece
    except trio.BrokenResourceError:
        pass
    return data


class Answers:
    """The answers on a connection."""

    def __init__(self, stream):
        self._stream = stream
        self._data = b""

    async def next(self):
        """Return the status and the body of the next answer."""
        with trio.fail_after(SECONDS):
            while b"\r\n\r\n" not in self._data:
                await self._read()
            head, _, self._data = self._data.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            while len(self._data) < length:
                await self._read()
        body, self._data = self._data[:length], self._data[length:]
        return status_of(head), body

    async def _read(self):
        piece = await self._stream.receive_some()
        assert piece, self._data
        self._data += piece


async def answer_on(stream):
    return await Answers(stream).next()


def status_of(answer):
    return int(answer.split(b" ")[1])


@asynccontextmanager
async def hostile(path, **limits):
    async with http_server(path, config=HttpConfig(port=0, **limits)) as server:
        yield Raw(server)


async def test_slow_heads_and_bodies_hold_nobody_up(path):
    async with hostile(path, header_timeout=1.0, body_timeout=1.0) as raw:
        slow = [await raw.connect() for _ in range(30)]
        for number, stream in enumerate(slow):
            whole = raw.request()
            await stream.send_all(whole[: 40 if number % 2 else -5])
        await raw.check()
        for stream in slow:
            with trio.fail_after(SECONDS):
                assert status_of(await everything(stream)) == 408
            await stream.aclose()
        assert await raw.turns() == 1


async def test_a_body_that_arrives_byte_by_byte_is_refused(path):
    async with hostile(path, body_timeout=0.2) as raw:
        stream, refused = await raw.connect(), b""
        await stream.send_all(raw.head("POST /v1/responses HTTP/1.1", "Content-Length: 100000"))
        with trio.fail_after(SECONDS):
            while not refused:
                await stream.send_all(b" ")
                with trio.move_on_after(0.05):  # the next byte is in time
                    refused = await stream.receive_some()
        assert status_of(refused) == 408
        await stream.aclose()
        await raw.check()


async def test_requests_without_a_valid_token_cannot_occupy_all_connections(path, monkeypatch):
    monkeypatch.setenv("PLAIN", "secret")
    hooks = {"ci": HookTable(secret=Reference("env:PLAIN"), scheme="github")}
    begun, ended = trio.Event(), trio.Event()

    async def agent(turn):
        begun.set()
        await ended.wait()
        return f"echo: {turn.text}"

    config = HttpConfig(port=0, max_connections=3, hooks=hooks)
    async with http_server(path, agent, config=config) as server:
        raw = Raw(server)
        known = await raw.connect()
        await known.send_all(raw.request())
        with trio.fail_after(SECONDS):
            await begun.wait()
        head = raw.head("POST /hooks/ci HTTP/1.1", "Content-Length: 900")
        head = head.replace(server.secret.encode(), b"none")
        slow = [await raw.connect() for _ in range(2)]
        for stream in slow:
            await stream.send_all(head + b"{")
        with trio.fail_after(SECONDS):
            assert (await raw.client.models.list()).data[0].id == "hermes"
        ended.set()
        status, body = await answer_on(known)
        assert (status, b"echo: hi" in body) == (200, True)
        for stream in (known, *slow):
            await stream.aclose()


def misleading(raw):
    """Yield requests that can be understood in several ways, with the expected status."""
    smuggled = b"0\r\n\r\n" + raw.request()
    post, get = "POST /v1/responses HTTP/1.1", "GET /healthz HTTP/1.1"
    chunked, length = "Transfer-Encoding: chunked", "Content-Length: 5"
    yield "both lengths", 400, raw.head(post, length, chunked) + smuggled
    yield "the other way", 400, raw.head(post, chunked, length) + smuggled
    yield "two lengths", 400, raw.head(post, length, "Content-Length: 6") + smuggled
    yield "a negative length", 400, raw.head(post, "Content-Length: -1")
    yield "a length with a sign", 400, raw.head(post, "Content-Length: +5") + smuggled
    yield "a hexadecimal length", 400, raw.head(post, "Content-Length: 0x5") + smuggled
    yield "an unknown encoding", 501, raw.head(post, "Transfer-Encoding: gzip") + smuggled
    yield "HTTP/1.0", 400, raw.head("POST /v1/responses HTTP/1.0", chunked) + smuggled
    yield "NUL", 400, raw.head(post, "X-A: a\0b")
    yield "a line feed in a name", 400, raw.head(post, "X-\nA: b")
    yield "a space before the colon", 400, raw.head(post, "Content-Length : 5") + smuggled
    yield "no host", 400, b"GET /healthz HTTP/1.1\r\n\r\n"
    yield "two hosts", 400, raw.head(get, "Host: evil.example")
    yield "an absolute target", 421, raw.head(f"GET {raw.server.url}/healthz HTTP/1.1")
    yield "another server's target", 421, raw.head("GET http://evil.example/ HTTP/1.1")
    yield "another version", 505, raw.head("GET /healthz HTTP/3.0")
    yield "HTTP/2", 505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield "not HTTP", 400, b"\x00\x01\x02\r\n\r\n"
    yield "TLS", 400, bytes.fromhex("16030102000100") + bytes(512) + b"\r\n\r\n"
    yield "a long target", 431, raw.head("GET /" + "a" * 200_000 + " HTTP/1.1")
    yield "a long header", 431, raw.head(get, "X-A: " + "a" * 200_000)
    yield "a header that is a little too long", 431, raw.head(get, "X-A: " + "a" * 17_000)
    yield "many headers", 431, raw.head(get, *["X-A: b"] * 20_000)
    yield "headers without an end", 431, b"GET / HTTP/1.1\r\nX-A: " + b"a" * 200_000


async def test_a_request_that_can_be_misunderstood_is_refused(path):
    async with hostile(path) as raw:
        for number, (name, status, sent) in enumerate(misleading(raw), 1):
            answer = await raw.send(sent)
            assert status_of(answer) == status, name
            # What follows is not taken for another request.
            assert answer.count(b"HTTP/1.1 ") == 1, name
            error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
            assert set(error) == {"message", "type", "code", "param"}, name
            await raw.check()
            assert await raw.turns() == number, name


async def test_a_refused_head_request_is_answered_without_a_body(path):
    async with hostile(path) as raw:
        answer = await raw.send(raw.head("HEAD /healthz HTTP/1.1", "X-A: " + "a" * 17_000))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert (status_of(head), b"\r\nconnection: close" in head.lower(), body) == (431, True, b"")
        await raw.check()


@pytest.mark.parametrize("form", ["bare line feeds", "a folded line", "the same length twice"])
async def test_old_forms_of_heads_are_one_request(path, form):
    """They have one meaning, as RFC 9112 allows."""
    body = b'{"input": "hi"}'
    async with hostile(path) as raw:
        data = {
            "bare line feeds": raw.request(body).replace(b"\r\n", b"\n"),
            "a folded line": raw.request(body, "X-A: b\r\n Content-Length: 3"),
            "the same length twice": raw.request(body, f"Content-Length: {len(body)}"),
        }[form]
        async with await raw.connect() as stream:
            await stream.send_all(data)
            status, _ = await answer_on(stream)
            assert status == 200
        assert await raw.turns() == 1


def nested(depth):
    """Return a body with a schema of this depth, which is at the fourth level."""
    tool = b'{"type": "function", "name": "f", "parameters": %b}'
    schema = b'{"a":' * depth + b"1" + b"}" * depth
    return b'{"input": "hi", "tools": [%b]}' % (tool % schema)


TEXT = '{"input": "hi"}'
BODIES = {
    "deep arrays": (400, b"[" * 100_000 + b"]" * 100_000),
    "deep objects": (400, b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "a little too deep": (400, nested(98)),
    "deep inside": (400, b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "not closed": (400, b"[" * 100_000),
    "a long number": (400, b'{"input": ' + b"9" * 100_000 + b"}"),
    "UTF-16": (400, TEXT.encode("utf-16")),
    "UTF-32": (400, TEXT.encode("utf-32")),
    "a byte order mark": (400, TEXT.encode("utf-8-sig")),
    "invalid UTF-8": (400, b'{"input": "\xff\xfe"}'),
    "a lone surrogate": (400, b'{"input": "\xed\xa0\x80"}'),
    "gzip": (415, gzip.compress(TEXT.encode())),
    "empty": (400, b""),
    "not an object": (400, b'"hi"'),
    "too long": (413, b'{"input": "' + b"a" * 3_000_000 + b'"}'),
}


async def test_a_body_that_is_no_request_is_refused(path):
    async with hostile(path, max_body=2_000_000) as raw:
        for name, (status, body) in BODIES.items():
            more = ["Content-Encoding: gzip"] if name == "gzip" else []
            async with await raw.connect() as stream:
                await stream.send_all(raw.request(body, *more))
                found, answer = await answer_on(stream)
            assert found == status, name
            error = json.loads(answer)["error"]
            assert error["type"] == "invalid_request_error", name
            assert len(error["message"]) < 300, name
            await raw.check()
        assert await raw.turns() == len(BODIES)


async def test_a_body_beyond_the_limit_is_counted_while_it_is_read(path):
    async with hostile(path, max_body=1000) as raw:
        chunk = b"%x\r\n%s\r\n" % (600, b"a" * 600)
        head = raw.head("POST /v1/responses HTTP/1.1", "Transfer-Encoding: chunked")
        assert status_of(await raw.send(head + chunk * 1000)) == 413
        await raw.check()


async def test_a_client_is_told_if_the_connection_ends_with_an_answer(path):
    """Otherwise it would send its next request on a connection that is being closed."""
    async with hostile(path) as raw:
        whole = b"POST /v1/responses HTTP/1.1\r\nHost: %s\r\nContent-Length: 2\r\n\r\n{}"
        whole %= raw.host.encode()
        async with await raw.connect() as stream:
            await stream.send_all(whole[:-2])
            with trio.fail_after(SECONDS):
                answer = await everything(stream)
        assert status_of(answer) == 401
        assert b"connection: close" in answer.lower()
        async with await raw.connect() as stream:
            await stream.send_all(whole + whole)
            answers = Answers(stream)
            assert [(await answers.next())[0] for _ in range(2)] == [401, 401]


async def test_pipelined_requests_are_answered_one_after_the_other(path):
    async with hostile(path) as raw:
        async with await raw.connect() as stream:
            await stream.send_all(b"".join(raw.request(b'{"input": "%d"}' % n) for n in range(5)))
            answers = Answers(stream)
            for number in range(5):
                status, body = await answers.next()
                assert status == 200
                assert b"echo: %d" % number in body
        assert await raw.turns() == 5


async def test_a_half_closed_connection_does_not_leave_anything(path):
    started, release = trio.Event(), trio.Event()

    async def agent(turn):
        if turn.text == "wait":
            started.set()
            await release.wait()
        return f"echo: {turn.text}"

    async with http_server(path, agent) as server:
        raw = Raw(server)
        stream = await raw.connect()
        await stream.send_all(raw.request(b'{"input": "wait"}'))
        await started.wait()
        await stream.send_eof()
        with trio.fail_after(SECONDS):
            await everything(stream)  # the server takes the client to have left
        await raw.check()
        release.set()  # its turn goes on
        await stream.aclose()


async def test_an_upgrade_to_http2_is_ignored(path):
    async with hostile(path) as raw:
        settings = "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"
        upgrade = "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", settings
        async with await raw.connect() as stream:
            await stream.send_all(raw.head("GET /healthz HTTP/1.1", *upgrade))
            assert await answer_on(stream) == (200, b"ok\n")


async def test_what_is_nested_as_deeply_as_allowed_can_be_read_again(path):
    async with hostile(path) as raw:
        client = raw.server.http()
        headers = {"Content-Type": "application/json"}
        created = await client.post("/v1/responses", content=nested(97), headers=headers)
        assert created.status_code == 200
        url = f"/v1/responses/{created.json()['id']}"
        assert (await client.get(url)).json() == created.json()
        assert "response.completed" in (await client.get(f"{url}?stream=true")).text


async def test_messages_of_a_websocket_are_not_compressed(path):
    upgrade = (
        "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Extensions: permessage-deflate",
    )  # fmt: skip
    async with hostile(path) as raw:
        secret = await new_token(raw.server.runtime, "op", roles=("operator",))
        head = raw.head("GET /api/rpc HTTP/1.1", *upgrade)
        async with await raw.connect() as stream:
            await stream.send_all(head.replace(raw.server.secret.encode(), secret.encode()))
            with trio.fail_after(SECONDS):
                answer = await stream.receive_some()
        assert status_of(answer) == 101
        assert b"extensions" not in answer.lower()
