"""A client of the JSON-RPC adapter over any two streams."""

from __future__ import annotations

import itertools
import json
from contextlib import asynccontextmanager, suppress

import trio
import trio.testing

from hermes.adapters.jsonrpc import serve

TIMEOUT = 20


class Problem(Exception):
    """An error response."""

    def __init__(self, error):
        super().__init__(f"{error['code']}: {error['message']}")
        self.code = error["code"]


class Client:
    """Reads all frames; `call` waits for the response to a request, `event` for an event."""

    def __init__(self, sink, source):
        self.sink = sink
        self.source = source
        self.frames = []
        self.ended = False
        self._ids = itertools.count(1)
        self._changed = trio.Event()
        self._next_index = 0

    async def listen(self):
        """Read frames until the connection ends."""
        partial = b""
        try:
            async for chunk in self.source:
                *lines, partial = (partial + chunk).split(b"\n")
                self.frames += map(json.loads, lines)
                self._notify()
        except trio.ClosedResourceError:
            pass
        self.ended = True
        self._notify()

    def _notify(self):
        self._changed.set()
        self._changed = trio.Event()

    async def send(self, line):
        await self.sink.send_all(line if isinstance(line, bytes) else json.dumps(line).encode())
        await self.sink.send_all(b"\n")

    async def request(self, method, /, **params):
        """Send a request without waiting for the response; returns its id."""
        request_id = next(self._ids)
        frame = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        await self.send(frame)
        return request_id

    async def response(self, request_id):
        """The result of a request; raises `Problem` for an error."""
        frame = await self.wait(lambda frame: frame.get("id") == request_id)
        if "error" in frame:
            raise Problem(frame["error"])
        return frame["result"]

    async def call(self, method, /, **params):
        return await self.response(await self.request(method, **params))

    async def wait(self, wanted, start=0):
        """The first frame, from index `start` on, for which `wanted` is true."""
        with trio.fail_after(TIMEOUT):
            while True:
                for index, frame in enumerate(self.frames[start:], start):
                    if wanted(frame):
                        self.index = index
                        return frame
                start = len(self.frames)
                if self.ended:
                    raise AssertionError(f"the connection ended: {self.frames[-3:]}")
                await self._changed.wait()

    async def wait_end(self):
        """Wait until the connection has ended."""
        while not self.ended:
            await self._changed.wait()

    async def event(self, kind, session=None):
        """The next event of this kind, after the event that was returned before."""
        frame = await self.wait(
            lambda frame: (
                frame.get("method") == "event"
                and frame["params"]["type"] == kind
                and session in {None, frame["params"]["session_id"]}
            ),
            self._next_index,
        )
        self._next_index = self.index + 1
        return frame["params"]["payload"]

    async def answer_to(self, message_id):
        """The `message.complete` of this message, which may have come before."""
        frame = await self.wait(
            lambda frame: (
                frame.get("params", {}).get("type") == "message.complete"
                and message_id in frame["params"]["payload"]["message_ids"]
            )
        )
        return frame["params"]["payload"]

    def events(self, session=None):
        """Types and payloads of all events so far, except for `gateway.ready`."""
        events = [frame["params"] for frame in self.frames if frame.get("method") == "event"]
        return [
            (each["type"], each["payload"])
            for each in events
            if each["type"] != "gateway.ready" and session in {None, each["session_id"]}
        ]

    def forget(self):
        """Drop the frames received so far."""
        self.frames.clear()
        self._next_index = 0

    @property
    def numbers(self):
        """The sequence numbers of all frames, in order of arrival."""
        return [sequence_number(frame) for frame in self.frames]


def sequence_number(frame):
    return frame["seq"] if "seq" in frame else frame["params"]["seq"]


@asynccontextmanager
async def connected(runtime, **options):
    """A client of a runtime in the same process; `options` are those of `serve`."""
    ours, theirs = trio.testing.memory_stream_pair()
    client = Client(ours, ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.listen)
        nursery.start_soon(lambda: serve_and_close(runtime, theirs, **options))
        try:
            yield client
        finally:
            with suppress(trio.BrokenResourceError):
                await ours.send_eof()
            with trio.move_on_after(TIMEOUT):
                await client.wait_end()
            nursery.cancel_scope.cancel()


async def serve_and_close(runtime, stream, **options):
    """Serve one client over a stream, and close the stream."""
    await serve(runtime, stream, stream, **options)
    await stream.aclose()
