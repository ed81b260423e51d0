"""Requests on raw sockets, so that a test chooses when a connection is cut."""

from __future__ import annotations

import json
import re
import time
from contextlib import asynccontextmanager

import trio

from hermes.messages import Receipt

PATIENCE = 60.0


def request_bytes(server, body, *, retry=0, key=None, path="/v1/responses"):
    """A POST request with a JSON body."""
    data = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1", f"Host: {server.url.removeprefix('http://')}",
        f"Authorization: Bearer {server.secret}", "Content-Type: application/json",
        f"Content-Length: {len(data)}", f"x-stainless-retry-count: {retry}",
    ]  # fmt: skip
    if key is not None:
        lines.append(f"Idempotency-Key: {key}")
    return "\r\n".join([*lines, "", ""]).encode() + data


@asynccontextmanager
async def connect(server):
    """A connection that is closed when the block ends."""
    host, port = server.url.removeprefix("http://").split(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        yield stream


async def post(server, body, **options):
    """Send a request, and return the status and the JSON of its response."""
    async with connect(server) as stream:
        await stream.send_all(request_bytes(server, body, **options))
        return await read_response(stream)


async def read_response(stream):
    """Read a plain response: its status and JSON."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await _more(stream)
    head, _, rest = data.partition(b"\r\n\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:])
    while len(rest) < int(headers["content-length"]):
        rest += await _more(stream)
    return int(head.split()[1]), json.loads(rest)


def request_of_stream(server, path):
    """A GET request."""
    host = server.url.removeprefix("http://")
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {server.secret}"]
    return "\r\n".join([*lines, "", ""]).encode()


async def read_events(stream, last):
    """Read server-sent events up to the first one of the type `last`."""
    data = b""
    while True:
        data += await _more(stream)
        lines = re.findall(rb"^data: (.*)\n\n", data, re.MULTILINE)
        events = [json.loads(line) for line in lines]
        if any(event["type"] == last for event in events):
            return events


async def _more(stream):
    data = await stream.receive_some()
    if not data:
        raise EOFError("the server closed the connection")
    return data


async def stored_responses(runtime, count=10):
    """The responses in the store, oldest first."""
    found = [
        await runtime.api.response_to(Receipt(inbox_id, "", "", 0, 0.0))
        for inbox_id in range(1, count)
    ]
    return [each for each in found if each is not None]


async def until_connections(runtime, *wanted):
    """Wait until the connections of all responses are in these states, and return the responses."""
    until = time.monotonic() + PATIENCE  # not on the clock of the test, which may be virtual
    while True:
        found = await stored_responses(runtime)
        if sorted(each.connection for each in found) == sorted(wanted):
            return found
        assert time.monotonic() < until, [each.connection for each in found]
        await trio.lowlevel.checkpoint()
