"""A client process: sends requests on raw sockets, and prints what it measured as JSON.

It uses the standard library only, and so little time that the server is what is measured.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import BufferedReader
from urllib.parse import urlencode

from bench.harness.driver import Figures, percentile

QUESTION = "What is the capital of France?"


@dataclass(frozen=True)
class Address:
    """Where a server is, and how it is asked."""

    port: int
    secret: str = "none"
    path: str = "/v1/responses"
    form: bool = False
    """Whether the request is an HTML form instead of JSON."""
    token: str = '"response.output_text.delta"'
    """What the first event with text contains."""
    answer: str = ""
    """What every whole answer contains."""

    def request(self, *, stream: bool) -> bytes:
        """Return a request for an answer in a new conversation."""
        if self.form:
            body = urlencode({"message": QUESTION, "stream": str(stream).lower()})
            return self._head("POST", self.path, "application/x-www-form-urlencoded", body)
        body = json.dumps({"model": "hermes", "input": QUESTION, "stream": stream})
        return self._head("POST", self.path, "application/json", body)

    def _head(self, method: str, path: str, kind: str = "", body: str = "") -> bytes:
        """Return a request with the headers of a usual client."""
        lines = [
            f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}",
            f"Authorization: Bearer {self.secret}", "Accept: */*", "User-Agent: bench",
            *([f"Content-Type: {kind}"] if kind else []), f"Content-Length: {len(body)}", "", body,
        ]  # fmt: skip
        return "\r\n".join(lines).encode()

    def events(self) -> bytes:
        """Return a request for a stream of events."""
        return self._head("GET", "/api/events")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))


def read_head(file: BufferedReader) -> dict[bytes, bytes]:
    """Read the head of a response, which must be 200."""
    status = file.readline()
    if b" 200" not in status:
        raise AssertionError(status + file.read1(1000))
    headers = {}
    while (line := file.readline()).strip():
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    return headers


def read_body(file: BufferedReader) -> Iterator[bytes]:
    """Read a response in the pieces that it was sent in. It must be complete."""
    headers = read_head(file)
    if b"content-length" in headers:
        yield _read(file, int(headers[b"content-length"]))
        return
    while size := int(file.readline() or b"0", 16):
        yield _read(file, size + 2)[:-2]
    _read(file, 2)


def _read(file: BufferedReader, size: int) -> bytes:
    found = file.read(size)
    if len(found) < size:
        raise AssertionError("a response has ended too early")
    return found


def whole(address: Address, file: BufferedReader, started: float) -> tuple[float, int]:
    """Read an answer. Returns the seconds that it took, and its size."""
    body = b"".join(read_body(file))
    taken = time.perf_counter() - started
    if address.answer.encode() not in body:
        raise AssertionError(f"this is not the answer: {body[:1000]!r}")
    return taken, len(body)


def first(address: Address, file: BufferedReader, started: float) -> tuple[float, int]:
    """Read a streamed answer. Returns the seconds to its first token, and its whole size."""
    token, body, taken = address.token.encode(), b"", 0.0
    for piece in read_body(file):
        body += piece
        if not taken and token in body:
            taken = time.perf_counter() - started
    if not taken:
        raise AssertionError(f"no text came: {body[:1000]!r}")
    return taken, len(body)


@dataclass
class Asked:
    """What a client measured."""

    elapsed: float
    taken: list[float]
    size: float = 0.0

    def figures(self) -> Figures:
        return {
            "p50_ms": percentile(self.taken, 0.5) * 1e3,
            "p99_ms": percentile(self.taken, 0.99) * 1e3,
            "rate": len(self.taken) / self.elapsed,
            **({"bytes": self.size} if self.size else {}),
        }


def ask(address: Address, what: str, count: int, clients: int) -> Asked:
    """Ask from several connections at once, and on each of them one request after the other."""
    read = {"whole": whole, "first": first}[what]
    request, done = address.request(stream=what == "first"), []

    def work() -> None:
        with address.connect() as connection, connection.makefile("rb") as file:
            for _ in range(count // clients):
                begun = time.perf_counter()
                connection.sendall(request)
                done.append(read(address, file, begun))

    threads = [threading.Thread(target=work) for _ in range(clients)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - started
    if len(done) != count:
        raise AssertionError(f"{len(done)} of {count} requests were answered")
    return Asked(elapsed, [seconds for seconds, _ in done], sum(size for _, size in done) / count)


def ask_in_rounds(address: Address, what: str, clients: int) -> None:
    """Ask as often as each line of standard input says, and print what was measured."""
    for line in sys.stdin:
        print(json.dumps(asdict(ask(address, what, int(line), clients))), flush=True)


def idle(address: Address, count: int) -> None:
    """Open event streams; keep them until standard input is closed."""
    connections = []
    for _ in range(count):
        connection = address.connect()
        connection.sendall(address.events())
        file = connection.makefile("rb")
        if b"content-length" in read_head(file) or not file.readline():
            raise AssertionError("an event stream has ended")
        connections.append((connection, file))
    print(json.dumps("open"), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    do, address_, number = sys.argv[1:]
    to = Address(**json.loads(address_))
    if do == "idle":
        idle(to, int(number))
    else:
        ask_in_rounds(to, do, int(number))
