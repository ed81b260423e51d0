"""A proxy on a loopback socket before a PostgreSQL server, which can cut its connections."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading

COMMIT = b"COMMIT\0"
COMMITTED = b"Z\0\0\0\x05I"
"""What ends the server's answer to COMMIT: it is idle."""
SIZE = 1 << 16


class CuttingProxy:
    """Passes connections on to a server, and cuts them when and how a test says.

    Use it in a `with` block. All its work is done in one thread.
    """

    def __init__(self, port: int) -> None:
        """`port` is that of the server, on 127.0.0.1."""
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._wake, self._woken = socket.socketpair()
        self._others: dict[socket.socket, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._cut: str | None = None
        self._refusing = self._ended = False
        self.cuts = 0
        """How many connections were cut at a COMMIT."""
        self._done = threading.Condition()
        self._orders = 0
        self._thread = threading.Thread(target=self._run)

    def url(self, database: str) -> str:
        """Return the URL of a database behind the proxy."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def cut_next(self, how: str) -> None:
        """Cut the connection that sends the next COMMIT.

        `before` the server gets it; `after` the server has answered, so that the client does not
        see that; or `during`, at once after passing it on.
        """
        self._cut = how

    def refuse(self, value: bool) -> None:
        """Cut all connections and accept no others, or accept them again."""
        self._refusing = value
        with self._done:
            self._orders += 1
            self._wake.send(b".")
            self._done.wait_for(lambda: not self._orders)

    def _run(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select():
                self._handle(key.fileobj)

    def _handle(self, ready) -> None:
        if ready is self._listener:
            self._accept()
        elif ready is self._woken:
            self._obey()
        elif ready in self._others:
            self._pass_on(ready)

    def _obey(self) -> None:
        self._woken.recv(SIZE)
        if self._refusing:
            for each in list(self._others):
                self._close(each)
        with self._done:
            self._orders = 0
            self._done.notify_all()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = None if self._refusing else socket.create_connection(self._server)
        except OSError:  # it is down
            server = None
        if server is None:
            client.close()
            return
        self._others |= {client: server, server: client}
        for each in (client, server):
            self._selector.register(each, selectors.EVENT_READ, each is client)

    def _pass_on(self, ready: socket.socket) -> None:
        is_client = self._selector.get_key(ready).data
        other = self._others[ready]
        try:
            data = ready.recv(SIZE)
            cut = self._cut if is_client and COMMIT in data else None
            if data and cut != "before":
                other.sendall(data)
            if cut == "after":
                while (answer := other.recv(SIZE)) and not answer.endswith(COMMITTED):
                    pass
        except OSError:
            data, cut = b"", None
        if cut is not None:
            self._cut = None
            self.cuts += 1
        if not data or cut is not None:
            self._close(ready)

    def _close(self, one: socket.socket) -> None:
        for each in (one, self._others.get(one)):
            if each is not None and self._others.pop(each, None) is not None:
                self._selector.unregister(each)
                each.close()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended = True
        self._wake.send(b".")
        self._thread.join()
        for each in [*self._others, self._listener, self._wake, self._woken]:
            with contextlib.suppress(OSError):
                each.close()
        self._selector.close()
