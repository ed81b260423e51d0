"""Clients of the HTTP server that go away at random moments, and retry."""

from __future__ import annotations

import gc
import itertools
import json
import random
import socket
import struct
from collections import Counter
from pathlib import Path

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from hermes import TextDelta
from hermes.adapters.http import HttpConfig
from hermes.adapters.http.turns.logs import TurnLog
from hermes.config import RateLimit
from hermes.store import SessionStore
from tests.support.http import http_server

CLIENTS = 16
RETRIES = 4
MOST = 100_000
"""More bytes than any answer has."""
CONFIG = HttpConfig(port=0, max_streams=1000, rates=RateLimit(per_minute=1e6, burst=100_000))
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing the socket resets the connection."""


@attrs.frozen
class Request:
    """A request, sent until its answer was read or nobody wants it any more."""

    number: int
    stream: bool
    key: str | None

    def head_and_body(self, port, secret, attempt):
        body = {"model": "hermes", "input": f"message {self.number}", "stream": self.stream}
        content = json.dumps(body).encode()
        lines = [
            "POST /v1/responses HTTP/1.1", f"Host: 127.0.0.1:{port}",
            f"Authorization: Bearer {secret}", "Content-Type: application/json",
            f"x-stainless-retry-count: {attempt}", "Connection: close",
            *([] if self.key is None else [f"Idempotency-Key: {self.key}"]),
            f"Content-Length: {len(content)}", "", "",
        ]  # fmt: skip
        return "\r\n".join(lines).encode() + content


@attrs.define
class Storm:
    """Many requests at once, each of which may lose its connection at any moment."""

    port: int
    secret: str
    dice: random.Random
    size: Counter = attrs.Factory(Counter)
    violations: list = attrs.Factory(list)
    numbers: itertools.count = attrs.Factory(itertools.count)

    async def run(self, number):
        """Send so many requests, from several clients at once."""
        waiting = itertools.islice(self.numbers, number)

        async def client():
            for each in waiting:
                key = f"key {each}" if each % 2 else None
                await self.send(Request(each, self.dice.random() < 0.5, key))

        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(client)

    async def send(self, request):
        """Send a request, and retry until an answer was read, or give up."""
        for attempt in range(RETRIES + 1):
            self.size["attempts"] += 1
            patient = attempt == RETRIES and request.key is not None
            answer = await self.attempt(request, attempt, cut=not patient)
            if answer is not None:
                self.answered(request, answer)
                return
            if self.dice.random() < 0.1 and request.key is None:
                self.size["given up"] += 1
                return

    async def attempt(self, request, attempt, *, cut):
        """Return the whole answer, or None if the connection was cut before its end."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        if self.dice.random() < 0.3:
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        content = request.head_and_body(self.port, self.secret, attempt)
        kind = self.dice.choice(["sending", "reading", "waiting", "never"]) if cut else "never"
        try:
            async with stream:
                return await self.exchange(stream, content, kind)
        except trio.BrokenResourceError:
            self.violations.append(f"the server cut {request} {kind}")

    async def exchange(self, stream, content, kind):
        if kind == "sending":
            await stream.send_all(content[: self.dice.randrange(len(content))])
            return None
        await stream.send_all(content)
        if kind == "waiting":
            with trio.move_on_after(self.dice.random() * 0.02):
                await stream.receive_some(1)
            return None
        most = self.dice.randrange(1, 3000) if kind == "reading" else MOST
        received = b""
        while len(received) < most and (piece := await stream.receive_some(most - len(received))):
            received += piece
        return received if kind == "never" else None

    def answered(self, request, answer):
        """An answer must be complete."""
        self.size["answers"] += 1
        expected = f"echo: message {request.number}"
        if b" 200 " not in answer[:20] or expected.encode() not in answer:
            self.violations.append(f"{request}: {answer[-500:]}")
            return
        if request.stream and b"response.completed" not in answer:
            self.violations.append(f"the stream of {request} has no end")


async def speak(turn):
    """An agent that answers in pieces."""
    for piece in ("echo", ": "):
        turn.emit(TextDelta(piece))
        await trio.lowlevel.checkpoint()
    return f"echo: {turn.text}"


async def run_storm(path, number, seed):
    """Send requests whose connections are lost. Returns what happened."""
    async with http_server(path, speak, config=CONFIG) as server:
        storm = Storm(int(server.url.rpartition(":")[2]), server.secret, random.Random(seed))
        await storm.run(20)  # what is loaded late is loaded now
        before = await leftovers(server.runtime)
        await storm.run(number)
        after = await leftovers(server.runtime)
        if any(later > earlier for later, earlier in zip(after, before, strict=True)):
            storm.violations.append(f"descriptors, logs, tasks: {after} instead of {before}")
    storm.violations += stored_violations(path)
    return storm


async def leftovers(runtime):
    """The descriptors, the logs of turns that have not ended, and the tasks, once all is quiet.

    Each conversation in memory has a task.
    """
    while runtime.admin.running_turns():
        await wait_all_tasks_blocked(0.01)
    await wait_all_tasks_blocked(0.1)
    gc.collect()
    logs = [each for each in gc.get_objects() if isinstance(each, TurnLog) and each.reply is None]
    conversations = (await runtime.admin.statistics()).actors
    tasks = trio.lowlevel.current_statistics().tasks_living
    return descriptors(), len(logs), tasks - conversations


def descriptors():
    """The number of open files and sockets of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def stored_violations(path):
    """Yield what is wrong in the file: each accepted message has one turn and one response."""
    with SessionStore(path) as store:

        def ask(sql):
            return store.snapshot(lambda tx: tx.all(sql))

        accepted = ask("SELECT id FROM inbox ORDER BY id")
        responses = ask(
            "SELECT inbox_id, reply ->> '$.text', connection FROM responses ORDER BY inbox_id"
        )
        said = Counter(ask("SELECT content FROM all_messages WHERE role = 'user'"))
        answered = Counter(ask("SELECT content FROM all_messages WHERE role = 'assistant'"))
        yield from store.integrity_check()
    yield from (f"{row} has no end" for row in responses if row[1] is None or row[2] == "open")
    if accepted != [row[:1] for row in responses]:
        yield f"{len(accepted)} messages have {len(responses)} responses"
    replies = Counter(row[1:2] for row in responses)
    if answered != replies or said.total() != answered.total():
        yield f"{len(responses)} responses have {said.total()} turns"
    for (text,), count in said.items():
        if count > 1 and int(text.split()[1]) % 2:
            yield f"{text!r} has a key, and was said {count} times"
