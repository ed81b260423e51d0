"""A client of the JSON-RPC adapter over any two streams, for tests."""

from __future__ import annotations

import itertools
import json
from contextlib import asynccontextmanager, suppress

import trio
import trio.testing

from hermes.adapters.jsonrpc import serve

LATE = 20


class Problem(Exception):
    """An error frame."""

    def __init__(self, error):
        super().__init__(f"{error['code']}: {error['message']}")
        self.code = error["code"]


class Client:
    """Reads all frames; `call` waits for the answer of a request, `event` for an event."""

    def __init__(self, sink, source):
        self.sink = sink
        self.source = source
        self.frames = []
        self.ended = False
        self._ids = itertools.count(1)
        self._news = trio.Event()
        self._read = 0

    async def listen(self):
        left = b""
        try:
            async for chunk in self.source:
                *lines, left = (left + chunk).split(b"\n")
                self.frames += map(json.loads, lines)
                self._tell()
        except trio.ClosedResourceError:
            pass
        self.ended = True
        self._tell()

    def _tell(self):
        self._news.set()
        self._news = trio.Event()

    async def send(self, line):
        await self.sink.send_all(line if isinstance(line, bytes) else json.dumps(line).encode())
        await self.sink.send_all(b"\n")

    async def ask(self, method, /, **params):
        """Send a request and do not wait; returns its id."""
        number = next(self._ids)
        frame = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        await self.send(frame)
        return number

    async def answer(self, number):
        frame = await self.wait(lambda frame: frame.get("id") == number)
        if "error" in frame:
            raise Problem(frame["error"])
        return frame["result"]

    async def call(self, method, /, **params):
        return await self.answer(await self.ask(method, **params))

    async def wait(self, wanted, start=0):
        with trio.fail_after(LATE):
            while True:
                for place, frame in enumerate(self.frames[start:], start):
                    if wanted(frame):
                        self.place = place
                        return frame
                start = len(self.frames)
                if self.ended:
                    raise AssertionError(f"the connection ended: {self.frames[-3:]}")
                await self._news.wait()

    async def wait_end(self):
        """Wait until the connection has ended."""
        while not self.ended:
            await self._news.wait()

    async def event(self, kind, session=None):
        """The next event of this kind, after those that were waited for before."""
        frame = await self.wait(
            lambda frame: (
                frame.get("method") == "event"
                and frame["params"]["type"] == kind
                and session in {None, frame["params"]["session_id"]}
            ),
            self._read,
        )
        self._read = self.place + 1
        return frame["params"]["payload"]

    def events(self, session=None):
        """Types and payloads of all events so far, but for the greeting."""
        found = [frame["params"] for frame in self.frames if frame.get("method") == "event"]
        return [
            (each["type"], each["payload"])
            for each in found
            if each["type"] != "gateway.ready" and session in {None, each["session_id"]}
        ]

    @property
    def numbers(self):
        """The number of every frame, in the order in which they came."""
        return [frame["params"]["seq"] if "method" in frame else frame["seq"]
                for frame in self.frames]  # fmt: skip


@asynccontextmanager
async def connected(runtime, **options):
    """A client of a runtime, in one process."""
    ours, theirs = trio.testing.memory_stream_pair()
    client = Client(ours, ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.listen)
        nursery.start_soon(lambda: _serve(runtime, theirs, options))
        try:
            yield client
        finally:
            with suppress(trio.BrokenResourceError):
                await ours.send_eof()
            with trio.move_on_after(LATE):
                await client.wait_end()
            nursery.cancel_scope.cancel()


async def _serve(runtime, stream, options):
    await serve(runtime, stream, stream, **options)
    await stream.aclose()
